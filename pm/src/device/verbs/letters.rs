//! Control messages on their way through the engine: over the same queue pairs as the others.

#![forbid(unsafe_code)]

use super::engine::Engine;
use super::flow::Kind;
use crate::config::CONTROL_MTU;
use crate::device::network::lanes::Lanes;
use crate::device::network::layout::{OUTBOX, Published};
use crate::device::network::slab::Content;
use crate::error::{Error, Result};
use crate::sync::Ordering;
use score_proto::wire;

impl Engine {
    /// Sends what the owner wants to be sent from here, as far as its receivers have read.
    #[cold]
    pub(super) fn send_letters(&mut self, lanes: &Lanes) {
        let slab = self.slab.clone();
        let outbox = &slab.record(self.place).outbox;
        while let Some((to, bytes, len)) = outbox.peek() {
            match self.send_letter(lanes, to, &bytes[..len]) {
                Err(Error::NoBuffers) => return,
                // What cannot be sent is no letter of ours.
                _ => outbox.pop(),
            }
        }
    }

    /// Sends a control message. NoBuffers: as many as may be are on the way, or unread.
    pub(super) fn send_letter(&mut self, lanes: &Lanes, to: u32, message: &[u8]) -> Result<()> {
        let fits = (1..=CONTROL_MTU).contains(&message.len());
        if to as usize >= self.peers.len() || to == self.identity.own || !fits {
            return Err(Error::Invalid);
        }
        if self.slab.is_gone(to as usize) {
            return Ok(());
        }
        let sent = self.peers[to as usize].sent[1];
        let read = (self.credits.keeps.word(to as usize).load(Ordering::Acquire) >> 32) as u32;
        if sent.wrapping_sub(read) >= OUTBOX as u32 {
            return Err(Error::NoBuffers);
        }
        let slot = self.spare_slots.pop().ok_or(Error::NoBuffers)?;
        self.slab.write(self.place, slot as usize, message);
        let published = Published::new(message.len(), wire::Kind::Control);
        let content = Content { to, order: 0, sequence: Some(sent), published };
        self.slab.publish(self.place, slot as usize, content);
        self.submit(lanes, to, slot, message.len() as u32, Kind::Control);
        Ok(())
    }
}
