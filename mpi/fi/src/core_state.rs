//! The state behind all objects of the process: the protocol's engine, and the queues to which what
//! completes is reported.

use std::collections::VecDeque;
use std::sync::OnceLock;

use score_p2p::{Completion, CompletionKind, Engine, Limits};

use crate::abi::FI_FENCE;
use crate::counter::CounterState;
use crate::earlier_looks::EarlierLooks;
use crate::fabric;
use crate::pm_network::{self, PmNetwork};
use crate::serialized::Serialized;

/// Bytes of messages that nobody waits for that all other nodes together may have here, as far as
/// each can have enough for some messages.
const TOTAL_WINDOW: u32 = 4 << 20;
/// What one node may have, at least and at most.
const WINDOW_RANGE: [u32; 2] = [8 << 10, 256 << 10];
/// A message of this length or more is read from its sender's memory: it is not copied twice.
const MIN_READ_LEN: usize = 16 << 10;

/// The queues of an endpoint, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointQueues {
    pub(crate) sends: Option<usize>,
    pub(crate) receives: Option<usize>,
}

/// See the [module](self).
pub(crate) struct CoreState {
    pub(crate) engine: Engine<PmNetwork>,
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
    /// What has completed and was not read, by number of the queue. None: the queue is closed.
    queues: Vec<Option<VecDeque<Completion>>>,
    /// By number. None: the counter is closed.
    pub(crate) counters: Vec<Option<CounterState>>,
    /// Those of the open endpoint.
    pub(crate) endpoint: Option<EndpointQueues>,
    pub(crate) earlier_looks: EarlierLooks,
    /// Nodes by address, as far as they are inserted.
    pub(crate) addresses: Vec<Option<u32>>,
    /// Addresses by node.
    pub(crate) address_of_node: Vec<Option<u64>>,
}

/// The state of this process. The first call makes it a node of its job, and returns when all nodes
/// have called.
pub(crate) fn of_process() -> &'static Serialized<CoreState> {
    static STATE: OnceLock<Serialized<CoreState>> = OnceLock::new();
    STATE.get_or_init(|| {
        let membership = pm_network::join();
        fabric::note_joined();
        Serialized::new(CoreState::new(membership))
    })
}

impl CoreState {
    fn new(membership: pm_network::Membership) -> Self {
        let pm_network::Membership { network, self_node, nodes } = membership;
        let [min, max] = WINDOW_RANGE;
        let window = (TOTAL_WINDOW / nodes.max(1)).clamp(min, max);
        let limits = Limits { window, min_read_len: MIN_READ_LEN };
        Self {
            engine: Engine::new(network, self_node, nodes, limits),
            self_node,
            nodes,
            queues: Vec::new(),
            counters: Vec::new(),
            endpoint: None,
            earlier_looks: EarlierLooks::default(),
            addresses: Vec::new(),
            address_of_node: vec![None; nodes as usize],
        }
    }

    /// Adds a queue. Returns its number.
    pub(crate) fn open_queue(&mut self) -> usize {
        self.queues.push(Some(VecDeque::new()));
        self.queues.len() - 1
    }

    /// Removes a queue.
    pub(crate) fn close_queue(&mut self, number: usize) {
        self.queues[number] = None;
    }

    /// Adds what has completed to a queue.
    pub(crate) fn report(&mut self, number: usize, completion: Completion) {
        if let Some(Some(queue)) = self.queues.get_mut(number) {
            queue.push_back(completion);
        }
    }

    /// Makes progress. If another node breaks the protocol, this process says so and ends, and with
    /// it the job.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        if let Err(violation) = self.engine.progress() {
            let source =
                violation.source.map_or("a node".to_owned(), |node| format!("node {node}"));
            let (self_node, what) = (self.self_node, violation.what);
            eprintln!("libpm-fi: node {self_node}: {source} {what}: the job cannot go on");
            // No exit handler runs: one that uses MPI would call this again.
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) };
        }
    }

    /// What has completed next for a queue. It is removed.
    #[inline(always)]
    pub(crate) fn next_completion(&mut self, number: usize) -> Option<Completion> {
        if let Some(Some(queue)) = self.queues.get_mut(number)
            && let Some(completion) = queue.pop_front()
        {
            return Some(completion);
        }
        let queues = self.endpoint.unwrap_or_default();
        loop {
            let completion = self.engine.next_completion()?;
            let of_kind = match completion.kind {
                CompletionKind::Sent
                | CompletionKind::Written
                | CompletionKind::Read
                | CompletionKind::Atomic
                | CompletionKind::FetchedAtomic => queues.sends,
                CompletionKind::Received
                | CompletionKind::Released
                | CompletionKind::RemoteWritten => queues.receives,
            };
            match of_kind {
                Some(of_kind) if of_kind == number => return Some(completion),
                Some(of_kind) => self.report(of_kind, completion),
                None => {}
            }
        }
    }

    /// What [`CoreState::next_completion`] has returned comes first again.
    #[cold]
    pub(crate) fn put_back(&mut self, number: usize, completion: Completion) {
        if let Some(Some(queue)) = self.queues.get_mut(number) {
            queue.push_front(completion);
        }
    }

    /// Whether an operation with these flags has to wait until those before it have ended
    /// (`FI_FENCE`, fi_endpoint(3)).
    #[inline(always)]
    pub(crate) fn is_fenced(&self, node: u32, flags: u64) -> bool {
        flags & FI_FENCE != 0 && self.engine.has_pending_operations(node)
    }

    /// The node that has an address.
    #[inline(always)]
    pub(crate) fn node_at(&self, address: u64) -> Option<u32> {
        *self.addresses.get(usize::try_from(address).ok()?)?
    }
}
