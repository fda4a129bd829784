//! Messages from one peer: puts them in order, limits them by the window, and acknowledges them.

use crate::packet_header::{ACK, ACK_REQUESTED, Header, PacketKind, SACK_BLOCK, TIMESTAMP_ECHO};
use crate::{BufferDisposition, CommonState, Config, Delivery, INITIAL_WINDOW, NO_DEADLINE};

/// After this many packets the acknowledgement is sent at once, without a message that carries it.
const ACK_EVERY: u32 = 16;
/// An out-of-order packet counts as this many packets if there are several links. Several links
/// reorder packets even without losses.
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
    /// Whether the window is closed for lack of buffers.
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
    /// lost, so this function alternates between the block of the latest message and one of the
    /// other blocks.
    #[inline(never)]
    fn write_selective_ack(&mut self, header: &mut Header) {
        let base = self.next_expected.wrapping_add(1);
        let block_of = |sequence: u32| sequence.wrapping_sub(base) / SACK_BLOCK;
        let blocks = (self.limit.wrapping_sub(base) / SACK_BLOCK + 1).min(256);
        // `latest_out_of_order` may be below `next_expected` after gaps have been filled.
        let latest_block = if (self.latest_out_of_order.wrapping_sub(base) as i32) < 0 {
            0
        } else {
            block_of(self.latest_out_of_order)
        };
        self.block_turn += 1;
        let other = self.block_turn / 2 % (latest_block + 1);
        let block =
            if self.block_turn.is_multiple_of(2) { other } else { latest_block }.min(blocks - 1);
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
