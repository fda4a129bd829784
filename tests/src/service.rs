//! Runs a cluster in multi-user mode: a scored for each host, on loopback addresses of this
//! machine.

use std::collections::HashMap;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::netns::NetNs;
use crate::{Job, Outcome, Running, TestEnv, binaries, skip};

/// A user without an entry in the user database.
pub const ALICE: u32 = 61_001;
/// A second user without an entry.
pub const BOB: u32 = 61_002;
/// A user who may end the jobs of other users.
pub const OPERATOR: u32 = 61_003;

/// The daemons of a cluster. They end when this value is dropped.
pub struct Cluster<'a> {
    env: &'a TestEnv,
    port: u16,
    options: Vec<String>,
    daemons: Vec<(String, Child)>,
    /// The network namespaces of the hosts that are not in this machine's own namespace.
    netns_by_host: HashMap<String, NetNs>,
}

/// The system user that the daemons run as. It needs no entry in the user database.
const DAEMON_UID: &str = "61990";

impl<'a> Cluster<'a> {
    /// Starts hosts with two processors each. The last of `hosts` is the server. Without root,
    /// returns `None` and prints a skip.
    pub fn start(env: &'a TestEnv, hosts: &[&str]) -> Option<Self> {
        Self::start_with_database(env, hosts, &Self::database(hosts))
    }

    /// Like [`Cluster::start`], with the given database. The cluster is the group `all`, and the
    /// last of `hosts` is its server.
    pub fn start_with_database(env: &'a TestEnv, hosts: &[&str], database: &str) -> Option<Self> {
        Self::start_with_options(env, hosts, database, &[])
    }

    /// Like [`Cluster::start_with_database`], with more options for every scored.
    pub fn start_with_options(
        env: &'a TestEnv,
        hosts: &[&str],
        database: &str,
        options: &[&str],
    ) -> Option<Self> {
        Self::start_in_netns(env, hosts, database, options, HashMap::new())
    }

    /// Like [`Cluster::start_with_options`], with a network namespace for some hosts.
    pub fn start_in_netns(
        env: &'a TestEnv,
        hosts: &[&str],
        database: &str,
        options: &[&str],
        netns_by_host: HashMap<String, NetNs>,
    ) -> Option<Self> {
        if !geteuid().is_root() {
            skip("multi-user mode", "it needs root");
            return None;
        }
        env.write_file("db", database);
        let outcome = env.command(binaries::program("scored")).args(&["-makekey", "key"]).run();
        assert_eq!(outcome.code, 0, "{outcome}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut cluster = Self { env, port, options, daemons: Vec::new(), netns_by_host };
        hosts.iter().for_each(|host| cluster.start_host(host));
        let server = hosts.last().unwrap();
        for host in &hosts[..hosts.len() - 1] {
            cluster.wait_for_log(server, &format!("host {host} is up"));
        }
        Some(cluster)
    }

    /// Starts the daemon of one host of a cluster. The daemons of the other hosts run on other
    /// machines, with the same key and port.
    pub fn join(
        env: &'a TestEnv,
        host: &str,
        database: &str,
        options: &[&str],
        (key, port): (&[u8], u16),
    ) -> Self {
        env.write_file("db", database);
        let key = env.write_file("key", key);
        std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let netns_by_host = HashMap::new();
        let mut cluster = Self { env, port, options, daemons: Vec::new(), netns_by_host };
        cluster.start_host(host);
        cluster
    }

    /// The default database: hosts on loopback addresses with two processors each.
    pub fn database(hosts: &[&str]) -> String {
        let list = hosts.iter().zip(1..);
        list.map(|(name, number)| format!("{name} address=127.0.0.{number} cores=2 group=all\n"))
            .collect()
    }

    /// The port on which the daemons listen for each other.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Copies a program under test so that every user may run it, wherever the build is. Returns
    /// the path of the copy.
    pub fn program(&self, name: &str) -> PathBuf {
        let path = self.env.dir().join(name);
        if !path.exists() {
            // Another process copies the program. If this process wrote the file, a child that
            // another test has just forked would also hold the descriptor, and exec would fail with
            // ETXTBSY.
            let status = Command::new("cp").arg(binaries::program(name)).arg(&path).status();
            assert!(status.is_ok_and(|status| status.success()), "cp {name}");
        }
        path
    }

    /// Starts the daemon of a host, and waits until it is ready.
    pub fn start_host(&mut self, host: &str) {
        let mut command = Command::new(self.program("scored"));
        self.env.configure(&mut command);
        let port = self.port.to_string();
        let operator = OPERATOR.to_string();
        command
            .args(["-file", "db", "-key", "key", "-v", "-host", host, "-port", &port])
            .args(["-operator", &operator, "-group", "all", "-user", DAEMON_UID])
            .args(&self.options)
            .arg("-socket")
            .arg(self.socket(host))
            .stdin(Stdio::null())
            .stderr(File::options().append(true).create(true).open(self.log_file(host)).unwrap())
            .env_remove("JOURNAL_STREAM");
        let child = match self.netns_by_host.get(host) {
            Some(netns) => netns.run_inside(|| command.spawn()),
            None => command.spawn(),
        };
        self.daemons.push((host.to_owned(), child.unwrap()));
        self.wait_for_log(host, "ready");
    }

    /// The path of the socket to which the scruns of a host connect.
    pub fn socket(&self, host: &str) -> PathBuf {
        self.env.dir().join(format!("socket-{host}"))
    }

    /// The file that a daemon logs to.
    pub fn log_file(&self, host: &str) -> PathBuf {
        self.env.dir().join(format!("log-{host}"))
    }

    /// The log of a daemon.
    pub fn log(&self, host: &str) -> String {
        std::fs::read_to_string(self.log_file(host)).unwrap_or_default()
    }

    /// Waits until a daemon's log contains `text`.
    pub fn wait_for_log(&self, host: &str, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.log(host).contains(text) {
            assert!(
                Instant::now() < deadline,
                "{host} has not logged {text:?}: {}",
                self.log(host)
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal to a daemon. After SIGKILL, waits for its end and removes its log.
    pub fn signal_daemon(&mut self, host: &str, signal: Signal) {
        let index = self.daemons.iter().position(|(name, _)| name == host).unwrap();
        kill(Pid::from_raw(self.daemons[index].1.id() as i32), signal).unwrap();
        if signal == Signal::SIGKILL {
            let _ = self.daemons.remove(index).1.wait();
            let _ = std::fs::remove_file(self.log_file(host));
        }
    }

    /// Runs a program under test as a user on a host.
    pub fn command(&self, uid: u32, program: &str, host: &str) -> Job {
        let mut command = Command::new(self.program(program));
        self.env.configure(&mut command);
        command.env("SCORED_SOCKET", self.socket(host)).env_remove("XDG_RUNTIME_DIR");
        command.current_dir("/").uid(uid).gid(uid);
        Job::new(self.env.marker().to_owned(), command)
    }

    /// Runs scrun as a user on a host, with options and a shell script as its program.
    pub fn scrun(&self, uid: u32, host: &str, options: &str, script: &str) -> Job {
        let options = format!("-scored=all,{options}");
        self.command(uid, "scrun", host).args(&[&options, "/bin/sh", "-c", script])
    }

    /// Starts a job that runs until it is ended.
    pub fn start_long_job(&self, uid: u32, host: &str, options: &str) -> Running {
        let mut job = self.scrun(uid, host, options, "echo up; exec sleep 300").start();
        job.wait_for("up", 1);
        job
    }

    /// Runs `scored` with these arguments as a user on a host, such as `scored -list`.
    pub fn console(&self, uid: u32, host: &str, args: &[&str]) -> Outcome {
        self.command(uid, "scored", host).args(args).run()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for (_, child) in &self.daemons {
            let pid = Pid::from_raw(child.id() as i32);
            let _ = kill(pid, Signal::SIGCONT);
            let _ = kill(pid, Signal::SIGTERM);
        }
        for (_, child) in &mut self.daemons {
            let _ = child.wait();
        }
    }
}
