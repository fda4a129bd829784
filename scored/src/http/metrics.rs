//! The metrics that a user may see, in the text format OpenMetrics 1.0. Each metric is a family of
//! samples with a type and a base unit. The names of counters end in `_total`, and the text ends
//! with `# EOF`.

use std::fmt::Write;
use std::time::Duration;

use super::status_json::{ProcessView, StatusView};

/// The type of a metric.
#[derive(Clone, Copy)]
enum MetricType {
    Counter,
    Gauge,
}

struct OpenMetricsWriter(String);

impl OpenMetricsWriter {
    fn family(&mut self, name: &str, kind: MetricType, unit: &str, help: &str) {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
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
        for (index, (label, content)) in labels.iter().enumerate() {
            let separator = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{separator}{label}=\"{}\"", escape(content));
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

/// Formats nanoseconds as seconds, without rounding.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn duration_seconds(time: Duration) -> String {
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

/// A metric of each process: name, type, unit, help text, value.
type ProcessMetric =
    (&'static str, MetricType, &'static str, &'static str, fn(&ProcessView) -> String);

const COLUMNS: &[ProcessMetric] = &[
    (
        "score_process_watched_seconds",
        MetricType::Counter,
        "seconds",
        "Time for which the process was watched while its job ran.",
        |process| seconds(process.total.observed_ns),
    ),
    (
        "score_process_busy_seconds",
        MetricType::Counter,
        "seconds",
        "Of that, time in which it was busy by its idle flag.",
        |process| seconds(process.total.busy_ns),
    ),
    ("score_process_cpu_seconds", MetricType::Counter, "seconds", "Processor time.", |process| {
        seconds(process.total.cpu_ns)
    }),
    ("score_process_sent_messages", MetricType::Counter, "", "PM messages sent.", |process| {
        process.total.sent.to_string()
    }),
    (
        "score_process_received_messages",
        MetricType::Counter,
        "",
        "PM messages received and released.",
        |process| process.total.received.to_string(),
    ),
    (
        "score_process_sent_bytes",
        MetricType::Counter,
        "bytes",
        "Bytes of PM messages sent.",
        |process| process.total.sent_bytes.to_string(),
    ),
    (
        "score_process_received_bytes",
        MetricType::Counter,
        "bytes",
        "Bytes of PM messages received.",
        |process| process.total.received_bytes.to_string(),
    ),
    ("score_process_memory_bytes", MetricType::Gauge, "bytes", "Resident memory.", |process| {
        (u128::from(process.total.memory_kib) * 1024).to_string()
    }),
    ("score_process_usr0", MetricType::Gauge, "", "User monitor 0.", |process| {
        process.total.usr0.to_string()
    }),
    ("score_process_usr1", MetricType::Gauge, "", "User monitor 1.", |process| {
        process.total.usr1.to_string()
    }),
];

impl StatusView<'_> {
    /// Returns the text for Prometheus.
    pub fn metrics(&self) -> String {
        let mut text = OpenMetricsWriter(String::new());
        self.cluster_metrics(&mut text);
        self.job_metrics(&mut text);
        self.process_metrics(&mut text);
        text.0.push_str("# EOF\n");
        text.0
    }

    fn cluster_metrics(&self, text: &mut OpenMetricsWriter) {
        text.family("score_jobs", MetricType::Gauge, "", "Jobs of the cluster.");
        for name in ["running", "waiting", "suspended", "suspected-hang", "ending"] {
            let count = self.jobs.iter().filter(|job| job.line.state() == name).count();
            text.sample("score_jobs", &[("state", name)], &count.to_string());
        }
        text.family("score_host_up", MetricType::Gauge, "", "Whether the host is in the cluster.");
        for host in &self.hosts {
            let up = u8::from(host.up).to_string();
            text.sample("score_host_up", &[("host", host.name)], &up);
        }
        text.family("score_host_slots", MetricType::Gauge, "", "Processes of one row on the host.");
        for host in &self.hosts {
            text.sample("score_host_slots", &[("host", host.name)], &host.slots.to_string());
        }
        let mut process_counts = vec![0u64; self.hosts.len()];
        for (host, procs) in self.jobs.iter().flat_map(|job| &job.shares) {
            process_counts
                .get_mut(host.index())
                .into_iter()
                .for_each(|total| *total += u64::from(*procs));
        }
        text.family(
            "score_host_processes",
            MetricType::Gauge,
            "",
            "Processes of jobs on the host.",
        );
        for (host, process_count) in self.hosts.iter().zip(process_counts) {
            text.sample("score_host_processes", &[("host", host.name)], &process_count.to_string());
        }
        let help = "How often other jobs got the processors.";
        text.family("score_gang_switches", MetricType::Counter, "", help);
        let switches = self.history.switches.to_string();
        text.sample("score_gang_switches_total", &[], &switches);
        text.family("score_gang_slice_seconds", MetricType::Gauge, "seconds", "Length of a slice.");
        text.sample("score_gang_slice_seconds", &[], &duration_seconds(self.slice));
        let rows = self.jobs_in_row().to_string();
        text.family(
            "score_gang_row_jobs",
            MetricType::Gauge,
            "",
            "Jobs that have their processors now.",
        );
        text.sample("score_gang_row_jobs", &[], &rows);
    }

    fn jobs_in_row(&self) -> usize {
        self.history.rows_since(self.now).last().map_or(0, |row| row.jobs.len())
    }

    fn job_metrics(&self, text: &mut OpenMetricsWriter) {
        let visible_jobs = || {
            self.jobs.iter().filter_map(|job| {
                let labels = [job.line.job.to_string(), job.line.uid.to_string()];
                Some((labels, job.line.detail?))
            })
        };
        let labels = |[job, uid]: &[String; 2]| [("job", job.clone()), ("uid", uid.clone())];
        let mut family =
            |name: &str, unit: &str, help: &str, values: Vec<([String; 2], String)>| {
                text.family(name, MetricType::Gauge, unit, help);
                for (label_values, value) in values {
                    let all = labels(&label_values);
                    let all: Vec<_> =
                        all.iter().map(|(name, text)| (*name, text.as_str())).collect();
                    text.sample(name, &all, &value);
                }
            };
        let nodes = visible_jobs()
            .map(|(label_values, detail)| (label_values, detail.nodes.to_string()))
            .collect();
        family("score_job_processes", "", "Processes that the job has, or wants.", nodes);
        let priority = visible_jobs()
            .map(|(label_values, detail)| (label_values, detail.priority.to_string()))
            .collect();
        family("score_job_priority", "", "0 to 15: a smaller number is a larger share.", priority);
        let age = visible_jobs()
            .map(|(label_values, detail)| {
                (label_values, duration_seconds(Duration::from_millis(detail.since_ms)))
            })
            .collect();
        let help = "Since when the job has its hosts, or waits.";
        family("score_job_age_seconds", "seconds", help, age);
        let shares = visible_jobs().filter_map(|(label_values, detail)| {
            let share = detail.share_permille?;
            Some((label_values, format!("{}.{:03}", share / 1000, share % 1000)))
        });
        let help = "How much of the last minute the job had its processors.";
        family("score_job_share_ratio", "ratio", help, shares.collect());
    }

    fn process_metrics(&self, text: &mut OpenMetricsWriter) {
        for (name, kind, unit, help, value) in COLUMNS {
            text.family(name, *kind, unit, help);
            let sample = match kind {
                MetricType::Counter => format!("{name}_total"),
                MetricType::Gauge => (*name).to_owned(),
            };
            for job in &self.jobs {
                for process in &job.processes {
                    let host = self.hosts.get(process.host.index()).map_or("?", |host| host.name);
                    let (number, element) =
                        (job.line.job.to_string(), process.total.element.to_string());
                    let node = process.total.node.to_string();
                    let labels = [
                        ("job", number.as_str()),
                        ("element", &element),
                        ("node", &node),
                        ("host", host),
                    ];
                    text.sample(&sample, &labels, &value(process));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::super::status_json::tests::view;
    use score_proto::ids::JobId;

    #[test]
    fn samples_have_their_values_and_labels_are_escaped() {
        let mut history = History::default();
        history.record([JobId(3), JobId(4)].into_iter(), std::time::Duration::from_secs(1));
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
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n") && !text.contains("job=\"4\""), "{text}");
    }
}
