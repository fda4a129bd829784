//! Frames of remote memory over PM/Ethernet: what packets of [`crate::wire::Kind::Remote`] carry.
//! 16 bytes, little-endian, and what belongs to them. `docs/ethernet.md` has the table.
//!
//! An origin writes by a chain of [`Frame::Piece`], which [`Frame::Written`] answers; it reads by
//! [`Frame::Ask`], which a chain of [`Frame::Data`] answers. Frames of one pair of nodes arrive
//! once and in order: so what follows a frame of a chain goes without these 16 bytes
//! ([`More`](crate::wire::Kind::More)), but for the last of the chain. Where bytes were lost
//! ([`Lost`](crate::wire::Kind::Lost)) what follows belongs nowhere, until the next frame.

use crate::wire::HEADER;

/// Bytes before those of the user.
pub const HEAD: usize = 16;
/// The longest frame that has none of the user's.
pub const LONGEST: usize = HEAD + 8;

/// Flag: the last one of its chain.
const LAST: u8 = 1;
/// Flag: the operation has failed.
const FAILED: u8 = 2;

/// What a frame says. `number` is the origin's number of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes to be written at `handle`. The last one may have none: the origin's have failed.
    Piece {
        /// Of the operation.
        number: u32,
        /// Nothing follows.
        last: bool,
        /// Where the first byte goes.
        handle: u64,
    },
    /// All pieces of a write have been looked at.
    Written {
        /// Of the operation.
        number: u32,
        /// Not all bytes have been written.
        failed: bool,
    },
    /// So many bytes at `handle` are wanted.
    Ask {
        /// Of the operation.
        number: u32,
        /// The first byte.
        handle: u64,
        /// How many.
        len: u64,
    },
    /// Bytes that were asked for.
    Data {
        /// Of the operation.
        number: u32,
        /// Nothing follows.
        last: bool,
        /// Nothing follows, and these bytes cannot be had: there are none.
        failed: bool,
        /// How many bytes were before these.
        offset: u64,
    },
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

impl Frame {
    /// Reads the frame at the front of a payload of `len` bytes, of which `head` has the first
    /// [`LONGEST`] or all; answers it and how many bytes of the user's follow [`HEAD`]. None: no
    /// frame.
    pub fn parse(head: &[u8], len: usize) -> Option<(Frame, usize)> {
        let &[what, flags, 0, 0, a, b, c, d, ..] = head else { return None };
        let (number, place) = (u32::from_le_bytes([a, b, c, d]), word(head, 8)?);
        let bytes = len.checked_sub(HEAD)?;
        let (last, failed) = (flags & LAST != 0, flags & FAILED != 0);
        if flags & !(LAST | FAILED) != 0 {
            return None;
        }
        match what {
            1 if !failed && (bytes > 0 || last) => {
                Some((Frame::Piece { number, last, handle: place }, bytes))
            }
            2 if last && bytes == 0 && place == 0 => Some((Frame::Written { number, failed }, 0)),
            3 if last && !failed && bytes == 8 => {
                Some((Frame::Ask { number, handle: place, len: word(head, HEAD)? }, 0))
            }
            4 if failed == (bytes == 0) && (last || !failed) => {
                Some((Frame::Data { number, last, failed, offset: place }, bytes))
            }
            _ => None,
        }
    }

    /// Where the bytes behind the `bytes` of this one go. None: nothing follows them.
    pub fn goes_on(self, bytes: usize) -> Option<Frame> {
        let behind = |place: u64| place.wrapping_add(bytes as u64);
        match self {
            Frame::Piece { number, last: false, handle } => {
                Some(Frame::Piece { number, last: false, handle: behind(handle) })
            }
            Frame::Data { number, last: false, failed, offset } => {
                Some(Frame::Data { number, last: false, failed, offset: behind(offset) })
            }
            _ => None,
        }
    }

    /// Writes the frame; answers how many bytes it takes.
    pub fn encode(&self, out: &mut [u8; LONGEST]) -> usize {
        let (what, last, failed, number, place) = match *self {
            Frame::Piece { number, last, handle } => (1, last, false, number, handle),
            Frame::Written { number, failed } => (2, true, failed, number, 0),
            Frame::Ask { number, handle, .. } => (3, true, false, number, handle),
            Frame::Data { number, last, failed, offset } => (4, last, failed, number, offset),
        };
        let flags = if last { LAST } else { 0 } | if failed { FAILED } else { 0 };
        out[..4].copy_from_slice(&[what, flags, 0, 0]);
        out[4..8].copy_from_slice(&number.to_le_bytes());
        out[8..16].copy_from_slice(&place.to_le_bytes());
        if let Frame::Ask { len, .. } = self {
            out[HEAD..].copy_from_slice(&len.to_le_bytes());
            return LONGEST;
        }
        HEAD
    }
}

/// Fuzzing entry: a packet of this kind, whose header was accepted, with `len` bytes of payload.
///
/// # Panics
/// When a frame that was accepted does not read the same once it is written out again.
pub(crate) fn fuzz(packet: &[u8], len: usize) {
    let payload = &packet[HEADER..HEADER + len];
    let Some((frame, bytes)) = Frame::parse(payload, len) else { return };
    let mut again = [0; LONGEST];
    let written = frame.encode(&mut again);
    assert_eq!(again[..written], payload[..written]);
    assert_eq!(written + bytes, len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> [(Frame, usize); 7] {
        let (number, handle) = (0x0403_0201, 0x1817_1615_1413_1211);
        [
            (Frame::Piece { number, last: false, handle }, 1390),
            (Frame::Piece { number, last: true, handle }, 0),
            (Frame::Written { number, failed: true }, 0),
            (Frame::Written { number, failed: false }, 0),
            (Frame::Ask { number, handle, len: 1 << 30 }, 0),
            (Frame::Data { number, last: true, failed: false, offset: 9 }, 8),
            (Frame::Data { number, last: true, failed: true, offset: 9 }, 0),
        ]
    }

    #[test]
    fn frames_read_as_they_were_written_and_their_bytes_are_fixed() {
        for (frame, bytes) in frames() {
            let mut head = [0; LONGEST];
            let written = frame.encode(&mut head);
            assert_eq!(Frame::parse(&head[..written], written + bytes), Some((frame, bytes)));
        }
        let mut head = [0xaa; LONGEST];
        assert_eq!(frames()[4].0.encode(&mut head), LONGEST);
        let ask = [3, 1, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(head[..HEAD], ask);
        assert_eq!(head[HEAD..], [0, 0, 0, 64, 0, 0, 0, 0]);
    }

    #[test]
    fn what_contradicts_itself_is_no_frame() {
        let with = |frame: usize, at: usize, byte: u8, len: usize| {
            let mut head = [0; LONGEST];
            frames()[frame].0.encode(&mut head);
            head[at] = byte;
            Frame::parse(&head, len)
        };
        assert_eq!(with(0, 0, 0, 40), None, "no such kind");
        assert_eq!(with(0, 0, 5, 40), None, "no such kind");
        assert_eq!(with(0, 1, 4, 40), None, "no such flag");
        assert_eq!(with(0, 1, 2, 40), None, "a write that has failed has no bytes");
        assert_eq!(with(0, 2, 1, 40), None, "reserved");
        assert_eq!(with(0, 1, 0, HEAD), None, "an empty piece that is not the last");
        assert_eq!(with(0, 1, 0, HEAD - 1), None, "shorter than a head");
        assert_eq!(with(2, 0, 2, HEAD + 1), None, "bytes behind what has none");
        assert_eq!(with(4, 0, 3, HEAD), None, "asks for nothing");
        assert_eq!(with(5, 1, 1, HEAD), None, "no data, and no failure");
        assert_eq!(with(6, 1, 2, HEAD), None, "goes on after a failure");
        assert_eq!(Frame::parse(&[1, 1, 0, 0, 0, 0, 0], 40), None, "cut off");
        assert_eq!(Frame::parse(&[0; HEAD], HEAD), None, "in place of a piece");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            mut packet in proptest::collection::vec(any::<u8>(), HEADER..HEADER + 60),
            what in 0u8..6, flags in 0u8..5
        ) {
            let len = packet.len() - HEADER;
            if len >= 4 {
                packet[HEADER..HEADER + 4].copy_from_slice(&[what, flags, 0, 0]);
            }
            fuzz(&packet, len);
        }
    }
}
