//! How the device is opened.

#![forbid(unsafe_code)]

use super::choice::{Chosen, choose};
use super::config::Options;
use super::library::Library;
use crate::debug;
use crate::error::{Error, Result};

/// An open device: nothing is kept of the library so far but what was chosen.
pub(crate) struct Channels {
    pub(crate) options: Options,
    pub(crate) contexts: usize,
}

impl Channels {
    /// NoDevice: PM_DEBUG says whether library, kernel or adapter is missing, or what of the
    /// options.
    pub(crate) fn new(options: Options) -> Result<Channels> {
        match find(&options) {
            Ok(chosen) => {
                debug::say(debug::INFO, || format!("device verbs: {}", describe(&chosen)));
                let contexts = options.nodes * options.channels;
                Ok(Channels { options, contexts })
            }
            Err(why) => {
                debug::say(debug::ERROR, || format!("device verbs: {why}; use ethernet"));
                Err(Error::NoDevice)
            }
        }
    }
}

fn find(options: &Options) -> std::result::Result<Chosen, String> {
    let library = Library::get().map_err(|lack| lack.to_string())?;
    choose(&library.adapters().map_err(|lack| lack.to_string())?, options)
}

fn describe(chosen: &Chosen) -> String {
    let Chosen { adapter, port, .. } = chosen;
    let kind = match (chosen.iwarp, port.ethernet) {
        (true, _) => "iWARP",
        (false, true) => "RoCE",
        (false, false) => "InfiniBand",
    };
    let address = match &chosen.gid {
        Some(gid) => format!("GID {} {}", gid.index, std::net::Ipv6Addr::from(gid.bytes)),
        None => format!("LID {}", port.lid),
    };
    let key = port.partitions.get(chosen.partition).copied().unwrap_or(u16::MAX);
    format!(
        "{adapter} port {}, {kind}, {address}, MTU {}, partition {key:#06x}, service level {}",
        port.number, port.mtu, chosen.level
    )
}

/// What `Device::open("verbs", ...)` without options would use; for `scored -probe`.
///
/// # Errors
/// Which of library, kernel and adapter is missing.
pub fn probe() -> std::result::Result<String, String> {
    find(&Options::parse(&[]).map_err(|error| error.to_string())?).map(|chosen| describe(&chosen))
}
