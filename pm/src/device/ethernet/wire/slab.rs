//! The send slab for a wire: bytes that it may read, and no others.

// UNSAFETY: holds the address of memory that other processes may write.
#![expect(unsafe_code)]

use std::ptr::NonNull;

/// The memory that payloads are sent from.
pub struct SendMemory {
    base: NonNull<u8>,
    len: usize,
    headroom: usize,
}

// SAFETY: an address and a length; the caller of `new` promised that the memory stays.
unsafe impl Send for SendMemory {}

impl SendMemory {
    /// `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes must stay readable until the wire that receives this is dropped. Other processes
    /// may write them.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> SendMemory {
        SendMemory { base, len, headroom: 0 }
    }

    /// Allows a wire to write this many bytes in front of each payload, and up to the next multiple
    /// of 16 after it. The headers then need not be gathered with the payload.
    ///
    /// # Safety
    /// These bytes are writable and belong to no other payload that is being sent.
    pub unsafe fn with_headroom(self, headroom: usize) -> SendMemory {
        SendMemory { headroom, ..self }
    }

    /// Memory without payloads: for packets that have only a header.
    pub fn empty() -> SendMemory {
        SendMemory { base: NonNull::dangling(), len: 0, headroom: 0 }
    }

    /// The start of that slice, or None if it is not inside.
    #[inline]
    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<*const u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: inside the slab, or one past its end for an empty slice.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(offset).cast_const() })
    }

    /// Writes `parts` in front of the payload of `len` bytes at `offset`, and zeros after it up to
    /// a total length of `total` bytes. Returns the start of the result, or None if there is no
    /// room.
    #[inline]
    pub(super) fn frame_in_place(
        &self,
        offset: usize,
        len: usize,
        parts: [&[u8]; 2],
        total: usize,
    ) -> Option<*const u8> {
        let headers_len = parts[0].len() + parts[1].len();
        let padding = total.checked_sub(headers_len + len).filter(|padding| *padding < 16)?;
        let start = offset.checked_sub(headers_len).filter(|_| headers_len <= self.headroom)?;
        self.slice(start, total)?;
        // SAFETY: inside the slab by the line above; the owner promised that the wire may write
        // there.
        unsafe {
            let base = self.base.as_ptr().add(start);
            base.copy_from_nonoverlapping(parts[0].as_ptr(), parts[0].len());
            base.add(parts[0].len()).copy_from_nonoverlapping(parts[1].as_ptr(), parts[1].len());
            base.add(headers_len + len).write_bytes(0, padding);
            Some(base.cast_const())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_framed_in_place_if_there_is_room() {
        let mut bytes = vec![1u8; 64];
        // SAFETY: outlives the slab, and no other code uses it meanwhile.
        let slab =
            unsafe { SendMemory::new(NonNull::from(&mut bytes[0]), bytes.len()).with_headroom(5) };
        assert!(slab.frame_in_place(16, 20, [&[2; 2], &[3; 3]], 32).is_some());
        for (offset, len, header_len, total) in
            [(4, 20, 3, 32), (16, 20, 4, 32), (16, 20, 3, 24), (48, 12, 3, 32)]
        {
            let header = vec![9; header_len];
            let framed = slab.frame_in_place(offset, len, [&[9; 2], &header], total);
            assert!(framed.is_none(), "{offset} {len} {header:?} {total}");
        }
        let expected = [&[1; 11][..], &[2; 2], &[3; 3], &[1; 20], &[0; 7], &[1; 21]].concat();
        assert_eq!(bytes, expected);
    }
}
