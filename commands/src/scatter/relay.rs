//! One node of the pipeline: bytes come from standard input (node 0) or from the node before, and
//! go to this node's own output and to the node behind, each as fast as it takes them.
//!
//! A node whose output has no reader any more keeps forwarding. When nobody behind reads either,
//! it tells the node before and ends; so the whole ends when the last reader has gone.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::hop::{Granter, HopError, Message};
use crate::post::{Failure, Machine, Post, Try, try_read, try_write};
use crate::tee::{Reader, Tee};

/// Bytes that wait in one node at most.
const CAPACITY: usize = 1024 * 1024;

/// Where the bytes come from.
enum Source<R> {
    Input(R),
    Node { node: u32, granter: Granter },
}

/// The node behind.
struct Next {
    node: u32,
    piece: usize,
    credit: u64,
    told_end: bool,
}

/// See the module.
pub struct Relay<R, W> {
    source: Source<R>,
    output: Option<W>,
    output_name: String,
    next: Option<Next>,
    tee: Tee,
    ended: bool,
    told_closed: bool,
    output_blocked: bool,
}

impl<R: Read + AsFd, W: Write + AsFd> Relay<R, W> {
    /// The head of the pipeline, which reads `input`.
    pub fn head(input: R, output: Option<(W, String)>, next: Option<u32>, post: &dyn Post) -> Self {
        Self::new(Source::Input(input), output, next, post, CAPACITY)
    }

    /// A node that receives from `previous`.
    pub fn behind(
        previous: u32,
        output: Option<(W, String)>,
        next: Option<u32>,
        post: &dyn Post,
    ) -> Self {
        let piece = post.piece(previous);
        let granter = Granter::new(piece, post.window(previous));
        let source = Source::Node { node: previous, granter };
        Self::new(source, output, next, post, CAPACITY.max(Granter::least_room(piece)))
    }

    fn new(
        source: Source<R>,
        output: Option<(W, String)>,
        next: Option<u32>,
        post: &dyn Post,
        capacity: usize,
    ) -> Self {
        let (output, output_name) = output.unzip();
        let next =
            next.map(|node| Next { node, piece: post.piece(node), credit: 0, told_end: false });
        Self {
            tee: Tee::new(capacity, output.is_some(), next.is_some()),
            source,
            output,
            output_name: output_name.unwrap_or_default(),
            next,
            ended: false,
            told_closed: false,
            output_blocked: false,
        }
    }

    fn receive(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let mut moved = false;
        while post.receive(&mut |message| self.take(message))? {
            moved = true;
        }
        Ok(moved)
    }

    fn take(&mut self, message: Message<'_>) -> Result<(), Failure> {
        match (message, &mut self.source, &mut self.next) {
            (Message::Data(bytes), Source::Node { granter, .. }, _) if !self.ended => {
                granter.came(bytes.len())?;
                if self.nobody_reads() || self.tee.push(bytes) {
                    Ok(())
                } else {
                    Err(HopError::Overrun(bytes.len() as u64).into())
                }
            }
            (Message::End, Source::Node { .. }, _) => {
                self.ended = true;
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
            (Message::Data(_), ..) => Err(Failure::OutOfTurn("data")),
            (Message::End, ..) => Err(Failure::OutOfTurn("an end of data")),
            (Message::Grant(_), ..) => Err(Failure::OutOfTurn("a grant")),
            (Message::Closed, ..) => Err(Failure::OutOfTurn("a farewell")),
        }
    }

    fn read(&mut self) -> Result<bool, Failure> {
        let Source::Input(input) = &mut self.source else { return Ok(false) };
        let space = self.tee.space();
        if self.ended || space.is_empty() {
            return Ok(false);
        }
        match try_read(input, space, "standard input")? {
            Try::Moved(count) => self.tee.filled(count),
            Try::Blocked => return Ok(false),
            Try::Ended => self.ended = true,
        }
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, Failure> {
        self.output_blocked = false;
        let Some(output) = &mut self.output else { return Ok(false) };
        let bytes = self.tee.front(Reader::Output);
        if bytes.is_empty() {
            return Ok(false);
        }
        match try_write(output, bytes, &self.output_name)? {
            Try::Moved(count) => self.tee.advance(Reader::Output, count),
            Try::Blocked => {
                self.output_blocked = true;
                return Ok(false);
            }
            Try::Ended => {
                self.tee.close(Reader::Output);
                self.output = None;
            }
        }
        Ok(true)
    }

    fn forward(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let Some(next) = &mut self.next else { return Ok(false) };
        let mut moved = false;
        while self.tee.has(Reader::Next) {
            let bytes = self.tee.front(Reader::Next);
            let count = bytes.len().min(next.piece).min(next.credit as usize);
            if count == 0 {
                break;
            }
            if !post.send(next.node, Message::Data(&bytes[..count]))? {
                break;
            }
            next.credit -= count as u64;
            self.tee.advance(Reader::Next, count);
            moved = true;
        }
        let all_sent = self.tee.has(Reader::Next) && self.tee.waiting(Reader::Next) == 0;
        if self.ended && all_sent && !next.told_end {
            next.told_end = post.send(next.node, Message::End)?;
            moved |= next.told_end;
        }
        Ok(moved)
    }

    /// Tells the node before how things stand here.
    fn answer(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let nobody_reads = self.nobody_reads();
        let Source::Node { node, granter } = &mut self.source else { return Ok(false) };
        if nobody_reads {
            if self.told_closed || self.ended {
                return Ok(false);
            }
            self.told_closed = post.send(*node, Message::Closed)?;
            return Ok(self.told_closed);
        }
        let Some(bytes) = granter.due(self.tee.room()) else { return Ok(false) };
        if self.ended || !post.send(*node, Message::Grant(bytes))? {
            return Ok(false);
        }
        granter.granted(bytes);
        Ok(true)
    }

    fn nobody_reads(&self) -> bool {
        !self.tee.has(Reader::Output) && !self.tee.has(Reader::Next)
    }
}

impl<R: Read + AsFd, W: Write + AsFd> Machine for Relay<R, W> {
    fn step(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let received = self.receive(post)?;
        let read = self.read()?;
        let forwarded = self.forward(post)?;
        let written = self.write()?;
        let answered = self.answer(post)?;
        Ok(received || read || forwarded || written || answered)
    }

    fn finished(&self) -> bool {
        if self.nobody_reads() {
            let head = matches!(self.source, Source::Input(_));
            return head || self.told_closed || self.ended;
        }
        let passed_on =
            !self.tee.has(Reader::Next) || self.next.as_ref().is_some_and(|next| next.told_end);
        self.ended && self.tee.waiting(Reader::Output) == 0 && passed_on
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Input(input) if !self.ended && self.tee.room() > 0 => Some(input.as_fd()),
            _ => None,
        }
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().filter(|_| self.output_blocked).map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests;
