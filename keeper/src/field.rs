//! The fields of records and vouchers. Numbers are in little-endian order. Byte strings are
//! preceded by their length.

/// The maximum length of a text in bytes. Longer texts are cut.
pub const MAX_TEXT_LEN: usize = 1024;

/// The error for a field that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldError;

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field is missing, too long or invalid")
    }
}

impl std::error::Error for FieldError {}

/// Reads fields one after the other.
#[derive(Debug)]
pub struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    /// Creates a reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    /// There are fewer bytes.
    pub fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FieldError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(FieldError)?;
        self.0 = rest;
        Ok(*head)
    }

    /// Reads a byte.
    ///
    /// # Errors
    /// There are not enough bytes.
    pub fn u8(&mut self) -> Result<u8, FieldError> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a 32-bit number.
    ///
    /// # Errors
    /// There are not enough bytes.
    pub fn u32(&mut self) -> Result<u32, FieldError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a 64-bit number.
    ///
    /// # Errors
    /// There are not enough bytes.
    pub fn u64(&mut self) -> Result<u64, FieldError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a truth value.
    ///
    /// # Errors
    /// The byte is neither 0 nor 1, or there is no byte.
    pub fn bool(&mut self) -> Result<bool, FieldError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FieldError),
        }
    }

    /// Reads a byte string, which is preceded by its length.
    ///
    /// # Errors
    /// It is longer than `max_len`, or there are not enough bytes.
    pub fn bytes(&mut self, max_len: usize) -> Result<Vec<u8>, FieldError> {
        let len = usize::from(self.array().map(u16::from_le_bytes)?);
        if len > max_len {
            return Err(FieldError);
        }
        let (head, rest) = self.0.split_at_checked(len).ok_or(FieldError)?;
        self.0 = rest;
        Ok(head.to_vec())
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is longer than [`MAX_TEXT_LEN`] or not UTF-8, or there are not enough bytes.
    pub fn text(&mut self) -> Result<String, FieldError> {
        String::from_utf8(self.bytes(MAX_TEXT_LEN)?).map_err(|_| FieldError)
    }

    /// Reads a list of items, which is preceded by their number.
    ///
    /// # Errors
    /// There are more than `max_count` items, or an item cannot be read.
    pub fn list<T>(
        &mut self,
        max_count: u8,
        item: impl Fn(&mut Self) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let count = self.u8()?;
        if count > max_count {
            return Err(FieldError);
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// Checks that all bytes have been read.
    ///
    /// # Errors
    /// There are more bytes.
    pub fn end(self) -> Result<(), FieldError> {
        if self.0.is_empty() { Ok(()) } else { Err(FieldError) }
    }
}

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// Adds bytes without their length.
    pub fn array(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Adds a 32-bit number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    /// Adds a 64-bit number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    /// Adds a byte string, preceded by its length. Bytes beyond the largest 16-bit length are cut
    /// off.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.array(&len.to_le_bytes()).array(&bytes[..usize::from(len)])
    }

    /// Adds a text. If it is longer than [`MAX_TEXT_LEN`], it is cut between two characters.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let end = (0..=MAX_TEXT_LEN.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        self.bytes(&text.as_bytes()[..end.unwrap_or(0)])
    }

    /// Adds a list of items, preceded by their number. At most 255 items are added.
    pub fn list<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) -> &mut Self {
        let count = u8::try_from(items.len()).unwrap_or(u8::MAX);
        self.u8(count);
        items.iter().take(usize::from(count)).for_each(|one| item(self, one));
        self
    }

    /// Returns all bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
