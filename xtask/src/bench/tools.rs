//! Measures debuggers and tools: a launch under a debugger that uses MPIR, the stacks of a job
//! compared with eu-stack and gdb on each process, and memory through tool control.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use score_sys::host_name::system_host_name;

use crate::bench::command::{command_stdout, run_time_ms};
use crate::bench::processes;
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome, WORK_DIR};
use crate::run;

const LAUNCHED: u32 = 256;
const TARGET_VS_PLAIN_LAUNCH: f64 = 1.2;
/// A client of MPIR that runs in gdb. It prints the time of each stop of scrun.
const MPIR_CLIENT: &str = include_str!("mpir_client.py");
/// A program that prints when it reaches its main function.
const MAIN_TIME: &str = include_str!("main_time.c");

const RANKS: u32 = 64;
/// gdb takes a second for a process, so it runs on this many processes and the time is multiplied.
const GDB_CALLS: u32 = 8;
const TARGET_VS_EU_STACK: f64 = 1.0;
const TARGET_VS_GDB: f64 = 0.25;
const JOB_START_TIMEOUT: Duration = Duration::from_secs(30);

/// A program with 1 MiB of memory, which is also the tool that reads it.
const MEMORY_PROGRAM: &str = "score-tool-memory";
const TARGET_VS_ONE_CALL: f64 = 2.0;
/// The number of reads in a round.
const READS: u32 = 100;

const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);

// Promise (speed): A launch of 256 under an MPIR client takes at most 1.2 × the time of the same
// launch without; `scdb stacks` of 64 ranks at most 0.25 × the time of 64 gdb and 1.0 × that of 64
// eu-stack; 1 MiB by Query at least 0.5 × process_vm_readv.
/// Runs all measurements.
///
/// # Errors
/// Returns an error if a measurement failed.
pub fn tools(bench: &Bench) -> BenchOutcome {
    if Command::new("gdb").arg("-version").stdout(Stdio::null()).status().is_err() {
        println!("  tools: SKIPPED: gdb is not installed");
        return Ok(Vec::new());
    }
    let mut rows = launch_under_debugger(bench)?;
    rows.extend(stacks_of_job(bench)?);
    rows.extend(memory_of_rank(bench)?);
    Ok(rows)
}

/// Measures the time from the first to the second call of `MPIR_Breakpoint`, when all processes
/// wait and are in the table. If the client does not request the processes, measures the time until
/// the last one has reached its main function.
fn launch_under_debugger(bench: &Bench) -> BenchOutcome {
    let work_dir = run::source_root().join(WORK_DIR);
    let write = |name: &str, text: &str| {
        let path = work_dir.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(path.to_string_lossy().into_owned())
    };
    let client = write("mpir_client.py", MPIR_CLIENT)?;
    let source = write("main_time.c", MAIN_TIME)?;
    let program = work_dir.join("main_time").to_string_lossy().into_owned();
    run::run_checked(Command::new("gcc").args(["-O2", "-o", &program, &source]))?;
    let scrun = bench.command_words("scrun").remove(0);
    let nodes = format!("-nodes={LAUNCHED},message=quiet");
    let line = format!("gdb -x xtask/src/bench/mpir_client.py --args scrun {nodes} main_time");
    let time_ms = |is_held: bool| -> Result<f64, String> {
        let flag = format!("py held = {}", if is_held { "True" } else { "False" });
        let words = ["gdb", "-nx", "-q", "-batch", "-ex", &flag, "-x", &client, "--args"];
        let words = words.into_iter().chain([scrun.as_str(), &nodes, &program]);
        let output = command_stdout(&words.map(str::to_owned).collect::<Vec<_>>())?;
        let times = |key: &str| -> Vec<f64> {
            let values = output.lines().filter_map(|line| line.trim().strip_prefix(key));
            values.filter_map(|value| value.trim().parse().ok()).collect()
        };
        let (begin, ends) = (times("BEGUN "), times(if is_held { "SPAWNED " } else { "MAIN " }));
        let expected = if is_held { 1 } else { LAUNCHED as usize };
        if begin.len() != 1 || ends.len() != expected {
            return Err(format!("{line}: unexpected output: {output}"));
        }
        Ok((ends.into_iter().fold(f64::MIN, f64::max) - begin[0]) * 1e3)
    };
    let (mut held, mut plain) = (Vec::new(), Vec::new());
    for round in 0..bench.round_count {
        bench.progress("tools, launch under a debugger", round);
        held.push(time_ms(true)?);
        plain.push(time_ms(false)?);
    }
    let case = format!("{LAUNCHED} processes");
    let row = |contender, samples| {
        BenchResult::new("tools: launch", &case, contender, MS, samples, &line)
    };
    let plain = row("last process at main", plain);
    let mut held = row("second MPIR_Breakpoint", held);
    held.comparisons = vec![Comparison::new(&held, &plain, Some(TARGET_VS_PLAIN_LAUNCH))];
    Ok(vec![held, plain])
}

/// A job that ends when this value is dropped.
struct RunningJob(Child);

impl Drop for RunningJob {
    fn drop(&mut self) {
        // scrun ends when its job has ended. If it has been reaped already, the signal fails.
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

fn stacks_of_job(bench: &Bench) -> BenchOutcome {
    let words = bench.command_words(&format!("scrun -nodes={RANKS},message=quiet /bin/sleep 600"));
    let child = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn();
    let job = RunningJob(child.map_err(|error| format!("scrun: {error}"))?);
    let pids = await_ranks(job.0.id())?;
    let scdb_line = format!("scdb {}@{} stacks", job.0.id(), system_host_name());
    let scdb = bench.command_words(&scdb_line);
    let each = |program: &str, args: &[&str], pids: &[String]| -> Result<f64, String> {
        let mut total = 0.0;
        for pid in pids {
            let words = [&[program, "-p", pid][..], args].concat();
            total += run_time_ms(&words.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
        }
        Ok(total)
    };
    let has_eu_stack = Command::new("eu-stack").arg("--version").output().is_ok();
    let first = vec![run_time_ms(&scdb)?];
    let (mut own, mut eu_stack, mut gdb) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.round_count {
        bench.progress("tools, stacks of a job", round);
        own.push(run_time_ms(&scdb)?);
        if has_eu_stack {
            eu_stack.push(each("eu-stack", &[], &pids)?);
        }
        let some = &pids[..GDB_CALLS as usize];
        gdb.push(each("gdb", &["-batch", "-ex", "bt"], some)? * f64::from(RANKS / GDB_CALLS));
    }
    let case = format!("{RANKS} ranks of sleep");
    let row = |contender, samples, line: &str| {
        BenchResult::new("tools: stacks", &case, contender, MS, samples, line)
    };
    let line = "scdb PID@HOST stacks";
    let mut rows = vec![row("scdb", own, line), row("scdb, first call of a job", first, line)];
    let mut peers = vec![(row("gdb", gdb, "gdb -p PID -batch -ex bt"), TARGET_VS_GDB)];
    if has_eu_stack {
        peers.push((row("eu-stack", eu_stack, "eu-stack -p PID"), TARGET_VS_EU_STACK));
    }
    for row in &mut rows {
        let comparisons =
            peers.iter().map(|(peer, target)| Comparison::new(row, peer, Some(*target)));
        row.comparisons = comparisons.collect();
    }
    Ok(rows.into_iter().chain(peers.into_iter().map(|(row, _)| row)).collect())
}

/// Measures reading 1 MiB of a process through the tool control service (Copy Memory), and by one
/// call of process_vm_readv(2).
fn memory_of_rank(bench: &Bench) -> BenchOutcome {
    let program = bench.command_words(MEMORY_PROGRAM).remove(0);
    let words = bench.command_words(&format!("scrun -nodes=1,message=quiet {program}"));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("scrun: {error}"))?;
    let (_stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let _job = RunningJob(child);
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout.ok_or("scrun: no standard output")?);
    stdout.read_line(&mut line).map_err(|error| format!("{MEMORY_PROGRAM}: {error}"))?;
    let (address, directory) =
        line.trim_end().split_once(' ').ok_or_else(|| format!("{MEMORY_PROGRAM}: {line:?}"))?;
    // The directory for tools is made soon after the start of the job.
    let socket = Path::new(directory).join(".jobs/1/toolctl_node/0");
    let deadline = Instant::now() + JOB_START_TIMEOUT;
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let words = [&program, directory, address, &READS.to_string()].map(str::to_owned);
    let (mut through_tool, mut one_call) = (Vec::new(), Vec::new());
    for round in 0..bench.round_count {
        bench.progress("tools, memory of a process", round);
        let output = command_stdout(&words)?;
        let median = |column: usize| -> Option<f64> {
            let column = output.lines().map(|line| line.split(' ').nth(column)?.parse().ok());
            let mut values: Vec<f64> = column.collect::<Option<_>>()?;
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let medians = median(0).zip(median(1));
        let (tool, call) = medians.ok_or_else(|| format!("{MEMORY_PROGRAM}: {output}"))?;
        through_tool.push(tool);
        one_call.push(call);
    }
    let us = ("us", Direction::LowerIsBetter);
    let row = |contender, samples, line: &str| {
        BenchResult::new("tools: memory", "1 MiB", contender, us, samples, line)
    };
    let mut tool = row("Query of a tool", through_tool, MEMORY_PROGRAM);
    let call = row("process_vm_readv", one_call, MEMORY_PROGRAM);
    tool.comparisons = vec![Comparison::new(&tool, &call, Some(TARGET_VS_ONE_CALL))];
    Ok(vec![tool, call])
}

/// The processes of the job, when all of them run their program.
fn await_ranks(scrun: u32) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + JOB_START_TIMEOUT;
    loop {
        let descendants = processes::descendants(scrun);
        let ranks = descendants.iter().filter(|process| process.runs_program("sleep"));
        let pids: Vec<String> = ranks.map(|process| process.pid.to_string()).collect();
        if pids.len() >= RANKS as usize {
            return Ok(pids);
        }
        if Instant::now() > deadline {
            return Err(format!("scrun: {} of {RANKS} ranks have started", pids.len()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
