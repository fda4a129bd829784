//! Virtual hosts: what `local:N` stands on.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use score_lan::{Fault, Lan, Plan};

/// Virtual hosts of this machine. Host 0 is where this process is; the others wait for daemons.
/// The links between them go with this process.
#[derive(Debug)]
pub struct Ground {
    plan: Plan,
    /// None: all hosts are this machine's loopback.
    lan: Option<Lan>,
    notice: Option<String>,
}

impl Ground {
    /// Makes the hosts, and moves this process onto host 0: its Unix sockets stay what they are,
    /// its network is the virtual one from now on. The caller must have one thread.
    ///
    /// # Errors
    /// One line: a plan that cannot be, or one that needs what this machine refuses.
    pub fn lay(plan: &Plan) -> Result<Ground, String> {
        let refused = match Lan::build(plan) {
            Ok(lan) => {
                return Ok(Ground { plan: plan.clone(), lan: Some(lan), notice: None });
            }
            Err(Fault::Plan(text)) => return Err(text),
            Err(Fault::Refused(text)) => text,
        };
        if plan.links > 1 || plan.rate.is_some() {
            return Err(format!(
                "virtual hosts: no network namespaces here ({refused}), and links and rate need \
                 them; leave those options out to use loopback"
            ));
        }
        let last = loopback(plan.hosts - 1);
        let notice = format!(
            "virtual hosts: no network namespaces here ({refused}); all {} hosts are on loopback, \
             127.0.0.1 to {last}, and share this machine's host name",
            plan.hosts
        );
        Ok(Ground { plan: plan.clone(), lan: None, notice: Some(notice) })
    }

    /// What the user shall be told of it.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// The addresses of host number `host`, one for each network.
    pub fn addresses(&self, host: u32) -> Vec<IpAddr> {
        match &self.lan {
            Some(lan) if self.plan.hosts == 1 => vec![lan.address(host).into()],
            Some(_) => (0..self.plan.links).map(|link| Plan::address(host, link).into()).collect(),
            None => vec![loopback(host).into()],
        }
    }

    /// Does something on a host: a process started there stays there.
    pub(super) fn on<T>(&self, host: u32, act: impl FnOnce() -> T) -> io::Result<T> {
        match &self.lan {
            Some(lan) => lan.on(host, act),
            None => Ok(act()),
        }
    }
}

/// The whole of 127/8 is this machine.
fn loopback(host: u32) -> Ipv4Addr {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    Ipv4Addr::new(127, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_on_loopback_have_an_address_each() {
        assert_eq!(loopback(0), Ipv4Addr::LOCALHOST);
        assert_eq!(loopback(255), Ipv4Addr::new(127, 0, 1, 0));
    }

    #[test]
    fn a_plan_that_cannot_be_starts_nothing() {
        let fault = Ground::lay(&Plan::new(0)).unwrap_err();
        assert!(fault.contains("hosts=0"), "{fault}");
    }
}
