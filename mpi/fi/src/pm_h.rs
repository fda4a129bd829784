//! The part of pm.h and score.h that this crate calls. The functions are in libpm.so.2 and
//! libscore.so.6, so that a process has only one copy of PM. The headers document them.

#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_ulong};

/// PM's context. Opaque.
#[repr(C)]
pub(crate) struct pmContext {
    _opaque: [u8; 0],
}

/// The result of pmGetContextConfig.
#[repr(C)]
pub(crate) struct pmContextConfig {
    pub(crate) kind: *const std::ffi::c_char,
    pub(crate) number: c_int,
    pub(crate) nodes: c_int,
    pub(crate) mtu: usize,
    pub(crate) size: usize,
    pub(crate) option: c_ulong,
}

/// The result of pmGetMessageQueueStatus.
#[repr(C)]
pub(crate) struct pmMessageQueueStatus {
    pub(crate) receive: c_int,
    pub(crate) send: c_int,
    pub(crate) read: c_int,
}

/// The result of pmGetRemoteStatus.
#[repr(C)]
pub(crate) struct pmRemoteStatus {
    pub(crate) started: u64,
    pub(crate) completed: u64,
}

pub(crate) const PM_RMA_MTU: usize = 1 << 30;
pub(crate) const PM_OPT_REMOTE_WRITE: c_ulong = 1;
pub(crate) const PM_OPT_REMOTE_READ: c_ulong = 2;
pub(crate) const PM_NODE_ANY: c_int = -1;

// SAFETY: the declarations agree with pm.h.
unsafe extern "C" {
    pub(crate) fn pmGetContextConfig(
        context: *mut pmContext,
        config: *mut pmContextConfig,
    ) -> c_int;
    pub(crate) fn pmGetMtu(context: *mut pmContext, node: c_int, mtu: *mut usize) -> c_int;
    pub(crate) fn pmGetSendBuffer(
        context: *mut pmContext,
        node: c_int,
        buffer: *mut *mut u8,
        len: usize,
    ) -> c_int;
    pub(crate) fn pmSend(context: *mut pmContext) -> c_int;
    pub(crate) fn pmReceive(
        context: *mut pmContext,
        buffer: *mut *mut u8,
        len: *mut usize,
    ) -> c_int;
    pub(crate) fn pmReleaseReceiveBuffer(context: *mut pmContext) -> c_int;
    pub(crate) fn pmMLock(
        context: *mut pmContext,
        node: c_int,
        addr: *mut u8,
        len: usize,
        handle: *mut u64,
    ) -> c_int;
    pub(crate) fn pmMUnlock(
        context: *mut pmContext,
        node: c_int,
        addr: *mut u8,
        len: usize,
    ) -> c_int;
    pub(crate) fn pmRead(
        context: *mut pmContext,
        node: c_int,
        rmt_hndl: u64,
        local_hndl: u64,
        len: usize,
    ) -> c_int;
    pub(crate) fn pmGetMessageQueueStatus(
        context: *mut pmContext,
        status: *mut pmMessageQueueStatus,
    ) -> c_int;
    pub(crate) fn pmGetRemoteStatus(
        context: *mut pmContext,
        node: c_int,
        status: *mut pmRemoteStatus,
    ) -> c_int;
    pub(crate) fn pmWrite(
        context: *mut pmContext,
        node: c_int,
        rmt_hndl: u64,
        local_hndl: u64,
        len: usize,
    ) -> c_int;
    pub(crate) fn pmSetSerialized(context: *mut pmContext, serialized: c_int) -> c_int;
    pub(crate) fn pmSetPollPause(context: *mut pmContext, pause: c_int) -> c_int;
    pub(crate) fn pmGetFd(context: *mut pmContext, fd: *mut c_int, count: *mut c_int) -> c_int;
    pub(crate) fn pmBeforeSelect(context: *mut pmContext) -> c_int;
    pub(crate) fn pmAfterSelect(context: *mut pmContext) -> c_int;
    pub(crate) fn pmExtractNode(
        context: *mut pmContext,
        node: c_int,
        member: *mut *mut pmContext,
        member_node: *mut c_int,
    ) -> c_int;
}

// SAFETY: the declarations agree with score.h and sc.h.
unsafe extern "C" {
    pub(crate) static score_self_node: c_int;
    pub(crate) static score_num_node: c_int;
    pub(crate) static score_pmnet: *const *mut pmContext;
    pub(crate) fn score_become_idle_in_mpi_call(
        call: std::ffi::c_uint,
        arguments: *const [std::ffi::c_uint; 4],
    );
    pub(crate) fn score_become_busy();
    pub(crate) fn score_initialize_args(argc: c_int, argv: *const *const std::ffi::c_char);
    pub(crate) fn sc_inspectme(display: *const std::ffi::c_char, signal: c_int) -> c_int;
}
