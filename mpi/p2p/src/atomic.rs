//! Atomic operations on arrays of numbers (fi_atomic(3)). The arrays are bytes in this machine's
//! byte order, because all nodes of a job have the same byte order.

/// The type of an element, with libfabric's number (`enum fi_datatype`, fi_atomic(3)).
/// `FI_LONG_DOUBLE` is missing, because its format differs between processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Datatype {
    /// Signed, 8 bits.
    Int8 = 0,
    /// Unsigned, 8 bits.
    Uint8 = 1,
    /// Signed, 16 bits.
    Int16 = 2,
    /// Unsigned, 16 bits.
    Uint16 = 3,
    /// Signed, 32 bits.
    Int32 = 4,
    /// Unsigned, 32 bits.
    Uint32 = 5,
    /// Signed, 64 bits.
    Int64 = 6,
    /// Unsigned, 64 bits.
    Uint64 = 7,
    /// Floating point, 32 bits.
    Float = 8,
    /// Floating point, 64 bits.
    Double = 9,
    /// Two of [`Datatype::Float`].
    FloatComplex = 10,
    /// Two of [`Datatype::Double`].
    DoubleComplex = 11,
    /// Signed, 128 bits. libfabric's number is 14.
    Int128 = 12,
    /// Unsigned, 128 bits. libfabric's number is 15.
    Uint128 = 13,
}

/// The operator, with libfabric's number (`enum fi_op`, fi_atomic(3)). Each variant describes the
/// new value of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operator {
    /// The minimum of element and operand.
    Min = 0,
    /// The maximum of element and operand.
    Max = 1,
    /// The sum of element and operand.
    Sum = 2,
    /// The product of element and operand.
    Prod = 3,
    /// 1 if the element or the operand is not 0.
    LogicalOr = 4,
    /// 1 if the element and the operand are not 0.
    LogicalAnd = 5,
    /// The bitwise or.
    BitOr = 6,
    /// The bitwise and.
    BitAnd = 7,
    /// 1 if either the element or the operand, but not both, is not 0.
    LogicalXor = 8,
    /// The bitwise exclusive or.
    BitXor = 9,
    /// The element, unchanged.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand, if the value to compare with is equal to the element.
    CompareSwap = 12,
    /// The operand, if the value to compare with is not equal to the element.
    CompareSwapNotEqual = 13,
    /// The operand, if the value to compare with is less than or equal to the element.
    CompareSwapLessOrEqual = 14,
    /// The operand, if the value to compare with is less than the element.
    CompareSwapLess = 15,
    /// The operand, if the value to compare with is greater than or equal to the element.
    CompareSwapGreaterOrEqual = 16,
    /// The operand, if the value to compare with is greater than the element.
    CompareSwapGreater = 17,
    /// The operand's bits at the positions where the value to compare with has a 1. Other bits are
    /// unchanged.
    MaskSwap = 18,
    /// The element minus the operand.
    Difference = 19,
}

/// The longest array of an atomic operation, in bytes. Operands, values to compare with and a
/// header then fit into one message to any node (`PM_MIN_MTU`, manual, table 3.5).
pub const MAX_ATOMIC_LEN: usize = 480;

const DATATYPES: [Datatype; 14] = [
    Datatype::Int8,
    Datatype::Uint8,
    Datatype::Int16,
    Datatype::Uint16,
    Datatype::Int32,
    Datatype::Uint32,
    Datatype::Int64,
    Datatype::Uint64,
    Datatype::Float,
    Datatype::Double,
    Datatype::FloatComplex,
    Datatype::DoubleComplex,
    Datatype::Int128,
    Datatype::Uint128,
];

const OPERATORS: [Operator; 20] = [
    Operator::Min,
    Operator::Max,
    Operator::Sum,
    Operator::Prod,
    Operator::LogicalOr,
    Operator::LogicalAnd,
    Operator::BitOr,
    Operator::BitAnd,
    Operator::LogicalXor,
    Operator::BitXor,
    Operator::Read,
    Operator::Write,
    Operator::CompareSwap,
    Operator::CompareSwapNotEqual,
    Operator::CompareSwapLessOrEqual,
    Operator::CompareSwapLess,
    Operator::CompareSwapGreaterOrEqual,
    Operator::CompareSwapGreater,
    Operator::MaskSwap,
    Operator::Difference,
];

impl Datatype {
    /// The type with this number in a header.
    pub fn of_number(number: u8) -> Option<Self> {
        DATATYPES.get(usize::from(number)).copied()
    }

    /// The type with libfabric's number.
    pub fn of_libfabric(number: i32) -> Option<Self> {
        match number {
            0..12 => Self::of_number(number as u8),
            14 => Some(Datatype::Int128),
            15 => Some(Datatype::Uint128),
            _ => None,
        }
    }

    /// The size of an element, in bytes.
    pub fn size(self) -> usize {
        match self {
            Datatype::Int8 | Datatype::Uint8 => 1,
            Datatype::Int16 | Datatype::Uint16 => 2,
            Datatype::Int32 | Datatype::Uint32 | Datatype::Float => 4,
            Datatype::Int64 | Datatype::Uint64 | Datatype::Double | Datatype::FloatComplex => 8,
            Datatype::DoubleComplex | Datatype::Int128 | Datatype::Uint128 => 16,
        }
    }
}

impl Operator {
    /// The operator with this number, in a header and in libfabric.
    pub fn of_number(number: u8) -> Option<Self> {
        OPERATORS.get(usize::from(number)).copied()
    }

    /// Whether the operator needs values to compare with.
    pub fn compares(self) -> bool {
        self as u8 >= Operator::CompareSwap as u8 && self as u8 <= Operator::MaskSwap as u8
    }

    /// Whether the operator needs operands.
    pub fn has_operands(self) -> bool {
        self != Operator::Read
    }

    /// Whether the operator accepts elements of this type.
    pub fn takes(self, datatype: Datatype) -> bool {
        let mut element = [0; 16];
        let element = &mut element[..datatype.size()];
        let operand = [0; 16];
        let operand = &operand[..datatype.size()];
        apply_to_element(self, datatype, element, operand, operand).is_some()
    }
}

/// Operates on each element of `target`. Returns None and leaves `target` unchanged if the operator
/// does not accept the type, or if the lengths of the arrays do not fit.
pub fn apply(
    operator: Operator,
    datatype: Datatype,
    target: &mut [u8],
    operands: &[u8],
    compared: &[u8],
) -> Option<()> {
    let size = datatype.size();
    let is_long_enough = |needed: bool, values: &[u8]| !needed || values.len() == target.len();
    if !operator.takes(datatype)
        || !target.len().is_multiple_of(size)
        || !is_long_enough(operator.has_operands(), operands)
        || !is_long_enough(operator.compares(), compared)
    {
        return None;
    }
    for (index, element) in target.chunks_exact_mut(size).enumerate() {
        let range = index * size..(index + 1) * size;
        // The operator ignores a missing operand, so any value will do.
        let operand = operands.get(range.clone()).unwrap_or(&[0; 16][..size]);
        let compared = compared.get(range).unwrap_or(&[0; 16][..size]);
        apply_to_element(operator, datatype, element, operand, compared)?;
    }
    Some(())
}

fn apply_to_element(
    operator: Operator,
    datatype: Datatype,
    element: &mut [u8],
    operand: &[u8],
    compared: &[u8],
) -> Option<()> {
    macro_rules! with {
        ($operate:ident as $($type:ident)::+) => {{
            let value = |bytes: &[u8]| Some(<$($type)::+>::from_ne_bytes(bytes.try_into().ok()?));
            let result = $operate(operator, value(element)?, value(operand)?, value(compared)?)?;
            element.copy_from_slice(&result.to_ne_bytes());
        }};
    }
    match datatype {
        Datatype::Int8 => with!(operate_i8 as i8),
        Datatype::Uint8 => with!(operate_u8 as u8),
        Datatype::Int16 => with!(operate_i16 as i16),
        Datatype::Uint16 => with!(operate_u16 as u16),
        Datatype::Int32 => with!(operate_i32 as i32),
        Datatype::Uint32 => with!(operate_u32 as u32),
        Datatype::Int64 => with!(operate_i64 as i64),
        Datatype::Uint64 => with!(operate_u64 as u64),
        Datatype::Int128 => with!(operate_i128 as i128),
        Datatype::Uint128 => with!(operate_u128 as u128),
        Datatype::Float => with!(operate_f32 as f32),
        Datatype::Double => with!(operate_f64 as f64),
        Datatype::FloatComplex => with!(operate_complex_f32 as ComplexF32),
        Datatype::DoubleComplex => with!(operate_complex_f64 as ComplexF64),
    }
    Some(())
}

/// Defines a function for each integer type. Sums and products wrap around.
macro_rules! operate_on_integers {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        fn $name(operator: Operator, old: $type, operand: $type, compared: $type) -> Option<$type> {
            let truth = |value: bool| <$type>::from(value);
            Some(match operator {
                Operator::Min => old.min(operand),
                Operator::Max => old.max(operand),
                Operator::Sum => old.wrapping_add(operand),
                Operator::Prod => old.wrapping_mul(operand),
                Operator::LogicalOr => truth(old != 0 || operand != 0),
                Operator::LogicalAnd => truth(old != 0 && operand != 0),
                Operator::LogicalXor => truth((old != 0) != (operand != 0)),
                Operator::BitOr => old | operand,
                Operator::BitAnd => old & operand,
                Operator::BitXor => old ^ operand,
                Operator::Read => old,
                Operator::Write => operand,
                Operator::MaskSwap => (operand & compared) | (old & !compared),
                Operator::Difference => old.wrapping_sub(operand),
                _ => if holds(operator, compared, old)? { operand } else { old },
            })
        }
    )*};
}

operate_on_integers! {
    operate_i8: i8, operate_u8: u8, operate_i16: i16, operate_u16: u16, operate_i32: i32,
    operate_u32: u32, operate_i64: i64, operate_u64: u64, operate_i128: i128, operate_u128: u128,
}

/// Defines the functions for floating-point types, which have no bitwise operators.
macro_rules! operate_on_floats {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        fn $name(operator: Operator, old: $type, operand: $type, compared: $type) -> Option<$type> {
            let truth = |value: bool| if value { 1.0 } else { 0.0 };
            Some(match operator {
                Operator::Min => if operand < old { operand } else { old },
                Operator::Max => if operand > old { operand } else { old },
                Operator::Sum => old + operand,
                Operator::Prod => old * operand,
                Operator::LogicalOr => truth(old != 0.0 || operand != 0.0),
                Operator::LogicalAnd => truth(old != 0.0 && operand != 0.0),
                Operator::LogicalXor => truth((old != 0.0) != (operand != 0.0)),
                Operator::Read => old,
                Operator::Write => operand,
                Operator::Difference => old - operand,
                _ => if holds(operator, compared, old)? { operand } else { old },
            })
        }
    )*};
}

operate_on_floats! { operate_f32: f32, operate_f64: f64 }

/// Defines the functions for complex types, which have no bitwise operators and no order.
macro_rules! operate_on_complex {
    ($($name:ident: $type:ident of $part:ty, $len:literal),* $(,)?) => {$(
        #[derive(Clone, Copy, PartialEq)]
        struct $type {
            re: $part,
            im: $part,
        }

        impl $type {
            const ZERO: Self = Self { re: 0.0, im: 0.0 };

            fn from_ne_bytes(bytes: [u8; 2 * $len]) -> Self {
                let (mut re, mut im) = ([0; $len], [0; $len]);
                re.copy_from_slice(&bytes[..$len]);
                im.copy_from_slice(&bytes[$len..]);
                Self { re: <$part>::from_ne_bytes(re), im: <$part>::from_ne_bytes(im) }
            }

            fn to_ne_bytes(self) -> [u8; 2 * $len] {
                let mut bytes = [0; 2 * $len];
                bytes[..$len].copy_from_slice(&self.re.to_ne_bytes());
                bytes[$len..].copy_from_slice(&self.im.to_ne_bytes());
                bytes
            }
        }

        fn $name(operator: Operator, old: $type, operand: $type, compared: $type) -> Option<$type> {
            let truth = |value: bool| $type { re: if value { 1.0 } else { 0.0 }, im: 0.0 };
            let (is_old, is_operand) = (old != $type::ZERO, operand != $type::ZERO);
            Some(match operator {
                Operator::Sum => $type { re: old.re + operand.re, im: old.im + operand.im },
                Operator::Difference => $type { re: old.re - operand.re, im: old.im - operand.im },
                Operator::Prod => $type {
                    re: old.re * operand.re - old.im * operand.im,
                    im: old.re * operand.im + old.im * operand.re,
                },
                Operator::LogicalOr => truth(is_old || is_operand),
                Operator::LogicalAnd => truth(is_old && is_operand),
                Operator::LogicalXor => truth(is_old != is_operand),
                Operator::Read => old,
                Operator::Write => operand,
                Operator::CompareSwap => if compared == old { operand } else { old },
                Operator::CompareSwapNotEqual => if compared != old { operand } else { old },
                _ => return None,
            })
        }
    )*};
}

operate_on_complex! {
    operate_complex_f32: ComplexF32 of f32, 4,
    operate_complex_f64: ComplexF64 of f64, 8,
}

/// Whether the comparison of the operator holds. None: the operator does not compare.
fn holds<T: PartialOrd>(operator: Operator, compared: T, old: T) -> Option<bool> {
    Some(match operator {
        Operator::CompareSwap => compared == old,
        Operator::CompareSwapNotEqual => compared != old,
        Operator::CompareSwapLessOrEqual => compared <= old,
        Operator::CompareSwapLess => compared < old,
        Operator::CompareSwapGreaterOrEqual => compared >= old,
        Operator::CompareSwapGreater => compared > old,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i32s(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn doubles(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn each_operator_conforms_to_fi_atomic() {
        let old = [5, -3, 0, i32::MAX];
        let operand = [2, 7, 0, 1];
        let compared = [5, -4, 1, 6];
        for (operator, expected) in [
            (Operator::Min, [2, -3, 0, 1]),
            (Operator::Max, [5, 7, 0, i32::MAX]),
            (Operator::Sum, [7, 4, 0, i32::MIN]),
            (Operator::Difference, [3, -10, 0, i32::MAX - 1]),
            (Operator::Prod, [10, -21, 0, i32::MAX]),
            (Operator::LogicalOr, [1, 1, 0, 1]),
            (Operator::LogicalAnd, [1, 1, 0, 1]),
            (Operator::LogicalXor, [0, 0, 0, 0]),
            (Operator::BitOr, [7, -1, 0, i32::MAX]),
            (Operator::BitAnd, [0, 5, 0, 1]),
            (Operator::BitXor, [7, -6, 0, i32::MAX - 1]),
            (Operator::Read, old),
            (Operator::Write, operand),
            (Operator::CompareSwap, [2, -3, 0, i32::MAX]),
            (Operator::CompareSwapNotEqual, [5, 7, 0, 1]),
            (Operator::CompareSwapLessOrEqual, [2, 7, 0, 1]),
            (Operator::CompareSwapLess, [5, 7, 0, 1]),
            (Operator::CompareSwapGreaterOrEqual, [2, -3, 0, i32::MAX]),
            (Operator::CompareSwapGreater, [5, -3, 0, i32::MAX]),
            (Operator::MaskSwap, [0, 7 & -4 | -3 & 3, 0, i32::MAX & !6]),
        ] {
            let mut target = i32s(&old);
            let done =
                apply(operator, Datatype::Int32, &mut target, &i32s(&operand), &i32s(&compared));
            assert_eq!((done, target), (Some(()), i32s(&expected)), "{operator:?}");
        }
    }

    #[test]
    fn floating_point_and_complex_numbers_have_their_operators() {
        let mut target = doubles(&[1.5, -2.0]);
        apply(Operator::Sum, Datatype::Double, &mut target, &doubles(&[1.0, 0.5]), &[]).unwrap();
        assert_eq!(target, doubles(&[2.5, -1.5]));
        let mut target = doubles(&[1.0, 2.0]);
        let product = doubles(&[3.0, 4.0]);
        apply(Operator::Prod, Datatype::DoubleComplex, &mut target, &product, &[]).unwrap();
        assert_eq!(target, doubles(&[-5.0, 10.0]));
        assert!(!Operator::Min.takes(Datatype::FloatComplex));
        assert!(!Operator::BitXor.takes(Datatype::Double));
        assert!(Operator::CompareSwapLess.takes(Datatype::Float));
        assert!(!Operator::CompareSwapLess.takes(Datatype::FloatComplex));
    }

    #[test]
    fn arrays_of_a_wrong_length_are_refused_and_the_target_is_unchanged() {
        let (old, operands) = (i32s(&[1, 2]), i32s(&[3, 4]));
        for (operator, target_len, operand_len, compared_len) in [
            (Operator::Sum, 8, 4, 0),
            (Operator::Sum, 7, 7, 0),
            (Operator::CompareSwap, 8, 8, 4),
            (Operator::BitOr, 8, 0, 0),
        ] {
            let mut target = old[..target_len].to_vec();
            let (operands, compared) = (&operands[..operand_len], &operands[..compared_len]);
            assert_eq!(apply(operator, Datatype::Int32, &mut target, operands, compared), None);
            assert_eq!(target, old[..target_len]);
        }
    }

    #[test]
    fn numbers_are_those_of_libfabric() {
        for (number, datatype) in DATATYPES.into_iter().enumerate() {
            assert_eq!(Datatype::of_number(number as u8), Some(datatype));
            assert_eq!(datatype as usize, number);
        }
        for (number, operator) in OPERATORS.into_iter().enumerate() {
            assert_eq!(Operator::of_number(number as u8), Some(operator));
            assert_eq!(operator as usize, number);
        }
        assert_eq!([12, 13, 14, 16].map(Datatype::of_libfabric)[..2], [None, None]);
        assert_eq!(Datatype::of_libfabric(14), Some(Datatype::Int128));
        assert_eq!((Datatype::of_number(14), Operator::of_number(20)), (None, None));
    }
}
