//! One run of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Options;
use super::cpio::Archive;
use super::image;
use crate::run;

/// For an emulated machine: nothing that costs time and shows nothing.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr \
                              random.trust_cpu=on tsc=reliable audit=0 rdinit=/init";
/// A boot takes 4 s, on a busy machine 15; one in some dozens stops before its first line.
const BOOT: Duration = Duration::from_secs(60);
const BOOTS: u32 = 3;
/// Of the console, where a run did not come to its end.
const LAST_LINES: usize = 20;

/// Boots, runs, and answers the program's exit code.
///
/// # Errors
/// A program is not there, qemu does not start, or no exit code came within the time.
pub fn run(home: &Path, options: &Options, programs: &[Vec<String>]) -> Result<i32, String> {
    let folder = home.join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let done = in_folder(home, &folder, options, programs);
    let _ = fs::remove_dir_all(&folder);
    done
}

fn in_folder(
    home: &Path,
    folder: &Path,
    options: &Options,
    programs: &[Vec<String>],
) -> Result<i32, String> {
    let (disk, console) = (folder.join("files.cpio"), folder.join("console"));
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let base = home.join("base.cpio");
    let mut files = fs::read(&base).map_err(|error| told(&base, error))?;
    files.extend(given(home, programs)?);
    fs::write(&disk, files).map_err(|error| told(&disk, error))?;
    for _ in 1..BOOTS {
        match once(home, options, &disk, &console)? {
            Some(text) => return code(&text, options),
            None => println!("vm: it did not boot; once more"),
        }
    }
    let text = once(home, options, &disk, &console)?;
    code(&text.ok_or("the virtual machine does not boot")?, options)
}

/// Its console, after it has ended or its time is over. None: it did not boot.
fn once(
    home: &Path,
    options: &Options,
    disk: &Path,
    console: &Path,
) -> Result<Option<String>, String> {
    let mut child = start(home, options, disk, console)?;
    let (begin, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let read = || String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
    let mut booted = false;
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        booted = booted || said(&read(), "ready ").is_some();
        let hangs = !booted && begin.elapsed() > BOOT.min(limit);
        if hangs || begin.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = read();
    Ok((booted || said(&text, "ready ").is_some()).then_some(text))
}

fn code(console: &str, options: &Options) -> Result<i32, String> {
    if let Some(code) = said(console, "code ").and_then(|code| code.parse().ok()) {
        return Ok(code);
    }
    let lines: Vec<&str> = console.lines().collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    let seconds = options.seconds;
    Err(format!("no exit code from the virtual machine within {seconds} s; its console:\n{last}"))
}

/// What the machine's first process last said of this kind.
fn said<'a>(console: &'a str, kind: &str) -> Option<&'a str> {
    let of_init = console.lines().filter_map(|line| line.trim().strip_prefix("score-vm "));
    of_init.filter_map(|line| line.strip_prefix(kind)).next_back()
}

/// The programs with their libraries, and how they are called.
fn given(home: &Path, programs: &[Vec<String>]) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    archive.folder("given");
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    for words in programs {
        let (program, arguments) = words.split_first().ok_or("no program")?;
        let path = PathBuf::from(program);
        let mut called = program.clone();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.copy(&format!("given/{name}"), &path)?;
            called = format!("/given/{name}");
            files.push(path);
        } else if program.contains('/') {
            return Err(format!("{program}: no such file"));
        }
        // Else it is one of busybox's own, or rdma.
        let words = std::iter::once(&called).chain(arguments);
        lines.push(words.map(|word| quote(word)).collect::<Vec<_>>().join(" "));
    }
    // The same libibverbs as in the machine, whatever this one has.
    image::libraries(&mut archive, &home.join("root"), &files, &["libibverbs.so.1"])?;
    archive.file("command", 0o644, format!("{}\n", lines.join(" && ")).as_bytes());
    Ok(archive.finish())
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn start(home: &Path, options: &Options, disk: &Path, console: &Path) -> Result<Child, String> {
    let mut command = qemu(home);
    let serial = format!("file:{}", console.display());
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", "q35,accel=tcg", "-cpu", "max,la57=off"])
        .args(["-m", &options.memory.to_string(), "-smp", &options.processors.to_string()])
        .args(["-serial", &serial, "-serial", "stdio", "-append", KERNEL_OPTIONS])
        .arg("-kernel")
        .arg(home.join("kernel"))
        .arg("-initrd")
        .arg(disk)
        .stdin(Stdio::null());
    command.spawn().map_err(|error| format!("qemu: {error}"))
}

/// This machine's own qemu, or the unpacked one with its libraries and firmware.
fn qemu(home: &Path) -> Command {
    const NAME: &str = "qemu-system-x86_64";
    if run::have(NAME) {
        return Command::new(NAME);
    }
    let root = home.join("root");
    let mut command = Command::new(root.join("usr/bin").join(NAME));
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    let libraries = libraries.map(|folder| root.join(folder).display().to_string());
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        command.arg("-L").arg(root.join(firmware));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::{quote, said};

    #[test]
    fn the_exit_code_is_what_the_first_process_said_last() {
        let console = "[1.0] noise\r\nscore-vm ready 1.6\r\nscore-vm code 3\r\n";
        assert_eq!((said(console, "code "), said(console, "ready ")), (Some("3"), Some("1.6")));
        assert_eq!(said("score-vm ready", "code "), None);
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
