//! The protocol by which two processes connect a pair of queue pairs. This module is pure: it turns
//! events into actions.
//!
//! Both processes follow the same rules. Each identifies its own queue pair by an *epoch*. A new
//! queue pair has a higher epoch. The queue pair of an owner that takes over for an exited process
//! also has a higher epoch.
//!
//! A *hello* carries the sender's epoch, the peer's epoch that the sender's queue pair is connected
//! to, and whether the sender is ready. A process is ready when a hello has reported that the peer
//! is connected to its present queue pair. Hellos are datagrams that may be lost, duplicated and
//! late. A process that is not ready repeats its hello. A ready process replies to a hello of a
//! process that is not ready. Every process replies to a hello that names an older queue pair.
//!
//! A hello with a higher epoch than the known one means that the peer's queue pair is new. Then the
//! process connects its own queue pair again, or replaces it if it was ever used for sending.

#![forbid(unsafe_code)]

/// The first and the longest interval between hellos, in nanoseconds.
const MIN_HELLO_INTERVAL_NS: u64 = 20_000_000;
const MAX_HELLO_INTERVAL_NS: u64 = 1_000_000_000;

/// The part of a hello that describes the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HandshakeState {
    /// The sender's queue pair.
    pub(super) self_epoch: u64,
    /// The peer's queue pair that it is connected to; 0: none.
    pub(super) peer_epoch: u64,
    pub(super) is_ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEvent {
    /// Messages or operations are queued.
    SendPending,
    HelloReceived(HandshakeState),
    /// The local queue pair has failed.
    QpFailed,
    Timer,
    /// The owner has marked the peer's process as exited. This side starts no more connections to
    /// it, but the owner that delivers its messages may start one.
    PeerExited,
}

/// The actions that an event causes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Destroy the queue pair, after everything that it has received was taken.
    DestroyQp,
    /// Create a queue pair.
    CreateQp,
    /// Return the queue pair to its initial state.
    ResetQp,
    /// Connect the queue pair to the one that the hello named.
    ConnectQp,
    /// Both ends are connected. Send everything that the peer does not have.
    StartSending,
    SendHello,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// There is a queue pair. It is not connected.
    Created,
    /// The queue pair is connected, but the peer may not have received a hello about it.
    Connected,
    Ready,
    /// There is no queue pair, because resources are exhausted.
    NoResources,
    Closed,
}

/// The connection to one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection {
    state: State,
    self_epoch: u64,
    peer_epoch: u64,
    /// The epoch of the queue pair that the peer's present queue pair is connected to, from its
    /// hello.
    acknowledged_epoch: u64,
    /// The time of the next hello. `interval_ns`: the interval to the hello after it.
    due_ns: u64,
    interval_ns: u64,
    /// The peer's process has exited: only the other side starts connections.
    is_passive: bool,
}

impl Connection {
    /// A connection that stays closed.
    pub(super) fn closed() -> Connection {
        Connection { state: State::Closed, ..Connection::default() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// The content of the next hello.
    pub(super) fn handshake_state(&self) -> HandshakeState {
        let is_connected = matches!(self.state, State::Connected | State::Ready);
        let peer_epoch = if is_connected { self.peer_epoch } else { 0 };
        HandshakeState {
            self_epoch: self.self_epoch,
            peer_epoch,
            is_ready: self.state == State::Ready,
        }
    }

    /// Whether a received state is at least as new as the known one.
    pub(super) fn is_current(&self, handshake: HandshakeState) -> bool {
        handshake.self_epoch != 0
            && handshake.self_epoch >= self.peer_epoch
            && self.state != State::Closed
    }

    /// Called after an action has failed, when there is no queue pair. A timer tries again later.
    pub(super) fn retry_later(&mut self, now_ns: u64) {
        if self.is_passive && self.state != State::Closed {
            self.state = State::Idle;
        } else if self.state != State::Closed {
            self.state = State::NoResources;
            self.interval_ns =
                (self.interval_ns * 2).clamp(MIN_HELLO_INTERVAL_NS, MAX_HELLO_INTERVAL_NS);
            self.due_ns = now_ns.saturating_add(self.interval_ns);
        }
    }

    /// When `Timer` is due. None: no timer is set.
    pub(super) fn timer_due_ns(&self) -> Option<u64> {
        let has_timer =
            matches!(self.state, State::Created | State::Connected | State::NoResources);
        (has_timer && !self.is_passive).then_some(self.due_ns)
    }

    pub(super) fn on_event(&mut self, event: ConnectionEvent, now_ns: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match (event, self.state) {
            (_, State::Closed) => {}
            (ConnectionEvent::PeerExited, state) => {
                if !matches!(state, State::Idle | State::NoResources) {
                    actions.push(Action::DestroyQp);
                }
                (self.state, self.is_passive) = (State::Idle, true);
            }
            (ConnectionEvent::QpFailed, State::Created | State::Connected | State::Ready)
                if self.is_passive =>
            {
                actions.push(Action::DestroyQp);
                self.state = State::Idle;
            }
            (ConnectionEvent::SendPending, State::Idle) if !self.is_passive => {
                self.create_qp(now_ns, &mut actions);
                self.send_hello(now_ns, &mut actions);
            }
            // Repeated failures increase the interval.
            (ConnectionEvent::QpFailed, State::Created | State::Connected | State::Ready) => {
                actions.push(Action::DestroyQp);
                self.create_qp(now_ns, &mut actions);
                self.due_ns = now_ns.saturating_add(self.interval_ns.max(MIN_HELLO_INTERVAL_NS));
            }
            (ConnectionEvent::Timer, State::Created | State::Connected)
                if now_ns >= self.due_ns =>
            {
                self.send_hello(now_ns, &mut actions);
            }
            (ConnectionEvent::Timer, State::NoResources) if now_ns >= self.due_ns => {
                self.create_qp(now_ns, &mut actions);
                self.send_hello(now_ns, &mut actions);
            }
            (ConnectionEvent::HelloReceived(handshake), _) if self.is_current(handshake) => {
                self.on_hello(handshake, now_ns, &mut actions);
            }
            _ => {}
        }
        actions
    }

    fn create_qp(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.self_epoch = now_ns.max(self.self_epoch.saturating_add(1));
        self.state = State::Created;
        actions.push(Action::CreateQp);
    }

    fn send_hello(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.interval_ns =
            (self.interval_ns * 2).clamp(MIN_HELLO_INTERVAL_NS, MAX_HELLO_INTERVAL_NS);
        self.due_ns = now_ns.saturating_add(self.interval_ns);
        actions.push(Action::SendHello);
    }

    fn on_hello(&mut self, handshake: HandshakeState, now_ns: u64, actions: &mut Vec<Action>) {
        let is_new_qp = handshake.self_epoch > self.peer_epoch;
        (self.peer_epoch, self.acknowledged_epoch) = (handshake.self_epoch, handshake.peer_epoch);
        match self.state {
            State::Idle | State::NoResources => {
                self.create_qp(now_ns, actions);
                self.connect_qp(actions);
            }
            State::Created => self.connect_qp(actions),
            State::Connected if is_new_qp => {
                actions.push(Action::ResetQp);
                self.connect_qp(actions);
            }
            State::Ready if is_new_qp => {
                actions.push(Action::DestroyQp);
                self.create_qp(now_ns, actions);
                self.connect_qp(actions);
            }
            _ => {}
        }
        self.start_sending_if_connected(actions);
        // A peer that is ready with another queue pair has not received the present epoch yet.
        if !handshake.is_ready || handshake.peer_epoch != self.self_epoch {
            self.send_hello(now_ns, actions);
        }
    }

    fn connect_qp(&mut self, actions: &mut Vec<Action>) {
        self.state = State::Connected;
        actions.push(Action::ConnectQp);
    }

    /// Starts to send when both ends are connected.
    fn start_sending_if_connected(&mut self, actions: &mut Vec<Action>) {
        if self.state == State::Connected && self.acknowledged_epoch == self.self_epoch {
            self.state = State::Ready;
            self.interval_ns = 0;
            actions.push(Action::StartSending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two ends, their queue pairs, and the datagrams between them.
    struct World {
        connections: [Connection; 2],
        /// The connection of each queue pair: its own epoch, the peer's epoch.
        queue_pairs: [Option<(u64, u64)>; 2],
        received_epochs: [u64; 2],
        in_flight: Vec<(usize, HandshakeState)>,
        now_ns: u64,
    }

    impl World {
        fn new() -> World {
            World {
                connections: [Connection::default(), Connection::default()],
                queue_pairs: [None; 2],
                received_epochs: [0; 2],
                in_flight: Vec::new(),
                now_ns: 1,
            }
        }

        fn event(&mut self, end: usize, event: ConnectionEvent) {
            self.now_ns += 1000;
            if let ConnectionEvent::HelloReceived(handshake) = event
                && handshake.self_epoch >= self.received_epochs[end]
            {
                self.received_epochs[end] = handshake.self_epoch;
            }
            let actions = self.connections[end].on_event(event, self.now_ns);
            for action in actions {
                let self_epoch = self.connections[end].handshake_state().self_epoch;
                match action {
                    Action::DestroyQp => {
                        assert!(self.queue_pairs[end].take().is_some());
                    }
                    Action::CreateQp => {
                        assert!(self.queue_pairs[end].is_none());
                        self.queue_pairs[end] = Some((self_epoch, 0));
                    }
                    Action::ResetQp => {
                        assert!(self.queue_pairs[end].is_some_and(|(_, other)| other != 0));
                        self.queue_pairs[end] = Some((self_epoch, 0));
                    }
                    Action::ConnectQp => {
                        assert_eq!(self.queue_pairs[end], Some((self_epoch, 0)));
                        self.queue_pairs[end] = Some((self_epoch, self.received_epochs[end]));
                    }
                    Action::StartSending => assert!(self.queue_pairs[end].is_some()),
                    Action::SendHello => {
                        self.in_flight.push((1 - end, self.connections[end].handshake_state()))
                    }
                }
            }
        }

        fn are_connected(&self) -> bool {
            let are_paired =
                matches!(self.queue_pairs, [Some((a, b)), Some((c, d))] if (a, b) == (d, c));
            are_paired && self.connections.iter().all(Connection::is_ready)
        }

        /// Runs without further loss until hellos and timers have completed the connection.
        fn run_until_connected(&mut self) {
            for _ in 0..1000 {
                let mut delivered_count = 0;
                while let Some((to, handshake)) = self.in_flight.pop() {
                    self.event(to, ConnectionEvent::HelloReceived(handshake));
                    delivered_count += 1;
                    assert!(delivered_count < 1000, "hellos without end");
                }
                if !self.in_flight.is_empty() {
                    continue;
                }
                if self.are_connected() {
                    return;
                }
                let due_ns = self.connections.iter().filter_map(Connection::timer_due_ns).min();
                self.now_ns = self.now_ns.max(due_ns.expect("a timer is set"));
                (0..2).for_each(|end| self.event(end, ConnectionEvent::Timer));
            }
            panic!("never connected: {:?} {:?}", self.connections, self.queue_pairs);
        }
    }

    #[test]
    fn a_connection_is_made_from_either_end_and_from_both_at_once() {
        for starters in [&[0][..], &[1], &[0, 1]] {
            let mut world = World::new();
            starters.iter().for_each(|&end| world.event(end, ConnectionEvent::SendPending));
            world.run_until_connected();
            assert!(
                world.connections.iter().all(|end| end.timer_due_ns().is_none()),
                "no timer is left"
            );
        }
    }

    #[test]
    fn an_exited_peer_gets_no_hello_and_its_owner_gets_an_answer() {
        let mut world = World::new();
        world.event(0, ConnectionEvent::SendPending);
        world.run_until_connected();
        world.event(0, ConnectionEvent::PeerExited);
        world.event(0, ConnectionEvent::SendPending);
        assert_eq!((world.queue_pairs[0], world.connections[0].timer_due_ns()), (None, None));
        assert!(world.in_flight.is_empty());
        (world.connections[1], world.queue_pairs[1], world.received_epochs[1]) =
            (Connection::default(), None, 0);
        world.event(1, ConnectionEvent::SendPending);
        world.run_until_connected();
        world.event(0, ConnectionEvent::QpFailed);
        assert_eq!((world.queue_pairs[0], world.connections[0].timer_due_ns()), (None, None));
    }

    #[test]
    fn a_queue_pair_that_could_not_be_created_is_created_later() {
        let mut world = World::new();
        world.event(0, ConnectionEvent::SendPending);
        world.queue_pairs[0] = None;
        world.connections[0].retry_later(world.now_ns);
        world.run_until_connected();
    }

    #[test]
    fn a_successor_of_an_exited_process_is_connected_in_its_place() {
        let mut world = World::new();
        world.event(0, ConnectionEvent::SendPending);
        world.run_until_connected();
        (world.connections[0], world.queue_pairs[0], world.received_epochs[0]) =
            (Connection::default(), None, 0);
        world.event(0, ConnectionEvent::SendPending);
        world.run_until_connected();
    }

    #[test]
    fn a_successor_whose_queue_pair_is_dropped_by_a_late_exit_event_is_connected_again() {
        let mut world = World::new();
        world.event(0, ConnectionEvent::SendPending);
        world.run_until_connected();
        (world.connections[1], world.queue_pairs[1], world.received_epochs[1]) =
            (Connection::default(), None, 0);
        world.event(1, ConnectionEvent::SendPending);
        world.run_until_connected();
        // The last hello of the peer arrives after the exit event.
        let last_handshake = world.connections[1].handshake_state();
        world.event(0, ConnectionEvent::PeerExited);
        world.event(0, ConnectionEvent::HelloReceived(last_handshake));
        world.run_until_connected();
    }

    proptest! {
        /// Datagrams are lost, duplicated and delayed, and queue pairs fail; then failures end.
        // Promise (messages): Two processes connect a pair of queue pairs, whatever datagrams are
        // lost, duplicated or late and whatever fails; messages arrive once and in order over queue
        // pairs that fail.
        #[test]
        fn both_ends_are_connected_after_any_failures(
            steps in prop::collection::vec((0..8u8, 0..64usize), 1..60)
        ) {
            let mut world = World::new();
            world.event(0, ConnectionEvent::SendPending);
            for (step, choice) in steps {
                let end = choice % 2;
                match step {
                    0 => world.event(end, ConnectionEvent::SendPending),
                    1 if world.queue_pairs[end].is_some() => {
                        world.event(end, ConnectionEvent::QpFailed);
                    }
                    2 => {
                        world.now_ns += MAX_HELLO_INTERVAL_NS;
                        world.event(end, ConnectionEvent::Timer);
                    }
                    3 if !world.in_flight.is_empty() => {
                        let index = choice % world.in_flight.len();
                        world.in_flight.remove(index);
                    }
                    _ if !world.in_flight.is_empty() => {
                        let index = choice % world.in_flight.len();
                        // A datagram that step 4 delivers may be delivered again.
                        let (to, handshake) = if step == 4 {
                            world.in_flight[index]
                        } else {
                            world.in_flight.remove(index)
                        };
                        world.event(to, ConnectionEvent::HelloReceived(handshake));
                    }
                    _ => {}
                }
            }
            if world.connections.iter().all(|end| end.timer_due_ns().is_none())
                && !world.are_connected()
            {
                // Neither end has detected the other's failure, which the next send detects.
                world.event(0, ConnectionEvent::QpFailed);
            }
            world.run_until_connected();
        }
    }
}
