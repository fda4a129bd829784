//! The socket of the thread that switches, before there is one: the shepherd's loop hears it.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};
use score_proto::frame::Decoder;
use score_proto::order::{Order, Until};

use super::super::sight::Sight;
use super::gate::Gate;
use crate::sys::prompt::{self, Heirs};
use crate::sys::stop;

/// Whoever hears orders to stop and to run.
pub struct Switch {
    /// None: the thread has it.
    socket: Option<(UnixStream, Decoder)>,
    gate: Arc<Gate>,
    sight: Sight,
}

impl Switch {
    /// `run`: as what the loop is woken that has asked for it by [`Gate::wake_me`]; `order`: as
    /// what it is told that [`Switch::hear`] has something to hear. `now`: this process loses the
    /// right to be prompt, which it has taken, so that its thread has to be there at once.
    ///
    /// # Errors
    /// As eventfd(2), epoll_ctl(2), pthread_create(3).
    pub fn new(
        socket: OwnedFd,
        registry: &Registry,
        (run, order): (Token, Token),
        sight: Sight,
        now: bool,
    ) -> io::Result<Self> {
        stop::ignore_stops_of_children()?;
        let gate = Arc::new(Gate::new(Waker::new(registry, run)?));
        let stream = UnixStream::from(socket);
        let mut switch = Self { socket: None, gate, sight };
        if now {
            super::start((stream, Decoder::default(), None), &switch.gate, switch.sight.clone())?;
            return Ok(switch);
        }
        stream.set_nonblocking(true)?;
        registry.register(&mut SourceFd(&stream.as_raw_fd()), order, Interest::READABLE)?;
        switch.socket = Some((stream, Decoder::default()));
        Ok(switch)
    }

    /// What thread and loop share.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Takes what has been ordered, and starts the thread for all but leave to go on running.
    ///
    /// # Errors
    /// What came is no order, or there is no thread to be had.
    pub fn hear(&mut self, registry: &Registry) -> io::Result<()> {
        let mut bytes = [0; 512];
        while let Some((stream, decoder)) = &mut self.socket {
            match decoder.next().map_err(io::Error::other)? {
                Some(Order::Run { pace_us, until: Until::Ordered | Until::Same, .. }) => {
                    self.gate.set_pace(pace_us);
                    continue;
                }
                Some(order) => return self.wake(Some(order), registry),
                None => {}
            }
            match stream.read(&mut bytes) {
                // The loop sees the end of its own socket, and ends all.
                Ok(0) => return Ok(()),
                Ok(count) => decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Starts the thread if there are processes to look at.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn look(&mut self, registry: &Registry) -> io::Result<()> {
        match self.sight.is_wanted() && !self.gate.pace().is_zero() {
            true => self.wake(None, registry),
            false => Ok(()),
        }
    }

    fn wake(&mut self, first: Option<Order>, registry: &Registry) -> io::Result<()> {
        let Some((stream, decoder)) = self.socket.take() else { return Ok(()) };
        registry.deregister(&mut SourceFd(&stream.as_raw_fd()))?;
        stream.set_nonblocking(false)?;
        // Where the system allows.
        let _ = prompt::take(Heirs::Same);
        super::start((stream, decoder, first), &self.gate, self.sight.clone())
    }
}
