//! The access of tools to the job on this host: the directory that describes the job, and the tool
//! control service.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant};

use mio::Registry;
use score_proto::ids::ElementIndex;
use score_proto::job_control::Status;
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::ToolCommand;
use score_proto::toolctl::ToolProcess;

use super::gang_switch::RunGate;
use super::job_info::{JobInfo, ProcessKey};
use super::tool_directory::{StageProgram, ToolDirectory};
use super::tool_service::{ServedJob, ToolReport, ToolService};
use super::{TOOL_LISTENER, TOOLCTL};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolAccess {
    service: ToolService,
    directory: ToolDirectory,
}

impl ToolAccess {
    /// Begins a stage: removes the description of the last stage. The service continues.
    pub fn begin_stage(&mut self, job_time: Duration, now: Instant) {
        self.service.begin_stage(job_time);
        self.directory.begin_stage(now);
    }

    /// Handles the start of a process of the running stage.
    pub fn on_process_start(&mut self, job_info: &JobInfo, key: ProcessKey, pid: i32) {
        self.service.on_process_start(job_info, key, pid);
    }

    /// Handles the exit of a process of the running stage.
    pub fn on_process_exit(&mut self, job_info: &JobInfo, key: ProcessKey, status: Status) {
        self.service.on_process_exit(job_info, key, status);
    }

    /// Whether [`ToolAccess::write_directory`] has to be called now.
    pub fn is_directory_due(&self, now: Instant) -> bool {
        self.directory.is_due(now)
    }

    /// Writes the directory that describes the job to tools, and creates the socket to which they
    /// connect.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn write_directory(
        &mut self,
        job_directory: &Path,
        job_info: &JobInfo,
        programs: &[StageProgram<'_>],
    ) -> Result<(), String> {
        self.service.listen(job_directory)?;
        self.directory.write(job_directory, job_info, programs)
    }

    /// See [`ToolService::on_command`].
    pub fn on_command(
        &mut self,
        element: ElementIndex,
        command: ToolCommand,
        local_nodes: NodeSet,
        processes: Vec<ToolProcess>,
    ) -> Option<ToolReport> {
        self.service.on_command(element, command, local_nodes, processes)
    }

    /// Passes commands on to the service, and returns its answers.
    pub fn serve(
        &mut self,
        registry: &Registry,
        run_gate: &RunGate,
        job: ServedJob<'_>,
    ) -> Vec<ToolReport> {
        self.service.serve(registry, (TOOLCTL, TOOL_LISTENER), run_gate, job)
    }

    /// Records that mio has reported an event of the service's socket.
    pub fn mark_readable(&mut self) {
        self.service.mark_readable();
    }

    /// Records that mio has reported a connection of a tool.
    pub fn mark_connection(&mut self) {
        self.service.mark_connection();
    }

    /// The earlier one of the deadlines of the service and of the directory.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.service.next_deadline(), self.directory.deadline()].into_iter().flatten().min()
    }

    /// Handles the end of the job. If tools are connected, the service exits after it has notified
    /// them.
    pub fn end_job(&mut self, run_gate: &RunGate) {
        self.service.end_job(run_gate);
    }

    /// The same as [`ToolAccess::end_job`], and the directory is not written any more.
    pub fn close(&mut self, run_gate: &RunGate) {
        self.service.end_job(run_gate);
        self.directory.close();
    }

    /// Whether the job ends and the service has not notified all tools yet.
    pub fn is_ending(&self) -> bool {
        self.service.is_ending()
    }

    /// Whether a tool is still running. The directory must then stay.
    pub fn has_tools(&self) -> bool {
        self.directory.has_tools()
    }
}
