//! Messages to one peer, by selective repeat: the sender keeps each message until the receiver has
//! acknowledged it (`acknowledge.rs`). It sends a packet again if the packet is lost or overdue.

use crate::congestion::Congestion;
use crate::loss_detection::LossDetector;
use crate::packet_header::PacketKind;
use crate::rtt::Rtt;
use crate::trunking::LinkScheduler;
use crate::{CommonState, Config, INITIAL_WINDOW, MAX_WINDOW, NO_DEADLINE, RecoveredMessage};
use std::collections::VecDeque;

/// If the number of packets in flight is a multiple of this and the queue is empty, the last packet
/// requests an acknowledgement at once.
const ACK_REQUEST_THRESHOLD: u32 = 8;
/// The number of time-outs in a row after each of which only one packet is sent again. After
/// further time-outs the state of the network is unknown.
pub(super) const MAX_PROBE_TIMEOUTS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// The packet was never sent.
    Queued,
    /// The packet is in flight.
    InFlight,
    /// The packet has to be sent again.
    Lost,
    /// The packet is in the receiver's queue. Its slot is free.
    Acked,
}

#[derive(Clone, Copy)]
pub(super) struct SendEntry {
    pub(super) sent_at: u64,
    pub(super) slot: u32,
    /// Number of the latest transmission on its link.
    pub(super) link_sequence: u32,
    len: u16,
    kind: PacketKind,
    pub(super) link: u8,
    pub(super) state: SendState,
    pub(super) retransmitted: bool,
}

/// The content of a packet.
pub(super) struct NextPacket {
    pub(super) sequence: u32,
    pub(super) slot: u32,
    pub(super) len: u16,
    pub(super) kind: PacketKind,
    pub(super) link: u8,
    /// Whether the packet requests an acknowledgement at once.
    pub(super) requests_ack: bool,
}

pub(super) struct PacketSender {
    /// Entry i has the sequence number `first_unacked + i`.
    pub(super) entries: VecDeque<SendEntry>,
    pub(super) first_unacked: u32,
    /// The first sequence number that was never sent.
    pub(super) next_unsent: u32,
    /// The first sequence number beyond the peer's window.
    pub(super) limit: u32,
    pub(super) in_flight: u32,
    pub(super) lost_count: u32,
    /// Acknowledged entries after an unacknowledged one: the peer has gaps.
    pub(super) sacked_count: u32,
    /// No entry before this index is lost.
    pub(super) lost_search_start: usize,
    /// After a time-out one packet may be sent regardless of the congestion window.
    send_despite_window: bool,
    /// The window was closed for the length of a time-out, so a probe is due.
    pub(super) window_probe_due: bool,
    pub(super) time_out_at: u64,
    pub(super) loss_detector: LossDetector,
    pub(super) rtt: Rtt,
    pub(super) congestion: Congestion,
    pub(super) mode: SendMode,
}

/// Where the messages of a sender come from, and what happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendMode {
    /// The process submits messages, and the peer receives them.
    Open,
    /// The queue has been recovered from a dead process. It lacks messages that had arrived, so the
    /// peer may acknowledge numbers beyond it.
    Recovered,
    /// The peer has exited. Messages to the peer are dropped.
    Dropping,
}

impl PacketSender {
    pub(super) fn new(config: &Config) -> PacketSender {
        let first_unacked = config.first_sequence;
        PacketSender {
            entries: VecDeque::new(),
            first_unacked,
            next_unsent: first_unacked,
            limit: first_unacked.wrapping_add(INITIAL_WINDOW),
            in_flight: 0,
            lost_count: 0,
            sacked_count: 0,
            lost_search_start: 0,
            send_despite_window: false,
            window_probe_due: false,
            time_out_at: NO_DEADLINE,
            loss_detector: LossDetector::new(),
            rtt: Rtt::new(),
            congestion: Congestion::new(config.max_queued.min(MAX_WINDOW)),
            mode: SendMode::Open,
        }
    }

    #[inline]
    pub(super) fn has_capacity(&self, config: &Config) -> bool {
        self.entries.len() < config.max_queued as usize
    }

    /// The sequence number of the next message.
    #[inline]
    pub(super) fn next_sequence(&self) -> u32 {
        self.first_unacked.wrapping_add(self.entries.len() as u32)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.entries.len() as u32 - self.sacked_count
    }

    /// Entries that have been sent at least once.
    #[inline]
    pub(super) fn sent_count(&self) -> usize {
        self.next_unsent.wrapping_sub(self.first_unacked) as usize
    }

    #[inline]
    pub(super) fn submit(
        &mut self,
        slot: u32,
        len: u16,
        kind: PacketKind,
        shared: &mut CommonState,
    ) -> u32 {
        let sequence = self.next_sequence();
        if self.mode == SendMode::Dropping {
            shared.freed_slots.push_back(slot);
            shared.counters.dropped += u64::from(kind == PacketKind::Data);
            self.first_unacked = self.first_unacked.wrapping_add(1);
            self.next_unsent = self.first_unacked;
            return sequence;
        }
        shared.outstanding += 1;
        self.entries.push_back(SendEntry::queued(slot, len, kind));
        sequence
    }

    #[inline]
    fn can_transmit(&self) -> bool {
        self.in_flight < self.congestion.window || self.send_despite_window
    }

    /// Whether the next unsent message is inside the peer's window.
    #[inline]
    fn is_next_admitted(&self) -> bool {
        (self.limit.wrapping_sub(self.next_unsent) as i32) > 0
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.window_probe_due
            || (self.can_transmit()
                && (self.lost_count > 0
                    || (self.next_unsent != self.next_sequence() && self.is_next_admitted())))
    }

    /// The next message to send, which is marked as in flight.
    #[inline]
    pub(super) fn next_packet(
        &mut self,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) -> Option<NextPacket> {
        if !self.can_transmit() {
            return None;
        }
        let (index, avoid) = if self.lost_count > 0 {
            let index = self.next_lost()?;
            shared.counters.repeated += 1;
            (index, Some(self.entries[index].link))
        } else if self.has_unsent() {
            self.next_unsent = self.next_unsent.wrapping_add(1);
            (self.sent_count() - 1, None)
        } else {
            self.arm_window_probe(shared, now);
            return None;
        };
        let link = links.pick(avoid, self.congestion.window);
        let link_sequence = links.on_sent(link);
        self.in_flight += 1;
        self.send_despite_window = false;
        let retransmitted = avoid.is_some();
        let requests_ack = retransmitted
            || self.in_flight >= self.congestion.window
            || !self.is_next_admitted()
            || self.is_burst_end();
        let entry = &mut self.entries[index];
        (entry.sent_at, entry.link_sequence, entry.link) = (now, link_sequence, link);
        (entry.state, entry.retransmitted) = (SendState::InFlight, retransmitted);
        let chosen = NextPacket {
            sequence: self.first_unacked.wrapping_add(index as u32),
            slot: entry.slot,
            len: entry.len,
            kind: entry.kind,
            link,
            requests_ack,
        };
        if self.time_out_at == NO_DEADLINE {
            self.time_out_at = now + self.rtt.timeout(&shared.config);
        }
        Some(chosen)
    }

    /// Whether the queue is empty after a long burst. The application may then wait for slots, so
    /// the acknowledgement should come early.
    #[inline]
    fn is_burst_end(&self) -> bool {
        self.next_unsent == self.next_sequence()
            && self.in_flight.is_multiple_of(ACK_REQUEST_THRESHOLD)
    }

    /// Sets the timer for a window probe if nothing is in flight and the window is closed. The
    /// packet that opened the window may be lost.
    #[inline]
    pub(super) fn arm_window_probe(&mut self, shared: &CommonState, now: u64) {
        let is_window_closed = self.next_unsent != self.next_sequence()
            && !self.is_next_admitted()
            && self.in_flight == 0;
        if is_window_closed && self.time_out_at == NO_DEADLINE {
            self.time_out_at = now + self.rtt.timeout(&shared.config);
        }
    }

    /// Whether there is an unsent message inside the window. In a queue recovered from a dead
    /// process, some messages that count as unsent may already have arrived.
    #[inline]
    fn has_unsent(&mut self) -> bool {
        while self.mode == SendMode::Recovered
            && self
                .entries
                .get(self.sent_count())
                .is_some_and(|entry| entry.state == SendState::Acked)
        {
            self.next_unsent = self.next_unsent.wrapping_add(1);
        }
        self.next_unsent != self.next_sequence() && self.is_next_admitted()
    }

    #[inline(never)]
    fn next_lost(&mut self) -> Option<usize> {
        let is_lost = |entry: &SendEntry| entry.state == SendState::Lost;
        let index = self
            .entries
            .range(self.lost_search_start..)
            .position(is_lost)
            .map(|index| index + self.lost_search_start)?;
        self.lost_search_start = index + 1;
        self.lost_count -= 1;
        Some(index)
    }

    pub(super) fn mark_lost(&mut self, index: usize, links: &mut LinkScheduler, now: u64) {
        let entry = &mut self.entries[index];
        entry.state = SendState::Lost;
        links.remove_in_flight(entry.link);
        links.on_lost(entry.link, entry.sent_at);
        self.in_flight -= 1;
        self.lost_count += 1;
        self.lost_search_start = self.lost_search_start.min(index);
        self.congestion.on_loss(now, self.rtt.smoothed_ns);
    }

    /// Handles a time-out in which no packet arrived. Sends the oldest packet again, and after
    /// several time-outs the two oldest. Further packets wait, because the peer may only have lost
    /// its processor, and its answer will show which packets are lost. The peer is never declared
    /// dead, because a debugger may stop it for hours.
    pub(super) fn on_timeout(
        &mut self,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) {
        self.time_out_at = NO_DEADLINE;
        if self.in_flight == 0 && self.lost_count == 0 && self.next_unsent == self.next_sequence() {
            return;
        }
        shared.counters.time_outs += 1;
        self.rtt.back_off();
        if self.in_flight == 0 && self.lost_count == 0 {
            // Nothing is in flight, but the window is closed.
            self.window_probe_due = !self.is_next_admitted();
        } else {
            let is_in_flight = |entry: &SendEntry| entry.state == SendState::InFlight;
            let count = if self.rtt.backoff_shift > MAX_PROBE_TIMEOUTS { 2 } else { 1 };
            for _ in 0..count {
                if let Some(index) = self.entries.iter().position(is_in_flight) {
                    self.mark_lost(index, links, now);
                }
            }
        }
        self.send_despite_window = true;
        self.time_out_at = now + self.rtt.timeout(&shared.config);
    }

    /// Drops all messages, including future ones.
    pub(super) fn drop_all(&mut self, links: &mut LinkScheduler, shared: &mut CommonState) {
        self.first_unacked = self.next_sequence();
        self.next_unsent = self.first_unacked;
        for entry in self.entries.drain(..) {
            if entry.state == SendState::InFlight {
                links.remove_in_flight(entry.link);
            }
            if entry.state != SendState::Acked {
                shared.freed_slots.push_back(entry.slot);
                shared.outstanding -= 1;
                shared.counters.dropped += u64::from(entry.kind == PacketKind::Data);
            }
        }
        (self.in_flight, self.lost_count, self.sacked_count, self.lost_search_start) = (0, 0, 0, 0);
        (self.send_despite_window, self.window_probe_due) = (false, false);
        self.mode = SendMode::Dropping;
        self.time_out_at = NO_DEADLINE;
    }

    /// Adopts a dead process's messages, in order. Messages with missing sequence numbers have
    /// arrived.
    pub(super) fn resume(
        &mut self,
        messages: impl Iterator<Item = RecoveredMessage>,
        shared: &mut CommonState,
    ) {
        if self.mode == SendMode::Open {
            self.mode = SendMode::Recovered;
        }
        for message in messages {
            if self.entries.is_empty() && self.mode == SendMode::Recovered {
                self.first_unacked = message.sequence;
                self.next_unsent = message.sequence;
                // The window is unknown. The peer always accepts or answers the oldest message.
                self.limit = message.sequence.wrapping_add(1);
            }
            let ahead = message.sequence.wrapping_sub(self.next_sequence());
            if self.mode == SendMode::Dropping
                || ahead as usize + self.entries.len() >= MAX_WINDOW as usize
            {
                shared.refuse_slot(message.slot);
                continue;
            }
            for _ in 0..ahead {
                self.entries.push_back(SendEntry::acked());
                self.sacked_count += 1;
            }
            self.entries.push_back(SendEntry::queued(message.slot, message.len, message.kind));
            shared.outstanding += 1;
        }
    }

    /// A description for the dump.
    pub(super) fn describe(&self) -> String {
        let PacketSender { first_unacked, next_unsent, limit, in_flight, lost_count, .. } = self;
        let queued = self.entries.len();
        format!(
            "unacknowledged from {first_unacked}, unsent from {next_unsent}, \
             window ends at {limit}; {queued} queued, {in_flight} in flight, {lost_count} lost; \
             congestion window {}, reorder {}, round trip {} ns, back-off {}{}",
            self.congestion.window,
            self.loss_detector.threshold(),
            self.rtt.smoothed_ns,
            self.rtt.backoff_shift,
            if self.mode == SendMode::Dropping { "; exited" } else { "" },
        )
    }
}

impl SendEntry {
    fn queued(slot: u32, len: u16, kind: PacketKind) -> SendEntry {
        let state = SendState::Queued;
        SendEntry {
            sent_at: 0,
            slot,
            link_sequence: 0,
            len,
            kind,
            link: 0,
            state,
            retransmitted: false,
        }
    }

    fn acked() -> SendEntry {
        SendEntry { state: SendState::Acked, ..SendEntry::queued(0, 0, PacketKind::Data) }
    }
}
