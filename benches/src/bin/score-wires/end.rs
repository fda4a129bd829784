//! One of the two processes: tells its address, learns the other's, and measures (0) or serves (1).

use crate::pass::{self, End};
use crate::{Result, hosts, node, tcp};
use score_pm::device::ethernet::wire::{Choice, Endpoint, Options};
use std::io::{Write, stdin, stdout};
use std::time::Duration;

/// Before a wire's name: the device over it.
pub const DEVICE: &str = "pm-";

/// Says a line to the controller.
pub fn say(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Hears one.
pub fn hear() -> Result<String> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// `latency|bandwidth WIRE 0|1 HOST CORE SECONDS LINKS LOSS`.
pub fn run(words: &[String]) -> Result<()> {
    let [what, wire, role, host, core, seconds, links, loss] = words else {
        return Err("end: wrong number of words".into());
    };
    hosts::enter(host, core.parse()?)?;
    let time = Duration::from_secs_f64(seconds.parse()?);
    let measures = role == "0";
    if wire == "tcp" {
        return tcp::run(measures, time);
    }
    if let Some(wire) = wire.strip_prefix(DEVICE) {
        let links: Vec<_> = (0..links.parse()?).map(hosts::link).collect();
        return node::run(what, role.parse()?, wire, time, (&links, loss));
    }
    let endpoint = Endpoint::open(&Options::over(Choice::parse(wire)?, &hosts::link(0)))?;
    let mut end = End::attach(endpoint)?;
    end.meet(&exchange(&end.address())?)?;
    match (what.as_str(), measures) {
        ("latency", true) => say(&pass::ping(&mut end, time)?),
        ("latency", false) => pass::echo(&mut end),
        ("bandwidth", true) => say(&format!("{:.3}", pass::sink(&mut end, time)?)),
        ("bandwidth", false) => pass::source(&mut end),
        _ => Err(format!("end: {what}?").into()),
    }
}

/// Tells the own address and answers the other's.
pub fn exchange(own: &[u8]) -> Result<Vec<u8>> {
    say(&hex(own))?;
    unhex(&hear()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<_> = text.bytes().collect();
    let byte = |two: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?);
    digits.chunks(2).map(byte).collect()
}
