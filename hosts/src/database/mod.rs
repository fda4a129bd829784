//! A parsed `scorehosts.db`: its hosts, groups and networks.

mod record;
mod resolve;
#[cfg(test)]
mod tests;

use crate::attributes;
use crate::database_file::{DEFECTIVE_HOSTS_FILE, ReadFile};
use crate::error::{ParseError, join_names};
use crate::name_suggestion::nearest;
use crate::preprocess;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::Path;

/// The reserved word in `local:N`, which means virtual hosts. No host or group can have this name.
pub const LOCAL_KEYWORD: &str = "local";

/// Checks whether a word can be the name of a host. Returns the reason if it cannot.
pub(crate) fn host_name_error(word: &str) -> Option<String> {
    record::name_error(word, false)
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The name of the host, as in the record.
    pub name: String,
    /// The address to connect to, if it is not the name.
    pub address: Option<String>,
    /// The number of processors (`cores`; `smp` in SCore 5).
    pub processors: Option<u32>,
    /// The number of sockets.
    pub sockets: Option<u32>,
    /// The kind of processor.
    pub cpugen: Option<String>,
    /// The speed, as written in the record.
    pub speed: Option<String>,
    /// The kind of programs (`nodes=4.BINTYPE`).
    pub bintype: Option<String>,
    /// The networks of the host.
    pub networks: Vec<String>,
    /// The groups of the host.
    pub groups: Vec<String>,
    /// The spare hosts that can replace it.
    pub spares: Vec<String>,
    /// The host of SCore's lock server (`msgb`). It is parsed but has no effect.
    pub lock_server: Option<String>,
    /// Attributes that the site has defined.
    pub site_attributes: BTreeMap<String, Vec<String>>,
    /// Whether the host is marked as out of order.
    pub defect: bool,
    /// Whether the host is one of `local:N`.
    pub is_virtual: bool,
    /// Interfaces to the networks, in the order of the networks.
    pub interfaces: Vec<HostInterface>,
}

/// A host's interface to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostInterface {
    /// The name of the network.
    pub network: String,
    /// The device of the network.
    pub device: String,
    /// See [`Network::is_trusted`].
    pub trusted: bool,
    /// Interfaces of this host, or addresses. Empty if the route decides.
    pub links: Vec<String>,
    /// The configured addressing of its RDMA adapter ([`attributes::RDMA_ADDRESS_ATTRIBUTES`]).
    pub addressing: Vec<(String, String)>,
}

impl Host {
    /// The name or address to connect to.
    pub fn dial(&self) -> &str {
        self.address.as_deref().unwrap_or(&self.name)
    }

    /// Whether the host is the machine with this `hostname`. If only one of the two names has a
    /// domain, the first labels are compared.
    pub fn is_machine(&self, hostname: &str) -> bool {
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let short = !self.name.contains('.') || !hostname.contains('.');
        let same = self.name == hostname || short && label(&self.name) == label(hostname);
        !self.is_virtual && (matches!(self.dial(), "localhost" | "127.0.0.1") || same)
    }
}

/// A network: a device of PM with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// The name of the network.
    pub name: String,
    /// The device of the network (`type`).
    pub device: String,
    /// Attributes that apply to all hosts.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Attributes of one host's interface (`NETWORK/HOST` records).
    pub interface_settings: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl Network {
    /// The values of an attribute for a host: the values of its interface. If there are none, the
    /// values for all hosts.
    pub fn setting(&self, host: &str, name: &str) -> &[String] {
        let host_values = self.interface_settings.get(host).and_then(|end| end.get(name));
        host_values.or_else(|| self.settings.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Whether the operator trusts every user of this network, so that raw wires are allowed.
    pub fn is_trusted(&self) -> bool {
        self.settings.get("trusted").is_some_and(|value| value[0] == "yes")
    }

    /// The interfaces of a host on this network (`links`, or `netdev` if there is no `links`). A
    /// trunk has several. Empty if the route decides.
    pub fn links(&self, host: &str) -> &[String] {
        match self.setting(host, "links") {
            [] => self.setting(host, "netdev"),
            links => links,
        }
    }

    /// The interface of a host to this network.
    fn interface(&self, host: &str) -> HostInterface {
        let links = match self.links(host) {
            [] => self.setting(host, "address"),
            links => links,
        };
        let addressing_value = |name: &&str| {
            let value = self.setting(host, name).first()?;
            Some(((*name).to_owned(), value.clone()))
        };
        HostInterface {
            network: self.name.clone(),
            device: self.device.clone(),
            trusted: self.is_trusted(),
            links: links.to_vec(),
            addressing: attributes::RDMA_ADDRESS_ATTRIBUTES
                .iter()
                .filter_map(addressing_value)
                .collect(),
        }
    }
}

/// Available hosts: a set of hosts in which spares replace hosts that are out of order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AvailableHosts {
    /// The hosts, with spares in the positions of the hosts that they replace.
    pub hosts: Vec<Host>,
    /// Each replaced host and its spare.
    pub replaced: Vec<(String, String)>,
    /// Hosts that are out of order and have no spare.
    pub missing: Vec<String>,
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Database {
    file: String,
    hosts: Vec<Host>,
    networks: Vec<Network>,
    /// Groups and their members, in the order of the file.
    groups: Vec<(String, Vec<usize>)>,
    by_name: HashMap<String, usize>,
    /// The index of the host with each first label of a name. None if several hosts have the label.
    by_label: HashMap<String, Option<usize>>,
    by_group: HashMap<String, usize>,
}

impl Database {
    /// Reads a database, and the list of defective hosts in its directory if there is one.
    ///
    /// # Errors
    /// The first error in these files.
    pub fn load(path: &Path, read: ReadFile<'_>) -> Result<Self, ParseError> {
        let parse_error = |path: &Path, error: std::io::Error| ParseError {
            file: path.to_string_lossy().into_owned(),
            line: 0,
            word: String::new(),
            message: error.to_string(),
        };
        let bytes = read(path).map_err(|error| parse_error(path, error))?;
        let mut database = Self::parse(&path.to_string_lossy(), &bytes, read)?;
        let defects_path = path.with_file_name(DEFECTIVE_HOSTS_FILE);
        match read(&defects_path) {
            Ok(bytes) => database.mark_defects(&defects_path.to_string_lossy(), &bytes, read)?,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(parse_error(&defects_path, error)),
        }
        Ok(database)
    }

    /// Parses the text of a database. `file` is its name in errors.
    ///
    /// # Errors
    /// The first error in the text or in a file that it includes.
    pub fn parse(file: &str, bytes: &[u8], read: ReadFile<'_>) -> Result<Self, ParseError> {
        let records = record::read(&preprocess::lines(file, bytes, read)?)?;
        let (hosts, networks) = resolve::resolve(records)?;
        let mut database = Self { file: file.into(), networks, ..Self::default() };
        for (index, host) in hosts.into_iter().enumerate() {
            database.by_name.insert(host.name.clone(), index);
            if let Some((label, _)) = host.name.split_once('.') {
                let entry = database.by_label.entry(label.to_owned());
                entry.and_modify(|first| *first = None).or_insert(Some(index));
            }
            for group in &host.groups {
                let group_index = *database.by_group.entry(group.clone()).or_insert_with(|| {
                    database.groups.push((group.clone(), Vec::new()));
                    database.groups.len() - 1
                });
                database.groups[group_index].1.push(index);
            }
            database.hosts.push(host);
        }
        Ok(database)
    }

    /// Marks the hosts of a list, one per line, as out of order.
    ///
    /// # Errors
    /// If a line is not a known host.
    pub fn mark_defects(
        &mut self,
        file: &str,
        bytes: &[u8],
        read: ReadFile<'_>,
    ) -> Result<(), ParseError> {
        for line in preprocess::lines(file, bytes, read)? {
            if let Some(extra) = line.get(1) {
                return Err(extra.error(&extra.text, "one host per line is expected"));
            }
            let names = crate::hostlist::expand(&line[0].text);
            for name in names.map_err(|what| line[0].error(&line[0].text, what))? {
                let Some(index) = self.index(&name) else {
                    return Err(line[0].error(&name, self.unknown_name_error(&name)));
                };
                self.hosts[index].defect = true;
            }
        }
        Ok(())
    }

    /// Whether no host has attributes, so that the database is only a list of hosts.
    pub fn is_host_list(&self) -> bool {
        let is_name_only =
            |host: &Host| *host == Host { name: host.name.clone(), ..Host::default() };
        self.networks.is_empty() && self.hosts.iter().all(is_name_only)
    }

    /// The name of the database in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All hosts, in the order of the file.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// All networks.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// The network with this name.
    pub fn network(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|network| network.name == name)
    }

    /// The names of all groups, in the order of the file.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(name, _)| name.as_str())
    }

    /// The hosts of a group.
    pub fn group(&self, name: &str) -> Option<impl Iterator<Item = &Host>> {
        let (_, members) = &self.groups[*self.by_group.get(name)?];
        Some(members.iter().map(|index| &self.hosts[*index]))
    }

    /// The host with this name, or with this first label if only one host has it.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.index(name).map(|index| &self.hosts[index])
    }

    fn index(&self, name: &str) -> Option<usize> {
        let known = self.by_name.get(name).copied();
        known.or_else(|| self.by_label.get(name).copied().flatten())
    }

    /// The error message for a name that this database does not have. It suggests valid names.
    pub fn unknown_name_error(&self, name: &str) -> String {
        if self.by_label.contains_key(name) {
            let has_label = |host: &&Host| host.name.split('.').next() == Some(name);
            let names = self.hosts.iter().filter(has_label).map(|host| host.name.as_str());
            return format!("several hosts have this name: {}", join_names(names));
        }
        let hosts = self.hosts.iter().map(|host| host.name.as_str());
        let labels = hosts.clone().filter_map(|name| Some(name.split_once('.')?.0));
        let hint = match nearest(name, self.groups().chain(hosts.clone()).chain(labels)) {
            Some(suggestion) => format!("did you mean '{suggestion}'?"),
            None if self.groups.is_empty() => format!("there are: {}", join_names(hosts)),
            None => format!("there are the groups {}", join_names(self.groups())),
        };
        format!("no host or group of {}; {hint}", crate::error::printable(&self.file))
    }

    /// A set of hosts without hosts that are out of order. Spares replace them as long as there are
    /// spares (score_doc 7, scorehosts.db, DEFECT LIST).
    pub fn available(&self, requested: Vec<Host>) -> AvailableHosts {
        let mut used_names: HashSet<String> =
            requested.iter().map(|host| host.name.clone()).collect();
        let mut available = AvailableHosts::default();
        for host in requested {
            if !host.defect {
                available.hosts.push(host);
                continue;
            }
            let spare = host.spares.iter().filter_map(|name| self.host(name));
            match spare.into_iter().find(|spare| !spare.defect && !used_names.contains(&spare.name))
            {
                Some(spare) => {
                    used_names.insert(spare.name.clone());
                    available.replaced.push((host.name, spare.name.clone()));
                    available.hosts.push(spare.clone());
                }
                None => available.missing.push(host.name),
            }
        }
        available
    }
}
