//! Enters the network namespaces of the virtual hosts of a running job. Scenarios do this to list
//! sockets, to send packets as a process outside the job, and to cut links. This needs root.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

use crate::process::Process;
use crate::{Running, TestEnv, binaries, skip, test_env};

/// The network namespace of a virtual host, or of the switch between virtual hosts. This value
/// keeps the namespace in existence.
#[derive(Debug)]
pub struct NetNs(File);

/// Whether this machine lets tests enter virtual hosts. If not, records a skip.
pub fn can_enter(test: &str) -> bool {
    let skip_reason = match (geteuid().is_root(), test_env::is_installed("ip")) {
        (false, _) => Some("only root can enter virtual hosts"),
        (true, false) => Some("ip(8) is not installed"),
        (true, true) => None,
    };
    skip_reason.into_iter().for_each(|reason| skip(test, reason));
    skip_reason.is_none()
}

impl NetNs {
    /// The network namespace of a process.
    pub fn for_process(process: &Process) -> Self {
        Self(File::open(netns_path(process)).unwrap_or_else(|error| panic!("{process:?}: {error}")))
    }

    /// The namespace of the switch that joins the virtual hosts of a server's job. It is the only
    /// namespace that the server holds and that belongs neither to a host nor to this process.
    pub fn for_switch(env: &TestEnv) -> Self {
        let server = env.wait_for_process("server", |process| {
            process.is_scored() && process.command.contains("-single")
        });
        let mut known_namespaces: Vec<PathBuf> = env
            .processes()
            .iter()
            .filter_map(|process| fs::read_link(netns_path(process)).ok())
            .collect();
        known_namespaces.extend(fs::read_link("/proc/self/ns/net"));
        let entries = fs::read_dir(format!("/proc/{}/fd", server.pid)).expect("root may read it");
        let is_switch_netns = |path: &PathBuf| {
            let namespace = fs::read_link(path).unwrap_or_default();
            namespace.to_string_lossy().starts_with("net:[")
                && !known_namespaces.contains(&namespace)
        };
        let switch_fd = entries.flatten().map(|entry| entry.path()).find(is_switch_netns);
        let switch_fd_path = switch_fd.expect("the server of virtual hosts holds the switch");
        Self(File::open(switch_fd_path).expect("root may open it"))
    }

    /// Runs `action` in the namespace, on a thread of its own.
    pub fn run_inside<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let enter_and_run = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("root may enter a network");
            action()
        };
        thread::scope(|scope| scope.spawn(enter_and_run).join().expect("nothing panics there"))
    }

    /// Runs ip(8) in the namespace.
    pub fn ip(&self, args: &str) {
        let run = || Command::new("ip").args(args.split(' ')).status();
        let status = self.run_inside(run);
        assert!(status.is_ok_and(|status| status.success()), "ip {args}");
    }

    /// Replaces the IPv4 address of eth0 with an IPv6 address. Returns false, and records a skip,
    /// if this machine has no IPv6.
    pub fn use_ipv6_only(&self, test: &str, address: &str) -> bool {
        // The virtual LAN makes its links without IPv6.
        let setting = "/proc/sys/net/ipv6/conf/eth0/disable_ipv6";
        if let Err(error) = self.run_inside(|| fs::write(setting, "0")) {
            skip(test, &format!("{setting}: {error}"));
            return false;
        }
        // Duplicate address detection would take a second.
        self.ip(&format!("addr add {address}/64 dev eth0 nodad"));
        self.ip("-4 addr flush dev eth0");
        true
    }

    /// The TCP ports with a listening socket.
    pub fn listeners(&self) -> Vec<u16> {
        const LISTEN: &str = "0A";
        let ports = ["tcp", "tcp6"].map(|table| self.sockets(table, |_, state| state == LISTEN));
        ports.concat()
    }

    /// The UDP ports that are bound to an address and accept packets from any sender.
    pub fn open_ports(&self, address: IpAddr) -> Vec<u16> {
        const UNCONNECTED: &str = "07";
        let table = if address.is_ipv4() { "udp" } else { "udp6" };
        self.sockets(table, |local, state| local == address && state == UNCONNECTED)
    }

    fn sockets(&self, table: &str, predicate: impl Fn(IpAddr, &str) -> bool) -> Vec<u16> {
        let file = format!("/proc/thread-self/net/{table}");
        let text = self.run_inside(|| fs::read_to_string(file)).expect("/proc/net can be read");
        let port = |line: &str| {
            let mut fields = line.split_whitespace();
            let (address, port) = fields.nth(1)?.split_once(':')?;
            let state = fields.nth(1)?;
            predicate(parse_address(address)?, state).then(|| u16::from_str_radix(port, 16).ok())?
        };
        text.lines().skip(1).filter_map(port).collect()
    }
}

/// Parses an address as the kernel prints it: hexadecimal words of 32 bits in its byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let words = text.as_bytes().chunks(8).map(|word| {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    let v4 = <[u8; 4]>::try_from(&bytes[..]).map(|bytes| Ipv4Addr::from(bytes).into());
    v4.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
}

/// A virtual LAN without jobs: a shell on each host keeps the host until the file `over` exists.
/// Returns the shells, and the network namespace of each host.
pub fn start_lan(env: &TestEnv, hosts: usize, links: u32) -> (Running, Vec<NetNs>) {
    let script = "echo $$ > host$LAN_HOST.new; mv host$LAN_HOST.new host$LAN_HOST; \
                  while [ ! -e over ]; do sleep 0.1; done";
    let (host_count, links) = (hosts.to_string(), links.to_string());
    let args = ["-hosts", &host_count, "-links", &links, "sh", "-c", script];
    let shells = env.command(binaries::program("score-lan")).args(&args).start();
    let netns_of_host = |number: usize| {
        let file = env.dir().join(format!("host{number}"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !file.exists() {
            assert!(Instant::now() < deadline, "{}", shells.stderr());
            thread::sleep(Duration::from_millis(10));
        }
        let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        NetNs::for_process(&env.wait_for_process("a host's shell", |process| process.pid == pid))
    };
    let namespaces = (0..hosts).map(netns_of_host).collect();
    (shells, namespaces)
}

fn netns_path(process: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", process.pid))
}

/// Waits for the daemon of a virtual host other than the first.
pub fn wait_for_daemon(env: &TestEnv, host: &str) -> Process {
    let host_option = format!("-host {host} ");
    env.wait_for_process("daemon", |process| {
        process.is_scored() && process.command.contains(&host_option)
    })
}
