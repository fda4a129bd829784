//! Measures the frequency of this processor's time stamp counter, which the emulated processor
//! also uses. A kernel that measures it on a busy machine may be wrong by a factor of ten, and then
//! its clock is wrong as well.

// UNSAFETY: reads the time stamp counter.
#![expect(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

/// An error of 1 us in this window is 20 ppm.
const CALIBRATION_WINDOW: Duration = Duration::from_millis(50);

#[cfg(not(target_arch = "x86_64"))]
unsafe fn _rdtsc() -> u64 {
    0
}

/// Reads the counter and the time several times, and returns the pair that was read fastest.
fn sample() -> (u64, Instant) {
    let read_pair = || {
        // SAFETY: every x86_64 has the counter, and Linux lets processes read it.
        let before = unsafe { _rdtsc() };
        let time = Instant::now();
        // SAFETY: see above.
        let after = unsafe { _rdtsc() };
        (after.wrapping_sub(before), before, time)
    };
    let best = (0..20).map(|_| read_pair()).min_by_key(|(tsc_delta, ..)| *tsc_delta);
    let (_, counter, time) = best.unwrap_or_else(read_pair);
    (counter, time)
}

/// The frequency in kHz, or 0 if there is no counter. The kernel ignores 0.
pub fn khz() -> u64 {
    let (before, begin) = sample();
    std::thread::sleep(CALIBRATION_WINDOW);
    let (after, end) = sample();
    let nanos = (end - begin).as_nanos().max(1);
    (u128::from(after.wrapping_sub(before)) * 1_000_000 / nanos) as u64
}
