//! Processors that do not sleep while jobs take turns on them. Between two jobs each is idle for a
//! moment; one that sleeps then takes long to wake: a deep state 0.1 ms, a virtual machine's
//! processor that its host has given to somebody else now and then milliseconds.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// Who holds it open has said how many microseconds a processor may take to wake.
const LATENCY: &str = "/dev/cpu_dma_latency";
/// They are kept awake for so long after the last request.
const LEASE: Duration = Duration::from_secs(1);

/// See the [module](self). Nobody is kept awake at first.
#[derive(Debug, Default)]
pub struct Awake {
    held: Option<(File, Instant)>,
    /// It is not allowed here, or there is nothing of that kind.
    refused: bool,
}

impl Awake {
    /// They are not to sleep for a while.
    pub fn keep(&mut self, now: Instant) {
        let end = now + LEASE;
        match &mut self.held {
            Some((_, until)) => *until = end,
            None if self.refused => {}
            None => {
                self.held = open().ok().map(|file| (file, end));
                self.refused = self.held.is_none();
            }
        }
    }

    /// They may sleep if nobody has asked for a while. To be called at [`Awake::deadline`].
    pub fn rest(&mut self, now: Instant) {
        self.held.take_if(|(_, until)| *until <= now);
    }

    /// When they may sleep again.
    pub fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, until)| *until)
    }
}

fn open() -> std::io::Result<File> {
    let mut file = File::options().write(true).open(LATENCY)?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_again_stays_awake_longer() {
        let now = Instant::now();
        let file = File::options().write(true).open("/dev/null").unwrap();
        let mut awake = Awake { held: Some((file, now + LEASE)), refused: false };
        awake.keep(now + LEASE / 2);
        awake.rest(now + LEASE);
        assert_eq!(awake.deadline(), Some(now + LEASE + LEASE / 2));
        awake.rest(now + LEASE * 2);
        assert_eq!(awake.deadline(), None);
    }

    #[test]
    fn who_is_refused_does_not_ask_again() {
        let mut awake = Awake { held: None, refused: true };
        awake.keep(Instant::now());
        assert_eq!(awake.deadline(), None);
    }
}
