//! The requests of a process that wait for a thread to stop, and the threads that remain stopped
//! for a message of a tool.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::tracer::Tid;
use crate::tracer::request::PendingRequest;

/// A request fails if its thread does not stop within this time.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The most requests of a process that wait for a thread.
pub const MAX_REQUESTS: usize = 1024;

/// The waiting requests of a process.
#[derive(Debug, Default)]
pub struct RequestQueue {
    waiting: VecDeque<PendingRequest>,
    /// The threads that remain stopped and accessible while a message of a tool is carried out.
    pins: BTreeSet<Tid>,
}

impl RequestQueue {
    /// Whether no further request may be added.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_REQUESTS
    }

    /// Adds a request.
    pub fn push(&mut self, request: PendingRequest) {
        self.waiting.push_back(request);
    }

    /// The request at a position.
    pub fn get(&self, index: usize) -> Option<&PendingRequest> {
        self.waiting.get(index)
    }

    /// Takes the request at a position.
    pub fn take(&mut self, index: usize) -> Option<PendingRequest> {
        self.waiting.remove(index)
    }

    /// Takes a request that has timed out.
    pub fn take_expired(&mut self, now: Duration) -> Option<PendingRequest> {
        let is_expired = |pending: &PendingRequest| now >= pending.since + REQUEST_TIMEOUT;
        let index = self.waiting.iter().position(is_expired)?;
        self.waiting.remove(index)
    }

    /// Takes all requests.
    pub fn take_all(&mut self) -> VecDeque<PendingRequest> {
        std::mem::take(&mut self.waiting)
    }

    /// The time at which the oldest request times out.
    pub fn deadline(&self) -> Option<Duration> {
        let oldest = self.waiting.iter().map(|pending| pending.since).min();
        oldest.map(|since| since + REQUEST_TIMEOUT)
    }

    /// Keeps these threads stopped and accessible.
    pub fn pin(&mut self, tids: impl IntoIterator<Item = Tid>) {
        self.pins.extend(tids);
    }

    /// Ends [`Self::pin`].
    pub fn unpin(&mut self) {
        self.pins.clear();
    }

    /// Whether this thread has to be accessible, because a request waits for it or it is pinned.
    pub fn is_access_requested(&self, tid: Tid) -> bool {
        self.pins.contains(&tid)
            || self.waiting.iter().any(|pending| pending.tid.is_none_or(|wanted| wanted == tid))
    }

    /// The queue after an exec. The requests remain.
    pub fn after_exec(&mut self) -> Self {
        Self { waiting: self.take_all(), pins: BTreeSet::new() }
    }
}
