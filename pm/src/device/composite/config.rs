//! Options of `pmOpenDevice("composite")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::config::{DeviceConfig, MAX_NODE};
use crate::device::shmem::config::parse;
use crate::error::PmResult;

/// The number of contexts of one composite device.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// The largest number of member contexts of one composite.
pub(crate) const MAX_MEMBERS: usize = 16;

/// `-nodes N` (default: processors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompositeOptions {
    pub(crate) nodes: usize,
}

impl CompositeOptions {
    pub(crate) fn parse(options: &[&str]) -> PmResult<CompositeOptions> {
        let nodes = std::thread::available_parallelism().map_or(1, usize::from);
        let mut parsed = CompositeOptions { nodes };
        parse(options, |name, value| match name {
            "-nodes" if value <= MAX_NODE => {
                parsed.nodes = value;
                true
            }
            _ => false,
        })?;
        Ok(parsed)
    }

    pub(crate) fn config(self, contexts: usize) -> DeviceConfig {
        // A composite has no network of its own, so its limits are those of its members.
        DeviceConfig { kind: "composite", nodes: self.nodes, contexts, mtu: 0, size: 0, option: 0 }
    }
}
