//! A process between its making and its program. Until then it uses our memory (CLONE_VM) instead
//! of a copy, which would have to be made and given back; unlike a vfork nobody waits for it, as
//! it may take its time: it opens files, which may be on a server that is gone.
//!
//! It runs on a stack of its own, and does system calls only: by our own instruction, because
//! those of the C library leave their error in a place that it shares with the thread that made
//! it. All that it reads is in its [`Newborn`], which nobody touches before the kernel says that
//! it has left our memory (CLONE_CHILD_CLEARTID).

// UNSAFETY: clone(2) with a stack, and the system calls of what runs there.
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

use super::spawn::{CONTROL_NUMBER, Launch, Opening, Source};

pub const STEP_SETUP: u64 = 1;
pub const STEP_DIRECTORY: u64 = 2;
pub const STEP_PROGRAM: u64 = 3;
/// Plus four times the path's number, plus the descriptor's.
pub const STEP_FILE: u64 = 16;

/// Bytes of its stack: system calls need none of it.
const STACK: usize = 32 << 10;
/// What all processors ask of a stack.
const ALIGNMENT: usize = 16;
/// Exit code of one that did not come to its program.
const NOT_STARTED: usize = 127;

/// C strings, and the list of pointers to them that execve(2) takes.
struct Strings {
    /// Behind the pointers.
    _bytes: Box<[u8]>,
    pointers: Box<[*const c_char]>,
}

impl Strings {
    fn new<'a>(strings: impl Iterator<Item = &'a CStr> + Clone) -> Strings {
        let bytes: Vec<u8> =
            strings.clone().flat_map(|string| string.to_bytes_with_nul()).copied().collect();
        let bytes = bytes.into_boxed_slice();
        let mut at = 0;
        let mut pointers = Vec::new();
        for string in strings {
            pointers.push(bytes[at..].as_ptr().cast());
            at += string.to_bytes_with_nul().len();
        }
        pointers.push(ptr::null());
        Strings { _bytes: bytes, pointers: pointers.into_boxed_slice() }
    }
}

/// Where one of its descriptors comes from.
enum From {
    Here(c_int),
    File(Strings, c_int),
}

impl From {
    fn new(source: &Source<'_>) -> From {
        match source {
            Source::Here(descriptor) => From::Here(descriptor.as_raw_fd()),
            Source::File(Opening { paths, flags }) => {
                From::File(Strings::new(paths.iter().map(|path| path.as_c_str())), *flags)
            }
        }
    }
}

/// What it is to do.
struct Order {
    candidates: Strings,
    arguments: Strings,
    /// `/bin/sh FILE arguments`, for a script without `#!`; it fills in FILE.
    shell: Box<[*const c_char]>,
    environment: Strings,
    directory: Strings,
    descriptors: [From; 4],
    descriptor_limit: libc::rlimit,
    /// Our process number, where it shall end with us.
    parent: Option<u32>,
    processor: Option<CpuSet>,
}

impl Order {
    fn new(launch: &Launch<'_>) -> Order {
        let (candidates, arguments) = launch.program.parts();
        let arguments = Strings::new(arguments.iter().map(|argument| argument.as_c_str()));
        let mut shell = vec![c"/bin/sh".as_ptr(), ptr::null()];
        // With the null pointer at its end, also where there is no argument at all.
        shell.extend(&arguments.pointers[1.min(arguments.pointers.len() - 1)..]);
        Order {
            candidates: Strings::new(candidates.iter().map(|path| path.as_c_str())),
            arguments,
            shell: shell.into_boxed_slice(),
            environment: Strings::new(launch.environment.iter().copied()),
            directory: Strings::new([launch.directory].into_iter()),
            descriptors: [0, 1, 2, 3].map(|number| From::new(&launch.descriptors[number])),
            descriptor_limit: launch.descriptor_limit,
            parent: launch.die_with_parent.then(std::process::id),
            processor: launch.processor.copied(),
        }
    }
}

/// See the module. It may be dropped, or used again, when it [`Newborn::is_gone`]; one that is not
/// has to be forgotten.
pub struct Newborn {
    /// 1 while a process uses this; the kernel writes 0, and wakes nobody.
    busy: AtomicU32,
    /// Step << 32 | errno of what went wrong, or 0.
    fault: AtomicU64,
    /// The process's, while it is busy.
    order: UnsafeCell<Order>,
    stack: Box<[MaybeUninit<u8>]>,
}

impl std::fmt::Debug for Newborn {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Newborn {{ busy: {:?} }}", self.busy)
    }
}

impl Newborn {
    /// Makes a process, in a session of its own; all signals must be blocked in the caller. `used`:
    /// one that is gone. Answers the process number, or errno.
    pub fn new(launch: &Launch<'_>, used: Option<Rc<Newborn>>) -> Result<(i32, Rc<Newborn>), i32> {
        let order = Order::new(launch);
        let mut used = used.filter(|used| used.is_gone());
        let used = used.as_mut().and_then(Rc::get_mut).map(|used| std::mem::take(&mut used.stack));
        let mut stack = used.unwrap_or_else(|| Box::new_uninit_slice(STACK));
        let top = stack.as_mut_ptr_range().end;
        let top = top.wrapping_sub(top.addr() % ALIGNMENT);
        let newborn = Rc::new(Newborn {
            busy: AtomicU32::new(1),
            fault: AtomicU64::new(0),
            order: UnsafeCell::new(order),
            stack,
        });
        let flags = libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD;
        let null = ptr::null_mut::<c_void>();
        let me = Rc::as_ptr(&newborn).cast_mut().cast::<c_void>();
        // SAFETY: its own stack, whose end is aligned; both stay where they are until it is gone;
        // no thread-local storage is asked for, and none is used there.
        let pid =
            unsafe { libc::clone(begin, top.cast(), flags, me, null, null, newborn.busy.as_ptr()) };
        if pid < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            newborn.busy.store(0, Ordering::Relaxed);
            return Err(errno.unwrap_or(libc::EIO));
        }
        Ok((pid, newborn))
    }

    /// Whether the process has left our memory: it runs its program, or has ended.
    pub fn is_gone(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Of one that is gone: which step went wrong, and errno.
    pub fn fault(&self) -> Option<(u64, i32)> {
        let word = self.fault.load(Ordering::Acquire);
        (word != 0).then_some((word >> 32, (word as u32).cast_signed()))
    }
}

/// A system call, as the kernel answers it: an errno that is negative, or what it returns.
///
/// # Safety
/// As the call's.
#[inline(always)]
unsafe fn call(number: c_long, arguments: [usize; 4]) -> isize {
    let [a, b, c, d] = arguments;
    let result: isize;
    // SAFETY: the caller's; nothing is on the stack below.
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
    compile_error!("how does this processor call the system?");
    result
}

/// What it does, on its own stack.
extern "C" fn begin(me: *mut c_void) -> c_int {
    // SAFETY: the newborn, whose order is this process's alone until it is gone.
    let (newborn, order) = unsafe {
        let newborn = &*me.cast::<Newborn>();
        (newborn, &mut *newborn.order.get())
    };
    // SAFETY: this is the child; what it reads is in the order.
    let (step, error) = unsafe {
        match prepare(order) {
            Ok(()) => (STEP_PROGRAM, execute(order)),
            Err(fault) => fault,
        }
    };
    newborn.fault.store(step << 32 | error as u64, Ordering::Release);
    end()
}

fn end() -> ! {
    loop {
        // SAFETY: ends this process, and touches nothing.
        unsafe { call(libc::SYS_exit_group, [NOT_STARTED, 0, 0, 0]) };
    }
}

/// `Err`: step and errno.
///
/// # Safety
/// Runs in the child only.
unsafe fn prepare(order: &Order) -> Result<(), (u64, isize)> {
    let check = |result: isize, step: u64| if result < 0 { Err((step, -result)) } else { Ok(()) };
    // SAFETY: plain system calls on values that the parent has prepared.
    unsafe {
        if let Some(parent) = order.parent {
            let death = [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0];
            call(libc::SYS_prctl, death);
            if call(libc::SYS_getppid, [0; 4]) != parent as isize {
                end();
            }
        }
        check(call(libc::SYS_setsid, [0; 4]), STEP_SETUP)?;
        if let Some(set) = &order.processor {
            let set = ptr::from_ref(set).addr();
            // One that is taken from the host meanwhile is no reason not to run.
            call(libc::SYS_sched_setaffinity, [0, size_of::<CpuSet>(), set, 0]);
        }
        // What comes now may take long; all dispositions are default, so that a signal ends it.
        let none = 0u64;
        let mask = [libc::SIG_SETMASK as usize, ptr::from_ref(&none).addr(), 0, 8];
        call(libc::SYS_rt_sigprocmask, mask);
        for (number, from) in (0usize..).zip(&order.descriptors) {
            let from = match from {
                From::Here(from) => *from as isize,
                From::File(paths, flags) => match open_first(paths, *flags) {
                    Ok(file) => file,
                    Err((at, error)) => return Err((STEP_FILE + 4 * at + number as u64, error)),
                },
            };
            // They are above the numbers they get (`descriptor::reserve_low`), so none is its own
            // target and none is overwritten before its turn.
            if from <= CONTROL_NUMBER as isize {
                return Err((STEP_SETUP, libc::EBADF as isize));
            }
            check(call(libc::SYS_dup3, [from.cast_unsigned(), number, 0, 0]), STEP_SETUP)?;
        }
        let limit = ptr::from_ref(&order.descriptor_limit).addr();
        let limit = [0, libc::RLIMIT_NOFILE as usize, limit, 0];
        check(call(libc::SYS_prlimit64, limit), STEP_SETUP)?;
        let directory = (*order.directory.pointers.as_ptr()).addr();
        check(call(libc::SYS_chdir, [directory, 0, 0, 0]), STEP_DIRECTORY)
    }
}

/// Opens the first path that is there; else the number of the one that counts, and errno.
///
/// # Safety
/// As [`prepare`].
unsafe fn open_first(paths: &Strings, flags: c_int) -> Result<isize, (u64, isize)> {
    let mut last = (0, libc::ENOENT as isize);
    let cwd = libc::AT_FDCWD as usize;
    for (at, path) in (0..).zip(&paths.pointers) {
        if path.is_null() {
            break;
        }
        // SAFETY: system calls on a C string and on what they have returned.
        let error = unsafe {
            let how = (flags | libc::O_CLOEXEC) as usize;
            let file = call(libc::SYS_openat, [cwd, path.addr(), how, 0o666]);
            let named = file.cast_unsigned();
            let get = [named, libc::F_GETFL as usize, 0, 0];
            let flags = if file < 0 { file } else { call(libc::SYS_fcntl, get) };
            let blocking = (flags & !(libc::O_NONBLOCK as isize)).cast_unsigned();
            let set = [named, libc::F_SETFL as usize, blocking, 0];
            match if flags < 0 { flags } else { call(libc::SYS_fcntl, set) } {
                0 => return Ok(file),
                error => -error,
            }
        };
        last = (at, error);
        if error != libc::ENOENT as isize {
            break;
        }
    }
    Err(last)
}

/// Tries the candidates as execvp(3) does; returns the errno that tells most.
///
/// # Safety
/// As [`prepare`]; every list ends with a null pointer, the rest are C strings.
unsafe fn execute(order: &mut Order) -> isize {
    let mut verdict = libc::ENOENT;
    let (arguments, environment) =
        (order.arguments.pointers.as_ptr().addr(), order.environment.pointers.as_ptr().addr());
    for candidate in &order.candidates.pointers {
        if candidate.is_null() {
            break;
        }
        // SAFETY: see above.
        let error = unsafe {
            let error = -call(libc::SYS_execve, [candidate.addr(), arguments, environment, 0]);
            if error == libc::ENOEXEC as isize {
                // A script without `#!`: a shell would run it as its own.
                *order.shell.as_mut_ptr().add(1) = *candidate;
                let shell = order.shell.as_ptr();
                call(libc::SYS_execve, [(*shell).addr(), shell.addr(), environment, 0]);
            }
            error
        };
        match error as c_int {
            libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
            libc::EACCES => verdict = libc::EACCES,
            _ => return error,
        }
    }
    verdict as isize
}
