//! The job: two processes that bounce a message, compute before they answer, and never sleep.
//!
//! What a message takes depends on how far apart the two processors are, and a hypervisor changes
//! that by a factor of three from one second to the next. Computing is most of a round trip here,
//! so that it shows what the scheduler takes and not where the processors were.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use score_runtime::Net;

use crate::Result;

/// Steps of a generator of random numbers before each answer: some 10 us.
const WORK: u64 = 5_000;
/// Time between two notes of the progress: short beside a slice.
const NOTED: Duration = Duration::from_micros(500);
const BALL: [u8; 8] = [7; 8];

/// Plays until it is killed; node 0 writes how many round trips there were.
pub fn run(path: &str) -> Result<()> {
    score_runtime::initialize();
    let net = Net::open(0).ok_or("turns needs two nodes: scrun -nodes=2 score-gang turns FILE")?;
    let failed = |error: std::io::Error| format!("network: {error}");
    if net.self_node() > 0 {
        loop {
            take(&net).map_err(failed)?;
            compute();
            give(&net, 0).map_err(failed)?;
        }
    }
    let named = |error: std::io::Error| format!("{path}: {error}");
    let file = File::options().write(true).open(path).map_err(named)?;
    let (mut count, mut noted) = (0_u64, Instant::now());
    loop {
        give(&net, 1).map_err(failed)?;
        take(&net).map_err(failed)?;
        compute();
        count += 1;
        if noted.elapsed() >= NOTED {
            file.write_all_at(&count.to_le_bytes(), 0).map_err(named)?;
            noted = Instant::now();
        }
    }
}

/// The same amount each time, each step waiting for the one before.
fn compute() {
    let mut value = black_box(1_u64);
    for _ in 0..WORK {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

fn give(net: &Net, node: usize) -> std::io::Result<()> {
    while !net.try_send(node, &BALL)? {}
    Ok(())
}

fn take(net: &Net) -> std::io::Result<()> {
    while net.try_receive()?.is_none() {}
    Ok(())
}
