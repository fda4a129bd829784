//! Soft iWARP. Debian's kernel is built without it: it is made from the kernel's source package,
//! against the headers of the kernel that the machine boots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::packages;
use crate::run;

const SOURCE: &str = "linux-source-6.1";
const KBUILD: &str = "linux-kbuild-6.1";
/// What Debian builds its kernel with.
const TOOLS: [&str; 5] = ["gcc-12", "make", "strip", "tar", "xz"];
/// All of it: unpacking ends with the last, and need not go through the rest of the kernel.
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

/// The module, built where that was not done yet.
///
/// # Errors
/// Why this machine cannot have it.
pub fn build(home: &Path, root: &Path) -> Result<PathBuf, String> {
    let kernel = kernel(root)?;
    let module = home.join(format!("siw-{kernel}.ko"));
    if module.exists() {
        return Ok(module);
    }
    if let Some(tool) = TOOLS.iter().find(|tool| !run::have(tool)) {
        return Err(format!("soft iWARP is not built: there is no {tool}"));
    }
    println!("vm: building soft iWARP for {kernel}, once");
    let folder = home.join(format!("siw-{}", std::process::id()));
    let built = in_folder(&folder, &kernel).and_then(|built| {
        fs::rename(&built, &module).map_err(|error| format!("{}: {error}", module.display()))
    });
    let _ = fs::remove_dir_all(&folder);
    built.map(|()| module).map_err(|why| format!("soft iWARP is not built: {why}"))
}

/// The version of the kernel whose modules are there.
fn kernel(root: &Path) -> Result<String, String> {
    let folder = root.join("lib/modules");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.max().ok_or_else(|| format!("{}: no kernel", folder.display()))
}

fn in_folder(folder: &Path, kernel: &str) -> Result<PathBuf, String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let (archives, headers, source) =
        (folder.join("archives"), folder.join("headers"), folder.join("siw"));
    for made in [&archives, &headers, &source] {
        fs::create_dir_all(made).map_err(told)?;
    }
    let common = kernel.rsplit_once('-').map_or(kernel, |(version, _)| version);
    let own = format!("linux-headers-{kernel}");
    let names = [SOURCE.to_owned(), own.clone(), format!("linux-headers-{common}-common")];
    let names: Vec<String> = names.into_iter().chain([KBUILD.to_owned()]).collect();
    packages::download(&archives, &names)?;
    for archive in fs::read_dir(&archives).map_err(told)? {
        let archive = archive.map_err(told)?.path();
        if archive.to_string_lossy().contains(SOURCE) {
            sources(&archive, &source)?;
        } else {
            run::call(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&headers))?;
        }
    }
    // Each names what the packages would install at this place.
    let makefile = headers.join("usr/src").join(&own).join("Makefile");
    let place = format!("include {}/usr/src/", headers.display());
    replace(&makefile, "include /usr/src/", &place)?;
    replace(&source.join("Makefile"), "$(CONFIG_RDMA_SIW)", "m")?;
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(headers.join("usr/src").join(&own));
    make.arg(format!("M={}", source.display())).arg("modules").stdin(Stdio::null());
    run::call(&mut make)?;
    let module = source.join("siw.ko");
    run::call(Command::new("strip").arg("--strip-debug").arg(&module))?;
    Ok(module)
}

fn replace(path: &Path, from: &str, to: &str) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(told)?;
    fs::write(path, text.replace(from, to)).map_err(told)
}

/// Takes the files of siw out of the kernel's source, which is an archive inside the package.
fn sources(package: &Path, to: &Path) -> Result<(), String> {
    const SCRIPT: &str = r#"dpkg-deb --fsys-tarfile "$1" | tar xO "./usr/src/$2.tar.xz" |
        xz -dc -T2 | tar x -C "$3" --strip-components=5 --occurrence=1 "${@:4}""#;
    let members = FILES.iter().map(|name| format!("{SOURCE}/{IN_SOURCE}/{name}"));
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "siw"]).arg(package).arg(SOURCE).arg(to).args(members);
    // Who writes to the last tar is told that it has enough.
    run::call(command.stdin(Stdio::null()).stderr(Stdio::null()))
}
