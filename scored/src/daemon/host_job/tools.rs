//! The tools of a job on this host, as far as the job's other parts have to do with them.

use std::time::Instant;

use mio::{Registry, Token};
use score_job::jobs::LocalReport;
use score_proto::job_control::{JobOrder, JobReport, ShepherdOrder};

use super::HostJob;
use crate::daemon::host_tools::HostTools;
use crate::tool_supervisor;

impl HostJob {
    /// What an order means for the tools of the job.
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
            ShepherdOrder::Job(JobOrder::Finish) => self.tools.end_job(Instant::now()),
            // The user does not want to wait for them.
            ShepherdOrder::Job(JobOrder::Kill | JobOrder::Signal(_)) if self.tools.is_ending() => {
                self.tools.kill(Instant::now());
            }
            _ => {}
        }
    }

    pub(super) fn take_tool_reports(&mut self) {
        let reports = self.tools.take_reports().into_iter().map(JobReport::Tool);
        let reports = reports.map(LocalReport::Job);
        // The last report of the host is behind them.
        let last = matches!(self.reports.last(), Some(LocalReport::Lost { .. }))
            || matches!(self.reports.last(), Some(LocalReport::Job(JobReport::Finished { .. })));
        let at = self.reports.len() - usize::from(last);
        self.reports.splice(at..at, reports);
    }

    /// Starts the tools that were ordered, as soon as they can be.
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

    /// The tools of the job.
    pub fn tools_mut(&mut self) -> &mut HostTools {
        &mut self.tools
    }

    /// The job ends here without a report.
    pub(super) fn abort_tools(&mut self) {
        match self.kept() {
            // The keeper ends them with the job's cgroup, and no event would say when.
            Some(_) => self.tools.abandon(),
            None => {
                self.tools.kill(Instant::now());
                self.tools.receive();
            }
        }
    }

    /// When [`HostJob::advance_tools`] has to be called.
    pub fn tool_deadline(&self) -> Option<Instant> {
        self.tools.deadline()
    }

    /// Takes what the supervisors of tools report, and gives up those that do not end.
    pub fn advance_tools(&mut self, now: Instant) {
        self.tools.receive();
        self.tools.expire(now);
        self.finish_if_tools_ended();
    }

    /// Removes what the job has here and sends the last report, when the tools have ended.
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
