//! Which cluster this daemon is of: the hosts of `scorehosts.db` in the order of the cluster's
//! list, the server first.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use score_hosts::placement::mixable;
use score_hosts::request::{parse_hosts, parse_nodes};
use score_hosts::{Context, Database, Host, Network, evaluate, source};
use score_proto::nodeset::NodeSet;
use score_tree::key::Key;

use score_proto::network::HostNetwork;

use crate::cluster::HostSetting;
use crate::start;

/// Where the service listens (manual, scored(8)).
pub const PORT: u16 = 9901;
/// Jobs that may share a processor.
const ROWS: u32 = 8;
/// The key of the cluster.
pub const KEY: &str = "/etc/score/cluster.key";
/// Where scruns of this host call.
pub const SOCKET: &str = score_proto::env::DEFAULT_SOCKET;

/// What the command line says.
#[derive(Debug, Default)]
pub struct Setting {
    /// `-group EXPR`: the hosts of the cluster; all of the database when absent.
    pub group: Option<String>,
    /// `-file FILE`: the database.
    pub file: Option<PathBuf>,
    /// `-server HOST`: the last of the group when absent.
    pub server: Option<String>,
    /// `-host NAME`: which of them this one is, where its own name does not tell.
    pub host: Option<String>,
    /// `-port N`
    pub port: Option<u16>,
    /// `-key FILE`
    pub key: Option<PathBuf>,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
    /// `-network NETWORK`: where the daemons reach each other.
    pub network: Option<String>,
    /// `-syslog ADDRESS[:PORT]`: who gets the log, too.
    pub syslog: Option<String>,
    /// `-operator USER`, any number of times.
    pub operators: Vec<String>,
    /// `-nonamespace`
    pub no_namespace: bool,
    /// `-ts MS`: a time slice.
    pub slice: Option<Duration>,
    /// `-rows N`: jobs that may share a processor.
    pub rows: Option<u32>,
    /// `-v`
    pub verbose: bool,
    /// `-page PORT|ADDRESS:PORT|off`
    pub page: PageAt,
    /// Options that have no effect: what is said of them.
    pub notices: Vec<String>,
}

/// Where the server's page listens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PageAt {
    /// At a free port of the loopback interface.
    #[default]
    Free,
    /// There.
    Address(SocketAddr),
    /// Nowhere.
    Off,
}

impl PageAt {
    /// Reads `PORT`, `ADDRESS:PORT` or `off`.
    ///
    /// # Errors
    /// One line.
    pub fn parse(word: &str) -> Result<Self, String> {
        let on_loopback = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        match (word, word.parse().map(on_loopback), word.parse()) {
            ("off", ..) => Ok(PageAt::Off),
            (_, Ok(address), _) | (_, _, Ok(address)) => Ok(PageAt::Address(address)),
            _ => Err(format!("-page {word}: a port, ADDRESS:PORT or off is wanted")),
        }
    }

    /// The address, if there is to be a page.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            PageAt::Free => Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            PageAt::Address(address) => Some(address),
            PageAt::Off => None,
        }
    }
}

/// A cluster as it is configured.
#[derive(Debug)]
pub struct Config {
    /// All hosts, the server first.
    pub hosts: Vec<HostSetting>,
    /// The networks of each.
    pub networks: Vec<Vec<HostNetwork>>,
    /// Which one this is.
    pub own: usize,
    /// Where the server listens.
    pub server: SocketAddr,
    /// Where this daemon listens.
    pub address: SocketAddr,
    /// What authenticates daemons to each other; none where there is one only.
    pub key: Option<Key>,
    /// Users that may end the jobs of others.
    pub operators: Vec<u32>,
    /// Jobs that may share a processor.
    pub rows: u32,
    database: Option<Database>,
    /// What the database says of the hosts, in their order.
    records: Vec<Host>,
}

impl Config {
    /// Reads the database and the key.
    ///
    /// # Errors
    /// One line: file, word, host at fault.
    pub fn read(setting: &Setting) -> Result<Self, String> {
        let variable = std::env::var_os(source::VARIABLE);
        let path = source::locate(setting.file.as_deref(), variable.as_deref())?;
        let database = path.map(|path| Database::load(&path, &source::disk));
        let database = database.transpose().map_err(|fault| fault.to_string())?;
        let mut hosts = chosen(setting, database.as_ref())?;
        let regular = hosts.len();
        let spare_for = add_spares(&mut hosts, database.as_ref());
        let own = own(setting, &hosts)?;
        let server = match &setting.server {
            None => regular - 1,
            Some(name) => start::position_of(name, &names(&hosts[..regular]))
                .ok_or_else(|| format!("-server {name}: not one of the {regular} hosts"))?,
        };
        let key = match hosts.len() {
            1 => None,
            _ => {
                let path = setting.key.clone().unwrap_or_else(|| KEY.into());
                Some(Key::load(&path).map_err(|fault| {
                    format!("{fault} (scored -makekey FILE makes one; every host needs the same)")
                })?)
            }
        };
        let port = setting.port.unwrap_or(PORT);
        let alone = hosts.len() == 1;
        let network = setting.network.as_deref();
        let network = network.map(|name| network_of(name, database.as_ref())).transpose()?;
        let address = |host: &Host| match alone {
            true => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
            false => resolve(host, network, port),
        };
        let (server_address, address) = (address(&hosts[server])?, address(&hosts[own])?);
        let mut list: Vec<_> = (0..hosts.len()).collect();
        // The server first, the others in their order.
        list.swap(0, server);
        list[1..].sort_unstable();
        let number = |at: u32| list.iter().position(|one| *one == at as usize).map(|at| at as u32);
        let setting_of = |at: &usize| {
            let spare_for = spare_for[*at].iter().filter_map(|at| number(*at)).collect();
            Ok(HostSetting { spare_for, ..host_setting(&hosts[*at], *at == own)? })
        };
        let settings: Result<Vec<_>, String> = list.iter().map(setting_of).collect();
        let position = list.iter().position(|at| *at == own);
        let networks = list.iter().map(|at| networks(&hosts[*at])).collect();
        Ok(Self {
            hosts: settings?,
            networks,
            own: position.unwrap_or(0),
            server: server_address,
            address,
            key,
            operators: operators(&setting.operators)?,
            rows: setting.rows.unwrap_or(ROWS),
            database,
            records: list.iter().map(|at| hosts[*at].clone()).collect(),
        })
    }

    /// Whether an expression names this cluster.
    ///
    /// # Errors
    /// One line that says what it names instead.
    pub fn check(&self, expression: &str) -> Result<(), String> {
        let known = |name: &str| self.hosts.iter().any(|host| host.name == name);
        if expression.is_empty() || known(expression) {
            return Ok(());
        }
        // A user's expression must not have root read files.
        let no_file: source::Read<'_> = &|_| Err(std::io::ErrorKind::PermissionDenied.into());
        let context = Context { database: self.database.as_ref(), ..Context::new(no_file) };
        let hosts = evaluate(expression, &context)
            .map_err(|fault| format!("scored={expression}: {fault}"))?;
        match hosts.iter().find(|host| !known(&host.name)) {
            None => Ok(()),
            Some(other) => Err(format!(
                "scored={expression}: {} is not of the cluster that the scored of this host ({}) \
                 serves; that has {}",
                other.name,
                self.hosts[self.own].name,
                summary(&self.hosts)
            )),
        }
    }

    /// The sets of hosts of which a job with these options may have one (manual, scrun(1), `nodes`
    /// and `hetero`): empty when it may have any.
    ///
    /// # Errors
    /// One line: no host is of the kind that is wanted.
    pub fn pools(&self, options: &[(String, Option<String>)]) -> Result<Vec<NodeSet>, String> {
        let given = options.iter().find(|(key, _)| matches!(key.as_str(), "nodes" | "hosts"));
        let kind = match given {
            Some((key, Some(value))) => {
                let parse = if key == "hosts" { parse_hosts } else { parse_nodes };
                parse(value).map_err(|fault| format!("{key}={value}: {fault}"))?.kind
            }
            _ => None,
        };
        let hetero =
            options.iter().any(|(key, _)| matches!(key.as_str(), "hetero" | "heterogeneous"));
        let pools = mixable(&self.records, kind.as_ref(), hetero)?;
        if pools.len() == 1 && pools[0].len() == self.records.len() {
            return Ok(Vec::new());
        }
        let set = |pool: Vec<usize>| pool.into_iter().map(|at| at as u32).collect();
        Ok(pools.into_iter().map(set).collect())
    }
}

fn summary(hosts: &[HostSetting]) -> String {
    let names: Vec<_> = hosts.iter().take(4).map(|host| host.name.as_str()).collect();
    match hosts.len() {
        0..=4 => names.join(", "),
        more => format!("{} and {} more", names.join(", "), more - 4),
    }
}

fn chosen(setting: &Setting, database: Option<&Database>) -> Result<Vec<Host>, String> {
    let hosts = match (&setting.group, database) {
        (None, None) => {
            let name = setting.host.clone().unwrap_or_else(start::own_name);
            vec![Host { name, processors: Some(processors()), ..Host::default() }]
        }
        (None, Some(database)) => database.hosts().to_vec(),
        (Some(group), database) => {
            let context = Context { database, ..Context::new(&source::disk) };
            evaluate(group, &context).map_err(|fault| format!("-group {group}: {fault}"))?
        }
    };
    if let Some(host) = hosts.iter().find(|host| host.is_virtual) {
        return Err(format!("{}: virtual hosts are for jobs of single-user mode", host.name));
    }
    if hosts.is_empty() { Err("the cluster has no hosts".to_owned()) } else { Ok(hosts) }
}

/// Appends the spares that are not hosts of the cluster anyway; for which hosts each of all stands
/// in (scorehosts.db, `spare`).
fn add_spares(hosts: &mut Vec<Host>, database: Option<&Database>) -> Vec<Vec<u32>> {
    let regular = hosts.len();
    let mut spare_for = vec![Vec::new(); regular];
    for at in 0..regular {
        for name in hosts[at].spares.clone() {
            let Some(spare) = database.and_then(|database| database.host(&name)) else { continue };
            let known = hosts.iter().position(|host| host.name == spare.name);
            let place = known.unwrap_or_else(|| {
                hosts.push(spare.clone());
                spare_for.push(Vec::new());
                hosts.len() - 1
            });
            // Who has a place of its own stands in for nobody.
            if place >= regular {
                spare_for[place].push(at as u32);
            }
        }
    }
    spare_for
}

fn own(setting: &Setting, hosts: &[Host]) -> Result<usize, String> {
    let name = setting.host.clone().unwrap_or_else(start::own_name);
    let found = start::position_of(&name, &names(hosts));
    let by_address = || hosts.iter().position(|host| host.is_machine(&name));
    found.or_else(|| setting.host.is_none().then(by_address).flatten()).ok_or_else(|| {
        format!("this host is {name}, which is not one of the cluster (-group, -file, -host)")
    })
}

fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}

fn host_setting(host: &Host, is_own: bool) -> Result<HostSetting, String> {
    let slots = match host.processors {
        Some(processors) => processors,
        None if is_own => processors(),
        None => return Err(format!("{}: the database does not say its cores", host.name)),
    };
    Ok(HostSetting {
        name: host.name.clone(),
        slots,
        spare_for: NodeSet::new(),
        defect: host.defect,
    })
}

fn networks(host: &Host) -> Vec<HostNetwork> {
    let ends = host.ends.iter();
    ends.map(|end| {
        let network = HostNetwork::new(&end.network, &end.device, end.trusted, end.links.clone());
        network.addressed(end.addressing.clone())
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
            false => format!("-network {name}: the database has {}", names.join(", ")),
        }
    })
}

/// Where the daemon of a host is dialled: at its end of the network that is wanted.
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
    let mut found = (dial, port)
        .to_socket_addrs()
        .map_err(|error| format!("{}: {dial}: {error}", host.name))?;
    let all: Vec<SocketAddr> = found.by_ref().collect();
    let four = all.iter().find(|address| address.is_ipv4());
    four.or(all.first()).copied().ok_or_else(|| format!("{}: no address", host.name))
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
    use std::path::Path;

    fn read(text: &str, setting: Setting) -> Result<Config, String> {
        let name = format!("score-config-{:?}", std::thread::current().id());
        let file = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let key = file.with_extension("key");
        let _ = std::fs::remove_file(&key);
        score_tree::key::make(&key).unwrap();
        let setting = Setting { file: Some(file.clone()), key: Some(key.clone()), ..setting };
        let config = Config::read(&setting);
        let gone = |path: &Path| std::fs::remove_file(path).unwrap();
        gone(&file);
        gone(&key);
        config
    }

    const DB: &str = "a address=127.0.0.1 cores=2\nb address=127.0.0.2 cores=3 group=g\n\
                      c address=127.0.0.3 cores=4 group=g\n";

    fn host(name: &str) -> Setting {
        Setting { host: Some(name.to_owned()), ..Setting::default() }
    }

    #[test]
    fn the_last_host_is_the_server_unless_another_is_named() {
        let names = |config: &Config| {
            config.hosts.iter().map(|host| (host.name.clone(), host.slots)).collect::<Vec<_>>()
        };
        let config = read(DB, host("b")).unwrap();
        assert_eq!(names(&config), [("c".into(), 4), ("a".into(), 2), ("b".into(), 3)]);
        assert_eq!((config.own, config.server.to_string()), (2, "127.0.0.3:9901".to_owned()));
        let setting = Setting { server: Some("a".to_owned()), port: Some(77), ..host("c") };
        let config = read(DB, setting).unwrap();
        assert_eq!((config.own, config.hosts[0].name.as_str()), (2, "a"));
        assert_eq!(config.address.to_string(), "127.0.0.3:77");
    }

    #[test]
    fn spares_are_hosts_that_stand_in_for_others() {
        let db = "a address=127.0.0.1 cores=2 group=g spare=s,b\n\
                  b address=127.0.0.2 cores=2 group=g spare=s\n\
                  s address=127.0.0.3 cores=2\nx address=127.0.0.4 cores=2\n";
        let setting = Setting { group: Some("g".to_owned()), ..host("s") };
        let config = read(db, setting).unwrap();
        let list: Vec<_> =
            config.hosts.iter().map(|host| (host.name.as_str(), host.spare_for.len())).collect();
        // b is the server, and a host of its own right.
        assert_eq!(list, [("b", 0), ("a", 0), ("s", 2)]);
        assert_eq!(config.own, 2);
        let setting =
            Setting { group: Some("g".to_owned()), server: Some("s".into()), ..host("a") };
        assert!(read(db, setting).unwrap_err().contains("-server s"));
    }

    #[test]
    fn the_daemons_reach_each_other_on_the_network_that_is_named() {
        let db = "lan type=ethernet\na address=127.0.0.1 cores=2 network=lan\n\
                  b address=127.0.0.2 cores=2 network=lan\n\
                  lan/a address=127.0.1.1\nlan/b address=127.0.1.2\n";
        let on = |network: &str| Setting { network: Some(network.to_owned()), ..host("a") };
        let config = read(db, on("lan")).unwrap();
        let addresses = (config.server.to_string(), config.address.to_string());
        assert_eq!(addresses, ("127.0.1.2:9901".to_owned(), "127.0.1.1:9901".to_owned()));
        let fault = read(db, on("wan")).unwrap_err();
        assert!(fault.contains("-network wan: the database has lan"), "{fault}");
        let fault = read(&db.replace("lan/b address=127.0.1.2", ""), on("lan")).unwrap_err();
        assert!(fault.contains("no record lan/b"), "{fault}");
    }

    #[test]
    fn kinds_of_hosts_become_pools() {
        let db = "a address=127.0.0.1 cores=2 bintype=linux cpugen=new\n\
                  b address=127.0.0.2 cores=2 bintype=linux cpugen=old\n\
                  c address=127.0.0.3 cores=2 bintype=linux cpugen=old\n";
        let config = read(db, host("a")).unwrap();
        let pools = |words: &[(&str, &str)]| {
            let option =
                |(key, value): &(&str, &str)| ((*key).to_owned(), Some((*value).to_owned()));
            config.pools(&words.iter().map(option).collect::<Vec<_>>())
        };
        // The server, c, is host 0.
        let [old, new] = [NodeSet::from_iter([0, 2]), NodeSet::one(1)];
        assert_eq!(pools(&[]), Ok(vec![old.clone(), new.clone()]));
        assert_eq!(pools(&[("hetero", "")]), Ok(Vec::new()));
        assert_eq!(pools(&[("nodes", "2.linux.old"), ("hosts", "1.linux.new")]), Ok(vec![old]));
        assert_eq!(pools(&[("hosts", "1.linux.new")]), Ok(vec![new]));
        let fault = pools(&[("nodes", "2.linux.odl")]).unwrap_err();
        assert!(fault.contains("did you mean 'old'"), "{fault}");
    }

    #[test]
    fn the_page_listens_on_loopback_unless_an_address_is_named() {
        let at = |word: &str| PageAt::parse(word).map(PageAt::address);
        let address = |text: &str| Ok(Some(text.parse().unwrap()));
        assert_eq!(PageAt::default().address(), Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(at("8080"), address("127.0.0.1:8080"));
        assert_eq!(at("10.0.0.7:80"), address("10.0.0.7:80"));
        assert_eq!(at("[::1]:80"), address("[::1]:80"));
        assert_eq!(at("off"), Ok(None));
        for wrong in ["", "on", "70000", "comp0:80", "10.0.0.7"] {
            assert!(at(wrong).unwrap_err().starts_with(&format!("-page {wrong}: ")), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fault = read(DB, host("x")).unwrap_err();
        assert!(fault.contains("this host is x"), "{fault}");
        let setting = Setting { server: Some("x".to_owned()), ..host("a") };
        assert!(read(DB, setting).unwrap_err().contains("-server x"));
        let fault = read("a address=127.0.0.1\nb address=127.0.0.2\n", host("a")).unwrap_err();
        assert!(fault.contains("b: the database does not say"), "{fault}");
        let setting = Setting { operators: vec!["no-such-user".to_owned()], ..host("a") };
        assert!(read(DB, setting).unwrap_err().contains("no-such-user"));
    }

    #[test]
    fn an_expression_names_the_cluster_or_what_it_names_is_told() {
        let setting = Setting { group: Some("g".to_owned()), ..host("b") };
        let config = read(DB, setting).unwrap();
        for good in ["", "b", "g", "c", "b+c"] {
            assert_eq!(config.check(good), Ok(()), "{good}");
        }
        let fault = config.check("a").unwrap_err();
        assert!(fault.contains("a is not of the cluster") && fault.contains("c, b"), "{fault}");
        assert!(config.check("nonsense").is_err());
        assert!(config.check("/etc/shadow").is_err());
    }
}
