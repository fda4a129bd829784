//! `cargo xtask vm`: runs a program in a virtual machine that has an RDMA device, on a machine that
//! has none. Debian's kernel with rdma_rxe (RDMA over the virtual machine's own Ethernet) under
//! qemu, by software emulation: what is fast there means nothing, what is right there does.
//!
//! Everything comes from Debian packages that are downloaded and unpacked below the target folder;
//! nothing is installed.

mod boot;
mod cpio;
mod image;
mod packages;

use std::path::PathBuf;

use crate::run;

const USAGE: &str =
    "usage: cargo xtask vm [-smp N] [-memory MIB] [-limit SECONDS] PROGRAM [ARG...]";

/// What a run is asked for.
pub struct Options {
    /// Virtual processors: with one, a busy poll costs ticks of the clock.
    pub processors: u32,
    /// MiB of memory.
    pub memory: u32,
    /// How long it may take, with the boot.
    pub seconds: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { processors: 2, memory: 512, seconds: 120 }
    }
}

/// Where the machine's files are kept.
///
/// # Errors
/// There is no target folder.
fn home() -> Result<PathBuf, String> {
    Ok(run::target()?.join("vm"))
}

/// Prepares the machine where that was not done yet.
///
/// # Errors
/// Why this machine cannot have it.
pub fn prepare() -> Result<(), String> {
    let home = home()?;
    let unpacked = packages::unpack(&home)?;
    image::build(&home, &unpacked)
}

/// Runs `programs`, each with its arguments, one after the other in one boot of the machine, until
/// one fails. Output comes as it is written; the answer is the last exit code.
///
/// # Errors
/// The machine did not run them to their end.
pub fn call(options: &Options, programs: &[Vec<String>]) -> Result<i32, String> {
    boot::run(&home()?, options, programs)
}

/// `cargo xtask vm`.
///
/// # Errors
/// The arguments are wrong, the machine cannot be had, or the program did not end with 0.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut options = Options::default();
    let mut rest = args;
    while let [name, value, more @ ..] = rest {
        let number = || value.parse().map_err(|_| format!("{name} {value}: no number\n{USAGE}"));
        match name.as_str() {
            "-smp" => options.processors = number()?,
            "-memory" => options.memory = number()?,
            "-limit" => options.seconds = number()?.into(),
            _ => break,
        }
        rest = more;
    }
    let Some(program) = rest.first().filter(|name| !name.starts_with('-')) else {
        return Err(USAGE.into());
    };
    prepare()?;
    let programs: Vec<Vec<String>> = rest.split(|word| word == "--").map(<[_]>::to_vec).collect();
    match call(&options, &programs)? {
        0 => Ok(()),
        code => Err(format!("{program} ended with {code}")),
    }
}
