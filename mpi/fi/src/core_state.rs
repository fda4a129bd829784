//! The state of all objects of the process: endpoints with the protocol's engines, and the queues
//! for their completions.

pub(crate) mod counters;
pub(crate) mod wait_descriptors;

use std::collections::VecDeque;
use std::sync::OnceLock;

use score_p2p::wire::ENGINE_BYTE;
use score_p2p::{
    Completion, CompletionKind, CopyBudget, Engine, Limits, Message, Regions, Violation,
};

use crate::abi::FI_FENCE;
use crate::addresses::Addresses;
use crate::earlier_looks::EarlierLooks;
use crate::endpoint_network::{EndpointNetwork, SharedNetwork};
use crate::idle_mark::PollingCall;
use crate::own_messages::OwnMessages;
use crate::pm_network;
use crate::properties::MAX_ENDPOINTS;
use crate::serialized::Serialized;
use counters::CounterState;
use wait_descriptors::WaitDescriptors;

/// The bytes of unexpected messages that all other nodes together may have at this node. Each node
/// still gets room for some messages.
const TOTAL_WINDOW: u32 = 4 << 20;
/// The least and the most bytes of one node.
const WINDOW_RANGE: [u32; 2] = [8 << 10, 256 << 10];
/// The most messages to receive before the program reads its completions.
const MESSAGES_PER_PASS: usize = 16;
/// A message without credit is announced after this many tries. This happens before the thread
/// counts as idle (`idle_mark.rs`).
const CREDIT_TRIES: u32 = 512;
/// The receiver reads a message of this length or more from the sender's memory, which avoids one
/// of two copies.
const MIN_READ_LEN: usize = 16 << 10;
/// The limit, in bytes, for copies of messages and writes with `FI_INJECT` that their receivers
/// have not fetched. Beyond this limit such calls return `FI_EAGAIN`.
const MAX_COPIED: usize = 32 << 20;

/// The numbers of the queues of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointQueues {
    pub(crate) sends: Option<usize>,
    pub(crate) receives: Option<usize>,
}

/// The state of an endpoint. It remains after the endpoint is closed, because other nodes may still
/// send to it. The next endpoint reuses it.
pub(crate) struct EndpointState {
    pub(crate) engine: Engine<EndpointNetwork>,
    /// The queues. None: the endpoint is closed.
    pub(crate) queues: Option<EndpointQueues>,
    /// The number of its address vector.
    pub(crate) vector: Option<usize>,
    pub(crate) earlier_looks: EarlierLooks,
}

/// A completion, and its endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Reported {
    pub(crate) completion: Completion,
    pub(crate) endpoint: usize,
}

/// See the [module](self).
pub(crate) struct CoreState {
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
    pub(crate) network: SharedNetwork,
    regions: Regions,
    copies: CopyBudget,
    /// The descriptors for waiting. None: no thread has waited yet.
    pub(crate) wait_descriptors: Option<WaitDescriptors>,
    /// Whether PM wakes this process when a message arrives.
    pub(crate) is_woken_by_messages: bool,
    /// The endpoints, by number.
    pub(crate) endpoints: Vec<EndpointState>,
    /// The completions that were not read, by queue number. None: the queue is closed.
    queues: Vec<Option<VecDeque<Reported>>>,
    /// The counters, by number. None: the counter is closed.
    pub(crate) counters: Vec<Option<CounterState>>,
    /// The address vectors, by number. None: the address vector is closed.
    pub(crate) vectors: Vec<Option<Addresses>>,
    /// Whether the next read must leave untagged messages to the read after it.
    pub(crate) own_messages: OwnMessages,
    polling_call: PollingCall,
    /// Whether the last progress has received a message. If not, PM had no message.
    pub(crate) has_received: bool,
}

/// The state of this process. For a process of an MPI program, the first call joins the job and
/// returns when all nodes have called.
pub(crate) fn of_process() -> &'static Serialized<CoreState> {
    static STATE: OnceLock<Serialized<CoreState>> = OnceLock::new();
    STATE.get_or_init(|| Serialized::new(CoreState::new(pm_network::Membership::of_process())))
}

impl CoreState {
    fn new(membership: pm_network::Membership) -> Self {
        let pm_network::Membership { network, self_node, nodes } = membership;
        let mut core = Self {
            self_node,
            nodes,
            network: SharedNetwork::new(network),
            regions: Regions::new(),
            copies: CopyBudget::new(MAX_COPIED),
            wait_descriptors: None,
            is_woken_by_messages: false,
            endpoints: Vec::new(),
            queues: Vec::new(),
            counters: Vec::new(),
            vectors: Vec::new(),
            own_messages: OwnMessages::of_process(),
            polling_call: PollingCall::default(),
            has_received: false,
        };
        core.add_endpoint();
        core
    }

    fn add_endpoint(&mut self) {
        let [min, max] = WINDOW_RANGE;
        let window = (TOTAL_WINDOW / self.nodes.max(1)).clamp(min, max);
        let limits = Limits { window, min_read_len: MIN_READ_LEN, credit_tries: CREDIT_TRIES };
        let network = self.network.of_endpoint(self.endpoints.len());
        let (regions, copies) = (self.regions.clone(), self.copies.clone());
        let engine = Engine::new(network, self.self_node, self.nodes, limits, regions, copies);
        let (queues, vector) = (None, None);
        let earlier_looks = EarlierLooks::of_process();
        self.endpoints.push(EndpointState { engine, queues, vector, earlier_looks });
    }

    /// Opens the closed endpoint with the lowest number. Returns None if there are too many
    /// endpoints.
    pub(crate) fn open_endpoint(&mut self) -> Option<usize> {
        let number = self.endpoints.iter().position(|endpoint| endpoint.queues.is_none());
        let number = number.unwrap_or(self.endpoints.len());
        if number == MAX_ENDPOINTS {
            return None;
        }
        if number == self.endpoints.len() {
            self.add_endpoint();
        }
        self.endpoints[number].queues = Some(EndpointQueues::default());
        Some(number)
    }

    /// Closes an endpoint whose messages have been sent.
    pub(crate) fn close_endpoint(&mut self, number: usize) {
        self.unbind_counters(number);
        let endpoint = &mut self.endpoints[number];
        endpoint.engine.forget_operations();
        endpoint.queues = None;
        endpoint.vector = None;
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

    /// Adds a completion to a queue.
    pub(crate) fn report(&mut self, number: usize, reported: Reported) {
        add_to(&mut self.queues, number, reported);
    }

    /// Makes progress. If another node breaks the protocol, prints an error and ends the process,
    /// which ends the job.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        if self.is_woken_by_messages {
            self.end_wait();
        }
        self.progress_endpoints();
    }

    /// Makes progress without ending the wait of other threads.
    #[inline(always)]
    pub(crate) fn progress_endpoints(&mut self) {
        self.receive_messages();
        for endpoint in &mut self.endpoints {
            if let Err(violation) = endpoint.engine.progress() {
                end_process(self.self_node, violation);
            }
        }
    }

    /// Receives messages that have arrived.
    ///
    /// If messages arrive one at a time, receives one message: the program waits for its
    /// completion, and polling PM again without success would cost time. Unexpected messages remain
    /// in PM as long as the program has completions to read, because it may post their receives
    /// first.
    #[inline(always)]
    fn receive_messages(&mut self) {
        let was_streaming = std::mem::replace(&mut self.has_received, false);
        for _ in 0..MESSAGES_PER_PASS {
            let mut is_enough = false;
            let mut early = None;
            let endpoints = &mut self.endpoints;
            let has_received = self.network.receive(|message| {
                // A message that is too short for this byte is malformed for any endpoint.
                let number = usize::from(message.byte(ENGINE_BYTE).unwrap_or(0));
                let Some(EndpointState { engine, .. }) = endpoints.get_mut(number) else {
                    early = Some((number, message.to_boxed()));
                    return;
                };
                engine.on_message(&message);
                is_enough = engine.has_completed() && (!was_streaming || !engine.awaits_more());
            });
            if !has_received {
                return;
            }
            self.has_received = true;
            if let Some((number, bytes)) = early {
                self.receive_early(number, &bytes);
            }
            if is_enough {
                return;
            }
        }
    }

    /// Handles a message for an endpoint that is not open yet. Other nodes may open their endpoint
    /// first.
    #[cold]
    fn receive_early(&mut self, number: usize, bytes: &[u8]) {
        if number >= MAX_ENDPOINTS {
            // There can be no such endpoint, so the header is malformed. The engine reports an
            // empty message as malformed.
            return self.endpoints[0].engine.on_message(&Message::of_bytes(&[]));
        }
        while self.endpoints.len() <= number {
            self.add_endpoint();
        }
        self.endpoints[number].engine.on_message(&Message::of_bytes(bytes));
    }

    /// Passes the first completion of a queue to `take`, with the number of its endpoint. Removes
    /// the completion if `take` returns true. Returns None if there is no completion.
    #[inline(always)]
    pub(crate) fn take_completion(
        &mut self,
        number: usize,
        take: impl FnOnce(&Completion, usize) -> bool,
    ) -> Option<bool> {
        let Self { queues, endpoints, .. } = self;
        if let Some(Some(queue)) = queues.get_mut(number)
            && let Some(reported) = queue.front()
        {
            let is_taken = take(&reported.completion, reported.endpoint);
            if is_taken {
                queue.pop_front();
            }
            return Some(is_taken);
        }
        for (index, endpoint) in endpoints.iter_mut().enumerate() {
            while let Some(completion) = endpoint.engine.next_completion() {
                if endpoint.queue_of(completion.kind) == Some(number) {
                    let is_taken = take(completion, index);
                    if is_taken {
                        endpoint.engine.remove_completion();
                    }
                    return Some(is_taken);
                }
                endpoint.give_to_other_queue(index, queues);
            }
        }
        None
    }

    /// Notes that a thread has made progress and found no completion in its queue.
    #[inline(always)]
    pub(crate) fn count_empty_poll(&mut self) {
        let Self { endpoints, queues, polling_call, .. } = self;
        polling_call.count_empty_poll(|| {
            // Another thread may be about to read the completions of another queue.
            let is_read = queues.iter().flatten().all(VecDeque::is_empty);
            is_read && endpoints.iter().all(|endpoint| endpoint.engine.is_quiet())
        });
    }

    /// The node at an address of an endpoint's address vector. None: there is no node at this
    /// address, or its endpoint has another number.
    #[inline(always)]
    pub(crate) fn node_at(&self, endpoint: usize, address: u64) -> Option<u32> {
        let vector = self.vectors.get(self.endpoints[endpoint].vector?)?.as_ref()?;
        let peer = vector.peer_at(address)?;
        (usize::from(peer.endpoint) == endpoint).then_some(peer.node)
    }

    /// The address of a node in an endpoint's address vector.
    pub(crate) fn address_of(&self, endpoint: usize, node: u32) -> Option<u64> {
        let vector = self.vectors.get(self.endpoints[endpoint].vector?)?.as_ref()?;
        vector.address_of(node, endpoint)
    }

    /// Whether an operation with these flags must wait until earlier operations have ended
    /// (`FI_FENCE`, fi_endpoint(3)).
    #[inline(always)]
    pub(crate) fn is_fenced(&self, endpoint: usize, node: u32, flags: u64) -> bool {
        flags & FI_FENCE != 0 && self.endpoints[endpoint].engine.has_pending_operations(node)
    }
}

/// Prints the violation of the protocol, and ends the process.
#[cold]
fn end_process(self_node: u32, violation: Violation) {
    let source = violation.source.map_or("a node".to_owned(), |node| format!("node {node}"));
    let what = violation.what;
    eprintln!("libpm-fi: node {self_node}: {source} {what}: the job cannot continue");
    // Exit handlers must not run, because a handler that uses MPI would enter this function again.
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(1) };
}

impl EndpointState {
    /// The queue for completions of this kind.
    #[inline(always)]
    fn queue_of(&self, kind: CompletionKind) -> Option<usize> {
        let queues = self.queues?;
        match kind {
            CompletionKind::Sent
            | CompletionKind::Written
            | CompletionKind::Read
            | CompletionKind::Atomic
            | CompletionKind::FetchedAtomic => queues.sends,
            CompletionKind::Received | CompletionKind::Released | CompletionKind::RemoteWritten => {
                queues.receives
            }
        }
    }

    /// Moves the first completion to its queue.
    #[inline(never)]
    fn give_to_other_queue(&mut self, endpoint: usize, queues: &mut [Option<VecDeque<Reported>>]) {
        let Some(completion) = self.engine.next_completion().copied() else { return };
        self.engine.remove_completion();
        if let Some(number) = self.queue_of(completion.kind) {
            add_to(queues, number, Reported { completion, endpoint });
        }
    }
}

fn add_to(queues: &mut [Option<VecDeque<Reported>>], number: usize, reported: Reported) {
    if let Some(Some(queue)) = queues.get_mut(number) {
        queue.push_back(reported);
    }
}
