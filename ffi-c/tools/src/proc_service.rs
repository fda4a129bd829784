//! The callbacks of libthread_db, which proc_service.h declares.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use crate::connection::Connection;
use crate::failure::{Failure, PsError};
use crate::process::{FLOAT_LEN, REGISTERS};
use crate::{ProcessHandle, array, bytes, finish, process, text};

const MISSING: Failure = Failure::Argument("a pointer is NULL, or a name is not UTF-8");

/// Carries out a callback, and stores the text of a failure for score_toolctl_error.
///
/// # Safety
/// The rule of the crate.
unsafe fn serve(
    handle: *mut ProcessHandle,
    body: impl FnOnce(&mut Connection, u32) -> Result<(), Failure>,
) -> PsError {
    // SAFETY: the rule of the crate.
    let Some((connection, rank)) = (unsafe { process(handle) }) else {
        return PsError::BadProcess;
    };
    let result = body(connection, rank);
    let error = result.as_ref().err().map_or(PsError::Ok, Failure::ps_error);
    finish(connection, result);
    error
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_pdread(
    handle: *mut ProcessHandle,
    address: *mut c_void,
    buffer: *mut c_void,
    len: usize,
) -> PsError {
    // SAFETY: the rule of the crate.
    let buffer = unsafe { array(buffer.cast(), len) };
    // SAFETY: the rule of the crate.
    unsafe {
        serve(handle, |connection, rank| {
            connection.read_memory(rank, address.addr() as u64, buffer.ok_or(MISSING)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_pdwrite(
    handle: *mut ProcessHandle,
    address: *mut c_void,
    buffer: *const c_void,
    len: usize,
) -> PsError {
    // SAFETY: the rule of the crate.
    let buffer = unsafe { bytes(buffer.cast(), len) };
    // SAFETY: the rule of the crate.
    unsafe {
        serve(handle, |connection, rank| {
            connection.write_memory(rank, address.addr() as u64, buffer.ok_or(MISSING)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_ptread(
    handle: *mut ProcessHandle,
    address: *mut c_void,
    buffer: *mut c_void,
    len: usize,
) -> PsError {
    // Text and data are in the same address space on Linux.
    // SAFETY: the rule of the crate.
    unsafe { ps_pdread(handle, address, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_ptwrite(
    handle: *mut ProcessHandle,
    address: *mut c_void,
    buffer: *const c_void,
    len: usize,
) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe { ps_pdwrite(handle, address, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lgetregs(
    handle: *mut ProcessHandle,
    thread: libc::pid_t,
    registers: *mut [u64; REGISTERS],
) -> PsError {
    // SAFETY: the rule of the crate; a prgregset_t has as many registers.
    unsafe {
        serve(handle, |connection, rank| {
            let room = registers.as_mut().ok_or(MISSING)?;
            connection.registers(rank, thread).map(|values| *room = values)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lsetregs(
    handle: *mut ProcessHandle,
    thread: libc::pid_t,
    registers: *const [u64; REGISTERS],
) -> PsError {
    // SAFETY: the rule of the crate; a prgregset_t has as many registers.
    unsafe {
        serve(handle, |connection, rank| {
            connection.set_registers(rank, thread, registers.as_ref().ok_or(MISSING)?)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lgetfpregs(
    handle: *mut ProcessHandle,
    thread: libc::pid_t,
    registers: *mut [u8; FLOAT_LEN],
) -> PsError {
    // SAFETY: the rule of the crate; a prfpregset_t has as many bytes.
    unsafe {
        serve(handle, |connection, rank| {
            let room = registers.as_mut().ok_or(MISSING)?;
            connection.float_registers(rank, thread).map(|values| *room = values)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lsetfpregs(
    handle: *mut ProcessHandle,
    thread: libc::pid_t,
    registers: *const [u8; FLOAT_LEN],
) -> PsError {
    // SAFETY: the rule of the crate; a prfpregset_t has as many bytes.
    unsafe {
        serve(handle, |connection, rank| {
            connection.set_float_registers(rank, thread, registers.as_ref().ok_or(MISSING)?)
        })
    }
}

/// Returns the process id on the host, or -1 if the process does not exist.
#[unsafe(no_mangle)]
unsafe extern "C" fn ps_getpid(handle: *mut ProcessHandle) -> libc::pid_t {
    let mut pid = -1;
    // SAFETY: the rule of the crate.
    unsafe {
        serve(handle, |connection, rank| connection.process_id(rank).map(|found| pid = found))
    };
    pid
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_get_thread_area(
    handle: *mut ProcessHandle,
    thread: libc::pid_t,
    segment: c_int,
    address: *mut *mut c_void,
) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe {
        serve(handle, |connection, rank| {
            let room = address.as_mut().ok_or(MISSING)?;
            let base = connection.thread_area(rank, thread, segment)?;
            *room = std::ptr::without_provenance_mut(base as usize);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_pglobal_lookup(
    handle: *mut ProcessHandle,
    object: *const c_char,
    name: *const c_char,
    address: *mut *mut c_void,
) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe {
        serve(handle, |connection, rank| {
            let room = address.as_mut().ok_or(MISSING)?;
            let found = connection.look_up(rank, text(object), text(name).ok_or(MISSING)?)?;
            *room = std::ptr::without_provenance_mut(found as usize);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_pstop(handle: *mut ProcessHandle) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe { serve(handle, Connection::stop) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_pcontinue(handle: *mut ProcessHandle) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe { serve(handle, Connection::proceed) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lstop(handle: *mut ProcessHandle, thread: libc::pid_t) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe { serve(handle, |connection, rank| connection.hold(rank, thread)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ps_lcontinue(handle: *mut ProcessHandle, thread: libc::pid_t) -> PsError {
    // SAFETY: the rule of the crate.
    unsafe { serve(handle, |connection, rank| connection.release_thread(rank, thread)) }
}
