//! One peer: both directions, and the choice of the next packet.

use crate::packet_header::ACK_REQUESTED;
use crate::receive::PacketReceiver;
use crate::rtt::timestamp;
use crate::send::{NextPacket, PacketSender};
use crate::timer::{TIMERS, Timer, Timers};
use crate::trunking::LinkScheduler;
use crate::{BufferDisposition, CommonState, Config, Header, NO_DEADLINE, PacketKind, Transmit};

pub(super) struct ReliabilityPeer {
    pub(super) node: u32,
    pub(super) send: PacketSender,
    pub(super) receive: PacketReceiver,
    pub(super) links: LinkScheduler,
    /// Whether an acknowledgement waits for a message that can carry it.
    pub(super) ack_pending: bool,
    /// For each timer, the deadline of its valid heap entry.
    pub(super) armed: [u64; TIMERS.len()],
}

impl ReliabilityPeer {
    pub(super) fn new(node: u32, config: &Config) -> ReliabilityPeer {
        ReliabilityPeer {
            node,
            send: PacketSender::new(config),
            receive: PacketReceiver::new(config),
            links: LinkScheduler::new(config),
            ack_pending: false,
            armed: [NO_DEADLINE; TIMERS.len()],
        }
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.send.has_work() || self.receive.ack_due || self.links.has_work()
    }

    /// The next packet: messages first, because they carry acknowledgements.
    #[inline]
    pub(super) fn transmit(&mut self, shared: &mut CommonState, now: u64) -> Option<Transmit> {
        if let Some(chosen) = self.send.next_packet(&mut self.links, shared, now) {
            return Some(self.message_packet(&chosen, shared, now));
        }
        if self.has_work() { self.control_packet(shared, now) } else { None }
    }

    #[inline]
    fn message_packet(
        &mut self,
        chosen: &NextPacket,
        shared: &mut CommonState,
        now: u64,
    ) -> Transmit {
        let mut packet = self.packet(chosen.kind, chosen.link, shared, now);
        packet.header.sequence = chosen.sequence;
        packet.header.len = chosen.len;
        if chosen.requests_ack {
            packet.header.flags |= ACK_REQUESTED;
        }
        packet.payload = Some((chosen.slot, chosen.len));
        self.add_ack(&mut packet, shared);
        packet
    }

    /// The next packet without payload. Link probes and their answers carry no acknowledgement,
    /// because they are often lost. An acknowledgement that is lost with them would delay the peer
    /// until its next time-out.
    #[inline(never)]
    fn control_packet(&mut self, shared: &mut CommonState, now: u64) -> Option<Transmit> {
        if self.send.window_probe_due {
            self.send.window_probe_due = false;
            let avoid = Some(self.links.current());
            let link = self.links.pick(avoid, 1);
            let mut packet = self.packet(PacketKind::WindowProbe, link, shared, now);
            self.add_ack(&mut packet, shared);
            return Some(packet);
        }
        if let Some(link) = self.links.next_probe() {
            return Some(self.packet(PacketKind::LinkProbe, link, shared, now));
        }
        if let Some((link, remote_link)) = self.links.next_answer() {
            let mut packet = self.packet(PacketKind::LinkAnswer, link, shared, now);
            packet.header.sequence = u32::from(remote_link);
            return Some(packet);
        }
        if self.receive.ack_due {
            let mut packet = self.packet(PacketKind::Ack, self.receive.last_link, shared, now);
            self.add_ack(&mut packet, shared);
            return Some(packet);
        }
        None
    }

    #[inline]
    fn add_ack(&mut self, packet: &mut Transmit, shared: &CommonState) {
        if !shared.draining {
            self.receive.write_ack(&mut packet.header);
        }
    }

    #[inline]
    fn packet(&self, kind: PacketKind, link: u8, shared: &mut CommonState, now: u64) -> Transmit {
        shared.counters.sent += 1;
        let header = Header {
            kind,
            flags: 0,
            link,
            sack_block: 0,
            len: 0,
            secret: shared.config.secret,
            incarnation: shared.config.incarnation,
            source: shared.config.self_node,
            destination: self.node,
            sequence: 0,
            ack: 0,
            window: 0,
            sack_bitmap: 0,
            timestamp: timestamp(now),
            timestamp_echo: 0,
            mac: 0,
        };
        Transmit { peer: self.node, link, header, payload: None }
    }

    /// Handles a packet of this peer, after its acknowledgement was handled.
    #[inline]
    pub(super) fn on_packet(
        &mut self,
        header: &Header,
        link: u8,
        buffer: u32,
        shared: &mut CommonState,
        now: u64,
    ) -> BufferDisposition {
        match header.kind {
            PacketKind::Data
            | PacketKind::Control
            | PacketKind::Remote
            | PacketKind::Continuation
            | PacketKind::PayloadLost => {
                if !shared.draining {
                    return self.receive.on_packet(header, link, buffer, shared, now);
                }
                shared.counters.undelivered += 1;
            }
            PacketKind::WindowProbe if !shared.draining => {
                self.receive.on_window_probe(header, link, shared, now);
            }
            PacketKind::Ack | PacketKind::WindowProbe => {}
            PacketKind::LinkProbe => self.links.on_probe(link, header.link),
            PacketKind::LinkAnswer => {
                let remote_link = u8::try_from(header.sequence).ok();
                if let Some(event) = remote_link
                    .and_then(|remote_link| self.links.on_probe_answer(remote_link, self.node))
                {
                    shared.push_event(event);
                }
            }
        }
        BufferDisposition::Free
    }

    #[inline]
    pub(super) fn deadline(&self, timer: Timer) -> u64 {
        match timer {
            Timer::Retransmit => self.send.time_out_at,
            Timer::Acknowledge => self.receive.ack_at,
            Timer::Probe => self.links.probe_at,
        }
    }

    /// Ensures that the heap has an entry no later than each deadline.
    #[inline]
    pub(super) fn arm_timers(&mut self, index: u32, timers: &mut Timers) {
        for timer in TIMERS {
            let deadline = self.deadline(timer);
            if deadline < self.armed[timer as usize] {
                self.armed[timer as usize] = deadline;
                timers.push(deadline, index, timer);
            }
        }
    }

    /// Returns the true deadline of a heap entry, and records that the timer is armed for it.
    /// Returns `NO_DEADLINE` if the entry is obsolete.
    pub(super) fn true_deadline(&mut self, timer: Timer, entry: u64) -> u64 {
        if self.armed[timer as usize] != entry {
            return NO_DEADLINE;
        }
        let deadline = self.deadline(timer).max(entry);
        self.armed[timer as usize] = deadline;
        deadline
    }
}
