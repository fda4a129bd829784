//! Programs that use each other's memory. Each node has two regions. In the first region, each pair
//! of an origin and a slot has its own bytes, so that their expected contents are known. The last
//! word of the first region is a counter to which all nodes add. The second region is read-only.

use std::collections::HashMap;

use super::random::Random;
use super::{GUARD, GUARD_LEN, World, segments};
use crate::atomic::{Datatype, Operator};
use crate::engine::Engine;
use crate::memory::UserBuffer;
use crate::network::Network;
use crate::operation::*;
use crate::regions::RegionAccess;
use crate::wire::RemoteAddress;

/// The bytes of a slot, more than a message has.
const SLOT_LEN: usize = 1200;
const SLOTS: usize = 3;
const MAX_NODES: usize = 4;
const COUNTER_AT: usize = SLOT_LEN * SLOTS * MAX_NODES;
const REGION_LEN: usize = COUNTER_AT + 8;

/// An operation that a program has requested.
#[derive(Debug)]
enum PendingOperation {
    Write { target: usize, slot: usize, at: usize, bytes: Vec<u8> },
    Read { target: usize, slot: usize, at: usize, memory: Vec<u8> },
    Add { memory: Vec<u8> },
    FetchAndAdd { memory: Vec<u8> },
    Refused { memory: Vec<u8>, is_bad_write: bool },
}

/// The state of a program.
#[derive(Debug, Default)]
pub(super) struct RemoteMemory {
    /// The regions with their guard bytes, which must not change, and their keys.
    regions: Vec<(Vec<u8>, u64)>,
    /// Pending operations, by context.
    pending: HashMap<usize, PendingOperation>,
    /// The contents of the slots at other nodes, by node and slot.
    written: HashMap<(usize, usize), Vec<u8>>,
    /// The fetched former values of the counters.
    fetched: Vec<(usize, u64)>,
    added: u64,
    /// The number of writes with immediate data that this program has started. `noted_writes`
    /// counts the writes with immediate data that have arrived here.
    pub(super) announced_writes: u64,
    pub(super) noted_writes: u64,
}

impl RemoteMemory {
    pub(super) fn open<N: Network>(engine: &mut Engine<N>) -> Self {
        let accesses = [RegionAccess::ALL, RegionAccess::READ];
        let regions = accesses.map(|access| {
            let mut memory = vec![GUARD; REGION_LEN + 2 * GUARD_LEN];
            memory[GUARD_LEN..GUARD_LEN + REGION_LEN].fill(0);
            let start = memory[GUARD_LEN..].as_mut_ptr();
            let key = engine.register(segments(&[(start, REGION_LEN)]), access);
            (memory, key)
        });
        Self { regions: regions.into(), ..Self::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    fn memory(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        self.pending.values_mut().map(|pending| match pending {
            PendingOperation::Write { bytes: memory, .. }
            | PendingOperation::Read { memory, .. }
            | PendingOperation::Add { memory }
            | PendingOperation::FetchAndAdd { memory }
            | PendingOperation::Refused { memory, .. } => memory,
        })
    }

    /// Reuses the memory of operations, as a program does after it has closed its endpoint.
    pub(super) fn reuse_memory(&mut self) {
        self.memory().for_each(|memory| memory.fill(GUARD));
    }

    pub(super) fn is_memory_unchanged(&mut self) -> bool {
        self.memory().all(|memory| memory.iter().all(|byte| *byte == GUARD))
    }

    pub(super) fn check_guards(&self) {
        for (memory, _) in &self.regions {
            let (head, tail) = (&memory[..GUARD_LEN], &memory[GUARD_LEN + REGION_LEN..]);
            assert!(head.iter().chain(tail).all(|byte| *byte == GUARD));
        }
    }

    fn slot_of(&self, origin: usize, slot: usize, at: usize, len: usize) -> &[u8] {
        let start = GUARD_LEN + (origin * SLOTS + slot) * SLOT_LEN + at;
        &self.regions[0].0[start..start + len]
    }
}

/// A buffer of two pieces, or of one.
fn buffer(random: &mut Random, memory: &mut [u8]) -> UserBuffer {
    if random.one_in(2) {
        return segments(&[(memory.as_mut_ptr(), memory.len())]);
    }
    let cut = random.below(memory.len() as u64 + 1) as usize;
    let (first, second) = memory.split_at_mut(cut);
    segments(&[(first.as_mut_ptr(), first.len()), (second.as_mut_ptr(), second.len())])
}

impl World {
    /// Starts a random operation on the memory of a node.
    pub(super) fn use_remote_memory(&mut self, node: usize) {
        let target = self.random.below(self.programs.len() as u64) as usize;
        let slot = self.random.below(SLOTS as u64) as usize;
        let context = self.context();
        let request = Request { context, is_reported: true };
        let key = self.programs[target].remote.regions[0].1;
        let is_free = !self.programs[node].remote.pending.values().any(|pending| {
            matches!(pending, PendingOperation::Write { target: t, slot: s, .. }
                | PendingOperation::Read { target: t, slot: s, .. } if (*t, *s) == (target, slot))
        });
        match self.random.below(5) {
            0 | 1 if is_free => self.write(node, (target, slot), key, request),
            2 if is_free => self.read(node, (target, slot), key, request),
            3 => self.add(node, target, key, request),
            _ => self.ask_in_vain(node, target, request),
        }
    }

    fn write(&mut self, node: usize, place: (usize, usize), key: u64, request: Request) {
        let (target, slot) = place;
        let random = &mut self.random;
        let at = random.below(SLOT_LEN as u64) as usize;
        let len = random.below((SLOT_LEN - at) as u64 + 1) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        let retention = if random.one_in(3) { Retention::Volatile } else { Retention::Stays };
        let data = random.one_in(4).then_some(7);
        let buffer = buffer(random, &mut bytes);
        let offset = ((node * SLOTS + slot) * SLOT_LEN + at) as u64;
        let (node_number, target_address) = (target as u32, RemoteAddress { key, offset });
        let write = WriteOperation {
            node: node_number,
            target: target_address,
            buffer,
            retention,
            data,
            request,
        };
        let program = &mut self.programs[node];
        if program.engine.write(&write).is_err() {
            return;
        }
        let expected = bytes.clone();
        if retention == Retention::Volatile {
            bytes.fill(GUARD);
        }
        program.remote.announced_writes += u64::from(data.is_some());
        let all = program.remote.written.entry(place).or_insert_with(|| vec![0; SLOT_LEN]);
        all[at..at + len].copy_from_slice(&expected);
        // The memory must keep its address while it is read.
        program
            .remote
            .pending
            .insert(request.context, PendingOperation::Write { target, slot, at, bytes });
    }

    fn read(&mut self, node: usize, place: (usize, usize), key: u64, request: Request) {
        let (target, slot) = place;
        let at = self.random.below(SLOT_LEN as u64) as usize;
        let len = self.random.below((SLOT_LEN - at) as u64 + 1) as usize;
        let mut memory = vec![GUARD; len];
        let buffer = buffer(&mut self.random, &mut memory);
        let offset = ((node * SLOTS + slot) * SLOT_LEN + at) as u64;
        let address = RemoteAddress { key, offset };
        let read = ReadOperation { node: target as u32, target: address, buffer, request };
        let program = &mut self.programs[node];
        program
            .remote
            .pending
            .insert(request.context, PendingOperation::Read { target, slot, at, memory });
        program.engine.read(&read);
    }

    fn add(&mut self, node: usize, target: usize, key: u64, request: Request) {
        let is_fetched = self.random.one_in(2);
        let mut memory = vec![0; 16];
        memory[..8].copy_from_slice(&1_u64.to_ne_bytes());
        let (operands, result) = memory.split_at_mut(8);
        let result = segments(&[(result.as_mut_ptr(), 8)]);
        let atomic = AtomicOperation {
            node: target as u32,
            target: RemoteAddress { key, offset: COUNTER_AT as u64 },
            operator: Operator::Sum,
            datatype: Datatype::Uint64,
            count: 1,
            operands: segments(&[(operands.as_mut_ptr(), 8)]),
            compared: UserBuffer::empty(),
            result: is_fetched.then_some(result),
            request,
        };
        let program = &mut self.programs[node];
        if program.engine.atomic(&atomic).is_err() {
            return;
        }
        let pending = match is_fetched {
            true => PendingOperation::FetchAndAdd { memory },
            false => PendingOperation::Add { memory },
        };
        program.remote.pending.insert(request.context, pending);
        self.programs[target].remote.added += 1;
    }

    /// Requests operations that the target refuses, because they are outside of a region or not
    /// permitted.
    fn ask_in_vain(&mut self, node: usize, target: usize, request: Request) {
        let [all, readable] =
            [0, 1].map(|region: usize| self.programs[target].remote.regions[region].1);
        let mut memory = vec![GUARD; 64];
        let buffer = buffer(&mut self.random, &mut memory);
        let node_number = target as u32;
        let remote = |key, offset| RemoteAddress { key, offset };
        let end = REGION_LEN as u64 - 63;
        let (is_read, place) = match self.random.below(5) {
            0 => (true, remote(all, end)),
            1 => (false, remote(all, end)),
            2 => (false, remote(readable, 0)),
            3 => (true, remote(readable, u64::MAX - 5)),
            _ => (self.random.one_in(2), remote(77, 0)),
        };
        let program = &mut self.programs[node];
        if is_read {
            let read = ReadOperation { node: node_number, target: place, buffer, request };
            let pending = PendingOperation::Refused { memory, is_bad_write: false };
            program.remote.pending.insert(request.context, pending);
            program.engine.read(&read);
            return;
        }
        let (retention, data) = (Retention::Stays, None);
        let write =
            WriteOperation { node: node_number, target: place, buffer, retention, data, request };
        if program.engine.write(&write).is_ok() {
            let pending = PendingOperation::Refused { memory, is_bad_write: true };
            program.remote.pending.insert(request.context, pending);
        }
    }

    /// Checks an operation on the memory of a node, after the operation has ended.
    pub(super) fn complete_remote(&mut self, node: usize, completion: Completion) {
        if completion.kind == CompletionKind::RemoteWritten {
            assert_eq!(completion.envelope.data, Some(7));
            self.programs[node].remote.noted_writes += 1;
            return;
        }
        let pending = self.programs[node].remote.pending.remove(&completion.context).unwrap();
        let expected_failure =
            matches!(pending, PendingOperation::Refused { .. }).then_some(Failure::Refused);
        assert_eq!(completion.failure, expected_failure);
        let written = |target: usize, slot: usize, at: usize, len: usize| {
            let all = self.programs[node].remote.written.get(&(target, slot));
            all.map_or(vec![0; len], |all| all[at..at + len].to_vec())
        };
        match pending {
            PendingOperation::Write { target, slot, at, bytes } => {
                assert_eq!(completion.kind, CompletionKind::Written);
                // The bytes of a completed write have arrived.
                let there = self.programs[target].remote.slot_of(node, slot, at, bytes.len());
                assert_eq!(there, written(target, slot, at, bytes.len()));
            }
            PendingOperation::Read { target, slot, at, memory } => {
                assert_eq!(completion.kind, CompletionKind::Read);
                assert_eq!(memory, written(target, slot, at, memory.len()));
            }
            PendingOperation::Add { .. } => assert_eq!(completion.kind, CompletionKind::Atomic),
            PendingOperation::FetchAndAdd { memory } => {
                assert_eq!(completion.kind, CompletionKind::FetchedAtomic);
                let former = u64::from_ne_bytes(memory[8..].try_into().unwrap());
                self.programs[node].remote.fetched.push((node, former));
            }
            PendingOperation::Refused { memory, is_bad_write } => {
                assert!(memory.iter().all(|byte| *byte == GUARD));
                let kind =
                    if is_bad_write { CompletionKind::Written } else { CompletionKind::Read };
                assert_eq!(completion.kind, kind);
            }
        }
    }

    /// Checks the contents of the regions, and that each write with immediate data was noted.
    pub(super) fn check_remote_memory(&self) {
        let mut announced = 0;
        let mut noted = 0;
        for program in &self.programs {
            let remote = &program.remote;
            remote.check_guards();
            let at = GUARD_LEN + COUNTER_AT;
            let counter = u64::from_ne_bytes(remote.regions[0].0[at..at + 8].try_into().unwrap());
            assert_eq!(counter, remote.added);
            let readable = &remote.regions[1].0[GUARD_LEN..GUARD_LEN + REGION_LEN];
            assert!(readable.iter().all(|byte| *byte == 0));
            announced += remote.announced_writes;
            noted += remote.noted_writes;
        }
        assert_eq!(announced, noted);
    }
}

/// All nodes add to the same counter, in random order.
#[test]
fn each_node_fetches_a_different_value_of_a_counter() {
    for seed in super::seeds() {
        let mut world = World::new(seed);
        let key = world.programs[0].remote.regions[0].1;
        for _ in 0..super::STEPS / 2 {
            let node = world.random.below(world.programs.len() as u64) as usize;
            if world.random.one_in(2) {
                let request = Request { context: world.context(), is_reported: true };
                world.add(node, 0, key, request);
            }
            world.progress(node);
        }
        world.drain();
        world.check_remote_memory();
        let mut fetched: Vec<u64> = world
            .programs
            .iter()
            .flat_map(|program| program.remote.fetched.iter().map(|(_, former)| *former))
            .collect();
        let count = fetched.len();
        // The operations of an origin are executed in the order of its calls.
        for program in &world.programs {
            assert!(program.remote.fetched.is_sorted_by_key(|(_, former)| *former));
        }
        fetched.sort_unstable();
        fetched.dedup();
        assert_eq!(fetched.len(), count, "seed {seed}");
    }
}
