//! The ends of a verbs device, and what is told of its adapter.

#![forbid(unsafe_code)]

use super::Verbs;
use super::choice::{self, Chosen};
use super::config::{MTU, Options};
use super::library::Library;
use super::manager;
use crate::debug;
use crate::device::network;
use crate::device::network::layout::Geometry;
use crate::error::{Error, Result};
use crate::segment::from_errno;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// A verbs device's channels.
pub(crate) type Channels = network::Channels<Verbs>;

pub(super) fn io(error: std::io::Error) -> Error {
    debug::say(debug::ERROR, || format!("verbs: {error}"));
    error.raw_os_error().map_or(Error::Io, |errno| from_errno(nix::errno::Errno::from_raw(errno)))
}

impl Channels {
    /// NoDevice: PM_DEBUG says whether library, kernel or adapter is missing, or what of the
    /// options.
    pub(crate) fn new(options: &Options) -> Result<Channels> {
        let chosen = choose(options)?;
        debug::say(debug::INFO, || format!("device verbs: {}", describe(&chosen)));
        let geometry = Geometry::new(options.nodes, options.first, options.local, MTU)?;
        let open = |_| -> Result<UdpSocket> {
            let link = options.link.ok_or(Error::Invalid)?;
            let socket = UdpSocket::bind(SocketAddr::new(link, 0)).map_err(io)?;
            socket.set_nonblocking(true).map_err(io)?;
            Ok(socket)
        };
        let ends = (0..options.channels)
            .map(|_| (0..options.local).map(open).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        Channels::over(chosen, geometry, options.secret, 1, ends)
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        describe(&self.setup)
    }
}

/// The port that these options name. NoDevice: there is none, and PM_DEBUG says why.
pub(super) fn choose(options: &Options) -> Result<Chosen> {
    find(options).map_err(|why| {
        debug::say(debug::ERROR, || format!("device verbs: {why}; use ethernet"));
        Error::NoDevice
    })
}

fn find(options: &Options) -> std::result::Result<Chosen, String> {
    let library = Library::get().map_err(|lack| lack.to_string())?;
    let adapters = library.adapters().map_err(|lack| lack.to_string())?;
    let chosen = choice::choose(&adapters, options)?;
    if chosen.iwarp {
        // Said here and now, where it can be said why.
        manager::probe(&chosen, options.link.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))?;
    }
    Ok(chosen)
}

pub(super) fn describe(chosen: &Chosen) -> String {
    let Chosen { adapter, port, .. } = chosen;
    let kind = match (chosen.iwarp, port.ethernet) {
        (true, _) => "iWARP",
        (false, true) => "RoCE",
        (false, false) => "InfiniBand",
    };
    let address = match &chosen.gid {
        Some(gid) => format!("GID {} {}", gid.index, std::net::Ipv6Addr::from(gid.bytes)),
        None if chosen.iwarp => "by rdma_cm".to_owned(),
        None => format!("LID {}", port.lid),
    };
    let place = format!("{adapter} port {}, {kind}, {address}, MTU {}", port.number, port.mtu);
    let key = port.partitions.get(chosen.partition);
    key.map_or(place.clone(), |key| {
        format!("{place}, partition {key:#06x}, service level {}", chosen.level)
    })
}

/// What `Device::open("verbs", ...)` without options would use; for `scored -probe`.
///
/// # Errors
/// Which of library, kernel and adapter is missing.
pub fn probe() -> std::result::Result<String, String> {
    find(&Options::parse(&[]).map_err(|error| error.to_string())?).map(|chosen| describe(&chosen))
}
