//! The C-Areas of one parallel process on this host, as they are read (`proto/src/carea.rs`).
//! Processes may write anything there: each word is taken once, and checked.

use std::io;
use std::os::fd::BorrowedFd;

use score_proto::bell;
use score_proto::carea::{
    AREA_BYTES, AREA_MAGIC, IDLE, THREAD_SLOTS, WaitingFor, area, area::slot,
};

use crate::sys::memfd::Observed;

/// The areas of all processes, mapped.
#[derive(Debug)]
pub struct Areas {
    map: Observed,
    count: u32,
}

/// The area of one process.
#[derive(Debug, Clone, Copy)]
pub struct Area<'a> {
    map: &'a Observed,
    start: usize,
}

/// What a thread says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The slot's number.
    pub slot: usize,
    /// Its Linux thread id.
    pub tid: u32,
    /// It waits for something that only other processes can bring.
    pub idle: bool,
    /// What for.
    pub waiting: WaitingFor,
    /// Since when, by CLOCK_MONOTONIC.
    pub since_ns: u64,
}

/// What counts as waiting: whatever else a thread does ends by itself, sooner or later.
fn counts(waiting: WaitingFor) -> bool {
    use WaitingFor::*;
    matches!(waiting, Message | SendRoom | Barrier | Select | Pmi)
}

impl Areas {
    /// Maps the areas of `count` processes.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(fd: BorrowedFd<'_>, count: u32) -> io::Result<Self> {
        Ok(Self { map: Observed::new(fd, AREA_BYTES * count as usize)?, count })
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// That of the process of this number on this host.
    pub fn area(&self, process: u32) -> Option<Area<'_>> {
        let start = AREA_BYTES * process as usize;
        (process < self.count).then_some(Area { map: &self.map, start })
    }
}

impl Area<'_> {
    fn u32(&self, offset: usize) -> u32 {
        self.map.u32(self.start + offset)
    }

    fn u64(&self, offset: usize) -> u64 {
        self.map.u64(self.start + offset)
    }

    /// How often a thread became busy.
    pub fn turns(&self) -> u64 {
        // SYNC: busy-transition
        self.u64(area::BUSY_TRANSITIONS)
    }

    /// Whether some thread is idle: the cheapest question, enough to know that none is.
    pub fn may_be_idle(&self) -> bool {
        self.u32(area::IDLE_THREADS) != 0
    }

    /// Whether all threads are idle that have ever said what they do, and there is one.
    pub fn is_idle(&self) -> bool {
        self.each_seat(|seat| seat.idle && counts(seat.waiting)).is_some_and(|count| count > 0)
    }

    /// Has the process ring at this change; only what is looked at from now on counts.
    pub fn wish(&self, change: u32) {
        bell::wish(self.map.word(self.start + area::BELL), change);
    }

    /// The slot of a thread that works, and has not been idle after `before_ns`.
    pub fn worker(&self, before_ns: u64) -> Option<usize> {
        let seats = self.seats().unwrap_or_default();
        let works = |seat: &&Seat| !seat.idle && seat.since_ns <= before_ns;
        seats.iter().find(works).map(|seat| seat.slot)
    }

    /// Whether a thread works in this slot.
    pub fn works(&self, slot: usize) -> bool {
        self.seats().unwrap_or_default().iter().any(|seat| seat.slot == slot && !seat.idle)
    }

    /// Since when all of its threads are idle that have a slot.
    pub fn idle_since(&self) -> u64 {
        self.seats().unwrap_or_default().iter().map(|seat| seat.since_ns).max().unwrap_or(0)
    }

    /// All threads that have a slot; nothing when that is not to be made out.
    pub fn seats(&self) -> Option<Vec<Seat>> {
        let mut seats = Vec::new();
        self.each_seat(|seat| {
            seats.push(seat);
            true
        })?;
        Some(seats)
    }

    /// Calls of sc_barrier, and answers taken.
    pub fn barriers(&self) -> (u64, u64) {
        let called = self.u64(area::BARRIERS_CALLED);
        (called, self.u64(area::BARRIERS_LEFT))
    }

    /// User monitors 0 and 1.
    pub fn monitors(&self) -> [u8; 2] {
        let [first, second, ..] = self.u32(area::USR0).to_le_bytes();
        [first, second]
    }

    /// How many threads have a slot; nothing when one has none, or one is not as it is wanted, or
    /// the area is none.
    fn each_seat(&self, mut wanted: impl FnMut(Seat) -> bool) -> Option<u32> {
        // SYNC: area-magic
        let valid = self.u64(area::MAGIC) == AREA_MAGIC;
        let used = self.u32(area::SLOTS_USED) as usize;
        if !valid || used > THREAD_SLOTS || self.u32(area::OVERFLOW) > 0 {
            return None;
        }
        let mut count = 0;
        for number in 0..used {
            let start = area::SLOTS + number * area::SLOT_BYTES;
            // SYNC: thread-slot
            let tid = self.u32(start + slot::TID);
            if tid == 0 {
                continue;
            }
            // SYNC: thread-state
            let idle = self.u32(start + slot::STATE) == IDLE;
            let waiting = WaitingFor::from_code(self.u32(start + slot::WAITING_FOR));
            let waiting = waiting.unwrap_or(WaitingFor::Nothing);
            let since_ns = self.u64(start + slot::IDLE_SINCE_NS);
            if !wanted(Seat { slot: number, tid, idle, waiting, since_ns }) {
                return None;
            }
            count += 1;
        }
        Some(count)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::sys::memfd::sealed;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Areas of two processes, and who writes them.
    pub struct Written {
        /// What is written.
        pub areas: Areas,
        file: File,
    }

    impl Written {
        /// Two areas, valid and without threads.
        pub fn new() -> Self {
            Self::again().0
        }

        /// The same, mapped a second time for who looks.
        pub fn again() -> (Self, Areas) {
            let fd = sealed(c"score-test", 2 * AREA_BYTES as u64).unwrap();
            let [areas, again] = [(); 2].map(|()| Areas::new(fd.as_fd(), 2).unwrap());
            let written = Self { areas, file: fd.into() };
            written.u64(0, area::MAGIC, AREA_MAGIC);
            written.u64(1, area::MAGIC, AREA_MAGIC);
            (written, again)
        }

        /// Writes a word of a process's area.
        pub fn u64(&self, process: u64, offset: usize, value: u64) {
            let at = process * AREA_BYTES as u64 + offset as u64;
            self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
        }

        /// The same.
        pub fn u32(&self, process: u64, offset: usize, value: u32) {
            let at = process * AREA_BYTES as u64 + offset as u64;
            self.file.write_all_at(&value.to_le_bytes(), at).unwrap();
        }

        /// Reads one.
        pub fn word(&self, process: u32, offset: usize) -> u32 {
            self.areas.area(process).unwrap().u32(offset)
        }

        /// Writes a thread's slot.
        pub fn seat(&self, process: u64, number: usize, tid: u32, state: u32, waiting: u32) {
            let start = area::SLOTS + number * area::SLOT_BYTES;
            self.u32(process, start + slot::TID, tid);
            self.u32(process, start + slot::WAITING_FOR, waiting);
            self.u32(process, start + slot::STATE, state);
            self.u32(process, area::SLOTS_USED, number as u32 + 1);
        }
    }

    #[test]
    fn a_process_is_idle_when_all_of_its_threads_wait_for_others() {
        let written = Written::new();
        let is_idle = || written.areas.area(1).unwrap().is_idle();
        assert!(!is_idle(), "there is no thread");
        written.seat(1, 0, 70, IDLE, WaitingFor::Message as u32);
        assert!(is_idle());
        written.seat(1, 1, 71, 0, 0);
        assert!(!is_idle(), "the second one works");
        written.seat(1, 1, 71, IDLE, WaitingFor::Barrier as u32);
        assert!(is_idle());
        for waiting in [WaitingFor::Nothing, WaitingFor::Sleep, WaitingFor::Flush] {
            written.seat(1, 1, 71, IDLE, waiting as u32);
            assert!(!is_idle(), "{waiting:?} ends by itself");
        }
        written.seat(1, 1, 0, 0, 0);
        assert!(is_idle(), "the second one has ended");
    }

    #[test]
    fn a_worker_is_who_has_not_been_idle_for_a_while() {
        let written = Written::new();
        let area = written.areas.area(0).unwrap();
        assert_eq!(area.worker(u64::MAX), None, "there is no thread");
        written.seat(0, 0, 70, IDLE, WaitingFor::Message as u32);
        written.seat(0, 1, 71, 0, 0);
        written.u64(0, area::SLOTS + area::SLOT_BYTES + slot::IDLE_SINCE_NS, 1000);
        assert_eq!((area.worker(999), area.worker(1000)), (None, Some(1)));
        assert!(area.works(1) && !area.works(0) && !area.works(2));
        assert_eq!(area.idle_since(), 1000);
        area.wish(bell::idle(1));
        assert_eq!(area.u32(area::BELL), 2);
    }

    #[test]
    fn what_no_library_writes_is_busy() {
        let written = Written::new();
        written.seat(0, 0, 70, IDLE, 1);
        let area = written.areas.area(0).unwrap();
        assert!(area.is_idle());
        for (offset, wrong, right) in [
            (area::SLOTS_USED, THREAD_SLOTS as u32 + 1, 1),
            (area::OVERFLOW, 1, 0),
            (area::SLOTS + slot::STATE, 2, IDLE),
            (area::SLOTS + slot::WAITING_FOR, 99, 1),
        ] {
            written.u32(0, offset, wrong);
            assert!(!area.is_idle(), "{offset}: {wrong}");
            written.u32(0, offset, right);
        }
        written.u64(0, area::MAGIC, 1);
        assert!(!area.is_idle() && area.seats().is_none());
        assert!(written.areas.area(2).is_none());
    }
}
