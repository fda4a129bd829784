//! Which hosts are at hand in single-user mode (manual, scrun(1), `group`, `file`): those that an
//! option names, else those that a batch system has given, else this machine. No database is read
//! unless an option asks for it.

use crate::networks;
use crate::options::{Given, Options};
use crate::usage::{Refusal, USAGE};
use score_hosts::source::{self, VARIABLE};
use score_hosts::{Context, Database, Host, Virtual, allocation, evaluate, expression};
use score_proto::message::{HostKind, HostSpec};
use score_proto::network::HostNetwork;
use std::ffi::OsString;
use std::path::Path;

/// What scrun knows of the place where it runs.
pub struct Site<'a> {
    /// Processors of this machine; they are counted only when it matters.
    pub processors: &'a dyn Fn() -> u32,
    /// Name of this machine.
    pub name: &'a dyn Fn() -> String,
    /// The environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// How files are read.
    pub read: source::Read<'a>,
    /// The hosts of the scout session that this is in: no others are at hand.
    pub session: Option<Vec<Host>>,
}

impl Site<'_> {
    /// That of this process.
    pub fn of_process() -> Self {
        let variable: &dyn Fn(&str) -> Option<OsString> = &|name| std::env::var_os(name);
        Self { processors: &processors, name: &name, variable, read: &source::disk, session: None }
    }

    /// One of eight processors and no file, for tests and fuzzing.
    pub fn nowhere() -> Self {
        let read: source::Read<'_> = &|_| Err(std::io::ErrorKind::NotFound.into());
        Self {
            processors: &|| 8,
            name: &|| "here".into(),
            variable: &|_| None,
            read,
            session: None,
        }
    }

    /// The hosts that options or a batch system name; none when nobody names any.
    ///
    /// # Errors
    /// An option whose value, or whose file, is wrong; an allocation that makes no sense.
    pub fn at_hand(
        &self,
        options: &Options,
        say: &mut dyn FnMut(&str),
    ) -> Result<Option<Vec<Host>>, Refusal> {
        if let Some(hosts) = &self.session {
            return Ok(Some(hosts.clone()));
        }
        let (group, file) = (options.get("group"), options.get("file"));
        let Some(given) = group.or(file) else {
            let allocation = allocation(self.variable, self.read);
            let allocation = allocation.map_err(|line| Refusal::plain(USAGE, line))?;
            return Ok(allocation.map(|allocation| allocation.hosts()));
        };
        let own = file.map(|file| self.load(file, value(file))).transpose()?;
        let list = group.is_none() && own.as_ref().is_some_and(Database::is_bare);
        let database = match own {
            Some(own) if !list => Some(own),
            _ => self.default(given)?,
        };
        let hosts = match (group, &database) {
            (Some(group), database) => self.group(group, database.as_ref())?,
            (None, database) if list => self.listed(given, database.as_ref())?,
            (None, database) => database.iter().flat_map(|one| one.hosts().to_vec()).collect(),
        };
        let hosts = match &database {
            Some(database) => without_defects(database, hosts, say),
            None => hosts,
        };
        if hosts.is_empty() {
            let line = format!("{}={}: no host is left", given.key, value(given));
            return Err(Refusal::usage(given.in_value(0), line));
        }
        Ok(Some(hosts))
    }

    fn load(&self, given: &Given, path: &str) -> Result<Database, Refusal> {
        Database::load(Path::new(path), self.read)
            .map_err(|fault| Refusal::usage(given.in_value(0), format!("{}: {fault}", given.key)))
    }

    /// The database of this host, if there is one.
    fn default(&self, given: &Given) -> Result<Option<Database>, Refusal> {
        let refuse = |line| Refusal::usage(given.place, format!("{}: {line}", given.key));
        let path = source::locate(None, (self.variable)(VARIABLE).as_deref()).map_err(refuse)?;
        let load =
            |path| Database::load(path, self.read).map_err(|fault| refuse(fault.to_string()));
        path.as_deref().map(load).transpose()
    }

    /// The networks that this machine is on by the database: for a job on this machine alone, which
    /// reads it for the option `network` only.
    ///
    /// # Errors
    /// A database that is wrong.
    pub fn networks_here(&self, options: &Options) -> Result<Vec<HostNetwork>, Refusal> {
        let Some(given) = options.get("network") else { return Ok(Vec::new()) };
        let database = self.default(given)?;
        let mut hosts = database.iter().flat_map(Database::hosts);
        let here = hosts.find(|host| self.is_this(host));
        Ok(here.map(|host| networks::of_host(host, 1)).unwrap_or_default())
    }

    fn context<'a>(&'a self, database: Option<&'a Database>) -> Context<'a> {
        let machine = Virtual { processors: (self.processors)(), bintype: Some(bintype()) };
        Context { database, read: self.read, machine }
    }

    fn group(&self, given: &Given, database: Option<&Database>) -> Result<Vec<Host>, Refusal> {
        evaluate(value(given), &self.context(database)).map_err(|fault| {
            Refusal::usage(given.in_value(fault.at), format!("{}: {fault}", given.key))
        })
    }

    /// The hosts of a mere list, as the database of this host knows them.
    fn listed(&self, given: &Given, database: Option<&Database>) -> Result<Vec<Host>, Refusal> {
        expression::of_file(value(given), &self.context(database))
            .map_err(|line| Refusal::usage(given.in_value(0), format!("{}: {line}", given.key)))
    }

    /// Hosts of a scout session, as far as is known of them.
    pub fn hosts_of(&self, session: &[HostSpec]) -> Vec<Host> {
        let host = |spec: &HostSpec| Host {
            name: spec.name.clone(),
            address: Some(spec.address.clone()).filter(|address| !address.is_empty()),
            processors: Some(spec.processors).filter(|count| *count > 0),
            bintype: (spec.kind != HostKind::Other).then(bintype),
            is_virtual: spec.kind == HostKind::Virtual,
            ends: networks::ends(&spec.networks),
            ..Host::default()
        };
        session.iter().map(host).collect()
    }

    /// Whether a host is the machine that this process runs on.
    pub fn is_this(&self, host: &Host) -> bool {
        host.is_machine(&(self.name)())
    }
}

/// Spares stand in for hosts that are out of order; the user hears of it.
fn without_defects(database: &Database, hosts: Vec<Host>, say: &mut dyn FnMut(&str)) -> Vec<Host> {
    let available = database.available(hosts);
    for (host, spare) in &available.replaced {
        say(&format!("{host} is out of order: {spare} stands in for it"));
    }
    if !available.missing.is_empty() {
        let missing = available.missing.join(", ");
        say(&format!("out of order, and without a spare: {missing}"));
    }
    available.hosts
}

fn value(given: &Given) -> &str {
    given.value.as_deref().unwrap_or_default()
}

/// The kind of programs that this machine runs.
pub fn bintype() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn processors() -> u32 {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(count).unwrap_or(score_proto::MAX_NODES)
}

fn name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
