use super::*;
use score_proto::file_tree::{FileTree, TreeEntry, TreeEntryKind};
use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{JobStart, Placement};
use score_proto::message::{HostKind, HostSpec, JobSpec, OsBytes};
use score_proto::peer_message::JobIncarnation;
use std::fs;
use std::time::{Duration, Instant};

const TOOL: ToolId = ToolId(3);

/// A shepherd on host 0 of a job on two hosts. The directory is removed when this value is dropped.
struct Shepherd {
    directory: PathBuf,
    job: JobInfo,
    multi_user: bool,
    transfer: ToolTransfer,
}

impl Shepherd {
    fn new(name: &str) -> Self {
        let name = format!("score-transfer-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let hosts = (0..2).map(|host| (format!("h{host}"), None, 1));
        let placement = Placement::new(JobIncarnation(0), hosts);
        let spec = JobSpec {
            hosts: vec![HostSpec { kind: HostKind::Remote, ..HostSpec::local(1) }; 2],
            ..JobSpec::default()
        };
        let job = JobInfo {
            job_start: JobStart { job: JobId(1), secret: 0, spec, owner: None },
            local_host: placement.hosts[0].clone(),
            placement: Placement { self_host: JobHostId(0), ..placement },
            stage: 0,
        };
        Self { directory, job, multi_user: false, transfer: ToolTransfer::default() }
    }

    fn order(&mut self, hosts: &[u32], kind: ToolFilesKind) {
        let order = ToolFilesOrder { tool: TOOL, hosts: hosts.iter().copied().collect(), kind };
        let paths = StorePaths { job: &self.directory, cache: None };
        self.transfer.on_order(&order, paths, &self.job, self.multi_user);
    }

    /// Pumps the transfer until nothing more happens, and answers its requests with these bytes.
    /// Returns the other reports.
    fn serve(&mut self, bytes: &[u8]) -> Vec<ShepherdReport> {
        let mut others = Vec::new();
        loop {
            let reports = self.transfer.pump();
            if reports.is_empty() && !self.transfer.is_runnable() {
                return others;
            }
            for report in reports {
                let ShepherdReport::FileRequest(FileRequest { hash, offset, length }) = report
                else {
                    others.push(report);
                    continue;
                };
                let bytes = bytes[offset as usize..(offset + length) as usize].to_vec();
                self.transfer.on_answer(&ProgramAnswer::Chunk { hash, offset, bytes });
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    fn wait_until_empty(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.names().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", self.names());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Shepherd {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// An archive with one file, which has this path.
fn archive(path: &str) -> (Vec<u8>, FileDigest) {
    let kind = TreeEntryKind::File { mode: 0o640, size: 5 };
    let entries = vec![TreeEntry { path: OsBytes(path.into()), kind }];
    let bytes = [FileTree { entries }.encode().unwrap(), b"words".to_vec()].concat();
    let digest = FileDigest { hash: *blake3::hash(&bytes).as_bytes(), size: bytes.len() as u64 };
    (bytes, digest)
}

fn ready() -> ShepherdReport {
    ShepherdReport::ToolFiles { tool: TOOL, result: Ok(()) }
}

#[test]
fn a_host_of_the_tool_unpacks_the_files_and_removes_the_archive_at_the_end() {
    let mut shepherd = Shepherd::new("host");
    let (bytes, content) = archive("file");
    shepherd.order(&[0], ToolFilesKind::Fetch(content));
    assert_eq!(shepherd.serve(&bytes), [ready()]);
    let file = shepherd.directory.join(".tool-files-3/file");
    assert_eq!(fs::read(&file).unwrap(), b"words");
    // Another host still requests bytes.
    let (hash, length) = (content.hash, content.size);
    shepherd.transfer.on_child_request(1, FileRequest { hash, offset: 0, length });
    let reports = shepherd.serve(&bytes);
    assert!(matches!(reports[..], [ShepherdReport::Program { child: 1, .. }]), "{reports:?}");
    shepherd.order(&[0], ToolFilesKind::Complete);
    assert!(!shepherd.transfer.has(&hash));
    assert_eq!(shepherd.names(), [".tool-files-3"]);
    remove_files(&shepherd.directory, TOOL);
    shepherd.wait_until_empty();
}

#[test]
fn a_host_above_those_of_the_tool_only_passes_the_archive_on() {
    let mut shepherd = Shepherd::new("relay");
    let (bytes, content) = archive("file");
    shepherd.order(&[1], ToolFilesKind::Fetch(content));
    let (hash, length) = (content.hash, content.size);
    shepherd.transfer.on_child_request(1, FileRequest { hash, offset: 0, length });
    let reports = shepherd.serve(&bytes);
    let answer = ProgramAnswer::Chunk { hash, offset: 0, bytes };
    assert_eq!(reports, [ShepherdReport::Program { child: 1, answer }]);
    assert_eq!(shepherd.names(), [".tool-files-3.archive"]);
    shepherd.order(&[1], ToolFilesKind::Complete);
    shepherd.wait_until_empty();
}

#[test]
fn a_cancelled_transfer_leaves_no_file() {
    let mut shepherd = Shepherd::new("cancelled");
    let (bytes, content) = archive("file");
    shepherd.order(&[0], ToolFilesKind::Fetch(content));
    // A part of the archive has arrived.
    let hash = content.hash;
    let part = bytes[..4].to_vec();
    shepherd.transfer.on_answer(&ProgramAnswer::Chunk { hash, offset: 0, bytes: part });
    assert_eq!(shepherd.names(), [".tool-files-3.archive"]);
    shepherd.order(&[0], ToolFilesKind::Cancel);
    shepherd.wait_until_empty();
    // Everything is unpacked, but another host has failed.
    shepherd.order(&[0], ToolFilesKind::Fetch(content));
    assert_eq!(shepherd.serve(&bytes).last(), Some(&ready()));
    shepherd.order(&[0], ToolFilesKind::Cancel);
    shepherd.wait_until_empty();
}

#[test]
fn a_failed_transfer_is_reported_once_with_the_tool() {
    let failure = |mut reports: Vec<ShepherdReport>| match (reports.pop(), reports.is_empty()) {
        (Some(ShepherdReport::ToolFiles { tool: TOOL, result: Err(reason) }), true) => reason,
        other => panic!("{other:?}"),
    };
    let mut shepherd = Shepherd::new("failed");
    let (bytes, content) = archive("../out");
    shepherd.order(&[0], ToolFilesKind::Fetch(content));
    let reason = failure(shepherd.serve(&bytes));
    assert!(reason.starts_with("--files: ../out: its path has an invalid part"), "{reason}");
    assert!(shepherd.names().is_empty() && !shepherd.transfer.has(&content.hash));
    // start_tool cannot read a file any more.
    let (bytes, content) = archive("file");
    shepherd.order(&[0], ToolFilesKind::Fetch(content));
    let answer = ProgramAnswer::Chunk { hash: content.hash, offset: 0, bytes: Vec::new() };
    shepherd.transfer.on_answer(&answer);
    let reports = shepherd.serve(&bytes);
    let reports = reports.into_iter().filter(|one| !matches!(one, ShepherdReport::FileRequest(_)));
    assert!(failure(reports.collect()).contains("could not be read completely"));
    let huge = FileDigest { size: 1 << 50, ..content };
    shepherd.order(&[0], ToolFilesKind::Fetch(huge));
    let reason = failure(shepherd.serve(&bytes));
    assert!(reason.starts_with("--files: 2147483648 MB are needed temporarily in "), "{reason}");
    // A running job of multi-user mode uses a part of its limit.
    shepherd.multi_user = true;
    fs::write(shepherd.directory.join("data"), vec![1; 3 << 20]).unwrap();
    shepherd.job.job_start.spec.terms.limits.disk = Some(4 << 20);
    let large = FileDigest { size: 1 << 20, ..content };
    shepherd.order(&[0], ToolFilesKind::Fetch(large));
    let reason = failure(shepherd.serve(&bytes));
    let line =
        "--files: 2 MB are needed temporarily, and the job has a disklimit of 4 MB, of which";
    assert!(reason.starts_with(line), "{reason}");
}
