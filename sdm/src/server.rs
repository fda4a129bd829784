//! A server or the master: joins a hop, its connections and its back end.

use std::io;
use std::time::Duration;

use score_proto::env::SELF_NODE_ENV;
use score_tree::key::Key;

use crate::backend::{Backend, NoBackend};
use crate::gdb::Gdb;
use crate::hop::{Hop, HopAction, HopInput, HopRole};
use crate::start_error::StartError;
use crate::transport::tcp::TcpTransport;
use crate::transport::{Transport, TransportEvent};

/// Maximum number of lines about refused messages that are kept for the log.
const MAX_REFUSALS: usize = 64;

/// Whether a server continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// Call [`Server::progress`] again.
    Running,
    /// The front end has ended the debugging session, or the parent is lost.
    Ended,
}

/// A server, or the master.
#[derive(Debug)]
pub struct Server<T, B> {
    hop: Hop,
    transport: T,
    backend: B,
    state: ServerState,
    refusals: Vec<String>,
}

/// A master for servers that are connected by TCP. Connects to the front end at the address and
/// port in `connection`, in a limited number of attempts.
///
/// # Errors
/// See [`StartError`].
pub fn sdm_master_init(
    connection: &str,
    key: &Key,
) -> Result<Server<TcpTransport, NoBackend>, StartError> {
    let address =
        connection.parse().map_err(|_| StartError::FrontEndAddress(connection.to_owned()))?;
    let transport = TcpTransport::master(address, key)?;
    Ok(Server::new(HopRole::Master, transport, NoBackend::default()))
}

/// A server with gdb as its back end. It listens for its parent at the port in `connection`, or at
/// the next free port. The environment gives the id.
///
/// # Errors
/// See [`StartError`].
pub fn sdm_server_init(
    connection: &str,
    key: &Key,
) -> Result<(Server<TcpTransport, Gdb>, u32), StartError> {
    let id = std::env::var(SELF_NODE_ENV).ok().and_then(|id| id.parse().ok());
    let id = id.ok_or(StartError::ServerId)?;
    Ok((server_with_id(connection, id, key)?, id))
}

/// Like [`sdm_server_init`], but with an id that the caller gives.
///
/// # Errors
/// See [`StartError`].
pub fn server_with_id(
    connection: &str,
    id: u32,
    key: &Key,
) -> Result<Server<TcpTransport, Gdb>, StartError> {
    let port = connection.parse().ok().filter(|port| *port >= 1024);
    let port = port.ok_or_else(|| StartError::ServerPort(connection.to_owned()))?;
    let transport = TcpTransport::server(id, port, key)?;
    Ok(Server::new(HopRole::Server(id), transport, Gdb::new(id)))
}

impl<T: Transport, B: Backend> Server<T, B> {
    /// A hop with its connections and its back end.
    pub fn new(role: HopRole, transport: T, backend: B) -> Self {
        let (hop, state, refusals) = (Hop::new(role), ServerState::Running, Vec::new());
        Self { hop, transport, backend, state, refusals }
    }

    /// The connections.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The connections.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// The back end.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Lines about refused messages, for a log. Each line is returned once.
    pub fn take_refusals(&mut self) -> Vec<String> {
        std::mem::take(&mut self.refusals)
    }

    /// The time at which [`Server::progress`] has work to do even if no message arrives.
    pub fn deadline(&self) -> Option<Duration> {
        self.hop.deadline().into_iter().chain(self.backend.deadline()).min()
    }

    /// Handles messages that have arrived. Waits for them for up to `timeout`.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn progress(&mut self, timeout: Duration) -> io::Result<ServerState> {
        let until = self.transport.now() + timeout;
        let until = self.deadline().map_or(until, |deadline| deadline.min(until));
        let is_congested = self.transport.is_congested();
        let descriptors = if is_congested { Vec::new() } else { self.backend.descriptors() };
        self.transport.wait(until, &descriptors)?;
        drop(descriptors);
        while let Some(event) = self.transport.receive() {
            self.step(match event {
                TransportEvent::FromParent(message) => HopInput::FromParent(message),
                TransportEvent::FromChild(child, message) => HopInput::FromChild(child, message),
                TransportEvent::ChildConnected(child) => HopInput::ChildConnected(child),
                TransportEvent::ChildLost(child, reason) => HopInput::ChildLost(child, reason),
                TransportEvent::ParentLost(_) => HopInput::ParentLost,
            });
        }
        if !is_congested {
            for (command, event) in self.backend.progress(self.transport.now()) {
                self.take_output();
                self.step(HopInput::Answer(command, event));
            }
            self.take_output();
        }
        self.step(HopInput::Tick);
        if self.state == ServerState::Ended {
            self.transport.finish();
        }
        Ok(self.state)
    }

    /// Passes the process's output on before an answer that follows it.
    fn take_output(&mut self) {
        let output = self.backend.take_output();
        if !output.is_empty() {
            self.step(HopInput::Output(output));
        }
    }

    fn step(&mut self, input: HopInput) {
        if self.state == ServerState::Ended {
            return;
        }
        let mut actions = Vec::new();
        let now = self.transport.now();
        self.hop.step(input, now, &mut actions);
        for action in actions {
            match action {
                HopAction::Connect(children, table) => {
                    self.transport.connect_children(&children, &table);
                }
                HopAction::ToChild(child, message) => self.transport.send_to_child(child, message),
                HopAction::ToParent(message) => self.transport.send_to_parent(message),
                HopAction::Perform(command, operation) => {
                    self.backend.begin(command, operation, now);
                }
                HopAction::Refuse(text) if self.refusals.len() < MAX_REFUSALS => {
                    self.refusals.push(text);
                }
                HopAction::Refuse(_) => (),
                HopAction::Quit => self.state = ServerState::Ended,
            }
        }
    }
}
