//! Attempts to gain rights, or to keep resources after the end of the job.

use super::driver::TEST_TIMEOUT;
use super::driver::service::{ALICE, BOB, Client, Service, run_as, spec};
use super::support::{HONEST_WAIT_TIMEOUT, longest_wait, shepherd_of, wait_for_process};
use nix::fcntl::{OFlag, openat, renameat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable for [`role`]: the socket of the service.
const SOCKET_ENV: &str = "SCORE_TEST_SOCKET";

/// Not a test: a process that sets its own resource limits and then logs in as alice.
#[test]
fn role() {
    let Some(socket) = std::env::var_os(SOCKET_ENV) else { return };
    setrlimit(Resource::RLIMIT_CORE, 4096, 8192).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 65_536, 65_536).unwrap();
    let mut client = Client::connect_as(socket.as_ref(), ALICE);
    let script = "ulimit -H -c; ulimit -H -l; ulimit -S -c";
    client.request(ALICE, 1, spec(script, &["wait"]));
    assert_eq!(client.until_ended(), 0, "{}", client.notices);
    println!("limits: {}", client.out.replace('\n', " "));
}

#[test]
fn a_job_has_the_resource_limits_of_the_process_that_logged_in() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "privileges::role", "--nocapture"])
            .env(SOCKET_ENV, service.socket_of(host))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The core limit is in units of 512 bytes, the others in KiB.
        assert!(text.contains("limits: 16 64 8 "), "{host}: {text}");
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn the_session_keyring_of_a_job_belongs_to_its_user() {
    let Some(service) = Service::start_two_hosts() else { return };
    if !std::path::Path::new("/proc/keys").exists() {
        return eprintln!("SKIPPED session keyrings: the kernel has none");
    }
    let mut client = Client::connect_as(&service.socket(), ALICE);
    client.request(ALICE, 1, spec("grep ' _ses' /proc/keys", &[]));
    assert_eq!(client.until_ended(), 0, "{}", client.notices);
    let owners: Vec<&str> =
        client.out.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    // Other jobs of alice may run, whose keyrings are also listed.
    let are_alices = owners.iter().all(|owner| *owner == ALICE.to_string());
    assert!(are_alices && !owners.is_empty(), "{}", client.out);
}

#[test]
fn the_files_of_a_killed_shepherd_are_removed_with_the_users_rights_while_others_are_served() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    // A tree of alice that contains a directory of root. Alice can move the tree, but cannot empty
    // it.
    let tree = service.file("tree");
    std::fs::create_dir_all(tree.join("of-root")).unwrap();
    std::fs::write(tree.join("of-root/keep"), "root's").unwrap();
    for path in [service.file("."), tree.clone()] {
        std::os::unix::fs::chown(path, Some(ALICE), Some(ALICE)).unwrap();
    }
    let command = format!("sleep 8{}", std::process::id());
    let script = format!(
        "mv {} . && seq 20000 | xargs -n 2000 touch && pwd && echo up && {command}",
        tree.display()
    );
    let mut client = Client::connect_as(&service.socket(), ALICE);
    client.request(ALICE, 1, spec(&script, &[]));
    client.until_noticed("up");
    let directory = PathBuf::from(client.out.lines().next().unwrap());
    let shepherd = shepherd_of(wait_for_process(&command));
    let wait = longest_wait(&service, || {
        run_as(ALICE, || kill(shepherd, Signal::SIGKILL).unwrap());
        std::thread::sleep(Duration::from_secs(4));
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert_ne!(client.until_ended(), 0);
    let started_at = Instant::now();
    let directory = leftover_of(&directory);
    let names = || std::fs::read_dir(&directory).unwrap().count();
    while names() > 1 {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{} files are left", names());
        std::thread::sleep(Duration::from_millis(500));
    }
    let kept = std::fs::read_to_string(directory.join("tree/of-root/keep"));
    assert_eq!(kept.unwrap(), "root's");
    assert!(service.is_alive());
    service.serves(BOB);
    std::fs::remove_dir_all(directory).unwrap();
}

/// The path of a job's directory after it has been moved to the leftovers.
fn leftover_of(directory: &Path) -> PathBuf {
    Path::new("/var/scored/leftovers").join(directory.file_name().unwrap())
}

/// Creates files in a directory until `end`. Returns their number.
fn create_files(directory: &File, end: Instant) -> u32 {
    let mut count = 0;
    while Instant::now() < end {
        let name = format!("{:?}-{count}", std::thread::current().id());
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(directory, name.as_str(), flags, Mode::S_IRWXU) {
            Ok(_) => count += 1,
            Err(error) => panic!("alice cannot write any more: {error}"),
        }
    }
    count
}

#[test]
fn a_directory_with_new_files_of_its_user_is_removed_when_the_user_stops_writing() {
    let interval = [("SCORE_TEST_SWEEP_MS", "300")];
    let Some(mut service) = Service::start_two_hosts_with_variables(&interval) else { return };
    let command = format!("sleep 6{}", std::process::id());
    let mut client = Client::connect_as(&service.socket(), ALICE);
    client.request(ALICE, 1, spec(&format!("pwd && echo up && {command}"), &[]));
    client.until_noticed("up");
    let path = PathBuf::from(client.out.lines().next().unwrap());
    let shepherd = shepherd_of(wait_for_process(&command));
    // A tree on the same file system that alice can move but not remove. While the tree is in the
    // job's directory, alice's rights do not suffice to remove that directory.
    let outside = path.with_file_name(format!("test-{}", std::process::id()));
    std::fs::create_dir_all(outside.join("tree/of-root/keep")).unwrap();
    for path in [outside.clone(), outside.join("tree")] {
        std::os::unix::fs::chown(path, Some(ALICE), Some(ALICE)).unwrap();
    }
    let (directory, outside_dir) =
        run_as(ALICE, || (File::open(&path).unwrap(), File::open(&outside).unwrap()));
    let mut file_count = 0;
    let attack_duration = Duration::from_secs(3);
    let wait = longest_wait(&service, || {
        let end = Instant::now() + attack_duration;
        run_as(ALICE, || renameat(&outside_dir, "tree", &directory, "tree").unwrap());
        std::thread::scope(|scope| {
            let writers: [_; 3] = std::array::from_fn(|_| {
                scope.spawn(|| run_as(ALICE, || create_files(&directory, end)))
            });
            run_as(ALICE, || kill(shepherd, Signal::SIGKILL).unwrap());
            file_count = writers.into_iter().map(|one| one.join().unwrap()).sum();
        });
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert_ne!(client.until_ended(), 0);
    eprintln!("{file_count} files, another user waited {wait:?}");
    let is_reachable = |path: &Path| run_as(ALICE, || std::fs::symlink_metadata(path).is_ok());
    assert!(!is_reachable(&path) && !is_reachable(&leftover_of(&path)));
    let stopped_at = Instant::now();
    run_as(ALICE, || renameat(&directory, "tree", &outside_dir, "tree").unwrap());
    while leftover_of(&path).exists() {
        assert!(stopped_at.elapsed() < TEST_TIMEOUT, "{} is left", leftover_of(&path).display());
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("removed {:?} after the last file", stopped_at.elapsed());
    std::fs::remove_dir_all(outside).unwrap();
    assert!(service.is_alive());
    service.serves(BOB);
}

/// A mounted file system. It is detached when this value is dropped, if it is still mounted.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts an empty file system. Returns `None` and prints that the test is skipped if this is
    /// not permitted.
    pub fn empty(path: &Path) -> Option<Self> {
        Self::mount(path, Path::new("none"), MsFlags::empty())
    }

    /// Mounts the directory `source` at `path`. See [`Mounted::empty`].
    fn bind(path: &Path, source: &Path) -> Option<Self> {
        Self::mount(path, source, MsFlags::MS_BIND)
    }

    fn mount(path: &Path, source: &Path, flags: MsFlags) -> Option<Self> {
        match mount(Some(source), path, Some("tmpfs"), flags, None::<&str>) {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                eprintln!("SKIPPED mounts: {error}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Starts a job of alice with a file and the directory `sub`. Returns the path of its directory.
fn start_job_with_files(client: &mut Client, command: &str) -> PathBuf {
    let script = format!("pwd && mkdir sub && touch file sub/file && echo up && {command}");
    client.request(ALICE, 1, spec(&script, &[]));
    client.until_noticed("up");
    PathBuf::from(client.out.lines().next().unwrap())
}

#[test]
fn a_jobs_directory_is_removed_although_file_systems_are_mounted_there() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 5{}", std::process::id());
    let path = start_job_with_files(&mut client, &command);
    let shepherd = shepherd_of(wait_for_process(&command));
    // A directory of the user elsewhere is mounted in the job's directory.
    let data = service.file("data");
    std::fs::create_dir_all(data.join("keep")).unwrap();
    std::os::unix::fs::chown(&data, Some(ALICE), Some(ALICE)).unwrap();
    let Some(_inside) = Mounted::bind(&path.join("sub"), &data) else { return };
    let Some(_on_top) = Mounted::empty(&path) else { return };
    run_as(ALICE, || kill(shepherd, Signal::SIGKILL).unwrap());
    assert_ne!(client.until_ended(), 0);
    let started_at = Instant::now();
    let exists = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    while exists(&path) || exists(&leftover_of(&path)) {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{} is left", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(exists(&data.join("keep")), "the contents of the mounted directory are removed");
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_directory_that_could_not_be_moved_is_moved_later() {
    let interval = [("SCORE_TEST_SWEEP_MS", "300")];
    let Some(service) = Service::start_two_hosts_with_variables(&interval) else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 4{}", std::process::id());
    let path = start_job_with_files(&mut client, &command);
    let shepherd = shepherd_of(wait_for_process(&command));
    // Alice cannot remove this directory, so that the first removal fails.
    std::fs::create_dir_all(path.join("of-root/keep")).unwrap();
    let Some(_on_top) = Mounted::empty(&path) else { return };
    run_as(ALICE, || kill(shepherd, Signal::SIGKILL).unwrap());
    assert_ne!(client.until_ended(), 0);
    let started_at = Instant::now();
    let leftover = leftover_of(&path);
    while path.exists() || !leftover.join("of-root/keep").exists() {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{} is not moved", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_dir(leftover.join("of-root/keep")).unwrap();
    std::os::unix::fs::chown(leftover.join("of-root"), Some(ALICE), Some(ALICE)).unwrap();
    while leftover.exists() {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{} is left", leftover.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
