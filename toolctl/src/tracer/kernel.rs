//! The kernel interface of the tracer. Linux implements it, and so does the simulation of the
//! tests.

use std::time::Duration;

use nix::errno::Errno;

use super::procfs::Parentage;
use super::registers::Registers;
use super::siginfo::SigInfo;
use super::sys::{self, Wait};
use super::{Pid, Tid, memory, procfs};

/// The state of a thread that has not stopped after an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// The thread waits in the kernel and cannot stop now. It executes no instruction of its
    /// program before it stops.
    Waiting,
    /// The thread has ended. The kernel keeps its number if it is the first thread of its process.
    Ended,
    /// The thread may execute its program.
    Active,
}

/// The calls of a tracer. None of them blocks.
#[expect(missing_docs, reason = "each is the function of the same name in `sys` or `procfs`")]
pub trait Kernel {
    fn threads(&self, pid: Pid) -> Vec<Tid>;
    fn parentage(&self, tid: Tid) -> Option<Parentage>;
    fn task_state(&self, pid: Pid, tid: Tid) -> TaskState;
    fn shares_memory(&self, one: Pid, other: Pid) -> bool;
    fn seize(&mut self, tid: Tid) -> Result<(), Errno>;
    fn interrupt(&mut self, tid: Tid) -> Result<(), Errno>;
    fn listen(&mut self, tid: Tid) -> Result<(), Errno>;
    fn resume(&mut self, tid: Tid, signal: i32) -> Result<(), Errno>;
    fn step(&mut self, tid: Tid, signal: i32) -> Result<(), Errno>;
    fn detach(&mut self, tid: Tid, signal: i32) -> Result<(), Errno>;
    fn created_task(&self, tid: Tid) -> Result<Tid, Errno>;
    fn siginfo(&self, tid: Tid) -> Result<SigInfo, Errno>;
    fn set_siginfo(&mut self, tid: Tid, info: &SigInfo) -> Result<(), Errno>;
    fn pending_signals(&self, tid: Tid) -> Result<Vec<SigInfo>, Errno>;
    fn signal_mask(&self, tid: Tid) -> Result<u64, Errno>;
    fn set_signal_mask(&mut self, tid: Tid, mask: u64) -> Result<(), Errno>;
    fn registers(&self, tid: Tid) -> Result<Registers, Errno>;
    fn set_registers(&mut self, tid: Tid, registers: &Registers) -> Result<(), Errno>;
    fn extended_state(&self, tid: Tid) -> Result<Vec<u8>, Errno>;
    fn set_extended_state(&mut self, tid: Tid, bytes: &[u8]) -> Result<(), Errno>;
    fn debug_register(&self, tid: Tid, number: usize) -> Result<u64, Errno>;
    fn set_debug_register(&mut self, tid: Tid, number: usize, value: u64) -> Result<(), Errno>;
    fn send_signal(&mut self, pid: Pid, tid: Tid, signal: i32) -> Result<(), Errno>;
    /// Reads memory, even if the program itself cannot read it. Reads all bytes or returns false.
    fn read_memory(&self, pid: Pid, address: u64, buffer: &mut [u8]) -> bool;
    /// Writes memory, even if the program itself cannot write it.
    fn write_memory(&mut self, pid: Pid, address: u64, bytes: &[u8]) -> bool;
    /// The address of a `syscall` instruction in executable memory.
    fn syscall_instruction(&self, pid: Pid) -> Option<u64>;
    fn next_event(&mut self) -> Option<(Tid, Wait)>;
    fn now(&self) -> Duration;
}

/// The running kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Linux;

impl Kernel for Linux {
    fn threads(&self, pid: Pid) -> Vec<Tid> {
        procfs::threads(pid)
    }

    fn parentage(&self, tid: Tid) -> Option<Parentage> {
        procfs::parentage(tid)
    }

    fn task_state(&self, pid: Pid, tid: Tid) -> TaskState {
        match procfs::ThreadStat::read(pid, tid).map(|stat| stat.state) {
            Some(b'D') => TaskState::Waiting,
            Some(b'Z' | b'X') | None => TaskState::Ended,
            Some(_) => TaskState::Active,
        }
    }

    fn shares_memory(&self, one: Pid, other: Pid) -> bool {
        sys::shares_memory(one, other)
    }

    fn seize(&mut self, tid: Tid) -> Result<(), Errno> {
        sys::seize(tid)
    }

    fn interrupt(&mut self, tid: Tid) -> Result<(), Errno> {
        sys::interrupt(tid)
    }

    fn listen(&mut self, tid: Tid) -> Result<(), Errno> {
        sys::listen(tid)
    }

    fn resume(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        sys::resume(tid, signal)
    }

    fn step(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        sys::step(tid, signal)
    }

    fn detach(&mut self, tid: Tid, signal: i32) -> Result<(), Errno> {
        sys::detach(tid, signal)
    }

    fn created_task(&self, tid: Tid) -> Result<Tid, Errno> {
        sys::created_task(tid)
    }

    fn siginfo(&self, tid: Tid) -> Result<SigInfo, Errno> {
        sys::siginfo(tid)
    }

    fn set_siginfo(&mut self, tid: Tid, info: &SigInfo) -> Result<(), Errno> {
        sys::set_siginfo(tid, info)
    }

    fn pending_signals(&self, tid: Tid) -> Result<Vec<SigInfo>, Errno> {
        sys::pending_signals(tid)
    }

    fn signal_mask(&self, tid: Tid) -> Result<u64, Errno> {
        sys::signal_mask(tid)
    }

    fn set_signal_mask(&mut self, tid: Tid, mask: u64) -> Result<(), Errno> {
        sys::set_signal_mask(tid, mask)
    }

    fn registers(&self, tid: Tid) -> Result<Registers, Errno> {
        sys::registers(tid)
    }

    fn set_registers(&mut self, tid: Tid, registers: &Registers) -> Result<(), Errno> {
        sys::set_registers(tid, registers)
    }

    fn extended_state(&self, tid: Tid) -> Result<Vec<u8>, Errno> {
        sys::extended_state(tid)
    }

    fn set_extended_state(&mut self, tid: Tid, bytes: &[u8]) -> Result<(), Errno> {
        sys::set_extended_state(tid, bytes)
    }

    fn debug_register(&self, tid: Tid, number: usize) -> Result<u64, Errno> {
        sys::debug_register(tid, number)
    }

    fn set_debug_register(&mut self, tid: Tid, number: usize, value: u64) -> Result<(), Errno> {
        sys::set_debug_register(tid, number, value)
    }

    fn send_signal(&mut self, pid: Pid, tid: Tid, signal: i32) -> Result<(), Errno> {
        sys::send_signal(pid, tid, signal)
    }

    fn read_memory(&self, pid: Pid, address: u64, buffer: &mut [u8]) -> bool {
        memory::read_raw(pid, address, buffer)
    }

    fn write_memory(&mut self, pid: Pid, address: u64, bytes: &[u8]) -> bool {
        memory::write_raw(pid, address, bytes)
    }

    fn syscall_instruction(&self, pid: Pid) -> Option<u64> {
        memory::find_syscall_instruction(pid)
    }

    fn next_event(&mut self) -> Option<(Tid, Wait)> {
        sys::next_event()
    }

    fn now(&self) -> Duration {
        sys::now()
    }
}
