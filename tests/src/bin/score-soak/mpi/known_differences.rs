//! Known differences between the results under scrun and under the launcher of the MPI library,
//! each with its reason.

use super::library::MpiLibrary;
use super::place::{Launch, Place};

/// A line that appears in only one of the two results.
struct KnownDifference {
    program: &'static str,
    /// The MPI library. `None` means any library.
    library: Option<MpiLibrary>,
    /// The place. `None` means any place.
    place: Option<Place>,
    /// A text that the line contains.
    text: &'static str,
    reason: &'static str,
}

const KNOWN_DIFFERENCES: &[KnownDifference] = &[
    KnownDifference {
        program: "mpi4py",
        library: None,
        place: None,
        text: "testNamePublishing",
        reason: "names are not published (MPI_Publish_name)",
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::Mpich),
        place: Some(Place::SeveralHosts),
        text: "testJoin",
        reason: "a socket on 127.0.0.1 does not reach another host",
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: Some(Place::SeveralHosts),
        text: "(test_win.",
        reason: NO_WINDOWS_BETWEEN_HOSTS,
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: Some(Place::SeveralHosts),
        text: "(test_rma",
        reason: NO_WINDOWS_BETWEEN_HOSTS,
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: Some(Place::TimeSlices),
        text: "(test_win.",
        reason: NO_WINDOWS_BETWEEN_HOSTS,
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: Some(Place::TimeSlices),
        text: "(test_rma",
        reason: NO_WINDOWS_BETWEEN_HOSTS,
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: None,
        text: "testProbeCancel",
        reason: "Open MPI 4 fails to cancel a send over libfabric, also over its tcp provider",
    },
    KnownDifference {
        program: "mpi4py",
        library: Some(MpiLibrary::OpenMpi),
        place: None,
        text: "test_ulfm.",
        reason: "its recovery from failures (ULFM) works with its own transports (pml ob1) only",
    },
    KnownDifference {
        program: "mpi4py",
        library: None,
        place: None,
        text: "ends with",
        reason: "tests named above fail",
    },
    KnownDifference {
        program: "messages",
        library: Some(MpiLibrary::OpenMpi),
        place: None,
        text: "",
        reason: TRUNCATION_OF_OPEN_MPI,
    },
    KnownDifference {
        program: "messages",
        library: Some(MpiLibrary::OpenMpiDebian),
        place: None,
        text: "",
        reason: TRUNCATION_OF_OPEN_MPI,
    },
];
/// Open MPI 4.1.4 reports this reason. Debian excludes its windows over libfabric (btl ofi), which
/// end the program at some atomic operations ("Unknown or unsupported atomic op").
const NO_WINDOWS_BETWEEN_HOSTS: &str =
    "Open MPI 4 has windows between hosts only for programs without MPI_THREAD_MULTIPLE";
/// With Open MPI's own transports the program ends with an error. Under scrun it prints "ok".
const TRUNCATION_OF_OPEN_MPI: &str =
    "Open MPI's own transports write past the end of a buffer that is too short for a message";

/// Lines that start with these texts are always wrong.
const ALWAYS_WRONG: [&str; 2] = ["leaves behind", "its messages do not go over PM"];

/// Returns why a line is expected in only one of the two results, if this is known.
pub fn reason(launch: &Launch, place: Place, line: &str) -> Option<&'static str> {
    let is_meant = |known: &&KnownDifference| {
        known.program == launch.program.name
            && known.library.is_none_or(|library| library == launch.library)
            && known.place.is_none_or(|known_place| known_place == place)
            && line.contains(known.text)
            && !ALWAYS_WRONG.iter().any(|start| line.starts_with(start))
    };
    KNOWN_DIFFERENCES.iter().find(is_meant).map(|known| known.reason)
}
