//! The registers of x86-64 in the remote protocol: their order, and their description for
//! debuggers. This module also has the offsets of their bytes in answers of the tool control
//! service.

use std::fmt::Write;
use std::num::NonZeroUsize;

use gdbstub::arch::{Arch, RegId};
use score_tools::wire::{GENERAL_REGISTERS, SPECIAL_REGISTERS, SpecialRegister};

/// The location of a register in the answers of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    General(usize),
    Special(SpecialRegister),
    /// At this offset of the XSAVE area.
    Area(usize),
    /// The tags of the x87 registers. The XSAVE area has them in a shorter form.
    X87Tags,
}

/// A register: its name, its length in the protocol, its type in the description, its location, and
/// its length at that location. Lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Register {
    name: String,
    length: usize,
    kind: &'static str,
    place: Place,
    stored: usize,
}

/// A feature of the description, and its registers.
type Feature = (&'static str, Vec<Register>);

/// Offsets of the XSAVE area in its standard form.
const AREA_X87: usize = 32;
const AREA_XMM: usize = 160;
const AREA_MXCSR: usize = 24;
const AREA_FEATURES: usize = 512;
const AREA_YMM_UPPER: usize = 576;
const AREA_TAGS: usize = 4;
/// The length of the part that is used here.
const AREA_LEN: usize = AREA_YMM_UPPER + 16 * 16;
/// The bit of AVX in the set of state components.
const AVX: u64 = 1 << 2;
/// The shift of the top of the x87 stack in the status word.
const TOP_SHIFT: u32 = 11;

const GENERAL_NAMES: [&str; GENERAL_REGISTERS] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// All registers, in the order of the protocol.
fn features() -> Vec<Feature> {
    let register = |name: &str, length, kind, place, stored| Register {
        name: name.to_owned(),
        length,
        kind,
        place,
        stored,
    };
    let special =
        |name: &str, length, kind, which| register(name, length, kind, Place::Special(which), 8);
    let x87 = |name: &str, place, stored| register(name, 4, "int", place, stored);
    let vector = |name: String, kind, offset| register(&name, 16, kind, Place::Area(offset), 16);
    let mut core: Vec<Register> = (0..)
        .zip(GENERAL_NAMES)
        .map(|(index, name)| {
            let kind = if ["rbp", "rsp"].contains(&name) { "data_ptr" } else { "int64" };
            register(name, 8, kind, Place::General(index), 8)
        })
        .collect();
    core.extend([
        special("rip", 8, "code_ptr", SpecialRegister::Rip),
        special("eflags", 4, "int", SpecialRegister::Eflags),
        special("cs", 4, "int", SpecialRegister::Cs),
        special("ss", 4, "int", SpecialRegister::Ss),
        special("ds", 4, "int", SpecialRegister::Ds),
        special("es", 4, "int", SpecialRegister::Es),
        special("fs", 4, "int", SpecialRegister::Fs),
        special("gs", 4, "int", SpecialRegister::Gs),
    ]);
    core.extend((0..8).map(|number| {
        let place = Place::Area(AREA_X87 + number * 16);
        register(&format!("st{number}"), 10, "i387_ext", place, 10)
    }));
    core.extend([
        x87("fctrl", Place::Area(0), 2),
        x87("fstat", Place::Area(2), 2),
        x87("ftag", Place::X87Tags, 2),
        x87("fiseg", Place::Area(12), 2),
        x87("fioff", Place::Area(8), 4),
        x87("foseg", Place::Area(20), 2),
        x87("fooff", Place::Area(16), 4),
        x87("fop", Place::Area(6), 2),
    ]);
    let xmm = |number: usize| vector(format!("xmm{number}"), "vec128", AREA_XMM + number * 16);
    let mut sse: Vec<Register> = (0..16).map(xmm).collect();
    sse.push(register("mxcsr", 4, "int", Place::Area(AREA_MXCSR), 4));
    let ymm =
        |number: usize| vector(format!("ymm{number}h"), "uint128", AREA_YMM_UPPER + number * 16);
    vec![
        ("org.gnu.gdb.i386.core", core),
        ("org.gnu.gdb.i386.sse", sse),
        ("org.gnu.gdb.i386.linux", vec![special("orig_rax", 8, "int", SpecialRegister::OrigRax)]),
        (
            "org.gnu.gdb.i386.segments",
            vec![
                special("fs_base", 8, "int", SpecialRegister::FsBase),
                special("gs_base", 8, "int", SpecialRegister::GsBase),
            ],
        ),
        ("org.gnu.gdb.i386.avx", (0..16).map(ymm).collect()),
    ]
}

/// The types of vector registers, which the sse feature describes itself.
const VECTOR_TYPES: &str = r#"<vector id="v4f" type="ieee_single" count="4"/>
<vector id="v2d" type="ieee_double" count="2"/>
<vector id="v16i8" type="int8" count="16"/>
<vector id="v8i16" type="int16" count="8"/>
<vector id="v4i32" type="int32" count="4"/>
<vector id="v2i64" type="int64" count="2"/>
<union id="vec128">
<field name="v4_float" type="v4f"/>
<field name="v2_double" type="v2d"/>
<field name="v16_int8" type="v16i8"/>
<field name="v8_int16" type="v8i16"/>
<field name="v4_int32" type="v4i32"/>
<field name="v2_int64" type="v2i64"/>
<field name="uint128" type="uint128"/>
</union>
"#;

/// The registers of a processor, and their description.
#[derive(Debug)]
pub struct RegisterMap {
    registers: Vec<Register>,
    description: String,
}

/// The registers of a thread as the service returns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// General purpose registers.
    pub general: [u64; GENERAL_REGISTERS],
    /// Special registers.
    pub special: [u64; SPECIAL_REGISTERS],
    /// The XSAVE area.
    pub area: Vec<u8>,
}

impl RegisterMap {
    /// The registers of a processor with these state components (XCR0).
    pub fn new(components: u64) -> Self {
        let mut features = features();
        if components & AVX == 0 {
            features.pop();
        }
        let mut text = String::from(
            "<?xml version=\"1.0\"?>\n<!DOCTYPE target SYSTEM \"gdb-target.dtd\">\n\
             <target version=\"1.0\">\n<architecture>i386:x86-64</architecture>\n\
             <osabi>GNU/Linux</osabi>\n",
        );
        let mut registers = Vec::new();
        for (feature, list) in features {
            // Writing to a String cannot fail.
            _ = writeln!(text, "<feature name=\"{feature}\">");
            if feature.ends_with("sse") {
                text += VECTOR_TYPES;
            }
            for register in list {
                let Register { name, length, kind, .. } = &register;
                let (bits, number) = (length * 8, registers.len());
                _ = writeln!(
                    text,
                    "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\" regnum=\"{number}\"/>"
                );
                registers.push(register);
            }
            text += "</feature>\n";
        }
        text += "</target>\n";
        Self { registers, description: text }
    }

    /// The description for debuggers (target.xml).
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The bytes of all registers, in order.
    pub fn pack(&self, state: &ThreadRegisters) -> Vec<u8> {
        self.registers.iter().flat_map(|register| value_of(register, state)).collect()
    }

    /// The bytes of a register. `None` if there is no register with this number.
    pub fn value(&self, number: usize, state: &ThreadRegisters) -> Option<Vec<u8>> {
        Some(value_of(self.registers.get(number)?, state))
    }

    /// Sets all registers from their bytes, in order. If there are too few bytes, sets nothing and
    /// returns false.
    pub fn unpack(&self, mut bytes: &[u8], state: &mut ThreadRegisters) -> bool {
        let mut next = state.clone();
        for register in &self.registers {
            let Some((value, rest)) = bytes.split_at_checked(register.length) else { return false };
            set_value(register, value, &mut next);
            bytes = rest;
        }
        *state = next;
        true
    }

    /// Sets a register. Returns false if there is no register with this number, or if its length
    /// differs.
    pub fn set(&self, number: usize, bytes: &[u8], state: &mut ThreadRegisters) -> bool {
        match self.registers.get(number).filter(|register| register.length == bytes.len()) {
            Some(register) => {
                set_value(register, bytes, state);
                true
            }
            None => false,
        }
    }
}

fn value_of(register: &Register, state: &ThreadRegisters) -> Vec<u8> {
    let mut value = match register.place {
        Place::General(index) => state.general[index].to_le_bytes().to_vec(),
        Place::Special(which) => state.special[which.number() as usize].to_le_bytes().to_vec(),
        Place::Area(offset) => {
            let stored = state.area.get(offset..offset + register.stored);
            stored.map(<[u8]>::to_vec).unwrap_or_default()
        }
        Place::X87Tags => long_tags(&state.area).to_le_bytes().to_vec(),
    };
    value.resize(register.length, 0);
    value
}

fn set_value(register: &Register, value: &[u8], state: &mut ThreadRegisters) {
    let mut word = [0; 8];
    let low = value.len().min(8);
    word[..low].copy_from_slice(&value[..low]);
    let word = u64::from_le_bytes(word);
    match register.place {
        Place::General(index) => state.general[index] = word,
        Place::Special(which) => state.special[which.number() as usize] = word,
        Place::Area(offset) => {
            if let Some(stored) = state.area.get_mut(offset..offset + register.stored) {
                stored.copy_from_slice(&value[..register.stored]);
            }
            let double = match offset {
                0 => Some(SpecialRegister::X87Control),
                2 => Some(SpecialRegister::X87Status),
                AREA_MXCSR => Some(SpecialRegister::Mxcsr),
                _ => None,
            };
            // The service has these registers in both locations.
            if let Some(which) = double {
                state.special[which.number() as usize] = word & stored_mask(register.stored);
            }
            mark_component(offset, &mut state.area);
        }
        Place::X87Tags => {
            if let Some(tags) = state.area.get_mut(AREA_TAGS) {
                *tags = short_tags(word as u16);
            }
        }
    }
}

fn stored_mask(bytes: usize) -> u64 {
    u64::MAX >> (64 - bytes * 8)
}

/// Marks the component of the area that contains this offset as in use.
fn mark_component(offset: usize, area: &mut [u8]) {
    let component = match offset {
        AREA_MXCSR | AREA_XMM..AREA_FEATURES => 0b010,
        AREA_YMM_UPPER..AREA_LEN => 0b100,
        _ => 0b001,
    };
    if let Some(used) = area.get_mut(AREA_FEATURES) {
        *used |= component;
    }
}

/// The tags of the x87 registers, two bits each: 0 valid, 1 zero, 2 special, 3 empty. The area has
/// only one bit for each register, which is set if the register is not empty.
fn long_tags(area: &[u8]) -> u16 {
    let Some(head) = area.get(..AREA_XMM) else { return 0xffff };
    let top = u16::from_le_bytes([head[2], head[3]]) >> TOP_SHIFT & 7;
    let tag_of = |physical: u16| {
        if head[AREA_TAGS] >> physical & 1 == 0 {
            return 3;
        }
        let place = AREA_X87 + usize::from((physical + 8 - top) % 8) * 16;
        let exponent = u16::from_le_bytes([head[place + 8], head[place + 9]]) & 0x7fff;
        let is_zero = head[place..place + 8].iter().all(|byte| *byte == 0);
        let has_integer_bit = head[place + 7] & 0x80 != 0;
        match exponent {
            0 if is_zero => 1,
            0 | 0x7fff => 2,
            _ if has_integer_bit => 0,
            _ => 2,
        }
    };
    (0..8).fold(0, |tags, physical| tags | tag_of(physical) << (physical * 2))
}

fn short_tags(tags: u16) -> u8 {
    (0..8).fold(0, |short, physical| {
        let is_used = tags >> (physical * 2) & 3 != 3;
        short | u8::from(is_used) << physical
    })
}

/// The bytes of all registers of a thread, as the protocol carries them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisterBytes(pub Vec<u8>);

impl gdbstub::arch::Registers for RegisterBytes {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        let rip = self.0.get(GENERAL_REGISTERS * 8..GENERAL_REGISTERS * 8 + 8);
        rip.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.0.iter().for_each(|byte| write_byte(Some(*byte)));
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

/// The number of a register in the description.
#[derive(Debug, Clone, Copy)]
pub struct RegisterNumber(pub usize);

impl RegId for RegisterNumber {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        // The description gives the length.
        Some((Self(id), None))
    }
}

/// x86-64, described by [`RegisterMap`].
#[derive(Debug)]
pub enum X86 {}

impl Arch for X86 {
    type Usize = u64;
    type Registers = RegisterBytes;
    type BreakpointKind = usize;
    type RegId = RegisterNumber;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ThreadRegisters {
        let mut area: Vec<u8> = (0..AREA_LEN).map(|index| index as u8).collect();
        area[AREA_FEATURES] = 0;
        ThreadRegisters {
            general: std::array::from_fn(|index| index as u64 + 0x1_0000_0000),
            special: std::array::from_fn(|index| index as u64 + 100),
            area,
        }
    }

    #[test]
    fn registers_have_the_numbers_of_gdb_and_keep_their_values() {
        let map = RegisterMap::new(0b111);
        let number_of =
            |name| map.registers.iter().position(|register| register.name == name).unwrap();
        // The descriptions of gdb for amd64-linux have this order.
        let expected =
            [("rip", 16), ("gs", 23), ("st0", 24), ("fop", 39), ("xmm0", 40), ("mxcsr", 56)];
        for (name, number) in expected {
            assert_eq!(number_of(name), number, "{name}");
        }
        let mut next = state();
        // Several long forms of tags have the same short form.
        next.area[AREA_TAGS] = 0;
        let packed = map.pack(&next);
        let mut copy = ThreadRegisters { general: [0; 16], ..next.clone() };
        assert!(map.unpack(&packed, &mut copy));
        assert_eq!(copy.area[AREA_FEATURES], 0b111);
        copy.area[AREA_FEATURES] = 0;
        // Control and status words and mxcsr are taken from the area. The flags have 32 bits.
        let doubled =
            [SpecialRegister::Mxcsr, SpecialRegister::X87Control, SpecialRegister::X87Status];
        for which in doubled {
            copy.special[which.number() as usize] = next.special[which.number() as usize];
        }
        assert_eq!(copy, next);
        assert!(!map.unpack(&packed[1..], &mut copy));
        assert!(map.set(number_of("rip"), &7u64.to_le_bytes(), &mut next));
        assert_eq!(map.value(16, &next), Some(7u64.to_le_bytes().to_vec()));
        assert!(!map.set(number_of("rip"), &[1], &mut next) && !map.set(1000, &[1], &mut next));
        assert_eq!(gdbstub::arch::Registers::pc(&RegisterBytes(map.pack(&next))), 7);
    }

    #[test]
    fn a_processor_without_avx_has_no_ymm_registers() {
        let (with, without) = (RegisterMap::new(0b111), RegisterMap::new(0b011));
        assert!(with.description().contains("ymm15h"));
        assert!(!without.description().contains("ymm"));
        assert_eq!(with.registers.len(), without.registers.len() + 16);
    }

    #[test]
    fn tags_of_x87_registers_are_those_of_fsave() {
        let mut area = vec![0; AREA_LEN];
        assert_eq!(long_tags(&area), 0xffff);
        // The top is 6, so st0 is the physical register 6 and st1 is 7.
        area[3] = 6 << 3;
        area[AREA_TAGS] = 0b1100_0000;
        // st0 is 1.0, st1 is 0.0.
        area[AREA_X87 + 7] = 0x80;
        area[AREA_X87 + 8..AREA_X87 + 10].copy_from_slice(&0x3fffu16.to_le_bytes());
        assert_eq!(long_tags(&area), 0b0100_1111_1111_1111);
        assert_eq!(short_tags(0b0100_1111_1111_1111), 0b1100_0000);
    }
}
