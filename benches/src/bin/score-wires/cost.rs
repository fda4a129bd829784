//! What a message and an empty poll cost the processor, both ends in one thread: the thread's own
//! time, which other programs on a busy machine hardly change.

use crate::end::DEVICE;
use crate::hosts::{self, ADDRESSES, Hosts};
use crate::node::{AREA, Node, Opened};
use crate::pass::{End, PATIENCE, SIZE};
use crate::{Result, tcp};
use nix::time::{ClockId, clock_gettime};
use score_pm::device::ethernet::wire::{Choice, Endpoint, Options};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const BATCHES: usize = 60;
const MESSAGES: u32 = 300;
/// Bytes that are sent at once.
const BULK: usize = 60_000;

/// One line for each of these wires.
pub fn run(hosts: &Hosts, wires: &[&str]) -> Result<()> {
    for wire in wires {
        match wire.strip_prefix(DEVICE) {
            Some(below) => device(hosts, wire, below)?,
            None if *wire == "tcp" => tcp(hosts)?,
            None => packets(hosts, wire)?,
        }
    }
    Ok(())
}

fn tcp(hosts: &Hosts) -> Result<()> {
    hosts::enter_net(&hosts.path(1))?;
    let listener = TcpListener::bind((ADDRESSES[1], 0))?;
    hosts::enter_net(&hosts.path(0))?;
    let mut near = tcp::set_up(TcpStream::connect(listener.local_addr()?)?)?;
    let mut far = tcp::set_up(listener.accept()?.0)?;
    let message = least(|| {
        tcp::write(&mut near)?;
        tcp::read(&mut far)?;
        tcp::write(&mut far)?;
        tcp::read(&mut near)
    })? / 2.0;
    let poll = least(|| tcp::poll(&mut near))?;
    let (piece, mut room) = (vec![7; BULK], vec![0; BULK]);
    let bulk = least(|| {
        near.write_all(&piece)?;
        let mut have = 0;
        while have < BULK {
            have += far.read(&mut room[have..])?;
        }
        Ok(())
    })?;
    say("tcp", message, poll, bulk / BULK as f64);
    Ok(())
}

fn packets(hosts: &Hosts, wire: &str) -> Result<()> {
    let open = |k: usize| {
        hosts::enter_net(&hosts.path(k))?;
        let options = Options::over(Choice::parse(wire)?, &hosts::link(0));
        End::attach(Endpoint::open(&options)?)
    };
    let (mut near, mut far) = (open(0)?, open(1)?);
    far.meet(&near.address())?;
    hosts::enter_net(&hosts.path(0))?;
    near.meet(&far.address())?;
    let message = least(|| {
        near.send(1, SIZE)?;
        far.receive().ok_or("nothing came")?;
        far.send(1, SIZE)?;
        near.receive().map(drop).ok_or_else(|| "nothing came".into())
    })? / 2.0;
    let poll = least(|| near.poll())?;
    let mut bytes = 0;
    let bulk = least(|| {
        bytes = near.send_batch(BULK)?;
        far.receive_bytes(bytes)
    })?;
    say(wire, message, poll, bulk / bytes as f64);
    Ok(())
}

fn device(hosts: &Hosts, name: &str, wire: &str) -> Result<()> {
    let links = [hosts::link(0)];
    let open = |own: u32| {
        hosts::enter_net(&hosts.path(own as usize))?;
        Opened::new(own, wire, &links, "")
    };
    let (near, far) = (open(0)?, open(1)?);
    let addresses = (near.addresses()?, far.addresses()?);
    let far = far.meet(addresses.0)?;
    hosts::enter_net(&hosts.path(0))?;
    let near = near.meet(addresses.1)?;
    let take = |node: &Node, other: &Node, mut messages: usize| -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while messages > 0 {
            match node.try_receive()? {
                Some(_) => messages -= 1,
                None if Instant::now() > end => return Err("nothing came".into()),
                // Its window may be shut: it has to hear of that.
                None => drop(other.try_receive()?),
            }
        }
        Ok(())
    };
    let put = |node: &Node, len: usize| -> Result<()> {
        if node.try_send(len)? { Ok(()) } else { Err("there is no room".into()) }
    };
    let message = least(|| {
        put(&near, SIZE)?;
        take(&far, &near, 1)?;
        put(&far, SIZE)?;
        take(&near, &far, 1)
    })? / 2.0;
    let poll = least(|| match near.try_receive()? {
        None => Ok(()),
        Some(_) => Err("not empty".into()),
    })?;
    let len = near.mtu()?;
    let count = BULK / len;
    let bulk = least(|| {
        for _ in 0..count {
            put(&near, len)?;
        }
        // What a stream leaves behind goes out with a poll.
        near.try_receive()?;
        take(&far, &near, count)
    })?;
    say(name, message, poll, bulk / (count * len) as f64);
    for (other, of) in [(false, "pmAlloc"), (true, "other memory")] {
        let [write, read] = moves(&near, &far, other)?;
        println!("{name} pmWrite KiB {write:.0} pmRead KiB {read:.0} of {of}");
    }
    Ok(())
}

/// Processor ns of a KiB of pmWrite and of pmRead.
fn moves(near: &Node, far: &Node, other: bool) -> Result<[f64; 2]> {
    let areas = [near.area(other)?, far.area(other)?];
    let each = |write: bool| {
        let mut at = 0;
        least(|| {
            at = if at + 2 * BULK > AREA { 0 } else { at + BULK };
            if !near.begin(write, areas, at as u64, BULK)? {
                return Err("there is no room".into());
            }
            let end = Instant::now() + PATIENCE;
            while !near.has_moved(write)? {
                far.try_receive()?;
                if Instant::now() > end {
                    return Err("nothing is done".into());
                }
            }
            Ok(())
        })
    };
    Ok([each(true)?, each(false)?].map(|time| time / BULK as f64 * 1024.0))
}

fn say(who: &str, message: f64, poll: f64, byte: f64) {
    let kib = byte * 1024.0;
    println!("{who} message {message:.0} poll {poll:.0} KiB {kib:.0}");
}

/// The least of many batches, in ns of this thread.
fn least(mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..BATCHES {
        let begin = now()?;
        for _ in 0..MESSAGES {
            step()?;
        }
        least = least.min((now()? - begin) / f64::from(MESSAGES));
    }
    Ok(least)
}

fn now() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64)
}
