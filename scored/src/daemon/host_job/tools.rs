//! Connects the tools of a job on this host ([`HostTools`]) with the other parts of the job.

use std::time::Instant;

use mio::{Registry, Token};
use score_job::jobs::LocalReport;
use score_proto::job_control::{JobOrder, JobReport, ShepherdOrder};

use super::HostJob;
use crate::daemon::host_tools::HostTools;
use crate::tool_supervisor;

impl HostJob {
    /// Passes an order to the tools of the job, if it concerns them.
    pub(super) fn on_order_for_tools(&mut self, order: &ShepherdOrder) {
        match order {
            ShepherdOrder::Job(JobOrder::Tool(order)) => {
                let must_prepare = self.tools.on_order(order);
                match &mut self.shepherd {
                    Some(shepherd) if must_prepare => {
                        shepherd.control_link.queue(&ShepherdOrder::PrepareTools);
                    }
                    Some(_) => {}
                    None => self.tools.end_job(Instant::now()),
                }
            }
            ShepherdOrder::Job(JobOrder::ToolFiles(order)) => self.tools.on_files_order(order),
            ShepherdOrder::Job(JobOrder::Finish) => self.tools.end_job(Instant::now()),
            // During the clean-up, an order to kill or signal the job ends the tools at once.
            ShepherdOrder::Job(JobOrder::Kill | JobOrder::Signal(_)) if self.tools.is_ending() => {
                self.tools.kill(Instant::now());
            }
            _ => {}
        }
    }

    pub(super) fn take_tool_reports(&mut self) {
        let reports = self.tools.take_reports();
        for tool in reports.iter().filter_map(|report| self.tools.take_ended_files(report)) {
            // Without a shepherd, the removal of the job's directory also removes the files.
            if let Some(shepherd) = &mut self.shepherd {
                shepherd.control_link.queue(&ShepherdOrder::RemoveToolFiles(tool));
            }
        }
        let reports = reports.into_iter().map(JobReport::Tool).map(LocalReport::Job);
        // Reports of tools are inserted in front of the last report of the host.
        let last = matches!(self.reports.last(), Some(LocalReport::Lost { .. }))
            || matches!(self.reports.last(), Some(LocalReport::Job(JobReport::Finished { .. })));
        let at = self.reports.len() - usize::from(last);
        self.reports.splice(at..at, reports);
    }

    /// Starts the ordered tools that can be started now.
    pub fn start_tools(&mut self, registry: &Registry, token: Token) {
        let kept = self.kept().cloned();
        self.tools.start_waiting(registry, token, |control| match &kept {
            None => {
                let started = tool_supervisor::start(None, control);
                started.map(Some).map_err(|error| format!("a tool cannot be started: {error}"))
            }
            Some(job) => job.start_tool(control).map(|()| None).map_err(|error| error.to_string()),
        });
    }

    /// Whether [`HostJob::start_tools`] has something to do.
    pub fn has_startable_tools(&self) -> bool {
        self.tools.has_startable()
    }

    /// The tools of the job on this host.
    pub fn tools_mut(&mut self) -> &mut HostTools {
        &mut self.tools
    }

    /// Ends the tools. The job ends on this host without a report.
    pub(super) fn abort_tools(&mut self) {
        match self.kept() {
            // The keeper kills the tools with the job's cgroup and sends no event about their end.
            Some(_) => self.tools.abandon(),
            None => {
                self.tools.kill(Instant::now());
                self.tools.receive();
            }
        }
    }

    /// The time of the next call of [`HostJob::advance_tools`].
    pub fn tool_deadline(&self) -> Option<Instant> {
        self.tools.deadline()
    }

    /// Receives the reports of supervisors, and gives up supervisors that do not end in time.
    pub fn advance_tools(&mut self, now: Instant) {
        self.tools.receive();
        self.tools.expire(now);
        self.finish_if_tools_ended();
    }

    /// If all tools have ended, removes the job's resources on this host and sends the last report.
    pub(super) fn finish_if_tools_ended(&mut self) {
        if self.tools.is_empty()
            && let Some(last_report) = self.last_report.take()
        {
            self.remove_resources();
            self.take_tool_reports();
            self.reports.push(last_report);
        }
    }
}
