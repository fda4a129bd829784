//! The part of libfabric's binary interface that a provider needs, of version 1.5 and later.
//! Objects start with a [`Fid`]. Tables of functions start with their size. Later versions append
//! members, which are not declared here. `tests/layout.rs` compares this file with the headers.
//!
//! A function in a table is an [`Op`] of unknown type. Therefore one function without arguments can
//! be the entry for all operations that the provider does not support.

use std::ffi::{c_char, c_int, c_void};

/// A function in a table.
pub type Op = unsafe extern "C" fn();

// Capabilities, flags of operations, modes (fabric.h).
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_FENCE: u64 = 1 << 21;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_DISCARD: u64 = 1 << 58;
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

/// The classes of fi_query_atomic(3).
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

/// Registration of device memory by a dma-buf descriptor (fi_mr(3)).
pub const FI_MR_DMABUF: u64 = 1 << 40;
// Requirements on a program that registers memory (fi_mr(3)).
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;

pub const FI_CNTR_EVENTS_COMP: c_int = 0;

pub const FI_EP_UNSPEC: c_int = 0;
pub const FI_EP_RDM: c_int = 3;

pub const FI_AV_UNSPEC: c_int = 0;
pub const FI_AV_TABLE: c_int = 2;

pub const FI_PROGRESS_UNSPEC: c_int = 0;
pub const FI_PROGRESS_MANUAL: c_int = 2;

pub const FI_THREAD_UNSPEC: c_int = 0;
pub const FI_THREAD_SAFE: c_int = 1;
pub const FI_THREAD_DOMAIN: c_int = 3;

pub const FI_RM_ENABLED: c_int = 2;

pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;

pub const FI_FORMAT_UNSPEC: u32 = 0;

// Classes of objects.
pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;

// Commands of fi_control.
pub const FI_GETOPSFLAG: c_int = 2;
pub const FI_GETWAIT: c_int = 5;
pub const FI_ENABLE: c_int = 6;

// Options of endpoints.
pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;

// Formats of completion queues.
pub const FI_CQ_FORMAT_UNSPEC: c_int = 0;
pub const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub const FI_CQ_FORMAT_MSG: c_int = 2;
pub const FI_CQ_FORMAT_DATA: c_int = 3;
pub const FI_CQ_FORMAT_TAGGED: c_int = 4;

// Wait objects.
pub const FI_WAIT_NONE: c_int = 0;
pub const FI_WAIT_UNSPEC: c_int = 1;
pub const FI_WAIT_FD: c_int = 3;
pub const FI_WAIT_YIELD: c_int = 5;

// Errors (fi_errno.h). Values below 256 are errno values.
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EAVAIL: c_int = 259;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOKEY: c_int = 266;

/// The start of each object.
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const FiOps,
}

/// The functions that each object has.
#[repr(C)]
pub struct FiOps {
    pub size: usize,
    pub close: Op,
    pub bind: Op,
    pub control: Op,
    pub ops_open: Op,
}

/// A provider (fi_prov.h).
#[repr(C)]
pub struct FiProvider {
    pub version: u32,
    pub fi_version: u32,
    /// Pointers for use by libfabric.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: Op,
    pub fabric: Op,
    pub cleanup: Op,
}

#[repr(C)]
pub struct FiTxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
}

#[repr(C)]
pub struct FiRxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

#[repr(C)]
pub struct FiEpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
}

#[repr(C)]
pub struct FiDomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
}

#[repr(C)]
pub struct FiFabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
}

#[repr(C)]
pub struct FiInfo {
    pub next: *mut FiInfo,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut FiTxAttr,
    pub rx_attr: *mut FiRxAttr,
    pub ep_attr: *mut FiEpAttr,
    pub domain_attr: *mut FiDomainAttr,
    pub fabric_attr: *mut FiFabricAttr,
}

#[repr(C)]
pub struct FiOpsFabric {
    pub size: usize,
    pub domain: Op,
    pub passive_ep: Op,
    pub eq_open: Op,
    pub wait_open: Op,
    pub trywait: Op,
}

#[repr(C)]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const FiOpsFabric,
    pub api_version: u32,
}

#[repr(C)]
pub struct FiOpsDomain {
    pub size: usize,
    pub av_open: Op,
    pub cq_open: Op,
    pub endpoint: Op,
    pub scalable_ep: Op,
    pub cntr_open: Op,
    pub poll_open: Op,
    pub stx_ctx: Op,
    pub srx_ctx: Op,
    pub query_atomic: Op,
}

#[repr(C)]
pub struct FiOpsMr {
    pub size: usize,
    pub reg: Op,
    pub regv: Op,
    pub regattr: Op,
}

#[repr(C)]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const FiOpsDomain,
    pub mr: *const FiOpsMr,
}

#[repr(C)]
pub struct FiAvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FiOpsAv {
    pub size: usize,
    pub insert: Op,
    pub insertsvc: Op,
    pub insertsym: Op,
    pub remove: Op,
    pub lookup: Op,
    pub straddr: Op,
}

#[repr(C)]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const FiOpsAv,
}

#[repr(C)]
pub struct FiCqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

#[repr(C)]
pub struct FiCqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

#[repr(C)]
pub struct FiCqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub struct FiOpsCq {
    pub size: usize,
    pub read: Op,
    pub readfrom: Op,
    pub readerr: Op,
    pub sread: Op,
    pub sreadfrom: Op,
    pub signal: Op,
    pub strerror: Op,
}

#[repr(C)]
pub struct FidCq {
    pub fid: Fid,
    pub ops: *const FiOpsCq,
}

#[repr(C)]
pub struct FiOpsCntr {
    pub size: usize,
    pub read: Op,
    pub readerr: Op,
    pub add: Op,
    pub set: Op,
    pub wait: Op,
    pub adderr: Op,
    pub seterr: Op,
}

#[repr(C)]
pub struct FidCntr {
    pub fid: Fid,
    pub ops: *const FiOpsCntr,
}

#[repr(C)]
pub struct FiOpsEq {
    pub size: usize,
    pub read: Op,
    pub readerr: Op,
    pub write: Op,
    pub sread: Op,
    pub strerror: Op,
}

#[repr(C)]
pub struct FidEq {
    pub fid: Fid,
    pub ops: *const FiOpsEq,
}

#[repr(C)]
pub struct FiOpsEp {
    pub size: usize,
    pub cancel: Op,
    pub getopt: Op,
    pub setopt: Op,
    pub tx_ctx: Op,
    pub rx_ctx: Op,
    pub rx_size_left: Op,
    pub tx_size_left: Op,
}

#[repr(C)]
pub struct FiOpsCm {
    pub size: usize,
    pub setname: Op,
    pub getname: Op,
    pub getpeer: Op,
    pub connect: Op,
    pub listen: Op,
    pub accept: Op,
    pub reject: Op,
    pub shutdown: Op,
    pub join: Op,
}

/// The functions for messages, with and without tags, in the same order.
#[repr(C)]
pub struct FiOpsMsg {
    pub size: usize,
    pub recv: Op,
    pub recvv: Op,
    pub recvmsg: Op,
    pub send: Op,
    pub sendv: Op,
    pub sendmsg: Op,
    pub inject: Op,
    pub senddata: Op,
    pub injectdata: Op,
}

/// The functions for remote memory.
#[repr(C)]
pub struct FiOpsRma {
    pub size: usize,
    pub read: Op,
    pub readv: Op,
    pub readmsg: Op,
    pub write: Op,
    pub writev: Op,
    pub writemsg: Op,
    pub inject: Op,
    pub writedata: Op,
    pub injectdata: Op,
}

/// The functions for atomic operations.
#[repr(C)]
pub struct FiOpsAtomic {
    pub size: usize,
    pub write: Op,
    pub writev: Op,
    pub writemsg: Op,
    pub inject: Op,
    pub readwrite: Op,
    pub readwritev: Op,
    pub readwritemsg: Op,
    pub compwrite: Op,
    pub compwritev: Op,
    pub compwritemsg: Op,
    pub writevalid: Op,
    pub readwritevalid: Op,
    pub compwritevalid: Op,
}

/// A memory region.
#[repr(C)]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// The attributes of a memory registration. Later versions append members.
#[repr(C)]
pub struct FiMrAttr {
    pub mr_iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}

#[repr(C)]
pub struct FiCntrAttr {
    pub events: c_int,
    pub wait_obj: c_int,
    pub wait_set: *mut c_void,
    pub flags: u64,
}

#[repr(C)]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const FiOpsEp,
    pub cm: *const FiOpsCm,
    pub msg: *const FiOpsMsg,
    pub rma: *const FiOpsRma,
    pub tagged: *const FiOpsMsg,
    pub atomic: *const FiOpsAtomic,
}

#[repr(C)]
pub struct FiMsg {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// A part of remote memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiMsgRma {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// A part of an array.
#[repr(C)]
pub struct FiIoc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// A part of an array in remote memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiRmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct FiMsgAtomic {
    pub msg_iov: *const FiIoc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const FiRmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub struct FiAtomicAttr {
    pub count: usize,
    pub size: usize,
}

#[repr(C)]
pub struct FiMsgTagged {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}
