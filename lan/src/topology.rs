//! Creates a LAN and moves threads between its hosts.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::geteuid;

use crate::lan_plan::LanPlan;
use crate::link_requests;
use crate::namespace::{self, HostNamespace};
use crate::netlink::{Netlink, NetlinkError};

/// The reason why a LAN could not be created.
#[derive(Debug)]
pub enum BuildError {
    /// This machine or user may not have network namespaces, or the kernel lacks the drivers for
    /// the links.
    Refused(String),
    /// The plan is impossible.
    InvalidSpec(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (BuildError::Refused(text) | BuildError::InvalidSpec(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for BuildError {}

fn refused(operation: &str, error: &io::Error) -> BuildError {
    let text = if error.raw_os_error() == Some(Errno::ENOSPC as i32) {
        // The kernel reports the limit on namespaces as ENOSPC.
        "the limit on namespaces is reached (/proc/sys/user)".to_owned()
    } else {
        error.to_string()
    };
    BuildError::Refused(format!(
        "{operation}: {}",
        text.split(" (os error").next().unwrap_or_default()
    ))
}

fn refused_on(host: &str, error: &NetlinkError) -> BuildError {
    refused(&format!("{} of {host}", error.label), &error.source)
}

/// A LAN. It exists as long as this value, or a process on one of its hosts. The links between
/// hosts disappear with the process that has this value.
#[derive(Debug)]
pub struct Lan {
    plan: LanPlan,
    /// The namespaces of the switch. `None` if there is one host, or if two hosts are connected
    /// directly.
    switch: Option<HostNamespace>,
    hosts: Vec<HostNamespace>,
    /// The former namespaces of the calling thread. None if the thread cannot return to them.
    origin: Option<HostNamespace>,
}

impl Lan {
    /// Creates all hosts and links, and moves the calling thread onto host 0. A user other than
    /// root, or root without the privilege, first gets a user namespace. That requires a process
    /// with one thread, and the thread cannot leave the namespace again.
    ///
    /// # Errors
    /// [`BuildError::InvalidSpec`]: nothing has changed. [`BuildError::Refused`]: from now on the
    /// thread may be in an empty network namespace with only loopback.
    pub fn build(plan: &LanPlan) -> Result<Lan, BuildError> {
        plan.check().map_err(BuildError::InvalidSpec)?;
        let lan = Self::create_namespaces(plan)?;
        let result = lan.create_links();
        // Even if the links cannot be created, the caller is on host 0 afterwards, as documented.
        lan.enter(0).map_err(|error| refused("setns", &error))?;
        if result.is_err() {
            let _ = Netlink::open().map(|netlink| netlink.execute(link_requests::loopback()));
        }
        result.map(|()| lan)
    }

    /// Creates the namespaces. Afterwards the thread is in the last one.
    fn create_namespaces(plan: &LanPlan) -> Result<Lan, BuildError> {
        let origin =
            HostNamespace::current().map_err(|error| refused("/proc/thread-self/ns", &error))?;
        let root_namespace =
            if geteuid().is_root() { HostNamespace::new(&plan.name(0)).ok() } else { None };
        let (first, origin) = match root_namespace {
            Some(namespace) => (namespace, Some(origin)),
            None => {
                namespace::enter_user_namespace()
                    .map_err(|error| refused("user namespace", &error))?;
                let first = HostNamespace::new(&plan.name(0));
                (first.map_err(|error| refused("network namespace", &error))?, None)
            }
        };
        let new = |name: &str| {
            HostNamespace::new(name)
                .map_err(|error| refused(&format!("network namespace {name}"), &error))
        };
        let mut hosts = vec![first];
        for host in 1..plan.hosts {
            hosts.push(new(&plan.name(host))?);
        }
        // A limit on both directions of each link requires a switch, even between two hosts.
        let direct = plan.hosts == 2 && plan.rate.is_none();
        let switch = if plan.hosts > 1 && !direct { Some(new("switch")?) } else { None };
        Ok(Lan { plan: plan.clone(), switch, hosts, origin })
    }

    fn create_links(&self) -> Result<(), BuildError> {
        let plan = &self.plan;
        match &self.switch {
            Some(switch) => {
                let netlink = open_in(switch)?;
                let bridges = netlink.execute(link_requests::bridges(plan));
                bridges.map_err(|error| refused_on("the switch", &error))?;
                for (host, namespace) in (0..).zip(&self.hosts) {
                    let requests = link_requests::switch_links(plan, host, namespace.net().as_fd());
                    netlink
                        .execute(requests)
                        .map_err(|error| refused_on(&plan.name(host), &error))?;
                }
            }
            None => {
                if let [first, second] = &self.hosts[..] {
                    let requests = link_requests::direct_veth(plan, second.net().as_fd());
                    open_in(first)?
                        .execute(requests)
                        .map_err(|error| refused_on(&plan.name(1), &error))?;
                }
            }
        }
        for (host, namespace) in (0..).zip(&self.hosts) {
            let requests = if plan.hosts == 1 {
                link_requests::loopback()
            } else {
                link_requests::configure_host(plan, host)
            };
            open_in(namespace)?
                .execute(requests)
                .map_err(|error| refused_on(&plan.name(host), &error))?;
        }
        // All hosts have set up their ends. Now query the other ends.
        let (namespace, requests) = match (&self.switch, &self.hosts[..]) {
            (Some(switch), _) => (switch, link_requests::get_port_links(plan)),
            (None, [first, _]) => (first, link_requests::get_nic_links(plan, 0)),
            _ => return Ok(()),
        };
        open_in(namespace)?.execute(requests).map_err(|error| refused_on("the switch", &error))
    }

    /// The plan of this LAN.
    pub fn plan(&self) -> &LanPlan {
        &self.plan
    }

    /// The address of a host on the first network. A LAN of one host has only loopback.
    pub fn address(&self, host: u32) -> Ipv4Addr {
        if self.plan.hosts == 1 { Ipv4Addr::LOCALHOST } else { LanPlan::address(host, 0) }
    }

    /// Moves the calling thread onto a host.
    ///
    /// # Errors
    /// The errors of setns(2).
    pub fn enter(&self, host: u32) -> io::Result<()> {
        match self.hosts.get(host as usize) {
            Some(namespace) => namespace.enter(),
            None => Err(io::Error::other(format!("{} is not in this LAN", self.plan.name(host)))),
        }
    }

    /// Runs `action` on a host, then returns the thread to its former namespaces. A process that
    /// `action` starts stays on the host.
    ///
    /// # Errors
    /// The errors of setns(2).
    pub fn run_on_host<T>(&self, host: u32, action: impl FnOnce() -> T) -> io::Result<T> {
        let previous = HostNamespace::current()?;
        self.enter(host)?;
        let result = action();
        previous.enter()?;
        Ok(result)
    }

    /// Moves a thread back to the original namespaces of the thread that called `build`. This is
    /// for a thread of root that [`Lan::build`] or [`Lan::enter`] has moved.
    ///
    /// # Errors
    /// If the thread is in a user namespace, which it cannot leave. Otherwise the errors of
    /// setns(2).
    pub fn leave(&self) -> io::Result<()> {
        match &self.origin {
            Some(namespace) => namespace.enter(),
            None => Err(io::Error::other("cannot leave a user namespace")),
        }
    }

    /// Disconnects a host from the switch, or connects it again. The host keeps its addresses,
    /// and its link is down.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn set_link(&self, host: u32, link: u32, up: bool) -> io::Result<()> {
        let (namespace, index) = match &self.switch {
            Some(switch) => (switch, link_requests::port(&self.plan, host, link)),
            // The other end of the only pair.
            None => {
                let other = 1 - host.min(1);
                let namespace = self.hosts.get(other as usize);
                let namespace =
                    namespace.ok_or_else(|| io::Error::other("a LAN of one host has no link"))?;
                (namespace, link_requests::nic(other, link))
            }
        };
        let change = vec![link_requests::set_up(index, up), link_requests::get_link(index)];
        open_and_return(namespace)?.execute(change).map_err(|error| error.source)?;
        let Some(host_namespace) = self.hosts.get(host as usize) else { return Ok(()) };
        let requests = vec![link_requests::get_link(link_requests::nic(host, link))];
        open_and_return(host_namespace)?.execute(requests).map_err(|error| error.source)
    }
}

/// Opens a socket in a namespace. The thread stays there.
fn open_in(namespace: &HostNamespace) -> Result<Netlink, BuildError> {
    namespace.enter().and_then(|()| Netlink::open()).map_err(|error| refused("netlink", &error))
}

fn open_and_return(namespace: &HostNamespace) -> io::Result<Netlink> {
    let previous = HostNamespace::current()?;
    namespace.enter()?;
    let netlink = Netlink::open();
    previous.enter()?;
    netlink
}
