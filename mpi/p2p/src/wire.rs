//! The headers of messages. They consist of words of 8 bytes, little endian:
//!
//! | word | eager | announcement | pull | fragment | finished | credit |
//! |---|---|---|---|---|---|---|
//! | 0 | kind, flags, source | | | | | |
//! | 1 | tag, if it has one | tag | numbers of both | receiver's number | sender's number | bytes |
//! | 2 | data, if it has some | data | length | offset | | |
//! | 3 | | length | | | | |
//! | 4 | | handle of the memory | | | | |
//! | 5 | | sender's number | | | | |
//!
//! Numbers are those that a node gives to its sends and receives. A short message has one to three
//! words, so that its data is in the line of the cache that the receiver looks at. The payload of
//! eager messages and fragments follows. Words are written one after the other; where one is
//! missing, the next one takes its place.

use crate::memory::Message;

/// The longest header, in bytes.
pub const MAX_HEADER_LEN: usize = 6 * WORD_LEN;
/// The bytes of a word.
pub const WORD_LEN: usize = 8;

const EAGER: u8 = 1;
const ANNOUNCEMENT: u8 = 2;
const PULL: u8 = 3;
const FRAGMENT: u8 = 4;
const FINISHED: u8 = 5;
const CREDIT: u8 = 6;

const HAS_TAG: u8 = 1;
const HAS_DATA: u8 = 2;
const WANTS_FINISHED: u8 = 4;

/// What a message is matched by, and what it tells its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The tag. None: it is for receives without tags.
    pub tag: Option<u64>,
    /// A number that the receiver gets with the message.
    pub data: Option<u64>,
}

/// The data of an announced message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Its length in bytes.
    pub len: u64,
    /// The handle by which the receiver can read it. 0: it cannot.
    pub handle: u64,
    /// The sender's number of it.
    pub send_id: u32,
    /// Whether the receiver says when it has the message, even if it comes in fragments.
    pub wants_finished: bool,
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// A whole message; its bytes follow.
    Eager(Envelope),
    /// A message whose bytes come later.
    Announcement(Envelope, Announcement),
    /// The receiver of an announced message asks for its first `len` bytes, as fragments.
    Pull {
        /// The sender's number of the message.
        send_id: u32,
        /// The receiver's number of it.
        receive_id: u32,
        /// In bytes.
        len: u64,
    },
    /// Bytes of an announced message follow, which begin at `offset`.
    Fragment {
        /// The receiver's number of the message.
        receive_id: u32,
        /// In bytes.
        offset: u64,
    },
    /// The receiver needs nothing more of an announced message.
    Finished {
        /// The sender's number of it.
        send_id: u32,
    },
    /// The receiver has used bytes of eager messages, so that as many may follow.
    Credit {
        /// Their number, with what each message costs besides.
        bytes: u64,
    },
}

/// Why a message cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct EncodedHeader {
    words: [[u8; WORD_LEN]; MAX_HEADER_LEN / WORD_LEN],
    count: usize,
}

impl EncodedHeader {
    #[inline(always)]
    fn new(kind: u8, flags: u8, source: u32) -> Self {
        let first = u64::from(kind) | u64::from(flags) << 8 | u64::from(source) << 32;
        let mut header = Self { words: [[0; WORD_LEN]; MAX_HEADER_LEN / WORD_LEN], count: 0 };
        header.push(first);
        header
    }

    #[inline(always)]
    fn push(&mut self, word: u64) {
        self.words[self.count] = word.to_le_bytes();
        self.count += 1;
    }

    /// The bytes.
    #[inline(always)]
    pub fn as_bytes(&self) -> &[u8] {
        self.words[..self.count].as_flattened()
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
    /// The header as it travels from `source`.
    #[inline(always)]
    pub fn encode(&self, source: u32) -> EncodedHeader {
        match *self {
            Header::Eager(envelope) => {
                let mut header = EncodedHeader::new(EAGER, envelope.flags(), source);
                envelope.tag.into_iter().for_each(|tag| header.push(tag));
                envelope.data.into_iter().for_each(|data| header.push(data));
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
        }
    }

    /// The length of an eager message's header, in bytes.
    #[inline(always)]
    pub fn eager_len(envelope: &Envelope) -> usize {
        WORD_LEN * (1 + usize::from(envelope.tag.is_some()) + usize::from(envelope.data.is_some()))
    }

    /// The header of a message, its source, and its length in bytes.
    ///
    /// # Errors
    /// The message is malformed.
    #[inline(always)]
    pub fn decode(message: &Message<'_>) -> Result<(Self, u32, usize), Malformed> {
        let mut words = Words { message, read_count: 0 };
        let first = words.next()?;
        let (kind, flags, source) = (first as u8, (first >> 8) as u8, (first >> 32) as u32);
        if (first >> 16) as u16 != 0 || flags & !(HAS_TAG | HAS_DATA | WANTS_FINISHED) != 0 {
            return Err(Malformed);
        }
        let (has_tag, has_data) = (flags & HAS_TAG != 0, flags & HAS_DATA != 0);
        let header = match kind {
            EAGER => Header::Eager(Envelope {
                tag: if has_tag { Some(words.next()?) } else { None },
                data: if has_data { Some(words.next()?) } else { None },
            }),
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
            envelope.clone().prop_map(Header::Eager),
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

    proptest! {
        #[test]
        fn a_header_comes_back(header in header(), source: u32, payload: Vec<u8>) {
            let mut bytes = header.encode(source).as_bytes().to_vec();
            let header_len = bytes.len();
            bytes.extend_from_slice(&payload);
            let decoded = Header::decode(&Message::of_bytes(&bytes));
            prop_assert_eq!(decoded, Ok((header, source, header_len)));
            if let Header::Eager(envelope) = header {
                prop_assert_eq!(Header::eager_len(&envelope), header_len);
            }
            let short = Message::of_bytes(&bytes[..header_len - 1]);
            prop_assert_eq!(Header::decode(&short), Err(Malformed));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let message = Message::of_bytes(&bytes);
            if let Ok((header, source, len)) = Header::decode(&message) {
                // Nothing is lost that a header says.
                prop_assert_eq!(header.encode(source).as_bytes().len(), len);
            }
        }
    }

    #[test]
    fn a_short_message_has_a_short_header() {
        let len = |tag, data| Header::Eager(Envelope { tag, data }).encode(7).as_bytes().len();
        assert_eq!([len(None, None), len(Some(1), None), len(Some(1), Some(2))], [8, 16, 24]);
    }
}
