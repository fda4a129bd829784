//! Programs on their way through a daemon: from scrun or the parent host into the cache, and on to
//! the child hosts.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use score_proto::job_control::{JobStart, Order, Report};
use score_proto::message::{ContentHash, JobSpec, ServerMessage};

use super::Daemon;
use super::host_job::{HostJob, Parent};
use super::jobs::TreePosition;
use super::program_cache::{ChunkRequest, FetchStatus, MAX_PROGRAM_LEN, Requester};
use crate::job::program_paths;

impl Daemon {
    /// Loads the programs of a job from the files of the user who has started this server, as far
    /// as these files still exist. The others have to be requested.
    pub fn preload_local_programs(&mut self, spec: &JobSpec) {
        if self.service.is_some() {
            // The service must not open files that a user names.
            return;
        }
        let directory = Path::new(OsStr::from_bytes(&spec.directory.0));
        for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
            if let Some(content) = element.digest {
                let path = directory.join(OsStr::from_bytes(&element.path.0));
                // If this fails, the program is requested; the scrun or host that sends it reports
                // errors.
                let _ = self.program_cache.load_file(content, &path);
            }
        }
    }

    /// Starts to fetch the programs of a job.
    pub fn fetch_programs(&mut self, job_id: u32, begin: &JobStart) -> Result<(), String> {
        if self.led_jobs.contains_key(&job_id) {
            self.preload_local_programs(&begin.spec);
        }
        let owner_uid = begin.owner.as_ref().map(|owner| owner.uid);
        for (content, program_path) in program_paths::files(&begin.spec) {
            if content.size > MAX_PROGRAM_LEN {
                return Err(format!(
                    "{} has {} bytes: at most {MAX_PROGRAM_LEN} can be sent to other hosts",
                    program_path.display(),
                    content.size
                ));
            }
            let request = self.program_cache.require(content, job_id, owner_uid);
            let request = request.map_err(|error| {
                format!("{}: no memory for the job's programs: {error}", program_path.display())
            })?;
            request.into_iter().for_each(|request| self.request_chunk(job_id, request));
        }
        Ok(())
    }

    /// Requests more bytes of a program from scrun or from the parent host.
    pub fn request_chunk(
        &mut self,
        job_id: u32,
        ChunkRequest { hash, offset, length }: ChunkRequest,
    ) {
        if let Some(led_job) = self.led_jobs.get(&job_id) {
            return self.send_to_client(
                job_id,
                led_job.client_job,
                &ServerMessage::FileRequest { hash, offset, length },
            );
        }
        let host_job = self.host_jobs.get(&(job_id, false));
        if let Some((Parent::Peer(link_id), job_incarnation)) =
            host_job.map(|host_job| (host_job.parent, host_job.job_incarnation()))
        {
            self.send_report(
                link_id,
                (job_id, job_incarnation),
                &Report::FileRequest { hash, offset, length },
            );
        }
    }

    /// A chunk has arrived from scrun or from the parent host.
    pub fn on_program_chunk(&mut self, job_id: u32, hash: &ContentHash, offset: u64, bytes: &[u8]) {
        if let Some(request) = self.program_cache.on_chunk(job_id, hash, offset, bytes) {
            self.request_chunk(job_id, request);
        }
        self.forward_programs();
    }

    /// The virtual host that is the parent shares a file.
    pub fn on_shared_program(&mut self, job_id: u32, hash: &ContentHash, path: &Path) {
        // No symbolic link, and no file whose open waits for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(path);
        self.program_cache.on_shared_file(job_id, hash, file);
        if let Some(host_job) = self.host_jobs.get_mut(&(job_id, false)) {
            host_job.add_shared_path(*hash, path);
        }
        self.forward_programs();
    }

    /// A child host requests a chunk.
    pub fn on_chunk_request(
        &mut self,
        tree_position: TreePosition,
        child_index: usize,
        request: ChunkRequest,
    ) {
        match self.host_jobs.get_mut(&tree_position).filter(|host_job| host_job.shares_disk) {
            Some(host_job) => host_job.path_requests.push((child_index, request.hash)),
            None => self.program_cache.on_chunk_request(
                tree_position.0,
                Requester { tree_position, child_index },
                request,
            ),
        }
        self.forward_programs();
    }

    fn forward_programs(&mut self) {
        for chunk in self.program_cache.take_ready_chunks() {
            let Requester { tree_position, child_index } = chunk.requester;
            let (hash, offset, bytes) = (chunk.hash, chunk.offset, chunk.bytes);
            self.send_to_child(
                tree_position,
                child_index,
                &Order::FileChunk { hash, offset, bytes },
            );
        }
        let answers = |(tree_position, host_job): (&TreePosition, &mut HostJob)| {
            (*tree_position, host_job.answer_path_requests())
        };
        let answers: Vec<_> = self.host_jobs.iter_mut().map(answers).collect();
        for (tree_position, orders) in answers {
            orders.iter().for_each(|(child_index, order)| {
                self.send_to_child(tree_position, *child_index, order)
            });
        }
    }

    /// A job is to begin here as soon as its programs have arrived.
    pub fn begin_when_ready(&mut self, job_id: u32, begin: Box<JobStart>) {
        let result = self.fetch_programs(job_id, &begin);
        let Some(host_job) = self.host_jobs.get_mut(&(job_id, false)) else { return };
        match result {
            Ok(()) => host_job.wait_for_programs(begin),
            Err(reason) => host_job.refuse(reason),
        }
    }

    /// Begins the jobs that do not wait for programs any more. Returns whether there were any. Must
    /// be called after the orders to the child hosts have been sent: beginning a job takes time,
    /// and the child hosts must not wait for it.
    pub fn begin_ready_jobs(&mut self) -> bool {
        let (mut ready, mut refused) = (Vec::new(), false);
        for ((job_id, _), host_job) in &mut self.host_jobs {
            let Some(begin) = &host_job.pending_begin else { continue };
            let files = program_paths::files(&begin.spec);
            let failed = files.iter().find(|(content, _)| {
                !matches!(
                    self.program_cache.status(*job_id, &content.hash),
                    Some(FetchStatus::Complete | FetchStatus::InProgress)
                )
            });
            if let Some((_, program_path)) = failed {
                let name = program_path.file_name().unwrap_or_default().to_string_lossy();
                let reason = format!("{name} could not be read completely, or changed meanwhile");
                host_job.pending_begin = None;
                host_job.refuse(reason);
                refused = true;
            } else if files.iter().all(|(content, _)| {
                self.program_cache.status(*job_id, &content.hash) == Some(FetchStatus::Complete)
            }) {
                ready.extend(host_job.pending_begin.take().map(|begin| (*job_id, begin)));
            }
        }
        let any_handled = refused || !ready.is_empty();
        for (job_id, begin) in ready {
            self.begin_locally(job_id, &begin);
            self.forward_programs();
        }
        any_handled
    }
}
