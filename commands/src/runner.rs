//! Runs the node tasks of scatter and gather. It starts and ends SCore, opens the network set, and
//! has the only function in which a node sleeps.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_proto::exit_code::EXIT_USAGE;
use score_runtime::{Net, sc};

use crate::node_protocol::{HEADER_LEN, LINK_WINDOW, MIN_RING_MESSAGES, Message};
use crate::options::NodeOptions;
use crate::transport::{NodeError, NodeTask, Transport};

/// Interval for retries if a ring is full. PM notifies of messages but not of free slots. Retries
/// are rare, because node tasks do not send more than fits into the rings.
const RING_FULL_RETRY_INTERVAL_MS: u16 = 1;

/// The length of messages that every device supports (`PM_MIN_MTU`).
const MIN_MTU: usize = 1024;

/// Runs the task of this node. There is a network if there is more than one node.
pub struct NodeRunner {
    net: Option<Net>,
    identity: NodeIdentity,
    send_blocked: bool,
}

impl NodeRunner {
    fn open(identity: NodeIdentity) -> Self {
        Self { net: Net::open(0), identity, send_blocked: false }
    }

    /// Runs the task of a node to its end. Sleeps while the task has nothing to do.
    ///
    /// # Errors
    /// Returns an error if the node cannot continue.
    pub fn run(&mut self, task: &mut dyn NodeTask) -> Result<(), NodeError> {
        loop {
            while !task.is_finished() && self.step(task)? {}
            if task.is_finished() {
                return Ok(());
            }
            let arm_error = |error| NodeError::Network("pmBeforeSelect", error);
            self.net.as_ref().map_or(Ok(()), Net::before_select).map_err(arm_error)?;
            // A message that arrived before pmBeforeSelect causes no wake-up, so check once more.
            if !self.step(task)? && !task.is_finished() {
                self.sleep(task)?;
            }
            let disarm_error = |error| NodeError::Network("pmAfterSelect", error);
            self.net.as_ref().map_or(Ok(()), Net::after_select).map_err(disarm_error)?;
        }
    }

    fn step(&mut self, task: &mut dyn NodeTask) -> Result<bool, NodeError> {
        self.send_blocked = false;
        task.step(self)
    }

    fn sleep(&self, task: &dyn NodeTask) -> Result<(), NodeError> {
        let network = self.net.as_ref().map_or(Ok(Vec::new()), Net::descriptors);
        let network = network.map_err(|error| NodeError::Network("pmGetFd", error))?;
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut poll_fds: Vec<PollFd<'_>> = network.into_iter().map(readable).collect();
        poll_fds.extend(task.input_fd().map(readable));
        poll_fds.extend(task.output_fd().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        let (input, output) = (task.input_fd().is_some(), task.output_fd().is_some());
        // A node is idle if only a message of this parallel process can wake it (manual 3.5.2). A
        // node that waits for its input may be waiting for a user.
        let idle = !input && !output && !self.send_blocked;
        if idle {
            score_runtime::become_idle();
        }
        let timeout = if self.send_blocked {
            PollTimeout::from(RING_FULL_RETRY_INTERVAL_MS)
        } else {
            PollTimeout::NONE
        };
        let result = poll(&mut poll_fds, timeout);
        if idle {
            score_runtime::become_busy();
        }
        match result {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(NodeError::Network("poll", error.into())),
        }
    }
}

impl Transport for NodeRunner {
    fn max_payload(&self, node: u32) -> usize {
        // If the node cannot be reached, its first message fails with PM's own error.
        let mtu = self.net.as_ref().and_then(|net| net.mtu(node as usize).ok());
        mtu.unwrap_or(MIN_MTU) - HEADER_LEN
    }

    fn window(&self, node: u32) -> usize {
        let ring = self.max_payload(node) * MIN_RING_MESSAGES;
        if self.identity.shares_host_with(node) { ring } else { ring.max(LINK_WINDOW) }
    }

    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, NodeError> {
        let Some(net) = &self.net else {
            return Err(NodeError::Network("pmSend", io::ErrorKind::NotConnected.into()));
        };
        let sent = net.try_send_with(node as usize, message.len(), |buffer| message.write(buffer));
        let sent = sent.map_err(|error| NodeError::Network("pmSend", error))?;
        self.send_blocked |= !sent;
        Ok(sent)
    }

    fn receive(
        &mut self,
        on_message: &mut dyn FnMut(Message<'_>) -> Result<(), NodeError>,
    ) -> Result<bool, NodeError> {
        let Some(net) = &self.net else { return Ok(false) };
        let received = net.try_receive().map_err(|error| NodeError::Network("pmReceive", error))?;
        let Some(bytes) = received else { return Ok(false) };
        on_message(Message::read(&bytes)?)?;
        Ok(true)
    }
}

/// Standard input, as a non-blocking file.
///
/// # Errors
/// Returns an error if no descriptor is available.
pub fn standard_input() -> Result<File, NodeError> {
    nonblocking_file(io::stdin().as_fd(), "standard input")
}

/// Standard output, as a non-blocking file. Under scrun both streams are pipes of this process
/// alone, so the mode does not affect other processes.
///
/// # Errors
/// Returns an error if no descriptor is available.
pub fn standard_output() -> Result<File, NodeError> {
    nonblocking_file(io::stdout().as_fd(), "standard output")
}

fn nonblocking_file(fd: BorrowedFd<'_>, name: &str) -> Result<File, NodeError> {
    let file = fd.try_clone_to_owned().map_err(|error| NodeError::Io(name.into(), error))?;
    if let Ok(flags) = fcntl(&file, FcntlArg::F_GETFL) {
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        // Regular files ignore the mode, but they never block.
        let _ = fcntl(&file, FcntlArg::F_SETFL(flags));
    }
    Ok(file.into())
}

/// The numbers of this process in its parallel process and on its host (manual, table 2.1).
#[derive(Debug, Clone, Copy)]
pub struct NodeIdentity {
    /// The number of this node.
    pub node: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of this process on its host.
    pub process: u32,
    /// Number of processes on this host.
    pub processes: u32,
}

impl NodeIdentity {
    /// The identity of this process. Valid after score_initialize.
    pub fn current() -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            node: number(score_runtime::self_node()),
            nodes: number(score_runtime::num_node()),
            process: number(score_runtime::self_proc()),
            processes: number(score_runtime::num_proc()),
        }
    }

    /// Whether the node is on this host. Nodes of a host have consecutive numbers.
    pub fn shares_host_with(&self, node: u32) -> bool {
        let first_node = self.node.saturating_sub(self.process);
        (first_node..first_node.saturating_add(self.processes)).contains(&node)
    }
}

/// Whether scrun has started this process as a node.
pub fn is_under_scrun() -> bool {
    std::env::var_os(score_proto::env::CONTROL_FD_ENV).is_some()
}

/// The main function of a command that must be invoked by scrun: starts SCore, parses the options
/// and calls `run_node`.
pub fn run_command(
    name: &str,
    usage: &str,
    run_node: impl FnOnce(&mut NodeRunner, NodeIdentity, &NodeOptions) -> Result<(), NodeError>,
) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !is_under_scrun() {
        if args.iter().any(|word| word == "-help" || word == "--help") {
            print!("{usage}");
            return ExitCode::SUCCESS;
        }
        eprintln!("{name}: must be invoked by scrun, as in: scrun -nodes=4 {name}");
        return ExitCode::from(EXIT_USAGE);
    }
    score_runtime::initialize();
    let identity = NodeIdentity::current();
    // All nodes have the same arguments. Node 0 reports for all of them, with the exit code of the
    // command.
    let is_first = identity.node == 0;
    match NodeOptions::parse(args, identity.nodes) {
        Err(error) if is_first => {
            eprintln!("{name}: {error}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(_) => ExitCode::SUCCESS,
        Ok(options) if options.help => {
            if is_first {
                print!("{usage}");
            }
            ExitCode::SUCCESS
        }
        Ok(options) => match run_node(&mut NodeRunner::open(identity), identity, &options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{name}: node {}: {error}", identity.node);
                sc::exit(1)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_a_host_are_consecutive() {
        let identity = NodeIdentity { node: 5, nodes: 9, process: 1, processes: 3 };
        let local_nodes: Vec<u32> =
            (0..9).filter(|node| identity.shares_host_with(*node)).collect();
        assert_eq!(local_nodes, [4, 5, 6]);
    }
}
