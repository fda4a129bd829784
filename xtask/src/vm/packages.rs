//! Downloads and unpacks the packages from which the machine is built. They are not installed: qemu
//! would remove a newer qemu-utils, and rdma-core would replace parts of systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run;

/// Packages for the machine. They are unpacked even if this system has them installed.
const GUEST_PACKAGES: &[&str] = &[
    "busybox-static",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libmnl0",
    "libbpf1",
    "libelf1",
    "libcap2",
    "zlib1g",
    // Programs with which `cargo xtask bench verbs` compares.
    "perftest",
    "libibumad3",
    "libpci3",
];
const KERNEL: &str = "linux-image-amd64";
const QEMU: &str = "qemu-system-x86";

/// The unpacked packages.
pub struct Unpacked {
    /// The directory that is the `/` of the packages.
    pub root: PathBuf,
}

/// Downloads and unpacks the packages unless that was done already.
///
/// # Errors
/// Why this is not possible.
pub fn unpack(vm_dir: &Path) -> Result<Unpacked, String> {
    let root = vm_dir.join("root");
    let marker_path = vm_dir.join("unpacked");
    let guest_packages = GUEST_PACKAGES.join(" ");
    if fs::read_to_string(&marker_path).is_ok_and(|recorded| recorded == guest_packages) {
        return Ok(Unpacked { root });
    }
    if !cfg!(target_arch = "x86_64") {
        return Err("only tested on x86_64".into());
    }
    for tool in ["apt-get", "apt-cache", "dpkg-deb", "ldd"] {
        if !run::is_installed(tool) {
            return Err(format!("this system is not Debian: {tool} is missing"));
        }
    }
    println!("vm: downloading packages, once");
    let mut names: Vec<String> = GUEST_PACKAGES.iter().map(|name| (*name).to_string()).collect();
    names.push(kernel_package()?);
    if !run::is_installed("qemu-system-x86_64") {
        names.extend(packages_to_install(QEMU)?);
    }
    let archives = vm_dir.join("archives");
    let created = fs::create_dir_all(&archives).and_then(|()| fs::create_dir_all(&root));
    created.map_err(|error| format!("{}: {error}", vm_dir.display()))?;
    download(&archives, &names)?;
    for archive in fs::read_dir(&archives).map_err(|error| error.to_string())? {
        let archive = archive.map_err(|error| error.to_string())?.path();
        run::run_checked(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&root))?;
    }
    let result =
        fs::remove_dir_all(&archives).and_then(|()| fs::write(&marker_path, guest_packages));
    result.map_err(|error| format!("{}: {error}", vm_dir.display()))?;
    Ok(Unpacked { root })
}

fn command_output(program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The package to which the name of the kernel refers.
fn kernel_package() -> Result<String, String> {
    let text = command_output("apt-cache", &["depends", KERNEL])?;
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let newest = names.rfind(|name| name.starts_with("linux-image-"));
    newest.map(String::from).ok_or_else(|| format!("apt: {KERNEL} not found (run apt-get update)"))
}

/// The packages that apt would install: this package, and its dependencies that this system lacks.
fn packages_to_install(package: &str) -> Result<Vec<String>, String> {
    let args = ["-s", "install", "--no-install-recommends", "-y", package];
    let text = command_output("apt-get", &args)?;
    let names: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
        .map(String::from)
        .collect();
    if names.iter().any(|name| name == package) {
        Ok(names)
    } else {
        Err(format!("apt cannot get {package}"))
    }
}

/// Downloads packages into a directory.
///
/// # Errors
/// Returns an error if a package is not available.
pub fn download(folder: &Path, names: &[String]) -> Result<(), String> {
    let try_download = || {
        let mut command = Command::new("apt-get");
        command.args(["download", "-qq"]).args(names).current_dir(folder);
        // The error output is discarded, because apt would report that it cannot change to its own
        // user here.
        run::run_checked(command.stdin(Stdio::null()).stderr(Stdio::null()))
    };
    try_download()
        .or_else(|_| try_download())
        .map_err(|_| format!("could not download {}", names.join(" ")))
}
