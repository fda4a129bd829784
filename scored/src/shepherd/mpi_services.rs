//! The services for the MPI programs of the running stage: PMI and PMIx. This module passes each
//! order to the service of its parallel process, and makes reports of the events of both services.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{ElementReport, Status, SubsetFence};
use score_proto::pmix::PmixOrder;

use super::inspection::PmiSocketActivity;
use super::job_info::{JobInfo, ProcessKey};
use super::pmi_service::{NewPmiSocket, PmiEvent, PmiService};
use super::pmix_service::PmixService;

/// A report, and the element to which it belongs.
type MpiReport = (ElementIndex, ElementReport);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct MpiServices {
    /// The sockets of MPI programs that use PMI.
    pmi: PmiService,
    /// The helper for MPI programs that use PMIx.
    pmix: PmixService,
    /// This host's index among the job's hosts.
    self_host: JobHostId,
}

impl MpiServices {
    /// Drops the last stage and prepares for the MPI programs of the next one.
    pub fn begin_stage(&mut self, job_info: &JobInfo, job_directory: &Path) {
        self.self_host = job_info.placement.self_host;
        self.pmi.begin_stage(job_info);
        self.pmix.begin_stage(job_info, job_directory);
    }

    /// Stops the service of PMIx, because the job ends.
    pub fn close(&mut self) {
        self.pmix.close();
    }

    /// Removes the shared memory that the MPI libraries of killed processes have left.
    pub fn remove_shared_memory(&self) {
        self.pmi.remove_shared_memory();
    }

    /// Whether [`MpiServices::start_helper`] has work to do.
    pub fn is_helper_due(&self) -> bool {
        self.pmix.is_helper_due()
    }

    /// Whether programs cannot be started yet, because the helper does not serve them. Stays true
    /// if the helper has failed.
    pub fn is_helper_starting(&self) -> bool {
        self.pmix.is_starting()
    }

    /// See [`PmixService::start_helper`].
    ///
    /// # Errors
    /// One line.
    pub fn start_helper(
        &mut self,
        registry: &Registry,
        token: Token,
    ) -> Result<Option<(OwnedFd, ElementIndex)>, String> {
        self.pmix.start_helper(registry, token)
    }

    /// The environment variables of a process, if it uses PMIx.
    pub fn environment(&self, key: ProcessKey) -> &[CString] {
        self.pmix.environment(key)
    }

    /// See [`PmiService::open`].
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn open_socket(
        &mut self,
        key: ProcessKey,
        socket: NewPmiSocket,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        self.pmi.open(key, socket, registry, token)
    }

    /// Records that mio has reported an event of the PMI socket with this index.
    pub fn mark_socket_ready(&mut self, index: usize) {
        self.pmi.mark_ready(index);
    }

    /// Records that mio has reported an event of the helper's socket.
    pub fn mark_helper_readable(&mut self) {
        self.pmix.mark_readable();
    }

    /// Whether a PMI socket can be read without a further event from mio.
    pub fn is_runnable(&self) -> bool {
        self.pmi.is_runnable()
    }

    /// When to call [`MpiServices::check_helper`], unless the job is stopped until then.
    pub fn next_check(&self) -> Option<Instant> {
        self.pmix.next_check()
    }

    /// Postpones the next check by the time for which the job was stopped.
    pub fn postpone(&mut self, stop_time: Duration) {
        self.pmix.postpone(stop_time);
    }

    /// Serves the sockets that are ready, and the helper.
    pub fn serve(&mut self, registry: &Registry) -> Vec<MpiReport> {
        let events = self.pmi.serve().into_iter().chain(self.pmix.serve(registry));
        let events: Vec<_> = events.collect();
        self.reports_of(events)
    }

    /// Checks whether the helper hangs, if that is due. Called only while the job runs.
    pub fn check_helper(&mut self, registry: &Registry, now: Instant) -> Vec<MpiReport> {
        if self.pmix.next_check().is_none_or(|at| now < at) {
            return Vec::new();
        }
        // The helper may have sent something that mio has not reported yet.
        self.pmix.mark_readable();
        let mut reports = self.serve(registry);
        let events = self.pmix.check_helper(now);
        reports.extend(self.reports_of(events));
        reports
    }

    /// Reads the rest of an exited process's PMI socket, and reports an error if the process should
    /// not have exited yet.
    pub fn on_process_exit(
        &mut self,
        key: ProcessKey,
        status: Status,
        registry: &Registry,
    ) -> Vec<MpiReport> {
        let events = self.pmi.serve_exited(key);
        let mut reports = self.reports_of(events);
        // The helper may have sent something that mio has not reported yet.
        self.pmix.mark_readable();
        reports.extend(self.serve(registry));
        // A process that was killed by a signal ends the job anyway.
        if let Status::Exited(code) = status
            && let Some(reason) = self
                .pmi
                .unfinished_reason(key, code)
                .or_else(|| self.pmix.unfinished_reason(key, code))
        {
            let report = ElementReport::Failed { code: code.max(1), reason };
            reports.push((key.element, report));
        }
        self.pmix.on_process_exit(key);
        let event = self.pmi.on_process_exit(key);
        reports.extend(self.reports_of(event.map(|event| (key.element, event))));
        reports
    }

    /// Adds entries of other hosts to a fence of all nodes.
    pub fn on_fence_entries(
        &mut self,
        element: ElementIndex,
        entries: Vec<u8>,
    ) -> Option<MpiReport> {
        if self.pmix.serves(element) {
            self.pmix.order(&PmixOrder::FenceEntries { element, fence: None, entries });
            return None;
        }
        let event = self.pmi.merge(element, &entries).err()?;
        Some((element, self.report_of(event)))
    }

    /// Ends a fence of all nodes: all processes on all hosts are in it.
    pub fn end_fence(&mut self, element: ElementIndex) {
        match self.pmix.serves(element) {
            true => self.pmix.order(&PmixOrder::FenceDone { element, fence: None }),
            false => self.pmi.end_fence(element),
        }
    }

    /// Adds entries of other hosts to a subset fence.
    pub fn on_subset_fence_entries(
        &mut self,
        element: ElementIndex,
        fence: SubsetFence,
        entries: Vec<u8>,
    ) {
        self.pmix.order(&PmixOrder::FenceEntries { element, fence: Some(fence), entries });
    }

    /// Ends a subset fence: all nodes that take part are in it.
    pub fn end_subset_fence(&mut self, element: ElementIndex, fence: SubsetFence) {
        self.pmix.end_subset_fence(element, fence);
    }

    /// Handles a request of another host for the entries of a process of this host.
    pub fn on_modex_request(&mut self, key: ProcessKey, asker: JobHostId) -> Vec<MpiReport> {
        let events = self.pmix.on_modex_request(key, asker);
        self.reports_of(events)
    }

    /// Passes the answer of another host on to the helper. Returns the next request.
    pub fn on_modex_answer(
        &mut self,
        key: ProcessKey,
        entries: Option<Vec<u8>>,
    ) -> Option<MpiReport> {
        let (element, event) = self.pmix.on_modex_answer(key, entries)?;
        Some((element, self.report_of(event)))
    }

    /// See [`PmiService::socket_activity`].
    pub fn socket_activity(&self, element: ElementIndex) -> Vec<Option<PmiSocketActivity>> {
        self.pmi.socket_activity(element)
    }

    fn reports_of(
        &self,
        events: impl IntoIterator<Item = (ElementIndex, PmiEvent)>,
    ) -> Vec<MpiReport> {
        let events = events.into_iter();
        events.map(|(element, event)| (element, self.report_of(event))).collect()
    }

    fn report_of(&self, event: PmiEvent) -> ElementReport {
        match event {
            PmiEvent::Failed(code, reason) => ElementReport::Failed { code, reason },
            PmiEvent::Fence(nodes, entries) => ElementReport::InFence { nodes, entries },
            PmiEvent::SubsetFence { fence, nodes, entries } => {
                ElementReport::InSubsetFence { fence, nodes, entries }
            }
            PmiEvent::ModexRequest(node) => {
                ElementReport::ModexRequest { asker: self.self_host, node }
            }
            PmiEvent::ModexAnswer { asker, node, entries } => {
                ElementReport::ModexAnswer { asker, node, entries }
            }
        }
    }
}
