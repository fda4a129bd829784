//! One run of the machine, or of two.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Options;
use super::cpio::Archive;
use super::image;
use super::tsc;
use super::wires::Wires;
use crate::run;

/// For an emulated machine: nothing that costs time and shows nothing. A kernel that has failed
/// ends at once.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet loglevel=4 oops=panic panic=-1 mitigations=off nokaslr \
                              random.trust_cpu=on tsc=reliable no_timer_check audit=0 rdinit=/init";
/// What a kernel's report of its own fault begins with.
const FAULTS: [&str; 4] = ["kernel BUG at", "BUG: ", "Oops: ", "Kernel panic"];
/// A boot takes 4 s, on a busy machine 15; one in some dozens stops before its first line.
const BOOT: Duration = Duration::from_secs(60);
const BOOTS: u32 = 3;
/// Of the console, where a run did not come to its end.
const LAST_LINES: usize = 20;
/// Of what a kernel says that has failed: where, and called by whom.
const LINES_OF_A_FAULT: usize = 50;

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
    let disk = folder.join("files.cpio");
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let base = home.join("base.cpio");
    let mut files = fs::read(&base).map_err(|error| told(&base, error))?;
    files.extend(given(home, options, programs)?);
    fs::write(&disk, files).map_err(|error| told(&disk, error))?;
    for _ in 1..BOOTS {
        match once(home, options, folder)? {
            Some(texts) => return codes(&texts, options),
            None => println!("vm: it did not boot; once more"),
        }
    }
    let texts = once(home, options, folder)?;
    codes(&texts.ok_or("the virtual machine does not boot")?, options)
}

/// The consoles, after all have ended, one has ended badly, or their time is over. None: one did
/// not boot.
fn once(home: &Path, options: &Options, folder: &Path) -> Result<Option<Vec<String>>, String> {
    let wires = Wires::new(options.machines)?;
    let mut machines = Machines(Vec::new());
    for number in 1..=options.machines {
        machines.0.push(Machine::start(home, options, folder, &wires, number)?);
    }
    let (begin, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let mut booted = false;
    loop {
        booted = booted || machines.0.iter().all(Machine::is_ready);
        let hangs = !booted && begin.elapsed() > BOOT.min(limit);
        if machines.are_over()? || hangs || begin.elapsed() > limit {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let booted = booted || machines.0.iter().all(Machine::is_ready);
    Ok(booted.then(|| machines.0.iter().map(Machine::console).collect()))
}

/// Those of one run; none outlives it.
struct Machines(Vec<Machine>);

impl Machines {
    /// All have ended, or one badly: then the other would wait for it.
    fn are_over(&mut self) -> Result<bool, String> {
        let mut over = true;
        for machine in &mut self.0 {
            let ended = machine.child.try_wait().map_err(|error| error.to_string())?.is_some();
            let code = machine.code();
            if code.is_some_and(|code| code != 0) {
                return Ok(ended || self.0.len() > 1);
            }
            over &= ended;
        }
        Ok(over)
    }
}

struct Machine {
    child: Child,
    console: PathBuf,
    /// Copies its output, where there are two.
    copier: Option<JoinHandle<()>>,
}

impl Machine {
    fn start(
        home: &Path,
        options: &Options,
        folder: &Path,
        wires: &Wires,
        number: u32,
    ) -> Result<Machine, String> {
        let console = folder.join(format!("console{number}"));
        let _ = fs::remove_file(&console);
        let mut command = command(home, options, &folder.join("files.cpio"), &console);
        if options.machines > 1 {
            command.args(wires.arguments(number)).stdout(Stdio::piped());
        }
        let kernel = format!("{KERNEL_OPTIONS} tsc_early_khz={}", tsc::khz());
        command.args(["-append", &wires.kernel_options(&kernel, number)]);
        let mut child = command.spawn().map_err(|error| format!("qemu: {error}"))?;
        let output = child.stdout.take();
        let copier = output.map(|output| {
            std::thread::spawn(move || {
                // The first one's tests are counted by whoever reads this.
                let prefix = if number == 1 { String::new() } else { format!("{number}| ") };
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    println!("{prefix}{line}");
                }
            })
        });
        Ok(Machine { child, console, copier })
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    fn is_ready(&self) -> bool {
        said(&self.console(), "ready ").is_some()
    }

    fn code(&self) -> Option<i32> {
        said(&self.console(), "code ")?.parse().ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(copier) = self.copier.take() {
            let _ = copier.join();
        }
    }
}

/// The first exit code that is not 0. A machine may be switched off once it has said one.
fn codes(consoles: &[String], options: &Options) -> Result<i32, String> {
    let codes = consoles.iter().map(|console| code(console, options));
    let codes: Vec<Result<i32, String>> = codes.collect();
    if let Some(bad) = codes.iter().flatten().find(|code| **code != 0) {
        return Ok(*bad);
    }
    codes.into_iter().collect::<Result<Vec<_>, _>>().map(|_| 0)
}

fn code(console: &str, options: &Options) -> Result<i32, String> {
    if let Some(code) = said(console, "code ").and_then(|code| code.parse().ok()) {
        return Ok(code);
    }
    let lines: Vec<&str> = console.lines().collect();
    let is_fault = |line: &&str| FAULTS.iter().any(|word| line.contains(word));
    if let Some(first) = lines.iter().position(is_fault) {
        // What led to it is in the line before.
        let shown = lines.iter().skip(first.saturating_sub(1)).take(LINES_OF_A_FAULT);
        let shown = shown.map(|line| format!("\n{line}")).collect::<String>();
        return Err(format!("the kernel of the virtual machine has failed:{shown}"));
    }
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
fn given(home: &Path, options: &Options, programs: &[Vec<String>]) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    archive.folder("given");
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    for words in programs {
        let (program, arguments) = words.split_first().ok_or("no program")?;
        let path = PathBuf::from(program);
        let mut called = program.clone();
        if path.is_file() {
            called = inside(&path);
            files.push(path);
        } else if program.contains('/') {
            return Err(format!("{program}: no such file"));
        }
        // Else it is one of busybox's own, or rdma.
        let words = std::iter::once(&called).chain(arguments);
        lines.push(words.map(|word| quote(word)).collect::<Vec<_>>().join(" "));
    }
    files.extend(options.files.iter().cloned());
    files.sort();
    files.dedup();
    for path in &files {
        archive.copy(inside(path).trim_start_matches('/'), path)?;
    }
    // The same libibverbs as in the machine, whatever this one has.
    image::libraries(&mut archive, &home.join("root"), &files, &["libibverbs.so.1"])?;
    archive.file("command", 0o644, format!("{}\n", lines.join(" && ")).as_bytes());
    Ok(archive.finish())
}

/// Where a file of this machine is in that one.
pub fn inside(path: &Path) -> String {
    format!("/given/{}", path.file_name().unwrap_or_default().to_string_lossy())
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn command(home: &Path, options: &Options, disk: &Path, console: &Path) -> Command {
    let mut command = qemu(home);
    let serial = format!("file:{}", console.display());
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", "q35,accel=tcg", "-cpu", "max,la57=off"])
        .args(["-m", &options.memory.to_string(), "-smp", &options.processors.to_string()])
        .args(["-serial", &serial, "-serial", "stdio"])
        .arg("-kernel")
        .arg(home.join("kernel"))
        .arg("-initrd")
        .arg(disk)
        .stdin(Stdio::null());
    command
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
    use super::{Options, code, quote, said};

    #[test]
    fn the_exit_code_is_what_the_first_process_said_last() {
        let console = "[1.0] noise\r\nscore-vm ready 1.6\r\nscore-vm code 3\r\n";
        assert_eq!((said(console, "code "), said(console, "ready ")), (Some("3"), Some("1.6")));
        assert_eq!(said("score-vm ready", "code "), None);
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
    #[test]
    fn a_kernel_that_has_failed_is_shown_from_its_first_word() {
        let console =
            "score-vm ready 1.6\nnoise\nlist_del corruption\nkernel BUG at 59!\nRIP: here";
        let text = code(console, &Options::default()).unwrap_err();
        assert!(text.ends_with("has failed:\nlist_del corruption\nkernel BUG at 59!\nRIP: here"));
        let text = code("score-vm ready 1.6", &Options::default()).unwrap_err();
        assert!(text.starts_with("no exit code") && text.ends_with("ready 1.6"));
    }
}
