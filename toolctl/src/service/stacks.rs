//! The command that reads the stacks of all threads. A process that the tracer has cannot be traced
//! by anybody else: the tracer copies it.

use std::collections::BTreeMap;

use super::fault_stack::at_fault;
use score_proto::tool_command::{CommandId, MAX_TOOL_BODY, ThreadKind, ThreadStacks, ToolResult};
use score_proto::toolctl::{ToolProcess, ToolctlReport};
use score_stacks::capture::{CaptureError, Snapshot};
use score_stacks::frame::{Detail, Frame, Stack};
use score_stacks::memory::ProcessMemory;
use score_stacks::{ProcessStacks, StackReader, ThreadStack};
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{Answer, Linux, Registers, Request, Ticket, Tracer};

/// The communication threads of libpm have this name.
const COMMUNICATION_THREAD: &str = "score-pm";

/// Bytes of an answer that are not those of its stacks.
const ANSWER_OVERHEAD: usize = 64;
/// Bytes of a stack in an answer in addition to its own.
const STACK_OVERHEAD: usize = 16;

/// Which stacks a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackScope {
    /// Those of all threads.
    AllThreads {
        /// Frames have source lines.
        lines: bool,
    },
    /// That of the thread which waits after a fault, with source lines.
    AfterFault,
}

impl StackScope {
    fn detail(self) -> Detail {
        match self {
            Self::AllThreads { lines: false } => Detail::Functions,
            Self::AllThreads { lines: true } | Self::AfterFault => Detail::Lines,
        }
    }

    fn result_of(self, stacks: ProcessStacks, faulting_thread: Option<i32>) -> ToolResult {
        match self {
            Self::AllThreads { .. } => result_of(&stacks),
            Self::AfterFault => result_of(&at_fault(stacks, faulting_thread)),
        }
    }
}

/// The tracer holds a process for a command.
#[derive(Debug)]
struct HeldProcess {
    element: u32,
    id: CommandId,
    process: ToolProcess,
    scope: StackScope,
}

/// See the [module](self). What it has read of programs is kept for the next command.
#[derive(Debug, Default)]
pub struct StackCommands {
    reader: StackReader,
    held: BTreeMap<Ticket, HeldProcess>,
}

/// The registers of a thread, as unwinding knows them.
pub fn registers_of(registers: &Registers) -> score_stacks::registers::Registers {
    let r = registers;
    let mut known = score_stacks::registers::Registers::new(r.rip, r.rsp);
    // In the order of their numbers in DWARF: rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
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
    /// Begins a command. Returns the answers of processes that the tracer does not have; the others
    /// follow by [`StackCommands::on_answer`].
    pub fn begin(
        &mut self,
        (element, id): (u32, CommandId),
        processes: &[ToolProcess],
        scope: StackScope,
        tracer: &mut Tracer<Linux>,
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
            // A refusal is that of the request.
            _ = tracer.pin(pid, None);
            match tracer.request(pid, None, Request::Snapshot(0)) {
                Ok(ticket) => {
                    let held = HeldProcess { element, id, process, scope };
                    self.held.insert(ticket, held);
                }
                Err(error) => {
                    tracer.unpin(pid);
                    reports.push(answer(node, failed(&error.to_string())));
                }
            }
        }
        let pids: Vec<i32> = free.iter().map(|process| process.pid).collect();
        let results = self.reader.stacks_of(&pids, scope.detail()).into_iter();
        for (ToolProcess { node, faulting_thread, .. }, stacks) in free.into_iter().zip(results) {
            let result = match stacks {
                Ok(stacks) => scope.result_of(stacks, faulting_thread),
                // It was there when the shepherd passed the command on.
                Err(CaptureError::NoSuchProcess { .. } | CaptureError::Exited { .. }) => {
                    failed("it has ended")
                }
                Err(error) => failed(&error.to_string()),
            };
            reports.push(answer(node, result));
        }
        reports
    }

    /// The tracer has answered a request. `None`: it was none of these.
    pub fn on_answer(
        &mut self,
        ticket: Ticket,
        answer: &Result<Answer, TraceError>,
        tracer: &mut Tracer<Linux>,
    ) -> Option<ToolctlReport> {
        let HeldProcess { element, id, process, scope } = self.held.remove(&ticket)?;
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
            Ok(_) => Err("the tracer has given another answer".to_owned()),
            Err(TraceError::NoProcess(_)) => Err("it has ended".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // Nothing is unwound or named while the process stands still.
        tracer.unpin(pid);
        let result = match snapshot {
            Ok(snapshot) => {
                let stacks = self.reader.stacks_in(&snapshot, scope.detail());
                scope.result_of(stacks, faulting_thread)
            }
            Err(reason) => failed(&reason),
        };
        Some(ToolctlReport::Answer { element, id, node, body: result.encode() })
    }
}

/// Equal stacks once; as many as fit into an answer.
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

/// A stack that is too long is sent without its frames.
fn encoded(thread: &ThreadStack) -> Vec<u8> {
    thread.stack.encode().unwrap_or_else(|_| {
        let left_out = thread.stack.frames.len() as u64;
        Stack { frames: vec![Frame::Omitted(left_out)] }.encode().unwrap_or_default()
    })
}
