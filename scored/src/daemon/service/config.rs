//! The configuration of this daemon's cluster: the hosts of `scorehosts.db`. The server comes
//! first; the other hosts follow in the order of the cluster's list.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use score_hosts::node_request::{parse_hosts, parse_nodes};
use score_hosts::placement::homogeneous_pools;
use score_hosts::{Context, Database, Host, Network, database_file, evaluate};
use score_job::cluster::HostConfig;
use score_proto::nodeset::NodeSet;

use score_proto::network::HostNetwork;

use crate::launch;

/// The default port on which the daemons listen (manual, scored(8)).
pub const DEFAULT_PORT: u16 = 9901;
/// The default number of jobs that may share a processor.
const DEFAULT_MAX_ROWS: u32 = 8;
/// The default path of the cluster key.
pub const DEFAULT_KEY_PATH: &str = "/etc/score/cluster.key";
/// The default path of the socket to which scruns of this host connect.
pub const DEFAULT_SOCKET_PATH: &str = score_proto::env::DEFAULT_SOCKET;

/// The options of the command line.
#[derive(Debug, Default)]
pub struct ServiceOptions {
    /// `-group EXPR`: the hosts of the cluster. Default: all hosts of the database.
    pub group: Option<String>,
    /// `-file FILE`: the database.
    pub file: Option<PathBuf>,
    /// `-server HOST`: the server. Default: the last host of the group.
    pub server: Option<String>,
    /// `-host NAME`: the name of this host. Required if the machine's own name matches no host.
    pub host: Option<String>,
    /// `-port N`
    pub port: Option<u16>,
    /// `-key FILE`
    pub key: Option<PathBuf>,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
    /// `-network NETWORK`: the network on which the daemons connect to each other.
    pub network: Option<String>,
    /// `-user USER`: the system user as which the daemon runs.
    pub user: Option<String>,
    /// `-syslog ADDRESS[:PORT]`: a receiver for a copy of the log.
    pub syslog: Option<String>,
    /// `-operator USER`, any number of times.
    pub operators: Vec<String>,
    /// `-nonamespace`
    pub no_namespace: bool,
    /// `-ts MS`: the length of a time slice.
    pub slice: Option<Duration>,
    /// `-cleanup SECONDS`: how long tools may clean up after the end of their job.
    pub tool_cleanup: Option<Duration>,
    /// `-rows N`: the number of jobs that may share a processor.
    pub rows: Option<u32>,
    /// `-v`
    pub verbose: bool,
    /// `-page PORT|ADDRESS:PORT|off`
    pub page: PageListen,
    /// A notice for each option that has no effect.
    pub notices: Vec<String>,
}

/// The address of the server's status page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PageListen {
    /// A free port of the loopback address.
    #[default]
    EphemeralPort,
    /// The given address.
    Address(SocketAddr),
    /// No page.
    Disabled,
}

impl PageListen {
    /// Reads `PORT`, `ADDRESS:PORT` or `off`.
    ///
    /// # Errors
    /// One line that quotes the word.
    pub fn parse(word: &str) -> Result<Self, String> {
        let on_loopback = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        match (word, word.parse().map(on_loopback), word.parse()) {
            ("off", ..) => Ok(PageListen::Disabled),
            (_, Ok(address), _) | (_, _, Ok(address)) => Ok(PageListen::Address(address)),
            _ => Err(format!("-page {word}: must be a port, ADDRESS:PORT or off")),
        }
    }

    /// The address, unless the page is disabled.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            PageListen::EphemeralPort => Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            PageListen::Address(address) => Some(address),
            PageListen::Disabled => None,
        }
    }
}

/// The configuration of a cluster.
#[derive(Debug)]
pub struct Config {
    /// All hosts. The server is the first.
    pub hosts: Vec<HostConfig>,
    /// The networks of each host.
    pub networks: Vec<Vec<HostNetwork>>,
    /// The index of this host in `hosts`.
    pub local_index: usize,
    /// The address at which the server listens.
    pub server: SocketAddr,
    /// The address at which this daemon listens.
    pub address: SocketAddr,
    /// The path of the cluster key, which the keeper reads. `None` if the cluster has one host.
    pub key_path: Option<PathBuf>,
    /// Users that may end the jobs of other users.
    pub operators: Vec<u32>,
    /// The number of jobs that may share a processor.
    pub rows: u32,
    database: Option<Database>,
    /// The database records of the hosts, in the order of `hosts`.
    host_records: Vec<Host>,
}

impl Config {
    /// Reads the database and computes the configuration.
    ///
    /// # Errors
    /// One line that names the file, word or host at fault.
    pub fn read(options: &ServiceOptions) -> Result<Self, String> {
        let env_path = std::env::var_os(database_file::DATABASE_ENV);
        let path = database_file::locate(options.file.as_deref(), env_path.as_deref())?;
        let database = path.map(|path| Database::load(&path, &database_file::read_from_disk));
        let database = database.transpose().map_err(|error| error.to_string())?;
        let mut hosts = select_hosts(options, database.as_ref())?;
        let regular_count = hosts.len();
        let spare_for = add_spares(&mut hosts, database.as_ref());
        let local_index = local_host_index(options, &hosts)?;
        let server = match &options.server {
            None => regular_count - 1,
            Some(name) => launch::position_of(name, &names(&hosts[..regular_count]))
                .ok_or_else(|| format!("-server {name}: not one of the {regular_count} hosts"))?,
        };
        let key_path = match hosts.len() {
            1 => None,
            _ => Some(options.key.clone().unwrap_or_else(|| DEFAULT_KEY_PATH.into())),
        };
        let port = options.port.unwrap_or(DEFAULT_PORT);
        let is_single_host = hosts.len() == 1;
        let network = options.network.as_deref();
        let network = network.map(|name| network_of(name, database.as_ref())).transpose()?;
        let address = |host: &Host| match is_single_host {
            true => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
            false => resolve(host, network, port),
        };
        let (server_address, address) = (address(&hosts[server])?, address(&hosts[local_index])?);
        let mut order: Vec<_> = (0..hosts.len()).collect();
        // Move the server to the front, and keep the order of the others.
        order.swap(0, server);
        order[1..].sort_unstable();
        let new_index = |index: u32| {
            order
                .iter()
                .position(|old_index| *old_index == index as usize)
                .map(|index| index as u32)
        };
        let host_config_of = |index: &usize| {
            let spare_for =
                spare_for[*index].iter().filter_map(|spared| new_index(*spared)).collect();
            Ok(HostConfig { spare_for, ..host_config(&hosts[*index], *index == local_index)? })
        };
        let host_configs: Result<Vec<_>, String> = order.iter().map(host_config_of).collect();
        let local_position = order.iter().position(|index| *index == local_index);
        let networks = order.iter().map(|index| host_networks(&hosts[*index])).collect();
        Ok(Self {
            hosts: host_configs?,
            networks,
            local_index: local_position.unwrap_or(0),
            server: server_address,
            address,
            key_path,
            operators: operators(&options.operators)?,
            rows: options.rows.unwrap_or(DEFAULT_MAX_ROWS),
            database,
            host_records: order.iter().map(|index| hosts[*index].clone()).collect(),
        })
    }

    /// Checks that an expression names hosts of this cluster.
    ///
    /// # Errors
    /// One line that names the host that is not in the cluster.
    pub fn check(&self, expression: &str) -> Result<(), String> {
        let is_member = |name: &str| self.hosts.iter().any(|host| host.name == name);
        if expression.is_empty() || is_member(expression) {
            return Ok(());
        }
        // The expression comes from a user, so it must not make this daemon read files.
        let no_file: database_file::ReadFile<'_> =
            &|_| Err(std::io::ErrorKind::PermissionDenied.into());
        let context = Context { database: self.database.as_ref(), ..Context::new(no_file) };
        let hosts = evaluate(expression, &context)
            .map_err(|error| format!("scored={expression}: {error}"))?;
        match hosts.iter().find(|host| !is_member(&host.name)) {
            None => Ok(()),
            Some(other) => Err(format!(
                "scored={expression}: {} is not in the cluster of the scored of this host ({}), \
                 which has the hosts {}",
                other.name,
                self.hosts[self.local_index].name,
                summary(&self.hosts)
            )),
        }
    }

    /// Returns the sets of hosts that the job options permit. The job may use the hosts of one set
    /// (manual, scrun(1), `nodes` and `hetero`). The result is empty if the job may use all hosts.
    ///
    /// # Errors
    /// One line: there is no host of the requested kind.
    pub fn pools(&self, options: &[(String, Option<String>)]) -> Result<Vec<NodeSet>, String> {
        let node_option = options.iter().find(|(key, _)| matches!(key.as_str(), "nodes" | "hosts"));
        let kind = match node_option {
            Some((key, Some(value))) => {
                let parse = if key == "hosts" { parse_hosts } else { parse_nodes };
                parse(value).map_err(|error| format!("{key}={value}: {error}"))?.kind
            }
            _ => None,
        };
        let hetero =
            options.iter().any(|(key, _)| matches!(key.as_str(), "hetero" | "heterogeneous"));
        let pools = homogeneous_pools(&self.host_records, kind.as_ref(), hetero)?;
        if pools.len() == 1 && pools[0].len() == self.host_records.len() {
            return Ok(Vec::new());
        }
        let to_set = |pool: Vec<usize>| pool.into_iter().map(|index| index as u32).collect();
        Ok(pools.into_iter().map(to_set).collect())
    }
}

fn summary(hosts: &[HostConfig]) -> String {
    let names: Vec<_> = hosts.iter().take(4).map(|host| host.name.as_str()).collect();
    match hosts.len() {
        0..=4 => names.join(", "),
        more => format!("{} and {} more", names.join(", "), more - 4),
    }
}

fn select_hosts(
    options: &ServiceOptions,
    database: Option<&Database>,
) -> Result<Vec<Host>, String> {
    let hosts = match (&options.group, database) {
        (None, None) => {
            let name = options.host.clone().unwrap_or_else(launch::local_name);
            vec![Host { name, processors: Some(processors()), ..Host::default() }]
        }
        (None, Some(database)) => database.hosts().to_vec(),
        (Some(group), database) => {
            let context = Context { database, ..Context::new(&database_file::read_from_disk) };
            evaluate(group, &context).map_err(|error| format!("-group {group}: {error}"))?
        }
    };
    if let Some(host) = hosts.iter().find(|host| host.is_virtual) {
        return Err(format!("{}: virtual hosts are for jobs of single-user mode", host.name));
    }
    if hosts.is_empty() { Err("the cluster has no hosts".to_owned()) } else { Ok(hosts) }
}

/// Appends the spare hosts that are not hosts of the cluster yet. Returns, for each host, the hosts
/// that it can replace (scorehosts.db, `spare`).
fn add_spares(hosts: &mut Vec<Host>, database: Option<&Database>) -> Vec<Vec<u32>> {
    let regular_count = hosts.len();
    let mut spare_for = vec![Vec::new(); regular_count];
    for index in 0..regular_count {
        for name in hosts[index].spares.clone() {
            let Some(spare) = database.and_then(|database| database.host(&name)) else { continue };
            let existing = hosts.iter().position(|host| host.name == spare.name);
            let index_of_spare = existing.unwrap_or_else(|| {
                hosts.push(spare.clone());
                spare_for.push(Vec::new());
                hosts.len() - 1
            });
            // A regular host of the cluster cannot be a spare for others.
            if index_of_spare >= regular_count {
                spare_for[index_of_spare].push(index as u32);
            }
        }
    }
    spare_for
}

fn local_host_index(options: &ServiceOptions, hosts: &[Host]) -> Result<usize, String> {
    let name = options.host.clone().unwrap_or_else(launch::local_name);
    let by_name = launch::position_of(&name, &names(hosts));
    let by_address = || hosts.iter().position(|host| host.is_machine(&name));
    by_name.or_else(|| options.host.is_none().then(by_address).flatten()).ok_or_else(|| {
        format!("this host is {name}, which is not a host of the cluster (-group, -file, -host)")
    })
}

fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}

fn host_config(host: &Host, is_local: bool) -> Result<HostConfig, String> {
    let slots = match host.processors {
        Some(processors) => processors,
        None if is_local => processors(),
        None => return Err(format!("{}: the database has no cores= for this host", host.name)),
    };
    Ok(HostConfig {
        name: host.name.clone(),
        slots,
        spare_for: NodeSet::new(),
        defect: host.defect,
    })
}

fn host_networks(host: &Host) -> Vec<HostNetwork> {
    let ends = host.interfaces.iter();
    ends.map(|end| {
        let network = HostNetwork::new(&end.network, &end.device, end.trusted, end.links.clone());
        network.with_addressing(end.addressing.clone())
    })
    .collect()
}

fn processors() -> u32 {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(count).unwrap_or(1)
}

fn network_of<'a>(name: &str, database: Option<&'a Database>) -> Result<&'a Network, String> {
    let networks = database.map_or(&[][..], Database::networks);
    networks.iter().find(|network| network.name == name).ok_or_else(|| {
        let names: Vec<_> = networks.iter().map(|network| network.name.as_str()).collect();
        match names.is_empty() {
            true => format!("-network {name}: the database has no networks"),
            false => format!("-network {name}: not in the database (it has: {})", names.join(", ")),
        }
    })
}

/// The address of a host's daemon on the requested network.
fn resolve(host: &Host, network: Option<&Network>, port: u16) -> Result<SocketAddr, String> {
    let end = network.map(|network| network.setting(&host.name, "address"));
    let dial = match (end, network) {
        (Some([address, ..]), _) => address,
        (_, Some(network)) => {
            let name = &network.name;
            return Err(format!(
                "-network {name}: the database has no record {name}/{} with address=",
                host.name
            ));
        }
        (_, None) => host.dial(),
    };
    let mut addresses = (dial, port)
        .to_socket_addrs()
        .map_err(|error| format!("{}: {dial}: {error}", host.name))?;
    let resolved: Vec<SocketAddr> = addresses.by_ref().collect();
    let ipv4 = resolved.iter().find(|address| address.is_ipv4());
    ipv4.or(resolved.first()).copied().ok_or_else(|| format!("{}: no address", host.name))
}

fn operators(names: &[String]) -> Result<Vec<u32>, String> {
    let number = |name: &String| {
        let by_number = name.parse().ok();
        let user = || nix::unistd::User::from_name(name).ok().flatten();
        by_number
            .or_else(|| Some(user()?.uid.as_raw()))
            .ok_or_else(|| format!("-operator {name}: no such user"))
    };
    names.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, options: ServiceOptions) -> Result<Config, String> {
        let name = format!("score-config-{:?}", std::thread::current().id());
        let file = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let options = ServiceOptions { file: Some(file.clone()), ..options };
        let config = Config::read(&options);
        std::fs::remove_file(&file).unwrap();
        config
    }

    const DB: &str = "a address=127.0.0.1 cores=2\nb address=127.0.0.2 cores=3 group=g\n\
                      c address=127.0.0.3 cores=4 group=g\n";

    fn host(name: &str) -> ServiceOptions {
        ServiceOptions { host: Some(name.to_owned()), ..ServiceOptions::default() }
    }

    #[test]
    fn the_last_host_is_the_server_unless_another_is_named() {
        let names = |config: &Config| {
            config.hosts.iter().map(|host| (host.name.clone(), host.slots)).collect::<Vec<_>>()
        };
        let config = read(DB, host("b")).unwrap();
        assert_eq!(names(&config), [("c".into(), 4), ("a".into(), 2), ("b".into(), 3)]);
        assert_eq!(
            (config.local_index, config.server.to_string()),
            (2, "127.0.0.3:9901".to_owned())
        );
        let options = ServiceOptions { server: Some("a".to_owned()), port: Some(77), ..host("c") };
        let config = read(DB, options).unwrap();
        assert_eq!((config.local_index, config.hosts[0].name.as_str()), (2, "a"));
        assert_eq!(config.address.to_string(), "127.0.0.3:77");
    }

    // Promise of `a_job_can_request_kinds_of_hosts_whole_hosts_and_spares`.
    #[test]
    fn spares_are_hosts_that_replace_other_hosts() {
        let db = "a address=127.0.0.1 cores=2 group=g spare=s,b\n\
                  b address=127.0.0.2 cores=2 group=g spare=s\n\
                  s address=127.0.0.3 cores=2\nx address=127.0.0.4 cores=2\n";
        let options = ServiceOptions { group: Some("g".to_owned()), ..host("s") };
        let config = read(db, options).unwrap();
        let spare_counts: Vec<_> =
            config.hosts.iter().map(|host| (host.name.as_str(), host.spare_for.len())).collect();
        // b is the server and a regular host.
        assert_eq!(spare_counts, [("b", 0), ("a", 0), ("s", 2)]);
        assert_eq!(config.local_index, 2);
        let options =
            ServiceOptions { group: Some("g".to_owned()), server: Some("s".into()), ..host("a") };
        assert!(read(db, options).unwrap_err().contains("-server s"));
    }

    // Promise of `the_log_is_also_sent_to_a_syslog_receiver`.
    #[test]
    fn the_daemons_reach_each_other_on_the_network_that_is_named() {
        let db = "lan type=ethernet\na address=127.0.0.1 cores=2 network=lan\n\
                  b address=127.0.0.2 cores=2 network=lan\n\
                  lan/a address=127.0.1.1\nlan/b address=127.0.1.2\n";
        let options_on =
            |network: &str| ServiceOptions { network: Some(network.to_owned()), ..host("a") };
        let config = read(db, options_on("lan")).unwrap();
        let addresses = (config.server.to_string(), config.address.to_string());
        assert_eq!(addresses, ("127.0.1.2:9901".to_owned(), "127.0.1.1:9901".to_owned()));
        let error = read(db, options_on("wan")).unwrap_err();
        assert!(error.contains("-network wan: not in the database (it has: lan"), "{error}");
        let error =
            read(&db.replace("lan/b address=127.0.1.2", ""), options_on("lan")).unwrap_err();
        assert!(error.contains("no record lan/b"), "{error}");
    }

    // Promise of `a_job_can_request_kinds_of_hosts_whole_hosts_and_spares`.
    #[test]
    fn kinds_of_hosts_become_pools() {
        let db = "a address=127.0.0.1 cores=2 bintype=linux cpugen=new\n\
                  b address=127.0.0.2 cores=2 bintype=linux cpugen=old\n\
                  c address=127.0.0.3 cores=2 bintype=linux cpugen=old\n";
        let config = read(db, host("a")).unwrap();
        let pools = |pairs: &[(&str, &str)]| {
            let option =
                |(key, value): &(&str, &str)| ((*key).to_owned(), Some((*value).to_owned()));
            config.pools(&pairs.iter().map(option).collect::<Vec<_>>())
        };
        // Host 0 is the server, c.
        let [old, new] = [NodeSet::from_iter([0, 2]), NodeSet::one(1)];
        assert_eq!(pools(&[]), Ok(vec![old.clone(), new.clone()]));
        assert_eq!(pools(&[("hetero", "")]), Ok(Vec::new()));
        assert_eq!(pools(&[("nodes", "2.linux.old"), ("hosts", "1.linux.new")]), Ok(vec![old]));
        assert_eq!(pools(&[("hosts", "1.linux.new")]), Ok(vec![new]));
        let error = pools(&[("nodes", "2.linux.odl")]).unwrap_err();
        assert!(error.contains("did you mean 'old'"), "{error}");
    }

    #[test]
    fn the_page_listens_on_loopback_unless_an_address_is_named() {
        let listen_address = |word: &str| PageListen::parse(word).map(PageListen::address);
        let address = |text: &str| Ok(Some(text.parse().unwrap()));
        assert_eq!(PageListen::default().address(), Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(listen_address("8080"), address("127.0.0.1:8080"));
        assert_eq!(listen_address("10.0.0.7:80"), address("10.0.0.7:80"));
        assert_eq!(listen_address("[::1]:80"), address("[::1]:80"));
        assert_eq!(listen_address("off"), Ok(None));
        for invalid in ["", "on", "70000", "comp0:80", "10.0.0.7"] {
            assert!(
                listen_address(invalid).unwrap_err().starts_with(&format!("-page {invalid}: ")),
                "{invalid}"
            );
        }
    }

    #[test]
    fn an_error_names_the_option_or_host_at_fault() {
        let error = read(DB, host("x")).unwrap_err();
        assert!(error.contains("this host is x"), "{error}");
        let options = ServiceOptions { server: Some("x".to_owned()), ..host("a") };
        assert!(read(DB, options).unwrap_err().contains("-server x"));
        let error = read("a address=127.0.0.1\nb address=127.0.0.2\n", host("a")).unwrap_err();
        assert!(error.contains("b: the database has no cores="), "{error}");
        let options = ServiceOptions { operators: vec!["no-such-user".to_owned()], ..host("a") };
        assert!(read(DB, options).unwrap_err().contains("no-such-user"));
    }

    // Promise of `a_login_is_routed_to_the_server_or_refused_with_the_reason`.
    #[test]
    fn an_expression_that_names_another_host_is_refused_with_its_name() {
        let options = ServiceOptions { group: Some("g".to_owned()), ..host("b") };
        let config = read(DB, options).unwrap();
        for valid in ["", "b", "g", "c", "b+c"] {
            assert_eq!(config.check(valid), Ok(()), "{valid}");
        }
        let error = config.check("a").unwrap_err();
        assert!(error.contains("a is not in the cluster") && error.contains("c, b"), "{error}");
        assert!(config.check("nonsense").is_err());
        assert!(config.check("/etc/shadow").is_err());
    }
}
