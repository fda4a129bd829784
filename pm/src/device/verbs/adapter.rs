//! An open adapter: completion queues, the receive queue that all its queue pairs share, and
//! registered memory.

// UNSAFETY: calls libibverbs through the addresses that `ibverbs_library` found, and owns the
// objects that it creates.
#![expect(unsafe_code)]

use super::bindings::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AsyncEvent, CompChannel,
    CompletionQueue, DeviceAttr, IbvContext, IbvMr, ProtectionDomain, RecvWr, Sge,
    SharedReceiveQueue, SrqInitAttr, WorkCompletion,
};
use super::ibverbs_library::Library;
use super::port_selection::SelectedPort;
use crate::error::from_errno;
use crate::sync::AtomicU64;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion queue length that every adapter supports.
const MIN_CQ_LEN: usize = 256;

/// Required capacities of the queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueSizes {
    pub(super) receive_count: usize,
    pub(super) send_count: usize,
}

/// The most reads in flight on one queue pair, if the adapter supports this number.
const MAX_READS: usize = 4;

/// Access to registered memory, in addition to reads by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessRights {
    /// This process writes.
    Local,
    /// This process and peers write.
    RemoteWrite,
    /// This process writes, peers read.
    RemoteRead,
    /// This process and peers read and write.
    RemoteReadWrite,
    /// Peers read, and no process writes.
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

/// An open adapter. Every object that is created from the adapter holds a reference to it.
pub(super) struct Adapter {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<IbvContext>,
    pub(super) protection_domain: *mut ProtectionDomain,
    completion_channel: *mut CompChannel,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut SharedReceiveQueue,
    pub(super) vendor_id: u32,
    /// The largest number of work requests that a queue pair holds.
    pub(super) max_work_requests: usize,
    /// The number of reads in flight on one queue pair.
    pub(super) max_reads: u8,
    pub(super) chosen: SelectedPort,
    /// The adapter's directory in sysfs.
    sysfs_path: Option<PathBuf>,
}

/// Room for the completions of one poll. It is not cleared, because most polls find none.
pub(super) struct CompletionBatch([MaybeUninit<WorkCompletion>; CompletionBatch::SIZE]);

impl CompletionBatch {
    pub(super) const SIZE: usize = 8;

    pub(super) fn new() -> CompletionBatch {
        CompletionBatch([const { MaybeUninit::uninit() }; CompletionBatch::SIZE])
    }
}

// SAFETY: any thread may call the library's functions at any time. Only the last holder destroys
// the objects.
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

    /// Creates the queues. If this fails, `drop` destroys the objects that were created.
    fn create_queues(&mut self, sizes: QueueSizes) -> Result<(), String> {
        let (library, context) = (self.library, self.context.as_ptr());
        let mut limits = DeviceAttr::new();
        // SAFETY: an open context; the structure has the header's size.
        let error = unsafe { (library.query_device)(context, &raw mut limits) };
        if error != 0 {
            return Err(self.os_error_text("does not report its limits"));
        }
        (self.vendor_id, self.max_work_requests) = (limits.vendor(), limits.max_qp_wr());
        self.max_reads = limits.max_reads().clamp(1, MAX_READS) as u8;
        if limits.max_srq_wr() < sizes.receive_count {
            let (max_buffers, wanted) = (limits.max_srq_wr(), sizes.receive_count);
            return Err(self.error_text(&format!(
                "supports {max_buffers} receive buffers; {wanted} are needed"
            )));
        }
        let cq_len = |wanted: usize| wanted.max(MIN_CQ_LEN).min(limits.max_cqe()) as i32;
        // SAFETY: an open context; each result is checked for null, and `drop` destroys the
        // objects.
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

    /// The error text for a problem whose reason the library has just stored in errno.
    pub(super) fn os_error_text(&self, problem: &str) -> String {
        let error = io::Error::last_os_error();
        self.error_text(&format!("{problem}: {error}{}", error_hint(&error)))
    }

    /// The error text for memory that cannot be registered.
    pub(super) fn registration_error_text(&self, why: &io::Error) -> String {
        let name = &self.chosen.adapter;
        match why.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.error_text(&format!("cannot pin memory: {why}{}", error_hint(why)))
            }
            _ => format!(
                "RDMA adapter {name}: memory cannot be pinned (its limit: ulimit -l): {why}"
            ),
        }
    }

    /// A descriptor that becomes readable when a message is received after `request_notify`.
    pub(super) fn completion_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is not null once created, and stays open as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.completion_channel).fd) }
    }

    /// A descriptor that becomes readable when `next_event` has an event.
    pub(super) fn async_event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context's own descriptor.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    /// The type of the adapter's next asynchronous event. Does not wait.
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

    /// Whether the kernel no longer lists the adapter. The driver of a software adapter does not
    /// notify the processes that have the adapter open, and the removal waits for these processes.
    pub(super) fn is_unlisted(&self) -> bool {
        self.sysfs_path.as_ref().is_some_and(|path| !path.exists())
    }

    /// Makes the channel readable once, at the next receive completion.
    pub(super) fn request_notify(&self) {
        // SAFETY: a queue of this context, which has its table.
        unsafe {
            if let Some(request) = self.context.as_ref().req_notify_cq {
                request(self.recv_cq, 0);
            }
        }
    }

    /// Reads all events, so that the channel is no longer readable.
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

    /// Polls completions of sends. None: the adapter was removed.
    #[inline(always)]
    pub(super) fn poll_sends<'a>(
        &self,
        batch: &'a mut CompletionBatch,
    ) -> Option<&'a [WorkCompletion]> {
        self.poll(self.send_cq, batch)
    }

    /// Polls completions of receives. None: the adapter was removed.
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
        // SAFETY: a queue of this context. The library writes at most as many completions as there
        // is room for, and returns their number.
        unsafe {
            let poll = self.context.as_ref().poll_cq?;
            let count = usize::try_from(poll(queue, CompletionBatch::SIZE as i32, first)).ok()?;
            Some(std::slice::from_raw_parts(first, count.min(CompletionBatch::SIZE)))
        }
    }

    /// Posts a receive buffer for any sender.
    #[inline(always)]
    pub(super) fn post_receive(&self, id: u64, sge: Sge) -> bool {
        let (mut sge, mut bad) = (sge, null_mut());
        let mut request = RecvWr { wr_id: id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: a queue of this context; the library copies the request. The adapter refuses
        // memory that is not registered.
        unsafe {
            let post = self.context.as_ref().post_srq_recv;
            post.is_some_and(|post| post(self.srq, &raw mut request, &raw mut bad) == 0)
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let library = self.library;
        // SAFETY: created by `create_queues`, or null if that failed earlier. No object that
        // depends on these exists any more.
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

/// The object that the library has created, or the error.
fn check_created<T>(pointer: *mut T, adapter: &Adapter, object: &str) -> Result<*mut T, String> {
    if pointer.is_null() {
        return Err(adapter.os_error_text(&format!("cannot create a {object}")));
    }
    Ok(pointer)
}

/// A hint for the user if an adapter's resources are exhausted.
fn error_hint(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::EAGAIN) => " (the limit of its cgroup: rdma.max)",
        Some(libc::ENOMEM | libc::ENOSPC) => " (rdma resource show lists the users)",
        _ => "",
    }
}

/// Memory that the adapter may read and write. The region keeps the holder of the memory.
pub(super) struct MemoryRegion<T> {
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    pub(super) access: AccessRights,
    registration: NonNull<IbvMr>,
    adapter: Arc<Adapter>,
    pub(super) memory: T,
}

// SAFETY: the registration belongs to the adapter; the holder may be sent if its type allows it.
unsafe impl<T: Send> Send for MemoryRegion<T> {}
// SAFETY: as above; a shared reference only reads the keys.
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
        // SAFETY: mapped memory, by the caller's promise; the kernel refuses unmapped memory.
        let created = unsafe { (adapter.library.reg_mr)(domain, addr.cast(), len, bits) };
        let registration = NonNull::new(created).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just created.
        let (lkey, rkey) = unsafe { (registration.as_ref().lkey, registration.as_ref().rkey) };
        Ok(MemoryRegion { lkey, rkey, access, registration, adapter: adapter.clone(), memory })
    }
}

impl MemoryRegion<Arc<DmaBuffer>> {
    /// Allocates and registers new memory.
    pub(super) fn allocate(
        adapter: &Arc<Adapter>,
        len: usize,
        access: AccessRights,
    ) -> Result<MemoryRegion<Arc<DmaBuffer>>, String> {
        let buffers = Arc::new(DmaBuffer::new(len)?);
        let (addr, len) = (buffers.addr(0, len), buffers.len());
        // SAFETY: the registration keeps the memory.
        let registered = unsafe { MemoryRegion::new(adapter, buffers, addr, len, access) };
        registered.map_err(|why| adapter.registration_error_text(&why))
    }
}

impl<T> Drop for MemoryRegion<T> {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and called before `memory` is dropped.
        unsafe { (self.adapter.library.dereg_mr)(self.registration.as_ptr()) };
    }
}

/// Zeroed memory of this process. It is shared with children to avoid copy-on-write, so that after
/// a fork this process still reads everything that the adapter writes.
pub(super) struct DmaBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; its users agree on which of them uses which part.
unsafe impl Send for DmaBuffer {}
// SAFETY: as above.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    fn new(len: usize) -> Result<DmaBuffer, String> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address that the kernel chooses.
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

    /// The address of the byte at `offset`. Panics unless `len` bytes are inside.
    #[inline(always)]
    pub(super) fn addr(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A word of the memory, by index.
    #[inline(always)]
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the memory, aligned (a mapping begins at a page), never moved, and atomic.
        unsafe { &*self.addr(index * 8, 8).cast::<AtomicU64>() }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no longer used.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
