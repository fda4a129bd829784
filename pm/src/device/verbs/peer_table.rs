//! The peers of an endpoint, the number of work requests in flight to all peers, and the lists of
//! peers that have a timer or work in flight.

#![forbid(unsafe_code)]

use super::connection::Connection;
use super::outgoing_queue::QueueItem;
use super::peer::VerbsPeer;
use std::ops::{Index, IndexMut};

/// Work requests of a queue pair that are reserved for other purposes than messages.
pub(super) const RESERVED_WORK_REQUESTS: usize = 8;
/// The number of reserved work requests that reports of credit leave free.
const SPARE_WORK_REQUESTS: usize = 2;

/// See the module.
pub(super) struct VerbsPeerTable {
    peers: Box<[VerbsPeer]>,
    /// The largest number of work requests in flight to one peer.
    max_in_flight: usize,
    /// Work requests in flight to all peers.
    in_flight: usize,
    /// Peers with a timer.
    timer_peers: Vec<u32>,
    /// Peers to which messages or operations are in flight. `is_busy` marks them.
    busy_peers: Vec<u32>,
}

impl Index<u32> for VerbsPeerTable {
    type Output = VerbsPeer;

    #[inline(always)]
    fn index(&self, node: u32) -> &VerbsPeer {
        &self.peers[node as usize]
    }
}

impl IndexMut<u32> for VerbsPeerTable {
    #[inline(always)]
    fn index_mut(&mut self, node: u32) -> &mut VerbsPeer {
        &mut self.peers[node as usize]
    }
}

impl VerbsPeerTable {
    /// `queue_depth`: the number of work requests that a queue pair holds.
    pub(super) fn new(nodes: usize, queue_depth: usize) -> VerbsPeerTable {
        VerbsPeerTable {
            peers: (0..nodes).map(|_| VerbsPeer::default()).collect(),
            max_in_flight: queue_depth - RESERVED_WORK_REQUESTS,
            in_flight: 0,
            timer_peers: Vec::new(),
            busy_peers: Vec::new(),
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, node: u32) -> Option<&VerbsPeer> {
        self.peers.get(node as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &VerbsPeer> {
        self.peers.iter()
    }

    /// The largest number of messages and operations in flight to one peer, in work requests.
    #[inline(always)]
    pub(super) fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    /// Whether the queue pair to `node` has room for a report of credit.
    pub(super) fn has_room_for_report(&self, node: u32) -> bool {
        let max_in_flight = self.max_in_flight + RESERVED_WORK_REQUESTS - SPARE_WORK_REQUESTS;
        self[node].send_queue.in_flight() < max_in_flight
    }

    /// Whether any work request is in flight.
    #[inline(always)]
    pub(super) fn has_work_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Appends an item to the queue of a peer.
    #[inline(always)]
    pub(super) fn queue(&mut self, node: u32, item: QueueItem) {
        let peer = &mut self.peers[node as usize];
        peer.send_queue.push(item);
        if !std::mem::replace(&mut peer.is_busy, true) {
            self.busy_peers.push(node);
        }
    }

    /// Begins a work request to a peer. Returns the peer, the number of the request, and whether
    /// the request is signalled. `must_signal`: it is signalled in any case.
    #[inline(always)]
    pub(super) fn begin_work(&mut self, node: u32, must_signal: bool) -> (&VerbsPeer, u32, bool) {
        self.in_flight += 1;
        let peer = &mut self.peers[node as usize];
        let (number, signalled) = peer.send_queue.begin_work(must_signal);
        (peer, number, signalled)
    }

    /// Ends a work request to a peer, and all requests that precede it.
    #[inline(always)]
    pub(super) fn complete_up_to(&mut self, node: u32, work: u32) {
        self.in_flight -= self.peers[node as usize].send_queue.complete_up_to(work);
    }

    /// Ends all work requests to a peer, because its queue pair no longer exists. All items of its
    /// queue have to be posted again.
    pub(super) fn on_qp_destroyed(&mut self, node: u32) {
        let peer = &mut self.peers[node as usize];
        self.in_flight -= peer.send_queue.in_flight();
        peer.qp_number = None;
        peer.pending_entry_read = None;
        peer.send_queue.fail();
    }

    /// Destroys all queue pairs, so that no more messages are received.
    pub(super) fn close(&mut self) {
        for peer in &mut self.peers {
            peer.connection = Connection::closed();
            peer.qp_number = None;
            peer.pair = None;
        }
    }

    /// Takes the list of peers to which messages or operations are in flight. The caller returns it
    /// by [`VerbsPeerTable::put_back_busy_peers`].
    pub(super) fn take_busy_peers(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.busy_peers)
    }

    /// Removes the peers without work from the list. Peers may have been added to the table's list
    /// meanwhile.
    pub(super) fn put_back_busy_peers(&mut self, mut nodes: Vec<u32>) {
        nodes.retain(|&node| {
            let peer = &mut self.peers[node as usize];
            peer.is_busy = peer.send_queue.len() > 0;
            peer.is_busy
        });
        nodes.append(&mut self.busy_peers);
        self.busy_peers = nodes;
        let in_flight = self.peers.iter().map(|peer| peer.send_queue.in_flight());
        debug_assert_eq!(self.in_flight, in_flight.sum::<usize>());
    }

    /// Lists a peer whose connection has a timer.
    pub(super) fn list_timer(&mut self, node: u32) {
        let has_timer = self[node].connection.timer_due_ns().is_some();
        if has_timer && !self.timer_peers.contains(&node) {
            self.timer_peers.push(node);
        }
    }

    /// Takes the list of peers with a timer. The caller returns it by
    /// [`VerbsPeerTable::put_back_timer_peers`].
    pub(super) fn take_timer_peers(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.timer_peers)
    }

    /// Removes the peers without a timer from the list. Peers may have been added to the table's
    /// list meanwhile.
    pub(super) fn put_back_timer_peers(&mut self, mut nodes: Vec<u32>) {
        nodes.append(&mut self.timer_peers);
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|&node| self[node].connection.timer_due_ns().is_some());
        self.timer_peers = nodes;
    }

    /// The earliest time of a timer.
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.timer_peers.iter().filter_map(|&node| self[node].connection.timer_due_ns()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::ConnectionEvent;
    use super::super::outgoing_queue::{MessageClass, QueuedMessage};
    use super::*;
    use crate::device::net_common::indices::SlotIndex;

    fn message(sequence: u32) -> QueueItem {
        let kind = MessageClass::Data;
        QueueItem::Message(QueuedMessage { slot: SlotIndex(sequence), len: 1, kind, sequence })
    }

    #[test]
    fn work_requests_are_counted_until_they_are_done_or_their_queue_pair_is_destroyed() {
        let mut peers = VerbsPeerTable::new(3, 64);
        let mut numbers = Vec::new();
        for node in [1, 2, 2, 2] {
            peers.queue(node, message(0));
            numbers.push(peers.begin_work(node, true).1);
        }
        peers.complete_up_to(2, numbers[1]);
        // This request is no longer in flight.
        peers.complete_up_to(2, numbers[1]);
        assert_eq!(peers.in_flight, 3);
        peers.on_qp_destroyed(2);
        assert_eq!((peers.in_flight, peers.has_work_in_flight()), (1, true));
        peers.complete_up_to(1, numbers[0]);
        assert!(!peers.has_work_in_flight());
    }

    #[test]
    fn reports_of_credit_have_room_when_messages_have_none() {
        let mut peers = VerbsPeerTable::new(2, 64);
        let is_full =
            |peers: &VerbsPeerTable| peers[1].send_queue.in_flight() >= peers.max_in_flight();
        while !is_full(&peers) {
            peers.begin_work(1, false);
        }
        let mut reports = 0;
        while peers.has_room_for_report(1) {
            peers.begin_work(1, false);
            reports += 1;
        }
        assert_eq!(reports, RESERVED_WORK_REQUESTS - SPARE_WORK_REQUESTS);
    }

    #[test]
    fn a_busy_peer_is_listed_once_until_its_queue_is_empty() {
        let mut peers = VerbsPeerTable::new(4, 64);
        for node in [3, 1, 3] {
            peers.queue(node, message(0));
        }
        let busy_peers = peers.take_busy_peers();
        assert_eq!(busy_peers, [3, 1]);
        peers[3].send_queue.pop_first();
        peers[3].send_queue.pop_first();
        // Meanwhile a failure queues messages to a listed peer and to another peer.
        peers.queue(1, message(1));
        peers.queue(2, message(0));
        peers.put_back_busy_peers(busy_peers);
        peers.queue(3, message(2));
        assert_eq!(peers.take_busy_peers(), [1, 2, 3]);
    }

    #[test]
    fn a_timer_is_listed_once_and_the_earliest_comes_first() {
        let mut peers = VerbsPeerTable::new(3, 64);
        assert_eq!(peers.next_timer_ns(), None);
        for (node, now_ns) in [(2, 2_000), (1, 1_000), (2, 2_000)] {
            peers[node].connection.on_event(ConnectionEvent::SendPending, now_ns);
            peers.list_timer(node);
        }
        peers.list_timer(0);
        let timer_peers = peers.take_timer_peers();
        assert_eq!((timer_peers.as_slice(), peers.next_timer_ns()), (&[2, 1][..], None));
        peers.list_timer(2);
        peers[1].connection = Connection::closed();
        peers.put_back_timer_peers(timer_peers);
        assert_eq!(peers.next_timer_ns(), peers[2].connection.timer_due_ns());
        assert_eq!(peers.take_timer_peers(), [2]);
    }
}
