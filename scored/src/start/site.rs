//! From the hosts of a job to what their daemons are started on.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use score_lan::Plan;
use score_proto::message::{HostKind, HostSpec};

use super::ground::Ground;
use super::way::Way;
use super::{Host, Order, Starter, own_addresses};

/// What the user asked for concerning how daemons start.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// `start=WAY`
    pub way: Option<String>,
    /// `links`, `mtu` and `rate` of virtual hosts, in their order.
    pub links: Vec<(String, String)>,
    /// How long a daemon may take to come up, if not as long as usual.
    pub limit: Option<Duration>,
}

/// The hosts of a job, ready for daemons.
#[derive(Debug)]
pub struct Site {
    way: Way,
    ground: Option<Ground>,
    hosts: Vec<Host>,
    limit: Option<Duration>,
}

impl Site {
    /// Makes virtual hosts, which moves this process onto the first of them; it must have one
    /// thread then. Finds the way to others.
    ///
    /// # Errors
    /// One line: nothing can be started.
    pub fn new(hosts: &[HostSpec], wishes: &Wishes) -> Result<Site, String> {
        let virtual_hosts = hosts.iter().filter(|host| host.kind == HostKind::Virtual).count();
        let (way, ground) = if virtual_hosts > 0 {
            if virtual_hosts < hosts.len() {
                return Err("virtual hosts and others cannot be in one job".to_owned());
            }
            (Way::Virtual, Some(Ground::lay(&plan(hosts, wishes)?)?))
        } else {
            if let Some((name, _)) = wishes.links.first() {
                return Err(format!("{name}: only virtual hosts (local:N) have that option"));
            }
            (Way::choose(wishes.way.as_deref(), &|name| std::env::var_os(name))?, None)
        };
        let elsewhere = |host: &HostSpec| match host.kind {
            HostKind::This => false,
            HostKind::Virtual => virtual_number(&host.name) != Some(0),
            HostKind::Other => true,
        };
        let listed = |(position, host): (usize, &HostSpec)| {
            // A batch system knows hosts by the names that it gave.
            let by_address = way == Way::Shell && !host.address.is_empty();
            let reach = if by_address { &host.address } else { &host.name };
            Host { position, name: host.name.clone(), reach: reach.clone() }
        };
        let others = hosts.iter().enumerate().filter(|(_, host)| elsewhere(host)).map(listed);
        Ok(Site { way, ground, hosts: others.collect(), limit: wishes.limit })
    }

    /// What the user shall be told of it.
    pub fn notice(&self) -> Option<&str> {
        self.ground.as_ref().and_then(Ground::notice)
    }

    /// The hosts on which daemons are to be started.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Addresses at which daemons on those hosts may find this process.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        self.ground.as_ref().map_or_else(own_addresses, |ground| ground.addresses(0))
    }

    /// Prepares to start `command` on every other host; `secret` is handed over.
    ///
    /// # Errors
    /// One line: nothing has been started.
    pub fn starter(self, command: Vec<OsString>, secret: Vec<u8>) -> Result<Starter, String> {
        let order = Order { hosts: self.hosts, command, secret };
        Starter::new(self.way, order, self.ground, self.limit)
    }
}

/// The LAN for these virtual hosts: their numbers are in their names, and a job may have some only.
fn plan(hosts: &[HostSpec], wishes: &Wishes) -> Result<Plan, String> {
    let mut count = 0;
    for host in hosts {
        let number = virtual_number(&host.name);
        let number = number.ok_or_else(|| format!("{}: no name of a virtual host", host.name))?;
        count = count.max(number.saturating_add(1));
    }
    let mut plan = Plan::new(count);
    for (name, value) in &wishes.links {
        plan.set(name, value)?;
    }
    Ok(plan)
}

/// The number of a virtual host.
pub(super) fn virtual_number(name: &str) -> Option<u32> {
    name.strip_prefix(Plan::new(1).prefix.as_str())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, kind: HostKind) -> HostSpec {
        HostSpec { name: name.to_owned(), kind, processors: 1, ..HostSpec::this(1) }
    }

    #[test]
    fn this_host_needs_no_daemon_and_addresses_are_for_the_remote_shell() {
        let mut hosts = [host("a", HostKind::Other), host("b", HostKind::This)].to_vec();
        hosts.push(HostSpec { address: "10.0.0.3".to_owned(), ..host("c", HostKind::Other) });
        let wishes = |way: &str| Wishes { way: Some(way.to_owned()), ..Wishes::default() };
        let reach = |way: &str| {
            let site = Site::new(&hosts, &wishes(way)).unwrap();
            let hosts = site.hosts().iter().map(|host| (host.position, host.reach.clone()));
            hosts.collect::<Vec<_>>()
        };
        assert_eq!(reach("ssh"), [(0, "a".to_owned()), (2, "10.0.0.3".to_owned())]);
        assert_eq!(reach("slurm"), [(0, "a".to_owned()), (2, "c".to_owned())]);
    }

    #[test]
    fn links_are_for_virtual_hosts_and_kinds_do_not_mix() {
        let links = vec![("mtu".to_owned(), "9000".to_owned())];
        let wishes = Wishes { links, ..Wishes::default() };
        let fault = Site::new(&[host("a", HostKind::Other)], &wishes).unwrap_err();
        assert!(fault.contains("mtu") && fault.contains("local:N"), "{fault}");
        let mixed = [host("local0", HostKind::Virtual), host("a", HostKind::Other)];
        assert!(Site::new(&mixed, &Wishes::default()).unwrap_err().contains("one job"));
    }

    #[test]
    fn a_part_of_the_virtual_hosts_has_a_lan_that_holds_them() {
        let hosts = [host("local5", HostKind::Virtual), host("local2", HostKind::Virtual)];
        assert_eq!(plan(&hosts, &Wishes::default()).unwrap().hosts, 6);
        let fault = plan(&[host("n1", HostKind::Virtual)], &Wishes::default()).unwrap_err();
        assert!(fault.contains("n1"), "{fault}");
        assert!(
            plan(&[host("local4294967295", HostKind::Virtual)], &Wishes::default())
                .is_ok_and(|plan| plan.check().is_err())
        );
    }
}
