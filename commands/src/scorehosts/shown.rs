//! What `scorehosts` prints.

use std::collections::BTreeSet;

use score_hosts::database::Available;
use score_hosts::{Database, Host};
use serde_json::{Value, json};

use super::Which;

/// The names, in a line or one a line.
pub(super) fn names(hosts: &[Host], lines: bool) -> String {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    names.join(if lines { "\n" } else { " " }) + "\n"
}

fn plural(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// How many hosts there are, and which are not.
pub(super) fn notes(available: &Available, which: Which) -> Vec<String> {
    let replaced = available.replaced.iter();
    let replaced =
        replaced.map(|(host, spare)| format!("{host} is out of order: {spare} stands in for it"));
    let mut notes: Vec<String> = replaced.collect();
    if !available.missing.is_empty() {
        let missing = available.missing.join(" ");
        notes.push(format!("out of order, and without a spare: {missing}"));
    }
    let of = if which == Which::Defects { " out of order" } else { "" };
    notes.push(format!("{}{of}", plural(available.hosts.len(), "host")));
    notes
}

/// Everything that is known of the hosts.
pub(super) fn json(available: &Available, database: Option<&Database>) -> String {
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
            "own": host.own,
            "defect": host.defect,
            "virtual": host.is_virtual,
        })
    };
    let replaced = available.replaced.iter();
    let answer = json!({
        "file": database.map(Database::file),
        "hosts": available.hosts.iter().map(host).collect::<Vec<Value>>(),
        "replaced": replaced.map(|(host, spare)| json!({"host": host, "spare": spare})).collect::<Vec<Value>>(),
        "missing": available.missing,
    });
    format!("{answer:#}\n")
}

/// What `-check` says.
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
        text.push_str(&format!("  without cores, taken for 1: {}\n", plural(uncounted, "host")));
    }
    let own: BTreeSet<&str> =
        hosts.iter().flat_map(|host| host.own.keys()).map(String::as_str).collect();
    if !own.is_empty() {
        let own: Vec<&str> = own.into_iter().collect();
        text.push_str(&format!("  attributes of your own: {}\n", own.join(" ")));
    }
    text
}
