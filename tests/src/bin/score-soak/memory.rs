//! Locks, writes, reads, remaps and releases regions while other processes access them
//! (tests/programs/regions.c). Jobs run on one host, on two hosts, and on two hosts with two nodes
//! each, and take turns in short slices. With an adapter, jobs also run over RDMA.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use score_tests::service::{ALICE, Cluster};
use score_tests::{Outcome, Running, TestEnv};

use crate::SoakOptions;
use crate::random::Random;

/// The number of jobs that run at the same time.
const PARALLEL_JOBS: usize = 3;
/// Layouts: hosts and nodes per host, the number of nodes, and a number of rounds that takes some
/// seconds. The first layout uses no network.
const LAYOUTS: [(&str, usize, usize); 3] = [("1x2", 2, 400), ("2x1", 2, 60), ("2x2", 4, 60)];
/// Time limit of a job. Only a job that hangs exceeds it.
const JOB_TIMEOUT: Duration = Duration::from_secs(900);

/// The results of operations on regions that change meanwhile.
#[derive(Default)]
struct OperationCounts {
    carried_out: u64,
    failed: u64,
    refused: u64,
}

// Promise (messages): After a region was unlocked, memory at its address is never changed by copies
// that others had started.
/// Runs the soak. Its count is the number of jobs.
///
/// # Errors
/// Returns an error if a byte was altered that should not be, or was not the byte that was written.
/// Also returns an error if a job did not end. The message has the command that repeats the run.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(program) = crate::copy_program_for_users(&env, "memory", "regions")? else {
        return Ok(());
    };
    let hosts = ["a", "b"];
    // On an emulated machine a gang switch takes some milliseconds.
    let slice = if soak_options.rdma { "20" } else { "5" };
    let cluster =
        Cluster::start_with_options(&env, &hosts, &Cluster::database(&hosts), &["-ts", slice]);
    let Some(cluster) = cluster else { return Ok(()) };
    let (mut running, mut totals, mut job_count) = (VecDeque::new(), OperationCounts::default(), 0);
    let mut seeds = soak_options.seeds();
    loop {
        while running.len() < PARALLEL_JOBS
            && let Some((_, seed)) = seeds.next()
        {
            running.push_back((seed, start(&cluster, &program, soak_options, seed)));
        }
        let Some((seed, (nodes, job))) = running.pop_front() else { break };
        check_outcome(&job.wait(), soak_options.rdma, nodes, &mut totals).map_err(|error| {
            let option = if soak_options.rdma { "-rdma " } else { "" };
            format!("{error}\nagain: cargo xtask soak memory {option}-count 1 -seed {seed}")
        })?;
        job_count += 1;
        let OperationCounts { carried_out, failed, refused } = totals;
        print!(
            "\rmemory: {job_count} jobs; operations on changing regions: {carried_out} groups \
             carried out, {failed} with a failure, {refused} operations refused   "
        );
        let _ = std::io::stdout().flush();
    }
    println!();
    match totals.carried_out > 0 && totals.failed > 0 {
        true => Ok(()),
        false => Err("no region has changed during an operation".to_owned()),
    }
}

fn start(
    cluster: &Cluster<'_>,
    program: &Path,
    soak_options: &SoakOptions,
    seed: u64,
) -> (usize, Running) {
    let random = &mut Random(seed);
    let (shapes, network) = match soak_options.rdma {
        true => (&LAYOUTS[1..], "network=verbs,stat"),
        false => (&LAYOUTS[..], "message=quiet"),
    };
    let (shape, nodes, rounds) = shapes[random.below(shapes.len())];
    let options = format!("-scored=all,{network},nodes={shape}");
    let rounds = (rounds + random.below(rounds)).to_string();
    let program_seed = (random.next() % 1_000_000).to_string();
    let program = program.display().to_string();
    let mut args = vec![&*options, &program, &rounds, &program_seed];
    if soak_options.rdma {
        args.push("rdma");
    }
    (nodes, cluster.command(ALICE, "scrun", "a").args(&args).timeout(JOB_TIMEOUT).start())
}

fn check_outcome(
    outcome: &Outcome,
    rdma: bool,
    nodes: usize,
    totals: &mut OperationCounts,
) -> Result<(), String> {
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("all right: ")).collect();
    let used_network_as_requested = !rdma || outcome.stderr.contains("RDMA by");
    if outcome.code != 0 || lines.len() != nodes || !used_network_as_requested {
        return Err(outcome.to_string());
    }
    for line in lines {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        for total in [&mut totals.carried_out, &mut totals.failed, &mut totals.refused] {
            *total += numbers.next().ok_or_else(|| outcome.to_string())?;
        }
    }
    Ok(())
}
