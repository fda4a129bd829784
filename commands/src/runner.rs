//! Where the machines of scatter and gather meet the world: SCore's start and end, the network
//! set, and the one place where a node sleeps.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_runtime::{Net, sc};

use crate::node_protocol::{HEADER_LEN, LINK_WINDOW, MIN_RING_MESSAGES, Message};
use crate::options::NodeOptions;
use crate::transport::{NodeError, NodeTask, Transport};

/// How long to sleep when a ring is full: PM tells of messages, never of room. Machines keep
/// within what rings hold, so this is rare.
const RING_FULL_RETRY_INTERVAL_MS: u16 = 1;

/// Every device carries messages of that many bytes (`PM_MIN_MTU`).
const MIN_MTU: usize = 1024;

/// This node's end of the network, if there is more than one node.
pub struct NodeRunner {
    net: Option<Net>,
    identity: NodeIdentity,
    send_blocked: bool,
}

impl NodeRunner {
    fn open(identity: NodeIdentity) -> Self {
        Self { net: Net::open(0), identity, send_blocked: false }
    }

    /// Runs one node's part to its end. Sleeps whenever there is nothing to do.
    ///
    /// # Errors
    /// The node cannot go on.
    pub fn run(&mut self, task: &mut dyn NodeTask) -> Result<(), NodeError> {
        loop {
            while !task.is_finished() && self.step(task)? {}
            if task.is_finished() {
                return Ok(());
            }
            let arm_error = |error| NodeError::Network("pmBeforeSelect", error);
            self.net.as_ref().map_or(Ok(()), Net::before_select).map_err(arm_error)?;
            // What came before arming rings no bell: look once more.
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
        // Idle means: only a message of this parallel process can help (manual 3.5.2). One that
        // waits for its input may be waiting for a user.
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
        // A node that cannot be reached fails at the first message, with PM's own reason.
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

/// Standard input, as a file that answers `WouldBlock`.
///
/// # Errors
/// No descriptor to be had.
pub fn standard_input() -> Result<File, NodeError> {
    nonblocking_file(io::stdin().as_fd(), "standard input")
}

/// Standard output, likewise. Under scrun both are pipes of this process alone, so nobody else is
/// surprised by the mode.
///
/// # Errors
/// No descriptor to be had.
pub fn standard_output() -> Result<File, NodeError> {
    nonblocking_file(io::stdout().as_fd(), "standard output")
}

fn nonblocking_file(fd: BorrowedFd<'_>, name: &str) -> Result<File, NodeError> {
    let file = fd.try_clone_to_owned().map_err(|error| NodeError::Io(name.into(), error))?;
    if let Ok(flags) = fcntl(&file, FcntlArg::F_GETFL) {
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        // What has no such mode (a file) never waits either.
        let _ = fcntl(&file, FcntlArg::F_SETFL(flags));
    }
    Ok(file.into())
}

/// Where this process stands (manual, table 2.1).
#[derive(Debug, Clone, Copy)]
pub struct NodeIdentity {
    /// This node.
    pub node: u32,
    /// Nodes.
    pub nodes: u32,
    /// Process on this host.
    pub process: u32,
    /// Processes on this host.
    pub processes: u32,
}

impl NodeIdentity {
    /// After score_initialize.
    pub fn current() -> Self {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            node: number(score_runtime::self_node()),
            nodes: number(score_runtime::num_node()),
            process: number(score_runtime::self_proc()),
            processes: number(score_runtime::num_proc()),
        }
    }

    /// Whether that node is on this host: the nodes of a host follow one another.
    pub fn shares_host_with(&self, node: u32) -> bool {
        let first_node = self.node.saturating_sub(self.process);
        (first_node..first_node.saturating_add(self.processes)).contains(&node)
    }
}

/// Whether scrun has started this process as a node.
pub fn is_under_scrun() -> bool {
    std::env::var_os(score_proto::env::CONTROL_FD_ENV).is_some()
}

/// The life of a command that must be invoked by scrun: starts SCore, reads the options, runs
/// `run_node`.
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
        return ExitCode::from(2);
    }
    score_runtime::initialize();
    let identity = NodeIdentity::current();
    // All nodes see the same words; one speaks for all, and its code is the command's.
    let is_first = identity.node == 0;
    match NodeOptions::parse(args, identity.nodes) {
        Err(error) if is_first => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
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
