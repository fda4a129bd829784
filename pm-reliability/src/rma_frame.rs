//! Frames of remote memory access over PM/Ethernet, which are the payload of
//! [`crate::packet_header::PacketKind::Remote`] packets. A frame has a header of 16 bytes,
//! little-endian, and its data. `docs/dev/ethernet.md` contains the table.
//!
//! An origin writes with a chain of [`Frame::WriteData`], which [`Frame::WriteAck`] answers. It
//! reads with [`Frame::ReadRequest`], which a chain of [`Frame::ReadResponse`] answers. Frames
//! between a pair of nodes arrive once and in order. Packets after the first frame of a chain,
//! except for the last frame, therefore omit these 16 bytes
//! ([`Continuation`](crate::packet_header::PacketKind::Continuation)). If bytes were lost
//! ([`PayloadLost`](crate::packet_header::PacketKind::PayloadLost)), continuations are ignored
//! until the next frame.

/// Number of bytes in front of the user's data.
pub const RMA_HEADER_LEN: usize = 16;
/// Length of the longest frame without user data.
pub const MAX_RMA_HEADER_LEN: usize = RMA_HEADER_LEN + 8;

/// Flag: the last frame of its chain.
const LAST: u8 = 1;
/// Flag: the operation has failed.
const FAILED: u8 = 2;

/// The content of a frame. `number` is the origin's number of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes to write at `handle`. The last frame may have none, if the origin could not read its
    /// own memory.
    WriteData {
        /// Number of the operation.
        number: u32,
        /// Whether this is the last frame of its chain.
        last: bool,
        /// Address handle of the first byte.
        handle: u64,
    },
    /// The target has processed all frames of a write.
    WriteAck {
        /// Number of the operation.
        number: u32,
        /// Whether some bytes have not been written.
        failed: bool,
    },
    /// A request for `len` bytes at `handle`.
    ReadRequest {
        /// Number of the operation.
        number: u32,
        /// Address handle of the first byte.
        handle: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Bytes that were requested by a read.
    ReadResponse {
        /// Number of the operation.
        number: u32,
        /// Whether this is the last frame of its chain.
        last: bool,
        /// Whether the chain ends because these bytes could not be read. The frame then has no
        /// data.
        failed: bool,
        /// Number of bytes in earlier frames of the chain.
        offset: u64,
    },
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..offset + 8)?.try_into().ok().map(u64::from_le_bytes)
}

impl Frame {
    /// Parses the frame at the start of a payload of `len` bytes. `header` contains the first
    /// [`MAX_RMA_HEADER_LEN`] bytes of the payload, or all of it if it is shorter. Returns the
    /// frame and the number of bytes of user data after the [`RMA_HEADER_LEN`] bytes. Returns
    /// `None` if the frame is invalid.
    pub fn parse(header: &[u8], len: usize) -> Option<(Frame, usize)> {
        let &[kind, flags, 0, 0, a, b, c, d, ..] = header else { return None };
        let (number, position) = (u32::from_le_bytes([a, b, c, d]), read_u64(header, 8)?);
        let data_len = len.checked_sub(RMA_HEADER_LEN)?;
        let (last, failed) = (flags & LAST != 0, flags & FAILED != 0);
        if flags & !(LAST | FAILED) != 0 {
            return None;
        }
        match kind {
            1 if !failed && (data_len > 0 || last) => {
                Some((Frame::WriteData { number, last, handle: position }, data_len))
            }
            2 if last && data_len == 0 && position == 0 => {
                Some((Frame::WriteAck { number, failed }, 0))
            }
            3 if last && !failed && data_len == 8 => Some((
                Frame::ReadRequest {
                    number,
                    handle: position,
                    len: read_u64(header, RMA_HEADER_LEN)?,
                },
                0,
            )),
            4 if failed == (data_len == 0) && (last || !failed) => {
                Some((Frame::ReadResponse { number, last, failed, offset: position }, data_len))
            }
            _ => None,
        }
    }

    /// The frame for the bytes after the `data_len` bytes of this frame. Returns `None` if no bytes
    /// follow.
    pub fn continuation(self, data_len: usize) -> Option<Frame> {
        let advance = |position: u64| position.wrapping_add(data_len as u64);
        match self {
            Frame::WriteData { number, last: false, handle } => {
                Some(Frame::WriteData { number, last: false, handle: advance(handle) })
            }
            Frame::ReadResponse { number, last: false, failed, offset } => {
                Some(Frame::ReadResponse { number, last: false, failed, offset: advance(offset) })
            }
            _ => None,
        }
    }

    /// Writes the frame to `out`. Returns its length in bytes.
    pub fn encode(&self, out: &mut [u8; MAX_RMA_HEADER_LEN]) -> usize {
        let (kind, last, failed, number, position) = match *self {
            Frame::WriteData { number, last, handle } => (1, last, false, number, handle),
            Frame::WriteAck { number, failed } => (2, true, failed, number, 0),
            Frame::ReadRequest { number, handle, .. } => (3, true, false, number, handle),
            Frame::ReadResponse { number, last, failed, offset } => {
                (4, last, failed, number, offset)
            }
        };
        let flags = if last { LAST } else { 0 } | if failed { FAILED } else { 0 };
        out[..4].copy_from_slice(&[kind, flags, 0, 0]);
        out[4..8].copy_from_slice(&number.to_le_bytes());
        out[8..16].copy_from_slice(&position.to_le_bytes());
        if let Frame::ReadRequest { len, .. } = self {
            out[RMA_HEADER_LEN..].copy_from_slice(&len.to_le_bytes());
            return MAX_RMA_HEADER_LEN;
        }
        RMA_HEADER_LEN
    }
}

/// Fuzzing entry: the payload of a packet of this kind, whose header was accepted.
///
/// # Panics
/// If an accepted frame parses differently after it has been encoded again.
pub(crate) fn fuzz(payload: &[u8]) {
    let Some((frame, data_len)) = Frame::parse(payload, payload.len()) else { return };
    let mut encoded = [0; MAX_RMA_HEADER_LEN];
    let written = frame.encode(&mut encoded);
    assert_eq!(encoded[..written], payload[..written]);
    assert_eq!(written + data_len, payload.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> [(Frame, usize); 7] {
        let (number, handle) = (0x0403_0201, 0x1817_1615_1413_1211);
        [
            (Frame::WriteData { number, last: false, handle }, 1390),
            (Frame::WriteData { number, last: true, handle }, 0),
            (Frame::WriteAck { number, failed: true }, 0),
            (Frame::WriteAck { number, failed: false }, 0),
            (Frame::ReadRequest { number, handle, len: 1 << 30 }, 0),
            (Frame::ReadResponse { number, last: true, failed: false, offset: 9 }, 8),
            (Frame::ReadResponse { number, last: true, failed: true, offset: 9 }, 0),
        ]
    }

    #[test]
    fn frames_are_decoded_unchanged_and_their_bytes_are_fixed() {
        for (frame, data_len) in frames() {
            let mut header = [0; MAX_RMA_HEADER_LEN];
            let written = frame.encode(&mut header);
            assert_eq!(
                Frame::parse(&header[..written], written + data_len),
                Some((frame, data_len))
            );
        }
        let mut header = [0xaa; MAX_RMA_HEADER_LEN];
        assert_eq!(frames()[4].0.encode(&mut header), MAX_RMA_HEADER_LEN);
        let read_request = [3, 1, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(header[..RMA_HEADER_LEN], read_request);
        assert_eq!(header[RMA_HEADER_LEN..], [0, 0, 0, 64, 0, 0, 0, 0]);
    }

    #[test]
    fn a_contradictory_frame_is_rejected() {
        let with = |frame: usize, offset: usize, byte: u8, len: usize| {
            let mut header = [0; MAX_RMA_HEADER_LEN];
            frames()[frame].0.encode(&mut header);
            header[offset] = byte;
            Frame::parse(&header, len)
        };
        assert_eq!(with(0, 0, 0, 40), None, "no such kind");
        assert_eq!(with(0, 0, 5, 40), None, "no such kind");
        assert_eq!(with(0, 1, 4, 40), None, "no such flag");
        assert_eq!(with(0, 1, 2, 40), None, "a write that has failed has no bytes");
        assert_eq!(with(0, 2, 1, 40), None, "reserved");
        assert_eq!(with(0, 1, 0, RMA_HEADER_LEN), None, "an empty frame that is not the last");
        assert_eq!(with(0, 1, 0, RMA_HEADER_LEN - 1), None, "shorter than a header");
        assert_eq!(with(2, 0, 2, RMA_HEADER_LEN + 1), None, "data in a frame that has none");
        assert_eq!(with(4, 0, 3, RMA_HEADER_LEN), None, "asks for nothing");
        assert_eq!(with(5, 1, 1, RMA_HEADER_LEN), None, "no data, and no failure");
        assert_eq!(with(6, 1, 2, RMA_HEADER_LEN), None, "continues after a failure");
        assert_eq!(Frame::parse(&[1, 1, 0, 0, 0, 0, 0], 40), None, "cut off");
        assert_eq!(Frame::parse(&[0; RMA_HEADER_LEN], RMA_HEADER_LEN), None, "no valid kind");
    }

    #[test]
    fn a_continuation_begins_after_the_data_of_its_frame_unless_the_frame_is_the_last() {
        let write = |handle: u64| Frame::WriteData { number: 7, last: false, handle };
        assert_eq!(write(100).continuation(30), Some(write(130)));
        let response =
            |offset: u64| Frame::ReadResponse { number: 7, last: false, failed: false, offset };
        assert_eq!(response(100).continuation(30), Some(response(130)));
        for (frame, data_len) in &frames()[1..] {
            assert_eq!(frame.continuation(*data_len), None, "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            mut payload in proptest::collection::vec(any::<u8>(), 0..60),
            kind in 0u8..6, flags in 0u8..5
        ) {
            if payload.len() >= 4 {
                payload[..4].copy_from_slice(&[kind, flags, 0, 0]);
            }
            fuzz(&payload);
        }
    }
}
