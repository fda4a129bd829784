//! The job: two processes that bounce a message and never sleep.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use score_runtime::Net;

use crate::Result;

/// Round trips between two looks at the clock.
const BATCH: u64 = 32;
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
            give(&net, 0).map_err(failed)?;
        }
    }
    let named = |error: std::io::Error| format!("{path}: {error}");
    let file = File::options().write(true).open(path).map_err(named)?;
    let (mut count, mut noted) = (0_u64, Instant::now());
    loop {
        for _ in 0..BATCH {
            give(&net, 1).map_err(failed)?;
            take(&net).map_err(failed)?;
        }
        count += BATCH;
        if noted.elapsed() >= NOTED {
            file.write_all_at(&count.to_le_bytes(), 0).map_err(named)?;
            noted = Instant::now();
        }
    }
}

fn give(net: &Net, node: usize) -> std::io::Result<()> {
    while !net.try_send(node, &BALL)? {}
    Ok(())
}

fn take(net: &Net) -> std::io::Result<()> {
    while net.try_receive()?.is_none() {}
    Ok(())
}
