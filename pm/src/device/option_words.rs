//! The options that several devices have, and the words of `pmOpenDevice`.

#![forbid(unsafe_code)]

use super::net_common::layout::{MAX_LOCAL, SlabGeometry};
use crate::config::MAX_NODE;
use crate::debug;
use crate::error::{Error, PmResult};
use std::ops::Range;

/// The most channels of a device.
pub(super) const MAX_CHANNELS: usize = 64;

/// Returns Invalid, and logs the reason under PM_DEBUG.
pub(super) fn refuse_options(kind: &str, reason: &str) -> Error {
    debug::log(debug::ERROR, || format!("device {kind}: {reason}"));
    Error::Invalid
}

/// Calls `set_option` for each pair of an option and its value. `set_option` returns None to refuse
/// the pair.
pub(super) fn parse_pairs(
    words: &[&str],
    mut set_option: impl FnMut(&str, &str) -> Option<()>,
) -> PmResult<()> {
    for pair in words.chunks(2) {
        let accepted = match pair {
            [name, value] => set_option(name, value),
            _ => None,
        };
        accepted.ok_or_else(|| {
            debug::log(debug::ERROR, || format!("device option {}: invalid", pair.join(" ")));
            Error::Invalid
        })?;
    }
    Ok(())
}

/// The number of nodes if the words contain none: one for each processor.
pub(super) fn default_nodes() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Refuses a number of nodes or channels that is 0 or above the limit.
pub(super) fn check_count(option: &str, count: usize, max: usize) -> Result<(), String> {
    match (1..=max).contains(&count) {
        true => Ok(()),
        false => Err(format!("{option} {count}: out of range (1 to {max})")),
    }
}

/// The options that all devices between hosts have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The number of nodes of the job (`-nodes`).
    pub nodes: usize,
    /// The nodes of this host (`-first`, `-local`).
    pub local: Range<usize>,
    /// The number of channels (`-channels`).
    pub channels: usize,
    /// The secret in the packets of the job (`-secret`). None: a random number.
    pub secret: Option<u64>,
}

impl NetworkOptions {
    /// One channel for a job of `nodes` nodes, of which this host has `local`.
    pub fn new(nodes: usize, local: Range<usize>) -> NetworkOptions {
        NetworkOptions { nodes, local, channels: 1, secret: None }
    }

    /// One channel for a job that has all its nodes on this host.
    pub fn on_one_host(nodes: usize) -> NetworkOptions {
        NetworkOptions::new(nodes, 0..nodes)
    }

    /// Whether this host has all nodes, so that the device needs no address that other hosts can
    /// reach.
    pub(super) fn is_on_one_host(&self) -> bool {
        self.local.len() == self.nodes
    }

    /// Returns the layout of a slab for these nodes and messages of up to `mtu` bytes, or `Invalid`
    /// if a number is out of range.
    pub(super) fn slab_geometry(&self, mtu: usize) -> PmResult<SlabGeometry> {
        let to_node = |number: usize| u32::try_from(number).map_err(|_| Error::Invalid);
        let local = to_node(self.local.start)?..to_node(self.local.end)?;
        SlabGeometry::new(to_node(self.nodes)?, local, mtu)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_count("-nodes", self.nodes, MAX_NODE)?;
        check_count("-channels", self.channels, MAX_CHANNELS)?;
        check_count("-local", self.local.len(), MAX_LOCAL)?;
        match self.local.end <= self.nodes {
            true => Ok(()),
            false => Err(format!(
                "-nodes {}, -first {}, -local {}: out of range",
                self.nodes,
                self.local.start,
                self.local.len()
            )),
        }
    }
}

/// The words of [`NetworkOptions`] that were given. The defaults depend on other words.
#[derive(Default)]
pub(super) struct NetworkWords {
    nodes: Option<usize>,
    first: Option<usize>,
    local: Option<usize>,
    channels: Option<usize>,
    secret: Option<u64>,
}

impl NetworkWords {
    /// Sets one option. None: the value is not a number, or the option is not one of these.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "-nodes" => self.nodes = Some(value.parse().ok()?),
            "-first" => self.first = Some(value.parse().ok()?),
            "-local" => self.local = Some(value.parse().ok()?),
            "-channels" => self.channels = Some(value.parse().ok()?),
            "-secret" => self.secret = Some(u64::from_str_radix(value, 16).ok()?),
            _ => return None,
        }
        Some(())
    }

    /// The options. Without `-nodes` the job has the nodes of `-local`, or one for each processor.
    /// Without `-local` this host has all nodes from `-first` on.
    pub(super) fn complete(self) -> NetworkOptions {
        let nodes = self.nodes.or(self.local).unwrap_or_else(default_nodes);
        let first = self.first.unwrap_or(0);
        let end = self.local.map_or(nodes, |local| first.saturating_add(local));
        NetworkOptions {
            nodes,
            local: first..end,
            channels: self.channels.unwrap_or(1),
            secret: self.secret,
        }
    }
}
