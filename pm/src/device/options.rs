//! Options of [`Device::open`](super::Device::open). Rust callers fill in the types.
//! [`DeviceOptions::parse`] makes the same types from the words of `pmOpenDevice`.

#![forbid(unsafe_code)]

use super::composite::config::CompositeOptions;
use super::ethernet::config::EthernetOptions;
use super::option_words::refuse_options;
use super::shmem::config::ShmemOptions;
use super::verbs::config::VerbsOptions;
use crate::debug;
use crate::error::{Error, PmResult};

/// Types of table 1.1 whose hardware is no longer built, and their replacements.
const OBSOLETE_TYPES: [(&str, &str); 5] = [
    ("myrinet", "ethernet"),
    ("sci", "ethernet"),
    ("ib-ts", "ethernet"),
    ("infiniband-fj", "ethernet"),
    ("ethernet-hxb", "ethernet"),
];

/// The type of a device, and its options.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceOptions {
    /// A composite of other devices.
    Composite(CompositeOptions),
    /// Shared memory.
    Shmem(ShmemOptions),
    /// UDP or raw Ethernet.
    Ethernet(EthernetOptions),
    /// RDMA hardware.
    Verbs(VerbsOptions),
}

impl From<CompositeOptions> for DeviceOptions {
    fn from(options: CompositeOptions) -> DeviceOptions {
        DeviceOptions::Composite(options)
    }
}

impl From<ShmemOptions> for DeviceOptions {
    fn from(options: ShmemOptions) -> DeviceOptions {
        DeviceOptions::Shmem(options)
    }
}

impl From<EthernetOptions> for DeviceOptions {
    fn from(options: EthernetOptions) -> DeviceOptions {
        DeviceOptions::Ethernet(options)
    }
}

impl From<VerbsOptions> for DeviceOptions {
    fn from(options: VerbsOptions) -> DeviceOptions {
        DeviceOptions::Verbs(options)
    }
}

impl DeviceOptions {
    /// Parses the type and the words of `pmOpenDevice`: pairs of an option and its value.
    /// `Device::open` checks the ranges of the values.
    ///
    /// # Errors
    /// NoDevice: PM has no such type. Invalid: the type has no such option, or a value is not of
    /// the option's type.
    pub fn parse(kind: &str, words: &[&str]) -> PmResult<DeviceOptions> {
        Ok(match kind {
            "composite" => CompositeOptions::parse(words)?.into(),
            "shmem" => ShmemOptions::parse(words)?.into(),
            "ethernet" => EthernetOptions::parse(words)?.into(),
            "agent-udp" => EthernetOptions::parse_agent_udp(words)?.into(),
            "verbs" => VerbsOptions::parse(words)?.into(),
            other => return Err(refuse_kind(other)),
        })
    }

    /// Checks the options, and sets the defaults that depend on other options.
    ///
    /// # Errors
    /// Invalid: an option is missing or out of range. The reason is logged under PM_DEBUG.
    pub(super) fn checked(self) -> PmResult<DeviceOptions> {
        let (kind, checked) = match self {
            DeviceOptions::Composite(options) => ("composite", options.checked().map(Self::from)),
            DeviceOptions::Shmem(options) => ("shmem", options.checked().map(Self::from)),
            DeviceOptions::Ethernet(options) => ("ethernet", options.checked().map(Self::from)),
            DeviceOptions::Verbs(options) => ("verbs", options.checked().map(Self::from)),
        };
        checked.map_err(|reason| refuse_options(kind, &reason))
    }
}

/// Returns NoDevice, and logs the reason under PM_DEBUG.
pub(crate) fn refuse_kind(kind: &str) -> Error {
    debug::log(debug::ERROR, || match OBSOLETE_TYPES.iter().find(|(name, _)| *name == kind) {
        Some((_, replacement)) => {
            format!("device {kind}: this hardware is obsolete; use {replacement}")
        }
        None => format!("device {kind}: unknown; use composite, shmem, ethernet or verbs"),
    });
    Error::NoDevice
}
