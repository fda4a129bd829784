//! Connects peers, detects lost connections and connects again. This module carries out the actions
//! of `connection`, sends and receives hellos, and handles events of the adapter.

#![forbid(unsafe_code)]

use super::bindings::{EVENT_DEVICE_FATAL, EVENT_PORT_ACTIVE, EVENT_PORT_ERR};
use super::connection::{Action, ConnectionEvent};
use super::engine::{AdapterState, VerbsEngine};
use super::hello::{HELLO_LEN, Hello};
use super::outgoing_queue::is_before;
use super::queue_pair::QueuePair;
use crate::debug;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use crate::sync::Ordering;
use nix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The largest number of hellos per pass. The limit keeps a flood of hellos from delaying other
/// work.
const MAX_HELLOS_PER_PASS: usize = 64;

/// Nanoseconds between two checks that the adapter still exists.
const ADAPTER_CHECK_INTERVAL_NS: u64 = 1_000_000_000;

/// Nanoseconds since boot, by a clock that all processes of a host share.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(1, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Encodes a socket address for the address table.
pub(super) fn encode_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = address.port().to_le_bytes().to_vec();
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    bytes
}

/// Decodes an address of the address table. None: these bytes are not an address.
pub(super) fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (port, ip) = bytes.split_first_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes(*port)))
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
        let actions = self.peers[node as usize].connection.on_event(event, now_ns());
        for action in actions {
            if let Err(why) = self.execute_action(queues, node, action) {
                self.report_connect_failure(node, action, &why);
                self.destroy_qp(queues, node);
                self.peers[node as usize].connection.retry_later(now_ns());
                break;
            }
        }
        let is_due = self.peers[node as usize].connection.timer_due_ns().is_some();
        if is_due && !self.timer_peers.contains(&node) {
            self.timer_peers.push(node);
        }
    }

    /// Reports a failed action, which is tried again with growing intervals. If an adapter has no
    /// more resources, warns the user, once.
    fn report_connect_failure(&mut self, node: u32, action: Action, why: &str) {
        let text = format!("verbs: cannot connect to node {node}: {why}; retrying");
        if action == Action::CreateQp && !std::mem::replace(&mut self.is_exhaustion_reported, true)
        {
            return debug::warn_user(&text);
        }
        debug::log(debug::ERROR, || text);
    }

    fn execute_action(
        &mut self,
        queues: &EndpointQueues,
        node: u32,
        action: Action,
    ) -> Result<(), String> {
        let peer = &mut self.peers[node as usize];
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
        let Some(pair) = self.peers[node as usize].pair.take() else { return };
        pair.set_error_state();
        self.receive(queues);
        let peer = &mut self.peers[node as usize];
        peer.qp_number = None;
        self.in_flight -= peer.send_queue.in_flight();
        peer.pending_entry_read = None;
        peer.send_queue.fail();
    }

    /// Starts to send after both ends are connected.
    fn start_sending(&mut self, queues: &EndpointQueues, node: u32) {
        debug::log(debug::INFO, || format!("verbs: connected with node {node}"));
        let expected_by_peer = self.peers[node as usize].expected_by_peer;
        while let Some(item) = self.peers[node as usize].send_queue.pop_received(expected_by_peer) {
            self.complete_item(queues, node, item, true);
        }
        self.send_credits(queues, node);
        self.transmit(queues, node);
    }

    fn send_hello(&mut self, node: u32) {
        let peer = &self.peers[node as usize];
        let Some(pair) = &peer.pair else { return };
        let credits_addr = self.credits.memory.addr(0, 8).addr() as u64;
        let [data, control] = peer.consumed;
        let hello = Hello {
            secret: self.identity.secret,
            channel: self.identity.channel,
            from: self.identity.self_node,
            to: node,
            handshake: peer.connection.handshake_state(),
            qp_address: pair.qp_address(),
            expected: peer.expected,
            consumed: u64::from(control) << 32 | u64::from(data),
            credit_target: (credits_addr, self.credits.rkey),
            region_table: self.regions.table_addr_and_key(),
        };
        let to = self.addresses.get(node as usize, self.identity.channel as usize, 0);
        let Some(to) = to.as_deref().and_then(decode_address) else { return };
        // If this hello cannot be sent now, a later hello replaces it.
        let _ = self.socket.send_to(&hello.encode(), to);
    }

    /// Reads hellos, sends the hellos that are due, and checks the adapter. Call it only from
    /// threads that may block.
    pub(super) fn service(&mut self, queues: &EndpointQueues) {
        let mut bytes = [0; HELLO_LEN + 1];
        for _ in 0..MAX_HELLOS_PER_PASS {
            let Ok(count) = self.socket.recv(&mut bytes) else { break };
            if let Some(hello) = Hello::decode(&bytes[..count]) {
                self.on_hello(queues, &hello);
            }
        }
        self.poll_adapter_events();
        let (mut timer_peers, time_ns) = (std::mem::take(&mut self.timer_peers), now_ns());
        for &node in &timer_peers {
            if self.peers[node as usize]
                .connection
                .timer_due_ns()
                .is_some_and(|due_ns| due_ns <= time_ns)
            {
                self.dispatch_event(queues, node, ConnectionEvent::Timer);
            }
        }
        timer_peers.append(&mut self.timer_peers);
        timer_peers.sort_unstable();
        timer_peers.dedup();
        timer_peers.retain(|&node| self.peers[node as usize].connection.timer_due_ns().is_some());
        self.timer_peers = timer_peers;
        if time_ns.saturating_sub(self.adapter_checked_ns) > ADAPTER_CHECK_INTERVAL_NS {
            self.adapter_checked_ns = time_ns;
            if self.adapter.is_unlisted() {
                self.on_adapter_lost();
            }
        }
    }

    fn on_hello(&mut self, queues: &EndpointQueues, hello: &Hello) {
        let Hello { secret, channel, from, to, .. } = *hello;
        let is_ours = secret == self.identity.secret && channel == self.identity.channel;
        let self_node = self.identity.self_node;
        if !is_ours || to != self_node || from == self_node || from as usize >= self.peers.len() {
            return;
        }
        // A hello of an exited node is accepted, because the owner of its host sends hellos to
        // deliver the node's messages.
        let peer = &mut self.peers[from as usize];
        if !peer.connection.is_current(hello.handshake) {
            return;
        }
        peer.qp_address = hello.qp_address;
        peer.expected_by_peer = hello.expected;
        peer.credit_target = hello.credit_target;
        peer.region_table = hello.region_table;
        let consumed = hello.consumed;
        let newer_count = |known_counts: u64, shift: u32| {
            let (known_count, new_count) =
                ((known_counts >> shift) as u32, (consumed >> shift) as u32);
            u64::from(if is_before(known_count, new_count) { new_count } else { known_count })
                << shift
        };
        // The word is updated atomically, because the peer may write it at the same time.
        let word = self.credits.memory.word(from as usize);
        let newer_counts = |known_counts| {
            Some(newer_count(known_counts, 0) | newer_count(known_counts, 32))
                .filter(|&counts| counts != known_counts)
        };
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, newer_counts);
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
        self.poll_adapter_events();
        self.dispatch_event(queues, node, ConnectionEvent::QpFailed);
    }

    fn poll_adapter_events(&mut self) {
        while let Some(event) = self.adapter.next_event() {
            self.on_async_event(event);
        }
    }

    #[cold]
    fn on_async_event(&mut self, event: u32) {
        let name = &self.adapter.chosen.adapter;
        match (event, self.adapter_state) {
            (EVENT_DEVICE_FATAL, _) => self.on_adapter_lost(),
            (EVENT_PORT_ERR, AdapterState::Up) => {
                self.adapter_state = AdapterState::PortDown;
                debug::warn_user(&format!(
                    "a port of RDMA adapter {name} is down: messages wait until it is up"
                ));
            }
            (EVENT_PORT_ACTIVE, AdapterState::PortDown) => self.adapter_state = AdapterState::Up,
            _ => {}
        }
    }

    /// Records that the adapter was removed, and warns the user.
    #[cold]
    pub(super) fn on_adapter_lost(&mut self) {
        if std::mem::replace(&mut self.adapter_state, AdapterState::Removed)
            != AdapterState::Removed
        {
            let name = &self.adapter.chosen.adapter;
            debug::warn_user(&format!("RDMA adapter {name} was removed"));
        }
    }

    /// Nanoseconds until `service` has work to do. None: no timer is set.
    pub(super) fn time_to_timer_ns(&self) -> Option<u64> {
        let due_times = self
            .timer_peers
            .iter()
            .filter_map(|&node| self.peers[node as usize].connection.timer_due_ns());
        due_times.min().map(|due_ns| due_ns.saturating_sub(now_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_decoded_unchanged_and_other_bytes_are_refused() {
        for text in ["10.0.0.2:4711", "[fe80::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode_address(&encode_address(address)), Some(address));
        }
        assert_eq!((decode_address(&[]), decode_address(&[1, 2, 3])), (None, None));
    }
}
