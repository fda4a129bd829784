//! Formats the metrics as text: numbers for users, and a line of JSON for programs.

use score_monitor::{Host, JobView, Metric, Process};
use score_proto::ids::{ElementIndex, JobHostId, JobId};
use serde::Serialize;

/// A number of at most four characters, with a suffix for powers of a thousand.
pub fn abbreviate(number: f64) -> String {
    let mut number = number.max(0.0);
    for suffix in ["", "k", "M", "G", "T"] {
        if number < 999.5 {
            return match suffix {
                "" => format!("{number:.0}"),
                _ if number < 9.95 => format!("{number:.1}{suffix}"),
                _ => format!("{number:.0}{suffix}"),
            };
        }
        number /= 1000.0;
    }
    ">1P".to_owned()
}

fn percent(share: f32) -> String {
    format!("{:.0}%", share * 100.0)
}

fn format_kib(kib: u64) -> String {
    format!("{}B", abbreviate(kib as f64 * 1024.0))
}

/// The number next to the bar of a process.
pub fn process_value(view: &JobView, process: &Process, kind: Metric) -> String {
    match kind {
        Metric::Comm => format!("{}/s", abbreviate(process.messages())),
        Metric::Memory => format_kib(process.totals.memory_kib),
        Metric::Usr0 => process.totals.usr0.to_string(),
        Metric::Usr1 => process.totals.usr1.to_string(),
        // Disk usage is known only per host.
        Metric::Disk => String::new(),
        Metric::Load => percent(view.share(process, kind)),
    }
}

/// The number next to the bar of a host.
pub fn host_value(view: &JobView, host: &Host, kind: Metric) -> String {
    match kind {
        Metric::Comm => format!("{}/s", abbreviate(host.messages)),
        Metric::Memory => format_kib(host.memory_kib),
        Metric::Disk => format_kib(host.disk_kib),
        Metric::Load => percent(view.host_share(host, kind)),
        Metric::Usr0 => format!("{:.0}", host.usr0 * 255.0),
        Metric::Usr1 => format!("{:.0}", host.usr1 * 255.0),
    }
}

/// The name of a process: its node, with the number of its element if there are several.
pub fn process_name(process: &Process, multi_element: bool) -> String {
    let totals = &process.totals;
    if multi_element {
        format!("{}.{}", totals.element, totals.node)
    } else {
        totals.node.to_string()
    }
}

/// The displayed name of a host.
pub fn host_name(host: &Host) -> String {
    if host.name.is_empty() { format!("host {}", host.host) } else { host.name.clone() }
}

/// A table without bars, for `-once`.
pub fn table(view: &JobView, kinds: &[Metric]) -> String {
    let mut out = format!("{:<16}", "host/node");
    kinds.iter().for_each(|kind| out += &format!("{:>10}", kind.name()));
    out.push('\n');
    let processes = view.processes();
    let multi_element =
        processes.iter().any(|process| process.totals.element > ElementIndex::FIRST);
    for host in view.hosts() {
        out += &format!("{:<16}", host_name(&host));
        kinds.iter().for_each(|kind| out += &format!("{:>10}", host_value(view, &host, *kind)));
        out.push('\n');
        for process in processes.iter().filter(|process| process.totals.host == host.host) {
            out += &format!("  {:<14}", process_name(process, multi_element));
            for kind in kinds {
                out += &format!("{:>10}", process_value(view, process, *kind));
            }
            out.push('\n');
        }
    }
    out.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A line of JSON for one period. It is built from structs instead of JSON values, which look up
/// each name, because formatting takes most of scmon's processor time.
#[derive(Serialize)]
struct JsonReport {
    at_s: f64,
    hosts: Vec<JsonHost>,
    job: JobId,
    processes: Vec<JsonProcess>,
}

#[derive(Serialize)]
struct JsonHost {
    bytes_per_s: f64,
    disk_kib: u64,
    disk_scale_kib: u64,
    host: JobHostId,
    load: f64,
    memory_kib: u64,
    memory_scale_kib: u64,
    messages_per_s: f64,
    name: String,
    processes: usize,
}

#[derive(Serialize)]
struct JsonProcess {
    element: ElementIndex,
    host: JobHostId,
    load: f64,
    memory_kib: u64,
    node: u32,
    processors: f64,
    ran: bool,
    received: u64,
    received_bytes: u64,
    received_bytes_per_s: f64,
    received_per_s: f64,
    sent: u64,
    sent_bytes: u64,
    sent_bytes_per_s: f64,
    sent_per_s: f64,
    usr0: u8,
    usr1: u8,
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

impl From<&Host> for JsonHost {
    fn from(host: &Host) -> Self {
        Self {
            bytes_per_s: rounded(host.bytes),
            disk_kib: host.disk_kib,
            disk_scale_kib: host.disk_scale_kib,
            host: host.host,
            load: rounded(host.busy.into()),
            memory_kib: host.memory_kib,
            memory_scale_kib: host.memory_scale_kib,
            messages_per_s: rounded(host.messages),
            name: host_name(host),
            processes: host.processes,
        }
    }
}

impl From<&Process> for JsonProcess {
    fn from(process: &Process) -> Self {
        let totals = &process.totals;
        Self {
            element: totals.element,
            host: totals.host,
            load: rounded(process.busy.into()),
            memory_kib: totals.memory_kib,
            node: totals.node,
            processors: rounded(process.processors.into()),
            ran: process.ran,
            received: totals.received,
            received_bytes: totals.received_bytes,
            received_bytes_per_s: rounded(process.received_bytes),
            received_per_s: rounded(process.received),
            sent: totals.sent,
            sent_bytes: totals.sent_bytes,
            sent_bytes_per_s: rounded(process.sent_bytes),
            sent_per_s: rounded(process.sent),
            usr0: totals.usr0,
            usr1: totals.usr1,
        }
    }
}

/// One line of JSON for programs.
pub fn json(view: &JobView, job: JobId, seconds: f64) -> String {
    let line = JsonReport {
        at_s: rounded(seconds),
        hosts: view.hosts().iter().map(JsonHost::from).collect(),
        job,
        processes: view.processes().into_iter().map(JsonProcess::from).collect(),
    };
    // Serialising fails only for a map whose keys are not strings.
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_four_characters() {
        let all = [0.0, 7.4, 999.4, 999.6, 1234.0, 9960.0, 12_345.0, 5.5e6, 2e9, 3e12, 1e18];
        let expected =
            ["0", "7", "999", "1.0k", "1.2k", "10k", "12k", "5.5M", "2.0G", "3.0T", ">1P"];
        assert_eq!(all.map(abbreviate), expected);
    }
}
