//! Messages from one peer: put in order, counted against the window, acknowledged.

use super::{Config, Delivery, FIRST_WINDOW, Fate, NEVER, Shared};
use score_proto::wire::{ACK, ANSWER, BLOCK, ECHO, Header, Kind};

/// Packets after which an acknowledgement waits no longer for a message to ride on.
const ACK_EVERY: u32 = 16;
/// What a packet that is early counts where several links reorder anyway.
const EARLY: u32 = 4;

#[derive(Clone, Copy)]
struct Cell {
    buffer: u32,
    len: u16,
    kind: Kind,
}

pub(super) struct Receiver {
    /// The message of number n is at n modulo the length, a power of two.
    cells: Vec<Option<Cell>>,
    /// Numbers, in this order: released by the application, delivered to it, the first that has
    /// not come, the first that is not admitted.
    released: u32,
    taken: u32,
    next: u32,
    limit: u32,
    /// The limit that the peer was told last.
    told: u32,
    /// Messages beyond `next`.
    ahead: u32,
    /// The latest of these, and which block the next acknowledgement is about.
    latest: u32,
    block: u32,
    /// Packets that have come since the last acknowledgement, and the stamp of the first.
    pending: u32,
    echo: u32,
    /// An acknowledgement goes out now.
    pub(super) due: bool,
    pub(super) ack_at: u64,
    /// The link over which the latest packet came.
    pub(super) link: u8,
    /// In the machine's list of peers with deliveries.
    pub(super) listed: bool,
    /// The window is shut for want of buffers; whether the machine's list has it.
    pub(super) starved: bool,
    pub(super) waiting: bool,
}

impl Receiver {
    pub(super) fn new(config: &Config) -> Receiver {
        let first = config.first_sequence;
        Receiver {
            cells: Vec::new(),
            released: first,
            taken: first,
            next: first,
            limit: first.wrapping_add(FIRST_WINDOW),
            told: first.wrapping_add(FIRST_WINDOW),
            ahead: 0,
            latest: first,
            block: 0,
            pending: 0,
            echo: 0,
            due: false,
            ack_at: NEVER,
            link: 0,
            listed: false,
            starved: false,
            waiting: false,
        }
    }

    #[inline]
    fn at(&self, sequence: u32) -> usize {
        // Empty only before the first message.
        sequence as usize & self.cells.len().wrapping_sub(1)
    }

    /// A numbered packet has come.
    #[inline]
    pub(super) fn put(
        &mut self,
        header: &Header,
        link: u8,
        buffer: u32,
        shared: &mut Shared,
        now: u64,
    ) -> Fate {
        self.count(header, link, shared, now);
        let distance = header.sequence.wrapping_sub(self.next) as i32;
        let early = distance != 0;
        let admitted = (self.limit.wrapping_sub(header.sequence) as i32) > 0;
        // Early messages leave room, so that the ones they wait for always find a buffer.
        let Config { buffers, links, .. } = shared.config;
        let room = if early { buffers - buffers / 4 } else { buffers };
        let counters = &mut shared.counters;
        let drop = if distance < 0 || (early && admitted && self.has(header.sequence)) {
            Some(&mut counters.duplicate)
        } else if !admitted {
            Some(&mut counters.out_of_window)
        } else if shared.held >= room {
            Some(&mut counters.no_room)
        } else {
            None
        };
        if let Some(drop) = drop {
            *drop += 1;
            self.due = true;
            return Fate::Free;
        }
        self.store(header, buffer);
        shared.held += 1;
        if early {
            counters.early += 1;
            self.ahead += 1;
            self.latest = header.sequence;
            self.pending += EARLY;
            self.due |= links == 1 || self.pending >= ACK_EVERY;
        } else {
            self.advance();
        }
        self.widen(shared);
        Fate::Kept
    }

    /// An acknowledgement is owed: at once, or before long.
    #[inline]
    fn count(&mut self, header: &Header, link: u8, shared: &Shared, now: u64) {
        self.link = link;
        if self.pending == 0 {
            self.echo = header.stamp;
        }
        self.pending += 1;
        if header.flags & ANSWER != 0 || self.pending >= ACK_EVERY {
            self.due = true;
        } else if self.ack_at == NEVER {
            self.ack_at = now + shared.config.ack_delay;
        }
    }

    fn has(&self, sequence: u32) -> bool {
        (sequence.wrapping_sub(self.taken) as usize) < self.cells.len()
            && self.cells[self.at(sequence)].is_some()
    }

    #[inline]
    fn store(&mut self, header: &Header, buffer: u32) {
        let need = header.sequence.wrapping_sub(self.taken) as usize;
        if need >= self.cells.len() {
            self.grow(need + 1);
        }
        let at = self.at(header.sequence);
        self.cells[at] = Some(Cell { buffer, len: header.len, kind: header.kind });
    }

    /// The window bounds it, and few peers ever need a wide one.
    #[cold]
    fn grow(&mut self, need: usize) {
        let mut cells = vec![None; need.next_power_of_two().max(FIRST_WINDOW as usize)];
        for step in 0..self.cells.len() as u32 {
            let sequence = self.taken.wrapping_add(step);
            let at = sequence as usize & (cells.len() - 1);
            cells[at] = self.cells[self.at(sequence)];
        }
        self.cells = cells;
    }

    /// The next number has come, and with it perhaps some that waited for it.
    #[inline]
    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        if self.ahead == 0 {
            return;
        }
        // The sender waits to hear that the hole is filled.
        self.due = true;
        while self.ahead > 0 && self.has(self.next) {
            self.ahead -= 1;
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Moves the limit on, as far as buffers allow. It never moves back.
    #[inline]
    pub(super) fn widen(&mut self, shared: &Shared) {
        let grant = shared.grant();
        let limit = self.released.wrapping_add(grant);
        if (limit.wrapping_sub(self.limit) as i32) > 0 {
            self.limit = limit;
        }
        self.starved =
            grant < FIRST_WINDOW && self.limit.wrapping_sub(self.next) < FIRST_WINDOW / 2;
    }

    #[inline]
    pub(super) fn has_delivery(&self) -> bool {
        self.taken != self.next
    }

    /// The next message; there is one.
    #[inline]
    pub(super) fn deliver(&mut self, node: u32) -> Option<Delivery> {
        let at = self.at(self.taken);
        let Cell { buffer, len, kind } = self.cells.get_mut(at)?.take()?;
        self.taken = self.taken.wrapping_add(1);
        Some(Delivery { peer: node, buffer, len, kind })
    }

    /// The application has done with the oldest delivered message. False: there is none.
    #[inline]
    pub(super) fn release(&mut self, shared: &mut Shared) -> bool {
        if self.released == self.taken {
            return false;
        }
        self.released = self.released.wrapping_add(1);
        shared.held -= 1;
        self.widen(shared);
        // A sender that is about to stop is told that it need not.
        let step = shared.grant() / 4;
        let open = self.told.wrapping_sub(self.next);
        let gain = self.limit.wrapping_sub(self.told);
        self.due |= gain >= step.max(1) && open <= step;
        true
    }

    pub(super) fn time_out(&mut self) {
        self.ack_at = NEVER;
        self.due |= self.pending > 0;
    }

    /// The peer asks how wide the window is.
    pub(super) fn probed(&mut self, header: &Header, link: u8, shared: &Shared, now: u64) {
        self.count(header, link, shared, now);
        self.widen(shared);
        self.due = true;
    }

    /// Writes the acknowledgement into a packet; then none is owed.
    #[inline]
    pub(super) fn fill(&mut self, header: &mut Header) {
        header.flags |= ACK;
        header.ack = self.next;
        header.window = self.limit;
        self.told = self.limit;
        if self.pending > 0 {
            header.flags |= ECHO;
            header.echo = self.echo;
            self.pending = 0;
        }
        self.due = false;
        self.ack_at = NEVER;
        if self.ahead > 0 {
            self.select(header);
        }
    }

    /// Which messages have come although earlier ones have not: in turn the block of the latest
    /// and one of the others, because acknowledgements are lost, too.
    #[inline(never)]
    fn select(&mut self, header: &mut Header) {
        let base = self.next.wrapping_add(1);
        let of = |sequence: u32| sequence.wrapping_sub(base) / BLOCK;
        let blocks = (self.limit.wrapping_sub(base) / BLOCK + 1).min(256);
        // `latest` may lie behind `next` once holes are filled.
        let latest = if (self.latest.wrapping_sub(base) as i32) < 0 { 0 } else { of(self.latest) };
        self.block += 1;
        let other = self.block / 2 % (latest + 1);
        let block = if self.block.is_multiple_of(2) { other } else { latest }.min(blocks - 1);
        let first = base.wrapping_add(block * BLOCK);
        header.block = block as u8;
        header.received = (0..BLOCK)
            .filter(|bit| self.has(first.wrapping_add(*bit)))
            .fold(0, |bits, bit| bits | 1 << bit);
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let Receiver { released, taken, next, limit, ahead, .. } = self;
        format!(
            "released to {released}, delivered to {taken}, received to {next}, admitted to \
             {limit}; {ahead} early{}",
            if self.starved { ", short of buffers" } else { "" },
        )
    }
}
