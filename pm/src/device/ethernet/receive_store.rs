//! Where messages wait that have arrived: in a buffer of the wire if it can spare one and the
//! payload lies as a message must, else copied to a buffer of our own.

// UNSAFETY: looks at packets where the wire has put them.
#![expect(unsafe_code)]

use super::reliability::PACKET_HEADER_LEN;
use super::wire::{RX_COPYBREAK, Received, Wire};
use crate::device::net_common::receive_buffers::ReceiveBuffers;

/// The entry's message lies in its own buffer.
const IN_OWN_BUFFER: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct BufferRef {
    link: u8,
    buffer: u32,
}

/// As many entries as there are buffers of our own; each message takes one.
pub(super) struct ReceiveStore {
    pool: ReceiveBuffers,
    buffer_refs: Box<[BufferRef]>,
    free_entries: Vec<u32>,
}

/// A packet as the machine looks at it.
///
/// # Safety
/// `ptr` is where a wire says that a packet of this length lies, or null, and the packet is not
/// released while the bytes are used.
#[inline]
pub(super) unsafe fn packet_bytes<'a>(ptr: *mut u8, len: u32) -> &'a [u8] {
    if ptr.is_null() {
        return &[];
    }
    // SAFETY: the caller's word; valid for this length until it is released. Only on AF_XDP, whose
    // memory the job's own processes share, could somebody write there meanwhile: of the header
    // each field is read once.
    unsafe { std::slice::from_raw_parts(ptr, len as usize) }
}

impl ReceiveStore {
    pub(super) fn new(mtu: usize) -> ReceiveStore {
        let pool = ReceiveBuffers::new(mtu);
        let count = pool.count();
        let buffer_refs = vec![BufferRef { link: IN_OWN_BUFFER, buffer: 0 }; count].into();
        ReceiveStore { pool, buffer_refs, free_entries: (0..count as u32).rev().collect() }
    }

    /// The entry that the next message would take.
    pub(super) fn next_entry(&self) -> Option<u32> {
        self.free_entries.last().copied()
    }

    /// `next_entry` holds the message of this packet, which lies at `ptr`, from now on; answers where
    /// that lies. The packet is released, or is kept.
    #[inline]
    pub(super) fn keep(
        &mut self,
        link: usize,
        wire: &mut Wire,
        packet: Received,
        ptr: *mut u8,
    ) -> *mut u8 {
        let Some(entry) = self.free_entries.pop() else {
            wire.release(packet.buffer);
            return std::ptr::null_mut();
        };
        let payload = ptr.wrapping_add(PACKET_HEADER_LEN);
        let keep_in_wire_buffer = packet.len as usize >= RX_COPYBREAK
            && wire.free_buffers() * 2 > wire.buffer_count()
            && (payload as usize).is_multiple_of(16);
        if keep_in_wire_buffer {
            self.buffer_refs[entry as usize] =
                BufferRef { link: link as u8, buffer: packet.buffer };
            return payload;
        }
        // SAFETY: the wire's word; not released yet.
        let message = unsafe { packet_bytes(ptr, packet.len) };
        self.pool.fill(entry as usize, message.get(PACKET_HEADER_LEN..).unwrap_or_default());
        wire.release(packet.buffer);
        self.buffer_refs[entry as usize] = BufferRef { link: IN_OWN_BUFFER, buffer: 0 };
        self.pool.buffer(entry as usize)
    }

    /// The message of `entry` is not needed any more.
    pub(super) fn release(&mut self, entry: u32, wires: &mut [Wire]) {
        let Some(buffer_ref) = self.buffer_refs.get(entry as usize) else { return };
        if let Some(wire) = wires.get_mut(usize::from(buffer_ref.link)) {
            wire.release(buffer_ref.buffer);
        }
        self.free_entries.push(entry);
    }
}

/// Copies a control message out of its buffer.
pub(super) fn copy_payload(ptr: *const u8, to: &mut [u8]) {
    if !ptr.is_null() {
        // SAFETY: `ptr` is the payload of a kept packet, whose length the machine has checked
        // against what `to` is long.
        unsafe { std::ptr::copy_nonoverlapping(ptr, to.as_mut_ptr(), to.len()) };
    }
}
