//! Control messages: from the owner of the contexts to the processes, beside the messages proper.
//! A tiny ring for each pair, with its own activation. They are not counted and wake nobody.

// UNSAFETY: copies between the caller's slices and the ring.
#![expect(unsafe_code)]

use super::Endpoint;
use crate::config::CONTROL_MTU;
use crate::door::EXITED;
use crate::error::{Error, Result};
use crate::ring::{Consumer, Producer};
use crate::segment::Kind;
use std::sync::Mutex;

/// Control messages are rare: one lock for each direction, taken by trying.
#[derive(Default)]
pub(super) struct Control {
    send: Mutex<()>,
    /// The source that was served last.
    receive: Mutex<usize>,
}

impl Endpoint {
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        let to = node as usize;
        let own = self.own as usize;
        let len = message.len();
        if to >= self.segment.geometry().nodes || to == own || len == 0 || len > CONTROL_MTU {
            return Err(Error::Invalid);
        }
        let _guard = self.control.send.try_lock().map_err(|_| Error::Busy)?;
        if self.segment.node(to).door.0.bits() & EXITED != 0 {
            return Ok(());
        }
        self.segment.activate(own, to, Kind::Control);
        let ring = Producer::new(self.segment.ring(own, to, Kind::Control));
        let room = ring.reserve(len)?;
        // SAFETY: `room` has `len` bytes in the ring, which nobody reads before publish.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), room.payload, len) };
        ring.publish(room.position, len, 0);
        Ok(())
    }

    pub(crate) fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        let own = self.own as usize;
        let mut last = self.control.receive.try_lock().map_err(|_| Error::Busy)?;
        let (before, after): (Vec<_>, Vec<_>) = self
            .segment
            .active(own, Kind::Control)
            .filter(|&source| source != own && !self.is_broken(source))
            .partition(|&source| source <= *last);
        for source in after.into_iter().chain(before) {
            let ring = Consumer::new(self.segment.ring(source, own, Kind::Control));
            let message = ring.take().inspect_err(|_| {
                self.break_link(source as u32, "its control ring holds what no sender writes");
            })?;
            let Some(message) = message else { continue };
            *len = message.len;
            let to = buffer.get_mut(..message.len).ok_or(Error::NoSpace)?;
            // SAFETY: the slot has `message.len` bytes, checked against its size when taken.
            unsafe {
                std::ptr::copy_nonoverlapping(message.payload, to.as_mut_ptr(), message.len);
            }
            ring.release(message.next, None);
            *last = source;
            return Ok(source as u32);
        }
        Err(Error::NoBuffers)
    }
}
