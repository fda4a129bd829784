//! What a peer says has arrived, and what follows for the rest.

use super::links::Links;
use super::rtt::stamp;
use super::send::{Entry, MILD, Sender, State};
use super::{MAX_WINDOW, NEVER, Shared};
use score_proto::wire::{BLOCK, ECHO, Header};

/// Packets of its link that must overtake a packet before it counts as lost: at first, at most.
pub(super) const OVERTAKEN: (i32, i32) = (3, 64);
/// Packets that arrive without a premature repetition before the above shrinks again.
const CALM: u32 = 1024;

/// What an acknowledgement has told.
#[derive(Default)]
struct News {
    /// Messages that have arrived.
    arrived: u32,
    /// One of them by a repetition.
    again: bool,
}

/// Whether the answer is to a packet that was sent before `sent_at`: then a message that was sent
/// again at that time has arrived by its first packet (Eifel, RFC 3522).
fn is_older(header: &Header, sent_at: u64) -> bool {
    header.flags & ECHO != 0 && (stamp(sent_at).wrapping_sub(header.echo) as i32) > 0
}

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
        let mut news = News::default();
        self.arrive_up_to(header, &mut news, links, shared, now);
        if header.received != 0 {
            self.arrive_selected(header, &mut news, links, shared, now);
        }
        if (header.window.wrapping_sub(self.limit) as i32) > 0
            && header.window.wrapping_sub(self.first) <= 2 * MAX_WINDOW
        {
            self.limit = header.window;
            self.probe = false;
        }
        if news.arrived == 0 {
            return;
        }
        if header.flags & ECHO != 0 {
            self.rtt.sample(header.echo, now);
            if self.rtt.is_crowded() {
                self.congestion.crowded();
            }
        }
        self.congestion.acked(news.arrived, was_full);
        let time_outs = std::mem::take(&mut self.rtt.backoff);
        if self.islands > 0 || news.again {
            let lost = time_outs > 0 && news.again;
            self.find_lost(header, lost, links, now);
            if lost && time_outs > MILD {
                self.congestion.silence(now);
            }
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
    fn arrive(
        &mut self,
        entry: Entry,
        header: &Header,
        news: &mut News,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) {
        shared.freed.push_back(entry.slot);
        shared.outstanding -= 1;
        news.arrived += 1;
        // What came first of two was on the way for longer, and has overtaken nothing.
        let first = entry.again && is_older(header, entry.sent_at);
        match entry.state {
            State::Flying => {
                self.flying -= 1;
                links.land(entry.link);
                if !first {
                    news.again |= entry.again;
                    links.carried(entry.link, entry.order, entry.sent_at);
                    self.newest = self.newest.max(entry.sent_at);
                }
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
        let mistaken = entry.state == State::Lost || (entry.again && early);
        shared.counters.premature += u64::from(mistaken || first);
        if mistaken {
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

    /// All before the header's number have arrived.
    #[inline]
    fn arrive_up_to(
        &mut self,
        header: &Header,
        news: &mut News,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) {
        let end = header.ack;
        let advance = end.wrapping_sub(self.first) as usize;
        for _ in 0..advance {
            // A resumed queue may end before what has arrived does.
            let Some(entry) = self.entries.pop_front() else { break };
            if entry.state == State::Done {
                self.islands -= 1;
            } else {
                self.arrive(entry, header, news, links, shared, now);
            }
        }
        self.first = end;
        if (self.fresh.wrapping_sub(end) as i32) < 0 {
            self.fresh = end;
        }
        self.hint = self.hint.saturating_sub(advance);
    }

    /// The bitmap: messages that have arrived although earlier ones have not.
    #[inline(never)]
    fn arrive_selected(
        &mut self,
        header: &Header,
        news: &mut News,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) {
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
                self.arrive(entry, header, news, links, shared, now);
                self.entries[index].state = State::Done;
                self.islands += 1;
            }
        }
    }

    /// Marks what others have overtaken: enough of the same link, or any that was sent much later.
    /// Only where this packet says what is missing: elsewhere, much may have arrived meanwhile.
    /// `all`: everywhere, because a time-out's repetition has come. Else what is lost would fill
    /// the window until each has had a time-out of its own.
    #[inline(never)]
    fn find_lost(&mut self, header: &Header, all: bool, links: &mut Links, now: u64) {
        let late = self.newest.saturating_sub(self.rtt.spread());
        let base = 1 + (BLOCK * u32::from(header.block)) as usize;
        let told = base.min(self.sent())..(base + BLOCK as usize).min(self.sent());
        let told = if all { 0..self.sent() } else { told };
        for index in (0..self.sent().min(1)).chain(told) {
            let entry = self.entries[index];
            let overtaken = || links.overtaken(entry.link, entry.order) >= self.overtaken;
            if entry.state == State::Flying && (entry.sent_at < late || overtaken()) {
                self.lose(index, links, now);
            }
        }
    }
}
