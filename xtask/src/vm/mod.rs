//! `cargo xtask vm`: runs a program in a virtual machine that has RDMA devices, on a machine that
//! has none. Debian's kernel with rdma_rxe (RoCE over the virtual machine's own Ethernet) and siw
//! (iWARP over its TCP) under qemu, by software emulation: what is fast there means nothing, what
//! is right there does. Two such machines on a wire run the program at the same time.
//!
//! Everything comes from Debian packages that are downloaded and unpacked below the target folder;
//! nothing is installed.

mod boot;
mod cpio;
mod image;
mod links;
mod packages;
mod siw;
mod tsc;

pub use boot::path_in_vm;

use std::path::PathBuf;

use crate::run;

const USAGE: &str = "usage: cargo xtask vm [-machines 1|2] [-smp N] [-memory MIB] \
                     [-limit SECONDS] [-give FILE]... PROGRAM [ARG...]";

/// What a run is asked for.
pub struct Options {
    /// One, or two that are joined by wires; SCORE_VM_MACHINE tells a program which it is on.
    pub machine_count: u32,
    /// Virtual processors: with one, a busy poll costs ticks of the clock.
    pub processor_count: u32,
    /// MiB of memory.
    pub memory_mib: u32,
    /// How long it may take, with the boot.
    pub timeout_s: u64,
    /// Files that are in /given besides the programs.
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

/// Where the machine's files are kept.
///
/// # Errors
/// There is no target folder.
fn work_dir() -> Result<PathBuf, String> {
    Ok(run::target_dir()?.join("vm"))
}

/// Prepares the machine where that was not done yet. Answers why it has no soft iWARP.
///
/// # Errors
/// Why this machine cannot have it.
pub fn prepare() -> Result<Option<String>, String> {
    let vm_dir = work_dir()?;
    let unpacked = packages::unpack(&vm_dir)?;
    let siw = siw::build(&vm_dir, &unpacked.root);
    image::build(&vm_dir, &unpacked, siw.as_deref().ok())?;
    Ok(siw.err())
}

/// Runs `programs`, each with its arguments, one after the other in one boot of the machine, until
/// one fails. Output comes as it is written; the answer is the last exit code.
///
/// # Errors
/// The machine did not run them to their end.
pub fn run_in_vm(options: &Options, programs: &[Vec<String>]) -> Result<i32, String> {
    boot::run(&work_dir()?, options, programs)
}

/// `cargo xtask vm`.
///
/// # Errors
/// The arguments are wrong, the machine cannot be had, or the program did not end with 0.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut options = Options::default();
    let mut rest = args;
    while let [name, value, more @ ..] = rest {
        let number =
            || value.parse::<u32>().map_err(|_| format!("{name} {value}: no number\n{USAGE}"));
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
    if let Some(reason) = prepare()? {
        println!("vm: {reason}");
    }
    let programs: Vec<Vec<String>> = rest.split(|word| word == "--").map(<[_]>::to_vec).collect();
    match run_in_vm(&options, &programs)? {
        0 => Ok(()),
        code => Err(format!("{program} ended with {code}")),
    }
}
