//! The communication with one debugger, in gdb's remote serial protocol.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gdbstub::conn::Connection;
use gdbstub::stub::GdbStub;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};

use super::rank::{Rank, RankError};
use super::target::RankTarget;
use super::thread_local::{self, ThreadLocalQuestion};

/// Maximum length of a packet in bytes.
const MAX_PACKET_LEN: usize = 32 << 10;

/// How long a debugger may take to acknowledge the last packet, in milliseconds.
const ACKNOWLEDGEMENT_TIMEOUT: u16 = 200;

/// The connection to a debugger: the input for its packets, and the output for the answers.
#[derive(Debug)]
pub struct Debugger {
    input: OwnedFd,
    output: OwnedFd,
    unsent: Vec<u8>,
}

impl Debugger {
    /// Takes the two ends of the connection.
    pub fn new(input: OwnedFd, output: OwnedFd) -> Self {
        Self { input, output, unsent: Vec::new() }
    }

    /// Reads the bytes that the debugger has sent. Returns no bytes if it has closed the
    /// connection.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_PACKET_LEN];
        loop {
            match read(&self.input, &mut bytes) {
                Ok(length) => {
                    bytes.truncate(length);
                    return Ok(bytes);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok(Vec::new()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Debugger {
    /// Waits for the acknowledgement of the last packet. Without this wait, the debugger would get
    /// EPIPE for the acknowledgement, and report an error of the connection. The content is
    /// ignored.
    fn await_acknowledgement(&self) {
        let mut fds = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, ACKNOWLEDGEMENT_TIMEOUT).is_ok_and(|count| count > 0) {
            let _ = self.receive();
        }
    }

    /// Sends bytes after all bytes of gdbstub.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }
}

impl Connection for Debugger {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.unsent.push(byte);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.unsent.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut bytes = &self.unsent[..];
        while !bytes.is_empty() {
            match write(&self.output, bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.unsent.clear();
        Ok(())
    }
}

const DEBUGGER: &str = "debugger: ";

fn debugger_error(error: io::Error) -> String {
    format!("{DEBUGGER}{error}")
}

/// Whether the debugger has failed, and not the rank.
pub fn is_of_debugger(error: &str) -> bool {
    error.starts_with(DEBUGGER)
}

/// Waits for data from the debugger or the service. Returns whether the debugger has sent data.
fn wait(debugger: &Debugger, rank: &mut Rank) -> Result<bool, String> {
    let service = rank.wait_fd().map_err(|error| RankError::Io(error).to_string())?;
    loop {
        let mut fds = [
            PollFd::new(debugger.input.as_fd(), PollFlags::POLLIN),
            PollFd::new(service, PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => return Ok(fds[0].any().unwrap_or(true)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(debugger_error(errno.into())),
        }
    }
}

/// The packet `c`, with which lldb lets all threads continue, and the equivalent vCont packet.
const CONTINUE: &[u8] = b"$c#63";
const CONTINUE_ALL: &[u8] = b"$vCont;c#a8";

/// Replaces the packet `c`, because gdbstub would apply it only to the thread of the last stop. No
/// other packet contains these bytes, because `$` and `#` are escaped in packets.
fn with_all_threads(bytes: Vec<u8>) -> Vec<u8> {
    match bytes.windows(CONTINUE.len()).position(|part| part == CONTINUE) {
        Some(place) => {
            let (before, after) = (&bytes[..place], &bytes[place + CONTINUE.len()..]);
            [before, CONTINUE_ALL, after].concat()
        }
        None => bytes,
    }
}

/// After this packet, neither side acknowledges packets.
const NO_ACKNOWLEDGEMENTS: &[u8] = b"$QStartNoAckMode#b0";

/// Bytes that the debugger has sent and that are not yet handled.
#[derive(Debug, Default)]
struct Unread {
    bytes: Vec<u8>,
    next: usize,
    /// Whether the debugger expects no acknowledgements.
    is_unacknowledged: bool,
}

impl Unread {
    fn pop(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.next).copied()?;
        self.next += 1;
        Some(byte)
    }

    /// Reads more bytes. Returns false if the debugger has closed the connection.
    fn fill(&mut self, debugger: &Debugger) -> io::Result<bool> {
        let bytes = debugger.receive()?;
        self.is_unacknowledged |= bytes.ends_with(NO_ACKNOWLEDGEMENTS);
        (self.bytes, self.next) = (with_all_threads(bytes), 0);
        Ok(!self.bytes.is_empty())
    }

    /// Takes a question for a thread-local variable, which gdbstub would not answer. A debugger
    /// sends such a packet alone, because it waits for the reply.
    fn take_thread_local_question(&mut self) -> Option<Option<ThreadLocalQuestion>> {
        let (question, length) = ThreadLocalQuestion::take(&self.bytes[self.next..])?;
        self.next += length;
        Some(question)
    }
}

/// Serves a debugger until it detaches or disconnects. The rank may be stopped at that time. When
/// the connection to the service ends, the service undoes the debugger's changes, and the rank
/// continues.
///
/// # Errors
/// One line: an error of the protocol or of the service.
pub fn serve(debugger: Debugger, target: &mut RankTarget) -> Result<(), String> {
    let stub = GdbStub::builder(debugger).packet_buffer_size(MAX_PACKET_LEN).build();
    let stub = stub.map_err(|error| error.to_string())?;
    let mut machine = stub.run_state_machine(target).map_err(|error| error.to_string())?;
    let mut unread = Unread::default();
    loop {
        let next = match machine {
            GdbStubStateMachine::Idle(mut idle) => match unread.take_thread_local_question() {
                Some(question) => {
                    let address = match question {
                        Some(question) => target.thread_local_address(question),
                        None => Ok(None),
                    };
                    let address = address.map_err(|error| error.to_string())?;
                    let acknowledgement = if unread.is_unacknowledged { &b""[..] } else { b"+" };
                    let reply = [acknowledgement, &thread_local::reply(address)].concat();
                    idle.borrow_conn().send(&reply).map_err(debugger_error)?;
                    Ok(idle.into())
                }
                None => match unread.pop() {
                    Some(byte) => idle.incoming_data(target, byte),
                    None if unread.fill(idle.borrow_conn()).map_err(debugger_error)? => {
                        Ok(idle.into())
                    }
                    None => return Ok(()),
                },
            },
            GdbStubStateMachine::Running(mut running) => {
                let stop = target.run.next_stop().map_err(|error| error.to_string())?;
                match (stop, unread.pop()) {
                    (Some(stop), byte) => {
                        // The byte is handled in the next state.
                        unread.next -= usize::from(byte.is_some());
                        running.report_stop(target, stop)
                    }
                    (None, Some(byte)) => running.incoming_data(target, byte),
                    (None, None) => {
                        let debugger = running.borrow_conn();
                        if wait(debugger, &mut target.run.rank)?
                            && !unread.fill(debugger).map_err(debugger_error)?
                        {
                            return Ok(());
                        }
                        Ok(running.into())
                    }
                }
            }
            GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                let stop = target.run.interrupt().map_err(|error| error.to_string())?;
                interrupt.interrupt_handled(target, stop)
            }
            GdbStubStateMachine::Disconnected(mut end) => {
                if !unread.is_unacknowledged {
                    end.borrow_conn().await_acknowledgement();
                }
                return Ok(());
            }
        };
        machine = next.map_err(|error| error.to_string())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_continue_is_for_all_threads() {
        let sent = |bytes: &[u8]| with_all_threads(bytes.to_vec());
        assert_eq!(sent(b"+$c#63"), b"+$vCont;c#a8");
        assert_eq!(sent(b"$c#63\x03"), b"$vCont;c#a8\x03");
        assert_eq!(sent(b"$vCont;c:1#dd"), b"$vCont;c:1#dd");
        let sum = CONTINUE_ALL[1..8].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum, 0xa8);
    }
}
