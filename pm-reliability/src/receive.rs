//! Messages from one peer: puts them in order, limits them by the window, and acknowledges them.

use crate::packet_header::{ACK, ACK_REQUESTED, Header, PacketKind, SACK_BLOCK, TIMESTAMP_ECHO};
use crate::{BufferDisposition, CommonState, Config, Delivery, INITIAL_WINDOW, NO_DEADLINE};

/// After this many packets the acknowledgement is sent at once, without a message that carries it.
const ACK_EVERY: u32 = 16;
/// An out-of-order packet counts as this many additional packets if there are several links.
/// Several links reorder packets even without losses.
const OUT_OF_ORDER_WEIGHT: u32 = 4;

#[derive(Clone, Copy)]
struct ReorderSlot {
    buffer: u32,
    len: u16,
    kind: PacketKind,
}

pub(super) struct PacketReceiver {
    /// The message with sequence number n is at index n modulo the length, which is a power of two.
    slots: Vec<Option<ReorderSlot>>,
    /// Sequence numbers, in this order: the next that the application releases, the next to
    /// deliver, the next expected, the first beyond the window.
    released: u32,
    delivered: u32,
    next_expected: u32,
    limit: u32,
    /// The limit that was last sent to the peer.
    advertised_limit: u32,
    /// Messages beyond `next_expected`.
    out_of_order_count: u32,
    /// The latest message beyond `next_expected`, and the counter that selects the block of the
    /// next selective acknowledgement.
    latest_out_of_order: u32,
    block_turn: u32,
    /// The number of packets since the last acknowledgement, and the timestamp of the first of
    /// them.
    unacked_packets: u32,
    echo_timestamp: u32,
    /// Whether an acknowledgement is to be sent now.
    pub(super) ack_due: bool,
    pub(super) ack_at: u64,
    /// The link of the latest packet.
    pub(super) last_link: u8,
    /// Whether the window is nearly closed for lack of buffers.
    pub(super) is_starved: bool,
}

impl PacketReceiver {
    pub(super) fn new(config: &Config) -> PacketReceiver {
        let first = config.first_sequence;
        PacketReceiver {
            slots: Vec::new(),
            released: first,
            delivered: first,
            next_expected: first,
            limit: first.wrapping_add(INITIAL_WINDOW),
            advertised_limit: first.wrapping_add(INITIAL_WINDOW),
            out_of_order_count: 0,
            latest_out_of_order: first,
            block_turn: 0,
            unacked_packets: 0,
            echo_timestamp: 0,
            ack_due: false,
            ack_at: NO_DEADLINE,
            last_link: 0,
            is_starved: false,
        }
    }

    #[inline]
    fn slot_index(&self, sequence: u32) -> usize {
        // The length is 0 only before the first message.
        sequence as usize & self.slots.len().wrapping_sub(1)
    }

    /// Handles a received packet with a sequence number.
    #[inline]
    pub(super) fn on_packet(
        &mut self,
        header: &Header,
        link: u8,
        buffer: u32,
        shared: &mut CommonState,
        now: u64,
    ) -> BufferDisposition {
        self.schedule_ack(header, link, shared, now);
        let distance = header.sequence.wrapping_sub(self.next_expected) as i32;
        let is_early = distance != 0;
        let in_window = (self.limit.wrapping_sub(header.sequence) as i32) > 0;
        // Early messages may not fill all buffers: the messages before them must always find a free
        // buffer.
        let Config { buffers, links, .. } = shared.config;
        let max_held = if is_early { buffers - buffers / 4 } else { buffers };
        let counters = &mut shared.counters;
        let counter =
            if distance < 0 || (is_early && in_window && self.has_received(header.sequence)) {
                Some(&mut counters.duplicate)
            } else if !in_window {
                Some(&mut counters.out_of_window)
            } else if shared.held_buffers >= max_held {
                Some(&mut counters.no_room)
            } else {
                None
            };
        if let Some(counter) = counter {
            *counter += 1;
            self.ack_due = true;
            return BufferDisposition::Free;
        }
        self.store(header, buffer);
        shared.held_buffers += 1;
        if is_early {
            counters.early += 1;
            self.out_of_order_count += 1;
            self.latest_out_of_order = header.sequence;
            self.unacked_packets += OUT_OF_ORDER_WEIGHT;
            self.ack_due |= links == 1 || self.unacked_packets >= ACK_EVERY;
        } else {
            self.advance();
        }
        self.advance_limit(shared);
        BufferDisposition::Kept
    }

    /// Schedules an acknowledgement, either at once or after the delay.
    #[inline]
    fn schedule_ack(&mut self, header: &Header, link: u8, shared: &CommonState, now: u64) {
        self.last_link = link;
        if self.unacked_packets == 0 {
            self.echo_timestamp = header.timestamp;
        }
        self.unacked_packets += 1;
        if header.flags & ACK_REQUESTED != 0 || self.unacked_packets >= ACK_EVERY {
            self.ack_due = true;
        } else if self.ack_at == NO_DEADLINE {
            self.ack_at = now + shared.config.ack_delay_ns;
        }
    }

    fn has_received(&self, sequence: u32) -> bool {
        (sequence.wrapping_sub(self.delivered) as usize) < self.slots.len()
            && self.slots[self.slot_index(sequence)].is_some()
    }

    #[inline]
    fn store(&mut self, header: &Header, buffer: u32) {
        let need = header.sequence.wrapping_sub(self.delivered) as usize;
        if need >= self.slots.len() {
            self.grow(need + 1);
        }
        let index = self.slot_index(header.sequence);
        self.slots[index] = Some(ReorderSlot { buffer, len: header.len, kind: header.kind });
    }

    /// Grows the array on demand, because few peers need a wide window. The window limits its size.
    #[cold]
    fn grow(&mut self, need: usize) {
        let mut slots = vec![None; need.next_power_of_two().max(INITIAL_WINDOW as usize)];
        for step in 0..self.slots.len() as u32 {
            let sequence = self.delivered.wrapping_add(step);
            let index = sequence as usize & (slots.len() - 1);
            slots[index] = self.slots[self.slot_index(sequence)];
        }
        self.slots = slots;
    }

    /// Advances `next_expected` past the message that was just stored and past later messages that
    /// are already present.
    #[inline]
    fn advance(&mut self) {
        self.next_expected = self.next_expected.wrapping_add(1);
        if self.out_of_order_count == 0 {
            return;
        }
        // The sender waits for the acknowledgement of the gap.
        self.ack_due = true;
        while self.out_of_order_count > 0 && self.has_received(self.next_expected) {
            self.out_of_order_count -= 1;
            self.next_expected = self.next_expected.wrapping_add(1);
        }
    }

    /// Advances the limit as far as buffers allow. It never moves back.
    #[inline]
    pub(super) fn advance_limit(&mut self, shared: &CommonState) {
        let grant = shared.grant();
        let limit = self.released.wrapping_add(grant);
        if (limit.wrapping_sub(self.limit) as i32) > 0 {
            self.limit = limit;
        }
        self.is_starved = grant < INITIAL_WINDOW
            && self.limit.wrapping_sub(self.next_expected) < INITIAL_WINDOW / 2;
    }

    #[inline]
    pub(super) fn has_delivery(&self) -> bool {
        self.delivered != self.next_expected
    }

    /// The next message. Call this only if there is one.
    #[inline]
    pub(super) fn deliver(&mut self, node: u32) -> Option<Delivery> {
        let index = self.slot_index(self.delivered);
        let ReorderSlot { buffer, len, kind } = self.slots.get_mut(index)?.take()?;
        self.delivered = self.delivered.wrapping_add(1);
        Some(Delivery { peer: node, buffer, len, kind })
    }

    /// The application has released the oldest delivered message. Returns false if there is none.
    #[inline]
    pub(super) fn release(&mut self, shared: &mut CommonState) -> bool {
        if self.released == self.delivered {
            return false;
        }
        self.released = self.released.wrapping_add(1);
        shared.held_buffers -= 1;
        self.advance_limit(shared);
        // A sender that is about to exhaust its window must receive the new limit in time.
        let step = shared.grant() / 4;
        let remaining = self.advertised_limit.wrapping_sub(self.next_expected);
        let increase = self.limit.wrapping_sub(self.advertised_limit);
        self.ack_due |= increase >= step.max(1) && remaining <= step;
        true
    }

    pub(super) fn on_ack_timeout(&mut self) {
        self.ack_at = NO_DEADLINE;
        self.ack_due |= self.unacked_packets > 0;
    }

    /// Answers a window probe of the peer.
    pub(super) fn on_window_probe(
        &mut self,
        header: &Header,
        link: u8,
        shared: &CommonState,
        now: u64,
    ) {
        self.schedule_ack(header, link, shared, now);
        self.advance_limit(shared);
        self.ack_due = true;
    }

    /// Writes the acknowledgement into a packet. Then no acknowledgement is due any more.
    #[inline]
    pub(super) fn write_ack(&mut self, header: &mut Header) {
        header.flags |= ACK;
        header.ack = self.next_expected;
        header.window = self.limit;
        self.advertised_limit = self.limit;
        if self.unacked_packets > 0 {
            header.flags |= TIMESTAMP_ECHO;
            header.timestamp_echo = self.echo_timestamp;
            self.unacked_packets = 0;
        }
        self.ack_due = false;
        self.ack_at = NO_DEADLINE;
        if self.out_of_order_count > 0 {
            self.write_selective_ack(header);
        }
    }

    /// Reports messages that have arrived although earlier ones have not. Acknowledgements may be
    /// lost, so this function alternates between the block of the latest message and each block up
    /// to it.
    #[inline(never)]
    fn write_selective_ack(&mut self, header: &mut Header) {
        let base = self.next_expected.wrapping_add(1);
        let block_of = |sequence: u32| sequence.wrapping_sub(base) / SACK_BLOCK;
        // `latest_out_of_order` may be below `next_expected` after gaps have been filled.
        let latest_block = if (self.latest_out_of_order.wrapping_sub(base) as i32) < 0 {
            0
        } else {
            block_of(self.latest_out_of_order)
        };
        self.block_turn += 1;
        let other = self.block_turn / 2 % (latest_block + 1);
        // Both are inside the window, whose blocks have numbers of one byte.
        let block = if self.block_turn.is_multiple_of(2) { other } else { latest_block };
        let first = base.wrapping_add(block * SACK_BLOCK);
        header.sack_block = block as u8;
        header.sack_bitmap = (0..SACK_BLOCK)
            .filter(|bit| self.has_received(first.wrapping_add(*bit)))
            .fold(0, |bits, bit| bits | 1 << bit);
    }

    /// A description for the dump.
    pub(super) fn describe(&self) -> String {
        let PacketReceiver {
            released, delivered, next_expected, limit, out_of_order_count, ..
        } = self;
        format!(
            "released to {released}, delivered to {delivered}, received to {next_expected}, \
             admitted to {limit}; {out_of_order_count} early{}",
            if self.is_starved { ", short of buffers" } else { "" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReliabilityMachine;

    const NOW: u64 = 5_000_000;

    struct ReceiverFixture {
        receiver: PacketReceiver,
        shared: CommonState,
    }

    impl ReceiverFixture {
        fn new(config: Config) -> ReceiverFixture {
            let shared = ReliabilityMachine::new(config).shared;
            ReceiverFixture { receiver: PacketReceiver::new(&shared.config), shared }
        }

        fn receive(&mut self, sequence: u32) -> BufferDisposition {
            self.receiver.on_packet(&data(sequence), 0, sequence, &mut self.shared, NOW)
        }

        fn receive_all(&mut self, sequences: impl IntoIterator<Item = u32>) {
            for sequence in sequences {
                assert_eq!(self.receive(sequence), BufferDisposition::Kept, "{sequence}");
            }
        }

        /// Delivers a message, and returns its buffer, which has the sequence number.
        fn deliver(&mut self) -> Option<u32> {
            self.receiver.deliver(1).map(|delivery| delivery.buffer)
        }

        fn release_next(&mut self) {
            assert!(self.deliver().is_some());
            assert!(self.receiver.release(&mut self.shared));
        }

        /// A header with the acknowledgement.
        fn ack(&mut self) -> Header {
            let mut header = Header { kind: PacketKind::Ack, len: 0, ..data(0) };
            self.receiver.write_ack(&mut header);
            header
        }
    }

    fn config() -> Config {
        Config::new(0, 2, 0, 0)
    }

    fn data(sequence: u32) -> Header {
        Header {
            kind: PacketKind::Data,
            flags: 0,
            link: 0,
            sack_block: 0,
            len: 8,
            secret: 0,
            incarnation: 0,
            source: 1,
            destination: 0,
            sequence,
            ack: 0,
            window: 0,
            sack_bitmap: 0,
            timestamp: 1000 + sequence,
            timestamp_echo: 0,
            mac: 0,
        }
    }

    #[test]
    fn messages_at_the_limit_and_beyond_it_are_refused() {
        let mut fixture = ReceiverFixture::new(config());
        assert_eq!(fixture.receive(INITIAL_WINDOW), BufferDisposition::Free);
        fixture.receive_all([INITIAL_WINDOW - 1]);
        let window = config().window;
        assert_eq!(fixture.receive(window), BufferDisposition::Free);
        fixture.receive_all([window - 1]);
        assert_eq!(fixture.shared.counters.out_of_window, 2);
    }

    #[test]
    fn early_messages_use_three_quarters_of_the_buffers() {
        let mut fixture = ReceiverFixture::new(Config { buffers: 16, ..config() });
        fixture.receive_all(1..=12);
        assert_eq!(fixture.receive(13), BufferDisposition::Free);
        assert_eq!(fixture.shared.counters.no_room, 1);
        fixture.receive_all([0, 13, 14, 15]);
        assert_eq!(fixture.shared.held_buffers, 16);
        let mut full = ReceiverFixture::new(Config { buffers: 16, ..config() });
        full.shared.held_buffers = 16;
        assert_eq!(full.receive(0), BufferDisposition::Free);
    }

    #[test]
    fn an_acknowledgement_waits_for_sixteen_packets_or_for_its_delay() {
        let mut fixture = ReceiverFixture::new(config());
        fixture.receive_all(0..ACK_EVERY - 1);
        assert!(!fixture.receiver.ack_due);
        assert_eq!(fixture.receiver.ack_at, NOW + config().ack_delay_ns);
        fixture.receive_all([ACK_EVERY - 1]);
        assert!(fixture.receiver.ack_due);
        let first = fixture.ack();
        assert_eq!((first.flags, first.ack, first.window), (ACK | TIMESTAMP_ECHO, 16, 512));
        assert_eq!(first.timestamp_echo, data(0).timestamp, "that of the oldest packet");
        assert_eq!((fixture.receiver.ack_due, fixture.receiver.ack_at), (false, NO_DEADLINE));
        let second = fixture.ack();
        assert_eq!((second.flags, second.timestamp_echo), (ACK, 0), "no packet since the first");
        fixture.receiver.on_ack_timeout();
        assert!(!fixture.receiver.ack_due, "no packet has to be acknowledged");
        fixture.receive_all([ACK_EVERY]);
        fixture.receiver.on_ack_timeout();
        assert_eq!((fixture.receiver.ack_due, fixture.receiver.ack_at), (true, NO_DEADLINE));
    }

    #[test]
    fn a_request_and_a_window_probe_are_acknowledged_at_once() {
        let mut fixture = ReceiverFixture::new(config());
        let request = Header { flags: ACK_REQUESTED, ..data(0) };
        fixture.receiver.on_packet(&request, 0, 0, &mut fixture.shared, NOW);
        assert!(fixture.receiver.ack_due);
        let mut fixture = ReceiverFixture::new(config());
        let probe = Header { kind: PacketKind::WindowProbe, len: 0, ..data(0) };
        fixture.receiver.on_window_probe(&probe, 1, &fixture.shared, NOW);
        assert_eq!((fixture.receiver.ack_due, fixture.receiver.last_link), (true, 1));
        assert_eq!(fixture.ack().window, config().window);
    }

    #[test]
    fn an_early_packet_is_acknowledged_at_once_or_counts_four_times_more_on_several_links() {
        let mut fixture = ReceiverFixture::new(config());
        fixture.receive_all([1]);
        assert!(fixture.receiver.ack_due);
        for (in_order, is_due) in [(10, false), (11, true)] {
            let mut fixture = ReceiverFixture::new(Config { links: 2, ..config() });
            fixture.receive_all(0..in_order);
            assert!(!fixture.receiver.ack_due);
            fixture.receive_all([in_order + 1]);
            assert_eq!(fixture.receiver.ack_due, is_due, "after {in_order} packets in order");
        }
    }

    #[test]
    fn a_packet_that_fills_a_gap_is_acknowledged_at_once_and_the_next_is_not() {
        let mut fixture = ReceiverFixture::new(config());
        fixture.receive_all([1]);
        let with_gap = fixture.ack();
        assert_eq!((with_gap.ack, with_gap.sack_block, with_gap.sack_bitmap), (0, 0, 1));
        fixture.receive_all([0]);
        assert!(fixture.receiver.ack_due);
        let without_gap = fixture.ack();
        assert_eq!((without_gap.ack, without_gap.sack_bitmap), (2, 0));
        fixture.receive_all([2]);
        assert!(!fixture.receiver.ack_due);
    }

    #[test]
    fn selective_acknowledgements_alternate_between_the_latest_block_and_all_blocks() {
        let mut fixture = ReceiverFixture::new(config());
        assert_eq!(fixture.ack().sack_bitmap, 0);
        // One message in each block, each at another position.
        fixture.receive_all((0..4).map(|block| 1 + block * SACK_BLOCK + block));
        let blocks = [3, 1, 3, 2, 3, 3, 3, 0, 3, 1].map(|block: u8| (block, 1u64 << block));
        for expected in blocks {
            let header = fixture.ack();
            assert_eq!((header.sack_block, header.sack_bitmap), expected);
        }
    }

    #[test]
    fn a_selective_acknowledgement_begins_with_the_first_block_if_the_latest_gap_is_filled() {
        let mut fixture = ReceiverFixture::new(config());
        fixture.receive_all([5, 2, 0, 1]);
        let header = fixture.ack();
        assert_eq!((header.ack, header.sack_block, header.sack_bitmap), (3, 0, 1 << 1));
    }

    #[test]
    fn undelivered_messages_survive_a_growing_distance_to_the_latest_message() {
        let mut fixture = ReceiverFixture::new(config());
        fixture.receive_all(0..4);
        (0..4).for_each(|_| fixture.release_next());
        // Message 20 follows message 4 by exactly the initial length of the array.
        fixture.receive_all([4, 4 + INITIAL_WINDOW]);
        assert_eq!(fixture.shared.counters.duplicate, 0);
        assert_eq!(fixture.deliver(), Some(4));
        assert!(!fixture.receiver.has_delivery());
        fixture.receive_all(5..4 + INITIAL_WINDOW);
        (5..=4 + INITIAL_WINDOW).for_each(|sequence| assert_eq!(fixture.deliver(), Some(sequence)));
    }

    #[test]
    fn a_peer_is_short_of_buffers_if_half_of_its_initial_window_is_used_and_few_are_free() {
        // A peer may use half of the free buffers of 2048, so it may add 15 or 16 messages.
        for (held_buffers, next_expected, is_starved) in
            [(2018, 9, true), (2018, 8, false), (2016, 9, false)]
        {
            let mut fixture = ReceiverFixture::new(config());
            fixture.shared.held_buffers = held_buffers;
            fixture.receiver.next_expected = next_expected;
            fixture.receiver.advance_limit(&fixture.shared);
            let state = (fixture.receiver.is_starved, fixture.receiver.limit);
            assert_eq!(state, (is_starved, INITIAL_WINDOW), "{held_buffers}, {next_expected}");
        }
    }

    #[test]
    fn a_window_that_is_nearly_used_is_announced_when_a_quarter_of_it_is_free_again() {
        for (received, due_after) in [(48, Some(16)), (47, None)] {
            let mut fixture = ReceiverFixture::new(Config { window: 64, ..config() });
            fixture.receive_all(0..received);
            assert_eq!(fixture.ack().window, 64);
            let due = (1..=received).find(|_| {
                fixture.release_next();
                fixture.receiver.ack_due
            });
            assert_eq!(due, due_after, "{received} of 64 messages are used");
            assert!(due.is_some() || !fixture.receiver.release(&mut fixture.shared));
        }
    }
}
