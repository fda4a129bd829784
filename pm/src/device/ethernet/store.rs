//! Where messages wait that have arrived: in a buffer of the wire if it can spare one and the
//! payload lies as a message must, else copied to a buffer of our own.

// UNSAFETY: looks at packets where the wire has put them.
#![expect(unsafe_code)]

use super::reliability::HEADER;
use super::wire::{COPIED, Received, Wire};
use crate::device::network::pool::Pool;

/// The entry's message lies in its own buffer.
const OWN: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct Held {
    link: u8,
    buffer: u32,
}

/// As many entries as there are buffers of our own; each message takes one.
pub(super) struct Store {
    pool: Pool,
    held: Box<[Held]>,
    free: Vec<u32>,
}

/// A packet as the machine looks at it.
///
/// # Safety
/// `at` is where a wire says that a packet of this length lies, or null, and the packet is not
/// released while the bytes are used.
#[inline]
pub(super) unsafe fn bytes<'a>(at: *mut u8, len: u32) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: the caller's word; valid for this length until it is released. Only on AF_XDP, whose
    // memory the job's own processes share, could somebody write there meanwhile: of the header
    // each field is read once.
    unsafe { std::slice::from_raw_parts(at, len as usize) }
}

impl Store {
    pub(super) fn new(mtu: usize) -> Store {
        let pool = Pool::new(mtu);
        let count = pool.count();
        let held = vec![Held { link: OWN, buffer: 0 }; count].into();
        Store { pool, held, free: (0..count as u32).rev().collect() }
    }

    /// The entry that the next message would take.
    pub(super) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// `next` holds the message of this packet, which lies at `at`, from now on; answers where
    /// that lies. The packet is released, or is kept.
    #[inline]
    pub(super) fn keep(
        &mut self,
        link: usize,
        wire: &mut Wire,
        packet: Received,
        at: *mut u8,
    ) -> *mut u8 {
        let Some(entry) = self.free.pop() else {
            wire.release(packet.buffer);
            return std::ptr::null_mut();
        };
        let payload = at.wrapping_add(HEADER);
        let stays = packet.len as usize >= COPIED
            && wire.spare() * 2 > wire.buffers()
            && (payload as usize).is_multiple_of(16);
        if stays {
            self.held[entry as usize] = Held { link: link as u8, buffer: packet.buffer };
            return payload;
        }
        // SAFETY: the wire's word; not released yet.
        let message = unsafe { bytes(at, packet.len) };
        self.pool.fill(entry as usize, message.get(HEADER..).unwrap_or_default());
        wire.release(packet.buffer);
        self.held[entry as usize] = Held { link: OWN, buffer: 0 };
        self.pool.at(entry as usize)
    }

    /// The message of `entry` is not needed any more.
    pub(super) fn release(&mut self, entry: u32, wires: &mut [Wire]) {
        let Some(held) = self.held.get(entry as usize) else { return };
        if let Some(wire) = wires.get_mut(usize::from(held.link)) {
            wire.release(held.buffer);
        }
        self.free.push(entry);
    }
}

/// Copies a control message out of its buffer.
pub(super) fn copy_letter(at: *const u8, to: &mut [u8]) {
    if !at.is_null() {
        // SAFETY: `at` is the payload of a kept packet, whose length the machine has checked
        // against what `to` is long.
        unsafe { std::ptr::copy_nonoverlapping(at, to.as_mut_ptr(), to.len()) };
    }
}
