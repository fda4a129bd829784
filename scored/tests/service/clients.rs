//! A service with clients other than scrun: false claims, garbage, silent clients, and very many
//! clients at once. These tests need root, because multi-user mode needs root.

use std::fs::Permissions;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use crate::driver::TEST_TIMEOUT;
use crate::driver::service::{ALICE, Client, Sent, Service, forbid_realtime, hello, login, spec};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::JobId;
use score_proto::message::{ConsoleRequest, JobRequest, SingleUserRequest, UserRequest};

// Promise (several users): A claimed uid is compared with that of the socket; a client without
// login is refused.
#[test]
fn a_login_with_a_wrong_uid_is_refused_and_logged() {
    let Some(service) = Service::start(2) else { return };
    let mut wrong_uid = Client::connect(&service.socket());
    wrong_uid.send(&[hello(), login(12_345)]);
    assert_eq!(wrong_uid.until_ended(), 2);
    assert!(wrong_uid.notices.contains("differs from your uid 0"), "{}", wrong_uid.notices);
    service.until_logged("claimed to be uid 12345");
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
}

// Promise of `a_login_with_a_wrong_uid_is_refused_and_logged`.
#[test]
fn requests_before_login_are_refused() {
    let Some(service) = Service::start(2) else { return };
    let spec = || spec("echo no", &[]);
    for message in [
        Sent::from(SingleUserRequest::Submit(spec())),
        UserRequest::SubmitJob { allocation: AllocationRequest::FewestHosts(1), spec: spec() }
            .into(),
        ConsoleRequest::Kill(JobId(1)).into(),
        JobRequest::Kill.into(),
    ] {
        let mut client = Client::connect(&service.socket());
        client.send(&[hello(), message]);
        assert_eq!(client.until_ended(), 1, "{}", client.notices);
        assert!(client.notices.contains("log in first"), "{}", client.notices);
    }
}

// Promise (several users): Clients that send nothing, garbage, or single bytes are dropped and
// logged, within bounds of memory and log.
#[test]
fn clients_that_send_nothing_or_garbage_are_dropped_and_the_service_continues() {
    let Some(service) = Service::start(2) else { return };
    let memory_before = service.memory();
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(service.socket()).unwrap()).collect();
    for garbage in [&[0xff_u8; 4096][..], &[0; 64], &u32::MAX.to_le_bytes()] {
        let mut client = UnixStream::connect(service.socket()).unwrap();
        let _ = client.write_all(garbage);
    }
    // Connections to the daemons' port: silent, with single bytes and with garbage.
    let port = ("127.0.0.1", service.port);
    let silent_links: Vec<_> = (0..50).map(|_| TcpStream::connect(port).unwrap()).collect();
    let mut trickling: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(port).ok()).collect();
    for garbage in [&[0xff_u8; 65536][..], b"GET / HTTP/1.0\r\n\r\n", &[0; 1000]] {
        if let Ok(mut stream) = TcpStream::connect(port) {
            let _ = stream.write_all(garbage);
        }
    }
    let started_at = Instant::now();
    while started_at.elapsed() < Duration::from_secs(7) {
        for stream in &mut trickling {
            let _ = stream.write(b"s");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    service.until_logged("no login in time");
    service.until_logged("a connection to the daemons' port was dropped");
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    let lines = service.log().lines().count();
    assert!(lines < 200, "{lines} lines in the log");
    for mut link in silent_links {
        link.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let closed = std::io::copy(&mut link, &mut std::io::sink());
        let is_timeout = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!closed.is_err_and(is_timeout), "a silent connection stays open");
    }
    drop(silent);
}

#[test]
fn a_service_whose_page_has_no_port_runs_jobs_and_opens_the_page_later() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let Some(service) = Service::start_with(2, &["-page", &port]) else { return };
    service.until_logged("there is no page; scored tries again every 10 s");
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
    let mut client = Client::log_in(&service.socket(), 0);
    client.send(&[ConsoleRequest::Page]);
    assert_eq!(client.until_ended(), 2);
    assert!(client.notices.contains("the page is not open"), "{}", client.notices);
    drop(other);
    service.until_logged(&format!("page at http://127.0.0.1:{port}/"));
    let mut client = Client::log_in(&service.socket(), 0);
    client.send(&[ConsoleRequest::Page]);
    assert_eq!(client.until_ended(), 0, "{}", client.notices);
    assert!(client.page.unwrap().contains(&port));
}

#[test]
fn the_limit_of_processes_of_the_service_is_not_that_of_jobs() {
    // The soft limit is inherited by the keeper, but each job gets the limit of its user.
    let limit_processes = || {
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC)?;
        Ok(setrlimit(Resource::RLIMIT_NPROC, 1, hard)?)
    };
    let Some(service) = Service::start_prepared(2, limit_processes) else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    client.request(ALICE, 2, spec("echo ran", &[]));
    assert_eq!(client.until_ended(), 0, "{}", client.notices);
    assert_eq!(client.out, "ran\nran\n");
}

#[test]
fn a_service_without_realtime_priority_logs_this_once() {
    let Some(service) = Service::start_prepared(2, forbid_realtime) else { return };
    assert_eq!(service.log().matches("SCHED_RR is not permitted").count(), 1, "{}", service.log());
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
}

#[test]
fn the_number_of_clients_that_watch_a_job_is_limited() {
    const WATCHERS: usize = 16;
    let Some(service) = Service::start_with(2, &["-v"]) else { return };
    let mut owner = Client::submit(&service.socket(), 1, spec("echo up; sleep 1000", &[]));
    owner.until_noticed("up");
    let log = service.log();
    let job = log.split_once(": job ").and_then(|(_, rest)| rest.split_once(" of uid"));
    let job = JobId(job.unwrap().0.parse().unwrap());
    let watch = || {
        let mut client = Client::log_in(&service.socket(), 0);
        client.send(&[ConsoleRequest::SubscribeMetrics { job, period_ms: 60_000 }]);
        client
    };
    let is_refused = |client: &mut Client| {
        client.receive(Duration::from_millis(20));
        assert!(client.code.is_none_or(|code| code == 2), "{}", client.notices);
        client.code.is_some()
    };
    let mut watchers: Vec<Client> = (0..WATCHERS + 1).map(|_| watch()).collect();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let refused = loop {
        assert!(Instant::now() < deadline, "no client is refused");
        if let Some(refused) = watchers.iter_mut().position(is_refused) {
            break watchers.remove(refused);
        }
    };
    assert!(refused.notices.contains("is watched by 16 clients"), "{}", refused.notices);
    assert!(!watchers.iter_mut().any(is_refused), "{WATCHERS} clients may watch the job");
    // A client that has ended makes room for another one.
    watchers.pop();
    let has_room = || {
        let mut client = watch();
        (0..20).all(|_| !is_refused(&mut client))
    };
    while !has_room() {
        assert!(Instant::now() < deadline, "no room");
    }
    owner.send(&[JobRequest::Kill]);
    assert_eq!(owner.until_ended(), 137);
}

// Promise (several users): The log goes to standard error and, with `-syslog`, also to a receiver;
// daemons connect on the network of `-network`.
#[test]
fn the_log_is_also_sent_to_a_syslog_receiver() {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let address = receiver.local_addr().unwrap().to_string();
    let Some(service) = Service::start_with(1, &["-syslog", &address, "-restart"]) else {
        return;
    };
    let line = || {
        let mut packet = [0; 2048];
        let count = receiver.recv(&mut packet).unwrap();
        String::from_utf8_lossy(&packet[..count]).into_owned()
    };
    // The service reports the address of its page before it is ready.
    let (first, page, second) = (line(), line(), line());
    assert!(page.contains("page at http://127.0.0.1:"), "{page}");
    assert!(first.starts_with("<28>1 - ") && first.contains("checkpoint"), "{first}");
    assert!(second.starts_with("<30>1 - ") && second.contains("ready: server of 2"), "{second}");
    // The lines on standard error have no syslog header.
    service.until_logged("scored: ready: server of 2");
}

#[test]
fn only_operators_see_the_lengths_of_the_turns_of_the_loop() {
    let Some(service) = Service::start(2) else { return };
    let statistics_of = |uid| {
        let mut client = Client::log_in(&service.socket(), uid);
        client.send(&[ConsoleRequest::List]);
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
        client.statistics
    };
    let first = statistics_of(0).unwrap();
    assert!(first.turns > 0 && first.longest_turn_us > 0, "{first:?}");
    assert_eq!(first.longest_recent_turn_us, first.longest_turn_us);
    assert_eq!(statistics_of(ALICE), None);
    let second = statistics_of(0).unwrap();
    assert!(second.turns > first.turns, "{second:?} after {first:?}");
    assert!(second.longest_turn_us >= first.longest_turn_us, "{second:?} after {first:?}");
}

#[test]
fn systemd_is_notified_that_the_service_is_up_and_then_that_its_loop_runs() {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("score-notify-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    // systemd's socket also has this mode, because services that do not run as root write to it.
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let Some(mut service) = Service::start_with_variables(2, &variables) else { return };
    let message = || {
        let mut packet = [0; 1024];
        let count = socket.recv(&mut packet).unwrap();
        String::from_utf8_lossy(&packet[..count]).into_owned()
    };
    let (first, started_at) = (message(), Instant::now());
    assert_eq!(first, "READY=1\nSTATUS=server: 1 of 2 hosts up, jobs: 0");
    let mut job = Client::submit(&service.socket(), 1, spec("echo up; sleep 1000", &[]));
    job.until_noticed("up");
    let mut last = String::new();
    for _ in 0..10 {
        last = message();
        assert!(last.starts_with("WATCHDOG=1\nSTATUS=server: 1 of 2 hosts up, jobs: "), "{last}");
    }
    assert!(last.ends_with("jobs: 1"), "{last}");
    // The interval of the ten messages is 100 ms, so they take at least 900 ms.
    assert!(started_at.elapsed() > Duration::from_millis(900), "{:?}", started_at.elapsed());
    assert!(service.is_alive());
    std::fs::remove_file(path).unwrap();
}

// Promise (several users): 500 simultaneous logins are all served, within 32 MiB; the memory of
// 4,000 queued jobs is bounded, and none is lost.
#[test]
fn five_hundred_logins_at_once_are_all_served() {
    let Some(service) = Service::start(8) else { return };
    let memory_before = service.memory();
    let mut clients: Vec<Client> = (0..500)
        .map(|number| {
            let script = format!("echo {number}");
            Client::submit(&service.socket(), 1, spec(&script, &["wait"]))
        })
        .collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
        assert_eq!(client.out, format!("{number}\n"));
    }
    let grown = service.status("VmHWM:").saturating_sub(memory_before);
    assert!(grown < 32 * 1024, "{grown} KiB more at most");
}

#[test]
fn a_thousand_clients_that_connect_at_once_and_log_in_late_are_all_served() {
    let Some(service) = Service::start(1) else { return };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let mut clients: Vec<Client> = (0..1000).map(|_| Client::connect(&service.socket())).collect();
    // The delay represents a scrun that is interrupted between connecting and sending.
    std::thread::sleep(Duration::from_millis(500));
    for client in &mut clients {
        client.send(&[hello(), login(0), ConsoleRequest::List.into()]);
    }
    for client in &mut clients {
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
    }
}

// Promise of `five_hundred_logins_at_once_are_all_served`.
#[test]
fn four_thousand_queued_jobs_use_bounded_memory_and_no_job_is_lost() {
    const JOBS: usize = 4_000;
    /// The number of clients that log in at once. It is so low that the service drops no client to
    /// make room for others.
    const BATCH: usize = 500;
    let Some(service) = Service::start_with(1, &["-rows", "1"]) else { return };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if hard < JOBS as u64 + 200 {
        return eprintln!("SKIPPED 4,000 queued jobs: a process may have {hard} descriptors");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let memory_before = service.memory();
    let mut holder = Client::submit(&service.socket(), 1, spec("echo held; sleep 1000", &[]));
    holder.until_noticed("held");
    let mut clients: Vec<Client> = Vec::new();
    while clients.len() < JOBS {
        let submit = |_| Client::submit(&service.socket(), 1, spec("echo ran", &["wait"]));
        clients.extend((0..BATCH).map(submit));
        clients.last_mut().unwrap().until_noticed("is queued");
    }
    let last = clients.last_mut().unwrap();
    assert!(last.notices.contains(&format!("{} jobs ahead", JOBS - 1)), "{}", last.notices);
    let grown = service.memory().saturating_sub(memory_before) / JOBS as u64;
    assert!(grown < 32, "{grown} KiB a job");
    // The processor becomes free, and the first jobs run in their order.
    holder.send(&[JobRequest::Kill]);
    for client in &mut clients[..20] {
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
        assert_eq!(client.out, "ran\n");
    }
    // All other clients disconnect at once. The service then serves a new client.
    drop(clients);
    let mut next = Client::submit(&service.socket(), 1, spec("echo next", &["wait"]));
    assert_eq!((next.until_ended(), next.out.as_str()), (0, "next\n"));
}
