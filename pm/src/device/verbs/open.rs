//! Opening a verbs device, and the description of its adapter.

#![forbid(unsafe_code)]

use super::Verbs;
use super::config::{AdapterChoice, MTU, VerbsOptions};
use super::ibverbs_library::Library;
use super::port_selection::{self, SelectedPort};
use crate::debug;
use crate::device::NetworkOptions;
use crate::device::net_common;
use crate::error::{Error, PmResult, from_errno};
use std::net::{SocketAddr, UdpSocket};

/// A verbs device's channels.
pub(crate) type VerbsChannels = net_common::Channels<Verbs>;

pub(super) fn log_io_error(error: std::io::Error) -> Error {
    debug::log(debug::ERROR, || format!("verbs: {error}"));
    error.raw_os_error().map_or(Error::Io, |errno| from_errno(nix::errno::Errno::from_raw(errno)))
}

impl VerbsChannels {
    /// Selects the adapter and opens the sockets. NoDevice: there is no usable adapter. With
    /// PM_DEBUG, PM logs the missing library, kernel module or adapter, or the bad option.
    pub(crate) fn new(options: &VerbsOptions) -> PmResult<VerbsChannels> {
        let chosen = choose(&options.adapter)?;
        debug::log(debug::INFO, || format!("device verbs: {}", describe(&chosen)));
        let NetworkOptions { local, channels, secret, .. } = &options.network;
        let geometry = options.network.slab_geometry(MTU)?;
        let bind_socket = |_| -> PmResult<UdpSocket> {
            let link = options.link.ok_or(Error::Invalid)?;
            let socket = UdpSocket::bind(SocketAddr::new(link, 0)).map_err(log_io_error)?;
            socket.set_nonblocking(true).map_err(log_io_error)?;
            Ok(socket)
        };
        let sockets = (0..*channels)
            .map(|_| local.clone().map(bind_socket).collect::<PmResult<Vec<_>>>())
            .collect::<PmResult<Vec<_>>>()?;
        VerbsChannels::from_sockets(chosen, geometry, *secret, 1, sockets)
    }

    /// A description as text for the user.
    pub(crate) fn describe(&self) -> String {
        describe(&self.setup)
    }
}

/// The selected port. NoDevice: no port fits, and PM_DEBUG names the reason.
pub(super) fn choose(wanted: &AdapterChoice) -> PmResult<SelectedPort> {
    find_port(wanted).map_err(|why| {
        debug::log(debug::ERROR, || format!("device verbs: {why}; use ethernet"));
        Error::NoDevice
    })
}

fn find_port(wanted: &AdapterChoice) -> std::result::Result<SelectedPort, String> {
    let library = Library::get().map_err(|unavailable| unavailable.to_string())?;
    let adapters = library.adapters().map_err(|unavailable| unavailable.to_string())?;
    port_selection::choose(&adapters, wanted)
}

pub(super) fn describe(chosen: &SelectedPort) -> String {
    let SelectedPort { adapter, port, .. } = chosen;
    let kind = if port.is_ethernet { "RoCE" } else { "InfiniBand" };
    let address = match &chosen.gid {
        Some(gid) => format!("GID {} {}", gid.index, std::net::Ipv6Addr::from(gid.bytes)),
        None => format!("LID {}", port.lid),
    };
    let port_text = format!("{adapter} port {}, {kind}, {address}, MTU {}", port.number, port.mtu);
    let partition_key = port.partitions.get(chosen.partition_index);
    partition_key.map_or(port_text.clone(), |partition_key| {
        format!(
            "{port_text}, partition {partition_key:#06x}, service level {}",
            chosen.service_level
        )
    })
}

/// Describes the port that a verbs device would use by default. `scored -probe` calls it.
///
/// # Errors
/// The library, kernel module or adapter that is missing.
pub fn probe() -> std::result::Result<String, String> {
    find_port(&AdapterChoice::default()).map(|chosen| describe(&chosen))
}
