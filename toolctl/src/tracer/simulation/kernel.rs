//! A simulated kernel with one process, whose threads execute a loop of one-byte instructions. It
//! simulates the effects of ptrace(2), signals and group stops, and follows kernel/signal.c of
//! Linux.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;

use super::super::breakpoints::INT3;
use super::super::kernel::{Kernel, TaskState};
use super::super::procfs::Parentage;
use super::super::registers::Registers;
use super::super::siginfo::{SI_KERNEL, SigInfo, TRAP_HANDLER, TRAP_TRACE};
use super::super::sys::Wait;
use super::super::{Pid, Tid};

/// The process id.
pub const PID: Pid = 100;
/// The number of instructions of the loop, and its address.
pub const LOOP_LEN: u64 = 12;
pub const LOOP: u64 = 0x1000;
/// The handler of SIGUSR1: one instruction, then the return.
pub const HANDLER: u64 = 0x2000;
pub const NOP: u8 = 0x90;
const RETURN: u8 = 0xc3;
const STACK: u64 = 0x9000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trap {
    /// PTRACE_EVENT_STOP.
    Stop,
    Delivery(SigInfo),
    /// A single step into a handler.
    Handler,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The thread executes instructions, after checking for signals.
    Running,
    Trapped(Trap),
    Listening,
    Dead,
}

#[derive(Debug)]
pub struct SimThread {
    mode: Mode,
    pub registers: Registers,
    is_traced: bool,
    steps: bool,
    wants_trap: bool,
    notify_trap: bool,
    joins_stop: bool,
    /// Whether the thread is stopped before the delivery of a signal and no SIGCONT has arrived
    /// since. If that signal is a stop signal, it then takes effect.
    stop_counts: bool,
    pending: VecDeque<SigInfo>,
    /// Its registers before each active handler.
    frames: Vec<Registers>,
    /// The number of loop instructions that the thread has executed, which determines the next one.
    pub executed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Running,
    Stopping,
    Stopped,
}

/// The state that the test and the tracer share.
#[derive(Debug)]
pub struct World {
    pub threads: BTreeMap<Tid, SimThread>,
    pub text: BTreeMap<u64, u8>,
    pub group: Group,
    /// The number of completed group stops, which the kernel would report to a shepherd.
    pub stops: u64,
    shared_pending: VecDeque<SigInfo>,
    events: Vec<(Tid, Wait)>,
    pub is_dead: bool,
    pub random: u64,
    /// The threads that may run: None permits all threads, otherwise only one thread or none.
    pub allowed: Option<Option<Tid>>,
    /// The breakpoints of the tool.
    pub breakpoints: Vec<u64>,
    /// For each thread, the value of `executed` at its last reported hit.
    pub noticed: BTreeMap<Tid, u64>,
    time: u64,
}

impl World {
    pub fn new(seed: u64, threads: i32) -> Self {
        let mut text: BTreeMap<u64, u8> =
            (0..LOOP_LEN).map(|offset| (LOOP + offset, NOP)).collect();
        text.insert(HANDLER, NOP);
        text.insert(HANDLER + 1, RETURN);
        let mut world = Self {
            threads: BTreeMap::new(),
            text,
            group: Group::Running,
            stops: 0,
            shared_pending: VecDeque::new(),
            events: Vec::new(),
            is_dead: false,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            allowed: None,
            breakpoints: Vec::new(),
            noticed: BTreeMap::new(),
            time: 0,
        };
        for number in 0..threads {
            world.add_thread(PID + number, false);
        }
        world
    }

    fn add_thread(&mut self, tid: Tid, is_traced: bool) {
        let registers = Registers {
            rip: LOOP,
            cs: 0x33,
            orig_rax: u64::MAX,
            rsp: STACK,
            ..Registers::default()
        };
        let thread = SimThread {
            mode: Mode::Running,
            registers,
            is_traced,
            steps: false,
            wants_trap: is_traced,
            notify_trap: false,
            joins_stop: false,
            stop_counts: false,
            pending: VecDeque::new(),
            frames: Vec::new(),
            executed: 0,
        };
        self.threads.insert(tid, thread);
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn live(&mut self, tid: Tid) -> Result<&mut SimThread, Errno> {
        let thread = self.threads.get_mut(&tid).filter(|it| it.mode != Mode::Dead);
        thread.filter(|it| it.is_traced).ok_or(Errno::ESRCH)
    }

    fn trapped(&mut self, tid: Tid) -> Result<&mut SimThread, Errno> {
        let thread = self.live(tid)?;
        if matches!(thread.mode, Mode::Trapped(_)) { Ok(thread) } else { Err(Errno::ESRCH) }
    }

    /// Sends a signal to the process or to a thread.
    pub fn signal(&mut self, tid: Option<Tid>, signal: i32) {
        match signal {
            libc::SIGKILL => return self.kill(),
            libc::SIGCONT => self.continue_group(),
            libc::SIGSTOP if self.group != Group::Running => return,
            _ => {}
        }
        let info = SigInfo::new(signal, 0);
        let queue = match tid.and_then(|tid| self.threads.get_mut(&tid)) {
            Some(thread) => &mut thread.pending,
            None => &mut self.shared_pending,
        };
        if !queue.iter().any(|pending| pending.signal() == signal) {
            queue.push_back(info);
        }
    }

    fn continue_group(&mut self) {
        let is_stop = |info: &SigInfo| info.signal() == libc::SIGSTOP;
        self.shared_pending.retain(|info| !is_stop(info));
        let was_stopped = self.group != Group::Running;
        self.group = Group::Running;
        for thread in self.threads.values_mut() {
            thread.pending.retain(|info| !is_stop(info));
            thread.joins_stop = false;
            thread.stop_counts = false;
            if !was_stopped {
                continue;
            }
            if thread.is_traced {
                thread.notify_trap = true;
                if thread.mode == Mode::Listening {
                    thread.mode = Mode::Running;
                }
            } else if thread.mode == Mode::Trapped(Trap::Stop) {
                thread.mode = Mode::Running;
            }
        }
    }

    fn kill(&mut self) {
        self.is_dead = true;
        let tids: Vec<Tid> = self.threads.keys().rev().copied().collect();
        for tid in tids {
            self.end_thread(tid, libc::SIGKILL);
        }
    }

    fn end_thread(&mut self, tid: Tid, status: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if thread.mode == Mode::Dead {
            return;
        }
        thread.mode = Mode::Dead;
        if thread.is_traced {
            self.events.retain(|event| event.0 != tid);
            self.events.push((tid, Wait::Ended(status)));
        }
        self.complete_stop();
    }

    /// Advances a random thread. Returns false if no thread can run.
    pub fn advance(&mut self) -> bool {
        self.time += 1;
        let running: Vec<Tid> = self
            .threads
            .iter()
            .filter(|(_, thread)| thread.mode == Mode::Running)
            .map(|(tid, _)| *tid)
            .collect();
        if running.is_empty() {
            return false;
        }
        let tid = running[self.below(running.len() as u64) as usize];
        if !self.look_for_signals(tid) {
            self.execute(tid);
        }
        true
    }

    /// Handles the stops and signals of a thread. Returns true if there was one.
    fn look_for_signals(&mut self, tid: Tid) -> bool {
        let group = self.group;
        let Some(thread) = self.threads.get_mut(&tid) else { return true };
        if thread.joins_stop {
            thread.joins_stop = false;
            if thread.is_traced {
                thread.wants_trap = true;
            } else {
                thread.mode = Mode::Trapped(Trap::Stop);
            }
            self.complete_stop();
            return true;
        }
        if thread.wants_trap || thread.notify_trap {
            thread.wants_trap = false;
            thread.notify_trap = false;
            if !thread.is_traced {
                return true;
            }
            thread.mode = Mode::Trapped(Trap::Stop);
            let signal = match group {
                Group::Running => libc::SIGTRAP,
                _ => libc::SIGSTOP,
            };
            self.events.push((tid, Wait::Stopped(signal, libc::PTRACE_EVENT_STOP)));
            return true;
        }
        let Some(info) = thread.pending.pop_front().or_else(|| self.shared_pending.pop_front())
        else {
            return false;
        };
        thread.stop_counts = true;
        if thread.is_traced {
            thread.wants_trap = false;
            thread.mode = Mode::Trapped(Trap::Delivery(info));
            self.events.push((tid, Wait::Stopped(info.signal(), 0)));
        } else {
            self.deliver(tid, info.signal());
        }
        true
    }

    fn complete_stop(&mut self) {
        let is_waiting = self.threads.values().any(|it| it.joins_stop && it.mode != Mode::Dead);
        if self.group == Group::Stopping && !is_waiting {
            self.group = Group::Stopped;
            self.stops += 1;
        }
    }

    fn deliver(&mut self, tid: Tid, signal: i32) {
        match signal {
            0 | libc::SIGCONT => {}
            libc::SIGSTOP if self.threads.get(&tid).is_none_or(|it| !it.stop_counts) => {}
            libc::SIGSTOP => {
                self.group = Group::Stopping;
                for thread in self.threads.values_mut().filter(|it| it.mode != Mode::Dead) {
                    // A thread that the tracer has stopped also has to join, when it is resumed.
                    thread.joins_stop = true;
                }
            }
            libc::SIGUSR1 => {
                let Some(thread) = self.threads.get_mut(&tid) else { return };
                thread.frames.push(thread.registers);
                thread.registers.rip = HANDLER;
                thread.registers.rsp -= 128;
                if std::mem::take(&mut thread.steps) {
                    thread.wants_trap = false;
                    thread.mode = Mode::Trapped(Trap::Handler);
                    self.events.push((tid, Wait::Stopped(libc::SIGTRAP, 0)));
                }
            }
            _ => panic!("thread {tid} dies of signal {signal}"),
        }
    }

    fn execute(&mut self, tid: Tid) {
        let group = self.group;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let address = thread.registers.rip;
        let opcode = self.text[&address];
        match self.allowed {
            Some(Some(allowed)) => assert_eq!(allowed, tid, "another thread makes a step"),
            Some(None) => panic!("thread {tid} executes {address:#x} while it is suspended"),
            None => {}
        }
        assert_ne!(group, Group::Stopped, "thread {tid} executes in a group stop");
        match opcode {
            INT3 => {
                thread.registers.rip += 1;
                thread.pending.push_front(SigInfo::new(libc::SIGTRAP, SI_KERNEL));
                return;
            }
            RETURN => {
                thread.registers = thread.frames.pop().expect("a frame");
            }
            NOP if address == HANDLER => thread.registers.rip += 1,
            NOP => {
                assert_eq!(address, LOOP + thread.executed % LOOP_LEN, "thread {tid} jumps");
                if self.breakpoints.contains(&address) && self.allowed.is_none() {
                    let seen = self.noticed.get(&tid);
                    assert_eq!(seen, Some(&thread.executed), "thread {tid}: no notice");
                }
                thread.executed += 1;
                thread.registers.rip = LOOP + thread.executed % LOOP_LEN;
            }
            other => panic!("instruction {other:#x}"),
        }
        if std::mem::take(&mut thread.steps) {
            thread.pending.push_front(SigInfo::new(libc::SIGTRAP, TRAP_TRACE));
            if matches!(self.allowed, Some(Some(_))) {
                self.allowed = Some(None);
            }
        }
    }

    fn resume(&mut self, tid: Tid, signal: i32, steps: bool) -> Result<(), Errno> {
        let thread = self.trapped(tid)?;
        let Mode::Trapped(trap) = thread.mode else { return Err(Errno::ESRCH) };
        thread.mode = Mode::Running;
        thread.steps = steps;
        self.events.retain(|event| event.0 != tid);
        if matches!(trap, Trap::Delivery(_)) {
            self.deliver(tid, signal);
        }
        Ok(())
    }
}

/// A handle to the world for the tracer.
#[derive(Debug, Clone)]
pub struct SimKernel(pub Rc<RefCell<World>>);

impl Kernel for SimKernel {
    fn threads(&self, _: Pid) -> Vec<Tid> {
        let world = self.0.borrow();
        let live = world.threads.iter().filter(|(_, thread)| thread.mode != Mode::Dead);
        live.map(|(tid, _)| *tid).collect()
    }

    fn parentage(&self, _: Tid) -> Option<Parentage> {
        Some(Parentage { process: PID, parent: 1 })
    }

    fn task_state(&self, _: Pid, tid: Tid) -> TaskState {
        let world = self.0.borrow();
        match world.threads.get(&tid).is_none_or(|thread| thread.mode == Mode::Dead) {
            true => TaskState::Ended,
            false => TaskState::Active,
        }
    }

    fn shares_memory(&self, _: Pid, _: Pid) -> bool {
        false
    }

    fn seize(&mut self, tid: Tid) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        let thread = world.threads.get_mut(&tid).ok_or(Errno::ESRCH)?;
        thread.is_traced = true;
        if thread.mode == Mode::Trapped(Trap::Stop) {
            // A thread in a group stop traps.
            thread.mode = Mode::Running;
            thread.wants_trap = true;
        }
        Ok(())
    }

    fn interrupt(&mut self, tid: Tid) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        let thread = world.live(tid)?;
        thread.wants_trap = true;
        if thread.mode == Mode::Listening {
            thread.mode = Mode::Running;
        }
        Ok(())
    }

    fn listen(&mut self, tid: Tid) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        let thread = world.trapped(tid)?;
        if thread.mode != Mode::Trapped(Trap::Stop) {
            return Err(Errno::EIO);
        }
        thread.mode = if thread.notify_trap { Mode::Running } else { Mode::Listening };
        Ok(())
    }

    fn resume(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        self.0.borrow_mut().resume(tid, signal, false)
    }

    fn step(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        self.0.borrow_mut().resume(tid, signal, true)
    }

    fn detach(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        world.trapped(tid)?;
        let group = world.group;
        world.resume(tid, signal, false)?;
        let thread = world.live(tid)?;
        thread.is_traced = false;
        (thread.wants_trap, thread.notify_trap) = (false, false);
        if group != Group::Running {
            thread.joins_stop = true;
        }
        Ok(())
    }

    fn created_task(&self, _: Tid) -> Result<Tid, Errno> {
        Err(Errno::ESRCH)
    }

    fn siginfo(&self, tid: Tid) -> Result<SigInfo, Errno> {
        match self.0.borrow_mut().trapped(tid)?.mode {
            Mode::Trapped(Trap::Delivery(info)) => Ok(info),
            Mode::Trapped(Trap::Handler) => Ok(SigInfo::new(libc::SIGTRAP, TRAP_HANDLER)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn set_siginfo(&mut self, tid: Tid, _: &SigInfo) -> Result<(), Errno> {
        self.0.borrow_mut().trapped(tid).map(drop)
    }

    fn pending_signals(&self, tid: Tid) -> Result<Vec<SigInfo>, Errno> {
        Ok(self.0.borrow_mut().trapped(tid)?.pending.iter().copied().collect())
    }

    fn signal_mask(&self, _: Tid) -> Result<u64, Errno> {
        Ok(0)
    }

    fn set_signal_mask(&mut self, _: Tid, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn registers(&self, tid: Tid) -> Result<Registers, Errno> {
        Ok(self.0.borrow_mut().trapped(tid)?.registers)
    }

    fn set_registers(&mut self, tid: Tid, registers: &Registers) -> Result<(), Errno> {
        self.0.borrow_mut().trapped(tid)?.registers = *registers;
        Ok(())
    }

    fn extended_state(&self, _: Tid) -> Result<Vec<u8>, Errno> {
        Ok(vec![0; 576])
    }

    fn set_extended_state(&mut self, _: Tid, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn debug_register(&self, _: Tid, _: usize) -> Result<u64, Errno> {
        Ok(0)
    }

    fn set_debug_register(&mut self, _: Tid, _: usize, _: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn send_signal(&mut self, _: Pid, tid: Tid, signal: i32) -> Result<(), Errno> {
        self.0.borrow_mut().signal(Some(tid), signal);
        Ok(())
    }

    fn read_memory(&self, _: Pid, address: u64, buffer: &mut [u8]) -> bool {
        let world = self.0.borrow();
        buffer
            .iter_mut()
            .zip(address..)
            .all(|(byte, place)| world.text.get(&place).map(|value| *byte = *value).is_some())
    }

    fn write_memory(&mut self, _: Pid, address: u64, bytes: &[u8]) -> bool {
        let mut world = self.0.borrow_mut();
        bytes
            .iter()
            .zip(address..)
            .all(|(byte, place)| world.text.get_mut(&place).map(|value| *value = *byte).is_some())
    }

    fn syscall_instruction(&self, _: Pid) -> Option<u64> {
        None
    }

    fn next_event(&mut self) -> Option<(Tid, Wait)> {
        let mut world = self.0.borrow_mut();
        if world.events.is_empty() {
            return None;
        }
        let index = world.events.len() as u64;
        let index = world.below(index) as usize;
        // The end of the first thread is reported after the ends of all others.
        let is_early = |(tid, wait): &(Tid, Wait)| *tid == PID && matches!(wait, Wait::Ended(_));
        if is_early(&world.events[index]) && world.events.len() > 1 {
            let other = world.events.iter().position(|event| !is_early(event))?;
            return Some(world.events.remove(other));
        }
        Some(world.events.remove(index))
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.0.borrow().time)
    }
}
