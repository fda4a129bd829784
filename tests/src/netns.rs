//! Enters the network namespaces of the virtual hosts of a running job. Scenarios do this to list
//! sockets, to send packets as a process outside the job, and to cut links. It needs root.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

use crate::process::Process;
use crate::{TestEnv, skip, test_env};

/// The network namespace of a virtual host, or of the switch between virtual hosts. This value
/// keeps the namespace in existence.
#[derive(Debug)]
pub struct NetNs(File);

/// Whether this machine lets tests enter virtual hosts. If not, records a skip.
pub fn can_enter(test: &str) -> bool {
    let skip_reason = match (geteuid().is_root(), test_env::is_installed("ip")) {
        (false, _) => Some("stepping onto virtual hosts is for root"),
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

    /// The TCP ports with a listening socket.
    pub fn listeners(&self) -> Vec<u16> {
        const LISTEN: &str = "0A";
        self.sockets("tcp", |_, state| state == LISTEN)
    }

    /// The UDP ports that are bound to an address and accept packets from any sender.
    pub fn open_ports(&self, address: Ipv4Addr) -> Vec<u16> {
        const UNCONNECTED: &str = "07";
        self.sockets("udp", |local, state| local == address && state == UNCONNECTED)
    }

    fn sockets(&self, protocol: &str, predicate: impl Fn(Ipv4Addr, &str) -> bool) -> Vec<u16> {
        let file = format!("/proc/thread-self/net/{protocol}");
        let text = self.run_inside(|| fs::read_to_string(file)).expect("/proc/net can be read");
        let port = |line: &str| {
            let mut fields = line.split_whitespace();
            let (address, port) = fields.nth(1)?.split_once(':')?;
            let state = fields.nth(1)?;
            let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
            predicate(address.into(), state).then(|| u16::from_str_radix(port, 16).ok())?
        };
        text.lines().skip(1).filter_map(port).collect()
    }
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
