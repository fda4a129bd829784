//! The shared memory of the job's parallel processes: the board, their C-Areas and their PM
//! devices. Board, areas and segments are made when all processes have attached, the devices to
//! other hosts at the first attachment. Plain programs thus need none.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mio::{Registry, Token};
use score_pm::Counters;
use score_proto::PROTOCOL_VERSION;
use score_proto::carea::{AREA_LEN, BOARD_LEN, BOARD_MAGIC, board};
use score_proto::ids::{ElementIndex, ProcessIndex};
use score_proto::job_control::{HostNetworkAddress, Placement};
use score_proto::message::{NetworkSet, ProgramKind};
use score_proto::nodeset::NodeSet;
use score_sys::memfd;

use super::gang_switch::RunGate;
use super::job_info::JobInfo;
use super::networks::{MessageCounters, NetworkReport, Networks, PacketTag};
use crate::raw_socket::RawSocketClient;
use crate::sys::memfd::PublishedMap;

/// The shared memory of one parallel process.
struct ElementMemory {
    /// The C-Areas of its processes. None: not all nodes have attached.
    area: Option<OwnedFd>,
    networks: Networks,
}

/// All shared memory of the job on this host.
#[derive(Default)]
pub struct SharedMemory {
    board: Option<Arc<PublishedMap>>,
    elements: HashMap<ElementIndex, ElementMemory>,
    /// Number of stages that were started.
    stage_count: u32,
}

impl SharedMemory {
    /// Opens the devices whose addresses other hosts need, when the first node of a parallel
    /// process attaches on this host. Opens no device if there is no other host. `raw_client`:
    /// client of the helper that opens raw sockets, because this process has no permission to do
    /// so.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        element: ElementIndex,
        job_info: &JobInfo,
        raw_client: Option<&RawSocketClient>,
    ) -> Result<Vec<HostNetworkAddress>, String> {
        let (spec, secret) = (job_info.spec(), job_info.job_start.secret);
        let elements = &spec.stages[job_info.stage].elements;
        let is_only_element =
            elements.iter().filter(|spec| spec.kind == ProgramKind::Score).count() < 2;
        let tag = PacketTag { secret, stage: self.stage_count, element, is_only_element };
        let mut networks = Networks::default();
        let addresses = networks.open(spec, &job_info.placement, tag, raw_client)?;
        self.elements.insert(element, ElementMemory { area: None, networks });
        Ok(addresses)
    }

    /// Creates the memory of one parallel process, all nodes of which have attached. `peers`: the
    /// results of [`SharedMemory::open`] on all hosts. `oversubscribed`: the job has more processes
    /// on this host than the host has processors.
    ///
    /// # Errors
    /// One line for the user.
    pub fn create(
        &mut self,
        element: ElementIndex,
        placement: &Placement,
        peers: &[HostNetworkAddress],
        oversubscribed: bool,
        run_gate: &RunGate,
    ) -> Result<NetworkReport, String> {
        let node_count = placement.self_placement().map_or(0, |local_host| local_host.nodes);
        if self.board.is_none() {
            let page = PublishedMap::new("score-board", BOARD_LEN).map_err(|error| {
                format!("cannot allocate the memory that SCore shares with the job: {error}")
            })?;
            page.store_u32(board::VERSION, PROTOCOL_VERSION);
            page.store_u64(board::STARTED_NS, super::monotonic_ns());
            let page = self.board.insert(Arc::new(page));
            run_gate.publish_to(Arc::clone(page));
        }
        if let Some(page) = &self.board {
            page.store_u32(board::FLAGS, if oversubscribed { board::OVERSUBSCRIBED } else { 0 });
            page.store_u64(board::MAGIC, BOARD_MAGIC);
        }
        let area = memfd::create_sealed("score-area", AREA_LEN as u64 * u64::from(node_count))
            .map_err(|error| format!("no memory for the C-Area: {error}"))?;
        let memory = self.elements.get_mut(&element).ok_or("no node has attached")?;
        memory.area = Some(area);
        memory.networks.join(placement, peers)
    }

    /// The C-Areas and the message counters of a parallel process. None: not all nodes have
    /// attached.
    pub fn inspected_memory(
        &self,
        element: ElementIndex,
    ) -> Option<(BorrowedFd<'_>, MessageCounters)> {
        let memory = self.elements.get(&element)?;
        Some((memory.area.as_ref()?.as_fd(), memory.networks.message_counters()))
    }

    /// The network sets of a parallel process: which context reaches which nodes.
    pub fn network_sets(&self, element: ElementIndex, placement: &Placement) -> Vec<NetworkSet> {
        let memory = self.elements.get(&element);
        memory.map(|memory| memory.networks.sets(placement)).unwrap_or_default()
    }

    /// The descriptors for the Welcome of one process of this host.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(
        &self,
        element: ElementIndex,
        process: ProcessIndex,
    ) -> Result<Vec<OwnedFd>, String> {
        let memory = self.elements.get(&element).ok_or("it has no shared memory")?;
        let area = memory.area.as_ref().ok_or("not all nodes have attached")?;
        let page = self.board.as_ref().ok_or("the job has no board")?;
        let duplicated = |result: io::Result<OwnedFd>| {
            result.map_err(|error| format!("no descriptor left for process {process}: {error}"))
        };
        let area = area.as_fd().try_clone_to_owned();
        let mut descriptors = vec![duplicated(page.fd().try_clone_to_owned())?, duplicated(area)?];
        descriptors.extend(memory.networks.descriptors(process)?);
        Ok(descriptors)
    }

    /// The message counters of a parallel process. None: it has no networks yet.
    pub fn message_counters(&self, element: ElementIndex) -> Option<MessageCounters> {
        Some(self.elements.get(&element)?.networks.message_counters())
    }

    /// The counters of one process of this host. None: its networks are not open yet.
    pub fn counters(&self, element: ElementIndex, process: ProcessIndex) -> Option<Counters> {
        Some(self.elements.get(&element)?.networks.counters(process))
    }

    /// Handles the exit of a process of this host.
    pub fn on_process_exit(&self, element: ElementIndex, process: ProcessIndex) {
        if let Some(memory) = self.elements.get(&element) {
            memory.networks.on_process_exit(process);
        }
    }

    /// Handles the exits of nodes on any host. Messages to these nodes are dropped.
    pub fn on_nodes_exited(&self, element: ElementIndex, nodes: &NodeSet) {
        if let Some(memory) = self.elements.get(&element) {
            memory.networks.on_nodes_exited(nodes);
        }
    }

    /// Registers the networks: `registry` reports `token` when [`SharedMemory::serve`] has work to
    /// do.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.elements.values_mut().try_for_each(|memory| memory.networks.register(registry, token))
    }

    /// Continues to deliver the messages that exited processes have sent.
    pub fn serve(&self) {
        self.elements.values().for_each(|memory| memory.networks.serve());
    }

    /// Drops the memory of a stage whose parallel processes have ended.
    pub fn clear(&mut self) {
        self.elements.clear();
        self.stage_count = self.stage_count.wrapping_add(1);
    }
}
