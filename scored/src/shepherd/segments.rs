//! The shared memory of the job's parallel processes: the board, their C-Areas, their PM devices.
//! Made when a parallel process attaches, so that a plain program never pays for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use score_pm::{ContextRef, Device};
use score_proto::PROTOCOL_VERSION;
use score_proto::carea::{AREA_BYTES, BOARD_BYTES, BOARD_MAGIC, board};
use score_proto::order::{HostAddress, Placement};

use crate::sys::memfd::{Published, sealed};

/// What one parallel process shares.
struct Shared {
    area: OwnedFd,
    network: Option<Network>,
}

struct Network {
    device: Device,
    contexts: Vec<ContextRef>,
}

/// All shared memory of the job on this host.
#[derive(Default)]
pub struct Segments {
    board: Option<Published>,
    shared: HashMap<u32, Shared>,
    stopped_since: Option<Instant>,
    stopped_ns: u64,
    stops: u64,
}

impl Segments {
    /// The first node of a parallel process has attached on this host: opens what other hosts need
    /// to know the address of. Nothing, when there is no other host.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        _element: u32,
        placement: &Placement,
        _secret: u64,
    ) -> Result<Vec<HostAddress>, String> {
        match placement.hosts.len() {
            0 | 1 => Ok(Vec::new()),
            _ => Err("messages between hosts are not built yet".to_owned()),
        }
    }

    /// Makes the memory of one parallel process, every node of which has attached. `peers`: what
    /// [`Segments::open`] has said on all hosts. `oversubscribed`: this host has more processes of
    /// the job than processors.
    ///
    /// # Errors
    /// One line for the user.
    pub fn create(
        &mut self,
        element: u32,
        placement: &Placement,
        _peers: &[HostAddress],
        oversubscribed: bool,
        now_ns: u64,
    ) -> Result<(), String> {
        let nodes = placement.here().map_or(0, |here| here.nodes);
        if self.board.is_none() {
            let page = Published::new(c"score-board", BOARD_BYTES)
                .map_err(|error| format!("no memory for the board: {error}"))?;
            page.store_u32(board::VERSION, PROTOCOL_VERSION);
            page.store_u64(board::STARTED_NS, now_ns);
            self.board = Some(page);
            self.publish_stops();
        }
        if let Some(page) = &self.board {
            page.store_u32(board::FLAGS, if oversubscribed { board::OVERSUBSCRIBED } else { 0 });
            page.store_u64(board::MAGIC, BOARD_MAGIC);
        }
        let area = sealed(c"score-area", AREA_BYTES as u64 * u64::from(nodes))
            .map_err(|error| format!("no memory for the C-Area: {error}"))?;
        let network = match nodes {
            1 => None,
            _ => Some(
                Network::open(nodes, oversubscribed)
                    .map_err(|error| format!("no shmem device for {nodes} nodes: {error}"))?,
            ),
        };
        self.shared.insert(element, Shared { area, network });
        Ok(())
    }

    /// The descriptors that the Welcome of one process of this host carries.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(&self, element: u32, process: u32) -> Result<Vec<OwnedFd>, String> {
        let shared = self.shared.get(&element).ok_or("it has no shared memory")?;
        let page = self.board.as_ref().ok_or("the job has no board")?;
        let copy = |result: io::Result<OwnedFd>| {
            result.map_err(|error| format!("no descriptor left for process {process}: {error}"))
        };
        let mut descriptors =
            vec![copy(page.fd().try_clone_to_owned())?, copy(shared.area.try_clone())?];
        if let Some(network) = &shared.network {
            let context = network.contexts.get(process as usize).ok_or("no such node")?;
            let attach = context.create_attach_fd();
            descriptors
                .push(attach.map_err(|error| format!("PM context of process {process}: {error}"))?);
        }
        Ok(descriptors)
    }

    /// A process of this host has ended.
    pub fn exited(&self, element: u32, process: u32) {
        if let Some(Shared { network: Some(network), .. }) = self.shared.get(&element) {
            // It cannot fail for a node that exists; a corrupt segment is its job's own loss.
            let _ = network.device.mark_exited(process);
        }
    }

    /// The parallel processes of a stage have ended.
    pub fn clear(&mut self) {
        self.shared.clear();
    }

    /// The job is stopped.
    pub fn stopped(&mut self, now: Instant) {
        if self.stopped_since.is_none() {
            self.stopped_since = Some(now);
            self.stops += 1;
            self.publish_stops();
        }
    }

    /// The job runs again.
    pub fn resumed(&mut self, now: Instant) {
        if let Some(since) = self.stopped_since.take() {
            let pause = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            self.stopped_ns = self.stopped_ns.saturating_add(pause);
            self.stops += 1;
            self.publish_stops();
        }
    }

    /// Whether the job is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped_since.is_some()
    }

    fn publish_stops(&self) {
        if let Some(page) = &self.board {
            page.store_u64(board::STOPPED_NS, self.stopped_ns);
            page.store_u64(board::STOP_COUNT, self.stops);
        }
    }
}

impl Network {
    fn open(nodes: u32, oversubscribed: bool) -> score_pm::Result<Self> {
        let device = Device::open("shmem", &["-nodes", &nodes.to_string()])?;
        device.set_oversubscribed(oversubscribed)?;
        let mut contexts = Vec::with_capacity(nodes as usize);
        for node in 0..nodes {
            let context = device.open_context(node as usize)?;
            context.bind_channel(0, node)?;
            contexts.push(context);
        }
        Ok(Self { device, contexts })
    }
}
