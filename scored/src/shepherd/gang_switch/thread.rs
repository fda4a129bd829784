//! The switch thread: receives switch orders, and stops and resumes the job on this host.

use std::io;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll, ppoll};
use nix::sys::time::TimeSpec;
use score_client::FramedSocket;
use score_proto::job_control::{StopCondition, SwitchOrder, SwitchReport, SwitchSeq};

use super::super::inspection::ProcessInspector;
use super::idle_poll::IdlePoll;
use super::processes::{JobProcesses, StopProgress};
use super::run_gate::RunGate;
use crate::sys::process_stop::InterruptTimer;
use crate::sys::realtime::{self, Inherit};

/// A wait for children is interrupted after the first interval, and then repeatedly after the
/// second interval. Each interruption leads to a check of the children in /proc, because a process
/// that waits for a processor also counts as stopped.
const WAIT_INTERRUPT_INTERVALS: [Duration; 2] =
    [Duration::from_micros(100), Duration::from_millis(2)];
/// Time of one wait for room in the socket. The thread repeats the wait until the daemon reads.
const SEND_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest and longest delay between two checks of processes that are not children.
const PROC_POLL_INTERVALS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Receives orders and carries them out until the socket is closed. `received`: the socket, and
/// the first order.
pub fn run(
    received: (FramedSocket, Option<SwitchOrder>),
    run_gate: &RunGate,
    inspector: ProcessInspector,
) {
    // Succeeds only in a thread that may use the realtime class. Threads and processes that this
    // thread starts are in the normal class.
    if realtime::enter(Inherit::Normal).is_ok() {
        realtime::pin_to_first_cpu();
    }
    // Without a timer, the thread would wait for ever for a process that a debugger holds.
    let Ok(interrupt_timer) = InterruptTimer::new() else { return };
    let (socket, first_order) = received;
    let (processes, idle_poll) = (JobProcesses::new(), IdlePoll::new());
    let mut switch_thread = SwitchThread {
        socket,
        interrupt_timer,
        processes,
        inspector,
        idle_poll,
        slice_end: None,
        stop_seq: SwitchSeq(0),
    };
    // The thread ends when its socket is closed. The shepherd's loop detects the end of its own
    // socket, and ends the job.
    let _ = switch_thread.serve(first_order, run_gate);
}

struct SwitchThread {
    socket: FramedSocket,
    interrupt_timer: InterruptTimer,
    processes: JobProcesses,
    inspector: ProcessInspector,
    idle_poll: IdlePoll,
    /// When to stop the job without an order, and the sequence number of that stop.
    slice_end: Option<(Instant, SwitchSeq)>,
    /// The last stop that was begun; 0 for none.
    stop_seq: SwitchSeq,
}

/// An event that the switch thread handles.
enum SwitchEvent {
    /// An order was received.
    OrderReceived(SwitchOrder),
    /// The job's slice has expired. Contains the sequence number of the stop.
    SliceExpired(SwitchSeq),
}

impl SwitchThread {
    fn serve(&mut self, first_order: Option<SwitchOrder>, run_gate: &RunGate) -> io::Result<()> {
        let mut first_event = first_order.map(SwitchEvent::OrderReceived);
        loop {
            let event = match first_event.take() {
                Some(first_event) => first_event,
                None => self.next_event(run_gate)?,
            };
            match event {
                SwitchEvent::SliceExpired(switch_seq)
                | SwitchEvent::OrderReceived(SwitchOrder::Stop { switch_seq, .. }) => {
                    (self.slice_end, self.stop_seq) = (None, switch_seq);
                    self.stop(switch_seq, run_gate)?;
                }
                SwitchEvent::OrderReceived(SwitchOrder::Run {
                    idle_check_interval_us: poll_interval_us,
                    stop_condition: StopCondition::Unchanged,
                    ..
                }) => {
                    let previous = run_gate.poll_interval();
                    run_gate.set_poll_interval(poll_interval_us);
                    self.idle_poll.on_resume(
                        Instant::now(),
                        run_gate.poll_interval(),
                        false,
                        run_gate.poll_interval() != previous,
                    );
                }
                SwitchEvent::OrderReceived(SwitchOrder::Run {
                    idle_check_interval_us: poll_interval_us,
                    stop_condition,
                    ..
                }) => {
                    let (now, previous) = (Instant::now(), run_gate.poll_interval());
                    self.set_slice_end(now, stop_condition);
                    let was_stopped = run_gate.mark_running(now, poll_interval_us);
                    if was_stopped {
                        self.processes.resume();
                    }
                    run_gate.wake();
                    self.idle_poll.on_resume(
                        now,
                        run_gate.poll_interval(),
                        was_stopped,
                        run_gate.poll_interval() != previous,
                    );
                }
            }
        }
    }

    fn set_slice_end(&mut self, now: Instant, stop_condition: StopCondition) {
        // If this thread could not run at the end of the slice, the daemon has stopped the job
        // itself, and has resumed it for this order.
        if let Some((_, switch_seq)) = self.slice_end.filter(|(end, _)| *end <= now) {
            self.stop_seq = switch_seq;
        }
        self.slice_end = match stop_condition {
            StopCondition::After { run_us: us, switch_seq } => {
                Some((now + Duration::from_micros(us.into()), switch_seq))
            }
            // The daemon handles the local rotation.
            StopCondition::OnOrder | StopCondition::Unchanged | StopCondition::LocalRotation(_) => {
                None
            }
        };
    }

    fn next_event(&mut self, run_gate: &RunGate) -> io::Result<SwitchEvent> {
        // Orders that have been read come first. Reading again would be an unnecessary system call.
        let mut max_reads = 0;
        loop {
            let order = self.socket.receive_within(max_reads).map_err(io::Error::other)?;
            if let Some(order) = order {
                return Ok(SwitchEvent::OrderReceived(order));
            }
            if self.socket.is_closed() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(switch_seq) = self.poll_until_due(run_gate)? {
                return Ok(SwitchEvent::SliceExpired(switch_seq));
            }
            self.socket.mark_readable();
            max_reads = 1;
        }
    }

    /// Polls whether all processes are idle, after notifications and when a poll is due, at most
    /// once per poll interval. Returns None when the socket is readable. When the slice has
    /// expired, returns the sequence number of the stop.
    fn poll_until_due(&mut self, run_gate: &RunGate) -> io::Result<Option<SwitchSeq>> {
        loop {
            let now = Instant::now();
            if let Some((_, switch_seq)) = self.slice_end.filter(|(end, _)| *end <= now) {
                return Ok(Some(switch_seq));
            }
            let poll_interval = run_gate.poll_interval();
            let polls =
                !poll_interval.is_zero() && !run_gate.is_stopped() && self.inspector.is_active();
            let due = polls.then_some(self.idle_poll.next_poll);
            let next = due.into_iter().chain(self.slice_end.map(|(end, _)| end)).min();
            let left = next.map(|next| next.saturating_duration_since(now));
            let sources =
                [self.socket.as_fd(), self.inspector.wake_fd(), self.inspector.notify_fd()];
            let mut poll_fds = sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // After one notification the notification socket is ignored until the next sample, so
            // that a flood of notifications is harmless.
            let poll_fd_count = if polls && !self.idle_poll.notified { 3 } else { 2 };
            match ppoll(&mut poll_fds[..poll_fd_count], left.map(TimeSpec::from), None) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) if due.is_none_or(|due| due > Instant::now()) => {}
                Ok(0) => self.sample(run_gate)?,
                Ok(_) if poll_fds[0].any() == Some(true) => return Ok(None),
                Ok(_) if poll_fds[1].any() == Some(true) => {
                    self.inspector.clear_wake();
                    self.idle_poll.next_poll =
                        self.idle_poll.next_poll.min(Instant::now() + poll_interval);
                }
                Ok(_) => self.idle_poll.on_notify(),
            }
        }
    }

    fn sample(&mut self, run_gate: &RunGate) -> io::Result<()> {
        let socket = &mut self.socket;
        let (job_time, poll_interval) = (run_gate.job_time(), run_gate.poll_interval());
        let result =
            self.inspector.sample(job_time, poll_interval, self.stop_seq, |element, summary| {
                // Fails only for reports that are too long.
                let _ = socket.try_queue(&SwitchReport::IdleSummary { element, summary });
            });
        self.idle_poll.on_polled(Instant::now(), poll_interval, result);
        self.send_reports()
    }

    /// Stops all processes, and reports when they have stopped. Reports nothing if another order
    /// arrives first.
    fn stop(&mut self, switch_seq: SwitchSeq, run_gate: &RunGate) -> io::Result<()> {
        let is_first_stop = run_gate.mark_stopped(Instant::now());
        self.processes.stop(is_first_stop, run_gate.held(), run_gate.exempt_pid());
        self.interrupt_timer.start(WAIT_INTERRUPT_INTERVALS[0], WAIT_INTERRUPT_INTERVALS[1]);
        let mut poll_delay = PROC_POLL_INTERVALS[0];
        let all_stopped = loop {
            match self.processes.wait_stopped() {
                StopProgress::Complete => break true,
                StopProgress::Pending if self.has_pending_order() => break false,
                StopProgress::Pending if self.processes.needs_polling() => {
                    sleep(poll_delay);
                    poll_delay = (poll_delay * 2).min(PROC_POLL_INTERVALS[1]);
                }
                StopProgress::Pending => {}
            }
        };
        self.interrupt_timer.stop();
        if all_stopped {
            let held = self.processes.held_by_tracer();
            self.inspector.set_held(held);
            if !held.is_empty() {
                self.idle_poll.on_notify();
            }
            self.socket.queue(&SwitchReport::Stopped { switch_seq });
            self.send_reports()?;
        }
        Ok(())
    }

    /// Waits until the socket has accepted the reports.
    fn send_reports(&mut self) -> io::Result<()> {
        while !self.socket.flush_within(SEND_INTERVAL)? {}
        Ok(())
    }

    /// Whether another order is waiting, or the socket is closed.
    fn has_pending_order(&self) -> bool {
        let mut poll_fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut poll_fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}
