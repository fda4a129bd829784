//! The reads and writes of one other node's memory that have not ended, in the order in which PM
//! has started them. This module does not call PM.
//!
//! PM ends the operations on a node in order, and reports by number which have failed
//! (pmGetRemoteStatus). A write that PM has ended may still be on its way to the other node's
//! memory. It has arrived when a later read has ended (manual 3.6.3). One read confirms all writes
//! before it, whether or not the program has requested that read.

use std::collections::VecDeque;

use score_p2p::{AccessNumber, EndedAccess};

/// An access of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointAccess {
    pub(crate) endpoint: usize,
    pub(crate) number: AccessNumber,
}

/// An operation of PM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read(EndpointAccess),
    Write(EndpointAccess),
    /// A write that no read can confirm. It counts as failed.
    UnconfirmableWrite(EndpointAccess),
    /// A read of one byte that confirms the writes before it.
    Confirmation,
}

impl Operation {
    fn is_read(&self) -> bool {
        matches!(self, Operation::Read(_) | Operation::Confirmation)
    }
}

/// Whether writes wait for a confirming read that was not started yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    NotNeeded,
    /// A read is needed. The region with this handle can be read.
    Needed(u64),
    /// A read is needed, but PM had no room for it. No write may be started before the read.
    Delayed(u64),
}

/// The accesses that have ended, each with its endpoint.
pub(crate) type EndedAccesses = Vec<(usize, EndedAccess)>;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct NodeAccesses {
    /// The operations in flight, with PM's numbers, which ascend.
    in_flight: VecDeque<(u64, Operation)>,
    /// Writes that PM has ended and that no read has confirmed.
    unconfirmed: Vec<EndpointAccess>,
    confirmation: Confirmation,
    last_written_handle: u64,
    /// Whether the node is on this host. If it is, a write has arrived when PM has ended it.
    is_on_this_host: bool,
}

fn ended(access: EndpointAccess, has_failed: bool) -> (usize, EndedAccess) {
    (access.endpoint, EndedAccess { number: access.number, has_failed })
}

impl NodeAccesses {
    pub(crate) fn new(is_on_this_host: bool) -> Self {
        Self {
            in_flight: VecDeque::new(),
            unconfirmed: Vec::new(),
            confirmation: Confirmation::NotNeeded,
            last_written_handle: 0,
            is_on_this_host,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.unconfirmed.is_empty()
    }

    pub(crate) fn confirmation(&self) -> Confirmation {
        if self.is_idle() { Confirmation::NotNeeded } else { self.confirmation }
    }

    /// Notes that PM has started a read with this number.
    pub(crate) fn on_read_started(&mut self, pm_number: u64, access: EndpointAccess) {
        self.in_flight.push_back((pm_number, Operation::Read(access)));
        self.confirmation = Confirmation::NotNeeded;
    }

    /// Notes that PM has started a write to the region with this handle.
    pub(crate) fn on_write_started(&mut self, pm_number: u64, access: EndpointAccess, handle: u64) {
        self.in_flight.push_back((pm_number, Operation::Write(access)));
        self.last_written_handle = handle;
        if !self.is_on_this_host {
            self.confirmation = Confirmation::Needed(handle);
        }
    }

    /// Notes that PM has started the confirming read.
    pub(crate) fn on_confirmation_started(&mut self, pm_number: u64) {
        self.in_flight.push_back((pm_number, Operation::Confirmation));
        self.confirmation = Confirmation::NotNeeded;
    }

    /// Notes that PM had no room for the confirming read.
    pub(crate) fn on_confirmation_delayed(&mut self) {
        if let Confirmation::Needed(handle) = self.confirmation {
            self.confirmation = Confirmation::Delayed(handle);
        }
    }

    /// Notes that PM has refused the confirming read.
    pub(crate) fn on_confirmation_refused(&mut self, all_ended: &mut EndedAccesses) {
        self.confirmation = Confirmation::NotNeeded;
        for (_, operation) in self.in_flight.iter_mut().rev() {
            match *operation {
                Operation::Write(access) => *operation = Operation::UnconfirmableWrite(access),
                Operation::UnconfirmableWrite(_) => {}
                Operation::Read(_) | Operation::Confirmation => return,
            }
        }
        self.end_unconfirmed(true, all_ended);
    }

    /// Notes that the operations up to this number have ended. If `has_failed`, the last of them
    /// has failed.
    pub(crate) fn on_completed(
        &mut self,
        completed: u64,
        has_failed: bool,
        all_ended: &mut EndedAccesses,
    ) {
        while let Some(&(pm_number, operation)) = self.in_flight.front()
            && pm_number <= completed
        {
            self.in_flight.pop_front();
            self.end_operation(operation, has_failed && pm_number == completed, all_ended);
        }
    }

    /// Ends all operations as failed, because PM has no information about them any more.
    pub(crate) fn fail_all(&mut self, all_ended: &mut EndedAccesses) {
        while let Some((_, operation)) = self.in_flight.pop_front() {
            self.end_operation(operation, true, all_ended);
        }
        self.end_unconfirmed(true, all_ended);
        self.confirmation = Confirmation::NotNeeded;
    }

    fn end_operation(
        &mut self,
        operation: Operation,
        has_failed: bool,
        all_ended: &mut EndedAccesses,
    ) {
        match operation {
            Operation::UnconfirmableWrite(access) => all_ended.push(ended(access, true)),
            Operation::Write(access) if has_failed || self.is_on_this_host => {
                all_ended.push(ended(access, has_failed));
            }
            Operation::Write(access) => self.unconfirmed.push(access),
            Operation::Confirmation => self.end_unconfirmed(has_failed, all_ended),
            Operation::Read(access) if !has_failed => {
                // The writes were started before the read.
                self.end_unconfirmed(false, all_ended);
                all_ended.push(ended(access, false));
            }
            Operation::Read(access) => {
                all_ended.push(ended(access, true));
                if !self.unconfirmed.is_empty()
                    && !self.in_flight.iter().any(|(_, operation)| operation.is_read())
                {
                    // The failed read may not have passed the writes, so it confirms nothing.
                    self.confirmation = Confirmation::Needed(self.last_written_handle);
                }
            }
        }
    }

    fn end_unconfirmed(&mut self, has_failed: bool, all_ended: &mut EndedAccesses) {
        all_ended.extend(self.unconfirmed.drain(..).map(|access| ended(access, has_failed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: u64 = 1 << 40;

    fn access(number: u64) -> EndpointAccess {
        EndpointAccess { endpoint: 0, number: AccessNumber(number) }
    }

    /// The numbers of the accesses that have ended, and whether each has failed.
    fn numbers(all_ended: &mut EndedAccesses) -> Vec<(u64, bool)> {
        all_ended.drain(..).map(|(_, ended)| (ended.number.0, ended.has_failed)).collect()
    }

    #[test]
    fn one_read_confirms_all_earlier_writes_and_no_later_write() {
        let (mut node, mut all_ended) = (NodeAccesses::new(false), Vec::new());
        node.on_write_started(1, access(10), HANDLE);
        node.on_write_started(2, access(11), HANDLE + 8);
        assert_eq!(node.confirmation(), Confirmation::Needed(HANDLE + 8));
        node.on_confirmation_delayed();
        assert_eq!(node.confirmation(), Confirmation::Delayed(HANDLE + 8));
        node.on_confirmation_started(3);
        assert_eq!(node.confirmation(), Confirmation::NotNeeded);
        node.on_write_started(4, access(12), HANDLE);
        node.on_completed(2, false, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [], "they may be on their way");
        node.on_completed(4, false, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(10, false), (11, false)]);
        node.on_read_started(5, access(13));
        assert_eq!(node.confirmation(), Confirmation::NotNeeded, "a read of the program does it");
        assert!(!node.is_idle());
        node.on_completed(5, false, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(12, false), (13, false)]);
        assert!(node.is_idle());
    }

    #[test]
    fn a_failure_concerns_one_access_and_a_failed_read_confirms_no_write() {
        let (mut node, mut all_ended) = (NodeAccesses::new(false), Vec::new());
        node.on_write_started(1, access(10), HANDLE);
        node.on_write_started(2, access(11), HANDLE);
        node.on_read_started(3, access(12));
        node.on_completed(1, true, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(10, true)]);
        node.on_completed(3, true, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(12, true)]);
        assert_eq!(node.confirmation(), Confirmation::Needed(HANDLE));
        node.on_confirmation_started(4);
        node.on_completed(4, true, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(11, true)], "it is not known to be there");
        node.on_write_started(5, access(13), HANDLE);
        assert_eq!(node.confirmation(), Confirmation::Needed(HANDLE));
        node.on_completed(5, true, &mut all_ended);
        assert_eq!((node.is_idle(), node.confirmation()), (true, Confirmation::NotNeeded));
    }

    #[test]
    fn a_write_that_cannot_be_confirmed_has_failed() {
        let (mut node, mut all_ended) = (NodeAccesses::new(false), Vec::new());
        node.on_write_started(1, access(10), HANDLE);
        node.on_read_started(2, access(11));
        node.on_write_started(3, access(12), HANDLE);
        node.on_completed(1, false, &mut all_ended);
        node.on_confirmation_refused(&mut all_ended);
        assert_eq!(numbers(&mut all_ended), [], "the read confirms the first one");
        node.on_completed(3, false, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(10, false), (11, false), (12, true)]);
        node.on_write_started(4, access(13), HANDLE);
        node.on_completed(4, false, &mut all_ended);
        node.on_confirmation_refused(&mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(13, true)]);
        node.on_write_started(5, access(14), HANDLE);
        node.on_read_started(6, access(15));
        node.fail_all(&mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(14, true), (15, true)]);
        assert_eq!((node.is_idle(), node.confirmation()), (true, Confirmation::NotNeeded));
    }

    #[test]
    fn a_write_within_the_host_needs_no_confirmation() {
        let (mut node, mut all_ended) = (NodeAccesses::new(true), Vec::new());
        node.on_write_started(1, access(10), HANDLE);
        node.on_write_started(2, access(11), HANDLE);
        assert_eq!(node.confirmation(), Confirmation::NotNeeded);
        node.on_completed(2, true, &mut all_ended);
        assert_eq!(numbers(&mut all_ended), [(10, false), (11, true)]);
        assert!(node.is_idle());
    }
}
