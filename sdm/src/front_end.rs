//! The front end: sends commands to the master and receives the merged events.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use score_proto::nodeset::NodeSet;
use score_tools::merge::CommandId;
use score_tree::key::Key;

use crate::message::{DebugCommand, DownMessage, INIT_COMMAND, Operation, TreeInit, UpMessage};
use crate::transport::tcp::{Connection, WireUp};
use crate::transport::wait_until_ready;

/// The user's end of the connection to the master.
#[derive(Debug)]
pub struct FrontEnd {
    listener: TcpListener,
    key: Key,
    started_at: Instant,
    /// Connections whose peers have not yet proved that they hold the key of the job. The first
    /// peer that proves this is the master.
    unproved: Vec<Connection<DownMessage>>,
    master: Option<Connection<DownMessage>>,
    waiting: VecDeque<DownMessage>,
    last_command: CommandId,
}

/// Maximum number of connections whose peers have not yet proved that they hold the key.
const MAX_UNPROVED: usize = 16;

impl FrontEnd {
    /// Listens for a master at `address`. If its port is 0, the system chooses a port.
    ///
    /// # Errors
    /// If listening at the address fails.
    pub fn listen(address: SocketAddr, key: &Key) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            key: key.clone(),
            started_at: Instant::now(),
            unproved: Vec::new(),
            master: None,
            waiting: VecDeque::new(),
            last_command: INIT_COMMAND,
        })
    }

    /// The connection string for the master.
    ///
    /// # Errors
    /// If the system does not report the address of the listener.
    pub fn connection_string(&self) -> io::Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    /// Sends the initialisation. Its events have the command number [`INIT_COMMAND`].
    pub fn init(&mut self, init: TreeInit) {
        self.send(DownMessage::Init(init));
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

    /// Ends the debugging session.
    pub fn quit(&mut self) {
        self.send(DownMessage::Quit);
    }

    fn send(&mut self, message: DownMessage) {
        let now = self.started_at.elapsed();
        match &mut self.master {
            Some(master) => master.send(message, now),
            None => self.waiting.push_back(message),
        }
    }

    /// The next event or line of output. `None` if none arrives within `timeout`.
    ///
    /// # Errors
    /// If the master is lost, or if waiting fails.
    pub fn receive(&mut self, timeout: Duration) -> io::Result<Option<UpMessage>> {
        let deadline = self.started_at.elapsed() + timeout;
        loop {
            let now = self.started_at.elapsed();
            self.accept_master(now);
            if let Some(master) = &mut self.master {
                let ended = master.progress(now).err();
                match master.receive() {
                    Ok(Some(WireUp::Message(message))) => return Ok(Some(message)),
                    Ok(Some(WireUp::Identity(_))) => continue,
                    Ok(None) if ended.is_none() => (),
                    Ok(None) => return Err(io::Error::other(ended.unwrap_or_default())),
                    Err(reason) => return Err(io::Error::other(reason)),
                }
            }
            if now >= deadline {
                return Ok(None);
            }
            self.wait(deadline)?;
        }
    }

    fn wait(&self, deadline: Duration) -> io::Result<()> {
        let mut descriptors = Vec::new();
        if self.master.is_none() && self.unproved.len() < MAX_UNPROVED {
            descriptors.push((self.listener.as_fd(), PollFlags::POLLIN));
        }
        let connections = self.unproved.iter().chain(&self.master);
        let mut until = deadline;
        for connection in connections {
            descriptors.push((connection.as_fd(), connection.interest()));
            until = until.min(connection.deadline());
        }
        wait_until_ready(descriptors, &[], until.saturating_sub(self.started_at.elapsed()))
    }

    fn accept_master(&mut self, now: Duration) {
        while self.master.is_none() && self.unproved.len() < MAX_UNPROVED {
            let Ok((stream, _)) = self.listener.accept() else { break };
            self.unproved.extend(Connection::accept(stream, &self.key, now));
        }
        let mut index = 0;
        while let Some(connection) = self.unproved.get_mut(index) {
            match connection.progress(now) {
                Ok(()) if connection.take_opened() => {
                    let mut master = self.unproved.swap_remove(index);
                    for message in self.waiting.drain(..) {
                        master.send(message, now);
                    }
                    self.master = Some(master);
                    self.unproved.clear();
                }
                Ok(()) => index += 1,
                Err(_) => {
                    self.unproved.swap_remove(index);
                }
            }
        }
    }
}
