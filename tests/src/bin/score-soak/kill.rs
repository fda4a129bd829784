//! SIGKILL of a random victim at a random moment of a short job of random shape. Within a second
//! nothing may be left: no process, no file; at the end no socket that listens.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::Scene;
use score_tests::process::Process;

use crate::Plan;
use crate::random::Random;

/// What is promised.
const PROMISE: Duration = Duration::from_secs(1);
/// What counts as broken even when other work delays this machine.
const BROKEN: Duration = Duration::from_secs(5);

const VICTIMS: &[&str] = &["node", "shepherd", "scored", "scrun"];

/// What has been seen so far.
#[derive(Default)]
struct Seen {
    victims: BTreeMap<&'static str, u64>,
    slow: u64,
    slowest: Duration,
}

/// Runs the plan.
///
/// # Errors
/// Something was left; the line says how to see it again.
pub fn run(plan: &Plan) -> Result<(), String> {
    let scene = Scene::new();
    let traffic = scene.program("traffic").map(|path| path.display().to_string());
    let before = listening();
    let mut seen = Seen::default();
    let mut done = 0;
    for (index, seed) in plan.seeds() {
        let fault =
            |text: String| format!("{text}\nagain: cargo xtask soak kill -count 1 -seed {seed}");
        let slow = seen.slow;
        one(&scene, traffic.as_deref(), &mut Random(seed), &mut seen).map_err(fault)?;
        if seen.slow > slow {
            println!("      seed {seed}");
        }
        done = index + 1;
        if done % 20 == 0 {
            print!("\rkill: {done} jobs killed, {}   ", tell(&seen));
            let _ = std::io::stdout().flush();
        }
    }
    println!("\rkill: {done} jobs killed, {}; 0 files, 0 processes left", tell(&seen));
    let began = Instant::now();
    loop {
        let new: Vec<String> =
            listening().into_iter().filter(|one| !before.contains(one)).collect();
        if new.is_empty() {
            println!("kill: 0 ports left");
            return Ok(());
        }
        if began.elapsed() > BROKEN {
            return Err(format!("listening now and not before: {new:?}"));
        }
        sleep(Duration::from_millis(50));
    }
}

fn tell(seen: &Seen) -> String {
    let victims: Vec<String> =
        seen.victims.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let (slow, slowest) = (seen.slow, seen.slowest.as_millis());
    format!("{}; clean within {slowest} ms, {slow} over a second", victims.join(", "))
}

/// A command line of random shape; each would run for a while by itself.
fn shape(traffic: Option<&str>, random: &mut Random) -> String {
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

/// One job and its end.
fn one(
    scene: &Scene,
    traffic: Option<&str>,
    random: &mut Random,
    seen: &mut Seen,
) -> Result<(), String> {
    let line = shape(traffic, random);
    let mut job = scene.sh(&line).start();
    // Moments are dense at the start, where most happens, and reach into the job's quiet life.
    let bits = 10 + random.below(8);
    sleep(Duration::from_micros(random.next() % (1 << bits)));
    let wanted = random.pick(VICTIMS);
    let (mut victim, mut name) = choose(scene, &line, wanted, random);
    victim.signal(Signal::SIGKILL);
    let mut killed = Instant::now();
    // A node of a short stage may have ended well before the signal: then the job goes on, rightly.
    let short = line.contains(" echo ") || line.contains(" true ");
    let mut ended = scene.wait_until_clean(PROMISE);
    let late = ended.clone().err();
    if short && name == "node" && ended.is_err() {
        (victim, name) = choose(scene, &line, "scrun", random);
        victim.signal(Signal::SIGKILL);
        killed = Instant::now();
    }
    if ended.is_err() {
        ended = scene.wait_until_clean(BROKEN);
    }
    *seen.victims.entry(name).or_default() += 1;
    let took = killed.elapsed();
    seen.slowest = seen.slowest.max(took);
    if took > PROMISE {
        seen.slow += 1;
        println!("\rslow: {took:?} after SIGKILL of {name} of {line}");
        println!("      there after a second: {late:?}");
    }
    if let Err(left) = ended {
        job.kill_all();
        scene.forgive();
        let shown = format!("{} ({})", name, victim.command);
        return Err(format!(
            "{line}\nSIGKILL of {shown}; left after {took:?}:\n{}",
            left.join("\n")
        ));
    }
    job.wait();
    Ok(())
}

/// A living process of the wanted kind. While it does not exist yet, another kind is as good;
/// scrun comes first, and with it there is always one.
fn choose(scene: &Scene, line: &str, wanted: &str, random: &mut Random) -> (Process, &'static str) {
    loop {
        let mut known = known(&scene.processes(), line.contains("setsid"));
        if known.iter().any(|(_, name)| *name == wanted) {
            known.retain(|(_, name)| *name == wanted);
        }
        if !known.is_empty() {
            return known.swap_remove(random.below(known.len()));
        }
        sleep(Duration::from_micros(200));
    }
}

/// The processes that belong to a job, each with its kind.
fn known(processes: &[Process], orphans: bool) -> Vec<(Process, &'static str)> {
    let ids = |wanted: &dyn Fn(&Process) -> bool| -> Vec<i32> {
        processes.iter().filter(|one| wanted(one)).map(|one| one.pid).collect()
    };
    // What scored starts for a moment, to try what the machine allows, is not scored itself.
    let scruns = ids(&Process::is_scrun);
    let scoreds = ids(&|one| one.is_scored() && scruns.contains(&one.parent));
    let shepherds = ids(&|one| one.is_shepherd() && scoreds.contains(&one.parent));
    let kind = |one: &Process| -> Option<&'static str> {
        if one.is_scrun() {
            Some("scrun")
        } else if shepherds.contains(&one.pid) {
            Some("shepherd")
        } else if scoreds.contains(&one.pid) {
            Some("scored")
        } else {
            // Only the processes that SCore itself has started: a descendant's death is no event.
            // Orphans become the shepherd's children, too; in the shape that has some, nodes lead
            // their session and will sleep for 60 seconds.
            let sleeper = one.command == "sleep 60" || one.command.contains("exec sleep 60");
            let node = !orphans || one.session == one.pid && sleeper;
            (shepherds.contains(&one.parent) && node).then_some("node")
        }
    };
    processes.iter().filter_map(|one| Some((one.clone(), kind(one)?))).collect()
}

/// Sockets that wait for somebody: TCP listeners, bound UDP sockets, and our named local sockets.
fn listening() -> Vec<String> {
    let mut found = Vec::new();
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.get(3) == Some(&state) {
                found.push(format!("{table} {}", words[1]));
            }
        }
    }
    found
}
