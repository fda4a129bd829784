//! The requests of a process that wait for a thread to stop, and the threads that remain stopped
//! for a message of a tool.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::tracer::Tid;
use crate::tracer::request::{PendingRequest, Request};

/// A request fails if its thread does not stop within this time.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The most requests of a process that wait for a thread.
pub const MAX_REQUESTS: usize = 1024;

/// The waiting requests of a process.
#[derive(Debug, Default)]
pub struct RequestQueue {
    waiting: VecDeque<PendingRequest>,
    /// The threads that remain stopped and accessible for each pin, by its number.
    pins: BTreeMap<u64, BTreeSet<Tid>>,
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
    pub fn pin(&mut self, number: u64, tids: impl IntoIterator<Item = Tid>) {
        self.pins.insert(number, tids.into_iter().collect());
    }

    /// Ends a pin.
    pub fn unpin(&mut self, number: u64) {
        self.pins.remove(&number);
    }

    /// Whether this thread has to be accessible, because it is pinned or a request waits for it.
    pub fn is_access_requested(&self, tid: Tid) -> bool {
        self.pins.values().any(|pinned| pinned.contains(&tid))
            || self.waiting.iter().any(|pending| pending.tid.is_none_or(|wanted| wanted == tid))
    }

    /// Whether a request to remove this watchpoint waits for the thread.
    pub fn is_reset_requested(&self, tid: Tid, address: u64) -> bool {
        let reset = Request::ResetWatchpoint(address);
        self.waiting.iter().any(|pending| pending.tid == Some(tid) && pending.request == reset)
    }

    /// The queue after an exec. The requests remain.
    pub fn after_exec(&mut self) -> Self {
        Self { waiting: self.take_all(), pins: BTreeMap::new() }
    }
}
