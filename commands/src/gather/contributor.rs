//! A node of `gather` other than the collecting node.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use crate::gather::COLLECTOR;
use crate::gather::spool::{CHUNK_LEN, Spool};
use crate::node_protocol::Message;
use crate::transport::{IoProgress, NodeError, NodeTask, Transport, try_read};

/// The use of the node's input.
enum InputMode {
    /// The node sends its input to the collector when it is this node's turn. If `read_ahead` is
    /// set, it also reads the input before its turn.
    Forward { spool: Spool, read_ahead: bool, warned: bool },
    /// The input is not requested. The node reads and drops it, so that the program on the left
    /// does not block.
    Discard,
}

/// A node that sends its input to the collector.
pub struct Contributor<R> {
    name: String,
    input: R,
    input_name: String,
    mode: InputMode,
    max_payload: usize,
    has_turn: bool,
    credit: u64,
    input_ended: bool,
    done: bool,
}

impl<R: Read + AsFd> Contributor<R> {
    /// A node that sends its input to the collector. With `read_ahead` it reads into the spool
    /// while the input of other nodes is collected.
    pub fn forwarding(
        input: (R, String),
        transport: &dyn Transport,
        spool: Spool,
        read_ahead: bool,
        name: String,
    ) -> Self {
        let mode = InputMode::Forward { spool, read_ahead, warned: false };
        Self::new(input, transport.max_payload(COLLECTOR), mode, name)
    }

    /// A node whose input is not requested.
    pub fn discarding(input: (R, String)) -> Self {
        Self::new(input, 1, InputMode::Discard, String::new())
    }

    fn new(
        (input, input_name): (R, String),
        max_payload: usize,
        mode: InputMode,
        name: String,
    ) -> Self {
        Self {
            name,
            input,
            input_name,
            mode,
            max_payload,
            has_turn: false,
            credit: 0,
            input_ended: false,
            done: false,
        }
    }

    fn on_message(&mut self, message: Message<'_>) -> Result<(), NodeError> {
        match message {
            Message::Grant(bytes) => {
                self.has_turn = true;
                self.credit = self.credit.saturating_add(bytes);
                Ok(())
            }
            Message::Closed => {
                self.done = true;
                Ok(())
            }
            Message::Data(_) => Err(NodeError::OutOfTurn("data")),
            Message::End => Err(NodeError::OutOfTurn("an end of data")),
        }
    }

    fn read(&mut self) -> Result<bool, NodeError> {
        if self.input_ended {
            return Ok(false);
        }
        let progress = match &mut self.mode {
            InputMode::Forward { spool, read_ahead, warned } => {
                if !self.has_turn && !*read_ahead {
                    return Ok(false);
                }
                let progress =
                    spool.fill(&mut self.input, &self.input_name, *read_ahead && !self.has_turn)?;
                if spool.is_full() && !*warned {
                    *warned = true;
                    let spilled_mib = spool.spilled_len() >> 20;
                    eprintln!(
                        "{}: spool limit reached ({spilled_mib} MiB): reading stops until this \
                         node's turn (if earlier nodes wait for this one, write to files and use \
                         gather -file)",
                        self.name
                    );
                }
                progress
            }
            InputMode::Discard => {
                let mut scratch = [0; CHUNK_LEN];
                try_read(&mut self.input, &mut scratch, &self.input_name)?
            }
        };
        self.input_ended = progress == IoProgress::Closed;
        Ok(progress != IoProgress::WouldBlock)
    }

    fn forward(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let InputMode::Forward { spool, .. } = &mut self.mode else {
            self.done |= self.input_ended;
            return Ok(false);
        };
        let mut progressed = false;
        while self.credit > 0 {
            let bytes = spool.read_slice()?;
            let count = bytes.len().min(self.max_payload).min(self.credit as usize);
            if count == 0 || !transport.send(COLLECTOR, Message::Data(&bytes[..count]))? {
                break;
            }
            spool.advance(count);
            self.credit -= count as u64;
            progressed = true;
        }
        if self.has_turn
            && self.input_ended
            && spool.is_empty()
            && transport.send(COLLECTOR, Message::End)?
        {
            self.done = true;
            progressed = true;
        }
        Ok(progressed)
    }
}

impl<R: Read + AsFd> NodeTask for Contributor<R> {
    fn step(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let mut progressed = false;
        while transport.receive(&mut |message| self.on_message(message))? {
            progressed = true;
        }
        if self.done {
            return Ok(true);
        }
        let read = self.read()?;
        let forwarded = self.forward(transport)?;
        Ok(progressed || read || forwarded)
    }

    fn is_finished(&self) -> bool {
        self.done
    }

    fn input_fd(&self) -> Option<BorrowedFd<'_>> {
        let can_read = !self.input_ended
            && match &self.mode {
                InputMode::Forward { spool, read_ahead, .. } => {
                    (self.has_turn || *read_ahead) && spool.can_fill(*read_ahead && !self.has_turn)
                }
                InputMode::Discard => true,
            };
        can_read.then(|| self.input.as_fd())
    }

    fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
