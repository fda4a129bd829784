//! A simulation of several nodes and a network, driven by a seed. Each program sends, posts, peeks
//! and cancels at random, and uses remote memory. The network delays messages, is full, and fails
//! to read and write at random. A plain list for each node determines which receive gets which
//! message.

mod copies;
mod network;
mod random;
mod remote_memory;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::atomic::{Datatype, Operator};
use crate::engine::Engine;
use crate::matching::Origin;
use crate::memory::{Message, UserBuffer};
use crate::network::*;
use crate::operation::*;
use crate::regions::Regions;
use crate::state::origin_of;
use crate::transfers::copies::CopyBudget;
use crate::wire::{
    Announcement, AtomicRequest, Envelope, Header, OperationId, RemoteAddress, WriteBytes,
};
use network::{SimulatedNetwork, Wires};
use random::Random;
use remote_memory::RemoteMemory;

const WINDOW: u32 = 2000;
/// The longest message of a program.
const MAX_LEN: u64 = 3000;
const STEPS: u64 = 400;
const SEEDS: u64 = 400;

/// Events at a node, in their order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Posted { context: usize, channel: Channel, selector: Selector, room: usize, mode: ReceiveMode },
    Arrived { id: u64, channel: Channel, origin: Origin, len: usize },
    Cancelled { context: usize },
    Removed { id: u64 },
}

/// A program on a node.
struct Program {
    engine: Engine<SimulatedNetwork>,
    events: Rc<RefCell<Vec<Event>>>,
    /// The source and the bytes of each sent message, by its number.
    sent: HashMap<u64, (u32, Vec<u8>)>,
    /// Receive buffers, by context. Each includes guard bytes that must not change.
    buffers: HashMap<usize, Vec<u8>>,
    /// Memory of sends that have not completed.
    send_memory: HashMap<usize, Vec<u8>>,
    /// The messages of sends that complete when a receive has matched them, by context.
    awaited_deliveries: HashMap<usize, u64>,
    /// Messages that were received, dropped or claimed, with their context.
    received: Vec<(usize, u64)>,
    pending_receives: HashMap<usize, usize>,
    remote: RemoteMemory,
}

impl Program {
    /// Receives some messages, and makes progress.
    fn progress(&mut self) {
        for _ in 0..MESSAGES_PER_PASS {
            let Some(bytes) = self.engine.network().receive() else { break };
            self.engine.on_message(&Message::of_bytes(&bytes));
        }
        self.engine.progress().unwrap();
    }

    /// Whether a receive has matched this message, even if that is not reported yet, or the message
    /// was dropped.
    fn is_matched(&self, id: u64) -> bool {
        let is_in_model = || model(&self.events.borrow()).iter().any(|(_, one)| *one == id);
        self.received.iter().any(|(_, one)| *one == id) || is_in_model() || {
            let is_removed =
                |event: &Event| matches!(event, Event::Removed { id: one } if *one == id);
            self.events.borrow().iter().any(is_removed)
        }
    }
}

/// The most messages that a program receives in one step.
const MESSAGES_PER_PASS: usize = 16;
/// The number of guard bytes around a receive buffer.
const GUARD_LEN: usize = 16;
const GUARD: u8 = 0xa5;

fn bytes_of(id: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(id + 1);
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// A whole job.
struct World {
    programs: Vec<Program>,
    random: Random,
    next_id: u64,
    next_context: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = 1 + random.below(4) as u32;
        let wires = Rc::new(RefCell::new(Wires::default()));
        let min_read_len = 1 + random.below(MAX_LEN) as usize;
        let credit_tries = random.below(4) as u32;
        let limits = Limits { window: WINDOW, min_read_len, credit_tries };
        let mtu = 72 + random.below(600) as usize;
        let capacity = 1 + random.below(20) as usize;
        let max_accesses = 1 + random.below(6) as usize;
        let max_copied = random.below(4 * MAX_LEN) as usize;
        let program = |node| {
            let events = Rc::new(RefCell::new(Vec::new()));
            let network = SimulatedNetwork {
                node,
                wires: wires.clone(),
                random: Random::new(seed * 31 + u64::from(node) + 7),
                mtu,
                capacity,
                accesses: BTreeMap::new(),
                access_count: 0,
                max_accesses,
                events: events.clone(),
            };
            let (regions, copies) = (Regions::new(), CopyBudget::new(max_copied));
            let mut engine = Engine::new(network, node, nodes, limits, regions, copies);
            let remote = RemoteMemory::open(&mut engine);
            Program {
                engine,
                remote,
                events,
                sent: HashMap::new(),
                buffers: HashMap::new(),
                send_memory: HashMap::new(),
                awaited_deliveries: HashMap::new(),
                received: Vec::new(),
                pending_receives: HashMap::new(),
            }
        };
        Self { programs: (0..nodes).map(program).collect(), random, next_id: 0, next_context: 1 }
    }

    fn context(&mut self) -> usize {
        self.next_context += 1;
        self.next_context
    }

    fn step(&mut self) {
        let node = self.random.below(self.programs.len() as u64) as usize;
        match self.random.below(14) {
            12.. => self.use_remote_memory(node),
            0..3 => self.send(node),
            3..5 => {
                let (channel, selector) = self.selector();
                self.post(node, channel, selector);
            }
            5 => self.peek(node),
            6 => self.cancel(node),
            _ => self.progress(node),
        }
    }

    fn envelope(&mut self) -> (Channel, Option<u64>) {
        match self.random.one_in(3) {
            true => (Channel::Untagged, None),
            false => (Channel::Tagged, Some(self.random.below(4))),
        }
    }

    fn send(&mut self, node: usize) {
        let to = self.random.below(self.programs.len() as u64) as u32;
        let (channel, tag) = self.envelope();
        let len = match self.random.below(3) {
            0 => self.random.below(9),
            1 => self.random.below(200),
            _ => self.random.below(MAX_LEN),
        };
        let (id, context) = (self.next_id, self.context());
        let is_volatile = self.random.one_in(3);
        let mut memory = bytes_of(id, len as usize);
        let cut = self.random.below(len + 1) as usize;
        let (first, second) = memory.split_at_mut(cut);
        let parts = [(first.as_mut_ptr(), first.len()), (second.as_mut_ptr(), second.len())];
        let used = if self.random.one_in(2) { 2 } else { 1 };
        let buffer = segments(if used == 2 { &parts } else { &parts[..1] });
        let envelope = Envelope { tag, data: Some(id) };
        let retention = if is_volatile { Retention::Volatile } else { Retention::Stays };
        let request = Request { context, is_reported: !is_volatile };
        let program = &mut self.programs[node];
        let origin = origin_of(node as u32, &envelope);
        if to == node as u32 {
            let event = Event::Arrived { id, channel, origin, len: buffer.len() };
            program.events.borrow_mut().push(event);
        }
        let completes = match self.random.below(4) {
            0 if !is_volatile => SendCompletes::OnMatch,
            1 if !is_volatile => SendCompletes::OnArrival,
            _ => SendCompletes::AtOnce,
        };
        let bytes = buffer.to_vec();
        let send = SendOperation { node: to, envelope, buffer, retention, request, completes };
        match program.engine.send(&send) {
            Ok(()) => self.next_id += 1,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                return;
            }
        }
        program.sent.insert(id, (to, bytes));
        if completes == SendCompletes::OnMatch {
            program.awaited_deliveries.insert(context, id);
        }
        if is_volatile {
            memory.fill(0);
        } else {
            program.send_memory.insert(context, memory);
        }
    }

    fn selector(&mut self) -> (Channel, Selector) {
        let nodes = self.programs.len() as u64;
        let source = (!self.random.one_in(3)).then(|| self.random.below(nodes) as u32);
        match self.envelope() {
            (channel, None) => (channel, Selector::untagged(source)),
            (channel, Some(tag)) => {
                let ignore = [0, 0, 1, 3, u64::MAX][self.random.below(5) as usize];
                (channel, Selector { source, tag, ignore })
            }
        }
    }

    fn post(&mut self, node: usize, channel: Channel, selector: Selector) {
        let context = self.context();
        let mode = match self.random.one_in(4) {
            true => ReceiveMode::Multiple { min_free: self.random.below(500) as usize },
            false => ReceiveMode::Single,
        };
        let room = self.random.below(MAX_LEN + MAX_LEN / 2) as usize;
        let program = &mut self.programs[node];
        let mut memory = vec![GUARD; room + 2 * GUARD_LEN];
        let buffer = segments(&[(memory[GUARD_LEN..].as_mut_ptr(), room)]);
        program.buffers.insert(context, memory);
        *program.pending_receives.entry(context).or_default() += 1;
        let event = Event::Posted { context, channel, selector, room, mode };
        program.events.borrow_mut().push(event);
        let request = Request { context, is_reported: true };
        program.engine.receive(channel, ReceiveOperation { selector, buffer, mode, request });
    }

    fn peek(&mut self, node: usize) {
        let (channel, selector) = self.selector();
        if channel == Channel::Untagged {
            return;
        }
        let mode =
            [PeekMode::Look, PeekMode::Claim, PeekMode::Discard][self.random.below(3) as usize];
        let (context, drops) = (self.context(), self.random.one_in(2));
        let program = &mut self.programs[node];
        let Some(peek) = program.engine.peek(selector, mode, context) else { return };
        assert!(selector.accepts(origin_of(peek.source, &peek.envelope)));
        let id = peek.envelope.data.unwrap();
        if mode == PeekMode::Look {
            return;
        }
        program.events.borrow_mut().push(Event::Removed { id });
        if mode == PeekMode::Discard {
            program.received.push((0, id));
        } else if drops {
            assert!(program.engine.discard_claimed(context));
            program.received.push((0, id));
        } else {
            let room = peek.len as usize;
            let mut memory = vec![GUARD; room + 2 * GUARD_LEN];
            let buffer = segments(&[(memory[GUARD_LEN..].as_mut_ptr(), room)]);
            program.buffers.insert(context, memory);
            *program.pending_receives.entry(context).or_default() += 1;
            let request = Request { context, is_reported: true };
            assert!(program.engine.receive_claimed(buffer, request));
        }
    }

    fn cancel(&mut self, node: usize) {
        let program = &mut self.programs[node];
        let mut contexts: Vec<usize> = program.pending_receives.keys().copied().collect();
        contexts.sort_unstable();
        if contexts.is_empty() {
            return;
        }
        let context = contexts[self.random.below(contexts.len() as u64) as usize];
        let is_cancelled = [Channel::Tagged, Channel::Untagged]
            .into_iter()
            .any(|channel| program.engine.cancel(channel, context));
        if is_cancelled {
            program.events.borrow_mut().push(Event::Cancelled { context });
        }
    }

    fn progress(&mut self, node: usize) {
        self.programs[node].progress();
        while let Some(completion) = self.programs[node].engine.next_completion().copied() {
            self.programs[node].engine.remove_completion();
            self.complete(node, completion);
        }
    }

    fn complete(&mut self, node: usize, completion: Completion) {
        let context = completion.context;
        match completion.kind {
            CompletionKind::Written
            | CompletionKind::Read
            | CompletionKind::Atomic
            | CompletionKind::FetchedAtomic
            | CompletionKind::RemoteWritten => self.complete_remote(node, completion),
            CompletionKind::Sent => {
                assert_eq!(completion.failure, None);
                assert!(self.programs[node].send_memory.remove(&context).is_some());
                let awaited = self.programs[node].awaited_deliveries.remove(&context);
                let is_received = |id: u64| {
                    let sender = &self.programs[node];
                    let receiver = &self.programs[sender.sent[&id].0 as usize];
                    receiver.is_matched(id)
                };
                assert!(awaited.is_none_or(is_received));
            }
            CompletionKind::Released => {
                assert!(self.programs[node].pending_receives.remove(&context).is_some());
            }
            CompletionKind::Received => {
                if completion.failure == Some(Failure::Cancelled) {
                    assert!(self.programs[node].pending_receives.remove(&context).is_some());
                    return;
                }
                let id = completion.envelope.data.unwrap();
                let sender = &self.programs[completion.source as usize];
                let (to, bytes) = &sender.sent[&id];
                assert_eq!(*to as usize, node);
                let excess = bytes.len() - completion.len;
                let failure = completion.failure;
                match excess {
                    0 => assert_eq!(failure, None),
                    _ => assert_eq!(failure, Some(Failure::Truncated { excess: excess as u64 })),
                }
                let memory = &self.programs[node].buffers[&context];
                let at = completion.start.addr().wrapping_sub(memory.as_ptr().addr());
                if completion.len > 0 {
                    assert!(at >= GUARD_LEN && at + completion.len <= memory.len() - GUARD_LEN);
                    assert_eq!(memory[at..at + completion.len], bytes[..completion.len]);
                }
                let (head, tail) = (&memory[..GUARD_LEN], &memory[memory.len() - GUARD_LEN..]);
                assert!(head.iter().chain(tail).all(|byte| *byte == GUARD));
                let program = &mut self.programs[node];
                program.received.push((context, id));
                let events = program.events.borrow();
                let is_multiple = events.iter().any(|event| {
                    matches!(event, Event::Posted { context: posted, mode, .. }
                        if *posted == context && *mode != ReceiveMode::Single)
                });
                if !is_multiple {
                    program.pending_receives.remove(&context).unwrap();
                }
            }
        }
    }

    /// Receives everything that is in flight.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            for node in 0..self.programs.len() {
                self.progress(node);
                let any = Selector { source: None, tag: 0, ignore: u64::MAX };
                let context = self.context();
                if let Some(peek) = self.programs[node].engine.peek(any, PeekMode::Look, context) {
                    let tag = peek.envelope.tag.unwrap();
                    let selector = Selector { source: Some(peek.source), tag, ignore: 0 };
                    self.post(node, Channel::Tagged, selector);
                }
                let matching = &mut self.programs[node].engine.state.matching;
                let untagged = matching.of(Channel::Untagged);
                if !untagged.unexpected.is_empty() {
                    self.post(node, Channel::Untagged, Selector::untagged(None));
                }
            }
            let sent: usize = self.programs.iter().map(|program| program.sent.len()).sum();
            let received: usize = self.programs.iter().map(|program| program.received.len()).sum();
            let is_idle = |program: &Program| {
                program.send_memory.is_empty()
                    && program.remote.is_idle()
                    && !program.engine.state.has_work()
            };
            if sent == received && self.programs.iter().all(is_idle) {
                return;
            }
        }
        panic!("messages are left");
    }

    /// Cancels the receives that are left. Afterwards no queue has entries.
    fn cancel_all(&mut self) {
        for node in 0..self.programs.len() {
            let mut contexts: Vec<usize> =
                self.programs[node].pending_receives.keys().copied().collect();
            contexts.sort_unstable();
            for context in contexts {
                let program = &mut self.programs[node];
                let is_cancelled = [Channel::Tagged, Channel::Untagged]
                    .into_iter()
                    .any(|channel| program.engine.cancel(channel, context));
                assert!(is_cancelled, "{context} neither completes nor can be cancelled");
                program.events.borrow_mut().push(Event::Cancelled { context });
            }
            self.progress(node);
            assert!(self.programs[node].pending_receives.is_empty());
            assert!(!self.programs[node].engine.cancel(Channel::Tagged, 0));
            let state = &mut self.programs[node].engine.state;
            assert!(state.matching.multiple_count() == 0 && state.receives.is_empty());
            for channel in [Channel::Tagged, Channel::Untagged] {
                let queues = state.matching.of(channel);
                assert_eq!((queues.posted.len(), queues.unexpected.len()), (0, 0));
            }
        }
        // The sum of the sender's credit, the credit to be returned, and the credit in flight is
        // constant.
        let wires = self.programs[0].engine.network().wires.clone();
        while wires.borrow().queues.values().any(|queue| !queue.is_empty()) {
            (0..self.programs.len()).for_each(|node| self.progress(node));
        }
        let nodes = self.programs.len() as u32;
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            let left = self.programs[from as usize].engine.state.credit.left(to);
            let received = self.programs[to as usize].engine.state.credit.received(from);
            assert_eq!(left + received, WINDOW);
        }
    }

    fn check(&self) {
        for program in &self.programs {
            assert!(program.engine.state.sends.is_empty());
            assert_eq!(program.engine.state.copies.used(), 0);
            let mut expected = model(&program.events.borrow());
            let mut received = program.received.clone();
            let events = program.events.borrow();
            let removed = |id: u64| {
                events.iter().any(|event| matches!(event, Event::Removed { id: one } if *one == id))
            };
            received.retain(|(_, id)| !removed(*id));
            expected.sort_unstable();
            received.sort_unstable();
            assert_eq!(received, expected);
        }
    }
}

/// Determines by plain lists which receive gets which message.
fn model(events: &[Event]) -> Vec<(usize, u64)> {
    struct PlainReceive {
        context: usize,
        channel: Channel,
        selector: Selector,
        free: usize,
        mode: ReceiveMode,
    }
    let mut posted: Vec<PlainReceive> = Vec::new();
    let mut unexpected: Vec<(u64, Channel, Origin, usize)> = Vec::new();
    let mut pairs = Vec::new();
    // Returns whether the receive takes no further messages.
    let take = |receive: &mut PlainReceive, len: usize| match receive.mode {
        ReceiveMode::Single => true,
        ReceiveMode::Multiple { min_free } => {
            receive.free -= len.min(receive.free);
            receive.free < min_free.max(1)
        }
    };
    for event in events {
        match *event {
            Event::Posted { context, channel, selector, room, mode } => {
                let mut receive = PlainReceive { context, channel, selector, free: room, mode };
                let mut is_full = room == 0 && mode != ReceiveMode::Single;
                while !is_full {
                    let index = unexpected
                        .iter()
                        .position(|(_, of, origin, _)| *of == channel && selector.accepts(*origin));
                    let Some(index) = index else { break };
                    let (id, _, _, len) = unexpected.remove(index);
                    pairs.push((context, id));
                    is_full = take(&mut receive, len);
                }
                if !is_full {
                    posted.push(receive);
                }
            }
            Event::Arrived { id, channel, origin, len } => {
                let index = posted.iter().position(|receive| {
                    receive.channel == channel && receive.selector.accepts(origin)
                });
                match index {
                    None => unexpected.push((id, channel, origin, len)),
                    Some(index) => {
                        pairs.push((posted[index].context, id));
                        if take(&mut posted[index], len) {
                            posted.remove(index);
                        }
                    }
                }
            }
            Event::Cancelled { context } => posted.retain(|receive| receive.context != context),
            Event::Removed { id } => unexpected.retain(|(one, ..)| *one != id),
        }
    }
    pairs
}

fn segments(parts: &[(*mut u8, usize)]) -> UserBuffer {
    crate::memory::buffer_of(parts)
}

/// The number of seeds: SCORE_SIM_SEEDS, or a small default.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("SCORE_SIM_SEEDS").ok().and_then(|value| value.parse().ok());
    0..count.unwrap_or(SEEDS)
}

#[test]
fn every_message_arrives_once_at_the_receive_that_a_plain_model_matches() {
    for seed in seeds() {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.drain();
            world.cancel_all();
            world.check();
            world.check_remote_memory();
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn memory_of_a_closed_program_is_not_touched_and_its_sent_messages_arrive() {
    let mut closed = 0;
    for seed in seeds() {
        let mut world = World::new(seed);
        (0..STEPS / 2).for_each(|_| world.step());
        let closing = &mut world.programs[0];
        // Reads that have started end before a program may reuse the memory.
        for _ in 0..1000 {
            closing.progress();
        }
        if closing.engine.state.has_work() {
            continue;
        }
        closed += 1;
        closing.engine.network().wires.borrow_mut().has_closed_endpoint = true;
        closing.engine.forget_operations();
        closing.send_memory.values_mut().for_each(|bytes| bytes.fill(GUARD));
        closing.buffers.values_mut().for_each(|bytes| bytes.fill(GUARD));
        closing.remote.reuse_memory();
        for round in 0..2000 {
            // Messages for receives that were posted before.
            if round % 50 == 0 {
                (1..world.programs.len()).for_each(|node| world.send(node));
            }
            world.programs[0].progress();
            // The regions of the program remain open.
            while let Some(completion) = world.programs[0].engine.next_completion().copied() {
                world.programs[0].engine.remove_completion();
                assert_eq!(completion.kind, CompletionKind::RemoteWritten, "seed {seed}");
            }
            (1..world.programs.len()).for_each(|node| world.progress(node));
        }
        for bytes in world.programs[0].buffers.values() {
            assert!(bytes.iter().all(|byte| *byte == GUARD), "seed {seed}");
        }
        assert!(world.programs[0].remote.is_memory_unchanged(), "seed {seed}");
    }
    assert!(closed > 10);
}

#[test]
fn a_hostile_node_is_named_or_harmless() {
    let mut named = 0;
    for seed in seeds() {
        let mut world = World::new(seed);
        (0..STEPS / 4).for_each(|_| world.step());
        let nodes = world.programs.len() as u32;
        let victim = &mut world.programs[0].engine;
        let mut random = Random::new(seed + 99);
        for _ in 0..50 {
            let mut bytes = hostile_message(&mut random, nodes);
            if random.one_in(4) {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
            victim.state.on_message(&Message::of_bytes(&bytes));
            if victim.progress().is_err() {
                named += 1;
                break;
            }
        }
        for (context, memory) in &world.programs[0].buffers {
            let (head, tail) = (&memory[..GUARD_LEN], &memory[memory.len() - GUARD_LEN..]);
            assert!(head.iter().chain(tail).all(|byte| *byte == GUARD), "{seed} {context}");
        }
        world.programs[0].remote.check_guards();
    }
    assert!(named > 10);
}

fn hostile_message(random: &mut Random, nodes: u32) -> Vec<u8> {
    let source = random.below(u64::from(nodes) + 1) as u32;
    let id = |random: &mut Random| random.below(6) as u32;
    let envelope = |random: &mut Random| Envelope {
        tag: (!random.one_in(3)).then(|| random.below(4)),
        data: Some(random.below(1 << 40)),
    };
    let address = |random: &mut Random| RemoteAddress {
        key: [1, 2, 1 << 40, 2 << 40][random.below(4) as usize],
        offset: if random.one_in(5) { u64::MAX - 3 } else { random.below(15_000) },
    };
    let operation_id = |random: &mut Random| match random.one_in(2) {
        true => OperationId::Send(random.below(6) as u32),
        false => OperationId::Receive(random.below(6) as u32),
    };
    let header = match random.below(11) {
        7 => {
            let announced =
                WriteBytes::Announced { len: random.below(5000), handle: random.below(5) };
            let bytes = if random.one_in(2) { WriteBytes::Inline } else { announced };
            let (data, send_id) = (random.one_in(2).then_some(7), id(random));
            Header::Write { target: address(random), data, bytes, send_id }
        }
        8 => {
            let (len, receive_id) = (1 + random.below(5000), id(random));
            Header::Read { target: address(random), len, receive_id }
        }
        9 => {
            let target = address(random);
            let operator = Operator::of_number(random.below(20) as u8).unwrap();
            let datatype = Datatype::of_number(random.below(14) as u8).unwrap();
            let (count, id) = (random.below(40) as u16, operation_id(random));
            Header::Atomic(AtomicRequest { target, operator, datatype, count, id })
        }
        10 => Header::Refused { id: operation_id(random) },
        0 => Header::Eager(envelope(random), random.one_in(3).then(|| random.below(6) as u32)),
        1 => Header::Announcement(
            envelope(random),
            Announcement {
                len: if random.one_in(2) { u64::MAX } else { random.below(5000) },
                handle: random.below(5),
                send_id: id(random),
                wants_finished: random.one_in(2),
            },
        ),
        2 => {
            let (send_id, receive_id) = (id(random), id(random));
            Header::Pull { send_id, receive_id, len: random.below(4000) }
        }
        3 | 4 => Header::Fragment { receive_id: id(random), offset: random.below(3) * 100 },
        5 => Header::Finished { send_id: id(random) },
        _ => Header::Credit { bytes: random.below(5000) },
    };
    let mut bytes = header.encode(source).to_vec();
    let payload_len = random.below(300);
    bytes.extend((0..payload_len).map(|_| random.below(256) as u8));
    bytes
}
