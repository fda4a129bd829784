//! A job that notes when it does not run, and what two such jobs tell of switches.

use std::fs::{self, File};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::bed::{Bed, Job, Play};
use crate::{Result, number};

/// What is shorter is no slice of another.
const NOTED: u64 = 1_000_000;

/// By the monotonic clock, in nanoseconds.
pub fn now() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|errno| format!("clock: {errno}"))?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// The job: each node writes when it last ran before a gap, and when it ran again, to a file of its
/// own. It begins with the time when it started, twice.
pub fn note(path: &str) -> Result<()> {
    score_runtime::initialize();
    let path = format!("{path}.{}", score_runtime::self_node());
    let named = |error: std::io::Error| format!("{path}: {error}");
    let mut file = File::create(&path).map_err(named)?;
    let mut write = |from: u64, to: u64| {
        let [from, to] = [from, to].map(u64::to_le_bytes);
        file.write_all(&[from, to].concat()).map_err(named)
    };
    let mut last = now()?;
    write(last, last)?;
    loop {
        let then = std::mem::replace(&mut last, now()?);
        if last - then >= NOTED {
            write(then, last)?;
        }
    }
}

/// Has two jobs take turns on one host or two, and prints how long switches took.
pub fn run(slice: &str, seconds: u32, hosts: u32) -> Result<()> {
    let half = u64::from(number(slice)?) * 500_000;
    let (bed, play) = match hosts {
        1 => (Bed::new(slice, &[2]), Play::GapsOfOne),
        _ => (Bed::new(slice, &[1, 1]), Play::Gaps),
    };
    let mut bed = bed?;
    let jobs = [bed.start(play, "8")?, bed.start(play, "8")?];
    // Newcomers share their first slices.
    sleep(Duration::from_secs(1));
    let begin = now()?;
    sleep(Duration::from_secs(seconds.into()));
    let gaps = |job: &Job, node| gaps(&job.path(node), begin, half);
    let mine = [gaps(&jobs[0], 0)?, gaps(&jobs[0], 1)?];
    let others = [gaps(&jobs[1], 0)?, gaps(&jobs[1], 1)?];
    let (mut stops, mut starts, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for [here, there] in [&mine, &others] {
        for one in here {
            if let Some(two) = there.iter().find(|two| one.0.abs_diff(two.0) < half) {
                stops.push(one.0.abs_diff(two.0));
                starts.push(one.1.abs_diff(two.1));
            }
        }
    }
    let mut both = 0;
    for (one, two) in [(&mine, &others), (&others, &mine)] {
        for (own, next) in one.iter().zip(two) {
            // Whoever goes on where this one stops.
            let next_start = |stop: u64| next.iter().find(|gap| gap.1.abs_diff(stop) < half);
            for (stop, start) in own.iter().filter_map(|gap| Some((gap.0, next_start(gap.0)?.1))) {
                match start.checked_sub(stop) {
                    Some(time) => switches.push(time),
                    None => both += 1,
                }
            }
        }
    }
    tell("switch", switches);
    tell("skew of stops", stops);
    tell("skew of starts", starts);
    // Never, unless other processes make gaps of their own.
    println!("two jobs at once on a processor: {both} times");
    Ok(())
}

/// Gaps of at least half a slice since then.
fn gaps(path: &std::path::Path, since: u64, least: u64) -> Result<Vec<(u64, u64)>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let all = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    Ok(all.filter(|(from, to)| *from >= since && to - from >= least).collect())
}

/// One line of figures, then how many there were of each size.
pub fn tell(what: &str, mut figures: Vec<u64>) {
    figures.sort_unstable();
    let at = |part: usize| figures.get(figures.len() * part / 100).or(figures.last());
    let micros = |part| at(part).map_or(0.0, |nanos| *nanos as f64 / 1e3);
    let (count, most) = (figures.len(), figures.last().map_or(0.0, |most| *most as f64 / 1e3));
    let [half, ninety, last] = [50, 90, 99].map(micros);
    println!("{what}: {half:.0} {ninety:.0} {last:.0} {most:.0} us (50, 90, 99, 100 %) of {count}");
    let mut rest = &figures[..];
    let mut bound = 8;
    while !rest.is_empty() {
        let within = rest.partition_point(|figure| *figure <= bound * 1000);
        if within > 0 {
            println!("  <= {bound:>7} us {within:>7} {}", "#".repeat(within * 50 / count + 1));
        }
        (rest, bound) = (&rest[within..], bound * 2);
    }
}
