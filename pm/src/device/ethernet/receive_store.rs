//! Stores received messages until they are released. A message stays in its wire buffer if it is
//! long, the wire has enough free buffers, and the payload is aligned. Otherwise it is copied to a
//! buffer of the store.

// UNSAFETY: reads packets in the buffers of the wire.
#![expect(unsafe_code)]

use super::wire::{RX_COPYBREAK, Received, Wire};
use crate::device::net_common::indices::EntryIndex;
use crate::device::net_common::receive_buffers::ReceiveBuffers;
use score_pm_reliability::PACKET_HEADER_LEN;

/// The link number of an entry whose message is in a buffer of the store.
const IN_OWN_BUFFER: u8 = u8::MAX;

#[derive(Clone, Copy)]
struct BufferRef {
    link: u8,
    buffer: u32,
}

/// The stored messages. The store has as many entries as buffers, and each message uses one entry.
pub(super) struct ReceiveStore {
    pool: ReceiveBuffers,
    buffer_refs: Box<[BufferRef]>,
    free_entries: Vec<EntryIndex>,
}

/// Returns the bytes of a packet, or no bytes if `ptr` is null.
///
/// # Safety
/// `ptr` must be null, or the address that a wire has returned for a packet of this length. The
/// packet must not be released while the bytes are used.
#[inline]
pub(super) unsafe fn packet_bytes<'a>(ptr: *mut u8, len: u32) -> &'a [u8] {
    if ptr.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees the address, which is valid for this length until the packet is
    // released. Another process can write there only on AF_XDP, whose memory the job's own
    // processes share. Each field of the header is therefore read once.
    unsafe { std::slice::from_raw_parts(ptr, len as usize) }
}

impl ReceiveStore {
    pub(super) fn new(mtu: usize) -> ReceiveStore {
        let pool = ReceiveBuffers::new(mtu);
        let count = pool.count();
        let buffer_refs = vec![BufferRef { link: IN_OWN_BUFFER, buffer: 0 }; count].into();
        let free_entries = (0..count as u32).rev().map(EntryIndex).collect();
        ReceiveStore { pool, buffer_refs, free_entries }
    }

    /// Returns the entry for the next message, or None if all entries are in use.
    pub(super) fn next_entry(&self) -> Option<EntryIndex> {
        self.free_entries.last().copied()
    }

    /// Stores the message of the packet at `ptr` in `next_entry`, and returns the address of its
    /// payload. Releases the packet if the message was copied.
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
            self.buffer_refs[entry.as_usize()] =
                BufferRef { link: link as u8, buffer: packet.buffer };
            return payload;
        }
        // SAFETY: the wire returned this address for the packet, which is not released yet.
        let message = unsafe { packet_bytes(ptr, packet.len) };
        self.pool.fill(entry, message.get(PACKET_HEADER_LEN..).unwrap_or_default());
        wire.release(packet.buffer);
        self.buffer_refs[entry.as_usize()] = BufferRef { link: IN_OWN_BUFFER, buffer: 0 };
        self.pool.buffer(entry)
    }

    /// Releases the message of `entry`.
    pub(super) fn release(&mut self, entry: EntryIndex, wires: &mut [Wire]) {
        let Some(buffer_ref) = self.buffer_refs.get(entry.as_usize()) else { return };
        if let Some(wire) = wires.get_mut(usize::from(buffer_ref.link)) {
            wire.release(buffer_ref.buffer);
        }
        self.free_entries.push(entry);
    }
}

/// Copies a control message out of its buffer.
pub(super) fn copy_payload(ptr: *const u8, to: &mut [u8]) {
    if !ptr.is_null() {
        // SAFETY: `ptr` is the payload of a kept packet, and the callers pass a `to` that is no
        // longer than this payload.
        unsafe { std::ptr::copy_nonoverlapping(ptr, to.as_mut_ptr(), to.len()) };
    }
}
