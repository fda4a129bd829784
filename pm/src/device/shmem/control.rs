//! Control messages, from the owner of the contexts to the processes. Each pair of nodes has a
//! small ring for them, with an activation bit of its own. Control messages are not counted, and
//! do not wake a receiver.

// UNSAFETY: copies between the caller's slices and the ring.
#![expect(unsafe_code)]

use super::ShmemEndpoint;
use crate::config::CONTROL_MTU;
use crate::device::ControlInterface;
use crate::error::{Error, PmResult};
use crate::receiver_state::EXITED;
use crate::ring::{Consumer, Producer};
use crate::segment::RingKind;
use std::sync::Mutex;

/// Control messages are rare, so one lock for each direction is enough. A thread tries the lock and
/// never waits for it.
#[derive(Default)]
pub(super) struct Control {
    send: Mutex<()>,
    /// The source that was served last.
    receive: Mutex<usize>,
}

impl ControlInterface for ShmemEndpoint {
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let to = node as usize;
        let self_node = self.self_node as usize;
        let len = message.len();
        if to >= self.segment.geometry().nodes || to == self_node || len == 0 || len > CONTROL_MTU {
            return Err(Error::Invalid);
        }
        let _guard = self.control.send.try_lock().map_err(|_| Error::Busy)?;
        if self.segment.node(to).receiver_state.0.bits() & EXITED != 0 {
            return Ok(());
        }
        self.segment.activate(self_node, to, RingKind::Control);
        let ring = Producer::new(self.segment.ring(self_node, to, RingKind::Control));
        let reserved = ring.reserve(len)?;
        // SAFETY: `reserved` has `len` bytes in the ring, which no process reads before `publish`.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), reserved.payload, len) };
        ring.publish(reserved.position, len, 0);
        Ok(())
    }

    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        let self_node = self.self_node as usize;
        let mut last_source = self.control.receive.try_lock().map_err(|_| Error::Busy)?;
        let (up_to_last, after_last): (Vec<_>, Vec<_>) = self
            .segment
            .active_sources(self_node, RingKind::Control)
            .filter(|&source| source != self_node && !self.is_broken(source))
            .partition(|&source| source <= *last_source);
        for source in after_last.into_iter().chain(up_to_last) {
            let ring = Consumer::new(self.segment.ring(source, self_node, RingKind::Control));
            let message = ring.take().inspect_err(|_| {
                self.break_link(source as u32, "its control ring is corrupt");
            })?;
            let Some(message) = message else { continue };
            *len = message.len;
            let destination = buffer.get_mut(..message.len).ok_or(Error::NoSpace)?;
            // SAFETY: the slot has `message.len` bytes, checked against its size when taken.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    message.payload,
                    destination.as_mut_ptr(),
                    message.len,
                );
            }
            ring.release(message.next_index, None);
            *last_source = source;
            return Ok(source as u32);
        }
        Err(Error::NoBuffers)
    }
}
