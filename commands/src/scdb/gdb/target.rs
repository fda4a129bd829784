//! Implements the target interface of the crate gdbstub for a rank.

use gdbstub::common::{Endianness, Pid, Signal, Tid};
use gdbstub::target::ext::auxv::{Auxv, AuxvOps};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume,
    MultiThreadResumeOps, MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps,
    MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{
    SingleRegisterAccess, SingleRegisterAccessOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::exec_file::{ExecFile, ExecFileOps};
use gdbstub::target::ext::extended_mode::{
    Args, AttachKind, CurrentActivePid, CurrentActivePidOps, ExtendedMode, ExtendedModeOps,
    ShouldTerminate,
};
use gdbstub::target::ext::host_info::{HostInfo, HostInfoOps, HostInfoResponse};
use gdbstub::target::ext::host_io::{
    FsKind, HostIo, HostIoClose, HostIoCloseOps, HostIoErrno, HostIoError, HostIoFstat,
    HostIoFstatOps, HostIoOpen, HostIoOpenFlags, HostIoOpenMode, HostIoOpenOps, HostIoOps,
    HostIoPread, HostIoPreadOps, HostIoReadlink, HostIoReadlinkOps, HostIoResult, HostIoSetfs,
    HostIoSetfsOps, HostIoStat,
};
use gdbstub::target::ext::process_info::{ProcessInfo, ProcessInfoOps, ProcessInfoResponse};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use score_tools::wire::{CommandCode, ReturnCode, SpecialRegister};

use super::debug_registers::Watch;
use super::files::RankFiles;
use super::rank::{Rank, RankError, RankResult};
use super::registers::{RegisterBytes, RegisterMap, RegisterNumber, X86};
use super::run_control::{RunControl, ThreadAction, is_exit};
use super::thread_local::{LoadedProcess, ThreadLocalLayout, ThreadLocalQuestion};

/// The target triple of GNU/Linux, for debuggers that request it.
const TRIPLE: &str = "x86_64-pc-linux-gnu";

/// A rank as a target; see the [module](self).
#[derive(Debug)]
pub struct RankTarget {
    /// Controls how the rank runs.
    pub run: RunControl,
    map: RegisterMap,
    /// The process id outside of the job.
    process: u32,
    auxiliary_vector: Vec<u8>,
    files: RankFiles,
    /// The layout for thread-local variables, after the first question.
    thread_local_layout: Option<ThreadLocalLayout>,
}

/// The memory and the files of a rank.
struct RankImage<'a> {
    rank: &'a mut Rank,
    files: &'a mut RankFiles,
}

impl LoadedProcess for RankImage<'_> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> RankResult<()> {
        match self.rank.read_memory(address, bytes)? == bytes.len() {
            true => Ok(()),
            false => Err(RankError::Command(CommandCode::AddressError)),
        }
    }

    fn symbol(&mut self, path: &[u8], name: &str) -> Option<u64> {
        self.files.symbol(path, name)
    }
}

impl RankTarget {
    /// Stops a rank.
    ///
    /// # Errors
    /// An error of the service, for example because the rank has ended.
    pub fn stop(mut rank: Rank) -> RankResult<Self> {
        rank.suspend()?;
        rank.wait_until_all_stand()?;
        Self::look(rank)
    }

    /// Takes a rank without stopping it.
    ///
    /// # Errors
    /// The errors of [`RankTarget::stop`].
    pub fn look(mut rank: Rank) -> RankResult<Self> {
        let process = rank.process()?;
        Ok(Self {
            map: RegisterMap::new(rank.state_components(process)?),
            auxiliary_vector: rank.auxiliary_vector()?,
            process,
            files: RankFiles::new(rank.service().clone()),
            run: RunControl::new(rank),
            thread_local_layout: None,
        })
    }

    /// The address of a thread-local variable. `None` if the thread has no such variable.
    ///
    /// # Errors
    /// An error of the service.
    pub fn thread_local_address(
        &mut self,
        question: ThreadLocalQuestion,
    ) -> RankResult<Option<u64>> {
        match self.find_thread_local(question) {
            // A structure is not in memory, or the thread or the rank has ended.
            Err(RankError::Command(_)) => Ok(None),
            Err(error) if is_exit(&error) => Ok(None),
            result => result,
        }
    }

    fn find_thread_local(&mut self, question: ThreadLocalQuestion) -> RankResult<Option<u64>> {
        let state = self.run.rank.registers(question.thread)?;
        let thread_pointer = state.special[SpecialRegister::FsBase as usize];
        let mut image = RankImage { rank: &mut self.run.rank, files: &mut self.files };
        let layout = match self.thread_local_layout {
            Some(layout) => layout,
            None => match ThreadLocalLayout::find(&mut image, question.link_map())? {
                Some(layout) => *self.thread_local_layout.insert(layout),
                None => return Ok(None),
            },
        };
        layout.address(&mut image, thread_pointer, question)
    }
}

/// Converts the error of a command to the errno value that the debugger gets.
fn refused(error: RankError) -> TargetError<RankError> {
    let errno = match &error {
        error if is_exit(error) => libc::ESRCH,
        RankError::Command(CommandCode::AddressError) => libc::EFAULT,
        RankError::Command(CommandCode::ThreadInvalid) => libc::ESRCH,
        RankError::Command(CommandCode::HardwareUnavailable) => libc::ENOSPC,
        RankError::Command(CommandCode::Timeout) => libc::EAGAIN,
        RankError::Command(_) => libc::EINVAL,
        RankError::Message(ReturnCode::ToolControlRequired) => libc::EPERM,
        _ => return TargetError::Fatal(error),
    };
    TargetError::Errno(errno as u8)
}

fn number_of(tid: Tid) -> u32 {
    tid.get() as u32
}

/// Copies a part of a text into a buffer, which may be shorter. Returns the number of bytes.
fn part(text: &[u8], offset: u64, length: usize, buffer: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or(&[]);
    let length = rest.len().min(length).min(buffer.len());
    buffer[..length].copy_from_slice(&rest[..length]);
    length
}

impl Target for RankTarget {
    type Arch = X86;
    type Error = RankError;

    fn base_ops(&mut self) -> BaseOps<'_, X86, RankError> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }

    fn support_extended_mode(&mut self) -> Option<ExtendedModeOps<'_, Self>> {
        Some(self)
    }

    fn support_host_io(&mut self) -> Option<HostIoOps<'_, Self>> {
        Some(self)
    }

    fn support_host_info(&mut self) -> Option<HostInfoOps<'_, Self>> {
        Some(self)
    }

    fn support_process_info(&mut self) -> Option<ProcessInfoOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for RankTarget {
    fn read_registers(
        &mut self,
        registers: &mut RegisterBytes,
        tid: Tid,
    ) -> TargetResult<(), Self> {
        let state = self.run.rank.registers(number_of(tid)).map_err(refused)?;
        registers.0 = self.map.pack(&state);
        Ok(())
    }

    fn write_registers(&mut self, registers: &RegisterBytes, tid: Tid) -> TargetResult<(), Self> {
        let before = self.run.rank.registers(number_of(tid)).map_err(refused)?;
        let mut after = before.clone();
        if !self.map.unpack(&registers.0, &mut after) {
            return Err(TargetError::NonFatal);
        }
        self.run.rank.set_registers(number_of(tid), &before, &after).map_err(refused)
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, address: u64, bytes: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        self.run.rank.read_memory(address, bytes).map_err(refused)
    }

    fn write_addrs(&mut self, address: u64, bytes: &[u8], _: Tid) -> TargetResult<(), Self> {
        self.run.rank.write_memory(address, bytes).map_err(refused)
    }

    fn list_active_threads(&mut self, is_active: &mut dyn FnMut(Tid)) -> Result<(), RankError> {
        match self.run.rank.threads() {
            Ok(threads) => {
                let tids = threads.into_iter().filter_map(|thread| Tid::new(thread as usize));
                tids.for_each(is_active);
                Ok(())
            }
            Err(error) if is_exit(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<Tid> for RankTarget {
    fn read_register(
        &mut self,
        tid: Tid,
        RegisterNumber(number): RegisterNumber,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let state = self.run.rank.registers(number_of(tid)).map_err(refused)?;
        let value = self.map.value(number, &state).ok_or(TargetError::NonFatal)?;
        Ok(part(&value, 0, value.len(), buffer))
    }

    fn write_register(
        &mut self,
        tid: Tid,
        RegisterNumber(number): RegisterNumber,
        value: &[u8],
    ) -> TargetResult<(), Self> {
        let before = self.run.rank.registers(number_of(tid)).map_err(refused)?;
        let mut after = before.clone();
        if !self.map.set(number, value, &mut after) {
            return Err(TargetError::NonFatal);
        }
        self.run.rank.set_registers(number_of(tid), &before, &after).map_err(refused)
    }
}

impl MultiThreadResume for RankTarget {
    fn resume(&mut self) -> Result<(), RankError> {
        self.run.resume()
    }

    fn clear_resume_actions(&mut self) -> Result<(), RankError> {
        self.run.clear_plan();
        Ok(())
    }

    fn set_resume_action_continue(
        &mut self,
        tid: Tid,
        signal: Option<Signal>,
    ) -> Result<(), RankError> {
        self.run.plan(number_of(tid), ThreadAction::Continue, signal);
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for RankTarget {
    fn set_resume_action_step(
        &mut self,
        tid: Tid,
        signal: Option<Signal>,
    ) -> Result<(), RankError> {
        self.run.plan(number_of(tid), ThreadAction::Step, signal);
        Ok(())
    }
}

impl MultiThreadRangeStepping for RankTarget {
    fn set_resume_action_range_step(
        &mut self,
        tid: Tid,
        start: u64,
        end: u64,
    ) -> Result<(), RankError> {
        self.run.plan(number_of(tid), ThreadAction::StepWithin(start, end), None);
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for RankTarget {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), RankError> {
        self.run.lock_others();
        Ok(())
    }
}

impl Breakpoints for RankTarget {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for RankTarget {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.run.add_breakpoint(address).map(|()| true).map_err(refused)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.run.remove_breakpoint(address).map_err(refused)
    }
}

impl HwBreakpoint for RankTarget {
    fn add_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.run.registers.add_breakpoint(&mut self.run.rank, address).map_err(refused)
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        self.run.registers.remove_breakpoint(&mut self.run.rank, address).map_err(refused)
    }
}

impl HwWatchpoint for RankTarget {
    fn add_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let watch = Watch { address, length, kind };
        self.run.registers.add_watch(&mut self.run.rank, watch).map_err(refused)
    }

    fn remove_hw_watchpoint(
        &mut self,
        address: u64,
        length: u64,
        kind: WatchKind,
    ) -> TargetResult<bool, Self> {
        let watch = Watch { address, length, kind };
        self.run.registers.remove_watch(&mut self.run.rank, watch).map_err(refused)
    }
}

/// Lets a debugger query the process id. It can neither start a process nor attach to another one.
impl ExtendedMode for RankTarget {
    fn run(&mut self, _: Option<&[u8]>, _: Args<'_, '_>) -> TargetResult<Pid, Self> {
        Err(TargetError::NonFatal)
    }

    fn attach(&mut self, process: Pid) -> TargetResult<(), Self> {
        match process.get() == self.process as usize {
            true => Ok(()),
            false => Err(TargetError::NonFatal),
        }
    }

    fn query_if_attached(&mut self, _: Pid) -> TargetResult<AttachKind, Self> {
        Ok(AttachKind::Attach)
    }

    fn kill(&mut self, _: Option<Pid>) -> TargetResult<ShouldTerminate, Self> {
        match self.run.rank.kill(libc::SIGKILL) {
            Err(error) if !is_exit(&error) => Err(refused(error)),
            _ => Ok(ShouldTerminate::Yes),
        }
    }

    fn restart(&mut self) -> Result<(), RankError> {
        Ok(())
    }

    fn support_current_active_pid(&mut self) -> Option<CurrentActivePidOps<'_, Self>> {
        Some(self)
    }
}

impl CurrentActivePid for RankTarget {
    fn current_active_pid(&mut self) -> Result<Pid, RankError> {
        Ok(Pid::new(self.process as usize).unwrap_or(Pid::MIN))
    }
}

impl TargetDescriptionXmlOverride for RankTarget {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        match annex {
            b"target.xml" => Ok(part(self.map.description().as_bytes(), offset, length, buffer)),
            _ => Err(TargetError::Errno(libc::ENOENT as u8)),
        }
    }
}

impl Auxv for RankTarget {
    fn get_auxv(&self, offset: u64, length: usize, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(&self.auxiliary_vector, offset, length, buffer))
    }
}

impl ExecFile for RankTarget {
    fn get_exec_file(
        &self,
        _: Option<Pid>,
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let program = self.files.program().map_err(|_| TargetError::Errno(libc::ESRCH as u8))?;
        Ok(part(&program, offset, length, buffer))
    }
}

impl ThreadExtraInfo for RankTarget {
    fn thread_extra_info(&self, tid: Tid, buffer: &mut [u8]) -> Result<usize, RankError> {
        let name = self.files.thread_name(number_of(tid));
        Ok(part(&name, 0, name.len(), buffer))
    }
}

impl HostInfo for RankTarget {
    fn host_info(&self, write: &mut dyn FnMut(&HostInfoResponse<'_>)) -> Result<(), RankError> {
        write(&HostInfoResponse::Triple(TRIPLE));
        write(&HostInfoResponse::Endianness(Endianness::Little));
        write(&HostInfoResponse::PointerSize(size_of::<u64>()));
        Ok(())
    }
}

impl ProcessInfo for RankTarget {
    fn process_info(
        &self,
        write: &mut dyn FnMut(&ProcessInfoResponse<'_>),
    ) -> Result<(), RankError> {
        // The process id is not reported here: gdbstub writes it as decimal digits, and lldb reads
        // them as hexadecimal ones. Without it, lldb requests the current thread instead.
        write(&ProcessInfoResponse::Triple(TRIPLE));
        write(&ProcessInfoResponse::Endianness(Endianness::Little));
        write(&ProcessInfoResponse::PointerSize(size_of::<u64>()));
        Ok(())
    }
}

impl HostIo for RankTarget {
    fn support_open(&mut self) -> Option<HostIoOpenOps<'_, Self>> {
        Some(self)
    }

    fn support_close(&mut self) -> Option<HostIoCloseOps<'_, Self>> {
        Some(self)
    }

    fn support_pread(&mut self) -> Option<HostIoPreadOps<'_, Self>> {
        Some(self)
    }

    fn support_fstat(&mut self) -> Option<HostIoFstatOps<'_, Self>> {
        Some(self)
    }

    fn support_readlink(&mut self) -> Option<HostIoReadlinkOps<'_, Self>> {
        Some(self)
    }

    fn support_setfs(&mut self) -> Option<HostIoSetfsOps<'_, Self>> {
        Some(self)
    }
}

impl HostIoOpen for RankTarget {
    fn open(
        &mut self,
        name: &[u8],
        flags: HostIoOpenFlags,
        _: HostIoOpenMode,
    ) -> HostIoResult<u32, Self> {
        let writing =
            HostIoOpenFlags::O_WRONLY | HostIoOpenFlags::O_RDWR | HostIoOpenFlags::O_CREAT;
        if flags.intersects(writing) {
            return Err(HostIoError::Errno(HostIoErrno::EROFS));
        }
        self.files.open(name).map_err(HostIoError::Errno)
    }
}

impl HostIoClose for RankTarget {
    fn close(&mut self, number: u32) -> HostIoResult<(), Self> {
        self.files.close(number).map_err(HostIoError::Errno)
    }
}

impl HostIoPread for RankTarget {
    fn pread(
        &mut self,
        number: u32,
        count: usize,
        offset: u64,
        buffer: &mut [u8],
    ) -> HostIoResult<usize, Self> {
        let length = count.min(buffer.len());
        self.files.read(number, offset, &mut buffer[..length]).map_err(HostIoError::Errno)
    }
}

impl HostIoFstat for RankTarget {
    fn fstat(&mut self, number: u32) -> HostIoResult<HostIoStat, Self> {
        self.files.attributes(number).map_err(HostIoError::Errno)
    }
}

impl HostIoReadlink for RankTarget {
    fn readlink(&mut self, name: &[u8], buffer: &mut [u8]) -> HostIoResult<usize, Self> {
        let target = self.files.link(name).map_err(HostIoError::Errno)?;
        Ok(part(&target, 0, target.len(), buffer))
    }
}

impl HostIoSetfs for RankTarget {
    fn setfs(&mut self, _: FsKind) -> HostIoResult<(), Self> {
        // Files are always those of the rank.
        Ok(())
    }
}
