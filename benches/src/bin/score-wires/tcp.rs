//! Measures the latency of TCP with TCP_NODELAY. Both sides spin on a non-blocking socket.

use crate::BenchResult;
use crate::controller::{read_line, write_line};
use crate::hosts::ADDRESSES;
use crate::raw_packets::{RoundTripTimer, SIZE};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Measures or serves.
pub fn run(is_measuring: bool, time: Duration) -> BenchResult<()> {
    if is_measuring {
        write_line("-")?;
        let stream = TcpStream::connect((ADDRESSES[1], read_line()?.parse::<u16>()?))?;
        let mut stream = set_up(stream)?;
        let mut timer = RoundTripTimer::new(time);
        while timer.has_time_left() {
            timer.measure_batch(|| {
                write(&mut stream)?;
                read(&mut stream)
            })?;
        }
        return write_line(&timer.one_way());
    }
    let listener = TcpListener::bind((ADDRESSES[1], 0))?;
    write_line(&listener.local_addr()?.port().to_string())?;
    read_line()?;
    let mut stream = set_up(listener.accept()?.0)?;
    // The loop ends when the peer closes the connection.
    while read(&mut stream).is_ok() {
        write(&mut stream)?;
    }
    Ok(())
}

/// Prepares a connection for spinning.
pub fn set_up(stream: TcpStream) -> BenchResult<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Sends the message.
pub fn write(stream: &mut TcpStream) -> BenchResult<()> {
    // A socket buffer always has space for 8 bytes.
    Ok(stream.write_all(&[1; SIZE])?)
}

/// Receives the message.
pub fn read(stream: &mut TcpStream) -> BenchResult<()> {
    let (mut buffer, mut received) = ([0; SIZE], 0);
    while received < SIZE {
        match stream.read(&mut buffer[received..]) {
            Ok(0) => return Err("closed".into()),
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Polls once. No data is expected.
pub fn poll(stream: &mut TcpStream) -> BenchResult<()> {
    match stream.read(&mut [0; SIZE]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        other => Err(format!("not empty: {other:?}").into()),
    }
}
