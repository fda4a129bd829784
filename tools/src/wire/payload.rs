//! The data of a command: a record, either alone or followed by bytes or a list. A field of the
//! record contains the number of bytes or entries. The encoder fills it in.

use std::borrow::Cow;

use super::field::{Field, ReadError, Record, RecordLayout, part, put_at};

/// The data of a command. The thread id at offset 0 does not belong to the data.
pub(super) trait Payload<'a>: Sized {
    /// The layout of the fixed part.
    const FIXED: RecordLayout;
    /// The length in a message, in bytes.
    fn payload_len(&self) -> usize;
    /// Encodes the data into `bytes`. The slice must have this length and contain only zeros.
    fn write(&self, bytes: &mut [u8]);
    /// Decodes the data.
    fn read(bytes: &'a [u8]) -> Result<Self, ReadError>;
    /// A random value of this type, for tests.
    #[cfg(test)]
    fn sample_payload(random: &mut dyn FnMut() -> u64) -> Self;
}

impl<R: Record> Payload<'_> for R {
    const FIXED: RecordLayout = R::LAYOUT;
    fn payload_len(&self) -> usize {
        R::LAYOUT.len
    }
    fn write(&self, bytes: &mut [u8]) {
        self.put_fields(bytes);
    }
    fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        R::get_fields(bytes)
    }
    #[cfg(test)]
    fn sample_payload(random: &mut dyn FnMut() -> u64) -> Self {
        R::sample_fields(random)
    }
}

/// A record that is followed by bytes or a list.
pub(super) trait Counted: Record {
    /// The offset of the number of entries (u32).
    const COUNT_OFFSET: usize;
    /// The offset of the entries.
    const TAIL_OFFSET: usize;
}

/// Checks the length of the data, and returns the part after the record: `count` entries of `item`
/// bytes.
fn tail<C: Counted>(bytes: &[u8], item: usize) -> Result<&[u8], ReadError> {
    let count: u32 = part(bytes, C::COUNT_OFFSET).ok_or(ReadError::Short)?;
    let len = (count as usize).checked_mul(item).ok_or(ReadError::Short)?;
    let end = C::TAIL_OFFSET.checked_add(len).ok_or(ReadError::Short)?;
    bytes.get(C::TAIL_OFFSET..end).ok_or(ReadError::Short)
}

/// A record followed by bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithBytes<'a, R> {
    /// The record.
    pub head: R,
    /// The bytes.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a, R: Counted> Payload<'a> for WithBytes<'a, R> {
    const FIXED: RecordLayout = R::LAYOUT;
    fn payload_len(&self) -> usize {
        R::TAIL_OFFSET + self.bytes.len()
    }
    fn write(&self, bytes: &mut [u8]) {
        self.head.put_fields(bytes);
        put_at(bytes, R::COUNT_OFFSET, &(self.bytes.len() as u32));
        bytes[R::TAIL_OFFSET..].copy_from_slice(&self.bytes);
    }
    fn read(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let head = R::get_fields(bytes)?;
        Ok(Self { head, bytes: Cow::Borrowed(tail::<R>(bytes, 1)?) })
    }
    #[cfg(test)]
    fn sample_payload(random: &mut dyn FnMut() -> u64) -> Self {
        let bytes: Vec<u8> = (0..1 + random() % 40).map(|_| random() as u8).collect();
        Self { head: R::sample_fields(random), bytes: bytes.into() }
    }
}

/// An entry of a list.
pub(super) trait Item: Sized {
    /// The length in bytes.
    const ITEM_LEN: usize;
    /// Encodes the entry.
    fn put_item(&self, bytes: &mut [u8]);
    /// Decodes the entry.
    fn get_item(bytes: &[u8]) -> Result<Self, ReadError>;
    /// A random value of this type, for tests.
    #[cfg(test)]
    fn sample_item(random: &mut dyn FnMut() -> u64) -> Self;
}

impl Item for u64 {
    const ITEM_LEN: usize = 8;
    fn put_item(&self, bytes: &mut [u8]) {
        self.put(bytes);
    }
    fn get_item(bytes: &[u8]) -> Result<Self, ReadError> {
        part(bytes, 0).ok_or(ReadError::Short)
    }
    #[cfg(test)]
    fn sample_item(random: &mut dyn FnMut() -> u64) -> Self {
        random()
    }
}

impl<R: Record> Item for R {
    const ITEM_LEN: usize = R::LAYOUT.len;
    fn put_item(&self, bytes: &mut [u8]) {
        self.put_fields(bytes);
    }
    fn get_item(bytes: &[u8]) -> Result<Self, ReadError> {
        R::get_fields(bytes)
    }
    #[cfg(test)]
    fn sample_item(random: &mut dyn FnMut() -> u64) -> Self {
        R::sample_fields(random)
    }
}

/// A record followed by a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithList<R, I> {
    /// The record.
    pub head: R,
    /// The list.
    pub list: Vec<I>,
}

impl<R: Counted, I: Item> Payload<'_> for WithList<R, I> {
    const FIXED: RecordLayout = R::LAYOUT;
    fn payload_len(&self) -> usize {
        R::TAIL_OFFSET + self.list.len() * I::ITEM_LEN
    }
    fn write(&self, bytes: &mut [u8]) {
        self.head.put_fields(bytes);
        put_at(bytes, R::COUNT_OFFSET, &(self.list.len() as u32));
        let places = bytes[R::TAIL_OFFSET..].chunks_exact_mut(I::ITEM_LEN);
        self.list.iter().zip(places).for_each(|(item, place)| item.put_item(place));
    }
    fn read(bytes: &[u8]) -> Result<Self, ReadError> {
        let head = R::get_fields(bytes)?;
        let items = tail::<R>(bytes, I::ITEM_LEN)?.chunks_exact(I::ITEM_LEN);
        Ok(Self { head, list: items.map(I::get_item).collect::<Result<_, _>>()? })
    }
    #[cfg(test)]
    fn sample_payload(random: &mut dyn FnMut() -> u64) -> Self {
        let list = (0..random() % 5).map(|_| I::sample_item(random)).collect();
        Self { head: R::sample_fields(random), list }
    }
}
