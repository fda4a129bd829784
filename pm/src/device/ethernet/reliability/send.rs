//! Messages on the way to one peer. Selective repeat: each message is kept until its receiver
//! has it (`acknowledge.rs`); a packet that is lost or overdue is sent again.

use super::acknowledge;
use super::congestion::Congestion;
use super::links::Links;
use super::rtt::Rtt;
use super::{Config, FIRST_WINDOW, MAX_WINDOW, NEVER, Pending, Shared};
use score_proto::wire::Kind;
use std::collections::VecDeque;

/// Packets on the way, and none to follow, for which an acknowledgement is asked at once.
const BURST_END: u32 = 8;
/// Time-outs in a row that repeat one packet only, and after which nothing is known of the way.
pub(super) const MILD: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Never sent.
    Waiting,
    /// On the way.
    Flying,
    /// To be sent again.
    Lost,
    /// In its receiver's queue; its slot is free.
    Done,
}

#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) sent_at: u64,
    pub(super) slot: u32,
    /// Number of the latest transmission on its link.
    pub(super) order: u32,
    len: u16,
    kind: Kind,
    pub(super) link: u8,
    pub(super) state: State,
    pub(super) again: bool,
}

/// What goes into a packet.
pub(super) struct Chosen {
    pub(super) sequence: u32,
    pub(super) slot: u32,
    pub(super) len: u16,
    pub(super) kind: Kind,
    pub(super) link: u8,
    /// Nothing more can follow until the peer answers.
    pub(super) last: bool,
}

pub(super) struct Sender {
    /// Entry i has the number `first + i`.
    pub(super) entries: VecDeque<Entry>,
    pub(super) first: u32,
    /// The first number that has never been sent.
    pub(super) fresh: u32,
    /// The first number that the peer does not admit.
    pub(super) limit: u32,
    pub(super) flying: u32,
    pub(super) lost: u32,
    /// Done entries that are not at the front: there are holes.
    pub(super) islands: u32,
    /// No lost entry is before this index.
    pub(super) hint: usize,
    /// A time-out allows one packet whatever the window says.
    forced: bool,
    /// The window was shut for a time-out: ask.
    pub(super) probe: bool,
    pub(super) time_out_at: u64,
    /// The latest sending time among packets that have arrived.
    pub(super) newest: u64,
    pub(super) overtaken: i32,
    pub(super) widened_at: u64,
    pub(super) calm: u32,
    pub(super) rtt: Rtt,
    pub(super) congestion: Congestion,
    gone: bool,
    /// What the numbers of arrived messages beyond the known ones may be: this queue is a dead
    /// process's, and what had arrived is not in it.
    pub(super) resumed: bool,
}

impl Sender {
    pub(super) fn new(config: &Config) -> Sender {
        let first = config.first_sequence;
        Sender {
            entries: VecDeque::new(),
            first,
            fresh: first,
            limit: first.wrapping_add(FIRST_WINDOW),
            flying: 0,
            lost: 0,
            islands: 0,
            hint: 0,
            forced: false,
            probe: false,
            time_out_at: NEVER,
            newest: 0,
            overtaken: acknowledge::OVERTAKEN.0,
            widened_at: 0,
            calm: 0,
            rtt: Rtt::new(),
            congestion: Congestion::new(config.queue.min(MAX_WINDOW)),
            gone: false,
            resumed: false,
        }
    }

    #[inline]
    pub(super) fn has_room(&self, config: &Config) -> bool {
        self.entries.len() < config.queue as usize
    }

    /// The number of the next message.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.entries.len() as u32 - self.islands
    }

    /// Entries that have been sent at least once.
    #[inline]
    pub(super) fn sent(&self) -> usize {
        self.fresh.wrapping_sub(self.first) as usize
    }

    #[inline]
    pub(super) fn submit(&mut self, slot: u32, len: u16, kind: Kind, shared: &mut Shared) -> u32 {
        let sequence = self.end();
        if self.gone {
            shared.freed.push_back(slot);
            shared.counters.dropped += u64::from(kind == Kind::Data);
            self.first = self.first.wrapping_add(1);
            self.fresh = self.first;
            return sequence;
        }
        shared.outstanding += 1;
        self.entries.push_back(Entry::waiting(slot, len, kind));
        sequence
    }

    #[inline]
    fn may_fly(&self) -> bool {
        self.flying < self.congestion.window || self.forced
    }

    /// Whether the peer admits the next message that has not been sent.
    #[inline]
    fn admitted(&self) -> bool {
        (self.limit.wrapping_sub(self.fresh) as i32) > 0
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.probe
            || (self.may_fly() && (self.lost > 0 || (self.fresh != self.end() && self.admitted())))
    }

    /// The next message to send, marked as being on the way.
    #[inline]
    pub(super) fn choose(
        &mut self,
        links: &mut Links,
        shared: &mut Shared,
        now: u64,
    ) -> Option<Chosen> {
        if !self.may_fly() {
            return None;
        }
        let (index, avoid) = if self.lost > 0 {
            let index = self.next_lost()?;
            shared.counters.repeated += 1;
            (index, Some(self.entries[index].link))
        } else if self.next_fresh() {
            self.fresh = self.fresh.wrapping_add(1);
            (self.sent() - 1, None)
        } else {
            self.watch_shut_window(shared, now);
            return None;
        };
        let link = links.pick(avoid, self.congestion.window);
        let order = links.fly(link);
        self.flying += 1;
        self.forced = false;
        let again = avoid.is_some();
        let last = again
            || self.flying >= self.congestion.window
            || !self.admitted()
            || self.is_burst_end();
        let entry = &mut self.entries[index];
        (entry.sent_at, entry.order, entry.link) = (now, order, link);
        (entry.state, entry.again) = (State::Flying, again);
        let chosen = Chosen {
            sequence: self.first.wrapping_add(index as u32),
            slot: entry.slot,
            len: entry.len,
            kind: entry.kind,
            link,
            last,
        };
        if self.time_out_at == NEVER {
            self.time_out_at = now + self.rtt.time_out(&shared.config);
        }
        Some(chosen)
    }

    /// All is sent that there is, and it is much: the slots of these messages may be what the
    /// application waits for.
    #[inline]
    fn is_burst_end(&self) -> bool {
        self.fresh == self.end() && self.flying.is_multiple_of(BURST_END)
    }

    /// With nothing on the way and the window shut, a timer asks whether it has opened: the
    /// packet that said so may be lost.
    #[inline]
    pub(super) fn watch_shut_window(&mut self, shared: &Shared, now: u64) {
        let shut = self.fresh != self.end() && !self.admitted() && self.flying == 0;
        if shut && self.time_out_at == NEVER {
            self.time_out_at = now + self.rtt.time_out(&shared.config);
        }
    }

    /// Whether there is a message that was never sent and is admitted. Only in a dead process's
    /// queue some of them have arrived nevertheless.
    #[inline]
    fn next_fresh(&mut self) -> bool {
        while self.resumed
            && self.entries.get(self.sent()).is_some_and(|entry| entry.state == State::Done)
        {
            self.fresh = self.fresh.wrapping_add(1);
        }
        self.fresh != self.end() && self.admitted()
    }

    #[inline(never)]
    fn next_lost(&mut self) -> Option<usize> {
        let lost = |entry: &Entry| entry.state == State::Lost;
        let index = self.entries.range(self.hint..).position(lost).map(|at| at + self.hint)?;
        self.hint = index + 1;
        self.lost -= 1;
        Some(index)
    }

    pub(super) fn lose(&mut self, index: usize, links: &mut Links, now: u64) {
        let entry = &mut self.entries[index];
        entry.state = State::Lost;
        links.land(entry.link);
        links.missed(entry.link, entry.sent_at);
        self.flying -= 1;
        self.lost += 1;
        self.hint = self.hint.min(index);
        self.congestion.lost(now, self.rtt.smooth);
    }

    /// Nothing has been heard for a time-out. The oldest packet goes again, later on the two
    /// oldest, and no other: the peer may have lost the processor, and what is lost is known when
    /// it answers. Nobody is declared dead: a debugger may hold the peer for hours.
    pub(super) fn time_out(&mut self, links: &mut Links, shared: &mut Shared, now: u64) {
        self.time_out_at = NEVER;
        if self.flying == 0 && self.lost == 0 && self.fresh == self.end() {
            return;
        }
        shared.counters.time_outs += 1;
        self.rtt.back_off();
        if self.flying == 0 && self.lost == 0 {
            // Nothing is on the way, but the window is shut.
            self.probe = !self.admitted();
        } else {
            let flying = |entry: &Entry| entry.state == State::Flying;
            let count = if self.rtt.backoff > MILD { 2 } else { 1 };
            for _ in 0..count {
                if let Some(index) = self.entries.iter().position(flying) {
                    self.lose(index, links, now);
                }
            }
        }
        self.forced = true;
        self.time_out_at = now + self.rtt.time_out(&shared.config);
    }

    /// Drops everything, and what will come.
    pub(super) fn drop_all(&mut self, links: &mut Links, shared: &mut Shared) {
        self.first = self.end();
        self.fresh = self.first;
        for entry in self.entries.drain(..) {
            if entry.state == State::Flying {
                links.land(entry.link);
            }
            if entry.state != State::Done {
                shared.freed.push_back(entry.slot);
                shared.outstanding -= 1;
                shared.counters.dropped += u64::from(entry.kind == Kind::Data);
            }
        }
        (self.flying, self.lost, self.islands, self.hint) = (0, 0, 0, 0);
        (self.forced, self.probe, self.gone) = (false, false, true);
        self.time_out_at = NEVER;
    }

    /// Takes a dead process's messages, in order. Numbers that are missing have arrived.
    pub(super) fn resume(&mut self, all: impl Iterator<Item = Pending>, shared: &mut Shared) {
        self.resumed = true;
        for pending in all {
            if self.entries.is_empty() && !self.gone {
                self.first = pending.sequence;
                self.fresh = pending.sequence;
                // The window is not known; the oldest message is always admitted, or answered.
                self.limit = pending.sequence.wrapping_add(1);
            }
            let ahead = pending.sequence.wrapping_sub(self.end());
            if self.gone || ahead as usize + self.entries.len() >= MAX_WINDOW as usize {
                shared.refuse_slot(pending.slot);
                continue;
            }
            for _ in 0..ahead {
                self.entries.push_back(Entry::arrived());
                self.islands += 1;
            }
            self.entries.push_back(Entry::waiting(pending.slot, pending.len, pending.kind));
            shared.outstanding += 1;
        }
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let Sender { first, fresh, limit, flying, lost, overtaken, .. } = self;
        let queued = self.entries.len();
        format!(
            "unacknowledged from {first}, unsent from {fresh}, shut from {limit}; {queued} queued, \
             {flying} on the way, {lost} lost; window {}, reorder {overtaken}, round trip {} ns, \
             back-off {}{}",
            self.congestion.window,
            self.rtt.smooth,
            self.rtt.backoff,
            if self.gone { "; gone" } else { "" },
        )
    }
}

impl Entry {
    fn waiting(slot: u32, len: u16, kind: Kind) -> Entry {
        let state = State::Waiting;
        Entry { sent_at: 0, slot, order: 0, len, kind, link: 0, state, again: false }
    }

    fn arrived() -> Entry {
        Entry { state: State::Done, ..Entry::waiting(0, 0, Kind::Data) }
    }
}
