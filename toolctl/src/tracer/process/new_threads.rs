//! The watchpoints of new threads. The kernel copies no debug registers to a new thread, so the
//! tracer sets the watchpoints that the thread inherits from the thread that has created it. The
//! first stop of the new thread and the report of its creation arrive in any order.

#![forbid(unsafe_code)]

use super::thread_access::ThreadAccess;
use super::threads::{Motion, Stop};
use super::{Context, Process};
use crate::tracer::Tid;
use crate::tracer::kernel::Kernel;
use crate::tracer::request::Request;
use crate::tracer::watchpoints::{WatchPolicy, WatchRange};

impl Process {
    /// Handles the report that a thread has created another thread of the process.
    pub(in crate::tracer) fn on_creation<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        creator: Tid,
        tid: Tid,
    ) {
        let inheritance = self.inheritance_from(creator);
        let is_new = self.threads.begin(tid, context.kernel.now());
        let Some(thread) = self.threads.get_mut(tid) else { return };
        match thread.motion() {
            Motion::Starting(place, _) => {
                thread.inheritance = inheritance;
                self.threads.set_stopped(tid, Stop::at(place));
                self.inherit(context, tid);
            }
            _ if is_new => thread.inheritance = inheritance,
            // The thread has started, because no thread had a watchpoint when it was created.
            _ => {}
        }
    }

    /// Whether the first stop of a new thread has to wait for the report of its creation.
    pub(in crate::tracer) fn has_to_wait_for_creator(&self) -> bool {
        let mut threads = self.threads.iter();
        self.watch_policy == WatchPolicy::Propagate
            && threads.any(|(_, thread)| thread.watchpoints.ranges().next().is_some())
    }

    /// Sets the watchpoints that a stopped thread inherits, if it is new.
    pub(in crate::tracer) fn inherit<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let Some(thread) = self.threads.get_mut(tid) else { return };
        for range in std::mem::take(&mut thread.inheritance) {
            let access = ThreadAccess::new(context.kernel, self.pid, (tid, thread));
            // An error means that the thread is being killed, or that the memory is not mapped.
            _ = access.serve(Request::SetWatchpoint(range));
        }
    }

    /// The watchpoints that a new thread inherits. A watchpoint that a tool is removing from the
    /// creator is not inherited.
    fn inheritance_from(&self, creator: Tid) -> Vec<WatchRange> {
        let Some(thread) = self.threads.get(creator) else { return Vec::new() };
        if self.watch_policy == WatchPolicy::NoPropagate {
            return Vec::new();
        }
        let is_kept =
            |range: &WatchRange| !self.requests.is_reset_requested(creator, range.address);
        thread.watchpoints.ranges().filter(is_kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tracer::Ticket;
    use crate::tracer::watchpoints::WatchKind;

    #[test]
    fn a_watchpoint_that_a_tool_removes_is_not_inherited() {
        let range = |address| WatchRange { address, length: 8, kind: WatchKind::Write };
        let mut process = Process::new(1);
        process.threads.attach(1);
        let watchpoints = &mut process.threads.get_mut(1).unwrap().watchpoints;
        watchpoints.add(range(0x1000), vec![0; 8]).unwrap();
        watchpoints.add(range(0x2000), vec![0; 8]).unwrap();
        assert_eq!(process.inheritance_from(1), [range(0x1000), range(0x2000)]);
        let reset = Request::ResetWatchpoint(0x1000);
        process.add_request(Ticket(1), Some(1), reset, Duration::ZERO).unwrap();
        assert_eq!(process.inheritance_from(1), [range(0x2000)]);
        process.watch_policy = WatchPolicy::NoPropagate;
        assert_eq!(process.inheritance_from(1), []);
        // The tool dies before the first stop of the new thread.
        process.threads.begin(2, Duration::ZERO);
        process.threads.get_mut(2).unwrap().inheritance.push(range(0x2000));
        process.threads.release_all();
        assert_eq!(process.threads.get(2).unwrap().inheritance, []);
    }
}
