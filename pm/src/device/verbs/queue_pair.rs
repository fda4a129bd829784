//! Reliable connected queue pairs. A queue pair is connected by direct state changes. Its peer is a
//! queue pair whose address the peer's process has sent.

// UNSAFETY: calls libibverbs on queue pairs that it owns.
#![expect(unsafe_code)]

use super::adapter::Adapter;
use super::bindings::{
    self, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AhAttr, OPCODE_READ, OPCODE_SEND, OPCODE_WRITE,
    QpAttr, QpCap, QpInitAttr, SEND_INLINE, SEND_SIGNALED, STATE_ERR, STATE_INIT, STATE_RESET,
    STATE_RTR, STATE_RTS, SendWr, Sge, TYPE_RC, mask,
};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The sizes of inline data to request. If the adapter refuses a size, the next size is tried. The
/// adapter copies inline data from the request instead of fetching it.
const INLINE_SIZES: [u32; 3] = [128, 64, 0];
/// The most work requests of one queue pair, if the adapter supports this number.
pub(super) const SEND_QUEUE_DEPTH: usize = 256;

/// A packet is sent again after 4.096 µs times 2^14 (67 ms), six times. The value is not 7, because
/// rdma_rxe treats 7 as infinite. It would then never report that the other queue pair no longer
/// exists.
const ACK_TIMEOUT_EXPONENT: u8 = 14;
const RETRIES: u8 = 6;
/// The value 7 means that there is no limit. A receiver without a free buffer is only slow.
const RNR_RETRIES: u8 = 7;
/// The code for 0.64 ms.
const RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;

/// The address of a queue pair, as its process reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QpAddress {
    pub(super) number: u32,
    /// The number of its first packet.
    pub(super) psn: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// The payload of a packet, as an `ibv_mtu` number.
    pub(super) mtu: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WorkRequest {
    /// The id that the completion of this request returns.
    pub(super) id: u64,
    pub(super) opcode: Opcode,
    pub(super) sge: Sge,
    pub(super) is_signalled: bool,
}

/// The operation of a work request. Addresses are the peer's, each with its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opcode {
    Send,
    Write(u64, u32),
    Read(u64, u32),
}

/// A local queue pair.
pub(super) struct QueuePair {
    adapter: Arc<Adapter>,
    qp: NonNull<bindings::IbvQp>,
    max_inline_len: u32,
    psn: u32,
}

// SAFETY: any thread may call the library's functions; only the owner destroys the queue pair.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair that is ready to be connected. Its packets begin with number `psn`.
    pub(super) fn new(adapter: &Arc<Adapter>, psn: u32) -> Result<QueuePair, String> {
        let mut attempts = INLINE_SIZES
            .iter()
            .map(|&max_inline_len| QueuePair::with_inline(adapter, psn, max_inline_len));
        attempts.find(Result::is_ok).unwrap_or_else(|| QueuePair::with_inline(adapter, psn, 0))
    }

    fn with_inline(
        adapter: &Arc<Adapter>,
        psn: u32,
        max_inline_len: u32,
    ) -> Result<QueuePair, String> {
        let cap = QpCap {
            max_send_wr: SEND_QUEUE_DEPTH.min(adapter.max_work_requests) as u32,
            max_send_sge: 1,
            max_inline_data: max_inline_len,
            ..QpCap::default()
        };
        let mut init = QpInitAttr {
            qp_context: null_mut(),
            send_cq: adapter.send_cq,
            recv_cq: adapter.recv_cq,
            srq: adapter.srq,
            cap,
            qp_type: TYPE_RC,
            sq_sig_all: 0,
        };
        // SAFETY: queues of the same adapter, which the queue pair holds.
        let created =
            unsafe { (adapter.library.create_qp)(adapter.protection_domain, &raw mut init) };
        let qp = NonNull::new(created)
            .ok_or_else(|| adapter.os_error_text("cannot create a queue pair"))?;
        let (adapter, max_inline_len) =
            (adapter.clone(), init.cap.max_inline_data.max(max_inline_len));
        let queue_pair = QueuePair { adapter, qp, max_inline_len, psn: psn & 0xff_ffff };
        queue_pair.initialise()?;
        Ok(queue_pair)
    }

    /// The number by which completions name this queue pair.
    pub(super) fn qp_number(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// The address that a peer needs.
    pub(super) fn qp_address(&self) -> QpAddress {
        let chosen = &self.adapter.chosen;
        QpAddress {
            number: self.qp_number(),
            psn: self.psn,
            gid: chosen.gid.map_or([0; 16], |gid| gid.bytes),
            lid: chosen.port.lid,
            mtu: (chosen.port.mtu / 128).ilog2() as u8,
        }
    }

    fn modify(&self, attr: &mut QpAttr, attr_mask: i32) -> Result<(), String> {
        // SAFETY: a queue pair of this library; the structure is the header's.
        let error = unsafe {
            (self.adapter.library.modify_qp)(self.qp.as_ptr(), attr, mask::STATE | attr_mask)
        };
        if error == 0 {
            return Ok(());
        }
        let why = std::io::Error::from_raw_os_error(error);
        let (name, state) = (&self.adapter.chosen.adapter, attr.qp_state);
        Err(format!("RDMA adapter {name}: a queue pair cannot enter state {state}: {why}"))
    }

    fn initialise(&self) -> Result<(), String> {
        let chosen = &self.adapter.chosen;
        let mut attr = QpAttr {
            qp_state: STATE_INIT,
            pkey_index: chosen.partition_index as u16,
            port_num: chosen.port.number,
            qp_access_flags: (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ) as u32,
            ..QpAttr::default()
        };
        self.modify(&mut attr, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)
    }

    /// Returns the queue pair to the state in which it can be connected. It must have sent nothing.
    pub(super) fn reset(&self) -> Result<(), String> {
        self.modify(&mut QpAttr { qp_state: STATE_RESET, ..QpAttr::default() }, 0)?;
        self.initialise()
    }

    /// Connects the queue pair, which can then receive and send.
    pub(super) fn connect(&self, to: &QpAddress) -> Result<(), String> {
        let chosen = &self.adapter.chosen;
        let mut gid = [0; 2];
        for (word, bytes) in gid.iter_mut().zip(to.gid.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let route = AhAttr {
            dgid: gid,
            sgid_index: chosen.gid.map_or(0, |gid| gid.index) as u8,
            hop_limit: HOP_LIMIT,
            dlid: to.lid,
            sl: chosen.service_level,
            is_global: u8::from(chosen.gid.is_some()),
            port_num: chosen.port.number,
            ..AhAttr::default()
        };
        let mut attr = QpAttr {
            qp_state: STATE_RTR,
            path_mtu: u32::from(to.mtu.min(self.qp_address().mtu).clamp(1, 5)),
            dest_qp_num: to.number,
            rq_psn: to.psn,
            max_dest_rd_atomic: self.adapter.max_reads,
            min_rnr_timer: RNR_TIMER,
            route,
            ..QpAttr::default()
        };
        let attr_mask = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        self.modify(&mut attr, attr_mask | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)?;
        let mut attr = QpAttr {
            qp_state: STATE_RTS,
            sq_psn: self.psn,
            timeout: ACK_TIMEOUT_EXPONENT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: self.adapter.max_reads,
            ..QpAttr::default()
        };
        let attr_mask = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN;
        self.modify(&mut attr, attr_mask | mask::MAX_RD_ATOMIC)
    }

    /// Stops the queue pair, which then receives no more messages.
    pub(super) fn set_error_state(&self) {
        let _ = self.modify(&mut QpAttr { qp_state: STATE_ERR, ..QpAttr::default() }, 0);
    }

    /// Posts a send request. False: the queue pair is broken or full.
    ///
    /// # Safety
    /// The `sge` is registered memory that does not change until completion, or it is short enough
    /// for inline data and readable now.
    #[inline(always)]
    pub(super) unsafe fn send(&self, work: WorkRequest) -> bool {
        let (mut sge, mut bad) = (work.sge, null_mut());
        let (opcode, remote_addr, rkey) = match work.opcode {
            Opcode::Send => (OPCODE_SEND, 0, 0),
            Opcode::Write(addr, rkey) => (OPCODE_WRITE, addr, rkey),
            Opcode::Read(addr, rkey) => (OPCODE_READ, addr, rkey),
        };
        let is_inline = sge.length <= self.max_inline_len && opcode != OPCODE_READ;
        let flags = [(work.is_signalled, SEND_SIGNALED), (is_inline, SEND_INLINE)];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        let mut request = SendWr {
            wr_id: work.id,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: i32::from(sge.length > 0),
            opcode,
            send_flags: flags,
            imm_data: 0,
            remote_addr,
            rkey,
            rest: [0; 9],
        };
        // SAFETY: a queue pair of `self`; the library copies the request, including inline data.
        unsafe {
            let post = self.adapter.context.as_ref().post_send;
            post.is_some_and(|post| post(self.qp.as_ptr(), &raw mut request, &raw mut bad) == 0)
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and no other code has it.
        unsafe { (self.adapter.library.destroy_qp)(self.qp.as_ptr()) };
    }
}
