//! Compares the wires of PM/Ethernet with TCP: two processes in two network namespaces joined by
//! veth, each spinning on its own processor. `cargo xtask bench ethernet` runs it; by hand:
//!
//! ```text
//! score-wires latency [OPTIONS] [WIRE...]     ns one way of 8 bytes: median, lowest 5 %
//! score-wires bandwidth [OPTIONS] [WIRE...]   Gbit/s of payload
//! score-wires write|read [OPTIONS] [WIRE...]  Gbit/s of remote memory of pmAlloc, over the device
//! score-wires write-other|read-other ...      Gbit/s of any other remote memory
//! score-wires beside-write|beside-read-other|...  remote memory and messages alternately: ratio of
//!                                             their rates (median, quartiles), and both medians
//! score-wires cost [WIRE...]                  processor ns of a message, an empty poll and a KiB
//! score-wires composite [-cores A,B]          ns of a message over plain and composite contexts:
//!                                             one way (as above), and of one thread
//! score-wires hosts [-mtu N] PROGRAM A B      runs any program, see below
//! ```
//! A WIRE is `tcp`, `udp`, `packet` or `xdp`, or the device over one of them: `pm-udp`,
//! `pm-packet`, `pm-xdp`. The default is all of them. OPTIONS are `-mtu N`, `-cores A,B` and
//! `-seconds S`; for the device also `-links N`, `-rate MBIT` of each link, and
//! `-loss drop=P,seed=N`. `hosts` starts `PROGRAM A` on the first host and `PROGRAM B` on the
//! second, and shows the output of the second (for example of iperf3). All commands need root.

mod composite;
mod controller;
mod cost;
mod hosts;
mod node;
mod peer_process;
mod raw_packets;
mod rma_vs_messages;
mod tcp;

use hosts::NetNsPair;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// All values of WIRE. TCP is the first, so that it warms up the machine for the others.
const WIRES: [&str; 7] = ["tcp", "udp", "packet", "xdp", "pm-udp", "pm-packet", "pm-xdp"];

type BenchResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&words) {
        eprintln!("score-wires: {error}");
        std::process::exit(1);
    }
}

fn run(words: &[String]) -> BenchResult<()> {
    let (command, mut rest) =
        words.split_first().ok_or("no command (for example latency, bandwidth or hosts)")?;
    if command == "end" {
        return peer_process::run(rest);
    }
    let mut options = Options::default();
    while let [name, value, more @ ..] = rest
        && name.starts_with('-')
    {
        match name.as_str() {
            "-mtu" => options.mtu = value.parse()?,
            "-seconds" => options.seconds = value.parse()?,
            "-links" => options.link_count = value.parse()?,
            "-rate" => options.rate_mbit = value.parse()?,
            "-loss" => options.loss.clone_from(value),
            "-cores" => {
                let (first, second) = value.split_once(',').ok_or("-cores A,B")?;
                options.cores = [first.parse()?, second.parse()?];
            }
            name => return Err(format!("unknown option {name}").into()),
        }
        rest = more;
    }
    if command == "composite" {
        return composite::run(options.cores);
    }
    let hosts = NetNsPair::new(options.mtu, options.link_count, options.rate_mbit)?;
    let is_selected = |wire: &&str| rest.is_empty() || rest.iter().any(|word| word == wire);
    let wires: Vec<&str> = WIRES.into_iter().filter(is_selected).collect();
    match (command.as_str(), rest) {
        (
            "latency" | "bandwidth" | "write" | "read" | "write-other" | "read-other"
            | "beside-write" | "beside-read" | "beside-write-other" | "beside-read-other",
            _,
        ) => {
            for wire in wires {
                let is_supported = match command.as_str() {
                    "latency" => true,
                    "bandwidth" => wire != "tcp",
                    _ => wire.starts_with(peer_process::DEVICE_PREFIX),
                };
                if !is_supported {
                    continue;
                }
                let result = measure(&hosts, &options, command, wire)?;
                println!("{wire} {result}");
            }
            Ok(())
        }
        ("cost", _) => cost::run(&hosts, &wires),
        ("hosts", [program, first_args, second_args]) => {
            hosts.run_on_both(&options.cores, program, [first_args, second_args])
        }
        _ => Err(format!("unknown command {command}, or wrong arguments").into()),
    }
}

/// The values of the options.
struct Options {
    mtu: usize,
    cores: [usize; 2],
    seconds: f64,
    link_count: usize,
    rate_mbit: u32,
    loss: String,
}

impl Default for Options {
    fn default() -> Options {
        let (mtu, cores, seconds) = (1500, [0, 1], 1.0);
        Options { mtu, cores, seconds, link_count: 1, rate_mbit: 0, loss: String::new() }
    }
}

/// A running process on one of the hosts.
struct RemoteProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl RemoteProcess {
    fn start(
        hosts: &NetNsPair,
        options: &Options,
        measurement: &str,
        wire: &str,
        k: usize,
    ) -> BenchResult<RemoteProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["end", measurement, wire, &k.to_string(), &hosts.path(k)])
            .args([options.cores[k].to_string(), options.seconds.to_string()])
            .args([options.link_count.to_string(), options.loss.clone()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let pipes = input.zip(output.map(BufReader::new));
        let (input, output) = pipes.ok_or("no pipes")?;
        Ok(RemoteProcess { child, input, output })
    }

    fn read_line(&mut self) -> BenchResult<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err("a process exited early".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        // The process ends by itself after its time. After an error elsewhere it must not continue
        // to spin.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures once. Returns the output of the first host's process.
fn measure(
    hosts: &NetNsPair,
    options: &Options,
    measurement: &str,
    wire: &str,
) -> BenchResult<String> {
    let mut processes = [
        RemoteProcess::start(hosts, options, measurement, wire, 0)?,
        RemoteProcess::start(hosts, options, measurement, wire, 1)?,
    ];
    let addresses = [processes[0].read_line()?, processes[1].read_line()?];
    for (k, process) in processes.iter_mut().enumerate() {
        writeln!(process.input, "{}", addresses[1 - k])?;
    }
    let result = processes[0].read_line()?;
    std::thread::sleep(Duration::from_millis(1));
    Ok(result)
}
