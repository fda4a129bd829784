//! The state of the cluster that a user may see, as JSON for the page. For jobs of other users it
//! contains the number, user and hosts. For the user's own jobs it also contains the state of each
//! process. For operators it contains the state of the processes of all jobs.

use std::time::Duration;

use score_job::cluster::MonotonicTime;
use score_proto::ids::HostId;
use score_proto::job_list::JobEntry;
use score_proto::observation::NodeMetrics;
use serde_json::{Value, json};

use super::History;

/// The shortest period of rows in a response. It is long enough that a client which sends a request
/// each second misses no row.
const MIN_HISTORY_WINDOW: Duration = Duration::from_secs(3);
/// The number of slices that the page shows.
const DISPLAYED_SLICES: u32 = 53;

/// The cluster as one user sees it.
#[derive(Debug)]
pub struct StatusView<'a> {
    /// The time since the server started.
    pub now: MonotonicTime,
    /// The server's name.
    pub server: &'a str,
    /// The user of the page.
    pub uid: u32,
    /// Whether the user sees all jobs.
    pub operator: bool,
    /// The longest turn of the server's loop in the last minute, for operators.
    pub longest_turn: Option<Duration>,
    /// The length of a slice.
    pub slice: Duration,
    /// All hosts.
    pub hosts: Vec<HostView<'a>>,
    /// All jobs.
    pub jobs: Vec<JobView>,
    /// The rows of the gang scheduler.
    pub history: &'a History,
    /// The jobs whose stacks the user may see ([`super::StackTrees::list`]).
    pub stacks: Vec<Value>,
}

/// A host of the cluster.
#[derive(Debug)]
pub struct HostView<'a> {
    /// The name of the host.
    pub name: &'a str,
    /// The number of processes of one row that the host can run.
    pub slots: u32,
    /// Whether the host is up.
    pub up: bool,
}

/// A job of the cluster.
#[derive(Debug)]
pub struct JobView {
    /// The entry that scps shows to this user.
    pub line: JobEntry,
    /// The hosts by their position in the cluster, each with its number of processes.
    pub shares: Vec<(HostId, u32)>,
    /// The processes. Empty if the user may not see them.
    pub processes: Vec<ProcessView>,
    /// The mean shares of the processes in the last minute, the oldest first.
    pub trend: Vec<Shares>,
}

/// The lengths of the bars load, comm, memory, disk, usr0 and usr1 (manual, table 3.4), in units of
/// 1/1000.
pub type Shares = [u16; 6];

/// A process of a job.
#[derive(Debug, Clone)]
pub struct ProcessView {
    /// The position of its host in the cluster.
    pub host: HostId,
    /// Its totals.
    pub total: NodeMetrics,
    /// Its current shares.
    pub shares: Shares,
    /// The messages that it sends and receives per second.
    pub messages: u64,
    /// The bytes of these messages per second.
    pub bytes: u64,
}

impl StatusView<'_> {
    /// Returns the JSON text for the page.
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
            "longest_turn_us": self.longest_turn.map(micros),
            "slice_ms": u64::try_from(self.slice.as_millis()).unwrap_or(u64::MAX),
            "switches": self.history.switches,
            "hosts": hosts,
            "jobs": jobs,
            "rows": rows,
            "stacks": self.stacks,
        });
        all.to_string()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn job_json(job: &JobView) -> Value {
    let kinds = [0, 1, 2, 3, 4, 5];
    // The values are in columns, because the field names of a thousand processes would be most of
    // the text.
    let column = |value_of: &dyn Fn(&ProcessView) -> u64| {
        job.processes.iter().map(value_of).collect::<Vec<_>>()
    };
    let mut shown = json!(job.line.to_json());
    shown["hosts"] = json!(job.shares);
    shown["processes"] = json!({
        "element": column(&|process| process.total.element.0.into()),
        "node": column(&|process| process.total.node.into()),
        "host": column(&|process| process.host.0.into()),
        "shares": kinds.map(|kind| column(&|process| process.shares[kind].into())),
        "messages": column(&|process| process.messages),
        "bytes": column(&|process| process.bytes),
        "memory_kib": column(&|process| process.total.memory_kib),
    });
    let trend = |kind: usize| job.trend.iter().map(|all| all[kind]).collect::<Vec<_>>();
    shown["trend"] = json!(kinds.map(trend));
    shown
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use score_proto::ids::{ElementIndex, JobHostId, JobId};
    use score_proto::job_list::{JobDetail, JobState};

    /// A process whose metrics are all different.
    pub fn process(node: u32) -> ProcessView {
        let total = NodeMetrics {
            element: ElementIndex(0),
            node,
            host: JobHostId(0),
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
        ProcessView { host: HostId(1), total, shares, messages: 30, bytes: 3000 }
    }

    /// Two jobs. The user may see the processes of one of them.
    pub fn view(history: &History) -> StatusView<'_> {
        let state = JobState::Running;
        let detail =
            JobDetail { state, priority: 8, nodes: 2, since_ms: 5, share_permille: Some(500) };
        let line = |job, uid, detail| {
            let names = vec!["b".to_owned()];
            JobEntry { job, uid, hosts: 1, host_names: names, detail }
        };
        let visible = JobView {
            line: line(JobId(3), 1000, Some(detail)),
            shares: vec![(HostId(1), 2)],
            processes: vec![process(0), process(1)],
            trend: vec![[1; 6], [2; 6]],
        };
        let other = JobView {
            line: line(JobId(4), 1001, None),
            shares: vec![(HostId(1), 1)],
            processes: Vec::new(),
            trend: Vec::new(),
        };
        let host = |name, up| HostView { name, slots: 2, up };
        StatusView {
            now: Duration::from_secs(10),
            server: "a",
            uid: 1000,
            operator: false,
            longest_turn: None,
            slice: Duration::from_millis(500),
            hosts: vec![host("a", true), host("b\"\\\n<", false)],
            jobs: vec![visible, other],
            history,
            stacks: vec![json!([3, null, 5])],
        }
    }

    #[test]
    fn the_page_shows_only_the_hosts_of_other_users_jobs() {
        let mut history = History::default();
        history.record([JobId(3)].into_iter(), Duration::from_secs(1));
        history.record([JobId(4)].into_iter(), Duration::from_secs(9));
        let shown: Value = serde_json::from_str(&view(&history).json()).unwrap();
        assert_eq!(shown["hosts"][1], json!(["b\"\\\n<", 2, false]));
        assert!(shown["longest_turn_us"].is_null(), "{shown}");
        assert_eq!(shown["stacks"], json!([[3, null, 5]]));
        assert_eq!(shown["rows"], json!([[1_000_000, [3]], [9_000_000, [4]]]));
        let (visible, other) = (&shown["jobs"][0], &shown["jobs"][1]);
        assert_eq!(visible["processes"]["node"], json!([0, 1]));
        assert_eq!(visible["processes"]["shares"][0], json!([500, 500]));
        assert_eq!(visible["trend"][5], json!([1, 2]));
        assert_eq!(
            (&visible["share_permille"], &visible["hosts"]),
            (&json!(500), &json!([[1, 2]]))
        );
        assert_eq!((&other["uid"], &other["hosts"]), (&json!(1001), &json!([[1, 1]])));
        for hidden in ["priority", "nodes", "since_ms", "share_permille"] {
            assert!(other[hidden].is_null(), "{other}");
        }
        assert_eq!(other["processes"]["node"], json!([]));
    }
}
