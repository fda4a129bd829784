//! Opens the endpoints of an ethernet device and describes their wires.

#![forbid(unsafe_code)]

use super::Ethernet;
use super::config::EthernetOptions;
use super::engine::to_pm_error;
use super::wire;
use crate::config::MIN_MTU;
use crate::debug;
use crate::device::net_common;
use crate::error::{Error, PmResult};
use score_pm_reliability::PACKET_HEADER_LEN;

/// The channels of an ethernet device.
pub(crate) type EthernetChannels = net_common::Channels<Ethernet>;

/// The sockets of one endpoint, one for each link.
type Links = Vec<wire::WireEndpoint>;

impl EthernetChannels {
    pub(crate) fn new(options: &EthernetOptions) -> PmResult<EthernetChannels> {
        let open = |node: usize| -> PmResult<Links> {
            let open = |link| {
                let wire_options = options.wire_options(link, node as u32);
                wire::WireEndpoint::open(&wire_options).map_err(to_pm_error)
            };
            (0..options.links.len()).map(open).collect()
        };
        let nodes = || options.network.local.clone();
        let sockets = (0..options.network.channels)
            .map(|_| nodes().map(open).collect::<PmResult<Vec<_>>>())
            .collect::<PmResult<Vec<_>>>()?;
        EthernetChannels::build(options, sockets)
    }

    /// Builds the device for one channel from sockets that are already open: one socket for each
    /// local node and link. Returns `Invalid` if the number of sockets differs.
    pub(crate) fn from_endpoints(
        options: &EthernetOptions,
        node_links: Vec<Links>,
    ) -> PmResult<EthernetChannels> {
        let fits = |links: &Links| links.len() == options.links.len();
        if options.network.channels != 1
            || node_links.len() != options.network.local.len()
            || !node_links.iter().all(fits)
        {
            return Err(Error::Invalid);
        }
        let with_loss = |(node, links): (usize, Links)| -> Links {
            let node = (options.network.local.start + node) as u32;
            let with_faults = |(link, endpoint): (usize, wire::WireEndpoint)| {
                let note = endpoint.note().map(str::to_owned);
                endpoint.with_note_and_loss(note, options.wire_options(link, node).loss)
            };
            links.into_iter().enumerate().map(with_faults).collect()
        };
        let sockets = node_links.into_iter().enumerate().map(with_loss).collect();
        EthernetChannels::build(options, vec![sockets])
    }

    fn build(options: &EthernetOptions, sockets: Vec<Vec<Links>>) -> PmResult<EthernetChannels> {
        let link_mtus = sockets.iter().flatten().flatten().map(wire::WireEndpoint::mtu);
        let mtu = link_mtus.min().unwrap_or(0).saturating_sub(PACKET_HEADER_LEN);
        if mtu < MIN_MTU {
            debug::log(debug::ERROR, || {
                format!(
                    "ethernet: a link carries messages of only {mtu} bytes; {MIN_MTU} are required"
                )
            });
            return Err(Error::NoDevice);
        }
        let geometry = options.network.slab_geometry(mtu)?;
        EthernetChannels::from_sockets(
            options.incarnation,
            geometry,
            options.network.secret,
            options.links.len(),
            sockets,
        )
    }

    /// Returns one line for the user if a wire is not of the kind that the options request.
    pub(crate) fn note(&self) -> Option<String> {
        self.with_sockets(|sockets| {
            let note =
                sockets.iter().flat_map(|links| links.iter()).find_map(wire::WireEndpoint::note);
            note.map(str::to_owned)
        })
    }

    /// Describes the wires of each link, for example `AF_XDP and AF_PACKET over eth0, UDP over
    /// eth1`.
    pub(crate) fn describe_wires(&self) -> String {
        self.with_sockets(|sockets| {
            let link = |link_index: usize| {
                let link_sockets: Vec<_> =
                    sockets.iter().filter_map(|links| links.get(link_index)).collect();
                let mut kinds: Vec<String> = Vec::new();
                for kind in link_sockets.iter().map(|socket| socket.kind().to_string()) {
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                let name = link_sockets.first().map_or("?", |socket| socket.link_name());
                format!("{} over {name}", kinds.join(" and "))
            };
            let count = sockets.first().map_or(0, |links| links.len());
            (0..count).map(link).collect::<Vec<_>>().join(", ")
        })
    }
}
