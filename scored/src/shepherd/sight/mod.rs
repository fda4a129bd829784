//! What is seen of the job's processes from outside, without stopping them: whether they are idle,
//! what they have counted, what they wait for (docs/time-sharing.md, "Deadlock").
//!
//! | file | what |
//! |---|---|
//! | `areas.rs` | C-Areas as they are read |
//! | `bell.rs` | where processes ring when their state changes |
//! | `listen.rs` | whether all are idle, and who is asked to ring |
//! | `pause.rs` | when it is looked next if nobody rings |
//! | `tasks.rs` | threads, as the kernel sees them |
//! | `descriptors.rs` | whether a descriptor is PM's |
//! | `stands.rs` | the rules: where a thread stands that waits |
//! | `look.rs` | a look at the threads of a process |
//!
//! A process is idle when all of its threads have set idle, or are in sc_barrier, *and* SCore has
//! no answer for it under way. libscore counts calls of sc_barrier before the thread is idle, and
//! answers that were taken after it is busy again; the shepherd counts calls it has heard of, and
//! answers it has given. A call that is not heard yet may be the last that all others wait for; an
//! answer that is not taken is about to wake somebody. Idle is only who has neither. The master
//! knows of all calls that were heard before a look, since reports keep their order, and has
//! ordered the answers before the look, if there were any.
//!
//! A process that has ended is idle, and its end a change like a return to work. What it has sent
//! stays in the sums; what was sent to it counts as received (docs/ARCHITECTURE.md, "Exit").

mod areas;
mod bell;
mod descriptors;
mod listen;
mod look;
mod pause;
mod stands;
mod tasks;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use score_proto::sight::{Quiet, Seen, Wait};

use super::networks::{Adapters, Gauges};
use crate::deadlock::{Sample, Watch};
use areas::{Areas, Seat};
use bell::Bell;
use descriptors::PmSockets;
use listen::Asked;
use look::Care;
use pause::Pause;

/// All that is watched of a job on this host. The loop says what there is and looks when the master
/// asks; the thread that switches looks at its pace whether all are idle, since it is in time among
/// busy processes.
#[derive(Clone)]
pub struct Sight(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// There is something to look at.
    wanted: AtomicBool,
    /// Readable when that has become so, or processes have ended.
    nudge: EventFd,
    bell: Bell,
}

#[derive(Default)]
struct Inner {
    elements: BTreeMap<u32, Element>,
    /// The user wants nothing to be concluded (`noidle`).
    blind: bool,
}

/// A parallel process.
struct Element {
    /// This host's first node.
    first: u32,
    areas: Areas,
    gauges: Gauges,
    processes: Vec<Process>,
    watch: Watch,
    told: Option<Quiet>,
    asked: Asked,
    pause: Pause,
}

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    pid: i32,
    ended: bool,
    /// Calls of sc_barrier that were heard, and answers that were given.
    barriers: (u64, u64),
}

/// What [`Sight::sample`] has found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looked {
    /// After that it is to be looked again, also if nobody rings.
    pub next: Option<Duration>,
    /// All processes of some element are idle.
    pub idle: bool,
}

/// What is to be watched: the processes of one element on this host, which have all attached.
pub struct Subject<'a> {
    /// This host's first node.
    pub first: u32,
    /// Their C-Areas.
    pub area: BorrowedFd<'a>,
    /// What counts their messages.
    pub gauges: Gauges,
    /// Process ids, by node; 0 for one that has ended.
    pub pids: Vec<i32>,
}

impl Sight {
    /// Sees nothing yet.
    ///
    /// # Errors
    /// As eventfd(2), socket(2).
    pub fn new() -> io::Result<Self> {
        let nudge = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let wanted = AtomicBool::new(false);
        let bell = Bell::new()?;
        Ok(Self(Arc::new(Shared { inner: Mutex::default(), wanted, nudge, bell })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Concludes nothing from what it sees from now on.
    pub fn close(&self) {
        self.lock().blind = true;
    }

    /// The parallel processes of a stage have ended. Nothing is told of them after this.
    pub fn clear(&self) {
        self.lock().elements.clear();
        self.0.wanted.store(false, Ordering::SeqCst);
    }

    /// Begins to watch a parallel process.
    ///
    /// # Errors
    /// One line for the user.
    pub fn watch(&self, number: u32, subject: Subject<'_>) -> Result<(), String> {
        let count = subject.pids.len() as u32;
        let areas = Areas::new(subject.area, count)
            .map_err(|error| format!("the C-Area cannot be mapped: {error}"))?;
        let process = |pid| Process { pid, ended: pid == 0, ..Process::default() };
        let element = Element {
            first: subject.first,
            areas,
            gauges: subject.gauges,
            processes: subject.pids.into_iter().map(process).collect(),
            watch: Watch::default(),
            told: None,
            asked: Asked::default(),
            pause: Pause::default(),
        };
        let mut inner = self.lock();
        inner.elements.insert(number, element);
        if !inner.blind {
            self.0.wanted.store(true, Ordering::SeqCst);
            self.wake();
        }
        Ok(())
    }

    /// How many calls of sc_barrier of a process were heard, and how many answers are given to it:
    /// said before they are sent.
    pub fn barriers(&self, element: u32, node: u32, counts: (u64, u64)) {
        if let Some(process) = self.lock().process(element, node) {
            process.barriers = counts;
        }
    }

    /// A process has ended, and its networks know.
    pub fn ended(&self, element: u32, node: u32) {
        if let Some(process) = self.lock().process(element, node) {
            process.ended = true;
        }
        self.stirred();
    }

    /// What processes have counted may change though none of them does anything: others have ended.
    pub fn stirred(&self) {
        self.lock().elements.values_mut().for_each(|element| element.pause = Pause::default());
        if self.is_wanted() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Only a full counter fails, and that is readable as well.
        let _ = self.0.nudge.write(1);
    }

    /// Whether there is something for [`Sight::sample`].
    pub fn is_wanted(&self) -> bool {
        self.0.wanted.load(Ordering::SeqCst)
    }

    /// Readable when it has to be looked soon, until [`Sight::hush`].
    pub fn nudge(&self) -> BorrowedFd<'_> {
        self.0.nudge.as_fd()
    }

    /// See [`Sight::nudge`].
    pub fn hush(&self) {
        let _ = self.0.nudge.read();
    }

    /// The abstract name of the socket where processes ring.
    pub fn bell(&self) -> &[u8] {
        self.0.bell.name()
    }

    /// Readable when something is to be looked at, until the next [`Sight::sample`].
    pub fn rung(&self) -> BorrowedFd<'_> {
        self.0.bell.fd()
    }

    /// Looks whether all processes of an element are idle, and tells what has changed, before any
    /// [`Sight::clear`] that comes later; `again`: also what has not, if they are. `now`: the job's
    /// time. Nothing when somebody else is looking, who is not waited for.
    pub fn sample(
        &self,
        now: Duration,
        pace: Duration,
        again: bool,
        mut tell: impl FnMut(u32, Quiet),
    ) -> Option<Looked> {
        let mut inner = match self.0.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // Who rings from now on is looked at again.
        self.0.bell.silence();
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut looked = Looked::default();
        for (number, element) in &mut inner.elements {
            let (quiet, hearing) = element.listen(now_ns, pace);
            let changed = element.told != Some(quiet);
            if changed || (again && quiet.idle) {
                element.told = Some(quiet);
                tell(*number, quiet);
            }
            let pause = element.pause.next(hearing, changed, pace);
            looked.next = Some(looked.next.map_or(pause, |next| next.min(pause)));
            looked.idle |= quiet.idle;
        }
        Some(looked)
    }

    /// Looks at all processes of an element for a verdict.
    pub fn look(&self, element: u32, round: u64, stopped: bool) -> Seen {
        let nothing = Seen { idle: false, ..Seen::NOTHING };
        let (mut samples, claims) = {
            let inner = self.lock();
            let Some(one) = inner.elements.get(&element) else { return nothing };
            let samples: Vec<Sample> = (0..one.areas.count()).map(|at| one.claim(at)).collect();
            let all_idle = samples.iter().all(|sample| sample.idle);
            // The first round is a question; from the second on each thread has to prove it.
            let care = match (stopped, one.watch.has_proof(round)) {
                (true, _) => Care::Verdict,
                (false, true) => Care::Moved,
                (false, false) => Care::Suspicion,
            };
            let deep = all_idle && (stopped || one.watch.follows(round));
            (samples, deep.then(|| (care, one.claims())))
        };
        // Not under the lock: it takes a while.
        if let Some((care, claims)) = claims {
            prove(&claims, &mut samples, care);
        }
        let mut inner = self.lock();
        let Some(one) = inner.elements.get_mut(&element) else { return nothing };
        (0..).zip(&mut samples).for_each(|(number, sample)| one.count(number, sample));
        one.watch.look(round, &samples, stopped)
    }

    /// What processes show to monitors. Nobody else looks as long as this is kept.
    pub fn shown(&self) -> Shown<'_> {
        Shown(self.lock())
    }

    /// What every process of an element waits for. `now_ns`: the job's time.
    pub fn explain(&self, element: u32, now_ns: u64) -> Vec<Wait> {
        let inner = self.lock();
        inner.elements.get(&element).map(|one| one.waits(now_ns)).unwrap_or_default()
    }
}

/// What processes show: one lock for all of them, so that the processor fetches what the next ones
/// show while it waits for this one's.
pub struct Shown<'a>(MutexGuard<'a, Inner>);

impl Shown<'_> {
    /// Whether all threads of a process are idle, and its user monitors. None: it has not attached.
    pub fn of(&self, element: u32, node: u32) -> Option<(bool, [u8; 2])> {
        let element = self.0.elements.get(&element)?;
        let area = element.areas.area(node.checked_sub(element.first)?)?;
        Some((area.may_be_idle() && area.is_idle(), area.monitors()))
    }
}

impl Inner {
    fn process(&mut self, element: u32, node: u32) -> Option<&mut Process> {
        let element = self.elements.get_mut(&element)?;
        element.processes.get_mut(node.checked_sub(element.first)? as usize)
    }
}

/// A process that says that it waits.
struct Claim {
    pid: i32,
    /// Those of its threads that say something of themselves.
    seats: Vec<Seat>,
    adapters: Adapters,
}

/// Looks at the threads of all processes that say that they wait; none where one has ended.
fn prove(claims: &[Option<Claim>], samples: &mut [Sample], care: Care) {
    let sockets = PmSockets::default();
    for (claim, sample) in claims.iter().zip(samples.iter_mut()) {
        let Some(claim) = claim else { continue };
        match look::threads(claim, &sockets, care) {
            Some(threads) => {
                (sample.spins, sample.threads) = (threads.spins, Some(threads.stamp));
            }
            None => return sample.idle = false,
        }
    }
    if care == Care::Verdict {
        let pids: HashSet<i32> = claims.iter().flatten().map(|claim| claim.pid).collect();
        let parents = tasks::parents(&pids);
        for (claim, sample) in claims.iter().zip(samples) {
            sample.idle &= claim.as_ref().is_none_or(|claim| !parents.contains(&claim.pid));
        }
    }
}

impl Element {
    /// What a process says of itself: turns first, then its threads' slots.
    fn claim(&self, number: u32) -> Sample {
        let (Some(process), Some(area)) =
            (self.processes.get(number as usize), self.areas.area(number))
        else {
            return Sample::default();
        };
        let turns = area.turns();
        let idle = area.may_be_idle() && area.is_idle() && area.barriers() == process.barriers;
        // Its end is a change.
        let turns = if process.ended { turns.wrapping_add(1) } else { turns };
        Sample { turns, idle: idle || process.ended, ..Sample::default() }
    }

    /// Adds what it has counted.
    fn count(&self, number: u32, sample: &mut Sample) {
        let counted = self.gauges.counters(number);
        (sample.polls, sample.remote) = (counted.poll_epoch, counted.remote);
        (sample.sent, sample.received) = (counted.sent, counted.received);
    }

    fn claims(&self) -> Vec<Option<Claim>> {
        let claim = |(number, process): (u32, &Process)| {
            let seats = self.areas.area(number).and_then(|area| area.seats());
            let adapters = self.gauges.adapters(number);
            let claim = Claim { pid: process.pid, seats: seats.unwrap_or_default(), adapters };
            (!process.ended).then_some(claim)
        };
        (0..).zip(&self.processes).map(claim).collect()
    }

    fn waits(&self, now_ns: u64) -> Vec<Wait> {
        let wait = |number: u32| {
            let counted = self.gauges.counters(number);
            let ended = self.processes.get(number as usize).is_none_or(|one| one.ended);
            let seats = self.areas.area(number).filter(|_| !ended).and_then(|area| area.seats());
            // It waits since the last of its threads does.
            let last = seats.unwrap_or_default().into_iter().max_by_key(|seat| seat.since_ns);
            let since = last.map_or(now_ns, |seat| seat.since_ns);
            Wait {
                node: self.first + number,
                waiting: last.map_or(0, |seat| seat.waiting as u32),
                idle_ms: now_ns.saturating_sub(since) / 1_000_000,
                sent: counted.sent,
                received: counted.received,
                last_to: counted.last_to,
                last_from: counted.last_from,
            }
        };
        (0..self.areas.count()).map(wait).collect()
    }
}
