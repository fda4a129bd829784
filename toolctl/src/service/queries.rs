//! The data that queries return about a process, its threads, and the files of the job. This module
//! does not change the process.

use std::path::PathBuf;

use score_proto::ids::{JobHostId, ProcessIndex};
use score_stacks::capture::Snapshot;
use score_stacks::memory::ProcessMemory;
use score_stacks::module::ModuleCache;
use score_stacks::unwind;
use score_toolctl::tracer::process_data::{self, ThreadState as KernelState};
use score_toolctl::tracer::{self, Linux, Pid, ThreadSnapshot, Tid, Tracer, procfs};
use score_tools::wire::{
    AuxVector, AuxVectorHead, COMMUNICATION_THREAD, CommandAnswer, CommandCode, FileRange,
    FileStatPath, FrameEntry, ProcessData, ThreadData, ThreadDataHead, ThreadEntry, ThreadList,
    ThreadListHead, ThreadState, ToolState,
};

use super::ids::IdTranslator;
use super::work::Outcome;
use super::{convert, files, stacks};

/// The most threads in an answer of Get Thread List.
const MAX_LISTED_THREADS: usize = 8_000;

/// The threads of a process.
pub fn thread_list(pid: Pid, tracer: &Tracer<Linux>, ids: &mut IdTranslator) -> Outcome {
    let tids = tracer.threads(pid);
    let outside = ids.threads_outside(pid, &tids);
    let entry = |(inside, outside): &(Tid, Tid)| ThreadEntry {
        tid: outside.cast_unsigned(),
        flags: match procfs::is_communication_thread(pid, *inside) {
            true => COMMUNICATION_THREAD,
            false => 0,
        },
    };
    let list: Vec<ThreadEntry> = outside.iter().take(MAX_LISTED_THREADS).map(entry).collect();
    let code = match list.len() == outside.len() {
        true => CommandCode::Success,
        false => CommandCode::AllocationError,
    };
    let list = ThreadList { head: ThreadListHead {}, list };
    Outcome::Done(code, Some(CommandAnswer::GetThreadList(list)))
}

/// The auxiliary vector of a process.
pub fn auxiliary_vector(pid: Pid) -> Result<Option<CommandAnswer<'static>>, CommandCode> {
    let list = procfs::auxiliary_vector(pid).ok_or(CommandCode::ProcessExiting)?;
    Ok(Some(CommandAnswer::GetAuxVectors(AuxVector { head: AuxVectorHead {}, list })))
}

/// Answers queries. Caches information about programs for later queries.
#[derive(Default)]
pub struct Queries {
    /// The number of this host in the job.
    host: JobHostId,
    /// The job's directory.
    directory: PathBuf,
    modules: ModuleCache,
}

impl Queries {
    /// Sets the number of this host in the job, and the job's directory.
    pub fn set_job(&mut self, host: JobHostId, directory: PathBuf) {
        (self.host, self.directory) = (host, directory);
    }

    /// The names of the files in the job's directory.
    pub fn file_names(&self) -> Outcome {
        let (code, names) = files::names(&self.directory);
        Outcome::Done(code, Some(CommandAnswer::GetFileNames(names)))
    }

    /// The attributes of a file in the job's directory.
    pub fn file_stat(
        &self,
        file: &FileStatPath,
    ) -> Result<Option<CommandAnswer<'static>>, CommandCode> {
        let stat = files::stat(&self.directory, &file.path)?;
        Ok(Some(CommandAnswer::GetFileStat(stat)))
    }

    /// A part of a file in the job's directory.
    pub fn file_contents(
        &self,
        range: &FileRange,
    ) -> Result<Option<CommandAnswer<'static>>, CommandCode> {
        let contents = files::contents(&self.directory, &range.path, range.offset, range.number)?;
        Ok(Some(CommandAnswer::GetFileContents(contents)))
    }

    /// The data of a process. `number` is its number among the processes of its element on this
    /// host. `ns` is the time for which the job has been running.
    pub fn process_data(
        &self,
        (rank, number): (u32, ProcessIndex),
        pid: Pid,
        ns: u64,
        ids: &mut IdTranslator,
    ) -> Result<CommandAnswer<'static>, CommandCode> {
        let data = process_data::process_data(pid).map_err(convert::code_of)?;
        let outside = ids.process_outside(pid).ok_or(CommandCode::ProcessExiting)?;
        let pair = |(start, end): (u64, u64)| [start, end];
        Ok(CommandAnswer::GetProcessData(ProcessData {
            rank,
            tgid: outside.cast_unsigned(),
            coordinates: [self.host.0, 0, 0, 0, 0, number.0],
            shared_memory: pair(data.shared),
            persistent_memory: [0; 2],
            heap: pair(data.heap),
            heap_break: data.heap_break,
            mappings: pair(data.mapped),
            job_seconds: (ns / 1_000_000_000).cast_signed(),
            job_microseconds: (ns % 1_000_000_000 / 1000).cast_signed(),
        }))
    }

    /// The data of a thread, with its trace-back if it has been captured. `is_suspended` states
    /// whether the authority has suspended the process. The tracer stops threads earlier: as soon
    /// as a thread has caused a notice. Continue Process is possible only from the notice on.
    pub fn thread_data(
        &mut self,
        (pid, tid): (Pid, Tid),
        is_suspended: bool,
        threads: &[ThreadSnapshot],
        tracer: &Tracer<Linux>,
    ) -> Result<CommandAnswer<'static>, CommandCode> {
        let registers = threads.first().and_then(|thread| thread.registers);
        let stack_pointer = registers.map(|registers| registers.rsp);
        let data = process_data::thread_data(pid, tid, stack_pointer).map_err(convert::code_of)?;
        let tracer_state = tracer.tool_state(pid, tid).map_err(convert::code_of)?;
        let is_held =
            matches!(tracer_state, tracer::ToolState::Hold | tracer::ToolState::HoldSuspend);
        let registers = registers.map(|registers| (tid, stacks::registers_of(&registers)));
        let snapshot = registers
            .and_then(|thread| Snapshot::of_held(pid, &[thread], &ProcessMemory::new(pid)).ok());
        let trace_backs =
            snapshot.map(|snapshot| unwind::trace_backs(&snapshot, &mut self.modules));
        let frames = trace_backs.into_iter().flatten().flatten();
        let signed = |number: u32| number.cast_signed();
        let pair = |(start, end): (u64, u64)| [start, end];
        let head = ThreadDataHead {
            core: signed(data.core),
            core_thread: signed(data.thread_in_core),
            state: match data.state {
                KernelState::Run => ThreadState::Run,
                KernelState::Sleep => ThreadState::Sleep,
                KernelState::FutexWait => ThreadState::FutexWait,
            },
            tool_state: match (is_held, is_suspended) {
                (false, false) => ToolState::Active,
                (true, false) => ToolState::Hold,
                (false, true) => ToolState::Suspend,
                (true, true) => ToolState::HoldSuspend,
            },
            speculative_state: 0,
            guard: pair(data.guard),
            stack_start: data.stack_start,
            stack_current: data.stack_pointer,
        };
        let list = frames.map(|frame| FrameEntry {
            frame: frame.frame_address,
            return_address: frame.return_address,
        });
        Ok(CommandAnswer::GetThreadData(ThreadData { head, list: list.collect() }))
    }
}
