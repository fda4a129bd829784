//! A token travels around a ring of nodes, each of which waits for it in a different way: `ring
//! [ROUNDS]`. Run it as `scrun -nodes=4 ring`.
#![forbid(unsafe_code)]

use std::io;

use score_runtime::{Net, sc};

// PM itself: score_runtime only declares its functions.
extern crate pm as _;

fn main() -> io::Result<()> {
    score_runtime::initialize();
    let rounds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(100u64);
    let Some(mut net) = Net::open(0) else {
        println!("one node: no ring");
        return Ok(());
    };
    let (self_node, nodes) = (net.self_node(), net.num_node());
    let next = (self_node + 1) % nodes;
    let mut token = 0u64;
    for round in 0..rounds {
        if self_node == 0 {
            send_token(&net, next, token + 1)?;
        }
        token = receive_token(&mut net, round)?;
        if self_node != 0 {
            send_token(&net, next, token + 1)?;
        }
    }
    println!("node {self_node}: {token} of {}", rounds * nodes as u64);
    sc::barrier()
}

/// Sends the token as a copy, or writes it into a send buffer that is truncated afterwards.
fn send_token(net: &Net, to: usize, token: u64) -> io::Result<()> {
    if token.is_multiple_of(2) {
        net.send(to, &token.to_le_bytes())
    } else {
        net.send_with(to, net.mtu(to)?, |buffer| {
            buffer[..8].copy_from_slice(&token.to_le_bytes());
            (8, ())
        })
    }
}

/// Waits for the token by sleeping, by spinning or by polling.
fn receive_token(net: &mut Net, round: u64) -> io::Result<u64> {
    let read = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a token of 8 bytes"));
    match round % 3 {
        0 => Ok(read(&net.receive_blocking()?)),
        1 => Ok(read(&net.receive_spin()?)),
        _ => loop {
            if let Some(message) = net.try_receive()? {
                return Ok(read(&message));
            }
            std::thread::yield_now();
        },
    }
}
