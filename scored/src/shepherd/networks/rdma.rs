//! RDMA as a way of a network: which hosts of a job meet by it. Adapters and rights may differ from
//! host to host; every host offers what works there, those that can meet do, and UDP reaches the
//! others.

use std::net::IpAddr;

use score_pm::rdma::{Unusable, Usable};
use score_proto::message::Level;
use score_proto::order::Placement;
use serde::{Deserialize, Serialize};

use super::way::{Offer, Reached};

/// How RDMA is to be tried on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where processes of other hosts say which queue pairs they have.
    pub address: IpAddr,
    /// Options of the device that are said somewhere.
    pub options: Vec<String>,
    /// The user or the database wants it; else it is used where it is certain to work.
    pub asked: bool,
}

/// What a host offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rdma {
    /// As in [`Plan`].
    pub asked: bool,
    /// An adapter, or why none.
    pub offered: Result<Adapter, Lack>,
}

/// An adapter that works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Where the host's nodes are reached.
    pub reached: Reached,
    /// Adapters of different ones never meet.
    pub fabric: String,
    /// The part of it whose adapters meet without anybody's doing.
    pub subnet: String,
}

/// Why a host offers none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// For people.
    pub why: String,
    /// There is an adapter: who expects it to be used has to know.
    pub matters: bool,
}

impl From<Unusable> for Lack {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Absent(why) => Self { why, matters: false },
            Unusable::Refused(why) => Self { why, matters: true },
        }
    }
}

impl Plan {
    /// What was found is not enough to be used without being asked for.
    ///
    /// # Errors
    /// Why.
    pub fn check(&self, found: &Usable) -> Result<(), Lack> {
        if self.asked || found.is_hardware {
            return Ok(());
        }
        let why = format!("{} is no hardware; network=verbs uses it", found.wires);
        Err(Lack { why, matters: false })
    }
}

fn adapter(offer: &Offer) -> Option<(&Adapter, bool)> {
    let rdma = offer.rdma.as_ref()?;
    Some((rdma.offered.as_ref().ok()?, rdma.asked))
}

/// Whether two hosts reach each other by RDMA.
pub fn meet(one: &Offer, other: &Offer) -> bool {
    let (Some((one, asked)), Some((other, too))) = (adapter(one), adapter(other)) else {
        return false;
    };
    one.fabric == other.fabric && (asked && too || one.subnet == other.subnet)
}

/// Where the nodes are reached that `own` meets; zeros stand for others, which are no address.
pub fn table(placement: &Placement, own: &Offer, offers: &[&Offer]) -> Vec<u8> {
    let bytes = |offer| adapter(offer).map_or(&[][..], |(adapter, _)| &adapter.reached.table);
    let nodes = placement.here().map_or(1, |here| here.nodes.max(1)) as usize;
    let entry = bytes(own).len() / nodes;
    let mut table = Vec::new();
    for (place, offer) in placement.hosts.iter().zip(offers) {
        match meet(own, offer) {
            true => table.extend_from_slice(bytes(offer)),
            false => table.resize(table.len() + entry * place.nodes as usize, 0),
        }
    }
    table
}

/// A host's name, and what it offers.
type Named<'a> = (&'a str, &'a Offer);

/// The first host that offers an adapter, and those that do not meet it.
fn apart<'a>(offers: &'a [Named<'a>]) -> (Option<&'a Named<'a>>, Vec<&'a Named<'a>>) {
    let first = offers.iter().find(|(_, offer)| adapter(offer).is_some());
    let alone = |(_, offer): &&Named<'_>| first.is_none_or(|(_, first)| !meet(first, offer));
    (first, offers.iter().filter(alone).collect())
}

/// What the user has to know: at most one line. `offers`: by host name.
pub fn note(name: &str, offers: &[(&str, &Offer)]) -> Option<(Level, String)> {
    let asked = offers.iter().filter_map(|(_, offer)| offer.rdma.as_ref()).any(|one| one.asked);
    let lack = |offer: &'_ Offer| offer.rdma.as_ref()?.offered.as_ref().err().cloned();
    let (first, apart) = apart(offers);
    // Nobody has it, and nobody said so: no word, unless somebody is kept from using it.
    let is_news = asked
        || first.is_some()
        || apart.iter().any(|(_, one)| lack(one).is_some_and(|lack| lack.matters));
    let of_note = |(_, one): &&&Named<'_>| {
        lack(one).is_some_and(|lack| asked || first.is_some() || lack.matters)
    };
    let (host, offer) = apart.iter().find(of_note).or(apart.first()).filter(|_| is_news)?;
    offer.rdma.as_ref()?;
    let why = lack(offer).map_or_else(|| elsewhere(offer, first), |lack| lack.why);
    let more = match apart.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let to = if apart.len() + 1 < offers.len() { " to" } else { ":" };
    let level = if asked { Level::Warning } else { Level::Info };
    let what = "UDP is used instead of RDMA";
    Some((level, format!("network {name}: {what}{to} host {host}{more}: {why}")))
}

fn elsewhere(offer: &Offer, first: Option<&Named<'_>>) -> String {
    let place = |offer: &Offer| {
        let adapter = adapter(offer).map(|(adapter, _)| adapter);
        adapter.map_or_else(String::new, |one| format!("{} ({})", one.fabric, one.subnet))
    };
    let (name, other) = first.map_or(("?", String::new()), |(name, first)| (*name, place(first)));
    format!("its adapter is on {}, that of host {name} on {other}", place(offer))
}

/// The adapters that are used, for people: none where nobody meets; and whether they reach all.
pub fn wires<'a>(offers: &'a [&'a Offer]) -> (Vec<&'a str>, bool) {
    let named: Vec<Named<'_>> = offers.iter().map(|offer| ("", *offer)).collect();
    let (Some((_, first)), apart) = apart(&named) else { return (Vec::new(), false) };
    if apart.len() + 1 >= offers.len() {
        return (Vec::new(), false);
    }
    let members = offers.iter().filter(|offer| meet(first, offer));
    let wires = members.filter_map(|offer| Some(adapter(offer)?.0.reached.wires.as_str()));
    (wires.collect(), apart.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(asked: bool, offered: Result<(&str, &str), (&str, bool)>) -> Offer {
        let reached = |wires: &str| Reached { table: Vec::new(), wires: wires.to_owned() };
        let offered = match offered {
            Ok((fabric, subnet)) => Ok(Adapter {
                reached: reached("mlx5_0 port 1"),
                fabric: fabric.to_owned(),
                subnet: subnet.to_owned(),
            }),
            Err((why, matters)) => Err(Lack { why: why.to_owned(), matters }),
        };
        let rdma = Some(Rdma { asked, offered });
        Offer { rdma, raw: None, udp: reached("UDP over eth0"), why: None }
    }

    #[test]
    fn hosts_of_one_fabric_meet_and_of_different_subnets_if_somebody_wants_that() {
        let here = |asked, subnet| offer(asked, Ok(("RoCE", subnet)));
        assert!(meet(&here(false, "10.0.0.0/24"), &here(false, "10.0.0.0/24")));
        assert!(!meet(&here(false, "10.0.0.0/24"), &here(false, "10.0.1.0/24")));
        assert!(meet(&here(true, "10.0.0.0/24"), &here(true, "10.0.1.0/24")));
        assert!(!meet(&here(true, "x"), &offer(true, Ok(("InfiniBand", "x")))));
        assert!(!meet(&here(true, "x"), &offer(true, Err(("none", false)))));
    }

    #[test]
    fn one_line_names_the_host_without_rdma_and_the_reason() {
        let ours = offer(true, Ok(("RoCE", "10.0.0.0/24")));
        let none = offer(true, Err(("no RDMA adapter", false)));
        assert_eq!(note("n", &[("a", &ours), ("b", &ours)]), None);
        let (level, line) = note("n", &[("a", &ours), ("b", &none)]).unwrap();
        assert_eq!(level, Level::Warning);
        assert_eq!(line, "network n: UDP is used instead of RDMA: host b: no RDMA adapter");
        let (_, line) =
            note("n", &[("a", &ours), ("b", &none), ("c", &ours), ("d", &none)]).unwrap();
        let wanted =
            "network n: UDP is used instead of RDMA to host b (and 1 more): no RDMA adapter";
        assert_eq!(line, wanted);
        let (_, line) = note("n", &[("a", &none), ("b", &none)]).unwrap();
        assert!(line.ends_with("RDMA: host a (and 1 more): no RDMA adapter"), "{line}");
        let far = offer(true, Ok(("InfiniBand", "fe80::")));
        let (_, line) = note("n", &[("a", &ours), ("b", &far)]).unwrap();
        let why = "its adapter is on InfiniBand (fe80::), that of host a on RoCE (10.0.0.0/24)";
        assert!(line.ends_with(why), "{line}");
    }

    #[test]
    fn who_has_not_asked_hears_of_it_where_there_is_hardware_that_is_not_used() {
        let none = offer(false, Err(("no RDMA library", false)));
        assert_eq!(note("auto", &[("a", &none), ("b", &none)]), None);
        let shut = offer(false, Err(("mlx5_0 cannot be opened: Permission denied", true)));
        let (level, line) = note("auto", &[("a", &none), ("b", &shut)]).unwrap();
        assert_eq!(level, Level::Info);
        assert!(line.contains("host b") && line.ends_with("Permission denied"), "{line}");
        let ours = offer(false, Ok(("RoCE", "10.0.0.0/24")));
        let (_, line) = note("auto", &[("a", &none), ("b", &ours), ("c", &ours)]).unwrap();
        assert!(line.contains("RDMA to host a: no RDMA library"), "{line}");
    }

    #[test]
    fn software_is_used_where_somebody_asks_for_it() {
        let found = |is_hardware| Usable {
            wires: "rxe0".to_owned(),
            fabric: String::new(),
            subnet: String::new(),
            is_hardware,
        };
        let address = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let plan = |asked| Plan { address, options: Vec::new(), asked };
        assert!(plan(true).check(&found(false)).is_ok() && plan(false).check(&found(true)).is_ok());
        let lack = plan(false).check(&found(false)).unwrap_err();
        assert!(lack.why.contains("network=verbs") && !lack.matters);
    }

    #[test]
    fn the_adapters_are_told_and_whether_they_reach_all() {
        let ours = offer(true, Ok(("RoCE", "x")));
        let none = offer(true, Err(("no", false)));
        assert_eq!(wires(&[&ours, &ours]), (vec!["mlx5_0 port 1"; 2], true));
        assert_eq!(wires(&[&ours, &none, &ours]), (vec!["mlx5_0 port 1"; 2], false));
        assert_eq!(wires(&[&ours, &none]), (Vec::new(), false));
    }
}
