//! An open adapter: queues of completions, the receive queue that all its queue pairs share, and
//! registered memory.

// UNSAFETY: calls libibverbs through the addresses that `library` found, and owns what it makes.
#![expect(unsafe_code)]

use super::bindings::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Channel, Completion,
    CompletionQueue, Context, DeviceAttr, Domain, Event, Piece, ReceiveRequest, Registration,
    SharedInit, SharedQueue,
};
use super::choice::Chosen;
use super::library::Library;
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
const LEAST: usize = 256;

/// What the queues have to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) receives: usize,
    pub(super) sends: usize,
}

/// Reads under way at a time by one queue pair, if the adapter can.
const READS: usize = 4;

/// Who may do what with registered memory, besides the reading of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// This process writes.
    Own,
    /// And peers write.
    Written,
    /// This process writes, peers read.
    Read,
    /// All of it.
    All,
    /// Nobody may write, peers read.
    Constant,
}

impl Access {
    fn bits(self) -> i32 {
        match self {
            Access::Own => ACCESS_LOCAL_WRITE,
            Access::Written => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
            Access::Read => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ,
            Access::All => ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ,
            Access::Constant => ACCESS_REMOTE_READ,
        }
    }
}

/// See the module. Whatever is made of it holds it.
pub(super) struct Adapter {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<Context>,
    pub(super) domain: *mut Domain,
    channel: *mut Channel,
    pub(super) sends: *mut CompletionQueue,
    pub(super) receives: *mut CompletionQueue,
    pub(super) shared: *mut SharedQueue,
    pub(super) vendor: u32,
    /// The most work requests that a queue pair holds.
    pub(super) depth: usize,
    /// Reads under way at a time by one queue pair.
    pub(super) reads: u8,
    pub(super) chosen: Chosen,
    /// Where the kernel lists it.
    place: Option<PathBuf>,
}

/// Room for the completions that are taken at a time: as most polls find none, it is not cleared.
pub(super) struct Batch([MaybeUninit<Completion>; Batch::SIZE]);

impl Batch {
    pub(super) const SIZE: usize = 8;

    pub(super) fn new() -> Batch {
        Batch([const { MaybeUninit::uninit() }; Batch::SIZE])
    }
}

// SAFETY: the library's functions may be called by any thread at any time; what is made is
// destroyed by the last holder alone.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    pub(super) fn open(chosen: &Chosen, sizes: Sizes) -> Result<Arc<Adapter>, String> {
        let library = Library::get().map_err(|lack| lack.to_string())?;
        let context = library.open_adapter(&chosen.adapter)?;
        let mut adapter = Adapter {
            library,
            context,
            domain: null_mut(),
            channel: null_mut(),
            sends: null_mut(),
            receives: null_mut(),
            shared: null_mut(),
            vendor: 0,
            depth: 0,
            reads: 1,
            chosen: chosen.clone(),
            // SAFETY: just opened.
            place: unsafe { library.place_of(context) },
        };
        adapter.make(sizes)?;
        Ok(Arc::new(adapter))
    }

    /// What was made when this fails is destroyed with `self`.
    fn make(&mut self, sizes: Sizes) -> Result<(), String> {
        let (library, context) = (self.library, self.context.as_ptr());
        let mut limits = DeviceAttr::new();
        // SAFETY: an open context; the structure has the header's size.
        let error = unsafe { (library.query_device)(context, &raw mut limits) };
        if error != 0 {
            return Err(self.trouble("does not tell its limits"));
        }
        (self.vendor, self.depth) = (limits.vendor(), limits.max_qp_wr());
        self.reads = limits.max_reads().clamp(1, READS) as u8;
        if limits.max_srq_wr() < sizes.receives {
            let (most, wanted) = (limits.max_srq_wr(), sizes.receives);
            return Err(self.says(&format!("holds {most} receive buffers, {wanted} are needed")));
        }
        let entries = |wanted: usize| wanted.max(LEAST).min(limits.max_cqe()) as i32;
        // SAFETY: an open context; null is checked each time; what is made is destroyed in `drop`.
        unsafe {
            self.domain = made((library.alloc_pd)(context), self, "protection domain")?;
            self.channel = made((library.create_channel)(context), self, "completion channel")?;
            let queue =
                |entries, channel| (library.create_cq)(context, entries, null_mut(), channel, 0);
            let sends = queue(entries(sizes.sends), null_mut());
            self.sends = made(sends, self, "completion queue")?;
            let receives = queue(entries(sizes.receives), self.channel);
            self.receives = made(receives, self, "completion queue")?;
            let max_wr = sizes.receives.max(1) as u32;
            let mut init = SharedInit { srq_context: null_mut(), max_wr, max_sge: 1, srq_limit: 0 };
            let shared = (library.create_srq)(self.domain, &raw mut init);
            self.shared = made(shared, self, "shared receive queue")?;
        }
        for fd in [self.channel_fd(), self.events_fd()] {
            let set = fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
            set.map_err(|errno| self.says(&errno.to_string()))?;
        }
        Ok(())
    }

    fn says(&self, what: &str) -> String {
        format!("RDMA adapter {} {what}", self.chosen.adapter)
    }

    /// With the reason that the library has just left in errno.
    pub(super) fn trouble(&self, what: &str) -> String {
        let error = io::Error::last_os_error();
        self.says(&format!("{what}: {error}{}", advice(&error)))
    }

    /// What is said of memory that cannot be registered.
    pub(super) fn unpinnable(&self, why: &io::Error) -> String {
        let name = &self.chosen.adapter;
        match why.raw_os_error() {
            Some(libc::EAGAIN) => self.says(&format!("pins no memory: {why}{}", advice(why))),
            _ => format!(
                "RDMA adapter {name}: memory cannot be pinned (its limit: ulimit -l): {why}"
            ),
        }
    }

    /// Becomes readable when something was received after `request_notify`.
    pub(super) fn channel_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is not null once made, and open as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Becomes readable when `next_event` has something.
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context's own descriptor.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    /// The type of what has happened to the adapter, without waiting.
    pub(super) fn next_event(&self) -> Option<u32> {
        let mut event = Event { element: null_mut(), event_type: 0 };
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
        self.place.as_ref().is_some_and(|place| !place.exists())
    }

    /// What is received from now on makes the channel readable, once.
    pub(super) fn request_notify(&self) {
        // SAFETY: a queue of this context, which has its table.
        unsafe {
            if let Some(request) = self.context.as_ref().req_notify_cq {
                request(self.receives, 0);
            }
        }
    }

    /// The channel is readable no more.
    pub(super) fn drain_channel(&self) {
        let (mut queue, mut of_queue) = (null_mut(), null_mut());
        // SAFETY: a channel that does not block; each event is acknowledged.
        unsafe {
            let get = self.library.get_cq_event;
            while get(self.channel, &raw mut queue, &raw mut of_queue) == 0 {
                (self.library.ack_cq_events)(queue, 1);
            }
        }
    }

    /// Completions of what was sent; answers how many. None: the adapter has gone.
    #[inline(always)]
    pub(super) fn poll_sends<'a>(&self, batch: &'a mut Batch) -> Option<&'a [Completion]> {
        self.poll(self.sends, batch)
    }

    /// The same of what was received.
    #[inline(always)]
    pub(super) fn poll_receives<'a>(&self, batch: &'a mut Batch) -> Option<&'a [Completion]> {
        self.poll(self.receives, batch)
    }

    #[inline(always)]
    fn poll<'a>(
        &self,
        queue: *mut CompletionQueue,
        batch: &'a mut Batch,
    ) -> Option<&'a [Completion]> {
        let first = batch.0.as_mut_ptr().cast::<Completion>();
        // SAFETY: a queue of this context; the library writes as many completions as there is
        // room for, and says how many.
        unsafe {
            let poll = self.context.as_ref().poll_cq?;
            let count = usize::try_from(poll(queue, Batch::SIZE as i32, first)).ok()?;
            Some(std::slice::from_raw_parts(first, count.min(Batch::SIZE)))
        }
    }

    /// Offers a buffer to whoever sends.
    #[inline(always)]
    pub(super) fn offer(&self, id: u64, piece: Piece) -> bool {
        let (mut piece, mut bad) = (piece, null_mut());
        let mut request =
            ReceiveRequest { wr_id: id, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        // SAFETY: a queue of this context; the library copies the request. A piece outside of
        // registered memory is refused by the adapter.
        unsafe {
            let post = self.context.as_ref().post_srq_recv;
            post.is_some_and(|post| post(self.shared, &raw mut request, &raw mut bad) == 0)
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let library = self.library;
        // SAFETY: made by `make`, null where that did not come so far; nothing made of it is left.
        unsafe {
            if !self.shared.is_null() {
                (library.destroy_srq)(self.shared);
            }
            for queue in [self.receives, self.sends] {
                if !queue.is_null() {
                    (library.destroy_cq)(queue);
                }
            }
            if !self.channel.is_null() {
                (library.destroy_channel)(self.channel);
            }
            if !self.domain.is_null() {
                (library.dealloc_pd)(self.domain);
            }
            (library.close_device)(self.context.as_ptr());
        }
    }
}

/// What the library has made, or why not.
fn made<T>(pointer: *mut T, adapter: &Adapter, what: &str) -> Result<*mut T, String> {
    if pointer.is_null() {
        return Err(adapter.trouble(&format!("gives no {what}")));
    }
    Ok(pointer)
}

/// What can be done where an adapter gives nothing more.
fn advice(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::EAGAIN) => " (the limit of its cgroup: rdma.max)",
        Some(libc::ENOMEM | libc::ENOSPC) => " (who has how many: rdma resource show)",
        _ => "",
    }
}

/// Memory that the adapter may read and write; it keeps what holds the memory.
pub(super) struct Registered<T> {
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    pub(super) access: Access,
    registration: NonNull<Registration>,
    adapter: Arc<Adapter>,
    pub(super) keeps: T,
}

// SAFETY: the registration is the adapter's; what it keeps may be sent if it says so.
unsafe impl<T: Send> Send for Registered<T> {}
// SAFETY: as above; a shared one only tells its keys.
unsafe impl<T: Sync> Sync for Registered<T> {}

impl<T> Registered<T> {
    /// # Safety
    /// `keeps` keeps `len` bytes at `addr` mapped.
    pub(super) unsafe fn new(
        adapter: &Arc<Adapter>,
        keeps: T,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> io::Result<Registered<T>> {
        let (domain, bits) = (adapter.domain, access.bits());
        // SAFETY: mapped memory, by the caller; what is not is refused by the kernel.
        let made = unsafe { (adapter.library.reg_mr)(domain, addr.cast(), len, bits) };
        let registration = NonNull::new(made).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (registration.as_ref().lkey, registration.as_ref().rkey) };
        Ok(Registered { lkey, rkey, access, registration, adapter: adapter.clone(), keeps })
    }
}

impl Registered<Arc<Buffers>> {
    /// New memory.
    pub(super) fn buffers(
        adapter: &Arc<Adapter>,
        len: usize,
        access: Access,
    ) -> Result<Registered<Arc<Buffers>>, String> {
        let buffers = Arc::new(Buffers::new(len)?);
        let (at, len) = (buffers.at(0, len), buffers.len());
        // SAFETY: kept by what is registered.
        let made = unsafe { Registered::new(adapter, buffers, at, len, access) };
        made.map_err(|why| adapter.unpinnable(&why))
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and before `keeps` goes.
        unsafe { (self.adapter.library.dereg_mr)(self.registration.as_ptr()) };
    }
}

/// Zeroed memory of this process, shared with its children: what the adapter writes is never left
/// behind on a page that a fork has copied.
pub(super) struct Buffers {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who uses which part is settled by its users.
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new(len: usize) -> Result<Buffers, String> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory where the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let why = from_errno(nix::errno::Errno::last());
            return Err(format!("no memory for {len} bytes of buffers: {why}"));
        }
        let start = NonNull::new(start.cast()).ok_or("memory at address 0")?;
        Ok(Buffers { start, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, from where `len` bytes are inside.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A word of it, by number.
    #[inline(always)]
    pub(super) fn word(&self, number: usize) -> &AtomicU64 {
        // SAFETY: inside, aligned (a mapping begins at a page), never moved; atomic.
        unsafe { &*self.at(number * 8, 8).cast::<AtomicU64>() }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
