//! Converts the hosts of a job to launch targets for their daemons.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use score_lan::LanPlan;
use score_proto::message::{HostKind, HostSpec};

use super::method::LaunchMethod;
use super::virtual_hosts::VirtualHosts;
use super::{LaunchHost, LaunchRequest, Launcher, local_addresses, virtual_number};

/// The user's options for starting daemons.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LaunchOptions {
    /// `start=WAY`
    pub method: Option<String>,
    /// The options `links`, `mtu` and `rate` of virtual hosts, in the user's order.
    pub lan_options: Vec<(String, String)>,
    /// How long a daemon may take to arrive. `None`: the default.
    pub arrival_timeout: Option<Duration>,
}

/// The hosts of a job, prepared for the start of daemons.
#[derive(Debug)]
pub struct LaunchTargets {
    method: LaunchMethod,
    virtual_hosts: Option<VirtualHosts>,
    hosts: Vec<LaunchHost>,
    arrival_timeout: Option<Duration>,
}

impl LaunchTargets {
    /// Prepares the hosts. Selects the method for real hosts. Creates virtual hosts, which moves
    /// this process to the first of them; the process must have only one thread then.
    ///
    /// # Errors
    /// One line with the reason why no daemon can be started.
    pub fn new(hosts: &[HostSpec], options: &LaunchOptions) -> Result<LaunchTargets, String> {
        let virtual_count = hosts.iter().filter(|host| host.kind == HostKind::Virtual).count();
        let (method, created) = if virtual_count > 0 {
            if virtual_count < hosts.len() {
                return Err("virtual hosts and others cannot be in one job".to_owned());
            }
            (LaunchMethod::Virtual, Some(VirtualHosts::create(&lan_plan(hosts, options)?)?))
        } else {
            if let Some((name, _)) = options.lan_options.first() {
                return Err(format!("{name}: only virtual hosts (local:N) have that option"));
            }
            (LaunchMethod::choose(options.method.as_deref(), &|name| std::env::var_os(name))?, None)
        };
        let is_remote = |host: &HostSpec| match host.kind {
            HostKind::Local => false,
            HostKind::Virtual => virtual_number(&host.name) != Some(0),
            HostKind::Remote => true,
        };
        let to_launch_host = |(position, host): (usize, &HostSpec)| {
            // A batch system accepts only the names that it has assigned.
            let by_address = method == LaunchMethod::Shell && !host.address.is_empty();
            let launch_name = if by_address { &host.address } else { &host.name };
            LaunchHost { position, name: host.name.clone(), launch_name: launch_name.clone() }
        };
        let others =
            hosts.iter().enumerate().filter(|(_, host)| is_remote(host)).map(to_launch_host);
        Ok(LaunchTargets {
            method,
            virtual_hosts: created,
            hosts: others.collect(),
            arrival_timeout: options.arrival_timeout,
        })
    }

    /// A notice for the user, if any.
    pub fn notice(&self) -> Option<&str> {
        self.virtual_hosts.as_ref().and_then(VirtualHosts::notice)
    }

    /// The hosts on which daemons have to be started.
    pub fn hosts(&self) -> &[LaunchHost] {
        &self.hosts
    }

    /// The addresses at which daemons on the hosts can reach this process.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        self.virtual_hosts
            .as_ref()
            .map_or_else(local_addresses, |virtual_hosts| virtual_hosts.addresses(0))
    }

    /// Creates the launcher that starts `command` on each other host and passes `secret` to it.
    ///
    /// # Errors
    /// One line with the cause. Nothing has been started then.
    pub fn into_launcher(
        self,
        command: Vec<OsString>,
        secret: Vec<u8>,
    ) -> Result<Launcher, String> {
        let request = LaunchRequest { hosts: self.hosts, command, secret };
        Launcher::new(self.method, request, self.virtual_hosts, self.arrival_timeout)
    }
}

/// The plan of a LAN for these virtual hosts. The LAN is large enough for the highest number,
/// because a job may use only some of its hosts.
fn lan_plan(hosts: &[HostSpec], options: &LaunchOptions) -> Result<LanPlan, String> {
    let mut count = 0;
    for host in hosts {
        let number = virtual_number(&host.name);
        let number = number.ok_or_else(|| format!("{}: no name of a virtual host", host.name))?;
        count = count.max(number.saturating_add(1));
    }
    let mut plan = LanPlan::new(count);
    for (name, value) in &options.lan_options {
        plan.set(name, value)?;
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, kind: HostKind) -> HostSpec {
        HostSpec { name: name.to_owned(), kind, processors: 1, ..HostSpec::local(1) }
    }

    #[test]
    fn this_host_needs_no_daemon_and_addresses_are_for_the_remote_shell() {
        let mut hosts = [host("a", HostKind::Remote), host("b", HostKind::Local)].to_vec();
        hosts.push(HostSpec { address: "10.0.0.3".to_owned(), ..host("c", HostKind::Remote) });
        let options = |method: &str| LaunchOptions {
            method: Some(method.to_owned()),
            ..LaunchOptions::default()
        };
        let launch_names = |method: &str| {
            let targets = LaunchTargets::new(&hosts, &options(method)).unwrap();
            let hosts =
                targets.hosts().iter().map(|host| (host.position, host.launch_name.clone()));
            hosts.collect::<Vec<_>>()
        };
        assert_eq!(launch_names("ssh"), [(0, "a".to_owned()), (2, "10.0.0.3".to_owned())]);
        assert_eq!(launch_names("slurm"), [(0, "a".to_owned()), (2, "c".to_owned())]);
    }

    #[test]
    fn links_are_for_virtual_hosts_and_kinds_do_not_mix() {
        let links = vec![("mtu".to_owned(), "9000".to_owned())];
        let options = LaunchOptions { lan_options: links, ..LaunchOptions::default() };
        let error = LaunchTargets::new(&[host("a", HostKind::Remote)], &options).unwrap_err();
        assert!(error.contains("mtu") && error.contains("local:N"), "{error}");
        let mixed = [host("local0", HostKind::Virtual), host("a", HostKind::Remote)];
        assert!(
            LaunchTargets::new(&mixed, &LaunchOptions::default()).unwrap_err().contains("one job")
        );
    }

    #[test]
    fn a_subset_of_the_virtual_hosts_gets_a_lan_of_sufficient_size() {
        let hosts = [host("local5", HostKind::Virtual), host("local2", HostKind::Virtual)];
        assert_eq!(lan_plan(&hosts, &LaunchOptions::default()).unwrap().hosts, 6);
        let error =
            lan_plan(&[host("n1", HostKind::Virtual)], &LaunchOptions::default()).unwrap_err();
        assert!(error.contains("n1"), "{error}");
        assert!(
            lan_plan(&[host("local4294967295", HostKind::Virtual)], &LaunchOptions::default())
                .is_ok_and(|plan| plan.check().is_err())
        );
    }
}
