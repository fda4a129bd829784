//! What a user may see of the cluster, as JSON for the page: of the jobs of others number, user and
//! hosts; of the own ones, and for operators of all, what each process does.

use std::time::Duration;

use score_proto::job_list::JobEntry;
use score_proto::observation::NodeMetrics;
use serde_json::{Value, json};

use super::History;
use crate::cluster::MonotonicTime;

/// The rows of so long are told each time, at least: who asks every second misses none.
const MIN_HISTORY_WINDOW: Duration = Duration::from_secs(3);
/// As many slices as the page shows.
const DISPLAYED_SLICES: u32 = 53;

/// The cluster as one user sees it.
#[derive(Debug)]
pub struct StatusView<'a> {
    /// Since the server began.
    pub now: MonotonicTime,
    /// Its name.
    pub server: &'a str,
    /// Who looks.
    pub uid: u32,
    /// Sees all.
    pub operator: bool,
    /// How long a slice is.
    pub slice: Duration,
    /// All hosts.
    pub hosts: Vec<HostView<'a>>,
    /// All jobs.
    pub jobs: Vec<JobView>,
    /// The gang's rows.
    pub history: &'a History,
}

/// A host.
#[derive(Debug)]
pub struct HostView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Processes of a row that it takes.
    pub slots: u32,
    /// It is there.
    pub up: bool,
}

/// A job.
#[derive(Debug)]
pub struct JobView {
    /// As scps lists it for this user.
    pub line: JobEntry,
    /// Its hosts, by their place in the cluster, each with the processes there.
    pub shares: Vec<(u32, u32)>,
    /// Its processes; none for those who may not know.
    pub processes: Vec<ProcessView>,
    /// The means of what its processes showed in the last minute, the oldest first.
    pub trend: Vec<Shares>,
}

/// How long the bars of load, comm, memory, disk, usr0 and usr1 are (manual, table 3.4), of 1000.
pub type Shares = [u16; 6];

/// A process.
#[derive(Debug, Clone)]
pub struct ProcessView {
    /// Its host's place in the cluster.
    pub host: u32,
    /// What it has done so far.
    pub total: NodeMetrics,
    /// What it shows now.
    pub shares: Shares,
    /// Messages that it sends and receives in a second.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl StatusView<'_> {
    /// For the page.
    pub fn json(&self) -> String {
        let hosts: Vec<Value> =
            self.hosts.iter().map(|host| json!([host.name, host.slots, host.up])).collect();
        let jobs: Vec<Value> = self.jobs.iter().map(job_json).collect();
        let window = MIN_HISTORY_WINDOW.max(self.slice.saturating_mul(DISPLAYED_SLICES));
        let rows = self.history.rows_since(self.now.saturating_sub(window));
        let rows: Vec<Value> = rows.map(|row| json!([micros(row.began), row.jobs])).collect();
        let all = json!({
            "at_us": micros(self.now),
            "server": self.server,
            "uid": self.uid,
            "operator": self.operator,
            "slice_ms": u64::try_from(self.slice.as_millis()).unwrap_or(u64::MAX),
            "switches": self.history.switches,
            "hosts": hosts,
            "jobs": jobs,
            "rows": rows,
        });
        all.to_string()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn job_json(job: &JobView) -> Value {
    let kinds = [0, 1, 2, 3, 4, 5];
    // By columns: with a thousand processes the names of the fields would be most of it.
    let column = |value_of: &dyn Fn(&ProcessView) -> u64| {
        job.processes.iter().map(value_of).collect::<Vec<_>>()
    };
    let mut shown = json!(job.line.to_json());
    shown["hosts"] = json!(job.shares);
    shown["processes"] = json!({
        "element": column(&|one| one.total.element.into()),
        "node": column(&|one| one.total.node.into()),
        "host": column(&|one| one.host.into()),
        "shares": kinds.map(|kind| column(&|one| one.shares[kind].into())),
        "messages": column(&|one| one.messages),
        "bytes": column(&|one| one.bytes),
        "memory_kib": column(&|one| one.total.memory_kib),
    });
    let trend = |kind: usize| job.trend.iter().map(|all| all[kind]).collect::<Vec<_>>();
    shown["trend"] = json!(kinds.map(trend));
    shown
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use score_proto::job_list::{JobDetail, JobState};

    /// A process with figures that tell them apart.
    pub fn process(node: u32) -> ProcessView {
        let total = NodeMetrics {
            element: 0,
            node,
            host: 0,
            sampled_at_ns: 3_000_000_000,
            observed_ns: 2_500_000_000,
            busy_ns: 1_250_000_000,
            sent: 10 + u64::from(node),
            received: 20,
            sent_bytes: 1000,
            received_bytes: 2000,
            memory_kib: 4,
            cpu_ns: 1_000_000,
            usr0: 7,
            usr1: 200,
        };
        let shares = [500, 300, 10, 0, 27, 784];
        ProcessView { host: 1, total, shares, messages: 30, bytes: 3000 }
    }

    /// Two jobs, of which the viewer may see one.
    pub fn view(history: &History) -> StatusView<'_> {
        let state = JobState::Running;
        let detail =
            JobDetail { state, priority: 8, nodes: 2, since_ms: 5, share_permille: Some(500) };
        let line = |job, uid, detail| {
            let names = vec!["b".to_owned()];
            JobEntry { job, uid, hosts: 1, host_names: names, detail }
        };
        let own = JobView {
            line: line(3, 1000, Some(detail)),
            shares: vec![(1, 2)],
            processes: vec![process(0), process(1)],
            trend: vec![[1; 6], [2; 6]],
        };
        let other = JobView {
            line: line(4, 1001, None),
            shares: vec![(1, 1)],
            processes: Vec::new(),
            trend: Vec::new(),
        };
        let host = |name, up| HostView { name, slots: 2, up };
        StatusView {
            now: Duration::from_secs(10),
            server: "a",
            uid: 1000,
            operator: false,
            slice: Duration::from_millis(500),
            hosts: vec![host("a", true), host("b\"\\\n<", false)],
            jobs: vec![own, other],
            history,
        }
    }

    #[test]
    fn the_page_is_told_of_others_jobs_where_they_run_and_no_more() {
        let mut history = History::default();
        history.record([3].into_iter(), Duration::from_secs(1));
        history.record([4].into_iter(), Duration::from_secs(9));
        let shown: Value = serde_json::from_str(&view(&history).json()).unwrap();
        assert_eq!(shown["hosts"][1], json!(["b\"\\\n<", 2, false]));
        assert_eq!(shown["rows"], json!([[1_000_000, [3]], [9_000_000, [4]]]));
        let (own, other) = (&shown["jobs"][0], &shown["jobs"][1]);
        assert_eq!(own["processes"]["node"], json!([0, 1]));
        assert_eq!(own["processes"]["shares"][0], json!([500, 500]));
        assert_eq!(own["trend"][5], json!([1, 2]));
        assert_eq!((&own["share_permille"], &own["hosts"]), (&json!(500), &json!([[1, 2]])));
        assert_eq!((&other["uid"], &other["hosts"]), (&json!(1001), &json!([[1, 1]])));
        for hidden in ["priority", "nodes", "since_ms", "share_permille"] {
            assert!(other[hidden].is_null(), "{other}");
        }
        assert_eq!(other["processes"]["node"], json!([]));
    }
}
