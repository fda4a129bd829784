use super::*;
use score_proto::ids::JobHostId;
use score_proto::message::{ElementSpec, HostSpec, JobSpec, ProgramKind, StageSpec};
use score_proto::peer_message::JobIncarnation;
use std::fs::FileTimes;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

const READY: ShepherdReport = ShepherdReport::Job(JobReport::Ready);

/// The directories of a test. They are removed when this value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("score-programs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join("cache")).unwrap();
        Self(path)
    }

    /// The directory of a job.
    fn job(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn program(len: u32) -> Vec<u8> {
    (0..len).map(|number| ((number * 31) >> 3) as u8).collect()
}

fn digest(bytes: &[u8]) -> FileDigest {
    FileDigest { hash: *blake3::hash(bytes).as_bytes(), size: bytes.len() as u64 }
}

/// A job on two hosts. Its programs have these paths.
fn spec(programs: &[(&str, FileDigest)], kind: HostKind) -> JobSpec {
    let element = |(path, content): &(&str, FileDigest)| ElementSpec {
        digest: Some(*content),
        ..ElementSpec::new(OsBytes(path.as_bytes().to_vec()), Vec::new(), ProgramKind::Plain)
    };
    JobSpec {
        hosts: vec![HostSpec { kind, ..HostSpec::local(1) }; 2],
        stages: vec![StageSpec { elements: programs.iter().map(element).collect() }],
        directory: OsBytes(b"/".to_vec()),
        ..JobSpec::default()
    }
}

fn placement(self_host: u32) -> Placement {
    let hosts = (0..2).map(|host| (format!("h{host}"), None, 1));
    Placement { self_host: JobHostId(self_host), ..Placement::new(JobIncarnation(0), hosts) }
}

fn begin(spec: &JobSpec, self_host: u32, job: &Path, cache: Option<&Path>) -> ProgramStore {
    ProgramStore::begin(spec, &placement(self_host), false, StorePaths { job, cache }).unwrap()
}

/// Pumps the store until nothing more happens, and answers its requests with these bytes. Returns
/// the other reports, and the number of requested bytes.
fn serve(store: &mut ProgramStore, bytes: &[u8]) -> (Vec<ShepherdReport>, u64) {
    let (mut others, mut requested_bytes) = (Vec::new(), 0);
    loop {
        store.pump().unwrap();
        let reports = store.take_reports();
        if reports.is_empty() && !store.is_runnable() {
            return (others, requested_bytes);
        }
        for report in reports {
            let ShepherdReport::FileRequest(FileRequest { hash, offset, length }) = report else {
                others.push(report);
                continue;
            };
            requested_bytes += length;
            let range = &bytes[offset as usize..(offset + length) as usize];
            for (chunk, index) in range.chunks(MAX_IO_CHUNK).zip(0..) {
                store.on_chunk(&hash, offset + index * MAX_IO_CHUNK as u64, chunk).unwrap();
            }
        }
    }
}

#[test]
fn a_program_is_fetched_once_and_linked_for_later_jobs() {
    let (scratch, bytes) = (Scratch::new(), program(5_000_000));
    let content = digest(&bytes);
    let spec = spec(&[("/a/one", content), ("/a/two", content)], HostKind::Remote);
    let cache = scratch.0.join("cache");
    for (job, expected_bytes) in [("first", content.size), ("second", 0)] {
        let directory = scratch.job(job);
        let mut store = begin(&spec, 1, &directory, Some(&cache));
        assert_eq!(serve(&mut store, &bytes), (vec![READY], expected_bytes));
        for name in ["one", "two"] {
            let path = directory.join(".bin").join(name);
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        }
    }
    // A job has modified its program, and the cached file with it.
    fs::write(scratch.0.join("second/.bin/one"), "x".repeat(5_000_000)).unwrap();
    let mut store = begin(&spec, 1, &scratch.job("third"), Some(&cache));
    assert_eq!(serve(&mut store, &bytes), (vec![READY], content.size));
    let mut store = begin(&spec, 1, &scratch.job("fourth"), Some(&cache));
    assert_eq!(serve(&mut store, &bytes), (vec![READY], 0));
}

// Promise of `a_large_program_is_written_by_its_user_within_the_limits_of_the_job`.
#[test]
fn no_content_of_the_users_directory_blocks_the_shepherd() {
    let (scratch, bytes) = (Scratch::new(), program(100));
    let content = digest(&bytes);
    let spec = spec(&[("/a/one", content)], HostKind::Remote);
    let cache = scratch.0.join("cache");
    let name: String = content.hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = cache.join(name);
    let make: [&dyn Fn(); 3] = [
        &|| nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        &|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
        &|| fs::create_dir(&path).unwrap(),
    ];
    for (make, job) in make.into_iter().zip(["fifo", "link", "folder"]) {
        make();
        let mut store = begin(&spec, 1, &scratch.job(job), Some(&cache));
        assert_eq!(serve(&mut store, &bytes), (vec![READY], 100));
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
    }
    // The directory itself may be missing.
    let missing = cache.join("missing");
    let mut store = begin(&spec, 1, &scratch.job("last"), Some(&missing));
    assert_eq!(serve(&mut store, &bytes), (vec![READY], 100));
}

#[test]
fn a_child_host_gets_the_bytes_of_a_program_as_they_arrive() {
    let (scratch, bytes) = (Scratch::new(), program(300_000));
    let content = digest(&bytes);
    let spec = spec(&[("/a/one", content)], HostKind::Remote);
    let mut store = begin(&spec, 0, &scratch.job("job"), None);
    let request = |hash, offset, length| FileRequest { hash, offset, length };
    store.on_child_request(7, request(content.hash, 0, content.size));
    // Requests for an unknown program, and for bytes after the end, get empty answers.
    store.on_child_request(8, request([0; 32], 9, 1));
    store.on_child_request(9, request(content.hash, content.size, 1));
    store.pump().unwrap();
    let reports = store.take_reports();
    let is_empty_chunk = |report: &ShepherdReport| {
        matches!(report, ShepherdReport::Program { answer: ProgramAnswer::Chunk { bytes, .. }, .. }
            if bytes.is_empty())
    };
    assert_eq!(reports.iter().filter(|report| is_empty_chunk(report)).count(), 2);
    assert_eq!(reports.len(), 3, "{reports:?}");
    let mut sent = Vec::new();
    for (chunk, index) in bytes.chunks(MAX_IO_CHUNK).zip(0..) {
        store.on_chunk(&content.hash, index * MAX_IO_CHUNK as u64, chunk).unwrap();
        store.pump().unwrap();
        for report in store.take_reports() {
            match report {
                ShepherdReport::Program {
                    child: 7,
                    answer: ProgramAnswer::Chunk { offset, bytes, .. },
                } => {
                    assert_eq!(offset, sent.len() as u64);
                    sent.extend(bytes);
                }
                READY => assert_eq!(sent.len(), bytes.len()),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(sent, bytes);
}

#[test]
fn the_submit_host_uses_the_file_of_the_user_only_if_size_and_hash_match() {
    let (scratch, bytes) = (Scratch::new(), program(600_000));
    let file = scratch.0.join("file");
    let path = file.to_str().unwrap();
    let content = digest(&bytes);
    fs::write(&file, &bytes).unwrap();
    for (job, kind, self_host, expected_bytes) in [
        ("local", HostKind::Virtual, 0, 0),
        ("remote", HostKind::Remote, 0, content.size),
        ("second", HostKind::Local, 1, content.size),
    ] {
        let spec = spec(&[(path, content)], kind);
        let mut store = begin(&spec, self_host, &scratch.job(job), None);
        assert_eq!(serve(&mut store, &bytes), (vec![READY], expected_bytes), "{job}");
    }
    let changed = program(600_001)[1..].to_vec();
    fs::write(&file, changed).unwrap();
    let spec = spec(&[(path, content)], HostKind::Virtual);
    let mut store = begin(&spec, 0, &scratch.job("changed"), None);
    assert_eq!(serve(&mut store, &bytes), (vec![READY], content.size));
    assert_eq!(fs::read(scratch.0.join("changed/.bin/file")).unwrap(), bytes);
}

#[test]
fn virtual_hosts_link_the_file_of_their_parent() {
    let (scratch, bytes) = (Scratch::new(), program(300_000));
    let content = digest(&bytes);
    let spec = spec(&[("/a/one", content)], HostKind::Virtual);
    let mut parent = begin(&spec, 0, &scratch.job("parent"), None);
    let (hash, length) = (content.hash, content.size);
    parent.on_child_request(1, FileRequest { hash, offset: 0, length });
    let (reports, _) = serve(&mut parent, &bytes);
    let [
        ShepherdReport::Program { child: 1, answer: ProgramAnswer::SharedFile { hash, path } },
        READY,
    ] = &reports[..]
    else {
        panic!("{reports:?}");
    };
    let path = Path::new(OsStr::from_bytes(&path.0));
    let mut child = begin(&spec, 1, &scratch.job("child"), None);
    child.pump().unwrap();
    assert!(matches!(child.take_reports()[..], [ShepherdReport::FileRequest(FileRequest { .. })]));
    // A device, a symbolic link, and a path that does not exist.
    for wrong in ["/dev/null", "/proc/self/exe", "/nowhere/at/all"] {
        let mut store = begin(&spec, 1, &scratch.job(&wrong.replace('/', "-")), None);
        store.on_shared_file(hash, Path::new(wrong)).unwrap_err();
    }
    child.on_shared_file(hash, path).unwrap();
    child.pump().unwrap();
    assert_eq!(child.take_reports(), [READY]);
    let inode = |job: &str| fs::metadata(scratch.0.join(job).join(".bin/one")).unwrap().ino();
    assert_eq!(inode("parent"), inode("child"));
}

#[test]
fn a_program_with_another_hash_or_size_is_refused() {
    let (scratch, bytes) = (Scratch::new(), program(1000));
    let content = digest(&bytes);
    let spec = spec(&[("/a/one", content)], HostKind::Remote);
    for (number, wrong) in [vec![8; 1000], vec![7; 1001], vec![]].iter().enumerate() {
        let mut store = begin(&spec, 1, &scratch.job(&number.to_string()), None);
        let reason = store.on_chunk(&content.hash, 0, wrong).unwrap_err();
        assert!(reason.contains("one cannot be copied to this host: it could not be"), "{reason}");
    }
    // A chunk that was not requested is an error.
    let mut store = begin(&spec, 1, &scratch.job("offset"), None);
    store.on_chunk(&[0; 32], 0, &bytes).unwrap();
    store.on_chunk(&content.hash, 1, &bytes[1..]).unwrap_err();
}

#[test]
fn an_empty_program_needs_no_request() {
    let scratch = Scratch::new();
    let spec = spec(&[("/a/one", digest(&[]))], HostKind::Remote);
    let mut store = begin(&spec, 1, &scratch.job("job"), None);
    assert_eq!(serve(&mut store, &[]), (vec![READY], 0));
}

// Promise of `a_large_program_is_written_by_its_user_within_the_limits_of_the_job`.
#[test]
fn the_oldest_programs_are_removed_if_the_directory_is_full() {
    let (scratch, bytes) = (Scratch::new(), program(100));
    let cache = scratch.0.join("cache");
    for (name, seconds) in [("old", 1), ("new", 2)] {
        let file = File::create(cache.join(name)).unwrap();
        file.set_len(MAX_CACHED_BYTES / 2).unwrap();
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)))
            .unwrap();
    }
    let spec = spec(&[("/a/one", digest(&bytes))], HostKind::Remote);
    let mut store = begin(&spec, 1, &scratch.job("job"), Some(&cache));
    serve(&mut store, &bytes);
    assert!(!cache.join("old").exists() && cache.join("new").exists());
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 2);
}
