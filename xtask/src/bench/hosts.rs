//! Measures many virtual hosts on this machine: the time of their launch, the processor time of
//! their idle daemons, and a broadcast over slow links.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::command::{run_time_ms, split_words};
use crate::bench::processes::{self, Process};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);
const SECONDS: (&str, Direction) = ("s", Direction::LowerIsBetter);
const PERCENT_OF_CORE: (&str, Direction) = ("% of a core", Direction::LowerIsBetter);
const WAKEUPS_PER_S: (&str, Direction) = ("wakeups/s", Direction::LowerIsBetter);

/// The program that is launched.
const STARTUP_PROGRAM: &str = "score-arrive";
const HOSTS: [u32; 4] = [2, 8, 16, 64];
/// The target in milliseconds for 64 hosts.
const TARGET_LAUNCH_LATENCY_MS: f64 = 1000.0;
/// The number of idle hosts, and the percentage of one core that all their daemons together may
/// use.
const IDLE_HOST_COUNT: u32 = 64;
const TARGET_IDLE_PERCENT: f64 = 0.5;
/// The limit of each link in bits per second, and the target of the time of 8 hosts divided by the
/// time of 2 hosts.
const LINK_BITS_PER_S: f64 = 200e6;
const TARGET_SCATTER_RATIO: f64 = 1.15;

/// The time limit of a launch. Only a launch that hangs exceeds it.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// The kernel removes namespaces some time after their end. The next launch must not wait for this.
const NAMESPACE_CLEANUP_GRACE: Duration = Duration::from_secs(1);

/// A job that runs until its standard input ends.
struct Job {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout_lines: mpsc::Receiver<String>,
    command_line: String,
}

impl Job {
    fn start(bench: &Bench, command_line: &str) -> Result<Self, String> {
        let words = bench.command_words(command_line);
        let mut command = Command::new(&words[0]);
        // The program is not in scrun's own directory, so scrun needs its path.
        let full_path = |word: &String| match word == STARTUP_PROGRAM {
            true => bench.program_dir.join(word).into_os_string(),
            false => word.into(),
        };
        command.args(words[1..].iter().map(full_path)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
        let (sender, stdout_lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // The thread ends when the job closes its output.
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
            });
        }
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, stdout_lines, command_line: command_line.to_owned() })
    }

    fn next_line(&self) -> Result<String, String> {
        self.stdout_lines
            .recv_timeout(JOB_TIMEOUT)
            .map_err(|_| format!("{}: no further output", self.command_line))
    }

    /// The daemons of the job's hosts and their shepherds.
    fn daemons(&self) -> Vec<Process> {
        let mut found = processes::descendants(self.child.id());
        found.retain(|process| process.runs_program("scored"));
        found
    }

    fn finish(mut self) -> Result<(), String> {
        drop(self.stdin.take());
        let deadline = Instant::now() + JOB_TIMEOUT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: {status}", self.command_line)),
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(format!("{}: {error}", self.command_line)),
            }
        }
        Err(format!("{}: does not end", self.command_line))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The job may still run. scored ends with its scrun.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn startup_command(hosts: u32) -> String {
    format!("scrun -group=local:{hosts},nodes={hosts}x1,message=quiet {STARTUP_PROGRAM}")
}

/// Returns the milliseconds until the last process has passed the start barrier, counted from the
/// last namespace, and from the start of scored. The first daemon of another host starts when the
/// last namespace exists. Start times are rounded down to 10 ms.
fn launch_once(bench: &Bench, hosts: u32) -> Result<[f64; 2], String> {
    let job = Job::start(bench, &startup_command(hosts))?;
    let mut last = 0;
    for _ in 0..hosts {
        let line = job.next_line()?;
        let timestamp_ns: u64 =
            line.parse().map_err(|_| format!("score-arrive: unexpected output {line:?}"))?;
        last = last.max(timestamp_ns);
    }
    let daemons = job.daemons();
    let others = daemons.iter().filter(|process| process.has_arg("-daemon"));
    let first = others.map(|process| process.started_ns).min();
    let first = first.ok_or("no daemon of another host was found")?;
    let server = daemons.iter().filter(|process| process.has_arg("-single"));
    let server = server.map(|process| process.started_ns).min().unwrap_or(first);
    job.finish()?;
    Ok([first, server].map(|since| last.saturating_sub(since) as f64 / 1e6))
}

// Promise (speed): 64 virtual hosts, from existing namespaces without daemons to 64 processes after
// the start barrier: less than 1 s.
/// Measures the time from the start of the first daemon until every process has passed the start
/// barrier.
///
/// # Errors
/// Returns an error if a command failed.
pub fn launch(bench: &Bench) -> BenchOutcome {
    let xtask_path =
        std::env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    // The smallest effort that starts the programs: a daemon, a shepherd and a program for each
    // host.
    let bare_command = |hosts: u32| {
        let command_line = format!("cargo xtask bench -spawn-and-wait {}", 3 * hosts);
        let mut args = split_words(&command_line)[1..].to_vec();
        args[0] = xtask_path.to_string_lossy().into_owned();
        (command_line, args)
    };
    let mut all_samples = vec![[const { Vec::new() }; 3]; HOSTS.len()];
    for round in 0..=bench.round_count {
        bench.progress("launch on hosts", round);
        for (hosts, samples) in HOSTS.into_iter().zip(&mut all_samples) {
            let [from_namespaces, from_scored] = launch_once(bench, hosts)?;
            let bare_spawn = run_time_ms(&bare_command(hosts).1)?;
            // The first round of each contender has cold caches.
            if round > 0 {
                let measured = [from_namespaces, from_scored, bare_spawn];
                samples.iter_mut().zip(measured).for_each(|(series, sample)| series.push(sample));
            }
            thread::sleep(NAMESPACE_CLEANUP_GRACE);
        }
    }
    let mut rows = Vec::new();
    for (hosts, [from_namespaces, from_scored, bare_spawn]) in HOSTS.into_iter().zip(all_samples) {
        let case = format!("{hosts} hosts");
        let row = |contender, samples, command_line: &str| {
            BenchResult::new("hosts-launch", &case, contender, MS, samples, command_line)
        };
        let mut launch_row = row("from namespaces", from_namespaces, &startup_command(hosts));
        launch_row.target = (hosts == 64).then_some(TARGET_LAUNCH_LATENCY_MS);
        let bare_row = row("bare spawns", bare_spawn, &bare_command(hosts).0);
        launch_row.comparisons = vec![Comparison::new(&launch_row, &bare_row, None)];
        rows.extend([
            launch_row,
            row("from scored", from_scored, &startup_command(hosts)),
            bare_row,
        ]);
    }
    Ok(rows)
}

// Promise (speed): All daemons of 64 idle virtual hosts: less than 0.5 % of one core.
/// Measures the processor time of the daemons of idle hosts.
///
/// # Errors
/// Returns an error if a command failed.
pub fn idle(bench: &Bench) -> BenchOutcome {
    let window = bench.window;
    let sleep_s = window.as_secs() + 3600;
    let command_line = |hosts: u32| {
        let group_option = format!("-group=local:{hosts},nodes={hosts}x1");
        format!("scrun {group_option},message=quiet system sleep {sleep_s}")
    };
    let mut all_samples = [const { Vec::new() }; 3];
    for round in 0..bench.round_count.min(3) {
        bench.progress("idle hosts", round);
        let job = Job::start(bench, &command_line(IDLE_HOST_COUNT))?;
        let measured = measure_idle_cost(&job, window)?;
        all_samples.iter_mut().zip(measured).for_each(|(series, sample)| series.push(sample));
        drop(job);
        thread::sleep(NAMESPACE_CLEANUP_GRACE);
    }
    let [all_daemons, shepherds, wakeups] = all_samples;
    let case = format!("{IDLE_HOST_COUNT} hosts");
    let row = |contender, unit, samples| {
        BenchResult::new("idle", &case, contender, unit, samples, &command_line(IDLE_HOST_COUNT))
    };
    let mut total_row = row("all daemons", PERCENT_OF_CORE, all_daemons);
    total_row.target = Some(TARGET_IDLE_PERCENT);
    let shepherd_row = row("of it, shepherds", PERCENT_OF_CORE, shepherds);
    let mut wakeup_row = row("all daemons", WAKEUPS_PER_S, wakeups);
    wakeup_row.bench = "idle, wakeups";
    Ok(vec![total_row, shepherd_row, wakeup_row])
}

/// Returns the percentage of a core that all daemons use, the percentage of the shepherds alone,
/// and wakeups per second.
fn measure_idle_cost(job: &Job, window: Duration) -> Result<[f64; 3], String> {
    let deadline = Instant::now() + JOB_TIMEOUT;
    let sleeping_count = || {
        let found = processes::descendants(job.child.id());
        found.iter().filter(|process| process.runs_program("sleep")).count()
    };
    while sleeping_count() < IDLE_HOST_COUNT as usize {
        if Instant::now() > deadline {
            return Err(format!("{}: not all processes have started", job.command_line));
        }
        thread::sleep(Duration::from_millis(100));
    }
    // Directly after the launch the daemons are not idle yet.
    thread::sleep(Duration::from_secs(3));
    let (before, start) = (job.daemons(), Instant::now());
    thread::sleep(window);
    let (after, elapsed) = (job.daemons(), start.elapsed().as_secs_f64());
    let [mut busy_ns, mut shepherd_ns, mut wakeups] = [0; 3];
    for earlier in &before {
        let later = after.iter().find(|other| other.pid == earlier.pid);
        let later = later.ok_or_else(|| format!("scored {} has ended meanwhile", earlier.pid))?;
        let delta_ns = later.busy_ns.saturating_sub(earlier.busy_ns);
        busy_ns += delta_ns;
        shepherd_ns += if earlier.name == "scored-shepherd" { delta_ns } else { 0 };
        wakeups += later.sleep_count.saturating_sub(earlier.sleep_count);
    }
    let percent = |nanoseconds: u64| nanoseconds as f64 / 1e9 / elapsed * 100.0;
    Ok([percent(busy_ns), percent(shepherd_ns), wakeups as f64 / elapsed])
}

// Promise (speed): scatter of 256 MiB to 8 hosts on links of 200 Mbit/s: at most 1.15 × the time of
// 2.
/// Measures a broadcast over links of 200 Mbit/s.
///
/// # Errors
/// Returns an error if a command failed.
pub fn scatter(bench: &Bench) -> BenchOutcome {
    let input_len = u64::from(bench.scatter_mib) << 20;
    let input = bench.work_dir.join("scattered");
    File::create(&input)
        .and_then(|file| file.set_len(input_len))
        .map_err(|error| format!("{}: {error}", input.display()))?;
    let command_line = |hosts: u32| {
        let group_option = format!("-group=local:{hosts},nodes={hosts}x1,rate=200mbit");
        format!("scrun {group_option},message=quiet scatter -file /dev/null")
    };
    let host_counts = [2, 8];
    let mut all_samples = [const { Vec::new() }; 2];
    for round in 0..bench.round_count.min(3) {
        bench.progress("scatter over slow links", round);
        for (hosts, samples) in host_counts.into_iter().zip(&mut all_samples) {
            samples.push(scatter_seconds(bench, &command_line(hosts), &input)?);
            thread::sleep(NAMESPACE_CLEANUP_GRACE);
        }
    }
    let shell_command = |hosts| format!("{} < {}", command_line(hosts), input.display());
    let case = format!("{} MiB", bench.scatter_mib);
    let row = |contender: &str, samples, command: &str| {
        BenchResult::new("scatter", &case, contender, SECONDS, samples, command)
    };
    let [two, eight] = all_samples;
    let floor =
        row("the link alone", vec![input_len as f64 * 8.0 / LINK_BITS_PER_S; two.len()], "");
    let mut two = row("2 hosts", two, &shell_command(2));
    let mut eight = row("8 hosts", eight, &shell_command(8));
    two.comparisons = vec![Comparison::new(&two, &floor, None)];
    eight.comparisons = vec![Comparison::new(&eight, &two, Some(TARGET_SCATTER_RATIO))];
    Ok(vec![eight, two, floor])
}

/// Returns the seconds that a command takes with this file as its standard input.
fn scatter_seconds(
    bench: &Bench,
    command_line: &str,
    input: &std::path::Path,
) -> Result<f64, String> {
    let file = File::open(input).map_err(|error| format!("{}: {error}", input.display()))?;
    let start = Instant::now();
    let mut command = Command::new("timeout");
    command.arg("200").args(bench.command_words(command_line)).stdin(file).stdout(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(start.elapsed().as_secs_f64()),
        Ok(status) => Err(format!("{command_line}: {status}")),
        Err(error) => Err(format!("timeout: {error}")),
    }
}
