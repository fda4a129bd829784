//! A job that comes to a deadlock, and how long that takes to be found.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use score_runtime::Net;

use crate::bed::{Bed, Play};
use crate::gaps::{now, tell};
use crate::{Result, number};

/// Nanoseconds for which a job computes at most: as long as some slices, so that it becomes idle
/// anywhere in one.
const COMPUTES: u64 = 100_000_000;

/// The job: computes for a while, says in a file of its node that it becomes idle, and waits for a
/// message that nobody sends.
pub fn wait(path: &str) -> Result<()> {
    score_runtime::initialize();
    let net = Net::open(0).ok_or("hang needs two nodes: scrun -nodes=2 score-gang hang FILE")?;
    let begin = now()?;
    // Both nodes for as long.
    let until = begin + u64::from(std::process::id()).wrapping_mul(0x9e37_79b9) % COMPUTES;
    while now()? < until {
        black_box(begin);
    }
    let path = format!("{path}.{}", score_runtime::self_node());
    fs::write(&path, now()?.to_le_bytes()).map_err(|error| format!("{path}: {error}"))?;
    score_runtime::become_idle();
    while net.try_receive().map_err(|error| format!("network: {error}"))?.is_none() {}
    Ok(())
}

/// Prints how long after the last process became idle a line said so, by slices of so many ms
/// beside another job, or alone.
pub fn run(slice: &str, rounds: u32, alone: bool) -> Result<()> {
    let mut bed = Bed::new(slice, &[2])?;
    let _other = (!alone).then(|| bed.start(Play::Turns, "8")).transpose()?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (found, files) = bed.deadlock()?;
        let idle = files.iter().map(|file| time(file)).collect::<Result<Vec<u64>>>()?;
        times.push(found.saturating_sub(idle.into_iter().max().unwrap_or(found)));
    }
    let two = u64::from(number(slice)?) * 2_000_000;
    let within = times.iter().filter(|time| **time <= two).count();
    tell("deadlock found after", times);
    println!("within two slices: {within} of {rounds}");
    Ok(())
}

fn time(path: &Path) -> Result<u64> {
    let named = |fault: String| format!("{}: {fault}", path.display());
    let bytes = fs::read(path).map_err(|error| named(error.to_string()))?;
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| named("no time".to_owned()))
}
