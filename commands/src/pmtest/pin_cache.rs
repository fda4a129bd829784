//! `pmtest -pin`: measures the benefit of the pin-down cache, like the experiment of 1998 that
//! introduced the cache. Each transfer locks its memory, and unlocks it at the end. pmtest measures
//! the bandwidth with hits and with misses in the cache.

// UNSAFETY: calls C functions that take addresses, and maps memory for them.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use score_runtime::pm_h::*;
use serde_json::{Value, json};

use crate::pmtest::channel::{Channel, PmError, check};

/// Default sizes.
pub const SIZES: [usize; 9] = [1024, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 1 << 20];
/// Bytes in a round of one size, and minimum and maximum of the number of transfers.
const BYTES_PER_ROUND: usize = 16 << 20;
const TRANSFER_RANGE: (usize, usize) = (16, 256);

/// The bytes per second for one size, if all transfers hit the cache and if all miss it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PinResult {
    size: usize,
    hits: f64,
    misses: f64,
}

/// Runs the measurement on node 0. Node 1 only waits.
///
/// # Errors
/// Returns an error if a PM function failed. ENOSYS: the network has no remote memory.
pub fn run(
    channel: &Channel,
    is_first: bool,
    sizes: &[usize],
    rounds: u32,
) -> Result<Vec<PinResult>, PmError> {
    let max_size = sizes.iter().copied().max().unwrap_or(1);
    let memory = MappedBuffer::new(max_size)?;
    let peer = c_int::from(is_first);
    let mut word = [0; 8];
    if !is_first {
        let handle = lock(channel, peer, memory.addr, max_size)?;
        channel.send(0, &handle.to_ne_bytes())?;
        channel.receive(&mut word)?;
        return Ok(Vec::new());
    }
    channel.receive(&mut word)?;
    let remote_handle = u64::from_ne_bytes(word);
    let mut results = Vec::new();
    for &size in sizes {
        let mut best = [0.0f64; 2];
        for _ in 0..rounds {
            for (best, misses) in best.iter_mut().zip([false, true]) {
                *best = best.max(transfers(channel, remote_handle, &memory, size, misses)?);
            }
        }
        results.push(PinResult { size, hits: best[0], misses: best[1] });
    }
    channel.send(1, &word)?;
    Ok(results)
}

/// The bytes per second, measured from lock to unlock.
fn transfers(
    channel: &Channel,
    remote_handle: u64,
    memory: &MappedBuffer,
    size: usize,
    misses: bool,
) -> Result<f64, PmError> {
    let (min_count, max_count) = TRANSFER_RANGE;
    let count = (BYTES_PER_ROUND / size).clamp(min_count, max_count);
    let mut elapsed = Duration::ZERO;
    memory.replace_pages(size)?;
    // The first transfer registers the memory in the cache and is not counted.
    for number in 0..=count {
        if misses {
            memory.replace_pages(size)?;
        }
        let start = Instant::now();
        transfer(channel, remote_handle, memory.addr, size)?;
        if number > 0 {
            elapsed += start.elapsed();
        }
    }
    Ok((count * size) as f64 / elapsed.as_secs_f64())
}

fn lock(channel: &Channel, peer: c_int, addr: *mut u8, size: usize) -> Result<u64, PmError> {
    let mut handle = 0;
    // SAFETY: PM checks the context; `size` bytes are mapped at `addr`.
    let code = unsafe { pmMLock(channel.as_ptr(), peer, addr, size, &raw mut handle) };
    check("pmMLock", code).map(|()| handle)
}

fn transfer(
    channel: &Channel,
    remote_handle: u64,
    addr: *mut u8,
    size: usize,
) -> Result<(), PmError> {
    let context = channel.as_ptr();
    let local_handle = lock(channel, 1, addr, size)?;
    let retry_while_busy = |name, call: &dyn Fn() -> c_int| loop {
        match call() {
            libc::ENOBUFS | libc::EBUSY => {}
            code => return check(name, code),
        }
    };
    // SAFETY: PM checks context and handles. Nothing else uses the memory.
    retry_while_busy("pmWrite", &|| unsafe {
        pmWrite(context, 1, remote_handle, local_handle, size)
    })?;
    // SAFETY: as above.
    retry_while_busy("pmIsWriteDone", &|| unsafe { pmIsWriteDone(context) })?;
    // SAFETY: as above.
    check("pmMUnlock", unsafe { pmMUnlock(context, 1, addr, size) })
}

/// Memory from mmap, not from pmAlloc.
struct MappedBuffer {
    addr: *mut u8,
    len: usize,
}

impl MappedBuffer {
    fn new(len: usize) -> Result<Self, PmError> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: requests new memory at any address.
        let addr = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
        if addr == libc::MAP_FAILED {
            check("mmap", libc::ENOMEM)?;
        }
        let memory = Self { addr: addr.cast(), len };
        memory.replace_pages(len)?;
        Ok(memory)
    }

    /// Replaces the pages of the first `bytes` bytes. Their registrations in the cache become
    /// invalid.
    fn replace_pages(&self, bytes: usize) -> Result<(), PmError> {
        // SAFETY: inside the mapping, to which no reference exists.
        if unsafe { libc::madvise(self.addr.cast(), bytes, libc::MADV_DONTNEED) } != 0 {
            check("madvise", libc::EINVAL)?;
        }
        // SAFETY: as above.
        unsafe { self.addr.write_bytes(1, bytes) };
        Ok(())
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped the memory, and nothing uses it after this.
        unsafe { libc::munmap(self.addr.cast(), self.len) };
    }
}

/// The JSON object of `-json`.
pub fn json(result: &PinResult) -> Value {
    let rate = |rate: f64| (rate * 10.0).round() / 10.0;
    json!({
        "size": result.size,
        "hits_bytes_per_s": rate(result.hits),
        "misses_bytes_per_s": rate(result.misses),
    })
}

/// The results as a table.
pub fn table(results: &[PinResult]) -> String {
    let mut text = format!("{:>9}{:>12}{:>14}\n", "bytes", "hits MB/s", "misses MB/s");
    for PinResult { size, hits, misses } in results {
        text += &format!("{size:>9}{:>12.1}{:>14.1}\n", hits / 1e6, misses / 1e6);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_size() {
        let result = PinResult { size: 4096, hits: 2e6, misses: 1e6 };
        assert_eq!(json(&result)["hits_bytes_per_s"], 2e6);
        assert_eq!(table(&[result]).lines().last(), Some("     4096         2.0           1.0"));
    }
}
