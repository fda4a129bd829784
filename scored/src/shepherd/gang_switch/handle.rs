//! Reads the socket for switch orders in the shepherd's loop, until the switch thread is started.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mio::{Registry, Token, Waker};
use score_client::FramedSocket;
use score_proto::job_control::{StopCondition, SwitchOrder};

use super::super::inspection::ProcessInspector;
use super::run_gate::RunGate;
use crate::sys::process_stop;
use crate::sys::realtime::{self, Inherit};

/// Receives orders to stop and to run.
pub struct SwitchHandle {
    /// None: the switch thread has the socket.
    socket: Option<FramedSocket>,
    run_gate: Arc<RunGate>,
    /// Total time for which the job had been stopped at the last [`SwitchHandle::take_stop_time`].
    last_total_stopped: Duration,
    inspector: ProcessInspector,
}

impl SwitchHandle {
    /// `resumed_token`: the event that wakes the loop after [`RunGate::wake_on_resume`].
    /// `order_token`: the event after which [`SwitchHandle::receive_orders`] must be called.
    /// `start_now`: start the switch thread at once, because this process is about to lose the
    /// permission to enter the realtime class.
    ///
    /// # Errors
    /// The errors of eventfd(2), epoll_ctl(2) and pthread_create(3).
    pub fn new(
        socket: OwnedFd,
        registry: &Registry,
        (resumed_token, order_token): (Token, Token),
        inspector: ProcessInspector,
        start_now: bool,
    ) -> io::Result<Self> {
        process_stop::ignore_stops_of_children()?;
        let run_gate = Arc::new(RunGate::new(Waker::new(registry, resumed_token)?));
        let mut socket = FramedSocket::new(socket)?;
        let last_total_stopped = Duration::ZERO;
        let mut handle = Self { socket: None, run_gate, last_total_stopped, inspector };
        if start_now {
            super::start((socket, None), &handle.run_gate, handle.inspector.clone())?;
            return Ok(handle);
        }
        socket.register(registry, order_token)?;
        handle.socket = Some(socket);
        Ok(handle)
    }

    /// The state that the switch thread and the loop share.
    pub fn run_gate(&self) -> Arc<RunGate> {
        Arc::clone(&self.run_gate)
    }

    /// The time for which the job has been stopped since the last call, without the current stop.
    pub fn take_stop_time(&mut self) -> Duration {
        let total_stopped = self.run_gate.total_stopped();
        let stop_time = total_stopped.saturating_sub(self.last_total_stopped);
        self.last_total_stopped = total_stopped;
        stop_time
    }

    /// Receives orders. Starts the switch thread for any order except an order to continue running.
    ///
    /// # Errors
    /// The received bytes are not an order, or the thread cannot be started.
    pub fn receive_orders(&mut self, registry: &Registry) -> io::Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        socket.mark_readable();
        loop {
            match socket.receive().map_err(io::Error::other)? {
                Some(SwitchOrder::Run {
                    idle_check_interval_us: poll_interval_us,
                    stop_condition: StopCondition::OnOrder | StopCondition::Unchanged,
                    ..
                }) => {
                    self.run_gate.set_poll_interval(poll_interval_us);
                }
                Some(order) => return self.start_thread(Some(order), registry),
                // The loop detects the end of its own socket, and ends the job.
                None => return Ok(()),
            }
        }
    }

    /// Starts the switch thread if there are processes to inspect.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_if_needed(&mut self, registry: &Registry) -> io::Result<()> {
        match self.inspector.is_active() && !self.run_gate.poll_interval().is_zero() {
            true => self.start_thread(None, registry),
            false => Ok(()),
        }
    }

    fn start_thread(
        &mut self,
        first_order: Option<SwitchOrder>,
        registry: &Registry,
    ) -> io::Result<()> {
        let Some(mut socket) = self.socket.take() else { return Ok(()) };
        socket.deregister(registry)?;
        // Optional: the system may refuse realtime scheduling.
        let _ = realtime::enter(Inherit::Realtime);
        super::start((socket, first_order), &self.run_gate, self.inspector.clone())
    }
}
