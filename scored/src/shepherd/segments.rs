//! The shared memory of the job's parallel processes: the board, their C-Areas, their PM devices.
//! Made when a parallel process attaches, so that a plain program never pays for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mio::{Registry, Token};
use score_pm::Counters;
use score_proto::PROTOCOL_VERSION;
use score_proto::carea::{AREA_BYTES, BOARD_BYTES, BOARD_MAGIC, board};
use score_proto::message::{Kind, NetworkSet};
use score_proto::nodeset::NodeSet;
use score_proto::order::{HostAddress, Placement};

use super::networks::{Gauges, Label, Networks, Told};
use super::switch::Gate;
use super::work::Known;
use crate::raw::Asker;
use crate::sys::memfd::{Published, sealed};

/// What one parallel process shares.
struct Shared {
    /// Made when all have attached.
    area: Option<OwnedFd>,
    networks: Networks,
}

/// All shared memory of the job on this host.
#[derive(Default)]
pub struct Segments {
    board: Option<Arc<Published>>,
    shared: HashMap<u32, Shared>,
    /// Stages that were begun.
    stage: u32,
}

impl Segments {
    /// The first node of a parallel process has attached on this host: opens what other hosts need
    /// to know the address of. Nothing, when there is no other host. `asker`: who opens what this
    /// process may not.
    ///
    /// # Errors
    /// One line for the user.
    pub fn open(
        &mut self,
        element: u32,
        known: &Known,
        asker: Option<&Asker>,
    ) -> Result<Vec<HostAddress>, String> {
        let (spec, secret) = (known.spec(), known.begin.secret);
        let elements = &spec.stages[known.stage].elements;
        let alone = elements.iter().filter(|one| one.kind == Kind::Score).count() < 2;
        let label = Label { secret, stage: self.stage, element, alone };
        let mut networks = Networks::default();
        let addresses = networks.open(spec, &known.placement, label, asker)?;
        self.shared.insert(element, Shared { area: None, networks });
        Ok(addresses)
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
        peers: &[HostAddress],
        oversubscribed: bool,
        gate: &Gate,
    ) -> Result<Told, String> {
        let nodes = placement.here().map_or(0, |here| here.nodes);
        if self.board.is_none() {
            let page = Published::new(c"score-board", BOARD_BYTES)
                .map_err(|error| format!("no memory for the board: {error}"))?;
            page.store_u32(board::VERSION, PROTOCOL_VERSION);
            page.store_u64(board::STARTED_NS, super::monotonic_ns());
            let page = self.board.insert(Arc::new(page));
            gate.publish_on(Arc::clone(page));
        }
        if let Some(page) = &self.board {
            page.store_u32(board::FLAGS, if oversubscribed { board::OVERSUBSCRIBED } else { 0 });
            page.store_u64(board::MAGIC, BOARD_MAGIC);
        }
        let area = sealed(c"score-area", AREA_BYTES as u64 * u64::from(nodes))
            .map_err(|error| format!("no memory for the C-Area: {error}"))?;
        let shared = self.shared.get_mut(&element).ok_or("nobody has attached")?;
        shared.area = Some(area);
        shared.networks.join(placement, peers, oversubscribed)
    }

    /// The C-Areas of a parallel process, and what counts its messages.
    pub fn watched(&self, element: u32) -> Option<(BorrowedFd<'_>, Gauges)> {
        let shared = self.shared.get(&element)?;
        Some((shared.area.as_ref()?.as_fd(), shared.networks.gauges()))
    }

    /// Which of their contexts reaches which nodes.
    pub fn network_sets(&self, element: u32, placement: &Placement) -> Vec<NetworkSet> {
        let shared = self.shared.get(&element);
        shared.map(|shared| shared.networks.sets(placement)).unwrap_or_default()
    }

    /// The descriptors that the Welcome of one process of this host carries.
    ///
    /// # Errors
    /// One line for the user.
    pub fn descriptors(&self, element: u32, process: u32) -> Result<Vec<OwnedFd>, String> {
        let shared = self.shared.get(&element).ok_or("it has no shared memory")?;
        let area = shared.area.as_ref().ok_or("not all have attached")?;
        let page = self.board.as_ref().ok_or("the job has no board")?;
        let copy = |result: io::Result<OwnedFd>| {
            result.map_err(|error| format!("no descriptor left for process {process}: {error}"))
        };
        let area = area.as_fd().try_clone_to_owned();
        let mut descriptors = vec![copy(page.fd().try_clone_to_owned())?, copy(area)?];
        descriptors.extend(shared.networks.descriptors(process)?);
        Ok(descriptors)
    }

    /// What counts the messages of a parallel process. None: it has no networks yet.
    pub fn gauges(&self, element: u32) -> Option<Gauges> {
        Some(self.shared.get(&element)?.networks.gauges())
    }

    /// What a process of this host has sent and received so far. None: it has no networks yet.
    pub fn counters(&self, element: u32, process: u32) -> Option<Counters> {
        Some(self.shared.get(&element)?.networks.counters(process))
    }

    /// A process of this host has ended.
    pub fn exited(&self, element: u32, process: u32) {
        if let Some(shared) = self.shared.get(&element) {
            shared.networks.exited(process);
        }
    }

    /// Nodes have ended, on whichever host: what is sent to them is dropped.
    pub fn gone(&self, element: u32, nodes: &NodeSet) {
        if let Some(shared) = self.shared.get(&element) {
            shared.networks.gone(nodes);
        }
    }

    /// Has `token` told when [`Segments::serve`] has something to do.
    ///
    /// # Errors
    /// The system refuses.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.shared.values_mut().try_for_each(|shared| shared.networks.register(registry, token))
    }

    /// Goes on with sending what processes that have ended have left.
    pub fn serve(&self) {
        self.shared.values().for_each(|shared| shared.networks.serve());
    }

    /// The parallel processes of a stage have ended.
    pub fn clear(&mut self) {
        self.shared.clear();
        self.stage = self.stage.wrapping_add(1);
    }
}
