//! Deadlock: every process of a parallel process waits, and no message is anywhere (manual 3.5.1).
//! The verdict is exact, and nothing is stopped to suspect it.
//!
//! # Rounds with a barrier between them
//!
//! In each round every process is looked at once; the next begins anywhere only after the last
//! has ended everywhere. If each process is idle in round 1 and has not been busy between its two
//! looks, then at the instant between the rounds all were idle at once. What each had sent and
//! received by then is what round 1 saw, so the sums say whether anything was on its way.
//!
//! What makes it sound has its part in the exhaustive model (`model.rs`), where leaving it out
//! gives a false suspicion:
//!
//! - A thread that becomes busy clears its idle slot, then counts the turn, and only then goes on.
//!   Turns are read before the slots: who counted before the slot was clear would be seen idle with
//!   the new count. Everything else is read after the slots.
//! - A process is idle when all of its threads are.
//! - A message is received when it is released, and whoever releases it is busy (manual 2.5,
//!   figure 2.9).
//! - Who spins may wait for memory that a remote write has changed before the end of round 1: it
//!   has to have polled in vain twice since. "Since" needs a third round: what it did after its own
//!   look in round 1 may have come before the write of somebody who was looked at later.
//!
//! - From the second round on every thread is looked at, in the kernel too: what says nothing of
//!   itself must sleep where only its own process can wake it, and must not have run between
//!   rounds 2 and 3. So at the instant between these nobody was about to wake anybody. What is
//!   counted is read after that: who sent since would have run.
//!
//! All of that gives a *suspicion*. One stop of the gang confirms it: nothing has changed, and no
//! thread is anywhere but where it says that it waits.
//!
//! | event | action |
//! |---|---|
//! | all hosts say that theirs are idle: `AllIdle` | `Look` 1 |
//! | `Seen` by all, idle | `Look` 2 |
//! | `Seen` by all, unchanged, sums equal | `Look` 3 |
//! | `Seen` by all, unchanged, but somebody who spins has not polled | `Look` 3 again, later |
//! | `Seen` by all, unchanged, and whoever spins has polled | `Hold` the job |
//! | `Held` | `Look` 4 |
//! | `Seen` by all, confirmed | `Verdict` |
//! | anything else | `Release` if held; again after a pause, while all are idle |
//! | `Stopped`: the slice is over | rounds begin again when all say so in the next |
//!
//! A job gives up its slice when all are idle, but not during rounds: they fit in no slice else.

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

/// From a look that found no deadlock to the next, while all are idle; doubled up to a second.
const MIN_BACKOFF_INTERVAL: Duration = Duration::from_millis(2);
const MAX_BACKOFF_INTERVAL: Duration = Duration::from_secs(1);
/// From a third round in which somebody has not polled to the same again; doubled likewise.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);
