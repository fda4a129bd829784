//! Network namespaces joined by veth, one for each host. The kernel removes a namespace when its
//! last descriptor is closed.

use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that is set in a child which has entered a user namespace for a test.
const IN_NAMESPACE_ENV: &str = "SCORE_WIRES_INSIDE";

/// Records that a test cannot run on this machine, in the format that `cargo xtask test` reads.
pub fn skip(name: &str, reason: &str) {
    use std::io::Write;
    eprintln!("SKIPPED {name}: {reason}");
    let Some(path) = std::env::var_os("HARNESS_SKIPS") else { return };
    if let Ok(mut file) = File::options().append(true).open(path) {
        let _ = writeln!(file, "{name}\t{reason}");
    }
}

/// Runs a test that makes network namespaces. The test runs in this process if the process is root,
/// or else in a child that is root of a user namespace. If neither is possible, the test is
/// skipped.
pub fn as_root(name: &str, test: impl FnOnce()) {
    if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip(name, "ip of iproute2 is not installed");
    }
    if is_root() || std::env::var_os(IN_NAMESPACE_ENV).is_some() {
        return test();
    }
    let probe = ["--user", "--map-root-user", "--net"];
    let works = Command::new("unshare").args(probe).arg("true").stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skip(name, "not root, and user namespaces are refused");
    }
    let test_binary = std::env::current_exe().unwrap();
    let mut child = Command::new("unshare");
    child.args(probe).arg(test_binary).args([name, "--nocapture"]).env(IN_NAMESPACE_ENV, "1");
    let output = child.stderr(Stdio::inherit()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "in a user namespace: {stdout}"
    );
}

fn is_root() -> bool {
    // SAFETY: the call only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// A network namespace.
pub struct Host(OwnedFd);

impl Host {
    /// Makes an empty namespace in which the loopback interface is up.
    pub fn new() -> Host {
        let unshare_network = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            Host(File::open("/proc/thread-self/ns/net").unwrap().into())
        };
        let host = std::thread::spawn(unshare_network).join().unwrap();
        host.ip("link set lo up");
        host
    }

    /// Calls a function in a new thread inside the namespace.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
            action()
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| {
            std::panic::resume_unwind(panic);
        })
    }

    /// Runs `ip` with these arguments inside the namespace, and returns its output.
    pub fn ip(&self, words: &str) -> String {
        self.run("ip", words)
    }

    pub fn run(&self, program: &str, words: &str) -> String {
        let run = || Command::new(program).args(words.split_whitespace()).output().unwrap();
        let output = self.within(run);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the path of the namespace for other programs. It is valid as long as `self` lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Joins two hosts by a veth with the same name on both, and with addresses 10.N.0.1 and .2.
pub fn cable(one: &Host, other: &Host, name: &str, net: u8, mtu: usize) {
    let path = other.path();
    one.ip(&format!("link add {name} mtu {mtu} type veth peer name {name} mtu {mtu} netns {path}"));
    for (host, number) in [(one, 1), (other, 2)] {
        host.ip(&format!("address add 10.{net}.0.{number}/24 dev {name}"));
        host.ip(&format!("link set {name} up"));
    }
    // The kernel drops all packets silently until its worker has detected the carrier.
    let end = Instant::now() + Duration::from_secs(60);
    let show = format!("link show dev {name}");
    while [one, other].iter().any(|host| !host.ip(&show).contains("state UP")) {
        assert!(Instant::now() < end, "{name} does not come up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes two hosts that are joined by a cable `eth0`.
pub fn pair(mtu: usize) -> [Host; 2] {
    let hosts = [Host::new(), Host::new()];
    cable(&hosts[0], &hosts[1], "eth0", 9, mtu);
    hosts
}
