//! The PM devices of one parallel process on this host: shared memory for the host's own nodes,
//! ethernet for those of other hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use score_pm::{ContextRef, Device};
use score_proto::message::NetworkSet;
use score_proto::nodeset::NodeSet;
use score_proto::order::{HostAddress, Placement};

/// Names a variable of scored's own environment, for tests: the wires of its jobs lose, double and
/// reorder as it says (docs/ethernet.md).
const LOSS: &str = "SCORE_TEST_LOSS";

/// A device and its contexts, one for each process of this host.
struct Open {
    device: Device,
    contexts: Vec<ContextRef>,
}

/// What one parallel process communicates by.
#[derive(Default)]
pub struct Networks {
    shmem: Option<Open>,
    ethernet: Option<Open>,
    /// The ethernet device is among the event sources.
    registered: bool,
    /// This host's first node.
    first: u32,
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
}

impl Open {
    fn new(device: Device, processes: u32, first: u32) -> score_pm::Result<Self> {
        let mut contexts = Vec::with_capacity(processes as usize);
        for process in 0..processes {
            let context = device.open_context(process as usize)?;
            context.bind_channel(0, first + process)?;
            contexts.push(context);
        }
        Ok(Self { device, contexts })
    }

    fn give(&self, process: u32) -> Result<OwnedFd, String> {
        let context = self.contexts.get(process as usize).ok_or("no such process")?;
        context.create_attach_fd().map_err(|error| format!("PM context {process}: {error}"))
    }
}

impl Networks {
    /// Opens what other hosts need to know the address of; answers that. Nothing, when there is
    /// no other host.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        placement: &Placement,
        label: Label,
    ) -> Result<Vec<HostAddress>, String> {
        let Some(here) = placement.here().filter(|_| placement.hosts.len() > 1) else {
            return Ok(Vec::new());
        };
        let link = here.address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip()).to_string();
        let number = |number: u32| number.to_string();
        let incarnation = label.stage << 16 | label.element & 0xffff;
        let options = [
            "-nodes",
            &number(placement.nodes()),
            "-first",
            &number(here.first),
            "-local",
            &number(here.nodes),
            "-link",
            &link,
            "-secret",
            &format!("{:x}", label.secret),
            "-incarnation",
            &number(incarnation),
        ];
        let loss = std::env::var(LOSS).ok();
        let loss = loss.iter().flat_map(|loss| ["-loss", loss.as_str()]);
        let options: Vec<&str> = options.into_iter().chain(loss).collect();
        let opened = Device::open("ethernet", &options)
            .and_then(|device| Open::new(device, here.nodes, here.first));
        let open = opened.map_err(|error| format!("no ethernet device on {link}: {error}"))?;
        let address = open.device.addresses();
        let address = address.map_err(|error| format!("no addresses on {link}: {error}"))?;
        self.first = here.first;
        self.ethernet = Some(open);
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
    ) -> Result<(), String> {
        let local = placement.here().map_or(0, |here| here.nodes);
        if let Some(open) = &self.ethernet {
            let table = table(placement, peers)?;
            let joined = open.device.set_peers(&table);
            joined.map_err(|error| format!("the addresses of the hosts: {error}"))?;
            let _ = open.device.set_oversubscribed(oversubscribed);
        }
        if local > 1 {
            let open = Device::open("shmem", &["-nodes", &local.to_string()]).and_then(|device| {
                device.set_oversubscribed(oversubscribed)?;
                Open::new(device, local, 0)
            });
            let open =
                open.map_err(|error| format!("no shmem device for {local} nodes: {error}"))?;
            self.shmem = Some(open);
        }
        Ok(())
    }

    /// What the processes of this host are told: which context reaches which nodes.
    pub fn sets(placement: &Placement) -> Vec<NetworkSet> {
        let nodes = placement.nodes();
        match (nodes, placement.here()) {
            (0 | 1, _) | (_, None) => Vec::new(),
            (_, Some(_)) if placement.hosts.len() == 1 => vec![NetworkSet::one_host(nodes)],
            (_, Some(here)) => vec![NetworkSet::many_hosts(nodes, here.first, here.nodes)],
        }
    }

    /// The attach descriptors of one process, in the order of its sets' members.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(&self, process: u32) -> Result<Vec<OwnedFd>, String> {
        [&self.shmem, &self.ethernet].into_iter().flatten().map(|open| open.give(process)).collect()
    }

    /// A process of this host has ended.
    pub fn exited(&self, process: u32) {
        // These cannot fail for a node that exists; a corrupt segment is its job's own loss.
        if let Some(open) = &self.shmem {
            let _ = open.device.mark_exited(process);
        }
        if let Some(open) = &self.ethernet {
            let _ = open.device.mark_exited(self.first + process);
        }
    }

    /// Nodes have ended, on whichever host.
    pub fn gone(&self, nodes: &NodeSet) {
        if let Some(open) = &self.ethernet {
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
        let Some(open) = self.ethernet.as_ref().filter(|_| !self.registered) else {
            return Ok(());
        };
        self.registered = true;
        let Ok(fd) = open.device.adopted_fd() else { return Ok(()) };
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)
    }

    /// Goes on with sending what processes that have ended have left.
    pub fn serve(&self) {
        if let Some(open) = &self.ethernet {
            let _ = open.device.serve();
        }
    }
}

/// The addresses of all hosts, in the order of their nodes.
fn table(placement: &Placement, peers: &[HostAddress]) -> Result<Vec<u8>, String> {
    let mut table = Vec::new();
    for (host, place) in (0..).zip(&placement.hosts) {
        let found = peers.iter().find(|peer| peer.host == host);
        let found = found.ok_or_else(|| format!("host {} has told no address", place.name))?;
        table.extend_from_slice(&found.address);
    }
    Ok(table)
}
