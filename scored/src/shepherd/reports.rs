//! What the shepherd reports: gathered during one turn of the loop, so that one report speaks for
//! all nodes to which the same has happened.

use std::io;

use mio::{Registry, Token};
use score_proto::frame::FrameError;
use score_proto::job_control::{Order, Report};

use score_tree::report_queue::CoalescingQueue;

use crate::framed_socket::FramedSocket;

/// Reports that wait for the end of a turn at most.
const MAX_PENDING_REPORTS: usize = 1024;
/// Bytes that wait for scored where it is slow.
const SLOW_READER_BYTES: usize = 256 << 10;

/// The socket to scored, and the reports that wait for the end of the turn.
#[derive(Debug)]
pub struct ScoredLink {
    link: FramedSocket,
    queue: CoalescingQueue<Report>,
}

impl ScoredLink {
    /// Speaks over this link.
    pub fn new(link: FramedSocket) -> Self {
        Self { link, queue: CoalescingQueue::new(MAX_PENDING_REPORTS) }
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

    /// Whether [`ScoredLink::order`] may find more without a further report of mio's.
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
            self.queue_pending();
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
        self.queue_pending();
        self.link.flush();
        self.link.update_interest(registry);
    }

    fn queue_pending(&mut self) {
        while let Some(report) = self.queue.pop() {
            self.link.queue(&report);
        }
    }

    /// Whether scored reads so slowly that figures had better wait for newer ones.
    pub fn is_slow(&self) -> bool {
        self.link.backlog() > SLOW_READER_BYTES
    }

    /// Whether everything has gone.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.link.backlog() == 0
    }
}
