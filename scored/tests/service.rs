//! A scored that serves every user, with clients other than scrun: false claims, garbage, clients
//! that send nothing, and very many clients at once. All of it needs root, as multi-user mode does.

mod driver;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use driver::*;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use score_proto::PROTOCOL_VERSION;
use score_proto::allocation_request::AllocationRequest;
use score_proto::client_session::{self, SESSION_JOB, ServerMessageDecoder};
use score_proto::message::*;

static NEXT_TEST_ID: AtomicU32 = AtomicU32::new(0);

/// A service of one host, or of two of which the other never starts; ended when this value is
/// dropped.
struct Service {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl Service {
    /// Starts the service. None, with a message about the skip, if the test does not run as root.
    fn start(cores: u32) -> Option<Self> {
        Self::start_with(cores, &[])
    }

    fn start_with(cores: u32, extra_args: &[&str]) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED multi-user mode: it needs root");
            return None;
        }
        let number = NEXT_TEST_ID.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("score-service-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let db = format!(
            "here address=127.0.0.1 cores={cores}\nabsent address=127.0.0.9 cores=1 group=g\n"
        );
        std::fs::write(folder.join("db"), db).unwrap();
        let made = scored(&["-makekey"]).arg(folder.join("key")).status().unwrap();
        assert!(made.success());
        let reserved_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = reserved_port.local_addr().unwrap().port();
        drop(reserved_port);
        let child = scored(&["-host", "here", "-server", "here", "-port", &port.to_string()])
            .arg("-file")
            .arg(folder.join("db"))
            .arg("-key")
            .arg(folder.join("key"))
            .arg("-socket")
            .arg(folder.join("socket"))
            .args(extra_args)
            .stderr(std::fs::File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        let service = Self { child, folder, port };
        service.until_logged("ready");
        Some(service)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    fn until_logged(&self, what: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.log().contains(what) {
            assert!(Instant::now() < end, "{what} is not in the log: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Resident memory, KiB.
    fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    fn status(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn scored(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scored"));
    command.args(words).stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    command
}

/// A client of the service.
struct Client {
    socket: UnixStream,
    decoder: ServerMessageDecoder,
    out: String,
    notices: String,
    /// The exit code, once received.
    code: Option<u8>,
}

fn login(uid: u32) -> ClientMessage {
    let (name, cluster) = (bytes(""), String::new());
    ClientMessage::Login(Login { uid, name, cluster, limits: Vec::new() })
}

fn spec(script: &str, options: &[&str]) -> JobSpec {
    let options = options.iter().map(|name| ((*name).to_owned(), None)).collect();
    JobSpec { options, environment: vec![bytes("PATH=/bin:/usr/bin")], ..job(1, vec![sh(script)]) }
}

impl Client {
    fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        let (out, notices) = (String::new(), String::new());
        Self { socket, decoder: ServerMessageDecoder::default(), out, notices, code: None }
    }

    /// Logs in and submits a job of this many nodes.
    fn submit(path: &Path, nodes: u32, spec: JobSpec) -> Self {
        let mut client = Self::connect(path);
        let request =
            ClientMessage::Request { allocation: AllocationRequest::FewestHosts(nodes), spec };
        let uid = geteuid().as_raw();
        client.send(&[ClientMessage::Hello { version: PROTOCOL_VERSION }, login(uid), request]);
        client
    }

    fn send(&mut self, messages: &[ClientMessage]) {
        let mut out = Vec::new();
        for message in messages {
            let is_login_message =
                matches!(message, ClientMessage::Login(_) | ClientMessage::Console(_));
            let job = if is_login_message { SESSION_JOB } else { 1 };
            client_session::encode(job, message, &mut out).unwrap();
        }
        self.socket.write_all(&out).unwrap();
    }

    /// Reads the messages of this time; false if the other side has closed.
    fn receive(&mut self, timeout: Duration) -> bool {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let mut chunk = [0; 8192];
        match self.socket.read(&mut chunk) {
            Ok(0) => return false,
            Ok(count) => self.decoder.push(&chunk[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {}
            Err(_) => return false,
        }
        while let Some(frame) = self.decoder.next().unwrap() {
            match frame.message {
                ServerMessage::Output { bytes, .. } => self.out += &String::from_utf8_lossy(&bytes),
                ServerMessage::Notice { text, .. } => self.notices += &format!("{text}\n"),
                ServerMessage::Refused { reason, code } => {
                    self.notices += &format!("{reason}\n");
                    self.code = Some(code);
                }
                ServerMessage::Finished(end) => self.code = Some(end.code),
                _ => {}
            }
        }
        true
    }

    fn until_ended(&mut self) -> u8 {
        let end = Instant::now() + TEST_TIMEOUT;
        while self.code.is_none() {
            assert!(Instant::now() < end, "no end: {}", self.notices);
            if !self.receive(Duration::from_millis(50)) {
                break;
            }
        }
        self.code.unwrap_or_else(|| panic!("closed without a final message: {}", self.notices))
    }

    fn until_noticed(&mut self, what: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.notices.contains(what) && !self.out.contains(what) {
            assert!(Instant::now() < end, "no {what}: {}", self.notices);
            assert!(self.receive(Duration::from_millis(50)), "closed: {}", self.notices);
        }
    }
}

#[test]
fn a_login_with_a_wrong_uid_is_refused_and_logged() {
    let Some(service) = Service::start(2) else { return };
    let mut wrong_uid = Client::connect(&service.socket());
    wrong_uid.send(&[ClientMessage::Hello { version: PROTOCOL_VERSION }, login(12_345)]);
    assert_eq!(wrong_uid.until_ended(), 2);
    assert!(wrong_uid.notices.contains("differs from your uid 0"), "{}", wrong_uid.notices);
    service.until_logged("claimed to be uid 12345");
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
}

#[test]
fn requests_before_login_are_refused() {
    let Some(service) = Service::start(2) else { return };
    let hello = ClientMessage::Hello { version: PROTOCOL_VERSION };
    let spec = || spec("echo no", &[]);
    for message in [
        ClientMessage::Submit(spec()),
        ClientMessage::Request { allocation: AllocationRequest::FewestHosts(1), spec: spec() },
        ClientMessage::Console(ConsoleRequest::Kill(1)),
    ] {
        let mut client = Client::connect(&service.socket());
        client.send(&[hello.clone(), message]);
        assert_eq!(client.until_ended(), 2);
        assert!(client.notices.contains("log in first"), "{}", client.notices);
    }
}

#[test]
fn clients_that_send_nothing_or_garbage_are_dropped_and_the_service_continues() {
    let Some(service) = Service::start(2) else { return };
    let memory_before = service.memory();
    let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(service.socket()).unwrap()).collect();
    for garbage in [&[0xff_u8; 4096][..], &[0; 64], &u32::MAX.to_le_bytes()] {
        let mut client = UnixStream::connect(service.socket()).unwrap();
        let _ = client.write_all(garbage);
    }
    // On the daemons' port: nothing, garbage, a length that is too long, byte by byte.
    let port = ("127.0.0.1", service.port);
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
    service.until_logged("no login before the time-out");
    service.until_logged("a connection to the daemons' port was dropped");
    let mut client = Client::submit(&service.socket(), 1, spec("echo served", &[]));
    assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"));
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    let lines = service.log().lines().count();
    assert!(lines < 200, "{lines} lines in the log");
    drop(silent);
}

#[test]
fn the_log_goes_to_a_syslog_receiver_too() {
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
    // It reports the address of its page before it is ready.
    let (first, page, second) = (line(), line(), line());
    assert!(page.contains("page at http://127.0.0.1:"), "{page}");
    assert!(first.starts_with("<28>1 - ") && first.contains("checkpoint"), "{first}");
    assert!(second.starts_with("<30>1 - ") && second.contains("ready: server of 2"), "{second}");
    // The output on standard error does not change.
    service.until_logged("scored: ready: server of 2");
}

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
fn ten_thousand_queued_jobs_are_kept_within_bounds_and_none_is_lost() {
    const JOBS: usize = 10_000;
    let Some(service) = Service::start_with(1, &["-rows", "1"]) else { return };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if hard < JOBS as u64 + 200 {
        return eprintln!("SKIPPED 10,000 queued jobs: a process may have {hard} descriptors");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let memory_before = service.memory();
    let mut holder = Client::submit(&service.socket(), 1, spec("echo held; sleep 1000", &[]));
    holder.until_noticed("held");
    let mut clients: Vec<Client> = (0..JOBS)
        .map(|_| Client::submit(&service.socket(), 1, spec("echo ran", &["wait"])))
        .collect();
    let last = clients.last_mut().unwrap();
    last.until_noticed("waits for room");
    assert!(last.notices.contains(&format!("{} go before it", JOBS - 1)), "{}", last.notices);
    let grown = service.memory().saturating_sub(memory_before) / JOBS as u64;
    assert!(grown < 32, "{grown} KiB a job");
    // Free slots: the first jobs run, in their order.
    holder.send(&[ClientMessage::Kill]);
    for client in &mut clients[..20] {
        assert_eq!(client.until_ended(), 0, "{}", client.notices);
        assert_eq!(client.out, "ran\n");
    }
    // All other clients disconnect at once, and the service is free again.
    drop(clients);
    let mut next = Client::submit(&service.socket(), 1, spec("echo next", &["wait"]));
    assert_eq!((next.until_ended(), next.out.as_str()), (0, "next\n"));
}
