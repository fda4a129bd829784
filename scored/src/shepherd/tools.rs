//! The shepherd's part of tool support: the directory for tools, and the tool control service.
#![forbid(unsafe_code)]

use mio::Registry;

use super::job_runner::JobRunner;
use super::tool_service::ServedJob;
use super::{TOOL_LISTENER, TOOLCTL};

impl JobRunner {
    /// Writes the directory that describes the job to tools.
    ///
    /// # Errors
    /// One line with the reason.
    pub(super) fn write_tool_directory(&mut self) -> Result<(), String> {
        let job_info = self.phase.job_info().ok_or("the job has not started, or has ended")?;
        let programs = self.spawn_queue.programs(&self.context, job_info)?;
        self.tool_service.listen(&self.context.directory)?;
        self.tool_directory.write(&self.context.directory, job_info, &programs)
    }

    /// Serves tools: passes on their commands and the answers.
    pub(super) fn serve_tools(&mut self, registry: &Registry) {
        let tokens = (TOOLCTL, TOOL_LISTENER);
        let (job_info, processes) = (self.phase.job_info(), &mut self.processes);
        let view = ServedJob { job_info, context: &self.context, processes };
        for (element, report) in self.tool_service.serve(registry, tokens, &self.run_gate, view) {
            self.reports.add_about(element, report);
        }
    }
}
