//! A child process between clone(2) and execve(2). In this phase the child shares the parent's
//! memory (CLONE_VM) instead of a copy, which would have to be created and freed. Unlike after
//! vfork(2), the parent does not wait for the child. The child may take long, because it opens
//! files that may be on a server that is down.
//!
//! The child runs on its own stack and only makes system calls, by inline assembly. The wrappers of
//! the C library store errno in a variable that the child shares with the thread that created it.
//! All input of the child is in its [`PreExecChild`]. The parent does not touch that object until
//! the kernel reports that the child no longer uses the parent's memory (CLONE_CHILD_CLEARTID).

// UNSAFETY: clone(2) with a stack, and the system calls of the code that runs there.
#![expect(unsafe_code)]

use std::arch::asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sched::CpuSet;
use score_proto::exit_code::EXIT_NOT_FOUND;

use super::spawn_args::{ChildFile, FdSource, PMI_FD, SpawnArgs};

pub const STEP_SETUP: u64 = 1;
pub const STEP_DIRECTORY: u64 = 2;
pub const STEP_EXEC: u64 = 3;
/// Base of the steps for files. Four times the index of the path, and the descriptor, are added.
pub const STEP_OPEN_FILE: u64 = 16;

/// Command of fcntl(2) that selects the signal of a descriptor (asm-generic/fcntl.h).
const F_SETSIG: c_int = 10;

/// Size of the child's stack in bytes. System calls use none of it.
const STACK_SIZE: usize = 32 << 10;
/// Alignment of a stack that all architectures accept.
const STACK_ALIGNMENT: usize = 16;

/// C strings, and the list of pointers to them that execve(2) takes.
struct Strings {
    /// Storage that the pointers refer to.
    _bytes: Box<[u8]>,
    pointers: Box<[*const c_char]>,
}

impl Strings {
    fn new<'a>(strings: impl Iterator<Item = &'a CStr> + Clone) -> Strings {
        let bytes: Vec<u8> =
            strings.clone().flat_map(|string| string.to_bytes_with_nul()).copied().collect();
        let bytes = bytes.into_boxed_slice();
        let mut offset = 0;
        let mut pointers = Vec::new();
        for string in strings {
            pointers.push(bytes[offset..].as_ptr().cast());
            offset += string.to_bytes_with_nul().len();
        }
        pointers.push(ptr::null());
        Strings { _bytes: bytes, pointers: pointers.into_boxed_slice() }
    }
}

/// Source of one of the child's descriptors.
enum RawFdSource {
    Fd(c_int),
    File(Strings, c_int),
}

impl RawFdSource {
    fn new(source: &FdSource<'_>) -> RawFdSource {
        match source {
            FdSource::Fd(descriptor) => RawFdSource::Fd(descriptor.as_raw_fd()),
            FdSource::File(ChildFile { paths, flags }) => {
                RawFdSource::File(Strings::new(paths.iter().map(|path| path.as_c_str())), *flags)
            }
        }
    }
}

/// Input of the child.
struct ChildSetup {
    candidates: Strings,
    arguments: Strings,
    /// `/bin/sh FILE arguments`, for a script without `#!`. The child inserts FILE.
    shell_arguments: Box<[*const c_char]>,
    environment: Strings,
    directory: Strings,
    /// Descriptors 0, 1, 2, the control socket, and the PMI socket if there is one.
    descriptors: Box<[RawFdSource]>,
    descriptor_limit: libc::rlimit,
    /// The parent's process id, if the child must be killed when the parent exits.
    parent_pid: Option<u32>,
    cpu_set: Option<CpuSet>,
    hold: bool,
}

impl ChildSetup {
    fn new(args: &SpawnArgs<'_>) -> ChildSetup {
        let (candidates, arguments) = args.program.parts();
        let arguments = Strings::new(arguments.iter().map(|argument| argument.as_c_str()));
        let mut shell_arguments = vec![c"/bin/sh".as_ptr(), ptr::null()];
        // Includes the null pointer at the end, even if there are no arguments.
        shell_arguments.extend(&arguments.pointers[1.min(arguments.pointers.len() - 1)..]);
        ChildSetup {
            candidates: Strings::new(candidates.iter().map(|path| path.as_c_str())),
            arguments,
            shell_arguments: shell_arguments.into_boxed_slice(),
            environment: Strings::new(args.environment.iter().copied()),
            directory: Strings::new([args.directory].into_iter()),
            descriptors: args
                .descriptors
                .into_iter()
                .chain(args.pmi_socket.map(FdSource::Fd))
                .map(|source| RawFdSource::new(&source))
                .collect(),
            descriptor_limit: args.descriptor_limit,
            parent_pid: args.die_with_parent.then(std::process::id),
            cpu_set: args.cpu_set.copied(),
            hold: args.hold,
        }
    }
}

/// See the [module](self). The object may be dropped or reused if [`PreExecChild::is_released`].
/// Otherwise it must be forgotten.
pub struct PreExecChild {
    /// 1 while a child uses the object. The kernel writes 0, and wakes no thread.
    in_use: AtomicU32,
    /// Step << 32 | errno of the failed step, or 0 if no step has failed.
    error: AtomicU64,
    /// Only the child uses it while `in_use` is 1.
    setup: UnsafeCell<ChildSetup>,
    stack: Box<[MaybeUninit<u8>]>,
}

impl std::fmt::Debug for PreExecChild {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PreExecChild {{ in_use: {:?} }}", self.in_use)
    }
}

impl PreExecChild {
    /// Creates a process. All signals must be blocked in the caller. `spare`: a released object,
    /// whose stack is reused. Returns the process id and the object, or errno.
    pub fn new(
        args: &SpawnArgs<'_>,
        spare: Option<Rc<PreExecChild>>,
    ) -> Result<(i32, Rc<PreExecChild>), i32> {
        let setup = ChildSetup::new(args);
        let mut spare = spare.filter(|child| child.is_released());
        let spare_stack =
            spare.as_mut().and_then(Rc::get_mut).map(|child| std::mem::take(&mut child.stack));
        let mut stack = spare_stack.unwrap_or_else(|| Box::new_uninit_slice(STACK_SIZE));
        let top = stack.as_mut_ptr_range().end;
        let top = top.wrapping_sub(top.addr() % STACK_ALIGNMENT);
        let child = Rc::new(PreExecChild {
            in_use: AtomicU32::new(1),
            error: AtomicU64::new(0),
            setup: UnsafeCell::new(setup),
            stack,
        });
        let flags = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
        let null = ptr::null_mut::<c_void>();
        let child_ptr = Rc::as_ptr(&child).cast_mut().cast::<c_void>();
        // SAFETY: the child has its own stack, whose end is aligned. Stack and object stay in place
        // until it is released. It requests and uses no thread-local storage.
        let pid = unsafe {
            libc::clone(begin, top.cast(), flags, child_ptr, null, null, child.in_use.as_ptr())
        };
        if pid < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            child.in_use.store(0, Ordering::Relaxed);
            return Err(errno.unwrap_or(libc::EIO));
        }
        Ok((pid, child))
    }

    /// Whether the child no longer uses the parent's memory: it has executed its program, or has
    /// exited.
    pub fn is_released(&self) -> bool {
        self.in_use.load(Ordering::Acquire) == 0
    }

    /// The failed step and errno of a released child, if it failed.
    pub fn error(&self) -> Option<(u64, i32)> {
        let word = self.error.load(Ordering::Acquire);
        (word != 0).then_some((word >> 32, (word as u32).cast_signed()))
    }
}

/// Makes a system call. Returns the kernel's result: a negated errno, or the return value.
///
/// # Safety
/// The same requirements as for the system call.
#[inline(always)]
unsafe fn call(number: c_long, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let result: isize;
    // SAFETY: as guaranteed by the caller; the instruction does not use the stack.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c,
            in("x3") d, options(nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "riscv64")]
    unsafe {
        asm!("ecall", in("a7") number, inlateout("a0") a => result, in("a1") b, in("a2") c,
            in("a3") d, options(nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    compile_error!("no system call instruction is known for this architecture");
    result
}

/// Entry point of the child, on its own stack.
extern "C" fn begin(child_ptr: *mut c_void) -> c_int {
    // SAFETY: the object of this child, which has exclusive access to `setup` until it is released.
    let (child, setup) = unsafe {
        let child = &*child_ptr.cast::<PreExecChild>();
        (child, &mut *child.setup.get())
    };
    // SAFETY: this is the child; all of its input is in `setup`.
    let (step, error) = unsafe {
        match prepare(setup) {
            Ok(()) => (STEP_EXEC, execute(setup)),
            Err(failure) => failure,
        }
    };
    child.error.store(step << 32 | error as u64, Ordering::Release);
    exit_child()
}

fn exit_child() -> ! {
    loop {
        // SAFETY: ends this process, and touches no memory.
        unsafe { call(libc::SYS_exit_group, [EXIT_NOT_FOUND as usize, 0, 0, 0]) };
    }
}

/// Sets up the process of the program. `Err`: step and errno.
///
/// # Safety
/// Runs in the child only.
unsafe fn prepare(setup: &ChildSetup) -> Result<(), (u64, isize)> {
    let check = |result: isize, step: u64| if result < 0 { Err((step, -result)) } else { Ok(()) };
    // SAFETY: plain system calls on values that the parent has prepared.
    unsafe {
        if let Some(parent_pid) = setup.parent_pid {
            let pdeathsig_args = [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0];
            call(libc::SYS_prctl, pdeathsig_args);
            if call(libc::SYS_getppid, [0; 4]) != parent_pid as isize {
                exit_child();
            }
        }
        // If Yama lets only ancestors trace a process, this also permits processes that the parent
        // has started: the tool control service. Without Yama the call fails, and nothing forbids
        // tracing.
        let parent = call(libc::SYS_getppid, [0; 4]).cast_unsigned();
        call(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, parent, 0, 0]);
        check(call(libc::SYS_setsid, [0; 4]), STEP_SETUP)?;
        if let Some(cpu_set) = &setup.cpu_set {
            let cpu_set_addr = ptr::from_ref(cpu_set).addr();
            // The program also runs if the processor was taken offline in the meantime.
            call(libc::SYS_sched_setaffinity, [0, size_of::<CpuSet>(), cpu_set_addr, 0]);
        }
        // The next steps may take long. All signals have their default action, so that a signal
        // ends the process.
        let empty_mask = 0u64;
        let mask = [libc::SIG_SETMASK as usize, ptr::from_ref(&empty_mask).addr(), 0, 8];
        call(libc::SYS_rt_sigprocmask, mask);
        for (target_fd, source) in (0usize..).zip(setup.descriptors.iter()) {
            let source_fd = match source {
                RawFdSource::Fd(fd) => *fd as isize,
                RawFdSource::File(paths, flags) => match open_first(paths, *flags) {
                    Ok(fd) => fd,
                    Err((path_index, error)) => {
                        return Err((STEP_OPEN_FILE + 4 * path_index + target_fd as u64, error));
                    }
                },
            };
            // All sources are above the target numbers (`descriptor::reserve_low`). No source is
            // therefore its own target, or is overwritten before it is duplicated.
            if source_fd <= PMI_FD as isize {
                return Err((STEP_SETUP, libc::EBADF as isize));
            }
            check(call(libc::SYS_dup3, [source_fd.cast_unsigned(), target_fd, 0, 0]), STEP_SETUP)?;
        }
        if setup.hold {
            // Before the limit, which may leave no room for more descriptors.
            check(stop_at_exec(), STEP_SETUP)?;
        }
        let limit_addr = ptr::from_ref(&setup.descriptor_limit).addr();
        let prlimit_args = [0, libc::RLIMIT_NOFILE as usize, limit_addr, 0];
        check(call(libc::SYS_prlimit64, prlimit_args), STEP_SETUP)?;
        let directory = (*setup.directory.pointers.as_ptr()).addr();
        check(call(libc::SYS_chdir, [directory, 0, 0, 0]), STEP_DIRECTORY)
    }
}

/// Makes the kernel send SIGSTOP to this process when it executes its program. The signal takes
/// effect before the first instruction of the program or of its dynamic loader.
///
/// The signal comes from a pipe whose two ends are closed on exec. Each end sends the signal if the
/// other end is closed first. The kernel closes both before it returns to user mode, in an
/// unspecified order. Returns 0 or a negated errno.
///
/// # Safety
/// The same as for [`prepare`].
unsafe fn stop_at_exec() -> isize {
    let mut ends = [0 as c_int; 2];
    // SAFETY: the kernel writes two descriptors to the array; the other calls pass no addresses.
    unsafe {
        let pipe_args = [ends.as_mut_ptr().addr(), libc::O_CLOEXEC as usize, 0, 0];
        let error = call(libc::SYS_pipe2, pipe_args);
        if error < 0 {
            return error;
        }
        let self_pid = call(libc::SYS_getpid, [0; 4]).cast_unsigned();
        for (end, access) in ends.into_iter().zip([libc::O_RDONLY, libc::O_WRONLY]) {
            for (command, argument) in [
                (libc::F_SETOWN, self_pid),
                (F_SETSIG, libc::SIGSTOP as usize),
                (libc::F_SETFL, (access | libc::O_ASYNC) as usize),
            ] {
                let error = call(libc::SYS_fcntl, [end as usize, command as usize, argument, 0]);
                if error < 0 {
                    return error;
                }
            }
        }
    }
    0
}

/// Opens the first path that exists, and returns the descriptor. `Err`: index of the path that
/// failed, and errno.
///
/// # Safety
/// The same as for [`prepare`].
unsafe fn open_first(paths: &Strings, flags: c_int) -> Result<isize, (u64, isize)> {
    let mut failure = (0, libc::ENOENT as isize);
    let cwd = libc::AT_FDCWD as usize;
    for (index, path) in (0..).zip(&paths.pointers) {
        if path.is_null() {
            break;
        }
        // SAFETY: system calls on a C string and on descriptors that they have returned.
        let error = unsafe {
            let open_flags = (flags | libc::O_CLOEXEC) as usize;
            let result = call(libc::SYS_openat, [cwd, path.addr(), open_flags, 0o666]);
            let fd = result.cast_unsigned();
            let getfl_args = [fd, libc::F_GETFL as usize, 0, 0];
            let flags = if result < 0 { result } else { call(libc::SYS_fcntl, getfl_args) };
            let blocking = (flags & !(libc::O_NONBLOCK as isize)).cast_unsigned();
            let setfl_args = [fd, libc::F_SETFL as usize, blocking, 0];
            match if flags < 0 { flags } else { call(libc::SYS_fcntl, setfl_args) } {
                0 => return Ok(result),
                error => -error,
            }
        };
        failure = (index, error);
        if error != libc::ENOENT as isize {
            break;
        }
    }
    Err(failure)
}

/// Tries the candidates as execvp(3) does. Returns the most informative errno.
///
/// # Safety
/// The same as for [`prepare`]. Every list must end with a null pointer, and its other entries must
/// be C strings.
unsafe fn execute(setup: &mut ChildSetup) -> isize {
    let mut best_errno = libc::ENOENT;
    let (arguments, environment) =
        (setup.arguments.pointers.as_ptr().addr(), setup.environment.pointers.as_ptr().addr());
    for candidate in &setup.candidates.pointers {
        if candidate.is_null() {
            break;
        }
        // SAFETY: see above.
        let error = unsafe {
            let error = -call(libc::SYS_execve, [candidate.addr(), arguments, environment, 0]);
            if error == libc::ENOEXEC as isize {
                // A script without `#!`. A shell would interpret it itself.
                *setup.shell_arguments.as_mut_ptr().add(1) = *candidate;
                let argv = setup.shell_arguments.as_ptr();
                call(libc::SYS_execve, [(*argv).addr(), argv.addr(), environment, 0]);
            }
            error
        };
        match error as c_int {
            libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
            libc::EACCES => best_errno = libc::EACCES,
            _ => return error,
        }
    }
    best_errno as isize
}
