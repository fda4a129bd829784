//! Builds soft iWARP, which Debian's kernel does not contain, from the kernel's source package and
//! against the headers of the kernel that the machine boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::packages;
use crate::run;

const SOURCE: &str = "linux-source-6.1";
const KBUILD: &str = "linux-kbuild-6.1";
/// The tools with which Debian builds its kernel.
const TOOLS: [&str; 5] = ["gcc-12", "make", "strip", "tar", "xz"];
/// All source files of siw. Unpacking ends after the last of them, without reading the rest of the
/// kernel.
const FILES: [&str; 15] = [
    "Kconfig",
    "Makefile",
    "iwarp.h",
    "siw.h",
    "siw_cm.c",
    "siw_cm.h",
    "siw_cq.c",
    "siw_main.c",
    "siw_mem.c",
    "siw_mem.h",
    "siw_qp.c",
    "siw_qp_rx.c",
    "siw_qp_tx.c",
    "siw_verbs.c",
    "siw_verbs.h",
];
const IN_SOURCE: &str = "drivers/infiniband/sw/siw";

/// Builds the module unless that was done already. Returns its path.
///
/// # Errors
/// Why this system cannot build it.
pub fn build(vm_dir: &Path, root: &Path) -> Result<PathBuf, String> {
    let kernel_version = installed_kernel_version(root)?;
    let module = vm_dir.join(format!("siw-{kernel_version}.ko"));
    if module.exists() {
        return Ok(module);
    }
    if let Some(tool) = TOOLS.iter().find(|tool| !run::is_installed(tool)) {
        return Err(format!("soft iWARP is not built: {tool} is not installed"));
    }
    println!("vm: building soft iWARP for {kernel_version}, once");
    let folder = vm_dir.join(format!("siw-{}", std::process::id()));
    let built = build_in_folder(&folder, &kernel_version).and_then(|built| {
        fs::rename(&built, &module).map_err(|error| format!("{}: {error}", module.display()))
    });
    let _ = fs::remove_dir_all(&folder);
    built.map(|()| module).map_err(|reason| format!("soft iWARP is not built: {reason}"))
}

/// The version of the kernel whose modules are in `root`.
fn installed_kernel_version(root: &Path) -> Result<String, String> {
    let folder = root.join("lib/modules");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.max().ok_or_else(|| format!("{}: no kernel", folder.display()))
}

fn build_in_folder(folder: &Path, kernel_version: &str) -> Result<PathBuf, String> {
    let io_error = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (archives, headers, source) =
        (folder.join("archives"), folder.join("headers"), folder.join("siw"));
    for dir in [&archives, &headers, &source] {
        fs::create_dir_all(dir).map_err(io_error)?;
    }
    let common_version =
        kernel_version.rsplit_once('-').map_or(kernel_version, |(version, _)| version);
    let headers_package = format!("linux-headers-{kernel_version}");
    let names = [
        SOURCE.to_owned(),
        headers_package.clone(),
        format!("linux-headers-{common_version}-common"),
    ];
    let names: Vec<String> = names.into_iter().chain([KBUILD.to_owned()]).collect();
    packages::download(&archives, &names)?;
    for archive in fs::read_dir(&archives).map_err(io_error)? {
        let archive = archive.map_err(io_error)?.path();
        if archive.to_string_lossy().contains(SOURCE) {
            extract_sources(&archive, &source)?;
        } else {
            run::run_checked(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&headers))?;
        }
    }
    // The files contain the paths at which the packages would be installed.
    let makefile = headers.join("usr/src").join(&headers_package).join("Makefile");
    let replacement = format!("include {}/usr/src/", headers.display());
    replace(&makefile, "include /usr/src/", &replacement)?;
    replace(&source.join("Makefile"), "$(CONFIG_RDMA_SIW)", "m")?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers.join("usr/src").join(&headers_package));
    make.arg(format!("M={}", source.display())).arg("modules").stdin(Stdio::null());
    run::run_checked(&mut make)?;
    let module = source.join("siw.ko");
    run::run_checked(Command::new("strip").arg("--strip-debug").arg(&module))?;
    Ok(module)
}

fn replace(path: &Path, from: &str, to: &str) -> Result<(), String> {
    let io_error = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(io_error)?;
    fs::write(path, text.replace(from, to)).map_err(io_error)
}

/// Extracts the files of siw from the kernel's source, which is an archive inside the package.
fn extract_sources(package: &Path, to: &Path) -> Result<(), String> {
    const SCRIPT: &str = r#"dpkg-deb --fsys-tarfile "$1" | tar xO "./usr/src/$2.tar.xz" |
        xz -dc -T2 | tar x -C "$3" --strip-components=5 --occurrence=1 "${@:4}""#;
    let members = FILES.iter().map(|name| format!("{SOURCE}/{IN_SOURCE}/{name}"));
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "siw"]).arg(package).arg(SOURCE).arg(to).args(members);
    // The programs that write to the last tar complain when it exits early.
    run::run_checked(command.stdin(Stdio::null()).stderr(Stdio::null()))
}
