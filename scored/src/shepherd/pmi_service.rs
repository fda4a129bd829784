//! PMI for the MPI programs of the running stage. Each process has a socket to its shepherd.
//! Through it, the MPI library obtains its rank and exchanges addresses with other processes. This
//! module handles the sockets. The crate [`score_pmi`] interprets the requests.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use score_pmi::host::{JobFacts, PmiAction, PmiHost, process_mapping};
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{MAX_FENCE_BYTES_PER_HOST, MAX_FENCE_BYTES_PER_NODE, SubsetFence};
use score_proto::message::{MpiStart, ProgramKind};
use score_proto::nodeset::NodeSet;

use super::inspection::PmiSocketActivity;
use super::job_info::{JobInfo, LocalNodes, ProcessKey};
use crate::sys::descriptor::is_socket_empty;

/// The directory in which the kernel shows POSIX shared memory.
const SHARED_MEMORY_FOLDER: &str = "/dev/shm";
/// Number of bytes that are read from one process before the next process is served. Each request
/// in them may have an answer of more than 1 KiB. The next bytes are read only after the process
/// has taken all answers.
const READ_LEN: usize = 4096;
/// Largest number of reads from the socket of an exited process. The kernel buffers about 200 KiB
/// for a socket.
const MAX_READS_AFTER_EXIT: usize = 64;
/// An event of a parallel process that concerns more than this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PmiEvent {
    /// All nodes of this host, except those that have exited, have entered a fence. Contains the
    /// nodes, and the entries that they have put.
    Fence(NodeSet, Vec<u8>),
    /// All nodes of this host that take part in a subset fence are in it.
    SubsetFence {
        /// The fence.
        fence: SubsetFence,
        /// The nodes.
        nodes: NodeSet,
        /// The entries that they have put.
        entries: Vec<u8>,
    },
    /// A process of this host requests the entries of this node of another host.
    ModexRequest(u32),
    /// The answer to a request of another host for the entries of a node of this host.
    ModexAnswer {
        /// The host that has sent the request.
        asker: JobHostId,
        /// The node.
        node: u32,
        /// The entries that the node has put. None: it has put none.
        entries: Option<Vec<u8>>,
    },
    /// The parallel process cannot continue: exit code and reason.
    Failed(u8, String),
}

/// The PMI socket of a process that is being started.
#[derive(Debug)]
pub struct NewPmiSocket {
    /// The shepherd's end.
    pub own_end: OwnedFd,
    /// The inode of the process's end.
    pub process_inode: u64,
}

/// The shepherd's end of the PMI socket of a process.
#[derive(Debug)]
struct PmiSocket {
    socket: OwnedFd,
    process_inode: u64,
    unsent: Vec<u8>,
    /// Whether the socket is queued to be read.
    is_queued: bool,
}

/// A parallel process that uses PMI.
#[derive(Debug)]
struct PmiElement {
    host: PmiHost,
    space_name: String,
    /// One socket for each process of this host. None: the process has not been started, has closed
    /// its end, or has exited.
    sockets: Vec<Option<PmiSocket>>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct PmiService {
    nodes: LocalNodes,
    elements: BTreeMap<ElementIndex, PmiElement>,
    /// Processes whose sockets may be readable.
    ready: VecDeque<ProcessKey>,
}

/// The name of the key-value space of a parallel process. MPI libraries derive names of shared
/// memory from it. It must therefore differ for each job on a host, even if another daemon has
/// started that job.
fn space_name(job_info: &JobInfo, element: ElementIndex) -> String {
    let incarnation = job_info.placement.job_incarnation.0;
    format!("score_{incarnation:016x}_{}_{element}", job_info.stage)
}

/// The prefixes of the names of MPICH's shared memory (version 5). Its processes open the memory by
/// these names, and the last process removes it in MPI_Finalize.
fn shared_memory_prefixes(space_name: &str) -> [String; 2] {
    let hash = fnv_1a(space_name.as_bytes());
    ["shm", "vci"].map(|kind| format!("mpich_{kind}_{hash:x}_"))
}

/// The 32-bit hash FNV-1a.
fn fnv_1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The result of a read or a write of a socket.
enum Io {
    Done(usize),
    WouldBlock,
    Closed,
}

fn io_result(result: nix::Result<usize>) -> Io {
    match result {
        Ok(0) => Io::Closed,
        Ok(count) => Io::Done(count),
        Err(Errno::EAGAIN | Errno::EINTR) => Io::WouldBlock,
        Err(_) => Io::Closed,
    }
}

impl PmiSocket {
    /// Sends waiting answers until the socket is full. Returns false if the process has closed its
    /// end.
    fn flush(&mut self) -> bool {
        let mut sent_len = 0;
        let is_open = loop {
            let rest = &self.unsent[sent_len..];
            if rest.is_empty() {
                break true;
            }
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match io_result(send(self.socket.as_raw_fd(), rest, flags)) {
                Io::Done(count) => sent_len += count,
                Io::WouldBlock => break true,
                Io::Closed => break false,
            }
        };
        self.unsent.drain(..sent_len);
        is_open
    }

    /// Reads some bytes, unless answers are waiting.
    fn read(&mut self, buffer: &mut [u8]) -> Io {
        if !self.flush() {
            // The process takes no more answers, but its earlier requests are still read.
            self.unsent.clear();
        }
        match self.unsent.is_empty() {
            false => Io::WouldBlock,
            true => io_result(recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)),
        }
    }
}

impl PmiService {
    /// Removes shared memory that the MPI libraries of the last stage have left because their
    /// processes were killed.
    pub fn remove_shared_memory(&self) {
        for element in self.elements.values() {
            let prefixes = shared_memory_prefixes(&element.space_name);
            for entry in fs::read_dir(SHARED_MEMORY_FOLDER).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if prefixes.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes())) {
                    // Fails for files of other users, which do not belong to the job.
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }

    /// Drops the last stage and prepares for the MPI programs of the next one.
    pub fn begin_stage(&mut self, job_info: &JobInfo) {
        self.remove_shared_memory();
        self.nodes = job_info.local_nodes();
        self.ready.clear();
        let elements = &job_info.spec().stages[job_info.stage].elements;
        let mpi_elements =
            elements.iter().filter(|spec| spec.kind == ProgramKind::Mpi(MpiStart::Pmi)).count();
        let max_fence_bytes = (self.nodes.count * MAX_FENCE_BYTES_PER_NODE)
            .min(MAX_FENCE_BYTES_PER_HOST / mpi_elements.max(1));
        let uses_pmi = (0..)
            .map(ElementIndex)
            .zip(elements)
            .filter(|(_, spec)| spec.kind == ProgramKind::Mpi(MpiStart::Pmi));
        let ranks_of_hosts: Vec<u32> =
            job_info.placement.hosts.iter().map(|host| host.nodes).collect();
        let new_element = |(number, _)| {
            let facts = JobFacts {
                space_name: space_name(job_info, number),
                size: job_info.spec().nodes(),
                universe_size: job_info.spec().nodes(),
                app_number: 0,
                process_mapping: process_mapping(&ranks_of_hosts),
            };
            let space_name = facts.space_name.clone();
            let host = PmiHost::new(facts, self.nodes.first, self.nodes.count, max_fence_bytes);
            let sockets = (0..self.nodes.count).map(|_| None).collect();
            (number, PmiElement { host, space_name, sockets })
        };
        self.elements = uses_pmi.map(new_element).collect();
    }

    /// Takes the shepherd's end of the socket of a process. `token` returns the token for an index.
    /// Pass that index to [`PmiService::mark_ready`] when mio reports the token.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn open(
        &mut self,
        key: ProcessKey,
        NewPmiSocket { own_end: socket, process_inode }: NewPmiSocket,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        let token = token(self.nodes.index(key));
        let Some((element, process)) = self.element_of(key) else { return Ok(()) };
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut SourceFd(&socket.as_raw_fd()), token, interest)?;
        element.sockets[process] =
            Some(PmiSocket { socket, process_inode, unsent: Vec::new(), is_queued: false });
        Ok(())
    }

    /// The element of a process, and the index of the process on this host.
    fn element_of(&mut self, key: ProcessKey) -> Option<(&mut PmiElement, usize)> {
        let process = self.nodes.process_index(key.node)?;
        Some((self.elements.get_mut(&key.element)?, process))
    }

    /// Records that mio has reported an event of the socket with this index.
    pub fn mark_ready(&mut self, index: usize) {
        if let Some(key) = self.nodes.key(index) {
            self.queue(key);
        }
    }

    /// Queues the socket of a process to be read next.
    fn queue(&mut self, key: ProcessKey) {
        let Some((element, process)) = self.element_of(key) else { return };
        if let Some(socket) = &mut element.sockets[process]
            && !std::mem::replace(&mut socket.is_queued, true)
        {
            self.ready.push_back(key);
        }
    }

    /// Whether [`PmiService::serve`] may have work to do.
    pub fn is_runnable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Reads the last requests of a process that has exited, and answers them. The number of reads
    /// is limited, because children of the process may still write to the socket.
    pub fn serve_exited(&mut self, key: ProcessKey) -> Vec<(ElementIndex, PmiEvent)> {
        let mut events = Vec::new();
        (0..MAX_READS_AFTER_EXIT).for_each(|_| self.serve_process(key, &mut events));
        events
    }

    /// Reads from all processes whose sockets are ready, and answers them. Returns events that
    /// concern other hosts, with the number of the element.
    pub fn serve(&mut self) -> Vec<(ElementIndex, PmiEvent)> {
        let mut events = Vec::new();
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else { break };
            self.serve_process(key, &mut events);
        }
        events
    }

    fn serve_process(&mut self, key: ProcessKey, events: &mut Vec<(ElementIndex, PmiEvent)>) {
        let first_node = self.nodes.first;
        let Some((element, process)) = self.element_of(key) else { return };
        let Some(socket) = &mut element.sockets[process] else { return };
        socket.is_queued = false;
        let mut buffer = [0; READ_LEN];
        match socket.read(&mut buffer) {
            Io::WouldBlock => {}
            Io::Closed => element.sockets[process] = None,
            Io::Done(count) => {
                let actions = element.host.on_bytes(process, &buffer[..count]);
                for action in actions {
                    let event = element.carry_out(action, first_node);
                    events.extend(event.map(|event| (key.element, event)));
                }
                // There may be more requests, or answers to send.
                self.queue(key);
            }
        }
    }

    /// The activity of the sockets of an element's processes on this host, for deadlock detection.
    pub fn socket_activity(&self, element: ElementIndex) -> Vec<Option<PmiSocketActivity>> {
        let Some(element) = self.elements.get(&element) else { return Vec::new() };
        let activity = |(process, socket): (usize, &Option<PmiSocket>)| {
            let socket = socket.as_ref()?;
            let is_quiet = socket.unsent.is_empty()
                && !element.host.awaits_answer(process)
                && is_socket_empty(socket.socket.as_fd());
            Some(PmiSocketActivity { inode: socket.process_inode, is_quiet })
        };
        element.sockets.iter().enumerate().map(activity).collect()
    }

    /// Adds entries that other hosts have put.
    ///
    /// # Errors
    /// The reason why the parallel process cannot continue.
    pub fn merge(&mut self, element: ElementIndex, entries: &[u8]) -> Result<(), PmiEvent> {
        let Some(element) = self.elements.get_mut(&element) else { return Ok(()) };
        element.host.merge(entries).map_err(|error| PmiEvent::Failed(1, error.to_string()))
    }

    /// Ends a fence: all processes on all hosts are in it.
    pub fn end_fence(&mut self, element: ElementIndex) {
        let first_node = self.nodes.first;
        if let Some(element) = self.elements.get_mut(&element) {
            for action in element.host.end_fence() {
                element.carry_out(action, first_node);
            }
        }
    }

    /// Called when a process has exited by itself and all of its requests have been read. Returns a
    /// reason to end the job if its MPI library had not finished, because other processes may wait
    /// for it.
    pub fn unfinished_reason(&mut self, key: ProcessKey, code: u8) -> Option<String> {
        let (element, process) = self.element_of(key)?;
        let is_finished = element.host.may_exit(process);
        (!is_finished).then(|| unfinished_reason(key.node, code))
    }

    /// Closes the socket of a process that has exited. Other processes may wait for it in a fence.
    pub fn on_process_exit(&mut self, key: ProcessKey) -> Option<PmiEvent> {
        let first_node = self.nodes.first;
        let (element, process) = self.element_of(key)?;
        element.sockets[process] = None;
        let action = element.host.on_exit(process)?;
        element.carry_out(action, first_node)
    }
}

impl PmiElement {
    /// Carries out an action, or returns an event if the action concerns other hosts.
    fn carry_out(&mut self, action: PmiAction, first_node: u32) -> Option<PmiEvent> {
        let node = |process: usize| first_node + process as u32;
        match action {
            PmiAction::Send { process, bytes } => {
                if let Some(socket) = &mut self.sockets[process] {
                    socket.unsent.extend_from_slice(&bytes);
                    // The next read detects a closed end.
                    socket.flush();
                }
                None
            }
            PmiAction::Fence { processes, new_entries } => {
                let mut nodes = NodeSet::new();
                processes.into_iter().for_each(|process| nodes.union(&NodeSet::one(node(process))));
                Some(PmiEvent::Fence(nodes, new_entries))
            }
            PmiAction::Finalized { .. } => None,
            PmiAction::Abort { process, code, text } => {
                Some(abort_event(node(process), code, &text))
            }
            PmiAction::Violation { process, text } => {
                let reason = format!("node {}: {text}", node(process));
                Some(PmiEvent::Failed(1, reason))
            }
        }
    }
}

/// The message if a process has exited while other processes may wait for it.
pub fn unfinished_reason(node: u32, code: u8) -> String {
    format!("node {node} exited with code {code} before MPI_Finalize()")
}

/// The event for a node that has called MPI_Abort.
pub fn abort_event(node: u32, code: i32, text: &str) -> PmiEvent {
    let separator = if text.is_empty() { "" } else { ": " };
    let reason = format!("node {node} called MPI_Abort(.., {code}){separator}{text}");
    PmiEvent::Failed(exit_code_of(code), reason)
}

/// The exit code for an error code of MPI_Abort: its low eight bits, as in exit(3), but at least 1,
/// because the job has failed.
fn exit_code_of(code: i32) -> u8 {
    ((code & 0xff) as u8).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_shared_memory_is_the_one_that_mpich_derives() {
        // Published test vectors of FNV-1a.
        assert_eq!(fnv_1a(b""), 0x811c_9dc5);
        assert_eq!(fnv_1a(b"foobar"), 0xbf9c_f968);
        let expected = ["mpich_shm_bf9cf968_", "mpich_vci_bf9cf968_"].map(str::to_owned);
        assert_eq!(shared_memory_prefixes("foobar"), expected);
    }

    #[test]
    fn an_error_code_of_mpi_abort_never_becomes_success() {
        assert_eq!([7, 0, -1, 256, 257].map(exit_code_of), [7, 1, 255, 1, 1]);
    }
}
