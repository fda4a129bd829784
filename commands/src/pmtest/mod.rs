//! `pmtest` (pmtest(1)): latency, message rate and bandwidth between two nodes, beside the floor
//! of the machine.

pub mod channel;
pub mod figures;
pub mod floor;
pub mod measure;
pub mod options;
pub mod pairs;
pub mod pins;
pub mod rma;

use std::ffi::c_int;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use score_runtime::{Net, sc};

use crate::pmtest::channel::{Channel, both_ends};
use crate::pmtest::figures::Figures;
use crate::pmtest::floor::Floor;
use crate::pmtest::measure::Side;
use crate::pmtest::options::{Options, Silent};
use crate::pmtest::rma::Rma;
use crate::station::Place;

/// What `-help` prints.
pub const USAGE: &str = "\
usage: scrun -nodes=2 pmtest [-latency|-bandwidth|-rate|-rma|-pin] [-size N[,N...]] [-json]

Measures between nodes 0 and 1; everything when nothing is chosen.
  -latency     time one way; on one host beside the floor, a cache line bounced between the
               same cores
  -bare        on one host: latency of a bare ring instead of PM, where each line comes with a
               payload that is copied in and out, and nothing else
  -bandwidth   bytes per second in one direction; splits what is longer than a message
  -rate        messages per second in one direction
  -rma         remote memory: a put of 8 bytes beside the floor; bytes per second of pmWrite and
               pmRead beside memcpy and process_vm_writev
  -area MIB    the memory that -rma goes round over, on each side (128)
  -pin         bytes per second of transfers that lock their memory before and unlock it after,
               where the pin-down cache has it and where it has not
  -size N,...  bytes per message
  -json        an array with one object per size
  -rounds N    rounds in which floor and messages take turns (20)
  -silent HOW  what further nodes do: receive (they have sent to both and sleep in a
               blocking receive; the default), barrier (they have sent and wait in
               sc_barrier), never (they have not sent and wait in sc_barrier)
  -nopin       do not pin the two processes to cores of their own
  -pairs       all nodes, two and two: round trips per second of each pair in two seconds
  -alone N     without scrun: sends N messages of 8 bytes to itself, with -rma puts N times 8
               bytes, for counting instructions
";

/// What went wrong, and the exit code that goes with it.
pub type Refusal = (String, u8);

fn broken(error: impl std::fmt::Display) -> Refusal {
    (error.to_string(), 1)
}

/// `-alone`: one thread is both ends.
///
/// # Errors
/// A PM function failed.
pub fn alone(messages: u64) -> Result<(), Refusal> {
    let [here, there] = both_ends().map_err(broken)?;
    let mut into = [0; 8];
    for number in 0..messages {
        let bytes = number.to_le_bytes();
        here.send(1, &bytes).map_err(broken)?;
        there.receive(&mut into).map_err(broken)?;
        if into != bytes {
            return Err((format!("message {number} came back as {into:?}"), 1));
        }
    }
    println!("{messages} messages of 8 bytes");
    Ok(())
}

/// `-rma -alone`: the same with remote memory.
///
/// # Errors
/// A PM function failed.
pub fn puts_alone(puts: u64) -> Result<(), Refusal> {
    let ends = both_ends().map_err(broken)?;
    rma::alone(&ends, puts).map_err(|error| (rma::explain("-rma", &error), 1))?;
    println!("{puts} puts of 8 bytes");
    Ok(())
}

/// One node's part under scrun; what node 0 prints.
///
/// # Errors
/// What cannot be measured, or went wrong.
pub fn run(place: Place, options: &Options) -> Result<String, Refusal> {
    let net = Net::open(0).filter(|_| place.nodes >= 2);
    let mut net = net.ok_or(("needs two nodes: scrun -nodes=2 pmtest".to_owned(), 2))?;
    let channel = Channel::of(&net);
    if options.pairs {
        let rates = pairs::run(&channel, place).map_err(broken)?;
        let json = |rates| format!("{:#}\n", pairs::json(rates));
        return Ok(if options.json { json(&rates) } else { pairs::table(&rates) });
    }
    if place.node > 1 {
        return silent(&mut net, &channel, options).map(|()| String::new());
    }
    let mtu = channel.mtu(c_int::from(place.node == 0)).map_err(broken)?;
    let sizes = options.fitting(mtu).map_err(|size| {
        (format!("-size {size}: a message has at most {mtu} bytes; -bandwidth alone splits"), 2)
    })?;
    if options.rma {
        return remote(&channel, place, options);
    }
    if options.pin {
        return pinned(&channel, place, options);
    }
    let core = if options.unpinned { None } else { pin(place.node as usize) };
    let figures = measured(&channel, place, options, mtu, &sizes)?;
    if options.json {
        let lines: Vec<_> = figures.iter().map(Figures::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(lines)));
    }
    let pinned = match core {
        Some(_) => "each pinned to a core of its own",
        None => "not pinned",
    };
    let head = format!("nodes 0 and 1 of {}, {pinned}; times one way\n", place.nodes);
    Ok(head + &figures::table(&figures))
}

/// `-rma`: the part of nodes 0 and 1.
fn remote(channel: &Channel, place: Place, options: &Options) -> Result<String, Refusal> {
    let area = options.area << 20;
    let most = area / 2;
    let sizes = rma::sizes(&options.sizes, most)
        .map_err(|size| (format!("-size {size}: {most} bytes at most with -rma"), 2))?;
    if !options.unpinned {
        pin(place.node as usize);
    }
    let first = place.node == 0;
    let mut floor = greeted(channel, place, options)?;
    let mut rma =
        Rma::new(channel, first, area).map_err(|error| (rma::explain("-rma", &error), 1))?;
    let mut lines = Vec::new();
    for size in sizes {
        lines.push(rma.measure(size, floor.as_mut(), options.rounds).map_err(broken)?);
    }
    released(channel, place, options)?;
    if options.json {
        let lines: Vec<_> = lines.iter().map(rma::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(lines)));
    }
    Ok(rma::table(&lines))
}

/// `-pin`: the part of nodes 0 and 1.
fn pinned(channel: &Channel, place: Place, options: &Options) -> Result<String, Refusal> {
    let sizes = if options.sizes.is_empty() { &pins::SIZES[..] } else { &options.sizes };
    let first = place.node == 0;
    greeted(channel, place, options)?;
    let lines = pins::run(channel, first, sizes, options.rounds);
    let lines = lines.map_err(|error| (rma::explain("-pin", &error), 1))?;
    released(channel, place, options)?;
    if options.json {
        let lines: Vec<_> = lines.iter().map(pins::json).collect();
        return Ok(format!("{:#}\n", serde_json::Value::from(lines)));
    }
    Ok(pins::table(&lines))
}

fn measured(
    channel: &Channel,
    place: Place,
    options: &Options,
    mtu: usize,
    sizes: &[usize],
) -> Result<Vec<Figures>, Refusal> {
    let first = place.node == 0;
    let mut floor = greeted(channel, place, options)?;
    let mut side = Side::new(channel, first, mtu, options.bare);
    let mut figures = Vec::new();
    for &size in sizes {
        let mut line = Figures { size, latency: None, bandwidth: None, rate: None };
        if options.latency {
            line.latency =
                Some(side.latency(floor.as_mut(), size, options.rounds).map_err(broken)?);
        }
        if options.bandwidth {
            line.bandwidth = Some(side.bandwidth(size).map_err(broken)?);
        }
        if options.rate {
            line.rate = Some(side.rate(size).map_err(broken)?);
        }
        figures.push(line);
    }
    released(channel, place, options)?;
    Ok(figures)
}

/// The floor, after the other nodes have sent: no measured message may come among the greetings.
fn greeted(channel: &Channel, place: Place, options: &Options) -> Result<Option<Floor>, Refusal> {
    let first = place.node == 0;
    let floor = Floor::open(first, !first).map_err(broken)?;
    if options.bare && floor.is_none() {
        return Err((
            "-bare: nodes 0 and 1 are not on one host; -nodes=2 puts them there".to_owned(),
            2,
        ));
    }
    if options.silent != Silent::Never {
        let mut greeting = [0; 1];
        for _ in 2..place.nodes {
            channel.receive(&mut greeting).map_err(broken)?;
        }
    }
    sc::barrier().map_err(broken)?;
    Ok(floor)
}

/// Lets the other nodes go.
fn released(channel: &Channel, place: Place, options: &Options) -> Result<(), Refusal> {
    let first = place.node == 0;
    match options.silent {
        Silent::Receive if first => {
            for node in 2..place.nodes {
                channel.send(node as c_int, &[0]).map_err(broken)?;
            }
        }
        Silent::Receive => {}
        Silent::Barrier | Silent::Never => sc::barrier().map_err(broken)?,
    }
    Ok(())
}

/// The part of a node that does not measure: it is there, and may have been active once.
fn silent(net: &mut Net, channel: &Channel, options: &Options) -> Result<(), Refusal> {
    Floor::open(false, false).map_err(broken)?;
    if options.silent != Silent::Never {
        for node in 0..2 {
            channel.send(node, &[0]).map_err(broken)?;
        }
    }
    sc::barrier().map_err(broken)?;
    match options.silent {
        Silent::Receive => net.receive_blocking().map(|_| ()).map_err(broken),
        Silent::Barrier | Silent::Never => sc::barrier().map_err(broken),
    }
}

/// Puts this process on a core of its own, if there are two to be had.
fn pin(index: usize) -> Option<usize> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).ok()?;
    let cores: Vec<usize> =
        (0..CpuSet::count()).filter(|core| allowed.is_set(*core) == Ok(true)).collect();
    let core = *cores.get(index).filter(|_| cores.len() >= 2)?;
    let mut own = CpuSet::new();
    own.set(core).ok()?;
    sched_setaffinity(this, &own).ok()?;
    Some(core)
}
