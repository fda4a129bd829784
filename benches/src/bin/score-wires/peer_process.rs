//! One of the two processes. It sends its address, receives the peer's address, and then measures
//! (process 0) or serves (process 1).

use crate::controller::{exchange, write_line};
use crate::raw_packets::{self, RawEndpoint};
use crate::{BenchResult, hosts, node, tcp};
use score_pm::wire::{WireEndpoint, WireOptions, WirePreference};
use std::time::Duration;

/// The prefix of a wire's name that selects the device over that wire.
pub const DEVICE_PREFIX: &str = "pm-";

/// Runs a process: `latency|bandwidth WIRE 0|1 HOST CORE SECONDS LINKS LOSS`.
pub fn run(words: &[String]) -> BenchResult<()> {
    let [measurement, wire, role, host, core, seconds, links, loss] = words else {
        return Err("peer: wrong number of arguments".into());
    };
    hosts::enter(host, core.parse()?)?;
    let time = Duration::from_secs_f64(seconds.parse()?);
    let is_measuring = role == "0";
    if wire == "tcp" {
        return tcp::run(is_measuring, time);
    }
    if let Some(wire) = wire.strip_prefix(DEVICE_PREFIX) {
        let links: Vec<_> = (0..links.parse()?).map(hosts::link).collect();
        return node::run(measurement, role.parse()?, wire, time, (&links, loss));
    }
    let endpoint = WireEndpoint::open(&WireOptions::on_interface(
        WirePreference::parse(wire)?,
        &hosts::link(0),
    ))?;
    let mut wire_endpoint = RawEndpoint::attach(endpoint)?;
    wire_endpoint.set_peer(&exchange(&wire_endpoint.address())?)?;
    match (measurement.as_str(), is_measuring) {
        ("latency", true) => write_line(&raw_packets::ping(&mut wire_endpoint, time)?),
        ("latency", false) => raw_packets::echo(&mut wire_endpoint),
        ("bandwidth", true) => {
            write_line(&format!("{:.3}", raw_packets::sink(&mut wire_endpoint, time)?))
        }
        ("bandwidth", false) => raw_packets::source(&mut wire_endpoint),
        _ => Err(format!("peer: unknown measurement {measurement}").into()),
    }
}
