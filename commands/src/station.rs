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

use crate::hop::{LINK_WINDOW, Message, OVERHEAD, RING_PIECES};
use crate::options::Options;
use crate::post::{Failure, Machine, Post};

/// How long to sleep when a ring is full: PM tells of messages, never of room. Machines keep
/// within what rings hold, so this is rare.
const FULL_RING_MS: u16 = 1;

/// Every device carries messages of that many bytes (`PM_MIN_MTU`).
const LEAST_MTU: usize = 1024;

/// This node's end of the network, if there is more than one node.
pub struct Station {
    net: Option<Net>,
    place: Place,
    starved: bool,
}

impl Station {
    fn open(place: Place) -> Self {
        Self { net: Net::open(0), place, starved: false }
    }

    /// Runs one node's part to its end. Sleeps whenever there is nothing to do.
    ///
    /// # Errors
    /// The node cannot go on.
    pub fn run(&mut self, machine: &mut dyn Machine) -> Result<(), Failure> {
        loop {
            while !machine.finished() && self.step(machine)? {}
            if machine.finished() {
                return Ok(());
            }
            let armed = |error| Failure::Network("pmBeforeSelect", error);
            self.net.as_ref().map_or(Ok(()), Net::before_select).map_err(armed)?;
            // What came before arming rings no bell: look once more.
            if !self.step(machine)? && !machine.finished() {
                self.sleep(machine)?;
            }
            let disarmed = |error| Failure::Network("pmAfterSelect", error);
            self.net.as_ref().map_or(Ok(()), Net::after_select).map_err(disarmed)?;
        }
    }

    fn step(&mut self, machine: &mut dyn Machine) -> Result<bool, Failure> {
        self.starved = false;
        machine.step(self)
    }

    fn sleep(&self, machine: &dyn Machine) -> Result<(), Failure> {
        let network = self.net.as_ref().map_or(Ok(Vec::new()), Net::descriptors);
        let network = network.map_err(|error| Failure::Network("pmGetFd", error))?;
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waited: Vec<PollFd<'_>> = network.into_iter().map(readable).collect();
        waited.extend(machine.input().map(readable));
        waited.extend(machine.output().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        let (input, output) = (machine.input().is_some(), machine.output().is_some());
        // Idle means: only a message of this parallel process can help (manual 3.5.2). One that
        // waits for its input may be waiting for a user.
        let idle = !input && !output && !self.starved;
        if idle {
            score_runtime::become_idle();
        }
        let timeout =
            if self.starved { PollTimeout::from(FULL_RING_MS) } else { PollTimeout::NONE };
        let slept = poll(&mut waited, timeout);
        if idle {
            score_runtime::become_busy();
        }
        match slept {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(Failure::Network("poll", error.into())),
        }
    }
}

impl Post for Station {
    fn piece(&self, node: u32) -> usize {
        // A node that cannot be reached fails at the first message, with PM's own reason.
        let mtu = self.net.as_ref().and_then(|net| net.mtu(node as usize).ok());
        mtu.unwrap_or(LEAST_MTU) - OVERHEAD
    }

    fn window(&self, node: u32) -> usize {
        let ring = self.piece(node) * RING_PIECES;
        if self.place.shares_host_with(node) { ring } else { ring.max(LINK_WINDOW) }
    }

    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, Failure> {
        let Some(net) = &self.net else {
            return Err(Failure::Network("pmSend", io::ErrorKind::NotConnected.into()));
        };
        let sent = net.try_send_with(node as usize, message.len(), |room| message.write(room));
        let sent = sent.map_err(|error| Failure::Network("pmSend", error))?;
        self.starved |= !sent;
        Ok(sent)
    }

    fn receive(
        &mut self,
        take: &mut dyn FnMut(Message<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let Some(net) = &self.net else { return Ok(false) };
        let received = net.try_receive().map_err(|error| Failure::Network("pmReceive", error))?;
        let Some(bytes) = received else { return Ok(false) };
        take(Message::read(&bytes)?)?;
        Ok(true)
    }
}

/// Standard input, as a file that answers `WouldBlock`.
///
/// # Errors
/// No descriptor to be had.
pub fn standard_input() -> Result<File, Failure> {
    patient(io::stdin().as_fd(), "standard input")
}

/// Standard output, likewise. Under scrun both are pipes of this process alone, so nobody else is
/// surprised by the mode.
///
/// # Errors
/// No descriptor to be had.
pub fn standard_output() -> Result<File, Failure> {
    patient(io::stdout().as_fd(), "standard output")
}

fn patient(fd: BorrowedFd<'_>, what: &str) -> Result<File, Failure> {
    let file = fd.try_clone_to_owned().map_err(|error| Failure::Io(what.into(), error))?;
    if let Ok(flags) = fcntl(&file, FcntlArg::F_GETFL) {
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        // What has no such mode (a file) never waits either.
        let _ = fcntl(&file, FcntlArg::F_SETFL(flags));
    }
    Ok(file.into())
}

/// Where this process stands (manual, table 2.1).
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// This node.
    pub node: u32,
    /// Nodes.
    pub nodes: u32,
    /// Process on this host.
    pub process: u32,
    /// Processes on this host.
    pub processes: u32,
}

impl Place {
    /// After score_initialize.
    pub fn here() -> Self {
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
        let first = self.node.saturating_sub(self.process);
        (first..first.saturating_add(self.processes)).contains(&node)
    }
}

/// Whether scrun has started this process as a node.
pub fn under_scrun() -> bool {
    std::env::var_os(score_proto::env::CONTROL_FD).is_some()
}

/// The life of a command that must be invoked by scrun: starts SCore, reads the options, runs
/// `part`.
pub fn command(
    name: &str,
    usage: &str,
    part: impl FnOnce(&mut Station, Place, &Options) -> Result<(), Failure>,
) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !under_scrun() {
        if args.iter().any(|word| word == "-help" || word == "--help") {
            print!("{usage}");
            return ExitCode::SUCCESS;
        }
        eprintln!("{name}: must be invoked by scrun, as in: scrun -nodes=4 {name}");
        return ExitCode::from(2);
    }
    score_runtime::initialize();
    let place = Place::here();
    // All nodes see the same words; one speaks for all, and its code is the command's.
    let first = place.node == 0;
    match Options::parse(args, place.nodes) {
        Err(error) if first => {
            eprintln!("{name}: {error}");
            ExitCode::from(2)
        }
        Err(_) => ExitCode::SUCCESS,
        Ok(options) if options.help => {
            if first {
                print!("{usage}");
            }
            ExitCode::SUCCESS
        }
        Ok(options) => match part(&mut Station::open(place), place, &options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{name}: node {}: {failure}", place.node);
                sc::exit(1)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_a_host_are_those_around_its_own() {
        let place = Place { node: 5, nodes: 9, process: 1, processes: 3 };
        let here: Vec<u32> = (0..9).filter(|node| place.shares_host_with(*node)).collect();
        assert_eq!(here, [4, 5, 6]);
    }
}
