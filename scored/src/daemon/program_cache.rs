//! Programs, by user and content. A program is fetched from the parent once, and kept as long as
//! the daemon lives and there is space. Children that ask for it get its chunks while they still
//! arrive. The programs of one user are for jobs of that user alone. By a hash, another user can
//! neither get such a program, nor learn that it is here, nor corrupt it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{geteuid, linkat};
use score_proto::message::{ContentHash, FileDigest, MAX_IO_CHUNK};

/// Bytes that may be on their way without a further request.
const PREFETCH_WINDOW: u64 = 1024 * 1024;
/// The largest program that is sent to other hosts.
pub const MAX_PROGRAM_LEN: u64 = 4 << 30;
/// The largest program that is read from a file at once: the daemon does nothing else meanwhile.
const MAX_SYNC_READ_LEN: u64 = 64 << 20;
/// Bytes that are kept of programs that no job uses.
const MAX_UNUSED_BYTES: u64 = 256 << 20;

/// A child that asks for chunks: a position of a job on this host, and the child index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester<P> {
    /// The position in the range tree.
    pub tree_position: P,
    /// The child.
    pub child_index: usize,
}

/// A request for bytes of a program, to be sent to the parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRequest {
    /// The program.
    pub hash: ContentHash,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// A part of a program, for a requester.
#[derive(Debug)]
pub struct Chunk<P> {
    /// The requester.
    pub requester: Requester<P>,
    /// The program.
    pub hash: ContentHash,
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes. If empty, no more bytes will follow.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchState {
    InProgress,
    Complete,
    /// The program cannot be fetched, or its content does not match its hash.
    Failed,
}

/// The user of a job: a uid in multi-user mode.
type OwnerUid = Option<u32>;

#[derive(Debug)]
struct Entry<P> {
    content: FileDigest,
    file: File,
    state: FetchState,
    received_len: u64,
    requested_len: u64,
    hasher: blake3::Hasher,
    pending_requests: Vec<(Requester<P>, u64, u64)>,
    /// Whether the file belongs to another virtual host, on the disk of both.
    is_shared_file: bool,
    /// The job for which the program is fetched; the chunks come over that job's tree.
    fetching_job: u32,
    jobs: HashSet<u32>,
}

/// How far a program has been fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchStatus {
    /// All of the program is here.
    Complete,
    /// The program is on its way.
    InProgress,
    /// The program cannot be fetched.
    Failed,
}

/// All programs on this host.
#[derive(Debug)]
pub struct ProgramCache<P> {
    entries: HashMap<(OwnerUid, ContentHash), Entry<P>>,
    /// The users of the jobs that need programs.
    job_owners: HashMap<u32, OwnerUid>,
    /// Requests for programs that no job here needs.
    unknown_requests: Vec<(Requester<P>, ChunkRequest)>,
}

impl<P> Default for ProgramCache<P> {
    fn default() -> Self {
        Self { entries: HashMap::new(), job_owners: HashMap::new(), unknown_requests: Vec::new() }
    }
}

impl<P: Copy + PartialEq> ProgramCache<P> {
    /// A job of this user needs a program. Returns the request that is to be sent, if any.
    ///
    /// # Errors
    /// As memfd_create(2). EFBIG if all programs of the user together are too large.
    pub fn require(
        &mut self,
        content: FileDigest,
        job: u32,
        owner_uid: OwnerUid,
    ) -> io::Result<Option<ChunkRequest>> {
        self.job_owners.insert(job, owner_uid);
        let key = (owner_uid, content.hash);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.jobs.insert(job);
            return Ok(None);
        }
        let owned = self.entries.iter().filter(|((uid, _), _)| *uid == owner_uid);
        let used: u64 = owned.map(|(_, entry)| entry.content.size).sum();
        if used.saturating_add(content.size) > MAX_PROGRAM_LEN {
            self.drop_unused();
        }
        let owned = self.entries.iter().filter(|((uid, _), _)| *uid == owner_uid);
        let used: u64 = owned.map(|(_, entry)| entry.content.size).sum();
        if used.saturating_add(content.size) > MAX_PROGRAM_LEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut entry = Entry::new(content)?;
        entry.fetching_job = job;
        entry.jobs.insert(job);
        let entry = self.entries.entry(key).or_insert(entry);
        entry.verify_if_complete();
        Ok(entry.next_request())
    }

    /// Loads a program of the user who has started this server from a file on this host, if the
    /// file still has the expected content. Otherwise the program has to be requested.
    ///
    /// # Errors
    /// As open(2), read(2), memfd_create(2).
    pub fn load_file(&mut self, content: FileDigest, from: &Path) -> io::Result<()> {
        let key = (None, content.hash);
        if content.size > MAX_SYNC_READ_LEN || self.entries.contains_key(&key) {
            return Ok(());
        }
        let mut source = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(from)?;
        if !source.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut entry = Entry::new(content)?;
        let mut bytes = vec![0; 1 << 18];
        while entry.received_len <= content.size {
            let count = source.read(&mut bytes)?;
            if count == 0 {
                break;
            }
            entry.file.write_all_at(&bytes[..count], entry.received_len)?;
            entry.hasher.update(&bytes[..count]);
            entry.received_len += count as u64;
        }
        entry.verify_if_complete();
        if entry.state == FetchState::Complete {
            self.entries.insert(key, entry);
        }
        Ok(())
    }

    fn key(&self, job: u32, hash: &ContentHash) -> Option<(OwnerUid, ContentHash)> {
        Some((*self.job_owners.get(&job)?, *hash))
    }

    /// The status of a program that a job needs.
    pub fn status(&self, job: u32, hash: &ContentHash) -> Option<FetchStatus> {
        self.entries.get(&self.key(job, hash)?).map(|entry| match entry.state {
            FetchState::Complete => FetchStatus::Complete,
            FetchState::InProgress => FetchStatus::InProgress,
            FetchState::Failed => FetchStatus::Failed,
        })
    }

    /// A child requests a chunk for a job. [`ProgramCache::take_ready_chunks`] returns the answers,
    /// now and as more bytes arrive.
    pub fn on_chunk_request(&mut self, job: u32, requester: Requester<P>, request: ChunkRequest) {
        let key = self.key(job, &request.hash);
        let Some(entry) = key.and_then(|key| self.entries.get_mut(&key)) else {
            self.unknown_requests.push((requester, request));
            return;
        };
        let end = request.offset.saturating_add(request.length.min(2 * PREFETCH_WINDOW));
        entry.pending_requests.push((requester, request.offset, end));
    }

    /// A chunk has arrived. Returns the next request, if any.
    pub fn on_chunk(
        &mut self,
        job: u32,
        hash: &ContentHash,
        offset: u64,
        bytes: &[u8],
    ) -> Option<ChunkRequest> {
        let key = self.key(job, hash)?;
        let entry = self.entries.get_mut(&key)?;
        if entry.state != FetchState::InProgress
            || entry.fetching_job != job
            || offset < entry.received_len
        {
            return None;
        }
        let new_len = entry.received_len + bytes.len() as u64;
        let fits =
            offset == entry.received_len && !bytes.is_empty() && new_len <= entry.content.size;
        if !fits || entry.file.write_all_at(bytes, offset).is_err() {
            entry.state = FetchState::Failed;
            return None;
        }
        entry.hasher.update(bytes);
        entry.received_len = new_len;
        entry.verify_if_complete();
        entry.next_request()
    }

    /// The parent shares a file that has the program. The hash is not computed again: the parent
    /// has done so, and the file belongs to the parent alone until the job runs.
    pub fn on_shared_file(&mut self, job: u32, hash: &ContentHash, file: io::Result<File>) {
        let key = self.key(job, hash);
        let Some(entry) = key.and_then(|key| self.entries.get_mut(&key)) else { return };
        if entry.state != FetchState::InProgress
            || entry.fetching_job != job
            || entry.received_len > 0
        {
            return;
        }
        entry.state = FetchState::Failed;
        if let Ok(file) = file
            && let Ok(metadata) = file.metadata()
            && metadata.is_file()
            && metadata.uid() == geteuid().as_raw()
            && metadata.len() == entry.content.size
        {
            (entry.state, entry.received_len) = (FetchState::Complete, entry.content.size);
            (entry.file, entry.is_shared_file) = (file, true);
        }
    }

    /// The chunks that can be sent on now.
    pub fn take_ready_chunks(&mut self) -> Vec<Chunk<P>> {
        let empty_chunk = |(requester, request): (Requester<P>, ChunkRequest)| Chunk {
            requester,
            hash: request.hash,
            offset: request.offset,
            bytes: Vec::new(),
        };
        let mut chunks: Vec<_> = self.unknown_requests.drain(..).map(empty_chunk).collect();
        for ((_, hash), entry) in &mut self.entries {
            if !entry.pending_requests.is_empty() {
                entry.collect_chunks(hash, &mut chunks);
            }
        }
        chunks
    }

    /// Writes a program of a job to a new file. A shared file gets another hard link only, if the
    /// file system allows it. Every other program is copied.
    ///
    /// # Errors
    /// As open(2), write(2). ENOENT if the program is not here.
    pub fn write_program(&self, job: u32, hash: &ContentHash, to: &Path) -> io::Result<()> {
        let entry = self.key(job, hash).and_then(|key| self.entries.get(&key));
        let complete = entry.filter(|entry| entry.state == FetchState::Complete);
        let entry = complete.ok_or(io::ErrorKind::NotFound)?;
        let fd_path = format!("/proc/self/fd/{}", entry.file.as_raw_fd());
        let flags = AtFlags::AT_SYMLINK_FOLLOW;
        if entry.is_shared_file && linkat(AT_FDCWD, fd_path.as_str(), AT_FDCWD, to, flags).is_ok() {
            return Ok(());
        }
        let mut target = File::options().write(true).create_new(true).mode(0o700).open(to)?;
        let mut bytes = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < entry.received_len {
            let count = bytes.len().min((entry.received_len - offset) as usize);
            entry.file.read_exact_at(&mut bytes[..count], offset)?;
            target.write_all(&bytes[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    /// A job has ended. Programs that only this job was fetching are dropped, and so are unused
    /// ones if they are too large. If another job needs a program that was fetched for this job,
    /// that job has to request the rest: returns these requests.
    pub fn release_job(&mut self, job: u32) -> Vec<(u32, ChunkRequest)> {
        self.job_owners.remove(&job);
        let mut requests = Vec::new();
        self.entries.retain(|_, entry| {
            entry.jobs.remove(&job);
            if entry.state == FetchState::Complete || entry.fetching_job != job {
                return true;
            }
            let Some(other_job) =
                entry.jobs.iter().next().filter(|_| entry.state == FetchState::InProgress)
            else {
                return false;
            };
            (entry.fetching_job, entry.requested_len) = (*other_job, entry.received_len);
            requests.extend(entry.next_request().map(|request| (entry.fetching_job, request)));
            true
        });
        let is_unused = |entry: &Entry<P>| entry.jobs.is_empty();
        // The host that shared the file removes it, and a job may have written to it.
        self.entries.retain(|_, entry| !(entry.is_shared_file && is_unused(entry)));
        let unused_len: u64 =
            self.entries.values().filter(|one| is_unused(one)).map(|one| one.received_len).sum();
        if unused_len > MAX_UNUSED_BYTES {
            self.drop_unused();
        }
        requests
    }

    fn drop_unused(&mut self) {
        self.entries.retain(|_, entry| !entry.jobs.is_empty());
    }
}

impl<P: Copy> Entry<P> {
    fn new(content: FileDigest) -> io::Result<Self> {
        Ok(Self {
            content,
            file: File::from(memfd_create(c"score-program", MFdFlags::MFD_CLOEXEC)?),
            state: FetchState::InProgress,
            received_len: 0,
            requested_len: 0,
            hasher: blake3::Hasher::new(),
            pending_requests: Vec::new(),
            is_shared_file: false,
            fetching_job: 0,
            jobs: HashSet::new(),
        })
    }

    fn verify_if_complete(&mut self) {
        if self.received_len == self.content.size && self.state == FetchState::InProgress {
            let hash_matches = *self.hasher.finalize().as_bytes() == self.content.hash;
            self.state = if hash_matches { FetchState::Complete } else { FetchState::Failed };
        }
    }

    fn next_request(&mut self) -> Option<ChunkRequest> {
        let end = (self.received_len + PREFETCH_WINDOW).min(self.content.size);
        let is_due = self.requested_len < self.content.size
            && self.requested_len - self.received_len <= PREFETCH_WINDOW / 2;
        if self.state != FetchState::InProgress || !is_due {
            return None;
        }
        let request = ChunkRequest {
            hash: self.content.hash,
            offset: self.requested_len,
            length: end - self.requested_len,
        };
        self.requested_len = end;
        Some(request)
    }

    fn collect_chunks(&mut self, hash: &ContentHash, chunks: &mut Vec<Chunk<P>>) {
        let (received_len, is_failed) = (self.received_len, self.state == FetchState::Failed);
        let file = &self.file;
        self.pending_requests.retain_mut(|(requester, offset, end)| {
            while *offset < *end {
                let count =
                    (received_len.min(*end).saturating_sub(*offset)).min(MAX_IO_CHUNK as u64);
                if count == 0 {
                    break;
                }
                let mut bytes = vec![0; count as usize];
                if file.read_exact_at(&mut bytes, *offset).is_err() {
                    bytes.clear();
                }
                chunks.push(Chunk { requester: *requester, hash: *hash, offset: *offset, bytes });
                *offset += count;
            }
            if is_failed && *offset < *end {
                chunks.push(Chunk {
                    requester: *requester,
                    hash: *hash,
                    offset: *offset,
                    bytes: Vec::new(),
                });
                return false;
            }
            *offset < *end
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn content(bytes: &[u8]) -> FileDigest {
        FileDigest { hash: *blake3::hash(bytes).as_bytes(), size: bytes.len() as u64 }
    }

    /// Answers the requests of a cache from the bytes of the program until all of it is there.
    fn fetch(cache: &mut ProgramCache<u32>, content: FileDigest, program: &[u8]) {
        let mut requests: VecDeque<ChunkRequest> =
            cache.require(content, 1, None).unwrap().into_iter().collect();
        while let Some(ChunkRequest { hash, offset, length }) = requests.pop_front() {
            let range = &program[offset as usize..(offset + length) as usize];
            for (index, chunk) in range.chunks(MAX_IO_CHUNK).enumerate() {
                requests.extend(cache.on_chunk(
                    1,
                    &hash,
                    offset + (index * MAX_IO_CHUNK) as u64,
                    chunk,
                ));
            }
        }
    }

    #[test]
    fn a_program_is_fetched_once_in_order_and_its_hash_is_checked() {
        let program: Vec<u8> = (0..5_000_000u32).map(|number| ((number * 31) >> 3) as u8).collect();
        let content = content(&program);
        let mut cache = ProgramCache::default();
        fetch(&mut cache, content, &program);
        assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Complete));
        assert_eq!(cache.require(content, 2, None).unwrap(), None);
        let path = std::env::temp_dir().join(format!("score-store-{}", std::process::id()));
        cache.write_program(1, &content.hash, &path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), program);
        assert!(cache.write_program(1, &content.hash, &path).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_early_requester_gets_the_chunks_as_they_arrive() {
        let program = vec![7; 300_000];
        let content = content(&program);
        let mut cache = ProgramCache::default();
        let request = cache.require(content, 1, None).unwrap().unwrap();
        let requester = Requester { tree_position: 1u32, child_index: 3 };
        cache.on_chunk_request(1, requester, request);
        assert!(cache.take_ready_chunks().is_empty());
        let mut got = Vec::new();
        for (index, chunk) in program.chunks(MAX_IO_CHUNK).enumerate() {
            cache.on_chunk(1, &content.hash, (index * MAX_IO_CHUNK) as u64, chunk);
            for ready in cache.take_ready_chunks() {
                assert_eq!((ready.requester, ready.offset), (requester, got.len() as u64));
                got.extend(ready.bytes);
            }
        }
        assert_eq!(got, program);
        cache.on_chunk_request(1, requester, ChunkRequest { hash: [0; 32], offset: 9, length: 1 });
        assert!(cache.take_ready_chunks()[0].bytes.is_empty());
    }

    #[test]
    fn a_shared_program_is_hard_linked_and_copied_when_the_first_path_is_removed() {
        let program = vec![7; 300_000];
        let content = content(&program);
        let directory = std::env::temp_dir().join(format!("score-shared-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let names = ["first", "second", "third"].map(|name| directory.join(name));
        std::fs::write(&names[0], &program).unwrap();
        let mut cache = ProgramCache::<u32>::default();
        cache.require(content, 1, None).unwrap().unwrap();
        cache.on_shared_file(2, &content.hash, File::open(&names[0]));
        assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::InProgress));
        cache.on_shared_file(1, &content.hash, File::open(&names[0]));
        assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Complete));
        cache.write_program(1, &content.hash, &names[1]).unwrap();
        let inode = |name: &Path| std::fs::metadata(name).unwrap().ino();
        assert_eq!(inode(&names[0]), inode(&names[1]));
        std::fs::remove_file(&names[0]).unwrap();
        std::fs::remove_file(&names[1]).unwrap();
        cache.write_program(1, &content.hash, &names[2]).unwrap();
        assert_eq!(std::fs::read(&names[2]).unwrap(), program);
        cache.release_job(1);
        assert_eq!(cache.status(1, &content.hash), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_program_is_loaded_from_a_file_only_if_size_and_hash_match() {
        let program = vec![7; 600_000];
        let file_path = std::env::temp_dir().join(format!("score-own-{}", std::process::id()));
        std::fs::write(&file_path, &program).unwrap();
        let right = content(&program);
        let mut cache = ProgramCache::<u32>::default();
        cache.load_file(FileDigest { size: right.size - 1, ..right }, &file_path).unwrap();
        cache.load_file(FileDigest { hash: [0; 32], ..right }, &file_path).unwrap();
        cache.load_file(right, Path::new("/dev/zero")).unwrap_err();
        assert!(cache.require(right, 2, None).unwrap().is_some());
        cache.release_job(2);
        cache.load_file(right, &file_path).unwrap();
        assert_eq!(cache.require(right, 1, None).unwrap(), None);
        assert_eq!(cache.status(1, &right.hash), Some(FetchStatus::Complete));
        std::fs::remove_file(&file_path).unwrap();
    }

    #[test]
    fn a_shared_file_of_another_size_or_type_is_rejected() {
        let content = content(&[7; 1000]);
        let directory = File::open(std::env::temp_dir());
        let missing = File::open("/nowhere/at/all");
        for file in [directory, missing, File::open("/proc/self/exe")] {
            let mut cache = ProgramCache::<u32>::default();
            cache.require(content, 1, None).unwrap().unwrap();
            cache.on_shared_file(1, &content.hash, file);
            assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Failed));
        }
    }

    #[test]
    fn a_program_with_a_wrong_hash_or_size_fails_for_every_requester() {
        let program = vec![7; 1000];
        let content = content(&program);
        for wrong in [vec![8; 1000], vec![7; 1001], vec![]] {
            let mut cache = ProgramCache::default();
            let request = cache.require(content, 1, None).unwrap().unwrap();
            cache.on_chunk_request(
                1,
                Requester { tree_position: 1u32, child_index: 1 },
                ChunkRequest { length: 5000, ..request },
            );
            cache.on_chunk(2, &content.hash, 0, &program);
            cache.on_chunk(1, &content.hash, 0, &wrong);
            assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Failed));
            assert!(cache.take_ready_chunks().iter().any(|chunk| chunk.bytes.is_empty()));
            cache.release_job(1);
            assert_eq!(cache.status(1, &content.hash), None);
        }
    }

    #[test]
    fn a_user_can_neither_get_nor_corrupt_the_program_of_another_user() {
        let program = vec![7; 1000];
        let content = content(&program);
        let mut cache = ProgramCache::<u32>::default();
        cache.require(content, 1, Some(1000)).unwrap();
        cache.on_chunk(1, &content.hash, 0, &program);
        assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Complete));
        // The program has to be requested as if it had never been here.
        assert!(cache.require(content, 2, Some(1001)).unwrap().is_some());
        assert_eq!(cache.status(2, &content.hash), Some(FetchStatus::InProgress));
        let to = std::env::temp_dir().join(format!("score-theft-{}", std::process::id()));
        assert!(cache.write_program(2, &content.hash, &to).is_err());
        cache.on_chunk(2, &content.hash, 0, &[8; 1000]);
        assert_eq!(cache.status(2, &content.hash), Some(FetchStatus::Failed));
        assert_eq!(cache.status(1, &content.hash), Some(FetchStatus::Complete));
        // A request for an unknown job gets nothing, either.
        cache.on_chunk_request(
            3,
            Requester { tree_position: 3, child_index: 1 },
            ChunkRequest { hash: content.hash, offset: 0, length: 9 },
        );
        assert!(cache.take_ready_chunks()[0].bytes.is_empty());
        assert_eq!(cache.require(content, 4, Some(1000)).unwrap(), None);
    }

    #[test]
    fn a_fetch_is_continued_by_another_job_when_the_fetching_job_ends() {
        let program: Vec<u8> = (0..200_000u32).map(|number| (number >> 5) as u8).collect();
        let content = content(&program);
        let mut cache = ProgramCache::<u32>::default();
        cache.require(content, 1, None).unwrap();
        assert_eq!(cache.require(content, 2, None).unwrap(), None);
        cache.on_chunk(1, &content.hash, 0, &program[..MAX_IO_CHUNK]);
        let requests = cache.release_job(1);
        let offset = MAX_IO_CHUNK as u64;
        let request =
            ChunkRequest { hash: content.hash, offset, length: program.len() as u64 - offset };
        assert_eq!(requests, [(2, request)]);
        assert_eq!(cache.on_chunk(1, &content.hash, offset, &program[MAX_IO_CHUNK..]), None);
        assert_eq!(cache.status(2, &content.hash), Some(FetchStatus::InProgress));
        cache.on_chunk(2, &content.hash, offset, &program[MAX_IO_CHUNK..]);
        assert_eq!(cache.status(2, &content.hash), Some(FetchStatus::Complete));
        assert_eq!(cache.release_job(2), []);
    }

    #[test]
    fn the_programs_of_one_user_are_bounded() {
        let mut cache = ProgramCache::<u32>::default();
        let large = |byte| FileDigest { hash: [byte; 32], size: MAX_PROGRAM_LEN / 2 };
        assert!(cache.require(large(1), 1, Some(1000)).is_ok());
        assert!(cache.require(large(2), 1, Some(1000)).is_ok());
        assert!(cache.require(large(3), 2, Some(1000)).is_err());
        assert!(cache.require(large(3), 3, Some(1001)).is_ok());
        cache.release_job(1);
        assert!(cache.require(large(3), 2, Some(1000)).is_ok());
    }
}
