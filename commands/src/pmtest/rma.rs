//! `pmtest -rma`: remote memory access, compared with copies without PM: memcpy in one process, and
//! process_vm_writev and process_vm_readv between the same two processes.

// UNSAFETY: calls C functions and system calls that take addresses, and reads words that the other
// process writes.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use score_runtime::pm_h::*;
use serde_json::{Map, Value, json};

use crate::pmtest::channel::{Channel, PmError, check};
use crate::pmtest::floor::FloorProbe;
use crate::pmtest::results::Samples;

type RmaFn = unsafe extern "C" fn(*mut pmContext, c_int, u64, u64, usize) -> c_int;
type IsDone = unsafe extern "C" fn(*mut pmContext) -> c_int;

/// Default sizes.
pub const SIZES: [usize; 7] = [8, 64, 1024, 4096, 65_536, 1 << 20, 4 << 20];
/// Bytes in a batch, and its maximum number of copies.
const BATCH_BYTES: usize = 64 << 20;
const MAX_COPIES_PER_BATCH: usize = 20_000;
/// Maximum number of batches of each method. The methods alternate.
const BATCHES: u32 = 12;
/// Round trips of puts between two reads of the clock, and the number of such batches in a round.
const ROUND_TRIPS_PER_BATCH: u64 = 32;
const TRIP_BATCHES: usize = 50;

/// The method of a copy. Each method is a column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyMethod {
    /// pmWrite (true) or pmRead between memory from pmAlloc.
    PmAlloc(bool),
    Memcpy,
    /// pmWrite (true) or pmRead between other memory.
    AnyMemory(bool),
    /// process_vm_writev (true) or process_vm_readv.
    ProcessVm(bool),
}

const COPY_METHODS: [(CopyMethod, &str); 7] = [
    (CopyMethod::PmAlloc(true), "write_pmalloc"),
    (CopyMethod::PmAlloc(false), "read_pmalloc"),
    (CopyMethod::Memcpy, "memcpy"),
    (CopyMethod::AnyMemory(true), "write_other"),
    (CopyMethod::AnyMemory(false), "read_other"),
    (CopyMethod::ProcessVm(true), "process_vm_writev"),
    (CopyMethod::ProcessVm(false), "process_vm_readv"),
];

/// The results for one size.
#[derive(Debug, Clone)]
pub struct RmaResult {
    size: usize,
    /// Puts of 8 bytes: minimum and median one way, and the floor, in nanoseconds.
    put: Option<[f64; 3]>,
    /// Bytes per second, in the order of [`COPY_METHODS`]. NaN if a method is not possible on this
    /// system.
    rates: [f64; COPY_METHODS.len()],
}

/// A local area, and the corresponding area on the other node.
#[derive(Clone, Copy)]
struct BufferPair {
    addr: *mut u8,
    local_handle: u64,
    remote_handle: u64,
    /// The address of the remote area in the other process.
    remote_addr: usize,
}

/// One of the two nodes that measure.
pub struct Rma<'a> {
    channel: &'a Channel,
    context: *mut pmContext,
    is_first: bool,
    /// Size of each area in bytes.
    area_len: usize,
    pm_buffers: BufferPair,
    plain_buffers: BufferPair,
    /// The destination of memcpy.
    memcpy_target: *mut u8,
    /// The process id of the other process, if both processes are in one pid namespace.
    pid: Option<i32>,
    offset: usize,
    trip_count: u64,
}

fn map_plain_buffer(len: usize) -> Result<*mut u8, PmError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: requests new memory at any address.
    let addr = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        check("mmap", libc::ENOMEM)?
    }
    Ok(addr.cast())
}

impl<'a> Rma<'a> {
    /// Allocates the areas and exchanges their handles with the other node.
    ///
    /// # Errors
    /// Returns an error if a PM function failed. ENOSYS: the network has no remote memory.
    pub fn new(channel: &'a Channel, is_first: bool, area_len: usize) -> Result<Self, PmError> {
        let context = channel.as_ptr();
        let mut addr = null_mut();
        // SAFETY: PM checks the context; the pointer is valid for the call.
        check("pmAlloc", unsafe { pmAlloc(context, area_len, &raw mut addr) })?;
        // SAFETY: `area_len` bytes were just allocated.
        unsafe { addr.write_bytes(1, area_len) };
        let lock = |addr: *mut u8| {
            let mut local_handle = 0;
            let peer = c_int::from(is_first);
            // SAFETY: as above.
            check("pmMLock", unsafe {
                pmMLock(context, peer, addr, area_len, &raw mut local_handle)
            })?;
            Ok(BufferPair { addr, local_handle, remote_handle: 0, remote_addr: 0 })
        };
        let (pm_buffers, plain_buffers) = (lock(addr)?, lock(map_plain_buffer(area_len)?)?);
        let memcpy_target = if is_first { map_plain_buffer(area_len)? } else { null_mut() };
        let mut rma = Self {
            channel,
            context,
            is_first,
            area_len,
            pm_buffers,
            plain_buffers,
            memcpy_target,
            pid: None,
            offset: 0,
            trip_count: 0,
        };
        rma.exchange_handles()?;
        Ok(rma)
    }

    fn peer(&self) -> c_int {
        c_int::from(self.is_first)
    }

    fn exchange_handles(&mut self) -> Result<(), PmError> {
        let namespace = pid_namespace_id();
        let words = [
            self.pm_buffers.local_handle,
            self.plain_buffers.local_handle,
            self.plain_buffers.addr.addr() as u64,
            std::process::id().into(),
            namespace,
        ];
        let mut bytes = [0; 40];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.channel.send(self.peer(), &bytes)?;
        self.channel.receive(&mut bytes)?;
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        (
            self.pm_buffers.remote_handle,
            self.plain_buffers.remote_handle,
            self.plain_buffers.remote_addr,
        ) = (word(0), word(1), word(2) as usize);
        self.pid = (namespace != 0 && word(4) == namespace).then_some(word(3) as i32);
        Ok(())
    }

    /// Does all measurements for one size.
    ///
    /// # Errors
    /// Returns an error if a PM function failed.
    pub fn measure(
        &mut self,
        size: usize,
        floor: Option<&mut FloorProbe>,
        rounds: u32,
    ) -> Result<RmaResult, PmError> {
        let put = if size == 8 { Some(self.measure_puts(floor, rounds)?) } else { None };
        let mut rates: [Samples; COPY_METHODS.len()] =
            [const { Samples::empty() }; COPY_METHODS.len()];
        for _ in 0..BATCHES.min(rounds) {
            for ((method, _), rates) in COPY_METHODS.iter().zip(&mut rates) {
                rates.add(self.measure_batch(*method, size)?);
            }
        }
        Ok(RmaResult { size, put, rates: rates.map(|rates| rates.max()) })
    }

    /// The bytes per second of one batch. Node 0 copies, and node 1 replies to the last message of
    /// node 0.
    fn measure_batch(&mut self, method: CopyMethod, size: usize) -> Result<f64, PmError> {
        let count = (BATCH_BYTES.min(self.area_len) / size).clamp(1, MAX_COPIES_PER_BATCH);
        let mut word = [0; 8];
        if !self.is_first {
            self.channel.receive(&mut word)?;
            self.channel.send(0, &word)?;
            return Ok(f64::NAN);
        }
        let start = Instant::now();
        let mut all_copied = true;
        for _ in 0..count {
            self.offset =
                if self.offset + 2 * size > self.area_len { 0 } else { self.offset + size };
            all_copied &= self.copy_once(method, self.offset, size)?;
        }
        self.await_completion(method)?;
        self.channel.send(1, &word)?;
        self.channel.receive(&mut word)?;
        let rate = (size * count) as f64 / start.elapsed().as_secs_f64();
        Ok(if all_copied { rate } else { f64::NAN })
    }

    /// Does one copy at this offset of the areas. Returns false if it is not possible.
    #[inline(always)]
    fn copy_once(&self, method: CopyMethod, offset: usize, size: usize) -> Result<bool, PmError> {
        match method {
            CopyMethod::PmAlloc(write) => self.copy_by_pm(write, self.pm_buffers, offset, size),
            CopyMethod::AnyMemory(write) => {
                self.copy_by_pm(write, self.plain_buffers, offset, size)
            }
            CopyMethod::Memcpy => {
                // SAFETY: both areas are larger than `offset` and `size` together.
                unsafe {
                    black_box(self.plain_buffers.addr.add(offset))
                        .copy_to_nonoverlapping(self.memcpy_target.add(offset), size)
                };
                black_box(self.memcpy_target);
                Ok(true)
            }
            CopyMethod::ProcessVm(write) => {
                let Some(pid) = self.pid else { return Ok(false) };
                let iovec_at = |base: usize| libc::iovec {
                    iov_base: (base + offset) as *mut libc::c_void,
                    iov_len: size,
                };
                let (local, remote) = (
                    iovec_at(self.plain_buffers.addr.addr()),
                    iovec_at(self.plain_buffers.remote_addr),
                );
                let call = if write { libc::process_vm_writev } else { libc::process_vm_readv };
                // SAFETY: the local area belongs to this process; the kernel checks the other one.
                let copied = unsafe { call(pid, &raw const local, 1, &raw const remote, 1, 0) };
                Ok(copied == size as isize)
            }
        }
    }

    /// Returns false if the kernel refuses to copy this memory.
    #[inline(always)]
    fn copy_by_pm(
        &self,
        write: bool,
        buffers: BufferPair,
        offset: usize,
        size: usize,
    ) -> Result<bool, PmError> {
        let (call, name) =
            if write { (pmWrite as RmaFn, "pmWrite") } else { (pmRead as RmaFn, "pmRead") };
        let (remote, local) =
            (buffers.remote_handle + offset as u64, buffers.local_handle + offset as u64);
        loop {
            // SAFETY: PM checks context and handles. Nothing else uses the area.
            match unsafe { black_box(call)(self.context, self.peer(), remote, local, size) } {
                libc::ENOBUFS | libc::EBUSY => {}
                libc::ENOSYS => return Ok(false),
                code => return check(name, code).map(|()| true),
            }
        }
    }

    fn await_completion(&self, method: CopyMethod) -> Result<(), PmError> {
        let (call, name) = match method {
            CopyMethod::PmAlloc(true) | CopyMethod::AnyMemory(true) => {
                (pmIsWriteDone as IsDone, "pmIsWriteDone")
            }
            CopyMethod::PmAlloc(false) | CopyMethod::AnyMemory(false) => {
                (pmIsReadDone as IsDone, "pmIsReadDone")
            }
            CopyMethod::Memcpy | CopyMethod::ProcessVm(_) => return Ok(()),
        };
        loop {
            // SAFETY: PM checks the context.
            match unsafe { call(self.context) } {
                libc::EBUSY => {}
                code => return check(name, code),
            }
        }
    }

    /// Measures puts of 8 bytes in both directions. Each node replies when the put has changed its
    /// memory. Returns the minimum, the median and the floor.
    fn measure_puts(
        &mut self,
        mut floor: Option<&mut FloorProbe>,
        rounds: u32,
    ) -> Result<[f64; 3], PmError> {
        let [mut line_samples, mut batch_samples] = [const { Samples::empty() }; 2];
        // SAFETY: these are two aligned words of the area. The other process writes only the first.
        let (received, sent) = unsafe {
            (
                AtomicU64::from_ptr(self.pm_buffers.addr.cast()),
                AtomicU64::from_ptr(self.pm_buffers.addr.add(128).cast()),
            )
        };
        received.store(0, Ordering::Release);
        self.synchronize()?;
        let per_trip =
            |start: Instant| start.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS_PER_BATCH) as f64;
        for _ in 0..rounds {
            for _ in 0..TRIP_BATCHES {
                if let Some(floor) = &mut floor {
                    let start = Instant::now();
                    floor.bounce(self.is_first, ROUND_TRIPS_PER_BATCH as u32);
                    line_samples.add(per_trip(start));
                }
            }
            for _ in 0..TRIP_BATCHES {
                let start = Instant::now();
                for _ in 0..ROUND_TRIPS_PER_BATCH {
                    self.trip_count += 1;
                    if !self.is_first {
                        await_word(received, self.trip_count);
                    }
                    sent.store(self.trip_count, Ordering::Relaxed);
                    self.put_word()?;
                    if self.is_first {
                        await_word(received, self.trip_count);
                    }
                }
                batch_samples.add(per_trip(start));
            }
        }
        self.await_completion(CopyMethod::PmAlloc(true))?;
        self.synchronize()?;
        self.trip_count = 0;
        Ok([batch_samples.min(), batch_samples.quantile(0.5), line_samples.min()])
    }

    #[inline(always)]
    fn put_word(&self) -> Result<(), PmError> {
        let BufferPair { local_handle, remote_handle, .. } = self.pm_buffers;
        loop {
            // SAFETY: as in `copy_by_pm`.
            match unsafe {
                black_box(pmWrite as RmaFn)(
                    self.context,
                    self.peer(),
                    remote_handle,
                    local_handle + 128,
                    8,
                )
            } {
                libc::ENOBUFS | libc::EBUSY => {}
                code => return check("pmWrite", code),
            }
        }
    }

    /// Waits until both nodes have reached this point.
    fn synchronize(&self) -> Result<(), PmError> {
        let mut word = [0; 8];
        self.channel.send(self.peer(), &word)?;
        self.channel.receive(&mut word).map(drop)
    }
}

/// Does `puts` puts of 8 bytes from the first of two nodes of this process to the second.
///
/// # Errors
/// Returns an error if a PM function failed. EIO: a put did not arrive.
pub fn puts_single_node(ends: &[Channel; 2], puts: u64) -> Result<(), PmError> {
    let mut buffers = [(null_mut(), 0); 2];
    for (end, (addr, handle)) in ends.iter().zip(&mut buffers) {
        // SAFETY: PM checks the context; the pointers are valid for the calls.
        check("pmAlloc", unsafe { pmAlloc(end.as_ptr(), 8, &raw mut *addr) })?;
        // SAFETY: as above.
        check("pmMLock", unsafe { pmMLock(end.as_ptr(), -1, *addr, 8, &raw mut *handle) })?;
    }
    // SAFETY: each address is 8 bytes at the start of a page, and they are used only as words.
    let [from, to] = buffers.map(|(addr, _)| unsafe { AtomicU64::from_ptr(addr.cast()) });
    for number in 1..=puts {
        from.store(number, Ordering::Relaxed);
        // SAFETY: PM checks context and handles.
        let code = unsafe {
            black_box(pmWrite as RmaFn)(ends[0].as_ptr(), 1, buffers[1].1, buffers[0].1, 8)
        };
        check("pmWrite", code)?;
        if to.load(Ordering::Acquire) != number {
            check("pmWrite", libc::EIO)?;
        }
    }
    Ok(())
}

/// Identifies the machine and the pid namespace of this process. 0 if they are unknown.
fn pid_namespace_id() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = boot.replace('-', "");
    let boot_bits = digits.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let namespace = std::fs::metadata("/proc/self/ns/pid").map(|space| space.ino());
    boot_bits
        .zip(namespace.ok())
        .map_or(0, |(boot_bits, namespace)| boot_bits ^ namespace.rotate_left(32))
}

fn await_word(word: &AtomicU64, value: u64) {
    let mut polls = 0u32;
    while word.load(Ordering::Acquire) != value {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(1 << 20) {
            std::thread::yield_now();
        }
        // Without the pause, polling would pull the cache line away from the process that is about
        // to write to it.
        std::hint::spin_loop();
    }
}

/// The sizes to measure: the requested sizes, or the default sizes up to `max_size`.
///
/// # Errors
/// A requested size above `max_size`.
pub fn sizes(requested: &[usize], max_size: usize) -> Result<Vec<usize>, usize> {
    if requested.is_empty() {
        return Ok(SIZES.into_iter().filter(|size| *size <= max_size).collect());
    }
    match requested.iter().find(|size| **size > max_size) {
        Some(size) => Err(*size),
        None => Ok(requested.to_vec()),
    }
}

/// The JSON object of `-json`.
pub fn json(result: &RmaResult) -> Value {
    let mut object = Map::from_iter([("size".to_owned(), json!(result.size))]);
    let mut field = |name: String, value: f64| {
        if !value.is_nan() {
            object.insert(name, json!((value * 10.0).round() / 10.0));
        }
    };
    if let Some([min, median, floor]) = result.put {
        field("put_ns_min".into(), min);
        field("put_ns_median".into(), median);
        field("floor_ns".into(), floor);
    }
    for ((_, name), rate) in COPY_METHODS.iter().zip(result.rates) {
        field(format!("{name}_bytes_per_s"), rate);
    }
    Value::Object(object)
}

/// The results as a table.
pub fn table(results: &[RmaResult]) -> String {
    let mut text = String::new();
    for RmaResult { put, .. } in results {
        let Some([min, median, floor]) = put else { continue };
        text += &format!("put of 8 bytes: min {min:.1} ns, median {median:.1} ns");
        text += &match floor.is_nan() {
            true => "\n".to_owned(),
            false => format!(", floor {floor:.1} ns, x floor {:.2}\n", min / floor),
        };
    }
    text += &format!(
        "MB/s{:>16}{:>8}{:>8}{:>14}{:>8}{:>16}\n{:>9}{:>11}{:>8}{:>8}{:>14}{:>8}{:>8}{:>8}",
        "pmAlloc",
        "",
        "memcpy",
        "other memory",
        "",
        "process_vm_",
        "bytes",
        "write",
        "read",
        "",
        "write",
        "read",
        "writev",
        "readv"
    );
    for result in results {
        text += &format!("\n{:>9}", result.size);
        for (rate, width) in result.rates.into_iter().zip([11, 8, 8, 14, 8, 8, 8]) {
            text += &match rate.is_nan() {
                true => format!("{:>width$}", "-"),
                false => format!("{:>width$.0}", rate / 1e6),
            };
        }
    }
    text + "\n"
}

/// The error message for the user. It explains ENOSYS.
pub fn explain(option: &str, error: &PmError) -> String {
    if error.has_code(libc::ENOSYS) {
        let why = io::Error::from_raw_os_error(libc::ENOSYS);
        return format!("{option}: the network between nodes 0 and 1 has no remote memory ({why})");
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_methods_are_left_out() {
        let mut rates = [f64::NAN; COPY_METHODS.len()];
        rates[0] = 2e9;
        let result = RmaResult { size: 8, put: Some([50.0, 60.0, f64::NAN]), rates };
        let json = json(&result).to_string();
        assert!(json.contains("write_pmalloc") && !json.contains("floor"), "{json}");
        let text = table(&[result]);
        assert!(text.contains("2000") && text.contains('-') && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        assert_eq!(sizes(&[], 64 << 20).unwrap(), SIZES);
        assert_eq!(sizes(&[], 1024).unwrap(), [8, 64, 1024]);
        assert_eq!(sizes(&[8, 1025], 1024), Err(1025));
    }
}
