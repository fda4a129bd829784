//! The reports of the shepherd. They are collected during one tick of the loop, so that one report
//! covers all nodes with the same event.

use std::io;

use mio::{Registry, Token};
use score_client::FramedSocket;
use score_proto::frame::FrameError;
use score_proto::ids::ElementIndex;
use score_proto::job_control::{ElementReport, JobReport, ShepherdOrder, ShepherdReport};

use score_tree::report_queue::CoalescingQueue;

/// Largest number of reports that are collected in one tick.
const MAX_PENDING_REPORTS: usize = 1024;
/// If more bytes than this are unsent, scored counts as a slow reader.
const SLOW_READER_BYTES: usize = 256 << 10;

/// The socket to scored, and the reports of this tick that are not sent yet.
#[derive(Debug)]
pub struct ScoredLink {
    link: FramedSocket,
    queue: CoalescingQueue<ShepherdReport>,
}

impl ScoredLink {
    /// A link that uses this socket.
    pub fn new(link: FramedSocket) -> Self {
        Self { link, queue: CoalescingQueue::new(MAX_PENDING_REPORTS) }
    }

    /// Registers the socket.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.link.register(registry, token)
    }

    /// Records that mio has reported that the socket is readable.
    pub fn mark_readable(&mut self) {
        self.link.mark_readable();
    }

    /// Whether [`ScoredLink::order`] may return more orders without a further event from mio.
    pub fn may_have_more(&self) -> bool {
        self.link.may_have_more()
    }

    /// Whether scored has closed the socket.
    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// The next order that has been received, if any.
    ///
    /// # Errors
    /// The received bytes are not a valid frame.
    pub fn order(&mut self) -> Result<Option<ShepherdOrder>, FrameError> {
        self.link.receive()
    }

    /// Adds a report about the job. It is sent at the end of this tick.
    pub fn add(&mut self, report: JobReport) {
        self.push(ShepherdReport::Job(report));
    }

    /// Adds a report about one element. It is sent at the end of this tick.
    pub fn add_about(&mut self, element: ElementIndex, report: ElementReport) {
        self.push(ShepherdReport::Element { element, report });
    }

    /// Adds reports about elements. They are sent at the end of this tick.
    pub fn add_all_about(
        &mut self,
        reports: impl IntoIterator<Item = (ElementIndex, ElementReport)>,
    ) {
        reports.into_iter().for_each(|(element, report)| self.add_about(element, report));
    }

    fn push(&mut self, report: ShepherdReport) {
        if let Err(report) = self.queue.push(report) {
            self.queue_pending();
            // The queue has been emptied, so that this push succeeds.
            let _ = self.queue.push(report);
        }
    }

    /// Queues a report at once, in front of the collected reports. Used for output, and for reports
    /// that must follow the output.
    pub fn send(&mut self, report: &ShepherdReport) {
        self.link.queue(report);
    }

    /// Sends the collected reports until the socket is full.
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

    /// Whether scored reads so slowly that the shepherd should skip metrics.
    pub fn is_slow(&self) -> bool {
        self.link.backlog() > SLOW_READER_BYTES
    }

    /// Whether everything has been sent.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.link.backlog() == 0
    }
}
