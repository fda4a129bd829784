//! Differences between the results under scrun and those under the launcher of the MPI library that
//! are known, each with its reason.

use super::library::MpiLibrary;
use super::place::{Launch, Place};

/// A line that only one of the two has.
struct KnownDifference {
    program: &'static str,
    /// `None`: of any.
    library: Option<MpiLibrary>,
    /// `None`: anywhere.
    place: Option<Place>,
    /// What the line contains.
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
/// The program ends with an error there, and prints "ok" under scrun.
const TRUNCATION_OF_OPEN_MPI: &str =
    "Open MPI's own transports write behind the end of a buffer that is too short for a message";

/// No reason makes these right.
const ALWAYS_WRONG: [&str; 2] = ["leaves behind", "its messages do not go over PM"];

/// Why a line is expected to be in one of the two results only.
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
