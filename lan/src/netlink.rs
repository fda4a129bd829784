//! Requests to the kernel's routing netlink. One system call sends many requests, and the kernel
//! answers each of them.

use std::io::{self, Read};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// The number of requests per system call. Their answers must fit into the socket's default buffer.
const BATCH: usize = 32;
/// The type of an answer.
const NLMSG_ERROR: u16 = 2;

/// One change or query, and its label for error messages.
pub struct Request {
    /// A label such as `veth`.
    pub label: &'static str,
    /// The change or query.
    pub message: RouteNetlinkMessage,
}

/// The request that was refused.
#[derive(Debug)]
pub struct NetlinkError {
    /// The [`Request::label`] of the request.
    pub label: &'static str,
    /// The reason.
    pub source: io::Error,
}

/// A socket to the network namespace in which this thread was when the socket was opened.
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket.
    pub fn open() -> io::Result<Self> {
        // The kernel binds the socket at the first request.
        let protocol = Protocol::from(libc::NETLINK_ROUTE);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol))?;
        Ok(Self { socket })
    }

    /// Executes all requests in order, up to the first that the kernel refuses.
    pub fn execute(&self, requests: Vec<Request>) -> Result<(), NetlinkError> {
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let batch: Vec<Request> = requests.by_ref().take(BATCH).collect();
            let names: Vec<&'static str> = batch.iter().map(|request| request.label).collect();
            let send_failed = |error: io::Error| NetlinkError { label: names[0], source: error };
            let mut bytes = Vec::new();
            for (number, request) in batch.into_iter().enumerate() {
                append(&mut bytes, number as u32, request.message);
            }
            self.socket.send(&bytes).map_err(send_failed)?;
            self.receive_acks(&names).map_err(|(number, error)| NetlinkError {
                label: names.get(number).copied().unwrap_or(names[0]),
                source: error,
            })?;
        }
        Ok(())
    }

    /// Reads one answer for each request. The result is the first error.
    fn receive_acks(&self, names: &[&'static str]) -> Result<(), (usize, io::Error)> {
        let mut result = Ok(());
        let mut outstanding = names.len();
        let mut buffer = vec![0; 32 * 1024];
        while outstanding > 0 {
            let length = (&self.socket).read(&mut buffer).map_err(|error| (0, error))?;
            let mut rest = &buffer[..length];
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                let step = (message.length() as usize).next_multiple_of(4).min(rest.len());
                if message.message_type() == NLMSG_ERROR {
                    outstanding = outstanding.saturating_sub(1);
                    let code = message.payload().get(..4).and_then(|code| code.try_into().ok());
                    let code = -code.map_or(-(Errno::EPROTO as i32), i32::from_ne_bytes);
                    if code != 0 && result.is_ok() {
                        let number = message.sequence_number() as usize;
                        result = Err((number, io::Error::from_raw_os_error(code)));
                    }
                }
                if step == 0 {
                    break;
                }
                rest = &rest[step..];
            }
        }
        result
    }
}

fn append(bytes: &mut Vec<u8>, number: u32, message: RouteNetlinkMessage) {
    let mut header = NetlinkHeader::default();
    header.sequence_number = number;
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    // All other requests create an object.
    if !matches!(message, RouteNetlinkMessage::SetLink(_) | RouteNetlinkMessage::GetLink(_)) {
        header.flags |= NLM_F_CREATE | NLM_F_EXCL;
    }
    let mut whole = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    whole.finalize();
    let start = bytes.len();
    bytes.resize(start + whole.buffer_len().next_multiple_of(4), 0);
    whole.serialize(&mut bytes[start..]);
}
