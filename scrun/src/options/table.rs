//! Every option of the manual (scrun(1)) and ours, by name: what value it takes, and whether it
//! works yet.

use super::value;

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueArity {
    /// Never.
    NoValue,
    /// `key` or `key=value`.
    Optional,
    /// `key=value`.
    Required,
}

/// What an option does in this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// What the manual says.
    Full,
    /// What the manual says, in multi-user mode; nothing in single-user mode, and scrun says so.
    MultiUserOnly,
    /// Nothing; scrun says so.
    NotImplemented,
}

/// One option that scrun knows.
#[derive(Debug)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// Whether it takes a value.
    pub arity: ValueArity,
    /// How `-help` names its value.
    pub value_syntax: &'static str,
    /// Checks a value and says what would be right.
    pub check: fn(&str) -> Result<(), String>,
    /// What it does in this version.
    pub support: Support,
    /// One line for `-help`.
    pub summary: &'static str,
}

const fn row(
    name: &'static str,
    (arity, value_syntax): (ValueArity, &'static str),
    check: fn(&str) -> Result<(), String>,
    support: Support,
    summary: &'static str,
) -> OptionSpec {
    OptionSpec { name, arity, value_syntax, check, support, summary }
}

use Support::{Full, MultiUserOnly, NotImplemented};
use ValueArity::{NoValue, Optional, Required};

const MONITOR_VALUES: &str = "load, comm, memory, disk, usr0, usr1, all or ALL";

/// All of them, in the order of the manual.
pub const OPTIONS: &[OptionSpec] = &[
    row("nodes", (Optional, "=N|=HxP|=N/P"), value::nodes, Full, "N nodes; H hosts with P each"),
    row("hosts", (Required, "=H"), value::hosts, Full, "H hosts, a node for each processor"),
    row("network", (Required, "=NAME[+NAME]"), value::names, Full, "networks to use, one a set"),
    row(
        "priority",
        (Required, "=0..15"),
        value::priority,
        MultiUserOnly,
        "share of time, halved by every 2; default 8",
    ),
    row("monitor", (Optional, "[=TYPE]"), value::monitor, Full, MONITOR_VALUES),
    row(
        "debug",
        (Optional, "[=1..10]"),
        value::debuggers,
        NotImplemented,
        "debuggers at most; default 4",
    ),
    row("stat", (Optional, "[=all|detail]"), value::statistics, Full, "usage at the end"),
    row("statistics", (Optional, "[=all|detail]"), value::statistics, Full, "the same"),
    row("scored", (Required, "=EXPR"), value::anything, Full, "log in to a running SCore-D"),
    row(
        "group",
        (Required, "=HOSTGROUP"),
        value::anything,
        Full,
        "run on these hosts (scorehosts)",
    ),
    row("file", (Required, "=HOSTFILE"), value::anything, Full, "hosts, instead of scorehosts.db"),
    row(
        "start",
        (Required, "=WAY"),
        value::start,
        Full,
        "ssh, slurm, pbs, lsf or sge starts daemons",
    ),
    row("restart", (NoValue, ""), value::anything, NotImplemented, "start again after a crash"),
    row(
        "checkpoint",
        (Optional, "[=N[m|h|d]]"),
        value::interval,
        NotImplemented,
        "save at intervals",
    ),
    row("cpulimit", (Required, "=SECONDS"), value::amount, Full, "processor time on each host"),
    row("memorylimit", (Required, "=MB"), value::amount, MultiUserOnly, "memory on each host"),
    row(
        "disklimit",
        (Required, "=MB"),
        value::amount,
        MultiUserOnly,
        "files of the job on each host",
    ),
    row("wait", (NoValue, ""), value::anything, MultiUserOnly, "wait until there is room"),
    row("message", (Optional, "[=concise|quiet]"), value::message, Full, "which lines to show"),
    row("resource", (NoValue, ""), value::anything, Full, "show requests, run nothing"),
    row("noidle", (NoValue, ""), value::anything, Full, "conclude nothing from idle flags"),
    row("nobind", (NoValue, ""), value::anything, MultiUserOnly, "processes change processors"),
    row("hetero", (NoValue, ""), value::anything, Full, "permit hosts of different kinds"),
    row("heterogeneous", (NoValue, ""), value::anything, Full, "the same"),
    row("links", (Required, "=L"), value::amount, Full, "networks of virtual hosts (for tests)"),
    row("mtu", (Required, "=BYTES"), value::amount, Full, "their largest packet (for tests)"),
    row("rate", (Required, "=200mbit"), value::anything, Full, "their limit (for tests)"),
    row("help", (NoValue, ""), value::anything, Full, "this text"),
    row("version", (NoValue, ""), value::anything, Full, "the version"),
];

/// Options that are scored's: it gets those that are given, with a minus before them.
pub const FORWARDED_TO_SCORED: &[&str] = &["start", "links", "mtu", "rate"];

/// The row of this name.
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}
