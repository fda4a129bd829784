//! Bringing home what is `away`: the bytes of frames that go out again, and of those that a message
//! comes behind, or the end of the process.

// UNSAFETY: copies to the own frames.
#![expect(unsafe_code)]

use super::engine::Engine;
use super::links::BATCH;
use super::pump::tell_failure;
use crate::device::network::layout::Published;
use crate::remote::{PARTS, Part};
use score_proto::wire::Kind;

impl Engine {
    /// A message to `node` says that what was written before it is there: nothing of that may be
    /// lost with this process.
    #[inline]
    pub(super) fn bring_home_before(&mut self, node: u32) {
        if !self.links.away.is_empty() {
            self.bring_all_home(Some(node));
        }
    }

    /// All frames that are away, or those to one node.
    #[cold]
    pub(super) fn bring_all_home(&mut self, node: Option<u32>) {
        let slots = self.links.away.slots(node);
        self.bring_home(&slots);
    }

    /// Packets that have to go out again, and were not in the slab.
    #[cold]
    pub(super) fn send_late(&mut self) {
        let late = std::mem::take(&mut self.links.late);
        let slots: Vec<u32> = late.iter().filter_map(|packet| Some(packet.payload?.0)).collect();
        self.bring_home(&slots);
        for batch in late.chunks(BATCH) {
            self.links.send(&self.slab, self.place, batch);
        }
    }

    fn bring_home(&mut self, slots: &[u32]) {
        let mut rest = slots;
        while !rest.is_empty() {
            let count = self.links.away.run(rest).min(PARTS);
            let (run, more) = rest.split_at(count);
            if self.copy_home(run).is_err() {
                run.iter().for_each(|slot| self.bring_one_home(*slot));
            }
            rest = more;
        }
    }

    /// If the bytes of a frame are there no more, the operation has failed.
    fn bring_one_home(&mut self, slot: u32) {
        let (Err(why), Some(frame)) = (self.copy_home(&[slot]), self.links.away.frame(slot)) else {
            return;
        };
        tell_failure(frame.peer, &why);
        self.links.away.lose(slot);
        self.remote.transfers.spoil(frame.peer, frame.side, frame.number);
    }

    /// Copies the bytes of frames that lie one behind the other.
    fn copy_home(&mut self, run: &[u32]) -> Result<(), String> {
        let Some(first) = self.links.away.frame(run[0]) else { return Ok(()) };
        let mut parts = [Part::default(); PARTS];
        let mut bytes = 0;
        for (part, slot) in parts.iter_mut().zip(run) {
            let len = self.links.away.frame(*slot).map_or(0, |frame| frame.bytes.len);
            let at = self.slab.payload(self.place, *slot as usize).addr();
            *part = Part { at, len };
            bytes += len;
        }
        let from = match first.region {
            None => Ok(first.bytes.at),
            Some(handle) => self.desk.find(handle, bytes),
        };
        let from = from.map_err(|_| "it is not locked".to_owned())?;
        // SAFETY: frames of slots that are ours until they are acknowledged.
        let copied = unsafe { self.remote.copier.gather(from, &parts[..run.len()]) };
        copied.map_err(|error| error.to_string())?;
        for slot in run {
            let Some(frame) = self.links.away.frame(*slot) else { continue };
            let published = Published::new(frame.bytes.len, Kind::More);
            self.slab.replace(self.place, *slot as usize, published);
            self.links.away.come(*slot);
        }
        Ok(())
    }
}
