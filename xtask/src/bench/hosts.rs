//! Many virtual hosts on this machine: how long their launch takes, what their daemons cost while
//! nothing happens, and a broadcast over slow links (issue 3, "How fast").

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::calls::{milliseconds, words};
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::processes::{self, Process};
use crate::bench::{Bench, Rows};

const MS: (&str, Better) = ("ms", Better::Less);
const SECONDS: (&str, Better) = ("s", Better::Less);
const PERCENT: (&str, Better) = ("% of a core", Better::Less);
const SLEEPS: (&str, Better) = ("wakeups/s", Better::Less);

/// The program that is launched.
const ARRIVE: &str = "score-arrive";
const HOSTS: [u32; 4] = [2, 8, 16, 64];
/// Milliseconds for 64 hosts.
const LAUNCH_AIM: f64 = 1000.0;
/// Hosts that are idle, and what all their daemons may take of one core.
const IDLE: u32 = 64;
const IDLE_AIM: f64 = 0.5;
/// The limit of each link, in bits per second, and what 8 hosts may take of the time of 2.
const RATE: f64 = 200e6;
const SCATTER_AIM: f64 = 1.15;

/// No launch takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel takes namespaces apart after their end; the next launch shall not wait for that.
const TIDYING: Duration = Duration::from_secs(1);

/// A job that stays until its standard input ends.
struct Job {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    shown: String,
}

impl Job {
    fn start(bench: &Bench, shown: &str) -> Result<Self, String> {
        let words = bench.ours(shown);
        let mut command = Command::new(&words[0]);
        // It is none of the commands that scrun finds beside itself.
        let full = |word: &String| match word == ARRIVE {
            true => bench.programs.join(word).into_os_string(),
            false => word.into(),
        };
        command.args(words[1..].iter().map(full)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", words[0]))?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // It ends with the job's output.
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
            });
        }
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, shown: shown.to_owned() })
    }

    fn line(&self) -> Result<String, String> {
        self.lines.recv_timeout(PATIENCE).map_err(|_| format!("{}: says nothing more", self.shown))
    }

    /// The daemons of its hosts and their shepherds.
    fn daemons(&self) -> Vec<Process> {
        let mut found = processes::below(self.child.id());
        found.retain(|process| process.is("scored"));
        found
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.stdin.take());
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("{}: {status}", self.shown)),
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(format!("{}: {error}", self.shown)),
            }
        }
        Err(format!("{}: does not end", self.shown))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // One that has not ended is stuck; scored ends with its scrun.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arrival(hosts: u32) -> String {
    format!("scrun -group=local:{hosts},nodes={hosts}x1,message=quiet {ARRIVE}")
}

/// Milliseconds from the last namespace, and from scrun's start, to the last process past the start
/// barrier. The first daemon of another host is started when the last namespace is there; its start
/// time is rounded to 10 ms, downwards.
fn launch_once(bench: &Bench, hosts: u32) -> Result<[f64; 2], String> {
    let job = Job::start(bench, &arrival(hosts))?;
    let mut last = 0;
    for _ in 0..hosts {
        let line = job.line()?;
        let stamp: u64 = line.parse().map_err(|_| format!("score-arrive says {line:?}"))?;
        last = last.max(stamp);
    }
    let daemons = job.daemons();
    let others = daemons.iter().filter(|process| process.has("-daemon"));
    let first = others.map(|process| process.started).min();
    let first = first.ok_or("no daemon of another host is to be seen")?;
    let server = daemons.iter().filter(|process| process.has("-single"));
    let server = server.map(|process| process.started).min().unwrap_or(first);
    job.end()?;
    Ok([first, server].map(|since| last.saturating_sub(since) as f64 / 1e6))
}

/// From no daemon to every process past the start barrier.
///
/// # Errors
/// A command failed.
pub fn launch(bench: &Bench) -> Rows {
    let itself = std::env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    // With less no program can be started: daemon, shepherd and program for each host.
    let floor = |hosts: u32| {
        let shown = format!("cargo xtask bench -spawn-and-wait {}", 3 * hosts);
        let mut line = words(&shown)[1..].to_vec();
        line[0] = itself.to_string_lossy().into_owned();
        (shown, line)
    };
    let mut figures = vec![[const { Vec::new() }; 3]; HOSTS.len()];
    for round in 0..=bench.rounds {
        bench.progress("launch on hosts", round);
        for (hosts, figures) in HOSTS.into_iter().zip(&mut figures) {
            let [launched, whole] = launch_once(bench, hosts)?;
            let spawned = milliseconds(&floor(hosts).1)?;
            // The first of each finds cold caches.
            if round > 0 {
                let now = [launched, whole, spawned];
                figures.iter_mut().zip(now).for_each(|(all, one)| all.push(one));
            }
            thread::sleep(TIDYING);
        }
    }
    let mut rows = Vec::new();
    for (hosts, [launched, whole, spawned]) in HOSTS.into_iter().zip(figures) {
        let what = format!("{hosts} hosts");
        let row =
            |who, figures, shown: &str| Row::new("hosts-launch", &what, who, MS, figures, shown);
        let mut own = row("from namespaces", launched, &arrival(hosts));
        own.aim = (hosts == 64).then_some(LAUNCH_AIM);
        let bare = row("bare spawns", spawned, &floor(hosts).0);
        own.beside = vec![Comparison::of(&own, &bare, None)];
        rows.extend([own, row("from scored", whole, &arrival(hosts)), bare]);
    }
    Ok(rows)
}

/// Processor time of the daemons of idle hosts.
///
/// # Errors
/// A command failed.
pub fn idle(bench: &Bench) -> Rows {
    let window = bench.window;
    let stay = window.as_secs() + 3600;
    let line = |hosts: u32| {
        let on = format!("-group=local:{hosts},nodes={hosts}x1");
        format!("scrun {on},message=quiet system sleep {stay}")
    };
    let mut figures = [const { Vec::new() }; 3];
    for round in 0..bench.rounds.min(3) {
        bench.progress("idle hosts", round);
        let job = Job::start(bench, &line(IDLE))?;
        let now = watch(&job, window)?;
        figures.iter_mut().zip(now).for_each(|(all, one)| all.push(one));
        drop(job);
        thread::sleep(TIDYING);
    }
    let [all, shepherds, sleeps] = figures;
    let what = format!("{IDLE} hosts");
    let row = |who, unit, figures| Row::new("idle", &what, who, unit, figures, &line(IDLE));
    let mut own = row("all daemons", PERCENT, all);
    own.aim = Some(IDLE_AIM);
    let of_them = row("of it, shepherds", PERCENT, shepherds);
    let mut sleeps = row("all daemons", SLEEPS, sleeps);
    sleeps.bench = "idle, wakeups";
    Ok(vec![own, of_them, sleeps])
}

/// Percent of a core that all daemons take, percent of shepherds alone, and wakeups per second.
fn watch(job: &Job, window: Duration) -> Result<[f64; 3], String> {
    let until = Instant::now() + PATIENCE;
    let sleepers = || {
        let found = processes::below(job.child.id());
        found.iter().filter(|process| process.is("sleep")).count()
    };
    while sleepers() < IDLE as usize {
        if Instant::now() > until {
            return Err(format!("{}: not all processes come up", job.shown));
        }
        thread::sleep(Duration::from_millis(100));
    }
    // What follows the launch is not idleness.
    thread::sleep(Duration::from_secs(3));
    let (before, began) = (job.daemons(), Instant::now());
    thread::sleep(window);
    let (after, elapsed) = (job.daemons(), began.elapsed().as_secs_f64());
    let [mut busy, mut of_shepherds, mut sleeps] = [0; 3];
    for one in &before {
        let then = after.iter().find(|other| other.pid == one.pid);
        let then = then.ok_or_else(|| format!("scored {} has ended meanwhile", one.pid))?;
        let more = then.busy.saturating_sub(one.busy);
        busy += more;
        of_shepherds += if one.name == "scored-shepherd" { more } else { 0 };
        sleeps += then.sleeps.saturating_sub(one.sleeps);
    }
    let percent = |nanoseconds: u64| nanoseconds as f64 / 1e9 / elapsed * 100.0;
    Ok([percent(busy), percent(of_shepherds), sleeps as f64 / elapsed])
}

/// A broadcast over links of 200 Mbit/s.
///
/// # Errors
/// A command failed.
pub fn scatter(bench: &Bench) -> Rows {
    let bytes = u64::from(bench.mebibytes) << 20;
    let input = bench.folder.join("scattered");
    File::create(&input)
        .and_then(|file| file.set_len(bytes))
        .map_err(|error| format!("{}: {error}", input.display()))?;
    let line = |hosts: u32| {
        let on = format!("-group=local:{hosts},nodes={hosts}x1,rate=200mbit");
        format!("scrun {on},message=quiet scatter -file /dev/null")
    };
    let counts = [2, 8];
    let mut figures = [const { Vec::new() }; 2];
    for round in 0..bench.rounds.min(3) {
        bench.progress("scatter over slow links", round);
        for (hosts, figures) in counts.into_iter().zip(&mut figures) {
            figures.push(copied(bench, &line(hosts), &input)?);
            thread::sleep(TIDYING);
        }
    }
    let shown = |hosts| format!("{} < {}", line(hosts), input.display());
    let what = format!("{} MiB", bench.mebibytes);
    let row =
        |who: &str, figures, shown: &str| Row::new("scatter", &what, who, SECONDS, figures, shown);
    let [two, eight] = figures;
    let floor = row("the link alone", vec![bytes as f64 * 8.0 / RATE; two.len()], "");
    let mut two = row("2 hosts", two, &shown(2));
    let mut eight = row("8 hosts", eight, &shown(8));
    two.beside = vec![Comparison::of(&two, &floor, None)];
    eight.beside = vec![Comparison::of(&eight, &two, Some(SCATTER_AIM))];
    Ok(vec![eight, two, floor])
}

/// Seconds that a command takes with this file as its standard input.
fn copied(bench: &Bench, line: &str, input: &std::path::Path) -> Result<f64, String> {
    let file = File::open(input).map_err(|error| format!("{}: {error}", input.display()))?;
    let began = Instant::now();
    let mut command = Command::new("timeout");
    command.arg("200").args(bench.ours(line)).stdin(file).stdout(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(began.elapsed().as_secs_f64()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("timeout: {error}")),
    }
}
