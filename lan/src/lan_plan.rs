//! The parameters of a virtual LAN, and the addresses and names that follow from them.

use std::net::Ipv4Addr;

/// The largest number of hosts of one LAN. Each host costs two descriptors in the process that
/// creates the LAN.
const MAX_HOSTS: u32 = 1024;
/// The largest number of networks of one LAN, which is the number of NICs of each host.
const MAX_LINKS: u32 = 8;
const MIN_MTU: u32 = 576;
/// The limit of veth.
const MAX_MTU: u32 = 65_535;
/// The kernel's tbf counts bytes per second in 32 bits.
const MAX_RATE: u64 = u32::MAX as u64 * 8;
const MIN_RATE: u64 = 8_000;

/// The parameters of a virtual LAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanPlan {
    /// The number of hosts, at least 1.
    pub hosts: u32,
    /// The number of networks. Every host has a NIC in each.
    pub links: u32,
    /// The size of the largest packet in bytes, for all links.
    pub mtu: u32,
    /// Bits per second of each link in each direction, if limited.
    pub rate: Option<u64>,
    /// The prefix of host names. The name of host *i* is the prefix, followed by *i*.
    pub prefix: String,
}

impl LanPlan {
    /// A plan for `hosts` hosts on one network with the defaults: packets of 1,500 bytes, no limit.
    pub fn new(hosts: u32) -> LanPlan {
        LanPlan { hosts, links: 1, mtu: 1500, rate: None, prefix: "local".to_owned() }
    }

    /// Sets `links`, `mtu` or `rate` from the words of a command line.
    ///
    /// # Errors
    /// One line that names the wrong word and the valid values.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u32>().map_err(|_| format!("{name}={value}: not a number"));
        match name {
            "links" => self.links = number()?,
            "mtu" => self.mtu = number()?,
            "rate" => self.rate = Some(rate(value)?),
            _ => return Err(format!("{name}: virtual hosts have links, mtu and rate only")),
        }
        self.check()
    }

    /// Checks whether such a LAN is possible.
    ///
    /// # Errors
    /// One line that names the wrong number and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let check_range = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name}={value}: virtual hosts allow {low} to {high}"))
            }
        };
        check_range("hosts", self.hosts.into(), 1, MAX_HOSTS.into())?;
        check_range("links", self.links.into(), 1, MAX_LINKS.into())?;
        check_range("mtu", self.mtu.into(), MIN_MTU.into(), MAX_MTU.into())?;
        check_range("rate", self.rate.unwrap_or(MIN_RATE), MIN_RATE, MAX_RATE)
    }

    /// The name of a host.
    pub fn name(&self, host: u32) -> String {
        format!("{}{host}", self.prefix)
    }

    /// The name of the NIC that connects every host to network `link`.
    pub fn nic(link: u32) -> String {
        format!("eth{link}")
    }

    /// The address of a host in a network. All networks are /16.
    pub fn address(host: u32, link: u32) -> Ipv4Addr {
        let [_, _, high, low] = (host + 1).to_be_bytes();
        Ipv4Addr::new(10, 77 + link as u8, high, low)
    }

    /// The link-layer address of a host's NIC.
    pub fn mac(host: u32, link: u32) -> [u8; 6] {
        let [_, _, high, low] = (host + 1).to_be_bytes();
        [0x02, 0x5c, 0x0e, link as u8, high, low]
    }
}

/// Parses bits per second from words such as `200mbit`, `1gbit`, `500kbit` or `8000`.
///
/// # Errors
/// One line that names the valid forms.
pub fn rate(word: &str) -> Result<u64, String> {
    let units = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1), ("", 1)];
    let lower = word.to_ascii_lowercase();
    let error = || format!("rate={word}: not a rate; write 200mbit, 1gbit or bits per second");
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit)))
        .ok_or_else(error)?;
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        assert_eq!(rate("200mbit"), Ok(200_000_000));
        assert_eq!(rate("1Gbit"), Ok(1_000_000_000));
        assert_eq!(rate("500kbit"), Ok(500_000));
        assert_eq!(rate("8000"), Ok(8000));
        for wrong in ["", "mbit", "-1mbit", "1.5gbit", "99999999999gbit", "fast"] {
            assert!(rate(wrong).is_err_and(|text| text.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn an_impossible_plan_is_refused_with_the_number_and_its_bounds() {
        let mut plan = LanPlan::new(4);
        plan.set("links", "2").unwrap();
        plan.set("mtu", "9000").unwrap();
        plan.set("rate", "200mbit").unwrap();
        assert_eq!((plan.links, plan.mtu, plan.rate), (2, 9000, Some(200_000_000)));
        let error = plan.clone().set("links", "9").unwrap_err();
        assert!(error.contains("links=9") && error.contains("1 to 8"), "{error}");
        assert!(plan.clone().set("mtu", "0").unwrap_err().contains("mtu=0"));
        assert!(plan.clone().set("delay", "3").unwrap_err().contains("delay"));
        assert!(LanPlan::new(0).check().unwrap_err().contains("hosts=0"));
    }

    #[test]
    fn addresses_and_link_addresses_are_all_different() {
        let all = (0..1024).flat_map(|host| (0..8).map(move |link| (host, link)));
        let mut seen = std::collections::HashSet::new();
        for (host, link) in all {
            assert!(seen.insert(LanPlan::address(host, link).octets().to_vec()));
            assert!(seen.insert(LanPlan::mac(host, link).to_vec()));
        }
        assert_eq!(LanPlan::address(0, 0), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(LanPlan::address(255, 1), Ipv4Addr::new(10, 78, 1, 0));
    }
}
