//! A node of `gather` other than the collecting one.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use crate::gather::COLLECTOR;
use crate::gather::spool::{CHUNK, Spool};
use crate::hop::Message;
use crate::post::{Failure, Machine, Post, Try, try_read};

/// What becomes of the input.
enum Part {
    /// It goes to the collector once it is this node's turn. `eager`: read before that, too.
    Give { spool: Spool, eager: bool, warned: bool },
    /// Nobody wants it; it is read all the same, so that the program on the left runs on.
    Discard,
}

/// The node.
pub struct Contributor<R> {
    name: String,
    input: R,
    input_name: String,
    part: Part,
    piece: usize,
    turn: bool,
    credit: u64,
    ended: bool,
    done: bool,
}

impl<R: Read + AsFd> Contributor<R> {
    /// A node that gives what it reads to the collector. With `eager` it reads on into the spool
    /// while others are served.
    pub fn giving(
        input: (R, String),
        post: &dyn Post,
        spool: Spool,
        eager: bool,
        name: String,
    ) -> Self {
        let part = Part::Give { spool, eager, warned: false };
        Self::new(input, post.piece(COLLECTOR), part, name)
    }

    /// A node whose input nobody asked for.
    pub fn discarding(input: (R, String)) -> Self {
        Self::new(input, 1, Part::Discard, String::new())
    }

    fn new((input, input_name): (R, String), piece: usize, part: Part, name: String) -> Self {
        Self {
            name,
            input,
            input_name,
            part,
            piece,
            turn: false,
            credit: 0,
            ended: false,
            done: false,
        }
    }

    fn take(&mut self, message: Message<'_>) -> Result<(), Failure> {
        match message {
            Message::Grant(bytes) => {
                self.turn = true;
                self.credit = self.credit.saturating_add(bytes);
                Ok(())
            }
            Message::Closed => {
                self.done = true;
                Ok(())
            }
            Message::Data(_) => Err(Failure::OutOfTurn("data")),
            Message::End => Err(Failure::OutOfTurn("an end of data")),
        }
    }

    fn read(&mut self) -> Result<bool, Failure> {
        if self.ended {
            return Ok(false);
        }
        let tried = match &mut self.part {
            Part::Give { spool, eager, warned } => {
                if !self.turn && !*eager {
                    return Ok(false);
                }
                let tried = spool.fill(&mut self.input, &self.input_name, *eager && !self.turn)?;
                if spool.is_full() && !*warned {
                    *warned = true;
                    let kept = spool.spilled() >> 20;
                    eprintln!(
                        "{}: {kept} MiB wait for this node's turn; it reads no more until then \
                         (if earlier nodes wait for this one, write files and gather those)",
                        self.name
                    );
                }
                tried
            }
            Part::Discard => {
                let mut scratch = [0; CHUNK];
                try_read(&mut self.input, &mut scratch, &self.input_name)?
            }
        };
        self.ended = tried == Try::Ended;
        Ok(tried != Try::Blocked)
    }

    fn give(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let Part::Give { spool, .. } = &mut self.part else {
            self.done |= self.ended;
            return Ok(false);
        };
        let mut moved = false;
        while self.credit > 0 {
            let bytes = spool.front()?;
            let count = bytes.len().min(self.piece).min(self.credit as usize);
            if count == 0 || !post.send(COLLECTOR, Message::Data(&bytes[..count]))? {
                break;
            }
            spool.advance(count);
            self.credit -= count as u64;
            moved = true;
        }
        if self.turn && self.ended && spool.is_empty() && post.send(COLLECTOR, Message::End)? {
            self.done = true;
            moved = true;
        }
        Ok(moved)
    }
}

impl<R: Read + AsFd> Machine for Contributor<R> {
    fn step(&mut self, post: &mut dyn Post) -> Result<bool, Failure> {
        let mut moved = false;
        while post.receive(&mut |message| self.take(message))? {
            moved = true;
        }
        if self.done {
            return Ok(true);
        }
        let read = self.read()?;
        let given = self.give(post)?;
        Ok(moved || read || given)
    }

    fn finished(&self) -> bool {
        self.done
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let wanted = !self.ended
            && match &self.part {
                Part::Give { spool, eager, .. } => {
                    (self.turn || *eager) && spool.wants(*eager && !self.turn)
                }
                Part::Discard => true,
            };
        wanted.then(|| self.input.as_fd())
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
