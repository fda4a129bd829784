//! Reads and writes of other nodes' memory by PM: pmRead, pmWrite, and the detection of their end.
//! `accesses.rs` has the rules of their order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use score_p2p::{AccessError, AccessNumber, EndedAccess, UserBuffer, WriteProgress};

use super::PmNetwork;
use crate::accesses::{Confirmation, EndedAccesses, EndpointAccess, NodeAccesses};
use crate::idle_mark;
use crate::pm_h::{PM_NODE_ANY, PM_RMA_MTU, pmGetRemoteStatus, pmRead, pmRemoteStatus, pmWrite};
use crate::properties::MAX_ENDPOINTS;

/// The maximum number of nodes whose accesses one call checks for completion.
const NODES_PER_CALL: usize = 4;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct PmAccesses {
    /// The nodes with accesses that have not ended.
    by_node: BTreeMap<u32, NodeAccesses>,
    /// The node whose operations were queried last. The next call continues with the nodes after
    /// it.
    last_asked: u32,
    /// For each endpoint, the accesses that have ended and were not returned yet.
    ended: [VecDeque<EndedAccess>; MAX_ENDPOINTS],
    last_number: u64,
    /// The destination of reads that confirm writes, and its handle once it is locked.
    landing: Box<u64>,
    landing_handle: Option<u64>,
}

impl PmAccesses {
    fn next_access(&mut self, endpoint: usize) -> EndpointAccess {
        self.last_number += 1;
        EndpointAccess { endpoint, number: AccessNumber(self.last_number) }
    }

    fn add_ended(&mut self, all_ended: EndedAccesses) {
        for (endpoint, ended) in all_ended {
            self.ended[endpoint].push_back(ended);
        }
    }

    /// Removes this access if it is the one that has ended last.
    fn take_if_last(&mut self, access: EndpointAccess) -> Option<EndedAccess> {
        let all_ended = &mut self.ended[access.endpoint];
        let is_last = all_ended.back().is_some_and(|ended| ended.number == access.number);
        if is_last { all_ended.pop_back() } else { None }
    }

    /// The next node after the node that was queried last.
    fn next_node(&self) -> Option<u32> {
        let mut later_nodes = self.by_node.range((Excluded(self.last_asked), Unbounded));
        let next = later_nodes.next().or_else(|| self.by_node.first_key_value());
        next.map(|(node, _)| *node)
    }
}

/// The state of the operations on a node, as PM reports it.
enum PmReport {
    /// The operations up to this number have ended.
    Completed(u64),
    /// The operation with this number has failed.
    Failed(u64),
    /// PM has no information about the operations.
    Unknown,
}

impl PmNetwork {
    fn remote_status(&self, node: u32) -> (PmReport, u64) {
        let mut status = pmRemoteStatus { started: 0, completed: 0 };
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        let result = unsafe { pmGetRemoteStatus(self.context, node as i32, &mut status) };
        let report = match result {
            0 => PmReport::Completed(status.completed),
            libc::EIO => PmReport::Failed(status.completed),
            _ => PmReport::Unknown,
        };
        (report, status.started)
    }

    fn accesses_of(&mut self, node: u32) -> &mut NodeAccesses {
        let is_on_this_host = self.is_on_this_host(node);
        self.accesses.by_node.entry(node).or_insert_with(|| NodeAccesses::new(is_on_this_host))
    }

    /// Notes a report. Returns whether PM may have further reports now.
    fn on_report(&mut self, node: u32, report: &PmReport) -> bool {
        let mut all_ended = EndedAccesses::new();
        let accesses = self.accesses_of(node);
        match *report {
            PmReport::Completed(number) => accesses.on_completed(number, false, &mut all_ended),
            PmReport::Failed(number) => accesses.on_completed(number, true, &mut all_ended),
            PmReport::Unknown => accesses.fail_all(&mut all_ended),
        }
        self.accesses.add_ended(all_ended);
        matches!(report, PmReport::Failed(_))
    }

    /// The number that PM has given to the operation on `node` that was just started, and the
    /// report of PM.
    fn number_of_last(&mut self, node: u32) -> (u64, PmReport) {
        let (report, started) = self.remote_status(node);
        (started, report)
    }

    /// Notes which accesses to a node have ended.
    fn ask_about(&mut self, node: u32) {
        while {
            let (report, _) = self.remote_status(node);
            self.on_report(node, &report)
        } {}
    }

    /// Starts a read after the writes to a node, if a read is needed to confirm them. Returns
    /// `Full` if PM has no room for it.
    fn confirm_writes(&mut self, node: u32) -> Result<(), AccessError> {
        let (Confirmation::Needed(handle) | Confirmation::Delayed(handle)) =
            self.accesses_of(node).confirmation()
        else {
            return Ok(());
        };
        let landing = self.landing_handle();
        // SAFETY: PM checks the handles, and the landing has room for a byte.
        let result =
            landing.map(|landing| unsafe { pmRead(self.context, node as i32, handle, landing, 1) });
        match result {
            Some(0) => {
                let (number, report) = self.number_of_last(node);
                self.accesses_of(node).on_confirmation_started(number);
                self.on_report(node, &report);
            }
            Some(libc::ENOBUFS) => {
                self.accesses_of(node).on_confirmation_delayed();
                return Err(AccessError::Full);
            }
            _ => {
                let mut all_ended = EndedAccesses::new();
                self.accesses_of(node).on_confirmation_refused(&mut all_ended);
                self.accesses.add_ended(all_ended);
            }
        }
        Ok(())
    }

    /// The handle of the destination of confirming reads.
    fn landing_handle(&mut self) -> Option<u64> {
        if self.accesses.landing_handle.is_none() {
            let start = (&raw mut *self.accesses.landing).cast();
            // SAFETY: only PM uses the memory, which exists as long as the process.
            let buffer = unsafe { UserBuffer::of_segment(start, size_of::<u64>()) };
            self.accesses.landing_handle = self.lock(PM_NODE_ANY, &buffer);
        }
        self.accesses.landing_handle
    }

    /// See [`score_p2p::Network::start_write`].
    pub(crate) fn start_write(
        &mut self,
        endpoint: usize,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        if from.is_empty() || from.len() > PM_RMA_MTU {
            return Err(AccessError::Failed);
        }
        idle_mark::become_busy();
        // A delayed confirmation comes first. Otherwise a stream of writes would take all room, and
        // no write would ever be confirmed.
        if let Some(accesses) = self.accesses.by_node.get(&node)
            && matches!(accesses.confirmation(), Confirmation::Delayed(_))
        {
            self.confirm_writes(node)?;
        }
        let local = self.lock(node as i32, from).ok_or(AccessError::Failed)?;
        // SAFETY: PM checks the handles. `from` is locked and remains until the write has ended.
        let result = unsafe { pmWrite(self.context, node as i32, handle, local, from.len()) };
        if result != 0 {
            self.unlock(node as i32, from);
            return Err(error_of(result));
        }
        let access = self.accesses.next_access(endpoint);
        let (number, report) = self.number_of_last(node);
        self.accesses_of(node).on_write_started(number, access, handle);
        self.on_report(node, &report);
        // Within a host the bytes have arrived when the call returns.
        let Some(ended) = self.accesses.take_if_last(access) else {
            return Ok(WriteProgress::Started(access.number));
        };
        self.unlock(node as i32, from);
        self.remove_idle(node);
        if ended.has_failed { Err(AccessError::Failed) } else { Ok(WriteProgress::Delivered) }
    }

    /// See [`score_p2p::Network::start_read`].
    pub(crate) fn start_read(
        &mut self,
        endpoint: usize,
        node: u32,
        handle: u64,
        into: &UserBuffer,
    ) -> Result<AccessNumber, AccessError> {
        if into.len() > PM_RMA_MTU {
            return Err(AccessError::Failed);
        }
        idle_mark::become_busy();
        let local = self.lock(node as i32, into).ok_or(AccessError::Failed)?;
        // SAFETY: PM checks the handles. `into` is locked and remains until the read has ended.
        let result = unsafe { pmRead(self.context, node as i32, handle, local, into.len()) };
        if result != 0 {
            self.unlock(node as i32, into);
            return Err(error_of(result));
        }
        let access = self.accesses.next_access(endpoint);
        let (number, report) = self.number_of_last(node);
        self.accesses_of(node).on_read_started(number, access);
        self.on_report(node, &report);
        Ok(access.number)
    }

    /// See [`score_p2p::Network::next_ended`].
    pub(crate) fn next_ended(&mut self, endpoint: usize) -> Option<EndedAccess> {
        for _ in 0..NODES_PER_CALL.min(self.accesses.by_node.len()) {
            let ended = self.accesses.ended[endpoint].pop_front();
            if ended.is_some() {
                return ended;
            }
            let node = self.accesses.next_node()?;
            self.accesses.last_asked = node;
            self.ask_about(node);
            // If there is no room now, a later call starts the confirmation.
            let _ = self.confirm_writes(node);
            self.remove_idle(node);
        }
        self.accesses.ended[endpoint].pop_front()
    }

    fn remove_idle(&mut self, node: u32) {
        if self.accesses.by_node.get(&node).is_some_and(NodeAccesses::is_idle) {
            self.accesses.by_node.remove(&node);
        }
    }
}

fn error_of(result: i32) -> AccessError {
    if result == libc::ENOBUFS { AccessError::Full } else { AccessError::Failed }
}
