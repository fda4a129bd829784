//! Handles acknowledgements: decides which messages have arrived and which are lost.

use crate::packet_header::{Header, SACK_BLOCK, TIMESTAMP_ECHO};
use crate::rtt::timestamp;
use crate::send::{MAX_PROBE_TIMEOUTS, PacketSender, SendEntry, SendMode, SendState};
use crate::trunking::LinkScheduler;
use crate::{CommonState, MAX_WINDOW, NO_DEADLINE};

/// The result of an acknowledgement.
#[derive(Default)]
struct AckSummary {
    /// Messages that have arrived.
    newly_acked: u32,
    /// Whether at least one of them arrived by a retransmission.
    by_retransmission: bool,
}

/// Whether the acknowledgement answers a packet that was sent before `sent_at`. If so, a message
/// that was sent again at `sent_at` has arrived by its first packet (Eifel, RFC 3522).
fn echoes_earlier_send(header: &Header, sent_at: u64) -> bool {
    header.flags & TIMESTAMP_ECHO != 0
        && (timestamp(sent_at).wrapping_sub(header.timestamp_echo) as i32) > 0
}

impl PacketSender {
    /// Handles the acknowledgement in a header.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        header: &Header,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) {
        let advance = header.ack.wrapping_sub(self.first_unacked) as usize;
        if advance > self.sent_count()
            && !(self.mode == SendMode::Recovered && advance <= MAX_WINDOW as usize)
        {
            let counters = &mut shared.counters;
            // The number is lower than an earlier one: a later acknowledgement has overtaken this
            // one.
            let old = (advance as u32 as i32) < 0;
            *(if old { &mut counters.old_acks } else { &mut counters.wrong_acks }) += 1;
            return;
        }
        let was_full = self.in_flight + 1 >= self.congestion.window;
        let mut summary = AckSummary::default();
        self.ack_cumulative(header, &mut summary, links, shared, now);
        if header.sack_bitmap != 0 {
            self.ack_selective(header, &mut summary, links, shared, now);
        }
        if (header.window.wrapping_sub(self.limit) as i32) > 0
            && header.window.wrapping_sub(self.first_unacked) <= 2 * MAX_WINDOW
        {
            self.limit = header.window;
            self.window_probe_due = false;
        }
        if summary.newly_acked == 0 {
            return;
        }
        if header.flags & TIMESTAMP_ECHO != 0 {
            self.rtt.sample(header.timestamp_echo, now);
            if self.rtt.is_queueing() {
                self.congestion.on_queueing();
            }
        }
        self.congestion.on_acked(summary.newly_acked, was_full);
        let timeouts = std::mem::take(&mut self.rtt.backoff_shift);
        if self.sacked_count > 0 || summary.by_retransmission {
            let after_timeout = timeouts > 0 && summary.by_retransmission;
            self.detect_lost(header, after_timeout, links, now);
            if after_timeout && timeouts > MAX_PROBE_TIMEOUTS {
                self.congestion.on_persistent_congestion(now);
            }
            shared.counters.suspected += u64::from(links.suspect_link(now));
        }
        self.time_out_at = NO_DEADLINE;
        if self.in_flight > 0 {
            self.time_out_at = now + self.rtt.timeout(&shared.config);
        } else {
            self.arm_window_probe(shared, now);
        }
    }

    /// Handles an entry that is acknowledged for the first time. Its slot becomes free.
    #[inline]
    fn on_entry_acked(
        &mut self,
        entry: SendEntry,
        header: &Header,
        summary: &mut AckSummary,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) {
        shared.freed_slots.push_back(entry.slot);
        shared.outstanding -= 1;
        summary.newly_acked += 1;
        // If the original packet arrived, the retransmission proves neither that its link works nor
        // that the retransmission has overtaken other packets.
        let original_arrived = entry.retransmitted && echoes_earlier_send(header, entry.sent_at);
        match entry.state {
            SendState::InFlight => {
                self.in_flight -= 1;
                links.remove_in_flight(entry.link);
                if !original_arrived {
                    summary.by_retransmission |= entry.retransmitted;
                    links.on_acked(entry.link, entry.link_sequence, entry.sent_at);
                    self.loss_detector.on_arrived(entry.sent_at);
                }
            }
            SendState::Lost => {
                self.lost_count -= 1;
                if !entry.retransmitted {
                    links.on_acked(entry.link, entry.link_sequence, entry.sent_at);
                }
            }
            SendState::Queued | SendState::Acked => {}
        }
        let is_early = now.saturating_sub(entry.sent_at) < self.rtt.min_ns / 2;
        let was_spurious = entry.state == SendState::Lost || (entry.retransmitted && is_early);
        shared.counters.premature += u64::from(was_spurious || original_arrived);
        self.loss_detector.on_acked(was_spurious, &self.rtt, now);
    }

    /// Acknowledges all messages before the number in the header.
    #[inline]
    fn ack_cumulative(
        &mut self,
        header: &Header,
        summary: &mut AckSummary,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) {
        let end = header.ack;
        let advance = end.wrapping_sub(self.first_unacked) as usize;
        for _ in 0..advance {
            // A recovered queue may end before the acknowledged number.
            let Some(entry) = self.entries.pop_front() else { break };
            if entry.state == SendState::Acked {
                self.sacked_count -= 1;
            } else {
                self.on_entry_acked(entry, header, summary, links, shared, now);
            }
        }
        self.first_unacked = end;
        if (self.next_unsent.wrapping_sub(end) as i32) < 0 {
            self.next_unsent = end;
        }
        self.lost_search_start = self.lost_search_start.saturating_sub(advance);
    }

    /// Acknowledges the messages in the bitmap, which have arrived although earlier ones have not.
    #[inline(never)]
    fn ack_selective(
        &mut self,
        header: &Header,
        summary: &mut AckSummary,
        links: &mut LinkScheduler,
        shared: &mut CommonState,
        now: u64,
    ) {
        let base = 1 + (SACK_BLOCK * u32::from(header.sack_block)) as usize;
        let mut bits = header.sack_bitmap;
        while bits != 0 {
            let index = base + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if index >= self.sent_count()
                && !(self.mode == SendMode::Recovered && index < self.entries.len())
            {
                break;
            }
            let entry = self.entries[index];
            if entry.state != SendState::Acked {
                self.on_entry_acked(entry, header, summary, links, shared, now);
                self.entries[index].state = SendState::Acked;
                self.sacked_count += 1;
            }
        }
    }

    /// Marks packets as lost. A packet is lost if enough later packets of its link have arrived, or
    /// a packet of any link that was sent much later. This function checks only the oldest packet
    /// and the block of this acknowledgement, because packets in other blocks may have arrived
    /// meanwhile.
    ///
    /// With `everywhere` it checks all blocks. This is necessary if the retransmission after a
    /// time-out has arrived: otherwise lost packets would fill the window until each has had its
    /// own time-out.
    #[inline(never)]
    fn detect_lost(
        &mut self,
        header: &Header,
        everywhere: bool,
        links: &mut LinkScheduler,
        now: u64,
    ) {
        let lost_if_sent_before = self.loss_detector.lost_if_sent_before(&self.rtt);
        let base = 1 + (SACK_BLOCK * u32::from(header.sack_block)) as usize;
        let range =
            base.min(self.sent_count())..(base + SACK_BLOCK as usize).min(self.sent_count());
        let range = if everywhere { 0..self.sent_count() } else { range };
        for index in (0..self.sent_count().min(1)).chain(range) {
            let entry = self.entries[index];
            let is_overtaken = || {
                let later_count = links.overtaken_by(entry.link, entry.link_sequence);
                self.loss_detector.is_overtaken(later_count)
            };
            if entry.state == SendState::InFlight
                && (entry.sent_at < lost_if_sent_before || is_overtaken())
            {
                self.mark_lost(index, links, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet_header::ACK;
    use crate::sender_tests::ack_header;

    #[test]
    fn an_answer_to_a_packet_before_the_latest_one_is_recognized_by_its_echo() {
        let sent_at = 6400;
        let sent_timestamp = timestamp(sent_at);
        let header =
            |flags: u8, timestamp_echo: u32| Header { flags, timestamp_echo, ..ack_header(0, 0) };
        for (flags, echo, is_earlier) in [
            (TIMESTAMP_ECHO, sent_timestamp - 1, true),
            (ACK | TIMESTAMP_ECHO, sent_timestamp - 1, true),
            (TIMESTAMP_ECHO, sent_timestamp, false),
            (TIMESTAMP_ECHO, sent_timestamp + 1, false),
            (ACK, sent_timestamp - 1, false),
        ] {
            assert_eq!(
                echoes_earlier_send(&header(flags, echo), sent_at),
                is_earlier,
                "flags {flags}, echo {echo}"
            );
        }
    }
}
