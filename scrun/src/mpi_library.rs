//! The MPI libraries that scrun recognizes by their file names.

use std::path::{Path, PathBuf};

use score_proto::message::MpiStart;

/// The module of Open MPI for libfabric, relative to the directory of the library. Debian installs
/// the modules in separate directories.
const LIBFABRIC_MODULES: [&str; 3] = [
    "openmpi/mca_mtl_ofi.so",
    "openmpi/lib/openmpi3/mca_mtl_ofi.so",
    "openmpi/lib/openmpi/mca_mtl_ofi.so",
];

/// The file name of libpmix (DT_NEEDED).
pub const PMIX_LIBRARY_NAME: &[u8] = b"libpmix.so.2";

/// Whether a library of this name (DT_NEEDED) is libfabric. Wheels append a hash to the name.
pub fn is_libfabric(name: &[u8]) -> bool {
    name.starts_with(b"libfabric")
}

/// An MPI library, with the way in which its programs start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpiLibrary {
    /// MPICH and libraries with its interface. Programs start by PMI.
    Mpich(Transport),
    /// Open MPI. Programs start by PMIx.
    OpenMpi {
        /// How the library can send messages.
        transport: Transport,
        /// The libpmix that the library loads, if the files of the library name it.
        pmix: Option<PathBuf>,
    },
}

/// How an MPI library can send messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By libfabric and therefore by PM, and by other means.
    Libfabric,
    /// By other means. As far as scrun can determine, not by libfabric.
    Other,
}

impl MpiLibrary {
    /// The MPI library with this file name (DT_NEEDED). `None` if no MPI library has this name.
    pub fn of_needed(name: &[u8]) -> Option<Self> {
        match name {
            b"libmpi.so.12" | b"libmpich.so.12" | b"libmpi_abi.so.1" => {
                Some(Self::Mpich(Transport::Other))
            }
            b"libmpi.so.40" => Some(Self::OpenMpi { transport: Transport::Other, pmix: None }),
            _ => None,
        }
    }

    /// Adds the properties that the files of the library at `path` show: whether it can use
    /// libfabric, and its libpmix.
    pub fn with_needs(
        self,
        path: Option<&Path>,
        uses_libfabric: bool,
        pmix: Option<PathBuf>,
    ) -> Self {
        let has_module = || {
            let file = path.and_then(|path| path.canonicalize().ok());
            let directory = file.as_deref().and_then(Path::parent);
            directory.is_some_and(|directory| {
                LIBFABRIC_MODULES.iter().any(|module| directory.join(module).exists())
            })
        };
        match self {
            Self::Mpich(_) if uses_libfabric => Self::Mpich(Transport::Libfabric),
            Self::OpenMpi { .. } => {
                let transport = match uses_libfabric || has_module() {
                    true => Transport::Libfabric,
                    false => Transport::Other,
                };
                Self::OpenMpi { transport, pmix }
            }
            other => other,
        }
    }

    /// How the library can send messages.
    pub fn transport(&self) -> Transport {
        match self {
            Self::Mpich(transport) | Self::OpenMpi { transport, .. } => *transport,
        }
    }

    /// How the programs of the library start.
    pub fn start(&self) -> MpiStart {
        match self {
            Self::Mpich(_) => MpiStart::Pmi,
            Self::OpenMpi { .. } => MpiStart::Pmix,
        }
    }
}
