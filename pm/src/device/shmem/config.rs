//! Options of `pmOpenDevice("shmem")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::config::DeviceConfig;
use crate::device::option_words::{MAX_CHANNELS, check_count, default_nodes, parse_pairs};
use crate::error::PmResult;
use crate::segment::layout::{MAX_NODES, SegmentGeometry};

/// The options of a shmem device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmemOptions {
    /// The number of nodes (`-nodes N`, default: processors).
    pub nodes: usize,
    /// The number of channels (`-channels C`, default 1).
    pub channels: usize,
}

impl ShmemOptions {
    /// One channel for `nodes` nodes.
    pub fn new(nodes: usize) -> ShmemOptions {
        ShmemOptions { nodes, channels: 1 }
    }

    pub(in crate::device) fn parse(words: &[&str]) -> PmResult<ShmemOptions> {
        let mut parsed = ShmemOptions::new(default_nodes().min(MAX_NODES));
        parse_pairs(words, |name, value| {
            match name {
                "-nodes" => parsed.nodes = value.parse().ok()?,
                "-channels" => parsed.channels = value.parse().ok()?,
                _ => return None,
            }
            Some(())
        })?;
        Ok(parsed)
    }

    pub(in crate::device) fn checked(self) -> Result<ShmemOptions, String> {
        check_count("-nodes", self.nodes, MAX_NODES)?;
        check_count("-channels", self.channels, MAX_CHANNELS)?;
        Ok(self)
    }
}

/// The properties that `pmGetDeviceConfig` returns.
pub(crate) fn device_config(
    options: ShmemOptions,
    geometry: &SegmentGeometry,
    contexts: usize,
) -> DeviceConfig {
    DeviceConfig {
        kind: "shmem",
        nodes: options.nodes,
        contexts,
        mtu: geometry.ring.mtu as usize,
        size: geometry.size,
        option: super::OPTIONS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOptions;
    use crate::error::Error;

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_number_in_range() {
        let open = |words: &[&str]| DeviceOptions::parse("shmem", words)?.checked();
        let parsed = open(&["-nodes", "4", "-channels", "2"]);
        assert_eq!(parsed, Ok(ShmemOptions { nodes: 4, channels: 2 }.into()));
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-nodes", "-1"],
            &["-nodes", "x"],
            &["-nodes", "2049"],
            &["-channels", "0"],
            &["-channels", "65"],
            &["-trunk", "1"],
        ] {
            assert_eq!(open(bad), Err(Error::Invalid), "{bad:?}");
        }
    }
}
