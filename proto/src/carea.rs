//! The C-Area (manual 1.5): the memory that a process shares with its shepherd.
//!
//! It consists of two objects, both memfds that are sealed against resizing:
//! - the **board**, one per host and job. Only the shepherd writes it (it is sealed against later
//!   writable mappings), and every process reads it.
//! - the **C-Area**, one per host and parallel process. The processes write it, except for one word
//!   ([`area::IDLE_NOTIFY`]). It contains one area of [`AREA_LEN`] bytes for each process, indexed
//!   by process number on the host.
//!
//! All fields are little-endian integers that are read and written only as one atomic load or
//! store. An area of zeroes is in the valid initial state. A reader loads each word once and
//! validates the copy, because the process may write anything. The message counters belong to PM
//! and are in the PM segment (`pm::segment::layout`).

/// First word of the board: "SCorBrd1".
pub const BOARD_MAGIC: u64 = u64::from_le_bytes(*b"SCorBrd1");
/// Size of the board in bytes.
pub const BOARD_LEN: usize = 4096;

/// Byte offsets in the board.
pub mod board {
    /// u64, [`super::BOARD_MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32, [`crate::PROTOCOL_VERSION`].
    pub const VERSION: usize = 8;
    /// u32, bits [`OVERSUBSCRIBED`].
    pub const FLAGS: usize = 12;
    /// u64: total time for which the job has been stopped, in nanoseconds. Job time is
    /// CLOCK_MONOTONIC minus this value.
    pub const STOPPED_NS: usize = 64;
    /// u64: number of stops and resumes so far. It is odd while the job is stopped.
    pub const STOP_COUNT: usize = 72;
    /// u64: CLOCK_MONOTONIC in nanoseconds at the last start of the job (rebased at restart).
    pub const STARTED_NS: usize = 80;
    /// Flag: there are more runnable processes than processors, so that processes should spin less.
    pub const OVERSUBSCRIBED: u32 = 1;
}

/// First word of a process's area once it has attached: "SCorArea".
pub const AREA_MAGIC: u64 = u64::from_le_bytes(*b"SCorArea");
/// Size of one process's area in bytes.
pub const AREA_LEN: usize = 4096;
/// Number of thread slots of a process. A thread without a slot keeps its process busy for ever,
/// which is safe.
pub const THREAD_SLOTS: usize = 56;

/// Byte offsets in a process's area.
pub mod area {
    /// u64, [`super::AREA_MAGIC`], written last by score_initialize. Readers load it with Acquire
    /// before anything else (SYNC: area-magic).
    pub const MAGIC: usize = 0;
    /// u32, [`crate::PROTOCOL_VERSION`].
    pub const VERSION: usize = 8;
    /// u32: 1 + the highest thread slot ever used.
    pub const SLOTS_USED: usize = 12;
    /// u32: number of threads that found no slot. If it is above 0, the process counts as busy.
    pub const OVERFLOW: usize = 16;
    /// u8: user monitor 0 (manual 3.5.3).
    pub const USR0: usize = 20;
    /// u8: user monitor 1.
    pub const USR1: usize = 21;
    /// u32: depth of uncheckpointable regions (manual 3.2).
    pub const UNCHECKPOINTABLE: usize = 24;
    /// u64, own cache line: number of idle -> busy transitions of all threads. A transition is
    /// counted, sequentially consistent, after the slot is cleared and before the thread continues.
    /// A sampler loads the number before the states. If it finds all threads idle, and the same
    /// number at the next sample, no thread was busy in between (SYNC: busy-transition; model:
    /// `job/src/deadlock/model.rs`).
    pub const BUSY_TRANSITIONS: usize = 64;
    /// u32, own cache line: number of threads of this process that are idle now. libpm reads it in
    /// pmSend.
    pub const IDLE_THREADS: usize = 128;
    /// u64, own cache line: number of calls of sc_barrier. A call is counted before the caller's
    /// slot becomes idle. A sampler that finds the slot idle therefore reads the new number, even
    /// if the shepherd has not received the call yet.
    pub const BARRIERS_CALLED: usize = 192;
    /// u64: number of replies to sc_barrier that were received. A reply is counted after the caller
    /// has become busy ([`BUSY_TRANSITIONS`]). While the shepherd has sent more replies than this
    /// number, a thread is about to continue.
    pub const BARRIERS_LEFT: usize = 200;
    /// u32, own cache line: the change at which the process has to notify the shepherd
    /// ([`crate::idle_notify`]). The shepherd arms it, and the process disarms it.
    pub const IDLE_NOTIFY: usize = 256;
    /// First thread slot.
    pub const SLOTS: usize = 512;
    /// Distance between thread slots.
    pub const SLOT_LEN: usize = 64;

    /// Byte offsets in a thread slot.
    pub mod slot {
        /// u32: Linux thread id in the process's own PID namespace, or 0 if the slot is free.
        pub const TID: usize = 0;
        /// u32: [`super::super::BUSY`] or [`super::super::IDLE`]. A reader that loads IDLE with
        /// Acquire also sees the matching `IDLE_SINCE_NS` and `WAITING_FOR` (SYNC: thread-state).
        pub const STATE: usize = 4;
        /// u32: a [`super::super::WaitingFor`] code.
        pub const WAITING_FOR: usize = 8;
        /// u64: the job's time at the last change to idle, in nanoseconds (`board::STOPPED_NS`).
        pub const IDLE_SINCE_NS: usize = 16;
        /// u32: while `WAITING_FOR` is [`super::super::WaitingFor::MpiCall`], the number of the
        /// call ([`crate::mpi_call::MpiCallRecord`]).
        pub const MPI_CALL: usize = 24;
        /// The recorded arguments of the call, a u32 each.
        pub const MPI_ARGUMENTS: usize = 28;
    }
}

const _: () = assert!(area::SLOTS + THREAD_SLOTS * area::SLOT_LEN <= AREA_LEN);

/// Thread state: the thread computes, or has work to do.
pub const BUSY: u32 = 0;
/// Thread state: the thread waits for a message and has no work to do (manual 3.5.2).
pub const IDLE: u32 = 1;

/// The event that a thread waits for, as recorded in the C-Area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WaitingFor {
    /// No known event.
    Nothing = 0,
    /// A message.
    Message = 1,
    /// Space to send.
    SendBuffer = 2,
    /// sc_barrier.
    Barrier = 3,
    /// sc_flush (counts as busy).
    Flush = 4,
    /// sc_sleep (counts as busy).
    Sleep = 5,
    /// The other processes, in score_initialize.
    Start = 6,
    /// select or poll, after pmBeforeSelect.
    Select = 7,
    /// A process manager's key-value fence.
    Pmi = 8,
    /// A message, in a call of MPI that waits for other processes.
    MpiCall = 9,
}

impl WaitingFor {
    /// The meaning of a code, or `None` for a value that no library writes.
    pub fn from_code(code: u32) -> Option<Self> {
        use WaitingFor::*;
        [Nothing, Message, SendBuffer, Barrier, Flush, Sleep, Start, Select, Pmi, MpiCall]
            .into_iter()
            .find(|candidate| *candidate as u32 == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_decoded_unchanged_and_unknown_codes_are_refused() {
        for code in 0..10 {
            assert_eq!(WaitingFor::from_code(code).unwrap() as u32, code);
        }
        assert_eq!(WaitingFor::from_code(10), None);
    }
}
