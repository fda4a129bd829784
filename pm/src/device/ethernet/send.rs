//! Sending: when a message that was handed over goes out.

#![forbid(unsafe_code)]

use super::reliability::Kind;
use super::{Endpoint, clock};
use crate::device::network::lanes::{Peer, Submitted};
use crate::device::network::layout::Published;
use crate::device::network::slab::Content;
use crate::device::network::{Engine as _, Pass};
use crate::sync::Ordering;

/// Messages in a row, with no poll and no pause between, that go out each at once. Who sends more
/// is streaming: then packets go out in runs.
const AT_ONCE: u64 = 4;
/// What makes a pause, in nanoseconds.
const PAUSE: u64 = 10_000;
/// As many messages on the way are a stream as well, and then a pause is longer: polls that make
/// room for more come in between.
pub(super) const STREAM: u64 = 32;
const LONG_PAUSE: u64 = 2_000_000;
/// The longest run.
const RUN: usize = 32;

/// A message that has no number yet.
#[inline(always)]
pub(super) fn content(node: u32, peer: &Peer, len: usize) -> Content {
    let behind = peer.operations.load(Ordering::Acquire) != 0;
    let published = Published { len, kind: Kind::Data, behind };
    Content { to: node, order: peer.sent.get() as u32, sequence: None, published }
}

impl Endpoint {
    /// A message lies in its slot.
    #[inline(always)]
    pub(super) fn go_out(&self, peer: &Peer, message: Submitted) {
        let behind = peer.operations.load(Ordering::Acquire) != 0;
        if self.is_streaming() && !behind {
            self.hand_over(peer, message);
            if self.lanes.submitted.len() < RUN {
                return;
            }
            self.serve(Pass::Send);
        } else {
            self.send_now(peer, message, behind);
        }
        if self.net.burst.get() >= AT_ONCE {
            // The time that this took is no pause of the application's.
            self.net.last.set(clock::read());
        }
    }

    /// Past the queue, unless somebody else makes progress. A message behind remote operations
    /// waits for that: what has no number when the process ends is lost with it (`adopt.rs`).
    #[inline(always)]
    fn send_now(&self, peer: &Peer, message: Submitted, behind: bool) {
        let (mut mine, mut ring) = (Some(message), false);
        let sent = self.served.try_serve(|engine| match mine.take() {
            Some(message) => {
                if engine.links.away.is_crowded() {
                    ring = engine.pass(&self.lanes, Pass::All) && self.lanes.bell.must_ring();
                }
                if engine.takes_at_once(&self.lanes, message.to) {
                    peer.count_sent();
                    engine.publish(message);
                } else {
                    self.hand_over(peer, message);
                }
                ring |= engine.pass(&self.lanes, Pass::Send) && self.lanes.bell.must_ring();
            }
            None => ring |= engine.pass(&self.lanes, Pass::Send) && self.lanes.bell.must_ring(),
        });
        if ring {
            self.select.ring();
        }
        if !sent {
            self.hand_over(peer, message);
            if behind { self.serve_in_turn(Pass::Send) } else { self.serve(Pass::Send) }
        }
    }

    /// Whether more is likely to be sent at once. What a stream leaves behind goes out with the
    /// next poll of the application, or of the thread.
    #[inline(always)]
    fn is_streaming(&self) -> bool {
        let burst = self.net.burst.get() + 1;
        self.net.burst.set(burst);
        if burst < AT_ONCE {
            return false;
        }
        let now = clock::read();
        let before = self.net.last.get();
        self.net.last.set(now);
        let many = self.lanes.outstanding.load(Ordering::Relaxed) >= STREAM;
        let pause = if many { LONG_PAUSE } else { PAUSE };
        if burst > AT_ONCE && now.wrapping_sub(before) > pause {
            self.net.burst.set(1);
            return false;
        }
        burst > AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::super::config::Options;
    use super::super::open::Channels;
    use crate::device::Transport;
    use crate::device::ethernet::clock;
    use crate::device::network::{Engine as _, Pass};
    use crate::remote::{AddrHandle, Direction, Number, Operation, Region};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    /// A sender that was held finds the acknowledgement in its socket, also if it does not poll.
    #[test]
    fn nothing_times_out_that_is_acknowledged_in_the_socket() {
        let options = Options::parse("ethernet", &["-nodes", "2", "-link", "127.0.0.1"]).unwrap();
        let channels = Arc::new(Channels::new(&options).unwrap());
        let bound: [Bound; 2] = [0, 1].map(|node| Bound::opened(node, &channels));
        bound.iter().zip(0..).for_each(|(bound, node)| bound.bind(0, node).unwrap());
        let [end, other] = [0, 1].map(|node: usize| bound[node].endpoint().unwrap());
        bound[0].reserve(1, 8).unwrap();
        let mut engine = end.served.enter();
        bound[0].publish();
        engine.pass(&end.lanes, Pass::Send);
        // Longer than the first time-out.
        let until = clock::read() + 20_000_000;
        while clock::read() < until {
            other.serve(Pass::All);
        }
        engine.pass(&end.lanes, Pass::Send);
        assert_eq!(engine.machine.counters().time_outs, 0);
        assert!(engine.machine.is_done());
    }

    /// A write to node 1, which nobody has in use, is in frames when a message comes behind it,
    /// and somebody else makes progress just then.
    #[test]
    fn a_message_behind_a_write_has_its_number_when_it_is_sent() {
        let options = Options::parse("ethernet", &["-nodes", "2", "-link", "127.0.0.1"]).unwrap();
        let channels = Arc::new(Channels::new(&options).unwrap());
        let bound: [Bound; 2] = [0, 1].map(|node| Bound::opened(node, &channels));
        bound.iter().zip(0..).for_each(|(bound, node)| bound.bind(0, node).unwrap());
        let end = bound[0].endpoint().unwrap();
        let bytes = [7u8; 1000];
        let number = Number::take().unwrap();
        let local = AddrHandle::new(number);
        end.publish_region(&Region { number, addr: bytes.as_ptr().addr(), len: 1000 }).unwrap();
        let direction = Direction::Write;
        let write = Operation { sending: false, direction, remote: local, local, len: 1000 };
        end.remote(1, &write).unwrap();
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _inside = end.served.enter();
                begun.wait();
                std::thread::sleep(Duration::from_millis(50));
            });
            begun.wait();
            bound[0].reserve(1, 8).unwrap();
            bound[0].publish();
            let slots = 0..end.slab.geometry().slots;
            let sent: Vec<_> = slots.filter_map(|slot| end.slab.content(end.place, slot)).collect();
            assert_eq!(sent.len(), 1);
            assert!(sent[0].published.behind && sent[0].sequence.is_some(), "{sent:?}");
        });
    }
}
