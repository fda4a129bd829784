//! The filter that the kernel runs on each frame before it enters the ring.

#![forbid(unsafe_code)]

use super::ether_header;
use crate::device::ethernet::wire::sockopt;
use socket2::{SockFilter, Socket};
use std::io;
use std::os::fd::AsFd;

/// Assembles the filter program. It accepts frames of the project's EtherType that are addressed to
/// this NIC and to `port`. If there is a secret, the packet must also carry it.
fn program(port: u16, secret: Option<u64>) -> Vec<libc::sock_filter> {
    let instruction =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load_word, load_half) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_LD | libc::BPF_H | libc::BPF_ABS);
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let mut checks = vec![
        (load_word, packet_type, u32::from(libc::PACKET_HOST)),
        (load_half, ether_header::ETHERTYPE_OFFSET as u32, u32::from(ether_header::ETHERTYPE)),
        (load_half, ether_header::PORT_OFFSET as u32, u32::from(port)),
    ];
    for (offset, bytes) in secret.into_iter().flat_map(ether_header::secret_words) {
        checks.push((load_word, offset as u32, u32::from_be_bytes(bytes)));
    }
    let count = checks.len();
    let mut program = Vec::with_capacity(2 * count + 2);
    for (number, (load, offset, expected)) in checks.into_iter().enumerate() {
        program.push(instruction(load, 0, 0, offset));
        // A failed check jumps to the last instruction.
        program.push(instruction(equal, 0, (2 * (count - number) - 1) as u8, expected));
    }
    program.extend([instruction(ret, 0, 0, u32::MAX), instruction(ret, 0, 0, 0)]);
    program
}

/// Attaches the filter to a socket. If there is a secret, it also locks the filter, so that a
/// process that has the socket can neither remove nor replace it.
pub fn attach(socket: &Socket, port: u16, secret: Option<u64>) -> io::Result<()> {
    let program = program(port, secret);
    let to_filter = |one: &libc::sock_filter| SockFilter::new(one.code, one.jt, one.jf, one.k);
    socket.attach_filter(&program.iter().map(to_filter).collect::<Vec<_>>())?;
    match secret {
        Some(_) => sockopt::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failed_check_jumps_to_the_instruction_that_drops_the_frame() {
        for (secret, checks) in [(None, 3), (Some(7), 5)] {
            let program = program(9, secret);
            let jumps = program.iter().enumerate().filter(|(_, one)| one.code & 7 == 5);
            let targets: Vec<_> = jumps.map(|(i, one)| i + 1 + usize::from(one.jf)).collect();
            assert_eq!(targets, vec![program.len() - 1; checks]);
            assert_eq!(program[program.len() - 1].k, 0);
        }
    }
}
