//! Node 0 of `gather`: takes the nodes' bytes one node after the other and writes them.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::hop::{Granter, HopError, Message};
use crate::post::{Failure, Machine, Post, Try, try_read, try_write};
use crate::tee::{Reader, Tee};

/// Bytes that wait in the collector at most.
const CAPACITY: usize = 256 * 1024;

/// Whose bytes are being taken.
enum Turn {
    Own,
    Node { node: u32, granter: Granter },
    Over,
}

/// The node.
pub struct Collector<R, W> {
    this: u32,
    others: VecDeque<u32>,
    order: VecDeque<u32>,
    turn: Turn,
    input: R,
    input_name: String,
    input_ended: bool,
    /// The own input was not asked for: it is read and dropped, so that the left side runs on.
    discard: bool,
    output: W,
    queue: Tee,
    blocked: bool,
    closed: bool,
}

impl<R: Read + AsFd, W: Write + AsFd> Collector<R, W> {
    /// Collects from the nodes in `order`, itself (`this`) perhaps among them, of `nodes` in all.
    /// `read_own`: whether there is an input of its own to be read at all.
    pub fn new(
        this: u32,
        nodes: u32,
        order: &[u32],
        input: (R, String),
        read_own: bool,
        output: W,
        post: &dyn Post,
    ) -> Self {
        let largest = order.iter().filter(|node| **node != this).map(|node| post.piece(*node));
        let capacity = CAPACITY.max(Granter::least_room(largest.max().unwrap_or(1)));
        let mut collector = Self {
            this,
            others: (0..nodes).filter(|node| *node != this).collect(),
            order: order.iter().copied().collect(),
            turn: Turn::Over,
            input: input.0,
            input_name: input.1,
            input_ended: !read_own,
            discard: !order.contains(&this),
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
            Some(node) if node == self.this => Turn::Own,
            Some(node) => Turn::Node { node, granter: Granter::new(post.piece(node)) },
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
        if self.discard {
            if self.input_ended {
                return Ok(false);
            }
            let mut scratch = [0; 64 * 1024];
            let tried = try_read(&mut self.input, &mut scratch, &self.input_name)?;
            self.input_ended = tried == Try::Ended;
            return Ok(tried != Try::Blocked);
        }
        if !matches!(self.turn, Turn::Own) {
            return Ok(false);
        }
        if self.input_ended {
            self.next_turn(post);
            return Ok(true);
        }
        let space = self.queue.space();
        if space.is_empty() {
            return Ok(false);
        }
        match try_read(&mut self.input, space, &self.input_name)? {
            Try::Moved(count) => self.queue.filled(count),
            Try::Blocked => return Ok(false),
            Try::Ended => self.input_ended = true,
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
        taken && (self.input_ended || !self.discard)
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let own = matches!(self.turn, Turn::Own) && self.queue.room() > 0;
        let wanted = !self.input_ended && (self.discard || own);
        wanted.then(|| self.input.as_fd())
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.blocked.then(|| self.output.as_fd())
    }
}

#[cfg(test)]
mod tests;
