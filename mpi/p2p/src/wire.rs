//! The headers of messages. A header consists of little-endian words of 8 bytes:
//!
//! | word | eager | announcement | pull | fragment | finished | credit |
//! |---|---|---|---|---|---|---|
//! | 0 | kind, flags, source | | | | | |
//! | 1 | tag, if present | tag | both numbers | receiver's number | sender's number | bytes |
//! | 2 | data, if present | data | length | offset | | |
//! | 3 | sender's number, if the sender waits | length | | | | |
//! | 4 | | handle of the memory | | | | |
//! | 5 | | sender's number | | | | |
//!
//! | word | write | read | atomic | refused |
//! |---|---|---|---|---|
//! | 0 | kind, flags, source | | | |
//! | 1 | key | key | key | number |
//! | 2 | offset | offset | offset | |
//! | 3 | sender's number | length | operation, type, count, number | |
//! | 4 | data, if present | receiver's number | | |
//! | 5 | length, if no payload follows | | | |
//! | 6 | handle of the memory, if no payload follows | | | |
//!
//! The third byte belongs to the network: if several engines share a network, it identifies the
//! engine ([`ENGINE_BYTE`]). *Numbers* are identifiers that a node assigns to its sends and
//! receives. A short message has one to three words, so that its data is in the cache line that the
//! receiver polls. The payload of eager messages, fragments, short writes and atomic operations
//! follows the header. Absent optional words take no space; the next word takes their position.

use crate::atomic::{Datatype, Operator};
use crate::memory::Message;

/// The words of the longest header.
const MAX_WORDS: usize = 7;
/// The longest header, in bytes.
pub const MAX_HEADER_LEN: usize = MAX_WORDS * WORD_LEN;
/// The bytes of a word.
pub const WORD_LEN: usize = 8;
/// The byte of a header that belongs to the network. [`Header::encode`] sets it to 0.
pub const ENGINE_BYTE: usize = 2;

const EAGER: u8 = 1;
const ANNOUNCEMENT: u8 = 2;
const PULL: u8 = 3;
const FRAGMENT: u8 = 4;
const FINISHED: u8 = 5;
const CREDIT: u8 = 6;
const WRITE: u8 = 7;
const READ: u8 = 8;
const ATOMIC: u8 = 9;
const REFUSED: u8 = 10;

const HAS_TAG: u8 = 1;
const HAS_DATA: u8 = 2;
const WANTS_FINISHED: u8 = 4;
/// Flag: the payload follows the header.
const HAS_PAYLOAD: u8 = 8;
/// Flag: the operation's number identifies a receive.
const OF_RECEIVE: u8 = 16;
const ALL_FLAGS: u8 = HAS_TAG | HAS_DATA | WANTS_FINISHED | HAS_PAYLOAD | OF_RECEIVE;

/// The tag by which a message is matched, and the data that its receiver gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The tag. None: the message is for receives without tags.
    pub tag: Option<u64>,
    /// A number that the receiver gets with the message.
    pub data: Option<u64>,
}

/// The announcement of a message whose data remains at the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The length of the message in bytes.
    pub len: u64,
    /// The handle by which the receiver can read the data. 0: the receiver cannot read the data.
    pub handle: u64,
    /// The sender's number of the message.
    pub send_id: u32,
    /// Whether the receiver acknowledges the message, even if the data arrives in fragments.
    pub wants_finished: bool,
}

/// An address in memory of a node that other nodes may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The key of the region.
    pub key: u64,
    /// The offset from the start of the region, in bytes.
    pub offset: u64,
}

/// The location of the bytes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBytes {
    /// The bytes follow the header.
    Inline,
    /// The bytes are still at the origin.
    Announced {
        /// The number of bytes.
        len: u64,
        /// The handle by which the target can read them. 0: the target cannot read them.
        handle: u64,
    },
}

/// The number that the origin has assigned to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationId {
    /// The number of a send: the origin waits for the end of the operation.
    Send(u32),
    /// The number of a receive: the origin waits for bytes.
    Receive(u32),
}

/// An atomic operation. Its operands follow the header, one for each element. If the operator
/// compares, as many values to compare with follow the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The address of the first element.
    pub target: RemoteAddress,
    /// The operator.
    pub operator: Operator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The number of elements.
    pub count: u16,
    /// The origin's number. The origin requests the former values if it is the number of a receive.
    pub id: OperationId,
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A whole message; its bytes follow the header. If there is a number, the sender waits for an
    /// acknowledgement.
    Eager(Envelope, Option<u32>),
    /// A message whose bytes are transferred later.
    Announcement(Envelope, Announcement),
    /// The receiver of an announced message requests its first `len` bytes as fragments.
    Pull {
        /// The sender's number of the message.
        send_id: u32,
        /// The receiver's number of the message.
        receive_id: u32,
        /// The number of bytes.
        len: u64,
    },
    /// A part of the bytes that the receiver has requested by `Pull`, `Read` or `Atomic`. The part
    /// follows the header.
    Fragment {
        /// The receiver's number of the transfer.
        receive_id: u32,
        /// The offset of the part, in bytes.
        offset: u64,
    },
    /// The receiver needs nothing more of a message, or has executed an operation.
    Finished {
        /// The sender's number of the message or operation.
        send_id: u32,
    },
    /// The receiver returns credit for eager messages that it has used.
    Credit {
        /// The credit: bytes, plus a fixed cost for each message.
        bytes: u64,
    },
    /// A write to memory of the target.
    Write {
        /// The destination of the bytes.
        target: RemoteAddress,
        /// A number that the target's program receives.
        data: Option<u64>,
        /// The location of the bytes.
        bytes: WriteBytes,
        /// The origin's number of the operation.
        send_id: u32,
    },
    /// The origin requests bytes of the target's memory as fragments.
    Read {
        /// The address of the bytes.
        target: RemoteAddress,
        /// The number of bytes.
        len: u64,
        /// The origin's number of the operation.
        receive_id: u32,
    },
    /// An atomic operation on memory of the target.
    Atomic(AtomicRequest),
    /// The target refuses an operation, because the memory is not open for it.
    Refused {
        /// The origin's number of the operation.
        id: OperationId,
    },
}

/// The error of a message that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct EncodedHeader {
    /// One word more than the maximum, because the size must be a power of 2 for the mask in
    /// `push`.
    words: [u64; MAX_WORDS + 1],
    count: usize,
}

impl EncodedHeader {
    #[inline(always)]
    fn new(kind: u8, flags: u8, source: u32) -> Self {
        let first = u64::from(kind) | u64::from(flags) << 8 | u64::from(source) << 32;
        let mut header = Self { words: [0; MAX_WORDS + 1], count: 0 };
        header.push(first);
        header
    }

    #[inline(always)]
    fn push(&mut self, word: u64) {
        // No header has more than `MAX_WORDS`; the mask avoids a bounds check.
        self.words[self.count & MAX_WORDS] = word;
        self.count += 1;
    }

    /// Sets the network's byte.
    #[inline(always)]
    pub fn set_engine(&mut self, engine: u8) {
        self.words[0] |= u64::from(engine) << (8 * ENGINE_BYTE);
    }

    /// The words, in the byte order of this host.
    #[inline(always)]
    pub fn words(&self) -> &[u64] {
        &self.words[..self.count.min(MAX_WORDS)]
    }

    /// The length in bytes.
    #[inline(always)]
    pub fn byte_len(&self) -> usize {
        self.count * WORD_LEN
    }

    /// The bytes of the header.
    pub fn to_vec(&self) -> Vec<u8> {
        self.words().iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl OperationId {
    fn flags(&self) -> u8 {
        match self {
            OperationId::Send(_) => 0,
            OperationId::Receive(_) => OF_RECEIVE,
        }
    }

    fn number(&self) -> u32 {
        let (OperationId::Send(number) | OperationId::Receive(number)) = *self;
        number
    }

    fn new(flags: u8, number: u32) -> Self {
        match flags & OF_RECEIVE {
            0 => OperationId::Send(number),
            _ => OperationId::Receive(number),
        }
    }
}

impl AtomicRequest {
    fn encode(&self, source: u32) -> EncodedHeader {
        let Self { target, operator, datatype, count, id } = *self;
        let mut header = EncodedHeader::new(ATOMIC, id.flags(), source);
        header.push(target.key);
        header.push(target.offset);
        let (operator, datatype) = (operator as u8, datatype as u8);
        header.push(
            u64::from(operator)
                | u64::from(datatype) << 8
                | u64::from(count) << 16
                | u64::from(id.number()) << 32,
        );
        header
    }

    fn decode(flags: u8, words: &mut Words<'_>) -> Result<Self, Malformed> {
        let target = words.next_address()?;
        let word = words.next()?;
        Ok(Self {
            target,
            operator: Operator::of_number(word as u8).ok_or(Malformed)?,
            datatype: Datatype::of_number((word >> 8) as u8).ok_or(Malformed)?,
            count: (word >> 16) as u16,
            id: OperationId::new(flags, (word >> 32) as u32),
        })
    }
}

impl Envelope {
    #[inline(always)]
    fn flags(&self) -> u8 {
        let (has_tag, has_data) = (u8::from(self.tag.is_some()), u8::from(self.data.is_some()));
        (has_tag * HAS_TAG) | (has_data * HAS_DATA)
    }
}

impl Header {
    /// Encodes the header, sent by `source`.
    #[inline(always)]
    pub fn encode(&self, source: u32) -> EncodedHeader {
        match *self {
            Header::Eager(envelope, send_id) => {
                let wants_finished = u8::from(send_id.is_some()) * WANTS_FINISHED;
                let flags = envelope.flags() | wants_finished;
                let mut header = EncodedHeader::new(EAGER, flags, source);
                envelope.tag.into_iter().for_each(|tag| header.push(tag));
                envelope.data.into_iter().for_each(|data| header.push(data));
                send_id.into_iter().for_each(|send_id| header.push(u64::from(send_id)));
                header
            }
            Header::Announcement(envelope, announcement) => {
                let wants_finished = u8::from(announcement.wants_finished) * WANTS_FINISHED;
                let flags = envelope.flags() | wants_finished;
                let mut header = EncodedHeader::new(ANNOUNCEMENT, flags, source);
                header.push(envelope.tag.unwrap_or(0));
                header.push(envelope.data.unwrap_or(0));
                header.push(announcement.len);
                header.push(announcement.handle);
                header.push(u64::from(announcement.send_id));
                header
            }
            Header::Pull { send_id, receive_id, len } => {
                let mut header = EncodedHeader::new(PULL, 0, source);
                header.push(u64::from(send_id) | u64::from(receive_id) << 32);
                header.push(len);
                header
            }
            Header::Fragment { receive_id, offset } => {
                let mut header = EncodedHeader::new(FRAGMENT, 0, source);
                header.push(u64::from(receive_id));
                header.push(offset);
                header
            }
            Header::Finished { send_id } => {
                let mut header = EncodedHeader::new(FINISHED, 0, source);
                header.push(u64::from(send_id));
                header
            }
            Header::Credit { bytes } => {
                let mut header = EncodedHeader::new(CREDIT, 0, source);
                header.push(bytes);
                header
            }
            Header::Write { target, data, bytes, send_id } => {
                let has_data = u8::from(data.is_some()) * HAS_DATA;
                let has_payload = u8::from(bytes == WriteBytes::Inline) * HAS_PAYLOAD;
                let mut header = EncodedHeader::new(WRITE, has_data | has_payload, source);
                header.push(target.key);
                header.push(target.offset);
                header.push(u64::from(send_id));
                data.into_iter().for_each(|data| header.push(data));
                if let WriteBytes::Announced { len, handle } = bytes {
                    header.push(len);
                    header.push(handle);
                }
                header
            }
            Header::Read { target, len, receive_id } => {
                let mut header = EncodedHeader::new(READ, 0, source);
                header.push(target.key);
                header.push(target.offset);
                header.push(len);
                header.push(u64::from(receive_id));
                header
            }
            Header::Atomic(request) => request.encode(source),
            Header::Refused { id } => {
                let mut header = EncodedHeader::new(REFUSED, id.flags(), source);
                header.push(u64::from(id.number()));
                header
            }
        }
    }

    /// The length of an eager message's header, in bytes.
    #[inline(always)]
    pub fn eager_len(envelope: &Envelope, is_acknowledged: bool) -> usize {
        let has = |word: bool| usize::from(word);
        let (has_tag, has_data) = (has(envelope.tag.is_some()), has(envelope.data.is_some()));
        WORD_LEN * (1 + has_tag + has_data + has(is_acknowledged))
    }

    /// Decodes the header of an eager message whose sender does not wait, which is the most
    /// frequent one. Returns the envelope, the source, and the header length in bytes. Returns None
    /// for other and for malformed messages.
    #[inline(always)]
    pub fn decode_eager(message: &Message<'_>) -> Option<(Envelope, u32, usize)> {
        let first = message.word(0)?;
        let (flags, source) = ((first >> 8) as u8, (first >> 32) as u32);
        if first as u8 != EAGER || flags & !(HAS_TAG | HAS_DATA) != 0 || (first >> 24) as u8 != 0 {
            return None;
        }
        let mut header_len = WORD_LEN;
        let mut next_if = |flag: u8| {
            if flags & flag == 0 {
                return Some(None);
            }
            let word = message.word(header_len)?;
            header_len += WORD_LEN;
            Some(Some(word))
        };
        let envelope = Envelope { tag: next_if(HAS_TAG)?, data: next_if(HAS_DATA)? };
        Some((envelope, source, header_len))
    }

    /// Decodes the header of a message. Returns the header, its source, and its length in bytes.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the message is malformed.
    #[inline(always)]
    pub fn decode(message: &Message<'_>) -> Result<(Self, u32, usize), Malformed> {
        let mut words = Words { message, read_count: 0 };
        let first = words.next()?;
        let (kind, flags, source) = (first as u8, (first >> 8) as u8, (first >> 32) as u32);
        if (first >> 24) as u8 != 0 || flags & !ALL_FLAGS != 0 {
            return Err(Malformed);
        }
        let (has_tag, has_data) = (flags & HAS_TAG != 0, flags & HAS_DATA != 0);
        let header = match kind {
            EAGER => {
                let envelope = Envelope {
                    tag: if has_tag { Some(words.next()?) } else { None },
                    data: if has_data { Some(words.next()?) } else { None },
                };
                let is_acknowledged = flags & WANTS_FINISHED != 0;
                let send_id = if is_acknowledged { Some(words.next_short()?) } else { None };
                Header::Eager(envelope, send_id)
            }
            ANNOUNCEMENT => {
                let (tag, data) = (words.next()?, words.next()?);
                let envelope =
                    Envelope { tag: has_tag.then_some(tag), data: has_data.then_some(data) };
                let (len, handle) = (words.next()?, words.next()?);
                let send_id = words.next_short()?;
                let wants_finished = flags & WANTS_FINISHED != 0;
                let announcement = Announcement { len, handle, send_id, wants_finished };
                Header::Announcement(envelope, announcement)
            }
            PULL => {
                let ids = words.next()?;
                let (send_id, receive_id) = (ids as u32, (ids >> 32) as u32);
                Header::Pull { send_id, receive_id, len: words.next()? }
            }
            FRAGMENT => Header::Fragment { receive_id: words.next_short()?, offset: words.next()? },
            FINISHED => Header::Finished { send_id: words.next_short()? },
            CREDIT => Header::Credit { bytes: words.next()? },
            WRITE => {
                let (target, send_id) = (words.next_address()?, words.next_short()?);
                let data = if has_data { Some(words.next()?) } else { None };
                let bytes = match flags & HAS_PAYLOAD {
                    0 => WriteBytes::Announced { len: words.next()?, handle: words.next()? },
                    _ => WriteBytes::Inline,
                };
                Header::Write { target, data, bytes, send_id }
            }
            READ => {
                let (target, len) = (words.next_address()?, words.next()?);
                Header::Read { target, len, receive_id: words.next_short()? }
            }
            ATOMIC => Header::Atomic(AtomicRequest::decode(flags, &mut words)?),
            REFUSED => Header::Refused { id: OperationId::new(flags, words.next_short()?) },
            _ => return Err(Malformed),
        };
        Ok((header, source, words.read_count * WORD_LEN))
    }
}

struct Words<'a> {
    message: &'a Message<'a>,
    read_count: usize,
}

impl Words<'_> {
    #[inline(always)]
    fn next(&mut self) -> Result<u64, Malformed> {
        let word = self.message.word(self.read_count * WORD_LEN).ok_or(Malformed)?;
        self.read_count += 1;
        Ok(word)
    }

    fn next_address(&mut self) -> Result<RemoteAddress, Malformed> {
        Ok(RemoteAddress { key: self.next()?, offset: self.next()? })
    }

    fn next_short(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.next()?).map_err(|_| Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = Header> {
        let envelope = (any::<Option<u64>>(), any::<Option<u64>>())
            .prop_map(|(tag, data)| Envelope { tag, data });
        let announcement = (any::<u64>(), any::<u64>(), any::<u32>(), any::<bool>()).prop_map(
            |(len, handle, send_id, wants_finished)| Announcement {
                len,
                handle,
                send_id,
                wants_finished,
            },
        );
        prop_oneof![
            (envelope.clone(), any::<Option<u32>>())
                .prop_map(|(envelope, send_id)| Header::Eager(envelope, send_id)),
            remote_header(),
            (envelope, announcement).prop_map(|(one, two)| Header::Announcement(one, two)),
            (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(send_id, receive_id, len)| {
                Header::Pull { send_id, receive_id, len }
            }),
            (any::<u32>(), any::<u64>())
                .prop_map(|(receive_id, offset)| Header::Fragment { receive_id, offset }),
            any::<u32>().prop_map(|send_id| Header::Finished { send_id }),
            any::<u64>().prop_map(|bytes| Header::Credit { bytes }),
        ]
    }

    fn remote_header() -> impl Strategy<Value = Header> {
        let target =
            || (any::<u64>(), any::<u64>()).prop_map(|(key, offset)| RemoteAddress { key, offset });
        let id = || {
            prop_oneof![
                any::<u32>().prop_map(OperationId::Send),
                any::<u32>().prop_map(OperationId::Receive)
            ]
        };
        let bytes = prop_oneof![
            Just(WriteBytes::Inline),
            (any::<u64>(), any::<u64>())
                .prop_map(|(len, handle)| WriteBytes::Announced { len, handle })
        ];
        prop_oneof![
            (target(), any::<Option<u64>>(), bytes, any::<u32>()).prop_map(
                |(target, data, bytes, send_id)| Header::Write { target, data, bytes, send_id }
            ),
            (target(), any::<u64>(), any::<u32>())
                .prop_map(|(target, len, receive_id)| Header::Read { target, len, receive_id }),
            (target(), 0..20_u8, 0..14_u8, any::<u16>(), id()).prop_map(
                |(target, operator, datatype, count, id)| Header::Atomic(AtomicRequest {
                    target,
                    operator: Operator::of_number(operator).unwrap(),
                    datatype: Datatype::of_number(datatype).unwrap(),
                    count,
                    id
                })
            ),
            id().prop_map(|id| Header::Refused { id }),
        ]
    }

    proptest! {
        #[test]
        fn a_header_is_decoded_unchanged(header in header(), source: u32, payload: Vec<u8>) {
            let mut bytes = header.encode(source).to_vec();
            let header_len = bytes.len();
            bytes.extend_from_slice(&payload);
            let decoded = Header::decode(&Message::of_bytes(&bytes));
            prop_assert_eq!(decoded, Ok((header, source, header_len)));
            if let Header::Eager(envelope, send_id) = header {
                prop_assert_eq!(Header::eager_len(&envelope, send_id.is_some()), header_len);
            }
            let short = Message::of_bytes(&bytes[..header_len - 1]);
            prop_assert_eq!(Header::decode(&short), Err(Malformed));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let message = Message::of_bytes(&bytes);
            if let Ok((header, source, len)) = Header::decode(&message) {
                // The encoding loses no information.
                prop_assert_eq!(header.encode(source).byte_len(), len);
            }
        }
    }

    #[test]
    fn a_short_message_has_a_short_header() {
        let len = |tag, data| Header::Eager(Envelope { tag, data }, None).encode(7).byte_len();
        assert_eq!([len(None, None), len(Some(1), None), len(Some(1), Some(2))], [8, 16, 24]);
    }
}
