//! Runs the same scenarios on two machines at the same time, as `cargo xtask vm -machines 2` starts
//! them. Each machine runs a scored, and both form a cluster. The first machine starts jobs. The
//! second executes the commands of the first.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

use crate::service::Cluster;
use crate::{TestEnv, binaries};

/// The names of the two hosts.
pub const HOSTS: [&str; 2] = ["one", "two"];
/// Environment variable with the number of this machine.
const MACHINE_NUMBER_ENV: &str = "SCORE_VM_MACHINE";
/// The address of the first machine to which the second connects. It is on the wire that daemons do
/// not use.
const CONTROL_ADDRESS: &str = "10.9.1.1:7100";
/// The port on which daemons listen.
const PORT: u16 = 9901;
/// The time limit for the connection between the machines. Emulated machines are slow.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Commands for the second machine: read the clock, kill scored, and start it again. Any other
/// command is a line of shell.
const CMD_CLOCK: &str = "clock";
const CMD_KILL_SCORED: &str = "kill scored";
const CMD_START_SCORED: &str = "start scored";

/// The other machine.
pub struct RemoteMachine(TcpStream);

impl RemoteMachine {
    fn connect(number: u32) -> Self {
        if number == 1 {
            return Self(TcpListener::bind(CONTROL_ADDRESS).unwrap().accept().unwrap().0);
        }
        let deadline = Instant::now() + REPLY_TIMEOUT;
        loop {
            match TcpStream::connect(CONTROL_ADDRESS) {
                Ok(stream) => return Self(stream),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        self.0.write_all(&[&length[..], bytes].concat()).unwrap();
    }

    fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut bytes).map(|()| bytes)
    }

    /// Runs a line of shell on the remote machine. Returns its output.
    pub fn sh(&mut self, line: &str) -> String {
        self.send(line.as_bytes());
        String::from_utf8(self.receive().unwrap()).unwrap()
    }

    /// Compares the clocks. Returns the local time of the comparison, and the nanoseconds by which
    /// the remote clock is ahead.
    fn clock_offset(&mut self) -> (i64, i64) {
        let mut measure = || {
            let before = monotonic_ns();
            self.send(CMD_CLOCK.as_bytes());
            let remote_ns = i64::from_le_bytes(self.receive().unwrap().try_into().unwrap());
            let after = monotonic_ns();
            (after - before, remote_ns - i64::midpoint(before, after), after)
        };
        // The exchange with the shortest round trip is the most precise.
        let (_, offset_ns, measured_at_ns) =
            (0..10).map(|_| measure()).min_by_key(|sample| sample.0).unwrap();
        (measured_at_ns, offset_ns)
    }

    /// Kills the scored of the remote machine.
    pub fn kill_scored(&mut self) {
        self.sh(CMD_KILL_SCORED);
    }

    /// Starts a scored on the remote machine again.
    pub fn start_scored(&mut self) {
        self.sh(CMD_START_SCORED);
    }

    /// Executes commands until the first machine closes the connection.
    fn serve_commands(mut self, cluster: &mut Cluster<'_>) {
        while let Ok(line) = self.receive() {
            let line = String::from_utf8(line).unwrap();
            let reply = match line.as_str() {
                CMD_CLOCK => monotonic_ns().to_le_bytes().to_vec(),
                CMD_KILL_SCORED => {
                    cluster.signal_daemon(HOSTS[1], Signal::SIGKILL);
                    Vec::new()
                }
                CMD_START_SCORED => {
                    cluster.start_host(HOSTS[1]);
                    Vec::new()
                }
                line => {
                    let output = Command::new("sh").args(["-c", line]).output().unwrap();
                    [output.stdout, output.stderr].concat()
                }
            };
            self.send(&reply);
        }
    }
}

/// The clock that gang switches use, in nanoseconds.
fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// Maps the remote clock to the local clock. The clocks start at different times, and neither runs
/// evenly.
#[derive(Default)]
pub struct ClockMap(Vec<(i64, i64)>);

impl ClockMap {
    /// Adds a comparison of the two clocks.
    pub fn sample(&mut self, remote_machine: &mut RemoteMachine) {
        self.0.push(remote_machine.clock_offset());
    }

    /// Converts a remote time to the local clock, by interpolation between the comparisons before
    /// and after it.
    pub fn to_local(&self, remote_ns: i64) -> i64 {
        let remote_time = |(local_ns, offset_ns): &(i64, i64)| local_ns + offset_ns;
        let next = self.0.iter().position(|sample| remote_time(sample) > remote_ns);
        let last = self.0.len() - 1;
        let next = next.unwrap_or(last).max(1).min(last);
        let (a, b) = (&self.0[next.saturating_sub(1)], &self.0[next]);
        let (from, to) = (remote_time(a), remote_time(b));
        let fraction = (remote_ns - from) as f64 / (to - from).max(1) as f64;
        a.0 + (fraction * (b.0 - a.0) as f64) as i64
    }
}

/// Starts a cluster of both machines, whose server is on the first, and runs `test` on the first.
/// If there is only one machine, `test` does not run.
pub fn run_on_both(
    database: &str,
    options: &[&str],
    test: impl FnOnce(&TestEnv, &mut Cluster<'_>, &mut RemoteMachine),
) {
    let number =
        std::env::var(MACHINE_NUMBER_ENV).ok().and_then(|number| number.parse::<u32>().ok());
    let Some(number @ 1..=2) = number else { return };
    let env = TestEnv::new();
    let mut remote_machine = RemoteMachine::connect(number);
    let key = match number {
        1 => {
            let outcome = env.command(binaries::program("scored")).args(&["-makekey", "key"]).run();
            assert_eq!(outcome.code, 0, "{outcome}");
            let key = std::fs::read(env.dir().join("key")).unwrap();
            std::fs::remove_file(env.dir().join("key")).unwrap();
            remote_machine.send(&key);
            key
        }
        _ => remote_machine.receive().unwrap(),
    };
    let host = HOSTS[number as usize - 1];
    let options = [options, &["-server", HOSTS[0]]].concat();
    let mut cluster = Cluster::join(&env, host, database, &options, (&key, PORT));
    if number == 2 {
        return remote_machine.serve_commands(&mut cluster);
    }
    cluster.wait_for_log(HOSTS[0], "host two is up");
    test(&env, &mut cluster, &mut remote_machine);
}
