//! Long copies, by the faster one of two methods. A normal store to memory that is in no cache
//! first fetches the line that it overwrites. A nontemporal store does not fetch the line. It is
//! twice as fast for such memory, but a third slower if the memory is in a cache. A program cannot
//! find out whether memory is in a cache. Therefore a long copy measures one chunk with each
//! method, and copies the other chunks with the faster method.

// UNSAFETY: copies between addresses in mappings.
#![expect(unsafe_code)]

use std::time::{Duration, Instant};

/// The minimum length for this module. The C library makes shorter copies.
const MIN_ADAPTIVE_COPY: usize = 1 << 20;
/// Bytes that are copied with one method at a time. A chunk is long enough for a measurement.
const COPY_CHUNK_LEN: usize = 64 << 10;
/// The number of chunks after which both methods are measured again.
const REMEASURE_AFTER_CHUNKS: usize = 64;
/// The length of a cache line. Nontemporal stores fill whole lines.
const LINE: usize = 64;

/// Copies `len` bytes.
///
/// # Safety
/// `len` bytes are mapped at both addresses, and the two ranges do not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if len < MIN_ADAPTIVE_COPY {
            return from.copy_to_nonoverlapping(to, len);
        }
        copy_long(from, to, len);
    }
}

/// # Safety
/// Those of `copy`; `len` is more than a line.
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let unaligned_len = to.align_offset(LINE).min(len);
    let chunks = (len - unaligned_len) / COPY_CHUNK_LEN;
    let end = unaligned_len + chunks * COPY_CHUNK_LEN;
    let (mut cached_time, mut nontemporal_time) = (Duration::ZERO, Duration::ZERO);
    // SAFETY: all of it is inside the caller's ranges; chunks begin at lines.
    unsafe {
        from.copy_to_nonoverlapping(to, unaligned_len);
        for chunk in 0..chunks {
            let offset = unaligned_len + chunk * COPY_CHUNK_LEN;
            let (from, to) = (from.add(offset), to.add(offset));
            match chunk % REMEASURE_AFTER_CHUNKS {
                0 => cached_time = timed(|| from.copy_to_nonoverlapping(to, COPY_CHUNK_LEN)),
                1 => nontemporal_time = timed(|| copy_nontemporal(from, to)),
                _ if nontemporal_time < cached_time => copy_nontemporal(from, to),
                _ => from.copy_to_nonoverlapping(to, COPY_CHUNK_LEN),
            }
        }
        from.add(end).copy_to_nonoverlapping(to.add(end), len - end);
    }
}

fn timed(copy: impl FnOnce()) -> Duration {
    let start = Instant::now();
    copy();
    start.elapsed()
}

/// Copies a chunk by nontemporal stores.
///
/// # Safety
/// Those of `copy`, for a chunk; `to` is the start of a line.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_nontemporal(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const SIMD_WIDTH: usize = size_of::<__m128i>();
    for line in (0..COPY_CHUNK_LEN).step_by(LINE) {
        // SAFETY: inside the chunk; the target is aligned.
        unsafe {
            let (from, to) = (from.add(line), to.add(line));
            let load = |i: usize| _mm_loadu_si128(from.add(i * SIMD_WIDTH).cast());
            let vectors = [load(0), load(1), load(2), load(3)];
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm_stream_si128(to.add(i * SIMD_WIDTH).cast(), vector);
            }
        }
    }
    // SAFETY: every x86-64 processor has this instruction. Later stores become visible later.
    unsafe { _mm_sfence() };
}

/// On other processors both methods are the same.
///
/// # Safety
/// Those of `copy`, for a chunk.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_nontemporal(from: *const u8, to: *mut u8) {
    // SAFETY: guaranteed by the caller.
    unsafe { from.copy_to_nonoverlapping(to, COPY_CHUNK_LEN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_given_bytes_are_copied_at_any_alignment() {
        let byte = |i: usize| (i * 31 + (i >> 8)) as u8;
        let from: Vec<u8> = (0..MIN_ADAPTIVE_COPY + 4 * COPY_CHUNK_LEN).map(byte).collect();
        let mut to = vec![0xee; MIN_ADAPTIVE_COPY + 4 * COPY_CHUNK_LEN];
        let lens = [
            0,
            1,
            MIN_ADAPTIVE_COPY - 1,
            MIN_ADAPTIVE_COPY,
            MIN_ADAPTIVE_COPY + 1,
            MIN_ADAPTIVE_COPY + LINE,
            MIN_ADAPTIVE_COPY + COPY_CHUNK_LEN,
            MIN_ADAPTIVE_COPY + COPY_CHUNK_LEN + 77,
        ];
        for (len, (source, target)) in lens.iter().zip((0..).map(|i| (i * 13 % 70, i * 29 % 131))) {
            to.fill(0xee);
            let bytes = &from[source..source + len];
            // SAFETY: both are inside their vectors.
            unsafe { copy(bytes.as_ptr(), to.as_mut_ptr().add(target), *len) };
            assert!(&to[target..target + len] == bytes, "{len} from {source} to {target}");
            let others = to[..target].iter().chain(&to[target + len..]);
            assert!(others.into_iter().all(|byte| *byte == 0xee), "{len} to {target}");
        }
    }

    #[test]
    fn a_nontemporal_copy_copies_all_bytes() {
        let from: Vec<u8> = (0..COPY_CHUNK_LEN + 1).map(|i| (i >> 3) as u8).collect();
        let mut to = vec![0u8; COPY_CHUNK_LEN + LINE];
        let line = to.as_ptr().align_offset(LINE);
        // SAFETY: both are inside their vectors, and the target begins at a line.
        unsafe { copy_nontemporal(from.as_ptr().add(1), to.as_mut_ptr().add(line)) };
        assert!(to[line..line + COPY_CHUNK_LEN] == from[1..]);
    }
}
