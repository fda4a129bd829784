//! Node 0 of `gather`: receives the bytes of the nodes, one node after the other, and writes them.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::gather::COLLECTOR;
use crate::node_protocol::{CreditWindow, Message, ProtocolError};
use crate::tee::{Reader, Tee};
use crate::transport::{IoProgress, NodeError, NodeTask, Transport, try_read, try_write};

/// Maximum bytes that wait in the collector.
const QUEUE_LEN: usize = 1024 * 1024;

/// The node whose bytes are being collected.
enum CurrentSource {
    Local,
    Node { node: u32, credit_window: CreditWindow },
    Done,
}

/// The collecting node.
pub struct Collector<R, W> {
    nodes_to_close: VecDeque<u32>,
    remaining_sources: VecDeque<u32>,
    turn: CurrentSource,
    /// `None` once the input has ended.
    input: Option<R>,
    input_name: String,
    /// The input of this node is not requested. The node reads and drops it, so that the program on
    /// the left does not block.
    discard: bool,
    output: W,
    queue: Tee,
    output_blocked: bool,
    output_closed: bool,
}

impl<R: Read + AsFd, W: Write + AsFd> Collector<R, W> {
    /// Collects from the nodes in `order`, which may contain this node. `nodes` is the number of
    /// all nodes. Without an `input` this node reads nothing.
    pub fn new(
        nodes: u32,
        order: &[u32],
        input: Option<(R, String)>,
        output: W,
        transport: &dyn Transport,
    ) -> Self {
        let peers = order.iter().filter(|node| **node != COLLECTOR);
        let max_payload = peers.map(|node| transport.max_payload(*node)).max().unwrap_or(1);
        let capacity = QUEUE_LEN.max(CreditWindow::min_capacity(max_payload));
        let (input, input_name) = input.unzip();
        let mut collector = Self {
            nodes_to_close: (0..nodes).filter(|node| *node != COLLECTOR).collect(),
            remaining_sources: order.iter().copied().collect(),
            turn: CurrentSource::Done,
            input,
            input_name: input_name.unwrap_or_default(),
            discard: !order.contains(&COLLECTOR),
            output,
            queue: Tee::new(capacity, true, false),
            output_blocked: false,
            output_closed: false,
        };
        collector.advance_source(transport);
        collector
    }

    fn advance_source(&mut self, transport: &dyn Transport) {
        self.turn = match self.remaining_sources.pop_front() {
            None => CurrentSource::Done,
            Some(COLLECTOR) => CurrentSource::Local,
            Some(node) => CurrentSource::Node {
                node,
                credit_window: CreditWindow::new(
                    transport.max_payload(node),
                    transport.window(node),
                ),
            },
        };
    }

    fn receive(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let mut progressed = false;
        loop {
            let mut ended = false;
            let received = transport.receive(&mut |message| match (message, &mut self.turn) {
                (Message::Data(bytes), CurrentSource::Node { credit_window, .. }) => {
                    credit_window.record_data(bytes.len())?;
                    let fits = self.output_closed || self.queue.push(bytes);
                    fits.then_some(()).ok_or(ProtocolError::Overrun(bytes.len() as u64).into())
                }
                (Message::End, CurrentSource::Node { .. }) => {
                    ended = true;
                    Ok(())
                }
                (Message::Data(_), _) => Err(NodeError::OutOfTurn("data")),
                (Message::End, _) => Err(NodeError::OutOfTurn("an end of data")),
                (Message::Grant(_), _) => Err(NodeError::OutOfTurn("a grant")),
                (Message::Closed, _) => Err(NodeError::OutOfTurn("a close")),
            })?;
            if ended {
                self.advance_source(transport);
            }
            if !received {
                return Ok(progressed);
            }
            progressed = true;
        }
    }

    fn read(&mut self, transport: &dyn Transport) -> Result<bool, NodeError> {
        let is_local = matches!(self.turn, CurrentSource::Local);
        let Some(input) = self.input.as_mut().filter(|_| is_local || self.discard) else {
            if is_local {
                self.advance_source(transport);
            }
            return Ok(is_local);
        };
        let mut scratch = [0; 64 * 1024];
        let buffer = if is_local { self.queue.write_slice() } else { &mut scratch };
        if buffer.is_empty() {
            return Ok(false);
        }
        match try_read(input, buffer, &self.input_name)? {
            IoProgress::Transferred(count) if is_local => self.queue.commit(count),
            IoProgress::Transferred(_) => {}
            IoProgress::WouldBlock => return Ok(false),
            IoProgress::Closed => self.input = None,
        }
        Ok(true)
    }

    fn grant(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let CurrentSource::Node { node, credit_window } = &mut self.turn else { return Ok(false) };
        let Some(bytes) = credit_window.next_grant(self.queue.free_len()) else { return Ok(false) };
        if !transport.send(*node, Message::Grant(bytes))? {
            return Ok(false);
        }
        credit_window.record_grant(bytes);
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, NodeError> {
        self.output_blocked = false;
        let bytes = self.queue.read_slice(Reader::Output);
        if bytes.is_empty() {
            return Ok(false);
        }
        match try_write(&mut self.output, bytes, "standard output")? {
            IoProgress::Transferred(count) => self.queue.advance(Reader::Output, count),
            IoProgress::WouldBlock => {
                self.output_blocked = true;
                return Ok(false);
            }
            IoProgress::Closed => {
                self.output_closed = true;
                self.queue.close(Reader::Output);
            }
        }
        Ok(true)
    }

    /// Notifies the other nodes that the output is closed, so that they also end.
    fn send_closed(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let mut progressed = false;
        while let Some(node) = self.nodes_to_close.front() {
            if !transport.send(*node, Message::Closed)? {
                break;
            }
            self.nodes_to_close.pop_front();
            progressed = true;
        }
        Ok(progressed)
    }
}

impl<R: Read + AsFd, W: Write + AsFd> NodeTask for Collector<R, W> {
    fn step(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError> {
        let received = self.receive(transport)?;
        if self.output_closed {
            return Ok(self.send_closed(transport)? || received);
        }
        let read = self.read(transport)?;
        let written = self.write()?;
        let granted = self.grant(transport)?;
        Ok(received || read || written || granted)
    }

    fn is_finished(&self) -> bool {
        if self.output_closed {
            return self.nodes_to_close.is_empty();
        }
        let drained =
            matches!(self.turn, CurrentSource::Done) && self.queue.pending_len(Reader::Output) == 0;
        drained && (self.input.is_none() || !self.discard)
    }

    fn input_fd(&self) -> Option<BorrowedFd<'_>> {
        let is_local = matches!(self.turn, CurrentSource::Local) && self.queue.free_len() > 0;
        self.input.as_ref().filter(|_| is_local || self.discard).map(AsFd::as_fd)
    }

    fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        self.output_blocked.then(|| self.output.as_fd())
    }
}

#[cfg(test)]
mod tests;
