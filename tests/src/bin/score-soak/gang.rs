//! Runs jobs that take turns on two processors in short slices. First, several jobs send messages
//! of random sizes, and check the content and order of each message (tests/programs/traffic.c),
//! until there were enough stops. Then 1 GiB goes through a pipeline of parallel programs while
//! another job only computes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Running, TestEnv};

use crate::SoakOptions;
use crate::random::Random;

/// The number of nodes of a job, and of processors.
const NODES: usize = 2;
/// The number of jobs that run at the same time.
const PARALLEL_JOBS: usize = 3;
/// The number of bytes through the pipeline in a full run, and in a short run.
const BYTES: [usize; 2] = [1 << 30, 1 << 25];
/// Time limit of a job. Only a job that hangs exceeds it.
const JOB_TIMEOUT: Duration = Duration::from_secs(900);

// Promise (time-sharing): 100,000 switches at 5 ms under checked messages lose and reorder nothing;
// 1 GiB through `scatter == system cat` at 10 ms is identical.
/// Runs the soak. Its count is the number of stops.
///
/// # Errors
/// Returns an error if a message or a byte was lost, altered or out of order, or if a job did not
/// end.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let switches = soak_options.count.min(100_000);
    traffic(soak_options, switches)?;
    pipeline(if switches < 100_000 { BYTES[1] } else { BYTES[0] })
}

fn start_cluster<'a>(env: &'a TestEnv, slice: &str) -> Option<Cluster<'a>> {
    Cluster::start_with_options(env, &["a"], &Cluster::database(&["a"]), &["-ts", slice])
}

/// Keeps several jobs running for as long as `switches` slices of 5 ms take.
fn traffic(soak_options: &SoakOptions, switches: u64) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(program) = crate::copy_program_for_users(&env, "gang", "traffic")? else {
        return Ok(());
    };
    let Some(mut cluster) = start_cluster(&env, "5") else { return Ok(()) };
    let program = program.display().to_string();
    let random = &mut Random(soak_options.seed);
    let start = |random: &mut Random| {
        let count = 200_000 + random.below(100_000);
        let block = if random.below(3) == 0 { "block" } else { "spin" };
        let options = format!("-scored=all,message=quiet,nodes={NODES}");
        let args = [count.to_string(), (random.next() % 1_000_000).to_string(), block.to_owned()];
        let job = cluster.command(ALICE, "scrun", "a").args(&[&options, &program]).args(&args);
        (count, job.timeout(JOB_TIMEOUT).start())
    };
    let (started_at, mut running, mut jobs, mut messages) =
        (Instant::now(), Vec::new(), 0_u64, 0_u64);
    // A stop takes some time in addition to the slice.
    let duration = Duration::from_millis(switches * 6);
    loop {
        while running.len() < PARALLEL_JOBS && started_at.elapsed() < duration {
            running.push(start(random));
        }
        if running.is_empty() {
            break;
        }
        let (count, job): (usize, Running) = running.remove(0);
        let outcome = job.wait();
        if outcome.code != 0 || outcome.text() != "all in order\n".repeat(NODES) {
            return Err(format!(
                "{outcome}\nagain: cargo xtask soak gang -seed {}",
                soak_options.seed
            ));
        }
        (jobs, messages) = (jobs + 1, messages + (count * NODES) as u64);
        print!("\rgang: {jobs} jobs, {messages} messages checked   ");
        let _ = std::io::stdout().flush();
    }
    cluster.signal_daemon("a", Signal::SIGTERM);
    cluster.wait_for_log("a", " stops of jobs");
    let log = cluster.log("a");
    let summary = log.lines().find(|line| line.contains(" stops of jobs")).unwrap_or_default();
    println!("\rgang: {jobs} jobs, {messages} messages in order; {summary}");
    let stop_count =
        summary.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
    // A busy machine makes fewer stops, but much fewer are an error.
    match stop_count >= switches / 10 {
        true => Ok(()),
        false => Err(format!("only {stop_count} stops instead of about {switches}")),
    }
}

/// A sequence of bytes, each of which depends on its offset.
struct Pattern {
    offset: usize,
    end: usize,
}

impl Read for Pattern {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = buf.len().min(self.end - self.offset);
        for (offset, byte) in (self.offset..).zip(&mut buf[..count]) {
            *byte = (offset.wrapping_mul(0x9E37_79B1) >> 11) as u8;
        }
        self.offset += count;
        Ok(count)
    }
}

/// Runs `scatter == system cat` in slices of 10 ms.
fn pipeline(bytes: usize) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(cluster) = start_cluster(&env, "10") else { return Ok(()) };
    let io_error = |error: std::io::Error| error.to_string();
    let (input_path, output_path) = (env.dir().join("given"), env.dir().join("taken"));
    let mut file = File::create(&input_path).map_err(io_error)?;
    std::io::copy(&mut Pattern { offset: 0, end: bytes }, &mut file).map_err(io_error)?;
    let args = ["-scored=all,message=quiet,nodes=2", "/bin/sh", "-c", "while :; do :; done"];
    let competing_job = cluster.command(BOB, "scrun", "a").args(&args).start();
    // Node 1 writes the output, so all of it has passed from one process to the other.
    let command_line = "-scored=all,message=quiet,nodes=2 scatter -node 1 == system cat";
    let (input, output) = (File::open(&input_path).map_err(io_error)?, File::create(&output_path));
    for name in ["scatter", "system"] {
        cluster.program(name);
    }
    let started_at = Instant::now();
    let mut command = Command::new(cluster.program("scrun"));
    env.configure(&mut command);
    command.env("SCORED_SOCKET", cluster.socket("a")).env_remove("XDG_RUNTIME_DIR");
    command.args(command_line.split(' ')).current_dir("/").uid(ALICE).gid(ALICE);
    let status =
        command.stdin(input).stdout(output.map_err(io_error)?).status().map_err(io_error)?;
    competing_job.signal(Signal::SIGTERM);
    let _ = competing_job.wait();
    if !status.success() {
        return Err(format!("scatter == system cat: {status}"));
    }
    check_pattern(&output_path, bytes)?;
    println!(
        "gang: {bytes} bytes through scatter == system cat in {:.1} s, identical",
        started_at.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Checks that the content of a file is the pattern.
fn check_pattern(path: &Path, bytes: usize) -> Result<(), String> {
    let io_error = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(io_error)?;
    let (mut expected, mut actual) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut pattern = Pattern { offset: 0, end: bytes };
    loop {
        let offset = pattern.offset;
        let count = pattern.read(&mut expected).map_err(io_error)?;
        if count == 0 {
            break;
        }
        file.read_exact(&mut actual[..count]).map_err(io_error)?;
        if expected[..count] != actual[..count] {
            return Err(format!("the pipeline has altered its input, from byte {offset} on"));
        }
    }
    match file.read(&mut actual).map_err(io_error)? {
        0 => Ok(()),
        _ => Err("the output of the pipeline is longer than its input".to_owned()),
    }
}
