//! Installs programs of MPI that only `cargo xtask soak mpi` runs: Debian packages, and the source
//! distributions of mpi4py, which contain its test suite.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{install_package, root_command_prefix};
use crate::run;

/// A file that the package contains, and the name of the package.
const PACKAGES: &[(&str, &str)] = &[
    ("/usr/bin/mpicc.openmpi", "libopenmpi-dev"),
    ("/usr/bin/mpiexec.openmpi", "openmpi-bin"),
    ("/usr/bin/NPopenmpi", "netpipe-openmpi"),
    ("/usr/bin/NPmpich2", "netpipe-mpich2"),
    ("/usr/bin/lmp", "lammps"),
    ("/usr/bin/gmx_mpi", "gromacs"),
    ("/usr/lib/python3/dist-packages/mpi4py", "python3-mpi4py"),
    ("/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi", "python3-h5py-mpi"),
    ("/usr/lib/python3/dist-packages/petsc4py", "python3-petsc4py"),
    ("/usr/bin/fi_pingpong", "libfabric-bin"),
];

/// The versions of mpi4py whose tests run: the version of the wheels, and Debian's version.
const MPI4PY_VERSIONS: [&str; 2] = ["4.1.2", "3.1.4"];

/// Installs missing programs. If a program is not available, the soak skips it and reports this.
pub fn install_mpi_programs() {
    for (_, package) in PACKAGES.iter().filter(|(file, _)| !Path::new(file).exists()) {
        let is_installed = root_command_prefix().is_some_and(|prefix| {
            run::is_installed("apt-get") && install_package(&prefix, package)
        });
        if !is_installed {
            println!("packages: no {package}; its programs are skipped");
        }
    }
    for version in MPI4PY_VERSIONS {
        if let Err(reason) = unpack_mpi4py(version) {
            println!("mpi4py {version}: {reason}; its test suite is skipped");
        }
    }
}

/// Unpacks a source distribution below the target directory.
fn unpack_mpi4py(version: &str) -> Result<(), String> {
    let target = run::target_dir()?;
    let name = format!("mpi4py-{version}");
    if target.join(&name).exists() {
        return Ok(());
    }
    println!("MPI: fetching the source of mpi4py {version} from PyPI");
    let archives = target.join("mpi4py-archives");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--no-binary=:all:", &format!("mpi4py=={version}"), "--dest"]).arg(&archives);
    run::run_checked(pip.stdin(Stdio::null()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archives.join(format!("{name}.tar.gz"))).arg("-C").arg(&target);
    run::run_checked(&mut tar)
}
