//! Names of the environment variables that SCore itself sets or reads.

/// Descriptor number of a process's control socket to its shepherd. Absent: local execution
/// (manual 1.4.4).
pub const CONTROL_FD_ENV: &str = "SCORE_CONTROL_FD";

/// Descriptor number to which `score_initialize` writes the resource request and then exits
/// (manual 1.4.2, step 2). Set only by scrun, only for programs whose note asks to be run.
pub const RESOURCE_FD_ENV: &str = "SCORE_RESOURCE_FD";

/// Default options of scrun (manual, scrun(1), ENVIRONMENTS).
pub const OPTIONS_ENV: &str = "SCORE_OPTIONS";

/// The six variables every process gets (manual, system(6)): processes on this host, etc.
pub const SELF_PROC_ENV: &str = "SCORE_SELF_PROC";
/// Number of the host, from 0.
pub const SELF_HOST_ENV: &str = "SCORE_SELF_HOST";
/// Number of the node (rank), from 0.
pub const SELF_NODE_ENV: &str = "SCORE_SELF_NODE";
/// Number of processes on this host.
pub const NUM_PROC_ENV: &str = "SCORE_NUM_PROC";
/// Number of hosts.
pub const NUM_HOST_ENV: &str = "SCORE_NUM_HOST";
/// Number of nodes.
pub const NUM_NODE_ENV: &str = "SCORE_NUM_NODE";

/// The job's directory on this host, where files without `/` in their name live.
pub const JOB_DIR_ENV: &str = "SCORE_JOB_DIR";

/// Diagnostic level of libpm, 0..=3 (manual, table 2.4).
pub const PM_DEBUG_ENV: &str = "PM_DEBUG";

/// Where the scout session is that a command runs in: path of its socket. Set by scout for the
/// user's shell only, never for processes of jobs.
pub const SCOUT_ENV: &str = "SCORE_SCOUT";

/// The remote shell that starts daemons (scout(1), scrun(1)).
pub const REMOTE_SHELL_ENV: &str = "SCORE_RSH";

/// Where scrun calls the scored of its host (multi-user mode), if not at [`DEFAULT_SOCKET`].
pub const SCORED_SOCKET_ENV: &str = "SCORED_SOCKET";

/// Where the scored of a host listens for the scruns of that host.
pub const DEFAULT_SOCKET: &str = "/run/scored/scored.sock";
