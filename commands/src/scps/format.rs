//! Jobs as a table, and as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::unistd::{Uid, User};
use score_proto::daemon_statistics::DaemonStatistics;
use score_proto::job_list::{JobDetail, JobEntry};
use serde_json::{Value, json};

/// Maximum number of host names in a line of the table.
const MAX_HOSTS_SHOWN: usize = 4;

/// Placeholder for an unknown value.
const NO_VALUE: &str = "-";

/// Names of users, each looked up once.
#[derive(Default)]
struct Users(BTreeMap<u32, Option<String>>);

impl Users {
    fn name(&mut self, uid: u32) -> Option<&str> {
        let look_up = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        self.0.entry(uid).or_insert_with(look_up).as_deref()
    }
}

/// The table.
pub fn table(jobs: &[JobEntry]) -> String {
    let mut users = Users::default();
    let header = ["JOB", "USER", "STATE", "PRIO", "NODES", "SINCE", "SHARE", "HOSTS"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(jobs.iter().map(|job| row(job, &mut users)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..header.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, word) in row.iter().enumerate() {
            let padding = widths[column].saturating_sub(word.chars().count());
            // Columns of numbers are right-aligned.
            let (left_width, right_width) =
                if matches!(column, 0 | 3..=6) { (padding, 0) } else { (0, padding) };
            line.push_str(&format!("{:left_width$}{word}{:right_width$}  ", "", ""));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(job: &JobEntry, users: &mut Users) -> [String; 8] {
    let user = users.name(job.uid).map_or_else(|| job.uid.to_string(), printable);
    let placeholder = || NO_VALUE.to_owned();
    let detail_cell =
        |word: &dyn Fn(&JobDetail) -> String| job.detail.as_ref().map_or_else(placeholder, word);
    [
        job.job.to_string(),
        user,
        state(job),
        detail_cell(&|detail| detail.priority.to_string()),
        detail_cell(&|detail| detail.nodes.to_string()),
        detail_cell(&|detail| format_duration(detail.since_ms)),
        detail_cell(&|detail| {
            detail.share_permille.map_or_else(placeholder, |share| format!("{}%", (share + 5) / 10))
        }),
        hosts(job),
    ]
}

fn state(job: &JobEntry) -> String {
    match job.jobs_ahead() {
        Some(ahead) => format!("{}, {ahead} before it", job.state()),
        None => job.state().to_owned(),
    }
}

fn hosts(job: &JobEntry) -> String {
    if job.hosts == 0 {
        return NO_VALUE.to_owned();
    }
    let names = job.host_names.iter().take(MAX_HOSTS_SHOWN).map(|name| printable(name));
    let names: Vec<String> = names.collect();
    match (job.hosts as usize).saturating_sub(names.len()) {
        0 => names.join(","),
        more => format!("{} +{more}", names.join(",")),
    }
}

/// Replaces control characters, because they could control the terminal.
fn printable(name: &str) -> String {
    name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn format_duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// The jobs as JSON, and the statistics of the server if this user may see them.
pub fn json(jobs: &[JobEntry], statistics: Option<&DaemonStatistics>) -> String {
    let mut users = Users::default();
    let jobs: Vec<Value> = jobs.iter().map(|job| job_json(job, &mut users)).collect();
    format!("{:#}\n", json!({ "jobs": jobs, "server": statistics }))
}

fn job_json(job: &JobEntry, users: &mut Users) -> Value {
    let mut object = json!(job.to_json());
    object["user"] = json!(users.name(job.uid));
    object["host_count"] = json!(job.hosts);
    object["hosts"] = json!(job.host_names);
    object
}

/// The address of the page. If only programs on another host can use the address, a command for an
/// ssh tunnel follows.
pub fn page(host: &str, address: &str) -> String {
    let (host, address) = (printable(host), printable(address));
    let local_host = score_sys::host_name::system_host_name();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    if host == local_host || short(&host) == short(&local_host) || !is_loopback(&address) {
        return format!("{address}\n");
    }
    let Some((_, rest)) = address.split_once("://") else { return format!("{address}\n") };
    let authority = rest.split('/').next().unwrap_or_default();
    let port = authority.rsplit(':').next().unwrap_or_default();
    format!(
        "{address}\nOnly programs on host {host} can use this address. From here, use a tunnel:\n  \
         ssh -N -L {port}:{authority} {host}\n"
    )
}

fn is_loopback(address: &str) -> bool {
    let authority = address.split("://").nth(1).unwrap_or_default();
    let authority = authority.split('/').next().unwrap_or_default();
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::JobId;
    use score_proto::job_list::JobState;

    fn job(number: u32, detail: Option<JobDetail>) -> JobEntry {
        let names: Vec<String> = (0..6).map(|index| format!("comp{index}")).collect();
        let waits = matches!(detail, Some(JobDetail { state: JobState::Waiting { .. }, .. }));
        let names = if waits { Vec::new() } else { names };
        JobEntry {
            job: JobId(number),
            uid: 4_000_000,
            hosts: names.len() as u32,
            host_names: names,
            detail,
        }
    }

    fn detail(state: JobState) -> JobDetail {
        JobDetail { state, priority: 8, nodes: 12, since_ms: 3_723_000, share_permille: Some(496) }
    }

    // Promise of `the_jobs_of_a_user_are_listed_in_full_and_those_of_others_by_their_hosts`.
    #[test]
    fn columns_are_aligned_and_jobs_of_other_users_show_hosts_only() {
        let waiting =
            JobDetail { share_permille: None, ..detail(JobState::Waiting { jobs_ahead: 3 }) };
        let jobs = [job(9, Some(detail(JobState::Running))), job(10, None), job(11, Some(waiting))];
        let expected = "\
JOB  USER     STATE                 PRIO  NODES  SINCE  SHARE  HOSTS
  9  4000000  running                  8     12  1h02m    50%  comp0,comp1,comp2,comp3 +2
 10  4000000  running                  -      -      -      -  comp0,comp1,comp2,comp3 +2
 11  4000000  waiting, 3 before it     8     12  1h02m      -  -
";
        assert_eq!(table(&jobs), expected);
    }

    #[test]
    fn unknown_values_are_null_in_json() {
        let jobs = [job(9, Some(detail(JobState::Suspended))), job(1, None)];
        let statistics = DaemonStatistics { turns: 7, ..DaemonStatistics::default() };
        let shown: Value = serde_json::from_str(&json(&jobs, Some(&statistics))).unwrap();
        assert_eq!(shown["jobs"][0]["state"], "suspended");
        assert_eq!(shown["jobs"][0]["share_permille"], 496);
        assert_eq!(shown["jobs"][0]["hosts"].as_array().unwrap().len(), 6);
        assert!(shown["jobs"][1]["nodes"].is_null() && shown["jobs"][1]["user"].is_null());
        assert_eq!(
            (&shown["server"]["turns"], &shown["server"]["longest_turn_us"]),
            (&json!(7), &json!(0))
        );
        assert_eq!(json(&[], None), "{\n  \"jobs\": [],\n  \"server\": null\n}\n");
    }

    #[test]
    fn times_have_two_units_at_most() {
        let shown = [999, 61_000, 3_600_000, 90_000_000].map(format_duration);
        assert_eq!(shown, ["0s", "1m01s", "1h00m", "1d01h"]);
    }

    #[test]
    fn a_command_for_an_ssh_tunnel_is_shown_for_a_page_on_another_host() {
        let text = page("far", "http://127.0.0.1:8080/abc/");
        assert!(text.contains("on host far") && text.contains("-L 8080:127.0.0.1:8080 far"));
        assert_eq!(page("far", "http://10.0.0.7:80/abc/"), "http://10.0.0.7:80/abc/\n");
    }
}
