//! PM as the network of the protocol.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_ulong};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull, null_mut};

use score_p2p::wire::ENGINE_BYTE;
use score_p2p::{
    AccessError, Body, HANDLE_OFFSET_BITS, Message, SendError, UserBuffer, WriteProgress,
};

use crate::endpoint_network::MAX_ENDPOINTS;
use crate::pm_h::{
    PM_NODE_ANY, PM_OPT_REMOTE_READ, PM_OPT_REMOTE_WRITE, PM_RMA_MTU, pmAfterSelect,
    pmBeforeSelect, pmContext, pmContextConfig, pmExtractNode, pmGetContextConfig, pmGetFd,
    pmGetMessageQueueStatus, pmGetMtu, pmGetSendBuffer, pmIsReadDone, pmIsWriteDone, pmMLock,
    pmMUnlock, pmMessageQueueStatus, pmRead, pmReceive, pmReleaseReceiveBuffer, pmSend, pmWrite,
    score_initialize_args, score_num_node, score_pmnet, score_self_node,
};
use crate::{fabric, idle_mark};

/// Variables that launchers of MPI programs set: PMI (MPICH) and PMIx (Open MPI).
const MPI_ENV: [&str; 2] = ["PMI_FD", "PMIX_NAMESPACE"];
/// Variables that scored sets: the number of this node, and how many there are.
const SELF_NODE_ENV: &str = "SCORE_SELF_NODE";
const NUM_NODE_ENV: &str = "SCORE_NUM_NODE";

/// The network that this process is a node of.
pub(crate) struct PmNetwork {
    /// Null: this process is the only node.
    context: *mut pmContext,
    /// By node; 0: not known yet.
    mtus: Vec<u32>,
    /// `PM_OPT_` bits.
    options: c_ulong,
    /// By endpoint: whether a read or write has failed since the endpoint was told so last. PM does
    /// not say whose it was.
    has_access_failed: [bool; MAX_ENDPOINTS],
    /// Writes that were started, and whose end was not told yet.
    started_writes: usize,
    /// Reads that are to be started behind writes, by node and handle: a write is in the other
    /// node's memory when a read behind it has ended (manual 3.6.3).
    confirmations: VecDeque<(u32, u64)>,
    /// Where these reads go, and its handle, when there was such a read.
    landing: Box<u64>,
    landing_handle: Option<u64>,
    /// Whether a node is on this host, as far as it is known.
    is_on_this_host: HashMap<u32, bool>,
}

/// Makes this process a node of its job. Returns when all nodes have called it. If that fails,
/// libscore says why and ends the process.
#[cold]
pub(crate) fn join() -> PmNetwork {
    // SAFETY: the arguments are ignored (score.h).
    unsafe { score_initialize_args(0, ptr::null()) };
    fabric::note_joined();
    // SAFETY: set by score_initialize and read-only since.
    let nodes = unsafe { score_num_node };
    // SAFETY: as above; the list ends with NULL.
    let context = unsafe { score_pmnet.as_ref() }.map_or(null_mut(), |first| *first);
    PmNetwork {
        context,
        mtus: vec![0; nodes as usize],
        options: options(context),
        has_access_failed: [false; MAX_ENDPOINTS],
        started_writes: 0,
        confirmations: VecDeque::new(),
        landing: Box::new(0),
        landing_handle: None,
        is_on_this_host: HashMap::new(),
    }
}

/// This process in its job.
pub(crate) struct Membership {
    /// None: it is not a node yet.
    pub(crate) network: Option<PmNetwork>,
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
}

impl Membership {
    /// Programs of MPI libraries become nodes now: all their processes open a domain. Others may
    /// have to exchange addresses before all of them do (fi_pingpong(1)), so they become nodes when
    /// they use PM first.
    pub(crate) fn of_process() -> Self {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let is_mpi = MPI_ENV.iter().any(|name| std::env::var_os(name).is_some());
        if !is_mpi
            && let (Some(self_node), Some(nodes)) = (number(SELF_NODE_ENV), number(NUM_NODE_ENV))
        {
            return Self { network: None, self_node, nodes };
        }
        let network = Some(join());
        // SAFETY: set by score_initialize and read-only since.
        let (self_node, nodes) = unsafe { (score_self_node as u32, score_num_node as u32) };
        Self { network, self_node, nodes }
    }
}

fn config(context: *mut pmContext) -> Option<pmContextConfig> {
    let mut config =
        pmContextConfig { kind: ptr::null(), number: 0, nodes: 0, mtu: 0, size: 0, option: 0 };
    // SAFETY: a context of libscore, or NULL, which PM refuses.
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
        // SAFETY: as in `options`.
        unsafe { pmGetMtu(self.context, node as i32, &mut mtu) };
        if let Some(known) = self.mtus.get_mut(node as usize) {
            *known = mtu as u32;
        }
        mtu
    }

    fn queue_status(&self) -> pmMessageQueueStatus {
        let mut status = pmMessageQueueStatus { receive: 0, send: 0, read: 0 };
        // SAFETY: as in `options`.
        unsafe { pmGetMessageQueueStatus(self.context, &mut status) };
        status
    }

    /// Whether messages have arrived that were not received.
    pub(crate) fn has_messages(&self) -> bool {
        self.queue_status().receive > 0
    }

    /// The descriptors on which messages are waited for. None, if this process is the only node.
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        let mut count = 0;
        // SAFETY: as in `options`; asks for the number only.
        unsafe { pmGetFd(self.context, null_mut(), &mut count) };
        let mut fds = vec![-1; usize::try_from(count).unwrap_or(0)];
        // SAFETY: room for so many.
        let result = unsafe { pmGetFd(self.context, fds.as_mut_ptr(), &mut count) };
        if result == 0 { fds } else { Vec::new() }
    }

    /// Has arriving messages wake the process.
    pub(crate) fn before_wait(&self) {
        // SAFETY: as in `options`.
        unsafe { pmBeforeSelect(self.context) };
    }

    /// Undoes that.
    pub(crate) fn after_wait(&self) {
        // SAFETY: as in `options`.
        unsafe { pmAfterSelect(self.context) };
    }

    fn can(&self, options: c_ulong) -> bool {
        self.options & options == options
    }

    /// Locks the program's memory for remote access by a node or by all.
    fn lock(&self, node: i32, buffer: &UserBuffer) -> Option<u64> {
        let start = buffer.as_segment()?;
        let mut handle = 0;
        // SAFETY: PM does not read the memory now, and refuses a length of 0.
        let result = unsafe { pmMLock(self.context, node, start, buffer.len(), &mut handle) };
        (result == 0).then_some(handle)
    }

    fn unlock(&self, node: i32, buffer: &UserBuffer) {
        // SAFETY: PM refuses memory that is not locked.
        unsafe { pmMUnlock(self.context, node, buffer.start(), buffer.len()) };
    }

    /// Whether messages to a node go through shared memory.
    fn is_on_this_host(&mut self, node: u32) -> bool {
        let context = self.context;
        *self.is_on_this_host.entry(node).or_insert_with(|| {
            let (mut member, mut member_node) = (null_mut(), 0);
            // SAFETY: a context of libscore. One that is no composite is its own only member.
            let result =
                unsafe { pmExtractNode(context, node as i32, &mut member, &mut member_node) };
            let kind = config(if result == 0 { member } else { context });
            // SAFETY: PM's string.
            kind.is_some_and(|config| unsafe { CStr::from_ptr(config.kind) } == c"shmem")
        })
    }

    /// The handle of where reads behind writes go.
    fn landing_handle(&mut self) -> Option<u64> {
        if self.landing_handle.is_none() {
            let start = (&raw mut *self.landing).cast();
            // SAFETY: PM's own use; the memory stays as long as the process.
            let buffer = unsafe { UserBuffer::of_segment(start, size_of::<u64>()) };
            self.landing_handle = self.lock(PM_NODE_ANY, &buffer);
        }
        self.landing_handle
    }

    /// Starts the reads behind writes. False: some of them have to wait.
    fn start_confirmations(&mut self) -> bool {
        while let Some(&(node, handle)) = self.confirmations.front() {
            let Some(landing) = self.landing_handle() else {
                self.has_access_failed = [true; MAX_ENDPOINTS];
                self.confirmations.clear();
                return true;
            };
            // SAFETY: PM checks the handles; the landing has more than a byte.
            match unsafe { pmRead(self.context, node as i32, handle, landing, 1) } {
                0 => {}
                libc::ENOBUFS => return false,
                _ => self.has_access_failed = [true; MAX_ENDPOINTS],
            }
            self.confirmations.pop_front();
        }
        true
    }

    /// Whether the writes that were started have ended here. Failures are noted.
    fn are_writes_done(&mut self) -> bool {
        // SAFETY: a context of libscore.
        match unsafe { pmIsWriteDone(self.context) } {
            0 => true,
            libc::EBUSY => false,
            _ => {
                self.has_access_failed = [true; MAX_ENDPOINTS];
                true
            }
        }
    }
}

/// As [`score_p2p::Network`].
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
        (header, engine): (&[u8], u8),
        body: Body<'_>,
    ) -> Result<(), SendError> {
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
            // Each header has a word at least.
            *buffer.add(ENGINE_BYTE) = engine;
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
    pub(crate) fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
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

    pub(crate) fn start_write(
        &mut self,
        endpoint: usize,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        if from.is_empty() || from.len() > PM_RMA_MTU {
            return Err(AccessError::Failed);
        }
        idle_mark::become_busy();
        let local = self.lock(node as i32, from).ok_or(AccessError::Failed)?;
        // SAFETY: PM checks the handles; `from` is locked and stays until the write has ended.
        let result = unsafe { pmWrite(self.context, node as i32, handle, local, from.len()) };
        if result != 0 {
            self.unlock(node as i32, from);
            let is_full = result == libc::ENOBUFS;
            return Err(if is_full { AccessError::Full } else { AccessError::Failed });
        }
        // Within a host the bytes are there when the call returns, unless the kernel refuses that:
        // then the write is busy now.
        if self.started_writes == 0 && self.is_on_this_host(node) && self.are_writes_done() {
            self.unlock(node as i32, from);
            return match std::mem::take(&mut self.has_access_failed[endpoint]) {
                false => Ok(WriteProgress::Delivered),
                true => Err(AccessError::Failed),
            };
        }
        self.started_writes += 1;
        self.confirmations.push_back((node, handle));
        self.start_confirmations();
        Ok(WriteProgress::Started)
    }

    pub(crate) fn start_read(
        &mut self,
        node: u32,
        handle: u64,
        into: &UserBuffer,
    ) -> Result<(), AccessError> {
        if into.len() > PM_RMA_MTU {
            return Err(AccessError::Failed);
        }
        idle_mark::become_busy();
        let local = self.lock(node as i32, into).ok_or(AccessError::Failed)?;
        // SAFETY: PM checks the handles; `into` is locked and stays until the read has ended.
        let result = unsafe { pmRead(self.context, node as i32, handle, local, into.len()) };
        if result == 0 {
            return Ok(());
        }
        self.unlock(node as i32, into);
        Err(if result == libc::ENOBUFS { AccessError::Full } else { AccessError::Failed })
    }

    pub(crate) fn are_accesses_done(&mut self, endpoint: usize) -> Result<bool, AccessError> {
        if !self.start_confirmations() {
            return Ok(false);
        }
        // SAFETY: as in `options`.
        match unsafe { pmIsReadDone(self.context) } {
            0 => {}
            libc::EBUSY => return Ok(false),
            // Others may still be under way. A link that is broken reports this for ever.
            _ => {
                self.has_access_failed = [true; MAX_ENDPOINTS];
                if self.queue_status().read > 0 {
                    return Ok(false);
                }
            }
        }
        if self.started_writes > 0 && !self.are_writes_done() {
            return Ok(false);
        }
        self.started_writes = 0;
        match std::mem::take(&mut self.has_access_failed[endpoint]) {
            false => Ok(true),
            true => Err(AccessError::Failed),
        }
    }
}
