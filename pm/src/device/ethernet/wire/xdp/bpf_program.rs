//! The BPF program that the kernel runs for each frame of the interface. It passes frames for this
//! process to its socket, and all others to the network stack. The program is assembled here from
//! instructions.

// UNSAFETY: makes the bpf system call, which has no wrapper.
#![expect(unsafe_code)]

use super::ether_header::{self, MacEndpoint};
use nix::errno::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// From the kernel's <linux/bpf.h>.
const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_PASS: i32 = 2;
const HELPER_REDIRECT_MAP: i32 = 51;
const PSEUDO_MAP_FD: u8 = 1;

/// One BPF instruction.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The source register in the upper four bits, the destination register in the lower four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: src << 4 | dst, offset, immediate }
}

/// Loads a value of `size` at `src` + `offset` into `dst`. The codes of sizes are those of the
/// instruction set.
const fn load(size: u8, dst: u8, src: u8, offset: i16) -> Instruction {
    instruction(0x61 | size, dst, src, offset, 0)
}
const BPF_W: u8 = 0x00;
const BPF_H: u8 = 0x08;
const fn copy(dst: u8, src: u8) -> Instruction {
    instruction(0xbf, dst, src, 0, 0)
}
const fn set(dst: u8, value: i32) -> Instruction {
    instruction(0xb7, dst, 0, 0, value)
}
const fn add(dst: u8, value: i32) -> Instruction {
    instruction(0x07, dst, 0, 0, value)
}
/// Jumps `offset` instructions ahead if the lower 32 bits of `register` are not `value`.
const fn jump_if_not_equal(register: u8, value: i32, offset: i16) -> Instruction {
    instruction(0x56, register, 0, offset, value)
}
const fn jump_if_above(register: u8, other: u8, offset: i16) -> Instruction {
    instruction(0x2d, register, other, offset, 0)
}

/// Offsets in the program's context, `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// A value that a frame must have at an offset to reach the socket. `expected` is in the byte order
/// in which the processor loads it.
struct FrameMatch {
    load_size: u8,
    offset: usize,
    expected: i32,
}

fn match_word(offset: usize, bytes: [u8; 4]) -> FrameMatch {
    FrameMatch { load_size: BPF_W, offset, expected: i32::from_ne_bytes(bytes) }
}

fn match_half(offset: usize, bytes: [u8; 2]) -> FrameMatch {
    FrameMatch { load_size: BPF_H, offset, expected: i32::from(u16::from_ne_bytes(bytes)) }
}

/// Assembles the program for the endpoint `local`, which checks the secret if there is one. `map`
/// is the descriptor of the map that contains the socket.
fn program(local: MacEndpoint, secret: Option<u64>, map: i32) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = local.mac;
    let mut checks = vec![
        match_half(ether_header::ETHERTYPE_OFFSET, ether_header::ETHERTYPE.to_be_bytes()),
        match_half(ether_header::PORT_OFFSET, local.port.to_be_bytes()),
        match_word(0, [a, b, c, d]),
        match_half(4, [e, f]),
    ];
    checks.extend(
        secret
            .into_iter()
            .flat_map(ether_header::secret_words)
            .map(|(offset, part)| match_word(offset, part)),
    );
    let min_len =
        checks.iter().map(|check| check.offset + 4).fold(ether_header::HEADER, usize::max);
    let mut program = vec![
        load(BPF_W, 2, 1, DATA),
        load(BPF_W, 3, 1, DATA_END),
        copy(4, 2),
        add(4, min_len as i32),
    ];
    // The distance from the length check to the instruction that passes the frame to the network
    // stack: two instructions for each check, and six that redirect the frame to the socket.
    let mut jump_distance = 2 * checks.len() as i16 + 6;
    program.push(jump_if_above(4, 3, jump_distance));
    for check in checks {
        jump_distance -= 2;
        program.push(load(check.load_size, 5, 2, check.offset as i16));
        program.push(jump_if_not_equal(5, check.expected, jump_distance));
    }
    program.extend([
        load(BPF_W, 2, 1, QUEUE),
        instruction(0x18, 1, PSEUDO_MAP_FD, 0, map), // two instructions: a 64-bit constant
        instruction(0, 0, 0, 0, 0),
        set(3, XDP_PASS), // the result if the map has no socket for the queue
        instruction(0x85, 0, 0, 0, HELPER_REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0), // exit with the helper's result
        set(0, XDP_PASS),
        instruction(0x95, 0, 0, 0, 0),
    ]);
    program
}

fn bpf<T>(command: i64, attributes: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: each caller passes the attributes of its command, of which the kernel reads `size`
    // bytes. Pointers in the attributes point to values that outlive the call.
    let code =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size) };
    Ok(Errno::result(code)? as i32)
}

fn descriptor(fd: i32) -> OwnedFd {
    // SAFETY: the bpf call returned a new descriptor, which no other code uses.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Creates a map that contains the socket for the first queue.
fn map(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct MapCreateAttr {
        kind: u32,
        key_size: u32,
        value_size: u32,
        entries: u32,
        flags: u32,
    }
    #[repr(C)]
    struct MapUpdateAttr {
        map: u32,
        _pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut create =
        MapCreateAttr { kind: MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, entries: 1, flags: 0 };
    let map = descriptor(bpf(MAP_CREATE, &mut create)?);
    let (queue, value) = (0u32, socket.as_raw_fd());
    let mut update = MapUpdateAttr {
        map: map.as_raw_fd() as u32,
        _pad: 0,
        key: &raw const queue as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE, &mut update)?;
    Ok(map)
}

/// Loads the program that passes frames for `local` to `socket`. If there is a secret, a frame must
/// also carry it.
pub fn load_for(
    socket: BorrowedFd<'_>,
    local: MacEndpoint,
    secret: Option<u64>,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct ProgLoadAttr {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
    }
    // The program holds a reference to the map.
    let map = map(socket)?;
    let program = program(local, secret, map.as_raw_fd());
    let mut name = [0; 16];
    name[..10].copy_from_slice(b"score_wire");
    let mut attributes = ProgLoadAttr {
        kind: PROG_TYPE_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        // The helper function that the program calls requires no other licence.
        license: c"MIT".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name,
    };
    bpf(PROG_LOAD, &mut attributes).map(descriptor)
}

/// Attaches the program to an interface. It stays attached until the last descriptor of the
/// returned BPF link is closed.
pub fn attach(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreateAttr {
        program: u32,
        interface: u32,
        kind: u32,
        flags: u32,
    }
    let mut attributes = LinkCreateAttr {
        program: program.as_raw_fd() as u32,
        interface: index,
        kind: ATTACH_XDP,
        flags: FLAGS_SKB_MODE,
    };
    bpf(LINK_CREATE, &mut attributes).map(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_targets_the_instruction_that_passes_the_frame_to_the_kernel() {
        let local = MacEndpoint { mac: [2, 0, 0, 0, 0, 1], port: 7 };
        for (secret, checks) in [(None, 4), (Some(9), 6)] {
            let program = program(local, secret, 3);
            let jumps =
                program.iter().enumerate().filter(|(_, one)| [0x56, 0x2d].contains(&one.code));
            let mut count = 0;
            for (index, instruction) in jumps {
                let target = index + 1 + instruction.offset as usize;
                assert_eq!(program[target], set(0, XDP_PASS), "from {index}");
                count += 1;
            }
            assert_eq!(count, 1 + checks);
        }
    }
}
