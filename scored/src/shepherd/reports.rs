//! What the shepherd reports: gathered during one turn of the loop, so that one report speaks for
//! all nodes to which the same has happened.

use std::io;

use mio::{Registry, Token};
use score_proto::frame::FrameError;
use score_proto::order::{Order, Report};

use score_tree::merge::Queue;

use crate::link::Link;

/// Reports that wait for the end of a turn at most.
const WAITING: usize = 1024;
/// Bytes that wait for scored where it is slow.
const SLOW: usize = 256 << 10;

/// The socket to scored, and the reports that wait for the end of the turn.
#[derive(Debug)]
pub struct Reports {
    link: Link,
    queue: Queue<Report>,
}

impl Reports {
    /// Speaks over this link.
    pub fn new(link: Link) -> Self {
        Self { link, queue: Queue::new(WAITING) }
    }

    /// Has `registry` report on the link.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.link.register(registry, token)
    }

    /// mio has reported that there is something to read.
    pub fn mark_readable(&mut self) {
        self.link.mark_readable();
    }

    /// Whether [`Reports::order`] may find more without a further report of mio's.
    pub fn may_have_more(&self) -> bool {
        self.link.may_have_more()
    }

    /// Whether scored has gone.
    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// The next order.
    ///
    /// # Errors
    /// scored does not speak our protocol.
    pub fn order(&mut self) -> Result<Option<Order>, FrameError> {
        self.link.receive()
    }

    /// Reports something at the end of this turn.
    pub fn add(&mut self, report: Report) {
        if let Err(report) = self.queue.push(report) {
            self.send_waiting();
            // There is room now.
            let _ = self.queue.push(report);
        }
    }

    /// Queues a report at once, before those that wait: output and what keeps its place behind it.
    pub fn send(&mut self, report: &Report) {
        self.link.queue(report);
    }

    /// Sends what has been gathered, as far as the socket takes it.
    pub fn flush(&mut self, registry: &Registry) {
        self.send_waiting();
        self.link.flush();
        self.link.watch(registry);
    }

    fn send_waiting(&mut self) {
        while let Some(report) = self.queue.pop() {
            self.link.queue(&report);
        }
    }

    /// Whether scored reads so slowly that figures had better wait for newer ones.
    pub fn is_slow(&self) -> bool {
        self.link.backlog() > SLOW
    }

    /// Whether everything has gone.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.link.backlog() == 0
    }
}
