//! Keeps processors awake while jobs alternate on them. Between two jobs each processor is idle for
//! a moment. A processor that sleeps then takes long to wake: 0.1 ms from a deep state. In a
//! virtual machine it sometimes takes milliseconds, if the host has given the processor to others.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// A process writes the allowed wake-up latency in microseconds to this file. The limit holds as
/// long as the file is open.
const CPU_DMA_LATENCY_PATH: &str = "/dev/cpu_dma_latency";
/// How long the processors are kept awake after the last request.
const HOLD_WINDOW: Duration = Duration::from_secs(1);

/// See the [module](self). Initially the processors may sleep.
#[derive(Debug, Default)]
pub struct CpuLatencyHold {
    hold: Option<(File, Instant)>,
    /// The file does not exist or may not be opened.
    is_unavailable: bool,
}

impl CpuLatencyHold {
    /// Keeps the processors awake for `HOLD_WINDOW` from now on.
    pub fn extend(&mut self, now: Instant) {
        let new_expiry = now + HOLD_WINDOW;
        match &mut self.hold {
            Some((_, expires_at)) => *expires_at = new_expiry,
            None if self.is_unavailable => {}
            None => {
                self.hold = open().ok().map(|file| (file, new_expiry));
                self.is_unavailable = self.hold.is_none();
            }
        }
    }

    /// Lets the processors sleep if there was no request for a while. To be called at
    /// [`CpuLatencyHold::deadline`].
    pub fn release_if_expired(&mut self, now: Instant) {
        self.hold.take_if(|(_, expires_at)| *expires_at <= now);
    }

    /// When the processors may sleep again.
    pub fn deadline(&self) -> Option<Instant> {
        self.hold.as_ref().map(|(_, expires_at)| *expires_at)
    }
}

fn open() -> std::io::Result<File> {
    let mut file = File::options().write(true).open(CPU_DMA_LATENCY_PATH)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_request_extends_the_hold() {
        let now = Instant::now();
        let file = File::options().write(true).open("/dev/null").unwrap();
        let mut latency_hold =
            CpuLatencyHold { hold: Some((file, now + HOLD_WINDOW)), is_unavailable: false };
        latency_hold.extend(now + HOLD_WINDOW / 2);
        latency_hold.release_if_expired(now + HOLD_WINDOW);
        assert_eq!(latency_hold.deadline(), Some(now + HOLD_WINDOW + HOLD_WINDOW / 2));
        latency_hold.release_if_expired(now + HOLD_WINDOW * 2);
        assert_eq!(latency_hold.deadline(), None);
    }

    #[test]
    fn an_unavailable_device_is_not_opened_again() {
        let mut latency_hold = CpuLatencyHold { hold: None, is_unavailable: true };
        latency_hold.extend(Instant::now());
        assert_eq!(latency_hold.deadline(), None);
    }
}
