//! Jobs that take turns on two processors in short slices: several with messages of random sizes,
//! each checked for its content and its order (tests/programs/traffic.c), until there were so many
//! stops; then 1 GiB through a pipeline of parallel programs, beside one that only computes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Running, Scene};

use crate::Plan;
use crate::random::Random;

/// Of a job, and processors.
const NODES: usize = 2;
/// Jobs at once.
const LANES: usize = 3;
/// What goes through the pipeline, and of a taste.
const BYTES: [usize; 2] = [1 << 30, 1 << 25];
/// Nothing takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs the plan: its count is of stops.
///
/// # Errors
/// A message or a byte was lost, altered or out of order, or a job did not end.
pub fn run(plan: &Plan) -> Result<(), String> {
    let switches = plan.count.min(100_000);
    traffic(plan, switches)?;
    pipeline(if switches < 100_000 { BYTES[1] } else { BYTES[0] })
}

fn cluster<'a>(scene: &'a Scene, slice: &str) -> Option<Cluster<'a>> {
    Cluster::start_as(scene, &["a"], &Cluster::database(&["a"]), &["-ts", slice])
}

/// Jobs in each lane, one after the other, for as long as so many slices of 5 ms take.
fn traffic(plan: &Plan, switches: u64) -> Result<(), String> {
    let scene = Scene::new();
    let Some(program) = crate::for_every_user(&scene, "gang", "traffic")? else { return Ok(()) };
    let Some(mut cluster) = cluster(&scene, "5") else { return Ok(()) };
    let program = program.display().to_string();
    let random = &mut Random(plan.seed);
    let start = |random: &mut Random| {
        let count = 200_000 + random.below(100_000);
        let block = if random.below(3) == 0 { "block" } else { "spin" };
        let options = format!("-scored=all,message=quiet,nodes={NODES}");
        let words = [count.to_string(), (random.next() % 1_000_000).to_string(), block.to_owned()];
        let job = cluster.command(ALICE, "scrun", "a").args(&[&options, &program]).args(&words);
        (count, job.watchdog(PATIENCE).start())
    };
    let (begin, mut lanes, mut jobs, mut messages) = (Instant::now(), Vec::new(), 0_u64, 0_u64);
    // A stop takes a little besides.
    let time = Duration::from_millis(switches * 6);
    loop {
        while lanes.len() < LANES && begin.elapsed() < time {
            lanes.push(start(random));
        }
        if lanes.is_empty() {
            break;
        }
        let (count, job): (usize, Running) = lanes.remove(0);
        let outcome = job.wait();
        if outcome.code != 0 || outcome.text() != "all in order\n".repeat(NODES) {
            return Err(format!("{outcome}\nagain: cargo xtask soak gang -seed {}", plan.seed));
        }
        (jobs, messages) = (jobs + 1, messages + (count * NODES) as u64);
        print!("\rgang: {jobs} jobs, {messages} messages checked   ");
        let _ = std::io::stdout().flush();
    }
    cluster.strike("a", Signal::SIGTERM);
    cluster.until_logged("a", " stops of jobs");
    let log = cluster.log("a");
    let told = log.lines().find(|line| line.contains(" stops of jobs")).unwrap_or_default();
    println!("\rgang: {jobs} jobs, {messages} messages in order; {told}");
    let count = told.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
    // Few on a machine that has other things to do; none were a fault.
    match count >= switches / 10 {
        true => Ok(()),
        false => Err(format!("only {count} stops instead of some {switches}")),
    }
}

/// Bytes that depend on their place.
struct Pattern {
    at: usize,
    end: usize,
}

impl Read for Pattern {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = into.len().min(self.end - self.at);
        for (at, byte) in (self.at..).zip(&mut into[..count]) {
            *byte = (at.wrapping_mul(0x9E37_79B1) >> 11) as u8;
        }
        self.at += count;
        Ok(count)
    }
}

/// `scatter == system cat` in slices of 10 ms.
fn pipeline(bytes: usize) -> Result<(), String> {
    let scene = Scene::new();
    let Some(cluster) = cluster(&scene, "10") else { return Ok(()) };
    let fault = |error: std::io::Error| error.to_string();
    let (given, taken) = (scene.dir().join("given"), scene.dir().join("taken"));
    let mut file = File::create(&given).map_err(fault)?;
    std::io::copy(&mut Pattern { at: 0, end: bytes }, &mut file).map_err(fault)?;
    let words = ["-scored=all,message=quiet,nodes=2", "/bin/sh", "-c", "while :; do :; done"];
    let rival = cluster.command(BOB, "scrun", "a").args(&words).start();
    // Node 1 writes: all of it has gone from one process to the other.
    let words = "-scored=all,message=quiet,nodes=2 scatter -node 1 == system cat";
    let (input, output) = (File::open(&given).map_err(fault)?, File::create(&taken));
    for name in ["scatter", "system"] {
        cluster.program(name);
    }
    let begin = Instant::now();
    let mut command = Command::new(cluster.program("scrun"));
    scene.dress(&mut command);
    command.env("SCORED_SOCKET", cluster.socket("a")).env_remove("XDG_RUNTIME_DIR");
    command.args(words.split(' ')).current_dir("/").uid(ALICE).gid(ALICE);
    let status = command.stdin(input).stdout(output.map_err(fault)?).status().map_err(fault)?;
    rival.signal(Signal::SIGTERM);
    let _ = rival.wait();
    if !status.success() {
        return Err(format!("scatter == system cat: {status}"));
    }
    is_same(&taken, bytes)?;
    println!(
        "gang: {bytes} bytes through scatter == system cat in {:.1} s, identical",
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Whether a file has the pattern and nothing else.
fn is_same(path: &Path, bytes: usize) -> Result<(), String> {
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(fault)?;
    let (mut wanted, mut found) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut pattern = Pattern { at: 0, end: bytes };
    loop {
        let at = pattern.at;
        let count = pattern.read(&mut wanted).map_err(fault)?;
        if count == 0 {
            break;
        }
        file.read_exact(&mut found[..count]).map_err(fault)?;
        if wanted[..count] != found[..count] {
            return Err(format!("the pipeline has altered what it carried, from byte {at} on"));
        }
    }
    match file.read(&mut found).map_err(fault)? {
        0 => Ok(()),
        _ => Err("the pipeline has given more than it was given".to_owned()),
    }
}
