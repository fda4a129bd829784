//! Names of the environment variables that SCore sets or reads.

use crate::ids::ProcessIndex;
use crate::message::MpiStart;

/// Descriptor number of a process's control socket to its shepherd. If it is not set, the program
/// runs locally (manual 1.4.4).
pub const CONTROL_FD_ENV: &str = "SCORE_CONTROL_FD";

/// Descriptor number to which `score_initialize` writes the resource request and then exits (manual
/// 1.4.2, step 2). Set only by scrun, and only for programs whose note requests it.
pub const RESOURCE_FD_ENV: &str = "SCORE_RESOURCE_FD";

/// Default options of scrun (manual, scrun(1), ENVIRONMENTS).
pub const OPTIONS_ENV: &str = "SCORE_OPTIONS";

/// Number of this process on its host, from 0. This is the first of the six variables that every
/// process has (manual, system(6)).
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

/// Descriptor number of the PMI socket of a process of an MPI program.
pub const PMI_FD_ENV: &str = "PMI_FD";
/// The rank of the process.
pub const PMI_RANK_ENV: &str = "PMI_RANK";
/// The number of ranks.
pub const PMI_SIZE_ENV: &str = "PMI_SIZE";
/// Variables of PMI that no process inherits, because they belong to the job in which scrun runs.
pub const PMI_ENV: [&str; 6] =
    [PMI_FD_ENV, PMI_RANK_ENV, PMI_SIZE_ENV, "PMI_PORT", "PMI_ID", "PMI_SPAWNED"];

/// Open MPI 4 looks for a PMIx server only under certain launchers. This variable belongs to a
/// launcher that starts processes by PMIx, and has no other effect. Open MPI 5 ignores it.
pub const PMIX_LAUNCHER_ENV: &str = "JSM_JSRUN_PORT=0";
/// Variables in which MPI programs look for their rank without calling MPI, if launchers of MPICH
/// or of Open MPI set them. For example, Debian's h5py checks whether it runs in several processes,
/// and other programs choose a device by their rank on the host. No process inherits them.
pub const MPI_RANK_ENV: [&str; 6] = [
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];
/// The values of [`MPI_RANK_ENV`] for a process. `rank` and `process` are pairs of a number and the
/// number of ranks, in the job and on this host.
pub fn mpi_rank_env(
    start: MpiStart,
    rank: (u32, u32),
    process: (ProcessIndex, u32),
) -> Vec<(&'static str, u32)> {
    let [mpich @ .., open_mpi_rank, size, open_mpi_local_rank, local_size] = MPI_RANK_ENV;
    match start {
        MpiStart::Pmi => vec![(mpich[0], process.0.0), (mpich[1], process.1)],
        MpiStart::Pmix => vec![
            (open_mpi_rank, rank.0),
            (size, rank.1),
            (open_mpi_local_rank, process.0.0),
            (local_size, process.1),
        ],
    }
}
/// Variables and values that make an MPI library send messages over PM, also between processes of
/// one host.
pub fn pm_provider_env(start: MpiStart) -> &'static [(&'static str, &'static str)] {
    match start {
        MpiStart::Pmi => {
            &[("FI_PROVIDER", "pm"), ("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1")]
        }
        MpiStart::Pmix => &[
            ("FI_PROVIDER", "pm"),
            ("OMPI_MCA_pml", "cm"),
            ("OMPI_MCA_mtl", "ofi"),
            ("OMPI_MCA_mtl_ofi_provider_include", "pm"),
        ],
    }
}
/// The signal at which UCX stops a process for a debugger; 0 disables this. MPI libraries load UCX
/// even if they do not use it. Its default is SIGHUP, with which scored announces a deadlock
/// (manual, table 3.1).
pub const UCX_DEBUG_SIGNAL_ENV: &str = "UCX_DEBUG_SIGNO";
/// Idle processes of Open MPI yield the processor at each empty poll. The preloaded `sched_yield`
/// returns at once while no other process waits for the processor.
pub const OPEN_MPI_YIELD_ENV: (&str, &str) = ("OMPI_MCA_mpi_yield_when_idle", "1");
/// The implementation of Open MPI's windows. Debian's version 4 excludes the implementations that
/// only need messages. Without them, a window cannot have processes on several hosts. This value
/// excludes only UCX, which does not use PM.
pub const OPEN_MPI_WINDOWS_ENV: (&str, &str) = ("OMPI_MCA_osc", "^ucx");
/// The variable that selects the component of libpmix that stores the entries of processes.
pub const PMIX_STORE_ENV: &str = "PMIX_MCA_gds";
/// The value of [`PMIX_STORE_ENV`] that scored-pmix selects: a store in each process.
pub const PMIX_STORE: &str = "hash";
/// Libraries that the dynamic loader loads before all others.
pub const PRELOAD_ENV: &str = "LD_PRELOAD";
/// The directories in which libfabric searches for providers.
pub const PROVIDER_PATH_ENV: &str = "FI_PROVIDER_PATH";
/// The directories in which the dynamic loader first searches for libraries.
pub const LIBRARY_PATH_ENV: &str = "LD_LIBRARY_PATH";

/// The job's directory on this host. It contains files whose names have no `/`.
pub const JOB_DIR_ENV: &str = "SCORE_JOB_DIR";

/// Diagnostic level of libpm, 0..=3 (manual, table 2.4).
pub const PM_DEBUG_ENV: &str = "PM_DEBUG";

/// Path of the socket of the scout session in which a command runs. Set by scout for the user's
/// shell only, never for processes of jobs.
pub const SCOUT_ENV: &str = "SCORE_SCOUT";

/// The remote shell that starts daemons (scout(1), scrun(1)).
pub const REMOTE_SHELL_ENV: &str = "SCORE_RSH";

/// The socket at which scrun reaches the scored of its host in multi-user mode, if it is not
/// [`DEFAULT_SOCKET`].
pub const SCORED_SOCKET_ENV: &str = "SCORED_SOCKET";

/// The socket at which the scored of a host accepts connections of scrun on that host.
pub const DEFAULT_SOCKET: &str = "/run/scored/scored.sock";

/// The abstract name of the socket at which tools find the single-user scored with this process id.
pub fn tool_socket_name(pid: u32) -> String {
    format!("scored-tools-{pid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mpi_program_gets_its_rank_in_the_variables_of_its_library() {
        let variables = |start| mpi_rank_env(start, (5, 8), (ProcessIndex(1), 4));
        assert_eq!(variables(MpiStart::Pmi), [("MPI_LOCALRANKID", 1), ("MPI_LOCALNRANKS", 4)]);
        assert_eq!(
            variables(MpiStart::Pmix),
            [
                ("OMPI_COMM_WORLD_RANK", 5),
                ("OMPI_COMM_WORLD_SIZE", 8),
                ("OMPI_COMM_WORLD_LOCAL_RANK", 1),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", 4),
            ]
        );
    }

    #[test]
    fn each_mpi_library_sends_by_the_provider_of_pm() {
        for (start, library) in [
            (MpiStart::Pmi, ("MPIR_CVAR_CH4_NETMOD", "ofi")),
            (MpiStart::Pmix, ("OMPI_MCA_mtl", "ofi")),
        ] {
            let variables = pm_provider_env(start);
            assert!(variables.contains(&("FI_PROVIDER", "pm")), "{variables:?}");
            assert!(variables.contains(&library), "{variables:?}");
        }
    }

    #[test]
    fn the_socket_for_tools_has_the_process_id_of_its_daemon() {
        assert_eq!(tool_socket_name(42), "scored-tools-42");
    }
}
