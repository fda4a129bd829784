//! The XSAVE area of a thread: x87, SSE, AVX and later extensions.

use super::error::TraceError;
use super::registers::{SpecialRegister, SpecialRegisters};
use super::sys;

const X87_CONTROL: usize = 0;
const X87_STATUS: usize = 2;
const MXCSR: usize = 24;
const X87_REGISTERS: usize = 32;
const XMM_REGISTERS: usize = 160;
/// The offset of the features of the area, which the kernel stores there.
const FEATURES: usize = 464;
/// The offset of the mask of components that are not in their initial state.
const USED_COMPONENTS: usize = 512;
/// The numbers of components.
const AVX: u32 = 2;
const MASKS: u32 = 5;
const ZMM_UPPER_HALVES: u32 = 6;
const ZMM_16_TO_31: u32 = 7;

/// A register of the XSAVE area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendedRegister {
    /// An x87 register, 0 to 7: 10 bytes.
    X87(usize),
    /// An SSE register: 16 bytes. 0 to 15, with AVX-512 0 to 31.
    Xmm(usize),
    /// An AVX register: 32 bytes. 0 to 15, with AVX-512 0 to 31.
    Ymm(usize),
    /// An AVX-512 register, 0 to 31: 64 bytes.
    Zmm(usize),
    /// A mask register of AVX-512, 0 to 7: 8 bytes.
    Mask(usize),
}

/// A part of a register: its position in the area, and the component that it belongs to.
struct Part {
    offset: usize,
    length: usize,
    component: u32,
}

fn word<const LEN: usize>(area: &[u8], offset: usize) -> [u8; LEN] {
    let bytes = area.get(offset..offset + LEN).and_then(|bytes| bytes.try_into().ok());
    bytes.unwrap_or([0; LEN])
}

fn set_word(area: &mut [u8], offset: usize, bytes: &[u8]) -> Result<(), TraceError> {
    let place = area.get_mut(offset..offset + bytes.len());
    let error = TraceError::Parameter("the processor has no such register");
    place.ok_or(error).map(|place| place.copy_from_slice(bytes))
}

/// The features of an area: bit 0 x87, bit 1 SSE, bit 2 AVX, and so on as in XCR0.
pub fn features(area: &[u8]) -> u64 {
    u64::from_ne_bytes(word(area, FEATURES))
}

/// Reads the control and status registers from an area.
pub fn read_control(area: &[u8], special: &mut SpecialRegisters) {
    special.x87_control = u16::from_ne_bytes(word(area, X87_CONTROL));
    special.x87_status = u16::from_ne_bytes(word(area, X87_STATUS));
    special.mxcsr = u32::from_ne_bytes(word(area, MXCSR));
}

/// Writes the control and status registers into an area.
pub fn set_control(area: &mut [u8], special: &SpecialRegisters) {
    let parts: [(usize, &[u8]); 3] = [
        (X87_CONTROL, &special.x87_control.to_ne_bytes()),
        (X87_STATUS, &special.x87_status.to_ne_bytes()),
        (MXCSR, &special.mxcsr.to_ne_bytes()),
    ];
    for (offset, bytes) in parts {
        // Every area has these registers.
        _ = set_word(area, offset, bytes);
    }
    mark_used(area, 0b11);
}

/// Writes one control or status register into an area.
///
/// # Errors
/// Returns `Parameter` if the value is too large.
pub fn set_one_control(
    area: &mut [u8],
    register: SpecialRegister,
    value: u64,
) -> Result<(), TraceError> {
    let mut special = SpecialRegisters::default();
    read_control(area, &mut special);
    let error = TraceError::Parameter("the value is too large for the register");
    match register {
        SpecialRegister::Mxcsr => special.mxcsr = u32::try_from(value).map_err(|_| error)?,
        SpecialRegister::X87Control => {
            special.x87_control = u16::try_from(value).map_err(|_| error)?;
        }
        _ => special.x87_status = u16::try_from(value).map_err(|_| error)?,
    }
    set_control(area, &special);
    Ok(())
}

/// Marks components as used. The kernel would reset a component that is marked as unused.
fn mark_used(area: &mut [u8], components: u64) {
    let used = u64::from_ne_bytes(word(area, USED_COMPONENTS)) | components;
    _ = set_word(area, USED_COMPONENTS, &used.to_ne_bytes());
}

fn parts_of(register: ExtendedRegister) -> Option<Vec<Part>> {
    // The first `length` bytes of an element of a component.
    let part = |component: u32, element_len: usize, number: usize, length: usize| {
        let (offset, component_len) = sys::extended_component(component)?;
        let within = element_len * number;
        let part = Part { offset: offset + within, length, component };
        (within + element_len <= component_len).then_some(part)
    };
    let xmm =
        |number: usize| Part { offset: XMM_REGISTERS + 16 * number, length: 16, component: 1 };
    // The component of registers 16 to 31 has all bytes of each register.
    let upper = |number: usize, length: usize| part(ZMM_16_TO_31, 64, number - 16, length);
    Some(match register {
        ExtendedRegister::X87(number @ 0..=7) => {
            vec![Part { offset: X87_REGISTERS + 16 * number, length: 10, component: 0 }]
        }
        ExtendedRegister::Xmm(number @ 0..=15) => vec![xmm(number)],
        ExtendedRegister::Xmm(number @ 16..=31) => vec![upper(number, 16)?],
        ExtendedRegister::Ymm(number @ 0..=15) => vec![xmm(number), part(AVX, 16, number, 16)?],
        ExtendedRegister::Ymm(number @ 16..=31) => vec![upper(number, 32)?],
        ExtendedRegister::Zmm(number @ 0..=15) => {
            vec![xmm(number), part(AVX, 16, number, 16)?, part(ZMM_UPPER_HALVES, 32, number, 32)?]
        }
        ExtendedRegister::Zmm(number @ 16..=31) => vec![upper(number, 64)?],
        ExtendedRegister::Mask(number @ 0..=7) => vec![part(MASKS, 8, number, 8)?],
        _ => return None,
    })
}

/// The bytes of a register. `None` if the processor has no such register.
pub fn register(area: &[u8], register: ExtendedRegister) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for part in parts_of(register)? {
        bytes.extend_from_slice(area.get(part.offset..part.offset + part.length)?);
    }
    Some(bytes)
}

/// Sets a register. The bytes of the register after the value are unchanged.
///
/// # Errors
/// Returns `Parameter` if the processor has no such register, or if the value is longer than the
/// register.
pub fn set_register(
    area: &mut [u8],
    register: ExtendedRegister,
    value: &[u8],
) -> Result<(), TraceError> {
    let error = TraceError::Parameter("the processor has no such register");
    let parts = parts_of(register).ok_or(error)?;
    if value.len() > parts.iter().map(|part| part.length).sum() {
        return Err(TraceError::Parameter("the value is too long for the register"));
    }
    let mut rest = value;
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.length));
        if now.is_empty() {
            break;
        }
        set_word(area, part.offset, now)?;
        mark_used(area, 1 << part.component);
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_found_in_their_parts() {
        let mut area = vec![0; 4096];
        let ymm = ExtendedRegister::Ymm(3);
        if sys::extended_component(AVX).is_none() {
            println!("skipped: the processor has no AVX");
            return;
        }
        let value: Vec<u8> = (1..=32).collect();
        set_register(&mut area, ymm, &value).unwrap();
        assert_eq!(register(&area, ymm).unwrap(), value);
        assert_eq!(register(&area, ExtendedRegister::Xmm(3)).unwrap(), value[..16]);
        assert_eq!(area[160 + 48], 1);
        assert_eq!(u64::from_ne_bytes(word(&area, USED_COMPONENTS)), 0b110);
        assert!(set_register(&mut area, ymm, &[0; 33]).is_err());
        assert!(set_register(&mut area, ExtendedRegister::Xmm(32), &[0]).is_err());
        set_one_control(&mut area, SpecialRegister::Mxcsr, 0x1f80).unwrap();
        assert!(set_one_control(&mut area, SpecialRegister::X87Control, 1 << 16).is_err());
        let mut special = SpecialRegisters::default();
        read_control(&area, &mut special);
        assert_eq!(special.mxcsr, 0x1f80);
    }

    #[test]
    fn registers_16_to_31_are_parts_of_one_another() {
        let mut area = vec![0; 4096];
        let (xmm, ymm, zmm) =
            (ExtendedRegister::Xmm(17), ExtendedRegister::Ymm(17), ExtendedRegister::Zmm(17));
        if sys::extended_component(ZMM_16_TO_31).is_none() {
            assert!([xmm, ymm, zmm].iter().all(|it| register(&area, *it).is_none()));
            assert!(set_register(&mut area, xmm, &[1; 16]).is_err());
            return;
        }
        let value: Vec<u8> = (1..=64).collect();
        set_register(&mut area, zmm, &value).unwrap();
        assert_eq!(register(&area, ymm).unwrap(), value[..32]);
        assert_eq!(register(&area, xmm).unwrap(), value[..16]);
        set_register(&mut area, ymm, &[0xaa; 32]).unwrap();
        set_register(&mut area, xmm, &[0xbb; 16]).unwrap();
        assert!(set_register(&mut area, xmm, &[0xbb; 17]).is_err());
        let expected = [&[0xbb; 16][..], &[0xaa; 16], &value[32..]].concat();
        assert_eq!(register(&area, zmm).unwrap(), expected);
        assert_eq!(u64::from_ne_bytes(word(&area, USED_COMPONENTS)), 1 << ZMM_16_TO_31);
        let neighbours = [ExtendedRegister::Zmm(16), ExtendedRegister::Zmm(18)];
        assert!(neighbours.iter().all(|it| register(&area, *it).unwrap() == [0; 64]));
    }
}
