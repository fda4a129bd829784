//! PM as the network of the protocol.

use std::ptr::{self, NonNull, null_mut};

use score_p2p::{Body, Message, Network, ReadError, SendError, UserBuffer};

use crate::idle_mark;
use crate::pm_h::{
    PM_OPT_REMOTE_READ, PM_RMA_MTU, pmContext, pmContextConfig, pmGetContextConfig,
    pmGetMessageQueueStatus, pmGetMtu, pmGetSendBuffer, pmIsReadDone, pmMLock, pmMUnlock,
    pmMessageQueueStatus, pmRead, pmReceive, pmReleaseReceiveBuffer, pmSend, score_initialize_args,
    score_num_node, score_pmnet, score_self_node,
};

/// The network that this process is a node of.
pub(crate) struct PmNetwork {
    /// Null: this process is the only node.
    context: *mut pmContext,
    /// By node; 0: not known yet.
    mtus: Vec<u32>,
    can_read: bool,
    /// Whether a read of those under way has failed.
    has_read_failed: bool,
}

/// This process in its job.
pub(crate) struct Membership {
    pub(crate) network: PmNetwork,
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
}

/// Makes this process a node of its job. Returns when all nodes have called it. If that fails,
/// libscore says why and ends the process.
pub(crate) fn join() -> Membership {
    // SAFETY: the arguments are ignored (score.h).
    unsafe { score_initialize_args(0, ptr::null()) };
    // SAFETY: set by score_initialize and read-only since.
    let (self_node, nodes) = unsafe { (score_self_node as u32, score_num_node as u32) };
    // SAFETY: as above; the list ends with NULL.
    let context = unsafe { score_pmnet.as_ref() }.map_or(null_mut(), |first| *first);
    let network = PmNetwork {
        context,
        mtus: vec![0; nodes as usize],
        can_read: options(context) & PM_OPT_REMOTE_READ != 0,
        has_read_failed: false,
    };
    Membership { network, self_node, nodes }
}

fn options(context: *mut pmContext) -> std::ffi::c_ulong {
    let mut config =
        pmContextConfig { kind: ptr::null(), number: 0, nodes: 0, mtu: 0, size: 0, option: 0 };
    // SAFETY: a context of libscore, or NULL, which PM refuses.
    match unsafe { pmGetContextConfig(context, &mut config) } {
        0 => config.option,
        _ => 0,
    }
}

impl PmNetwork {
    #[cold]
    fn look_up_mtu(&mut self, node: u32) -> usize {
        let mut mtu = 0;
        // SAFETY: as in `options`.
        unsafe { pmGetMtu(self.context, node as i32, &mut mtu) };
        if let Some(known) = self.mtus.get_mut(node as usize) {
            *known = mtu as u32;
        }
        mtu
    }

    /// The number of reads that are under way.
    fn pending_reads(&self) -> i32 {
        let mut status = pmMessageQueueStatus { receive: 0, send: 0, read: 0 };
        // SAFETY: as in `options`.
        unsafe { pmGetMessageQueueStatus(self.context, &mut status) };
        status.read
    }

    /// Locks the program's memory for remote access.
    fn lock(&self, node: u32, buffer: &UserBuffer) -> Option<u64> {
        let start = buffer.as_segment()?;
        let mut handle = 0;
        // SAFETY: PM does not read the memory now, and refuses a length of 0.
        let result =
            unsafe { pmMLock(self.context, node as i32, start, buffer.len(), &mut handle) };
        (result == 0).then_some(handle)
    }

    fn unlock(&self, node: u32, buffer: &UserBuffer) {
        // SAFETY: PM refuses memory that is not locked.
        unsafe { pmMUnlock(self.context, node as i32, buffer.start(), buffer.len()) };
    }
}

impl Network for PmNetwork {
    #[inline(always)]
    fn mtu(&mut self, node: u32) -> usize {
        match self.mtus.get(node as usize) {
            Some(0) | None => self.look_up_mtu(node),
            Some(mtu) => *mtu as usize,
        }
    }

    #[inline(always)]
    fn send(&mut self, node: u32, header: &[u8], body: Body<'_>) -> Result<(), SendError> {
        let mut buffer = null_mut();
        let len = header.len() + body.len();
        idle_mark::become_busy();
        // SAFETY: as in `options`.
        match unsafe { pmGetSendBuffer(self.context, node as i32, &mut buffer, len) } {
            0 => {}
            libc::ENOBUFS | libc::EBUSY => return Err(SendError::Full),
            _ => return Err(SendError::Unreachable),
        }
        // SAFETY: PM's buffer has `len` bytes, and the header and the body as many as they say.
        unsafe {
            ptr::copy_nonoverlapping(header.as_ptr(), buffer, header.len());
            let rest = buffer.add(header.len());
            match body {
                Body::Memory { buffer, offset, len } => _ = buffer.copy_to(offset, rest, len),
                Body::Bytes(bytes) => ptr::copy_nonoverlapping(bytes.as_ptr(), rest, bytes.len()),
            }
            pmSend(self.context);
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
        let (mut start, mut len) = (null_mut(), 0);
        // SAFETY: as in `options`.
        if unsafe { pmReceive(self.context, &mut start, &mut len) } != 0 {
            return false;
        }
        // Before the message is released (manual 3.5.2, figure 2.9).
        idle_mark::become_busy();
        if let Some(start) = NonNull::new(start) {
            // SAFETY: PM's message stays until it is released.
            handle(unsafe { Message::new(start, len) });
        }
        // SAFETY: as above; the message is not used any more.
        unsafe { pmReleaseReceiveBuffer(self.context) };
        true
    }

    fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64> {
        if !self.can_read || buffer.len() > PM_RMA_MTU {
            return None;
        }
        let handle = self.lock(node, buffer)?;
        if handle == 0 {
            self.unlock(node, buffer);
            return None;
        }
        Some(handle)
    }

    fn conceal(&mut self, node: u32, buffer: &UserBuffer) {
        self.unlock(node, buffer);
    }

    fn start_read(&mut self, node: u32, handle: u64, into: &UserBuffer) -> Result<(), ReadError> {
        if into.len() > PM_RMA_MTU {
            return Err(ReadError::Failed);
        }
        let local = self.lock(node, into).ok_or(ReadError::Failed)?;
        // SAFETY: PM checks the handles; `into` is locked and stays until the read has ended.
        let result = unsafe { pmRead(self.context, node as i32, handle, local, into.len()) };
        if result == 0 {
            return Ok(());
        }
        self.unlock(node, into);
        Err(if result == libc::ENOBUFS { ReadError::Full } else { ReadError::Failed })
    }

    fn end_read(&mut self, node: u32, into: &UserBuffer) {
        self.unlock(node, into);
    }

    fn are_reads_done(&mut self) -> Result<bool, ReadError> {
        // SAFETY: as in `options`.
        match unsafe { pmIsReadDone(self.context) } {
            0 => {}
            libc::EBUSY => return Ok(false),
            // Others may still be under way. A link that is broken reports this for ever.
            _ => {
                self.has_read_failed = true;
                if self.pending_reads() > 0 {
                    return Ok(false);
                }
            }
        }
        match std::mem::take(&mut self.has_read_failed) {
            false => Ok(true),
            true => Err(ReadError::Failed),
        }
    }
}
