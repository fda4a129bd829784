//! Making a LAN and moving between its hosts.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::geteuid;

use crate::namespace::{self, Place};
use crate::netlink::{Netlink, Refusal};
use crate::plan::Plan;
use crate::wiring;

/// Why there is no LAN.
#[derive(Debug)]
pub enum Fault {
    /// This machine or user may not have network namespaces, or lacks what links are made of.
    Refused(String),
    /// The plan cannot be.
    Plan(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Fault::Refused(text) | Fault::Plan(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Fault {}

fn refused(what: &str, error: &io::Error) -> Fault {
    let text = if error.raw_os_error() == Some(Errno::ENOSPC as i32) {
        // What it means here.
        "the limit on namespaces is reached (/proc/sys/user)".to_owned()
    } else {
        error.to_string()
    };
    Fault::Refused(format!("{what}: {}", text.split(" (os error").next().unwrap_or_default()))
}

fn refused_on(host: &str, refusal: &Refusal) -> Fault {
    refused(&format!("{} of {host}", refusal.what), &refusal.error)
}

/// A LAN. It is there as long as this value or a process on one of its hosts; links to hosts go
/// with this value's process.
#[derive(Debug)]
pub struct Lan {
    plan: Plan,
    /// Where the switch is; None where two hosts are joined directly.
    switch: Option<Place>,
    hosts: Vec<Place>,
    /// Where the calling thread came from; None where there is no way back.
    origin: Option<Place>,
}

impl Lan {
    /// Makes all hosts and links, and moves the calling thread onto host 0. Who is not root, or is
    /// root without the right, gets a user namespace first, which needs a process with one thread
    /// and cannot be left again.
    ///
    /// # Errors
    /// [`Fault::Plan`]: nothing has happened. [`Fault::Refused`]: the thread may be in an empty
    /// network namespace, with loopback only, from then on.
    pub fn build(plan: &Plan) -> Result<Lan, Fault> {
        plan.check().map_err(Fault::Plan)?;
        let lan = Self::places(plan)?;
        let wired = lan.wire();
        // Even where wiring fails, the caller stays where it is expected to be.
        lan.enter(0).map_err(|error| refused("setns", &error))?;
        if wired.is_err() {
            let _ = Netlink::open().map(|netlink| netlink.execute(wiring::loopback()));
        }
        wired.map(|()| lan)
    }

    /// Makes the namespaces; the thread is in the last of them afterwards.
    fn places(plan: &Plan) -> Result<Lan, Fault> {
        let origin = Place::here().map_err(|error| refused("/proc/thread-self/ns", &error))?;
        let as_root = if geteuid().is_root() { Place::new(&plan.name(0)).ok() } else { None };
        let (first, origin) = match as_root {
            Some(place) => (place, Some(origin)),
            None => {
                namespace::become_own_ruler().map_err(|error| refused("user namespace", &error))?;
                let first = Place::new(&plan.name(0));
                (first.map_err(|error| refused("network namespace", &error))?, None)
            }
        };
        let new = |name: &str| {
            Place::new(name).map_err(|error| refused(&format!("network namespace {name}"), &error))
        };
        let mut hosts = vec![first];
        for host in 1..plan.hosts {
            hosts.push(new(&plan.name(host))?);
        }
        // A limit on both directions of each link needs a switch, also between two.
        let direct = plan.hosts == 2 && plan.rate.is_none();
        let switch = if plan.hosts > 1 && !direct { Some(new("switch")?) } else { None };
        Ok(Lan { plan: plan.clone(), switch, hosts, origin })
    }

    fn wire(&self) -> Result<(), Fault> {
        let plan = &self.plan;
        match &self.switch {
            Some(switch) => {
                let netlink = open_in(switch)?;
                let bridges = netlink.execute(wiring::bridges(plan));
                bridges.map_err(|refusal| refused_on("the switch", &refusal))?;
                for (host, place) in (0..).zip(&self.hosts) {
                    let cables = wiring::cables(plan, host, place.net().as_fd());
                    netlink
                        .execute(cables)
                        .map_err(|refusal| refused_on(&plan.name(host), &refusal))?;
                }
            }
            None => {
                if let [first, second] = &self.hosts[..] {
                    let cables = wiring::crossed_cables(plan, second.net().as_fd());
                    open_in(first)?
                        .execute(cables)
                        .map_err(|refusal| refused_on(&plan.name(1), &refusal))?;
                }
            }
        }
        for (host, place) in (0..).zip(&self.hosts) {
            let requests =
                if plan.hosts == 1 { wiring::loopback() } else { wiring::settle(plan, host) };
            open_in(place)?
                .execute(requests)
                .map_err(|refusal| refused_on(&plan.name(host), &refusal))?;
        }
        // Now that all have taken up their ends, the other ends.
        let (place, looks) = match (&self.switch, &self.hosts[..]) {
            (Some(switch), _) => (switch, wiring::look_at_ports(plan)),
            (None, [first, _]) => (first, wiring::look_at_nics(plan, 0)),
            _ => return Ok(()),
        };
        open_in(place)?.execute(looks).map_err(|refusal| refused_on("the switch", &refusal))
    }

    /// What was asked for.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A host's address on the first network. A LAN of one host has loopback only.
    pub fn address(&self, host: u32) -> Ipv4Addr {
        if self.plan.hosts == 1 { Ipv4Addr::LOCALHOST } else { Plan::address(host, 0) }
    }

    /// Moves the calling thread onto a host.
    ///
    /// # Errors
    /// As setns(2).
    pub fn enter(&self, host: u32) -> io::Result<()> {
        match self.hosts.get(host as usize) {
            Some(place) => place.enter(),
            None => Err(io::Error::other(format!("{} is not in this LAN", self.plan.name(host)))),
        }
    }

    /// Does something on a host (a process that is started there stays there), then comes back to
    /// where the calling thread was.
    ///
    /// # Errors
    /// As setns(2).
    pub fn on<T>(&self, host: u32, act: impl FnOnce() -> T) -> io::Result<T> {
        let before = Place::here()?;
        self.enter(host)?;
        let result = act();
        before.enter()?;
        Ok(result)
    }

    /// Takes a thread that root has moved by [`Lan::build`] or [`Lan::enter`] back to where
    /// `build` found its thread.
    ///
    /// # Errors
    /// There is no way back out of a user namespace; else as setns(2).
    pub fn leave(&self) -> io::Result<()> {
        match &self.origin {
            Some(place) => place.enter(),
            None => Err(io::Error::other("there is no way back out of a user namespace")),
        }
    }

    /// Pulls a host's cable out of the switch, or puts it back: the host keeps its addresses and
    /// sees that its link is down.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn set_link(&self, host: u32, link: u32, up: bool) -> io::Result<()> {
        let (place, index) = match &self.switch {
            Some(switch) => (switch, wiring::port(&self.plan, host, link)),
            // The other end of the only pair.
            None => {
                let other = 1 - host.min(1);
                let place = self.hosts.get(other as usize);
                let place = place.ok_or_else(|| io::Error::other("one host has no link"))?;
                (place, wiring::nic(other, link))
            }
        };
        let change = vec![wiring::set_up(index, up), wiring::look(index)];
        open_and_return(place)?.execute(change).map_err(|refusal| refusal.error)?;
        let Some(own) = self.hosts.get(host as usize) else { return Ok(()) };
        let look = vec![wiring::look(wiring::nic(host, link))];
        open_and_return(own)?.execute(look).map_err(|refusal| refusal.error)
    }
}

/// Opens a socket to a place, and stays there.
fn open_in(place: &Place) -> Result<Netlink, Fault> {
    place.enter().and_then(|()| Netlink::open()).map_err(|error| refused("netlink", &error))
}

fn open_and_return(place: &Place) -> io::Result<Netlink> {
    let before = Place::here()?;
    place.enter()?;
    let netlink = Netlink::open();
    before.enter()?;
    netlink
}
