//! Carries out requests that need a stopped thread. The functions do not block: the answer is an
//! event.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::thread_access::{MAX_SNAPSHOT_STACK_LEN, ThreadAccess, snapshot};
use super::{Context, Exclusive, Motion, Process, Thread};
use crate::tracer::Tid;
use crate::tracer::error::TraceError;
use crate::tracer::kernel::Kernel;
use crate::tracer::request::{Answer, PendingRequest, Request, Ticket};

impl Process {
    /// Adds a request. Returns an error if it cannot be carried out.
    pub(in crate::tracer) fn add_request(
        &mut self,
        ticket: Ticket,
        tid: Option<Tid>,
        request: Request,
        now: Duration,
    ) -> Result<(), TraceError> {
        if let Some(tid) = tid
            && !self.threads.get(tid).is_some_and(|it| it.motion() != Motion::Dying)
        {
            return Err(TraceError::NoThread(tid));
        }
        if self.requests.is_full() {
            return Err(TraceError::Parameter("too many requests wait for this process"));
        }
        self.check_request(tid, &request)?;
        self.requests.push(PendingRequest { ticket, tid, request, since: now });
        Ok(())
    }

    fn check_request(&self, tid: Option<Tid>, request: &Request) -> Result<(), TraceError> {
        match request {
            Request::Snapshot(length) if *length > MAX_SNAPSHOT_STACK_LEN => {
                Err(TraceError::Length(*length as u64))
            }
            Request::Snapshot(_) => Ok(()),
            request if request.is_injection() => self.resources.check(request),
            _ if tid.is_none() => Err(TraceError::Parameter("the request is for one thread")),
            _ => Ok(()),
        }
    }

    /// Carries out the requests that can be carried out now.
    pub(in crate::tracer) fn serve_requests<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let mut index = 0;
        while let Some(pending) = self.requests.get(index) {
            if !self.can_start(pending) {
                index += 1;
                continue;
            }
            let Some(pending) = self.requests.take(index) else { return };
            self.serve(context, pending);
        }
    }

    fn can_start(&self, pending: &PendingRequest) -> bool {
        match (pending.request.is_injection(), pending.tid) {
            (true, _) => self.exclusive.is_none(),
            (false, Some(tid)) => {
                // A request for a thread that does not exist any more is also answered.
                self.threads
                    .get(tid)
                    .is_none_or(|it| it.stop().is_some() || it.motion() == Motion::Dying)
                    && !self.is_moving_alone(tid)
            }
            (false, None) => self.threads.iter().all(|(_, thread)| {
                thread.stop().is_some() || matches!(thread.motion(), Motion::Halted | Motion::Dying)
            }),
        }
    }

    fn serve<K: Kernel>(&mut self, context: &mut Context<'_, K>, pending: PendingRequest) {
        let ticket = Some(pending.ticket);
        if let Some(purpose) = self.resources.purpose_of(&pending.request) {
            let first = self.threads.ids().next();
            let tid = self.threads.accessible().or(pending.tid).or(first).unwrap_or(self.pid);
            return self.start_injection(tid, purpose, ticket);
        }
        let is_stopped = |thread: &Thread| thread.stop().is_some();
        let answer = match (pending.request, pending.tid) {
            (Request::Snapshot(length), None) => {
                let threads = self.threads.iter().map(|(tid, thread)| (tid, is_stopped(thread)));
                let all = threads.map(|thread| snapshot(context.kernel, self.pid, thread, length));
                Ok(Answer::Snapshot(all.collect()))
            }
            (Request::Snapshot(length), Some(tid)) => {
                let thread = (tid, self.threads.get(tid).is_some_and(is_stopped));
                Ok(Answer::Snapshot(vec![snapshot(context.kernel, self.pid, thread, length)]))
            }
            (request, Some(tid)) => match self.threads.get_mut(tid) {
                Some(thread) => {
                    ThreadAccess::new(context.kernel, self.pid, (tid, thread)).serve(request)
                }
                None => Err(TraceError::NoThread(tid)),
            },
            (_, None) => Err(TraceError::Parameter("the request is for one thread")),
        };
        context.answer(ticket, answer);
    }

    /// Answers requests that have timed out.
    pub(in crate::tracer) fn expire_requests<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        now: Duration,
    ) {
        while let Some(pending) = self.requests.take_expired(now) {
            let error = TraceError::Timeout(pending.tid.unwrap_or(self.pid));
            context.answer(Some(pending.ticket), Err(error));
        }
        // A thread that does not stop cannot execute a system call for a tool.
        if let Some((Exclusive::Inject(injection), false)) = &self.exclusive
            && self.threads.get(injection.tid).is_none_or(|it| it.motion() == Motion::Halted)
        {
            self.fail_exclusive(context);
        }
    }

    /// Answers all requests, because the process is being detached or has ended.
    pub(in crate::tracer) fn fail_requests<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let error = TraceError::NoProcess(self.pid);
        for pending in self.requests.take_all() {
            context.answer(Some(pending.ticket), Err(error));
        }
    }
}
