//! Reads the C-Areas of one parallel process on this host (`proto/src/carea.rs`). Processes may
//! write anything to their C-Areas. Each word is therefore read once, and checked.

use std::io;
use std::os::fd::BorrowedFd;

use score_proto::carea::{AREA_LEN, AREA_MAGIC, IDLE, THREAD_SLOTS, WaitingFor, area, area::slot};
use score_proto::idle_notify;
use score_proto::ids::ProcessIndex;
use score_proto::mpi_call::MpiCallRecord;

use crate::sys::memfd::UntrustedMap;

/// The areas of all processes, mapped.
#[derive(Debug)]
pub struct CAreas {
    map: UntrustedMap,
    process_count: u32,
}

/// The area of one process.
#[derive(Debug, Clone, Copy)]
pub struct CArea<'a> {
    map: &'a UntrustedMap,
    offset: usize,
}

/// State that a thread publishes about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSlot {
    /// The index of the slot.
    pub index: usize,
    /// Its Linux thread id.
    pub tid: u32,
    /// Whether the thread has set its idle flag.
    pub idle: bool,
    /// The event for which the thread waits.
    pub waiting_for: WaitingFor,
    /// Start of the last wait in job time, in nanoseconds.
    pub since_ns: u64,
}

/// Whether only other processes can end this wait. All other waits end by themselves.
fn is_wait(waiting_for: WaitingFor) -> bool {
    use WaitingFor::*;
    matches!(waiting_for, Message | SendBuffer | Barrier | Select | Pmi | MpiCall)
}

impl CAreas {
    /// Maps the areas of `process_count` processes.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub fn new(fd: BorrowedFd<'_>, process_count: u32) -> io::Result<Self> {
        Ok(Self { map: UntrustedMap::new(fd, AREA_LEN * process_count as usize)?, process_count })
    }

    /// The processes that have areas.
    pub fn processes(&self) -> impl Iterator<Item = ProcessIndex> + use<> {
        (0..self.process_count).map(ProcessIndex)
    }

    /// The area of a process.
    pub fn area(&self, process: ProcessIndex) -> Option<CArea<'_>> {
        let offset = AREA_LEN * process.index();
        (process.0 < self.process_count).then_some(CArea { map: &self.map, offset })
    }
}

impl CArea<'_> {
    fn u32(&self, offset: usize) -> u32 {
        self.map.u32(self.offset + offset)
    }

    fn u64(&self, offset: usize) -> u64 {
        self.map.u64(self.offset + offset)
    }

    /// Number of times that a thread of the process became busy.
    pub fn busy_transitions(&self) -> u64 {
        // SYNC: busy-transition
        self.u64(area::BUSY_TRANSITIONS)
    }

    /// Whether a thread may be idle. This is the cheapest check: false proves that no thread is
    /// idle.
    pub fn may_be_idle(&self) -> bool {
        self.u32(area::IDLE_THREADS) != 0
    }

    /// Whether all threads that have a slot are idle, and at least one thread has a slot.
    pub fn is_idle(&self) -> bool {
        self.for_each_slot(|thread_slot| thread_slot.idle && is_wait(thread_slot.waiting_for))
            .is_some_and(|count| count > 0)
    }

    /// Makes the process send a notification at this change. Only reads after this call can rely on
    /// the notification.
    pub fn arm_notification(&self, change: u32) {
        idle_notify::arm(self.map.word(self.offset + area::IDLE_NOTIFY), change);
    }

    /// The slot of a busy thread whose last wait began at `before_ns` or earlier.
    pub fn busy_slot(&self, before_ns: u64) -> Option<usize> {
        let thread_slots = self.thread_slots().unwrap_or_default();
        let was_busy =
            |thread_slot: &&ThreadSlot| !thread_slot.idle && thread_slot.since_ns <= before_ns;
        thread_slots.iter().find(was_busy).map(|thread_slot| thread_slot.index)
    }

    /// Whether the thread of this slot is busy.
    pub fn is_slot_busy(&self, slot: usize) -> bool {
        self.thread_slots()
            .unwrap_or_default()
            .iter()
            .any(|thread_slot| thread_slot.index == slot && !thread_slot.idle)
    }

    /// The time since which all threads that have a slot are idle, in nanoseconds.
    pub fn idle_since(&self) -> u64 {
        self.thread_slots()
            .unwrap_or_default()
            .iter()
            .map(|thread_slot| thread_slot.since_ns)
            .max()
            .unwrap_or(0)
    }

    /// The slots of all threads. None: the area is invalid, or some thread has no slot.
    pub fn thread_slots(&self) -> Option<Vec<ThreadSlot>> {
        let mut thread_slots = Vec::new();
        self.for_each_slot(|thread_slot| {
            thread_slots.push(thread_slot);
            true
        })?;
        Some(thread_slots)
    }

    /// Number of calls of sc_barrier, and number of replies that the process has taken.
    pub fn barriers(&self) -> (u64, u64) {
        let called = self.u64(area::BARRIERS_CALLED);
        (called, self.u64(area::BARRIERS_LEFT))
    }

    /// The MPI call that the thread of this slot has recorded.
    pub fn mpi_call(&self, slot: usize) -> MpiCallRecord {
        let base = area::SLOTS + slot * area::SLOT_LEN;
        let arguments =
            std::array::from_fn(|index| self.u32(base + slot::MPI_ARGUMENTS + 4 * index));
        MpiCallRecord { call: self.u32(base + slot::MPI_CALL), arguments }
    }

    /// User monitors 0 and 1.
    pub fn monitors(&self) -> [u8; 2] {
        let [first, second, ..] = self.u32(area::USR0).to_le_bytes();
        [first, second]
    }

    /// The number of threads that have a slot. None: a thread has no slot, `accepts` has rejected a
    /// slot, or the area is invalid.
    fn for_each_slot(&self, mut accepts: impl FnMut(ThreadSlot) -> bool) -> Option<u32> {
        // SYNC: area-magic
        let valid = self.u64(area::MAGIC) == AREA_MAGIC;
        let used_slots = self.u32(area::SLOTS_USED) as usize;
        if !valid || used_slots > THREAD_SLOTS || self.u32(area::OVERFLOW) > 0 {
            return None;
        }
        let mut count = 0;
        for index in 0..used_slots {
            let base = area::SLOTS + index * area::SLOT_LEN;
            // SYNC: thread-slot
            let tid = self.u32(base + slot::TID);
            if tid == 0 {
                continue;
            }
            // SYNC: thread-state
            let idle = self.u32(base + slot::STATE) == IDLE;
            let waiting_for = WaitingFor::from_code(self.u32(base + slot::WAITING_FOR));
            let waiting_for = waiting_for.unwrap_or(WaitingFor::Nothing);
            let since_ns = self.u64(base + slot::IDLE_SINCE_NS);
            if !accepts(ThreadSlot { index, tid, idle, waiting_for, since_ns }) {
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
    use score_sys::memfd;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// The C-Areas of two processes, and the file to write them.
    pub struct CAreaFixture {
        /// The mapped areas.
        pub areas: CAreas,
        file: File,
    }

    impl CAreaFixture {
        /// Two areas, valid and without threads.
        pub fn new() -> Self {
            Self::with_second_mapping().0
        }

        /// Like [`CAreaFixture::new`], with a second mapping for the reader under test.
        pub fn with_second_mapping() -> (Self, CAreas) {
            let fd = memfd::create_sealed("score-test", 2 * AREA_LEN as u64).unwrap();
            let [areas, second] = [(); 2].map(|()| CAreas::new(fd.as_fd(), 2).unwrap());
            let fixture = Self { areas, file: fd.into() };
            fixture.write_u64(0, area::MAGIC, AREA_MAGIC);
            fixture.write_u64(1, area::MAGIC, AREA_MAGIC);
            (fixture, second)
        }

        /// Writes a word of 8 bytes of a process's area.
        pub fn write_u64(&self, process: u64, offset: usize, value: u64) {
            let position = process * AREA_LEN as u64 + offset as u64;
            self.file.write_all_at(&value.to_le_bytes(), position).unwrap();
        }

        /// Writes a word of 4 bytes.
        pub fn write_u32(&self, process: u64, offset: usize, value: u32) {
            let position = process * AREA_LEN as u64 + offset as u64;
            self.file.write_all_at(&value.to_le_bytes(), position).unwrap();
        }

        /// Reads a word of 4 bytes.
        pub fn read_u32(&self, process: u32, offset: usize) -> u32 {
            self.areas.area(ProcessIndex(process)).unwrap().u32(offset)
        }

        /// Writes a thread's slot.
        pub fn write_slot(
            &self,
            process: u64,
            index: usize,
            tid: u32,
            state: u32,
            waiting_for: u32,
        ) {
            let base = area::SLOTS + index * area::SLOT_LEN;
            self.write_u32(process, base + slot::TID, tid);
            self.write_u32(process, base + slot::WAITING_FOR, waiting_for);
            self.write_u32(process, base + slot::STATE, state);
            self.write_u32(process, area::SLOTS_USED, index as u32 + 1);
        }
    }

    #[test]
    fn a_process_is_idle_when_all_of_its_threads_wait_for_other_processes() {
        let fixture = CAreaFixture::new();
        let is_idle = || fixture.areas.area(ProcessIndex(1)).unwrap().is_idle();
        assert!(!is_idle(), "there is no thread");
        fixture.write_slot(1, 0, 70, IDLE, WaitingFor::Message as u32);
        assert!(is_idle());
        fixture.write_slot(1, 1, 71, 0, 0);
        assert!(!is_idle(), "the second one is busy");
        fixture.write_slot(1, 1, 71, IDLE, WaitingFor::Barrier as u32);
        assert!(is_idle());
        for waiting_for in [WaitingFor::Nothing, WaitingFor::Sleep, WaitingFor::Flush] {
            fixture.write_slot(1, 1, 71, IDLE, waiting_for as u32);
            assert!(!is_idle(), "{waiting_for:?} ends by itself");
        }
        fixture.write_slot(1, 1, 0, 0, 0);
        assert!(is_idle(), "the second one has exited");
    }

    #[test]
    fn a_slot_is_busy_if_its_thread_has_not_been_idle_recently() {
        let fixture = CAreaFixture::new();
        let area = fixture.areas.area(ProcessIndex(0)).unwrap();
        assert_eq!(area.busy_slot(u64::MAX), None, "there is no thread");
        fixture.write_slot(0, 0, 70, IDLE, WaitingFor::Message as u32);
        fixture.write_slot(0, 1, 71, 0, 0);
        fixture.write_u64(0, area::SLOTS + area::SLOT_LEN + slot::IDLE_SINCE_NS, 1000);
        assert_eq!((area.busy_slot(999), area.busy_slot(1000)), (None, Some(1)));
        assert!(area.is_slot_busy(1) && !area.is_slot_busy(0) && !area.is_slot_busy(2));
        assert_eq!(area.idle_since(), 1000);
        area.arm_notification(idle_notify::idle(1));
        assert_eq!(area.u32(area::IDLE_NOTIFY), 2);
    }

    #[test]
    fn an_invalid_area_counts_as_busy() {
        let fixture = CAreaFixture::new();
        fixture.write_slot(0, 0, 70, IDLE, 1);
        let area = fixture.areas.area(ProcessIndex(0)).unwrap();
        assert!(area.is_idle());
        for (offset, wrong, right) in [
            (area::SLOTS_USED, THREAD_SLOTS as u32 + 1, 1),
            (area::OVERFLOW, 1, 0),
            (area::SLOTS + slot::STATE, 2, IDLE),
            (area::SLOTS + slot::WAITING_FOR, 99, 1),
        ] {
            fixture.write_u32(0, offset, wrong);
            assert!(!area.is_idle(), "{offset}: {wrong}");
            fixture.write_u32(0, offset, right);
        }
        fixture.write_u64(0, area::MAGIC, 1);
        assert!(!area.is_idle() && area.thread_slots().is_none());
        assert!(fixture.areas.area(ProcessIndex(2)).is_none());
    }
}
