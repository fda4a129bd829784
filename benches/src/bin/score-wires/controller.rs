//! The lines that a process exchanges with its controller, over standard input and output.

use std::io::{Write, stdin, stdout};

use crate::BenchResult;

/// Sends a line to the controller.
pub fn write_line(line: &str) -> BenchResult<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Receives a line from the controller.
pub fn read_line() -> BenchResult<String> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Sends the local address and returns the peer's.
pub fn exchange(local_address: &[u8]) -> BenchResult<Vec<u8>> {
    write_line(&hex(local_address))?;
    unhex(&read_line()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> BenchResult<Vec<u8>> {
    let digits: Vec<_> = text.bytes().collect();
    let byte = |pair: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    digits.chunks(2).map(byte).collect()
}
