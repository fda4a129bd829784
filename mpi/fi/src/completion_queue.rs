//! Completion queues: fi_cq(3). Reading a queue makes progress.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use score_p2p::{Channel, Completion, CompletionKind, Failure};

use crate::abi::*;
use crate::core_state::CoreState;
use crate::core_state::wait_descriptors::wake;
use crate::domain::Domain;
use crate::op_table::{UNSUPPORTED, op};
use crate::serialized::Serialized;
use crate::waiting::left_ms;
use crate::{failed, failed_call, waiting};

/// How often a waiting read polls before it yields the processor or sleeps.
const POLLS_BEFORE_YIELD: u32 = 1000;

#[repr(C)]
pub(crate) struct CompletionQueue {
    fid: FidCq,
    core: &'static Serialized<CoreState>,
    pub(crate) number: usize,
    entry_len: usize,
    /// The descriptor to wait on, and the descriptor that wakes waiting threads. None: a waiting
    /// thread polls.
    descriptors: Option<(RawFd, RawFd)>,
    /// Whether a waiting read should return.
    is_signalled: AtomicBool,
}

static OPS: FiOps = FiOps {
    size: size_of::<FiOps>(),
    close: op!(close as unsafe extern "C" fn(_) -> _),
    bind: UNSUPPORTED,
    control: op!(control as unsafe extern "C" fn(_, _, _) -> _),
    ops_open: UNSUPPORTED,
};

static QUEUE_OPS: FiOpsCq = FiOpsCq {
    size: size_of::<FiOpsCq>(),
    read: op!(read as unsafe extern "C" fn(_, _, _) -> _),
    readfrom: op!(readfrom as unsafe extern "C" fn(_, _, _, _) -> _),
    readerr: op!(readerr as unsafe extern "C" fn(_, _, _) -> _),
    sread: op!(sread as unsafe extern "C" fn(_, _, _, _, _) -> _),
    sreadfrom: op!(sreadfrom as unsafe extern "C" fn(_, _, _, _, _, _) -> _),
    signal: op!(signal as unsafe extern "C" fn(_) -> _),
    strerror: op!(strerror as unsafe extern "C" fn(_, _, _, _, _) -> _),
};

/// fi_cq_open(3).
///
/// # Safety
/// See fi_cq_open(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut Domain,
    attr: *const FiCqAttr,
    result: *mut *mut CompletionQueue,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the pointer is NULL or valid.
    let (format, wait) = unsafe { attr.as_ref() }
        .map_or((FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE), |attr| (attr.format, attr.wait_obj));
    // The formats are prefixes of the longest one.
    let entry_len = match format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => 8,
        FI_CQ_FORMAT_MSG => 24,
        FI_CQ_FORMAT_DATA => 40,
        FI_CQ_FORMAT_TAGGED => size_of::<FiCqTaggedEntry>(),
        _ => return failed(libc::ENOSYS),
    };
    // SAFETY: the program passes an open domain.
    let core = unsafe { (*domain).core };
    let descriptors = match wait {
        FI_WAIT_NONE | FI_WAIT_YIELD => None,
        FI_WAIT_UNSPEC | FI_WAIT_FD => {
            let opened = core.with(CoreState::open_wait_descriptors);
            if opened.is_none() {
                return failed(libc::EMFILE);
            }
            opened
        }
        _ => return failed(libc::ENOSYS),
    };
    let number = core.with(CoreState::open_queue);
    let fid = Fid { fclass: FI_CLASS_CQ, context, ops: &OPS };
    let fid = FidCq { fid, ops: &QUEUE_OPS };
    let is_signalled = AtomicBool::new(false);
    let queue = CompletionQueue { fid, core, number, entry_len, descriptors, is_signalled };
    // SAFETY: the caller promises that the address can be written.
    unsafe { *result = Box::into_raw(Box::new(queue)) };
    0
}

unsafe extern "C" fn close(queue: *mut CompletionQueue) -> c_int {
    // SAFETY: `open` has made the queue, and the program does not use it any more (fi_cq(3)).
    let queue = unsafe { Box::from_raw(queue) };
    queue.core.with(|core| core.close_queue(queue.number));
    0
}

/// fi_control(3).
unsafe extern "C" fn control(
    queue: *mut CompletionQueue,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the queue is open, and the program passes a valid argument.
    unsafe {
        let descriptor = (*queue).descriptors.map(|(descriptor, _)| descriptor);
        waiting::store_descriptor(descriptor, command, argument)
    }
}

/// Whether the completion is of a message without a tag that has arrived.
#[inline(always)]
fn is_untagged_arrival(completion: &Completion) -> bool {
    let kinds = [CompletionKind::Received, CompletionKind::Released];
    completion.channel == Channel::Untagged && kinds.contains(&completion.kind)
}

/// The flags of an entry.
#[inline(always)]
fn flags(completion: &Completion) -> u64 {
    let channel = match completion.channel {
        Channel::Tagged => FI_TAGGED,
        Channel::Untagged => FI_MSG,
    };
    match completion.kind {
        CompletionKind::Sent => channel | FI_SEND,
        CompletionKind::Released => FI_MULTI_RECV,
        CompletionKind::Received if completion.envelope.data.is_some() => {
            channel | FI_RECV | FI_REMOTE_CQ_DATA
        }
        CompletionKind::Received => channel | FI_RECV,
        CompletionKind::Written => FI_RMA | FI_WRITE,
        CompletionKind::Read => FI_RMA | FI_READ,
        CompletionKind::Atomic => FI_ATOMIC | FI_WRITE,
        CompletionKind::FetchedAtomic => FI_ATOMIC | FI_READ,
        CompletionKind::RemoteWritten => FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
    }
}

impl CompletionQueue {
    /// Stores up to `count` entries, and the addresses of their sources.
    ///
    /// # Safety
    /// `entries` has room for `count` entries. `sources` has room for as many addresses, or is
    /// NULL.
    #[inline(always)]
    unsafe fn read(&self, entries: *mut c_void, count: usize, sources: *mut u64) -> isize {
        let core = &mut *self.core.access();
        let mut stored = 0;
        let mut has_progressed = false;
        let must_wait = core.own_messages.start_read();
        if count == 0 {
            // A read of no entries also makes progress (fi_cq(3)).
            core.progress();
        }
        while stored < count {
            let (mut source, mut endpoint, mut waits) = (0, 0, false);
            let is_stored = core.take_completion(self.number, |completion, of_endpoint| {
                waits = must_wait && is_untagged_arrival(completion);
                // fi_cq_readerr(3) reads failures.
                let is_read = !waits && completion.failure.is_none();
                if is_read {
                    (source, endpoint) = (completion.source, of_endpoint);
                    // SAFETY: the caller promises that there is room.
                    unsafe { self.store_entry(entries, stored, completion) };
                }
                is_read
            });
            match is_stored {
                Some(true) => {}
                Some(false) if waits => break,
                Some(false) if stored == 0 => return failed_call(FI_EAVAIL),
                None if stored == 0 && !has_progressed => {
                    core.progress();
                    has_progressed = true;
                    continue;
                }
                Some(false) | None => break,
            }
            if !sources.is_null() {
                let address = core.address_of(endpoint, source).unwrap_or(FI_ADDR_UNSPEC);
                // SAFETY: as above.
                unsafe { *sources.add(stored) = address };
            }
            stored += 1;
        }
        if stored > 0 {
            return stored as isize;
        }
        core.count_empty_poll();
        failed_call(libc::EAGAIN)
    }

    /// Stores the entry with index `index`.
    ///
    /// # Safety
    /// `entries` has room for it.
    #[inline(always)]
    unsafe fn store_entry(&self, entries: *mut c_void, index: usize, completion: &Completion) {
        let entry = FiCqTaggedEntry {
            op_context: completion.context as *mut c_void,
            flags: flags(completion),
            len: completion.len,
            buf: completion.start.cast(),
            data: completion.envelope.data.unwrap_or(0),
            tag: completion.envelope.tag.unwrap_or(0),
        };
        // SAFETY: the caller promises it. An entry of each format is a prefix of this one.
        unsafe {
            let to = entries.cast::<u8>().add(index * self.entry_len);
            if self.entry_len == size_of::<FiCqTaggedEntry>() {
                to.cast::<FiCqTaggedEntry>().write_unaligned(entry);
            } else {
                let from = (&raw const entry).cast::<u8>();
                std::ptr::copy_nonoverlapping(from, to, self.entry_len);
            }
        }
    }

    /// Like `read`, but waits for the first entry: at most `timeout` ms, or without limit if
    /// `timeout` is negative.
    ///
    /// # Safety
    /// See `read`.
    unsafe fn wait_and_read(
        &self,
        entries: *mut c_void,
        count: usize,
        sources: *mut u64,
        timeout: c_int,
    ) -> isize {
        let wait = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = wait.map(|wait| Instant::now() + wait);
        let mut polls: u32 = 0;
        loop {
            // SAFETY: the caller promises it.
            let result = unsafe { self.read(entries, count, sources) };
            if result != failed_call(libc::EAGAIN)
                || deadline.is_some_and(|deadline| Instant::now() >= deadline)
            {
                return result;
            }
            if self.is_signalled.swap(false, Ordering::AcqRel) {
                return result;
            }
            polls += 1;
            if polls < POLLS_BEFORE_YIELD {
                continue;
            }
            polls = 0;
            if self.descriptors.is_none() {
                std::thread::yield_now();
                continue;
            }
            waiting::wait(self.core, left_ms(deadline), |core| {
                core.has_completion(self.number) || self.is_signalled.load(Ordering::Acquire)
            });
        }
    }

    /// Prepares to wait on the descriptor. Returns false if there is a completion.
    pub(crate) fn prepare_to_wait(&self) -> bool {
        self.core.with(|core| core.prepare_to_wait(|core| core.has_completion(self.number)))
    }
}

/// fi_cq_read(3).
unsafe extern "C" fn read(
    queue: *mut CompletionQueue,
    entries: *mut c_void,
    count: usize,
) -> isize {
    // SAFETY: the queue is open, and the program promises that there is room.
    unsafe { (*queue).read(entries, count, null_mut()) }
}

/// fi_cq_readfrom(3).
unsafe extern "C" fn readfrom(
    queue: *mut CompletionQueue,
    entries: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: see `read`.
    unsafe { (*queue).read(entries, count, sources) }
}

/// fi_cq_sread(3).
unsafe extern "C" fn sread(
    queue: *mut CompletionQueue,
    entries: *mut c_void,
    count: usize,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: see `read`.
    unsafe { (*queue).wait_and_read(entries, count, null_mut(), timeout) }
}

/// fi_cq_sreadfrom(3).
unsafe extern "C" fn sreadfrom(
    queue: *mut CompletionQueue,
    entries: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: see `read`.
    unsafe { (*queue).wait_and_read(entries, count, sources, timeout) }
}

/// fi_cq_signal(3): makes waiting threads return.
unsafe extern "C" fn signal(queue: *mut CompletionQueue) -> c_int {
    // SAFETY: the program passes an open queue.
    let queue = unsafe { &*queue };
    queue.is_signalled.store(true, Ordering::Release);
    queue.descriptors.into_iter().for_each(|(_, event)| wake(event));
    0
}

/// fi_cq_readerr(3): reads the first completion of the queue if it is a failure.
unsafe extern "C" fn readerr(
    queue: *mut CompletionQueue,
    entry: *mut FiCqErrEntry,
    _flags: u64,
) -> isize {
    // SAFETY: the program passes an open queue.
    let queue = unsafe { &*queue };
    let completion = queue.core.with(|core| {
        let mut failed = None;
        core.take_completion(queue.number, |completion, _| {
            failed = completion.failure.is_some().then_some(*completion);
            failed.is_some()
        });
        failed
    });
    let Some(completion) = completion else { return failed_call(libc::EAGAIN) };
    let (error, excess) = match completion.failure {
        Some(Failure::Truncated { excess }) => (FI_ETRUNC, excess),
        Some(Failure::Cancelled) => (libc::ECANCELED, 0),
        Some(Failure::NoMessage) => (libc::ENOMSG, 0),
        Some(Failure::Refused) => (FI_ENOKEY, 0),
        Some(Failure::Network) | None => (libc::EIO, 0),
    };
    // SAFETY: the program passes room for an entry.
    unsafe {
        *entry = FiCqErrEntry {
            op_context: completion.context as *mut c_void,
            flags: flags(&completion),
            len: completion.len,
            buf: completion.start.cast(),
            data: completion.envelope.data.unwrap_or(0),
            tag: completion.envelope.tag.unwrap_or(0),
            olen: usize::try_from(excess).unwrap_or(usize::MAX),
            err: error,
            prov_errno: error,
            err_data: null_mut(),
            err_data_size: 0,
        };
    }
    1
}

/// fi_cq_strerror(3).
unsafe extern "C" fn strerror(
    _queue: *mut CompletionQueue,
    error: c_int,
    _data: *const c_void,
    buffer: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = match error {
        FI_ETRUNC => c"the message is longer than the receive buffer",
        libc::ECANCELED => c"the operation was cancelled",
        FI_ENOKEY => c"the other node's memory does not permit the access",
        _ => c"the network has failed",
    };
    if !buffer.is_null() {
        // SAFETY: the program promises that `buffer` has `len` bytes.
        unsafe {
            let room = len.min(text.count_bytes() + 1);
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, room);
            if room > 0 {
                *buffer.add(room - 1) = 0;
            }
        }
    }
    text.as_ptr()
}
