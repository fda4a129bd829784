//! Connecting on iWARP. Of two processes the one with the lower node number sends an rdma_cm
//! connect request after it has received the peer's hello. The other process accepts the request if
//! it has received the hello that the request names. Therefore both processes connect the same two
//! queue pairs.

#![forbid(unsafe_code)]

use super::adapter::Adapter;
use super::connection::ConnectionEvent;
use super::connection_manager::{CmCommand, CmNotification, ConnectionManager};
use super::engine::VerbsEngine;
use super::queue_pair::{QpAddress, QueuePair};
use crate::debug;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// "SCPMVCL" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SCPMVCL\x01");
/// Bytes of a connect request.
pub(super) const REQUEST_LEN: usize = 48;

/// The private data of a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectRequest {
    /// The secret that all datagrams of the job carry.
    pub(super) secret: u64,
    pub(super) channel: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    /// The sender's queue pair, and the receiver's queue pair that it is to be connected to, as in
    /// hellos.
    pub(super) self_epoch: u64,
    pub(super) peer_epoch: u64,
}

impl ConnectRequest {
    pub(super) fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        for (index, word) in
            [MAGIC, self.secret, self.self_epoch, self.peer_epoch].into_iter().enumerate()
        {
            bytes[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        for (index, word) in [self.channel, self.from, self.to].into_iter().enumerate() {
            bytes[32 + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a request, and ignores bytes after it, which were added in transit. None: it is not
    /// a request of this protocol.
    pub(super) fn decode(bytes: &[u8]) -> Option<ConnectRequest> {
        let (bytes, _) = bytes.split_first_chunk::<REQUEST_LEN>()?;
        let read_u64 = |offset: usize| {
            Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
        };
        let read_u32 = |offset: usize| {
            Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
        };
        Some(ConnectRequest {
            secret: read_u64(8)?,
            self_epoch: read_u64(16)?,
            peer_epoch: read_u64(24)?,
            channel: read_u32(32)?,
            from: read_u32(36)?,
            to: read_u32(40)?,
        })
        .filter(|_| read_u64(0) == Some(MAGIC))
    }
}

/// The listening address in the form of hellos: the address in place of a GID, the port in place of
/// a LID.
pub(super) fn to_qp_address(address: SocketAddr) -> QpAddress {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    QpAddress { gid: ip.octets(), lid: address.port(), ..QpAddress::default() }
}

fn to_socket_addr(qp_address: &QpAddress) -> SocketAddr {
    let ip = Ipv6Addr::from(qp_address.gid);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    SocketAddr::new(ip, qp_address.lid)
}

/// Starts the connection manager on iWARP. It listens at the address where hellos are received if
/// the adapter has that address, otherwise at the adapter's first address.
pub(super) fn start_manager(
    adapter: &Adapter,
    socket: &UdpSocket,
) -> Result<Option<ConnectionManager>, String> {
    if !adapter.chosen.is_iwarp {
        return Ok(None);
    }
    let link_ip = socket.local_addr().map_err(|error| error.to_string())?.ip();
    ConnectionManager::start(&adapter.chosen, adapter.max_reads, link_ip).map(Some)
}

/// The connection manager's state for one peer.
#[derive(Default)]
pub(super) struct CmPeerState {
    /// The connection that the present queue pair has or will have.
    current_connection: Option<u64>,
    /// A request that waits until the sender's hello arrives.
    pending_request: Option<(u64, ConnectRequest)>,
}

impl VerbsEngine {
    /// Carries out `Action::ConnectQp`: sends a connect request, or waits for one.
    pub(super) fn connect_peer(&mut self, node: u32) -> Result<(), String> {
        if self.identity.self_node > node {
            self.answer_request(node);
            return Ok(());
        }
        let epochs = self.peers[node as usize].connection.epochs();
        let peer = &mut self.peers[node as usize];
        let qp_number = peer.pair.as_ref().ok_or("no queue pair")?.qp_number();
        let (secret, channel) = (self.identity.secret, self.identity.channel);
        let (from, (self_epoch, peer_epoch)) = (self.identity.self_node, epochs);
        let request = ConnectRequest { secret, channel, from, to: node, self_epoch, peer_epoch };
        let manager = self.manager.as_mut().ok_or("no connection manager")?;
        let connection_id = manager.new_connection_id(node);
        peer.cm_state.current_connection = Some(connection_id);
        manager.send_command(CmCommand::Connect {
            connection_id,
            to: to_socket_addr(&peer.qp_address),
            qp_number,
            request,
        });
        Ok(())
    }

    /// Carries out `Action::ResetQp`: a queue pair that was used in a connect request is not used
    /// again.
    pub(super) fn replace_pair(&mut self, node: u32) -> Result<(), String> {
        let pair = QueuePair::new(&self.adapter, 0)?;
        let peer = &mut self.peers[node as usize];
        peer.qp_number = Some(pair.qp_number());
        if let Some(replaced) = peer.pair.replace(pair) {
            self.disconnect(node, replaced);
        }
        Ok(())
    }

    /// Ends the connection of a queue pair, and destroys the queue pair. The manager's thread does
    /// this, because the kernel may take long while a connection is still being made.
    pub(super) fn disconnect(&mut self, node: u32, pair: QueuePair) {
        let Some(manager) = &mut self.manager else { return drop(pair) };
        let connection_id = self.peers[node as usize].cm_state.current_connection.take();
        if let Some(connection_id) = connection_id {
            manager.forget(connection_id);
        }
        manager.send_command(CmCommand::Disconnect { connection_id, pair: Some(pair) });
    }

    /// Accepts the pending request if it names the present queue pairs. Keeps it if the sender's
    /// hello has not arrived yet. Rejects it otherwise.
    fn answer_request(&mut self, node: u32) {
        let peer = &mut self.peers[node as usize];
        let (Some((connection_id, request)), Some(manager)) =
            (peer.cm_state.pending_request, &mut self.manager)
        else {
            return;
        };
        let (self_epoch, peer_epoch) = peer.connection.epochs();
        if request.peer_epoch == self_epoch && request.self_epoch > peer_epoch {
            // The sender's hello has not arrived yet.
            return;
        }
        peer.cm_state.pending_request = None;
        let is_expected = (request.peer_epoch, request.self_epoch) == (self_epoch, peer_epoch)
            && peer.connection.is_connecting();
        if let Some(pair) =
            peer.pair.as_ref().filter(|_| is_expected && peer.cm_state.current_connection.is_none())
        {
            peer.cm_state.current_connection = Some(connection_id);
            return manager
                .send_command(CmCommand::Accept { connection_id, qp_number: pair.qp_number() });
        }
        manager.forget(connection_id);
        manager
            .send_command(CmCommand::Disconnect { connection_id: Some(connection_id), pair: None });
    }

    /// Handles the notifications about connections.
    pub(super) fn handle_cm_notifications(&mut self, queues: &EndpointQueues) {
        while let Some(notification) =
            self.manager.as_mut().and_then(|manager| manager.next_notification())
        {
            match notification {
                CmNotification::ConnectRequest(connection_id, request) => {
                    self.on_connect_request(connection_id, request)
                }
                CmNotification::Established(connection_id) => {
                    if let Some(node) = self.node_of(connection_id) {
                        self.dispatch_event(queues, node, ConnectionEvent::QpConnected);
                    }
                }
                CmNotification::Disconnected(connection_id, why) => {
                    if let Some(node) = self.node_of(connection_id) {
                        self.on_qp_failed(queues, node, &why);
                    }
                }
                CmNotification::DeviceRemoved => self.on_adapter_lost(),
            }
        }
    }

    /// The node whose present connection this is.
    fn node_of(&self, connection_id: u64) -> Option<u32> {
        let node = self.manager.as_ref()?.node_of(connection_id)?;
        (self.peers[node as usize].cm_state.current_connection == Some(connection_id))
            .then_some(node)
    }

    fn on_connect_request(&mut self, connection_id: u64, request: ConnectRequest) {
        let ConnectRequest { secret, channel, from, to, .. } = request;
        let self_node = self.identity.self_node;
        let is_ours = secret == self.identity.secret && channel == self.identity.channel;
        let is_lower = from < self_node && (from as usize) < self.peers.len();
        let Some(manager) = &mut self.manager else { return };
        if !is_ours || to != self_node || !is_lower {
            debug::log(debug::WARNING, || "verbs: a connect request of another job".into());
            return manager.send_command(CmCommand::Disconnect {
                connection_id: Some(connection_id),
                pair: None,
            });
        }
        manager.set_node(connection_id, from);
        let replaced =
            self.peers[from as usize].cm_state.pending_request.replace((connection_id, request));
        if let Some((replaced_id, _)) = replaced {
            manager.forget(replaced_id);
            manager.send_command(CmCommand::Disconnect {
                connection_id: Some(replaced_id),
                pair: None,
            });
        }
        self.answer_request(from);
    }

    /// A descriptor that the endpoint's progress thread also waits for.
    pub(super) fn manager_notify_fd(&self) -> Option<Arc<nix::sys::eventfd::EventFd>> {
        self.manager.as_ref().map(ConnectionManager::notify_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_listening_address_reads_back_from_a_qp_address() {
        for text in ["10.9.1.1:4711", "[fd00::1]:1"] {
            let listen_addr: SocketAddr = text.parse().unwrap();
            assert_eq!(to_socket_addr(&to_qp_address(listen_addr)), listen_addr);
        }
    }

    proptest! {
        #[test]
        fn a_connect_request_reads_back_and_a_truncated_or_changed_one_is_refused(
            words in any::<[u64; 3]>(), more in any::<[u32; 3]>(), cut_len in 0..REQUEST_LEN
        ) {
            let ([secret, self_epoch, peer_epoch], [channel, from, to]) = (words, more);
            let request = ConnectRequest { secret, channel, from, to, self_epoch, peer_epoch };
            let mut bytes = request.encode();
            prop_assert_eq!(ConnectRequest::decode(&bytes), Some(request));
            prop_assert_eq!(ConnectRequest::decode(&[&bytes[..], &[0; 4]].concat()), Some(request));
            prop_assert_eq!(ConnectRequest::decode(&bytes[..cut_len]), None);
            bytes[0] ^= 1;
            prop_assert_eq!(ConnectRequest::decode(&bytes), None);
        }
    }
}
