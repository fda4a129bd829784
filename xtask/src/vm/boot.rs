//! Boots one or two machines for one run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Options;
use super::cpio::Archive;
use super::image;
use super::links::VmLinks;
use super::tsc;
use crate::run;

/// Options for the kernel of an emulated machine. They disable features that cost time and check
/// nothing. A kernel that fails exits at once.
const KERNEL_OPTIONS: &str = "console=ttyS0 quiet loglevel=4 oops=panic panic=-1 mitigations=off nokaslr \
                              random.trust_cpu=on tsc=reliable no_timer_check audit=0 rdinit=/init";
/// Texts that begin a kernel's report of its own failure.
const KERNEL_FAULT_MARKERS: [&str; 4] = ["kernel BUG at", "BUG: ", "Oops: ", "Kernel panic"];
/// A boot takes 4 s, or 15 s on a busy machine. A boot that hangs before its first line is
/// repeated.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_BOOT_ATTEMPTS: u32 = 3;
/// The number of last lines of the console that are shown if a run did not end properly.
const LAST_LINES: usize = 20;
/// The number of lines of a kernel's failure report that are shown: the location and its callers.
const FAULT_CONTEXT_LINES: usize = 50;

/// Boots, runs, and returns the program's exit code.
///
/// # Errors
/// Returns an error if a program does not exist, qemu does not start, or no exit code was reported
/// within the time.
pub fn run(vm_dir: &Path, options: &Options, programs: &[Vec<String>]) -> Result<i32, String> {
    let folder = vm_dir.join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let result = run_in_folder(vm_dir, &folder, options, programs);
    let _ = fs::remove_dir_all(&folder);
    result
}

fn run_in_folder(
    vm_dir: &Path,
    folder: &Path,
    options: &Options,
    programs: &[Vec<String>],
) -> Result<i32, String> {
    let initrd_path = folder.join("files.cpio");
    let io_error = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let base = vm_dir.join("base.cpio");
    let mut initrd = fs::read(&base).map_err(|error| io_error(&base, error))?;
    initrd.extend(payload_archive(vm_dir, options, programs)?);
    fs::write(&initrd_path, initrd).map_err(|error| io_error(&initrd_path, error))?;
    for _ in 1..MAX_BOOT_ATTEMPTS {
        match boot_once(vm_dir, options, folder)? {
            Some(texts) => return overall_exit_code(&texts, options),
            None => println!("vm: the machine did not boot; trying again"),
        }
    }
    let texts = boot_once(vm_dir, options, folder)?;
    overall_exit_code(&texts.ok_or("the virtual machine does not boot")?, options)
}

/// Returns the consoles after all machines have ended, one has failed, or the time is over. Returns
/// `None` if a machine did not boot.
fn boot_once(
    vm_dir: &Path,
    options: &Options,
    folder: &Path,
) -> Result<Option<Vec<String>>, String> {
    let links = VmLinks::new(options.machine_count)?;
    let mut machines = Machines(Vec::new());
    for number in 1..=options.machine_count {
        machines.0.push(Machine::start(vm_dir, options, folder, &links, number)?);
    }
    let (begin, timeout) = (Instant::now(), Duration::from_secs(options.timeout_s));
    let mut booted = false;
    loop {
        booted = booted || machines.0.iter().all(Machine::is_ready);
        let is_hung = !booted && begin.elapsed() > BOOT_TIMEOUT.min(timeout);
        if machines.have_exited()? || is_hung || begin.elapsed() > timeout {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let booted = booted || machines.0.iter().all(Machine::is_ready);
    Ok(booted.then(|| machines.0.iter().map(Machine::console_text).collect()))
}

/// The machines of one run. They end when this value is dropped.
struct Machines(Vec<Machine>);

impl Machines {
    /// Whether all machines have ended or one has failed. After a failure the other machine would
    /// wait for the failed one.
    fn have_exited(&mut self) -> Result<bool, String> {
        let mut all_exited = true;
        for machine in &mut self.0 {
            let has_exited = machine.child.try_wait().map_err(|error| error.to_string())?.is_some();
            let code = machine.exit_code();
            if code.is_some_and(|code| code != 0) {
                return Ok(has_exited || self.0.len() > 1);
            }
            all_exited &= has_exited;
        }
        Ok(all_exited)
    }
}

struct Machine {
    child: Child,
    console_path: PathBuf,
    /// The thread that copies the machine's output, if there are two machines.
    output_thread: Option<JoinHandle<()>>,
}

impl Machine {
    fn start(
        vm_dir: &Path,
        options: &Options,
        folder: &Path,
        links: &VmLinks,
        number: u32,
    ) -> Result<Machine, String> {
        let console_path = folder.join(format!("console{number}"));
        let _ = fs::remove_file(&console_path);
        let mut command = qemu_command(vm_dir, options, &folder.join("files.cpio"), &console_path);
        if options.machine_count > 1 {
            command.args(links.qemu_arguments(number)).stdout(Stdio::piped());
        }
        let kernel = format!("{KERNEL_OPTIONS} tsc_early_khz={}", tsc::khz());
        command.args(["-append", &links.kernel_options(&kernel, number)]);
        let mut child = command.spawn().map_err(|error| format!("qemu: {error}"))?;
        let output = child.stdout.take();
        let output_thread = output.map(|output| {
            std::thread::spawn(move || {
                // The caller counts the tests in the first machine's output, so its lines get no
                // prefix.
                let prefix = if number == 1 { String::new() } else { format!("{number}| ") };
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    println!("{prefix}{line}");
                }
            })
        });
        Ok(Machine { child, console_path, output_thread })
    }

    fn console_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console_path).unwrap_or_default()).into_owned()
    }

    fn is_ready(&self) -> bool {
        last_report(&self.console_text(), "ready ").is_some()
    }

    fn exit_code(&self) -> Option<i32> {
        last_report(&self.console_text(), "code ")?.parse().ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(output_thread) = self.output_thread.take() {
            let _ = output_thread.join();
        }
    }
}

/// The first exit code that is not 0. After a failure of one machine, the other may have no code.
fn overall_exit_code(consoles: &[String], options: &Options) -> Result<i32, String> {
    let exit_codes = consoles.iter().map(|console| parse_exit_code(console, options));
    let exit_codes: Vec<Result<i32, String>> = exit_codes.collect();
    if let Some(failure) = exit_codes.iter().flatten().find(|code| **code != 0) {
        return Ok(*failure);
    }
    exit_codes.into_iter().collect::<Result<Vec<_>, _>>().map(|_| 0)
}

fn parse_exit_code(console: &str, options: &Options) -> Result<i32, String> {
    if let Some(code) = last_report(console, "code ").and_then(|code| code.parse().ok()) {
        return Ok(code);
    }
    let lines: Vec<&str> = console.lines().collect();
    let is_fault = |line: &&str| KERNEL_FAULT_MARKERS.iter().any(|word| line.contains(word));
    if let Some(first) = lines.iter().position(is_fault) {
        // The line before the marker names the cause.
        let fault_lines = lines.iter().skip(first.saturating_sub(1)).take(FAULT_CONTEXT_LINES);
        let fault_text = fault_lines.map(|line| format!("\n{line}")).collect::<String>();
        return Err(format!("the kernel of the virtual machine has failed:{fault_text}"));
    }
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
    let seconds = options.timeout_s;
    Err(format!("no exit code from the virtual machine within {seconds} s; its console:\n{last}"))
}

/// The last report of this kind by the machine's first process.
fn last_report<'a>(console: &'a str, kind: &str) -> Option<&'a str> {
    let init_lines = console.lines().filter_map(|line| line.trim().strip_prefix("score-vm "));
    init_lines.filter_map(|line| line.strip_prefix(kind)).next_back()
}

/// The archive of the programs with their libraries, and the command lines.
fn payload_archive(
    vm_dir: &Path,
    options: &Options,
    programs: &[Vec<String>],
) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    archive.add_directory("given");
    let (mut files, mut command_lines) = (Vec::new(), Vec::new());
    for words in programs {
        let (program, arguments) = words.split_first().ok_or("no program")?;
        let path = PathBuf::from(program);
        let mut command_word = program.clone();
        if path.is_file() {
            command_word = path_in_vm(&path);
            files.push(path);
        } else if program.contains('/') {
            return Err(format!("{program}: no such file"));
        }
        // A word without a slash is a busybox applet, or rdma.
        let words = std::iter::once(&command_word).chain(arguments);
        command_lines.push(words.map(|word| quote(word)).collect::<Vec<_>>().join(" "));
    }
    files.extend(options.files.iter().cloned());
    files.sort();
    files.dedup();
    for path in &files {
        archive.add_copy_of(path_in_vm(path).trim_start_matches('/'), path)?;
    }
    // The base archive has libibverbs already, in the version that its provider needs.
    image::add_libraries(&mut archive, &vm_dir.join("root"), &files, &["libibverbs.so.1"])?;
    archive.add_file("command", 0o644, format!("{}\n", command_lines.join(" && ")).as_bytes());
    Ok(archive.finish())
}

/// The path in the virtual machine of a file of this system.
pub fn path_in_vm(path: &Path) -> String {
    format!("/given/{}", path.file_name().unwrap_or_default().to_string_lossy())
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn qemu_command(vm_dir: &Path, options: &Options, initrd_path: &Path, console: &Path) -> Command {
    let mut command = qemu_program(vm_dir);
    let serial = format!("file:{}", console.display());
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-machine", "q35,accel=tcg", "-cpu", "max,la57=off"])
        .args(["-m", &options.memory_mib.to_string(), "-smp", &options.processor_count.to_string()])
        .args(["-serial", &serial, "-serial", "stdio"])
        .arg("-kernel")
        .arg(vm_dir.join("kernel"))
        .arg("-initrd")
        .arg(initrd_path)
        .stdin(Stdio::null());
    command
}

/// The qemu of this system, or else the unpacked one with its libraries and firmware.
fn qemu_program(vm_dir: &Path) -> Command {
    const NAME: &str = "qemu-system-x86_64";
    if run::is_installed(NAME) {
        return Command::new(NAME);
    }
    let root = vm_dir.join("root");
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
    use super::{Options, last_report, parse_exit_code, quote};

    #[test]
    fn the_exit_code_is_in_the_last_report_of_init() {
        let console = "[1.0] noise\r\nscore-vm ready 1.6\r\nscore-vm code 3\r\n";
        assert_eq!(
            (last_report(console, "code "), last_report(console, "ready ")),
            (Some("3"), Some("1.6"))
        );
        assert_eq!(last_report("score-vm ready", "code "), None);
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
    #[test]
    fn a_kernel_fault_is_shown_from_its_first_line() {
        let console =
            "score-vm ready 1.6\nnoise\nlist_del corruption\nkernel BUG at 59!\nRIP: here";
        let text = parse_exit_code(console, &Options::default()).unwrap_err();
        assert!(text.ends_with("has failed:\nlist_del corruption\nkernel BUG at 59!\nRIP: here"));
        let text = parse_exit_code("score-vm ready 1.6", &Options::default()).unwrap_err();
        assert!(text.starts_with("no exit code") && text.ends_with("ready 1.6"));
    }
}
