//! PM's C functions as pmtest calls them. It calls them by address, so that the linker cannot
//! inline them and pmtest measures the calls of a C program.

// UNSAFETY: calls C functions, and reads and writes the buffers that they return.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::hint::black_box;
use std::io;
use std::ptr::{null, null_mut};

use score_runtime::Net;
use score_runtime::pm_h::*;
use thiserror::Error;

type GetSendBuffer = unsafe extern "C" fn(*mut pmContext, c_int, *mut *mut u8, usize) -> c_int;
type Receive = unsafe extern "C" fn(*mut pmContext, *mut *mut u8, *mut usize) -> c_int;
type ContextFn = unsafe extern "C" fn(*mut pmContext) -> c_int;

/// A PM function that has failed.
#[derive(Debug, Error)]
#[error("{call}: {}", io::Error::from_raw_os_error(*.code))]
pub struct PmError {
    call: &'static str,
    code: c_int,
}

impl PmError {
    /// Whether PM has returned this code.
    pub fn has_code(&self, code: c_int) -> bool {
        self.code == code
    }
}

/// Messages through a composite context.
pub struct Channel {
    context: *mut pmContext,
    get_send_buffer: GetSendBuffer,
    send: ContextFn,
    receive: Receive,
    release: ContextFn,
}

/// Converts PM's return value to a result.
pub(super) fn check(call: &'static str, code: c_int) -> Result<(), PmError> {
    if code == 0 { Ok(()) } else { Err(PmError { call, code }) }
}

/// Copies `length` bytes like a program whose small messages have a known size: one word by a move,
/// not by memcpy.
///
/// # Safety
/// The same requirements as for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    if length == 8 {
        // SAFETY: as the caller guarantees: both pointers are valid for 8 bytes.
        unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
    } else {
        // SAFETY: as the caller guarantees: both pointers are valid for `length` bytes that do not
        // overlap.
        unsafe { to.copy_from_nonoverlapping(from, length) };
    }
}

impl Channel {
    /// The channel of a network set.
    pub fn from_net(net: &Net) -> Self {
        Self::new(net.as_ptr())
    }

    fn new(context: *mut pmContext) -> Self {
        // black_box hides from the compiler which functions are called.
        Self {
            context,
            get_send_buffer: black_box(pmGetSendBuffer as GetSendBuffer),
            send: black_box(pmSend as ContextFn),
            receive: black_box(pmReceive as Receive),
            release: black_box(pmReleaseReceiveBuffer as ContextFn),
        }
    }

    /// The context, for other functions of PM.
    pub fn as_ptr(&self) -> *mut pmContext {
        self.context
    }

    /// The longest message towards a node.
    ///
    /// # Errors
    /// The error of pmGetMtu.
    pub fn mtu(&self, node: c_int) -> Result<usize, PmError> {
        let mut mtu = 0;
        // SAFETY: PM checks the context; the pointer is valid for the call.
        check("pmGetMtu", unsafe { pmGetMtu(self.context, node, &raw mut mtu) })?;
        Ok(mtu)
    }

    /// Sends a copy of `bytes`. Polls until a send buffer is available.
    ///
    /// # Errors
    /// The error of pmGetSendBuffer or pmSend, except ENOBUFS.
    #[inline(always)]
    pub fn send(&self, node: c_int, bytes: &[u8]) -> Result<(), PmError> {
        let mut buffer = null_mut();
        loop {
            // SAFETY: PM checks the context; the pointer is valid for the call.
            match unsafe {
                (self.get_send_buffer)(self.context, node, &raw mut buffer, bytes.len())
            } {
                0 => break,
                libc::ENOBUFS => {}
                code => return Err(PmError { call: "pmGetSendBuffer", code }),
            }
        }
        // SAFETY: the send buffer has that many bytes, and only this thread uses it until pmSend.
        unsafe { copy(bytes.as_ptr(), buffer, bytes.len()) };
        // SAFETY: PM checks the context.
        check("pmSend", unsafe { (self.send)(self.context) })
    }

    /// Polls for the next message and copies it to the front of `into`. Returns its length.
    ///
    /// # Errors
    /// The error of pmReceive, except ENOBUFS. EMSGSIZE: the message is longer than `into`.
    #[inline(always)]
    pub fn receive(&self, into: &mut [u8]) -> Result<usize, PmError> {
        let (mut buffer, mut length) = (null_mut(), 0);
        loop {
            // SAFETY: PM checks the context; the pointers are valid for the call.
            match unsafe { (self.receive)(self.context, &raw mut buffer, &raw mut length) } {
                0 => break,
                libc::ENOBUFS => {}
                code => return Err(PmError { call: "pmReceive", code }),
            }
        }
        let fits = length <= into.len();
        if fits {
            // SAFETY: the receive buffer has `length` bytes until its release, and they fit.
            unsafe { copy(buffer, into.as_mut_ptr(), length) };
        }
        // SAFETY: PM checks the context.
        check("pmReleaseReceiveBuffer", unsafe { (self.release)(self.context) })?;
        if fits { Ok(length) } else { Err(PmError { call: "pmReceive", code: libc::EMSGSIZE }) }
    }
}

/// Opens two composites on one shmem device, both in this process. They need neither scrun nor a
/// second core.
///
/// # Errors
/// The error of PM.
pub fn open_loopback_pair() -> Result<[Channel; 2], PmError> {
    let argv = [c"-nodes".as_ptr(), c"2".as_ptr(), null()];
    let open_device = |kind: &'static std::ffi::CStr| {
        let mut device = null_mut();
        // SAFETY: the strings and pointers are valid for the call.
        let code = unsafe { pmOpenDevice(kind.as_ptr(), 2, argv.as_ptr(), &raw mut device) };
        check("pmOpenDevice", code).map(|()| device)
    };
    let open_context = |device, number| {
        let mut context = null_mut();
        // SAFETY: the device is PM's; the pointer is valid for the call.
        let code = unsafe { pmOpenContext(device, number, &raw mut context) };
        check("pmOpenContext", code).map(|()| context)
    };
    let shmem = open_device(c"shmem")?;
    let mut ends = [null_mut(); 2];
    for (self_node, end) in (0..).zip(&mut ends) {
        let member = open_context(shmem, self_node)?;
        // SAFETY: PM checks the context.
        check("pmBindChannel", unsafe { pmBindChannel(member, 0, self_node) })?;
        *end = open_context(open_device(c"composite")?, 0)?;
        for node in 0..2 {
            // SAFETY: PM checks both contexts.
            check("pmAddNode", unsafe { pmAddNode(*end, node, member, node) })?;
        }
    }
    Ok(ends.map(Channel::new))
}
