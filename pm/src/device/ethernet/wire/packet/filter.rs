//! The filter that the kernel runs on each frame of our EtherType before it enters the ring.

// UNSAFETY: setsockopt with a program that it points to.
#![expect(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Offset of the port in the frame.
const PORT: u32 = 14;

/// Lets frames pass that the NIC's own address was the destination of and whose port is `port`.
fn program(port: u16) -> [libc::sock_filter; 6] {
    let code =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load_word, load_half) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_LD | libc::BPF_H | libc::BPF_ABS);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    [
        code(load_word, 0, 0, packet_type),
        code(equal, 0, 3, u32::from(libc::PACKET_HOST)),
        code(load_half, 0, 0, PORT),
        code(equal, 0, 1, u32::from(port)),
        code(answer, 0, 0, u32::MAX),
        code(answer, 0, 0, 0),
    ]
}

pub fn attach(socket: BorrowedFd<'_>, port: u16) -> nix::Result<()> {
    let mut program = program(port);
    let whole = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the structure and the program that it points to; both live through
    // the call.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const whole).cast(),
            size_of_val(&whole) as libc::socklen_t,
        )
    };
    Errno::result(code).map(drop)
}
