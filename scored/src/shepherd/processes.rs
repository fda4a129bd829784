//! The table of the processes of the running stage on this host. The entry of a process holds all
//! state of that process, and is dropped when the process exits.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use mio::{Registry, Token};
use score_proto::ids::ElementIndex;
use score_proto::message::{Call, Reply};

use super::call_handler::{CallState, ElementCalls, PendingFlushes};
use super::control_socket::{ControlSocket, MAX_CALL_LEN, ReadResult};
use super::job_info::{LocalNodes, ProcessKey};
use super::metrics::measurement::Measurement;
use crate::sys::spawn_args::ChildFile;

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// Its process id.
    pub pid: i32,
    /// None: the socket is not open yet, or the process has closed it or has sent a malformed
    /// datagram.
    control: Option<ControlSocket>,
    /// Its calls that wait for a reply.
    pub calls: CallState,
    /// Its resource usage.
    pub measurement: Measurement,
    /// Files that it opens as its standard input and output.
    pub child_files: [Option<ChildFile>; 2],
}

/// A parallel process of the running stage.
#[derive(Debug)]
struct Element {
    calls: ElementCalls,
    /// One entry for each node of this host. None: the process is not started yet, or has exited.
    processes: Vec<Option<Box<Process>>>,
}

/// The processes of the running stage.
#[derive(Debug, Default)]
pub struct ProcessTable {
    nodes: LocalNodes,
    elements: Vec<Element>,
    keys_by_pid: HashMap<i32, ProcessKey>,
    /// Processes whose control sockets may be readable.
    ready: VecDeque<ProcessKey>,
    pending_flushes: PendingFlushes,
    scratch: Vec<u8>,
}

/// An event of a control socket.
#[derive(Debug)]
pub enum ControlEvent {
    /// A call.
    Call(ProcessKey, Call),
    /// A malformed datagram: the process is faulty or hostile.
    Malformed(ProcessKey, String),
}

impl ProcessTable {
    /// Drops the processes of the last stage and prepares for the elements of the next one.
    pub fn reset(&mut self, elements: Vec<ElementCalls>, nodes: LocalNodes) {
        self.nodes = nodes;
        let processes = || (0..nodes.count).map(|_| None).collect();
        self.elements =
            elements.into_iter().map(|calls| Element { calls, processes: processes() }).collect();
        self.keys_by_pid.clear();
        self.ready.clear();
        self.pending_flushes.clear();
        self.scratch.resize(MAX_CALL_LEN, 0);
    }

    /// The indexes of the parallel processes.
    pub fn elements(&self) -> impl Iterator<Item = ElementIndex> + use<> {
        ElementIndex::all(self.elements.len())
    }

    /// Number of running processes.
    pub fn running_count(&self) -> usize {
        self.keys_by_pid.len()
    }

    /// Adds a process that has been started.
    pub fn start(&mut self, key: ProcessKey, pid: i32, child_files: [Option<ChildFile>; 2]) {
        let Some(slot) = self.slot(key) else { return };
        let (calls, measurement) = (CallState::default(), Measurement::default());
        *slot = Some(Box::new(Process { pid, control: None, calls, measurement, child_files }));
        self.keys_by_pid.insert(pid, key);
    }

    /// Takes the shepherd's end of a process's control socket. `token` returns the token for an
    /// index. Pass that index to [`ProcessTable::mark_ready`] when mio reports the token.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn open_control(
        &mut self,
        key: ProcessKey,
        socket: OwnedFd,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        let token = token(self.nodes.index(key));
        if let Some(process) = self.get_mut(key) {
            process.control = Some(ControlSocket::new(socket, registry, token)?);
        }
        Ok(())
    }

    /// Returns a token for a call of sc_flush.
    pub fn add_flush(&mut self, caller: ProcessKey, id: u32) -> u64 {
        self.pending_flushes.add(caller, id)
    }

    /// Takes the call of sc_flush with this token, to reply to it: the caller and the id.
    pub fn take_flush(&mut self, token: u64) -> Option<(ProcessKey, u32)> {
        self.pending_flushes.take(token)
    }

    /// Removes a process that has exited, and returns its entry.
    pub fn end(&mut self, pid: i32) -> Option<(ProcessKey, Box<Process>)> {
        let key = self.keys_by_pid.remove(&pid)?;
        Some((key, self.slot(key)?.take()?))
    }

    /// The running process with this process id, if any.
    pub fn key_of(&self, pid: i32) -> Option<ProcessKey> {
        self.keys_by_pid.get(&pid).copied()
    }

    /// The process id of a running process.
    pub fn pid_of(&self, key: ProcessKey) -> Option<i32> {
        let node_index = self.nodes.process_index(key.node)?;
        let element = self.elements.get(key.element.index())?;
        Some(element.processes.get(node_index)?.as_ref()?.pid)
    }

    fn slot(&mut self, key: ProcessKey) -> Option<&mut Option<Box<Process>>> {
        let node_index = self.nodes.process_index(key.node)?;
        self.elements.get_mut(key.element.index())?.processes.get_mut(node_index)
    }

    /// A running process.
    pub fn get_mut(&mut self, key: ProcessKey) -> Option<&mut Process> {
        self.slot(key)?.as_deref_mut()
    }

    /// The state that the calls of one parallel process share on this host.
    pub fn element_calls(&mut self, element: ElementIndex) -> Option<&mut ElementCalls> {
        Some(&mut self.elements.get_mut(element.index())?.calls)
    }

    /// The shared call state of a process's element, and the call state of the process.
    pub fn calls(&mut self, key: ProcessKey) -> Option<(&mut ElementCalls, &mut CallState)> {
        let node_index = self.nodes.process_index(key.node)?;
        let element = self.elements.get_mut(key.element.index())?;
        let process = element.processes.get_mut(node_index)?.as_mut()?;
        Some((&mut element.calls, &mut process.calls))
    }

    /// The running processes of one element, or of all elements, in order.
    pub fn running_mut(
        &mut self,
        element: Option<ElementIndex>,
    ) -> impl Iterator<Item = (ProcessKey, &mut Process)> {
        let first_node = self.nodes.first;
        let elements = (0..).map(ElementIndex).zip(&mut self.elements);
        elements.filter(move |(index, _)| element.is_none_or(|element| element == *index)).flat_map(
            move |(element, entry)| {
                let processes = (first_node..).zip(&mut entry.processes);
                processes.filter_map(move |(node, process)| {
                    Some((ProcessKey { element, node }, process.as_deref_mut()?))
                })
            },
        )
    }

    /// Records that mio has reported an event of the control socket with this index.
    pub fn mark_ready(&mut self, index: usize) {
        if let Some(key) = self.nodes.key(index) {
            self.queue_control(key);
        }
    }

    /// Queues the control socket of a process, so that the next [`ProcessTable::receive_events`]
    /// reads it.
    pub fn queue_control(&mut self, key: ProcessKey) {
        let process = self.get_mut(key);
        let Some(control) = process.and_then(|process| process.control.as_mut()) else { return };
        control.send_queued();
        if !std::mem::replace(&mut control.is_queued, true) {
            self.ready.push_back(key);
        }
    }

    /// Whether [`ProcessTable::receive_events`] may return events.
    pub fn is_runnable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Receives the next events of all processes whose control sockets are ready.
    pub fn receive_events(&mut self) -> Vec<ControlEvent> {
        let mut events = Vec::new();
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else { break };
            let Some(process) = self.get_mut(key) else { continue };
            let Some(control) = &mut process.control else { continue };
            control.is_queued = false;
            let result = control.receive(&mut scratch, |received| {
                events.push(match received {
                    Ok(call) => ControlEvent::Call(key, call),
                    Err(violation) => ControlEvent::Malformed(key, violation),
                });
            });
            match result {
                ReadResult::WouldBlock => {}
                ReadResult::More => self.queue_control(key),
                ReadResult::Closed => process.control = None,
            }
        }
        self.scratch = scratch;
        events
    }

    /// Sends a reply with descriptors to a process. Returns false if the process has left too many
    /// replies unread.
    pub fn answer(&mut self, key: ProcessKey, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        let control = self.get_mut(key).and_then(|process| process.control.as_mut());
        control.is_none_or(|control| control.answer(reply, descriptors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ProcessTable {
        let mut table = ProcessTable::default();
        let elements = ["left", "right"].map(|name| ElementCalls::new(name.to_owned()));
        table.reset(elements.into(), LocalNodes { first: 4, count: 2 });
        for (pid, (element, node)) in (100..).zip([(0, 4), (0, 5), (1, 4), (1, 5)]) {
            let element = ElementIndex(element);
            table.start(ProcessKey { element, node }, pid, [None, None]);
        }
        table
    }

    #[test]
    fn an_ended_process_is_removed_from_all_lists() {
        let mut table = table();
        let key = ProcessKey { element: ElementIndex(0), node: 5 };
        assert_eq!((table.key_of(101), table.pid_of(key)), (Some(key), Some(101)));
        let (ended, process) = table.end(101).unwrap();
        assert_eq!((ended, process.pid), (key, 101));
        assert!(table.end(101).is_none() && table.key_of(101).is_none());
        assert!(table.pid_of(key).is_none() && table.calls(key).is_none());
        assert_eq!(table.running_count(), 3);
        let pids = |table: &mut ProcessTable, element| -> Vec<i32> {
            table.running_mut(element).map(|(_, process)| process.pid).collect()
        };
        assert_eq!(pids(&mut table, None), [100, 102, 103]);
        assert_eq!(pids(&mut table, Some(ElementIndex(0))), [100]);
        assert_eq!(pids(&mut table, Some(ElementIndex(1))), [102, 103]);
    }

    #[test]
    fn a_node_of_another_host_is_not_in_the_process_table() {
        let mut table = table();
        for (element, node) in [(0, 3), (0, 6), (2, 4), (u32::MAX, u32::MAX)] {
            let key = ProcessKey { element: ElementIndex(element), node };
            assert!(table.pid_of(key).is_none() && table.get_mut(key).is_none());
            assert!(table.calls(key).is_none());
            assert!(table.answer(key, &Reply::Done { id: 1, error: 0 }, Vec::new()));
        }
        table.mark_ready(usize::MAX);
        ProcessTable::default().mark_ready(1);
        assert!(!table.is_runnable());
    }

    #[test]
    fn each_socket_is_queued_once_under_the_index_of_its_token() {
        let (poll, mut table) = (mio::Poll::new().unwrap(), table());
        let key = ProcessKey { element: ElementIndex(1), node: 4 };
        let (socket, peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let token = |number| {
            assert_eq!(number, 2);
            Token(number)
        };
        table.open_control(key, socket.into(), poll.registry(), token).unwrap();
        peer.send(b"no call").unwrap();
        [(); 2].iter().for_each(|()| table.mark_ready(2));
        let events = table.receive_events();
        assert!(matches!(events[..], [ControlEvent::Malformed(from, _)] if from == key));
        assert!(!table.is_runnable());
        // The control socket is closed now, but the process still runs.
        table.mark_ready(2);
        assert!(!table.is_runnable() && table.pid_of(key).is_some());
    }
}
