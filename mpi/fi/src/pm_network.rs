//! PM as the network of the protocol: contexts, messages and locked memory.

mod pm_accesses;

use std::ffi::{CStr, c_ulong};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull, null_mut};

use score_p2p::wire::EncodedHeader;
use score_p2p::{Body, HANDLE_OFFSET_BITS, Message, SendError, UserBuffer};

use crate::pm_h::{
    PM_NODE_ANY, PM_OPT_REMOTE_READ, PM_OPT_REMOTE_WRITE, PM_RMA_MTU, pmAfterSelect,
    pmBeforeSelect, pmContext, pmContextConfig, pmExtractNode, pmGetContextConfig, pmGetFd,
    pmGetMessageQueueStatus, pmGetMtu, pmGetSendBuffer, pmMLock, pmMUnlock, pmMessageQueueStatus,
    pmReceive, pmReleaseReceiveBuffer, pmSend, pmSetPollPause, pmSetSerialized,
    score_initialize_args, score_num_node, score_pmnet, score_self_node,
};
use crate::{deadlock_signal, idle_mark, job};
use pm_accesses::PmAccesses;

/// Environment variables that launchers of MPI programs set: PMI (MPICH) and PMIx (Open MPI).
const MPI_ENV: [&str; 2] = ["PMI_FD", "PMIX_NAMESPACE"];
/// Environment variables that the shepherd sets: the number of this node, and the number of nodes.
const SELF_NODE_ENV: &str = "SCORE_SELF_NODE";
const NUM_NODE_ENV: &str = "SCORE_NUM_NODE";

/// The network that this process is a node of.
pub(crate) struct PmNetwork {
    /// PM's context. Null: this process is the only node.
    pub(crate) context: *mut pmContext,
    /// The MTU of each node. 0: not known yet.
    mtus: Vec<u32>,
    /// The options of the context: `PM_OPT_` bits.
    options: c_ulong,
    /// The reads and writes of other nodes' memory that have not ended.
    pub(crate) accesses: PmAccesses,
    /// For each node, whether it is on this host. None: not known yet.
    is_on_this_host: Vec<Option<bool>>,
}

/// Joins the job. Returns when all nodes have joined. On a failure, libscore prints an error and
/// ends the process.
#[cold]
pub(crate) fn join() -> PmNetwork {
    // SAFETY: score_initialize_args ignores its arguments (score.h).
    unsafe { score_initialize_args(0, ptr::null()) };
    deadlock_signal::set_handler();
    job::note_joined();
    // SAFETY: score_initialize has set it, and nothing changes it afterwards.
    let nodes = unsafe { score_num_node };
    // SAFETY: as above; the list ends with NULL.
    let context = unsafe { score_pmnet.as_ref() }.map_or(null_mut(), |first| *first);
    // SAFETY: the context is one of libscore, or NULL, which PM refuses. All calls of PM are inside
    // of `Serialized::with`, which serializes them unless the program does.
    unsafe { pmSetSerialized(context, 1) };
    if is_mpi_program() {
        // MPI libraries do other work between two polls, so no pause is needed.
        // SAFETY: as above.
        unsafe { pmSetPollPause(context, 0) };
    }
    PmNetwork {
        context,
        mtus: vec![0; nodes as usize],
        options: options(context),
        accesses: PmAccesses::default(),
        is_on_this_host: vec![None; nodes as usize],
    }
}

fn is_mpi_program() -> bool {
    MPI_ENV.iter().any(|name| std::env::var_os(name).is_some())
}

/// This process in its job.
pub(crate) struct Membership {
    /// The network. None: the process has not joined its job yet.
    pub(crate) network: Option<PmNetwork>,
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
}

impl Membership {
    /// Processes of MPI programs join now, because all of them open a domain. Other programs may
    /// have to exchange addresses before all processes open one (fi_pingpong(1)). They join when
    /// they first use PM.
    pub(crate) fn of_process() -> Self {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        if !is_mpi_program()
            && let (Some(self_node), Some(nodes)) = (number(SELF_NODE_ENV), number(NUM_NODE_ENV))
        {
            return Self { network: None, self_node, nodes };
        }
        let network = Some(join());
        // SAFETY: score_initialize has set it, and nothing changes it afterwards.
        let (self_node, nodes) = unsafe { (score_self_node as u32, score_num_node as u32) };
        Self { network, self_node, nodes }
    }
}

fn config(context: *mut pmContext) -> Option<pmContextConfig> {
    let mut config =
        pmContextConfig { kind: ptr::null(), number: 0, nodes: 0, mtu: 0, size: 0, option: 0 };
    // SAFETY: the context is one of libscore, or NULL, which PM refuses.
    let result = unsafe { pmGetContextConfig(context, &mut config) };
    (result == 0).then_some(config)
}

fn options(context: *mut pmContext) -> c_ulong {
    config(context).map_or(0, |config| config.option)
}

impl PmNetwork {
    #[cold]
    fn look_up_mtu(&mut self, node: u32) -> usize {
        let mut mtu = 0;
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        unsafe { pmGetMtu(self.context, node as i32, &mut mtu) };
        if let Some(known) = self.mtus.get_mut(node as usize) {
            *known = mtu as u32;
        }
        mtu
    }

    fn queue_status(&self) -> pmMessageQueueStatus {
        let mut status = pmMessageQueueStatus { receive: 0, send: 0, read: 0 };
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        unsafe { pmGetMessageQueueStatus(self.context, &mut status) };
        status
    }

    /// Whether messages have arrived that were not received.
    pub(crate) fn has_messages(&self) -> bool {
        self.queue_status().receive > 0
    }

    /// The descriptors for waiting on messages. Empty if this process is the only node.
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        let mut count = 0;
        // SAFETY: as above; the call only gets the number.
        unsafe { pmGetFd(self.context, null_mut(), &mut count) };
        let mut fds = vec![-1; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `fds` has room for `count` descriptors.
        let result = unsafe { pmGetFd(self.context, fds.as_mut_ptr(), &mut count) };
        if result == 0 { fds } else { Vec::new() }
    }

    /// Makes arriving messages wake the process.
    pub(crate) fn before_wait(&self) {
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        unsafe { pmBeforeSelect(self.context) };
    }

    /// Ends the effect of `before_wait`.
    pub(crate) fn after_wait(&self) {
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        unsafe { pmAfterSelect(self.context) };
    }

    fn can(&self, options: c_ulong) -> bool {
        self.options & options == options
    }

    /// Locks the program's memory for remote access by one node or by all nodes. Returns its
    /// handle.
    pub(crate) fn lock(&self, node: i32, buffer: &UserBuffer) -> Option<u64> {
        let start = buffer.as_segment()?;
        let mut handle = 0;
        // SAFETY: PM does not read the memory during this call, and refuses a length of 0.
        let result = unsafe { pmMLock(self.context, node, start, buffer.len(), &mut handle) };
        (result == 0).then_some(handle)
    }

    pub(crate) fn unlock(&self, node: i32, buffer: &UserBuffer) {
        // SAFETY: PM refuses memory that is not locked.
        unsafe { pmMUnlock(self.context, node, buffer.start(), buffer.len()) };
    }

    /// Whether messages to `node` use shared memory.
    pub(crate) fn is_on_this_host(&mut self, node: u32) -> bool {
        let known = self.is_on_this_host.get(node as usize).copied().flatten();
        known.unwrap_or_else(|| self.look_up_host(node))
    }

    #[cold]
    fn look_up_host(&mut self, node: u32) -> bool {
        let (context, mut member, mut member_node) = (self.context, null_mut(), 0);
        // SAFETY: the context is one of libscore. A context that is not a composite is its own only
        // member.
        let result = unsafe { pmExtractNode(context, node as i32, &mut member, &mut member_node) };
        let kind = config(if result == 0 { member } else { context });
        // SAFETY: the string belongs to PM.
        let is_on_it = kind.is_some_and(|kind| unsafe { CStr::from_ptr(kind.kind) } == c"shmem");
        if let Some(known) = self.is_on_this_host.get_mut(node as usize) {
            *known = Some(is_on_it);
        }
        is_on_it
    }
}

/// The functions of [`score_p2p::Network`].
impl PmNetwork {
    #[inline(always)]
    pub(crate) fn mtu(&mut self, node: u32) -> usize {
        match self.mtus.get(node as usize) {
            Some(0) | None => self.look_up_mtu(node),
            Some(mtu) => *mtu as usize,
        }
    }

    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        node: u32,
        header: &EncodedHeader,
        body: Body<'_>,
    ) -> Result<(), SendError> {
        let mut buffer = null_mut();
        let len = header.byte_len() + body.len();
        idle_mark::become_busy();
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        match unsafe { pmGetSendBuffer(self.context, node as i32, &mut buffer, len) } {
            0 => {}
            libc::ENOBUFS | libc::EBUSY => return Err(SendError::Full),
            _ => return Err(SendError::Unreachable),
        }
        // SAFETY: PM's buffer has `len` bytes, which is the length of the header and the body
        // together.
        unsafe {
            for (index, word) in header.words().iter().enumerate() {
                buffer.cast::<u64>().add(index).write_unaligned(word.to_le());
            }
            let rest = buffer.add(header.byte_len());
            match body {
                Body::Memory { buffer, offset, len } => _ = buffer.copy_to(offset, rest, len),
                Body::Bytes(bytes) => ptr::copy_nonoverlapping(bytes.as_ptr(), rest, bytes.len()),
            }
            pmSend(self.context);
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
        let (mut start, mut len) = (null_mut(), 0);
        // SAFETY: the context is one of libscore, or NULL, which PM refuses.
        if unsafe { pmReceive(self.context, &mut start, &mut len) } != 0 {
            return false;
        }
        // The process must be busy before the message is released (manual 3.5.2, figure 2.9).
        idle_mark::become_busy();
        if let Some(start) = NonNull::new(start) {
            // SAFETY: PM keeps the message until it is released.
            handle(unsafe { Message::new(start, len) });
        }
        // SAFETY: as above; the message is not used any more.
        unsafe { pmReleaseReceiveBuffer(self.context) };
        true
    }

    pub(crate) fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64> {
        if !self.can(PM_OPT_REMOTE_READ) || buffer.len() > PM_RMA_MTU {
            return None;
        }
        let handle = self.lock(node as i32, buffer)?;
        if handle == 0 {
            self.unlock(node as i32, buffer);
            return None;
        }
        Some(handle)
    }

    pub(crate) fn conceal(&mut self, node: u32, buffer: &UserBuffer) {
        self.unlock(node as i32, buffer);
    }

    pub(crate) fn expose_to_all(&mut self, buffer: &UserBuffer) -> Option<u64> {
        let is_possible = self.can(PM_OPT_REMOTE_READ | PM_OPT_REMOTE_WRITE)
            && buffer.len() <= 1 << HANDLE_OFFSET_BITS;
        if is_possible { self.lock(PM_NODE_ANY, buffer) } else { None }
    }

    pub(crate) fn conceal_from_all(&mut self, buffer: &UserBuffer) {
        self.unlock(PM_NODE_ANY, buffer);
    }
}
