//! The files that start_tool sends for one tool of a running job (`start_tool --files`). Their
//! archive reaches the host like the job's programs ([`ProgramStore`]). A host of the tool unpacks
//! the archive into `.tool-files-N` of the job's directory. N is the number of the tool. A host
//! above the hosts of the tool in the job's tree only passes the archive on. The job master permits
//! one transfer at a time.

use std::path::{Path, PathBuf};
use std::thread;

use score_proto::job_control::{FileRequest, ProgramAnswer, ShepherdReport};
use score_proto::message::{ContentHash, FileDigest};
use score_proto::tool_files::{self, ToolFilesKind, ToolFilesOrder};
use score_proto::tool_start::ToolId;

use super::disk_usage;
use super::job_info::JobInfo;
use super::program_store::{ProgramStore, StorePaths, shares_disk};
use super::tool_files::{DiskLimit, ToolFiles};
use crate::sys::remove;

/// The files of a tool while they are transferred.
#[derive(Debug)]
struct Transfer {
    tool: ToolId,
    store: ProgramStore,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolTransfer {
    transfer: Option<Transfer>,
    reports: Vec<ShepherdReport>,
}

impl ToolTransfer {
    /// Carries out an order of the job master.
    pub fn on_order(
        &mut self,
        order: &ToolFilesOrder,
        paths: StorePaths<'_>,
        job: &JobInfo,
        is_multi_user: bool,
    ) {
        let tool = order.tool;
        self.close();
        match order.kind {
            ToolFilesKind::Fetch(content) => match fetch(order, content, paths, job, is_multi_user)
            {
                Ok(store) => self.transfer = Some(Transfer { tool, store }),
                Err(reason) => self.report_failure(tool, reason),
            },
            ToolFilesKind::Complete => {}
            ToolFilesKind::Cancel => remove_files(paths.job, tool),
        }
    }

    fn report_failure(&mut self, tool: ToolId, reason: String) {
        self.reports.push(ShepherdReport::ToolFiles { tool, result: Err(reason) });
    }

    /// Whether the archive that is transferred has this content.
    pub fn has(&self, hash: &ContentHash) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.store.has_program(hash))
    }

    /// Takes the parent's answer to a request for bytes.
    pub fn on_answer(&mut self, answer: &ProgramAnswer) {
        self.update(|store| store.on_answer(answer));
    }

    /// Handles a request of a child host for bytes.
    pub fn on_child_request(&mut self, child: u32, request: FileRequest) {
        self.update(|store| {
            store.on_child_request(child, request);
            Ok(())
        });
    }

    /// Whether [`ToolTransfer::pump`] has work to do.
    pub fn is_runnable(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.store.is_runnable())
    }

    /// Continues to read, to pass on and to unpack the archive, and returns the reports to send.
    pub fn pump(&mut self) -> Vec<ShepherdReport> {
        self.update(ProgramStore::pump);
        std::mem::take(&mut self.reports)
    }

    /// Updates the transfer, and ends it on this host after an error. When the job master cancels
    /// the transfer, this host removes the files that it has unpacked so far.
    fn update(&mut self, update: impl FnOnce(&mut ProgramStore) -> Result<(), String>) {
        let Some(transfer) = &mut self.transfer else { return };
        let (tool, updated) = (transfer.tool, update(&mut transfer.store));
        self.reports.extend(transfer.store.take_reports());
        if let Err(reason) = updated {
            self.close();
            self.report_failure(tool, reason);
        }
    }

    /// Ends the transfer, and removes the archive.
    pub fn close(&mut self) {
        self.transfer.take().into_iter().for_each(|mut transfer| transfer.store.close());
    }
}

/// Starts to get the files of a tool.
fn fetch(
    order: &ToolFilesOrder,
    content: FileDigest,
    paths: StorePaths<'_>,
    job: &JobInfo,
    is_multi_user: bool,
) -> Result<ProgramStore, String> {
    let (tool, directory) = (order.tool, paths.job);
    let is_host_of_tool = order.hosts.contains(job.placement.self_host.0);
    let files = ToolFiles {
        option: "--files",
        archive: directory.join(tool_files::archive_name(tool)),
        content,
        directory: is_host_of_tool.then(|| path_of(directory, tool)),
    };
    let report = ShepherdReport::ToolFiles { tool, result: Ok(()) };
    let ready_report = Some(report).filter(|_| is_host_of_tool);
    let shares_disk = shares_disk(job.spec(), is_multi_user);
    let copies = match shares_disk {
        true => order.hosts.len().into(),
        false => u64::from(is_host_of_tool),
    };
    let limit = job.spec().terms.limits.in_mode(is_multi_user).disk;
    let limit = limit.map(|bytes| {
        let used = disk_usage::bytes_used(directory, bytes, usize::MAX).unwrap_or(bytes);
        DiskLimit { bytes, used }
    });
    ProgramStore::of_tool(files, ready_report, shares_disk, copies, paths, limit)
}

fn path_of(job_directory: &Path, tool: ToolId) -> PathBuf {
    job_directory.join(tool_files::directory_name(tool))
}

/// Removes the files of a tool in a thread, because a directory may have very many files. Files
/// that remain are removed with the job's directory.
pub fn remove_files(job_directory: &Path, tool: ToolId) {
    let path = path_of(job_directory, tool);
    if path.symlink_metadata().is_err() {
        return;
    }
    let remove = {
        let path = path.clone();
        move || _ = remove::tree(&path)
    };
    if thread::Builder::new().name("remove-files".to_owned()).spawn(remove).is_err() {
        let _ = remove::tree(&path);
    }
}

#[cfg(test)]
#[path = "tool_transfer_tests.rs"]
mod tests;
