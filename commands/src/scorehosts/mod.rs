//! `scorehosts`: lists the hosts of an expression (score_doc 5.8.3 and 7, scorehosts).

mod format;
mod options;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use score_hosts::database::AvailableHosts;
use score_hosts::database_file::{self, ReadFile, locate};
use score_hosts::{Context, Database, Host, VirtualHostSpec, evaluate};
use score_proto::exit_code::{EXIT_NO_HOSTS, EXIT_USAGE};

pub use options::{HostFilter, ScorehostsOptions};

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scorehosts [options] [[-group] EXPRESSION]
       scorehosts -check [-file FILE]
  EXPRESSION      hosts, groups and files of hosts; without it, all hosts
    a+b  a, then b    a~b  a without b    a^b  b, then a
    a:N  the first N, or all preceding host N    a@N  all after the first N, or from host N on
    comp[0-15]  hosts by number    local:N  virtual hosts on this machine
  -r              replace hosts that are out of order by spares (the default)
  -i              include hosts that are out of order
  -s              include the spares
  -d              only the hosts that are out of order
  -l              print one host per line
  -q              print neither the number of hosts nor the hosts that are out of order
  -json           print all attributes of the hosts
  -file FILE      database, instead of SCBDSERV or /etc/score/scorehosts.db
  -defects FILE   more hosts that are out of order, one per line
  -check          check the whole file and print a summary
  -help           this text
";

/// The output of the command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// The text for standard output.
    pub stdout: String,
    /// The lines for standard error.
    pub stderr: Vec<String>,
    /// The exit code.
    pub code: u8,
}

/// Executes a command line. `variable` is the value of SCBDSERV.
pub fn execute(args: &[OsString], variable: Option<&OsStr>, read: ReadFile<'_>) -> CommandOutput {
    let usage_error = |message: String| CommandOutput {
        stderr: vec![message],
        code: EXIT_USAGE,
        ..CommandOutput::default()
    };
    let options = match ScorehostsOptions::parse(args) {
        Ok(options) => options,
        Err(message) => return usage_error(format!("{message} (scorehosts -help)")),
    };
    if options.help {
        return CommandOutput { stdout: USAGE.into(), ..CommandOutput::default() };
    }
    match run(&options, variable, read) {
        Ok(output) => output,
        Err(message) => usage_error(message),
    }
}

fn run(
    options: &ScorehostsOptions,
    variable: Option<&OsStr>,
    read: ReadFile<'_>,
) -> Result<CommandOutput, String> {
    let database = load(options, variable, read)?;
    if options.check {
        let database = database.as_ref().ok_or_else(no_database)?;
        return Ok(CommandOutput { stdout: format::summary(database), ..CommandOutput::default() });
    }
    let selected = match (&options.group, &database) {
        (Some(expression), _) => {
            let context = Context { database: database.as_ref(), read, machine: local_machine() };
            evaluate(expression, &context).map_err(|error| {
                let column = expression.get(..error.offset).map_or(0, |text| text.chars().count());
                format!("{error}\n  {expression}\n  {}^", " ".repeat(column))
            })?
        }
        (None, Some(database)) => database.hosts().to_vec(),
        (None, None) => return Err(no_database()),
    };
    let available = filter_hosts(options.filter, selected, database.as_ref());
    let mut output = CommandOutput::default();
    if available.hosts.is_empty() {
        output.code = EXIT_NO_HOSTS;
    }
    if !options.quiet {
        output.stderr = format::notes(&available, options.filter);
    }
    output.stdout = if options.json {
        format::json(&available, database.as_ref())
    } else {
        format::names(&available.hosts, options.one_per_line)
    };
    Ok(output)
}

fn no_database() -> String {
    format!(
        "{}: no such file; name a database with -file or {}",
        database_file::DEFAULT_DATABASE_PATH,
        database_file::DATABASE_ENV
    )
}

fn load(
    options: &ScorehostsOptions,
    variable: Option<&OsStr>,
    read: ReadFile<'_>,
) -> Result<Option<Database>, String> {
    let path = locate(options.file.as_deref(), variable)?;
    let load = |path: &Path| Database::load(path, read).map_err(|error| error.to_string());
    let mut database = path.as_deref().map(load).transpose()?;
    if let Some(list) = &options.defects {
        let database = database.as_mut().ok_or_else(no_database)?;
        let name = list.to_string_lossy();
        let bytes = read(list).map_err(|error| format!("{name}: {error}"))?;
        database.mark_defects(&name, &bytes, read).map_err(|error| error.to_string())?;
    }
    Ok(database)
}

fn filter_hosts(
    filter: HostFilter,
    selected: Vec<Host>,
    database: Option<&Database>,
) -> AvailableHosts {
    let without_replacements =
        |hosts: Vec<Host>| AvailableHosts { hosts, ..AvailableHosts::default() };
    match (filter, database) {
        (HostFilter::Usable, Some(database)) => database.available(selected),
        (HostFilter::Defective, _) => {
            without_replacements(selected.into_iter().filter(|host| host.defect).collect())
        }
        (HostFilter::AllWithSpares, Some(database)) => {
            let mut names: HashSet<String> =
                selected.iter().map(|host| host.name.clone()).collect();
            let mut hosts = selected.clone();
            let spares = selected.iter().flat_map(|host| &host.spares);
            for spare in spares.filter_map(|name| database.host(name)) {
                if names.insert(spare.name.clone()) {
                    hosts.push(spare.clone());
                }
            }
            without_replacements(hosts)
        }
        (HostFilter::All | HostFilter::Usable | HostFilter::AllWithSpares, _) => {
            without_replacements(selected)
        }
    }
}

/// The attributes of this machine for virtual hosts (`local:N`).
fn local_machine() -> VirtualHostSpec {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let bintype = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    VirtualHostSpec { processors: u32::try_from(count).unwrap_or(1), bintype: Some(bintype) }
}
