//! Active messages of MPICH that a process sends to itself.
//!
//! MPICH sends active messages without tags. Messages from a process to itself use a queue inside
//! MPICH. A call that waits checks this queue after it has read the completion queue here. Suppose
//! that a program starts an operation on its own memory, and then one on memory of another process.
//! A third process may see the second operation, and start an operation on the same memory as the
//! first one. This operation would overtake the first one. MPI permits this, but the locks of
//! `mpi4py.util.sync` would then wait for ever.
//!
//! Therefore the first read after an untagged message was sent returns no untagged message. MPICH
//! checks its own queue before the second read.

use crate::job;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnMessages {
    /// The MPI library has no such queue.
    NeverWaiting,
    /// MPICH has checked its queue since this process has sent a message.
    LookedAt,
    /// The process has sent a message, and MPICH may not have checked its queue since.
    MayWait,
}

impl OwnMessages {
    /// The state of a process that has sent no message.
    pub(crate) fn of_process() -> Self {
        if job::is_of_mpich() { Self::LookedAt } else { Self::NeverWaiting }
    }

    /// Notes that the process sends an untagged message.
    #[inline(always)]
    pub(crate) fn note_send(&mut self) {
        if *self == Self::LookedAt {
            *self = Self::MayWait;
        }
    }

    /// Starts a read of a completion queue. Returns whether untagged messages must wait for the
    /// next read.
    #[inline(always)]
    pub(crate) fn start_read(&mut self) -> bool {
        let may_wait = *self == Self::MayWait;
        if may_wait {
            *self = Self::LookedAt;
        }
        may_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untagged_messages_wait_for_the_second_read_after_a_message_was_sent() {
        let mut own_messages = OwnMessages::LookedAt;
        assert!(!own_messages.start_read());
        own_messages.note_send();
        own_messages.note_send();
        assert!(own_messages.start_read());
        assert!(!own_messages.start_read());
    }

    #[test]
    fn messages_of_other_libraries_never_wait() {
        let mut own_messages = OwnMessages::NeverWaiting;
        own_messages.note_send();
        assert!(!own_messages.start_read());
    }
}
