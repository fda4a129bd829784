//! How peers are met, lost and met again: carries out what `connection` says, speaks and hears
//! hellos, and looks at what happens to the adapter.

#![forbid(unsafe_code)]

use super::bindings::{EVENT_DEVICE_FATAL, EVENT_PORT_ACTIVE, EVENT_PORT_ERR};
use super::calls;
use super::connection::{Action, Event};
use super::engine::Engine;
use super::flow::is_before;
use super::hello::{Hello, LENGTH};
use super::pair::Pair;
use crate::debug;
use crate::device::network::lanes::Lanes;
use crate::sync::Ordering;
use nix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Hellos that are read at a time, so that no flood holds anybody up.
const HELLOS: usize = 64;

/// Nanoseconds between two looks whether the adapter is still there.
const LOOK: u64 = 1_000_000_000;

/// Nanoseconds by which one end's operations come before the other's, where one has broken the
/// connection: two ways to the peer and back, beside compilers.
const HOLD: u64 = 200_000_000;

/// Nanoseconds since the machine came up: later ones are higher in every process of the host.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(1, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// A socket's address, as it stands in the table of addresses.
pub(super) fn encode(address: SocketAddr) -> Vec<u8> {
    let mut bytes = address.port().to_le_bytes().to_vec();
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    bytes
}

/// None: it is none.
pub(super) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let (port, ip) = bytes.split_first_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes(*port)))
}

impl Engine {
    /// Something happens to the connection to `node`.
    #[cold]
    pub(super) fn happens(&mut self, lanes: &Lanes, node: u32, event: Event) {
        let actions = self.peers[node as usize].connection.handle(event, now());
        for action in actions {
            if let Err(why) = self.act(lanes, node, action) {
                self.cannot_meet(node, action, &why);
                self.lose(lanes, node);
                self.peers[node as usize].connection.give_up(now());
                break;
            }
        }
        let is_due = self.peers[node as usize].connection.due().is_some();
        if is_due && !self.meeting.contains(&node) {
            self.meeting.push(node);
        }
    }

    /// It is tried again, ever later. That an adapter has no more to give is told to the user.
    fn cannot_meet(&mut self, node: u32, action: Action, why: &str) {
        let line = format!("verbs: node {node} cannot be met: {why}; it is tried again");
        if action == Action::Make && !std::mem::replace(&mut self.is_full, true) {
            return debug::warn_user(&line);
        }
        debug::say(debug::ERROR, || line);
    }

    fn act(&mut self, lanes: &Lanes, node: u32, action: Action) -> Result<(), String> {
        let peer = &mut self.peers[node as usize];
        match action {
            Action::Drop => self.lose(lanes, node),
            Action::Make => {
                self.arrivals.bring(&self.adapter, node)?;
                let pair = Pair::new(&self.adapter, peer.connection.claim().own as u32)?;
                peer.number = Some(pair.number());
                peer.pair = Some(pair);
            }
            Action::Reset | Action::Wire if self.manager.is_some() => match action {
                Action::Wire => self.wire(node)?,
                _ => self.replace_pair(node)?,
            },
            Action::Reset => peer.pair.as_ref().ok_or("no queue pair")?.reset()?,
            Action::Wire => peer.pair.as_ref().ok_or("no queue pair")?.connect(&peer.station)?,
            Action::Open => self.open(lanes, node),
            Action::Say => self.say(node),
        }
        Ok(())
    }

    /// Gives the queue pair to `node` up. What it has received before is taken first.
    fn lose(&mut self, lanes: &Lanes, node: u32) {
        let Some(pair) = self.peers[node as usize].pair.take() else { return };
        pair.fail();
        self.receive(lanes);
        let peer = &mut self.peers[node as usize];
        peer.number = None;
        self.works -= peer.flow.under_way();
        let asking = peer.asked.take().is_some();
        if self.manager.is_none() {
            peer.flow.fail();
        } else if let Some(it) = peer.flow.fail_and_suspect(asking, self.is_down) {
            self.give_up(node, &it, "each connection ends with it");
        }
        if self.manager.is_some() {
            // What has broken it may be a region that is not there any more.
            self.peers[node as usize].regions.clear();
        }
        self.hang_up(node, pair);
    }

    /// Both ends are wired.
    fn open(&mut self, lanes: &Lanes, node: u32) {
        debug::say(debug::INFO, || format!("verbs: connected with node {node}"));
        let known = self.peers[node as usize].known;
        while let Some(item) = self.peers[node as usize].flow.pop_known(known) {
            self.is_over(lanes, node, item, true);
        }
        self.tell(lanes, node);
        self.hold(node);
        self.transmit(lanes, node);
    }

    /// Where both ends may have an operation that has broken the connection, one of them is first
    /// to find out; which, both tell by the numbers of their queue pairs.
    fn hold(&mut self, node: u32) {
        let peer = &mut self.peers[node as usize];
        let (own, other) = peer.connection.meant();
        let lower_first = own.wrapping_add(other).count_ones() % 2 == 0;
        if !peer.flow.is_cautious() || lower_first == (self.identity.own < node) {
            return peer.flow.hold(0);
        }
        let until = now().saturating_add(HOLD);
        peer.flow.hold(until);
        self.held.push_back((node, until));
    }

    /// The other end has had its time.
    fn release(&mut self, lanes: &Lanes, time: u64) {
        while let Some(&(node, until)) = self.held.front().filter(|(_, until)| *until <= time) {
            self.held.pop_front();
            self.peers[node as usize].flow.release(until);
            if self.peers[node as usize].connection.is_ready() {
                self.transmit(lanes, node);
            }
        }
    }

    fn say(&mut self, node: u32) {
        let peer = &self.peers[node as usize];
        let Some(pair) = &peer.pair else { return };
        let at = self.credits.keeps.at(0, 8).addr() as u64;
        let [data, control] = peer.consumed;
        let hello = Hello {
            secret: self.identity.secret,
            channel: self.identity.channel,
            from: self.identity.own,
            to: node,
            claim: peer.connection.claim(),
            station: self.manager.as_ref().map_or(pair.station(), |it| calls::station(it.address)),
            expected: peer.expected,
            consumed: u64::from(control) << 32 | u64::from(data),
            credit: (at, self.credits.rkey),
            table: self.regions.table(),
        };
        let to = self.addresses.get(node as usize, self.identity.channel as usize, 0);
        let Some(to) = to.as_deref().and_then(decode) else { return };
        // What cannot be sent now is said again.
        let _ = self.socket.send_to(&hello.encode(), to);
    }

    /// Reads hellos, repeats what is due, and looks at the adapter. By one who may take his time.
    pub(super) fn attend(&mut self, lanes: &Lanes) {
        let mut bytes = [0; LENGTH + 1];
        for _ in 0..HELLOS {
            let Ok(count) = self.socket.recv(&mut bytes) else { break };
            if let Some(hello) = Hello::decode(&bytes[..count]) {
                self.hear(lanes, &hello);
            }
        }
        self.hear_adapter();
        self.hear_manager(lanes);
        let (mut meeting, time) = (std::mem::take(&mut self.meeting), now());
        for &node in &meeting {
            if self.peers[node as usize].connection.due().is_some_and(|due| due <= time) {
                self.happens(lanes, node, Event::Tick);
            }
        }
        meeting.append(&mut self.meeting);
        meeting.sort_unstable();
        meeting.dedup();
        meeting.retain(|&node| self.peers[node as usize].connection.due().is_some());
        self.meeting = meeting;
        self.release(lanes, time);
        if time.saturating_sub(self.looked) > LOOK {
            self.looked = time;
            if self.adapter.is_unlisted() {
                self.breaks();
            }
        }
    }

    fn hear(&mut self, lanes: &Lanes, hello: &Hello) {
        let Hello { secret, channel, from, to, .. } = *hello;
        let ours = secret == self.identity.secret && channel == self.identity.channel;
        let own = self.identity.own;
        if !ours || to != own || from == own || from as usize >= self.peers.len() {
            return;
        }
        // Of a node that has gone: the owner of its host, who brings home what it has sent.
        let peer = &mut self.peers[from as usize];
        if !peer.connection.is_news(hello.claim) {
            return;
        }
        peer.station = hello.station;
        peer.known = hello.expected;
        peer.credit = hello.credit;
        peer.table = hello.table;
        let told = hello.consumed;
        let later = |known: u64, shift: u32| {
            let (known, told) = ((known >> shift) as u32, (told >> shift) as u32);
            u64::from(if is_before(known, told) { told } else { known }) << shift
        };
        // The peer may write it at the same time.
        let word = self.credits.keeps.word(from as usize);
        let newest = |known| Some(later(known, 0) | later(known, 32)).filter(|&all| all != known);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, newest);
        self.happens(lanes, from, Event::Heard(hello.claim));
    }

    /// A queue pair answers an error: the peer is met anew, and what it does not have sent again.
    #[cold]
    pub(super) fn failed(&mut self, lanes: &Lanes, node: u32, why: &str) {
        debug::say(debug::WARNING, || {
            format!("verbs: the connection with node {node} {why}; it is made anew")
        });
        // Perhaps it is the port.
        self.hear_adapter();
        self.happens(lanes, node, Event::Failed);
    }

    fn hear_adapter(&mut self) {
        while let Some(event) = self.adapter.next_event() {
            self.adapter_says(event);
        }
    }

    #[cold]
    fn adapter_says(&mut self, event: u32) {
        let name = &self.adapter.chosen.adapter;
        match event {
            EVENT_DEVICE_FATAL => self.breaks(),
            EVENT_PORT_ERR if !std::mem::replace(&mut self.is_down, true) => debug::warn_user(
                &format!("a port of RDMA adapter {name} is down: messages wait until it is up"),
            ),
            EVENT_PORT_ACTIVE => self.is_down = false,
            _ => {}
        }
    }

    /// The adapter has gone.
    #[cold]
    pub(super) fn breaks(&mut self) {
        if !std::mem::replace(&mut self.is_broken, true) {
            let name = &self.adapter.chosen.adapter;
            debug::warn_user(&format!("RDMA adapter {name} has gone"));
        }
    }

    /// Nanoseconds until `attend` has something to do. None: nothing before something comes.
    pub(super) fn wait(&self) -> Option<u64> {
        let due =
            self.meeting.iter().filter_map(|&node| self.peers[node as usize].connection.due());
        due.min().map(|due| due.saturating_sub(now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_are_none() {
        for text in ["10.0.0.2:4711", "[fe80::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address)), Some(address));
        }
        assert_eq!((decode(&[]), decode(&[1, 2, 3])), (None, None));
    }
}
