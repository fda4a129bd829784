//! The output of `scorehosts`.

use std::collections::BTreeSet;

use score_hosts::database::AvailableHosts;
use score_hosts::{Database, Host};
use serde_json::{Value, json};

use super::HostFilter;

/// The names, in one line or with one name per line.
pub(super) fn names(hosts: &[Host], one_per_line: bool) -> String {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    names.join(if one_per_line { "\n" } else { " " }) + "\n"
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Lines about the number of hosts, and about hosts that are out of order.
pub(super) fn notes(available: &AvailableHosts, filter: HostFilter) -> Vec<String> {
    let replaced = available.replaced.iter();
    let replaced =
        replaced.map(|(host, spare)| format!("{host} is out of order: replaced by {spare}"));
    let mut notes: Vec<String> = replaced.collect();
    if !available.missing.is_empty() {
        let missing = available.missing.join(" ");
        notes.push(format!("{missing}: out of order, and no spare is available"));
    }
    let suffix = if filter == HostFilter::Defective { " out of order" } else { "" };
    notes.push(format!("{}{suffix}", plural(available.hosts.len(), "host")));
    notes
}

/// All attributes of the hosts, as JSON.
pub(super) fn json(available: &AvailableHosts, database: Option<&Database>) -> String {
    let host = |host: &Host| {
        json!({
            "name": host.name,
            "address": host.dial(),
            "cores": host.processors,
            "socks": host.sockets,
            "cpugen": host.cpugen,
            "speed": host.speed,
            "bintype": host.bintype,
            "network": host.networks,
            "group": host.groups,
            "spare": host.spares,
            "own": host.site_attributes,
            "defect": host.defect,
            "virtual": host.is_virtual,
        })
    };
    let replaced = available.replaced.iter();
    let object = json!({
        "file": database.map(Database::file),
        "hosts": available.hosts.iter().map(host).collect::<Vec<Value>>(),
        "replaced": replaced.map(|(host, spare)| json!({"host": host, "spare": spare})).collect::<Vec<Value>>(),
        "missing": available.missing,
    });
    format!("{object:#}\n")
}

/// The output of `-check`.
pub(super) fn summary(database: &Database) -> String {
    let hosts = database.hosts();
    let counts = [
        plural(hosts.len(), "host"),
        plural(database.groups().count(), "group"),
        plural(database.networks().len(), "network"),
    ];
    let mut text = format!("{}: {}\n", database.file(), counts.join(", "));
    for group in database.groups() {
        let members = database.group(group).map_or(0, Iterator::count);
        text.push_str(&format!("  group {group}: {}\n", plural(members, "host")));
    }
    for network in database.networks() {
        let trusted = if network.is_trusted() { ", trusted" } else { "" };
        text.push_str(&format!("  network {}: {}{trusted}\n", network.name, network.device));
    }
    let defects: Vec<&str> =
        hosts.iter().filter(|host| host.defect).map(|host| host.name.as_str()).collect();
    if !defects.is_empty() {
        text.push_str(&format!("  out of order: {}\n", defects.join(" ")));
    }
    let uncounted = hosts.iter().filter(|host| host.processors.is_none()).count();
    if uncounted > 0 {
        text.push_str(&format!("  without cores, counted as 1: {}\n", plural(uncounted, "host")));
    }
    let site_attributes: BTreeSet<&str> =
        hosts.iter().flat_map(|host| host.site_attributes.keys()).map(String::as_str).collect();
    if !site_attributes.is_empty() {
        let site_attributes: Vec<&str> = site_attributes.into_iter().collect();
        text.push_str(&format!("  attributes of your own: {}\n", site_attributes.join(" ")));
    }
    text
}
