//! Node 0 of `gather`: takes the nodes' bytes one node after the other and writes them.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::gather::COLLECTOR;
use crate::hop::{Granter, HopError, Message};
use crate::post::{Failure, Machine, Post, Try, try_read, try_write};
use crate::tee::{Reader, Tee};

/// Bytes that wait in the collector at most.
const CAPACITY: usize = 1024 * 1024;

/// Whose bytes are being taken.
enum Turn {
    Own,
    Node { node: u32, granter: Granter },
    Over,
}

/// The node.
pub struct Collector<R, W> {
    others: VecDeque<u32>,
    order: VecDeque<u32>,
    turn: Turn,
    /// Gone once it has ended.
    input: Option<R>,
    input_name: String,
    /// The own input was not asked for: it is read and dropped, so that the left side runs on.
    discard: bool,
    output: W,
    queue: Tee,
    blocked: bool,
    closed: bool,
}

impl<R: Read + AsFd, W: Write + AsFd> Collector<R, W> {
    /// Collects from the nodes in `order`, itself perhaps among them, of `nodes` in all. Without
    /// an `input` it has nothing to read, neither to give nor to drop.
    pub fn new(
        nodes: u32,
        order: &[u32],
        input: Option<(R, String)>,
        output: W,
        post: &dyn Post,
    ) -> Self {
        let others = order.iter().filter(|node| **node != COLLECTOR);
        let largest = others.map(|node| post.piece(*node)).max().unwrap_or(1);
        let capacity = CAPACITY.max(Granter::least_room(largest));
        let (input, input_name) = input.unzip();
        let mut collector = Self {
            others: (0..nodes).filter(|node| *node != COLLECTOR).collect(),
            order: order.iter().copied().collect(),
            turn: Turn::Over,
            input,
            input_name: input_name.unwrap_or_default(),
            discard: !order.contains(&COLLECTOR),
            output,
            queue: Tee::new(capacity, true, false),
            blocked: false,
            closed: false,
        };
        collector.next_turn(post);
        collector
    }

    fn next_turn(&mut self, post: &dyn Post) {
        self.turn = match self.order.pop_front() {
            None => Turn::Over,
            Some(COLLECTOR) => Turn::Own,
            Some(node) => {
                Turn::Node { node, granter: Granter::new(post.piece(node), post.window(node)) }
            }
        };
    }

    fn receive(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let mut moved = false;
        loop {
            let mut ended = false;
            let came = post.receive(&mut |message| match (message, &mut self.turn) {
                (Message::Data(bytes), Turn::Node { granter, .. }) => {
                    granter.came(bytes.len())?;
                    let fits = self.closed || self.queue.push(bytes);
                    fits.then_some(()).ok_or(HopError::Overrun(bytes.len() as u64).into())
                }
                (Message::End, Turn::Node { .. }) => {
                    ended = true;
                    Ok(())
                }
                (Message::Data(_), _) => Err(Failure::OutOfTurn("data")),
                (Message::End, _) => Err(Failure::OutOfTurn("an end of data")),
                (Message::Grant(_), _) => Err(Failure::OutOfTurn("a grant")),
                (Message::Closed, _) => Err(Failure::OutOfTurn("a farewell")),
            })?;
            if ended {
                self.next_turn(post);
            }
            if !came {
                return Ok(moved);
            }
            moved = true;
        }
    }

    fn read(&mut self, post: &dyn Post) -> Result<bool, Failure> {
        let own = matches!(self.turn, Turn::Own);
        let Some(input) = self.input.as_mut().filter(|_| own || self.discard) else {
            if own {
                self.next_turn(post);
            }
            return Ok(own);
        };
        let mut scratch = [0; 64 * 1024];
        let space = if own { self.queue.space() } else { &mut scratch };
        if space.is_empty() {
            return Ok(false);
        }
        match try_read(input, space, &self.input_name)? {
            Try::Moved(count) if own => self.queue.filled(count),
            Try::Moved(_) => {}
            Try::Blocked => return Ok(false),
            Try::Ended => self.input = None,
        }
        Ok(true)
    }

    fn grant(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let Turn::Node { node, granter } = &mut self.turn else { return Ok(false) };
        let Some(bytes) = granter.due(self.queue.room()) else { return Ok(false) };
        if !post.send(*node, Message::Grant(bytes))? {
            return Ok(false);
        }
        granter.granted(bytes);
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, Failure> {
        self.blocked = false;
        let bytes = self.queue.front(Reader::Output);
        if bytes.is_empty() {
            return Ok(false);
        }
        match try_write(&mut self.output, bytes, "standard output")? {
            Try::Moved(count) => self.queue.advance(Reader::Output, count),
            Try::Blocked => {
                self.blocked = true;
                return Ok(false);
            }
            Try::Ended => {
                self.closed = true;
                self.queue.close(Reader::Output);
            }
        }
        Ok(true)
    }

    /// Nobody reads what is gathered: everybody else shall end, too.
    fn farewell(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let mut moved = false;
        while let Some(node) = self.others.front() {
            if !post.send(*node, Message::Closed)? {
                break;
            }
            self.others.pop_front();
            moved = true;
        }
        Ok(moved)
    }
}

impl<R: Read + AsFd, W: Write + AsFd> Machine for Collector<R, W> {
    fn step(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let received = self.receive(post)?;
        if self.closed {
            return Ok(self.farewell(post)? || received);
        }
        let read = self.read(post)?;
        let written = self.write()?;
        let granted = self.grant(post)?;
        Ok(received || read || written || granted)
    }

    fn finished(&self) -> bool {
        if self.closed {
            return self.others.is_empty();
        }
        let taken = matches!(self.turn, Turn::Over) && self.queue.waiting(Reader::Output) == 0;
        taken && (self.input.is_none() || !self.discard)
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let own = matches!(self.turn, Turn::Own) && self.queue.room() > 0;
        self.input.as_ref().filter(|_| own || self.discard).map(AsFd::as_fd)
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.blocked.then(|| self.output.as_fd())
    }
}

#[cfg(test)]
mod tests;
