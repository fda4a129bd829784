//! Converts records to hosts and networks. It checks every attribute, and every name must be
//! defined.

use super::record::{Attribute, Record, name_error};
use super::{Host, Network};
use crate::attributes::{
    self, AttributeDef, DEVICE_TYPES, HOST_ATTRIBUTES, NETWORK_ATTRIBUTES, OBSOLETE_DEVICES,
    RDMA_ADDRESS_ATTRIBUTES, ValueType,
};
use crate::error::{ParseError, join_names};
use crate::name_suggestion::nearest;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The attributes of one record, with the values of equal attributes joined.
type Values = BTreeMap<String, Vec<String>>;

/// Converts records to hosts and networks.
///
/// # Errors
/// The first attribute or name that is wrong.
pub fn resolve(records: Vec<Record>) -> Result<(Vec<Host>, Vec<Network>), ParseError> {
    let is_network = |record: &Record| record.attributes.iter().any(|given| given.name == "type");
    let (interface_records, rest): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| record.name.contains('/'));
    let (nets, hosts): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_network);
    let mut networks = nets.iter().map(parse_network).collect::<Result<Vec<_>, _>>()?;
    let names: HashSet<&str> = hosts.iter().map(|record| record.name.as_str()).collect();
    for record in &interface_records {
        parse_interface(record, &mut networks, &names)?;
    }
    let network_names: HashSet<&str> =
        networks.iter().map(|network| network.name.as_str()).collect();
    let mut addresses = HashMap::new();
    let mut resolved = Vec::with_capacity(hosts.len());
    for record in &hosts {
        let mut host = parse_host(record)?;
        for attribute in &record.attributes {
            check_references(attribute, &names, &network_names)?;
            let address = attribute.values[0].as_str();
            if attribute.name == "address"
                && let Some(other) = addresses.insert(address, record.name.as_str())
            {
                return Err(attribute
                    .word
                    .error(&attribute.word.text, format!("{other} already has it")));
            }
        }
        let interface = |name: &String| {
            // A device can be used by its name without a record.
            let device_network =
                || Network { name: name.clone(), device: name.clone(), ..Network::default() };
            match networks.iter().find(|network| network.name == *name) {
                Some(described) => described.interface(&host.name),
                None => device_network().interface(&host.name),
            }
        };
        host.interfaces = host.networks.iter().map(interface).collect();
        resolved.push(host);
    }
    Ok((resolved, networks))
}

/// Checks the names of networks, spares and groups in an attribute.
fn check_references(
    attribute: &Attribute,
    hosts: &HashSet<&str>,
    networks: &HashSet<&str>,
) -> Result<(), ParseError> {
    for value in &attribute.values {
        let what = match attribute.name.as_str() {
            "network" => {
                let device = DEVICE_TYPES.contains(&value.as_str());
                if device || networks.contains(value.as_str()) {
                    continue;
                }
                let all = || DEVICE_TYPES.iter().copied().chain(networks.iter().copied());
                unknown_name_error(value, all(), "network")
            }
            "spare" if !hosts.contains(value.as_str()) => {
                unknown_name_error(value, hosts.iter().copied(), "host")
            }
            "group" if hosts.contains(value.as_str()) => "a host has this name too".into(),
            "group" => match name_error(value, false) {
                Some(what) => what,
                None => continue,
            },
            _ => continue,
        };
        return Err(attribute.word.error(value, what));
    }
    Ok(())
}

/// The error message for a name that is not defined. It suggests defined names.
fn unknown_name_error<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
    kind: &str,
) -> String {
    let mut candidates: Vec<&str> = candidates.collect();
    candidates.sort_unstable();
    match nearest(word, candidates.iter().copied()) {
        Some(suggestion) => format!("unknown {kind}; did you mean '{suggestion}'?"),
        None => format!("unknown {kind} (this file has: {})", join_names(candidates)),
    }
}

fn parse_network(record: &Record) -> Result<Network, ParseError> {
    let mut settings = checked_values(record, NETWORK_ATTRIBUTES)?;
    let device = settings.remove("type").map(|mut value| value.remove(0)).unwrap_or_default();
    if !DEVICE_TYPES.contains(&device.as_str()) && !OBSOLETE_DEVICES.contains(&device.as_str()) {
        let given = record.attributes.iter().find(|given| given.name == "type");
        let word = given.map_or(&record.word, |given| &given.word);
        let what = match nearest(&device, DEVICE_TYPES.iter().chain(OBSOLETE_DEVICES).copied()) {
            Some(suggestion) => format!("unknown type of network; did you mean '{suggestion}'?"),
            None => {
                format!("unknown type of network (one of {} is expected)", DEVICE_TYPES.join(", "))
            }
        };
        return Err(word.error(&word.text, what));
    }
    check_adapter_attributes(record, &device)?;
    if record.defect {
        let what = "a network cannot be marked as out of order";
        return Err(record.word.error(&record.word.text, what));
    }
    Ok(Network { name: record.name.clone(), device, settings, interface_settings: BTreeMap::new() })
}

fn check_adapter_attributes(record: &Record, device: &str) -> Result<(), ParseError> {
    let is_other_device = DEVICE_TYPES.contains(&device) && device != "verbs";
    let is_misplaced = |name: &str| is_other_device && RDMA_ADDRESS_ATTRIBUTES.contains(&name);
    match record.attributes.iter().find(|given| is_misplaced(&given.name)) {
        Some(given) => {
            let what = "valid only for networks of type verbs";
            Err(given.word.error(&given.word.text, what))
        }
        None => Ok(()),
    }
}

/// Parses a `NETWORK/HOST` record.
fn parse_interface(
    record: &Record,
    networks: &mut [Network],
    hosts: &HashSet<&str>,
) -> Result<(), ParseError> {
    let (network_name, host) = record.name.split_once('/').unwrap_or((&record.name, ""));
    let names: Vec<String> = networks.iter().map(|network| network.name.clone()).collect();
    let Some(network) = networks.iter_mut().find(|network| network.name == network_name) else {
        return Err(record.word.error(
            network_name,
            unknown_name_error(network_name, names.iter().map(String::as_str), "network"),
        ));
    };
    if !hosts.contains(host) {
        return Err(record
            .word
            .error(host, unknown_name_error(host, hosts.iter().copied(), "host")));
    }
    for name in ["type", "trusted"] {
        if let Some(given) = record.attributes.iter().find(|given| given.name == name) {
            let what =
                format!("valid only in the record of the network: move it to {network_name}");
            return Err(given.word.error(&given.word.text, what));
        }
    }
    check_adapter_attributes(record, &network.device)?;
    network.interface_settings.insert(host.to_owned(), checked_values(record, NETWORK_ATTRIBUTES)?);
    Ok(())
}

fn parse_host(record: &Record) -> Result<Host, ParseError> {
    if record.defect && record.attributes.is_empty() {
        let what = "marked as out of order, but not a host of this file";
        return Err(record.word.error(&record.name, what));
    }
    let mut values = checked_values(record, HOST_ATTRIBUTES)?;
    let mut take_word = |name: &str| values.remove(name).map(|mut value| value.remove(0));
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    let mut host = Host {
        name: record.name.clone(),
        address: take_word("address"),
        processors: number(take_word("cores")),
        sockets: number(take_word("socks")),
        cpugen: take_word("cpugen"),
        speed: take_word("speed"),
        bintype: take_word("bintype"),
        lock_server: take_word("msgb"),
        defect: record.defect,
        ..Host::default()
    };
    let mut take_words = |name: &str| values.remove(name).unwrap_or_default();
    (host.networks, host.groups) = (take_words("network"), take_words("group"));
    host.spares = take_words("spare");
    host.site_attributes = values;
    Ok(host)
}

/// The checked values of a record's attributes. Names of SCore 5 are replaced by names of SCore 7.
fn checked_values(
    record: &Record,
    definitions: &'static [AttributeDef],
) -> Result<Values, ParseError> {
    let mut values = Values::new();
    let mut first_seen: HashMap<&str, &Attribute> = HashMap::new();
    for attribute in &record.attributes {
        let word = &attribute.word;
        let Some(definition) = attributes::find(&attribute.name, definitions) else {
            let suggestion = nearest(&attribute.name, definitions.iter().map(|known| known.name));
            if let Some(suggestion) = suggestion.filter(|_| !attribute.name.starts_with('-')) {
                let what = format!("unknown attribute; did you mean '{suggestion}'?");
                return Err(word.error(&attribute.name, what));
            }
            values
                .entry(attribute.name.clone())
                .or_default()
                .extend(attribute.values.iter().cloned());
            continue;
        };
        for value in &attribute.values {
            attributes::check(definition.value_type, value)
                .map_err(|what| word.error(&word.text, what))?;
        }
        let name = match definition.name {
            "smp" => "cores",
            "msgbserv" => "msgb",
            name => name,
        };
        if definition.value_type != ValueType::Words {
            if let Some(other) = first_seen.insert(name, attribute) {
                let (before, line) = (&other.word.text, other.word.line);
                let what =
                    format!("this attribute takes one value, but line {line} already has {before}");
                return Err(word.error(&word.text, what));
            }
            if attribute.values.len() > 1 {
                return Err(word.error(&word.text, "one value is expected"));
            }
        }
        let all = values.entry(name.to_owned()).or_default();
        for value in &attribute.values {
            if !all.contains(value) {
                all.push(value.clone());
            }
        }
    }
    Ok(values)
}
