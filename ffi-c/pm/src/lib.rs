//! The C ABI of PMv2, `libpm.so` and `libpm.a`: the functions of `ffi-c/include/pm.h`, whose
//! comments document them. They check the arguments from C and call [`score_pm`].
//!
//! # Safety
//! All functions have one safety rule, which pm.h states. A pointer is NULL, or it
//! points to an object as its type and the function's comment require, for the duration of the
//! call. A context or device came from a function of this library (and may have been closed since).
//! For NULL, a function returns EINVAL.
//!
//! A panic does not unwind into C: it prints its message and aborts, as for every `extern "C"`
//! function.

// UNSAFETY: turns the pointers of C into references.
#![expect(unsafe_code)]

mod composite;
mod context;
mod debug;
mod device;
mod message;
mod rma;
mod select;

pub use context::ContextConfig;
pub use device::DeviceConfig;
pub use message::MessageQueueStatus;
pub use rma::{AddrHandle, MmapInfo, RemoteStatus};

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use score_pm::{Error, PmResult};

/// Runs a function's body; returns `PM_SUCCESS` or the errno value.
#[inline(always)]
fn to_errno(body: impl FnOnce() -> PmResult<()>) -> c_int {
    match body() {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}

/// An OUT argument. The check precedes all work, so that a call with NULL changes nothing.
///
/// # Safety
/// The rule of the crate.
#[inline(always)]
unsafe fn out<'a, T>(pointer: *mut T) -> PmResult<&'a mut MaybeUninit<T>> {
    // SAFETY: not NULL, so by the rule it points to a T, perhaps not initialised yet.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or(Error::Invalid)
}

/// An argument that is read and then set.
///
/// # Safety
/// The rule of the crate.
unsafe fn in_out<'a, T>(pointer: *mut T) -> PmResult<&'a mut T> {
    // SAFETY: not NULL, so by the rule it points to a T.
    unsafe { pointer.as_mut() }.ok_or(Error::Invalid)
}

/// An array of `len` entries to be written; NULL is valid if there are none.
///
/// # Safety
/// The rule of the crate.
unsafe fn array<'a, T>(pointer: *mut T, len: usize) -> PmResult<&'a mut [T]> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Error::Invalid),
        // SAFETY: by the rule `pointer` has space for `len` entries.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) }),
    }
}

/// A C string that must be UTF-8, like all names and numbers here.
///
/// # Safety
/// The rule of the crate.
unsafe fn text<'a>(pointer: *const c_char) -> PmResult<&'a str> {
    if pointer.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: by the rule it ends with a NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Error::Invalid)
}

/// A node number, channel number or similar: not below 0.
#[inline(always)]
fn non_negative(number: c_int) -> PmResult<u32> {
    u32::try_from(number).map_err(|_| Error::Invalid)
}

/// A count as a C `int`; larger counts become the largest `int`.
fn int(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// The C strings of the device names; never freed.
static DEVICE_TYPE_NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    let name = |name: &&str| CString::new(*name).expect("device names have no NUL");
    score_pm::DEVICE_TYPES.iter().map(name).collect()
});

/// The C string of a device name.
fn name(kind: &str) -> *const c_char {
    let known = DEVICE_TYPE_NAMES.iter().find(|name| name.to_bytes() == kind.as_bytes());
    known.map_or(c"unknown".as_ptr(), |name| name.as_ptr())
}

// Limits that pm.h repeats.
const _: () = assert!(score_pm::MAX_NODE == 1_048_576);
const _: () = assert!(score_pm::MIN_MTU == 1024);
const _: () = assert!(score_pm::RMA_MTU == 1 << 30);
const _: () = assert!(score_pm::CONTROL_MTU == 48);
const _: () = assert!(score_pm::OPT_REMOTE_WRITE == 1 && score_pm::OPT_REMOTE_READ == 2);

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    extern "C" fn panics() -> c_int {
        to_errno(|| panic!("on purpose"))
    }

    #[test]
    fn a_panic_aborts_with_its_message_and_does_not_unwind_into_c() {
        const IN_CHILD_ENV: &str = "PM_C_TEST_PANICS";
        if std::env::var_os(IN_CHILD_ENV).is_some() {
            // A panic that unwinds out would be caught here and end this child with 0.
            let _ = std::panic::catch_unwind(|| panics());
            std::process::exit(0);
        }
        let name = "tests::a_panic_aborts_with_its_message_and_does_not_unwind_into_c";
        let child = std::process::Command::new(std::env::current_exe().expect("it is running"))
            .args([name, "--exact", "--nocapture"])
            .env(IN_CHILD_ENV, "1")
            .output()
            .expect("it can be started again");
        assert_eq!(child.status.signal(), Some(libc::SIGABRT));
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(stderr.contains("on purpose"), "{stderr}");
    }

    #[test]
    fn numbers_of_c_are_checked() {
        assert_eq!(non_negative(-1), Err(Error::Invalid));
        assert_eq!(non_negative(c_int::MAX), Ok(i32::MAX as u32));
        assert_eq!(int(usize::MAX), c_int::MAX);
    }

    #[test]
    fn every_device_name_is_a_c_string() {
        for kind in &score_pm::DEVICE_TYPES {
            // SAFETY: a string that is never freed.
            assert_eq!(unsafe { CStr::from_ptr(name(kind)) }.to_str(), Ok(*kind));
        }
    }
}
