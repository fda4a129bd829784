//! An open adapter: queues of completions, the receive queue that all its queue pairs share, and
//! registered memory.

// UNSAFETY: calls libibverbs through the addresses that `library` found, and owns what it makes.
#![expect(unsafe_code)]

use super::bindings::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AsyncEvent, CompChannel,
    CompletionQueue, DeviceAttr, IbvContext, IbvMr, ProtectionDomain, RecvWr, Sge,
    SharedReceiveQueue, SrqInitAttr, WorkCompletion,
};
use super::ibverbs_library::Library;
use super::port_selection::SelectedPort;
use crate::segment::from_errno;
use crate::sync::AtomicU64;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Entries of a completion queue that no adapter lacks.
const MIN_CQ_LEN: usize = 256;

/// What the queues have to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSizes {
    pub(super) receive_count: usize,
    pub(super) send_count: usize,
}

/// Reads under way at a time by one queue pair, if the adapter can.
const MAX_READS: usize = 4;

/// Who may do what with registered memory, besides the reading of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRights {
    /// This process writes.
    Local,
    /// And peers write.
    RemoteWrite,
    /// This process writes, peers read.
    RemoteRead,
    /// All of it.
    RemoteReadWrite,
    /// Nobody may write, peers read.
    ReadOnly,
}

impl AccessRights {
    fn bits(self) -> i32 {
        match self {
            AccessRights::Local => ACCESS_LOCAL_WRITE,
            AccessRights::RemoteWrite => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
            AccessRights::RemoteRead => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ,
            AccessRights::RemoteReadWrite => {
                ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ
            }
            AccessRights::ReadOnly => ACCESS_REMOTE_READ,
        }
    }
}

/// See the module. Whatever is made of it holds it.
pub(super) struct Adapter {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<IbvContext>,
    pub(super) protection_domain: *mut ProtectionDomain,
    completion_channel: *mut CompChannel,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedReceiveQueue,
    pub(super) vendor_id: u32,
    /// The most work requests that a queue pair holds.
    pub(super) max_work_requests: usize,
    /// Reads under way at a time by one queue pair.
    pub(super) max_reads: u8,
    pub(super) chosen: SelectedPort,
    /// Where the kernel lists it.
    sysfs_path: Option<PathBuf>,
}

/// Room for the completions that are taken at a time: as most polls find none, it is not cleared.
pub(super) struct CompletionBatch([MaybeUninit<WorkCompletion>; CompletionBatch::SIZE]);

impl CompletionBatch {
    pub(super) const SIZE: usize = 8;

    pub(super) fn new() -> CompletionBatch {
        CompletionBatch([const { MaybeUninit::uninit() }; CompletionBatch::SIZE])
    }
}

// SAFETY: the library's functions may be called by any thread at any time; what is made is
// destroyed by the last holder alone.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    pub(super) fn open(chosen: &SelectedPort, sizes: QueueSizes) -> Result<Arc<Adapter>, String> {
        let library = Library::get().map_err(|unavailable| unavailable.to_string())?;
        let context = library.open_adapter(&chosen.adapter)?;
        let mut adapter = Adapter {
            library,
            context,
            protection_domain: null_mut(),
            completion_channel: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            vendor_id: 0,
            max_work_requests: 0,
            max_reads: 1,
            chosen: chosen.clone(),
            // SAFETY: just opened.
            sysfs_path: unsafe { library.sysfs_path_of(context) },
        };
        adapter.create_queues(sizes)?;
        Ok(Arc::new(adapter))
    }

    /// What was made when this fails is destroyed with `self`.
    fn create_queues(&mut self, sizes: QueueSizes) -> Result<(), String> {
        let (library, context) = (self.library, self.context.as_ptr());
        let mut limits = DeviceAttr::new();
        // SAFETY: an open context; the structure has the header's size.
        let error = unsafe { (library.query_device)(context, &raw mut limits) };
        if error != 0 {
            return Err(self.os_error_text("does not tell its limits"));
        }
        (self.vendor_id, self.max_work_requests) = (limits.vendor(), limits.max_qp_wr());
        self.max_reads = limits.max_reads().clamp(1, MAX_READS) as u8;
        if limits.max_srq_wr() < sizes.receive_count {
            let (max_buffers, wanted) = (limits.max_srq_wr(), sizes.receive_count);
            return Err(self
                .error_text(&format!("holds {max_buffers} receive buffers, {wanted} are needed")));
        }
        let cq_len = |wanted: usize| wanted.max(MIN_CQ_LEN).min(limits.max_cqe()) as i32;
        // SAFETY: an open context; null is checked each time; what is made is destroyed in `drop`.
        unsafe {
            self.protection_domain =
                check_created((library.alloc_pd)(context), self, "protection domain")?;
            self.completion_channel =
                check_created((library.create_channel)(context), self, "completion channel")?;
            let create_cq =
                |entries, channel| (library.create_cq)(context, entries, null_mut(), channel, 0);
            let send_cq = create_cq(cq_len(sizes.send_count), null_mut());
            self.send_cq = check_created(send_cq, self, "completion queue")?;
            let recv_cq = create_cq(cq_len(sizes.receive_count), self.completion_channel);
            self.recv_cq = check_created(recv_cq, self, "completion queue")?;
            let max_wr = sizes.receive_count.max(1) as u32;
            let mut init =
                SrqInitAttr { srq_context: null_mut(), max_wr, max_sge: 1, srq_limit: 0 };
            let srq = (library.create_srq)(self.protection_domain, &raw mut init);
            self.srq = check_created(srq, self, "shared receive queue")?;
        }
        for fd in [self.completion_fd(), self.async_event_fd()] {
            let nonblocking = fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
            nonblocking.map_err(|errno| self.error_text(&errno.to_string()))?;
        }
        Ok(())
    }

    fn error_text(&self, problem: &str) -> String {
        format!("RDMA adapter {} {problem}", self.chosen.adapter)
    }

    /// With the reason that the library has just left in errno.
    pub(super) fn os_error_text(&self, problem: &str) -> String {
        let error = io::Error::last_os_error();
        self.error_text(&format!("{problem}: {error}{}", error_hint(&error)))
    }

    /// What is said of memory that cannot be registered.
    pub(super) fn registration_error_text(&self, why: &io::Error) -> String {
        let name = &self.chosen.adapter;
        match why.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.error_text(&format!("pins no memory: {why}{}", error_hint(why)))
            }
            _ => format!(
                "RDMA adapter {name}: memory cannot be pinned (its limit: ulimit -l): {why}"
            ),
        }
    }

    /// Becomes readable when something was received after `request_notify`.
    pub(super) fn completion_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is not null once made, and open as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.completion_channel).fd) }
    }

    /// Becomes readable when `next_event` has something.
    pub(super) fn async_event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context's own descriptor.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    /// The type of what has happened to the adapter, without waiting.
    pub(super) fn next_event(&self) -> Option<u32> {
        let mut event = AsyncEvent { element: null_mut(), event_type: 0 };
        // SAFETY: an open context, whose descriptor does not block; each event is acknowledged.
        unsafe {
            if (self.library.get_async_event)(self.context.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            (self.library.ack_async_event)(&raw mut event);
        }
        Some(event.event_type)
    }

    /// Whether the kernel lists it no more. The drivers of soft adapters say nothing to who has
    /// them open, and the removal waits for these.
    pub(super) fn is_unlisted(&self) -> bool {
        self.sysfs_path.as_ref().is_some_and(|path| !path.exists())
    }

    /// What is received from now on makes the channel readable, once.
    pub(super) fn request_notify(&self) {
        // SAFETY: a queue of this context, which has its table.
        unsafe {
            if let Some(request) = self.context.as_ref().req_notify_cq {
                request(self.recv_cq, 0);
            }
        }
    }

    /// The channel is readable no more.
    pub(super) fn drain_channel(&self) {
        let (mut queue, mut cq_context) = (null_mut(), null_mut());
        // SAFETY: a channel that does not block; each event is acknowledged.
        unsafe {
            let get = self.library.get_cq_event;
            while get(self.completion_channel, &raw mut queue, &raw mut cq_context) == 0 {
                (self.library.ack_cq_events)(queue, 1);
            }
        }
    }

    /// Completions of what was sent; answers how many. None: the adapter has gone.
    #[inline(always)]
    pub(super) fn poll_sends<'a>(
        &self,
        batch: &'a mut CompletionBatch,
    ) -> Option<&'a [WorkCompletion]> {
        self.poll(self.send_cq, batch)
    }

    /// The same of what was received.
    #[inline(always)]
    pub(super) fn poll_receives<'a>(
        &self,
        batch: &'a mut CompletionBatch,
    ) -> Option<&'a [WorkCompletion]> {
        self.poll(self.recv_cq, batch)
    }

    #[inline(always)]
    fn poll<'a>(
        &self,
        queue: *mut CompletionQueue,
        batch: &'a mut CompletionBatch,
    ) -> Option<&'a [WorkCompletion]> {
        let first = batch.0.as_mut_ptr().cast::<WorkCompletion>();
        // SAFETY: a queue of this context; the library writes as many completions as there is
        // room for, and says how many.
        unsafe {
            let poll = self.context.as_ref().poll_cq?;
            let count = usize::try_from(poll(queue, CompletionBatch::SIZE as i32, first)).ok()?;
            Some(std::slice::from_raw_parts(first, count.min(CompletionBatch::SIZE)))
        }
    }

    /// Offers a buffer to whoever sends.
    #[inline(always)]
    pub(super) fn post_receive(&self, id: u64, sge: Sge) -> bool {
        let (mut sge, mut bad) = (sge, null_mut());
        let mut request = RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: a queue of this context; the library copies the request. A piece outside of
        // registered memory is refused by the adapter.
        unsafe {
            let post = self.context.as_ref().post_srq_recv;
            post.is_some_and(|post| post(self.srq, &raw mut request, &raw mut bad) == 0)
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let library = self.library;
        // SAFETY: made by `create_queues`, null where that did not come so far; nothing made of it is left.
        unsafe {
            if !self.srq.is_null() {
                (library.destroy_srq)(self.srq);
            }
            for queue in [self.recv_cq, self.send_cq] {
                if !queue.is_null() {
                    (library.destroy_cq)(queue);
                }
            }
            if !self.completion_channel.is_null() {
                (library.destroy_channel)(self.completion_channel);
            }
            if !self.protection_domain.is_null() {
                (library.dealloc_pd)(self.protection_domain);
            }
            (library.close_device)(self.context.as_ptr());
        }
    }
}

/// What the library has made, or why not.
fn check_created<T>(pointer: *mut T, adapter: &Adapter, object: &str) -> Result<*mut T, String> {
    if pointer.is_null() {
        return Err(adapter.os_error_text(&format!("gives no {object}")));
    }
    Ok(pointer)
}

/// What can be done where an adapter gives nothing more.
fn error_hint(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::EAGAIN) => " (the limit of its cgroup: rdma.max)",
        Some(libc::ENOMEM | libc::ENOSPC) => " (who has how many: rdma resource show)",
        _ => "",
    }
}

/// Memory that the adapter may read and write; it keeps what holds the memory.
pub(super) struct MemoryRegion<T> {
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    pub(super) access: AccessRights,
    registration: NonNull<IbvMr>,
    adapter: Arc<Adapter>,
    pub(super) memory: T,
}

// SAFETY: the registration is the adapter's; what it keeps may be sent if it says so.
unsafe impl<T: Send> Send for MemoryRegion<T> {}
// SAFETY: as above; a shared one only tells its keys.
unsafe impl<T: Sync> Sync for MemoryRegion<T> {}

impl<T> MemoryRegion<T> {
    /// # Safety
    /// `memory` keeps `len` bytes at `addr` mapped.
    pub(super) unsafe fn new(
        adapter: &Arc<Adapter>,
        memory: T,
        addr: *mut u8,
        len: usize,
        access: AccessRights,
    ) -> io::Result<MemoryRegion<T>> {
        let (domain, bits) = (adapter.protection_domain, access.bits());
        // SAFETY: mapped memory, by the caller; what is not is refused by the kernel.
        let created = unsafe { (adapter.library.reg_mr)(domain, addr.cast(), len, bits) };
        let registration = NonNull::new(created).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (registration.as_ref().lkey, registration.as_ref().rkey) };
        Ok(MemoryRegion { lkey, rkey, access, registration, adapter: adapter.clone(), memory })
    }
}

impl MemoryRegion<Arc<DmaBuffer>> {
    /// New memory.
    pub(super) fn allocate(
        adapter: &Arc<Adapter>,
        len: usize,
        access: AccessRights,
    ) -> Result<MemoryRegion<Arc<DmaBuffer>>, String> {
        let buffers = Arc::new(DmaBuffer::new(len)?);
        let (addr, len) = (buffers.addr(0, len), buffers.len());
        // SAFETY: kept by what is registered.
        let registered = unsafe { MemoryRegion::new(adapter, buffers, addr, len, access) };
        registered.map_err(|why| adapter.registration_error_text(&why))
    }
}

impl<T> Drop for MemoryRegion<T> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and before `memory` goes.
        unsafe { (self.adapter.library.dereg_mr)(self.registration.as_ptr()) };
    }
}

/// Zeroed memory of this process, shared with its children: what the adapter writes is never left
/// behind on a page that a fork has copied.
pub(super) struct DmaBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who uses which part is settled by its users.
unsafe impl Send for DmaBuffer {}
// SAFETY: as above.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    fn new(len: usize) -> Result<DmaBuffer, String> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory where the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let why = from_errno(nix::errno::Errno::last());
            return Err(format!("no memory for {len} bytes of buffers: {why}"));
        }
        let start = NonNull::new(start.cast()).ok_or("memory at address 0")?;
        Ok(DmaBuffer { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, from where `len` bytes are inside.
    #[inline(always)]
    pub(super) fn addr(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A word of it, by number.
    #[inline(always)]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside, aligned (a mapping begins at a page), never moved; atomic.
        unsafe { &*self.addr(index * 8, 8).cast::<AtomicU64>() }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
