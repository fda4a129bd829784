//! How fast this processor's time stamp counter runs, which is the emulated one's, too. A kernel
//! that measures it on a busy machine may be wrong by a factor of ten, and its clock with it.

// UNSAFETY: reads the time stamp counter.
#![expect(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

/// A tick of 1 us in so long is 20 ppm.
const CALIBRATION_WINDOW: Duration = Duration::from_millis(50);

#[cfg(not(target_arch = "x86_64"))]
unsafe fn _rdtsc() -> u64 {
    0
}

/// The counter and the time, read as close to each other as several tries bring.
fn sample() -> (u64, Instant) {
    let read_pair = || {
        // SAFETY: every x86_64 has it, and Linux lets processes read it.
        let before = unsafe { _rdtsc() };
        let time = Instant::now();
        // SAFETY: as above.
        let after = unsafe { _rdtsc() };
        (after.wrapping_sub(before), before, time)
    };
    let best = (0..20).map(|_| read_pair()).min_by_key(|(tsc_delta, ..)| *tsc_delta);
    let (_, counter, time) = best.unwrap_or_else(read_pair);
    (counter, time)
}

/// Its frequency in kHz; 0, which a kernel takes for no word, where there is none.
pub fn khz() -> u64 {
    let (before, begin) = sample();
    std::thread::sleep(CALIBRATION_WINDOW);
    let (after, end) = sample();
    let nanos = (end - begin).as_nanos().max(1);
    (u128::from(after.wrapping_sub(before)) * 1_000_000 / nanos) as u64
}
