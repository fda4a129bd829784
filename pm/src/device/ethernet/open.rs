//! The ends of an ethernet device, and what is told of its wires.

#![forbid(unsafe_code)]

use super::Ethernet;
use super::config::Options;
use super::engine::refused;
use super::reliability::HEADER;
use super::wire;
use crate::config::MIN_MTU;
use crate::debug;
use crate::device::network;
use crate::device::network::layout::Geometry;
use crate::error::{Error, Result};

/// An ethernet device's channels.
pub(crate) type Channels = network::Channels<Ethernet>;

/// The sockets of one end, one for each link.
type Links = Vec<wire::Endpoint>;

impl Channels {
    pub(crate) fn new(options: &Options) -> Result<Channels> {
        let open = |node: usize| -> Result<Links> {
            let open = |link| wire::Endpoint::open(&options.wire(link, node)).map_err(refused);
            (0..options.links.len()).map(open).collect()
        };
        let nodes = || options.first..options.first + options.local;
        let ends = (0..options.channels)
            .map(|_| nodes().map(open).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        Channels::between(options, ends)
    }

    /// The same for one channel over sockets that somebody else has opened: for each local node
    /// one for each link. Invalid: there are others.
    pub(crate) fn given(options: &Options, nodes: Vec<Links>) -> Result<Channels> {
        let fits = |links: &Links| links.len() == options.links.len();
        if options.channels != 1 || nodes.len() != options.local || !nodes.iter().all(fits) {
            return Err(Error::Invalid);
        }
        let with_loss = |(node, links): (usize, Links)| -> Links {
            let lossy = |(link, one): (usize, wire::Endpoint)| {
                let note = one.note().map(str::to_owned);
                one.with(note, options.wire(link, options.first + node).loss)
            };
            links.into_iter().enumerate().map(lossy).collect()
        };
        let ends = nodes.into_iter().enumerate().map(with_loss).collect();
        Channels::between(options, vec![ends])
    }

    fn between(options: &Options, ends: Vec<Vec<Links>>) -> Result<Channels> {
        let longest = ends.iter().flatten().flatten().map(wire::Endpoint::mtu);
        let mtu = longest.min().unwrap_or(0).saturating_sub(HEADER);
        if mtu < MIN_MTU {
            debug::say(debug::ERROR, || {
                format!("ethernet: a link carries messages of {mtu} bytes, {MIN_MTU} are needed")
            });
            return Err(Error::NoDevice);
        }
        let geometry = Geometry::new(options.nodes, options.first, options.local, mtu)?;
        Channels::over(options.incarnation, geometry, options.secret, options.links.len(), ends)
    }

    /// One line for people about a wire that is not the one that was asked for.
    pub(crate) fn note(&self) -> Option<String> {
        self.with_ends(|ends| {
            let note = ends.iter().flat_map(|links| links.iter()).find_map(wire::Endpoint::note);
            note.map(str::to_owned)
        })
    }

    /// Which wires there are over which links: `AF_XDP and AF_PACKET over eth0, UDP over eth1`.
    pub(crate) fn wires(&self) -> String {
        self.with_ends(|ends| {
            let link = |number: usize| {
                let ends: Vec<_> = ends.iter().filter_map(|links| links.get(number)).collect();
                let mut kinds: Vec<String> = Vec::new();
                for kind in ends.iter().map(|end| end.kind().to_string()) {
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                let name = ends.first().map_or("?", |end| end.link_name());
                format!("{} over {name}", kinds.join(" and "))
            };
            let count = ends.first().map_or(0, |links| links.len());
            (0..count).map(link).collect::<Vec<_>>().join(", ")
        })
    }
}
