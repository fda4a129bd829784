//! The job of the measurements: two processes that exchange a message, compute before they answer,
//! and never sleep.
//!
//! The time of a message depends on the distance of the two processors, which a hypervisor changes
//! by a factor of three within a second. Therefore most of a round trip is computing. The result
//! then shows the scheduler's cost and not the positions of the processors.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use score_runtime::Net;

use crate::BenchResult;

/// The number of steps of a random number generator before each answer: about 10 us.
const COMPUTE_STEPS: u64 = 5_000;
/// The interval between two updates of the progress, much shorter than a slice.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(500);
const MESSAGE: [u8; 8] = [7; 8];

/// Runs until it is killed. Node 0 writes the number of round trips.
pub fn run(path: &str) -> BenchResult<()> {
    score_runtime::initialize();
    let net = Net::open(0).ok_or("turns needs two nodes: scrun -nodes=2 score-gang turns FILE")?;
    let network_error = |error: std::io::Error| format!("network: {error}");
    if net.self_node() > 0 {
        loop {
            receive(&net).map_err(network_error)?;
            compute();
            send(&net, 0).map_err(network_error)?;
        }
    }
    let file_error = |error: std::io::Error| format!("{path}: {error}");
    let file = File::options().write(true).open(path).map_err(file_error)?;
    let (mut count, mut reported_at) = (0_u64, Instant::now());
    loop {
        send(&net, 1).map_err(network_error)?;
        receive(&net).map_err(network_error)?;
        compute();
        count += 1;
        if reported_at.elapsed() >= PROGRESS_INTERVAL {
            file.write_all_at(&count.to_le_bytes(), 0).map_err(file_error)?;
            reported_at = Instant::now();
        }
    }
}

/// Does the same amount of work each time. Each step depends on the one before.
fn compute() {
    let mut value = black_box(1_u64);
    for _ in 0..COMPUTE_STEPS {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

fn send(net: &Net, node: usize) -> std::io::Result<()> {
    while !net.try_send(node, &MESSAGE)? {}
    Ok(())
}

fn receive(net: &Net) -> std::io::Result<()> {
    while net.try_receive()?.is_none() {}
    Ok(())
}
