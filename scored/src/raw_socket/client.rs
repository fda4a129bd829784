//! The shepherd's side: requests raw sockets from the opener.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use score_pm::wire::WireEndpoint;
use score_proto::frame;
use score_sys::fd_passing;
use socket2::SockRef;

use super::{MAX_DATAGRAM_LEN, MAX_REPLY_FDS, OPEN_TIMEOUT, OpenReply, OpenRequest};

/// A client of the opener.
#[derive(Debug)]
pub struct RawSocketClient {
    socket: OwnedFd,
    /// Whether a request has got no answer. A late answer could be mistaken for that of another
    /// request.
    has_failed: Cell<bool>,
}

impl RawSocketClient {
    /// A client that uses the `socket` to the opener.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        SockRef::from(&socket).set_read_timeout(Some(OPEN_TIMEOUT))?;
        Ok(Self { socket, has_failed: Cell::new(false) })
    }

    /// Requests the sockets of one process, one for each link of its network set.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn open(&self, request: OpenRequest) -> Result<Vec<WireEndpoint>, String> {
        if self.has_failed.get() {
            return Err("scored no longer opens raw sockets for this job".to_owned());
        }
        let reply = self.exchange(request).map_err(|error| {
            self.has_failed.set(true);
            format!("scored cannot open raw sockets for this job: {error}")
        })?;
        let (reply, descriptors) = reply;
        let mut descriptors = descriptors.into_iter();
        let mut endpoints = Vec::new();
        for info in reply? {
            let sockets = descriptors.by_ref().take(info.descriptors.into()).collect();
            let endpoint = WireEndpoint::rebuild(&info.description, sockets);
            let endpoint = endpoint.map_err(|error| error.to_string())?;
            endpoints.push(endpoint.with_note_and_loss(info.note, None));
        }
        Ok(endpoints)
    }

    fn exchange(&self, request: OpenRequest) -> io::Result<(OpenReply, Vec<OwnedFd>)> {
        let datagram = frame::encode_datagram(&request).map_err(io::Error::other)?;
        fd_passing::send(&self.socket, &datagram, &[])?;
        let (bytes, descriptors) =
            fd_passing::receive(&self.socket, MAX_DATAGRAM_LEN, MAX_REPLY_FDS)?;
        let reply = frame::decode_datagram(&bytes).map_err(io::Error::other)?;
        Ok((reply, descriptors))
    }
}
