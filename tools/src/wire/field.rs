//! The encoding of values in messages. Each record is described once, by its fields and their
//! offsets. Macros derive encoding, decoding, the check of the layout, and the comparison with the
//! C header.

/// Why a record cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadError {
    /// The record is too short, or shorter than the length that it states.
    Short,
    /// This field has an invalid value.
    Value(&'static str),
}

/// A value of fixed length, in the byte order of the host.
pub(super) trait Field: Sized {
    /// The length in bytes.
    const LEN: usize;
    /// Encodes the value into exactly `LEN` bytes.
    fn put(&self, bytes: &mut [u8]);
    /// Decodes the value from exactly `LEN` bytes. Returns `None` if the bytes are not a valid
    /// value.
    fn get(bytes: &[u8]) -> Option<Self>;
    /// A random value of this type, for tests.
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self;
}

macro_rules! number_fields {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const LEN: usize = size_of::<$number>();
            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            fn get(bytes: &[u8]) -> Option<Self> {
                Some(<$number>::from_ne_bytes(bytes.try_into().ok()?))
            }
            #[cfg(test)]
            fn sample(random: &mut dyn FnMut() -> u64) -> Self {
                random() as $number
            }
        }
    )*};
}
number_fields!(u8, u16, u32, u64, i32, i64);

impl<F: Field + Copy, const N: usize> Field for [F; N] {
    const LEN: usize = N * F::LEN;
    fn put(&self, bytes: &mut [u8]) {
        self.iter().zip(bytes.chunks_exact_mut(F::LEN)).for_each(|(one, bytes)| one.put(bytes));
    }
    fn get(bytes: &[u8]) -> Option<Self> {
        let all: Option<Vec<F>> = bytes.chunks_exact(F::LEN).map(F::get).collect();
        all?.try_into().ok()
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        std::array::from_fn(|_| F::sample(random))
    }
}

/// The name and the position of a field in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldLayout {
    /// Its name, in Rust and in C.
    pub name: &'static str,
    /// Its offset in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The layout of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLayout {
    /// Its name in Rust. The name in C is `score_tools_` followed by the same name with
    /// underscores.
    pub name: &'static str,
    /// Its length in bytes, without final padding and without a variable part.
    pub len: usize,
    /// Its fields, in the order of their offsets.
    pub fields: &'static [FieldLayout],
}

/// The names and numbers of the values of an enum.
pub(super) type NamedNumbers = &'static [(&'static str, u64)];

/// A structure of fixed length. Bodies of messages start at offset 40, and data of commands at 8.
pub(super) trait Record: Sized {
    /// The layout of the record.
    const LAYOUT: RecordLayout;
    /// Encodes the record into `bytes`, which must have at least the length of the layout.
    fn put_fields(&self, bytes: &mut [u8]);
    /// Decodes the record. Ignores additional bytes, which a later version may have.
    fn get_fields(bytes: &[u8]) -> Result<Self, ReadError>;
    /// A random value of this type, for tests.
    #[cfg(test)]
    fn sample_fields(random: &mut dyn FnMut() -> u64) -> Self;
}

/// Decodes the field at this offset. Returns `None` if the bytes are too few or not a valid value.
pub(super) fn part<F: Field>(bytes: &[u8], offset: usize) -> Option<F> {
    F::get(bytes.get(offset..offset + F::LEN)?)
}

/// Encodes a field at this offset.
pub(super) fn put_at<F: Field>(bytes: &mut [u8], offset: usize, value: &F) {
    value.put(&mut bytes[offset..offset + F::LEN]);
}

/// Fails to compile if fields overlap, are out of order, or exceed the record.
pub(super) const fn check_layout(layout: &RecordLayout) {
    let mut end = 0;
    let mut index = 0;
    while index < layout.fields.len() {
        let field = &layout.fields[index];
        assert!(field.offset >= end, "fields are in order and do not overlap");
        end = field.offset + field.len;
        index += 1;
    }
    assert!(end <= layout.len, "a record has room for its fields");
}

/// Defines a record: `Name[bytes] { offset field: type, … }`.
macro_rules! record {
    ($(
        $(#[$doc:meta])*
        $name:ident[$len:literal] {
            $($(#[$field_doc:meta])* $offset:literal $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::wire::field::Record for $name {
            const LAYOUT: $crate::wire::field::RecordLayout = $crate::wire::field::RecordLayout {
                name: stringify!($name),
                len: $len,
                fields: &[$($crate::wire::field::FieldLayout {
                    name: stringify!($field),
                    offset: $offset,
                    len: <$type as $crate::wire::field::Field>::LEN,
                },)*],
            };
            #[allow(unused_variables)]
            fn put_fields(&self, bytes: &mut [u8]) {
                $($crate::wire::field::put_at(bytes, $offset, &self.$field);)*
            }
            fn get_fields(bytes: &[u8]) -> Result<Self, $crate::wire::field::ReadError> {
                use $crate::wire::field::ReadError;
                if bytes.len() < $len {
                    return Err(ReadError::Short);
                }
                Ok(Self {
                    $($field: $crate::wire::field::part(bytes, $offset)
                        .ok_or(ReadError::Value(stringify!($field)))?,)*
                })
            }
            #[cfg(test)]
            #[allow(unused_variables)]
            fn sample_fields(random: &mut dyn FnMut() -> u64) -> Self {
                Self { $($field: <$type as $crate::wire::field::Field>::sample(random),)* }
            }
        }
        const _: () = $crate::wire::field::check_layout(
            &<$name as $crate::wire::field::Record>::LAYOUT);
    )*};
}
pub(super) use record;

/// Defines an enum with its numbers on the wire: `Name: repr { number Variant, … }`.
macro_rules! numbered {
    ($(
        $(#[$doc:meta])*
        $name:ident: $repr:ty { $($(#[$variant_doc:meta])* $number:literal $variant:ident,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name { $($(#[$variant_doc])* $variant = $number,)* }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// All values with their names, for the comparison with the C header.
            pub(super) const NAMED: $crate::wire::field::NamedNumbers =
                &[$((stringify!($variant), $number),)*];

            /// The number on the wire.
            pub const fn number(self) -> $repr {
                self as $repr
            }

            /// The value with this number.
            pub fn from_number(number: $repr) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl $crate::wire::field::Field for $name {
            const LEN: usize = size_of::<$repr>();
            fn put(&self, bytes: &mut [u8]) {
                self.number().put(bytes);
            }
            fn get(bytes: &[u8]) -> Option<Self> {
                Self::from_number(<$repr>::get(bytes)?)
            }
            #[cfg(test)]
            fn sample(random: &mut dyn FnMut() -> u64) -> Self {
                Self::ALL[random() as usize % Self::ALL.len()]
            }
        }
    )*};
}
pub(super) use numbered;
