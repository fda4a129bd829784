//! Measures how long requests of another user take.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::BenchResult;
use crate::attacks::{self, Attack};
use crate::job_list::list_jobs;
use crate::testbed::{DaemonUsage, HOSTS, OTHER_UID, Services, socket_of};

/// The pause of the other user between two requests.
const REQUEST_INTERVAL: Duration = Duration::from_millis(1);

/// The pause of the visitor between requests.
const VISIT_INTERVAL: Duration = Duration::from_millis(300);
/// Time limit of a visitor.
const VISIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Measures requests during an attack, and prints the result.
pub fn run(services: &Services, duration: Duration, attack: Option<Attack>) -> BenchResult<()> {
    let seconds = duration.as_secs().to_string();
    let testbed = services.measured();
    let folder = testbed.folder.to_string_lossy();
    // The first requests make the daemons look up data of the user, so they are not measured.
    testbed.start_role(OTHER_UID, &["ask", "1", &folder])?.next_line()?;
    let mut attacker = attack.map(|attack| attacks::start(services, attack)).transpose()?;
    let turns_before = testbed.statistics()?;
    let usage_before = DaemonUsage::sample(testbed)?;
    let line = testbed.start_role(OTHER_UID, &["ask", &seconds, &folder])?.next_line()?;
    let usage = DaemonUsage::sample(testbed)?;
    let turns = testbed.statistics()?;
    if let Some(reason) = attacker.as_mut().and_then(|attacker| attacker.end_reason()) {
        return Err(reason);
    }
    let mut result: serde_json::Value =
        serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
    let long_turns = usage.long_turns_since(&usage_before);
    // Makes an object of the hosts' names and these values.
    let by_host = |values: Vec<serde_json::Value>| {
        HOSTS.iter().map(|host| (*host).to_owned()).zip(values).collect::<serde_json::Map<_, _>>()
    };
    result["attack"] = attack.map_or("none", Attack::name).into();
    result["server_turns"] = (turns.turns - turns_before.turns).into();
    result["server_turn_before_us"] = turns_before.longest_turn_us.into();
    result["server_turn_us"] = turns.longest_turn_us.into();
    let processors = usage.processors_since(&usage_before);
    result["daemon_processors"] =
        by_host(processors.into_iter().map(|part| json!(part)).collect()).into();
    let counts = long_turns.iter().map(|lines| json!(lines.len())).collect();
    result["long_turns"] = by_host(counts).into();
    let examples = long_turns.iter().map(|lines| json!(longest_turn_line(lines))).collect();
    result["longest_logged"] = by_host(examples).into();
    println!("{result}");
    Ok(())
}

/// Returns the line with the longest turn.
fn longest_turn_line(lines: &[String]) -> Option<&String> {
    let duration_ms = |line: &&String| {
        let word = line.split("took ").nth(1).and_then(|rest| rest.split(' ').next());
        word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    lines.iter().max_by_key(duration_ms)
}

/// Acts as the other user: requests the list of jobs from both hosts alternately, as scps does, and
/// prints how long the answers took.
pub fn ask(duration: Duration, folder: &Path) -> BenchResult<()> {
    let sockets = HOSTS.map(|host| socket_of(folder, host));
    let deadline = Instant::now() + duration;
    let (mut waits_us, mut failures) = (Vec::new(), 0);
    while Instant::now() < deadline {
        for socket in &sockets {
            let asked_at = Instant::now();
            // An unanswered request counts with the time until its time-out.
            failures += u32::from(list_jobs(socket).is_err());
            waits_us.push(asked_at.elapsed().as_secs_f64() * 1e6);
            sleep(REQUEST_INTERVAL);
        }
    }
    waits_us.sort_by(f64::total_cmp);
    let percentile = |part: usize| waits_us[(waits_us.len() * part / 100).min(waits_us.len() - 1)];
    let result = json!({
        "requests": waits_us.len(),
        "failures": failures,
        "median_us": percentile(50),
        "p99_us": percentile(99),
        "longest_us": percentile(100),
    });
    println!("{result}");
    Ok(())
}

/// Acts as a user who sends requests to both hosts at intervals, until the process is killed.
pub fn visit(folder: &Path) -> BenchResult<()> {
    let deadline = Instant::now() + VISIT_TIMEOUT;
    while Instant::now() < deadline {
        for host in HOSTS {
            // The attack may make the request fail.
            let _ = list_jobs(&socket_of(folder, host));
        }
        sleep(VISIT_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_found_by_its_number() {
        let lines = ["took 9 ms, of", "a turn of the loop took 100 ms, of", "took 60 ms"];
        let lines = lines.map(String::from);
        assert_eq!(longest_turn_line(&lines), Some(&lines[1]));
        assert_eq!(longest_turn_line(&[]), None);
    }
}
