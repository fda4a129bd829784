//! Lets a rank continue and stop, as a debugger requests.
//!
//! The service gives one notice at a time: it reports an event of a thread, and all threads are
//! stopped. The next notice comes when the process is continued. The debugger gets it as the next
//! stop.
//!
//! If a debugger lets only some threads continue, it gets no stops of the other threads. Their
//! stops are kept until the debugger lets these threads continue.
//!
//! While a thread makes a step, the other threads are stopped. If the step is a system call, it may
//! wait for the other threads. All threads then run until this thread reaches the instruction after
//! the system call. From time to time the other threads run while the thread is held, because the
//! thread may wait for them in a loop. The other threads stay stopped if the debugger has locked
//! them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::breakpoints::WatchKind;
use score_tools::wire::{
    CommandCode, CommandRequest, ExitNotice, NoData, Notice, ReturnCode, SignalNotice,
    SignalNumber, SignalReason, SpecialRegister,
};

use super::debug_registers::DebugRegisterUse;
use super::rank::{Rank, RankError, RankResult};
use super::signals;

/// The instruction `syscall`.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

/// Number of steps of a thread after which the other threads run once.
const STEPS_ALONE: u32 = 64;
/// The time for which the other threads run.
const OTHERS_RUN_INTERVAL: Duration = Duration::from_millis(1);

/// The reason of a stop.
pub type Stop = MultiThreadStopReason<u64>;

/// The action of a thread when the process continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadAction {
    /// Continue until the next event.
    Continue,
    /// Execute one instruction.
    Step,
    /// Execute instructions as long as the next one is in this range.
    StepWithin(u64, u64),
}

/// The current motion of the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Motion {
    /// All threads are stopped.
    Stands,
    /// The threads run.
    Runs,
    /// A thread is to make a step after the pending notices of other threads.
    StepsLater { thread: u32, range: Option<(u64, u64)> },
    /// A thread makes a step. If there is a range, further steps follow.
    Steps { thread: u32, range: Option<(u64, u64)> },
    /// The threads run until this thread reaches the address. There is a breakpoint at it.
    RunsTo { thread: u32, address: u64 },
}

/// When the rank is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopTime {
    /// When an event requires it.
    WhenSomethingHappens,
    /// At once: the next notice is a stop, even if it would not require one.
    Now,
}

/// Controls how a rank runs; see the [module](self).
#[derive(Debug)]
pub struct RunControl {
    /// The rank.
    pub rank: Rank,
    /// The addresses of the debugger's breakpoints.
    breakpoints: BTreeSet<u64>,
    /// Watchpoints and breakpoints in debug registers.
    pub registers: DebugRegisterUse,
    motion: Motion,
    stop_time: StopTime,
    /// The thread whose notice was received. It waits to be continued.
    given: Option<u32>,
    /// Threads that are held while another one runs.
    held: Vec<u32>,
    /// The next action and signal of each thread.
    plan: Vec<(u32, ThreadAction, Option<u32>)>,
    /// Whether threads without an action stay stopped.
    is_locked: bool,
    /// The threads that continue. `None` means all threads.
    moving: Option<Vec<u32>>,
    /// Stops of threads that the debugger has not continued.
    kept_stops: VecDeque<(u32, Stop)>,
    /// A notice that was received but not yet handled.
    unread: Option<Notice>,
    /// Number of steps since the other threads last ran.
    steps_alone: u32,
    /// Signals that were sent for the debugger, as (thread, signal). They are delivered without a
    /// stop.
    sent: Vec<(u32, u32)>,
}

/// Whether the process has ended or is about to end. A notice reports it.
pub fn is_exit(error: &RankError) -> bool {
    matches!(
        error,
        RankError::Command(CommandCode::ProcessExiting)
            | RankError::Message(
                ReturnCode::ToolProcessExiting
                    | ReturnCode::ToolRankNotFound
                    | ReturnCode::ProcessIdError
            )
    )
}

fn to_tid(thread: u32) -> Tid {
    // No thread has the number 0.
    Tid::new(thread as usize).unwrap_or(Tid::MIN)
}

impl RunControl {
    /// Controls a rank. The caller makes sure that the rank is stopped when the debugger needs it.
    pub fn new(rank: Rank) -> Self {
        Self {
            rank,
            breakpoints: BTreeSet::new(),
            registers: DebugRegisterUse::default(),
            motion: Motion::Stands,
            stop_time: StopTime::WhenSomethingHappens,
            given: None,
            held: Vec::new(),
            plan: Vec::new(),
            is_locked: false,
            moving: None,
            kept_stops: VecDeque::new(),
            unread: None,
            steps_alone: 0,
            sent: Vec::new(),
        }
    }

    /// Sets a breakpoint.
    pub fn add_breakpoint(&mut self, address: u64) -> RankResult<()> {
        self.rank.set_breakpoint(address)?;
        self.breakpoints.insert(address);
        Ok(())
    }

    /// Removes a breakpoint. Returns false if there is none.
    pub fn remove_breakpoint(&mut self, address: u64) -> RankResult<bool> {
        if !self.breakpoints.remove(&address) {
            return Ok(false);
        }
        match self.rank.reset_breakpoint(address) {
            // The program has been replaced, or has unmapped the memory.
            Err(RankError::Command(CommandCode::BreakpointFailed | CommandCode::AddressError)) => {}
            result => result?,
        }
        Ok(true)
    }

    /// Begins a new plan, in which all threads continue.
    pub fn clear_plan(&mut self) {
        self.plan.clear();
        self.is_locked = false;
    }

    /// Adds the action of a thread to the plan, and the signal to deliver to it.
    pub fn plan(&mut self, thread: u32, action: ThreadAction, signal: Option<Signal>) {
        self.plan.push((thread, action, signal.and_then(signals::from_gdb)));
    }

    /// Keeps threads without an action stopped.
    pub fn lock_others(&mut self) {
        self.is_locked = true;
    }

    /// Lets the rank continue as planned.
    pub fn resume(&mut self) -> RankResult<()> {
        match self.begin() {
            // The notice of the exit follows.
            Err(error) if is_exit(&error) => {
                self.motion = Motion::Runs;
                Ok(())
            }
            result => result,
        }
    }

    fn begin(&mut self) -> RankResult<()> {
        self.motion = Motion::Runs;
        self.stop_time = StopTime::WhenSomethingHappens;
        self.registers.arm_new_threads(&mut self.rank)?;
        let plan = std::mem::take(&mut self.plan);
        self.moving = self.is_locked.then(|| plan.iter().map(|(thread, ..)| *thread).collect());
        for (thread, _, signal) in &plan {
            if let Some(signal) = signal {
                self.send_signal(*thread, *signal)?;
            }
        }
        if self.kept_stop().is_some() {
            return Ok(());
        }
        let step = plan.iter().find_map(|(thread, action, _)| match action {
            ThreadAction::Continue => None,
            ThreadAction::Step => Some((*thread, None)),
            ThreadAction::StepWithin(start, end) => Some((*thread, Some((*start, *end)))),
        });
        if let Some((thread, range)) = step {
            return self.step(thread, range);
        }
        self.hold_others()?;
        self.proceed()
    }

    /// The index of the first kept stop of a thread that is to continue.
    fn kept_stop(&self) -> Option<usize> {
        let moves =
            |thread: &u32| self.moving.as_ref().is_none_or(|moving| moving.contains(thread));
        self.kept_stops.iter().position(|(thread, _)| moves(thread))
    }

    /// Delivers a signal to a thread when it continues.
    fn send_signal(&mut self, thread: u32, signal: u32) -> RankResult<()> {
        let number = SignalNumber { signal };
        if self.given == Some(thread) {
            return self.rank.update(thread, CommandRequest::SetContinuationSignal(number));
        }
        self.sent.push((thread, signal));
        self.rank.update(thread, CommandRequest::SendSignal(number))
    }

    /// Holds the threads that are not to continue.
    fn hold_others(&mut self) -> RankResult<()> {
        let Some(moving) = &self.moving else { return Ok(()) };
        let mut others = self.rank.threads()?;
        others.retain(|thread| !moving.contains(thread));
        for thread in others {
            match self.rank.update(thread, CommandRequest::HoldThread(NoData {})) {
                Err(RankError::Command(CommandCode::ThreadInvalid)) => {}
                result => {
                    result?;
                    self.held.push(thread);
                }
            }
        }
        Ok(())
    }

    fn proceed(&mut self) -> RankResult<()> {
        self.given = None;
        self.steps_alone = 0;
        self.rank.proceed()
    }

    /// Makes a thread execute one step, or several within `range`.
    fn step(&mut self, thread: u32, range: Option<(u64, u64)>) -> RankResult<()> {
        self.steps_alone += 1;
        if self.steps_alone >= STEPS_ALONE && !self.is_locked {
            self.let_others_run(thread)?;
            // Handle the notice first, because a step would continue past it.
            if self.unread.is_some() {
                return Ok(());
            }
        }
        let special = self.rank.registers(thread)?.special;
        let instruction = special[SpecialRegister::Rip.number() as usize];
        if !self.is_locked && self.is_system_call(instruction) {
            return self.run_to(thread, instruction + SYSTEM_CALL.len() as u64);
        }
        match self.rank.update(thread, CommandRequest::StepThread(NoData {})) {
            Ok(()) => {
                self.given = None;
                self.motion = Motion::Steps { thread, range };
                Ok(())
            }
            // Another thread has a notice, which the service sends now.
            Err(RankError::Command(CommandCode::PendingNotify)) => {
                self.given = None;
                self.motion = Motion::StepsLater { thread, range };
                Ok(())
            }
            // The thread sleeps in a system call.
            Err(RankError::Command(CommandCode::ThreadInvalid)) => {
                self.hold_others()?;
                self.run_to(thread, instruction)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the other threads run for [`OTHERS_RUN_INTERVAL`].
    fn let_others_run(&mut self, thread: u32) -> RankResult<()> {
        self.rank.update(thread, CommandRequest::HoldThread(NoData {}))?;
        // If a later step fails, the thread is released at the next stop.
        self.held.push(thread);
        self.proceed()?;
        std::thread::sleep(OTHERS_RUN_INTERVAL);
        self.rank.suspend()?;
        self.rank.wait_until_all_stand()?;
        self.release_held()?;
        self.unread = self.rank.next_notice()?;
        Ok(())
    }

    fn is_system_call(&mut self, address: u64) -> bool {
        let mut bytes = [0; SYSTEM_CALL.len()];
        let is_whole = self.rank.read_memory(address, &mut bytes).is_ok_and(|it| it == bytes.len());
        is_whole && bytes == SYSTEM_CALL && !self.breakpoints.contains(&address)
    }

    fn run_to(&mut self, thread: u32, address: u64) -> RankResult<()> {
        if !self.breakpoints.contains(&address) {
            self.rank.set_breakpoint(address)?;
        }
        self.motion = Motion::RunsTo { thread, address };
        self.proceed()
    }

    /// Whether a debugger waits for a stop.
    pub fn is_running(&self) -> bool {
        self.motion != Motion::Stands
    }

    /// The reason of the next stop. `None` if the rank still runs.
    pub fn next_stop(&mut self) -> RankResult<Option<Stop>> {
        while self.is_running() {
            if let Some((_, stop)) = self.kept_stop().and_then(|it| self.kept_stops.remove(it)) {
                self.end_motion()?;
                return Ok(Some(stop));
            }
            let notice = match self.unread.take() {
                None => self.rank.next_notice()?,
                notice => notice,
            };
            let stop = match notice {
                None => return Ok(None),
                Some(Notice::Exit(ExitNotice { status })) => Some(stop_of_exit(status)),
                Some(Notice::Signal(notice)) => {
                    self.given = Some(notice.thread);
                    self.on_notice(&notice)?
                }
                Some(Notice::Control(_)) => None,
            };
            if stop.is_some() {
                self.end_motion()?;
                return Ok(stop);
            }
        }
        Ok(None)
    }

    /// Handles a notice. Returns the stop for the debugger, or `None` if the debugger gets no stop
    /// now.
    fn on_notice(&mut self, notice: &SignalNotice) -> RankResult<Option<Stop>> {
        let Some(stop) = self.stop_of(notice)? else { return Ok(None) };
        if self.moving.as_ref().is_none_or(|moving| moving.contains(&notice.thread)) {
            return Ok(Some(stop));
        }
        self.kept_stops.push_back((notice.thread, stop));
        match (self.stop_time, self.motion) {
            (StopTime::Now, _) => {}
            (_, Motion::StepsLater { thread, range }) => self.step(thread, range)?,
            _ => self.proceed()?,
        }
        Ok(None)
    }

    /// The stop that a notice causes. `None` if it causes none and the rank continues.
    fn stop_of(&mut self, notice: &SignalNotice) -> RankResult<Option<Stop>> {
        let SignalNotice { thread, instruction, access, signal, .. } = *notice;
        let tid = to_tid(thread);
        let trap = Stop::SignalWithThread { tid, signal: Signal::SIGTRAP };
        Ok(Some(match notice.reason {
            SignalReason::StepCompleted => match self.motion {
                Motion::Steps { thread: mover, range: Some((start, end)) }
                    if mover == thread
                        && (start..end).contains(&instruction)
                        && self.stop_time == StopTime::WhenSomethingHappens =>
                {
                    self.motion = Motion::Runs;
                    self.step(thread, Some((start, end)))?;
                    return Ok(None);
                }
                _ => trap,
            },
            SignalReason::Breakpoint => match self.motion {
                _ if self.breakpoints.contains(&instruction) => Stop::SwBreak(tid),
                Motion::RunsTo { thread: mover, address } if address == instruction => {
                    if mover != thread && self.stop_time == StopTime::WhenSomethingHappens {
                        self.proceed()?;
                        return Ok(None);
                    }
                    trap
                }
                _ if self.registers.has_breakpoint(instruction) => Stop::HwBreak(tid),
                // The breakpoint was removed after the thread had reached it.
                _ => Stop::SwBreak(tid),
            },
            SignalReason::ReadWatchpoint | SignalReason::WriteWatchpoint => {
                let kind = self.registers.kind_at(access).unwrap_or(WatchKind::Write);
                Stop::Watch { tid, kind, addr: access }
            }
            SignalReason::Generic => {
                if let Some(index) = self.sent.iter().position(|it| *it == (thread, signal)) {
                    self.sent.remove(index);
                    let number = SignalNumber { signal };
                    self.rank.update(thread, CommandRequest::SetContinuationSignal(number))?;
                    if self.stop_time == StopTime::WhenSomethingHappens {
                        self.proceed()?;
                        return Ok(None);
                    }
                    return Ok(Some(Stop::SignalWithThread { tid, signal: Signal::SIGINT }));
                }
                Stop::SignalWithThread { tid, signal: signals::to_gdb(signal) }
            }
        }))
    }

    /// All threads are stopped: removes the breakpoint and the holds that served only the motion.
    fn end_motion(&mut self) -> RankResult<()> {
        let motion = std::mem::replace(&mut self.motion, Motion::Stands);
        match self.remove_helpers(motion) {
            Err(error) if is_exit(&error) => Ok(()),
            result => result,
        }
    }

    fn remove_helpers(&mut self, motion: Motion) -> RankResult<()> {
        if let Motion::RunsTo { address, .. } = motion
            && !self.breakpoints.contains(&address)
        {
            self.rank.reset_breakpoint(address)?;
        }
        self.release_held()
    }

    fn release_held(&mut self) -> RankResult<()> {
        for thread in std::mem::take(&mut self.held) {
            match self.rank.update(thread, CommandRequest::ReleaseThread(NoData {})) {
                Err(RankError::Command(CommandCode::ThreadInvalid)) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Stops the rank. Returns `None` if it is already stopped, or if it has ended.
    pub fn interrupt(&mut self) -> RankResult<Option<Stop>> {
        if !self.is_running() {
            return Ok(None);
        }
        self.stop_time = StopTime::Now;
        match self.rank.suspend().and_then(|()| self.rank.wait_until_all_stand()) {
            Err(error) if is_exit(&error) => return Ok(None),
            result => result?,
        }
        // Handle pending notices of threads first.
        if let Some(stop) = self.next_stop()? {
            return Ok(Some(stop));
        }
        self.given = None;
        self.end_motion()?;
        let thread = self.rank.threads()?.first().copied();
        let signal = Signal::SIGINT;
        Ok(thread.map(|thread| Stop::SignalWithThread { tid: to_tid(thread), signal }))
    }
}

/// The stop for the end of the process. `status` has the form of wait(2).
fn stop_of_exit(status: i32) -> Stop {
    match status & 0x7f {
        0 => Stop::Exited((status >> 8) as u8),
        signal => Stop::Terminated(signals::to_gdb(signal.cast_unsigned())),
    }
}
