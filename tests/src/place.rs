//! Stepping onto the virtual hosts of a job that runs, as only root can: to see its sockets, to
//! talk to them as a stranger would, to pull a cable.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;

use crate::process::Process;
use crate::{Scene, scene, skip};

/// The network of a virtual host, or the switch between them. It is there as long as this value.
#[derive(Debug)]
pub struct Place(File);

/// Whether this machine lets tests step onto virtual hosts; else a skip is recorded.
pub fn can_enter(test: &str) -> bool {
    let wants = match (geteuid().is_root(), scene::have("ip")) {
        (false, _) => Some("stepping onto virtual hosts is for root"),
        (true, false) => Some("ip(8) is not installed"),
        (true, true) => None,
    };
    wants.into_iter().for_each(|reason| skip(test, reason));
    wants.is_none()
}

impl Place {
    /// Where a process is.
    pub fn of(process: &Process) -> Self {
        Self(File::open(network_of(process)).unwrap_or_else(|error| panic!("{process:?}: {error}")))
    }

    /// The switch that joins the virtual hosts of a server's job: the one network that it holds
    /// and that is neither a host's nor ours.
    pub fn switch(scene: &Scene) -> Self {
        let server = scene.wait_for_process("server", |process| {
            process.is_scored() && process.command.contains("-single")
        });
        let mut known: Vec<PathBuf> = scene
            .processes()
            .iter()
            .filter_map(|one| fs::read_link(network_of(one)).ok())
            .collect();
        known.extend(fs::read_link("/proc/self/ns/net"));
        let entries = fs::read_dir(format!("/proc/{}/fd", server.pid)).expect("root may look");
        let is_switch = |path: &PathBuf| {
            let network = fs::read_link(path).unwrap_or_default();
            network.to_string_lossy().starts_with("net:[") && !known.contains(&network)
        };
        let held = entries.flatten().map(|entry| entry.path()).find(is_switch);
        let held = held.expect("the server of virtual hosts holds the switch");
        Self(File::open(held).expect("root may open it"))
    }

    /// Does something there, on a thread of its own.
    pub fn act<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let there = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("root may enter a network");
            act()
        };
        thread::scope(|scope| scope.spawn(there).join().expect("nothing panics there"))
    }

    /// Runs ip(8) there.
    pub fn ip(&self, words: &str) {
        let run = || Command::new("ip").args(words.split(' ')).status();
        let status = self.act(run);
        assert!(status.is_ok_and(|status| status.success()), "ip {words}");
    }

    /// Ports at which somebody waits for connections.
    pub fn listeners(&self) -> Vec<u16> {
        const LISTEN: &str = "0A";
        self.sockets("tcp", |_, state| state == LISTEN)
    }

    /// UDP ports that are bound to an address and take packets from anybody.
    pub fn open_ports(&self, address: Ipv4Addr) -> Vec<u16> {
        const UNCONNECTED: &str = "07";
        self.sockets("udp", |local, state| local == address && state == UNCONNECTED)
    }

    fn sockets(&self, kind: &str, wanted: impl Fn(Ipv4Addr, &str) -> bool) -> Vec<u16> {
        let file = format!("/proc/thread-self/net/{kind}");
        let text = self.act(|| fs::read_to_string(file)).expect("/proc/net can be read");
        let port = |line: &str| {
            let mut fields = line.split_whitespace();
            let (address, port) = fields.nth(1)?.split_once(':')?;
            let state = fields.nth(1)?;
            let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
            wanted(address.into(), state).then(|| u16::from_str_radix(port, 16).ok())?
        };
        text.lines().skip(1).filter_map(port).collect()
    }
}

fn network_of(process: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", process.pid))
}

/// The daemon of a virtual host other than the first.
pub fn daemon(scene: &Scene, host: &str) -> Process {
    let words = format!("-host {host} ");
    scene.wait_for_process("daemon", |one| one.is_scored() && one.command.contains(&words))
}
