//! One node of the pipeline. It receives bytes from standard input (node 0) or from the previous
//! node. It sends them to its own output and to the next node, each at its own speed.
//!
//! A node whose output is closed continues to forward. If all later outputs are also closed, it
//! sends [`Message::Closed`] to the previous node and ends. The command therefore ends when the
//! last output is closed.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::node_protocol::{CreditWindow, Message, ProtocolError};
use crate::tee::{Reader, Tee};
use crate::transport::{IoProgress, NodeError, NodeTask, Transport, try_read, try_write};

/// Maximum bytes that wait in one node.
const QUEUE_LEN: usize = 1024 * 1024;

/// The source of the bytes.
enum Source<R> {
    Input(R),
    Node { node: u32, credit_window: CreditWindow },
}

/// The next node.
struct Downstream {
    node: u32,
    max_payload: usize,
    credit: u64,
    end_sent: bool,
}

/// One node of the pipeline; see the [module](self).
pub struct Relay<R, W> {
    source: Source<R>,
    output: Option<W>,
    output_name: String,
    next: Option<Downstream>,
    tee: Tee,
    input_ended: bool,
    closed_sent: bool,
    output_blocked: bool,
}

impl<R: Read + AsFd, W: Write + AsFd> Relay<R, W> {
    /// The first node of the pipeline, which reads `input`.
    pub fn from_input(
        input: R,
        output: Option<(W, String)>,
        next: Option<u32>,
        transport: &dyn Transport,
    ) -> Self {
        Self::new(Source::Input(input), output, next, transport, QUEUE_LEN)
    }

    /// A node that receives from `previous`.
    pub fn from_node(
        previous: u32,
        output: Option<(W, String)>,
        next: Option<u32>,
        transport: &dyn Transport,
    ) -> Self {
        let max_payload = transport.max_payload(previous);
        let credit_window = CreditWindow::new(max_payload, transport.window(previous));
        let source = Source::Node { node: previous, credit_window };
        Self::new(
            source,
            output,
            next,
            transport,
            QUEUE_LEN.max(CreditWindow::min_capacity(max_payload)),
        )
    }

    fn new(
        source: Source<R>,
        output: Option<(W, String)>,
        next: Option<u32>,
        transport: &dyn Transport,
        capacity: usize,
    ) -> Self {
        let (output, output_name) = output.unzip();
        let next = next.map(|node| Downstream {
            node,
            max_payload: transport.max_payload(node),
            credit: 0,
            end_sent: false,
        });
        Self {
            tee: Tee::new(capacity, output.is_some(), next.is_some()),
            source,
            output,
            output_name: output_name.unwrap_or_default(),
            next,
            input_ended: false,
            closed_sent: false,
            output_blocked: false,
        }
    }

    fn receive(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let mut progressed = false;
        while transport.receive(&mut |message| self.on_message(message))? {
            progressed = true;
        }
        Ok(progressed)
    }

    fn on_message(&mut self, message: Message<'_>) -> Result<(), NodeError> {
        match (message, &mut self.source, &mut self.next) {
            (Message::Data(bytes), Source::Node { credit_window, .. }, _) if !self.input_ended => {
                credit_window.record_data(bytes.len())?;
                if self.has_no_readers() || self.tee.push(bytes) {
                    Ok(())
                } else {
                    Err(ProtocolError::Overrun(bytes.len() as u64).into())
                }
            }
            (Message::End, Source::Node { .. }, _) => {
                self.input_ended = true;
                Ok(())
            }
            (Message::Grant(bytes), _, Some(next)) => {
                next.credit = next.credit.saturating_add(bytes);
                Ok(())
            }
            (Message::Closed, _, Some(_)) => {
                self.tee.close(Reader::Next);
                Ok(())
            }
            (Message::Data(_), ..) => Err(NodeError::OutOfTurn("data")),
            (Message::End, ..) => Err(NodeError::OutOfTurn("an end of data")),
            (Message::Grant(_), ..) => Err(NodeError::OutOfTurn("a grant")),
            (Message::Closed, ..) => Err(NodeError::OutOfTurn("a close")),
        }
    }

    fn read(&mut self) -> Result<bool, NodeError> {
        let Source::Input(input) = &mut self.source else { return Ok(false) };
        let buffer = self.tee.write_slice();
        if self.input_ended || buffer.is_empty() {
            return Ok(false);
        }
        match try_read(input, buffer, "standard input")? {
            IoProgress::Transferred(count) => self.tee.commit(count),
            IoProgress::WouldBlock => return Ok(false),
            IoProgress::Closed => self.input_ended = true,
        }
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, NodeError> {
        self.output_blocked = false;
        let Some(output) = &mut self.output else { return Ok(false) };
        let bytes = self.tee.read_slice(Reader::Output);
        if bytes.is_empty() {
            return Ok(false);
        }
        match try_write(output, bytes, &self.output_name)? {
            IoProgress::Transferred(count) => self.tee.advance(Reader::Output, count),
            IoProgress::WouldBlock => {
                self.output_blocked = true;
                return Ok(false);
            }
            IoProgress::Closed => {
                self.tee.close(Reader::Output);
                self.output = None;
            }
        }
        Ok(true)
    }

    fn forward(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let Some(next) = &mut self.next else { return Ok(false) };
        let mut progressed = false;
        while self.tee.is_open(Reader::Next) {
            let bytes = self.tee.read_slice(Reader::Next);
            let count = bytes.len().min(next.max_payload).min(next.credit as usize);
            if count == 0 {
                break;
            }
            if !transport.send(next.node, Message::Data(&bytes[..count]))? {
                break;
            }
            next.credit -= count as u64;
            self.tee.advance(Reader::Next, count);
            progressed = true;
        }
        let all_sent = self.tee.is_open(Reader::Next) && self.tee.pending_len(Reader::Next) == 0;
        if self.input_ended && all_sent && !next.end_sent {
            next.end_sent = transport.send(next.node, Message::End)?;
            progressed |= next.end_sent;
        }
        Ok(progressed)
    }

    /// Sends a grant to the previous node, or a message that this node needs no more data.
    fn send_upstream(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let no_readers = self.has_no_readers();
        let Source::Node { node, credit_window } = &mut self.source else { return Ok(false) };
        if no_readers {
            if self.closed_sent || self.input_ended {
                return Ok(false);
            }
            self.closed_sent = transport.send(*node, Message::Closed)?;
            return Ok(self.closed_sent);
        }
        let Some(bytes) = credit_window.next_grant(self.tee.free_len()) else { return Ok(false) };
        if self.input_ended || !transport.send(*node, Message::Grant(bytes))? {
            return Ok(false);
        }
        credit_window.record_grant(bytes);
        Ok(true)
    }

    fn has_no_readers(&self) -> bool {
        !self.tee.is_open(Reader::Output) && !self.tee.is_open(Reader::Next)
    }
}

impl<R: Read + AsFd, W: Write + AsFd> NodeTask for Relay<R, W> {
    fn step(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let received = self.receive(transport)?;
        let read = self.read()?;
        let forwarded = self.forward(transport)?;
        let written = self.write()?;
        let reported = self.send_upstream(transport)?;
        Ok(received || read || forwarded || written || reported)
    }

    fn is_finished(&self) -> bool {
        if self.has_no_readers() {
            let is_first = matches!(self.source, Source::Input(_));
            return is_first || self.closed_sent || self.input_ended;
        }
        let all_forwarded =
            !self.tee.is_open(Reader::Next) || self.next.as_ref().is_some_and(|next| next.end_sent);
        self.input_ended && self.tee.pending_len(Reader::Output) == 0 && all_forwarded
    }

    fn input_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Input(input) if !self.input_ended && self.tee.free_len() > 0 => {
                Some(input.as_fd())
            }
            _ => None,
        }
    }

    fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().filter(|_| self.output_blocked).map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests;
