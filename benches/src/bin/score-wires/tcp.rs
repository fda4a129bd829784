//! The peer of the latency: TCP with TCP_NODELAY, both sides spinning on a socket that does not
//! block.

use crate::Result;
use crate::end::{hear, say};
use crate::hosts::ADDRESSES;
use crate::pass::{Rounds, SIZE};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Measures or serves.
pub fn run(measures: bool, time: Duration) -> Result<()> {
    if measures {
        say("-")?;
        let stream = TcpStream::connect((ADDRESSES[1], hear()?.parse::<u16>()?))?;
        let mut stream = set_up(stream)?;
        let mut rounds = Rounds::new(time);
        while rounds.go_on() {
            rounds.batch(|| {
                write(&mut stream)?;
                read(&mut stream)
            })?;
        }
        return say(&rounds.one_way());
    }
    let listener = TcpListener::bind((ADDRESSES[1], 0))?;
    say(&listener.local_addr()?.port().to_string())?;
    hear()?;
    let mut stream = set_up(listener.accept()?.0)?;
    // Ends when the other closes.
    while read(&mut stream).is_ok() {
        write(&mut stream)?;
    }
    Ok(())
}

/// A connection for spinning.
pub fn set_up(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Sends the message.
pub fn write(stream: &mut TcpStream) -> Result<()> {
    // A socket buffer has room for 8 bytes.
    Ok(stream.write_all(&[1; SIZE])?)
}

/// Takes it.
pub fn read(stream: &mut TcpStream) -> Result<()> {
    let (mut buffer, mut have) = ([0; SIZE], 0);
    while have < SIZE {
        match stream.read(&mut buffer[have..]) {
            Ok(0) => return Err("closed".into()),
            Ok(more) => have += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Looks once, finding nothing.
pub fn poll(stream: &mut TcpStream) -> Result<()> {
    match stream.read(&mut [0; SIZE]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        other => Err(format!("not empty: {other:?}").into()),
    }
}
