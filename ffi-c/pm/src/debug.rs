//! PM's messages, and the connection to the idle flag.

// UNSAFETY: exports C functions, which take pointers; the rule is that of the crate.
#![expect(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::AtomicU32;

use score_pm::{Context, Error, IdleCallback};

use crate::{non_negative, to_errno};

#[unsafe(no_mangle)]
extern "C" fn pmDebug(level: c_int) -> c_int {
    to_errno(|| {
        non_negative(level)?;
        score_pm::debug::set_level(level);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmDumpContext(pmc: *mut Context) -> c_int {
    to_errno(|| {
        // SAFETY: the rule of the crate.
        unsafe { Context::from_ptr(pmc) }?.dump(&mut std::io::stderr().lock())
    })
}

/// The meaning of the errno values that PM returns, in PM's terms.
fn error_text(error: c_int) -> Option<&'static CStr> {
    Some(match error {
        0 => c"success",
        libc::EINVAL => c"invalid argument, or not an object of this process",
        libc::ENOBUFS => c"no message, or no space for one, at the moment",
        libc::EBUSY => c"in use by another thread, or not done yet",
        libc::EIO => c"called out of order, or an error of the link",
        libc::EPIPE => c"the link was reset",
        libc::ENODEV => c"no such device, or not on this machine",
        libc::ENOSYS => c"not offered by this device or context",
        libc::ENOMEM => c"not enough memory",
        libc::ENOSPC => c"not enough space in an array or table",
        libc::ENOENT => c"no such entry",
        libc::EMFILE => c"too many open descriptors",
        libc::EPERM => c"reserved for SCore-D",
        libc::EAGAIN => c"try again",
        _ => return None,
    })
}

#[unsafe(no_mangle)]
extern "C" fn pmErrorString(error: c_int) -> *mut c_char {
    match error_text(error) {
        Some(text) => text.as_ptr().cast_mut(),
        // SAFETY: takes any number; glibc's buffer for unknown numbers belongs to the thread.
        None => unsafe { libc::strerror(error) },
    }
}

extern "C" fn nothing() {}

#[unsafe(no_mangle)]
unsafe extern "C" fn pmSetIdleWord(
    word: *const AtomicU32,
    callback: Option<IdleCallback>,
) -> c_int {
    to_errno(|| {
        let callback = match callback {
            Some(callback) => callback,
            None if word.is_null() => nothing,
            None => return Err(Error::Invalid),
        };
        // SAFETY: pm.h requires the word to stay valid until the next call.
        unsafe { score_pm::set_idle_word(word, callback) };
        Ok(())
    })
}
