//! The front end of the scalable debug manager for the tree of a job, with the master in the same
//! process. It corresponds to [`score_sdm::front_end::FrontEnd`], whose master is another process.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use score_proto::nodeset::NodeSet;
use score_sdm::backend::NoBackend;
use score_sdm::hop::HopRole;
use score_sdm::message::{
    DebugCommand, DownMessage, INIT_COMMAND, Operation, RoutingTable, TreeInit, UpMessage,
};
use score_sdm::routing::TreeShape;
use score_sdm::server::Server;
use score_tools::merge::CommandId;

use super::JobTree;
use crate::job_address::JobAddress;

/// A job of this user under the control of the scalable debug manager. Dropping this value undoes
/// all changes to the job.
pub struct TreeFrontEnd {
    master: Server<JobTree, NoBackend>,
    servers: u32,
    last_command: CommandId,
}

impl TreeFrontEnd {
    /// Finds the job, and initialises the tree. The events of the initialisation have the command
    /// number [`INIT_COMMAND`].
    ///
    /// # Errors
    /// One line: there is no such job.
    pub fn open(
        address: JobAddress,
        socket: Option<PathBuf>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let mut tree = JobTree::open(address, socket)?;
        let servers = tree.servers()?;
        let (shape, table) = (TreeShape::Kary(1), RoutingTable::default());
        tree.send_from_front_end(DownMessage::Init(TreeInit { servers, shape, table, timeout }));
        let master = Server::new(HopRole::Master, tree, NoBackend::default());
        Ok(Self { master, servers, last_command: INIT_COMMAND })
    }

    /// The number of servers, which is the number of ranks of the job.
    pub fn servers(&self) -> u32 {
        self.servers
    }

    /// Sends a command and returns its number.
    pub fn command(
        &mut self,
        ranks: NodeSet,
        timeout: Duration,
        operation: Operation,
    ) -> CommandId {
        self.last_command.0 += 1;
        let id = self.last_command;
        self.send(DownMessage::Command(DebugCommand { id, ranks, timeout, operation }));
        id
    }

    /// Closes a command: its further events are dropped.
    pub fn close(&mut self, command: CommandId) {
        self.send(DownMessage::Close(command));
    }

    /// Ends the debugging session.
    pub fn quit(&mut self) {
        self.send(DownMessage::Quit);
    }

    fn send(&mut self, message: DownMessage) {
        self.master.transport_mut().send_from_front_end(message);
    }

    /// The next event. `None` if none arrives within `timeout`.
    ///
    /// # Errors
    /// Returns an error if waiting fails.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<UpMessage>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(message) = self.master.transport_mut().take_for_front_end() {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            self.master.progress(left)?;
            if left.is_zero() {
                return Ok(self.master.transport_mut().take_for_front_end());
            }
        }
    }
}
