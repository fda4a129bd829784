//! Attacks on a service of two hosts by one of its users, who speaks the protocol without scrun.
//! Each test is one attack: it gains nothing, and other users do not notice it. docs/security.md
//! lists what a user may do.

mod driver;

use std::fs::File;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use driver::service::{
    ALICE, BOB, Client, Service, encode, hello, login, login_named, run_as, spec,
};
use driver::{TEST_TIMEOUT, bytes, sh};
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::ptrace;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use score_proto::message::{
    ClientMessage, ConsoleRequest, ElementSpec, FileDigest, HostKind, HostSpec, JobSpec,
    MAX_IO_CHUNK, StageSpec,
};

/// A host of a job, as single-user mode names it.
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
            client.send(&[ClientMessage::Submit(spec(name))]);
            assert_eq!(client.until_ended(), 2, "{}", client.notices);
            assert!(client.notices.contains("multi-user mode"), "{}", client.notices);
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
                let greeting = (!logged_in).then(driver::service::hello);
                let open = ClientMessage::OpenScoutSession(hosts.clone());
                let messages: Vec<_> = greeting.into_iter().chain([open]).collect();
                client.send(&messages);
                assert_eq!(client.until_ended(), 2, "{}", client.notices);
                client.until_closed();
            }
        }
    }
    assert_eq!(namespace(service.pid()), before);
    let children = format!("/proc/{0}/task/{0}/children", service.pid());
    // A process that has looked up the name of a user may be ending.
    let end = Instant::now() + TEST_TIMEOUT;
    while !std::fs::read_to_string(&children).unwrap().is_empty() {
        assert!(Instant::now() < end, "the server has started a process");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(service.is_alive(), "{}", service.log());
    service.serves(BOB);
}

/// The longest time that a request of another user takes while `attack` runs on threads of its own.
fn longest_wait(service: &Service, attack: impl FnOnce() + Send) -> Duration {
    std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        let mut longest = Duration::ZERO;
        loop {
            let ended = attack.is_finished();
            for host in ["hosta", "hostb"] {
                let asked_at = Instant::now();
                let mut client = Client::log_in(&service.socket_of(host), BOB);
                client.send(&[ClientMessage::Console(ConsoleRequest::List)]);
                assert_eq!(client.until_ended(), 0, "{host}: {}", client.notices);
                longest = longest.max(asked_at.elapsed());
            }
            if ended {
                attack.join().unwrap();
                return longest;
            }
        }
    })
}

/// What an honest request may take beside an attack. The attacks made it take 8 to 25 s.
const HONEST_WAIT_TIMEOUT: Duration = Duration::from_secs(3);

#[test]
fn a_process_traced_from_outside_does_not_hold_the_daemon_when_the_shepherd_is_killed() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    // A number of seconds that no other process has.
    let command = format!("sleep 9{}", std::process::id());
    client.request(ALICE, 1, spec(&format!("echo up; {command}"), &[]));
    client.until_noticed("up");
    let sleeper = wait_for_process(&command);
    let shepherd = shepherd_of(sleeper);
    let wait = longest_wait(&service, || {
        // A thread that becomes alice traces the process, kills the shepherd and stays for a while.
        run_as(ALICE, || {
            ptrace::seize(sleeper, ptrace::Options::empty()).unwrap();
            kill(shepherd, Signal::SIGKILL).unwrap();
            std::thread::sleep(Duration::from_secs(6));
        });
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    // The tracer is gone, and so is the rest of the job.
    assert_ne!(client.until_ended(), 0);
    assert_eq!(process_of(&command), None);
    assert!(service.is_alive());
    service.serves(BOB);
}

fn wait_for_process(command: &str) -> Pid {
    let started_at = Instant::now();
    loop {
        match process_of(command) {
            Some(pid) => return pid,
            None => assert!(started_at.elapsed() < TEST_TIMEOUT, "no process {command}"),
        }
    }
}

/// The shepherd that has started a process.
fn shepherd_of(process: Pid) -> Pid {
    let mut pid = process;
    while status_field(pid, "Name:").as_deref() != Some("scored-shepherd") {
        let parent = status_field(pid, "PPid:").and_then(|pid| pid.parse().ok());
        pid = Pid::from_raw(parent.expect("a shepherd above the process"));
    }
    pid
}

/// The process with this command line.
fn process_of(command: &str) -> Option<Pid> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let found = pids.find(|pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.strip_suffix(&[0]).unwrap_or_default().split(|byte| *byte == 0);
        words.eq(command.split(' ').map(str::as_bytes))
    });
    found.map(Pid::from_raw)
}

fn status_field(pid: Pid, key: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().to_owned())
}

#[test]
fn a_job_of_very_many_programs_is_refused_at_once() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let travelling = |index: usize| ElementSpec {
        path: bytes(&format!("/{index}")),
        digest: Some(FileDigest { hash: [1; 32], size: 1 }),
        ..sh("true")
    };
    let stages = |count: usize, per_stage: usize| -> Vec<StageSpec> {
        let stage =
            |stage| (0..per_stage).map(|index| travelling(stage * per_stage + index)).collect();
        (0..count).map(|index| StageSpec { elements: stage(index) }).collect()
    };
    let wait = longest_wait(&service, || {
        for (stages, limit) in [(stages(18_000, 1), "1024"), (stages(1, 100), "64")] {
            let mut client = Client::connect_as(&service.socket_of("hosta"), ALICE);
            client.request(ALICE, 2, JobSpec { stages, ..spec("true", &[]) });
            assert_eq!(client.until_ended(), 2, "{}", client.notices);
            assert!(client.notices.contains(limit), "{}", client.notices);
        }
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_flood_of_messages_waits_and_loses_no_host() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut victim = Client::connect_as(&service.socket_of("hosta"), BOB);
    victim.request(BOB, 4, spec("echo up; sleep 1000", &[]));
    victim.until_noticed("up");
    let memory_before = service.memory();
    let flood = encode(&[ClientMessage::OutputAck(1)]).repeat(1 << 14);
    let wait = longest_wait(&service, || {
        let flood_once = || {
            let mut client = Client::log_in(&service.socket_of("hosta"), ALICE);
            client.socket.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            let end = Instant::now() + Duration::from_secs(6);
            while Instant::now() < end {
                let _ = client.socket.write(&flood);
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(flood_once)));
        });
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert!(
        !victim.receive(Duration::from_millis(50)) || victim.code.is_none(),
        "{}",
        victim.notices
    );
    assert_eq!(victim.code, None, "{}", victim.notices);
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    victim.send(&[ClientMessage::Kill]);
    assert_ne!(victim.until_ended(), 0);
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_flood_of_messages_to_all_hosts_of_a_job_loses_no_host() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut victim = Client::connect_as(&service.socket_of("hosta"), BOB);
    victim.request(BOB, 4, spec("echo up; sleep 1000", &[]));
    victim.until_noticed("up");
    let memory_before = service.memory();
    let wait = longest_wait(&service, || {
        for host in ["hosta", "hostb"] {
            let mut client = Client::connect_as(&service.socket_of(host), ALICE);
            client.request(ALICE, 4, spec("trap '' USR1; echo up; sleep 1000", &[]));
            client.until_noticed("up");
            let flood = encode(&[ClientMessage::Signal(libc::SIGUSR1)]).repeat(1 << 14);
            client.socket.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                let _ = client.socket.write(&flood);
            }
            // The client is killed: nobody waits until its messages have been handled.
            drop(client);
        }
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    let mut operator = Client::log_in(&service.socket(), ALICE);
    operator.send(&[ClientMessage::Console(ConsoleRequest::List)]);
    assert_eq!(operator.until_ended(), 0);
    assert_eq!(victim.code, None, "{}", victim.notices);
    victim.send(&[ClientMessage::Kill]);
    assert_ne!(victim.until_ended(), 0);
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_job_whose_shepherd_is_stopped_ends_when_its_flooding_client_is_killed() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 6{}", std::process::id());
    let job = JobSpec { reads_stdin: true, ..spec(&format!("echo up; {command}"), &[]) };
    client.request(ALICE, 1, job);
    client.until_noticed("up");
    let shepherd = shepherd_of(wait_for_process(&command));
    run_as(ALICE, || kill(shepherd, Signal::SIGSTOP).unwrap());
    let memory_before = service.memory();
    let flood = encode(&[ClientMessage::Stdin(vec![0; MAX_IO_CHUNK])]).repeat(16);
    client.socket.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let _ = client.socket.write(&flood);
    }
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    drop(client);
    let killed_at = Instant::now();
    while process_of(&command).is_some() {
        assert!(killed_at.elapsed() < TEST_TIMEOUT, "the job does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(service.is_alive());
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
        client.send(&[ClientMessage::Console(ConsoleRequest::Kill(1))]);
        let _ = client.until_ended();
    }
    let lines = service.log().lines().count() - lines_before;
    assert!(lines < 60, "{lines} lines: {}", service.log());
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn the_files_of_a_killed_shepherd_are_removed_with_the_users_rights_while_others_are_served() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    // A tree of alice's in which a folder is root's: alice may move the tree, and not empty it.
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

/// Environment variable for [`role`]: the socket of the service.
const SOCKET_ENV: &str = "SCORE_TEST_SOCKET";

/// Not a test of its own: a process of alice with limits of its own, which claims none.
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
fn a_client_that_claims_no_limits_has_those_of_its_process() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(SOCKET_ENV, service.socket_of(host))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Blocks of 512 bytes and KiB.
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
    // Other jobs of alice may run: their keyrings are listed, too.
    let are_alices = owners.iter().all(|owner| *owner == ALICE.to_string());
    assert!(are_alices && !owners.is_empty(), "{}", client.out);
}

#[test]
fn a_traced_process_does_not_keep_the_daemons_from_stopping() {
    let Some(service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 7{}", std::process::id());
    client.request(ALICE, 1, spec(&format!("echo up; {command}"), &[]));
    client.until_noticed("up");
    let sleeper = wait_for_process(&command);
    let (is_traced, wait_until_traced) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        run_as(ALICE, || {
            ptrace::seize(sleeper, ptrace::Options::empty()).unwrap();
            is_traced.send(()).unwrap();
            std::thread::sleep(Duration::from_secs(10));
        });
    });
    wait_until_traced.recv().unwrap();
    let stopped_at = Instant::now();
    drop(service);
    let wait = stopped_at.elapsed();
    assert!(wait < Duration::from_secs(6), "the daemons took {wait:?} to stop");
    tracer.join().unwrap();
}

/// A program of zeroes, and the answer to requests for its bytes.
fn send_zeroes(client: &mut Client) -> u64 {
    let mut sent_bytes = 0;
    for (hash, offset, length) in std::mem::take(&mut client.file_requests) {
        for start in (0..length).step_by(MAX_IO_CHUNK) {
            let count = (length - start).min(MAX_IO_CHUNK as u64);
            let bytes = vec![0; count as usize];
            client.send(&[ClientMessage::FileChunk { hash, offset: offset + start, bytes }]);
            sent_bytes += count;
        }
    }
    sent_bytes
}

#[test]
fn a_large_program_is_written_by_its_user_within_the_limits_of_the_job() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let memory_before = service.memory();
    let element = ElementSpec {
        path: bytes("/large"),
        digest: Some(FileDigest { hash: [1; 32], size: 1 << 30 }),
        ..sh("true")
    };
    let stages = vec![StageSpec { elements: vec![element] }];
    let limited = |name: &str, mib: &str| JobSpec {
        options: vec![(name.to_owned(), Some(mib.to_owned()))],
        stages: stages.clone(),
        ..spec("true", &[])
    };
    let wait = longest_wait(&service, || {
        let mut client = Client::connect_as(&service.socket_of("hosta"), ALICE);
        client.request(ALICE, 1, limited("memorylimit", "16"));
        let mut sent_bytes = 0;
        while sent_bytes < 64 << 20 {
            assert!(client.receive(Duration::from_millis(50)), "{}", client.notices);
            sent_bytes += send_zeroes(&mut client);
        }
        // What nobody has requested is dropped.
        let mut flooder = Client::connect_as(&service.socket(), ALICE);
        flooder.request(ALICE, 1, limited("memorylimit", "16"));
        for offset in 0..2000 {
            let bytes = vec![0; MAX_IO_CHUNK];
            flooder.send(&[ClientMessage::FileChunk { hash: [2; 32], offset, bytes }]);
        }
        let grown = service.memory().saturating_sub(memory_before);
        assert!(grown < 24 * 1024, "{grown} KiB more");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", service.pid())).unwrap();
        let names = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let names: Vec<_> = names.filter(|name| name.to_string_lossy().contains("memfd")).collect();
        assert_eq!(names, Vec::<PathBuf>::new());
        client.send(&[ClientMessage::Kill]);
        client.until_ended();
        let mut client = Client::connect_as(&service.socket(), ALICE);
        client.request(ALICE, 1, limited("disklimit", "4"));
        while client.code.is_none() {
            assert!(client.receive(Duration::from_millis(50)), "{}", client.notices);
            send_zeroes(&mut client);
        }
        assert_ne!(client.code, Some(0));
        assert!(client.notices.contains("disklimit"), "{}", client.notices);
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
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
    let long = ClientMessage::Stdin(vec![0; 1_000_000]);
    let long = encode(&[hello(), long]);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client::connect_as(&service.socket(), ALICE)).collect();
    for client in &mut clients {
        client.socket.set_nonblocking(true).unwrap();
        let start = Instant::now();
        let mut sent = 0;
        // All but the last byte.
        while sent < long.len() - 1 && start.elapsed() < Duration::from_millis(20) {
            match client.socket.write(&long[sent..long.len() - 1]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // The connection is closed.
                Err(_) => break,
            }
        }
        client.socket.set_nonblocking(false).unwrap();
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
fn the_name_of_a_user_is_looked_up_and_not_believed() {
    /// The user of this uid is called `daemon` on every system.
    const DAEMON: u32 = 1;
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let log_in = |uid, name: &str| {
            let mut client = Client::connect_as(&service.socket_of(host), uid);
            let console = ClientMessage::Console(ConsoleRequest::List);
            client.send(&[hello(), login_named(uid, name), console]);
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
        // A job of a user with a name, who claims none: the shepherds compare the real name.
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
    // Whoever opens a FIFO waits for the other end.
    let passwd = folder.join("passwd");
    mkfifo(&passwd, Mode::S_IRWXU).unwrap();
    let Some(mut service) = Service::start_with_passwd(&passwd) else {
        return std::fs::remove_dir_all(folder).unwrap();
    };
    let list = |client: &mut Client| client.send(&[ClientMessage::Console(ConsoleRequest::List)]);
    let mut bob = Client::log_in(&service.socket(), BOB);
    list(&mut bob);
    // The look-up of bob's name ends: it finds none.
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&passwd);
    let opened_at = Instant::now();
    while open().is_err() {
        assert!(opened_at.elapsed() < TEST_TIMEOUT, "nobody looks the name up");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bob.until_ended(), 0, "{}", bob.notices);
    let started_at = Instant::now();
    let mut waiting: Vec<Client> =
        (0..LOGINS).map(|_| Client::log_in(&service.socket(), ALICE)).collect();
    let children = format!("/proc/{0}/task/{0}/children", service.pid());
    let children = || std::fs::read_to_string(&children).unwrap();
    // The answer about bob is known. That about alice is not, and one process asks for it.
    for _ in 0..5 {
        let mut bob = Client::log_in(&service.socket(), BOB);
        list(&mut bob);
        assert_eq!(bob.until_ended(), 0, "{}", bob.notices);
    }
    // That of bob may not have been reaped at once.
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
    // The daemon ends while a look-up hangs.
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

/// Processor time of a process, in ticks.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Sends a signal to a process, as its user, again and again for some time.
fn signal_repeatedly(user: u32, pid: Pid, signal: Signal, duration: Duration) {
    run_as(user, || {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let _ = kill(pid, signal);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_user_who_stops_the_own_shepherd_keeps_no_processors_in_time_sharing() {
    const PHASE_WINDOW: Duration = Duration::from_secs(4);
    let Some(mut service) = Service::start_with(1, &["-ts", "100"]) else { return };
    let mut clients = Vec::new();
    // Numbers that no other process has.
    let [attacker, honest] = [(ALICE, 3), (BOB, 4)].map(|(user, digit)| {
        let command = format!("yes {digit}{}", std::process::id());
        let mut client = Client::connect_as(&service.socket(), user);
        client.request(user, 1, spec(&format!("echo up; exec {command} > /dev/null"), &[]));
        client.until_noticed("up");
        clients.push(client);
        wait_for_process(&command)
    });
    let ticks_in = |phase: &dyn Fn()| {
        let before = ticks(honest);
        phase();
        ticks(honest) - before
    };
    let beside_honest = ticks_in(&|| std::thread::sleep(PHASE_WINDOW));
    let shepherd = shepherd_of(attacker);
    let beside_attacker =
        ticks_in(&|| signal_repeatedly(ALICE, shepherd, Signal::SIGSTOP, PHASE_WINDOW));
    println!(
        "ticks in {PHASE_WINDOW:?}: {beside_attacker} beside an attacker, else {beside_honest}"
    );
    assert!(beside_attacker * 4 >= beside_honest, "{beside_attacker} of {beside_honest} ticks");
    // The attacker's job has survived, and ends when it is killed.
    for client in &mut clients {
        assert_eq!(client.code, None, "{}", client.notices);
        client.send(&[ClientMessage::Kill]);
        assert_eq!(client.until_ended(), 137, "{}", client.notices);
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

/// Where the rest of a job's directory is after the job.
fn leftover_of(directory: &Path) -> PathBuf {
    Path::new("/var/scored/leftovers").join(directory.file_name().unwrap())
}

/// Creates files in a directory until `end`, and returns their number.
fn create_files(directory: &File, end: Instant) -> u32 {
    let mut count = 0;
    while Instant::now() < end {
        let name = format!("{:?}-{count}", std::thread::current().id());
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(directory, name.as_str(), flags, Mode::S_IRWXU) {
            Ok(_) => count += 1,
            Err(error) => panic!("alice cannot go on writing: {error}"),
        }
    }
    count
}

#[test]
fn a_directory_in_which_its_user_goes_on_writing_is_removed_when_the_user_stops() {
    let interval = [("SCORE_TEST_SWEEP_MS", "300")];
    let Some(mut service) = Service::start_two_hosts_with_variables(&interval) else { return };
    let command = format!("sleep 6{}", std::process::id());
    let mut client = Client::connect_as(&service.socket(), ALICE);
    client.request(ALICE, 1, spec(&format!("pwd && echo up && {command}"), &[]));
    client.until_noticed("up");
    let path = PathBuf::from(client.out.lines().next().unwrap());
    let shepherd = shepherd_of(wait_for_process(&command));
    // A tree that alice may move, on the same file system, and not remove: while it is in the job's
    // directory, that cannot be removed.
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
