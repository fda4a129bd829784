//! Several hosts in one test. Each host has an owner, the addresses of the others, and processes.

use crate::roles;
use crate::testbed::Process;
use score_pm::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const FDS_ENV: &str = "PM_TEST_FDS";

/// The devices and contexts of a host's owner.
pub struct HostOwner {
    pub first: u32,
    pub local: u32,
    pub shmem: Option<Device>,
    pub ethernet: Device,
    pub contexts: Vec<(Option<ContextRef>, ContextRef)>,
}

/// The hosts of a job.
pub struct Hosts {
    pub nodes: u32,
    pub hosts: Vec<HostOwner>,
}

/// The node numbers and descriptors that a process inherits.
pub struct InheritedNode {
    pub node: u32,
    pub first: u32,
    pub local: u32,
    pub nodes: u32,
    pub shmem: Option<OwnedFd>,
    pub ethernet: OwnedFd,
}

impl Hosts {
    /// Makes one host for each number of nodes in `shape`. `options` are additional options of the
    /// ethernet device.
    pub fn new(shape: &[u32], options: &[&str]) -> Hosts {
        let nodes = shape.iter().sum::<u32>();
        let mut first = 0;
        let mut hosts = Vec::new();
        for &local in shape {
            hosts.push(HostOwner::new(nodes, first, local, options));
            first += local;
        }
        let table: Vec<u8> =
            hosts.iter().flat_map(|host| host.ethernet.addresses().unwrap()).collect();
        // A device with all nodes needs no addresses.
        if hosts.len() > 1 {
            hosts.iter().for_each(|host| host.ethernet.set_peers(&table).unwrap());
        }
        Hosts { nodes, hosts }
    }

    fn of(&self, node: u32) -> &HostOwner {
        self.hosts.iter().find(|h| (h.first..h.first + h.local).contains(&node)).unwrap()
    }

    pub fn give(&self, node: u32) -> InheritedNode {
        let host = self.of(node);
        let (shmem, ethernet) = &host.contexts[(node - host.first) as usize];
        InheritedNode {
            node,
            first: host.first,
            local: host.local,
            nodes: self.nodes,
            shmem: shmem.as_ref().map(|c| c.create_attach_fd().unwrap()),
            ethernet: ethernet.create_attach_fd().unwrap(),
        }
    }

    /// Starts this test binary again as `node`, with this role. `module` is the `module_path!()` of
    /// the test `role` that has the code.
    pub fn start(&self, node: u32, module: &str, role: &str) -> Process {
        let given = self.give(node);
        let shmem = given.shmem.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let ethernet = given.ethernet.as_raw_fd();
        let mut command = roles::command(module, role);
        [shmem, ethernet].into_iter().for_each(|fd| roles::pass_on(&mut command, fd));
        let InheritedNode { first, local, nodes, .. } = given;
        let inherited = format!("{node} {first} {local} {nodes} {shmem} {ethernet}");
        Process(command.env(FDS_ENV, inherited).spawn().unwrap())
    }

    /// Marks a node's process as exited at every owner, as the job master does.
    pub fn exited(&self, node: u32) {
        for host in &self.hosts {
            if (host.first..host.first + host.local).contains(&node) {
                if let Some(shmem) = &host.shmem {
                    shmem.mark_exited(node - host.first).unwrap();
                }
                host.ethernet.mark_exited(node).unwrap();
            } else {
                host.ethernet.peer_exited(node).unwrap();
            }
        }
    }

    /// Serves the orphans of exited processes as long as `wait` returns true.
    pub fn serve_while(&self, mut wait: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while wait() {
            self.hosts.iter().for_each(|host| host.ethernet.serve().unwrap());
            std::thread::sleep(Duration::from_micros(200));
            assert!(Instant::now() < deadline, "served for 60 s");
        }
    }

    /// Returns the number of messages that all nodes have sent over ethernet, and the number that
    /// they have received.
    pub fn sums(&self) -> (u64, u64) {
        let mut sums = (0, 0);
        for host in &self.hosts {
            for node in host.first..host.first + host.local {
                let counters = host.ethernet.counters(node).unwrap();
                sums = (sums.0 + counters.sent, sums.1 + counters.received);
            }
        }
        sums
    }
}

impl HostOwner {
    fn new(nodes: u32, first: u32, local: u32, options: &[&str]) -> HostOwner {
        let (n, f, l) = (nodes.to_string(), first.to_string(), local.to_string());
        let secret = ["-secret", "1234567890abcdef"];
        let mut args = vec!["-nodes", &n, "-first", &f, "-local", &l];
        args.extend(secret);
        args.extend(options);
        if !options.contains(&"-link") {
            args.extend(["-link", "127.0.0.1"]);
        }
        let ethernet = Device::open(DeviceOptions::parse("ethernet", &args).unwrap()).unwrap();
        let shmem = (local > 1).then(|| Device::open(ShmemOptions::new(local as usize)).unwrap());
        let context = |k: u32| {
            let ethernet_context = ethernet.open_context(k as usize).unwrap();
            ethernet_context.bind_channel(0, first + k).unwrap();
            let shmem_context = shmem.as_ref().map(|device| {
                let context = device.open_context(k as usize).unwrap();
                context.bind_channel(0, k).unwrap();
                context
            });
            (shmem_context, ethernet_context)
        };
        let contexts = (0..local).map(context).collect();
        HostOwner { first, local, shmem, ethernet, contexts }
    }
}

/// The contexts of a node in its process.
pub struct Node {
    pub end: ContextRef,
    pub ethernet: ContextRef,
    _shmem: Option<ContextRef>,
    _composite: Device,
}

impl InheritedNode {
    /// Joins both contexts in a composite, which uses shmem on this host and ethernet to other
    /// hosts.
    pub fn join(self) -> Node {
        let shmem = self.shmem.map(|fd| Context::attach("shmem", fd).unwrap());
        let ethernet = Context::attach("ethernet", self.ethernet).unwrap();
        let device = Device::open(CompositeOptions::new(self.nodes as usize)).unwrap();
        let end = device.open_context(0).unwrap();
        for node in 0..self.nodes {
            let local = (self.first..self.first + self.local).contains(&node);
            match &shmem {
                Some(shmem) if local => end.add_node(node, shmem, node - self.first).unwrap(),
                _ => end.add_node(node, &ethernet, node).unwrap(),
            }
        }
        assert_eq!(end.self_node(), Ok(self.node));
        Node { end, ethernet, _shmem: shmem, _composite: device }
    }

    /// Returns the role and the inherited node of a process that [`Hosts::start`] has started, or
    /// None in other processes.
    pub fn inherited() -> Option<(String, InheritedNode)> {
        let role = roles::role()?;
        let words = std::env::var(FDS_ENV).unwrap();
        let words: Vec<i64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
        // SAFETY: the process inherits the descriptor for this purpose, and nothing else uses it.
        let take_fd = |fd: i64| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let given = InheritedNode {
            node: words[0] as u32,
            first: words[1] as u32,
            local: words[2] as u32,
            nodes: words[3] as u32,
            shmem: (words[4] >= 0).then(|| take_fd(words[4])),
            ethernet: take_fd(words[5]),
        };
        Some((role, given))
    }
}
