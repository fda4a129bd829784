//! Records to hosts and networks: every attribute is looked at, every name must lead somewhere.

use super::record::{Attribute, Record, wrong};
use super::{Host, Network};
use crate::attributes::{self, ADDRESSING, DEAD, DEVICES, HOST, Known, NETWORK, Takes};
use crate::fault::{Fault, listed};
use crate::near::nearest;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Attributes of one record, equal ones added up.
type Values = BTreeMap<String, Vec<String>>;

/// Makes hosts and networks of records.
///
/// # Errors
/// The first attribute or name that is wrong.
pub fn resolve(records: Vec<Record>) -> Result<(Vec<Host>, Vec<Network>), Fault> {
    let is_network = |record: &Record| record.attributes.iter().any(|given| given.name == "type");
    let (ends, rest): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| record.name.contains('/'));
    let (nets, hosts): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_network);
    let mut networks = nets.iter().map(network).collect::<Result<Vec<_>, _>>()?;
    let names: HashSet<&str> = hosts.iter().map(|record| record.name.as_str()).collect();
    for record in &ends {
        end(record, &mut networks, &names)?;
    }
    let known: HashSet<&str> = networks.iter().map(|network| network.name.as_str()).collect();
    let mut addresses = HashMap::new();
    let mut made = Vec::with_capacity(hosts.len());
    for record in &hosts {
        let mut host = host(record)?;
        for given in &record.attributes {
            references(given, &names, &known)?;
            let address = given.values[0].as_str();
            if given.name == "address"
                && let Some(other) = addresses.insert(address, record.name.as_str())
            {
                return Err(given.word.fault(&given.word.text, format!("{other} has it already")));
            }
        }
        let end = |name: &String| {
            // The word of a device needs no record.
            let bare =
                || Network { name: name.clone(), device: name.clone(), ..Network::default() };
            match networks.iter().find(|network| network.name == *name) {
                Some(described) => described.end(&host.name),
                None => bare().end(&host.name),
            }
        };
        host.ends = host.networks.iter().map(end).collect();
        made.push(host);
    }
    Ok((made, networks))
}

/// Names of networks, spares and groups in an attribute.
fn references(
    given: &Attribute,
    hosts: &HashSet<&str>,
    networks: &HashSet<&str>,
) -> Result<(), Fault> {
    for value in &given.values {
        let what = match given.name.as_str() {
            "network" => {
                let device = DEVICES.contains(&value.as_str());
                if device || networks.contains(value.as_str()) {
                    continue;
                }
                let all = || DEVICES.iter().copied().chain(networks.iter().copied());
                near(value, all(), "network")
            }
            "spare" if !hosts.contains(value.as_str()) => {
                near(value, hosts.iter().copied(), "host")
            }
            "group" if hosts.contains(value.as_str()) => "a host is called so, too".into(),
            "group" => match wrong(value, false) {
                Some(what) => what,
                None => continue,
            },
            _ => continue,
        };
        return Err(given.word.fault(value, what));
    }
    Ok(())
}

/// No such thing of that sort, and which there are.
fn near<'a>(word: &str, known: impl Iterator<Item = &'a str>, sort: &str) -> String {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("no {sort} of this file; did you mean '{near}'?"),
        None => format!("no {sort} of this file; there are: {}", listed(known)),
    }
}

fn network(record: &Record) -> Result<Network, Fault> {
    let mut settings = values(record, NETWORK)?;
    let device = settings.remove("type").map(|mut value| value.remove(0)).unwrap_or_default();
    if !DEVICES.contains(&device.as_str()) && !DEAD.contains(&device.as_str()) {
        let given = record.attributes.iter().find(|given| given.name == "type");
        let word = given.map_or(&record.word, |given| &given.word);
        let what = match nearest(&device, DEVICES.iter().chain(DEAD).copied()) {
            Some(near) => format!("unknown type of network; did you mean '{near}'?"),
            None => format!("unknown type of network (one of {} is expected)", DEVICES.join(", ")),
        };
        return Err(word.fault(&word.text, what));
    }
    only_verbs_has_adapters(record, &device)?;
    if record.defect {
        let what = "a network cannot be marked as out of order";
        return Err(record.word.fault(&record.word.text, what));
    }
    Ok(Network { name: record.name.clone(), device, settings, ends: BTreeMap::new() })
}

fn only_verbs_has_adapters(record: &Record, device: &str) -> Result<(), Fault> {
    let other = DEVICES.contains(&device) && device != "verbs";
    let is_odd = |name: &str| other && ADDRESSING.contains(&name);
    match record.attributes.iter().find(|given| is_odd(&given.name)) {
        Some(given) => {
            let what = "it addresses an RDMA adapter: it is for networks of type verbs";
            Err(given.word.fault(&given.word.text, what))
        }
        None => Ok(()),
    }
}

/// A `NETWORK/HOST` record.
fn end(record: &Record, networks: &mut [Network], hosts: &HashSet<&str>) -> Result<(), Fault> {
    let (net, host) = record.name.split_once('/').unwrap_or((&record.name, ""));
    let names: Vec<String> = networks.iter().map(|network| network.name.clone()).collect();
    let Some(network) = networks.iter_mut().find(|network| network.name == net) else {
        return Err(record.word.fault(net, near(net, names.iter().map(String::as_str), "network")));
    };
    if !hosts.contains(host) {
        return Err(record.word.fault(host, near(host, hosts.iter().copied(), "host")));
    }
    for name in ["type", "trusted"] {
        if let Some(given) = record.attributes.iter().find(|given| given.name == name) {
            let what = format!("it is for the whole network: it stands in the record of {net}");
            return Err(given.word.fault(&given.word.text, what));
        }
    }
    only_verbs_has_adapters(record, &network.device)?;
    network.ends.insert(host.to_owned(), values(record, NETWORK)?);
    Ok(())
}

fn host(record: &Record) -> Result<Host, Fault> {
    if record.defect && record.attributes.is_empty() {
        let what = "it is marked as out of order, but is no host of this file";
        return Err(record.word.fault(&record.name, what));
    }
    let mut values = values(record, HOST)?;
    let mut word = |name: &str| values.remove(name).map(|mut value| value.remove(0));
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    let mut host = Host {
        name: record.name.clone(),
        address: word("address"),
        processors: number(word("cores")),
        sockets: number(word("socks")),
        cpugen: word("cpugen"),
        speed: word("speed"),
        bintype: word("bintype"),
        lock_server: word("msgb"),
        defect: record.defect,
        ..Host::default()
    };
    let mut words = |name: &str| values.remove(name).unwrap_or_default();
    (host.networks, host.groups) = (words("network"), words("group"));
    host.spares = words("spare");
    host.own = values;
    Ok(host)
}

/// The values of a record's attributes, each checked. SCore 5's names become those of SCore 7.
fn values(record: &Record, among: &'static [Known]) -> Result<Values, Fault> {
    let mut values = Values::new();
    let mut first: HashMap<&str, &Attribute> = HashMap::new();
    for given in &record.attributes {
        let word = &given.word;
        let Some(known) = attributes::find(&given.name, among) else {
            let near = nearest(&given.name, among.iter().map(|known| known.name));
            if let Some(near) = near.filter(|_| !given.name.starts_with('-')) {
                let what = format!("unknown attribute; did you mean '{near}'?");
                return Err(word.fault(&given.name, what));
            }
            values.entry(given.name.clone()).or_default().extend(given.values.iter().cloned());
            continue;
        };
        for value in &given.values {
            attributes::check(known.takes, value).map_err(|what| word.fault(&word.text, what))?;
        }
        let name = match known.name {
            "smp" => "cores",
            "msgbserv" => "msgb",
            name => name,
        };
        if known.takes != Takes::Words {
            if let Some(other) = first.insert(name, given) {
                let (before, line) = (&other.word.text, other.word.line);
                let what = format!("one value is expected, and line {line} has {before}");
                return Err(word.fault(&word.text, what));
            }
            if given.values.len() > 1 {
                return Err(word.fault(&word.text, "one value is expected"));
            }
        }
        let all = values.entry(name.to_owned()).or_default();
        for value in &given.values {
            if !all.contains(value) {
                all.push(value.clone());
            }
        }
    }
    Ok(values)
}
