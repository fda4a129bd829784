//! Copies of processes: the registers and stacks of all threads, and the list of mappings.
//!
//! [`capture`] traces the process itself. [`Snapshot::of_held`] is for a tracer that has already
//! stopped the process. In both cases, the process is stopped only for copying. Unwinding and
//! naming need only the copies.

mod error;
mod hold;
mod procfs;
mod ptrace;

use std::time::Duration;

pub use error::CaptureError;

use crate::maps::{self, Mapping};
use crate::memory::{Memory, MemoryCopy, StackCopy};
use crate::registers::Registers;

/// Maximum number of bytes that are copied of the stack of one thread.
pub const MAX_STACK_BYTES: usize = 256 << 10;
/// Maximum number of threads of a process that are captured. Further threads are only counted.
pub const MAX_THREADS: usize = 4096;
/// Maximum distance of a stack pointer below its stack: some frames, and the guard.
const MAX_OVERFLOW: u64 = 1 << 20;
/// Bytes below the stack pointer that a leaf function may use without moving the stack pointer.
const RED_ZONE_LEN: u64 = 128;
/// Maximum number of bytes of the vdso that are copied.
const MAX_VDSO_LEN: u64 = 64 << 10;
/// Maximum number of stacks that are copied for one thread because of signals.
const MAX_SIGNAL_STACKS: usize = 3;

/// A process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The process id.
    pub pid: i32,
    /// A thread for which /proc has mappings and files. The first thread may have exited.
    pub live_tid: i32,
    /// Its threads. The first thread of the process comes first.
    pub threads: Vec<ThreadSnapshot>,
    /// Its mappings, by address.
    pub mappings: Vec<Mapping>,
    /// The code that the kernel mapped into it.
    pub vdso: MemoryCopy,
    /// The longest time for which a thread was stopped.
    pub held_for: Duration,
    /// Whether all threads that could be stopped were stopped at the same time.
    pub is_simultaneous: bool,
    /// The number of threads beyond [`MAX_THREADS`].
    pub omitted_threads: usize,
}

/// One thread of a [`Snapshot`].
#[derive(Debug, Clone)]
pub struct ThreadSnapshot {
    /// The thread id.
    pub tid: i32,
    /// Its name, as `ps -T` shows it.
    pub name: String,
    /// The copied data.
    pub copy: ThreadCopy,
}

/// The copied data of a thread.
#[derive(Debug, Clone)]
pub enum ThreadCopy {
    /// The thread was stopped: all registers, and the stack.
    Stopped {
        /// The registers.
        registers: Registers,
        /// The stack.
        stack: StackCopy,
    },
    /// The thread waits in the kernel and cannot be stopped (state D). Instruction pointer and
    /// stack pointer are those of its system call.
    Uninterruptible {
        /// The registers that the kernel shows for a system call.
        registers: Registers,
        /// The stack.
        stack: StackCopy,
    },
    /// The thread did not stop in time, for example because it got no processor or another tracer
    /// traces it.
    NotStopped,
}

/// Copies all threads of the process `pid`. Afterwards the process continues at once.
///
/// Meanwhile, the calling process must not wait for arbitrary children (`waitpid(-1, WUNTRACED)`,
/// `__WALL`), because it would get the stops of the threads. A process that a signal has stopped
/// stays stopped. The kernel restarts system calls. System calls that end with EINTR after any stop
/// ([signal(7)], for example epoll_wait) also do so here.
///
/// [signal(7)]: https://man7.org/linux/man-pages/man7/signal.7.html
///
/// # Errors
/// Returns an error if the process has exited, or may not be traced.
pub fn capture(pid: i32) -> Result<Snapshot, CaptureError> {
    // A tracer is a thread, and the end of this thread releases all threads that it still traces. A
    // thread that does not stop cannot be released in another way. A panic in the tracer also
    // leaves no thread stopped.
    let tracer = std::thread::Builder::new().name("stacks-tracer".to_owned());
    let handle = tracer
        .spawn(move || hold::capture(pid))
        .map_err(|source| CaptureError::Thread { pid, source })?;
    handle.join().unwrap_or(Err(CaptureError::Interrupted { pid }))
}

impl Snapshot {
    /// Copies the threads of a process that the caller has stopped. The caller has read their
    /// registers.
    ///
    /// # Errors
    /// Returns an error if the mappings of the process cannot be read.
    pub fn of_held(
        pid: i32,
        threads: &[(i32, Registers)],
        memory: &impl Memory,
    ) -> Result<Self, CaptureError> {
        let live_tid = threads.first().map_or(pid, |(tid, _)| *tid);
        let mut snapshot = Self { pid, live_tid, is_simultaneous: true, ..Self::default() };
        snapshot.read_mappings(memory)?;
        snapshot.omitted_threads = threads.len().saturating_sub(MAX_THREADS);
        for (tid, registers) in threads.iter().take(MAX_THREADS) {
            let stack = copy_stack(&snapshot.mappings, registers, memory);
            let copy = ThreadCopy::Stopped { registers: *registers, stack };
            snapshot.threads.push(ThreadSnapshot {
                tid: *tid,
                name: procfs::thread_name(pid, *tid),
                copy,
            });
        }
        Ok(snapshot)
    }

    fn read_mappings(&mut self, memory: &impl Memory) -> Result<(), CaptureError> {
        let text = procfs::read(self.live_tid, "maps")
            .map_err(|source| CaptureError::Mappings { pid: self.pid, source })?;
        self.mappings = maps::parse(&text);
        if let Some(vdso) = self.mappings.iter().find(|mapping| mapping.name == "[vdso]") {
            let len = (vdso.range.end - vdso.range.start).min(MAX_VDSO_LEN);
            self.vdso = MemoryCopy::of(memory, vdso.range.start, len as usize);
        }
        Ok(())
    }
}

/// The stack that contains a stack pointer. After an overflow, the stack pointer is below its stack
/// or in the guard.
fn stack_above(mappings: &[Mapping], stack_pointer: u64) -> Option<&Mapping> {
    let above = mappings.partition_point(|mapping| mapping.range.end <= stack_pointer);
    let last_start = stack_pointer.saturating_add(MAX_OVERFLOW);
    let readable = mappings[above..].iter().find(|mapping| mapping.is_readable);
    readable.filter(|mapping| mapping.range.start <= last_start)
}

/// Copies the used part of the stack of a thread. If a signal handler runs on a separate stack, the
/// interrupted stack is also copied.
fn copy_stack(mappings: &[Mapping], registers: &Registers, memory: &impl Memory) -> StackCopy {
    let mut stack = StackCopy::default();
    let mut next = Some(registers.rsp());
    let mut room = MAX_STACK_BYTES;
    while let Some(stack_pointer) = next.take() {
        let Some(mapping) = stack_above(mappings, stack_pointer) else { break };
        let start = stack_pointer.saturating_sub(RED_ZONE_LEN).max(mapping.range.start) & !7;
        let used = mapping.range.end - start;
        let len = used.min(room as u64) as usize;
        let piece = MemoryCopy::of(memory, start, len);
        room -= len;
        stack.is_truncated |= used > len as u64;
        if stack.pieces.len() < MAX_SIGNAL_STACKS && room > 0 {
            let interrupted = interrupted_stack_pointer(&piece, &mapping.range);
            next = interrupted.filter(|next| stack.pieces.iter().all(|old| !old.contains(*next)));
        }
        stack.pieces.push(piece);
    }
    stack
}

/// The layout of the data that the kernel pushes for a signal, from the start of its `ucontext`.
mod signal_frame {
    /// The pointer to the next context, which the kernel sets to 0.
    pub const LINK: u64 = 8;
    /// The general registers, in the order of `sys/ucontext.h`.
    pub const REGISTERS: u64 = 40;
    /// The stack pointer among the registers.
    pub const STACK_POINTER: u64 = REGISTERS + 15 * 8;
    /// The code segment and other segments among the registers.
    pub const SEGMENTS: u64 = REGISTERS + 18 * 8;
    /// The code segment of all 64-bit programs.
    pub const USER_CODE_SEGMENT: u64 = 0x33;
    /// The largest value of the flags that a kernel writes into a context.
    pub const MAX_FLAGS: u64 = 7;
}

/// The stack pointer that a signal has interrupted on a stack outside of `mapping`, if the copy
/// contains such a signal frame. Data that only resembles a signal frame causes one unnecessary
/// copy of memory, and has no other effect.
fn interrupted_stack_pointer(piece: &MemoryCopy, mapping: &std::ops::Range<u64>) -> Option<u64> {
    use signal_frame as frame;
    let starts = (piece.start..).step_by(8).take(piece.bytes.len() / 8);
    starts
        .filter(|start| {
            let word = |offset| start.checked_add(offset).and_then(|address| piece.word(address));
            word(frame::SEGMENTS).is_some_and(|word| word & 0xffff == frame::USER_CODE_SEGMENT)
                && word(frame::LINK) == Some(0)
                && word(0).is_some_and(|flags| flags <= frame::MAX_FLAGS)
        })
        .find_map(|start| {
            let stack_pointer = piece.word(start + frame::STACK_POINTER)?;
            (stack_pointer != 0 && !mapping.contains(&stack_pointer)).then_some(stack_pointer)
        })
}
