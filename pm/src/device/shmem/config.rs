//! Options of `pmOpenDevice("shmem")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::config::DeviceConfig;
use crate::debug;
use crate::error::{Error, PmResult};
use crate::segment::layout::{MAX_NODES, SegmentGeometry};

/// The largest number of channels of a device.
const MAX_CHANNELS: usize = 64;

/// `-nodes N` (default: processors) and `-channels C` (default 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShmemOptions {
    pub(crate) nodes: usize,
    pub(crate) channels: usize,
}

impl ShmemOptions {
    pub(crate) fn parse(options: &[&str]) -> PmResult<ShmemOptions> {
        let nodes = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_NODES);
        let mut parsed = ShmemOptions { nodes, channels: 1 };
        parse(options, |name, value| match name {
            "-nodes" if value <= MAX_NODES => {
                parsed.nodes = value;
                true
            }
            "-channels" if value <= MAX_CHANNELS => {
                parsed.channels = value;
                true
            }
            _ => false,
        })?;
        Ok(parsed)
    }
}

/// Reads `-name number` pairs; `set_option` returns false to reject a pair. Zero is never allowed.
pub(crate) fn parse(
    options: &[&str],
    mut set_option: impl FnMut(&str, usize) -> bool,
) -> PmResult<()> {
    for pair in options.chunks(2) {
        let is_accepted = match pair {
            [name, value] => value.parse().is_ok_and(|v| v > 0 && set_option(name, v)),
            _ => false,
        };
        if !is_accepted {
            debug::log(debug::ERROR, || format!("device option {} is refused", pair.join(" ")));
            return Err(Error::Invalid);
        }
    }
    Ok(())
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

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_number_in_range() {
        let parsed = ShmemOptions::parse(&["-nodes", "4", "-channels", "2"]);
        assert_eq!(parsed, Ok(ShmemOptions { nodes: 4, channels: 2 }));
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-nodes", "-1"],
            &["-nodes", "x"],
            &["-nodes", "2049"],
            &["-channels", "65"],
            &["-trunk", "1"],
        ] {
            assert_eq!(ShmemOptions::parse(bad), Err(Error::Invalid), "{bad:?}");
        }
    }
}
