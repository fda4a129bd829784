//! Tests of the sender (`send.rs` and `acknowledge.rs`): which packets it sends at a time, and the
//! effect of each acknowledgement and time-out.

use crate::packet_header::{ACK, TIMESTAMP_ECHO};
use crate::rtt::timestamp;
use crate::send::{PacketSender, SendState};
use crate::trunking::LinkScheduler;
use crate::{
    CommonState, Config, Header, INITIAL_WINDOW, MAX_WINDOW, NO_DEADLINE, PacketKind,
    RecoveredMessage, ReliabilityMachine,
};

const MS: u64 = 1_000_000;
const MESSAGE_LEN: u16 = 8;
/// Before the first round trip: the time-out, and the longest time by which a packet may arrive
/// after a packet that was sent later.
const INITIAL_RTO_NS: u64 = 5 * MS;
const INITIAL_REORDER_WINDOW_NS: u64 = 200_000;

/// A sender to one peer, and the state that it changes.
struct SenderFixture {
    sender: PacketSender,
    links: LinkScheduler,
    shared: CommonState,
}

impl SenderFixture {
    fn new() -> SenderFixture {
        let shared = ReliabilityMachine::new(Config::new(0, 2, 0, 0)).shared;
        SenderFixture {
            sender: PacketSender::new(&shared.config),
            links: LinkScheduler::new(&shared.config),
            shared,
        }
    }

    /// Neither the peer's window nor the congestion window limits the packets in flight.
    fn with_wide_windows() -> SenderFixture {
        let mut fixture = SenderFixture::new();
        fixture.sender.limit = 1000;
        fixture.sender.congestion.window = 500;
        fixture
    }

    /// Submits messages. The number of the slot is the sequence number.
    fn submit(&mut self, count: u32) {
        for _ in 0..count {
            let slot = self.sender.next_sequence();
            self.sender.submit(slot, MESSAGE_LEN, PacketKind::Data, &mut self.shared);
        }
    }

    /// Adopts messages of a dead process. The number of the slot is the sequence number.
    fn resume(&mut self, sequences: &[u32]) {
        let message = |sequence: &u32| RecoveredMessage {
            peer: 1,
            sequence: *sequence,
            slot: *sequence,
            len: MESSAGE_LEN,
            kind: PacketKind::Data,
        };
        self.sender.resume(sequences.iter().map(message), &mut self.shared);
    }

    /// Sends all packets that may be sent. Returns the sequence numbers, and whether each packet
    /// requests an acknowledgement.
    fn send(&mut self, now: u64) -> Vec<(u32, bool)> {
        let mut sent = Vec::new();
        while let Some(packet) = self.sender.next_packet(&mut self.links, &mut self.shared, now) {
            sent.push((packet.sequence, packet.requests_ack));
        }
        sent
    }

    fn send_sequences(&mut self, now: u64) -> Vec<u32> {
        self.send(now).into_iter().map(|(sequence, _)| sequence).collect()
    }

    fn acknowledge(&mut self, header: &Header, now: u64) {
        self.sender.on_ack(header, &mut self.links, &mut self.shared, now);
    }

    fn time_out(&mut self, now: u64) {
        self.sender.on_timeout(&mut self.links, &mut self.shared, now);
    }

    fn mark_lost(&mut self, index: usize, now: u64) {
        self.sender.mark_lost(index, &mut self.links, now);
    }

    /// The indices of lost entries.
    fn lost(&self) -> Vec<usize> {
        let is_lost = |index: &usize| self.sender.entries[*index].state == SendState::Lost;
        (0..self.sender.entries.len()).filter(is_lost).collect()
    }

    fn freed_slots(&mut self) -> Vec<u32> {
        self.shared.freed_slots.drain(..).collect()
    }
}

/// An acknowledgement of the messages before `ack`. It permits the messages before `window`.
pub(crate) fn ack_header(ack: u32, window: u32) -> Header {
    Header {
        kind: PacketKind::Ack,
        flags: ACK,
        link: 0,
        sack_block: 0,
        len: 0,
        secret: 0,
        incarnation: 0,
        source: 1,
        destination: 0,
        sequence: 0,
        ack,
        window,
        sack_bitmap: 0,
        timestamp: 0,
        timestamp_echo: 0,
        mac: 0,
    }
}

/// An acknowledgement that answers a packet that was sent at `sent_at`.
fn echo_header(ack: u32, sent_at: u64) -> Header {
    let flags = ACK | TIMESTAMP_ECHO;
    Header { flags, timestamp_echo: timestamp(sent_at), ..ack_header(ack, INITIAL_WINDOW) }
}

/// A selective acknowledgement, in which message 0 is missing.
fn sack_header(sack_block: u8, sack_bitmap: u64) -> Header {
    Header { sack_block, sack_bitmap, ..ack_header(0, INITIAL_WINDOW) }
}

#[test]
fn the_peers_window_limits_packets_and_the_last_one_requests_an_acknowledgement() {
    let mut fixture = SenderFixture::new();
    fixture.submit(INITIAL_WINDOW + 4);
    let expected = (0..INITIAL_WINDOW).map(|sequence| (sequence, sequence == INITIAL_WINDOW - 1));
    assert_eq!(fixture.send(MS), expected.collect::<Vec<_>>());
    assert!(!fixture.sender.has_work());
    assert_eq!(fixture.sender.time_out_at, MS + INITIAL_RTO_NS);
}

#[test]
fn the_congestion_window_limits_packets_and_the_last_one_requests_an_acknowledgement() {
    let mut fixture = SenderFixture::with_wide_windows();
    fixture.sender.congestion.window = 32;
    fixture.submit(40);
    let expected = (0..32).map(|sequence| (sequence, sequence == 31));
    assert_eq!(fixture.send(MS), expected.collect::<Vec<_>>());
    assert!(!fixture.sender.has_work());
}

#[test]
fn a_packet_that_empties_the_queue_requests_an_acknowledgement_if_eight_are_in_flight() {
    let mut fixture = SenderFixture::new();
    assert!(!fixture.sender.has_work());
    fixture.submit(8);
    assert!(fixture.sender.has_work());
    let expected = (0..8).map(|sequence| (sequence, sequence == 7));
    assert_eq!(fixture.send(MS), expected.collect::<Vec<_>>());
    fixture.submit(1);
    assert_eq!(fixture.send(MS), [(8, false)]);
    assert!(!fixture.sender.has_work());
}

#[test]
fn the_congestion_window_grows_only_if_it_was_full() {
    for (in_flight, window) in [(30, 32), (31, 35)] {
        let mut fixture = SenderFixture::with_wide_windows();
        fixture.sender.congestion.window = 32;
        fixture.submit(in_flight);
        fixture.send(MS);
        fixture.acknowledge(&ack_header(3, INITIAL_WINDOW), 2 * MS);
        assert_eq!(fixture.sender.congestion.window, window, "{in_flight} packets in flight");
    }
}

#[test]
fn an_acknowledgement_frees_slots_and_the_time_out_begins_again_for_the_rest() {
    let mut fixture = SenderFixture::new();
    fixture.submit(2);
    fixture.send(MS);
    fixture.submit(2);
    fixture.send(MS + 64_000);
    // The first round trip takes 1 ms, so its deviation is half of that.
    fixture.acknowledge(&echo_header(3, MS), 2 * MS);
    assert_eq!(fixture.freed_slots(), [0, 1, 2]);
    assert_eq!((fixture.shared.outstanding, fixture.sender.outstanding()), (1, 1));
    assert_eq!(fixture.sender.time_out_at, 2 * MS + 3 * MS);
    assert!(fixture.send(2 * MS).is_empty());
    fixture.acknowledge(&echo_header(4, MS + 64_000), 3 * MS);
    assert_eq!((fixture.shared.outstanding, fixture.sender.in_flight), (0, 0));
    assert_eq!(fixture.sender.time_out_at, NO_DEADLINE);
    assert_eq!(fixture.shared.counters.premature, 0);
}

#[test]
fn an_acknowledgement_without_an_echo_measures_no_round_trip() {
    let mut fixture = SenderFixture::new();
    fixture.submit(2);
    fixture.send(MS);
    let without_flag = Header { flags: ACK, ..echo_header(1, MS) };
    fixture.acknowledge(&without_flag, 2 * MS);
    assert_eq!(fixture.sender.rtt.smoothed_ns, 0);
    fixture.acknowledge(&echo_header(2, MS), 2 * MS);
    assert_eq!(fixture.sender.rtt.smoothed_ns, MS);
}

#[test]
fn acknowledgements_of_old_numbers_and_of_unsent_messages_are_counted_and_ignored() {
    let mut fixture = SenderFixture::new();
    fixture.submit(20);
    fixture.send(MS);
    for ack in [2, 1, 17] {
        fixture.acknowledge(&ack_header(ack, INITIAL_WINDOW), 2 * MS);
    }
    assert_eq!(fixture.shared.outstanding, 18);
    fixture.acknowledge(&ack_header(16, INITIAL_WINDOW), 2 * MS);
    assert_eq!(fixture.shared.outstanding, 4);
    let counters = &fixture.shared.counters;
    assert_eq!((counters.old_acks, counters.wrong_acks), (1, 1));
}

#[test]
fn the_peers_window_moves_neither_back_nor_further_than_twice_its_maximum() {
    for (window, limit) in [
        (INITIAL_WINDOW - 1, INITIAL_WINDOW),
        (2 * MAX_WINDOW, 2 * MAX_WINDOW),
        (2 * MAX_WINDOW + 1, INITIAL_WINDOW),
    ] {
        let mut fixture = SenderFixture::new();
        fixture.acknowledge(&ack_header(0, window), MS);
        assert_eq!(fixture.sender.limit, limit, "{window}");
    }
}

#[test]
fn a_closed_window_is_probed_after_a_time_out_until_it_opens() {
    let mut fixture = SenderFixture::new();
    fixture.submit(INITIAL_WINDOW + 1);
    fixture.send(MS);
    let still_closed = ack_header(INITIAL_WINDOW, INITIAL_WINDOW);
    fixture.acknowledge(&still_closed, 2 * MS);
    assert_eq!(fixture.sender.time_out_at, 2 * MS + INITIAL_RTO_NS);
    assert!(!fixture.sender.has_work());
    fixture.time_out(7 * MS);
    assert!(fixture.sender.window_probe_due && fixture.sender.has_work());
    assert_eq!(fixture.sender.time_out_at, 7 * MS + 2 * INITIAL_RTO_NS);
    assert_eq!(fixture.shared.counters.time_outs, 1);
    fixture.acknowledge(&still_closed, 8 * MS);
    assert!(fixture.sender.window_probe_due, "the peer has not opened the window");
    fixture.acknowledge(&ack_header(INITIAL_WINDOW, INITIAL_WINDOW + 1), 8 * MS);
    assert!(!fixture.sender.window_probe_due);
    assert_eq!(fixture.send(9 * MS), [(INITIAL_WINDOW, true)]);
}

#[test]
fn a_closed_window_is_not_probed_if_no_message_waits() {
    let mut fixture = SenderFixture::new();
    fixture.submit(INITIAL_WINDOW);
    fixture.send(MS);
    fixture.acknowledge(&ack_header(INITIAL_WINDOW, INITIAL_WINDOW), 2 * MS);
    assert_eq!(fixture.sender.time_out_at, NO_DEADLINE);
    fixture.time_out(7 * MS);
    assert_eq!(fixture.sender.time_out_at, NO_DEADLINE);
    assert_eq!(fixture.shared.counters.time_outs, 0);
}

#[test]
fn the_first_two_time_outs_repeat_the_oldest_packet_and_later_ones_the_two_oldest() {
    let mut fixture = SenderFixture::new();
    fixture.submit(4);
    fixture.send(MS);
    let mut now = MS + INITIAL_RTO_NS;
    for (packets, factor) in [(1, 2), (1, 4), (2, 8), (2, 16)] {
        assert_eq!(fixture.sender.time_out_at, now);
        fixture.time_out(now);
        let expected: Vec<(u32, bool)> = (0..packets).map(|sequence| (sequence, true)).collect();
        assert_eq!(fixture.send(now), expected);
        now += factor * INITIAL_RTO_NS;
    }
    let counters = &fixture.shared.counters;
    assert_eq!((counters.time_outs, counters.repeated), (4, 6));
}

#[test]
fn a_time_out_repeats_one_packet_even_if_the_congestion_window_is_full() {
    let mut fixture = SenderFixture::new();
    fixture.submit(4);
    fixture.send(MS);
    fixture.sender.congestion.window = 2;
    fixture.time_out(6 * MS);
    assert!(fixture.sender.has_work());
    assert_eq!(fixture.send(6 * MS), [(0, true)]);
    fixture.submit(1);
    assert!(!fixture.sender.has_work());
    assert!(fixture.send(6 * MS).is_empty());
}

#[test]
fn a_time_out_counts_if_the_only_packet_is_known_to_be_lost() {
    let mut fixture = SenderFixture::new();
    fixture.submit(1);
    fixture.send(MS);
    fixture.mark_lost(0, 2 * MS);
    fixture.time_out(6 * MS);
    assert_eq!(fixture.shared.counters.time_outs, 1);
    assert_eq!(fixture.sender.time_out_at, 6 * MS + 2 * INITIAL_RTO_NS);
    assert!(!fixture.sender.window_probe_due);
}

#[test]
fn lost_packets_are_sent_again_in_order_before_new_ones() {
    let mut fixture = SenderFixture::new();
    fixture.submit(8);
    fixture.send(MS);
    for index in [5, 1, 3] {
        fixture.mark_lost(index, 2 * MS);
    }
    assert_eq!((fixture.sender.in_flight, fixture.sender.lost_count), (5, 3));
    assert!(fixture.sender.has_work());
    fixture.submit(1);
    assert_eq!(fixture.send_sequences(2 * MS), [1, 3, 5, 8]);
    assert!(!fixture.sender.has_work());
    assert_eq!(fixture.shared.counters.repeated, 3);
}

#[test]
fn a_packet_is_lost_if_three_later_packets_of_its_link_have_arrived() {
    let mut fixture = SenderFixture::new();
    fixture.submit(5);
    fixture.send(MS);
    fixture.acknowledge(&sack_header(0, 0b011), 2 * MS);
    assert_eq!(fixture.freed_slots(), [1, 2]);
    assert_eq!((fixture.sender.sacked_count, fixture.sender.outstanding()), (2, 3));
    assert!(fixture.lost().is_empty());
    fixture.acknowledge(&sack_header(0, 0b111), 2 * MS);
    assert_eq!(fixture.freed_slots(), [3]);
    assert_eq!((fixture.lost(), fixture.sender.in_flight), (vec![0], 1));
    assert!(fixture.sender.has_work());
    assert_eq!(fixture.send(3 * MS), [(0, true)]);
    fixture.acknowledge(&echo_header(5, 3 * MS), 4 * MS);
    assert_eq!(fixture.freed_slots(), [0, 4]);
    assert_eq!((fixture.sender.sacked_count, fixture.sender.in_flight), (0, 0));
    assert_eq!(fixture.shared.counters.premature, 0);
    assert_eq!(fixture.sender.time_out_at, NO_DEADLINE);
}

#[test]
fn a_packet_is_lost_if_a_packet_that_was_sent_much_later_has_arrived() {
    for (extra_ns, lost) in [(0, vec![]), (1, vec![0])] {
        let mut fixture = SenderFixture::new();
        fixture.submit(1);
        fixture.send(MS);
        fixture.submit(2);
        fixture.send(MS + INITIAL_REORDER_WINDOW_NS + extra_ns);
        fixture.acknowledge(&sack_header(0, 0b01), 2 * MS);
        assert_eq!(fixture.lost(), lost, "{extra_ns} ns more");
    }
}

#[test]
fn an_acknowledgement_shows_losses_in_its_block_and_that_of_the_oldest_packet() {
    let mut fixture = SenderFixture::with_wide_windows();
    fixture.submit(140);
    fixture.send(MS);
    // The last message of block 1 is message 128. Two messages before it may only be late.
    fixture.acknowledge(&sack_header(1, 1 << 63), 2 * MS);
    assert_eq!(fixture.freed_slots(), [128]);
    assert_eq!(fixture.lost(), std::iter::once(0).chain(65..=125).collect::<Vec<_>>());
    fixture.acknowledge(&sack_header(0, 1), 2 * MS);
    assert_eq!(fixture.freed_slots(), [1]);
    assert_eq!(fixture.lost(), std::iter::once(0).chain(2..=125).collect::<Vec<_>>());
}

#[test]
fn a_retransmission_that_arrives_shows_all_losses_after_a_time_out_only() {
    let mut fixture = SenderFixture::with_wide_windows();
    fixture.submit(140);
    fixture.send(MS);
    fixture.time_out(6 * MS);
    assert_eq!(fixture.send_sequences(6 * MS), [0]);
    fixture.acknowledge(&echo_header(1, 6 * MS), 7 * MS);
    assert_eq!(fixture.lost().len(), 139);
    let mut fixture = SenderFixture::with_wide_windows();
    fixture.submit(140);
    fixture.send(MS);
    fixture.mark_lost(0, 2 * MS);
    assert_eq!(fixture.send_sequences(2 * MS), [0]);
    fixture.acknowledge(&echo_header(1, 2 * MS), 3 * MS);
    assert_eq!(fixture.lost(), (0..65).collect::<Vec<_>>(), "the oldest one and block 0");
}

#[test]
fn three_time_outs_in_a_row_are_persistent_congestion() {
    for (time_outs, window) in [(2, 32), (3, 2)] {
        let mut fixture = SenderFixture::new();
        fixture.submit(1);
        fixture.send(MS);
        for _ in 0..time_outs {
            let now = fixture.sender.time_out_at;
            fixture.time_out(now);
            assert_eq!(fixture.send_sequences(now), [0]);
        }
        let sent_at = fixture.sender.entries[0].sent_at;
        fixture.acknowledge(&echo_header(1, sent_at), sent_at + MS);
        assert_eq!(fixture.sender.congestion.window, window, "{time_outs} time-outs");
        assert_eq!(fixture.sender.rtt.backoff_shift, 0);
    }
}

#[test]
fn a_message_that_arrives_although_its_packet_counts_as_lost_raises_the_threshold() {
    let mut fixture = SenderFixture::new();
    fixture.submit(1);
    fixture.send(MS);
    fixture.mark_lost(0, 2 * MS);
    fixture.acknowledge(&ack_header(1, INITIAL_WINDOW), 3 * MS);
    assert_eq!((fixture.sender.lost_count, fixture.shared.counters.premature), (0, 1));
    assert_eq!(fixture.sender.loss_detector.threshold(), 6);
    assert_eq!(fixture.links.overtaken_by(0, 0), 1, "the packet has arrived");
    let mut twice_lost = SenderFixture::new();
    twice_lost.submit(1);
    for time in [MS, 2 * MS] {
        assert_eq!(twice_lost.send_sequences(time), [0]);
        twice_lost.mark_lost(0, time);
    }
    twice_lost.acknowledge(&ack_header(1, INITIAL_WINDOW), 3 * MS);
    assert_eq!(twice_lost.links.overtaken_by(0, 0), 0, "either of the packets has arrived");
}

#[test]
fn a_retransmission_proves_nothing_about_its_link_if_its_first_packet_is_acknowledged() {
    let mut fixture = SenderFixture::new();
    fixture.submit(1);
    fixture.send(MS);
    fixture.mark_lost(0, 2 * MS);
    fixture.send(2 * MS);
    fixture.acknowledge(&echo_header(1, MS), 3 * MS);
    assert_eq!(fixture.shared.counters.premature, 1);
    assert_eq!(fixture.links.overtaken_by(0, 0), 0);
}

#[test]
fn a_retransmission_is_premature_if_its_answer_takes_less_than_half_of_a_round_trip() {
    let round_trip = 128_000;
    for (answer_ns, premature) in [(round_trip / 2 - 1, 1), (round_trip / 2, 0)] {
        let mut fixture = SenderFixture::new();
        fixture.submit(1);
        fixture.send(MS);
        fixture.acknowledge(&echo_header(1, MS), MS + round_trip);
        fixture.submit(1);
        fixture.send(2 * MS);
        fixture.mark_lost(0, 3 * MS);
        assert_eq!(fixture.send_sequences(3 * MS), [1]);
        fixture.acknowledge(&ack_header(2, INITIAL_WINDOW), 3 * MS + answer_ns);
        assert_eq!(fixture.shared.counters.premature, premature, "after {answer_ns} ns");
    }
}

#[test]
fn a_message_that_was_never_sent_cannot_be_acknowledged_selectively() {
    let mut fixture = SenderFixture::new();
    fixture.submit(20);
    fixture.send(MS);
    // Bit 14 stands for message 15, the last one that was sent.
    fixture.acknowledge(&sack_header(0, 0b111 << 14), 2 * MS);
    assert_eq!(fixture.freed_slots(), [15]);
    assert_eq!(fixture.shared.outstanding, 19);
}

#[test]
fn recovered_messages_are_sent_without_the_missing_ones() {
    let mut fixture = SenderFixture::new();
    fixture.resume(&[5, 6, 9]);
    assert_eq!((fixture.shared.outstanding, fixture.sender.outstanding()), (3, 3));
    assert_eq!(fixture.send(MS), [(5, true)], "the peer's window is unknown");
    fixture.acknowledge(&ack_header(6, 100), 2 * MS);
    assert_eq!(fixture.send_sequences(2 * MS), [6, 9]);
    fixture.acknowledge(&ack_header(10, 100), 3 * MS);
    assert_eq!(fixture.freed_slots(), [5, 6, 9]);
    assert_eq!((fixture.shared.outstanding, fixture.sender.sacked_count), (0, 0));
    assert_eq!(fixture.sender.time_out_at, NO_DEADLINE);
}

#[test]
fn recovered_messages_that_had_arrived_are_acknowledged_without_being_sent() {
    let mut fixture = SenderFixture::new();
    fixture.resume(&[0, 1, 2, 3]);
    // The queue ends before the message of bit 3.
    fixture.acknowledge(&sack_header(0, 0b1111), MS);
    assert_eq!(fixture.freed_slots(), [1, 2, 3]);
    assert_eq!(fixture.shared.outstanding, 1);
}

#[test]
fn a_recovered_queue_accepts_an_acknowledgement_within_the_widest_window() {
    let mut fixture = SenderFixture::new();
    fixture.resume(&[5, 6]);
    let end = 5 + MAX_WINDOW;
    fixture.acknowledge(&ack_header(end + 1, end), MS);
    assert_eq!((fixture.shared.counters.wrong_acks, fixture.shared.outstanding), (1, 2));
    fixture.acknowledge(&ack_header(end, end), MS);
    assert_eq!((fixture.shared.counters.wrong_acks, fixture.shared.outstanding), (1, 0));
    assert_eq!((fixture.sender.first_unacked, fixture.sender.next_unsent), (end, end));
}

#[test]
fn recovered_messages_beyond_the_widest_window_are_refused() {
    let mut fixture = SenderFixture::new();
    fixture.resume(&[0, MAX_WINDOW - 1, MAX_WINDOW]);
    assert_eq!(fixture.freed_slots(), [MAX_WINDOW]);
    assert_eq!((fixture.shared.counters.wrong_slots, fixture.shared.outstanding), (1, 2));
}

#[test]
fn recovered_messages_to_a_peer_that_has_exited_are_refused() {
    let mut fixture = SenderFixture::new();
    fixture.sender.drop_all(&mut fixture.links, &mut fixture.shared);
    fixture.resume(&[0]);
    assert_eq!(fixture.freed_slots(), [0]);
    assert_eq!((fixture.shared.counters.wrong_slots, fixture.shared.outstanding), (1, 0));
}
