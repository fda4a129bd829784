//! Deadlock detection: every process of a parallel process waits, and no message is outstanding
//! (manual 3.5.1). The verdict is exact, and no process is ended because of a suspicion alone.
//!
//! # Rounds with a barrier between them
//!
//! In each round every process is sampled once. No host begins a round before the previous round
//! has ended on all hosts. Suppose that each process is idle in round 1 and has not been busy
//! between its two samples. Then at the instant between the rounds all were idle at once. Round 1
//! has counted everything that each had sent and received by then, so the sums show whether any
//! message was in flight.
//!
//! Every rule that makes this sound has its part in the exhaustive model (`model.rs`). Without the
//! rule, the model finds a false suspicion:
//!
//! - A thread that becomes busy clears its idle slot, then counts the transition, and only then
//!   continues. The counts are read before the slots. If a thread counted the transition before it
//!   cleared its slot, a sample could find it idle with the new count. Everything else is read
//!   after the slots.
//! - A process is idle when all of its threads are idle.
//! - A message is received when it is released, and the process that releases it is busy (manual
//!   2.5, figure 2.9).
//! - A spinning process may wait for memory that a remote write has changed before the first round
//!   ended. The process must have polled in vain twice since the end of that round. A third round
//!   is needed to check this. An action of the process after its own sample in the first round may
//!   have preceded the write of a process that was sampled later.
//! - A spinning process may also wait for an answer of its launcher (PMI). From the second round
//!   on, it counts as busy unless all of its questions are answered and all answers are taken. A
//!   process asks only while it is busy.
//! - From the second round on, the kernel's state of every thread is also sampled. A thread that
//!   does not report its state must sleep in such a way that only its own process can wake it. It
//!   must not have run between rounds 2 and 3. So at the instant between these rounds no thread was
//!   about to wake another one. Counters are read after that: a thread that has sent since then
//!   would have run.
//!
//! These rules give a *suspicion*. One stop of the gang confirms it: no thread has become busy, the
//! sums are equal, and every thread is at the place at which it has reported to wait.
//!
//! | event | action |
//! |---|---|
//! | all hosts report their processes idle: `AllIdle` | `TakeSnapshot` 1 |
//! | `RoundDone`, idle | `TakeSnapshot` 2 |
//! | `RoundDone`, unchanged, sums equal | `TakeSnapshot` 3 |
//! | `RoundDone`, unchanged, but a spinner has not polled | `TakeSnapshot` 3 again, later |
//! | `RoundDone`, unchanged, and all spinners have polled | `StopGang` |
//! | `GangStopped` | `TakeSnapshot` 4 |
//! | `RoundDone`, confirmed | `Verdict` |
//! | anything else | `Release` if stopped; again after a backoff, while all are idle |
//! | round 1 for 30 s: idle, sums equal, nothing sent | `Suspicion`, once |
//! | `Stopped`: the slice has ended | rounds begin again when all report idle in the next slice |
//!
//! A job yields its slice when all of its processes are idle, but not during rounds. Otherwise the
//! rounds would not fit into a slice.

use std::time::Duration;

mod detector;
#[cfg(test)]
mod model;
mod snapshot;
#[cfg(test)]
mod tests;

pub use detector::{Detector, DetectorAction, DetectorEvent};
pub use score_proto::observation::ActivitySample;
pub use snapshot::{LastRound, ProcessSnapshot};

/// Half of the first delay from a round without a deadlock to the next, while all are idle. The
/// delay is doubled up to a second.
const MIN_BACKOFF_INTERVAL: Duration = Duration::from_millis(2);
const MAX_BACKOFF_INTERVAL: Duration = Duration::from_secs(1);
/// How long all processes must be idle, with nothing sent, before a hang is suspected without
/// proof.
pub const SUSPICION_DELAY: Duration = Duration::from_secs(30);
/// The delay before a third round is repeated because a process has not polled. It is doubled up to
/// a second.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);
