//! The files that the hosts of a job copy from each other: the programs of the job, and the files
//! of a tool. An answer or a request belongs to the transfer that has a file with its hash.

use score_proto::job_control::{FileRequest, Placement, ProgramAnswer, ShepherdReport};
use score_proto::message::JobSpec;
use score_proto::tool_files::ToolFilesOrder;

use super::job_info::{JobInfo, ShepherdContext};
use super::program_store::ProgramStore;
use super::tool_transfer::ToolTransfer;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct FileCopies {
    programs: ProgramStore,
    tool_files: ToolTransfer,
}

impl FileCopies {
    /// Starts to get the programs of the job.
    ///
    /// # Errors
    /// One line with the path at fault.
    pub fn begin(
        &mut self,
        spec: &JobSpec,
        placement: &Placement,
        context: &ShepherdContext,
    ) -> Result<(), String> {
        let store = ProgramStore::begin(spec, placement, context.multi_user, context.paths())?;
        self.programs = store;
        Ok(())
    }

    /// Carries out an order about the files of a tool.
    pub fn on_tool_order(
        &mut self,
        order: &ToolFilesOrder,
        job: &JobInfo,
        context: &ShepherdContext,
    ) {
        self.tool_files.on_order(order, context.paths(), job, context.multi_user);
    }

    /// Takes the parent's answer to a request for bytes.
    ///
    /// # Errors
    /// The reason why a program of the job cannot be copied. The job cannot start here.
    pub fn on_answer(&mut self, answer: &ProgramAnswer) -> Result<(), String> {
        if self.tool_files.has(answer.hash()) {
            self.tool_files.on_answer(answer);
            return Ok(());
        }
        self.programs.on_answer(answer)
    }

    /// Handles a request of a child host for bytes.
    pub fn on_child_request(&mut self, child: u32, request: FileRequest) {
        match self.tool_files.has(&request.hash) {
            true => self.tool_files.on_child_request(child, request),
            false => self.programs.on_child_request(child, request),
        }
    }

    /// Whether [`FileCopies::pump`] has work to do.
    pub fn is_runnable(&self) -> bool {
        self.programs.is_runnable() || self.tool_files.is_runnable()
    }

    /// Continues to copy. Returns the reports to send, and the error of [`FileCopies::on_answer`].
    pub fn pump(&mut self) -> (Vec<ShepherdReport>, Result<(), String>) {
        let copied = self.programs.pump();
        let mut reports = self.programs.take_reports();
        reports.extend(self.tool_files.pump());
        (reports, copied)
    }

    /// Drops the programs: the first process is about to start, or the job cannot start.
    pub fn close_programs(&mut self) {
        self.programs.close();
    }

    /// Ends all transfers, because the job ends.
    pub fn close(&mut self) {
        self.programs.close();
        self.tool_files.close();
    }
}
