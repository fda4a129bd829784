//! Declarations of the used part of infiniband/verbs.h. The layouts are those of rdma-core 44; the
//! library has kept them compatible since 2005. A structure that is only passed by address is
//! declared up to the last field that is read.

#![forbid(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

pub(super) const PORT_ACTIVE: u32 = 4;
pub(super) const LINK_ETHERNET: u8 = 2;
pub(super) const TRANSPORT_IWARP: u32 = 1;
pub(super) const GID_ROCE_V2: u32 = 2;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;

/// Reliable connection.
pub(super) const TYPE_RC: u32 = 2;

pub(super) const STATE_RESET: u32 = 0;
pub(super) const STATE_INIT: u32 = 1;
pub(super) const STATE_RTR: u32 = 2;
pub(super) const STATE_RTS: u32 = 3;
pub(super) const STATE_ERR: u32 = 6;

/// Bits that select the valid fields of [`QpAttr`].
pub(super) mod mask {
    use std::ffi::c_int;
    pub(crate) const STATE: c_int = 1;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

pub(super) const OPCODE_WRITE: u32 = 0;
pub(super) const OPCODE_SEND: u32 = 2;
pub(super) const OPCODE_READ: u32 = 4;

pub(super) const SEND_SIGNALED: u32 = 1 << 1;
pub(super) const SEND_INLINE: u32 = 1 << 3;

/// Completion states of an invalid work request: its length, the local memory, the remote memory or
/// the remote operation. All other errors belong to the connection. rdma_rxe returns "local queue
/// pair operation" (2) while there is no route.
pub(super) const REQUEST_ERROR_STATUSES: [u32; 5] = [1, 4, 9, 10, 11];

/// The bit that is set in the opcode of a receive completion.
pub(super) const WC_RECV: u32 = 1 << 7;

pub(super) const EVENT_DEVICE_FATAL: u32 = 8;
pub(super) const EVENT_PORT_ACTIVE: u32 = 9;
pub(super) const EVENT_PORT_ERR: u32 = 10;

/// `struct ibv_device`, up to the last field that is read.
#[repr(C)]
pub(super) struct IbvDevice {
    ops: [*mut c_void; 2],
    node_type: u32,
    pub(super) transport_type: u32,
    /// The device's name, and the name of its file in /dev/infiniband.
    pub(super) names: [[c_char; 64]; 2],
    /// The device's path in sysfs, a terminated text.
    pub(super) dev_path: [c_char; 256],
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    gid_tbl_len: i32,
    port_cap_flags: u32,
    max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    ndev_ifindex: u32,
}

/// `struct ibv_device_attr`, in words of four bytes.
#[repr(C)]
pub(super) struct DeviceAttr([u32; 58]);

impl DeviceAttr {
    pub(super) fn new() -> DeviceAttr {
        DeviceAttr([0; 58])
    }
    pub(super) fn vendor(&self) -> u32 {
        self.0[96 / 4]
    }
    /// The largest number of work requests of a queue pair.
    pub(super) fn max_qp_wr(&self) -> usize {
        self.0[112 / 4] as usize
    }
    /// The largest number of reads in flight to and from a queue pair.
    pub(super) fn max_reads(&self) -> usize {
        (self.0[144 / 4] as usize).min(self.0[156 / 4] as usize)
    }
    /// The largest number of entries of a completion queue.
    pub(super) fn max_cqe(&self) -> usize {
        self.0[132 / 4] as usize
    }
    /// The largest number of buffers of a shared receive queue.
    pub(super) fn max_srq_wr(&self) -> usize {
        self.0[216 / 4] as usize
    }
}

/// `struct ibv_context`. Posts and polls use its function table.
#[repr(C)]
pub(super) struct IbvContext {
    pub(super) device: *mut IbvDevice,
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq:
        Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    before_srq: [*mut c_void; 7],
    pub(super) post_srq_recv: Option<
        unsafe extern "C" fn(*mut SharedReceiveQueue, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    >,
    before_send: [*mut c_void; 4],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut IbvQp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    after_send: [*mut c_void; 6],
    cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut IbvContext,
    pub(super) fd: c_int,
}

/// `struct ibv_pd`, `struct ibv_cq`, `struct ibv_srq`: only passed by address.
pub(super) type ProtectionDomain = c_void;
pub(super) type CompletionQueue = c_void;
pub(super) type SharedReceiveQueue = c_void;

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct IbvMr {
    context: *mut IbvContext,
    domain: *mut ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_qp`, up to the last field that is read.
#[repr(C)]
pub(super) struct IbvQp {
    pointers: [*mut c_void; 6],
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedReceiveQueue,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_ah_attr`, with `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) route: AhAttr,
    pub(super) other_route: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`, with the part of its union that RDMA uses.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    imm_data: u32,
    pub(super) qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: *mut c_void,
    pub(super) event_type: u32,
}

// Sizes and offsets that a C compiler computes from the header.
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(IbvDevice, node_type) == 16 && offset_of!(IbvDevice, transport_type) == 20);
    assert!(offset_of!(IbvDevice, dev_path) == 152);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, gid_tbl_len) == 12);
    assert!(offset_of!(PortAttr, pkey_tbl_len) == 32 && offset_of!(PortAttr, lid) == 34);
    assert!(offset_of!(PortAttr, phys_state) == 45 && offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<GidEntry>() == 32 && offset_of!(GidEntry, gid_index) == 16);
    assert!(offset_of!(GidEntry, gid_type) == 24 && size_of::<DeviceAttr>() == 232);
    assert!(
        offset_of!(IbvContext, poll_cq) == 8 + 88 && offset_of!(IbvContext, req_notify_cq) == 104
    );
    assert!(offset_of!(IbvContext, post_srq_recv) == 8 + 160);
    assert!(offset_of!(IbvContext, post_send) == 8 + 200 && offset_of!(IbvContext, cmd_fd) == 264);
    assert!(offset_of!(IbvContext, async_fd) == 268 && offset_of!(CompChannel, fd) == 8);
    assert!(size_of::<IbvMr>() == 48 && offset_of!(IbvMr, lkey) == 36);
    assert!(offset_of!(IbvMr, rkey) == 40 && offset_of!(IbvQp, qp_num) == 52);
    assert!(size_of::<QpCap>() == 20 && size_of::<QpInitAttr>() == 64);
    assert!(offset_of!(QpInitAttr, srq) == 24 && offset_of!(QpInitAttr, cap) == 32);
    assert!(offset_of!(QpInitAttr, qp_type) == 52 && offset_of!(QpInitAttr, sq_sig_all) == 56);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<AhAttr>() == 32);
    assert!(offset_of!(AhAttr, sgid_index) == 20 && offset_of!(AhAttr, dlid) == 24);
    assert!(offset_of!(AhAttr, is_global) == 29 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, rq_psn) == 20);
    assert!(offset_of!(QpAttr, dest_qp_num) == 28 && offset_of!(QpAttr, route) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, port_num) == 129);
    assert!(offset_of!(QpAttr, max_rd_atomic) == 126 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<WorkCompletion>() == 48 && offset_of!(WorkCompletion, byte_len) == 20);
    assert!(offset_of!(WorkCompletion, qp_num) == 28 && offset_of!(WorkCompletion, wc_flags) == 36);
    assert!(size_of::<AsyncEvent>() == 16 && offset_of!(AsyncEvent, event_type) == 8);
};
