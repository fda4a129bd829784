//! The thread that switches.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;
use score_proto::frame::{self, Decoder};
use score_proto::order::{Order, Report, Until};

use super::super::sight::Sight;
use super::gate::Gate;
use super::members::{Members, Standing};
use super::turn::Turn;
use crate::sys::prompt::{self, Heirs};
use crate::sys::stop::Ticks;

/// A wait for children that takes longer is interrupted, to look at them in /proc, first after
/// much less: who does not run stands still, too.
const TICKS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(2)];
/// Pauses between looks at processes that are no children.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Hears orders, and carries them out, until nobody gives any: what has been heard already, the
/// first one, and what comes.
pub fn run(heard: (UnixStream, Decoder, Option<Order>), gate: &Gate, sight: Sight) {
    // Only who is it already may do this: what it starts is none.
    if prompt::take(Heirs::Normal).is_ok() {
        prompt::keep_to_one();
    }
    // A thread without timer would wait for ever for a process in a debugger's hands.
    let Ok(ticks) = Ticks::new() else { return };
    let (stream, decoder, first) = heard;
    let (members, turn) = (Members::new(), Turn::new());
    let mut switch = Switch { stream, decoder, ticks, members, sight, turn, end: None };
    // It ends with its socket: the shepherd's loop sees the end of its own, and ends all.
    let _ = switch.serve(first, gate);
}

struct Switch {
    stream: UnixStream,
    decoder: Decoder,
    ticks: Ticks,
    members: Members,
    sight: Sight,
    turn: Turn,
    /// When the job is to be stopped without an order, and the number of that stop.
    end: Option<(Instant, u64)>,
}

/// What there is to do.
enum Task {
    /// Somebody has ordered it.
    Ordered(Order),
    /// The job has had its time.
    Ended(u64),
}

impl Switch {
    fn serve(&mut self, first: Option<Order>, gate: &Gate) -> io::Result<()> {
        let mut first = first.map(Task::Ordered);
        loop {
            let task = match first.take() {
                Some(first) => first,
                None => self.hear(gate)?,
            };
            match task {
                Task::Ended(switch) | Task::Ordered(Order::Stop { switch, .. }) => {
                    self.end = None;
                    self.stop(switch, gate)?;
                }
                Task::Ordered(Order::Run { pace_us, until: Until::Same, .. }) => {
                    let before = gate.pace();
                    gate.set_pace(pace_us);
                    self.turn.goes_on(Instant::now(), gate.pace(), false, gate.pace() != before);
                }
                Task::Ordered(Order::Run { pace_us, until, .. }) => {
                    self.run_until(until);
                    let (now, before) = (Instant::now(), gate.pace());
                    let was_stopped = gate.reopen(now, pace_us);
                    if was_stopped {
                        self.members.go_on();
                    }
                    gate.wake();
                    self.turn.goes_on(now, gate.pace(), was_stopped, gate.pace() != before);
                }
                Task::Ordered(_) => {}
            }
        }
    }

    fn run_until(&mut self, until: Until) {
        self.end = match until {
            Until::Passed { us, switch } => {
                Some((Instant::now() + Duration::from_micros(us.into()), switch))
            }
            // Turns are its daemon's business.
            Until::Ordered | Until::Same | Until::Turns(_) => None,
        };
    }

    fn hear(&mut self, gate: &Gate) -> io::Result<Task> {
        let mut bytes = [0; 512];
        loop {
            if let Some(order) = self.decoder.next().map_err(io::Error::other)? {
                return Ok(Task::Ordered(order));
            }
            if let Some(switch) = self.look_until_due(gate)? {
                return Ok(Task::Ended(switch));
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Looks whether all processes are idle when somebody rings or it is time, at its pace at most,
    /// until somebody gives an order, or the job has had its time: answers the number of the stop
    /// that is due.
    fn look_until_due(&mut self, gate: &Gate) -> io::Result<Option<u64>> {
        loop {
            let now = Instant::now();
            if let Some((_, switch)) = self.end.filter(|(end, _)| *end <= now) {
                return Ok(Some(switch));
            }
            let pace = gate.pace();
            let looks = !pace.is_zero() && !gate.is_stopped() && self.sight.is_wanted();
            let due = looks.then_some(self.turn.due);
            let next = due.into_iter().chain(self.end.map(|(end, _)| end)).min();
            let left = next.map(|next| next.saturating_duration_since(now));
            let sources = [self.stream.as_fd(), self.sight.nudge(), self.sight.rung()];
            let mut wanted = sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // Who rings without end is heard once.
            let listened = if looks && !self.turn.rung { 3 } else { 2 };
            match ppoll(&mut wanted[..listened], left.map(TimeSpec::from), None) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) if due.is_none_or(|due| due > Instant::now()) => {}
                Ok(0) => self.look(gate)?,
                Ok(_) if wanted[0].any() == Some(true) => return Ok(None),
                Ok(_) if wanted[1].any() == Some(true) => {
                    self.sight.hush();
                    self.turn.due = self.turn.due.min(Instant::now() + pace);
                }
                Ok(_) => self.turn.rings(),
            }
        }
    }

    fn look(&mut self, gate: &Gate) -> io::Result<()> {
        let (stream, mut told) = (&mut self.stream, Ok(()));
        let (now, pace) = (gate.job_time(), gate.pace());
        let looked = self.sight.sample(now, pace, self.turn.again, |element, quiet| {
            let mut bytes = Vec::with_capacity(64);
            // It fails for what is too long only.
            let _ = frame::encode(&Report::Quiet { element, quiet }, &mut bytes);
            told = stream.write_all(&bytes);
        });
        self.turn.looked(Instant::now(), pace, looked);
        told
    }

    /// Stops all, and says so when they stand still; not if another order comes before.
    fn stop(&mut self, switch: u64, gate: &Gate) -> io::Result<()> {
        let first = gate.close(Instant::now());
        self.members.stop(first);
        self.ticks.start(TICKS[0], TICKS[1]);
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
