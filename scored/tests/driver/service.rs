//! A service of one or two hosts, and a client that can log in as any user. The client has its own
//! implementation of the protocol. Tests that use this module need root.
#![allow(dead_code, reason = "each test file uses a part")]
// UNSAFETY: glibc's calls change the ids of all threads; this needs those of one thread. Closures
// run between fork and exec.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use score_client::{Connection, ConnectionError, Readiness, Received, wait_until_ready};
use score_proto::allocation_request::AllocationRequest;
use score_proto::client_session::{self, JobMessage, SESSION_JOB};
use score_proto::daemon_statistics::DaemonStatistics;
use score_proto::ids::SessionJobId;
use score_proto::message::*;
use score_proto::server_message::{
    ConsoleAnswer, ConversationAnswer, JobAnswer, ListAnswer, ServerMessage,
};

use super::{TEST_TIMEOUT, bytes, job, sh};

/// Two users. The system need not have names for them.
pub const ALICE: u32 = 61_001;
pub const BOB: u32 = 61_002;

/// The system user of the daemons. It needs no name.
pub const DAEMON_UID: u32 = 61_990;

static NEXT_TEST_ID: AtomicU32 = AtomicU32::new(0);

/// The parameters for starting the daemons of a service.
#[derive(Clone, Copy, Default)]
struct DaemonSetup<'a> {
    extra_args: &'a [&'a str],
    variables: &'a [(&'a str, &'a str)],
    passwd: Option<&'a Path>,
    /// Runs between fork and exec. Must only make system calls.
    prepare: Option<fn() -> io::Result<()>>,
}

/// A service. Its daemons are ended when this value is dropped.
pub struct Service {
    daemons: Vec<(String, Child)>,
    folder: PathBuf,
    pub port: u16,
}

impl Service {
    /// Starts a service of one host. Its database contains a second host that is never started.
    /// Returns `None` and prints that the test is skipped if the test does not run as root.
    pub fn start(cores: u32) -> Option<Self> {
        Self::start_with(cores, &[])
    }

    pub fn start_with(cores: u32, extra_args: &[&str]) -> Option<Self> {
        Self::start_one_host(cores, DaemonSetup { extra_args, ..DaemonSetup::default() })
    }

    /// Starts a service of one host. For the daemon of the service, this file replaces /etc/passwd.
    pub fn start_with_passwd(passwd: &Path) -> Option<Self> {
        let setup = DaemonSetup { passwd: Some(passwd), ..DaemonSetup::default() };
        Self::start_one_host(1, setup)
    }

    /// Starts a service of one host. Its daemon has these environment variables.
    pub fn start_with_variables(cores: u32, variables: &[(&str, &str)]) -> Option<Self> {
        Self::start_one_host(cores, DaemonSetup { variables, ..DaemonSetup::default() })
    }

    /// Starts a service of one host. `prepare` runs in the process of its daemon between fork and
    /// exec, and must only make system calls.
    pub fn start_prepared(cores: u32, prepare: fn() -> io::Result<()>) -> Option<Self> {
        Self::start_one_host(cores, DaemonSetup { prepare: Some(prepare), ..Default::default() })
    }

    fn start_one_host(cores: u32, setup: DaemonSetup<'_>) -> Option<Self> {
        let database = format!(
            "here address=127.0.0.1 cores={cores}\nabsent address=127.0.0.9 cores=1 group=g\n"
        );
        Self::start_hosts(&database, &["here"], setup)
    }

    /// Starts a service of two hosts with two processors each: `hosta`, and the server `hostb`.
    pub fn start_two_hosts() -> Option<Self> {
        Self::start_two_hosts_with_variables(&[])
    }

    pub fn start_two_hosts_with_variables(variables: &[(&str, &str)]) -> Option<Self> {
        let database = "hosta address=127.0.0.1 cores=2\nhostb address=127.0.0.2 cores=2\n";
        let setup = DaemonSetup { variables, ..DaemonSetup::default() };
        let service = Self::start_hosts(database, &["hosta", "hostb"], setup)?;
        service.until_logged("host hosta is up");
        Some(service)
    }

    /// Starts a service of these hosts. The last host is the server.
    fn start_hosts(database: &str, hosts: &[&str], setup: DaemonSetup<'_>) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED multi-user mode: it needs root");
            return None;
        }
        let number = NEXT_TEST_ID.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("score-service-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("db"), database).unwrap();
        let made = scored(&["-makekey"]).arg(folder.join("key")).status().unwrap();
        assert!(made.success());
        let reserved_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = reserved_port.local_addr().unwrap().port();
        drop(reserved_port);
        let mut service = Self { daemons: Vec::new(), folder, port };
        let server = hosts.last().unwrap();
        for host in hosts {
            let folder = &service.folder;
            let log = std::fs::File::create(folder.join(format!("log-{host}"))).unwrap();
            let port = port.to_string();
            let user = DAEMON_UID.to_string();
            let words = ["-host", host, "-server", server, "-port", &port, "-user", &user];
            let mut command = scored(&words);
            setup.passwd.into_iter().for_each(|passwd| replace_passwd(&mut command, passwd));
            if let Some(prepare) = setup.prepare {
                // SAFETY: the function only makes system calls, as the test promises.
                unsafe { command.pre_exec(prepare) };
            }
            let child = command
                .arg("-file")
                .arg(folder.join("db"))
                .arg("-key")
                .arg(folder.join("key"))
                .arg("-socket")
                .arg(folder.join(format!("socket-{host}")))
                .args(setup.extra_args)
                .envs(setup.variables.iter().copied())
                .stderr(log)
                .spawn()
                .unwrap();
            service.daemons.push(((*host).to_owned(), child));
            service.until_logged_on(host, "ready");
        }
        Some(service)
    }

    fn server(&self) -> &(String, Child) {
        self.daemons.last().unwrap()
    }

    /// The log of the server.
    pub fn log(&self) -> String {
        self.log_of(&self.server().0)
    }

    pub fn log_of(&self, host: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("log-{host}"))).unwrap()
    }

    pub fn until_logged(&self, what: &str) {
        self.until_logged_on(&self.server().0, what);
    }

    fn until_logged_on(&self, host: &str, what: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.log_of(host).contains(what) {
            assert!(Instant::now() < end, "{what} is not in the log: {}", self.log_of(host));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.socket_of(&self.server().0)
    }

    pub fn socket_of(&self, host: &str) -> PathBuf {
        self.folder.join(format!("socket-{host}"))
    }

    /// The path of a file in the directory of the service.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.server().1.id()
    }

    /// The process id of the server's keeper, which is the only child of the daemon.
    pub fn keeper_pid(&self) -> u32 {
        let pid = self.pid();
        children_of(pid).trim().parse().unwrap()
    }

    /// Whether all daemons run.
    pub fn is_alive(&mut self) -> bool {
        self.daemons.iter_mut().all(|(_, child)| child.try_wait().unwrap().is_none())
    }

    /// The resident memory of the server in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The resident memory of a host's daemon in KiB.
    pub fn memory_of(&self, host: &str) -> u64 {
        let (_, child) = self.daemons.iter().find(|(name, _)| name == host).unwrap();
        status_of(child.id(), "VmRSS:")
    }

    pub fn status(&self, what: &str) -> u64 {
        status_of(self.pid(), what)
    }

    /// Runs a job of this user on each host. The job shows that an attack by another user has not
    /// affected this user.
    pub fn serves(&self, uid: u32) {
        for (host, _) in &self.daemons {
            let mut client = Client::connect_as(&self.socket_of(host), uid);
            client.request(uid, 1, spec("echo served", &["wait"]));
            assert_eq!((client.until_ended(), client.out.as_str()), (0, "served\n"), "{host}");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            // A test may have ended the daemon already.
            if matches!(child.try_wait(), Ok(None)) {
                let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            }
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The process ids of a process's children, separated by blanks.
pub fn children_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

fn status_of(pid: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn scored(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scored"));
    command.args(words).stdin(Stdio::null()).env_remove("JOURNAL_STREAM");
    command
}

/// Makes the kernel refuse realtime priority to the program that this process executes.
pub fn forbid_realtime() -> io::Result<()> {
    const CAP_SYS_NICE: libc::c_ulong = 23;
    // SAFETY: plain prctl with integer arguments.
    if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(setrlimit(Resource::RLIMIT_RTPRIO, 0, 0)?)
}

/// Mounts a file over /etc/passwd for the started program only.
fn replace_passwd(command: &mut Command, passwd: &Path) {
    let passwd = passwd.to_owned();
    let mount_passwd = move || {
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        Ok(mount(Some(&passwd), "/etc/passwd", none, MsFlags::MS_BIND, none)?)
    };
    // SAFETY: the closure only makes system calls with paths that exist already; it takes no lock.
    unsafe { command.pre_exec(mount_passwd) };
}

/// A client of the service.
pub struct Client {
    pub connection: Connection,
    pub out: String,
    pub notices: String,
    /// The parts of programs that the hosts of the job have requested: hash, offset and length.
    pub file_requests: Vec<(ContentHash, u64, u64)>,
    pub statistics: Option<DaemonStatistics>,
    /// The address of the user's page.
    pub page: Option<String>,
    /// The exit code, once it has been received.
    pub code: Option<u8>,
}

/// An answer to a client that sends requests to jobs and console requests.
enum UserAnswer {
    Console(ConsoleAnswer),
    Job(JobAnswer),
}

impl ConversationAnswer for UserAnswer {
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Console(answer) => Some(Self::Console(answer)),
            ServerMessage::Job(JobMessage { message, .. }) => Some(Self::Job(message)),
            _ => None,
        }
    }
}

/// A message that a client may send, even if its session's state does not permit it.
#[derive(Clone)]
pub enum Sent {
    Hello,
    Login(Login),
    User(UserRequest),
    SingleUser(SingleUserRequest),
}

impl From<UserRequest> for Sent {
    fn from(request: UserRequest) -> Self {
        Sent::User(request)
    }
}

impl From<ConsoleRequest> for Sent {
    fn from(request: ConsoleRequest) -> Self {
        Sent::User(UserRequest::Console(request))
    }
}

impl From<JobRequest> for Sent {
    fn from(request: JobRequest) -> Self {
        Sent::User(UserRequest::Job(request))
    }
}

impl From<SingleUserRequest> for Sent {
    fn from(request: SingleUserRequest) -> Self {
        Sent::SingleUser(request)
    }
}

pub fn hello() -> Sent {
    Sent::Hello
}

pub fn login(uid: u32) -> Sent {
    login_named(uid, "")
}

/// A login that claims this name.
pub fn login_named(uid: u32, name: &str) -> Sent {
    let (name, cluster) = (bytes(name), String::new());
    Sent::Login(Login { uid, name, cluster })
}

pub fn spec(script: &str, options: &[&str]) -> JobSpec {
    let options: Vec<_> = options.iter().map(|name| ((*name).to_owned(), None)).collect();
    JobSpec {
        terms: Box::new(JobTerms::from_options(&options).unwrap()),
        options,
        environment: vec![bytes("PATH=/bin:/usr/bin")],
        ..job(1, vec![sh(script)])
    }
}

/// Calls `action` on a thread whose user is `uid` and that has no supplementary groups.
pub fn run_as<T: Send>(uid: u32, action: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the three system calls access no memory. They change the ids of this thread
            // only, which ends with the closure.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            }
            action()
        });
        thread.join().unwrap()
    })
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let connection = Connection::new(UnixStream::connect(path).unwrap(), "scored").unwrap();
        let (out, notices, file_requests) = (String::new(), String::new(), Vec::new());
        let (statistics, page, code) = (None, None, None);
        Self { connection, out, notices, file_requests, statistics, page, code }
    }

    /// Connects as this user.
    pub fn connect_as(path: &Path, uid: u32) -> Self {
        run_as(uid, || Self::connect(path))
    }

    /// Connects as this user and logs in.
    pub fn log_in(path: &Path, uid: u32) -> Self {
        let mut client = Self::connect_as(path, uid);
        client.send(&[hello(), login(uid)]);
        client
    }

    /// Logs in as the user of the test, and submits a job of this many nodes.
    pub fn submit(path: &Path, nodes: u32, spec: JobSpec) -> Self {
        let mut client = Self::connect(path);
        client.request(geteuid().as_raw(), nodes, spec);
        client
    }

    /// Sends a greeting, a login and a job request.
    pub fn request(&mut self, uid: u32, nodes: u32, spec: JobSpec) {
        let allocation = AllocationRequest::FewestHosts(nodes);
        self.send(&[hello(), login(uid), UserRequest::SubmitJob { allocation, spec }.into()]);
    }

    pub fn send(&mut self, messages: &[impl Clone + Into<Sent>]) {
        self.write_all(&encode(messages), TEST_TIMEOUT).unwrap();
    }

    /// Writes bytes that need not be whole messages. Waits for at most `timeout` until the socket
    /// takes some of them.
    pub fn write(&self, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
        wait_until_ready(self.connection.as_fd(), Readiness::Writable, timeout)?;
        Ok(nix::unistd::write(&self.connection, bytes)?)
    }

    /// Like [`Client::write`], until the socket has taken all bytes.
    pub fn write_all(&self, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write(bytes, timeout)?..];
        }
        Ok(())
    }

    /// Reads messages for at most this time. Returns false if the other side has closed the
    /// connection.
    pub fn receive(&mut self, mut timeout: Duration) -> bool {
        loop {
            match self.connection.wait(timeout) {
                Ok(Some(Received::Answer(UserAnswer::Console(answer)))) => {
                    self.on_console_answer(answer)
                }
                Ok(Some(Received::Answer(UserAnswer::Job(answer)))) => self.on_job_answer(answer),
                Ok(Some(Received::Notice { text, .. })) => self.notices += &format!("{text}\n"),
                Ok(Some(Received::Refused { reason, code })) => self.on_refused(&reason, code),
                Ok(None) => return true,
                Err(ConnectionError::Closed(_)) => return false,
                Err(error) => panic!("{error}"),
            }
            timeout = Duration::ZERO;
        }
    }

    fn on_console_answer(&mut self, answer: ConsoleAnswer) {
        match answer {
            ConsoleAnswer::List(ListAnswer::Statistics(statistics)) => {
                self.statistics = Some(statistics)
            }
            ConsoleAnswer::Page(address) => self.page = Some(address.url),
            ConsoleAnswer::Finished { code } => self.code = Some(code),
            _ => {}
        }
    }

    fn on_job_answer(&mut self, answer: JobAnswer) {
        match answer {
            JobAnswer::Output { bytes, .. } => self.out += &String::from_utf8_lossy(&bytes),
            JobAnswer::Notice { text, .. } => self.notices += &format!("{text}\n"),
            JobAnswer::Refused { reason, code } => self.on_refused(&reason, code),
            JobAnswer::Finished(end) => self.code = Some(end.code),
            JobAnswer::FileRequest { hash, offset, length } => {
                self.file_requests.push((hash, offset, length));
            }
            _ => {}
        }
    }

    fn on_refused(&mut self, reason: &str, code: u8) {
        self.notices += &format!("{reason}\n");
        self.code = Some(code);
    }

    pub fn until_ended(&mut self) -> u8 {
        let end = Instant::now() + TEST_TIMEOUT;
        while self.code.is_none() {
            assert!(Instant::now() < end, "no end: {}", self.notices);
            if !self.receive(Duration::from_millis(50)) {
                break;
            }
        }
        self.code.unwrap_or_else(|| panic!("closed without a final message: {}", self.notices))
    }

    pub fn until_noticed(&mut self, what: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.notices.contains(what) && !self.out.contains(what) {
            assert!(Instant::now() < end, "no {what}: {}", self.notices);
            assert!(self.receive(Duration::from_millis(50)), "closed: {}", self.notices);
        }
    }

    /// Reads until the other side has closed the connection.
    pub fn until_closed(&mut self) {
        let end = Instant::now() + TEST_TIMEOUT;
        while self.receive(Duration::from_millis(50)) {
            assert!(Instant::now() < end, "the connection stays open: {}", self.notices);
        }
    }
}

/// Encodes messages as a client sends them. Requests to a job are for job 1.
pub fn encode(messages: &[impl Clone + Into<Sent>]) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        let encoded = match message.clone().into() {
            Sent::Hello => client_session::encode_greeting(&mut out),
            Sent::Login(login) => client_session::encode(SESSION_JOB, &login, &mut out),
            Sent::User(request @ UserRequest::Console(_)) => {
                client_session::encode(SESSION_JOB, &request, &mut out)
            }
            Sent::User(request) => client_session::encode(SessionJobId(1), &request, &mut out),
            Sent::SingleUser(request @ SingleUserRequest::OpenScoutSession(_)) => {
                client_session::encode(SESSION_JOB, &request, &mut out)
            }
            Sent::SingleUser(request) => {
                client_session::encode(SessionJobId(1), &request, &mut out)
            }
        };
        encoded.unwrap();
    }
    out
}
