//! The commands that read stacks. A process that the tracer has seized cannot be traced by another
//! process, so the tracer itself copies its stacks.

use std::collections::{BTreeMap, HashMap};

use super::fault_stack::at_fault;
use super::ids::IdTranslator;
use score_proto::ids::ElementIndex;
use score_proto::tool_command::{
    CommandId, MAX_TOOL_BODY, ThreadDetail, ThreadInfo, ThreadKind, ThreadStacks, ThreadState,
    ToolResult,
};
use score_proto::toolctl::{ToolProcess, ToolctlReport};
use score_stacks::capture::{CaptureError, Snapshot};
use score_stacks::frame::{Detail, Frame, Stack};
use score_stacks::memory::ProcessMemory;
use score_stacks::{ProcessStacks, StackReader, ThreadStack};
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{
    Answer, Linux, Pid, Pin, Registers, Request, Ticket, Tid, ToolState, Tracer, procfs,
};

/// The name of libpm's communication threads.
const COMMUNICATION_THREAD: &str = "score-pm";

/// The bytes of an answer in addition to its stacks.
const ANSWER_OVERHEAD: usize = 64;
/// The bytes of a stack in an answer in addition to its encoding.
const STACK_OVERHEAD: usize = 16;

/// The stacks that a command requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackScope {
    /// The stacks of all threads.
    AllThreads {
        /// Whether frames have source lines.
        lines: bool,
    },
    /// The stack of the thread that waits after a fault, with source lines.
    AfterFault,
    /// Each thread separately.
    Threads(ThreadDetail),
}

/// The state of threads before they are stopped for reading.
#[derive(Debug, Default)]
struct ThreadsBefore {
    /// The states of the threads, if they are requested.
    states: HashMap<Tid, ThreadState>,
    /// The thread that has stopped the process for a tool.
    stopped: Option<Tid>,
}

impl StackScope {
    fn detail(self) -> Detail {
        match self {
            Self::AllThreads { lines: false } => Detail::Functions,
            Self::Threads(ThreadDetail::TopFrames) => Detail::Functions,
            Self::AllThreads { lines: true } | Self::AfterFault | Self::Threads(_) => Detail::Lines,
        }
    }

    fn look_before(self, pid: Pid, tracer: &Tracer<Linux>) -> ThreadsBefore {
        let states = match self {
            Self::Threads(ThreadDetail::TopFrames) => thread_states(pid, tracer),
            _ => HashMap::new(),
        };
        let stopped = tracer.is_suspended(pid).then(|| tracer.default_thread(pid).ok()).flatten();
        ThreadsBefore { states, stopped }
    }

    fn result_of(
        self,
        stacks: ProcessStacks,
        faulting_thread: Option<i32>,
        before: &ThreadsBefore,
    ) -> ToolResult {
        match self {
            Self::Threads(detail) => threads_result(stacks, detail, before),
            Self::AllThreads { .. } => result_of(&stacks),
            Self::AfterFault => result_of(&at_fault(stacks, faulting_thread)),
        }
    }
}

/// A process that the tracer keeps stopped for a command.
#[derive(Debug)]
struct HeldProcess {
    element: ElementIndex,
    id: CommandId,
    process: ToolProcess,
    scope: StackScope,
    before: ThreadsBefore,
    pin: Option<Pin>,
}

/// See the [module](self). Caches information about programs for later commands.
#[derive(Debug, Default)]
pub struct StackCommands {
    reader: StackReader,
    held: BTreeMap<Ticket, HeldProcess>,
}

/// The registers of a thread, in the form that the unwinder uses.
pub fn registers_of(registers: &Registers) -> score_stacks::registers::Registers {
    let r = registers;
    let mut known = score_stacks::registers::Registers::new(r.rip, r.rsp);
    // In the order of the DWARF numbers: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    let values = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    (0..).zip(values).for_each(|(number, value)| known.set(number, value));
    known
}

fn failed(reason: &str) -> ToolResult {
    ToolResult::Failed(reason.to_owned())
}

impl StackCommands {
    /// Starts a command. Returns the answers for processes that the tracer has not seized, and for
    /// failed requests. [`StackCommands::on_answer`] returns the other answers later.
    pub fn begin(
        &mut self,
        (element, id): (ElementIndex, CommandId),
        processes: &[ToolProcess],
        scope: StackScope,
        tracer: &mut Tracer<Linux>,
        ids: &mut IdTranslator,
    ) -> Vec<ToolctlReport> {
        let answer = |node, result: ToolResult| ToolctlReport::Answer {
            element,
            id,
            node,
            body: result.encode(),
        };
        let mut reports = Vec::new();
        let (traced, free): (Vec<ToolProcess>, Vec<ToolProcess>) =
            processes.iter().partition(|process| !tracer.has_no_trace_of(process.pid));
        for process in traced {
            let ToolProcess { node, pid, .. } = process;
            let before = scope.look_before(pid, tracer);
            // An error here also makes the request fail.
            let pin = tracer.pin(pid, None).ok();
            match tracer.request(pid, None, Request::Snapshot(0)) {
                Ok(ticket) => {
                    let held = HeldProcess { element, id, process, scope, before, pin };
                    self.held.insert(ticket, held);
                }
                Err(error) => {
                    pin.into_iter().for_each(|pin| tracer.unpin(pin));
                    reports.push(answer(node, failed(&error.to_string())));
                }
            }
        }
        let pids: Vec<i32> = free.iter().map(|process| process.pid).collect();
        let before: Vec<_> = pids.iter().map(|pid| scope.look_before(*pid, tracer)).collect();
        let results = self.reader.stacks_of(&pids, scope.detail()).into_iter().zip(before);
        for (process, (stacks, before)) in free.into_iter().zip(results) {
            let ToolProcess { node, pid, faulting_thread } = process;
            let result = match stacks {
                Ok(stacks) => scope.result_of(stacks, faulting_thread, &before),
                // The process existed when the shepherd passed the command on, so it has ended.
                Err(CaptureError::NoSuchProcess { .. } | CaptureError::Exited { .. }) => {
                    failed("it has ended")
                }
                Err(error) => failed(&ids.explain_capture(pid, error).to_string()),
            };
            reports.push(answer(node, result));
        }
        reports
    }

    /// Handles an answer of the tracer. Returns `None` if it belongs to another request.
    pub fn on_answer(
        &mut self,
        ticket: Ticket,
        answer: &Result<Answer, TraceError>,
        tracer: &mut Tracer<Linux>,
    ) -> Option<ToolctlReport> {
        let HeldProcess { element, id, process, scope, before, pin } = self.held.remove(&ticket)?;
        let ToolProcess { node, pid, faulting_thread } = process;
        let snapshot = match answer {
            Ok(Answer::Snapshot(threads)) => {
                let threads: Vec<_> = threads
                    .iter()
                    .filter_map(|it| Some((it.tid, registers_of(it.registers.as_ref()?))))
                    .collect();
                Snapshot::of_held(pid, &threads, &ProcessMemory::new(pid))
                    .map_err(|error| error.to_string())
            }
            Ok(_) => Err("unexpected answer of the tracer".to_owned()),
            Err(TraceError::NoProcess(_)) => Err("it has ended".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // Unwinding and symbol lookup happen after the process continues.
        pin.into_iter().for_each(|pin| tracer.unpin(pin));
        let result = match snapshot {
            Ok(snapshot) => {
                let stacks = self.reader.stacks_in(&snapshot, scope.detail());
                scope.result_of(stacks, faulting_thread, &before)
            }
            Err(reason) => failed(&reason),
        };
        Some(ToolctlReport::Answer { element, id, node, body: result.encode() })
    }
}

impl StackCommands {
    /// The innermost frame of a stopped thread, encoded. Empty, if it cannot be read.
    pub fn place_of(&mut self, pid: Pid, tid: Tid, registers: &Registers) -> Vec<u8> {
        let thread = (tid, registers_of(registers));
        let Ok(snapshot) = Snapshot::of_held(pid, &[thread], &ProcessMemory::new(pid)) else {
            return Vec::new();
        };
        let mut threads = self.reader.stacks_in(&snapshot, Detail::Lines).threads;
        let Some(thread) = threads.first_mut() else { return Vec::new() };
        keep_innermost(thread);
        encoded(thread)
    }
}

fn keep_innermost(thread: &mut ThreadStack) {
    let innermost = thread.stack.frames.len().saturating_sub(1);
    thread.stack.frames.drain(..innermost);
}

fn thread_states(pid: Pid, tracer: &Tracer<Linux>) -> HashMap<Tid, ThreadState> {
    let state = |tid: Tid| {
        let is_active = matches!(tracer.tool_state(pid, tid), Ok(ToolState::Active) | Err(_));
        let stat = procfs::ThreadStat::read(pid, tid)?;
        Some(match stat.state {
            _ if !is_active => ThreadState::Held,
            b'S' | b'I' => ThreadState::Sleeping,
            b'D' => ThreadState::Uninterruptible,
            b'T' => ThreadState::Stopped,
            _ => ThreadState::Running,
        })
    };
    procfs::threads(pid).into_iter().filter_map(|tid| Some((tid, state(tid)?))).collect()
}

/// The result with each thread separately, as many as fit into an answer.
fn threads_result(
    process: ProcessStacks,
    detail: ThreadDetail,
    before: &ThreadsBefore,
) -> ToolResult {
    let mut all = process.threads;
    // The first thread of a process has the id of the process.
    all.sort_by_key(|thread| (thread.tid != process.pid, thread.tid));
    let mut omitted = u32::try_from(process.omitted_threads).unwrap_or(u32::MAX);
    let mut numbered: Vec<(u32, ThreadStack)> = (1..).zip(all).collect();
    if detail == ThreadDetail::FirstStack {
        let is_stopped = |(_, thread): &(u32, ThreadStack)| before.stopped == Some(thread.tid);
        let chosen = numbered.iter().position(is_stopped).unwrap_or(0);
        numbered.drain(..chosen);
        numbered.truncate(1);
        omitted = 0;
    }
    let (mut threads, mut len) = (Vec::new(), ANSWER_OVERHEAD);
    for (number, mut thread) in numbered {
        if detail == ThreadDetail::TopFrames {
            keep_innermost(&mut thread);
        }
        let stack = encoded(&thread);
        let name: String = thread.name.chars().filter(|letter| !letter.is_control()).collect();
        len += stack.len() + name.len() + STACK_OVERHEAD;
        if len > MAX_TOOL_BODY {
            omitted = omitted.saturating_add(1);
            continue;
        }
        let state = match detail {
            ThreadDetail::TopFrames if thread.is_uninterruptible => {
                Some(ThreadState::Uninterruptible)
            }
            // A thread whose state is not known has started meanwhile.
            ThreadDetail::TopFrames => {
                Some(before.states.get(&thread.tid).copied().unwrap_or(ThreadState::Running))
            }
            ThreadDetail::FirstStack | ThreadDetail::AllStacks => None,
        };
        threads.push(ThreadInfo { number, name, state, stack });
    }
    ToolResult::Threads { threads, omitted }
}

/// The result with each distinct stack once, as many as fit into an answer.
fn result_of(process: &ProcessStacks) -> ToolResult {
    let mut counts: BTreeMap<(ThreadKind, Vec<u8>), u32> = BTreeMap::new();
    for thread in &process.threads {
        let kind = match thread.name.as_str() {
            COMMUNICATION_THREAD => ThreadKind::Communication,
            _ => ThreadKind::Program,
        };
        *counts.entry((kind, encoded(thread))).or_default() += 1;
    }
    let mut omitted = u32::try_from(process.omitted_threads).unwrap_or(u32::MAX);
    let (mut stacks, mut len) = (Vec::new(), ANSWER_OVERHEAD);
    for ((kind, stack), threads) in counts {
        len += stack.len() + STACK_OVERHEAD;
        if len <= MAX_TOOL_BODY {
            stacks.push(ThreadStacks { kind, stack, threads });
        } else {
            omitted = omitted.saturating_add(threads);
        }
    }
    ToolResult::Stacks { stacks, omitted }
}

/// Encodes a stack. A stack that is too long is replaced by the number of its frames.
fn encoded(thread: &ThreadStack) -> Vec<u8> {
    thread.stack.encode().unwrap_or_else(|_| {
        let left_out = thread.stack.frames.len() as u64;
        Stack { frames: vec![Frame::Omitted(left_out)] }.encode().unwrap_or_default()
    })
}
