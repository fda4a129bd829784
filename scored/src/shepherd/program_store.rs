//! The programs of a job that are copied to this host. The shepherd writes them into the job's
//! directory, with the rights and within the limits of the job's user. It forwards received parts
//! to the child hosts of the range tree at once.
//!
//! Each user has a directory of programs of earlier jobs. If the directory has a program with the
//! right hash, the shepherd links it into the job's directory and does not fetch it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use nix::unistd::geteuid;
use score_job::program_paths::{self, TOOL_FILES_ARCHIVE};
use score_proto::job_control::{FileRequest, JobReport, Placement, ProgramAnswer, ShepherdReport};
use score_proto::message::{ContentHash, FileDigest, HostKind, JobSpec, MAX_IO_CHUNK, OsBytes};
use score_proto::tool_start::TOOL_FILES_DIR;

use super::tool_files::{ArrivingFiles, DiskLimit, NeededRoom, ToolFiles};

/// Largest number of requested bytes of a program that have not been received yet.
const PREFETCH_WINDOW: u64 = 1 << 20;
/// Number of bytes of local files that are read in one tick of the loop.
const MAX_READ_PER_TICK: usize = 4 << 20;
/// Largest total size of the programs in a user's directory, in bytes.
const MAX_CACHED_BYTES: u64 = 256 << 20;

/// The reason why a program was not received.
const CHANGED: &str = "it could not be read completely, or changed in the meantime";

/// The directories for a job's programs.
#[derive(Debug, Clone, Copy)]
pub struct StorePaths<'a> {
    /// The job's directory.
    pub job: &'a Path,
    /// The directory with programs of the user's earlier jobs.
    pub cache: Option<&'a Path>,
}

/// A file on this host that may have the content of a program.
#[derive(Debug)]
struct Candidate {
    file: File,
    kind: CandidateKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CandidateKind {
    /// A program of an earlier job.
    Cached,
    /// The file that the user has named, or a file on the disk that virtual hosts share.
    Copied,
}

/// The state of a program on this host.
#[derive(Debug)]
enum ProgramState {
    /// A file of this host is being read and hashed. A copy is written to the target, if there is
    /// one.
    Checking(Candidate, Option<File>),
    /// The parent sends the bytes. `requested_len` bytes have been requested.
    Fetching { target: Option<File>, requested_len: u64 },
    /// The program is in the job's directory, and is open for reading.
    Complete(File),
}

/// Bytes that a child host has requested and has not received yet.
#[derive(Debug)]
struct ChildRequest {
    child: u32,
    offset: u64,
    end: u64,
}

/// One program.
#[derive(Debug)]
struct JobProgram {
    content: FileDigest,
    /// Its path in the job's directory, and the paths of further links to it.
    paths: Vec<PathBuf>,
    /// The path of its copy for later jobs.
    cache_path: Option<PathBuf>,
    state: ProgramState,
    /// Files to try next if the current file has the wrong content.
    candidates: Vec<Candidate>,
    received_len: u64,
    hasher: blake3::Hasher,
    requests: Vec<ChildRequest>,
}

/// All programs of the job, or the archive of the files of one tool.
#[derive(Debug, Default)]
pub struct ProgramStore {
    programs: Vec<JobProgram>,
    /// Whether all hosts of the job are virtual hosts, which share one disk.
    shares_disk: bool,
    /// The report when all programs are complete. None: it has been sent, or is not needed.
    ready_report: Option<ShepherdReport>,
    tool_files: Option<ArrivingFiles>,
    reports: Vec<ShepherdReport>,
}

impl ProgramStore {
    /// Starts to get the programs of a job.
    ///
    /// # Errors
    /// One line with the path at fault.
    pub fn begin(
        spec: &JobSpec,
        placement: &Placement,
        is_multi_user: bool,
        paths: StorePaths<'_>,
    ) -> Result<Self, String> {
        let shares_disk = shares_disk(spec, is_multi_user);
        let self_host = placement.self_host.index();
        // On other hosts the user's paths may refer to other files.
        let is_submit_host = !is_multi_user
            && self_host == 0
            && spec.hosts.first().is_some_and(|host| host.kind != HostKind::Remote);
        let ready_report = Some(ShepherdReport::Job(JobReport::Ready));
        let mut store = Self { shares_disk, ready_report, ..Self::default() };
        for (content, relative_path) in program_paths::files(spec) {
            let path = paths.job.join(relative_path);
            let parent = path.parent().unwrap_or(paths.job);
            let created = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            created.map_err(|error| format!("{}: {error}", parent.display()))?;
            match store.programs.iter_mut().find(|program| program.content == content) {
                Some(program) => program.paths.push(path),
                None => store.programs.push(JobProgram::new(content, path, paths.cache)),
            }
        }
        if let Some(content) = spec.tool_files.as_deref().copied() {
            let copies = if shares_disk { spec.hosts.len() as u64 } else { 1 };
            let limit = spec.terms.limits.in_mode(is_multi_user).disk;
            let limit = limit.map(|bytes| DiskLimit { bytes, used: 0 });
            let files = ToolFiles {
                option: "tool-files",
                archive: paths.job.join(TOOL_FILES_ARCHIVE),
                content,
                directory: Some(paths.job.join(TOOL_FILES_DIR)),
            };
            store.add_tool_files(files, copies, paths.job, limit)?;
        }
        if is_submit_host {
            store.add_submitted_files(spec);
        }
        store.try_first_sources()?;
        Ok(store)
    }

    /// Starts to get the files of one tool of a running job. `ready_report` is sent when they are
    /// complete. `copies` is the number of hosts that unpack them on this host's disk.
    ///
    /// # Errors
    /// One line: there is not enough space, or the path at fault.
    pub fn of_tool(
        files: ToolFiles,
        ready_report: Option<ShepherdReport>,
        shares_disk: bool,
        copies: u64,
        paths: StorePaths<'_>,
        limit: Option<DiskLimit>,
    ) -> Result<Self, String> {
        let archive = JobProgram::new(files.content, files.archive.clone(), paths.cache);
        let mut store =
            Self { programs: vec![archive], shares_disk, ready_report, ..Self::default() };
        store.add_tool_files(files, copies, paths.job, limit)?;
        store.try_first_sources()?;
        Ok(store)
    }

    fn add_tool_files(
        &mut self,
        files: ToolFiles,
        copies: u64,
        job_directory: &Path,
        limit: Option<DiskLimit>,
    ) -> Result<(), String> {
        let own_copies = u64::from(files.directory.is_some());
        let room = NeededRoom { size: files.content.size, own_copies, copies };
        let checked = room.check(job_directory, limit);
        checked.map_err(|reason| format!("{}: {reason}", files.option))?;
        self.tool_files = Some(ArrivingFiles::new(files));
        Ok(())
    }

    fn try_first_sources(&mut self) -> Result<(), String> {
        for program in &mut self.programs {
            program.add_cached_file();
            program.try_next_source(&mut self.reports).map_err(|error| program.failure(&error))?;
        }
        Ok(())
    }

    /// Whether one of the programs has this content.
    pub fn has_program(&self, hash: &ContentHash) -> bool {
        self.programs.iter().any(|program| program.content.hash == *hash)
    }

    /// Adds the files that the user has named, because this host has them.
    fn add_submitted_files(&mut self, spec: &JobSpec) {
        let directory = Path::new(OsStr::from_bytes(&spec.directory.0));
        for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
            let Some(content) = element.digest else { continue };
            let program = self.programs.iter_mut().find(|program| program.content == content);
            let path = directory.join(OsStr::from_bytes(&element.path.0));
            if let Some(program) = program.filter(|program| program.candidates.is_empty()) {
                program.add_candidate(&path, CandidateKind::Copied);
            }
        }
    }

    /// Whether [`ProgramStore::pump`] has work to do.
    pub fn is_runnable(&self) -> bool {
        let is_checking =
            |program: &JobProgram| matches!(program.state, ProgramState::Checking(..));
        self.programs.iter().any(is_checking)
            || self.tool_files.as_ref().is_some_and(ArrivingFiles::is_unpacking)
    }

    /// Takes the parent's answer to a request.
    ///
    /// # Errors
    /// The reason why a program cannot be copied, in one line. The job cannot start here.
    pub fn on_answer(&mut self, answer: &ProgramAnswer) -> Result<(), String> {
        match answer {
            ProgramAnswer::Chunk { hash, offset, bytes } => self.on_chunk(hash, *offset, bytes),
            ProgramAnswer::SharedFile { hash, path } => {
                self.on_shared_file(hash, Path::new(OsStr::from_bytes(&path.0)))
            }
        }
    }

    /// Stores a part of a program that the parent has sent.
    fn on_chunk(&mut self, hash: &ContentHash, offset: u64, bytes: &[u8]) -> Result<(), String> {
        match self.programs.iter_mut().find(|program| program.content.hash == *hash) {
            Some(program) => program
                .on_chunk(offset, bytes, &mut self.reports)
                .map_err(|error| program.failure(&error)),
            None => Ok(()),
        }
    }

    /// Handles the answer of a parent that is a virtual host and has the program in this file.
    fn on_shared_file(&mut self, hash: &ContentHash, path: &Path) -> Result<(), String> {
        let program = self.programs.iter_mut().find(|program| program.content.hash == *hash);
        match program.filter(|_| self.shares_disk) {
            Some(program) => program
                .on_shared_file(path, &mut self.reports)
                .map_err(|error| program.failure(&error)),
            None => Ok(()),
        }
    }

    /// Queues the request of a child host. [`ProgramStore::take_reports`] returns the answers when
    /// the bytes are available.
    pub fn on_child_request(&mut self, child: u32, request: FileRequest) {
        let FileRequest { hash, offset, length } = request;
        let program = self.programs.iter_mut().find(|program| program.content.hash == hash);
        let size = program.as_ref().map_or(0, |program| program.content.size);
        let end = offset.saturating_add(length.min(2 * PREFETCH_WINDOW)).min(size);
        match program.filter(|_| offset < end) {
            Some(program) => program.requests.push(ChildRequest { child, offset, end }),
            None => {
                let answer = ProgramAnswer::Chunk { hash, offset, bytes: Vec::new() };
                self.reports.push(ShepherdReport::Program { child, answer });
            }
        }
    }

    /// Continues to read files of this host, and answers child hosts.
    ///
    /// # Errors
    /// The errors of [`ProgramStore::on_answer`].
    pub fn pump(&mut self) -> Result<(), String> {
        let mut budget = MAX_READ_PER_TICK;
        for program in &mut self.programs {
            program
                .check_candidate(&mut budget, &mut self.reports)
                .and_then(|()| match self.shares_disk {
                    true => program.answer_with_path(&mut self.reports),
                    false => program.answer_with_bytes(&mut self.reports),
                })
                .map_err(|error| program.failure(&error))?;
        }
        let is_complete = |program: &JobProgram| matches!(program.state, ProgramState::Complete(_));
        if let Some(files) = &mut self.tool_files {
            let archive = self.programs.iter().find_map(|program| match &program.state {
                ProgramState::Complete(file) if program.content == files.content() => Some(file),
                _ => None,
            });
            archive.map_or(Ok(()), |archive| files.unpack(archive, MAX_READ_PER_TICK))?;
        }
        let has_all = !self.programs.is_empty()
            && self.programs.iter().all(is_complete)
            && self.tool_files.as_ref().is_none_or(ArrivingFiles::is_unpacked);
        if has_all {
            self.reports.extend(self.ready_report.take());
        }
        Ok(())
    }

    /// Takes the reports that have to be sent.
    pub fn take_reports(&mut self) -> Vec<ShepherdReport> {
        std::mem::take(&mut self.reports)
    }

    /// Drops the programs: the first process is about to start, or the job ends.
    pub fn close(&mut self) {
        self.programs.clear();
        if let Some(files) = self.tool_files.take() {
            let _ = fs::remove_file(files.archive());
        }
    }
}

/// Whether all hosts of a job are virtual hosts, which share one disk.
pub fn shares_disk(spec: &JobSpec, is_multi_user: bool) -> bool {
    !is_multi_user && spec.hosts.iter().all(|host| host.kind == HostKind::Virtual)
}

impl JobProgram {
    fn new(content: FileDigest, path: PathBuf, cache: Option<&Path>) -> Self {
        let name: String = content.hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            content,
            paths: vec![path],
            cache_path: cache.map(|folder| folder.join(name)),
            state: ProgramState::Fetching { target: None, requested_len: 0 },
            candidates: Vec::new(),
            received_len: 0,
            hasher: blake3::Hasher::new(),
            requests: Vec::new(),
        }
    }

    fn path(&self) -> &Path {
        &self.paths[0]
    }

    fn failure(&self, error: &io::Error) -> String {
        format!("{} cannot be copied to this host: {error}", self.path().display())
    }

    fn add_cached_file(&mut self) {
        if let Some(path) = self.cache_path.clone() {
            self.add_candidate(&path, CandidateKind::Cached);
        }
    }

    /// Adds a file to the candidates if it is a regular file of the right size. The next file to
    /// try is the one that was added last.
    fn add_candidate(&mut self, path: &Path, kind: CandidateKind) {
        // Opening a FIFO must not wait for its other end.
        let flags =
            libc::O_NONBLOCK | if kind == CandidateKind::Cached { libc::O_NOFOLLOW } else { 0 };
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        if let Ok(file) = opened
            && let Ok(metadata) = file.metadata()
            && metadata.is_file()
            && metadata.len() == self.content.size
        {
            self.candidates.push(Candidate { file, kind });
        }
    }

    /// Tries the next candidate. If there is none, requests the program from the parent.
    fn try_next_source(&mut self, reports: &mut Vec<ShepherdReport>) -> io::Result<()> {
        (self.received_len, self.hasher) = (0, blake3::Hasher::new());
        if let ProgramState::Checking(Candidate { kind, .. }, target) = &self.state {
            match (kind, target) {
                // A job has modified its program, and the cached file with it.
                (CandidateKind::Cached, _) => {
                    self.cache_path.iter().for_each(|path| _ = fs::remove_file(path));
                }
                (CandidateKind::Copied, Some(_)) => fs::remove_file(self.path())?,
                (CandidateKind::Copied, None) => {}
            }
        }
        self.state = match self.candidates.pop() {
            Some(candidate) if candidate.kind == CandidateKind::Copied => {
                let target = create_target(self.path())?;
                ProgramState::Checking(candidate, Some(target))
            }
            Some(candidate) => ProgramState::Checking(candidate, None),
            None => ProgramState::Fetching { target: None, requested_len: 0 },
        };
        if self.content.size == 0 && matches!(self.state, ProgramState::Fetching { .. }) {
            self.fetch_target()?;
            return self.check_fetched();
        }
        self.request_more(reports);
        Ok(())
    }

    /// Requests the next bytes from the parent if at most half of the window is outstanding.
    fn request_more(&mut self, reports: &mut Vec<ShepherdReport>) {
        let ProgramState::Fetching { requested_len, .. } = &mut self.state else { return };
        let end = (self.received_len + PREFETCH_WINDOW).min(self.content.size);
        if *requested_len < end && *requested_len - self.received_len <= PREFETCH_WINDOW / 2 {
            let (hash, offset) = (self.content.hash, *requested_len);
            let request = FileRequest { hash, offset, length: end - offset };
            reports.push(ShepherdReport::FileRequest(request));
            *requested_len = end;
        }
    }

    fn on_chunk(
        &mut self,
        offset: u64,
        bytes: &[u8],
        reports: &mut Vec<ShepherdReport>,
    ) -> io::Result<()> {
        let ProgramState::Fetching { requested_len, .. } = self.state else { return Ok(()) };
        let new_len = self.received_len.saturating_add(bytes.len() as u64);
        if offset != self.received_len || bytes.is_empty() || new_len > requested_len {
            return Err(io::Error::other(CHANGED));
        }
        self.fetch_target()?.write_all_at(bytes, offset)?;
        self.hasher.update(bytes);
        self.received_len = new_len;
        if new_len == self.content.size {
            return self.check_fetched();
        }
        self.request_more(reports);
        Ok(())
    }

    /// The file to which fetched bytes are written.
    fn fetch_target(&mut self) -> io::Result<&mut File> {
        if let ProgramState::Fetching { target: target @ None, .. } = &mut self.state {
            *target = Some(create_target(&self.paths[0])?);
        }
        match &mut self.state {
            ProgramState::Fetching { target: Some(target), .. } => Ok(target),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Checks the hash after all bytes have been fetched.
    fn check_fetched(&mut self) -> io::Result<()> {
        if !self.has_right_hash() {
            return Err(io::Error::other(CHANGED));
        }
        self.keep_for_later_jobs();
        self.finish()
    }

    /// Keeps the program for later jobs. Skips a program that is larger than the whole cache.
    fn keep_for_later_jobs(&self) {
        if self.content.size > MAX_CACHED_BYTES {
            return;
        }
        self.cache_path.iter().for_each(|path| insert_into_cache(self.path(), path));
    }

    fn has_right_hash(&self) -> bool {
        *self.hasher.finalize().as_bytes() == self.content.hash
    }

    /// Completes a program that has its first name: links its other names. Reopens it read-only,
    /// because a file that is open for writing cannot be executed.
    fn finish(&mut self) -> io::Result<()> {
        self.state = ProgramState::Complete(File::open(self.path())?);
        self.paths[1..].iter().try_for_each(|path| fs::hard_link(&self.paths[0], path))
    }

    /// Continues to read the current candidate.
    fn check_candidate(
        &mut self,
        budget: &mut usize,
        reports: &mut Vec<ShepherdReport>,
    ) -> io::Result<()> {
        let mut bytes = [0; MAX_IO_CHUNK];
        while *budget > 0 {
            let ProgramState::Checking(candidate, target) = &mut self.state else { return Ok(()) };
            let kind = candidate.kind;
            let count = candidate.file.read(&mut bytes).unwrap_or(0);
            *budget = budget.saturating_sub(count.max(1));
            let read = &bytes[..count];
            if let Some(target) = target {
                target.write_all_at(read, self.received_len)?;
            }
            self.hasher.update(read);
            self.received_len += count as u64;
            if self.received_len < self.content.size && count > 0 {
                continue;
            }
            if self.received_len != self.content.size || !self.has_right_hash() {
                self.try_next_source(reports)?;
                continue;
            }
            return match kind {
                CandidateKind::Copied => {
                    self.keep_for_later_jobs();
                    self.finish()
                }
                CandidateKind::Cached => self.link_cached(reports),
            };
        }
        Ok(())
    }

    /// Links the cached file, which has the right content, into the job's directory.
    fn link_cached(&mut self, reports: &mut Vec<ShepherdReport>) -> io::Result<()> {
        let cache_path = self.cache_path.clone().unwrap_or_default();
        if fs::hard_link(&cache_path, self.path()).is_err() {
            return self.try_next_source(reports);
        }
        if let ProgramState::Checking(candidate, _) = &self.state {
            // The cache removes the least recently used programs first.
            let _ = futimens(&candidate.file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW);
        }
        self.finish()
    }

    fn on_shared_file(&mut self, path: &Path, reports: &mut Vec<ShepherdReport>) -> io::Result<()> {
        if !matches!(self.state, ProgramState::Fetching { target: None, .. }) {
            return Ok(());
        }
        let metadata = fs::symlink_metadata(path)?;
        let is_right = metadata.is_file()
            && metadata.uid() == geteuid().as_raw()
            && metadata.len() == self.content.size;
        if !is_right {
            return Err(io::Error::other(
                "the file of the parent host has another type, owner or size",
            ));
        }
        // The parent has checked the hash, and no other user can modify the file before the job
        // runs.
        if fs::hard_link(path, self.path()).is_ok() {
            return self.finish();
        }
        self.add_candidate(path, CandidateKind::Copied);
        self.try_next_source(reports)
    }

    fn answer_with_path(&mut self, reports: &mut Vec<ShepherdReport>) -> io::Result<()> {
        if matches!(self.state, ProgramState::Complete(_)) {
            let path = OsBytes(self.path().as_os_str().as_bytes().to_vec());
            let hash = self.content.hash;
            let answer = |request: ChildRequest| ShepherdReport::Program {
                child: request.child,
                answer: ProgramAnswer::SharedFile { hash, path: path.clone() },
            };
            reports.extend(self.requests.drain(..).map(answer));
        }
        Ok(())
    }

    fn answer_with_bytes(&mut self, reports: &mut Vec<ShepherdReport>) -> io::Result<()> {
        let (file, available_len) = match &self.state {
            ProgramState::Complete(file) => (file, self.content.size),
            ProgramState::Fetching { target: Some(file), .. } => (file, self.received_len),
            ProgramState::Fetching { target: None, .. } | ProgramState::Checking(..) => {
                return Ok(());
            }
        };
        let hash = self.content.hash;
        for request in &mut self.requests {
            let end = request.end.min(available_len);
            while request.offset < end {
                let count = (end - request.offset).min(MAX_IO_CHUNK as u64);
                let mut bytes = vec![0; count as usize];
                file.read_exact_at(&mut bytes, request.offset)?;
                let (child, offset) = (request.child, request.offset);
                let answer = ProgramAnswer::Chunk { hash, offset, bytes };
                reports.push(ShepherdReport::Program { child, answer });
                request.offset += count;
            }
        }
        self.requests.retain(|request| request.offset < request.end);
        Ok(())
    }
}

/// A new file for a program that is being copied.
fn create_target(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let target = options.read(true).write(true).create_new(true).mode(0o700).open(path)?;
    // The umask of the user may have cleared permission bits.
    target.set_permissions(Permissions::from_mode(0o700))?;
    Ok(target)
}

/// Keeps a program for later jobs. On an error, later jobs fetch the program again.
fn insert_into_cache(program: &Path, cache_path: &Path) {
    if fs::hard_link(program, cache_path).is_err() {
        return;
    }
    let Some(entries) = cache_path.parent().and_then(|folder| fs::read_dir(folder).ok()) else {
        return;
    };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    let mut cached_bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
    files.sort();
    for (_, len, path) in files {
        if cached_bytes <= MAX_CACHED_BYTES {
            return;
        }
        if fs::remove_file(path).is_ok() {
            cached_bytes -= len;
        }
    }
}

#[cfg(test)]
#[path = "program_store_tests.rs"]
mod tests;
