//! All options of the manual (scrun(1)) and of this implementation: the name, the value, and
//! whether the option is implemented.

use super::value;

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueArity {
    /// The option takes no value.
    NoValue,
    /// `key` or `key=value`.
    Optional,
    /// `key=value`.
    Required,
}

/// Support for an option in this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The option works as in the manual.
    Full,
    /// The option works as in the manual in multi-user mode. In single-user mode the option has no
    /// effect, and scrun reports this.
    MultiUserOnly,
    /// The option has no effect, and scrun reports this.
    NotImplemented,
}

/// One option of scrun.
#[derive(Debug)]
pub struct OptionSpec {
    /// The name of the option.
    pub name: &'static str,
    /// Whether the option takes a value.
    pub arity: ValueArity,
    /// The syntax of the option's value, for `-help`.
    pub value_syntax: &'static str,
    /// Checks a value. The error names the valid values.
    pub check: fn(&str) -> Result<(), String>,
    /// Support in this version.
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

/// All options, in the order of the manual.
pub const OPTIONS: &[OptionSpec] = &[
    row(
        "nodes",
        (Optional, "=N|=HxP|=N/P|=xP"),
        value::nodes,
        Full,
        "N nodes; H hosts with P each",
    ),
    row("hosts", (Required, "=H"), value::hosts, Full, "H hosts, a node for each processor"),
    row(
        "network",
        (Required, "=NAME[+NAME]"),
        value::names,
        Full,
        "networks to use, one per network set",
    ),
    row(
        "priority",
        (Required, "=0..15"),
        value::priority,
        MultiUserOnly,
        "scheduling priority, 0 (high) to 15; default 8",
    ),
    row("monitor", (Optional, "[=TYPE]"), value::monitor, Full, MONITOR_VALUES),
    row(
        "debug",
        (Optional, "[=1..10|ddt]"),
        value::debuggers,
        Full,
        "debug crashes with gdb (at most 4 by default) or DDT",
    ),
    row("stat", (Optional, "[=all|detail]"), value::statistics, Full, "print usage at the end"),
    row("statistics", (Optional, "[=all|detail]"), value::statistics, Full, "same as -stat"),
    row("scored", (Required, "=EXPR"), value::anything, Full, "log in to a running SCore-D"),
    row(
        "group",
        (Required, "=HOSTGROUP"),
        value::anything,
        Full,
        "run on these hosts (scorehosts)",
    ),
    row("file", (Required, "=HOSTFILE"), value::anything, Full, "read hosts from this file"),
    row(
        "start",
        (Required, "=WAY"),
        value::start,
        Full,
        "launcher for daemons: ssh, slurm, pbs, lsf, sge",
    ),
    row("restart", (NoValue, ""), value::anything, NotImplemented, "start again after a crash"),
    row(
        "checkpoint",
        (Optional, "[=N[m|h|d]]"),
        value::interval,
        NotImplemented,
        "save at intervals",
    ),
    row("cpulimit", (Required, "=SECONDS"), value::amount, Full, "limit processor time on a host"),
    row("memorylimit", (Required, "=MB"), value::amount, MultiUserOnly, "limit memory on a host"),
    row(
        "disklimit",
        (Required, "=MB"),
        value::amount,
        MultiUserOnly,
        "limit the job's files on a host",
    ),
    row("wait", (NoValue, ""), value::anything, MultiUserOnly, "wait until hosts are available"),
    row("message", (Optional, "[=concise|quiet]"), value::message, Full, "show fewer messages"),
    row("resource", (NoValue, ""), value::anything, Full, "print resource requests and exit"),
    row("noidle", (NoValue, ""), value::anything, Full, "ignore idle flags: no deadlock detection"),
    row(
        "nobind",
        (NoValue, ""),
        value::anything,
        MultiUserOnly,
        "do not bind processes to processors",
    ),
    row(
        "mpi",
        (Required, "=auto|mpich|openmpi|none|LIBDIR"),
        value::mpi,
        Full,
        "choose how MPI programs start",
    ),
    row("hetero", (NoValue, ""), value::anything, Full, "permit hosts of different kinds"),
    row("heterogeneous", (NoValue, ""), value::anything, Full, "same as -hetero"),
    row("links", (Required, "=L"), value::amount, Full, "links of a virtual host (for tests)"),
    row("mtu", (Required, "=BYTES"), value::amount, Full, "MTU of virtual hosts (for tests)"),
    row("rate", (Required, "=200mbit"), value::anything, Full, "rate of virtual links (for tests)"),
    row(
        "x",
        (Required, " NAME=VALUE"),
        value::variable,
        Full,
        "set a variable of the job's processes only",
    ),
    row("tool", (Required, " PATH"), value::anything, Full, "start a tool on every host first"),
    row(
        "tool-arguments",
        (Required, " \"WORD...\""),
        value::tool_arguments,
        Full,
        "arguments of the tool, quoted as in a shell",
    ),
    row(
        "tool-files",
        (Required, " DIR"),
        value::anything,
        Full,
        "copy a directory to every host for tools",
    ),
    row("help", (NoValue, ""), value::anything, Full, "print this text"),
    row("version", (NoValue, ""), value::anything, Full, "print the version"),
];

/// Options that occupy words of their own. The value is the rest of the word after `=`, or the next
/// word, and may contain commas. These options may begin with two minus signs, as debuggers write
/// them.
pub const WORD_OPTIONS: &[&str] = &["x", "tool", "tool-arguments", "tool-files"];

/// Options that scrun forwards to scored, with a minus in front.
pub const FORWARDED_TO_SCORED: &[&str] = &["start", "links", "mtu", "rate"];

/// The row of the option with this name.
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}
