//! What a user may see, as OpenMetrics text (OpenMetrics 1.0): families of samples, each with its
//! type, counters that end in `_total`, base units, `# EOF` at the end.

use std::fmt::Write;
use std::time::Duration;

use super::view::{Process, View};

/// A family: its name, and what it counts.
#[derive(Clone, Copy)]
enum Type {
    Counter,
    Gauge,
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: Type, unit: &str, help: &str) {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
        };
        let text = &mut self.0;
        let _ = writeln!(text, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (at, (label, content)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escape(content));
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Nanoseconds as seconds, without rounding.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn of_duration(time: Duration) -> String {
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

/// A figure of each process: family, type, unit, help, value.
type Column = (&'static str, Type, &'static str, &'static str, fn(&Process) -> String);

const COLUMNS: &[Column] = &[
    (
        "score_process_watched_seconds",
        Type::Counter,
        "seconds",
        "Time for which the process was watched while its job ran.",
        |one| seconds(one.total.watched_ns),
    ),
    (
        "score_process_busy_seconds",
        Type::Counter,
        "seconds",
        "Of that, time in which it was busy by its idle flag.",
        |one| seconds(one.total.busy_ns),
    ),
    ("score_process_cpu_seconds", Type::Counter, "seconds", "Processor time.", |one| {
        seconds(one.total.cpu_ns)
    }),
    ("score_process_sent_messages", Type::Counter, "", "PM messages sent.", |one| {
        one.total.sent.to_string()
    }),
    (
        "score_process_received_messages",
        Type::Counter,
        "",
        "PM messages received and released.",
        |one| one.total.received.to_string(),
    ),
    ("score_process_sent_bytes", Type::Counter, "bytes", "Bytes of PM messages sent.", |one| {
        one.total.sent_bytes.to_string()
    }),
    (
        "score_process_received_bytes",
        Type::Counter,
        "bytes",
        "Bytes of PM messages received.",
        |one| one.total.received_bytes.to_string(),
    ),
    ("score_process_memory_bytes", Type::Gauge, "bytes", "Resident memory.", |one| {
        (u128::from(one.total.memory_kib) * 1024).to_string()
    }),
    ("score_process_usr0", Type::Gauge, "", "User monitor 0.", |one| one.total.usr0.to_string()),
    ("score_process_usr1", Type::Gauge, "", "User monitor 1.", |one| one.total.usr1.to_string()),
];

impl View<'_> {
    /// For Prometheus.
    pub fn metrics(&self) -> String {
        let mut text = Text(String::new());
        self.cluster_metrics(&mut text);
        self.job_metrics(&mut text);
        self.process_metrics(&mut text);
        text.0.push_str("# EOF\n");
        text.0
    }

    fn cluster_metrics(&self, text: &mut Text) {
        text.family("score_jobs", Type::Gauge, "", "Jobs of the cluster.");
        for name in ["running", "waiting", "suspended", "ending"] {
            let count = self.jobs.iter().filter(|job| job.line.state() == name).count();
            text.sample("score_jobs", &[("state", name)], &count.to_string());
        }
        text.family("score_host_up", Type::Gauge, "", "Whether the host is in the cluster.");
        for host in &self.hosts {
            let up = u8::from(host.up).to_string();
            text.sample("score_host_up", &[("host", host.name)], &up);
        }
        text.family("score_host_slots", Type::Gauge, "", "Processes of one row on the host.");
        for host in &self.hosts {
            text.sample("score_host_slots", &[("host", host.name)], &host.slots.to_string());
        }
        let mut placed = vec![0u64; self.hosts.len()];
        for (host, procs) in self.jobs.iter().flat_map(|job| &job.shares) {
            placed.get_mut(*host as usize).into_iter().for_each(|sum| *sum += u64::from(*procs));
        }
        text.family("score_host_processes", Type::Gauge, "", "Processes of jobs on the host.");
        for (host, placed) in self.hosts.iter().zip(placed) {
            text.sample("score_host_processes", &[("host", host.name)], &placed.to_string());
        }
        let help = "How often other jobs got the processors.";
        text.family("score_gang_switches", Type::Counter, "", help);
        let switches = self.history.switches.to_string();
        text.sample("score_gang_switches_total", &[], &switches);
        text.family("score_gang_slice_seconds", Type::Gauge, "seconds", "Length of a slice.");
        text.sample("score_gang_slice_seconds", &[], &of_duration(self.slice));
        let rows = self.jobs_in_row().to_string();
        text.family("score_gang_row_jobs", Type::Gauge, "", "Jobs that have their processors now.");
        text.sample("score_gang_row_jobs", &[], &rows);
    }

    fn jobs_in_row(&self) -> usize {
        self.history.since(self.now).last().map_or(0, |row| row.jobs.len())
    }

    fn job_metrics(&self, text: &mut Text) {
        let own = || {
            self.jobs.iter().filter_map(|job| {
                let labels = [job.line.job.to_string(), job.line.uid.to_string()];
                Some((labels, job.line.detail?))
            })
        };
        let labels = |[job, uid]: &[String; 2]| [("job", job.clone()), ("uid", uid.clone())];
        let mut family =
            |name: &str, unit: &str, help: &str, values: Vec<([String; 2], String)>| {
                text.family(name, Type::Gauge, unit, help);
                for (words, value) in values {
                    let all = labels(&words);
                    let all: Vec<_> =
                        all.iter().map(|(name, text)| (*name, text.as_str())).collect();
                    text.sample(name, &all, &value);
                }
            };
        let nodes = own().map(|(words, detail)| (words, detail.nodes.to_string())).collect();
        family("score_job_processes", "", "Processes that the job has, or wants.", nodes);
        let priority = own().map(|(words, detail)| (words, detail.priority.to_string())).collect();
        family("score_job_priority", "", "0 to 15: a smaller number is a larger share.", priority);
        let age = own()
            .map(|(words, detail)| (words, of_duration(Duration::from_millis(detail.since_ms))))
            .collect();
        let help = "Since when the job has its hosts, or waits.";
        family("score_job_age_seconds", "seconds", help, age);
        let shares = own().filter_map(|(words, detail)| {
            let share = detail.share?;
            Some((words, format!("{}.{:03}", share / 1000, share % 1000)))
        });
        let help = "How much of the last minute the job had its processors.";
        family("score_job_share_ratio", "ratio", help, shares.collect());
    }

    fn process_metrics(&self, text: &mut Text) {
        for (name, kind, unit, help, value) in COLUMNS {
            text.family(name, *kind, unit, help);
            let sample = match kind {
                Type::Counter => format!("{name}_total"),
                Type::Gauge => (*name).to_owned(),
            };
            for job in &self.jobs {
                for one in &job.processes {
                    let host = self.hosts.get(one.host as usize).map_or("?", |host| host.name);
                    let (number, element) =
                        (job.line.job.to_string(), one.total.element.to_string());
                    let node = one.total.node.to_string();
                    let labels = [
                        ("job", number.as_str()),
                        ("element", &element),
                        ("node", &node),
                        ("host", host),
                    ];
                    text.sample(&sample, &labels, &value(one));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::super::view::tests::view;

    #[test]
    fn samples_carry_what_is_known_and_labels_are_escaped() {
        let mut history = History::default();
        history.note([3, 4].into_iter(), std::time::Duration::from_secs(1));
        let text = view(&history).metrics();
        for line in [
            "score_jobs{state=\"running\"} 2",
            "score_host_up{host=\"b\\\"\\\\\\n<\"} 0",
            "score_host_processes{host=\"a\"} 0",
            "score_gang_switches_total 1",
            "score_gang_row_jobs 2",
            "score_gang_slice_seconds 0.500000000",
            "score_job_share_ratio{job=\"3\",uid=\"1000\"} 0.500",
            "score_process_busy_seconds_total{job=\"3\",element=\"0\",node=\"1\",host=\"b\\\"\\\\\\n<\"} 1.250000000",
            "score_process_memory_bytes{job=\"3\",element=\"0\",node=\"0\",host=\"b\\\"\\\\\\n<\"} 4096",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && !text.contains("job=\"4\""), "{text}");
    }
}
