//! `scorehosts`: which hosts an expression means (score_doc 5.8.3 and 7, scorehosts).

mod options;
mod shown;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use score_hosts::database::Available;
use score_hosts::source::{self, Read, locate};
use score_hosts::{Context, Database, Host, Virtual, evaluate};

pub use options::{Options, Which};

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scorehosts [options] [[-group] EXPRESSION]
       scorehosts -check [-file FILE]
  EXPRESSION      hosts, groups and files of hosts; without it, all hosts
    a+b  a, then b    a~b  a without b    a^b  b, then a
    a:N  the first N, or those before host N    a@N  those behind, or from host N on
    comp[0-15]  hosts by number    local:N  virtual hosts on this machine
  -r              spares in the places of hosts that are out of order (the default)
  -i              hosts that are out of order, too
  -s              the spares, too
  -d              only the hosts that are out of order
  -l              one host a line
  -q              do not say how many hosts there are, nor which are out of order
  -json           everything that is known of the hosts
  -file FILE      instead of SCBDSERV or /etc/score/scorehosts.db
  -defects FILE   more hosts that are out of order, one a line
  -check          look through the whole file and say what it holds
  -help           this text
";

/// What the command has to say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// For standard output.
    pub out: String,
    /// Lines for standard error.
    pub err: Vec<String>,
    /// Exit code.
    pub code: u8,
}

/// Nothing is left of the hosts that were asked for.
pub const NONE_LEFT: u8 = 1;
/// The command line, the expression or a file is wrong.
pub const WRONG: u8 = 2;

/// Answers a command line. `variable` is the value of SCBDSERV.
pub fn answer(words: &[OsString], variable: Option<&OsStr>, read: Read<'_>) -> Answer {
    let wrong = |line: String| Answer { err: vec![line], code: WRONG, ..Answer::default() };
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(line) => return wrong(format!("{line} (scorehosts -help)")),
    };
    if options.help {
        return Answer { out: USAGE.into(), ..Answer::default() };
    }
    match run(&options, variable, read) {
        Ok(answer) => answer,
        Err(line) => wrong(line),
    }
}

fn run(options: &Options, variable: Option<&OsStr>, read: Read<'_>) -> Result<Answer, String> {
    let database = load(options, variable, read)?;
    if options.check {
        let database = database.as_ref().ok_or_else(no_database)?;
        return Ok(Answer { out: shown::summary(database), ..Answer::default() });
    }
    let wanted = match (&options.group, &database) {
        (Some(expression), _) => {
            let context = Context { database: database.as_ref(), read, machine: machine() };
            evaluate(expression, &context).map_err(|fault| {
                let before = expression.get(..fault.at).map_or(0, |text| text.chars().count());
                format!("{fault}\n  {expression}\n  {}^", " ".repeat(before))
            })?
        }
        (None, Some(database)) => database.hosts().to_vec(),
        (None, None) => return Err(no_database()),
    };
    let available = choose(options.which, wanted, database.as_ref());
    let mut answer = Answer::default();
    if available.hosts.is_empty() {
        answer.code = NONE_LEFT;
    }
    if !options.quiet {
        answer.err = shown::notes(&available, options.which);
    }
    answer.out = if options.json {
        shown::json(&available, database.as_ref())
    } else {
        shown::names(&available.hosts, options.lines)
    };
    Ok(answer)
}

fn no_database() -> String {
    format!("there is no {}; -file or {} names one", source::DEFAULT, source::VARIABLE)
}

fn load(
    options: &Options,
    variable: Option<&OsStr>,
    read: Read<'_>,
) -> Result<Option<Database>, String> {
    let path = locate(options.file.as_deref(), variable)?;
    let load = |path: &Path| Database::load(path, read).map_err(|fault| fault.to_string());
    let mut database = path.as_deref().map(load).transpose()?;
    if let Some(list) = &options.defects {
        let database = database.as_mut().ok_or_else(no_database)?;
        let name = list.to_string_lossy();
        let bytes = read(list).map_err(|error| format!("{name}: {error}"))?;
        database.mark_defects(&name, &bytes, read).map_err(|fault| fault.to_string())?;
    }
    Ok(database)
}

fn choose(which: Which, wanted: Vec<Host>, database: Option<&Database>) -> Available {
    let all = |hosts: Vec<Host>| Available { hosts, ..Available::default() };
    match (which, database) {
        (Which::InOrder, Some(database)) => database.available(wanted),
        (Which::Defects, _) => all(wanted.into_iter().filter(|host| host.defect).collect()),
        (Which::WithSpares, Some(database)) => {
            let mut known: HashSet<String> = wanted.iter().map(|host| host.name.clone()).collect();
            let mut hosts = wanted.clone();
            let spares = wanted.iter().flat_map(|host| &host.spares);
            for spare in spares.filter_map(|name| database.host(name)) {
                if known.insert(spare.name.clone()) {
                    hosts.push(spare.clone());
                }
            }
            all(hosts)
        }
        (Which::All | Which::InOrder | Which::WithSpares, _) => all(wanted),
    }
}

/// What `local:N` gets of this machine.
fn machine() -> Virtual {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let bintype = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    Virtual { processors: u32::try_from(count).unwrap_or(1), bintype: Some(bintype) }
}
