//! Compares two nodes with a model, and tests a node with frames that no libpm sends.

use super::*;
use crate::device::net_common::indices::SlotIndex;
use proptest::prelude::*;
use score_pm_reliability::rma_frame::RMA_HEADER_LEN;

const MEMORY: usize = 4000;
/// The most bytes of a frame.
const FRAME_PAYLOAD_LEN: usize = 97;
/// The handle of the tests' region, which is the whole memory of a node.
const REGION: u64 = 0x1001 << 40;

/// A node: its state machine, its memory, and the packets on the way to it.
struct Node {
    protocol: RmaProtocol,
    memory: Vec<u8>,
    wire: VecDeque<TestPacket>,
    completed: Vec<CompletedOperation>,
    messages: Vec<SlotIndex>,
}

enum TestPacket {
    Frame(Frame, Vec<u8>),
    More(Vec<u8>),
    Message(SlotIndex),
}

fn node(fill: u8) -> Node {
    Node {
        protocol: RmaProtocol::default(),
        memory: vec![fill; MEMORY],
        wire: VecDeque::new(),
        completed: Vec::new(),
        messages: Vec::new(),
    }
}

fn memory_range(handle: AddrHandle, len: usize) -> Option<std::ops::Range<usize>> {
    let start = handle.bits().checked_sub(REGION)? as usize;
    (start + len <= MEMORY).then_some(start..start + len)
}

fn operation(direction: Direction, remote: usize, local: usize, len: usize) -> LocalOperation {
    let handle = |offset: usize| AddrHandle::from_bits(REGION + offset as u64);
    LocalOperation { direction, remote: handle(remote), local: handle(local), address: local, len }
}

/// Sends at most one packet from `from` to `to`, which is node `peer`.
fn send(from: &mut Node, to: &mut Node, peer: u32) {
    match from.protocol.next(peer) {
        NextTransmission::Nothing => {}
        NextTransmission::Message(message) => to.wire.push_back(TestPacket::Message(message.slot)),
        NextTransmission::Frame(frame) => to.wire.push_back(TestPacket::Frame(frame, Vec::new())),
        NextTransmission::Fragments(stream) => {
            let (len, headerless) = (
                stream.remaining.min(FRAME_PAYLOAD_LEN),
                stream.is_continuation && stream.remaining > FRAME_PAYLOAD_LEN,
            );
            let source = match stream.source {
                PayloadSource::Address(offset) => AddrHandle::from_bits(REGION + offset as u64),
                PayloadSource::Region(handle) => handle,
            };
            match memory_range(source, len) {
                None => from.protocol.abort_stream(peer, &stream),
                Some(range) => {
                    let bytes = from.memory[range].to_vec();
                    to.wire.push_back(match headerless {
                        true => TestPacket::More(bytes),
                        false => TestPacket::Frame(stream.frame(0, len), bytes),
                    });
                    from.protocol.on_bytes_sent(peer, &stream, len);
                }
            }
        }
    }
}

/// Receives at most one packet of `peer` at `node`.
fn receive(node: &mut Node, peer: u32) {
    let (copy, bytes) = match node.wire.pop_front() {
        None => return,
        Some(TestPacket::Message(slot)) => return node.messages.push(slot),
        Some(TestPacket::Frame(frame, bytes)) => {
            (node.protocol.on_frame(peer, frame, bytes.len()), bytes)
        }
        Some(TestPacket::More(bytes)) => (node.protocol.on_continuation(peer, bytes.len()), bytes),
    };
    if let Some(copy) = copy {
        match memory_range(copy.to, bytes.len()) {
            Some(range) => node.memory[range].copy_from_slice(&bytes),
            None => node.protocol.fail_operation(peer, copy.side, copy.number),
        }
    }
    node.completed.extend(std::iter::from_fn(|| node.protocol.next_completed()));
}

#[derive(Clone, Debug)]
enum TestAction {
    Write(usize, usize, usize),
    Read(usize, usize, usize),
    Message,
    Send(bool),
    Receive(bool),
}

fn step() -> impl Strategy<Value = TestAction> {
    // One in ten lengths reaches beyond the region's end.
    let len = prop_oneof![9 => 1..600usize, 1 => MEMORY - 700..MEMORY];
    let triple = (0..MEMORY - 600, 0..MEMORY - 600, len);
    prop_oneof![
        2 => triple.clone().prop_map(|(to, from, len)| TestAction::Write(to, from, len)),
        2 => triple.prop_map(|(from, to, len)| TestAction::Read(from, to, len)),
        1 => Just(TestAction::Message),
        6 => any::<bool>().prop_map(TestAction::Send),
        6 => any::<bool>().prop_map(TestAction::Receive),
    ]
}

/// The expected memory of both nodes if the operations take effect one after the other. An
/// operation that exceeds the memory on one side fails, but the frames before that point are
/// copied.
struct Model([Vec<u8>; 2]);

impl Model {
    fn apply(&mut self, direction: Direction, remote: usize, local: usize, len: usize) {
        let [local_memory, remote_memory] = &mut self.0;
        let (source, target, source_offset, target_offset) = match direction {
            Direction::Write => (local_memory, remote_memory, local, remote),
            Direction::Read => (remote_memory, local_memory, remote, local),
        };
        for start in (0..len).step_by(FRAME_PAYLOAD_LEN) {
            let chunk_len = FRAME_PAYLOAD_LEN.min(len - start);
            if source_offset + start + chunk_len > MEMORY
                || target_offset + start + chunk_len > MEMORY
            {
                return;
            }
            let bytes = source[source_offset + start..source_offset + start + chunk_len].to_vec();
            target[target_offset + start..target_offset + start + chunk_len]
                .copy_from_slice(&bytes);
        }
    }
}

/// Runs the steps, and then completes all operations and messages.
fn run(steps: &[TestAction]) -> (Node, Node, usize) {
    let (mut a, mut b) = (node(1), node(2));
    let mut count = 0;
    let mut sent = 0;
    for step in steps {
        match *step {
            TestAction::Write(remote, local, len) => {
                a.protocol.begin(1, operation(Direction::Write, remote, local, len));
                count += 1;
            }
            TestAction::Read(remote, local, len) => {
                a.protocol.begin(1, operation(Direction::Read, remote, local, len));
                count += 1;
            }
            TestAction::Message => {
                let message = SendRequest { slot: SlotIndex(sent), to: 1, len: 1 };
                sent += 1;
                if a.protocol.must_wait(1) {
                    a.protocol.defer(message);
                } else {
                    b.wire.push_back(TestPacket::Message(message.slot));
                }
            }
            TestAction::Send(true) => send(&mut a, &mut b, 1),
            TestAction::Send(false) => send(&mut b, &mut a, 0),
            TestAction::Receive(true) => receive(&mut b, 0),
            TestAction::Receive(false) => receive(&mut a, 1),
        }
    }
    while a.protocol.operation_count + a.protocol.deferred_count() > 0
        || b.wire.len() + a.wire.len() > 0
    {
        send(&mut a, &mut b, 1);
        receive(&mut b, 0);
        send(&mut b, &mut a, 0);
        receive(&mut a, 1);
    }
    assert_eq!(b.messages, (0..sent).map(SlotIndex).collect::<Vec<_>>(), "messages in their order");
    (a, b, count)
}

#[test]
fn a_message_does_not_overtake_a_message_that_waited_for_an_ended_read() {
    use TestAction::*;
    run(&[Read(0, 0, 1), Send(true), Receive(true), Message, Send(false), Receive(false), Message]);
}

proptest! {
    #[test]
    fn operations_change_the_target_in_a_serial_order(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        // Reads are left out, because a program has to wait before it reads into memory that it
        // also writes from.
        let is_read = |step: &TestAction| matches!(step, TestAction::Read(..));
        let steps: Vec<_> = steps.into_iter().filter(|step| !is_read(step)).collect();
        let (a, b, count) = run(&steps);
        let mut model = Model([vec![1; MEMORY], vec![2; MEMORY]]);
        for (index, byte) in model.0[0].iter_mut().enumerate() {
            *byte = a.memory[index];
        }
        for step in &steps {
            if let TestAction::Write(remote, local, len) = *step {
                model.apply(Direction::Write, remote, local, len);
            }
        }
        prop_assert_eq!(&b.memory, &model.0[1]);
        prop_assert_eq!(a.completed.len(), count);
        for completed in &a.completed {
            let LocalOperation { remote, local, len, .. } = completed.operation;
            let fits = memory_range(remote, len).is_some() && memory_range(local, len).is_some();
            prop_assert_eq!(completed.failed, !fits);
        }
    }

    #[test]
    fn every_operation_ends_in_any_mix_and_messages_keep_their_order(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let (a, _, count) = run(&steps);
        prop_assert_eq!(a.completed.len(), count);
        prop_assert!(!a.protocol.is_sending() && a.protocol.deferred_count() == 0);
        prop_assert!(!a.protocol.must_wait(1));
    }

    // Promise (messages): Arbitrary frames of remote memory do no harm, and do not make a target
    // use more memory.
    #[test]
    fn arbitrary_frames_neither_do_harm_nor_make_a_target_grow(
        frames in prop::collection::vec((0u8..7, 0u8..4, 0u32..4, any::<u64>(), 0usize..40), 0..300)
    ) {
        let mut node = node(3);
        node.protocol.begin(1, operation(Direction::Read, 0, 0, 300));
        node.protocol.begin(1, operation(Direction::Write, 0, 0, 300));
        let _ = node.protocol.next(1);
        for (kind, flags, number, position, bytes) in frames {
            let mut header = [0u8; 24];
            header[..2].copy_from_slice(&[kind, flags]);
            header[4..8].copy_from_slice(&number.to_le_bytes());
            header[8..16].copy_from_slice(&(position % 600).to_le_bytes());
            header[16..].copy_from_slice(&position.to_le_bytes());
            let copy = match (kind, Frame::parse(&header, RMA_HEADER_LEN + bytes)) {
                (5, _) => node.protocol.on_continuation(1, bytes),
                (6, _) => node.protocol.on_bytes_lost(1),
                (_, Some((frame, bytes))) => node.protocol.on_frame(1, frame, bytes),
                (_, None) => continue,
            };
            if let Some(copy) = copy
                && copy.side == OperationRole::Origin
            {
                let end = copy.to.bits() - REGION + bytes as u64;
                prop_assert!(end <= 300, "beyond the requested bytes");
            }
            prop_assert!(node.protocol.peers[&1].target.pending_count() <= MAX_PENDING_RESPONSES);
            let _ = node.protocol.next_completed();
        }
    }
}

#[test]
fn bytes_that_follow_lost_bytes_are_discarded_until_the_next_frame() {
    let mut node = node(0);
    let protocol = &mut node.protocol;
    let fragment = |last, offset| Frame::WriteData { number: 0, last, handle: REGION + offset };
    let region_offset = |copy: Option<CopyTarget>| copy.map(|copy| copy.to.bits() - REGION);
    assert_eq!(region_offset(protocol.on_continuation(1, 8)), None, "no frame precedes it");
    assert_eq!(region_offset(protocol.on_frame(1, fragment(false, 10), 8)), Some(10));
    assert_eq!(region_offset(protocol.on_continuation(1, 20)), Some(18));
    assert_eq!(region_offset(protocol.on_continuation(2, 1)), None, "of another peer");
    assert_eq!(region_offset(protocol.on_continuation(1, 1)), Some(38));
    assert_eq!(region_offset(protocol.on_bytes_lost(1)), None);
    assert_eq!(region_offset(protocol.on_continuation(1, 1)), None, "after lost bytes");
    assert_eq!(region_offset(protocol.on_frame(1, fragment(false, 60), 5)), Some(60));
    assert_eq!(region_offset(protocol.on_continuation(1, 5)), Some(65));
    protocol.on_frame(1, Frame::ReadRequest { number: 0, handle: REGION, len: 8 }, 0);
    assert_eq!(region_offset(protocol.on_continuation(1, 5)), None, "after a read request");
    assert_eq!(region_offset(protocol.on_frame(1, fragment(true, 70), 5)), Some(70));
    assert_eq!(region_offset(protocol.on_continuation(1, 5)), None, "after the last fragment");
}

/// Sends one packet of the next stream, and checks whether the stream is a continuation.
fn packet(node: &mut Node, side: OperationRole, is_continuation: bool) -> (usize, bool) {
    let NextTransmission::Fragments(stream) = node.protocol.next(1) else { panic!("no stream") };
    assert_eq!((stream.side, stream.is_continuation), (side, is_continuation));
    let (len, headerless) = stream.next_packet_len(0, RMA_HEADER_LEN + FRAME_PAYLOAD_LEN);
    node.protocol.on_bytes_sent(1, &stream, len);
    (len, headerless)
}

#[test]
fn a_packet_of_a_stream_has_a_header_if_it_is_the_first_after_another_frame_or_the_last() {
    let mut node = node(0);
    node.protocol.begin(
        1,
        operation(Direction::Write, 0, 0, 5 * FRAME_PAYLOAD_LEN + 2 * RMA_HEADER_LEN - 1),
    );
    assert_eq!(packet(&mut node, OperationRole::Origin, false), (FRAME_PAYLOAD_LEN, false));
    assert_eq!(
        packet(&mut node, OperationRole::Origin, true),
        (FRAME_PAYLOAD_LEN + RMA_HEADER_LEN, true)
    );
    let request = Frame::ReadRequest { number: 0, handle: REGION, len: FRAME_PAYLOAD_LEN as u64 };
    node.protocol.on_frame(1, request, 0);
    assert_eq!(
        packet(&mut node, OperationRole::Target, false),
        (FRAME_PAYLOAD_LEN, false),
        "all of it"
    );
    assert_eq!(packet(&mut node, OperationRole::Origin, false), (FRAME_PAYLOAD_LEN, false));
    assert_eq!(
        packet(&mut node, OperationRole::Origin, true),
        (FRAME_PAYLOAD_LEN + RMA_HEADER_LEN, true)
    );
    assert_eq!(packet(&mut node, OperationRole::Origin, true), (FRAME_PAYLOAD_LEN - 1, false));
    node.protocol
        .begin(1, operation(Direction::Write, 0, 0, 2 * FRAME_PAYLOAD_LEN + RMA_HEADER_LEN));
    assert_eq!(packet(&mut node, OperationRole::Origin, false), (FRAME_PAYLOAD_LEN, false));
    assert_eq!(
        packet(&mut node, OperationRole::Origin, true),
        (FRAME_PAYLOAD_LEN + RMA_HEADER_LEN - 1, true),
        "one byte remains"
    );
    assert_eq!(packet(&mut node, OperationRole::Origin, true), (1, false));
    assert_eq!(node.protocol.next(1), NextTransmission::Nothing);
}

// Promise of `arbitrary_frames_neither_do_harm_nor_make_a_target_grow`.
#[test]
fn an_answer_without_a_request_is_refused() {
    let mut node = node(0);
    let written = Frame::WriteAck { number: 0, failed: false };
    let data = |number, offset| Frame::ReadResponse { number, last: false, failed: false, offset };
    assert_eq!(node.protocol.on_frame(1, written, 0), None);
    assert_eq!(node.protocol.on_frame(1, data(0, 0), 8), None);
    assert_eq!(node.protocol.refused_count, 2);
    node.protocol.begin(1, operation(Direction::Read, 0, 0, 100));
    assert_eq!(node.protocol.on_frame(1, data(0, 0), 8), None, "not requested yet");
    assert!(matches!(
        node.protocol.next(1),
        NextTransmission::Frame(Frame::ReadRequest { number: 0, .. })
    ));
    assert_eq!(node.protocol.on_frame(1, data(1, 0), 8), None);
    assert_eq!(node.protocol.on_frame(1, written, 0), None);
    assert_eq!(node.protocol.refused_count, 5);
    assert!(node.protocol.next_completed().is_none());
    assert!(node.protocol.on_frame(1, data(0, 0), 8).is_some());
    assert_eq!(node.protocol.on_frame(1, data(0, 9), 8), None, "a gap");
    assert!(node.protocol.next_completed().unwrap().failed);
    assert_eq!(node.protocol.on_frame(1, data(0, 17), 8), None, "it has completed");
}

#[test]
fn a_message_waits_for_the_pieces_of_a_write_and_for_the_answer_to_a_read() {
    let (mut a, mut b) = (node(1), node(2));
    a.protocol.begin(1, operation(Direction::Write, 0, 0, 3 * FRAME_PAYLOAD_LEN));
    assert!(a.protocol.must_wait(1) && !a.protocol.must_wait(2));
    a.protocol.defer(SendRequest { slot: SlotIndex(7), to: 1, len: 1 });
    for _ in 0..4 {
        send(&mut a, &mut b, 1);
    }
    assert!(
        matches!(b.wire.back(), Some(TestPacket::Message(SlotIndex(7)))),
        "no wait for a write's answer"
    );
    assert!(!a.protocol.must_wait(1));
    a.protocol.begin(1, operation(Direction::Read, 0, 0, 1));
    send(&mut a, &mut b, 1);
    assert!(a.protocol.must_wait(1));
    a.protocol.defer(SendRequest { slot: SlotIndex(8), to: 1, len: 1 });
    send(&mut a, &mut b, 1);
    assert!(matches!(b.wire.back(), Some(TestPacket::Frame(Frame::ReadRequest { .. }, _))));
    while !b.wire.is_empty() {
        receive(&mut b, 0);
    }
    for _ in 0..2 {
        send(&mut b, &mut a, 0);
        receive(&mut a, 1);
    }
    assert_eq!(a.completed.len(), 2);
    send(&mut a, &mut b, 1);
    assert!(matches!(b.wire.back(), Some(TestPacket::Message(SlotIndex(8)))));
}

#[test]
fn operations_on_an_exited_peer_fail_and_messages_continue() {
    let mut node = node(0);
    node.protocol.begin(1, operation(Direction::Read, 0, 0, 8));
    node.protocol.begin(1, operation(Direction::Write, 0, 0, 8));
    node.protocol.defer(SendRequest { slot: SlotIndex(3), to: 1, len: 1 });
    let _ = node.protocol.next(1);
    node.protocol.on_frame(1, Frame::ReadRequest { number: 0, handle: REGION, len: 8 }, 0);
    let completed = node.protocol.on_peer_exited(1);
    assert!(completed.len() == 2 && completed.iter().all(|operation| operation.failed));
    assert!(matches!(
        node.protocol.next(1),
        NextTransmission::Message(SendRequest { slot: SlotIndex(3), .. })
    ));
    assert_eq!(node.protocol.next(1), NextTransmission::Nothing);
    assert!(!node.protocol.must_wait(1) && node.protocol.is_idle());
}
