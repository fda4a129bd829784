//! What the machine boots: the kernel, and a first file system with busybox, the tools and
//! libraries of RDMA, and the kernel's modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cpio::Archive;
use super::packages::Unpacked;

/// What is loaded before the program runs. The checksums are asked for by name, at run time.
const MODULES: &[&str] =
    &["crc32_generic", "crc32c_generic", "dummy", "ib_uverbs", "rdma_ucm", "rdma_rxe"];
/// What one of two machines needs besides, for its wires.
const WIRES: &[&str] = &["virtio_pci", "virtio_net"];
/// Providers of libibverbs: for rdma_rxe and siw.
const PROVIDERS: [&str; 2] = ["rxe", "siw"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Where the loader looks first.
const INSIDE: &str = "lib/x86_64-linux-gnu";

/// Builds `base.cpio` and `kernel` where they are not yet; `siw`: a module to take in.
///
/// # Errors
/// Something is not where Debian 12 has it.
pub fn build(home: &Path, unpacked: &Unpacked, siw: Option<&Path>) -> Result<(), String> {
    let (base, init) = (home.join("base.cpio"), include_str!("init.sh"));
    let of_init = home.join("init");
    let made_of = format!("{init}# {}\n", siw.map_or("".into(), Path::to_string_lossy));
    if base.exists() && fs::read_to_string(&of_init).is_ok_and(|text| text == made_of) {
        return Ok(());
    }
    let root = &unpacked.root;
    let mut archive = Archive::default();
    archive.console();
    archive.file("init", 0o755, init.as_bytes());
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/tmp:/bin/sh\n");
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
    archive.copy("bin/busybox", &root.join("bin/busybox"))?;
    let rdma = first(&[root.join("bin/rdma"), root.join("usr/bin/rdma")])?;
    archive.copy("bin/rdma", &rdma)?;
    let mut programs = vec![rdma];
    for name in PROVIDERS {
        let provider = provider(root, name)?;
        let file = provider.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&format!("{LIBRARIES}/libibverbs/{file}"), &provider)?;
        let driver = format!("etc/libibverbs.d/{name}.driver");
        archive.copy(&driver, &root.join(&driver))?;
        programs.push(provider);
    }
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let library = root.join(LIBRARIES).join(name);
        archive.copy(&format!("{INSIDE}/{name}"), &library)?;
        programs.push(library);
    }
    libraries(&mut archive, root, &programs, &["libibverbs.so.1"])?;
    modules(&mut archive, root, siw)?;
    kernel(home, root)?;
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    write(&base, &archive.finish())?;
    write(&of_init, made_of.as_bytes())
}

fn first(places: &[PathBuf]) -> Result<PathBuf, String> {
    let found = places.iter().find(|path| path.exists()).cloned();
    found.ok_or_else(|| format!("{}: not in the package", places[0].display()))
}

fn provider(root: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = root.join(LIBRARIES).join("libibverbs");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_it = |path: &PathBuf| path.to_string_lossy().contains(&format!("/lib{name}-"));
    paths.find(is_it).ok_or_else(|| format!("{}: no lib{name}", folder.display()))
}

/// The shared objects that `programs` need, those of the packages first, and the loader.
///
/// # Errors
/// ldd finds one not.
pub fn libraries(
    archive: &mut Archive,
    root: &Path,
    programs: &[PathBuf],
    there: &[&str],
) -> Result<(), String> {
    let path = format!("{0}/{LIBRARIES}:{0}/lib/x86_64-linux-gnu", root.display());
    let mut found = BTreeSet::new();
    for program in programs {
        let output = Command::new("ldd")
            .arg(program)
            .env("LD_LIBRARY_PATH", &path)
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("ldd: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(line) = text.lines().find(|line| line.contains("not found")) {
            return Err(format!("{}: {}", program.display(), line.trim()));
        }
        let paths = text.lines().filter_map(|line| {
            line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from)
        });
        found.extend(paths);
    }
    for library in found {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if there.contains(&name.as_str()) {
            continue;
        }
        let folder = if name.starts_with("ld-linux") { "lib64" } else { INSIDE };
        archive.copy(&format!("{folder}/{name}"), &library)?;
    }
    Ok(())
}

/// The modules and all that they need, and the order to load them in.
fn modules(archive: &mut Archive, root: &Path, siw: Option<&Path>) -> Result<(), String> {
    let mut all = Vec::new();
    list(&root.join("lib/modules"), &mut all);
    let mut order = Vec::new();
    for name in MODULES {
        add(archive, &all, name, &mut order)?;
    }
    if let Some(module) = siw {
        let bytes = fs::read(module).map_err(|error| format!("{}: {error}", module.display()))?;
        for needed in depends(&bytes) {
            add(archive, &all, &needed, &mut order)?;
        }
        archive.file("modules/siw.ko", 0o644, &bytes);
        order.push("siw.ko".to_owned());
    }
    archive.file("modules/order", 0o644, format!("{}\n", order.join("\n")).as_bytes());
    let before = order.len();
    for name in WIRES {
        add(archive, &all, name, &mut order)?;
    }
    archive.file("modules/wires", 0o644, order[before..].join("\n").as_bytes());
    Ok(())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn add(
    archive: &mut Archive,
    all: &[PathBuf],
    name: &str,
    order: &mut Vec<String>,
) -> Result<(), String> {
    let wanted = format!("{}.ko", name.replace('-', "_"));
    if order.contains(&wanted) {
        return Ok(());
    }
    let is_it = |path: &&PathBuf| {
        path.file_name().is_some_and(|file| file.to_string_lossy().replace('-', "_") == wanted)
    };
    // What is no file is part of the kernel itself, or named otherwise: loading will tell.
    let Some(path) = all.iter().find(is_it) else { return Ok(()) };
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    for needed in depends(&bytes) {
        add(archive, all, &needed, order)?;
    }
    archive.file(&format!("modules/{wanted}"), 0o644, &bytes);
    order.push(wanted);
    Ok(())
}

/// The names in a module's own `depends=a,b`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else { return vec![] };
    let rest = &module[at + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&rest[..end]).into_owned();
    text.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

/// The kernel as it is, or unpacked, which saves half of the boot under emulation.
fn kernel(home: &Path, root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    list(&root.join("boot"), &mut files);
    let packed = files.iter().find(|path| path.to_string_lossy().contains("/vmlinuz-"));
    let packed = packed.ok_or("the kernel's package has no vmlinuz")?;
    let image = fs::read(packed).map_err(|error| format!("{}: {error}", packed.display()))?;
    let kernel = payload(&image).and_then(unxz).unwrap_or(image);
    let to = home.join("kernel");
    fs::write(&to, kernel).map_err(|error| format!("{}: {error}", to.display()))
}

/// The compressed kernel inside a bzImage (Documentation/arch/x86/boot.rst, payload_offset).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| image.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let sectors = usize::from(*image.get(0x1f1)?);
    let start = (sectors + 1) * 512 + word(0x248)? as usize;
    image.get(start..start + word(0x24c)? as usize)
}

fn unxz(packed: &[u8]) -> Option<Vec<u8>> {
    use std::io::Write;
    // Behind the stream stands its length, which xz takes for rubbish.
    let magic = packed.starts_with(b"\xfd7zXZ\0");
    let mut child = Command::new("xz")
        .args(["-dc", "--single-stream"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()
        .filter(|_| magic)?;
    let mut input = child.stdin.take()?;
    let packed = packed.to_vec();
    let writer = std::thread::spawn(move || drop(input.write_all(&packed)));
    let output = child.wait_with_output().ok()?;
    let _ = writer.join();
    output.stdout.starts_with(b"\x7fELF").then_some(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn a_module_says_what_it_needs() {
        assert_eq!(
            depends(b"\x7fELF..license=GPL\0depends=ib_core,udp_tunnel\0x"),
            ["ib_core", "udp_tunnel"]
        );
        assert!(depends(b"name=a\0depends=\0").is_empty() && depends(b"").is_empty());
    }
}
