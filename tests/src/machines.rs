//! Two machines that run the same scenarios at the same time, as `cargo xtask vm -machines 2` has
//! them. On each runs a scored, together they are a cluster. The first runs jobs, the second does
//! what the first one says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

use crate::service::Cluster;
use crate::{Scene, binaries};

/// The hosts of the machines.
pub const HOSTS: [&str; 2] = ["one", "two"];
/// Which machine this is, in the environment.
const NUMBER: &str = "SCORE_VM_MACHINE";
/// Where the second machine calls the first: by the wire that daemons do not use.
const CALLED: &str = "10.9.1.1:7100";
/// Where daemons listen.
const PORT: u16 = 9901;
/// Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is said beside lines of a shell: asks for the time; the end and another start of scored.
const CLOCK: &str = "clock";
const KILL: &str = "kill scored";
const START: &str = "start scored";

/// The other machine.
pub struct Other(TcpStream);

impl Other {
    fn meet(number: u32) -> Self {
        if number == 1 {
            return Self(TcpListener::bind(CALLED).unwrap().accept().unwrap().0);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect(CALLED) {
                Ok(stream) => return Self(stream),
                Err(why) => assert!(Instant::now() < end, "{why}"),
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        self.0.write_all(&[&length[..], bytes].concat()).unwrap();
    }

    fn hear(&mut self) -> std::io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut bytes).map(|()| bytes)
    }

    /// Runs a line of shell there; answers what it prints.
    pub fn sh(&mut self, line: &str) -> String {
        self.say(line.as_bytes());
        String::from_utf8(self.hear().unwrap()).unwrap()
    }

    /// What the clock there is ahead of the one here, in nanoseconds, and when that was, here.
    fn ahead(&mut self) -> (i64, i64) {
        let mut ask = || {
            let before = clock();
            self.say(CLOCK.as_bytes());
            let there = i64::from_le_bytes(self.hear().unwrap().try_into().unwrap());
            let after = clock();
            (after - before, there - i64::midpoint(before, after), after)
        };
        // The quickest answer says most.
        let (_, ahead, when) = (0..10).map(|_| ask()).min_by_key(|answer| answer.0).unwrap();
        (when, ahead)
    }

    /// Kills the scored there.
    pub fn kill_scored(&mut self) {
        self.sh(KILL);
    }

    /// Starts one there again.
    pub fn start_scored(&mut self) {
        self.sh(START);
    }

    /// Does what is said, until the other one has nothing more to say.
    fn obey(mut self, cluster: &mut Cluster<'_>) {
        while let Ok(line) = self.hear() {
            let line = String::from_utf8(line).unwrap();
            let answer = match line.as_str() {
                CLOCK => clock().to_le_bytes().to_vec(),
                KILL => {
                    cluster.strike(HOSTS[1], Signal::SIGKILL);
                    Vec::new()
                }
                START => {
                    cluster.start_host(HOSTS[1]);
                    Vec::new()
                }
                line => {
                    let done = Command::new("sh").args(["-c", line]).output().unwrap();
                    [done.stdout, done.stderr].concat()
                }
            };
            self.say(&answer);
        }
    }
}

/// The clock by which jobs are stopped, in nanoseconds.
fn clock() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// What the clocks have to do with each other: they start at different times, and neither runs
/// evenly.
#[derive(Default)]
pub struct Clocks(Vec<(i64, i64)>);

impl Clocks {
    /// Compares them.
    pub fn look(&mut self, other: &mut Other) {
        self.0.push(other.ahead());
    }

    /// A time of there by the clock here, as the looks before and after say together.
    pub fn here(&self, there: i64) -> i64 {
        let of_there = |(when, ahead): &(i64, i64)| when + ahead;
        let after = self.0.iter().position(|look| of_there(look) > there);
        let last = self.0.len() - 1;
        let after = after.unwrap_or(last).max(1).min(last);
        let (a, b) = (&self.0[after.saturating_sub(1)], &self.0[after]);
        let (from, to) = (of_there(a), of_there(b));
        let part = (there - from) as f64 / (to - from).max(1) as f64;
        a.0 + (part * (b.0 - a.0) as f64) as i64
    }
}

/// Brings up a cluster of both machines, whose server is on the first, and has the first one run
/// `test`. Where there are no two machines it is not run.
pub fn on_both(
    database: &str,
    options: &[&str],
    test: impl FnOnce(&Scene, &mut Cluster<'_>, &mut Other),
) {
    let number = std::env::var(NUMBER).ok().and_then(|number| number.parse::<u32>().ok());
    let Some(number @ 1..=2) = number else { return };
    let scene = Scene::new();
    let mut other = Other::meet(number);
    let key = match number {
        1 => {
            let made = scene.command(binaries::program("scored")).args(&["-makekey", "key"]).run();
            assert_eq!(made.code, 0, "{made}");
            let key = std::fs::read(scene.dir().join("key")).unwrap();
            std::fs::remove_file(scene.dir().join("key")).unwrap();
            other.say(&key);
            key
        }
        _ => other.hear().unwrap(),
    };
    let host = HOSTS[number as usize - 1];
    let options = [options, &["-server", HOSTS[0]]].concat();
    let mut cluster = Cluster::join(&scene, host, database, &options, (&key, PORT));
    if number == 2 {
        return other.obey(&mut cluster);
    }
    cluster.until_logged(HOSTS[0], "host two is up");
    test(&scene, &mut cluster, &mut other);
}
