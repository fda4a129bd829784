//! Inspects the job's processes from outside, without stopping them: whether they are idle, their
//! message counters, and their wait states (docs/dev/deadlock.md).
//!
//! | file | content |
//! |---|---|
//! | `carea.rs` | reads C-Areas |
//! | `notify_socket.rs` | the socket on which processes report changes of their state |
//! | `idle_detection.rs` | whether all processes are idle, and which are armed to notify |
//! | `poll_backoff.rs` | when to poll next without a notification |
//! | `proc_threads.rs` | threads and their states, from /proc |
//! | `fd_classes.rs` | whether a descriptor is PM's |
//! | `thread_rules.rs` | the rules for the state of a waiting thread |
//! | `thread_scan.rs` | scans the threads of a process |
//!
//! The shepherd reports a process as idle if two conditions hold. All threads of the process have
//! set their idle flag, or are in sc_barrier. No reply of SCore to the process is outstanding.
//!
//! libscore counts a call of sc_barrier before the thread is idle, and a reply after the thread is
//! busy again. The shepherd counts the calls that it has received and the replies that it has sent.
//! A process is not idle if the shepherd has not received one of its calls, because all other
//! processes may wait for this call. A process is also not idle if it has not taken a reply yet,
//! because the reply will wake one of its threads.
//!
//! Reports keep their order. When the job master receives a sample, it has therefore received all
//! calls that the shepherd had received before the sample. It has already ordered the replies to
//! these calls.
//!
//! A process that has exited is idle. Its exit is a change, like a transition to busy. Its sent
//! messages stay in the sums, and messages to it count as received (docs/dev/messages.md, "Exit").

mod carea;
mod fd_classes;
mod idle_detection;
mod notify_socket;
mod poll_backoff;
mod proc_threads;
mod thread_rules;
mod thread_scan;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use score_job::deadlock::{LastRound, ProcessSnapshot};
use score_proto::carea::WaitingFor;
use score_proto::ids::{ElementIndex, ProcessIndex};
use score_proto::job_control::SwitchSeq;
use score_proto::observation::{ActivitySample, IdleSummary, SampleRound, WaitState};

use super::networks::MessageCounters;
use carea::{CAreas, ThreadSlot};
use fd_classes::PmSockets;
use idle_detection::Armed;
use notify_socket::NotifySocket;
use poll_backoff::PollBackoff;
use thread_scan::ScanDepth;

/// The inspected processes of a job on this host. The loop adds elements, and samples them when the
/// job master requests it. The switch thread polls periodically whether all processes are idle,
/// because its scheduling class gives it a processor even while processes are busy.
#[derive(Clone)]
pub struct ProcessInspector(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// Whether there are processes to inspect.
    is_active: AtomicBool,
    /// Whether a debugger held processes at the last stop.
    has_held: AtomicBool,
    /// Readable after `is_active` was set, or after processes have exited.
    wake_event: EventFd,
    notify_socket: NotifySocket,
}

#[derive(Default)]
struct Inner {
    elements: BTreeMap<ElementIndex, ObservedElement>,
    /// Whether the user has disabled the use of idle flags (`noidle`).
    is_disabled: bool,
}

/// A parallel process.
struct ObservedElement {
    /// This host's first node.
    first_node: u32,
    careas: CAreas,
    message_counters: MessageCounters,
    processes: Vec<ObservedProcess>,
    round_history: LastRound,
    /// The last reported summary, and the last stop before that report.
    last_reported: Option<(IdleSummary, SwitchSeq)>,
    /// Processes that a debugger held at the last stop of the job.
    held_pids: HashSet<i32>,
    armed: Armed,
    backoff: PollBackoff,
}

#[derive(Debug, Clone, Copy, Default)]
struct ObservedProcess {
    pid: i32,
    has_exited: bool,
    /// Number of calls of sc_barrier that were received, and of replies that were sent.
    barrier_counts: (u64, u64),
}

/// Activity of the PMI socket of a process. A process that polls might poll this socket as well. It
/// counts as idle only if no message is about to arrive there.
#[derive(Debug, Clone, Copy)]
pub struct PmiSocketActivity {
    /// The inode of the process's end.
    pub inode: u64,
    /// Whether all requests are answered, and the process has taken all answers.
    pub is_quiet: bool,
}

/// Result of [`ProcessInspector::sample`].
#[derive(Debug, Clone, Copy, Default)]
pub struct PollResult {
    /// Delay of the next sample without a notification.
    pub next_poll_in: Option<Duration>,
    /// Whether no process of some element needs a processor.
    pub any_idle: bool,
}

/// The processes of one element on this host. All of them have attached.
pub struct InspectedElement<'a> {
    /// This host's first node.
    pub first_node: u32,
    /// Their C-Areas.
    pub areas_fd: BorrowedFd<'a>,
    /// Their message counters.
    pub message_counters: MessageCounters,
    /// Process ids, by node; 0 for a process that has exited.
    pub pids: Vec<i32>,
}

impl ProcessInspector {
    /// An inspector without elements.
    ///
    /// # Errors
    /// The errors of eventfd(2) and socket(2).
    pub fn new() -> io::Result<Self> {
        let wake_event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (is_active, has_held) = (AtomicBool::new(false), AtomicBool::new(false));
        let notify_socket = NotifySocket::new()?;
        Ok(Self(Arc::new(Shared {
            inner: Mutex::default(),
            is_active,
            has_held,
            wake_event,
            notify_socket,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disables the use of idle flags.
    pub fn disable(&self) {
        self.lock().is_disabled = true;
    }

    /// Drops the elements of a stage whose processes have exited. No report about them follows.
    pub fn clear(&self) {
        self.lock().elements.clear();
        self.0.is_active.store(false, Ordering::SeqCst);
    }

    /// Starts to inspect an element.
    ///
    /// # Errors
    /// One line for the user.
    pub fn add_element(
        &self,
        element_index: ElementIndex,
        subject: InspectedElement<'_>,
    ) -> Result<(), String> {
        let process_count = subject.pids.len() as u32;
        let careas = CAreas::new(subject.areas_fd, process_count)
            .map_err(|error| format!("the C-Area cannot be mapped: {error}"))?;
        let process =
            |pid| ObservedProcess { pid, has_exited: pid == 0, ..ObservedProcess::default() };
        let element = ObservedElement {
            first_node: subject.first_node,
            careas,
            message_counters: subject.message_counters,
            processes: subject.pids.into_iter().map(process).collect(),
            round_history: LastRound::default(),
            last_reported: None,
            held_pids: HashSet::new(),
            armed: Armed::default(),
            backoff: PollBackoff::default(),
        };
        let mut inner = self.lock();
        inner.elements.insert(element_index, element);
        if !inner.is_disabled {
            self.0.is_active.store(true, Ordering::SeqCst);
            self.wake();
        }
        Ok(())
    }

    /// Counts calls of sc_barrier that were received, and replies that are about to be sent. Must
    /// be called before any of these replies is sent, so that a process that still waits for its
    /// reply does not count as idle.
    pub fn add_barriers(&self, element: ElementIndex, nodes: &[u32], calls: u64, replies: u64) {
        let mut inner = self.lock();
        for node in nodes {
            if let Some(process) = inner.process(element, *node) {
                process.barrier_counts.0 += calls;
                process.barrier_counts.1 += replies;
            }
        }
    }

    /// Handles the exit of a process. The caller has notified the networks of the exit.
    pub fn on_process_exit(&self, element: ElementIndex, node: u32) {
        if let Some(process) = self.lock().process(element, node) {
            process.has_exited = true;
        }
        self.reset_backoff();
    }

    /// Records the processes that a debugger holds at a stop of the job. Only these processes are
    /// checked later, so that busy processes without a debugger cause no cost.
    pub fn set_held(&self, pids: &HashSet<i32>) {
        let had_held = self.0.has_held.swap(!pids.is_empty(), Ordering::SeqCst);
        if pids.is_empty() && !had_held {
            return;
        }
        let mut inner = self.lock();
        for element in inner.elements.values_mut().filter(|one| one.held_pids != *pids) {
            element.held_pids.clone_from(pids);
            element.backoff = PollBackoff::default();
        }
    }

    /// Restarts polling at the shortest interval. Called after other processes have exited, because
    /// an exit may change the counters of idle processes.
    pub fn reset_backoff(&self) {
        self.lock()
            .elements
            .values_mut()
            .for_each(|element| element.backoff = PollBackoff::default());
        if self.is_active() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only if the counter is full, and a full counter is also readable.
        let _ = self.0.wake_event.write(1);
    }

    /// Whether [`ProcessInspector::sample`] has work to do.
    pub fn is_active(&self) -> bool {
        self.0.is_active.load(Ordering::SeqCst)
    }

    /// Readable when a sample is due soon, until [`ProcessInspector::clear_wake`].
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.wake_event.as_fd()
    }

    /// See [`ProcessInspector::wake_fd`].
    pub fn clear_wake(&self) {
        let _ = self.0.wake_event.read();
    }

    /// The abstract name of the socket to which processes send notifications.
    pub fn notify_name(&self) -> &[u8] {
        self.0.notify_socket.name()
    }

    /// Readable after a notification, until the next [`ProcessInspector::sample`].
    pub fn notify_fd(&self) -> BorrowedFd<'_> {
        self.0.notify_socket.fd()
    }

    /// Checks for each element whether all of its processes are idle, and reports changes. All
    /// reports precede a later [`ProcessInspector::clear`]. Returns None if another thread holds
    /// the lock.
    ///
    /// `job_time`: the job's time. `stop_seq`: the last stop. Elements that are still idle are
    /// reported again after each stop.
    pub fn sample(
        &self,
        job_time: Duration,
        poll_interval: Duration,
        stop_seq: SwitchSeq,
        mut report: impl FnMut(ElementIndex, IdleSummary),
    ) -> Option<PollResult> {
        let mut inner = match self.0.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // A notification from now on leads to another sample.
        self.0.notify_socket.drain();
        let job_time_ns = u64::try_from(job_time.as_nanos()).unwrap_or(u64::MAX);
        let mut result = PollResult::default();
        for (element_index, element) in &mut inner.elements {
            let (summary, source) = element.poll_idle(job_time_ns, poll_interval);
            let changed = element.last_reported.is_none_or(|(last, _)| last != summary);
            if let Some(due) = element.take_report(summary, stop_seq) {
                report(*element_index, due);
            }
            let delay = element.backoff.next(source, changed, poll_interval);
            result.next_poll_in = Some(result.next_poll_in.map_or(delay, |next| next.min(delay)));
            result.any_idle |= summary.needs_no_processor();
        }
        Some(result)
    }

    /// Samples all processes of an element for deadlock detection. `pmi_sockets`: the sockets of
    /// its processes, in order, if it is an MPI program.
    pub fn sample_round(
        &self,
        element: ElementIndex,
        round: SampleRound,
        stopped: bool,
        pmi_sockets: &[Option<PmiSocketActivity>],
    ) -> ActivitySample {
        let pmi_socket = |index: ProcessIndex| pmi_sockets.get(index.index()).copied().flatten();
        let nothing = ActivitySample { idle: false, ..ActivitySample::EMPTY };
        let (mut samples, claims) = {
            let inner = self.lock();
            let Some(inspected) = inner.elements.get(&element) else { return nothing };
            let samples: Vec<ProcessSnapshot> =
                inspected.careas.processes().map(|index| inspected.claim(index)).collect();
            let all_idle = samples.iter().all(|sample| sample.idle);
            // The first round only reads the claims. From the second round on, the state of the
            // threads must confirm them.
            let depth = match (stopped, inspected.round_history.has_thread_states(round)) {
                (true, _) => ScanDepth::Confirm,
                (false, true) => ScanDepth::Recheck,
                (false, false) => ScanDepth::Suspect,
            };
            let do_scan = all_idle && (stopped || inspected.round_history.follows(round));
            (samples, do_scan.then(|| (depth, inspected.claims(pmi_socket))))
        };
        // The scan takes long, and must not hold the lock.
        if let Some((depth, claims)) = claims {
            verify_claims(&claims, &mut samples, depth);
        }
        let mut inner = self.lock();
        let Some(inspected) = inner.elements.get_mut(&element) else { return nothing };
        (0..)
            .map(ProcessIndex)
            .zip(&mut samples)
            .for_each(|(index, sample)| inspected.add_counters(index, sample));
        inspected.round_history.compare_round(round, &samples, stopped)
    }

    /// A reader of the user monitors. It holds the lock, so that it blocks all other samples.
    pub fn monitors(&self) -> MonitorReader<'_> {
        MonitorReader(self.lock())
    }

    /// The wait states of all processes of an element. `job_time_ns`: the job's time.
    pub fn wait_states(&self, element: ElementIndex, job_time_ns: u64) -> Vec<WaitState> {
        let inner = self.lock();
        inner
            .elements
            .get(&element)
            .map(|inspected| inspected.wait_states(job_time_ns))
            .unwrap_or_default()
    }
}

/// A reader of the user monitors. One lock covers all processes, so that the processor can fetch
/// data of the next processes while it waits for that of the current one.
pub struct MonitorReader<'a>(MutexGuard<'a, Inner>);

impl MonitorReader<'_> {
    /// Whether all threads of a process are idle, and its user monitors. None: the process has not
    /// attached.
    pub fn process(&self, element: ElementIndex, node: u32) -> Option<(bool, [u8; 2])> {
        let element = self.0.elements.get(&element)?;
        let area = element.careas.area(ProcessIndex(node.checked_sub(element.first_node)?))?;
        Some((area.may_be_idle() && area.is_idle(), area.monitors()))
    }
}

impl Inner {
    fn process(&mut self, element: ElementIndex, node: u32) -> Option<&mut ObservedProcess> {
        let element = self.elements.get_mut(&element)?;
        element.processes.get_mut(node.checked_sub(element.first_node)? as usize)
    }
}

/// A process that claims to be idle.
struct IdleClaim {
    pid: i32,
    /// The slots of its threads, if the threads have slots.
    thread_slots: Vec<ThreadSlot>,
    /// The RDMA adapters that PM has opened in it.
    adapter_count: usize,
    /// The inode of its end of the PMI socket, if no message is about to arrive there.
    quiet_pmi_socket: Option<u64>,
}

/// Checks the threads of all processes that claim to be idle. None represents an exited process.
fn verify_claims(claims: &[Option<IdleClaim>], samples: &mut [ProcessSnapshot], depth: ScanDepth) {
    let sockets = PmSockets::default();
    for (claim, sample) in claims.iter().zip(samples.iter_mut()) {
        let Some(claim) = claim else { continue };
        match thread_scan::threads(claim, &sockets, depth) {
            Some(threads) => {
                (sample.is_spinning, sample.threads) = (threads.polling, Some(threads.fingerprint));
            }
            None => return sample.idle = false,
        }
    }
    if depth == ScanDepth::Confirm {
        let pids: HashSet<i32> = claims.iter().flatten().map(|claim| claim.pid).collect();
        let parents = proc_threads::pids_with_children(&pids);
        for (claim, sample) in claims.iter().zip(samples) {
            sample.idle &= claim.as_ref().is_none_or(|claim| !parents.contains(&claim.pid));
        }
    }
}

impl ObservedElement {
    /// Reads the claim of a process: first the number of busy transitions, then the slots of its
    /// threads.
    fn claim(&self, index: ProcessIndex) -> ProcessSnapshot {
        let (Some(process), Some(area)) =
            (self.processes.get(index.index()), self.careas.area(index))
        else {
            return ProcessSnapshot::default();
        };
        let busy_transitions = area.busy_transitions();
        let idle =
            area.may_be_idle() && area.is_idle() && area.barriers() == process.barrier_counts;
        // An exit counts as a change.
        let busy_transitions =
            if process.has_exited { busy_transitions.wrapping_add(1) } else { busy_transitions };
        ProcessSnapshot {
            turns: busy_transitions,
            idle: idle || process.has_exited,
            ..ProcessSnapshot::default()
        }
    }

    /// Adds the message counters of a process.
    fn add_counters(&self, index: ProcessIndex, sample: &mut ProcessSnapshot) {
        let counters = self.message_counters.counters(index);
        (sample.polls, sample.remote_in_flight) = (counters.poll_epoch, counters.pending_rma);
        (sample.sent, sample.received) = (counters.sent, counters.received);
    }

    fn claims(
        &self,
        pmi_socket: impl Fn(ProcessIndex) -> Option<PmiSocketActivity>,
    ) -> Vec<Option<IdleClaim>> {
        let claim = |(index, process): (ProcessIndex, &ObservedProcess)| {
            let thread_slots = self.careas.area(index).and_then(|area| area.thread_slots());
            let claim = IdleClaim {
                pid: process.pid,
                thread_slots: thread_slots.unwrap_or_default(),
                adapter_count: self.message_counters.adapter_count(),
                quiet_pmi_socket: pmi_socket(index)
                    .filter(|socket| socket.is_quiet)
                    .map(|socket| socket.inode),
            };
            (!process.has_exited).then_some(claim)
        };
        (0..).map(ProcessIndex).zip(&self.processes).map(claim).collect()
    }

    fn wait_states(&self, job_time_ns: u64) -> Vec<WaitState> {
        let wait_state = |index: ProcessIndex| {
            let counters = self.message_counters.counters(index);
            let has_exited =
                self.processes.get(index.index()).is_none_or(|process| process.has_exited);
            let thread_slots = self
                .careas
                .area(index)
                .filter(|_| !has_exited)
                .and_then(|area| area.thread_slots());
            // The process has been waiting since its last thread began to wait.
            let last_slot = thread_slots
                .unwrap_or_default()
                .into_iter()
                .max_by_key(|thread_slot| thread_slot.since_ns);
            let since_ns = last_slot.map_or(job_time_ns, |thread_slot| thread_slot.since_ns);
            WaitState {
                node: self.first_node + index.0,
                waiting_for: last_slot.map_or(0, |thread_slot| thread_slot.waiting_for as u32),
                idle_ms: job_time_ns.saturating_sub(since_ns) / 1_000_000,
                sent: counters.sent,
                received: counters.received,
                last_destination: counters.last_to,
                last_source: counters.last_from,
                mpi_call: last_slot
                    .filter(|thread_slot| thread_slot.waiting_for == WaitingFor::MpiCall)
                    .and_then(|thread_slot| {
                        Some(self.careas.area(index)?.mpi_call(thread_slot.index))
                    }),
            }
        };
        self.careas.processes().map(wait_state).collect()
    }
}
