//! The available hosts in single-user mode (manual, scrun(1), `group`, `file`). They are the hosts
//! that an option names. Without such an option, they are the hosts of a batch job's allocation.
//! Without an allocation, the only host is this machine. A database is read only if an option
//! requires it.

use crate::networks;
use crate::options::{OptionArg, ScrunOptions};
use crate::usage::StartError;
use score_hosts::database_file::{self, DATABASE_ENV};
use score_hosts::{Context, Database, Host, VirtualHostSpec, allocation, evaluate, expression};
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::{HostKind, HostSpec};
use score_proto::network::HostNetwork;
use score_sys::host_name::system_host_name;
use std::ffi::OsString;
use std::path::Path;

/// The environment in which scrun runs.
pub struct LocalEnvironment<'a> {
    /// Counts the processors of this machine.
    pub count_processors: &'a dyn Fn() -> u32,
    /// Gives the name of this machine.
    pub machine_name: &'a dyn Fn() -> String,
    /// Reads an environment variable.
    pub env_var: &'a dyn Fn(&str) -> Option<OsString>,
    /// Reads a file.
    pub read_file: database_file::ReadFile<'a>,
    /// The hosts of the scout session that scrun runs in: no other hosts are available.
    pub session_hosts: Option<Vec<Host>>,
}

impl LocalEnvironment<'_> {
    /// The environment of this process.
    pub fn current() -> Self {
        let env_var: &dyn Fn(&str) -> Option<OsString> = &|name| std::env::var_os(name);
        Self {
            count_processors: &processors,
            machine_name: &system_host_name,
            env_var,
            read_file: &database_file::read_from_disk,
            session_hosts: None,
        }
    }

    /// An environment with eight processors and no files, for tests and fuzzing.
    pub fn for_tests() -> Self {
        let read_file: database_file::ReadFile<'_> = &|_| Err(std::io::ErrorKind::NotFound.into());
        Self {
            count_processors: &|| 8,
            machine_name: &|| "here".into(),
            env_var: &|_| None,
            read_file,
            session_hosts: None,
        }
    }

    /// The hosts of the scout session, or else the hosts that options or a batch system name.
    /// `None` if there are none.
    ///
    /// # Errors
    /// An option with a wrong value or file, or an invalid allocation.
    pub fn available_hosts(
        &self,
        options: &ScrunOptions,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Option<Vec<Host>>, StartError> {
        if let Some(hosts) = &self.session_hosts {
            return Ok(Some(hosts.clone()));
        }
        let (group, file) = (options.get("group"), options.get("file"));
        let Some(given) = group.or(file) else {
            let allocation = allocation(self.env_var, self.read_file);
            let allocation = allocation.map_err(|line| StartError::plain(EXIT_USAGE, line))?;
            return Ok(allocation.map(|allocation| allocation.hosts()));
        };
        let file_database = file.map(|file| self.load(file, value(file))).transpose()?;
        let is_bare_list =
            group.is_none() && file_database.as_ref().is_some_and(Database::is_host_list);
        let database = match file_database {
            Some(file_database) if !is_bare_list => Some(file_database),
            _ => self.default_database(given)?,
        };
        let hosts = match (group, &database) {
            (Some(group), database) => self.group(group, database.as_ref())?,
            (None, database) if is_bare_list => self.hosts_of_list(given, database.as_ref())?,
            (None, database) => database.iter().flat_map(|one| one.hosts().to_vec()).collect(),
        };
        let hosts = match &database {
            Some(database) => remove_defective(database, hosts, warn),
            None => hosts,
        };
        if hosts.is_empty() {
            let line = format!("{}={}: no host is left", given.key, value(given));
            return Err(StartError::usage(given.in_value(0), line));
        }
        Ok(Some(hosts))
    }

    fn load(&self, given: &OptionArg, path: &str) -> Result<Database, StartError> {
        Database::load(Path::new(path), self.read_file).map_err(|error| {
            StartError::usage(given.in_value(0), format!("{}: {error}", given.key))
        })
    }

    /// The database of this host, if there is one.
    fn default_database(&self, given: &OptionArg) -> Result<Option<Database>, StartError> {
        let refuse = |line| StartError::usage(given.position, format!("{}: {line}", given.key));
        let path =
            database_file::locate(None, (self.env_var)(DATABASE_ENV).as_deref()).map_err(refuse)?;
        let load =
            |path| Database::load(path, self.read_file).map_err(|error| refuse(error.to_string()));
        path.as_deref().map(load).transpose()
    }

    /// The networks of this machine in the database. For a job on this machine alone, the database
    /// is read only if the option `network` is given.
    ///
    /// # Errors
    /// An invalid database.
    pub fn local_networks(&self, options: &ScrunOptions) -> Result<Vec<HostNetwork>, StartError> {
        let Some(given) = options.get("network") else { return Ok(Vec::new()) };
        let database = self.default_database(given)?;
        let mut hosts = database.iter().flat_map(Database::hosts);
        let local_host = hosts.find(|host| self.is_local(host));
        Ok(local_host.map(|host| networks::host_networks(host, 1)).unwrap_or_default())
    }

    fn context<'a>(&'a self, database: Option<&'a Database>) -> Context<'a> {
        let machine =
            VirtualHostSpec { processors: (self.count_processors)(), bintype: Some(bintype()) };
        Context { database, read: self.read_file, machine }
    }

    fn group(
        &self,
        given: &OptionArg,
        database: Option<&Database>,
    ) -> Result<Vec<Host>, StartError> {
        evaluate(value(given), &self.context(database)).map_err(|error| {
            StartError::usage(given.in_value(error.offset), format!("{}: {error}", given.key))
        })
    }

    /// The hosts of a plain list, with their records in the database of this host.
    fn hosts_of_list(
        &self,
        given: &OptionArg,
        database: Option<&Database>,
    ) -> Result<Vec<Host>, StartError> {
        expression::hosts_of_file(value(given), &self.context(database))
            .map_err(|line| StartError::usage(given.in_value(0), format!("{}: {line}", given.key)))
    }

    /// The hosts of a scout session, with the attributes that the session provides.
    pub fn hosts_of_session(&self, session: &[HostSpec]) -> Vec<Host> {
        let host = |spec: &HostSpec| Host {
            name: spec.name.clone(),
            address: Some(spec.address.clone()).filter(|address| !address.is_empty()),
            processors: Some(spec.processors).filter(|count| *count > 0),
            bintype: (spec.kind != HostKind::Remote).then(bintype),
            is_virtual: spec.kind == HostKind::Virtual,
            interfaces: networks::endpoints(&spec.networks),
            ..Host::default()
        };
        session.iter().map(host).collect()
    }

    /// Whether a host is the machine that this process runs on.
    pub fn is_local(&self, host: &Host) -> bool {
        host.is_machine(&(self.machine_name)())
    }
}

/// Replaces defective hosts with spares and warns the user.
fn remove_defective(
    database: &Database,
    hosts: Vec<Host>,
    warn: &mut dyn FnMut(&str),
) -> Vec<Host> {
    let available = database.available(hosts);
    for (host, spare) in &available.replaced {
        warn(&format!("{host} is out of order: replaced by {spare}"));
    }
    if !available.missing.is_empty() {
        let missing = available.missing.join(", ");
        warn(&format!("{missing}: out of order, and no spare is available"));
    }
    available.hosts
}

fn value(given: &OptionArg) -> &str {
    given.value.as_deref().unwrap_or_default()
}

/// The binary type of this machine.
pub fn bintype() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn processors() -> u32 {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(count).unwrap_or(score_proto::MAX_NODES)
}
