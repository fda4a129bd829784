//! A network in memory, for simulations. A seed determines delays. Hops can be killed, and messages
//! of different connections arrive out of order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use score_proto::frame;
use score_tools::merge::MonotonicTime;

use super::{Transport, TransportEvent};
use crate::message::{DownMessage, RoutingTable, UpMessage};

/// The id of the front end, which is the parent of the master.
pub const FRONT_END: u32 = u32::MAX;

/// The network. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryNetwork(Rc<RefCell<NetworkState>>);

#[derive(Debug)]
struct NetworkState {
    now: MonotonicTime,
    random: u64,
    max_delay: Duration,
    sent: u64,
    /// Messages in flight, by time of arrival and order of sending.
    in_flight: BTreeMap<(MonotonicTime, u64), (u32, TransportEvent)>,
    /// The time of the last arrival, by connection.
    last_arrivals: BTreeMap<(u32, u32), MonotonicTime>,
    inboxes: BTreeMap<u32, VecDeque<TransportEvent>>,
    parents: BTreeMap<u32, u32>,
    killed: BTreeSet<u32>,
}

impl MemoryNetwork {
    /// A network in which a message takes up to `max_delay`. Equal seeds give equal runs.
    pub fn new(seed: u64, max_delay: Duration) -> Self {
        Self(Rc::new(RefCell::new(NetworkState {
            now: MonotonicTime::ZERO,
            random: seed | 1,
            max_delay,
            sent: 0,
            in_flight: BTreeMap::new(),
            last_arrivals: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            parents: BTreeMap::new(),
            killed: BTreeSet::new(),
        })))
    }

    /// The end of the network that belongs to one hop.
    pub fn transport(&self, id: u32) -> MemoryTransport {
        MemoryTransport { id, network: self.0.clone() }
    }

    /// The time of the next arrival.
    pub fn next_arrival(&self) -> Option<MonotonicTime> {
        self.0.borrow().in_flight.keys().next().map(|(time, _)| *time)
    }

    /// Sets the time, which never goes back. Returns the hops for which an event has arrived.
    pub fn advance_to(&self, now: MonotonicTime) -> BTreeSet<u32> {
        let state = &mut *self.0.borrow_mut();
        state.now = now.max(state.now);
        let mut reached = BTreeSet::new();
        while let Some(entry) = state.in_flight.first_entry() {
            if entry.key().0 > state.now {
                break;
            }
            let (to, event) = entry.remove();
            if !state.killed.contains(&to) {
                state.inboxes.entry(to).or_default().push_back(event);
                reached.insert(to);
            }
        }
        reached
    }

    /// Kills a hop: it no longer sends or receives, and its peers are notified.
    pub fn kill(&self, id: u32) {
        let state = &mut *self.0.borrow_mut();
        if !state.killed.insert(id) {
            return;
        }
        let children: Vec<u32> =
            state.parents.iter().filter(|(_, parent)| **parent == id).map(|(id, _)| *id).collect();
        for child in children {
            state.send(id, child, TransportEvent::ParentLost("the parent was killed".to_owned()));
        }
        if let Some(parent) = state.parents.get(&id).copied() {
            state.send(id, parent, TransportEvent::ChildLost(id, "it was killed".to_owned()));
        }
    }
}

impl NetworkState {
    /// A random number, by xorshift64.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn send(&mut self, from: u32, to: u32, event: TransportEvent) {
        let max_delay_ns = self.max_delay.as_nanos() as u64;
        let delay = Duration::from_nanos(self.random() % (max_delay_ns + 1));
        let last = self.last_arrivals.entry((from, to)).or_default();
        *last = (*last).max(self.now + delay);
        self.sent += 1;
        self.in_flight.insert((*last, self.sent), (to, event));
    }
}

/// One hop's end of the network.
#[derive(Debug)]
pub struct MemoryTransport {
    id: u32,
    network: Rc<RefCell<NetworkState>>,
}

impl MemoryTransport {
    fn send(&self, to: u32, event: TransportEvent) {
        let state = &mut *self.network.borrow_mut();
        if !state.killed.contains(&self.id) {
            state.send(self.id, to, event);
        }
    }

    /// Sends a message as the front end to the hop `to`, whose parent it becomes.
    pub fn send_down(&self, to: u32, message: DownMessage) {
        self.network.borrow_mut().parents.insert(to, self.id);
        self.send(to, TransportEvent::FromParent(message));
    }
}

/// Encodes and decodes a message, as a network would. Returns `None` if it does not fit in a frame.
fn carried<M: serde::Serialize + serde::de::DeserializeOwned>(message: &M) -> Option<M> {
    frame::decode_datagram(&frame::encode_datagram(message).ok()?).ok()
}

impl Transport for MemoryTransport {
    fn connect_children(&mut self, children: &[u32], _: &RoutingTable) {
        for &child in children {
            let is_killed = {
                let state = &mut *self.network.borrow_mut();
                state.parents.insert(child, self.id);
                state.killed.contains(&child)
            };
            let event = match is_killed {
                true => TransportEvent::ChildLost(child, "no server answers".to_owned()),
                false => TransportEvent::ChildConnected(child),
            };
            // The result arrives after the delay of a message.
            self.send(self.id, event);
        }
    }

    fn send_to_child(&mut self, child: u32, message: DownMessage) {
        match carried(&message) {
            Some(message) => self.send(child, TransportEvent::FromParent(message)),
            None => {
                let reason = "a message does not fit in a frame".to_owned();
                self.send(self.id, TransportEvent::ChildLost(child, reason));
            }
        }
    }

    fn send_to_parent(&mut self, message: UpMessage) {
        let parent = self.network.borrow().parents.get(&self.id).copied();
        match (parent, carried(&message)) {
            (Some(parent), Some(message)) => {
                self.send(parent, TransportEvent::FromChild(self.id, message));
            }
            _ => {
                let reason = "a message cannot be sent".to_owned();
                self.send(self.id, TransportEvent::ParentLost(reason));
            }
        }
    }

    fn receive(&mut self) -> Option<TransportEvent> {
        self.network.borrow_mut().inboxes.get_mut(&self.id)?.pop_front()
    }

    fn now(&self) -> MonotonicTime {
        self.network.borrow().now
    }

    /// Does not wait: the simulation advances the time.
    fn wait(&mut self, _: MonotonicTime, _: &[BorrowedFd<'_>]) -> io::Result<()> {
        Ok(())
    }
}
