//! The fields of records and vouchers: numbers in little-endian order, and bytes after their
//! length.

/// The longest text in bytes. Longer ones are cut.
pub const MAX_TEXT_LEN: usize = 1024;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldError;

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a field is missing, too long or has no meaning")
    }
}

impl std::error::Error for FieldError {}

/// Reads fields one after the other.
#[derive(Debug)]
pub struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    /// A reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next bytes, a fixed number.
    ///
    /// # Errors
    /// There are not so many.
    pub fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FieldError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(FieldError)?;
        self.0 = rest;
        Ok(*head)
    }

    /// # Errors
    /// The bytes have ended.
    pub fn u8(&mut self) -> Result<u8, FieldError> {
        self.array().map(|[byte]| byte)
    }

    /// # Errors
    /// The bytes have ended.
    pub fn u32(&mut self) -> Result<u32, FieldError> {
        self.array().map(u32::from_le_bytes)
    }

    /// # Errors
    /// The bytes have ended.
    pub fn u64(&mut self) -> Result<u64, FieldError> {
        self.array().map(u64::from_le_bytes)
    }

    /// # Errors
    /// Neither 0 nor 1, or the bytes have ended.
    pub fn bool(&mut self) -> Result<bool, FieldError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FieldError),
        }
    }

    /// Bytes after their length.
    ///
    /// # Errors
    /// There are more than `max_len`, or fewer than the length says.
    pub fn bytes(&mut self, max_len: usize) -> Result<Vec<u8>, FieldError> {
        let len = usize::from(self.array().map(u16::from_le_bytes)?);
        if len > max_len {
            return Err(FieldError);
        }
        let (head, rest) = self.0.split_at_checked(len).ok_or(FieldError)?;
        self.0 = rest;
        Ok(head.to_vec())
    }

    /// A text.
    ///
    /// # Errors
    /// It is longer than [`MAX_TEXT_LEN`], not whole, or not UTF-8.
    pub fn text(&mut self) -> Result<String, FieldError> {
        String::from_utf8(self.bytes(MAX_TEXT_LEN)?).map_err(|_| FieldError)
    }

    /// A number of items after each other.
    ///
    /// # Errors
    /// There are more than `max_count`, or one of them cannot be read.
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

    /// All fields have been read.
    ///
    /// # Errors
    /// Bytes are left.
    pub fn end(self) -> Result<(), FieldError> {
        if self.0.is_empty() { Ok(()) } else { Err(FieldError) }
    }
}

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// Adds bytes without a length.
    pub fn array(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Adds a number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    /// Adds a number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    /// Adds the length of some bytes, and the bytes. What does not fit into a length is cut off.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.array(&len.to_le_bytes()).array(&bytes[..usize::from(len)])
    }

    /// Adds a text. A longer one than [`MAX_TEXT_LEN`] is cut, between two characters.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let end = (0..=MAX_TEXT_LEN.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        self.bytes(&text.as_bytes()[..end.unwrap_or(0)])
    }

    /// Adds a number of items, 255 at most.
    pub fn list<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) -> &mut Self {
        let count = u8::try_from(items.len()).unwrap_or(u8::MAX);
        self.u8(count);
        items.iter().take(usize::from(count)).for_each(|one| item(self, one));
        self
    }

    /// All bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
