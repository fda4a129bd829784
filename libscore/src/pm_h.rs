//! The part of `pm.h` that this crate calls. Only this file declares the functions, so that the
//! linker finds them in `libpm.so`, or in the one archive or binary that contains PM. `pm.h`
//! documents them.

// UNSAFETY: foreign functions.
#![expect(unsafe_code)]
#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_int};

/// PM's context. Opaque.
#[repr(C)]
pub struct pmContext {
    _opaque: [u8; 0],
}

/// PM's device. Opaque.
#[repr(C)]
pub struct pmDevice {
    _opaque: [u8; 0],
}

// SAFETY: as declared in pm.h.
unsafe extern "C" {
    pub fn pmOpenDevice(
        kind: *const c_char,
        argc: c_int,
        argv: *const *const c_char,
        out: *mut *mut pmDevice,
    ) -> c_int;
    pub fn pmCloseDevice(device: *mut pmDevice) -> c_int;
    pub fn pmOpenContext(device: *mut pmDevice, number: c_int, out: *mut *mut pmContext) -> c_int;
    pub fn pmCloseContext(context: *mut pmContext) -> c_int;
    pub fn pmBindChannel(context: *mut pmContext, channel: c_int, self_node: c_int) -> c_int;
    pub fn pmAttachContext(kind: *const c_char, fd: c_int, out: *mut *mut pmContext) -> c_int;
    pub fn pmDetachContext(context: *mut pmContext) -> c_int;
    pub fn pmAddNode(
        context: *mut pmContext,
        node: c_int,
        member: *mut pmContext,
        at: c_int,
    ) -> c_int;
    pub fn pmGetMtu(context: *mut pmContext, node: c_int, mtu: *mut usize) -> c_int;
    pub fn pmGetSendBuffer(
        context: *mut pmContext,
        node: c_int,
        buffer: *mut *mut u8,
        len: usize,
    ) -> c_int;
    pub fn pmTruncateBuffer(context: *mut pmContext, len: usize) -> c_int;
    pub fn pmSend(context: *mut pmContext) -> c_int;
    pub fn pmReceive(context: *mut pmContext, buffer: *mut *mut u8, len: *mut usize) -> c_int;
    pub fn pmReleaseReceiveBuffer(context: *mut pmContext) -> c_int;
    pub fn pmGetFd(context: *mut pmContext, fds: *mut c_int, count: *mut c_int) -> c_int;
    pub fn pmBeforeSelect(context: *mut pmContext) -> c_int;
    pub fn pmAfterSelect(context: *mut pmContext) -> c_int;
    pub fn pmMLock(
        context: *mut pmContext,
        node: c_int,
        addr: *mut u8,
        len: usize,
        handle: *mut u64,
    ) -> c_int;
    pub fn pmMUnlock(context: *mut pmContext, node: c_int, addr: *mut u8, len: usize) -> c_int;
    pub fn pmWrite(
        context: *mut pmContext,
        node: c_int,
        rmt_hndl: u64,
        local_hndl: u64,
        len: usize,
    ) -> c_int;
    pub fn pmRead(
        context: *mut pmContext,
        node: c_int,
        rmt_hndl: u64,
        local_hndl: u64,
        len: usize,
    ) -> c_int;
    pub fn pmIsWriteDone(context: *mut pmContext) -> c_int;
    pub fn pmIsReadDone(context: *mut pmContext) -> c_int;
    pub fn pmAlloc(context: *mut pmContext, len: usize, addr: *mut *mut u8) -> c_int;
    pub fn pmSetIdleWord(word: *const u32, callback: Option<extern "C" fn()>) -> c_int;
}
