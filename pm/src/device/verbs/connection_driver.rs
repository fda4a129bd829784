//! Connects peers, detects lost connections and connects again. This module carries out the actions
//! of `connection`, sends and receives hellos, and handles events of the adapter.

#![forbid(unsafe_code)]

use super::connection::{Action, ConnectionEvent};
use super::credits;
use super::engine::VerbsEngine;
use super::hello::Hello;
use super::queue_pair::QueuePair;
use crate::debug;
use crate::device::net_common::EndpointIdentity;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use nix::time::{ClockId, clock_gettime};

/// The largest number of datagrams per pass. The limit keeps a flood of datagrams from delaying
/// other work.
const MAX_DATAGRAMS_PER_PASS: usize = 64;

/// Nanoseconds since boot, by a clock that all processes of a host share.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(1, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

impl VerbsEngine {
    /// Passes an event to the connection to `node`, and carries out the actions.
    #[cold]
    pub(super) fn dispatch_event(
        &mut self,
        queues: &EndpointQueues,
        node: u32,
        event: ConnectionEvent,
    ) {
        let actions = self.peers[node].connection.on_event(event, now_ns());
        for action in actions {
            if let Err(why) = self.execute_action(queues, node, action) {
                self.report_connect_failure(node, action, &why);
                self.destroy_qp(queues, node);
                self.peers[node].connection.retry_later(now_ns());
                break;
            }
        }
        self.peers.list_timer(node);
    }

    /// Reports a failed action, which the engine tries again at growing intervals. Warns the user
    /// once if the adapter has no more resources.
    fn report_connect_failure(&mut self, node: u32, action: Action, why: &str) {
        let text = format!("verbs: cannot connect to node {node}: {why}; retrying");
        if action == Action::CreateQp {
            return self.adapter_status.on_exhausted(text);
        }
        debug::log(debug::ERROR, || text);
    }

    fn execute_action(
        &mut self,
        queues: &EndpointQueues,
        node: u32,
        action: Action,
    ) -> Result<(), String> {
        let peer = &mut self.peers[node];
        match action {
            Action::DestroyQp => self.destroy_qp(queues, node),
            Action::CreateQp => {
                self.receive_buffers.post_buffers(&self.adapter, node)?;
                let pair = QueuePair::new(
                    &self.adapter,
                    peer.connection.handshake_state().self_epoch as u32,
                )?;
                peer.qp_number = Some(pair.qp_number());
                peer.pair = Some(pair);
            }
            Action::ResetQp => peer.pair.as_ref().ok_or("no queue pair")?.reset()?,
            Action::ConnectQp => {
                peer.pair.as_ref().ok_or("no queue pair")?.connect(&peer.qp_address)?
            }
            Action::StartSending => self.start_sending(queues, node),
            Action::SendHello => self.send_hello(node),
        }
        Ok(())
    }

    /// Destroys the queue pair to `node`, after taking everything that it has received.
    fn destroy_qp(&mut self, queues: &EndpointQueues, node: u32) {
        let Some(pair) = self.peers[node].pair.take() else { return };
        pair.set_error_state();
        self.receive(queues);
        self.peers.on_qp_destroyed(node);
    }

    /// Starts to send after both ends are connected.
    fn start_sending(&mut self, queues: &EndpointQueues, node: u32) {
        debug::log(debug::INFO, || format!("verbs: connected with node {node}"));
        let expected_by_peer = self.peers[node].expected_by_peer;
        while let Some(item) = self.peers[node].send_queue.pop_received(expected_by_peer) {
            self.complete_item(queues, node, item, true);
        }
        self.send_credits(queues, node);
        self.transmit(queues, node);
    }

    fn send_hello(&mut self, node: u32) {
        let peer = &self.peers[node];
        let Some(pair) = &peer.pair else { return };
        let EndpointIdentity { self_node, channel, secret } = self.hello_socket.identity();
        self.hello_socket.send(&Hello {
            secret,
            channel,
            from: self_node,
            to: node,
            handshake: peer.connection.handshake_state(),
            qp_address: pair.qp_address(),
            expected: peer.expected,
            consumed: credits::word_of(peer.consumed),
            credit_target: self.credits.target(),
            region_table: self.regions.table_addr_and_key(),
        });
    }

    /// Reads hellos, sends the hellos that are due, and checks the adapter. Call it only from
    /// threads that may block.
    pub(super) fn service(&mut self, queues: &EndpointQueues) {
        let mut budget = MAX_DATAGRAMS_PER_PASS;
        while let Some(hello) = self.hello_socket.receive(&mut budget) {
            self.on_hello(queues, &hello);
        }
        self.adapter_status.poll_events(&self.adapter);
        let (timer_peers, time_ns) = (self.peers.take_timer_peers(), now_ns());
        for &node in &timer_peers {
            let due_ns = self.peers[node].connection.timer_due_ns();
            if due_ns.is_some_and(|due_ns| due_ns <= time_ns) {
                self.dispatch_event(queues, node, ConnectionEvent::Timer);
            }
        }
        self.peers.put_back_timer_peers(timer_peers);
        self.adapter_status.check_existence(&self.adapter, time_ns);
    }

    fn on_hello(&mut self, queues: &EndpointQueues, hello: &Hello) {
        let from = hello.from;
        if from >= self.slab.geometry().nodes {
            return;
        }
        // A hello of an exited node is accepted, because the owner of its host sends hellos to
        // deliver the node's messages.
        let peer = &mut self.peers[from];
        if !peer.connection.is_current(hello.handshake) {
            return;
        }
        peer.qp_address = hello.qp_address;
        peer.expected_by_peer = hello.expected;
        peer.credit_target = hello.credit_target;
        peer.region_table = hello.region_table;
        self.credits.on_hello(from, hello.consumed);
        self.dispatch_event(queues, from, ConnectionEvent::HelloReceived(hello.handshake));
    }

    /// Called when a queue pair has failed. Connects to the peer again, and then sends everything
    /// that the peer does not have.
    #[cold]
    pub(super) fn on_qp_failed(&mut self, queues: &EndpointQueues, node: u32, why: &str) {
        debug::log(debug::WARNING, || {
            format!("verbs: connection with node {node}: {why}; reconnecting")
        });
        // The events are polled first, because the port may be the cause.
        self.adapter_status.poll_events(&self.adapter);
        self.dispatch_event(queues, node, ConnectionEvent::QpFailed);
    }

    /// Records that the adapter was removed, and warns the user.
    #[cold]
    pub(super) fn on_adapter_lost(&mut self) {
        self.adapter_status.on_removed(&self.adapter.chosen.adapter);
    }

    /// Nanoseconds until `service` has work to do. None: no timer is set.
    pub(super) fn time_to_timer_ns(&self) -> Option<u64> {
        self.peers.next_timer_ns().map(|due_ns| due_ns.saturating_sub(now_ns()))
    }
}
