//! `cargo xtask vm`: runs a program in a virtual machine with RDMA devices. It boots Debian's
//! kernel under qemu with rdma_rxe (RoCE over the virtual machine's own Ethernet). Processors are
//! emulated by software, so results are meaningful and speeds are not. Two such machines, joined by
//! wires, can run the program at the same time.
//!
//! All parts come from Debian packages that are downloaded and unpacked below the target directory.
//! Nothing is installed.

mod boot;
mod cpio;
mod image;
mod links;
mod packages;
mod tsc;

pub use boot::path_in_vm;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::run;

const USAGE: &str = "usage: cargo xtask vm [-machines 1|2] [-smp N] [-memory MIB] \
                     [-limit SECONDS] [-give FILE]... PROGRAM [ARG...]";

/// The options of a run.
pub struct Options {
    /// The number of machines: 1, or 2 that are joined by wires. SCORE_VM_MACHINE is the number of
    /// the machine, for programs.
    pub machine_count: u32,
    /// The number of virtual processors. With one processor, a busy poll costs ticks of the clock.
    pub processor_count: u32,
    /// MiB of memory.
    pub memory_mib: u32,
    /// Time limit in seconds, including the boot.
    pub timeout_s: u64,
    /// Additional files in /given.
    pub files: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            machine_count: 1,
            processor_count: 2,
            memory_mib: 512,
            timeout_s: 120,
            files: Vec::new(),
        }
    }
}

/// The directory with the machine's files.
///
/// # Errors
/// Returns an error if the target directory cannot be determined.
fn work_dir() -> Result<PathBuf, String> {
    Ok(run::target_dir()?.join("vm"))
}

/// Prepares the machine unless that was done already.
///
/// # Errors
/// Why this system cannot run the machine.
pub fn prepare() -> Result<(), String> {
    // Two steps of `cargo xtask test` may prepare the machine at the same time.
    static PREPARING: Mutex<()> = Mutex::new(());
    let _guard = PREPARING.lock().unwrap_or_else(PoisonError::into_inner);
    let vm_dir = work_dir()?;
    let unpacked = packages::unpack(&vm_dir)?;
    image::build(&vm_dir, &unpacked)
}

/// Runs `programs`, each with its arguments, one after the other in one boot of the machine, until
/// one fails. Shows their output as they write it. Returns the last exit code.
///
/// # Errors
/// Returns an error if the machine did not run them to their end.
pub fn run_in_vm(options: &Options, programs: &[Vec<String>]) -> Result<i32, String> {
    boot::run(&work_dir()?, options, programs)
}

/// `cargo xtask vm`.
///
/// # Errors
/// Returns an error if the arguments are wrong, the machine is not available, or the program did
/// not exit with 0.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut options = Options::default();
    let mut rest = args;
    while let [name, value, more @ ..] = rest {
        let number =
            || value.parse::<u32>().map_err(|_| format!("{name} {value}: not a number\n{USAGE}"));
        match name.as_str() {
            "-machines" => options.machine_count = number()?.clamp(1, 2),
            "-smp" => options.processor_count = number()?,
            "-memory" => options.memory_mib = number()?,
            "-limit" => options.timeout_s = number()?.into(),
            "-give" => options.files.push(value.into()),
            _ => break,
        }
        rest = more;
    }
    let Some(program) = rest.first().filter(|name| !name.starts_with('-')) else {
        return Err(USAGE.into());
    };
    prepare()?;
    let programs: Vec<Vec<String>> = rest.split(|word| word == "--").map(<[_]>::to_vec).collect();
    match run_in_vm(&options, &programs)? {
        0 => Ok(()),
        code => Err(format!("{program} ended with {code}")),
    }
}
