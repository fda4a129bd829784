//! The thread that switches.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;
use score_proto::frame::{self, Decoder};
use score_proto::order::{Order, Report};

use super::super::sight::Sight;
use super::gate::Gate;
use super::members::{Members, Standing};
use crate::sys::prompt::{self, Heirs};
use crate::sys::stop::Ticks;

/// A wait for children that takes longer is interrupted, to look at them in /proc.
const TICK: Duration = Duration::from_millis(2);
/// From a look that found somebody else looking to the next.
const LATER: Duration = Duration::from_micros(200);
/// Pauses between looks at processes that are no children.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Hears orders, and carries them out, until nobody gives any.
pub fn run(socket: OwnedFd, gate: &Gate, sight: Sight) {
    // Only who is it already may do this: what it starts is none.
    if prompt::take(Heirs::Normal).is_ok() {
        prompt::keep_to_one();
    }
    // A thread without timer would wait for ever for a process in a debugger's hands.
    let Ok(ticks) = Ticks::new() else { return };
    let stream = UnixStream::from(socket);
    let (decoder, members) = (Decoder::default(), Members::new());
    let mut switch = Switch { stream, decoder, ticks, members, sight, due: Instant::now() };
    // It ends with its socket: the shepherd's loop sees the end of its own, and ends all.
    let _ = switch.serve(gate);
}

struct Switch {
    stream: UnixStream,
    decoder: Decoder,
    ticks: Ticks,
    members: Members,
    sight: Sight,
    /// When it is looked next whether all processes are idle.
    due: Instant,
}

impl Switch {
    fn serve(&mut self, gate: &Gate) -> io::Result<()> {
        loop {
            match self.hear(gate)? {
                Order::Stop { switch, .. } => self.stop(switch, gate)?,
                Order::Run { pace_us, .. } => {
                    if gate.reopen(Instant::now(), pace_us) {
                        self.members.go_on();
                    }
                    gate.wake();
                }
                _ => {}
            }
        }
    }

    fn hear(&mut self, gate: &Gate) -> io::Result<Order> {
        let mut bytes = [0; 512];
        loop {
            if let Some(order) = self.decoder.next().map_err(io::Error::other)? {
                return Ok(order);
            }
            self.look_until_ordered(gate)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks at a pace whether all processes are idle, until somebody gives an order.
    fn look_until_ordered(&mut self, gate: &Gate) -> io::Result<()> {
        loop {
            let pace = gate.pace();
            let looks = !pace.is_zero() && !gate.is_stopped() && self.sight.is_wanted();
            let left = looks.then(|| self.due.saturating_duration_since(Instant::now()));
            let [order, nudge] = [self.stream.as_fd(), self.sight.nudge()];
            let mut wanted = [order, nudge].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match ppoll(&mut wanted, left.map(TimeSpec::from), None) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) => {
                    let (stream, mut told) = (&mut self.stream, Ok(()));
                    let looked = self.sight.sample(|element, quiet| {
                        let mut bytes = Vec::with_capacity(64);
                        // It fails for what is too long only.
                        let _ = frame::encode(&Report::Quiet { element, quiet }, &mut bytes);
                        told = stream.write_all(&bytes);
                    });
                    told?;
                    self.due = Instant::now() + if looked { pace } else { LATER };
                }
                Ok(_) if wanted[0].any() == Some(true) => return Ok(()),
                Ok(_) => {
                    self.sight.hush();
                    self.due = Instant::now() + pace;
                }
            }
        }
    }

    /// Stops all, and says so when they stand still; not if another order comes before.
    fn stop(&mut self, switch: u64, gate: &Gate) -> io::Result<()> {
        let first = gate.close(Instant::now());
        self.members.stop(first);
        self.ticks.start(TICK);
        let mut pause = PAUSES[0];
        let stand = loop {
            match self.members.watch() {
                Standing::All => break true,
                Standing::NotYet if self.is_ordered() => break false,
                Standing::NotYet if self.members.is_blind() => {
                    sleep(pause);
                    pause = (pause * 2).min(PAUSES[1]);
                }
                Standing::NotYet => {}
            }
        };
        self.ticks.stop();
        if stand {
            let mut bytes = Vec::with_capacity(64);
            frame::encode(&Report::Stopped { switch }, &mut bytes).map_err(io::Error::other)?;
            self.stream.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Whether there is a further order, or nobody to give one.
    fn is_ordered(&self) -> bool {
        let mut wanted = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut wanted, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}
