//! `score-stacks PROGRAM PROCESSES THREADS`: reads the stacks of many processes with the crate
//! score-stacks (cold and warm), with eu-stack and with gdb. Prints milliseconds as JSON. The value
//! of a program that is not installed is null.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use score_stacks::StackReader;
use score_stacks::capture::capture;
use score_stacks::frame::Detail;
use serde_json::json;

/// After their start, processes need this time to reach the function in which they wait.
const START_GRACE: Duration = Duration::from_millis(500);
const EU_STACK: [&str; 2] = ["eu-stack", "-p"];
const GDB: [&str; 6] = ["gdb", "-nx", "-batch", "-ex", "thread apply all bt", "-p"];

/// Processes that are killed when this value is dropped.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let numbers: Option<(usize, usize)> = match arguments.as_slice() {
        [_, _, processes, threads] => processes.parse().ok().zip(threads.parse().ok()),
        _ => None,
    };
    let Some((processes, threads)) = numbers.filter(|(_, threads)| *threads > 0) else {
        eprintln!("usage: score-stacks PROGRAM PROCESSES THREADS");
        std::process::exit(1);
    };
    match round(&arguments[1], processes, threads) {
        Ok(result) => println!("{result}"),
        Err(error) => {
            eprintln!("score-stacks: {error}");
            std::process::exit(1);
        }
    }
}

fn round(program: &str, processes: usize, threads: usize) -> Result<serde_json::Value, String> {
    let mut running = Processes(Vec::new());
    for _ in 0..processes {
        // The argument does not include the main thread.
        let mut command = Command::new(program);
        command.arg((threads - 1).to_string()).stdout(Stdio::null());
        running.0.push(command.spawn().map_err(|error| format!("{program}: {error}"))?);
    }
    std::thread::sleep(START_GRACE);
    let pids: Vec<i32> = running.0.iter().map(|child| child.id() as i32).collect();

    let mut reader = StackReader::new();
    let cold = time(|| read(&mut reader, &pids, threads))?;
    let eu_stack = peer(&EU_STACK, &pids)?;
    let warm = time(|| read(&mut reader, &pids, threads))?;
    let gdb = peer(&GDB, &pids)?;
    let mut held = Vec::new();
    for pid in &pids {
        held.push(capture(*pid).map_err(|error| error.to_string())?.held_for);
    }
    held.sort();
    Ok(json!({
        "cold_ms": cold,
        "warm_ms": warm,
        "eu_stack_ms": eu_stack,
        "gdb_ms": gdb,
        "held_median_ms": held.get(held.len() / 2).map(ms),
        "held_longest_ms": held.last().map(ms),
    }))
}

fn read(reader: &mut StackReader, pids: &[i32], threads: usize) -> Result<(), String> {
    for result in reader.stacks_of(pids, Detail::Lines) {
        let process = result.map_err(|error| error.to_string())?;
        if process.threads.len() != threads {
            return Err(format!("process {}: {} threads", process.pid, process.threads.len()));
        }
    }
    Ok(())
}

/// Returns the milliseconds in which another program, called once for each process, reads all.
fn peer(words: &[&str], pids: &[i32]) -> Result<Option<f64>, String> {
    let [name, arguments @ ..] = words else { return Ok(None) };
    let started_at = Instant::now();
    for pid in pids {
        let mut command = Command::new(name);
        let output = command.args(arguments).arg(pid.to_string()).stdin(Stdio::null()).output();
        let output = match output {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{name}: {error}")),
        };
        if !output.contains("main") {
            return Err(format!("{name} shows no stack of process {pid}"));
        }
    }
    Ok(Some(ms(&started_at.elapsed())))
}

fn time(work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let started_at = Instant::now();
    work()?;
    Ok(ms(&started_at.elapsed()))
}

fn ms(time: &Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
