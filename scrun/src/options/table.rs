//! Every option of the manual (scrun(1)) and ours, by name: what value it takes, and whether it
//! works yet.

use super::value;

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Never.
    Nothing,
    /// `key` or `key=value`.
    Perhaps,
    /// `key=value`.
    Value,
}

/// What an option does in this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// What the manual says.
    Works,
    /// What the manual says, in multi-user mode; nothing in single-user mode, and scrun says so.
    Shared,
    /// Nothing; scrun says so.
    NotYet,
}

/// One option that scrun knows.
#[derive(Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// Whether it takes a value.
    pub takes: Takes,
    /// How `-help` names its value.
    pub form: &'static str,
    /// Checks a value and says what would be right.
    pub check: fn(&str) -> Result<(), String>,
    /// What it does in this version.
    pub effect: Effect,
    /// One line for `-help`.
    pub about: &'static str,
}

const fn row(
    name: &'static str,
    (takes, form): (Takes, &'static str),
    check: fn(&str) -> Result<(), String>,
    effect: Effect,
    about: &'static str,
) -> Known {
    Known { name, takes, form, check, effect, about }
}

use Effect::{NotYet, Shared, Works};
use Takes::{Nothing, Perhaps, Value};

const MONITORS: &str = "load, comm, memory, disk, usr0, usr1, all or ALL";

/// All of them, in the order of the manual.
pub const KNOWN: &[Known] = &[
    row("nodes", (Perhaps, "=N|=HxP|=N/P"), value::nodes, Works, "N nodes; H hosts with P each"),
    row("hosts", (Value, "=H"), value::hosts, Works, "H hosts, a node for each processor"),
    row("network", (Value, "=NAME[+NAME]"), value::names, Works, "networks to use, one a set"),
    row(
        "priority",
        (Value, "=0..15"),
        value::priority,
        Shared,
        "share of time, halved by every 2; default 8",
    ),
    row("monitor", (Perhaps, "[=TYPE]"), value::monitor, Works, MONITORS),
    row("debug", (Perhaps, "[=1..10]"), value::debuggers, NotYet, "debuggers at most; default 4"),
    row("stat", (Perhaps, "[=all|detail]"), value::statistics, Works, "usage at the end"),
    row("statistics", (Perhaps, "[=all|detail]"), value::statistics, Works, "the same"),
    row("scored", (Value, "=EXPR"), value::anything, Works, "log in to a running SCore-D"),
    row("group", (Value, "=HOSTGROUP"), value::anything, Works, "run on these hosts (scorehosts)"),
    row("file", (Value, "=HOSTFILE"), value::anything, Works, "hosts, instead of scorehosts.db"),
    row(
        "start",
        (Value, "=WAY"),
        value::start,
        Works,
        "ssh, slurm, pbs, lsf or sge starts daemons",
    ),
    row("restart", (Nothing, ""), value::anything, NotYet, "start again after a crash"),
    row("checkpoint", (Perhaps, "[=N[m|h|d]]"), value::interval, NotYet, "save at intervals"),
    row("cpulimit", (Value, "=SECONDS"), value::amount, Works, "processor time on each host"),
    row("memorylimit", (Value, "=MB"), value::amount, Shared, "memory on each host"),
    row("disklimit", (Value, "=MB"), value::amount, Shared, "files of the job on each host"),
    row("wait", (Nothing, ""), value::anything, Shared, "wait until there is room"),
    row("message", (Perhaps, "[=concise|quiet]"), value::message, Works, "which lines to show"),
    row("resource", (Nothing, ""), value::anything, Works, "show requests, run nothing"),
    row("noidle", (Nothing, ""), value::anything, Works, "conclude nothing from idle flags"),
    row("nobind", (Nothing, ""), value::anything, Shared, "processes change processors"),
    row("hetero", (Nothing, ""), value::anything, Works, "permit hosts of different kinds"),
    row("heterogeneous", (Nothing, ""), value::anything, Works, "the same"),
    row("links", (Value, "=L"), value::amount, Works, "networks of virtual hosts (for tests)"),
    row("mtu", (Value, "=BYTES"), value::amount, Works, "their largest packet (for tests)"),
    row("rate", (Value, "=200mbit"), value::anything, Works, "their limit (for tests)"),
    row("help", (Nothing, ""), value::anything, Works, "this text"),
    row("version", (Nothing, ""), value::anything, Works, "the version"),
];

/// Options that are scored's: it gets those that are given, with a minus before them.
pub const FOR_SCORED: &[&str] = &["start", "links", "mtu", "rate"];

/// The row of this name.
pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}
