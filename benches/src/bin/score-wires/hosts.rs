//! Creates two network namespaces joined by veth. They end with this process and its children.

use crate::BenchResult;
use crate::raw_packets::IDLE_TIMEOUT;
use nix::sched::{CloneFlags, sched_setaffinity, setns, unshare};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The name of an interface, which is the same on both hosts.
pub fn link(number: usize) -> String {
    format!("eth{number}")
}

/// The hosts' addresses on the first link.
pub const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

/// Both network namespaces.
pub struct NetNsPair([File; 2]);

/// Runs `ip` or `tc` on a host.
fn run_on_host(host: &str, words: &str) -> BenchResult<()> {
    let net = format!("--net={host}");
    let mut command = Command::new("nsenter");
    command.arg(net).args(words.split_whitespace());
    let output = command.output().map_err(|error| format!("nsenter: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{words}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Waits until a link that was set up carries packets. The kernel silently drops all packets until
/// its worker has detected the carrier. Processes that spin in a session with a high weight may
/// delay that worker.
fn wait_until_up(host: &str, link: &str) -> BenchResult<()> {
    let begin = Instant::now();
    let show_args = [&format!("--net={host}"), "ip", "link", "show", "dev", link];
    loop {
        let output = Command::new("nsenter").args(show_args).output()?;
        if String::from_utf8_lossy(&output.stdout).contains("state UP") {
            return Ok(());
        }
        if begin.elapsed() > IDLE_TIMEOUT {
            return Err(format!("{link} does not come up").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl NetNsPair {
    /// Creates both namespaces, joined by `links` links. Each link is limited to `rate_mbit` Mbit/s
    /// unless this is 0.
    pub fn new(mtu: usize, links: usize, rate_mbit: u32) -> BenchResult<NetNsPair> {
        let make_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("namespace: {error}"))?;
            File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
        };
        let new_namespace =
            || std::thread::spawn(make_namespace).join().map_err(|_| "a thread died".to_owned())?;
        let hosts = NetNsPair([new_namespace()?, new_namespace()?]);
        let [first, second] = [hosts.path(0), hosts.path(1)];
        for number in 0..links {
            let link = link(number);
            let veth_options = format!("type veth peer name {link} mtu {mtu} netns {second}");
            run_on_host(&first, &format!("ip link add {link} mtu {mtu} {veth_options}"))?;
            for (host, address_suffix) in [(&first, 1), (&second, 2)] {
                run_on_host(
                    host,
                    &format!("ip address add 10.9.{number}.{address_suffix}/24 dev {link}"),
                )?;
                run_on_host(host, &format!("ip link set {link} up"))?;
                if rate_mbit > 0 {
                    // A whole datagram of 64 KiB fits the bucket; the queue holds about 10 ms.
                    let qdisc =
                        format!("tbf rate {rate_mbit}mbit burst 128kb limit {}", rate_mbit * 1250);
                    run_on_host(host, &format!("tc qdisc add dev {link} root {qdisc}"))?;
                }
            }
        }
        for number in 0..links {
            [&first, &second]
                .into_iter()
                .try_for_each(|host| wait_until_up(host, &link(number)))?;
        }
        Ok(hosts)
    }

    /// The path of namespace `k`, for other processes.
    pub fn path(&self, k: usize) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0[k].as_raw_fd())
    }

    /// Runs a program on both hosts, until the second one ends.
    pub fn run_on_both(
        &self,
        cores: &[usize; 2],
        program: &str,
        words: [&str; 2],
    ) -> BenchResult<()> {
        let command = |k: usize| {
            let mut command = Command::new("taskset");
            command.args(["-c", &cores[k].to_string(), "nsenter"]);
            command.arg(format!("--net={}", self.path(k))).arg(program);
            command.args(words[k].split_whitespace());
            command
        };
        let mut first = command(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        // The first program prints nothing when it begins to listen.
        std::thread::sleep(Duration::from_millis(300));
        let status = command(1).stdin(Stdio::null()).status();
        let _ = first.kill();
        let _ = first.wait();
        let status = status?;
        if status.success() { Ok(()) } else { Err(format!("{program}: {status}").into()) }
    }
}

/// Enters a host's network namespace, and binds the thread to a processor.
pub fn enter(path: &str, core: usize) -> BenchResult<()> {
    enter_net(path)?;
    pin(core)
}

/// Binds the calling thread to a processor.
pub fn pin(core: usize) -> BenchResult<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

/// Enters a host's network namespace.
pub fn enter_net(path: &str) -> BenchResult<()> {
    Ok(setns(File::open(path)?.as_fd(), CloneFlags::CLONE_NEWNET)?)
}
