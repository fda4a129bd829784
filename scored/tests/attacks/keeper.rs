//! Attacks of a compromised daemon on its keeper, and the end of a daemon or a keeper.

// UNSAFETY: a closure that runs between fork and exec.
#![expect(unsafe_code)]

use super::driver::TEST_TIMEOUT;
use super::driver::service::{ALICE, BOB, Client, DAEMON_UID, Service, run_as, spec};
use super::privileges::Mounted;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{Pid, geteuid};
use score_keeper::record::{Action, Call, Event, MAX_RECORD_LEN, Reply, StartRequest};
use score_keeper::voucher::{VOUCHER_TTL_S, Voucher, VoucherKey, link_key};
use score_proto::allocation_request::AllocationRequest;
use score_proto::message::UserRequest;
use score_sys::{fd_passing, unix_socket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const MALLORY: u32 = 61_004;
static NEXT_KEEPER: AtomicU32 = AtomicU32::new(0);

/// A keeper. The test takes the role of its daemon.
struct TestKeeper {
    child: Child,
    folder: PathBuf,
    calls: OwnedFd,
    events: OwnedFd,
    cluster_key: [u8; 32],
    listener: UnixListener,
}

impl TestKeeper {
    fn start() -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED multi-user mode: it needs root");
            return None;
        }
        let number = NEXT_KEEPER.fetch_add(1, Ordering::Relaxed);
        let name = format!("score-keeper-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let key_path = folder.join("key");
        score_tree::key::make(&key_path).unwrap();
        let cluster_key = *score_tree::key::Key::load(&key_path).unwrap().bytes();
        let listener = UnixListener::bind(folder.join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(folder.join("socket"), mode).unwrap();
        let pair = || unix_socket::seqpacket_pair().unwrap();
        let ((calls, keeper_calls), (events, keeper_events)) = (pair(), pair());
        let keeper_listener = OwnedFd::from(listener.try_clone().unwrap());
        let inherited = [keeper_listener, keeper_calls, keeper_events];
        let [listener_number, keeper_calls, keeper_events] =
            [0, 1, 2].map(|index| inherited[index].as_raw_fd().to_string());
        let user = DAEMON_UID.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scored"));
        command.args(["-keeper", "-control", &keeper_calls, "-events", &keeper_events]);
        command.args(["-listener", &listener_number, "-host", "here", "-user", &user]);
        command.arg("-key").arg(&key_path).arg("-socket").arg(folder.join("socket"));
        command.stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
        command.stderr(std::fs::File::create(folder.join("log")).unwrap());
        let keep = move || {
            for fd in &inherited {
                fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            Ok(())
        };
        // SAFETY: the closure only makes system calls.
        let child = unsafe { command.pre_exec(keep) }.spawn().unwrap();
        drop(command);
        for socket in [&calls, &events] {
            setsockopt(socket, ReceiveTimeout, &TimeVal::seconds(20)).unwrap();
        }
        let keeper = Self { child, folder, calls, events, cluster_key, listener };
        let link_key = Some(link_key(&cluster_key));
        assert_eq!(keeper.event(), Event::Ready { link_key });
        Some(keeper)
    }

    fn call(&self, call: &Call, fds: &[BorrowedFd<'_>]) -> Reply {
        fd_passing::send(&self.calls, &call.to_bytes(), fds).unwrap();
        Reply::read(&receive(&self.calls)).unwrap()
    }

    /// The next event, and the lines that the keeper has logged before it.
    fn event_after_lines(&self) -> (Event, Vec<String>) {
        let mut lines = Vec::new();
        loop {
            match Event::read(&receive(&self.events)).unwrap() {
                Event::Logged { line } => lines.push(line),
                event => return (event, lines),
            }
        }
    }

    fn event(&self) -> Event {
        self.event_after_lines().0
    }

    /// Connects as this uid. Returns the daemon's end and the client's end of the connection.
    fn connection(&self, uid: u32) -> (OwnedFd, UnixStream) {
        let path = self.folder.join("socket");
        let client = run_as(uid, || UnixStream::connect(&path).unwrap());
        (self.listener.accept().unwrap().0.into(), client)
    }

    /// A voucher with this change, authenticated with the key of the cluster.
    fn sealed(&self, change: impl FnOnce(&mut Voucher)) -> Vec<u8> {
        self.sealed_with(&self.cluster_key, change)
    }

    fn sealed_with(&self, key: &[u8; 32], change: impl FnOnce(&mut Voucher)) -> Vec<u8> {
        let mut voucher = Voucher {
            uid: MALLORY,
            gid: MALLORY,
            session: 1,
            expires_at: unix_seconds() + 100,
            name: Vec::new(),
            login_host: b"there".to_vec(),
            limits: Vec::new(),
        };
        change(&mut voucher);
        VoucherKey::new(key).seal(&voucher)
    }

    /// Requests the start of a job. Returns the reply and the daemon's ends of its sockets.
    fn start_job(&self, voucher: Vec<u8>) -> (Reply, [UnixStream; 2]) {
        let ((control, other), (switch, other_switch)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let request = StartRequest { voucher, ..StartRequest::default() };
        let fds = [other.as_fd(), other_switch.as_fd()];
        (self.call(&Call::Start(request), &fds), [control, switch])
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    fn until_ended(&mut self) {
        until("the keeper ends", || self.child.try_wait().unwrap().is_some());
    }
}

impl Drop for TestKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    fd_passing::receive(socket, MAX_RECORD_LEN, 0).unwrap().0
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "time-out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[expect(clippy::disallowed_methods, reason = "vouchers have no other clock")]
fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn refusal(reply: Reply) -> String {
    match reply {
        Reply::Refused { reason } => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_forged_expired_or_overlong_voucher_starts_no_job() {
    let Some(keeper) = TestKeeper::start() else { return };
    let mut changed = keeper.sealed(|_| {});
    changed[1] ^= 1;
    let late = unix_seconds() + 2 * VOUCHER_TTL_S;
    for (voucher, reason) in [
        (Vec::new(), "malformed"),
        (changed, "not of a keeper"),
        (keeper.sealed_with(&[9; 32], |voucher| voucher.uid = 0), "not of a keeper"),
        // The voucher is authenticated with the only key that a daemon has.
        (keeper.sealed_with(&link_key(&keeper.cluster_key), |_| {}), "not of a keeper"),
        (keeper.sealed(|voucher| voucher.expires_at = unix_seconds()), "has expired"),
        (keeper.sealed(|voucher| voucher.expires_at = late), "ends too late"),
        (keeper.sealed(|voucher| voucher.uid = DAEMON_UID), "own user"),
    ] {
        let (reply, _sockets) = keeper.start_job(voucher.clone());
        let answer = refusal(reply);
        assert!(answer.contains(reason), "{reason}: {answer}");
        assert!(keeper.log().contains(reason), "{}", keeper.log());
        if reason == "malformed" {
            refusal(keeper.call(&Call::Verify { voucher }, &[]));
        }
    }
    // A valid voucher starts a job. The job ends when the daemon closes its sockets.
    let (reply, sockets) = keeper.start_job(keeper.sealed(|_| {}));
    let Reply::Started { job } = reply else { panic!("{reply:?}") };
    drop(sockets);
    let (event, lines) = keeper.event_after_lines();
    assert!(matches!(event, Event::Ended { job: ended, .. } if ended == job), "{event:?}");
    // A daemon forwards these lines to its syslog receiver.
    assert!(lines.len() > 3 && keeper.log().contains(&lines[0]), "{lines:?}");
    let act = |action| keeper.call(&Call::Act { job, action }, &[]);
    assert_eq!(act(Action::Remove), Reply::Done);
    assert!(matches!(act(Action::Remove), Reply::Failed { .. }), "it is removed once");
}

#[test]
fn a_keeper_vouches_for_connections_to_its_socket_and_for_no_other() {
    let Some(keeper) = TestKeeper::start() else { return };
    let vouch = |socket: &OwnedFd| keeper.call(&Call::Vouch { session: 5 }, &[socket.as_fd()]);
    let ((alice_socket, alice), (bob_socket, bob)) =
        (keeper.connection(ALICE), keeper.connection(BOB));
    // Sockets with root as the peer, like a connection of the daemon to another service. The first
    // socket is bound to no file, the others to another file.
    let (of_root, _other) = UnixStream::pair().unwrap();
    let path = keeper.folder.join("another");
    let other_listener = UnixListener::bind(&path).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    let accepted_elsewhere = other_listener.accept().unwrap().0;
    for socket in [of_root.into(), accepted_elsewhere.into(), OwnedFd::from(other_listener)] {
        assert!(refusal(vouch(&socket)).contains("not a connection"));
    }
    // The client's end of a connection, with the service as the peer.
    let client = alice.try_clone().unwrap().into();
    assert!(refusal(vouch(&client)).contains("not a connection"));
    // The listening socket, for which the kernel reports root as the peer.
    let listener = OwnedFd::from(keeper.listener.try_clone().unwrap());
    assert!(refusal(vouch(&listener)).contains("not a connection"));
    let mut vouchers = [&alice_socket, &bob_socket].map(|client| {
        assert_eq!(vouch(client), Reply::Done);
        match keeper.event() {
            Event::Vouched { session: 5, voucher } => voucher,
            other => panic!("{other:?}"),
        }
    });
    let uids =
        vouchers.each_ref().map(|voucher| Voucher::read_unverified(voucher).map(|one| one.uid));
    assert_eq!(uids, [Ok(ALICE), Ok(BOB)]);
    let renew =
        |socket: &OwnedFd, voucher| keeper.call(&Call::Renew { voucher }, &[socket.as_fd()]);
    let foreign = renew(&alice_socket, vouchers[1].clone());
    assert!(refusal(foreign).contains("another connection"));
    match renew(&alice_socket, vouchers[0].clone()) {
        Reply::Renewed { voucher } => vouchers[0] = voucher,
        other => panic!("{other:?}"),
    }
    // The keeper does not renew the voucher of a client that has disconnected.
    drop((alice, bob, client));
    let late = renew(&alice_socket, vouchers[0].clone());
    assert!(refusal(late).contains("has closed"));
}

#[test]
fn a_malformed_call_ends_the_keeper() {
    let long = vec![4; MAX_RECORD_LEN + 1];
    let path = [&[5_u8, 1, 0][..], b"../etc"].concat();
    let no_descriptors = Call::Start(StartRequest::default()).to_bytes();
    for bytes in [&[0xff][..], &long, &path, &no_descriptors] {
        let Some(mut keeper) = TestKeeper::start() else { return };
        fd_passing::send(&keeper.calls, bytes, &[]).unwrap();
        keeper.until_ended();
        assert!(keeper.log().contains("the keeper ends all jobs"), "{}", keeper.log());
    }
}

#[test]
fn a_daemon_that_floods_its_keeper_ends_it_and_fills_no_log() {
    let Some(mut keeper) = TestKeeper::start() else { return };
    let verify = Call::Verify { voucher: vec![1; 40] };
    for _ in 0..200 {
        refusal(keeper.call(&verify, &[]));
    }
    assert!(keeper.log().lines().count() < 30, "{}", keeper.log());
    // The test does not read the replies any more.
    while fd_passing::send(&keeper.calls, &verify.to_bytes(), &[]).is_ok() {}
    keeper.until_ended();
    assert!(keeper.log().contains("does not read its answers"), "{}", keeper.log());
}

#[test]
fn the_daemon_has_no_privileges_and_the_keeper_no_network() {
    let Some(service) = Service::start_two_hosts() else { return };
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let ids = vec![DAEMON_UID.to_string(); 4];
    assert_eq!((field("Uid:"), field("Gid:")), (ids.clone(), ids));
    assert_eq!(field("Groups:"), [DAEMON_UID.to_string()]);
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), ["1"]);
    let keeper = service.keeper_pid();
    let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    assert!(status.contains("Uid:\t0\t0\t0\t0"), "{status}");
    let inet: String = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"]
        .map(|name| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default())
        .concat();
    let has_inet = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links = fds.filter_map(|fd| {
            std::fs::read_link(fd.path()).ok()?.into_os_string().into_string().ok()
        });
        let inodes: Vec<String> = links
            .filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        inodes.iter().any(|inode| inet.split_whitespace().any(|word| word == inode))
    };
    assert!(has_inet(service.pid()), "the test finds sockets");
    assert!(!has_inet(keeper));
}

/// Starts a job that keeps running. Returns its client and its directory.
fn running_job(service: &Service) -> (Client, PathBuf) {
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let script = "pwd; touch file; sleep 1000 & echo up; wait";
    client.request(ALICE, 1, spec(script, &["wait"]));
    client.until_noticed("up\n");
    let directory = PathBuf::from(client.out.lines().next().unwrap());
    (client, directory)
}

/// Whether a process has its working directory in this directory.
fn has_processes(directory: &std::path::Path) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut directories =
        entries.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
    directories.any(|cwd| cwd.starts_with(directory))
}

#[test]
fn no_process_or_file_of_a_job_remains_after_the_daemon_is_killed() {
    let Some(mut service) = Service::start(2) else { return };
    let (_client, directory) = running_job(&service);
    assert!(has_processes(&directory));
    let keeper = service.keeper_pid();
    kill(Pid::from_raw(service.pid() as i32), Signal::SIGKILL).unwrap();
    until("the keeper ends", || std::fs::read_link(format!("/proc/{keeper}/exe")).is_err());
    assert!(!has_processes(&directory));
    assert!(!directory.exists());
    assert!(!service.socket().exists());
    assert!(!service.is_alive());
}

#[test]
fn a_service_ends_with_its_keeper_and_the_next_service_removes_all_leftovers() {
    let Some(mut service) = Service::start(2) else { return };
    let (_client, directory) = running_job(&service);
    kill(Pid::from_raw(service.keeper_pid() as i32), Signal::SIGKILL).unwrap();
    until("the daemon ends", || !service.is_alive());
    until("the job ends", || !has_processes(&directory));
    // The user can mount a file system on the directory.
    let _mounted = Mounted::empty(&directory);
    assert!(service.log().contains("the keeper has ended"), "{}", service.log());
    let Some(_next) = Service::start(1) else { return };
    until("the directory is removed", || !directory.exists());
}

#[test]
fn a_login_that_outlasts_its_voucher_gets_new_vouchers() {
    const VOUCHER_TTL: Duration = Duration::from_secs(2);
    let variables = [("SCORE_TEST_VOUCHER_TTL_S", "2")];
    let Some(service) = Service::start_two_hosts_with_variables(&variables) else { return };
    let mut clients = ["hosta", "hostb"].map(|host| Client::log_in(&service.socket_of(host), BOB));
    std::thread::sleep(VOUCHER_TTL * 2);
    for client in &mut clients {
        let allocation = AllocationRequest::FewestHosts(1);
        let spec = spec("echo late", &["wait"]);
        client.send(&[UserRequest::SubmitJob { allocation, spec }]);
        assert_eq!(
            (client.until_ended(), client.out.as_str()),
            (0, "late\n"),
            "{}",
            client.notices
        );
    }
}
