//! `pmtest` (pmtest(1)): latency, message rate and bandwidth between two nodes, compared with the
//! floor of the machine.

pub mod channel;
pub mod floor;
pub mod measure;
pub mod options;
pub mod pairs;
pub mod pin_cache;
pub mod results;
pub mod rma;

use std::ffi::c_int;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use score_proto::exit_code::{EXIT_FAILED, EXIT_USAGE};
use score_runtime::{Net, sc};

use crate::pmtest::channel::{Channel, open_loopback_pair};
use crate::pmtest::floor::FloorProbe;
use crate::pmtest::measure::MeasuringNode;
use crate::pmtest::options::{IdleNodeMode, PmtestOptions};
use crate::pmtest::results::SizeResult;
use crate::pmtest::rma::Rma;
use crate::runner::NodeIdentity;

/// The output of `-help`.
pub const USAGE: &str = "\
usage: scrun -nodes=2 pmtest [-latency|-bandwidth|-rate|-rma|-pin] [-size N[,N...]] [-json]

Measures between nodes 0 and 1. Without an option: latency, bandwidth and rate.
  -latency     time one way; on one host with the floor, a cache line bounced between the
               same cores
  -bare        on one host: latency of a bare ring instead of PM: each bounce of the line also
               has a payload, which is copied in and out
  -bandwidth   bytes per second in one direction; splits sizes longer than a message
  -rate        messages per second in one direction
  -rma         remote memory: a put of 8 bytes, with the floor; bytes per second of pmWrite and
               pmRead, with memcpy and process_vm_writev
  -area MIB    the memory that -rma uses as a ring, on each side (128)
  -pin         bytes per second of transfers that lock and unlock their memory, with hits and
               with misses in the pin-down cache
  -size N,...  bytes per message
  -json        an array with one object per size
  -rounds N    rounds of floor and messages alternately (20)
  -silent HOW  behaviour of further nodes: receive (they have sent to both and sleep in a
               blocking receive; the default), barrier (they have sent and wait in
               sc_barrier), never (they have not sent and wait in sc_barrier)
  -nopin       do not pin the two processes to cores of their own
  -pairs       all nodes in pairs: round trips per second of each pair in two seconds
  -alone N     without scrun: sends N messages of 8 bytes to itself, with -rma puts N times 8
               bytes, for counting instructions
";

/// An error message and its exit code.
pub type PmtestError = (String, u8);

fn pm_error(error: impl std::fmt::Display) -> PmtestError {
    (error.to_string(), EXIT_FAILED)
}

/// `-alone`: one thread is both sender and receiver.
///
/// # Errors
/// Returns an error if a PM function failed.
pub fn bench_single_node(messages: u64) -> Result<(), PmtestError> {
    let [sender, receiver] = open_loopback_pair().map_err(pm_error)?;
    let mut into = [0; 8];
    for number in 0..messages {
        let bytes = number.to_le_bytes();
        sender.send(1, &bytes).map_err(pm_error)?;
        receiver.receive(&mut into).map_err(pm_error)?;
        if into != bytes {
            return Err((format!("message {number} came back as {into:?}"), EXIT_FAILED));
        }
    }
    println!("{messages} messages of 8 bytes");
    Ok(())
}

/// `-rma -alone`: one thread does puts to its own process.
///
/// # Errors
/// Returns an error if a PM function failed.
pub fn bench_puts_single_node(puts: u64) -> Result<(), PmtestError> {
    let ends = open_loopback_pair().map_err(pm_error)?;
    rma::puts_single_node(&ends, puts)
        .map_err(|error| (rma::explain("-rma", &error), EXIT_FAILED))?;
    println!("{puts} puts of 8 bytes");
    Ok(())
}

/// Runs pmtest on one node under scrun. Returns the output of node 0.
///
/// # Errors
/// Returns an error if a measurement is not possible here, or has failed.
pub fn run(identity: NodeIdentity, options: &PmtestOptions) -> Result<String, PmtestError> {
    let net = Net::open(0).filter(|_| identity.nodes >= 2);
    let mut net = net.ok_or(("needs two nodes: scrun -nodes=2 pmtest".to_owned(), EXIT_USAGE))?;
    let channel = Channel::from_net(&net);
    if options.pairs {
        let rates = pairs::run(&channel, identity).map_err(pm_error)?;
        let json = |rates| format!("{:#}\n", pairs::json(rates));
        return Ok(if options.json { json(&rates) } else { pairs::table(&rates) });
    }
    if identity.node > 1 {
        return run_idle_node(&mut net, &channel, options).map(|()| String::new());
    }
    let mtu = channel.mtu(c_int::from(identity.node == 0)).map_err(pm_error)?;
    let sizes = options.sizes_for_mtu(mtu).map_err(|size| {
        (
            format!("-size {size}: a message has at most {mtu} bytes; only -bandwidth splits"),
            EXIT_USAGE,
        )
    })?;
    if options.rma {
        return bench_rma(&channel, identity, options);
    }
    if options.pin {
        return bench_pin_cache(&channel, identity, options);
    }
    let core = if options.unpinned { None } else { pin_to_core(identity.node as usize) };
    let results = bench_messages(&channel, identity, options, mtu, &sizes)?;
    if options.json {
        let objects: Vec<_> = results.iter().map(SizeResult::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(objects)));
    }
    let pinned = match core {
        Some(_) => "each pinned to its own core",
        None => "not pinned",
    };
    let header = format!("nodes 0 and 1 of {}, {pinned}; times one way\n", identity.nodes);
    Ok(header + &results::table(&results))
}

/// Runs `-rma` on nodes 0 and 1.
fn bench_rma(
    channel: &Channel,
    identity: NodeIdentity,
    options: &PmtestOptions,
) -> Result<String, PmtestError> {
    let area = options.area_mib << 20;
    let max_size = area / 2;
    let sizes = rma::sizes(&options.sizes, max_size).map_err(|size| {
        (format!("-size {size}: at most {max_size} bytes with -rma"), EXIT_USAGE)
    })?;
    if !options.unpinned {
        pin_to_core(identity.node as usize);
    }
    let is_first = identity.node == 0;
    let mut floor = sync_start(channel, identity, options)?;
    let mut rma = Rma::new(channel, is_first, area)
        .map_err(|error| (rma::explain("-rma", &error), EXIT_FAILED))?;
    let mut results = Vec::new();
    for size in sizes {
        results.push(rma.measure(size, floor.as_mut(), options.rounds).map_err(pm_error)?);
    }
    release_idle_nodes(channel, identity, options)?;
    if options.json {
        let objects: Vec<_> = results.iter().map(rma::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(objects)));
    }
    Ok(rma::table(&results))
}

/// Runs `-pin` on nodes 0 and 1.
fn bench_pin_cache(
    channel: &Channel,
    identity: NodeIdentity,
    options: &PmtestOptions,
) -> Result<String, PmtestError> {
    let sizes = if options.sizes.is_empty() { &pin_cache::SIZES[..] } else { &options.sizes };
    let is_first = identity.node == 0;
    sync_start(channel, identity, options)?;
    let results = pin_cache::run(channel, is_first, sizes, options.rounds);
    let results = results.map_err(|error| (rma::explain("-pin", &error), EXIT_FAILED))?;
    release_idle_nodes(channel, identity, options)?;
    if options.json {
        let objects: Vec<_> = results.iter().map(pin_cache::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(objects)));
    }
    Ok(pin_cache::table(&results))
}

fn bench_messages(
    channel: &Channel,
    identity: NodeIdentity,
    options: &PmtestOptions,
    mtu: usize,
    sizes: &[usize],
) -> Result<Vec<SizeResult>, PmtestError> {
    let is_first = identity.node == 0;
    let mut floor = sync_start(channel, identity, options)?;
    let mut node = MeasuringNode::new(channel, is_first, mtu, options.bare);
    let mut results = Vec::new();
    for &size in sizes {
        let mut result = SizeResult { size, latency: None, bandwidth: None, rate: None };
        if options.latency {
            result.latency =
                Some(node.latency(floor.as_mut(), size, options.rounds).map_err(pm_error)?);
        }
        if options.bandwidth {
            result.bandwidth = Some(node.bandwidth(size).map_err(pm_error)?);
        }
        if options.rate {
            result.rate = Some(node.rate(size).map_err(pm_error)?);
        }
        results.push(result);
    }
    release_idle_nodes(channel, identity, options)?;
    Ok(results)
}

/// Opens the floor, and waits until the other nodes have sent their messages, so that these do not
/// disturb the measurement.
fn sync_start(
    channel: &Channel,
    identity: NodeIdentity,
    options: &PmtestOptions,
) -> Result<Option<FloorProbe>, PmtestError> {
    let is_first = identity.node == 0;
    let floor = FloorProbe::open(is_first, !is_first).map_err(pm_error)?;
    if options.bare && floor.is_none() {
        return Err((
            "-bare: the job has several hosts; run it on one host".to_owned(),
            EXIT_USAGE,
        ));
    }
    if options.idle_mode != IdleNodeMode::Never {
        let mut message = [0; 1];
        for _ in 2..identity.nodes {
            channel.receive(&mut message).map_err(pm_error)?;
        }
    }
    sc::barrier().map_err(pm_error)?;
    Ok(floor)
}

/// Lets the other nodes exit.
fn release_idle_nodes(
    channel: &Channel,
    identity: NodeIdentity,
    options: &PmtestOptions,
) -> Result<(), PmtestError> {
    let is_first = identity.node == 0;
    match options.idle_mode {
        IdleNodeMode::Receive if is_first => {
            for node in 2..identity.nodes {
                channel.send(node as c_int, &[0]).map_err(pm_error)?;
            }
        }
        IdleNodeMode::Receive => {}
        IdleNodeMode::Barrier | IdleNodeMode::Never => sc::barrier().map_err(pm_error)?,
    }
    Ok(())
}

/// Runs a node that does not measure. It may send at the start, and then stays idle.
fn run_idle_node(
    net: &mut Net,
    channel: &Channel,
    options: &PmtestOptions,
) -> Result<(), PmtestError> {
    FloorProbe::open(false, false).map_err(pm_error)?;
    if options.idle_mode != IdleNodeMode::Never {
        for node in 0..2 {
            channel.send(node, &[0]).map_err(pm_error)?;
        }
    }
    sc::barrier().map_err(pm_error)?;
    match options.idle_mode {
        IdleNodeMode::Receive => net.receive_blocking().map(|_| ()).map_err(pm_error),
        IdleNodeMode::Barrier | IdleNodeMode::Never => sc::barrier().map_err(pm_error),
    }
}

/// Pins this process to a core of its own, if two cores are available.
fn pin_to_core(index: usize) -> Option<usize> {
    let self_pid = Pid::from_raw(0);
    let allowed = sched_getaffinity(self_pid).ok()?;
    let cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| allowed.is_set(*core) == Ok(true)).collect();
    let core = *cores.get(index).filter(|_| cores.len() >= 2)?;
    let mut single_core = CpuSet::new();
    single_core.set(core).ok()?;
    sched_setaffinity(self_pid, &single_core).ok()?;
    Some(core)
}
