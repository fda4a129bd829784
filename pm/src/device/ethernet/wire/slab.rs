//! The send slab of a wire. A wire reads payloads only inside the slab.

// UNSAFETY: holds the address of memory that other processes may write.
#![expect(unsafe_code)]

use std::ptr::NonNull;

/// The memory from which payloads are sent.
pub struct SendMemory {
    base: NonNull<u8>,
    len: usize,
    headroom: usize,
}

// SAFETY: this is an address and a length, and the caller of `new` guarantees that the memory stays
// readable.
unsafe impl Send for SendMemory {}

impl SendMemory {
    /// Makes a send slab of `len` bytes at `base`.
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
    /// These bytes must be writable and belong to no other payload that is being sent.
    pub unsafe fn with_headroom(self, headroom: usize) -> SendMemory {
        SendMemory { headroom, ..self }
    }

    /// Makes an empty slab, for packets that have only a header.
    pub fn empty() -> SendMemory {
        SendMemory { base: NonNull::dangling(), len: 0, headroom: 0 }
    }

    /// Returns the start of `len` bytes at `offset`, or None if they are not inside the slab.
    #[inline]
    pub(super) fn slice(&self, offset: usize, len: usize) -> Option<*const u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: the result is inside the slab, or one past its end for an empty slice.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(offset).cast_const() })
    }

    /// Writes `parts` in front of the payload of `len` bytes at `offset`, and zeros after it up to
    /// a total length of `total` bytes. Returns the start of the first part, or None if there is no
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
        // SAFETY: the range is inside the slab by the line above, and the caller of `with_headroom`
        // guarantees that the wire may write there.
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
        // SAFETY: the bytes outlive the slab, and no other code uses them meanwhile.
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
