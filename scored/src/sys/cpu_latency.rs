//! Keeps processors awake while jobs alternate on them. Between two jobs, each processor is idle
//! for a moment. A processor that sleeps then takes long to wake: 0.1 ms from a deep state. A
//! virtual processor may take milliseconds, if its host has assigned the processor to another task.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// A process writes the permitted wake-up latency in microseconds to this file. The limit is in
/// effect as long as the file is open.
const CPU_DMA_LATENCY_PATH: &str = "/dev/cpu_dma_latency";
/// How long the processors are kept awake after the last request.
const HOLD_WINDOW: Duration = Duration::from_secs(1);

/// The latency that means no limit. It is the initial value of an open file.
const UNLIMITED_LATENCY_US: i32 = 2_000_000_000;

/// The state of the file.
#[derive(Debug, Default)]
enum LatencyFile {
    #[default]
    NotOpened,
    /// The file stays open, because a daemon without privileges could not open it again.
    Open(File),
    /// The file does not exist, or this process may not open it.
    Unavailable,
}

/// See the [module](self). Initially the processors may sleep.
#[derive(Debug, Default)]
pub struct CpuLatencyHold {
    file: LatencyFile,
    expires_at: Option<Instant>,
}

impl CpuLatencyHold {
    /// Opens the file before this process loses the permission to do so.
    pub fn prepare(&mut self) {
        if matches!(self.file, LatencyFile::NotOpened) {
            let opened = File::options().write(true).open(CPU_DMA_LATENCY_PATH);
            self.file = opened.map_or(LatencyFile::Unavailable, LatencyFile::Open);
        }
    }

    fn limit(&mut self, latency_us: i32) -> bool {
        let LatencyFile::Open(file) = &mut self.file else { return false };
        file.write_all(&latency_us.to_ne_bytes()).is_ok()
    }

    /// Keeps the processors awake for `HOLD_WINDOW` from now on. Returns true if they were not kept
    /// awake before.
    pub fn extend(&mut self, now: Instant) -> bool {
        let begins = self.expires_at.is_none();
        if begins {
            self.prepare();
            if !self.limit(0) {
                return false;
            }
        }
        self.expires_at = Some(now + HOLD_WINDOW);
        begins
    }

    /// Lets the processors sleep if the hold has expired. Call this at
    /// [`CpuLatencyHold::deadline`]. Returns true if the processors may sleep from now on.
    pub fn release_if_expired(&mut self, now: Instant) -> bool {
        let ends = self.expires_at.take_if(|expires_at| *expires_at <= now).is_some();
        if ends {
            self.limit(UNLIMITED_LATENCY_US);
        }
        ends
    }

    /// When the processors may sleep again.
    pub fn deadline(&self) -> Option<Instant> {
        self.expires_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise of `processors_stay_awake_as_long_as_jobs_take_turns`.
    #[test]
    fn a_repeated_request_extends_the_hold() {
        let now = Instant::now();
        let file = File::options().write(true).open("/dev/null").unwrap();
        let mut latency_hold =
            CpuLatencyHold { file: LatencyFile::Open(file), expires_at: Some(now + HOLD_WINDOW) };
        latency_hold.extend(now + HOLD_WINDOW / 2);
        latency_hold.release_if_expired(now + HOLD_WINDOW);
        assert_eq!(latency_hold.deadline(), Some(now + HOLD_WINDOW + HOLD_WINDOW / 2));
        latency_hold.release_if_expired(now + HOLD_WINDOW * 2);
        assert_eq!(latency_hold.deadline(), None);
    }

    #[test]
    fn an_unavailable_device_is_not_opened_again() {
        let mut latency_hold = CpuLatencyHold { file: LatencyFile::Unavailable, expires_at: None };
        latency_hold.extend(Instant::now());
        assert_eq!(latency_hold.deadline(), None);
    }
}
