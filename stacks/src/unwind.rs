//! Unwinds copies of stacks to addresses in modules.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gimli::UnwindContext;

use crate::capture::{Snapshot, ThreadCopy, ThreadSnapshot};
use crate::cfi::{CallerFrame, CfiStep};
use crate::maps::{self, Mapping};
use crate::memory::StackCopy;
use crate::module::{Module, ModuleCache};
use crate::registers::{RBP, Registers};

/// Maximum number of frames that are unwound of one thread.
const MAX_STEPS: usize = 1 << 14;
/// Maximum number of frames that are kept of one thread. The middle of a longer stack is left out.
pub const MAX_FRAMES: usize = 256;
/// Number of outer frames that are kept of a stack that is too long. The outer frames of many
/// processes are equal.
const KEPT_OUTER_FRAMES: usize = 64;
/// Maximum number of entries of a trace-back in addresses. The layout of Get Thread Data determines
/// it.
pub const MAX_TRACE_BACK: usize = 400;
/// Maximum number of signal frames on one stack.
const MAX_SIGNAL_FRAMES: usize = 32;
/// Time limit for unwinding the stacks of one process, because unwind tables may be forged to be
/// slow.
const UNWIND_TIMEOUT: Duration = Duration::from_secs(2);

/// The location of an address.
#[derive(Debug, Clone)]
pub enum CodePlace {
    /// In a file or the vdso. The address is the link-time address.
    Module(Arc<Module>, u64),
    /// In memory without a readable file. The offset is relative to the file or to the region.
    Region(Arc<str>, u64),
    /// Outside all mappings.
    Nowhere(u64),
    /// In the code to which a signal handler returns. The next frame was interrupted.
    SignalReturn,
}

/// One entry of an unwound stack.
#[derive(Debug, Clone)]
pub enum UnwoundFrame {
    /// A frame.
    Code(CodeFrame),
    /// This number of frames was left out here.
    Omitted(usize),
}

/// A frame with its addresses in the process.
#[derive(Debug, Clone)]
pub struct CodeFrame {
    /// The location of its code. For a return address, it is the location of the call before it.
    pub place: CodePlace,
    /// The next instruction of this frame.
    pub instruction: u64,
    /// The stack pointer of this frame.
    pub stack_pointer: u64,
}

/// One entry of a trace-back in addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceBackEntry {
    /// The stack pointer of the frame.
    pub frame_address: u64,
    /// The return address of the frame, or 0 if the frame has no caller.
    pub return_address: u64,
}

/// The reason why a stack has no more frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackEnd {
    /// The unwinding has reached the first function of the thread.
    Complete,
    /// The stack or the unwind tables do not lead to a further frame.
    Broken,
    /// The stack is longer than the part that is copied or unwound.
    Truncated,
    /// The thread could not be stopped.
    NotStopped,
}

/// An unwound thread.
#[derive(Debug, Clone)]
pub struct UnwoundThread {
    /// The thread id.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Whether the thread waited in the kernel and could not be stopped (state D).
    pub is_uninterruptible: bool,
    /// Its frames, with the innermost first.
    pub frames: Vec<UnwoundFrame>,
    /// The reason why there are no more frames.
    pub end: StackEnd,
}

/// Unwinds all threads of a snapshot.
pub fn unwind(snapshot: &Snapshot, modules: &mut ModuleCache) -> Vec<UnwoundThread> {
    walk_threads(snapshot, modules, |thread, frames, end| UnwoundThread {
        tid: thread.tid,
        name: thread.name.clone(),
        is_uninterruptible: matches!(thread.copy, ThreadCopy::Uninterruptible { .. }),
        frames: shorten(frames),
        end,
    })
}

/// The frames of each thread of a snapshot as addresses, with the innermost first. A thread has at
/// most [`MAX_TRACE_BACK`] entries.
pub fn trace_backs(snapshot: &Snapshot, modules: &mut ModuleCache) -> Vec<Vec<TraceBackEntry>> {
    walk_threads(snapshot, modules, |_, frames, _| {
        let callers = frames.iter().skip(1).map(|caller| caller.instruction).chain([0]);
        let entries = frames.iter().zip(callers).map(|(frame, return_address)| TraceBackEntry {
            frame_address: frame.stack_pointer,
            return_address,
        });
        entries.take(MAX_TRACE_BACK).collect()
    })
}

/// Walks the stack of each thread, and makes a value of its frames.
fn walk_threads<T>(
    snapshot: &Snapshot,
    modules: &mut ModuleCache,
    make: impl Fn(&ThreadSnapshot, Vec<CodeFrame>, StackEnd) -> T,
) -> Vec<T> {
    let mut space = AddressSpace { snapshot, modules, places: HashMap::new() };
    let mut context = UnwindContext::new();
    let deadline = Instant::now() + UNWIND_TIMEOUT;
    let threads = snapshot.threads.iter().map(|thread| {
        let (frames, end) = match &thread.copy {
            ThreadCopy::Stopped { registers, stack }
            | ThreadCopy::Uninterruptible { registers, stack } => {
                let mut walk = Walk { space: &mut space, context: &mut context, stack, deadline };
                walk.frames(*registers)
            }
            ThreadCopy::NotStopped => (Vec::new(), StackEnd::NotStopped),
        };
        make(thread, frames, end)
    });
    threads.collect()
}

fn shorten(all: Vec<CodeFrame>) -> Vec<UnwoundFrame> {
    let omitted = all.len().saturating_sub(MAX_FRAMES);
    let inner = MAX_FRAMES - KEPT_OUTER_FRAMES;
    let mut frames = Vec::with_capacity(all.len().min(MAX_FRAMES + 1));
    for (index, frame) in all.into_iter().enumerate() {
        if omitted > 0 && index == inner {
            frames.push(UnwoundFrame::Omitted(omitted));
        }
        if omitted == 0 || index < inner || index >= inner + omitted {
            frames.push(UnwoundFrame::Code(frame));
        }
    }
    frames
}

/// The mappings of one process, with the modules that were needed so far.
struct AddressSpace<'a> {
    snapshot: &'a Snapshot,
    modules: &'a mut ModuleCache,
    /// By the start address of the mapping.
    places: HashMap<u64, MappedCode>,
}

#[derive(Clone)]
enum MappedCode {
    Module(Arc<Module>),
    Region(Arc<str>),
}

impl AddressSpace<'_> {
    fn is_code(&self, address: u64) -> bool {
        maps::find(&self.snapshot.mappings, address).is_some_and(|it| it.is_executable)
    }

    fn locate(&mut self, address: u64) -> CodePlace {
        let Some(mapping) = maps::find(&self.snapshot.mappings, address) else {
            return CodePlace::Nowhere(address);
        };
        let within = address - mapping.range.start;
        let offset = mapping.file_offset.saturating_add(within);
        let code = match self.places.get(&mapping.range.start) {
            Some(code) => code.clone(),
            None => {
                let code = self.mapped_code(mapping);
                self.places.insert(mapping.range.start, code.clone());
                code
            }
        };
        match code {
            MappedCode::Module(module) => match module.elf.address_of_offset(offset) {
                Some(own) => CodePlace::Module(module, own),
                None => CodePlace::Region(Arc::clone(&module.name), offset),
            },
            MappedCode::Region(name) => {
                CodePlace::Region(name, if mapping.is_file() { offset } else { within })
            }
        }
    }

    fn mapped_code(&mut self, mapping: &Mapping) -> MappedCode {
        if mapping.range.start == self.snapshot.vdso.start && !self.snapshot.vdso.bytes.is_empty() {
            return MappedCode::Module(self.modules.vdso(&self.snapshot.vdso));
        }
        match self.modules.module(self.snapshot.live_tid, mapping) {
            Some(module) => MappedCode::Module(module),
            None => MappedCode::Region(region_name(mapping)),
        }
    }
}

fn region_name(mapping: &Mapping) -> Arc<str> {
    let name = mapping.path().rsplit('/').next().unwrap_or_default();
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    if name.is_empty() { "[anon]".into() } else { name.into() }
}

/// The state of unwinding one stack.
struct Walk<'w, 'a> {
    space: &'w mut AddressSpace<'a>,
    context: &'w mut UnwindContext<usize>,
    stack: &'w StackCopy,
    deadline: Instant,
}

impl Walk<'_, '_> {
    fn frames(&mut self, mut registers: Registers) -> (Vec<CodeFrame>, StackEnd) {
        let mut frames = Vec::new();
        let mut signal_frames = 0;
        // In the first frame, and in a frame that a signal has interrupted, `rip` is the next
        // instruction. In all other frames it is the instruction after a call, which may be the
        // last instruction of the function.
        let mut is_exact = true;
        loop {
            let address = registers.rip().wrapping_sub(u64::from(!is_exact));
            let place = self.space.locate(address);
            let is_first = frames.is_empty();
            let step = match &place {
                CodePlace::Module(module, own) => {
                    module.unwind.step(self.context, *own, &registers, self.stack)
                }
                _ => CfiStep::NotCovered,
            };
            let place = match &step {
                CfiStep::Caller(caller) if caller.was_interrupted => CodePlace::SignalReturn,
                _ => place,
            };
            let (instruction, stack_pointer) = (registers.rip(), registers.rsp());
            frames.push(CodeFrame { place, instruction, stack_pointer });
            let caller = match step {
                CfiStep::Outermost => return (frames, StackEnd::Complete),
                CfiStep::Caller(caller) => Some(caller),
                CfiStep::NotCovered => self.by_frame_pointer(&registers, is_exact),
                CfiStep::Broken => None,
            };
            let Some(caller) = caller else { return (frames, self.early_end()) };
            let next = &caller.registers;
            // A signal may have interrupted a call of address 0.
            if next.rip() == 0 && !caller.was_interrupted {
                return (frames, StackEnd::Complete);
            }
            signal_frames += usize::from(caller.was_interrupted);
            // Stacks grow down, so callers have higher stack pointers. Only a signal may switch to
            // another stack.
            let is_further = match is_first {
                true => next.rsp() >= registers.rsp() && *next != registers,
                false => next.rsp() > registers.rsp(),
            };
            if !(is_further || caller.was_interrupted && signal_frames <= MAX_SIGNAL_FRAMES)
                || !caller.was_interrupted && !self.space.is_code(next.rip().wrapping_sub(1))
            {
                return (frames, self.early_end());
            }
            if frames.len() >= MAX_STEPS || Instant::now() >= self.deadline {
                return (frames, StackEnd::Truncated);
            }
            is_exact = caller.was_interrupted;
            registers = caller.registers;
        }
    }

    fn early_end(&self) -> StackEnd {
        if self.stack.is_truncated { StackEnd::Truncated } else { StackEnd::Broken }
    }

    /// Finds the caller of a function without tables. This can be compiled code that keeps frame
    /// pointers, a jump to an address without code, or a function that has not yet used the stack.
    fn by_frame_pointer(&self, registers: &Registers, is_exact: bool) -> Option<CallerFrame> {
        let chain =
            registers.get(RBP).filter(|frame| *frame >= registers.rsp()).and_then(|frame| {
                let mut caller =
                    Registers::new(self.stack.word(frame.checked_add(8)?)?, frame.checked_add(16)?);
                caller.set(RBP, self.stack.word(frame)?);
                Some(caller)
            });
        let just_called = || {
            let rsp = registers.rsp();
            let mut caller = Registers::new(self.stack.word(rsp)?, rsp.checked_add(8)?);
            if let Some(frame) = registers.get(RBP) {
                caller.set(RBP, frame);
            }
            Some(caller)
        };
        let is_usable = |caller: &Registers| self.space.is_code(caller.rip().wrapping_sub(1));
        let is_at_start = is_exact && !self.space.is_code(registers.rip());
        let caller = match is_at_start {
            true => just_called().filter(is_usable).or(chain),
            false => chain
                .filter(|it| it.rip() == 0 || is_usable(it))
                .or_else(|| just_called().filter(|caller| is_exact && is_usable(caller))),
        };
        caller.map(|registers| CallerFrame { registers, was_interrupted: false })
    }
}
