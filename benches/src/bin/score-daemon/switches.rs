//! Measures the lateness of the switches of two jobs that share a processor.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use score_benches::client::log_in;
use score_proto::allocation_request::AllocationRequest;
use serde_json::json;

use crate::BenchResult;
use crate::attacks::{self, Attack, SHARED, start_job, with_options};
use crate::testbed::{DaemonUsage, HOSTS, OTHER_UID, Role, ServiceTestbed, Services, socket_of};

const SLICE_INTERVAL_NS: u64 = 10_000_000;
/// Shorter gaps are not recorded, because the kernel ran another process or handled an interrupt.
const MIN_GAP_INTERVAL_NS: u64 = 200_000;
/// How often a job writes that it is running.
const ALIVE_INTERVAL_NS: u64 = 1_000_000;
/// Shorter gaps are not slices of other jobs.
const MIN_SLICE_GAP_INTERVAL_NS: u64 = SLICE_INTERVAL_NS / 2;
/// The number of jobs of the other user.
const JOBS: u32 = 2;
/// The first slices of new jobs are not measured.
const WARM_UP_WINDOW: Duration = Duration::from_millis(500);
/// Time after which a job ends by itself.
const SPIN_TIMEOUT: Duration = Duration::from_secs(120);

/// A time in which a job did not run, in nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    from: u64,
    to: u64,
}

/// Measures switches during an attack, and prints the result.
pub fn run(services: &Services, duration: Duration, attack: Option<Attack>) -> BenchResult<()> {
    let testbed = services.measured();
    let files: Vec<PathBuf> =
        (0..JOBS).map(|index| testbed.folder.join(format!("gaps-{index}"))).collect();
    let _jobs =
        files.iter().map(|file| Job::start(testbed, file)).collect::<BenchResult<Vec<_>>>()?;
    let attacker = attack.map(|attack| attacks::start(services, attack)).transpose()?;
    sleep(WARM_UP_WINDOW);
    let usage_before = DaemonUsage::sample(testbed)?;
    let begin = now_ns()?;
    sleep(duration);
    let end = now_ns()?;
    let gaps: Vec<Vec<Gap>> =
        files.iter().map(|file| read_gaps(file, end)).collect::<BenchResult<_>>()?;
    let usage = DaemonUsage::sample(testbed)?;
    if let Some(reason) = attacker.and_then(|mut attacker| attacker.end_reason()) {
        return Err(reason);
    }
    let run_ns: u64 = gaps.iter().map(|gaps| run_time_ns(gaps, begin..end)).sum();
    // A job waits for the slices of all other jobs.
    let hostile_jobs =
        if services.is_measured_attacked() { attack.map_or(0, Attack::busy_jobs) } else { 0 };
    let others = u64::from(JOBS - 1 + hostile_jobs);
    let due_share = f64::from(JOBS) / f64::from(JOBS + hostile_jobs);
    let mut lateness_us: Vec<f64> =
        gaps.iter().flatten().filter_map(|gap| lateness_us(gap, begin..end, others)).collect();
    lateness_us.sort_by(f64::total_cmp);
    let percentile =
        |part: usize| lateness_us.get(lateness_us.len() * part / 100).or(lateness_us.last());
    let daemon_processors = usage.processors_since(&usage_before);
    let result = json!({
        "attack": attack.map_or("none", Attack::name),
        "share": run_ns as f64 / (end - begin) as f64 / due_share,
        "switches": lateness_us.len(),
        "median_us": percentile(50),
        "p99_us": percentile(99),
        "longest_us": percentile(100),
        "daemon_processors": daemon_processors,
    });
    println!("{result}");
    Ok(())
}

/// A job of the other user on the shared processor. It ends with its client.
struct Job {
    _client: Role,
}

impl Job {
    fn start(testbed: &ServiceTestbed, file: &Path) -> BenchResult<Self> {
        let io_error = |error: std::io::Error| format!("{}: {error}", file.display());
        File::create(file).map_err(io_error)?;
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).map_err(io_error)?;
        let (folder, file) = (testbed.folder.to_string_lossy(), file.to_string_lossy());
        let mut client = testbed.start_role(OTHER_UID, &["job", &folder, &file])?;
        client.next_line()?;
        Ok(Self { _client: client })
    }
}

/// Acts as the client of a job of [`spin`]: prints a line when the job runs, and then keeps the
/// job.
pub fn keep_job(folder: &Path, file: &Path) -> BenchResult<()> {
    let mut client = log_in(&socket_of(folder, HOSTS[0]), OTHER_UID)?;
    let program = folder.join("score-daemon");
    let [program, file] = [program.as_path(), file].map(Path::to_string_lossy);
    let spec = with_options(&[&program, "spin", &file], &[SHARED, ("nobind", "")]);
    start_job(&mut client, AllocationRequest::FewestHosts(1), spec)?;
    println!("ready");
    sleep(SPIN_TIMEOUT);
    Ok(())
}

/// Acts as the job: writes to a file when it last ran before each gap, and when it ran again. The
/// file begins with a time at which the job ran. While the job runs, it updates this time every
/// [`ALIVE_INTERVAL_NS`].
pub fn spin(path: &Path) -> BenchResult<()> {
    let io_error = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = OpenOptions::new().write(true).open(path).map_err(io_error)?;
    println!("up");
    let begin = now_ns()?;
    let (mut last, mut alive_at, mut offset) = (begin, 0, 8);
    while u128::from(last - begin) < SPIN_TIMEOUT.as_nanos() {
        let previous = std::mem::replace(&mut last, now_ns()?);
        if last - previous >= MIN_GAP_INTERVAL_NS {
            let gap = [previous, last].map(u64::to_le_bytes).concat();
            file.write_all_at(&gap, offset).map_err(io_error)?;
            offset += gap.len() as u64;
        }
        if last - alive_at >= ALIVE_INTERVAL_NS {
            alive_at = last;
            file.write_all_at(&alive_at.to_le_bytes(), 0).map_err(io_error)?;
        }
    }
    Ok(())
}

/// Returns the gaps of a job until `end`. The job may be in a gap at that time.
fn read_gaps(path: &Path, end: u64) -> BenchResult<Vec<Gap>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let (alive_at, times) = words.split_first().ok_or("a job has not run")?;
    let mut gaps: Vec<Gap> =
        times.chunks_exact(2).map(|pair| Gap { from: pair[0], to: pair[1] }).collect();
    if alive_at + ALIVE_INTERVAL_NS < end {
        gaps.push(Gap { from: *alive_at, to: end });
    }
    Ok(gaps)
}

/// Returns how much longer a gap in the window was than the slices of `others` other jobs. Returns
/// `None` if the gap was too short to be another job's slice, or if it is not over and not yet
/// late.
fn lateness_us(gap: &Gap, window: std::ops::Range<u64>, others: u64) -> Option<f64> {
    let (length, due) = (gap.to - gap.from, others * SLICE_INTERVAL_NS);
    let is_over = gap.to < window.end || length > due;
    let is_within = gap.to > window.start && gap.from < window.end;
    (is_over && is_within && length >= MIN_SLICE_GAP_INTERVAL_NS)
        .then(|| length.saturating_sub(due) as f64 / 1e3)
}

/// Returns how long a job ran in a window.
fn run_time_ns(gaps: &[Gap], window: std::ops::Range<u64>) -> u64 {
    let within = |gap: &Gap| gap.to.min(window.end).saturating_sub(gap.from.max(window.start));
    (window.end - window.start).saturating_sub(gaps.iter().map(within).sum())
}

/// Returns the time of the monotonic clock in nanoseconds.
fn now_ns() -> BenchResult<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|errno| format!("clock: {errno}"))?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_outside_of_the_window_do_not_count() {
        let gaps = [(0, 10), (15, 25), (40, 45), (58, 90), (100, 110)];
        let gaps = gaps.map(|(from, to)| Gap { from, to });
        assert_eq!(run_time_ns(&gaps, 20..60), 40 - 5 - 5 - 2);
        assert_eq!(run_time_ns(&[], 20..60), 40);
    }

    #[test]
    fn a_job_that_never_runs_again_is_late() {
        const MS: u64 = 1_000_000;
        let lateness =
            |from, to| lateness_us(&Gap { from: from * MS, to: to * MS }, 100 * MS..200 * MS, 1);
        assert_eq!(lateness(110, 121), Some(1e3));
        assert_eq!(lateness(110, 119), Some(0.0));
        assert_eq!(lateness(110, 111), None);
        assert_eq!(lateness(80, 99), None);
        // This gap is not over.
        assert_eq!(lateness(193, 200), None);
        assert_eq!(lateness(70, 200), Some(120e3));
    }
}
