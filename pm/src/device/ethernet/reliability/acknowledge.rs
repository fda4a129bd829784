//! What a peer says has arrived, and what follows for the rest.

use super::links::Links;
use super::send::{Entry, Sender, State};
use super::{MAX_WINDOW, NEVER, Shared};
use score_proto::wire::{BLOCK, ECHO, Header};

/// Packets of its link that must overtake a packet before it counts as lost: at first, at most.
pub(super) const OVERTAKEN: (i32, i32) = (3, 64);
/// Packets that arrive without a premature repetition before the above shrinks again.
const CALM: u32 = 1024;

impl Sender {
    /// The peer says what has arrived.
    #[inline]
    pub(super) fn acknowledge(
        &mut self,
        header: &Header,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) {
        let advance = header.ack.wrapping_sub(self.first) as usize;
        if advance > self.sent() && !(self.resumed && advance <= MAX_WINDOW as usize) {
            let counters = &mut shared.counters;
            // Behind what is known: an acknowledgement that has been overtaken.
            let old = (advance as u32 as i32) < 0;
            *(if old { &mut counters.old_acks } else { &mut counters.wrong_acks }) += 1;
            return;
        }
        let was_full = self.flying + 1 >= self.congestion.window;
        let (mut arrived, mut again) = self.arrive_up_to(header.ack, links, shared, now);
        if header.received != 0 {
            let (more, repeated) = self.arrive_selected(header, links, shared, now);
            arrived += more;
            again |= repeated;
        }
        if (header.window.wrapping_sub(self.limit) as i32) > 0
            && header.window.wrapping_sub(self.first) <= 2 * MAX_WINDOW
        {
            self.limit = header.window;
            self.probe = false;
        }
        if arrived == 0 {
            return;
        }
        if header.flags & ECHO != 0 {
            self.rtt.sample(header.echo, now);
            if self.rtt.is_crowded() {
                self.congestion.crowded();
            }
        }
        self.rtt.backoff = 0;
        self.congestion.acked(arrived, was_full);
        if self.islands > 0 || again {
            self.find_lost(header, links, now);
            shared.counters.suspected += u64::from(links.judge(now));
        }
        self.time_out_at = NEVER;
        if self.flying > 0 {
            self.time_out_at = now + self.rtt.time_out(&shared.config);
        } else {
            self.watch_shut_window(shared, now);
        }
    }

    /// Acknowledged for the first time: its slot is free.
    #[inline]
    fn arrive(&mut self, entry: Entry, links: &mut Links, shared: &mut Shared, now: u64) {
        shared.freed.push_back(entry.slot);
        shared.outstanding -= 1;
        match entry.state {
            State::Flying => {
                self.flying -= 1;
                links.land(entry.link);
                links.carried(entry.link, entry.order, entry.sent_at);
                self.newest = self.newest.max(entry.sent_at);
            }
            State::Lost => {
                self.lost -= 1;
                if !entry.again {
                    links.carried(entry.link, entry.order, entry.sent_at);
                }
            }
            State::Waiting | State::Done => {}
        }
        let early = now.saturating_sub(entry.sent_at) < self.rtt.shortest / 2;
        if entry.state == State::Lost || (entry.again && early) {
            shared.counters.premature += 1;
            self.look_longer(now);
        }
        self.calm += 1;
        if self.calm >= CALM {
            self.calm = 0;
            self.overtaken = (self.overtaken - 1).max(OVERTAKEN.0);
        }
    }

    /// A packet had been declared lost and was only late. Once a round trip that is a lesson,
    /// unless it came of silence.
    #[cold]
    fn look_longer(&mut self, now: u64) {
        if self.rtt.backoff > 0 || now < self.widened_at.saturating_add(self.rtt.smooth) {
            return;
        }
        self.overtaken = (self.overtaken * 2).min(OVERTAKEN.1);
        self.widened_at = now;
        self.calm = 0;
    }

    /// All before number `end` have arrived.
    #[inline]
    fn arrive_up_to(
        &mut self,
        end: u32,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) -> (u32, bool) {
        let (mut arrived, mut again) = (0, false);
        let advance = end.wrapping_sub(self.first) as usize;
        for _ in 0..advance {
            // A resumed queue may end before what has arrived does.
            let Some(entry) = self.entries.pop_front() else { break };
            if entry.state == State::Done {
                self.islands -= 1;
            } else {
                self.arrive(entry, links, shared, now);
                arrived += 1;
                again |= entry.again;
            }
        }
        self.first = end;
        if (self.fresh.wrapping_sub(end) as i32) < 0 {
            self.fresh = end;
        }
        self.hint = self.hint.saturating_sub(advance);
        (arrived, again)
    }

    /// The bitmap: messages that have arrived although earlier ones have not.
    #[inline(never)]
    fn arrive_selected(
        &mut self,
        header: &Header,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) -> (u32, bool) {
        let (mut arrived, mut again) = (0, false);
        let base = 1 + (BLOCK * u32::from(header.block)) as usize;
        let mut bits = header.received;
        while bits != 0 {
            let index = base + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if index >= self.sent() && !(self.resumed && index < self.entries.len()) {
                break;
            }
            let entry = self.entries[index];
            if entry.state != State::Done {
                self.arrive(entry, links, shared, now);
                self.entries[index].state = State::Done;
                self.islands += 1;
                arrived += 1;
                again |= entry.again;
            }
        }
        (arrived, again)
    }

    /// Marks what others have overtaken: enough of the same link, or any that was sent much later.
    /// Only where this packet says what is missing: elsewhere, much may have arrived meanwhile.
    #[inline(never)]
    fn find_lost(&mut self, header: &Header, links: &mut Links, now: u64) {
        let late = self.newest.saturating_sub(self.rtt.spread());
        let base = 1 + (BLOCK * u32::from(header.block)) as usize;
        let told = base.min(self.sent())..(base + BLOCK as usize).min(self.sent());
        for index in (0..self.sent().min(1)).chain(told) {
            let entry = self.entries[index];
            let overtaken = || links.overtaken(entry.link, entry.order) >= self.overtaken;
            if entry.state == State::Flying && (entry.sent_at < late || overtaken()) {
                self.lose(index, links, now);
            }
        }
    }
}
