//! Sending: when a message that was handed over goes out.

#![forbid(unsafe_code)]

use super::reliability::Kind;
use super::{Endpoint, clock};
use crate::device::network::Pass;
use crate::device::network::lanes::Peer;
use crate::device::network::layout::Published;
use crate::device::network::slab::Content;
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
    /// A message was handed over.
    #[inline(always)]
    pub(super) fn go_out(&self) {
        if !self.is_streaming() || self.lanes.submitted.len() >= RUN {
            self.serve(Pass::Send);
            if self.net.burst.get() >= AT_ONCE {
                // The time that this took is no pause of the application's.
                self.net.last.set(clock::read());
            }
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
