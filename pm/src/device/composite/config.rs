//! Options of `pmOpenDevice("composite")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::config::{DeviceConfig, MAX_NODE};
use crate::device::option_words::{check_count, default_nodes, parse_pairs};
use crate::error::PmResult;

/// The number of contexts of one composite device.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// The largest number of member contexts of one composite.
pub(crate) const MAX_MEMBERS: usize = 16;

/// The options of a composite device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompositeOptions {
    /// The number of nodes (`-nodes N`, default: processors).
    pub nodes: usize,
}

impl CompositeOptions {
    /// A composite of `nodes` nodes.
    pub fn new(nodes: usize) -> CompositeOptions {
        CompositeOptions { nodes }
    }

    pub(in crate::device) fn parse(words: &[&str]) -> PmResult<CompositeOptions> {
        let mut parsed = CompositeOptions::new(default_nodes());
        parse_pairs(words, |name, value| {
            match name {
                "-nodes" => parsed.nodes = value.parse().ok()?,
                _ => return None,
            }
            Some(())
        })?;
        Ok(parsed)
    }

    pub(in crate::device) fn checked(self) -> Result<CompositeOptions, String> {
        check_count("-nodes", self.nodes, MAX_NODE)?;
        Ok(self)
    }

    pub(crate) fn config(self, contexts: usize) -> DeviceConfig {
        // A composite has no network of its own, so its limits are those of its members.
        DeviceConfig { kind: "composite", nodes: self.nodes, contexts, mtu: 0, size: 0, option: 0 }
    }
}
