//! Remote memory between hosts, as a state machine: which frames the operations of a node become,
//! what it owes to others, and what must wait for what. Sans I/O: it knows handles and lengths,
//! never a byte. Below it frames of one pair arrive once and in order.
//!
//! The ordering rule (manual 3.6.3) is kept by the origin, in one queue for each peer: a write goes
//! out when earlier reads are done, and so does a message; a read is asked for behind all pieces of
//! earlier writes. So nobody has to hold back what has come, and nothing grows at the target: it
//! keeps of each peer the write that is coming in and at most [`OWED`] answers.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | all peers, and whose turn it is |
//! | `origin.rs` | own operations on one peer, and messages that wait for them |
//! | `target.rs` | a peer's operations here |
//! | `tests.rs` | two nodes against a model; frames that nobody sends |

#![forbid(unsafe_code)]

mod origin;
mod target;
#[cfg(test)]
mod tests;

use crate::device::network::lanes::Submitted;
use crate::remote::{AddrHandle, Direction};
use origin::Origin;
use score_proto::remote::{Frame, HEAD};
use std::collections::{BTreeMap, VecDeque};
use target::Target;

/// Operations of one node on another that are under way.
pub(super) const OPERATIONS: usize = 64;
/// Answers that are owed to one node: no libpm asks for more.
const OWED: usize = OPERATIONS;

/// An own operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) direction: Direction,
    pub(super) remote: AddrHandle,
    pub(super) local: AddrHandle,
    /// Where that is. A write goes on from there even when the region is unlocked meanwhile, as at
    /// the end of a program that does not wait.
    pub(super) address: usize,
    pub(super) len: usize,
}

/// Where bytes are that go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// At this address: it was looked up when the operation began.
    Address(usize),
    /// In a region of this process, if it is locked.
    Region(AddrHandle),
}

/// An own operation that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) peer: u32,
    pub(super) operation: Operation,
    pub(super) failed: bool,
}

/// On which side of an operation something belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The operation is an own one.
    Origin,
    /// It is the peer's.
    Target,
}

/// What goes to a peer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, before something else happens.
    Nothing,
    /// A message that has waited.
    Message(Submitted),
    /// A frame without bytes of the user's.
    Frame(Frame),
    /// A chain of frames: so many bytes of the own memory from here on.
    Chain(Chain),
}

/// The rest of a chain of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) side: Side,
    /// Where its next byte is.
    pub(super) from: From,
    pub(super) left: usize,
    number: u32,
    /// Handle there, or offset.
    place: u64,
    /// Its bytes follow those of the latest frame.
    goes_on: bool,
}

impl Chain {
    /// The frame whose bytes begin `at` further, and are `len`.
    pub(super) fn frame(&self, at: usize, len: usize) -> Frame {
        let (number, place, last) = (self.number, self.place, at + len == self.left);
        match self.side {
            Side::Origin => {
                let handle = (AddrHandle::from_bits(place) + at as u64).bits();
                Frame::Piece { number, last, handle }
            }
            Side::Target => Frame::Data { number, last, failed: false, offset: place + at as u64 },
        }
    }

    /// How many bytes the packet has whose bytes begin `at` further, and whether they go without a
    /// head: neither the first of what follows another frame nor the last ones do.
    pub(super) fn next(&self, at: usize, longest: usize) -> (usize, bool) {
        let (left, headed) = (self.left - at, longest - HEAD);
        if left <= headed || at == 0 && !self.goes_on {
            (left.min(headed), false)
        } else {
            (longest.min(left - 1), true)
        }
    }
}

/// Where bytes of a frame go, in the own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) side: Side,
    pub(super) number: u32,
    pub(super) to: AddrHandle,
}

impl Chain {
    /// The operation's number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

#[derive(Default)]
struct Peer {
    origin: Origin,
    target: Target,
    /// Whose turn it was.
    answered: bool,
    /// In the list of peers that may have something to send; of those whose operations may have
    /// ended.
    ready: bool,
    touched: bool,
    /// Frames that are on the way.
    flying: u64,
    /// What the bytes behind the latest frame belong to: of what goes there, and of what comes.
    sent: Option<Frame>,
    came: Option<Frame>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Transfers {
    peers: BTreeMap<u32, Peer>,
    ready: VecDeque<u32>,
    touched: Vec<u32>,
    /// Own operations that have not ended.
    operations: usize,
    /// Messages that wait.
    parked: usize,
    /// Frames that no libpm sends.
    refused: u64,
}

impl Transfers {
    fn enlist(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node)
            && !std::mem::replace(&mut peer.ready, true)
        {
            self.ready.push_back(node);
        }
    }

    /// An own operation begins.
    pub(super) fn begin(&mut self, node: u32, operation: Operation) {
        self.operations += 1;
        self.peers.entry(node).or_default().origin.begin(operation);
        self.enlist(node);
    }

    /// Whether a message to `node` has to wait for operations: then [`Self::park`] takes it.
    #[inline]
    pub(super) fn must_wait(&self, node: u32) -> bool {
        // A message that waited for the last operation may wait for its turn still.
        self.operations + self.parked > 0
            && self.peers.get(&node).is_some_and(|peer| peer.origin.holds_messages())
    }

    /// A message waits until what came before it has been sent, and read.
    pub(super) fn park(&mut self, message: Submitted) {
        self.parked += 1;
        self.peers.entry(message.to).or_default().origin.park(message);
        self.enlist(message.to);
    }

    /// Messages that wait.
    pub(super) fn parked(&self) -> usize {
        self.parked
    }

    /// Whether bytes of writes, or messages behind operations, are not in frames: they need this
    /// process.
    pub(super) fn is_sending(&self) -> bool {
        self.parked > 0 || self.peers.values().any(|peer| peer.origin.is_writing())
    }

    /// Whether nobody has anything to send, as far as is known.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
    }

    /// How many peers may have something to send.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The next of them, which is last from now on.
    pub(super) fn turn(&mut self) -> Option<u32> {
        let node = *self.ready.front()?;
        self.ready.rotate_left(1);
        Some(node)
    }

    /// What goes to `node` next, own operations and answers in turn. A message or a frame is then
    /// gone from here; of a chain see [`Self::sent`].
    pub(super) fn next(&mut self, node: u32) -> Next {
        let Some(peer) = self.peers.get_mut(&node) else { return Next::Nothing };
        peer.answered = !peer.answered;
        let mut next = Next::Nothing;
        for answer in [peer.answered, !peer.answered] {
            next = if answer { peer.target.next() } else { peer.origin.next() };
            if next != Next::Nothing {
                break;
            }
        }
        match next {
            Next::Nothing => {
                peer.ready = false;
                self.ready.retain(|other| *other != node);
            }
            Next::Message(_) => self.parked -= 1,
            Next::Frame(_) => peer.sent = None,
            Next::Chain(ref mut chain) => {
                chain.goes_on = peer.sent.is_some() && peer.sent == Some(chain.frame(0, 0));
            }
        }
        next
    }

    /// So many bytes of this chain are in frames.
    pub(super) fn sent(&mut self, node: u32, chain: &Chain, bytes: usize) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.sent = chain.frame(0, bytes).goes_on(bytes);
        match chain.side {
            Side::Origin => peer.origin.sent(bytes),
            Side::Target => peer.target.sent(bytes),
        }
    }

    /// The bytes of this chain cannot be had: it ends.
    pub(super) fn cut(&mut self, node: u32, chain: &Chain) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match chain.side {
            Side::Origin => peer.origin.cut(),
            Side::Target => peer.target.cut(),
        }
    }

    /// Frames to `node` that are on the way: not acknowledged.
    pub(super) fn flying(&self, node: u32) -> u64 {
        self.peers.get(&node).map_or(0, |peer| peer.flying)
    }

    /// So many more are.
    pub(super) fn fly(&mut self, node: u32, frames: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.flying += frames;
        }
    }

    /// So many bytes of `node` have come that follow those of its latest frame; as below.
    pub(super) fn more(&mut self, node: u32, bytes: usize) -> Option<Copy> {
        let frame = self.peers.get(&node)?.came?;
        self.came(node, frame, bytes)
    }

    /// Bytes of `node` were lost, or say nothing: where those behind them go is not known.
    pub(super) fn lost<T>(&mut self, node: u32) -> Option<T> {
        self.peers.get_mut(&node)?.came = None;
        None
    }

    /// One is not any more.
    pub(super) fn land(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.flying = peer.flying.saturating_sub(1);
        }
    }

    /// A frame of `node` has come, with so many bytes. Answers where these go; None: nowhere.
    pub(super) fn came(&mut self, node: u32, frame: Frame, bytes: usize) -> Option<Copy> {
        let peer = self.peers.entry(node).or_default();
        peer.came = frame.goes_on(bytes);
        let done = match frame {
            Frame::Piece { number, last, handle } => {
                let to = AddrHandle::from_bits(handle);
                let copy = Copy { side: Side::Target, number, to };
                peer.target.piece(number, bytes, last).map(|wanted| wanted.then_some(copy))
            }
            Frame::Ask { number, handle, len } => {
                peer.target.ask(number, AddrHandle::from_bits(handle), len).then_some(None)
            }
            Frame::Written { number, failed } => {
                peer.origin.written(number, failed).then_some(None)
            }
            Frame::Data { number, last, failed, offset } => {
                let to = peer.origin.data(number, last, failed, offset, bytes);
                to.map(|to| to.map(|to| Copy { side: Side::Origin, number, to }))
            }
        };
        if done.is_none() {
            self.refused += 1;
        }
        if !std::mem::replace(&mut peer.touched, true) {
            self.touched.push(node);
        }
        self.enlist(node);
        done.flatten()
    }

    /// The bytes of that frame cannot be written where they belong.
    pub(super) fn spoil(&mut self, node: u32, side: Side, number: u32) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match side {
            Side::Origin => peer.origin.spoil(number),
            Side::Target => peer.target.spoil(number),
        }
    }

    /// An own operation that has ended, when all bytes that came are where they belong.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        while let Some(&node) = self.touched.last() {
            let peer = self.peers.get_mut(&node)?;
            if let Some((operation, failed)) = peer.origin.ended() {
                self.operations -= 1;
                self.enlist(node);
                return Some(Ended { peer: node, operation, failed });
            }
            peer.touched = false;
            self.touched.pop();
        }
        None
    }

    /// `node` has gone: what it asked for is not needed any more, and own operations on it fail.
    /// Answers these. Messages come out by [`Self::next`] as before.
    pub(super) fn gone(&mut self, node: u32) -> Vec<Ended> {
        let Some(peer) = self.peers.get_mut(&node) else { return Vec::new() };
        peer.target = Target::default();
        let failed: Vec<_> = peer.origin.give_up();
        self.operations -= failed.len();
        self.enlist(node);
        let end = |operation| Ended { peer: node, operation, failed: true };
        failed.into_iter().map(end).collect()
    }

    /// Who has gone too far to help: every message that waits, never to be sent.
    pub(super) fn give_up_messages(&mut self) -> Vec<Submitted> {
        self.parked = 0;
        self.peers.values_mut().flat_map(|peer| peer.origin.give_up_messages()).collect()
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let answers: usize = self.peers.values().map(|peer| peer.target.owed()).sum();
        format!(
            "remote memory: {} operations under way, {} messages behind them, {answers} answers \
             owed, {} frames refused",
            self.operations, self.parked, self.refused
        )
    }
}
