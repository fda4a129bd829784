//! Builds the files that the machine boots: the kernel, and a first file system with busybox,
//! kernel modules, and the tools and libraries of RDMA.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cpio::Archive;
use super::packages::Unpacked;

/// Modules that are loaded before the program runs. Checksums are listed because kernel code
/// requests them by name at run time.
const MODULES: &[&str] = &["crc32_generic", "crc32c_generic", "dummy", "ib_uverbs", "rdma_rxe"];
/// Modules for the wires between two machines.
const VIRTIO_MODULES: &[&str] = &["virtio_pci", "virtio_net"];
/// The provider of libibverbs for rdma_rxe.
const PROVIDER: &str = "rxe";
const VERBS_LIBRARY: &str = "libibverbs.so.1";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The first directory in which the loader searches.
const IMAGE_LIBRARY_DIR: &str = "lib/x86_64-linux-gnu";

/// Builds `base.cpio` and `kernel`, unless they were built with the current `init.sh`.
///
/// # Errors
/// Returns an error if a file is not at its path of Debian 12.
pub fn build(vm_dir: &Path, unpacked: &Unpacked) -> Result<(), String> {
    let (base, init) = (vm_dir.join("base.cpio"), include_str!("init.sh"));
    let cache_key_path = vm_dir.join("init");
    if base.exists() && fs::read_to_string(&cache_key_path).is_ok_and(|text| text == init) {
        return Ok(());
    }
    let root = &unpacked.root;
    let mut archive = Archive::default();
    archive.add_console();
    archive.add_file("init", 0o755, init.as_bytes());
    archive.add_file("etc/passwd", 0o644, b"root:x:0:0:root:/tmp:/bin/sh\n");
    archive.add_file("etc/hosts", 0o644, b"127.0.0.1 localhost\n");
    archive.add_copy_of("bin/busybox", &root.join("bin/busybox"))?;
    let rdma = first_existing(&[root.join("bin/rdma"), root.join("usr/bin/rdma")])?;
    archive.add_copy_of("bin/rdma", &rdma)?;
    let provider = find_provider(root, PROVIDER)?;
    let file = provider.file_name().unwrap_or_default().to_string_lossy().into_owned();
    archive.add_copy_of(&format!("{LIBRARIES}/libibverbs/{file}"), &provider)?;
    let driver = format!("etc/libibverbs.d/{PROVIDER}.driver");
    archive.add_copy_of(&driver, &root.join(&driver))?;
    let mut programs = vec![rdma, provider];
    let library = root.join(LIBRARIES).join(VERBS_LIBRARY);
    archive.add_copy_of(&format!("{IMAGE_LIBRARY_DIR}/{VERBS_LIBRARY}"), &library)?;
    programs.push(library);
    add_libraries(&mut archive, root, &programs, &[VERBS_LIBRARY])?;
    add_modules(&mut archive, root)?;
    write_kernel(vm_dir, root)?;
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    write(&base, &archive.finish())?;
    write(&cache_key_path, init.as_bytes())
}

fn first_existing(paths: &[PathBuf]) -> Result<PathBuf, String> {
    let found = paths.iter().find(|path| path.exists()).cloned();
    found.ok_or_else(|| format!("{}: not in the package", paths[0].display()))
}

fn find_provider(root: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = root.join(LIBRARIES).join("libibverbs");
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_provider = |path: &PathBuf| path.to_string_lossy().contains(&format!("/lib{name}-"));
    paths.find(is_provider).ok_or_else(|| format!("{}: no lib{name}", folder.display()))
}

/// Adds the shared objects that `programs` need, and the loader. Libraries of the packages take
/// precedence.
///
/// # Errors
/// Returns an error if ldd does not find a library.
pub fn add_libraries(
    archive: &mut Archive,
    root: &Path,
    programs: &[PathBuf],
    already_present: &[&str],
) -> Result<(), String> {
    let path = format!("{0}/{LIBRARIES}:{0}/lib/x86_64-linux-gnu", root.display());
    let mut library_paths = BTreeSet::new();
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
        library_paths.extend(paths);
    }
    for library in library_paths {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if already_present.contains(&name.as_str()) {
            continue;
        }
        let folder = if name.starts_with("ld-linux") { "lib64" } else { IMAGE_LIBRARY_DIR };
        archive.add_copy_of(&format!("{folder}/{name}"), &library)?;
    }
    Ok(())
}

/// Adds the modules with their dependencies, and the order in which to load them.
fn add_modules(archive: &mut Archive, root: &Path) -> Result<(), String> {
    let mut module_files = Vec::new();
    list_files(&root.join("lib/modules"), &mut module_files);
    let mut order = Vec::new();
    for name in MODULES {
        add_module(archive, &module_files, name, &mut order)?;
    }
    archive.add_file("modules/order", 0o644, format!("{}\n", order.join("\n")).as_bytes());
    let base_module_count = order.len();
    for name in VIRTIO_MODULES {
        add_module(archive, &module_files, name, &mut order)?;
    }
    archive.add_file("modules/wires", 0o644, order[base_module_count..].join("\n").as_bytes());
    Ok(())
}

fn list_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            list_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn add_module(
    archive: &mut Archive,
    module_files: &[PathBuf],
    name: &str,
    order: &mut Vec<String>,
) -> Result<(), String> {
    let module_file = format!("{}.ko", name.replace('-', "_"));
    if order.contains(&module_file) {
        return Ok(());
    }
    let is_module = |path: &&PathBuf| {
        path.file_name().is_some_and(|file| file.to_string_lossy().replace('-', "_") == module_file)
    };
    // A dependency without a file is part of the kernel itself, or has another name. In the second
    // case loading fails.
    let Some(path) = module_files.iter().find(is_module) else { return Ok(()) };
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    for needed in module_dependencies(&bytes) {
        add_module(archive, module_files, &needed, order)?;
    }
    archive.add_file(&format!("modules/{module_file}"), 0o644, &bytes);
    order.push(module_file);
    Ok(())
}

/// The names in the `depends=a,b` of a module.
fn module_dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(offset) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return vec![];
    };
    let rest = &module[offset + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&rest[..end]).into_owned();
    text.split(',').filter(|name| !name.is_empty()).map(String::from).collect()
}

/// Writes the kernel unpacked if possible, which halves the time of the boot under emulation.
fn write_kernel(vm_dir: &Path, root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    list_files(&root.join("boot"), &mut files);
    let vmlinuz = files.iter().find(|path| path.to_string_lossy().contains("/vmlinuz-"));
    let vmlinuz = vmlinuz.ok_or("the kernel's package has no vmlinuz")?;
    let image = fs::read(vmlinuz).map_err(|error| format!("{}: {error}", vmlinuz.display()))?;
    let kernel = compressed_payload(&image).and_then(unxz).unwrap_or(image);
    let kernel_path = vm_dir.join("kernel");
    fs::write(&kernel_path, kernel).map_err(|error| format!("{}: {error}", kernel_path.display()))
}

/// The compressed kernel inside a bzImage (Documentation/arch/x86/boot.rst, payload_offset).
fn compressed_payload(image: &[u8]) -> Option<&[u8]> {
    let u32_at =
        |offset: usize| image.get(offset..offset + 4)?.try_into().ok().map(u32::from_le_bytes);
    let sectors = usize::from(*image.get(0x1f1)?);
    let start = (sectors + 1) * 512 + u32_at(0x248)? as usize;
    image.get(start..start + u32_at(0x24c)? as usize)
}

fn unxz(compressed: &[u8]) -> Option<Vec<u8>> {
    use std::io::Write;
    // xz reports the length that follows the stream as garbage.
    let is_xz = compressed.starts_with(b"\xfd7zXZ\0");
    let mut child = Command::new("xz")
        .args(["-dc", "--single-stream"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()
        .filter(|_| is_xz)?;
    let mut input = child.stdin.take()?;
    let compressed = compressed.to_vec();
    let writer = std::thread::spawn(move || drop(input.write_all(&compressed)));
    let output = child.wait_with_output().ok()?;
    let _ = writer.join();
    output.stdout.starts_with(b"\x7fELF").then_some(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::module_dependencies;

    #[test]
    fn the_dependencies_of_a_module_are_parsed() {
        assert_eq!(
            module_dependencies(b"\x7fELF..license=GPL\0depends=ib_core,udp_tunnel\0x"),
            ["ib_core", "udp_tunnel"]
        );
        assert!(
            module_dependencies(b"name=a\0depends=\0").is_empty()
                && module_dependencies(b"").is_empty()
        );
    }
}
