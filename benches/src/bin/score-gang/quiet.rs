//! Whether the two processors were the jobs' alone while something was measured: what else runs
//! takes a part that is not the scheduler's fault.

use std::fs;

use crate::Result;

/// Nanoseconds of a tick in /proc/stat.
const TICK: u64 = 10_000_000;
/// What processors and jobs have done so far, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    busy: u64,
    all: u64,
    played: u64,
}

impl Reading {
    /// Of these processors, and of these processes.
    pub fn take(processors: &[usize], players: &[u32]) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").map_err(|error| format!("stat: {error}"))?;
        let (mut busy, mut all) = (0, 0);
        for processor in processors {
            let name = format!("cpu{processor} ");
            let line = stat.lines().find_map(|line| line.strip_prefix(&name));
            let figures: Vec<u64> =
                line.unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal; what follows is in these already.
            let sum: u64 = figures.iter().take(8).sum();
            let idle: u64 = figures.iter().skip(3).take(2).sum();
            (busy, all) = (busy + (sum - idle) * TICK, all + sum * TICK);
        }
        let time = |pid: &u32| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        Ok(Self { busy, all, played: players.iter().filter_map(time).sum() })
    }

    /// The part of the processors' time that others took since an earlier one: also scored itself,
    /// and the kernel's housekeeping.
    pub fn others_since(&self, before: &Self) -> f64 {
        let busy = (self.busy - before.busy) as f64;
        let played = (self.played - before.played) as f64;
        (busy - played) / ((self.all - before.all) as f64).max(1.0)
    }
}

/// The processes that were given this word.
pub fn players(word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let plays = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"turns"[..]) && words.get(2) == Some(&word.as_bytes())
    };
    pids.filter(plays).collect()
}
