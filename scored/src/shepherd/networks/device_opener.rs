//! Opens the devices with which a parallel process reaches other hosts, one network set after the
//! other.

use std::ops::Range;

use score_pm::rdma::probe_adapter;
use score_pm::wire::fault_injection::FaultConfig;
use score_pm::wire::{WireEndpoint, WirePreference};
use score_pm::{Device, Error, EthernetOptions, NetworkOptions, VerbsOptions};
use score_proto::job_control::{HostPlacement, Placement};

use super::rdma;
use super::transport::TransportPlan;
use super::transport_offer::{Adapter, RdmaOffer, RdmaUnavailable, TransportOffer};
use super::{NetworkSetDevices, OpenDevice, PacketTag};
use crate::raw_socket::{OpenRequest, RawSocketClient};

/// Variable in scored's own environment, for tests. It sets the rates at which the wires of its
/// jobs lose, duplicate and reorder packets (docs/dev/ethernet.md).
const TEST_LOSS_ENV: &str = "SCORE_TEST_LOSS";

/// The secret in the packets of a network set. A host drops packets with another secret.
pub fn secret_of(job: u64, set: u32) -> u64 {
    job.wrapping_add(u64::from(set))
}

/// Opens the devices of all network sets.
pub struct DeviceOpener<'a> {
    pub placement: &'a Placement,
    pub local_host: &'a HostPlacement,
    pub tag: PacketTag,
    /// Client of the helper that opens raw sockets, because this process has no permission to do
    /// so.
    pub raw_client: Option<&'a RawSocketClient>,
    /// Links on which AF_XDP was tried. AF_XDP uses a link exclusively.
    pub xdp_links: Vec<String>,
}

impl DeviceOpener<'_> {
    /// Opens the devices of a set that reach other hosts. Returns them and the offer for the other
    /// hosts.
    pub fn open_set(
        &mut self,
        set_index: u32,
        plan: TransportPlan,
    ) -> Result<(NetworkSetDevices, TransportOffer), String> {
        let ethernet_error = |error: Error| {
            let (name, links) = (&plan.name, plan.links.join(", "));
            format!("network {name}: no ethernet device on {links}: {error}")
        };
        let udp = self
            .open_ethernet(set_index, (WirePreference::Udp, &plan.links), None)
            .map_err(ethernet_error)?;
        let udp_table = udp.address_table().map_err(ethernet_error)?;
        let (mut raw_device, mut raw_note) = (None, None);
        match &plan.raw {
            Some(Ok(links)) => match self.open_raw(set_index, links) {
                Ok((opened, note)) => (raw_device, raw_note) = (Some(opened), note),
                Err(reason) => raw_note = Some(reason),
            },
            Some(Err(reason)) => raw_note = Some(reason.clone()),
            None => {}
        }
        let raw_table = raw_device
            .as_ref()
            .map(OpenDevice::address_table)
            .transpose()
            .map_err(ethernet_error)?;
        let mut verbs = None;
        let rdma = plan.rdma.as_ref().map(|plan| {
            let adapter = self.open_rdma(set_index, plan).map(|(opened, adapter)| {
                verbs = Some(opened);
                adapter
            });
            RdmaOffer { is_requested: plan.is_requested, adapter }
        });
        let offer = TransportOffer { rdma, raw: raw_table, udp: udp_table, raw_note };
        let set = NetworkSetDevices {
            verbs,
            raw: raw_device,
            udp: Some(udp),
            ..NetworkSetDevices::with_name(plan.name)
        };
        Ok((set, offer))
    }

    /// The nodes of the job and of this host, with this secret.
    fn network_options(&self, secret: u64) -> NetworkOptions {
        let Range { start, end } = self.local_host.node_range();
        let nodes = self.placement.nodes() as usize;
        NetworkOptions {
            secret: Some(secret),
            ..NetworkOptions::new(nodes, start as usize..end as usize)
        }
    }

    /// Opens the RDMA device, if possible.
    fn open_rdma(
        &self,
        set_index: u32,
        plan: &rdma::RdmaProbe,
    ) -> Result<(OpenDevice, Adapter), RdmaUnavailable> {
        let PacketTag { secret, stage, element, .. } = self.tag;
        // Hello packets of other stages and elements must also be dropped.
        let secret_mask = u64::from(stage << 16 | element.0 & 0xffff).rotate_left(32);
        let adapter =
            plan.adapter.clone().map_err(|reason| RdmaUnavailable { reason, has_adapter: true })?;
        let options = VerbsOptions {
            network: self.network_options(secret_of(secret, set_index) ^ secret_mask),
            link: Some(plan.address),
            adapter,
        };
        let probed = probe_adapter(&options)?;
        plan.check(&probed)?;
        let open_error = |error: Error| RdmaUnavailable {
            reason: format!("{}: {error}", probed.wires),
            has_adapter: true,
        };
        let opened = Device::open(options).and_then(|device| {
            OpenDevice::new(device, self.local_host.nodes, self.local_host.first_node)
        });
        let opened = opened.map_err(open_error)?;
        let addresses = opened.address_table().map_err(open_error)?;
        Ok((opened, Adapter { addresses, fabric: probed.fabric, subnet: probed.subnet }))
    }

    /// Opens a raw Ethernet device. AF_XDP uses a link exclusively. It is therefore used only if
    /// the job has a single process on this host, and only for one of its sets.
    fn open_raw(
        &mut self,
        set_index: u32,
        links: &[String],
    ) -> Result<(OpenDevice, Option<String>), String> {
        let is_sole_process = self.tag.is_only_element && self.local_host.nodes == 1;
        let is_exclusive =
            is_sole_process && !links.iter().any(|link| self.xdp_links.contains(link));
        if is_exclusive {
            self.xdp_links.extend_from_slice(links);
        }
        let link_names = links.join(", ");
        let sockets = self.raw_client.map(|raw_client| {
            let process =
                |_| raw_client.open(OpenRequest { set: set_index, use_xdp: is_exclusive });
            (0..self.local_host.nodes).map(process).collect::<Result<Vec<_>, _>>()
        });
        let sockets = sockets.transpose().map_err(|reason| format!("{link_names}: {reason}"))?;
        let wire = if is_exclusive { WirePreference::Raw } else { WirePreference::Packet };
        let opened = self.open_ethernet(set_index, (wire, links), sockets).map_err(|error| {
            let hint = if error == Error::Permission { " (CAP_NET_RAW is needed)" } else { "" };
            format!("{link_names}: {error}{hint}")
        })?;
        let scope = if is_sole_process { "one network set" } else { "one process" };
        let note = match is_exclusive {
            true => opened.device.wire_note().unwrap_or_default(),
            false => Some(format!("AF_XDP is for {scope} on a link; AF_PACKET is used instead")),
        };
        Ok((opened, note))
    }

    /// Opens an ethernet device on these links, with the given sockets or with sockets of its own.
    fn open_ethernet(
        &self,
        set_index: u32,
        (wire, links): (WirePreference, &[String]),
        sockets: Option<Vec<Vec<WireEndpoint>>>,
    ) -> score_pm::PmResult<OpenDevice> {
        let PacketTag { secret, stage, element, .. } = self.tag;
        // Only a test sets the variable, so that a bad value needs no explanation.
        let loss = std::env::var(TEST_LOSS_ENV).ok();
        let loss = loss.map(|loss| FaultConfig::parse(&loss).map_err(|_| Error::Invalid));
        let options = EthernetOptions {
            network: self.network_options(secret_of(secret, set_index)),
            wire,
            links: links.to_vec(),
            incarnation: stage << 16 | element.0 & 0xffff,
            loss: loss.transpose()?,
        };
        let device = match sockets {
            Some(sockets) => Device::open_with_sockets(options, sockets)?,
            None => Device::open(options)?,
        };
        OpenDevice::new(device, self.local_host.nodes, self.local_host.first_node)
    }
}
