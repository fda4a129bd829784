//! Control messages on their way through the engine: those of the owner and of the process go out,
//! those that come wait to be read.

#![forbid(unsafe_code)]

use super::engine::Engine;
use super::reliability::Kind;
use super::store::copy_letter;
use crate::config::CONTROL_MTU;
use crate::device::network::lanes::{Arrived, Lanes, Letter};
use crate::device::network::layout::Published;
use crate::error::{Error, Result};

impl Engine {
    #[cold]
    pub(super) fn keep_letter(&mut self, lanes: &Lanes, Arrived { entry, from, len }: Arrived) {
        let mut letter = Letter { from, bytes: [0; CONTROL_MTU], len: len as usize };
        match letter.bytes.get_mut(..len as usize) {
            Some(to) => {
                copy_letter(lanes.place(entry), to);
                self.letters.push_back((letter, entry));
            }
            None => self.release(entry, from),
        }
    }

    /// Sends what the owner wants to be sent from here.
    #[cold]
    pub(super) fn send_letters(&mut self) {
        let slab = self.slab.clone();
        let outbox = &slab.record(self.place).outbox;
        while !self.spare_slots.is_empty()
            && let Some((to, bytes, len)) = outbox.peek()
        {
            outbox.pop();
            // What cannot be sent is no letter of ours.
            let _ = self.send_letter(to, &bytes[..len]);
        }
    }

    /// Sends a control message. NoBuffers: as many as may be are on the way.
    pub(super) fn send_letter(&mut self, to: u32, message: &[u8]) -> Result<()> {
        if to as usize >= self.slab.geometry().nodes || message.is_empty() {
            return Err(Error::Invalid);
        }
        if self.gone.contains(&to) {
            return Ok(());
        }
        let slot = self.spare_slots.pop().ok_or(Error::NoBuffers)?;
        self.slab.write(self.place, slot as usize, message);
        self.bring_home_before(to);
        let len = message.len();
        let published = Published::new(len, Kind::Control);
        self.submit_own(to, slot, published, (len, Kind::Control)).inspect_err(|_| {
            self.spare_slots.push(slot);
        })
    }

    /// Gives the next letter to `read`, which says whether it took it.
    pub(super) fn read_letter<T>(&mut self, read: impl FnOnce(&Letter) -> Result<T>) -> Result<T> {
        let (letter, entry) = self.letters.front().ok_or(Error::NoBuffers)?;
        let (from, entry) = (letter.from, *entry);
        let done = read(letter)?;
        self.letters.pop_front();
        self.release(entry, from);
        Ok(done)
    }
}
