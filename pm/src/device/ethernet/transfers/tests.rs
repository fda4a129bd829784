//! Two nodes against a model, and frames that no libpm sends.

use super::*;
use proptest::prelude::*;
use score_proto::remote::HEAD;

const MEMORY: usize = 4000;
/// Bytes of a frame.
const PIECE: usize = 97;
/// The region of the tests: all of a node's memory.
const REGION: u64 = 0x1001 << 40;

/// A node: its machine and its memory, and what is on the way to it.
struct Node {
    transfers: Transfers,
    memory: Vec<u8>,
    wire: VecDeque<Packet>,
    ended: Vec<Ended>,
    messages: Vec<u32>,
}

enum Packet {
    Frame(Frame, Vec<u8>),
    More(Vec<u8>),
    Message(u32),
}

fn node(fill: u8) -> Node {
    Node {
        transfers: Transfers::default(),
        memory: vec![fill; MEMORY],
        wire: VecDeque::new(),
        ended: Vec::new(),
        messages: Vec::new(),
    }
}

fn place(handle: AddrHandle, len: usize) -> Option<std::ops::Range<usize>> {
    let start = handle.bits().checked_sub(REGION)? as usize;
    (start + len <= MEMORY).then_some(start..start + len)
}

fn operation(direction: Direction, remote: usize, local: usize, len: usize) -> Operation {
    let at = |offset: usize| AddrHandle::from_bits(REGION + offset as u64);
    Operation { direction, remote: at(remote), local: at(local), address: local, len }
}

/// One packet, at most, goes from `from` to `to`, node 1 - peer.
fn send(from: &mut Node, to: &mut Node, peer: u32) {
    match from.transfers.next(peer) {
        Next::Nothing => {}
        Next::Message(message) => to.wire.push_back(Packet::Message(message.slot)),
        Next::Frame(frame) => to.wire.push_back(Packet::Frame(frame, Vec::new())),
        Next::Chain(chain) => {
            let (len, bare) = (chain.left.min(PIECE), chain.goes_on && chain.left > PIECE);
            let at = match chain.from {
                From::Address(offset) => AddrHandle::from_bits(REGION + offset as u64),
                From::Region(handle) => handle,
            };
            match place(at, len) {
                None => from.transfers.cut(peer, &chain),
                Some(range) => {
                    let bytes = from.memory[range].to_vec();
                    to.wire.push_back(match bare {
                        true => Packet::More(bytes),
                        false => Packet::Frame(chain.frame(0, len), bytes),
                    });
                    from.transfers.sent(peer, &chain, len);
                }
            }
        }
    }
}

/// One packet, at most, comes to `node` from `peer`.
fn receive(node: &mut Node, peer: u32) {
    let (copy, bytes) = match node.wire.pop_front() {
        None => return,
        Some(Packet::Message(name)) => return node.messages.push(name),
        Some(Packet::Frame(frame, bytes)) => (node.transfers.came(peer, frame, bytes.len()), bytes),
        Some(Packet::More(bytes)) => (node.transfers.more(peer, bytes.len()), bytes),
    };
    if let Some(copy) = copy {
        match place(copy.to, bytes.len()) {
            Some(range) => node.memory[range].copy_from_slice(&bytes),
            None => node.transfers.spoil(peer, copy.side, copy.number),
        }
    }
    node.ended.extend(std::iter::from_fn(|| node.transfers.ended()));
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, usize),
    Read(usize, usize, usize),
    Message,
    Send(bool),
    Receive(bool),
}

fn step() -> impl Strategy<Value = Step> {
    // Now and then beyond the region's end.
    let len = prop_oneof![9 => 1..600usize, 1 => MEMORY - 700..MEMORY];
    let triple = (0..MEMORY - 600, 0..MEMORY - 600, len);
    prop_oneof![
        2 => triple.clone().prop_map(|(to, from, len)| Step::Write(to, from, len)),
        2 => triple.prop_map(|(from, to, len)| Step::Read(from, to, len)),
        1 => Just(Step::Message),
        6 => any::<bool>().prop_map(Step::Send),
        6 => any::<bool>().prop_map(Step::Receive),
    ]
}

/// What the two memories are when each operation takes effect as a whole, in its order; an
/// operation that does not fit on one side has failed, and its bytes before that count.
struct Model([Vec<u8>; 2]);

impl Model {
    fn apply(&mut self, direction: Direction, remote: usize, local: usize, len: usize) {
        let [here, there] = &mut self.0;
        let (from, to, at, into) = match direction {
            Direction::Write => (here, there, local, remote),
            Direction::Read => (there, here, remote, local),
        };
        for start in (0..len).step_by(PIECE) {
            let piece = PIECE.min(len - start);
            if at + start + piece > MEMORY || into + start + piece > MEMORY {
                return;
            }
            let bytes = from[at + start..at + start + piece].to_vec();
            to[into + start..into + start + piece].copy_from_slice(&bytes);
        }
    }
}

/// Runs the steps, and the rest to the end. Local areas of operations under way do not overlap
/// here, as the rules for users ask: each operation is local at its own place.
fn run(steps: &[Step]) -> (Node, Node, usize) {
    let (mut a, mut b) = (node(1), node(2));
    let mut count = 0;
    let mut sent = 0;
    for step in steps {
        match *step {
            Step::Write(remote, local, len) => {
                a.transfers.begin(1, operation(Direction::Write, remote, local, len));
                count += 1;
            }
            Step::Read(remote, local, len) => {
                a.transfers.begin(1, operation(Direction::Read, remote, local, len));
                count += 1;
            }
            Step::Message => {
                let message = Submitted { slot: sent, to: 1, len: 1 };
                sent += 1;
                if a.transfers.must_wait(1) {
                    a.transfers.park(message);
                } else {
                    b.wire.push_back(Packet::Message(message.slot));
                }
            }
            Step::Send(true) => send(&mut a, &mut b, 1),
            Step::Send(false) => send(&mut b, &mut a, 0),
            Step::Receive(true) => receive(&mut b, 0),
            Step::Receive(false) => receive(&mut a, 1),
        }
    }
    while a.transfers.operations + a.transfers.parked() > 0 || b.wire.len() + a.wire.len() > 0 {
        send(&mut a, &mut b, 1);
        receive(&mut b, 0);
        send(&mut b, &mut a, 0);
        receive(&mut a, 1);
    }
    assert_eq!(b.messages, (0..sent).collect::<Vec<_>>(), "messages in their order");
    (a, b, count)
}

#[test]
fn a_message_does_not_overtake_one_that_waited_for_a_read_that_has_just_ended() {
    use Step::*;
    run(&[Read(0, 0, 1), Send(true), Receive(true), Message, Send(false), Receive(false), Message]);
}

proptest! {
    #[test]
    fn what_operations_do_to_the_target_is_as_if_they_were_done_one_after_the_other(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        // Reads go where no write of this node comes from: else it is for the user to wait.
        let steps: Vec<_> = steps.into_iter().filter(|s| !matches!(s, Step::Read(..))).collect();
        let (a, b, count) = run(&steps);
        let mut model = Model([vec![1; MEMORY], vec![2; MEMORY]]);
        for (at, byte) in model.0[0].iter_mut().enumerate() {
            *byte = a.memory[at];
        }
        for step in &steps {
            if let Step::Write(remote, local, len) = *step {
                model.apply(Direction::Write, remote, local, len);
            }
        }
        prop_assert_eq!(&b.memory, &model.0[1]);
        prop_assert_eq!(a.ended.len(), count);
        for ended in &a.ended {
            let Operation { remote, local, len, .. } = ended.operation;
            let fits = place(remote, len).is_some() && place(local, len).is_some();
            prop_assert_eq!(ended.failed, !fits);
        }
    }

    #[test]
    fn every_operation_ends_whatever_is_mixed_and_messages_keep_their_order(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let (a, _, count) = run(&steps);
        prop_assert_eq!(a.ended.len(), count);
        prop_assert!(!a.transfers.is_sending() && a.transfers.parked() == 0);
        prop_assert!(!a.transfers.must_wait(1));
    }

    #[test]
    fn no_frames_do_harm_or_make_a_target_grow(
        frames in prop::collection::vec((0u8..7, 0u8..4, 0u32..4, any::<u64>(), 0usize..40), 0..300)
    ) {
        let mut node = node(3);
        node.transfers.begin(1, operation(Direction::Read, 0, 0, 300));
        node.transfers.begin(1, operation(Direction::Write, 0, 0, 300));
        let _ = node.transfers.next(1);
        for (what, flags, number, place, bytes) in frames {
            let mut head = [0u8; 24];
            head[..2].copy_from_slice(&[what, flags]);
            head[4..8].copy_from_slice(&number.to_le_bytes());
            head[8..16].copy_from_slice(&(place % 600).to_le_bytes());
            head[16..].copy_from_slice(&place.to_le_bytes());
            let copy = match (what, Frame::parse(&head, HEAD + bytes)) {
                (5, _) => node.transfers.more(1, bytes),
                (6, _) => node.transfers.lost(1),
                (_, Some((frame, bytes))) => node.transfers.came(1, frame, bytes),
                (_, None) => continue,
            };
            if let Some(copy) = copy
                && copy.side == Side::Origin
            {
                let end = copy.to.bits() - REGION + bytes as u64;
                prop_assert!(end <= 300, "beyond what was asked for");
            }
            prop_assert!(node.transfers.peers[&1].target.owed() <= OWED);
            let _ = node.transfers.ended();
        }
    }
}

#[test]
fn what_follows_lost_bytes_goes_nowhere_until_the_next_frame() {
    let mut node = node(0);
    let transfers = &mut node.transfers;
    let piece = |last, at| Frame::Piece { number: 0, last, handle: REGION + at };
    let at = |copy: Option<Copy>| copy.map(|copy| copy.to.bits() - REGION);
    assert_eq!(at(transfers.more(1, 8)), None, "behind nothing");
    assert_eq!(at(transfers.came(1, piece(false, 10), 8)), Some(10));
    assert_eq!(at(transfers.more(1, 20)), Some(18));
    assert_eq!(at(transfers.more(2, 1)), None, "of another peer");
    assert_eq!(at(transfers.more(1, 1)), Some(38));
    assert_eq!(at(transfers.lost(1)), None);
    assert_eq!(at(transfers.more(1, 1)), None, "behind what was lost");
    assert_eq!(at(transfers.came(1, piece(false, 60), 5)), Some(60));
    assert_eq!(at(transfers.more(1, 5)), Some(65));
    transfers.came(1, Frame::Ask { number: 0, handle: REGION, len: 8 }, 0);
    assert_eq!(at(transfers.more(1, 5)), None, "behind a question");
    assert_eq!(at(transfers.came(1, piece(true, 70), 5)), Some(70));
    assert_eq!(at(transfers.more(1, 5)), None, "behind the last one");
}

/// What goes to the peer next is a chain that goes on, or does not; a packet of it goes.
fn packet(node: &mut Node, side: Side, goes_on: bool) -> (usize, bool) {
    let Next::Chain(chain) = node.transfers.next(1) else { panic!("no chain") };
    assert_eq!((chain.side, chain.goes_on), (side, goes_on));
    let (len, bare) = chain.next(0, HEAD + PIECE);
    node.transfers.sent(1, &chain, len);
    (len, bare)
}

#[test]
fn a_packet_of_a_chain_has_a_head_if_it_is_the_first_behind_another_or_the_last() {
    let mut node = node(0);
    node.transfers.begin(1, operation(Direction::Write, 0, 0, 5 * PIECE + 2 * HEAD - 1));
    assert_eq!(packet(&mut node, Side::Origin, false), (PIECE, false));
    assert_eq!(packet(&mut node, Side::Origin, true), (PIECE + HEAD, true));
    let ask = Frame::Ask { number: 0, handle: REGION, len: PIECE as u64 };
    node.transfers.came(1, ask, 0);
    assert_eq!(packet(&mut node, Side::Target, false), (PIECE, false), "all of it");
    assert_eq!(packet(&mut node, Side::Origin, false), (PIECE, false));
    assert_eq!(packet(&mut node, Side::Origin, true), (PIECE + HEAD, true));
    assert_eq!(packet(&mut node, Side::Origin, true), (PIECE - 1, false));
    node.transfers.begin(1, operation(Direction::Write, 0, 0, 2 * PIECE + HEAD));
    assert_eq!(packet(&mut node, Side::Origin, false), (PIECE, false));
    assert_eq!(packet(&mut node, Side::Origin, true), (PIECE + HEAD - 1, true), "one is left");
    assert_eq!(packet(&mut node, Side::Origin, true), (1, false));
    assert_eq!(node.transfers.next(1), Next::Nothing);
}

#[test]
fn an_answer_that_nobody_asked_for_is_refused() {
    let mut node = node(0);
    let written = Frame::Written { number: 0, failed: false };
    let data = |number, offset| Frame::Data { number, last: false, failed: false, offset };
    assert_eq!(node.transfers.came(1, written, 0), None);
    assert_eq!(node.transfers.came(1, data(0, 0), 8), None);
    assert_eq!(node.transfers.refused, 2);
    node.transfers.begin(1, operation(Direction::Read, 0, 0, 100));
    assert_eq!(node.transfers.came(1, data(0, 0), 8), None, "not asked yet");
    assert!(matches!(node.transfers.next(1), Next::Frame(Frame::Ask { number: 0, .. })));
    assert_eq!(node.transfers.came(1, data(1, 0), 8), None);
    assert_eq!(node.transfers.came(1, written, 0), None);
    assert_eq!(node.transfers.refused, 5);
    assert!(node.transfers.ended().is_none());
    assert!(node.transfers.came(1, data(0, 0), 8).is_some());
    assert_eq!(node.transfers.came(1, data(0, 9), 8), None, "a hole");
    assert!(node.transfers.ended().unwrap().failed);
    assert_eq!(node.transfers.came(1, data(0, 17), 8), None, "it has ended");
}

#[test]
fn a_message_waits_for_the_pieces_of_a_write_and_for_the_answer_to_a_read() {
    let (mut a, mut b) = (node(1), node(2));
    a.transfers.begin(1, operation(Direction::Write, 0, 0, 3 * PIECE));
    assert!(a.transfers.must_wait(1) && !a.transfers.must_wait(2));
    a.transfers.park(Submitted { slot: 7, to: 1, len: 1 });
    for _ in 0..4 {
        send(&mut a, &mut b, 1);
    }
    assert!(matches!(b.wire.back(), Some(Packet::Message(7))), "not for the answer to a write");
    assert!(!a.transfers.must_wait(1));
    a.transfers.begin(1, operation(Direction::Read, 0, 0, 1));
    send(&mut a, &mut b, 1);
    assert!(a.transfers.must_wait(1));
    a.transfers.park(Submitted { slot: 8, to: 1, len: 1 });
    send(&mut a, &mut b, 1);
    assert!(matches!(b.wire.back(), Some(Packet::Frame(Frame::Ask { .. }, _))));
    while !b.wire.is_empty() {
        receive(&mut b, 0);
    }
    for _ in 0..2 {
        send(&mut b, &mut a, 0);
        receive(&mut a, 1);
    }
    assert_eq!(a.ended.len(), 2);
    send(&mut a, &mut b, 1);
    assert!(matches!(b.wire.back(), Some(Packet::Message(8))));
}

#[test]
fn when_a_peer_has_gone_its_operations_have_failed_and_messages_go_on() {
    let mut node = node(0);
    node.transfers.begin(1, operation(Direction::Read, 0, 0, 8));
    node.transfers.begin(1, operation(Direction::Write, 0, 0, 8));
    node.transfers.park(Submitted { slot: 3, to: 1, len: 1 });
    let _ = node.transfers.next(1);
    node.transfers.came(1, Frame::Ask { number: 0, handle: REGION, len: 8 }, 0);
    let ended = node.transfers.gone(1);
    assert!(ended.len() == 2 && ended.iter().all(|ended| ended.failed));
    assert!(matches!(node.transfers.next(1), Next::Message(Submitted { slot: 3, .. })));
    assert_eq!(node.transfers.next(1), Next::Nothing);
    assert!(!node.transfers.must_wait(1) && node.transfers.is_quiet());
}
