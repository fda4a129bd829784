//! Measures the processor time of a message and of an empty poll, with sender and receiver in one
//! thread. The thread's own time hardly depends on other programs, even on a busy machine.

use crate::hosts::{self, ADDRESSES, NetNsPair};
use crate::node::{AREA, ConnectedNode, UnconnectedDevice};
use crate::peer_process::DEVICE_PREFIX;
use crate::raw_packets::{IDLE_TIMEOUT, RawEndpoint, SIZE};
use crate::{BenchResult, tcp};
use nix::time::{ClockId, clock_gettime};
use score_pm::wire::{WireEndpoint, WireOptions, WirePreference};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const BATCHES: usize = 60;
const MESSAGES: u32 = 300;
/// The number of bytes in one step of a bulk transfer.
const BULK: usize = 60_000;

/// Prints one line for each of these wires.
pub fn run(hosts: &NetNsPair, wires: &[&str]) -> BenchResult<()> {
    for wire in wires {
        match wire.strip_prefix(DEVICE_PREFIX) {
            Some(wire_name) => device_costs(hosts, wire, wire_name)?,
            None if *wire == "tcp" => tcp_costs(hosts)?,
            None => packet_costs(hosts, wire)?,
        }
    }
    Ok(())
}

fn tcp_costs(hosts: &NetNsPair) -> BenchResult<()> {
    hosts::enter_net(&hosts.path(1))?;
    let listener = TcpListener::bind((ADDRESSES[1], 0))?;
    hosts::enter_net(&hosts.path(0))?;
    let mut near = tcp::set_up(TcpStream::connect(listener.local_addr()?)?)?;
    let mut far = tcp::set_up(listener.accept()?.0)?;
    let message = min_time(|| {
        tcp::write(&mut near)?;
        tcp::read(&mut far)?;
        tcp::write(&mut far)?;
        tcp::read(&mut near)
    })? / 2.0;
    let poll = min_time(|| tcp::poll(&mut near))?;
    let (data, mut buffer) = (vec![7; BULK], vec![0; BULK]);
    let bulk = min_time(|| {
        near.write_all(&data)?;
        let mut received = 0;
        while received < BULK {
            received += far.read(&mut buffer[received..])?;
        }
        Ok(())
    })?;
    print_costs("tcp", message, poll, bulk / BULK as f64);
    Ok(())
}

fn packet_costs(hosts: &NetNsPair, wire: &str) -> BenchResult<()> {
    let open = |k: usize| {
        hosts::enter_net(&hosts.path(k))?;
        let options = WireOptions::on_interface(WirePreference::parse(wire)?, &hosts::link(0));
        RawEndpoint::attach(WireEndpoint::open(&options)?)
    };
    let (mut near, mut far) = (open(0)?, open(1)?);
    far.set_peer(&near.address())?;
    hosts::enter_net(&hosts.path(0))?;
    near.set_peer(&far.address())?;
    let message = min_time(|| {
        near.send(1, SIZE)?;
        far.receive().ok_or("no message arrived")?;
        far.send(1, SIZE)?;
        near.receive().map(drop).ok_or_else(|| "no message arrived".into())
    })? / 2.0;
    let poll = min_time(|| near.poll())?;
    let mut bytes = 0;
    let bulk = min_time(|| {
        bytes = near.send_batch(BULK)?;
        far.receive_bytes(bytes)
    })?;
    print_costs(wire, message, poll, bulk / bytes as f64);
    Ok(())
}

fn device_costs(hosts: &NetNsPair, name: &str, wire: &str) -> BenchResult<()> {
    let links = [hosts::link(0)];
    let open = |self_node: u32| {
        hosts::enter_net(&hosts.path(self_node as usize))?;
        UnconnectedDevice::new(self_node, wire, &links, "")
    };
    let (near, far) = (open(0)?, open(1)?);
    let addresses = (near.addresses()?, far.addresses()?);
    let far = far.connect(addresses.0)?;
    hosts::enter_net(&hosts.path(0))?;
    let near = near.connect(addresses.1)?;
    let receive_all =
        |node: &ConnectedNode, other: &ConnectedNode, mut messages: usize| -> BenchResult<()> {
            let deadline = Instant::now() + IDLE_TIMEOUT;
            while messages > 0 {
                match node.try_receive()? {
                    Some(_) => messages -= 1,
                    None if Instant::now() > deadline => return Err("no message arrived".into()),
                    // If the window is closed, the sender must receive the acknowledgement.
                    None => drop(other.try_receive()?),
                }
            }
            Ok(())
        };
    let send_message = |node: &ConnectedNode, len: usize| -> BenchResult<()> {
        if node.try_send(len)? { Ok(()) } else { Err("no free buffer".into()) }
    };
    let message = min_time(|| {
        send_message(&near, SIZE)?;
        receive_all(&far, &near, 1)?;
        send_message(&far, SIZE)?;
        receive_all(&near, &far, 1)
    })? / 2.0;
    let poll = min_time(|| match near.try_receive()? {
        None => Ok(()),
        Some(_) => Err("not empty".into()),
    })?;
    let len = near.mtu()?;
    let count = BULK / len;
    let bulk = min_time(|| {
        for _ in 0..count {
            send_message(&near, len)?;
        }
        // A poll sends the rest of a stream.
        near.try_receive()?;
        receive_all(&far, &near, count)
    })?;
    print_costs(name, message, poll, bulk / (count * len) as f64);
    for (other_memory, memory_kind) in [(false, "pmAlloc"), (true, "other memory")] {
        let [write, read] = rma_costs(&near, &far, other_memory)?;
        println!("{name} pmWrite KiB {write:.0} pmRead KiB {read:.0} of {memory_kind}");
    }
    Ok(())
}

/// Returns the processor time of pmWrite and of pmRead in ns per KiB.
fn rma_costs(
    near: &ConnectedNode,
    far: &ConnectedNode,
    other_memory: bool,
) -> BenchResult<[f64; 2]> {
    let areas = [near.lock_area(other_memory)?, far.lock_area(other_memory)?];
    let cost_of = |is_write: bool| {
        let mut offset = 0;
        min_time(|| {
            offset = if offset + 2 * BULK > AREA { 0 } else { offset + BULK };
            if !near.begin_rma(is_write, areas, offset as u64, BULK)? {
                return Err("no free buffer".into());
            }
            let deadline = Instant::now() + IDLE_TIMEOUT;
            while !near.is_rma_done(is_write)? {
                far.try_receive()?;
                if Instant::now() > deadline {
                    return Err("no operation completes".into());
                }
            }
            Ok(())
        })
    };
    Ok([cost_of(true)?, cost_of(false)?].map(|time| time / BULK as f64 * 1024.0))
}

fn print_costs(name: &str, message: f64, poll: f64, ns_per_byte: f64) {
    let ns_per_kib = ns_per_byte * 1024.0;
    println!("{name} message {message:.0} poll {poll:.0} KiB {ns_per_kib:.0}");
}

/// Returns the minimum of many batches, in ns of this thread's processor time.
fn min_time(mut step: impl FnMut() -> BenchResult<()>) -> BenchResult<f64> {
    let mut min_ns = f64::INFINITY;
    for _ in 0..BATCHES {
        let begin = thread_time_ns()?;
        for _ in 0..MESSAGES {
            step()?;
        }
        min_ns = min_ns.min((thread_time_ns()? - begin) / f64::from(MESSAGES));
    }
    Ok(min_ns)
}

fn thread_time_ns() -> BenchResult<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64)
}
