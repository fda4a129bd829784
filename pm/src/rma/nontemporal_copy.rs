//! Long copies, by whichever way is the faster one for the memory at hand. A store to memory that
//! is in no cache first brings the line that it overwrites; one past the caches does not, and is
//! twice as fast there, but a third slower where the memory is in a cache. Nobody says which it is:
//! so of a long copy one piece is copied either way, and the others by what took less time.

// UNSAFETY: copies between places in mappings.
#![expect(unsafe_code)]

use std::time::{Duration, Instant};

/// Shorter copies are left to the C library.
const MIN_ADAPTIVE_COPY: usize = 1 << 20;
/// What is copied by one way at a time: long enough to be timed.
const COPY_CHUNK_LEN: usize = 64 << 10;
/// So many pieces later both ways are tried again.
const REMEASURE_AFTER_CHUNKS: usize = 64;
/// Stores past the caches fill whole lines.
const LINE: usize = 64;

/// Copies `len` bytes.
///
/// # Safety
/// They are mapped at both places, which do not overlap.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's word.
    unsafe {
        if len < MIN_ADAPTIVE_COPY {
            return from.copy_to_nonoverlapping(to, len);
        }
        copy_long(from, to, len);
    }
}

/// # Safety
/// As `copy`; `len` is more than a line.
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let unaligned_len = to.align_offset(LINE).min(len);
    let chunks = (len - unaligned_len) / COPY_CHUNK_LEN;
    let end = unaligned_len + chunks * COPY_CHUNK_LEN;
    let (mut cached_time, mut nontemporal_time) = (Duration::ZERO, Duration::ZERO);
    // SAFETY: all of it is inside what the caller says; pieces begin at lines.
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

/// Copies a piece past the caches.
///
/// # Safety
/// As `copy`, for a piece; `to` is where a line begins.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_nontemporal(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const SIMD_WIDTH: usize = size_of::<__m128i>();
    for line in (0..COPY_CHUNK_LEN).step_by(LINE) {
        // SAFETY: inside the piece; the target is aligned.
        unsafe {
            let (from, to) = (from.add(line), to.add(line));
            let load = |lane: usize| _mm_loadu_si128(from.add(lane * SIMD_WIDTH).cast());
            let lanes = [load(0), load(1), load(2), load(3)];
            for (i, lane) in lanes.into_iter().enumerate() {
                _mm_stream_si128(to.add(i * SIMD_WIDTH).cast(), lane);
            }
        }
    }
    // SAFETY: every processor of this kind has it. What is stored after this is seen after it.
    unsafe { _mm_sfence() };
}

/// There is no other way here.
///
/// # Safety
/// As `copy`, for a piece.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_nontemporal(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's word.
    unsafe { from.copy_to_nonoverlapping(to, COPY_CHUNK_LEN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_and_no_others_wherever_they_lie() {
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
