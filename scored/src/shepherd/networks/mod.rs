//! The PM devices of one parallel process on this host, for each of its network sets. Nodes of this
//! host use shared memory. Nodes of other hosts use RDMA if the hardware matches, and ethernet
//! otherwise.

mod device_opener;
mod rdma;
mod transport;
mod transport_offer;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_pm::{ContextRef, Counters, Device, ShmemOptions};
use score_proto::frame;
use score_proto::ids::{ElementIndex, JobHostId, ProcessIndex};
use score_proto::job_control::{HostNetworkAddress, Placement};
use score_proto::message::{JobSpec, Level, NetworkDevice, NetworkSet};
use score_proto::nodeset::NodeSet;

use crate::raw_socket::RawSocketClient;
use device_opener::DeviceOpener;
pub use device_opener::secret_of;
pub use transport::{interface, raw_links};
use transport_offer::{AddressTable, TransportOffer};

/// A device and its contexts, one for each process of this host.
struct OpenDevice {
    device: Arc<Device>,
    contexts: Vec<ContextRef>,
}

/// The devices of one network set.
#[derive(Default)]
struct NetworkSetDevices {
    name: String,
    shmem: Option<OpenDevice>,
    /// Devices that reach other hosts. All three stay open until the offers of these hosts are
    /// known.
    verbs: Option<OpenDevice>,
    raw: Option<OpenDevice>,
    udp: Option<OpenDevice>,
    /// The device kinds in use, and the remote nodes that each kind reaches, after
    /// [`Networks::join`].
    remote_nodes: Vec<(NetworkDevice, NodeSet)>,
}

/// The networks of one parallel process.
#[derive(Default)]
pub struct Networks {
    sets: Vec<NetworkSetDevices>,
    /// Whether the offers of all hosts are known.
    joined: bool,
    /// Whether the devices are registered as event sources.
    registered: bool,
    /// This host's first node.
    first_node: u32,
}

/// A device, through which its owner reads the message counters of the processes.
#[derive(Clone)]
struct DeviceCounters {
    device: Arc<Device>,
    /// The device's node number of this host's first process.
    first_index: u32,
    /// The job's node number of the device's node 0.
    node_base: u32,
}

/// The message counters of the processes of one element on this host.
#[derive(Clone, Default)]
pub struct MessageCounters(Vec<DeviceCounters>);

impl MessageCounters {
    /// The number of times that PM has opened an RDMA adapter in each process.
    pub fn adapter_count(&self) -> usize {
        let is_rdma = |device_counters: &&DeviceCounters| {
            device_counters.device.config().is_ok_and(|config| config.kind == "verbs")
        };
        self.0.iter().filter(is_rdma).count()
    }

    /// Messages and bytes that a process has sent and received over all its networks. Peers are
    /// node numbers of the job. If the last message used ethernet, shmem reports no last peer
    /// (`pm::Counters`).
    pub fn counters(&self, process: ProcessIndex) -> Counters {
        let mut sum = Counters::default();
        for device_counters in &self.0 {
            let Ok(mut counters) =
                device_counters.device.counters(device_counters.first_index + process.0)
            else {
                continue;
            };
            for last_peer in [&mut counters.last_to, &mut counters.last_from] {
                *last_peer = last_peer.and_then(|node| node.checked_add(device_counters.node_base));
            }
            sum.add(&counters);
        }
        sum
    }
}

/// Identification in the packets of one parallel process: the job's secret, and numbers that
/// distinguish stages and elements. Packets with another identification are dropped.
#[derive(Debug, Clone, Copy)]
pub struct PacketTag {
    /// The job's secret.
    pub secret: u64,
    /// Number of earlier stages of the job.
    pub stage: u32,
    /// Index of the element in the stage.
    pub element: ElementIndex,
    /// Whether no other element of the stage has networks.
    pub is_only_element: bool,
}

/// Notes for the user on the networks of a parallel process.
#[derive(Debug, Default)]
pub struct NetworkReport {
    /// Differences from the requested networks.
    pub problems: Vec<(Level, String)>,
    /// The networks in use, one line for each network set.
    pub transports: Vec<String>,
}

impl OpenDevice {
    fn new(device: Device, processes: u32, first_node: u32) -> score_pm::PmResult<Self> {
        let mut contexts = Vec::with_capacity(processes as usize);
        for process in 0..processes {
            let context = device.open_context(process as usize)?;
            context.bind_channel(0, first_node + process)?;
            contexts.push(context);
        }
        Ok(Self { device: Arc::new(device), contexts })
    }

    fn open_shmem(nodes: u32) -> Result<Self, String> {
        let opened = Device::open(ShmemOptions::new(nodes as usize))
            .and_then(|device| Self::new(device, nodes, 0));
        opened.map_err(|error| format!("no shmem device for {nodes} nodes: {error}"))
    }

    fn attach_fd(&self, process: ProcessIndex) -> Result<OwnedFd, String> {
        let context = self.contexts.get(process.index()).ok_or("no such process")?;
        context.create_attach_fd().map_err(|error| format!("PM context {process}: {error}"))
    }

    fn address_table(&self) -> score_pm::PmResult<AddressTable> {
        Ok(AddressTable { encoded: self.device.addresses()?, description: self.device.wires()? })
    }
}

impl NetworkSetDevices {
    fn with_name(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    fn ethernet(&self) -> Option<&OpenDevice> {
        self.raw.as_ref().or(self.udp.as_ref())
    }

    /// The devices that reach other hosts, in the order of `remote_nodes`.
    fn remote_devices(&self) -> impl Iterator<Item = &OpenDevice> {
        [self.verbs.as_ref(), self.ethernet()].into_iter().flatten()
    }

    /// Selects the best common device for each host, when the offers of all hosts are known. Closes
    /// the devices that reach no host.
    fn join(&mut self, placement: &Placement, offers: &[&TransportOffer]) -> Result<(), String> {
        let Some(local_offer) = offers.get(placement.self_host.index()) else { return Ok(()) };
        let mut nodes = [NodeSet::new(), NodeSet::new()];
        for (host, offer) in placement.hosts.iter().zip(offers) {
            if !std::ptr::eq(offer, local_offer) {
                nodes[usize::from(!rdma::can_connect(local_offer, offer))]
                    .insert_range(host.node_range());
            }
        }
        let devices = [NetworkDevice::Verbs, NetworkDevice::Ethernet];
        let routes = devices.into_iter().zip(nodes);
        self.remote_nodes = routes.filter(|(_, nodes)| !nodes.is_empty()).collect();
        let uses = |kind| self.remote_nodes.iter().any(|(device, _)| *device == kind);
        let (verbs, ethernet) = (uses(NetworkDevice::Verbs), uses(NetworkDevice::Ethernet));
        let raw = ethernet && transport::is_raw(offers.iter().copied());
        for (device, used) in
            [(&mut self.verbs, verbs), (&mut self.raw, raw), (&mut self.udp, ethernet && !raw)]
        {
            device.take_if(|_| !used);
        }
        let address_error =
            |error| format!("network {}: the addresses of the hosts: {error}", self.name);
        let configure = |opened: &OpenDevice, table: &[u8]| {
            opened.device.set_peers(table).map_err(address_error)
        };
        if let Some(opened) = self.ethernet() {
            configure(opened, &transport::address_table(offers, raw))?;
        }
        match &self.verbs {
            Some(opened) => configure(opened, &rdma::address_table(placement, local_offer, offers)),
            None => Ok(()),
        }
    }
}

impl Networks {
    /// Opens the devices whose addresses other hosts need, and returns these addresses. Returns no
    /// addresses if there is no other host. `raw_client`: client of the helper that opens raw
    /// sockets, because this process has no permission to do so.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        spec: &JobSpec,
        placement: &Placement,
        tag: PacketTag,
        raw_client: Option<&RawSocketClient>,
    ) -> Result<Vec<HostNetworkAddress>, String> {
        let names = transport::set_names(spec);
        let Some(local_host) = placement.self_placement().filter(|_| placement.hosts.len() > 1)
        else {
            self.sets = names.into_iter().map(NetworkSetDevices::with_name).collect();
            return Ok(Vec::new());
        };
        self.first_node = local_host.first_node;
        let mut offers = Vec::new();
        let mut opener =
            DeviceOpener { placement, local_host, tag, raw_client, xdp_links: Vec::new() };
        for (set_index, name) in (0..).zip(&names) {
            let (set, offer) =
                opener.open_set(set_index, transport::plan(name, spec, placement)?)?;
            self.sets.push(set);
            offers.push(offer);
        }
        let address = frame::encode_datagram(&offers).map_err(|error| error.to_string())?;
        Ok(vec![HostNetworkAddress { host: placement.self_host, address }])
    }

    /// Opens the remaining devices when all nodes have attached. `peers`: the results of
    /// [`Networks::open`] on all hosts.
    ///
    /// # Errors
    /// One line for the user.
    pub fn join(
        &mut self,
        placement: &Placement,
        peers: &[HostNetworkAddress],
    ) -> Result<NetworkReport, String> {
        let local_node_count = placement.self_placement().map_or(0, |local_host| local_host.nodes);
        let is_multi_host = placement.hosts.len() > 1;
        let offers_by_host = if is_multi_host {
            decode_offers(placement, peers, self.sets.len())?
        } else {
            Vec::new()
        };
        let mut network_notes = NetworkReport::default();
        for (set_index, set) in self.sets.iter_mut().enumerate() {
            let set_offers: Vec<&TransportOffer> =
                offers_by_host.iter().map(|(_, offers)| &offers[set_index]).collect();
            set.join(placement, &set_offers)?;
            if local_node_count > 1 {
                set.shmem = Some(OpenDevice::open_shmem(local_node_count)?);
            }
            let named_offers: Vec<_> =
                offers_by_host.iter().map(|(name, offers)| (*name, &offers[set_index])).collect();
            network_notes.problems.extend(transport::note(&set.name, &named_offers));
            let mut transports = Vec::new();
            transports.extend(is_multi_host.then(|| transport::describe_transports(&set_offers)));
            let shares_memory = placement.hosts.iter().any(|host| host.nodes > 1);
            transports.extend(shares_memory.then(|| "shared memory within a host".to_owned()));
            let name = &set.name;
            network_notes
                .transports
                .push(format!("network set {set_index} ({name}): {}", transports.join(", ")));
        }
        self.joined = true;
        Ok(network_notes)
    }

    /// The network sets for the processes of this host: which context reaches which nodes.
    pub fn sets(&self, placement: &Placement) -> Vec<NetworkSet> {
        let nodes = placement.nodes();
        let Some(local_host) = placement.self_placement().filter(|_| nodes > 1) else {
            return Vec::new();
        };
        let set = |set: &NetworkSetDevices| match placement.hosts.len() {
            1 => NetworkSet::one_host(nodes),
            _ => NetworkSet::many_hosts(local_host.node_range(), &set.remote_nodes),
        };
        self.sets.iter().map(set).collect()
    }

    fn devices(&self) -> impl Iterator<Item = &OpenDevice> {
        self.sets.iter().flat_map(NetworkSetDevices::remote_devices)
    }

    /// The attach descriptors of one process, in the order of its sets' members.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(&self, process: ProcessIndex) -> Result<Vec<OwnedFd>, String> {
        let attach_fds = |set: &NetworkSetDevices| {
            let members = set.shmem.iter().chain(set.remote_devices());
            members.map(|opened| opened.attach_fd(process)).collect::<Result<Vec<_>, _>>()
        };
        let fds_by_set = self.sets.iter().map(attach_fds).collect::<Result<Vec<_>, _>>()?;
        Ok(fds_by_set.into_iter().flatten().collect())
    }

    /// The counters of a process, over all its networks.
    pub fn counters(&self, process: ProcessIndex) -> Counters {
        self.message_counters().counters(process)
    }

    /// The message counters, which are valid after [`Networks::join`].
    pub fn message_counters(&self) -> MessageCounters {
        let (node_base, first_index) = (self.first_node, self.first_node);
        let mut counters = Vec::new();
        for set in &self.sets {
            let device_counters = |opened: &OpenDevice, first_index, node_base| DeviceCounters {
                device: opened.device.clone(),
                first_index,
                node_base,
            };
            counters.extend(set.shmem.as_ref().map(|opened| device_counters(opened, 0, node_base)));
            counters
                .extend(set.remote_devices().map(|opened| device_counters(opened, first_index, 0)));
        }
        MessageCounters(counters)
    }

    /// Handles the exit of a process of this host.
    pub fn on_process_exit(&self, process: ProcessIndex) {
        // These calls cannot fail for a node that exists. A corrupt segment harms only its own job.
        for set in &self.sets {
            if let Some(opened) = &set.shmem {
                let _ = opened.device.mark_exited(process.0);
            }
            for opened in set.remote_devices() {
                let _ = opened.device.mark_exited(self.first_node + process.0);
            }
        }
    }

    /// Handles the exits of nodes on any host.
    pub fn on_nodes_exited(&self, nodes: &NodeSet) {
        for opened in self.devices() {
            for node in nodes.iter() {
                let _ = opened.device.peer_exited(node);
            }
        }
    }

    /// Registers the devices: `registry` reports `token` when [`Networks::serve`] has work to do.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> std::io::Result<()> {
        if self.registered || !self.joined {
            return Ok(());
        }
        self.registered = true;
        for opened in self.sets.iter().flat_map(NetworkSetDevices::remote_devices) {
            let Ok(fd) = opened.device.adopted_fd() else { continue };
            registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Continues to deliver the messages that exited processes have sent.
    pub fn serve(&self) {
        for opened in self.devices() {
            let _ = opened.device.serve();
        }
    }
}

/// The offers of all hosts, in the order of their nodes: host name, and one offer for each set.
fn decode_offers<'a>(
    placement: &'a Placement,
    peers: &[HostNetworkAddress],
    sets: usize,
) -> Result<Vec<(&'a str, Vec<TransportOffer>)>, String> {
    let host_offers =
        |(host, host_placement): (JobHostId, &'a score_proto::job_control::HostPlacement)| {
            let host_address = peers.iter().find(|peer| peer.host == host);
            let name = host_placement.name.as_str();
            let host_address =
                host_address.ok_or_else(|| format!("host {name}: no network address reported"))?;
            let offers = frame::decode_datagram::<Vec<TransportOffer>>(&host_address.address).ok();
            let offers = offers.filter(|offers| offers.len() == sets);
            let malformed = || format!("host {name}: malformed network addresses");
            Ok((name, offers.ok_or_else(malformed)?))
        };
    (0..).map(JobHostId).zip(&placement.hosts).map(host_offers).collect()
}
