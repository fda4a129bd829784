//! The PM devices of one parallel process on this host, for each of its network sets: shared memory
//! for the host's own nodes; RDMA for those of hosts that have the hardware, too; ethernet for all
//! others.

mod opening;
mod rdma;
mod way;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_pm::{ContextRef, Counters, Device};
use score_proto::frame;
use score_proto::message::{JobSpec, Level, NetworkDevice, NetworkSet};
use score_proto::nodeset::NodeSet;
use score_proto::order::{HostAddress, Placement};

use crate::raw::Asker;
use opening::Opening;
pub use opening::secret_of;
pub use way::raw_links;
use way::{Offer, Reached};

/// A device and its contexts, one for each process of this host.
struct Open {
    device: Arc<Device>,
    contexts: Vec<ContextRef>,
}

/// The devices of one network set.
#[derive(Default)]
struct Set {
    name: String,
    shmem: Option<Open>,
    /// By which other hosts are reached: all three, until it is known what those have.
    verbs: Option<Open>,
    raw: Option<Open>,
    udp: Option<Open>,
    /// What reaches which nodes of other hosts, once that is known.
    others: Vec<(NetworkDevice, NodeSet)>,
}

/// What one parallel process communicates by.
#[derive(Default)]
pub struct Networks {
    sets: Vec<Set>,
    /// It is known what all have.
    joined: bool,
    /// The devices are among the event sources.
    registered: bool,
    /// This host's first node.
    first: u32,
}

/// A device, by which its owner reads what processes have counted.
#[derive(Clone)]
struct Gauge {
    device: Arc<Device>,
    /// Its number for this host's first process.
    first: u32,
    /// The job's number for its node 0.
    here: u32,
}

/// How often PM has opened an RDMA adapter in a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Its devices, each once.
    pub own: usize,
    /// librdmacm, which connects those of iWARP, each once.
    pub managed: usize,
}

/// What counts the messages of the processes of one parallel process on this host.
#[derive(Clone, Default)]
pub struct Gauges(Vec<Gauge>);

impl Gauges {
    /// What PM has opened in a process.
    pub fn adapters(&self, process: u32) -> Adapters {
        let is_rdma = |gauge: &&Gauge| gauge.device.config().is_ok_and(|it| it.kind == "verbs");
        let managed = self.counters(process).opened as usize;
        Adapters { own: self.0.iter().filter(is_rdma).count(), managed }
    }

    /// What a process has sent and received over all its networks; peers by the job's numbers.
    /// Where a message went by ethernet, shmem has forgotten its last peer (`pm::Counters`).
    pub fn counters(&self, process: u32) -> Counters {
        let mut sum = Counters::default();
        for gauge in &self.0 {
            let Ok(mut one) = gauge.device.counters(gauge.first + process) else { continue };
            for peer in [&mut one.last_to, &mut one.last_from] {
                *peer = peer.and_then(|node| node.checked_add(gauge.here));
            }
            sum.add(&one);
        }
        sum
    }
}

/// What packets of one parallel process carry beside the job's secret: those of an earlier stage or
/// of another element are strangers.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// The job's secret.
    pub secret: u64,
    /// Stages of the job before this one.
    pub stage: u32,
    /// Element of the stage.
    pub element: u32,
    /// No other parallel process of the stage has networks.
    pub alone: bool,
}

/// What the user may hear of the networks of a parallel process.
#[derive(Debug, Default)]
pub struct Told {
    /// What is not as it was asked for.
    pub notes: Vec<(Level, String)>,
    /// What is used, a line for each network set.
    pub wires: Vec<String>,
}

impl Open {
    fn new(device: Device, processes: u32, first: u32) -> score_pm::Result<Self> {
        let mut contexts = Vec::with_capacity(processes as usize);
        for process in 0..processes {
            let context = device.open_context(process as usize)?;
            context.bind_channel(0, first + process)?;
            contexts.push(context);
        }
        Ok(Self { device: Arc::new(device), contexts })
    }

    fn shmem(nodes: u32, oversubscribed: bool) -> Result<Self, String> {
        let opened = Device::open("shmem", &["-nodes", &nodes.to_string()]).and_then(|device| {
            device.set_oversubscribed(oversubscribed)?;
            Self::new(device, nodes, 0)
        });
        opened.map_err(|error| format!("no shmem device for {nodes} nodes: {error}"))
    }

    fn give(&self, process: u32) -> Result<OwnedFd, String> {
        let context = self.contexts.get(process as usize).ok_or("no such process")?;
        context.create_attach_fd().map_err(|error| format!("PM context {process}: {error}"))
    }

    fn reached(&self) -> score_pm::Result<Reached> {
        Ok(Reached { table: self.device.addresses()?, wires: self.device.wires()? })
    }
}

impl Set {
    fn named(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    fn ethernet(&self) -> Option<&Open> {
        self.raw.as_ref().or(self.udp.as_ref())
    }

    /// What reaches other hosts, in the order of `others`.
    fn outward(&self) -> impl Iterator<Item = &Open> {
        [self.verbs.as_ref(), self.ethernet()].into_iter().flatten()
    }

    /// All hosts have said what they offer: takes the best that both have for each, and what
    /// reaches nobody is closed.
    fn join(
        &mut self,
        placement: &Placement,
        offers: &[&Offer],
        oversubscribed: bool,
    ) -> Result<(), String> {
        let Some(own) = offers.get(placement.own as usize) else { return Ok(()) };
        let mut nodes = [NodeSet::new(), NodeSet::new()];
        for (place, offer) in placement.hosts.iter().zip(offers) {
            if !std::ptr::eq(offer, own) {
                nodes[usize::from(!rdma::meet(own, offer))].insert_range(place.range());
            }
        }
        let devices = [NetworkDevice::Verbs, NetworkDevice::Ethernet];
        let ways = devices.into_iter().zip(nodes);
        self.others = ways.filter(|(_, nodes)| !nodes.is_empty()).collect();
        let uses = |wanted| self.others.iter().any(|(device, _)| *device == wanted);
        let (verbs, ethernet) = (uses(NetworkDevice::Verbs), uses(NetworkDevice::Ethernet));
        let raw = ethernet && way::is_raw(offers.iter().copied());
        for (device, used) in
            [(&mut self.verbs, verbs), (&mut self.raw, raw), (&mut self.udp, ethernet && !raw)]
        {
            device.take_if(|_| !used);
        }
        let fault = |error| format!("network {}: the addresses of the hosts: {error}", self.name);
        let settle = |open: &Open, table: &[u8]| {
            open.device.set_peers(table).map_err(fault)?;
            open.device.set_oversubscribed(oversubscribed).map_err(fault)
        };
        if let Some(open) = self.ethernet() {
            settle(open, &way::table(offers, raw))?;
        }
        match &self.verbs {
            Some(open) => settle(open, &rdma::table(placement, own, offers)),
            None => Ok(()),
        }
    }
}

impl Networks {
    /// Opens what other hosts need to know the address of; answers that. Nothing, when there is
    /// no other host. `asker`: who opens raw sockets that this process may not.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        spec: &JobSpec,
        placement: &Placement,
        label: Label,
        asker: Option<&Asker>,
    ) -> Result<Vec<HostAddress>, String> {
        let names = way::names(spec);
        let Some(here) = placement.here().filter(|_| placement.hosts.len() > 1) else {
            self.sets = names.into_iter().map(Set::named).collect();
            return Ok(Vec::new());
        };
        self.first = here.first;
        let mut offers = Vec::new();
        let mut opening = Opening { placement, here, label, asker, taken: Vec::new() };
        for (number, name) in (0..).zip(&names) {
            let (set, offer) = opening.set(number, way::plan(name, spec, placement)?)?;
            self.sets.push(set);
            offers.push(offer);
        }
        let address = frame::encode_datagram(&offers).map_err(|error| error.to_string())?;
        Ok(vec![HostAddress { host: placement.own, address }])
    }

    /// Every node has attached: opens the rest. `peers`: what [`Networks::open`] has said on all
    /// hosts.
    ///
    /// # Errors
    /// One line for the user.
    pub fn join(
        &mut self,
        placement: &Placement,
        peers: &[HostAddress],
        oversubscribed: bool,
    ) -> Result<Told, String> {
        let local = placement.here().map_or(0, |here| here.nodes);
        let several = placement.hosts.len() > 1;
        let all = if several { offers(placement, peers, self.sets.len())? } else { Vec::new() };
        let mut told = Told::default();
        for (number, set) in self.sets.iter_mut().enumerate() {
            let of_set: Vec<&Offer> = all.iter().map(|(_, offers)| &offers[number]).collect();
            set.join(placement, &of_set, oversubscribed)?;
            if local > 1 {
                set.shmem = Some(Open::shmem(local, oversubscribed)?);
            }
            let by_name: Vec<_> =
                all.iter().map(|(name, offers)| (*name, &offers[number])).collect();
            told.notes.extend(way::note(&set.name, &by_name));
            let mut wires = Vec::new();
            wires.extend(several.then(|| way::wires(&of_set)));
            let shares = placement.hosts.iter().any(|host| host.nodes > 1);
            wires.extend(shares.then(|| "shared memory within a host".to_owned()));
            let name = &set.name;
            told.wires.push(format!("network set {number} ({name}): {}", wires.join(", ")));
        }
        self.joined = true;
        Ok(told)
    }

    /// What the processes of this host are told: which context reaches which nodes.
    pub fn sets(&self, placement: &Placement) -> Vec<NetworkSet> {
        let nodes = placement.nodes();
        let Some(here) = placement.here().filter(|_| nodes > 1) else { return Vec::new() };
        let set = |set: &Set| match placement.hosts.len() {
            1 => NetworkSet::one_host(nodes),
            _ => NetworkSet::many_hosts(here.range(), &set.others),
        };
        self.sets.iter().map(set).collect()
    }

    fn devices(&self) -> impl Iterator<Item = &Open> {
        self.sets.iter().flat_map(Set::outward)
    }

    /// The attach descriptors of one process, in the order of its sets' members.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(&self, process: u32) -> Result<Vec<OwnedFd>, String> {
        let of_set = |set: &Set| {
            let members = set.shmem.iter().chain(set.outward());
            members.map(|open| open.give(process)).collect::<Result<Vec<_>, _>>()
        };
        let all = self.sets.iter().map(of_set).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().flatten().collect())
    }

    /// What a process has sent and received over all its networks.
    pub fn counters(&self, process: u32) -> Counters {
        self.gauges().counters(process)
    }

    /// What counts the messages; once all have joined.
    pub fn gauges(&self) -> Gauges {
        let (here, first) = (self.first, self.first);
        let mut gauges = Vec::new();
        for set in &self.sets {
            let gauge =
                |open: &Open, first, here| Gauge { device: open.device.clone(), first, here };
            gauges.extend(set.shmem.as_ref().map(|open| gauge(open, 0, here)));
            gauges.extend(set.outward().map(|open| gauge(open, first, 0)));
        }
        Gauges(gauges)
    }

    /// A process of this host has ended.
    pub fn exited(&self, process: u32) {
        // These cannot fail for a node that exists; a corrupt segment is its job's own loss.
        for set in &self.sets {
            if let Some(open) = &set.shmem {
                let _ = open.device.mark_exited(process);
            }
            for open in set.outward() {
                let _ = open.device.mark_exited(self.first + process);
            }
        }
    }

    /// Nodes have ended, on whichever host.
    pub fn gone(&self, nodes: &NodeSet) {
        for open in self.devices() {
            for node in nodes.iter() {
                let _ = open.device.peer_exited(node);
            }
        }
    }

    /// Has `token` told when [`Networks::serve`] has something to do.
    ///
    /// # Errors
    /// The system refuses.
    pub fn register(&mut self, registry: &Registry, token: Token) -> std::io::Result<()> {
        if self.registered || !self.joined {
            return Ok(());
        }
        self.registered = true;
        for open in self.sets.iter().flat_map(Set::outward) {
            let Ok(fd) = open.device.adopted_fd() else { continue };
            registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        }
        Ok(())
    }

    /// Goes on with sending what processes that have ended have left.
    pub fn serve(&self) {
        for open in self.devices() {
            let _ = open.device.serve();
        }
    }
}

/// What all hosts offer, in the order of their nodes: name of the host, an offer for each set.
fn offers<'a>(
    placement: &'a Placement,
    peers: &[HostAddress],
    sets: usize,
) -> Result<Vec<(&'a str, Vec<Offer>)>, String> {
    let offer = |(host, place): (u32, &'a score_proto::order::Place)| {
        let found = peers.iter().find(|peer| peer.host == host);
        let found = found.ok_or_else(|| format!("host {} has told no address", place.name))?;
        let offers = frame::decode_datagram::<Vec<Offer>>(&found.address).ok();
        let offers = offers.filter(|offers| offers.len() == sets);
        let what = || format!("host {} has told addresses that are none", place.name);
        Ok((place.name.as_str(), offers.ok_or_else(what)?))
    };
    (0..).zip(&placement.hosts).map(offer).collect()
}
