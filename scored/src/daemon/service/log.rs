//! The log of a service. Lines go to standard error, from which systemd passes them to the journal
//! with their priority. If a syslog receiver is configured, it gets a copy (RFC 5424 over UDP).

use std::net::{ToSocketAddrs, UdpSocket};
use std::sync::OnceLock;

/// The default port of a syslog receiver.
const SYSLOG_PORT: u16 = 514;
/// The syslog facility of the lines: system daemons.
const SYSLOG_FACILITY: u8 = 3;
/// The maximum length of a packet to the receiver, in bytes. Longer lines are cut.
const MAX_LINE_LEN: usize = 1024;

static RECEIVER: OnceLock<Receiver> = OnceLock::new();

struct Receiver {
    socket: UdpSocket,
    host: String,
}

/// Sends a copy of each line to `ADDRESS[:PORT]`.
///
/// # Errors
/// One line that quotes the word at fault.
pub fn send_to(receiver: &str) -> Result<(), String> {
    let to_error = |reason: String| format!("-syslog {receiver}: {reason}");
    let resolved = receiver.to_socket_addrs();
    let addresses = resolved.or_else(|_| (receiver, SYSLOG_PORT).to_socket_addrs());
    let addresses = addresses.map_err(|error| to_error(error.to_string()))?.next();
    let address = addresses.ok_or_else(|| to_error("no address".to_owned()))?;
    let bind_address = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(bind_address).and_then(|socket| {
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    let socket = socket.map_err(|error| to_error(error.to_string()))?;
    let _ = RECEIVER.set(Receiver { socket, host: crate::launch::local_name() });
    Ok(())
}

/// Logs a line with priority "informational".
pub fn info(text: &str) {
    log(6, text);
}

/// Logs a line with priority "warning".
pub fn warn(text: &str) {
    log(4, text);
}

/// Sends a warning of the keeper to the syslog receiver. The keeper has written the warning to
/// standard error already.
pub fn forward_warning(text: &str) {
    send_packet(4, &printable(text));
}

/// Replaces control characters, so that text from other processes cannot begin a new line.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn log(priority: u8, text: &str) {
    let text = printable(text);
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => eprintln!("<{priority}>{text}"),
        None => eprintln!("scored: {text}"),
    }
    send_packet(priority, &text);
}

fn send_packet(priority: u8, text: &str) {
    if let Some(Receiver { socket, host }) = RECEIVER.get() {
        // An error must neither block the daemon nor fill the log on standard error.
        let _ = socket.send(packet(priority, host, std::process::id(), text).as_bytes());
    }
}

/// Formats a syslog packet. It has no time stamp: the receiver adds one, because the clock of this
/// host may be wrong.
fn packet(priority: u8, host: &str, pid: u32, text: &str) -> String {
    let mut packet =
        format!("<{}>1 - {host} scored {pid} - - {text}", SYSLOG_FACILITY * 8 + priority);
    let end = (0..=MAX_LINE_LEN.min(packet.len())).rev().find(|end| packet.is_char_boundary(*end));
    packet.truncate(end.unwrap_or(0));
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_the_format_of_syslog() {
        assert_eq!(packet(4, "h", 7, "text"), "<28>1 - h scored 7 - - text");
        let long = packet(6, "h", 7, &"é".repeat(2000)).len();
        assert!((MAX_LINE_LEN - 1..=MAX_LINE_LEN).contains(&long), "{long}");
    }
}
