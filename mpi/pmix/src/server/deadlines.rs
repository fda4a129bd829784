//! Time limits (PMIX_TIMEOUT) of questions about ranks of other hosts. A thread sleeps until the
//! next deadline. It starts with the first question that has a time limit.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use super::{Key, SERVER};

/// The time at which a question is answered by PMIX_ERR_TIMEOUT, if it still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    /// The time.
    pub at: Instant,
    /// The rank that the question is about.
    pub key: Key,
    /// The number of the question.
    pub number: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Deadlines {
    /// The channel to the thread. None: the thread could not be started. Time limits then have no
    /// effect.
    thread: OnceLock<Option<Sender<Deadline>>>,
}

impl Deadlines {
    /// Adds the deadline of a question.
    pub fn add(&self, deadline: Deadline) {
        let thread = self.thread.get_or_init(|| {
            let (sender, receiver) = channel();
            let builder = thread::Builder::new().name("deadlines".to_owned());
            builder.spawn(move || wait_for_deadlines(&receiver)).ok().map(|_| sender)
        });
        if let Some(sender) = thread {
            // The thread ends only with the process.
            let _ = sender.send(deadline);
        }
    }
}

fn wait_for_deadlines(receiver: &Receiver<Deadline>) {
    let mut deadlines = BTreeSet::new();
    loop {
        let next = match deadlines.first() {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(Deadline { at, .. }) => {
                receiver.recv_timeout(at.saturating_duration_since(Instant::now()))
            }
        };
        match next {
            Ok(deadline) => _ = deadlines.insert(deadline),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some(deadline), Some(server)) = (deadlines.pop_first(), SERVER.get()) {
                    server.end_question(deadline.key, deadline.number);
                }
            }
        }
    }
}
