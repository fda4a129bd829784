//! The program's memory, and messages in the network's memory. Only this module dereferences
//! pointers.

// UNSAFETY: copies to and from memory of the program and of the network, by address.
#![expect(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The most segments that a buffer of the program can have.
pub const MAX_SEGMENTS: usize = 4;

/// A piece of the program's memory.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: *mut u8,
    len: usize,
}

const EMPTY: Segment = Segment { start: ptr::null_mut(), len: 0 };

/// Memory of the program that a message is sent from or received into. It consists of a few
/// segments.
#[derive(Clone, Debug)]
pub struct UserBuffer {
    /// The start of the first segment.
    start: *mut u8,
    /// The length of all segments.
    len: usize,
    /// All segments, if there are several. They are on the heap because few buffers have several,
    /// and buffers are moved for each message.
    pieces: Option<Box<Pieces>>,
}

#[derive(Clone, Debug)]
struct Pieces {
    segments: [Segment; MAX_SEGMENTS],
    count: usize,
}

// SAFETY: the struct holds only addresses and lengths. The program's contract with libfabric
// decides who may use the memory; it does not depend on threads.
unsafe impl std::marker::Send for UserBuffer {}

impl UserBuffer {
    /// A buffer without memory.
    pub const fn empty() -> Self {
        Self { start: ptr::null_mut(), len: 0, pieces: None }
    }

    /// A buffer of one segment.
    ///
    /// # Safety
    /// See [`UserBuffer::of_segments`].
    #[inline(always)]
    pub unsafe fn of_segment(start: *mut u8, len: usize) -> Self {
        Self { start, len, pieces: None }
    }

    /// Bytes of the engine, which are only read. They must remain valid while the buffer is used.
    pub(crate) fn of_copy(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr().cast_mut(), len: bytes.len(), pieces: None }
    }

    /// A buffer of several segments, in their order. None: there are too many.
    ///
    /// # Safety
    /// Until the operation that uses the buffer has completed, the memory can be read, or written
    /// if messages are received into it, and nothing else changes it.
    pub unsafe fn of_segments(parts: impl Iterator<Item = (*mut u8, usize)>) -> Option<Self> {
        let mut pieces = Pieces { segments: [EMPTY; MAX_SEGMENTS], count: 0 };
        for (start, len) in parts {
            *pieces.segments.get_mut(pieces.count)? = Segment { start, len };
            pieces.count += 1;
        }
        Self::of_pieces(pieces)
    }

    fn of_pieces(pieces: Pieces) -> Option<Self> {
        let segments = &pieces.segments[..pieces.count];
        let len = segments.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len))?;
        let start = segments.first().map_or(ptr::null_mut(), |piece| piece.start);
        Some(Self { start, len, pieces: (pieces.count > 1).then(|| Box::new(pieces)) })
    }

    /// Moves the fields out one by one (see `Destination::take`). The rest of `self` is not used
    /// any more.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        Self { start: self.start, len: self.len, pieces: self.pieces.take() }
    }

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, if the buffer is contiguous.
    pub fn as_segment(&self) -> Option<*mut u8> {
        self.pieces.is_none().then_some(self.start)
    }

    /// The address of the first byte. Null: there is none.
    #[inline(always)]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// The part from `offset` on: `len` bytes, or fewer if the buffer is shorter.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let Some(all) = &self.pieces else {
            let offset = offset.min(self.len);
            let start = self.start.wrapping_add(offset);
            return Self { start, len: len.min(self.len - offset), pieces: None };
        };
        let mut part = Pieces { segments: [EMPTY; MAX_SEGMENTS], count: 0 };
        let (mut skipped, mut left) = (offset, len);
        for segment in &all.segments[..all.count] {
            let skip = skipped.min(segment.len);
            skipped -= skip;
            let taken = left.min(segment.len - skip);
            if taken > 0 {
                let start = segment.start.wrapping_add(skip);
                part.segments[part.count] = Segment { start, len: taken };
                part.count += 1;
                left -= taken;
            }
        }
        Self::of_pieces(part).unwrap_or(Self::empty())
    }

    /// Calls `copy` with the address of each piece from `offset` on, its length, and its distance
    /// from `offset`. Stops after `len` bytes or at the end. Returns the number of bytes.
    #[inline(always)]
    fn for_each(
        &self,
        offset: usize,
        len: usize,
        mut copy: impl FnMut(*mut u8, usize, usize),
    ) -> usize {
        if self.pieces.is_none() {
            let taken = len.min(self.len.saturating_sub(offset));
            if taken > 0 {
                copy(self.start.wrapping_add(offset), taken, 0);
            }
            return taken;
        }
        let part = self.part(offset, len);
        let mut done = 0;
        match &part.pieces {
            None if part.len == 0 => {}
            None => copy(part.start, part.len, 0),
            Some(pieces) => {
                for segment in &pieces.segments[..pieces.count] {
                    copy(segment.start, segment.len, done);
                    done += segment.len;
                }
            }
        }
        part.len
    }

    /// Copies a message's payload to `offset` in the buffer, as much as fits. Returns the number of
    /// bytes.
    #[inline(always)]
    pub fn fill_from(&self, offset: usize, payload: Payload<'_>) -> usize {
        self.for_each(offset, payload.len, |to, len, from| {
            // SAFETY: `to` is in the program's memory by the promise of `of_segments`, and `from`
            // plus `len` is at most the payload's length.
            unsafe { copy(payload.start.as_ptr().wrapping_add(from), to, len) }
        })
    }

    /// Copies the buffer's bytes from `offset` on to `to`, at most `len`. Returns the number of
    /// bytes.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`.
    #[inline(always)]
    pub unsafe fn copy_to(&self, offset: usize, to: *mut u8, len: usize) -> usize {
        self.for_each(offset, len, |from, len, distance| {
            // SAFETY: `from` is in the program's memory by the promise of `of_segments`; the pieces
            // have `len` bytes together at most, which the caller promises for `to`.
            unsafe { copy(from, to.wrapping_add(distance), len) }
        })
    }

    /// Copies the first `len` bytes of `from` into the buffer, as much as fits. Returns the number
    /// of bytes.
    pub fn fill_from_buffer(&self, from: &UserBuffer, len: usize) -> usize {
        let len = len.min(self.len);
        from.for_each(0, len, |start, len, distance| {
            let Some(start) = NonNull::new(start) else { return };
            self.fill_from(distance, Payload { start, len, lifetime: PhantomData });
        })
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: `bytes` has room for `self.len` bytes.
        unsafe { self.copy_to(0, bytes.as_mut_ptr(), self.len) };
        bytes
    }
}

/// Copies bytes. The ranges may overlap, because a program may send a buffer to itself. The
/// shortest messages are copied without a function call, for speed.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if (8..=16).contains(&len) {
        // SAFETY: the first and the last 8 bytes, which may overlap, are inside. Both are read
        // before one is written.
        unsafe {
            let first: u64 = ptr::read_unaligned(from.cast());
            let last: u64 = ptr::read_unaligned(from.add(len - 8).cast());
            ptr::write_unaligned(to.cast(), first);
            ptr::write_unaligned(to.add(len - 8).cast(), last);
        }
    } else {
        // SAFETY: the caller promises it.
        unsafe { ptr::copy(from, to, len) }
    }
}

/// Bytes of a message that has arrived. Its sender may change them at any time, so they must be
/// copied before they are examined.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: NonNull<u8>,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// Bytes that do not change.
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        let start = NonNull::from(bytes).cast();
        Self { start, len: bytes.len(), lifetime: PhantomData }
    }

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of the bytes.
    pub fn to_boxed(&self) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: the vector has room for `len` bytes, which are then written, and `start` has as
        // many by the promise of `Message::new`.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr(), bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes.into_boxed_slice()
    }
}

/// A message of the network that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a>(Payload<'a>);

impl<'a> Message<'a> {
    /// A message of `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes can be read during `'a`.
    #[inline(always)]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self(Payload { start, len, lifetime: PhantomData })
    }

    /// Bytes that do not change.
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        Self(Payload::of_bytes(bytes))
    }

    /// The byte at `offset`. None: the message is shorter.
    #[inline(always)]
    pub fn byte(&self, offset: usize) -> Option<u8> {
        if offset >= self.0.len {
            return None;
        }
        // SAFETY: the byte is inside the message.
        Some(unsafe { ptr::read(self.0.start.as_ptr().add(offset)) })
    }

    /// A copy of the message.
    pub fn to_boxed(&self) -> Box<[u8]> {
        self.0.to_boxed()
    }

    /// The 8 bytes at `offset`, which is a multiple of 8, as a little-endian number. None: the
    /// message is shorter.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> Option<u64> {
        if offset + 8 > self.0.len {
            return None;
        }
        // SAFETY: the bytes are inside the message.
        let bytes = unsafe { ptr::read_unaligned(self.0.start.as_ptr().add(offset).cast()) };
        Some(u64::from_le_bytes(bytes))
    }

    /// The payload after a header of this length.
    #[inline(always)]
    pub(crate) fn payload(&self, header_len: usize) -> Payload<'a> {
        let len = self.0.len.saturating_sub(header_len);
        // SAFETY: the address is inside the message, or one byte past its end.
        let start = unsafe { self.0.start.add(self.0.len - len) };
        Payload { start, len, lifetime: PhantomData }
    }
}

/// A buffer of memory that a test or the fuzzer keeps. Empty, if there are too many parts.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn buffer_of(parts: &[(*mut u8, usize)]) -> UserBuffer {
    // SAFETY: the tests keep the memory.
    unsafe { UserBuffer::of_segments(parts.iter().copied()) }.unwrap_or(UserBuffer::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(parts: &mut [&mut [u8]]) -> UserBuffer {
        let parts: Vec<_> = parts.iter_mut().map(|part| (part.as_mut_ptr(), part.len())).collect();
        buffer_of(&parts)
    }

    #[test]
    fn bytes_fill_the_segments_in_their_order() {
        let (mut one, mut two, mut three) = ([0; 3], [0; 0], [0; 4]);
        let buffer = buffer(&mut [&mut one, &mut two, &mut three]);
        assert_eq!((buffer.len(), buffer.as_segment()), (7, None));
        assert_eq!(buffer.fill_from(1, Payload::of_bytes(&[1, 2, 3, 4, 5, 6, 7, 8])), 6);
        assert_eq!((one, three), ([0, 1, 2], [3, 4, 5, 6]));
        assert_eq!(buffer.part(2, 3).to_vec(), [2, 3, 4]);
        assert_eq!(buffer.part(6, 9).to_vec(), [6]);
        assert!(buffer.part(7, 9).is_empty());
    }

    #[test]
    fn a_segment_accepts_only_the_bytes_that_fit() {
        let mut bytes = [0; 4];
        let buffer = buffer(&mut [&mut bytes]);
        assert_eq!(buffer.fill_from(2, Payload::of_bytes(&[1, 2, 3])), 2);
        assert_eq!(buffer.fill_from(4, Payload::of_bytes(&[9])), 0);
        assert_eq!(bytes, [0, 0, 1, 2]);
    }

    #[test]
    fn a_buffer_is_copied_to_another_buffer() {
        let (mut one, mut two, mut three) = ([1, 2, 3], [4, 5, 6], [0; 5]);
        let from = buffer(&mut [&mut one, &mut two]);
        let to = buffer(&mut [&mut three]);
        assert_eq!(to.fill_from_buffer(&from, 6), 5);
        assert_eq!(three, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_message_has_no_bytes_beyond_its_end() {
        let bytes: Vec<u8> = (0..20).collect();
        let message = Message::of_bytes(&bytes);
        assert_eq!(message.word(8), Some(u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15])));
        assert_eq!(message.word(16), None);
        assert_eq!(*message.payload(16).to_boxed(), [16, 17, 18, 19]);
        assert!(message.payload(20).is_empty() && message.payload(24).is_empty());
    }

    #[test]
    fn too_many_segments_are_refused() {
        let parts = [(ptr::null_mut(), 0); MAX_SEGMENTS + 1];
        // SAFETY: the parts have no bytes.
        assert!(unsafe { UserBuffer::of_segments(parts.into_iter()) }.is_none());
    }
}
