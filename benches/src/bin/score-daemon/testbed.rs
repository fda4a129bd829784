//! Starts a multi-user service of two daemons, and processes of other users.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use score_benches::client::{log_in, receive_answer};
use score_proto::client_session::SESSION_JOB;
use score_proto::daemon_statistics::DaemonStatistics;
use score_proto::message::{ConsoleRequest, UserRequest};
use score_proto::server_message::{ConsoleReply, ListAnswer};

use crate::{BenchResult, USAGE, two_processors, use_processors};

/// The ids of the users, which have no names on this system.
pub const HOSTILE_UID: u32 = 61_001;
pub const OTHER_UID: u32 = 61_002;
const VISITOR_UID: u32 = 61_003;

/// The hosts. The second one is the server. A job can select a host by the type of its binaries.
pub const HOSTS: [&str; 2] = ["hosta", "hostb"];
const DATABASE: &str = "hosta address=127.0.0.1 cores=1 bintype=shared\n\
                        hostb address=127.0.0.2 cores=2 bintype=hostile\n";

const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Polls until `check` returns a value. Returns an error after [`EVENT_TIMEOUT`].
pub fn wait_until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> BenchResult<T> {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        if let Some(found) = check() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {} s", EVENT_TIMEOUT.as_secs()));
        }
        sleep(Duration::from_millis(2));
    }
}

/// Returns the socket of a host in the directory of a testbed.
pub fn socket_of(folder: &Path, host: &str) -> PathBuf {
    folder.join(format!("socket-{host}"))
}

/// The services for a measurement during an attack.
pub struct Services {
    pub attacked: ServiceTestbed,
    /// A service that no user attacks. If there is one, it is measured.
    elsewhere: Option<ServiceTestbed>,
    /// A third user of the attacked service, if the other service is measured.
    _visitor: Option<Role>,
    /// The processors. The daemons and the other user may use both, the hostile user's clients only
    /// the second one.
    pub processors: [usize; 2],
}

impl Services {
    /// Starts one service, or two if `place` is `elsewhere`.
    pub fn new(place: &[&str]) -> BenchResult<Self> {
        let processors = two_processors()?;
        use_processors(&processors)?;
        let attacked = ServiceTestbed::new("attacked")?;
        let (elsewhere, visitor) = match place {
            [] => (None, None),
            ["elsewhere"] => {
                let words = ["visit", &attacked.folder.to_string_lossy()];
                let visitor = attacked.start_role(VISITOR_UID, &words)?;
                (Some(ServiceTestbed::new("elsewhere")?), Some(visitor))
            }
            _ => return Err(USAGE.to_owned()),
        };
        Ok(Self { attacked, elsewhere, _visitor: visitor, processors })
    }

    pub fn measured(&self) -> &ServiceTestbed {
        self.elsewhere.as_ref().unwrap_or(&self.attacked)
    }

    pub fn is_measured_attacked(&self) -> bool {
        self.elsewhere.is_none()
    }
}

/// Two daemons with slices of 10 ms. They end when this value is dropped.
pub struct ServiceTestbed {
    /// The directory of the testbed, which every user may search.
    pub folder: PathBuf,
    daemons: Vec<Child>,
}

impl ServiceTestbed {
    /// Starts a testbed. `name` distinguishes the testbeds of one process.
    pub fn new(name: &str) -> BenchResult<Self> {
        let folder = format!("score-daemon-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let io_error = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(io_error)?;
        let mut testbed = Self { folder: folder.clone(), daemons: Vec::new() };
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(io_error)?;
        fs::write(folder.join("db"), DATABASE).map_err(io_error)?;
        // Other users may have no access to the directory of this program.
        fs::copy(own_path()?, testbed.program()).map_err(io_error)?;
        let scored = own_path()?.with_file_name("scored");
        let status = Command::new(&scored).arg("-makekey").arg(folder.join("key")).status();
        status.map_err(|error| format!("scored -makekey: {error}"))?;
        let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = address.map_err(|error| format!("a port: {error}"))?.port().to_string();
        HOSTS.iter().try_for_each(|host| testbed.start_daemon(&scored, host, &port))?;
        let is_up = || testbed.log_of("hostb").contains("host hosta is up").then_some(());
        wait_until("both hosts are up", is_up)?;
        Ok(testbed)
    }

    fn start_daemon(&mut self, scored: &Path, host: &str, port: &str) -> BenchResult<()> {
        let log = self.folder.join(format!("log-{host}"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(scored);
        command.args(["-host", host, "-server", "hostb", "-port", port, "-ts", "10"]);
        // This user needs no entry in the user database.
        command.args(["-user", "61990"]);
        command.arg("-file").arg(self.folder.join("db")).arg("-key").arg(self.folder.join("key"));
        command.arg("-socket").arg(socket_of(&self.folder, host));
        let child = command.stdin(Stdio::null()).stderr(file).env_remove("JOURNAL_STREAM").spawn();
        self.daemons.push(child.map_err(|error| format!("scored: {error}"))?);
        wait_until("scored becomes ready", || self.log_of(host).contains("ready").then_some(()))
    }

    pub fn program(&self) -> PathBuf {
        self.folder.join("score-daemon")
    }

    pub fn log_of(&self, host: &str) -> String {
        fs::read_to_string(self.folder.join(format!("log-{host}"))).unwrap_or_default()
    }

    /// Returns the process ids of the daemons, in the order of [`HOSTS`].
    pub fn process_ids(&self) -> Vec<u32> {
        self.daemons.iter().map(Child::id).collect()
    }

    /// Starts this program as a user, with the arguments of a role.
    pub fn start_role(&self, uid: u32, words: &[&str]) -> BenchResult<Role> {
        let mut command = Command::new(self.program());
        command.args(words).uid(uid).gid(uid).current_dir("/");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("{words:?}: {error}"))?;
        let output = child.stdout.take().map(BufReader::new);
        let output = output.ok_or_else(|| format!("{words:?}: no output"))?;
        Ok(Role { child, output, name: words.join(" ") })
    }

    /// Returns statistics about the turns of the server's loop.
    pub fn statistics(&self) -> BenchResult<DaemonStatistics> {
        let mut client = log_in(&socket_of(&self.folder, "hostb"), 0)?;
        client.send(SESSION_JOB, &UserRequest::Console(ConsoleRequest::List))?;
        loop {
            match receive_answer(&mut client)? {
                ConsoleReply::Answer(ListAnswer::Statistics(statistics)) => return Ok(statistics),
                ConsoleReply::Answer(ListAnswer::Jobs(_)) => {}
                ConsoleReply::Finished { .. } => return Err("no statistics for root".to_owned()),
            }
        }
    }
}

impl Drop for ServiceTestbed {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut() {
            let _ = kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM);
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn own_path() -> BenchResult<PathBuf> {
    std::env::current_exe().map_err(|error| format!("path of this program: {error}"))
}

/// This program in a role, as another user. It is killed when this value is dropped.
pub struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
    name: String,
}

impl Role {
    /// Returns the next line that the process prints. No time-out is needed, because a role limits
    /// its own time.
    pub fn next_line(&mut self) -> BenchResult<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_owned()),
            Ok(_) => Err(format!("{}: no further output", self.name)),
            Err(error) => Err(format!("{}: {error}", self.name)),
        }
    }

    /// Returns why the process has ended, if it has.
    pub fn end_reason(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{}: {status}", self.name))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The usage of the daemons up to some moment, in the order of [`HOSTS`].
pub struct DaemonUsage {
    sampled_at: Instant,
    cpu_ticks: Vec<u64>,
    long_turns: Vec<Vec<String>>,
}

impl DaemonUsage {
    pub fn sample(testbed: &ServiceTestbed) -> BenchResult<Self> {
        let cpu_ticks = testbed.process_ids().into_iter().map(cpu_ticks_of);
        let long_turns = |host: &&str| {
            let log = testbed.log_of(host);
            log.lines()
                .filter(|line| line.contains("a turn of the loop"))
                .map(String::from)
                .collect()
        };
        Ok(Self {
            sampled_at: Instant::now(),
            cpu_ticks: cpu_ticks.collect::<BenchResult<_>>()?,
            long_turns: HOSTS.iter().map(long_turns).collect(),
        })
    }

    /// Returns the fraction of a processor that each daemon has used since an earlier sample.
    pub fn processors_since(&self, earlier: &Self) -> Vec<f64> {
        let seconds = (self.sampled_at - earlier.sampled_at).as_secs_f64();
        let ticks = self.cpu_ticks.iter().zip(&earlier.cpu_ticks);
        ticks.map(|(after, before)| (after - before) as f64 / TICKS_PER_S / seconds).collect()
    }

    /// Returns the lines that each daemon has logged about long turns since an earlier sample.
    pub fn long_turns_since(&self, earlier: &Self) -> Vec<Vec<String>> {
        let new = |(after, before): (&Vec<String>, &Vec<String>)| after[before.len()..].to_vec();
        self.long_turns.iter().zip(&earlier.long_turns).map(new).collect()
    }
}

/// `USER_HZ`, which is 100 on all supported architectures.
const TICKS_PER_S: f64 = 100.0;

fn cpu_ticks_of(pid: u32) -> BenchResult<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let times = fields.into_iter().flatten().skip(11).take(2);
    Ok(times.filter_map(|time| time.parse::<u64>().ok()).sum())
}
