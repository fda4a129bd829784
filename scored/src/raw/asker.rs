//! The shepherd's end.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};
use score_pm::device::ethernet::wire::Endpoint;
use score_proto::frame;

use super::{Answer, Ask, LONGEST, PATIENCE};
use crate::sys::rights;

/// Asks the opener.
#[derive(Debug)]
pub struct Asker {
    socket: OwnedFd,
    /// It has not answered once: what comes later would be taken for the answer to another.
    lost: Cell<bool>,
}

impl Asker {
    /// `socket`: to the opener.
    ///
    /// # Errors
    /// It is no socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs() as i64))?;
        Ok(Self { socket, lost: Cell::new(false) })
    }

    /// The sockets of one process, one for each link of its network set.
    ///
    /// # Errors
    /// One line.
    pub fn open(&self, ask: Ask) -> Result<Vec<Endpoint>, String> {
        if self.lost.get() {
            return Err("scored does not open raw sockets for this job any more".to_owned());
        }
        let answer = self.ask(ask).map_err(|error| {
            self.lost.set(true);
            format!("scored opens no raw sockets for this job: {error}")
        })?;
        let (answer, descriptors) = answer;
        let mut descriptors = descriptors.into_iter();
        let mut endpoints = Vec::new();
        for one in answer? {
            let own = descriptors.by_ref().take(one.descriptors.into()).collect();
            let endpoint = Endpoint::rebuild(&one.description, own);
            let endpoint = endpoint.map_err(|error| error.to_string())?;
            endpoints.push(endpoint.with(one.note, None));
        }
        Ok(endpoints)
    }

    fn ask(&self, ask: Ask) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let question = frame::encode_datagram(&ask).map_err(io::Error::other)?;
        rights::send(&self.socket, &question, &[])?;
        let (bytes, descriptors) = rights::receive(&self.socket, LONGEST)?;
        let answer = frame::decode_datagram(&bytes).map_err(io::Error::other)?;
        Ok((answer, descriptors))
    }
}
