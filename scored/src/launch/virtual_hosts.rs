//! Virtual hosts: the implementation of `local:N`.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use score_lan::{BuildError, Lan, LanPlan};

/// Virtual hosts of this machine. This process runs on host 0; each other host gets a daemon. The
/// links between the hosts disappear when this process exits.
#[derive(Debug)]
pub struct VirtualHosts {
    plan: LanPlan,
    /// `None` if all hosts are loopback addresses of this machine.
    lan: Option<Lan>,
    notice: Option<String>,
}

impl VirtualHosts {
    /// Creates the hosts and moves this process to host 0. Afterwards the process uses the virtual
    /// network. Its Unix sockets stay valid. The process must have only one thread.
    ///
    /// # Errors
    /// One line: the plan is invalid, or this machine does not permit such hosts.
    pub fn create(plan: &LanPlan) -> Result<VirtualHosts, String> {
        let refusal = match Lan::build(plan) {
            Ok(lan) => {
                return Ok(VirtualHosts { plan: plan.clone(), lan: Some(lan), notice: None });
            }
            Err(BuildError::InvalidSpec(text)) => return Err(text),
            Err(BuildError::Refused(text)) => text,
        };
        if plan.links > 1 || plan.rate.is_some() {
            return Err(format!(
                "virtual hosts: no network namespaces here ({refusal}), and links and rate need \
                 them; leave those options out to use loopback"
            ));
        }
        let last = loopback(plan.hosts - 1);
        let notice = format!(
            "virtual hosts: no network namespaces here ({refusal}); all {} hosts are on loopback, \
             127.0.0.1 to {last}, and share this machine's host name",
            plan.hosts
        );
        Ok(VirtualHosts { plan: plan.clone(), lan: None, notice: Some(notice) })
    }

    /// A notice for the user, if any.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The addresses of the host with number `host`, one for each network.
    pub fn addresses(&self, host: u32) -> Vec<IpAddr> {
        match &self.lan {
            Some(lan) if self.plan.hosts == 1 => vec![lan.address(host).into()],
            Some(_) => {
                (0..self.plan.links).map(|link| LanPlan::address(host, link).into()).collect()
            }
            None => vec![loopback(host).into()],
        }
    }

    /// Runs a function on a host. A process that it starts stays on that host.
    pub(super) fn run_in_host<T>(&self, host: u32, action: impl FnOnce() -> T) -> io::Result<T> {
        match &self.lan {
            Some(lan) => lan.run_on_host(host, action),
            None => Ok(action()),
        }
    }
}

/// The loopback address of a host. All addresses in 127/8 belong to this machine.
fn loopback(host: u32) -> Ipv4Addr {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    Ipv4Addr::new(127, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_on_loopback_has_its_own_address() {
        assert_eq!(loopback(0), Ipv4Addr::LOCALHOST);
        assert_eq!(loopback(255), Ipv4Addr::new(127, 0, 1, 0));
    }

    #[test]
    fn an_invalid_plan_creates_no_hosts() {
        let error = VirtualHosts::create(&LanPlan::new(0)).unwrap_err();
        assert!(error.contains("hosts=0"), "{error}");
    }
}
