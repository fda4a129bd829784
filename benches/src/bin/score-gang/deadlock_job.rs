//! A job that deadlocks, and the measurement of the time until the deadlock is found.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use score_runtime::Net;

use crate::clock::now_ns;
use crate::run_gaps::print_distribution;
use crate::testbed::{GangTestbed, Workload};
use crate::{BenchResult, number};

/// The maximum time in nanoseconds for which a job computes. The time varies, so that the job
/// becomes idle at different points of a slice.
const MAX_COMPUTE_INTERVAL_NS: u64 = 100_000_000;

/// Acts as the job. Computes for some time, writes the time at which it becomes idle into a file of
/// its node, and waits for a message that never arrives.
pub fn wait(path: &str) -> BenchResult<()> {
    score_runtime::initialize();
    let net = Net::open(0).ok_or("hang needs two nodes: scrun -nodes=2 score-gang hang FILE")?;
    let begin = now_ns()?;
    // The computing time depends on the process id.
    let deadline_ns =
        begin + u64::from(std::process::id()).wrapping_mul(0x9e37_79b9) % MAX_COMPUTE_INTERVAL_NS;
    while now_ns()? < deadline_ns {
        black_box(begin);
    }
    let path = format!("{path}.{}", score_runtime::self_node());
    fs::write(&path, now_ns()?.to_le_bytes()).map_err(|error| format!("{path}: {error}"))?;
    score_runtime::become_idle();
    while net.try_receive().map_err(|error| format!("network: {error}"))?.is_none() {}
    Ok(())
}

/// Prints the time from the moment when the last process became idle until the deadlock was
/// reported. A slice has `slice` ms, and another job runs unless `alone`.
pub fn run(slice: &str, rounds: u32, alone: bool) -> BenchResult<()> {
    let mut testbed = GangTestbed::new(slice, &[2])?;
    let _other_job = (!alone).then(|| testbed.start(Workload::PingPong, "8")).transpose()?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (found_at_ns, files) = testbed.deadlock()?;
        let idle_at_ns =
            files.iter().map(|file| read_time_ns(file)).collect::<BenchResult<Vec<u64>>>()?;
        times.push(found_at_ns.saturating_sub(idle_at_ns.into_iter().max().unwrap_or(found_at_ns)));
    }
    let two_slices_ns = u64::from(number(slice)?) * 2_000_000;
    let within = times.iter().filter(|time| **time <= two_slices_ns).count();
    print_distribution("deadlock found after", times);
    println!("within two slices: {within} of {rounds}");
    Ok(())
}

fn read_time_ns(path: &Path) -> BenchResult<u64> {
    let error_text = |fault: String| format!("{}: {fault}", path.display());
    let bytes = fs::read(path).map_err(|error| error_text(error.to_string()))?;
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| error_text("no time".to_owned()))
}
