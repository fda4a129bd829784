//! The C ABI of tool control, `libscoretools.so`: the functions of `ffi-c/include/score_toolctl.h`,
//! whose comments document them, and the callbacks of libthread_db (proc_service.h), so that
//! libthread_db works on a rank.
//!
//! libthread_db takes its callbacks from the symbols of the program that loads it. A tool that is
//! linked against this library exports them.
//!
//! # Safety
//! All functions have one safety rule, which score_toolctl.h states. A pointer is
//! NULL, or it points to an object as its type and the function's comment require, for the duration
//! of the call. A connection came from [`api`], is not closed, and is used by one thread at a time.
//! A process came from a connection that is not closed. For NULL, a function returns EINVAL or
//! PS_BADPID.
//!
//! A panic does not unwind into C: it prints its message and aborts, as for every `extern "C"`
//! function.

// UNSAFETY: turns the pointers of C into references.
#![expect(unsafe_code)]

mod api;
mod clean_up;
mod commands;
mod connection;
mod failure;
mod proc_service;
mod process;
mod rank;
mod symbols;

use std::ffi::{CStr, c_char, c_int};

use connection::Connection;
use failure::Failure;

/// A process of libthread_db (struct ps_prochandle): a rank of a connection.
pub struct ProcessHandle {
    connection: *mut Connection,
    rank: u32,
}

/// A connection of C.
///
/// # Safety
/// The rule of the crate.
unsafe fn connection<'a>(pointer: *mut Connection) -> Option<&'a mut Connection> {
    // SAFETY: not NULL, so by the rule a connection that no other thread uses now.
    unsafe { pointer.as_mut() }
}

/// The connection and the rank of a process of C.
///
/// # Safety
/// The rule of the crate.
unsafe fn process<'a>(pointer: *mut ProcessHandle) -> Option<(&'a mut Connection, u32)> {
    // SAFETY: not NULL, so by the rule a handle of a connection that is not closed.
    let (connection, rank) = unsafe { pointer.as_ref().map(|it| (it.connection, it.rank)) }?;
    // SAFETY: handles are freed with their connection, so that the connection exists.
    unsafe { connection.as_mut() }.map(|connection| (connection, rank))
}

/// Converts a result for C, and stores the text of a failure in the connection.
fn finish(connection: &mut Connection, result: Result<(), Failure>) -> c_int {
    connection.set_text("");
    match result {
        Ok(()) => 0,
        Err(failure) => {
            connection.set_text(&failure.to_string());
            failure.number()
        }
    }
}

/// A C string that must be UTF-8.
///
/// # Safety
/// The rule of the crate.
unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a str> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: by the rule it ends with a NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().ok()
}

/// `len` bytes of C. NULL is valid if there are none.
///
/// # Safety
/// The rule of the crate.
unsafe fn bytes<'a>(pointer: *const u8, len: usize) -> Option<&'a [u8]> {
    match (pointer.is_null(), len) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: by the rule `pointer` has `len` bytes.
        (false, _) => Some(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// An array of C with `len` entries. NULL is valid if there are none.
///
/// # Safety
/// The rule of the crate.
unsafe fn array<'a, T>(pointer: *mut T, len: usize) -> Option<&'a mut [T]> {
    match (pointer.is_null(), len) {
        (_, 0) => Some(&mut []),
        (true, _) => None,
        // SAFETY: by the rule `pointer` has `len` entries.
        (false, _) => Some(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}
