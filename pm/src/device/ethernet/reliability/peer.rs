//! One peer: both directions, and which packet goes out next.

use super::links::Links;
use super::receive::Receiver;
use super::rtt::stamp;
use super::send::{Chosen, Sender};
use super::timer::{TIMERS, Timer, Timers};
use super::{Config, Fate, Header, Kind, NEVER, Shared, Transmit};
use score_proto::wire::ANSWER;

pub(super) struct Peer {
    pub(super) node: u32,
    pub(super) send: Sender,
    pub(super) receive: Receiver,
    pub(super) links: Links,
    /// In the machine's list of peers that may have something to transmit.
    pub(super) ready: bool,
    /// It waits for an acknowledgement that waits for a message to ride on.
    pub(super) owed: bool,
    /// For each timer, the entry of the heap that counts.
    pub(super) armed: [u64; TIMERS.len()],
}

impl Peer {
    pub(super) fn new(node: u32, config: &Config) -> Peer {
        Peer {
            node,
            send: Sender::new(config),
            receive: Receiver::new(config),
            links: Links::new(config),
            ready: false,
            owed: false,
            armed: [NEVER; TIMERS.len()],
        }
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.send.has_work() || self.receive.due || self.links.has_work()
    }

    /// The next packet: messages first, because acknowledgements ride on them.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut Shared, now: u64) -> Option<Transmit> {
        if let Some(chosen) = self.send.choose(&mut self.links, shared, now) {
            return Some(self.message(&chosen, shared, now));
        }
        if self.has_work() { self.control(shared, now) } else { None }
    }

    #[inline]
    fn message(&mut self, chosen: &Chosen, shared: &mut Shared, now: u64) -> Transmit {
        let mut packet = self.packet(chosen.kind, chosen.link, shared, now);
        packet.header.sequence = chosen.sequence;
        packet.header.len = chosen.len;
        if chosen.last {
            packet.header.flags |= ANSWER;
        }
        packet.payload = Some((chosen.slot, chosen.len));
        self.acknowledge(&mut packet, shared);
        packet
    }

    /// Packets without payload. Those that find out about links acknowledge nothing: they are
    /// likely to be lost, and what they acknowledge would wait for the next time-out.
    #[inline(never)]
    fn control(&mut self, shared: &mut Shared, now: u64) -> Option<Transmit> {
        if self.send.probe {
            self.send.probe = false;
            let avoid = Some(self.links.current());
            let link = self.links.pick(avoid, 1);
            let mut packet = self.packet(Kind::WindowProbe, link, shared, now);
            self.acknowledge(&mut packet, shared);
            return Some(packet);
        }
        if let Some(link) = self.links.next_probe() {
            return Some(self.packet(Kind::LinkProbe, link, shared, now));
        }
        if let Some((link, name)) = self.links.next_answer() {
            let mut packet = self.packet(Kind::LinkAnswer, link, shared, now);
            packet.header.sequence = u32::from(name);
            return Some(packet);
        }
        if self.receive.due {
            let mut packet = self.packet(Kind::Ack, self.receive.link, shared, now);
            self.acknowledge(&mut packet, shared);
            return Some(packet);
        }
        None
    }

    #[inline]
    fn acknowledge(&mut self, packet: &mut Transmit, shared: &Shared) {
        if !shared.draining {
            self.receive.fill(&mut packet.header);
        }
    }

    #[inline]
    fn packet(&self, kind: Kind, link: u8, shared: &mut Shared, now: u64) -> Transmit {
        shared.counters.sent += 1;
        let header = Header {
            kind,
            flags: 0,
            link,
            block: 0,
            len: 0,
            secret: shared.config.secret,
            incarnation: shared.config.incarnation,
            source: shared.config.own,
            destination: self.node,
            sequence: 0,
            ack: 0,
            window: 0,
            received: 0,
            stamp: stamp(now),
            echo: 0,
            mac: 0,
        };
        Transmit { peer: self.node, link, header, payload: None }
    }

    /// A packet of this peer, after its acknowledgement has been looked at.
    #[inline]
    pub(super) fn take(
        &mut self,
        header: &Header,
        link: u8,
        buffer: u32,
        shared: &mut Shared,
        now: u64,
    ) -> Fate {
        match header.kind {
            Kind::Data | Kind::Control | Kind::Remote | Kind::More | Kind::Lost => {
                if !shared.draining {
                    return self.receive.put(header, link, buffer, shared, now);
                }
                shared.counters.undelivered += 1;
            }
            Kind::WindowProbe if !shared.draining => {
                self.receive.probed(header, link, shared, now);
            }
            Kind::Ack | Kind::WindowProbe => {}
            Kind::LinkProbe => self.links.probed(link, header.link),
            Kind::LinkAnswer => {
                let name = u8::try_from(header.sequence).ok();
                if let Some(event) = name.and_then(|name| self.links.answered(name, self.node)) {
                    shared.tell(event);
                }
            }
        }
        Fate::Free
    }

    #[inline]
    pub(super) fn deadline(&self, timer: Timer) -> u64 {
        match timer {
            Timer::Retransmit => self.send.time_out_at,
            Timer::Acknowledge => self.receive.ack_at,
            Timer::Probe => self.links.probe_at,
        }
    }

    /// Sees to it that the heap has an entry no later than each deadline.
    #[inline]
    pub(super) fn arm(&mut self, index: u32, timers: &mut Timers) {
        for timer in TIMERS {
            let deadline = self.deadline(timer);
            if deadline < self.armed[timer as usize] {
                self.armed[timer as usize] = deadline;
                timers.push(deadline, index, timer);
            }
        }
    }

    /// For the heap: the true deadline behind an entry, which it is armed for from now on.
    /// NEVER: the entry is to be forgotten.
    pub(super) fn true_deadline(&mut self, timer: Timer, entry: u64) -> u64 {
        if self.armed[timer as usize] != entry {
            return NEVER;
        }
        let deadline = self.deadline(timer).max(entry);
        self.armed[timer as usize] = deadline;
        deadline
    }
}
