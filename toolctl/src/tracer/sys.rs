//! The system calls of a tracer. This module keeps no state and makes no decisions.

// UNSAFETY: ptrace(2), process_vm_readv(2), kcmp(2) and waitpid(2) with __WALL have no safe wrapper
// that covers what a tracer needs.
#![expect(unsafe_code)]

use std::io;
use std::time::Duration;

use libc::{c_long, c_void};
use nix::errno::Errno;

use super::registers::Registers;
use super::siginfo::SigInfo;
use super::{Pid, Tid};

type SysResult<T> = Result<T, Errno>;

/// The note type of the XSAVE area.
const NT_X86_XSTATE: usize = 0x202;
/// More than the length of the area on any processor. With AMX it is about 11 KiB.
const MAX_XSTATE_LEN: usize = 64 << 10;
/// Wait only for children and tracees of the calling thread.
const WNOTHREAD: i32 = 0x2000_0000;
/// The options of PTRACE_SEIZE.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC;
/// The offset of the debug registers in `struct user`.
const DEBUG_REGISTERS_OFFSET: usize = std::mem::offset_of!(libc::user, u_debugreg);

const _: () = assert!(size_of::<Registers>() == size_of::<libc::user_regs_struct>());
const _: () = assert!(size_of::<SigInfo>() == size_of::<libc::siginfo_t>());

/// The result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A thread has stopped, with this signal, and the number of the event or 0.
    Stopped(i32, i32),
    /// A thread has ended. The status is in the form of wait(2).
    Ended(i32),
}

/// Makes the system call directly, because the C library changes the return value of PEEK requests.
///
/// # Safety
/// `addr` and `data` are valid for the request.
unsafe fn ptrace(request: u32, tid: Tid, addr: usize, data: usize) -> SysResult<c_long> {
    // SAFETY: the caller promises it.
    Errno::result(unsafe { libc::syscall(libc::SYS_ptrace, request, tid, addr, data) })
}

/// Makes a request whose arguments are numbers.
fn ptrace_with_numbers(request: u32, tid: Tid, addr: usize, data: usize) -> SysResult<()> {
    // SAFETY: the requests that use this function neither read nor write the caller's memory.
    unsafe { ptrace(request, tid, addr, data) }.map(drop)
}

/// Starts tracing a thread, without stopping it. Its new threads and children are also traced.
pub fn seize(tid: Tid) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize)
}

/// Stops a thread, even if it is in a group stop (PTRACE_LISTEN).
pub fn interrupt(tid: Tid) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Makes a thread in a group stop wait for the end of that stop.
pub fn listen(tid: Tid) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Resumes a thread with a signal (0: none).
pub fn resume(tid: Tid, signal: i32) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Resumes a thread for one instruction, with a signal (0: none).
pub fn step(tid: Tid, signal: i32) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_SINGLESTEP, tid, 0, signal as usize)
}

/// Stops tracing a stopped thread, which continues with a signal (0: none).
pub fn detach(tid: Tid, signal: i32) -> SysResult<()> {
    ptrace_with_numbers(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// The task that a thread has created, at the stop that reports the creation.
pub fn created_task(tid: Tid) -> SysResult<Tid> {
    let mut message = 0_u64;
    // SAFETY: the call writes an unsigned long.
    unsafe { ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize)? };
    Tid::try_from(message).map_err(|_| Errno::ESRCH)
}

/// The siginfo of the signal at whose delivery a thread is stopped.
pub fn siginfo(tid: Tid) -> SysResult<SigInfo> {
    let mut info = SigInfo::default();
    // SAFETY: the call writes a siginfo_t, and SigInfo has its size.
    unsafe { ptrace(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info as usize)? };
    Ok(info)
}

/// Changes the siginfo of the signal at whose delivery a thread is stopped.
pub fn set_siginfo(tid: Tid, info: &SigInfo) -> SysResult<()> {
    // SAFETY: the call reads a siginfo_t. SigInfo has its size, and any bytes are valid.
    unsafe { ptrace(libc::PTRACE_SETSIGINFO, tid, 0, &raw const *info as usize) }.map(drop)
}

/// The first signals that are pending for this thread only, at most 16.
pub fn pending_signals(tid: Tid) -> SysResult<Vec<SigInfo>> {
    let mut infos = [SigInfo::default(); 16];
    let arguments = libc::ptrace_peeksiginfo_args { off: 0, flags: 0, nr: infos.len() as i32 };
    // SAFETY: the call reads the arguments, and writes up to `nr` elements of type siginfo_t.
    let count = unsafe {
        let addr = &raw const arguments as usize;
        ptrace(libc::PTRACE_PEEKSIGINFO, tid, addr, infos.as_mut_ptr() as usize)?
    };
    Ok(infos[..usize::try_from(count).unwrap_or(0).min(infos.len())].to_vec())
}

/// The signals that a thread blocks.
pub fn signal_mask(tid: Tid) -> SysResult<u64> {
    let mut mask = 0_u64;
    // SAFETY: the call writes a signal set of the kernel, which has 8 bytes.
    unsafe { ptrace(libc::PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut mask as usize)? };
    Ok(mask)
}

/// Changes the signals that a thread blocks.
pub fn set_signal_mask(tid: Tid, mask: u64) -> SysResult<()> {
    let data = &raw const mask as usize;
    // SAFETY: the call reads a signal set of the kernel, which has 8 bytes.
    unsafe { ptrace(libc::PTRACE_SETSIGMASK, tid, size_of::<u64>(), data) }.map(drop)
}

/// The general registers of a stopped thread.
pub fn registers(tid: Tid) -> SysResult<Registers> {
    let mut registers = Registers::default();
    // SAFETY: the call writes a user_regs_struct, and Registers has its layout.
    unsafe { ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)? };
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
pub fn set_registers(tid: Tid, registers: &Registers) -> SysResult<()> {
    // SAFETY: the call reads a user_regs_struct, and Registers has its layout.
    unsafe { ptrace(libc::PTRACE_SETREGS, tid, 0, &raw const *registers as usize) }.map(drop)
}

/// The XSAVE area of a stopped thread.
pub fn extended_state(tid: Tid) -> SysResult<Vec<u8>> {
    let mut bytes = vec![0_u8; MAX_XSTATE_LEN];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel writes at most iov_len bytes, and sets iov_len to their number.
    unsafe { ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut iov as usize)? };
    bytes.truncate(iov.iov_len);
    Ok(bytes)
}

/// Sets the XSAVE area of a stopped thread.
pub fn set_extended_state(tid: Tid, bytes: &[u8]) -> SysResult<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel reads iov_len bytes, and writes none.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw mut iov as usize) }.map(drop)
}

/// A debug register of a stopped thread.
pub fn debug_register(tid: Tid, number: usize) -> SysResult<u64> {
    let offset = DEBUG_REGISTERS_OFFSET + number.min(7) * 8;
    let mut value = 0_u64;
    // SAFETY: the system call writes a word to `data`.
    unsafe { ptrace(libc::PTRACE_PEEKUSER, tid, offset, &raw mut value as usize)? };
    Ok(value)
}

/// Sets a debug register of a stopped thread.
pub fn set_debug_register(tid: Tid, number: usize, value: u64) -> SysResult<()> {
    let offset = DEBUG_REGISTERS_OFFSET + number.min(7) * 8;
    ptrace_with_numbers(libc::PTRACE_POKEUSER, tid, offset, value as usize)
}

/// The next event of a tracee or child of the calling thread, if there is one.
pub fn next_event() -> Option<(Tid, Wait)> {
    let mut status = 0;
    let flags = libc::__WALL | libc::WNOHANG | WNOTHREAD;
    // SAFETY: the call only writes to `status`.
    let tid = unsafe { libc::waitpid(-1, &mut status, flags) };
    if tid <= 0 {
        return None;
    }
    let wait = if libc::WIFSTOPPED(status) {
        Wait::Stopped(libc::WSTOPSIG(status), status >> 16)
    } else {
        Wait::Ended(status)
    };
    Some((tid, wait))
}

/// Sends a signal to a thread of a process.
pub fn send_signal(pid: Pid, tid: Tid, signal: i32) -> SysResult<()> {
    // SAFETY: the arguments are three numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

/// Whether two processes have one address space.
pub fn shares_memory(one: Pid, other: Pid) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: the arguments are five numbers.
    (unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) }) == 0
}

/// Reads memory of a process, as far as its page protection permits. Returns the number of bytes
/// read.
pub fn read_memory(pid: Pid, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: buffer.len() };
    // SAFETY: the call writes at most the length of the buffer. The remote address is only a number
    // in this process.
    let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Writes memory of a process, as far as its page protection permits. Returns the number of bytes
/// written.
pub fn write_memory(pid: Pid, address: u64, bytes: &[u8]) -> io::Result<usize> {
    let base = bytes.as_ptr().cast_mut().cast();
    let local = libc::iovec { iov_base: base, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: the call reads the bytes. The remote address is only a number in this process.
    let count = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// The time of a monotonic clock.
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The offset and the length of a component of the XSAVE area. `None` if it does not exist.
pub fn extended_component(number: u32) -> Option<(usize, usize)> {
    // CPUID leaf 13 exists if the kernel offers an XSAVE area.
    let leaf = std::arch::x86_64::__cpuid_count(13, number);
    (leaf.eax != 0).then_some((leaf.ebx as usize, leaf.eax as usize))
}
