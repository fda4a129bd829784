//! Attacks before and during the login.

use super::driver::TEST_TIMEOUT;
use super::driver::service::{
    ALICE, BOB, Client, Service, children_of, encode, hello, login, login_named, run_as, spec,
};
use super::support::{HONEST_WAIT_TIMEOUT, longest_wait};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use score_proto::ids::JobId;
use score_proto::message::{
    ConsoleRequest, HostKind, HostSpec, JobRequest, JobSpec, SingleUserRequest,
};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A host of a job, as a client of single-user mode specifies it.
fn host(name: &str, address: &str, kind: HostKind) -> HostSpec {
    HostSpec { name: name.into(), address: address.into(), kind, ..HostSpec::local(1) }
}

#[test]
fn a_message_of_single_user_mode_starts_no_job() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let proof = service.file("proof");
    let script = format!("id -u > {}; id -u", proof.display());
    let spec =
        |name: &str| JobSpec { hosts: vec![host(name, "", HostKind::Local)], ..spec(&script, &[]) };
    for login_host in ["hosta", "hostb"] {
        for name in ["hosta", "hostb", ""] {
            let mut client = Client::log_in(&service.socket_of(login_host), ALICE);
            client.send(&[SingleUserRequest::Submit(spec(name))]);
            assert_eq!(client.until_ended(), 1, "{}", client.notices);
            assert!(client.notices.contains("does not decode"), "{}", client.notices);
            client.until_closed();
        }
    }
    assert!(!proof.exists(), "a job ran as uid {}", std::fs::read_to_string(proof).unwrap());
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_scout_session_is_not_opened_by_a_service() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let namespace = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let before = namespace(service.pid());
    for login_host in ["hosta", "hostb"] {
        for hosts in [
            vec![host("victim", "127.0.0.1", HostKind::Remote)],
            vec![host("one", "", HostKind::Virtual), host("two", "", HostKind::Virtual)],
            vec![host(login_host, "", HostKind::Local)],
        ] {
            for logged_in in [false, true] {
                let socket = service.socket_of(login_host);
                let mut client = match logged_in {
                    true => Client::log_in(&socket, ALICE),
                    false => Client::connect_as(&socket, ALICE),
                };
                let greeting = (!logged_in).then(hello);
                let open = SingleUserRequest::OpenScoutSession(hosts.clone());
                let messages: Vec<_> = greeting.into_iter().chain([open.into()]).collect();
                client.send(&messages);
                assert_eq!(client.until_ended(), 1, "{}", client.notices);
                client.until_closed();
            }
        }
    }
    assert_eq!(namespace(service.pid()), before);
    let keeper = service.keeper_pid();
    // The process that looked up the name of a user may be exiting.
    let end = Instant::now() + TEST_TIMEOUT;
    while !children_of(keeper).is_empty() {
        assert!(Instant::now() < end, "the server has started a process");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(service.is_alive(), "{}", service.log());
    service.serves(BOB);
}

#[test]
fn false_logins_and_requests_fill_no_log() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let lines_before = service.log().lines().count();
    for _ in 0..500 {
        let mut client = Client::connect_as(&service.socket(), ALICE);
        client.send(&[hello(), login(BOB)]);
        assert_eq!(client.until_ended(), 2);
        let mut client = Client::log_in(&service.socket(), ALICE);
        client.send(&[ConsoleRequest::Kill(JobId(1))]);
        let _ = client.until_ended();
    }
    let lines = service.log().lines().count() - lines_before;
    assert!(lines < 60, "{lines} lines: {}", service.log());
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn silent_clients_of_one_user_do_not_delay_the_login_of_another() {
    const CLIENTS: usize = 3000;
    let Some(mut service) = Service::start_two_hosts() else { return };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let memory_before = service.memory();
    let wait = longest_wait(&service, || {
        let connect = || UnixStream::connect(service.socket()).unwrap();
        let clients: Vec<_> =
            run_as(ALICE, || std::iter::repeat_with(connect).take(CLIENTS).collect());
        std::thread::sleep(Duration::from_secs(4));
        let mut last = clients.last().unwrap();
        let mut refusal = Vec::new();
        last.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        last.read_to_end(&mut refusal).unwrap();
        let refusal = String::from_utf8_lossy(&refusal);
        assert!(refusal.contains("connections that have not logged in"), "{refusal}");
        drop(clients);
    });
    assert!(wait < Duration::from_secs(2), "another user waited {wait:?}");
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_client_without_login_sends_no_long_message() {
    const CLIENTS: usize = 200;
    let Some(mut service) = Service::start_two_hosts() else { return };
    let memory_before = service.memory();
    let long = JobRequest::Stdin(vec![0; 1_000_000]);
    let long = encode(&[hello(), long.into()]);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::connect_as(&service.socket(), ALICE)).collect();
    for client in &mut clients {
        let start = Instant::now();
        let mut sent = 0;
        // Send all but the last byte.
        while sent < long.len() - 1 && start.elapsed() < Duration::from_millis(20) {
            match client.write(&long[sent..long.len() - 1], Duration::ZERO) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The daemon has closed the connection.
                Err(_) => break,
            }
        }
    }
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    for client in &mut clients {
        assert_eq!(client.until_ended(), 1, "{}", client.notices);
        assert!(client.notices.contains("exceeds the limit of 8192"), "{}", client.notices);
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_claimed_user_name_must_equal_the_looked_up_name() {
    /// This uid has the name `daemon` on all systems.
    const DAEMON: u32 = 1;
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let log_in = |uid, name: &str| {
            let mut client = Client::connect_as(&service.socket_of(host), uid);
            let console = ConsoleRequest::List;
            client.send(&[hello(), login_named(uid, name), console.into()]);
            (client.until_ended(), client.notices)
        };
        for (uid, claimed) in [(DAEMON, "root"), (ALICE, "root"), (DAEMON, "daemon ")] {
            let (code, notices) = log_in(uid, claimed);
            assert_eq!(code, 2, "{host}: uid {uid} as {claimed}: {notices}");
            assert!(notices.contains("differs from your name"), "{notices}");
        }
        for (uid, claimed) in [(DAEMON, "daemon"), (DAEMON, ""), (ALICE, "")] {
            let (code, notices) = log_in(uid, claimed);
            assert_eq!(code, 0, "{host}: uid {uid} as {claimed}: {notices}");
        }
        // A user with a name claims none. The shepherds compare the looked-up name.
        let mut client = Client::connect_as(&service.socket_of(host), DAEMON);
        client.request(DAEMON, 4, spec("id -un", &["wait"]));
        assert_eq!(client.until_ended(), 0, "{host}: {}", client.notices);
        assert_eq!(client.out, "daemon\n".repeat(4));
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_name_service_that_never_answers_delays_no_other_user_and_no_end() {
    const LOGINS: usize = 3;
    let folder = std::env::temp_dir().join(format!("score-names-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    // Opening a FIFO blocks until the other end is opened.
    let passwd = folder.join("passwd");
    mkfifo(&passwd, Mode::S_IRWXU).unwrap();
    let Some(mut service) = Service::start_with_passwd(&passwd) else {
        return std::fs::remove_dir_all(folder).unwrap();
    };
    let list = |client: &mut Client| client.send(&[ConsoleRequest::List]);
    let mut bob = Client::log_in(&service.socket(), BOB);
    list(&mut bob);
    // This ends the look-up of bob's name without a result.
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&passwd);
    let opened_at = Instant::now();
    while open().is_err() {
        assert!(opened_at.elapsed() < TEST_TIMEOUT, "no process looks up the name");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bob.until_ended(), 0, "{}", bob.notices);
    let started_at = Instant::now();
    let mut waiting: Vec<Client> =
        (0..LOGINS).map(|_| Client::log_in(&service.socket(), ALICE)).collect();
    let keeper = service.keeper_pid();
    let children = || children_of(keeper);
    // The result for bob is cached. For alice, one look-up is in progress.
    for _ in 0..5 {
        let mut bob = Client::log_in(&service.socket(), BOB);
        list(&mut bob);
        assert_eq!(bob.until_ended(), 0, "{}", bob.notices);
    }
    // The look-up process for bob may not have been reaped yet.
    while children().split_whitespace().count() != 1 {
        assert!(started_at.elapsed() < HONEST_WAIT_TIMEOUT, "{}", children());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(started_at.elapsed() < HONEST_WAIT_TIMEOUT, "{:?}", started_at.elapsed());
    for client in &mut waiting {
        assert_eq!(client.until_ended(), 1, "{}", client.notices);
        assert!(client.notices.contains("did not answer within 10 s"), "{}", client.notices);
    }
    assert!(service.is_alive(), "{}", service.log());
    while !children().is_empty() {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "not reaped: {}", children());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The daemon can end while a look-up hangs.
    let _client = Client::log_in(&service.socket(), ALICE);
    while children().is_empty() {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "no look-up");
        std::thread::sleep(Duration::from_millis(10));
    }
    let stopped_at = Instant::now();
    drop(service);
    assert!(stopped_at.elapsed() < HONEST_WAIT_TIMEOUT, "{:?}", stopped_at.elapsed());
    std::fs::remove_dir_all(folder).unwrap();
}
