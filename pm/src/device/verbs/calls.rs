//! Connecting on iWARP: of two processes the one of the lower node number calls the other by
//! rdma_cm, when it has heard its hello. Who is called accepts when it has heard the same hello
//! that the caller names, so that both wire the queue pairs that they mean.

#![forbid(unsafe_code)]

use super::adapter::Adapter;
use super::connection::Event;
use super::engine::Engine;
use super::manager::{Manager, News, Order};
use super::pair::{Pair, Station};
use crate::debug;
use crate::device::network::lanes::Lanes;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// "SCPMVCL" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SCPMVCL\x01");
/// Bytes of a call.
pub(super) const LENGTH: usize = 48;

/// What a caller says: the private data of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// What datagrams of the job carry.
    pub(super) secret: u64,
    pub(super) channel: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    /// The caller's queue pair, and the other's that it is to be wired to, as in hellos.
    pub(super) own: u64,
    pub(super) other: u64,
}

impl Call {
    pub(super) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        for (at, word) in [MAGIC, self.secret, self.own, self.other].into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        for (at, word) in [self.channel, self.from, self.to].into_iter().enumerate() {
            bytes[32 + at * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None: it is none of ours. What stands behind it was added on the way.
    pub(super) fn decode(bytes: &[u8]) -> Option<Call> {
        let (bytes, _) = bytes.split_first_chunk::<LENGTH>()?;
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Call {
            secret: long(8)?,
            own: long(16)?,
            other: long(24)?,
            channel: word(32)?,
            from: word(36)?,
            to: word(40)?,
        })
        .filter(|_| long(0) == Some(MAGIC))
    }
}

/// Where calls are heard, as hellos say it: the address in place of a GID, the port of a LID.
pub(super) fn station(address: SocketAddr) -> Station {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Station { gid: ip.octets(), lid: address.port(), ..Station::default() }
}

fn address(station: &Station) -> SocketAddr {
    let ip = Ipv6Addr::from(station.gid);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    SocketAddr::new(ip, station.lid)
}

/// What makes connections, where that is iWARP's way: called at the link where hellos are heard, if
/// the adapter is there, else at the adapter's first address.
pub(super) fn manager(adapter: &Adapter, socket: &UdpSocket) -> Result<Option<Manager>, String> {
    if !adapter.chosen.iwarp {
        return Ok(None);
    }
    let near = socket.local_addr().map_err(|error| error.to_string())?.ip();
    Manager::start(&adapter.chosen, adapter.reads, near).map(Some)
}

/// What is kept for one peer.
#[derive(Default)]
pub(super) struct Line {
    /// The connection that the present queue pair has, or comes to.
    now: Option<u64>,
    /// A request that waits until it is known what it means.
    waits: Option<(u64, Call)>,
}

impl Engine {
    /// Carries out `Action::Wire`: calls, or waits to be called.
    pub(super) fn wire(&mut self, node: u32) -> Result<(), String> {
        if self.identity.own > node {
            self.answer(node);
            return Ok(());
        }
        let claim = self.peers[node as usize].connection.meant();
        let peer = &mut self.peers[node as usize];
        let pair = peer.pair.as_ref().ok_or("no queue pair")?.number();
        let (secret, channel) = (self.identity.secret, self.identity.channel);
        let (from, (own, other)) = (self.identity.own, claim);
        let call = Call { secret, channel, from, to: node, own, other };
        let manager = self.manager.as_mut().ok_or("no connection manager")?;
        let line = manager.new_line(node);
        peer.line.now = Some(line);
        manager.order(Order::Connect { line, to: address(&peer.station), pair, call });
        Ok(())
    }

    /// Carries out `Action::Reset`: a queue pair that was ever called with is not used again.
    pub(super) fn replace_pair(&mut self, node: u32) -> Result<(), String> {
        let pair = Pair::new(&self.adapter, 0)?;
        let peer = &mut self.peers[node as usize];
        peer.number = Some(pair.number());
        if let Some(old) = peer.pair.replace(pair) {
            self.hang_up(node, old);
        }
        Ok(())
    }

    /// Ends the connection of a queue pair, and it: by the manager's thread, because the kernel
    /// may take its time with one that is just being made.
    pub(super) fn hang_up(&mut self, node: u32, pair: Pair) {
        let Some(manager) = &mut self.manager else { return drop(pair) };
        let line = self.peers[node as usize].line.now.take();
        if let Some(line) = line {
            manager.forget(line);
        }
        manager.order(Order::HangUp { line, pair: Some(pair) });
    }

    /// Accepts the request that waits, if it names what this side means; refuses it, if it never
    /// will.
    fn answer(&mut self, node: u32) {
        let peer = &mut self.peers[node as usize];
        let (Some((line, call)), Some(manager)) = (peer.line.waits, &mut self.manager) else {
            return;
        };
        let (own, other) = peer.connection.meant();
        if call.other == own && call.own > other {
            // Its hello is still on the way.
            return;
        }
        peer.line.waits = None;
        let is_meant = (call.other, call.own) == (own, other) && peer.connection.is_wiring();
        if let Some(pair) = peer.pair.as_ref().filter(|_| is_meant && peer.line.now.is_none()) {
            peer.line.now = Some(line);
            return manager.order(Order::Accept { line, pair: pair.number() });
        }
        manager.forget(line);
        manager.order(Order::HangUp { line: Some(line), pair: None });
    }

    /// Hears what has become of connections.
    pub(super) fn hear_manager(&mut self, lanes: &Lanes) {
        while let Some(news) = self.manager.as_mut().and_then(|manager| manager.next()) {
            match news {
                News::Called(line, call) => self.is_called(line, call),
                News::Joined(line) => {
                    if let Some(node) = self.whose(line) {
                        self.happens(lanes, node, Event::Joined);
                    }
                }
                News::Ended(line, why) => {
                    if let Some(node) = self.whose(line) {
                        self.failed(lanes, node, &why);
                    }
                }
                News::Removed => self.breaks(),
            }
        }
    }

    /// The node whose present connection this is.
    fn whose(&self, line: u64) -> Option<u32> {
        let node = self.manager.as_ref()?.node(line)?;
        (self.peers[node as usize].line.now == Some(line)).then_some(node)
    }

    fn is_called(&mut self, line: u64, call: Call) {
        let Call { secret, channel, from, to, .. } = call;
        let own = self.identity.own;
        let ours = secret == self.identity.secret && channel == self.identity.channel;
        let is_lower = from < own && (from as usize) < self.peers.len();
        let Some(manager) = &mut self.manager else { return };
        if !ours || to != own || !is_lower {
            debug::say(debug::WARNING, || "verbs: a call that is none of this job's".into());
            return manager.order(Order::HangUp { line: Some(line), pair: None });
        }
        manager.belongs(line, from);
        let before = self.peers[from as usize].line.waits.replace((line, call));
        if let Some((before, _)) = before {
            manager.forget(before);
            manager.order(Order::HangUp { line: Some(before), pair: None });
        }
        self.answer(from);
    }

    /// What the progress thread of the endpoint waits for besides.
    pub(super) fn manager_bell(&self) -> Option<Arc<nix::sys::eventfd::EventFd>> {
        self.manager.as_ref().map(Manager::bell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn where_calls_are_heard_goes_with_a_hello() {
        for text in ["10.9.1.1:4711", "[fd00::1]:1"] {
            let at: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&station(at)), at);
        }
    }

    proptest! {
        #[test]
        fn a_call_reads_back_and_one_that_is_cut_or_changed_is_none(
            words in any::<[u64; 3]>(), more in any::<[u32; 3]>(), cut in 0..LENGTH
        ) {
            let ([secret, own, other], [channel, from, to]) = (words, more);
            let call = Call { secret, channel, from, to, own, other };
            let mut bytes = call.encode();
            prop_assert_eq!(Call::decode(&bytes), Some(call));
            prop_assert_eq!(Call::decode(&[&bytes[..], &[0; 4]].concat()), Some(call));
            prop_assert_eq!(Call::decode(&bytes[..cut]), None);
            bytes[0] ^= 1;
            prop_assert_eq!(Call::decode(&bytes), None);
        }
    }
}
