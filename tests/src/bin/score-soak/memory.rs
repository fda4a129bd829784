//! Regions that are locked, written, read, mapped anew and given up under the operations of others
//! (tests/programs/regions.c): jobs on one host, on two, and on two with two nodes each, that take
//! turns in short slices; of some the kernel may not copy the memory. Over RDMA, too, where there
//! is an adapter.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use score_tests::service::{ALICE, Cluster};
use score_tests::{Outcome, Running, Scene};

use crate::Plan;
use crate::random::Random;

/// Jobs at once.
const LANES: usize = 3;
/// Hosts, and nodes on each, with the rounds that take some seconds there; the first uses no
/// network.
const SHAPES: [(&str, usize, usize); 3] = [("1x2", 2, 400), ("2x1", 2, 60), ("2x2", 4, 60)];
/// Nothing takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(900);

/// What became of operations under which regions changed.
#[derive(Default)]
struct Told {
    carried_out: u64,
    failed: u64,
    refused: u64,
}

/// Runs the plan: its count is of jobs.
///
/// # Errors
/// A byte was altered that should not be, or was not what was written, or a job did not end; the
/// line says how to see it again.
pub fn run(plan: &Plan) -> Result<(), String> {
    let scene = Scene::new();
    let Some(program) = crate::for_every_user(&scene, "memory", "regions")? else { return Ok(()) };
    let hosts = ["a", "b"];
    // To switch takes an emulated machine some milliseconds.
    let slice = if plan.rdma { "20" } else { "5" };
    let cluster = Cluster::start_as(&scene, &hosts, &Cluster::database(&hosts), &["-ts", slice]);
    let Some(cluster) = cluster else { return Ok(()) };
    let (mut lanes, mut told, mut done) = (VecDeque::new(), Told::default(), 0);
    let mut seeds = plan.seeds();
    loop {
        while lanes.len() < LANES
            && let Some((_, seed)) = seeds.next()
        {
            lanes.push_back((seed, start(&cluster, &program, plan, seed)));
        }
        let Some((seed, (nodes, job))) = lanes.pop_front() else { break };
        check(&job.wait(), plan.rdma, nodes, &mut told).map_err(|fault| {
            let option = if plan.rdma { "-rdma " } else { "" };
            format!("{fault}\nagain: cargo xtask soak memory {option}-count 1 -seed {seed}")
        })?;
        done += 1;
        let Told { carried_out, failed, refused } = told;
        print!(
            "\rmemory: {done} jobs; of operations on what changes {carried_out} groups carried \
             out, {failed} with a failure, {refused} operations refused   "
        );
        let _ = std::io::stdout().flush();
    }
    println!();
    match told.carried_out > 0 && told.failed > 0 {
        true => Ok(()),
        false => Err("nothing has changed under an operation".to_owned()),
    }
}

fn start(cluster: &Cluster<'_>, program: &Path, plan: &Plan, seed: u64) -> (usize, Running) {
    let random = &mut Random(seed);
    let (shapes, network) = match plan.rdma {
        true => (&SHAPES[1..], "network=verbs,stat"),
        false => (&SHAPES[..], "message=quiet"),
    };
    let (shape, nodes, rounds) = shapes[random.below(shapes.len())];
    let options = format!("-scored=all,{network},nodes={shape}");
    let rounds = (rounds + random.below(rounds)).to_string();
    let number = (random.next() % 1_000_000).to_string();
    let program = program.display().to_string();
    let mut words = vec![&*options, &program, &rounds, &number];
    if random.below(3) == 0 {
        words.push("alone");
    }
    if plan.rdma {
        words.push("rdma");
    }
    (nodes, cluster.command(ALICE, "scrun", "a").args(&words).watchdog(PATIENCE).start())
}

fn check(outcome: &Outcome, rdma: bool, nodes: usize, told: &mut Told) -> Result<(), String> {
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("all right: ")).collect();
    let as_asked = !rdma || outcome.stderr.contains("RDMA by");
    if outcome.code != 0 || lines.len() != nodes || !as_asked {
        return Err(outcome.to_string());
    }
    for line in lines {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
        for sum in [&mut told.carried_out, &mut told.failed, &mut told.refused] {
            *sum += numbers.next().ok_or_else(|| outcome.to_string())?;
        }
    }
    Ok(())
}
