//! Sends SIGKILL to a random victim at a random moment of a short job of random shape. Within a
//! second no process and no file may be left. At the end no listening socket may be left.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::TestEnv;
use score_tests::process::Process;

use crate::SoakOptions;
use crate::random::Random;

/// The promised time limit (docs/dev/test-matrix.md).
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit that counts as an error even if other work delays this machine.
const CLEANUP_HARD_TIMEOUT: Duration = Duration::from_secs(5);

const VICTIMS: &[&str] = &["node", "shepherd", "scored", "scrun"];

/// Statistics of the jobs so far.
#[derive(Default)]
struct KillStats {
    victims: BTreeMap<&'static str, u64>,
    slow_count: u64,
    slowest: Duration,
}

/// Runs the soak.
///
/// # Errors
/// Returns an error if a process or a file was left. The message has the command that repeats the
/// run.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let env = TestEnv::new();
    let traffic = env.test_program("traffic").map(|path| path.display().to_string());
    let ports_before = listening_ports();
    let mut stats = KillStats::default();
    let mut job_count = 0;
    for (index, seed) in soak_options.seeds() {
        let replay_error =
            |text: String| format!("{text}\nagain: cargo xtask soak kill -count 1 -seed {seed}");
        let slow_before = stats.slow_count;
        kill_one_job(&env, traffic.as_deref(), &mut Random(seed), &mut stats)
            .map_err(replay_error)?;
        if stats.slow_count > slow_before {
            println!("      seed {seed}");
        }
        job_count = index + 1;
        if job_count % 20 == 0 {
            print!("\rkill: {job_count} jobs killed, {}   ", format_stats(&stats));
            let _ = std::io::stdout().flush();
        }
    }
    println!(
        "\rkill: {job_count} jobs killed, {}; 0 files, 0 processes left",
        format_stats(&stats)
    );
    let started_at = Instant::now();
    loop {
        let new: Vec<String> =
            listening_ports().into_iter().filter(|port| !ports_before.contains(port)).collect();
        if new.is_empty() {
            println!("kill: 0 ports left");
            return Ok(());
        }
        if started_at.elapsed() > CLEANUP_HARD_TIMEOUT {
            return Err(format!("sockets that still listen: {new:?}"));
        }
        sleep(Duration::from_millis(50));
    }
}

fn format_stats(stats: &KillStats) -> String {
    let victims: Vec<String> =
        stats.victims.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let (slow_count, slowest) = (stats.slow_count, stats.slowest.as_millis());
    format!("{}; clean within {slowest} ms, {slow_count} over a second", victims.join(", "))
}

/// Returns a command line of random shape. Without the signal its job would run for some time.
fn random_command_line(traffic: Option<&str>, random: &mut Random) -> String {
    let nodes = 1 + random.below(5);
    let escape = "setsid sleep 61 & (setsid sh -c \"sleep 61\" &) ; exec sleep 60";
    let mut lines = vec![
        format!("exec scrun -nodes={nodes} system sleep 60"),
        format!("exec scrun -nodes={nodes} system sh -c '{escape}'"),
        format!("exec scrun -nodes={nodes} system yes == system cat"),
        format!("yes | exec scrun -nodes={nodes} scatter == system cat"),
        format!("exec scrun -nodes={nodes} system true :: system sleep 60 :: system true"),
        format!("exec scrun -nodes={nodes} system echo x =: file :: system sleep 60"),
        format!("exec scrun -nodes={nodes} system sh -c 'touch a b; mkdir d; sleep 60'"),
    ];
    if let Some(program) = traffic {
        let nodes = nodes + 1;
        lines.push(format!("exec scrun -nodes={nodes} {program} 100000000 1"));
        lines.push(format!("exec scrun -nodes={nodes} {program} 100000000 1 block"));
    }
    let line = lines.swap_remove(random.below(lines.len()));
    format!("{line} > /dev/null 2>&1")
}

/// Runs one job, and kills one of its processes.
fn kill_one_job(
    env: &TestEnv,
    traffic: Option<&str>,
    random: &mut Random,
    stats: &mut KillStats,
) -> Result<(), String> {
    let line = random_command_line(traffic, random);
    let mut job = env.sh(&line).start();
    // The moments are dense at the start, when most events happen. The latest ones are in the quiet
    // time of the job.
    let bits = 10 + random.below(8);
    sleep(Duration::from_micros(random.next() % (1 << bits)));
    let target = random.pick(VICTIMS);
    let (mut victim, mut name) = choose_victim(env, &line, target, random);
    victim.signal(Signal::SIGKILL);
    let mut killed_at = Instant::now();
    // A node of a short stage may have ended before the signal. Then the job correctly continues.
    let is_short = line.contains(" echo ") || line.contains(" true ");
    let mut cleanup = env.wait_until_clean(CLEANUP_TIMEOUT);
    let late_leftovers = cleanup.clone().err();
    if is_short && name == "node" && cleanup.is_err() {
        (victim, name) = choose_victim(env, &line, "scrun", random);
        victim.signal(Signal::SIGKILL);
        killed_at = Instant::now();
    }
    if cleanup.is_err() {
        cleanup = env.wait_until_clean(CLEANUP_HARD_TIMEOUT);
    }
    *stats.victims.entry(name).or_default() += 1;
    let elapsed = killed_at.elapsed();
    stats.slowest = stats.slowest.max(elapsed);
    if elapsed > CLEANUP_TIMEOUT {
        stats.slow_count += 1;
        println!("\rslow: {elapsed:?} after SIGKILL of {name} of {line}");
        println!("      left after a second: {late_leftovers:?}");
    }
    if let Err(left) = cleanup {
        job.kill_all();
        env.ignore_leftovers();
        let description = format!("{} ({})", name, victim.command);
        return Err(format!(
            "{line}\nSIGKILL of {description}; left after {elapsed:?}:\n{}",
            left.join("\n")
        ));
    }
    job.wait();
    Ok(())
}

/// Returns a living process of the wanted kind, or of another kind if there is none. Waits for the
/// first process of the job.
fn choose_victim(
    env: &TestEnv,
    line: &str,
    target: &str,
    random: &mut Random,
) -> (Process, &'static str) {
    loop {
        let mut candidates = classify(&env.processes(), line.contains("setsid"));
        if candidates.iter().any(|(_, name)| *name == target) {
            candidates.retain(|(_, name)| *name == target);
        }
        if !candidates.is_empty() {
            return candidates.swap_remove(random.below(candidates.len()));
        }
        sleep(Duration::from_micros(200));
    }
}

/// Returns the processes that belong to a job, each with its kind.
fn classify(processes: &[Process], spawns_orphans: bool) -> Vec<(Process, &'static str)> {
    let ids = |predicate: &dyn Fn(&Process) -> bool| -> Vec<i32> {
        processes.iter().filter(|process| predicate(process)).map(|one| one.pid).collect()
    };
    // A process that scored starts for a moment to probe the machine does not count as scored.
    let scruns = ids(&Process::is_scrun);
    let scoreds = ids(&|process| process.is_scored() && scruns.contains(&process.parent));
    let shepherds = ids(&|process| process.is_shepherd() && scoreds.contains(&process.parent));
    let role = |process: &Process| -> Option<&'static str> {
        if process.is_scrun() {
            Some("scrun")
        } else if shepherds.contains(&process.pid) {
            Some("shepherd")
        } else if scoreds.contains(&process.pid) {
            Some("scored")
        } else {
            // Only processes that SCore itself has started count, because the death of a descendant
            // is not an event. Orphaned descendants also become children of the shepherd. In the
            // shape that has them, nodes lead their session and sleep for 60 seconds.
            let sleeper =
                process.command == "sleep 60" || process.command.contains("exec sleep 60");
            let node = !spawns_orphans || process.session == process.pid && sleeper;
            (shepherds.contains(&process.parent) && node).then_some("node")
        }
    };
    processes.iter().filter_map(|process| Some((process.clone(), role(process)?))).collect()
}

/// Returns the sockets that accept connections or packets: TCP listeners and bound UDP sockets.
fn listening_ports() -> Vec<String> {
    let mut found = Vec::new();
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.get(3) == Some(&state) {
                found.push(format!("{table} {}", fields[1]));
            }
        }
    }
    found
}
