//! `cargo xtask install -prefix DIR`: installs the tree that a package would contain.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::{run, tidy};

/// Builds everything, then copies commands, libraries, headers, pkg-config files, man pages and the
/// systemd unit below DIR.
///
/// # Errors
/// Returns an error if the arguments are wrong, the build failed, or a file cannot be written.
pub fn run(args: &[String]) -> Result<(), String> {
    let prefix = match args {
        [option, prefix] if option == "-prefix" => PathBuf::from(prefix),
        _ => return Err("usage: cargo xtask install -prefix DIR".into()),
    };
    let prefix = std::path::absolute(&prefix).map_err(|error| error.to_string())?;
    let release = run::build_release()?;
    let root = run::source_root();
    for command in tidy::command_names()? {
        copy(&release.join(&command), &prefix.join("bin").join(&command))?;
    }
    install_libraries(&release, &prefix.join("lib"))?;
    for header in files_with_extension(&root.join("ffi-c/include"), "h")? {
        copy(&header, &prefix.join("include").join(file_name(&header)))?;
    }
    install_man_pages(&root.join("docs/man"), &prefix.join("share/man"))?;
    install_pkg_config_files(&root.join("ffi-c/pkgconfig"), &prefix)?;
    install_service_unit(&root.join("dist/scored.service"), &prefix)?;
    copy(&root.join("dist/score.gdb"), &prefix.join("share/score/score.gdb"))?;
    copy(&root.join("dist/scored.sysusers"), &prefix.join("lib/sysusers.d/scored.conf"))?;
    println!("installed below {}", prefix.display());
    println!("Put {}/bin into PATH before any other scrun (Slurm also has one).", prefix.display());
    Ok(())
}

/// Installs shared objects under their full names, with the links that the loader and the linker
/// use.
fn install_libraries(release: &Path, lib: &Path) -> Result<(), String> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    for (stem, soname) in [
        ("libpm.so", "libpm.so.2"),
        ("libscore.so", "libscore.so.6"),
        ("libscoretools.so", "libscoretools.so.1"),
    ] {
        let full_name = format!("{stem}.{VERSION}");
        copy(&release.join(stem), &lib.join(&full_name))?;
        link(&full_name, &lib.join(soname))?;
        link(soname, &lib.join(stem))?;
    }
    for archive in ["libpm.a", "libscore.a"] {
        copy(&release.join(archive), &lib.join(archive))?;
    }
    // libfabric loads every library in its directory of providers.
    copy(&release.join("libpm_fi.so"), &lib.join("libfabric/libpm-fi.so"))?;
    copy(&release.join("libscore_mpi.so"), &lib.join("libscore-mpi.so"))?;
    copy(&release.join("libscore_preload.so"), &lib.join("libscore-preload.so"))?;
    Ok(())
}

/// Installs the man pages. docs/man has a directory for each section (man1 and so on), like an
/// installed tree.
fn install_man_pages(from: &Path, to: &Path) -> Result<(), String> {
    for section in fs::read_dir(from).map_err(|error| format!("{}: {error}", from.display()))? {
        let section = section.map_err(|error| error.to_string())?.path();
        let number = file_name(&section).trim_start_matches("man").to_string();
        for page in files_with_extension(&section, &number)? {
            copy(&page, &to.join(file_name(&section)).join(file_name(&page)))?;
        }
    }
    Ok(())
}

/// Installs the .pc files with the prefix of the installation.
fn install_pkg_config_files(from: &Path, prefix: &Path) -> Result<(), String> {
    for template in files_with_extension(from, "in")? {
        let text = fs::read_to_string(&template).map_err(|error| error.to_string())?;
        let text = text
            .replace("@PREFIX@", &prefix.display().to_string())
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        let target =
            prefix.join("lib/pkgconfig").join(file_name(&template).trim_end_matches(".in"));
        write(&target, text.as_bytes())?;
    }
    Ok(())
}

/// Installs the systemd unit with the prefix of the installation.
fn install_service_unit(template: &Path, prefix: &Path) -> Result<(), String> {
    let text = fs::read_to_string(template)
        .map_err(|error| format!("{}: {error}", template.display()))?
        .replace("@PREFIX@", &prefix.display().to_string());
    write(&prefix.join("lib/systemd/system").join(file_name(template)), text.as_bytes())
}

fn files_with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn prepare_target(target: &Path) -> Result<(), String> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // A running program cannot be overwritten, but its name can be removed.
    let _ = fs::remove_file(target);
    Ok(())
}

fn copy(source: &Path, target: &Path) -> Result<(), String> {
    prepare_target(target)?;
    let copied = fs::copy(source, target);
    copied
        .map(drop)
        .map_err(|error| format!("{} to {}: {error}", source.display(), target.display()))
}

fn write(target: &Path, bytes: &[u8]) -> Result<(), String> {
    prepare_target(target)?;
    fs::write(target, bytes).map_err(|error| format!("{}: {error}", target.display()))
}

fn link(target: &str, link_path: &Path) -> Result<(), String> {
    prepare_target(link_path)?;
    symlink(target, link_path).map_err(|error| format!("{}: {error}", link_path.display()))
}
