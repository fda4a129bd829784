//! The command line of scored.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::daemon::{self, Common};
use crate::shepherd;
use crate::start::{Wishes, trial};
use crate::sys::descriptor;

/// What `scored -help` prints.
pub const HELP: &str = "\
usage: scored -probe [-json]
       scored -try HOSTS [-start WAY] [-links L] [-mtu BYTES] [-rate RATE]
       scored -makekey FILE
       scored -single -control FD [-nonamespace]
  -probe        print what this machine allows, and what each lack costs
  -json         as JSON
  -try HOSTS    start a stand-in for a daemon on each host (names with commas, or local:N for N
                virtual hosts), say what comes of it, and end it
  -start WAY    by ssh, slurm, pbs, lsf or sge instead of what the environment says
  -timeout SEC  give a host up that takes longer; default 30
  -links, -mtu, -rate    networks of virtual hosts, their packet size, a limit such as 200mbit
  -makekey FILE write a new cluster key to a new file that only its owner can read
  -single       run one job for the scrun at the other end of descriptor FD
  -control FD   descriptor of the socket to scrun
  -nonamespace  do without a PID namespace, even if this machine allows one
  -help         print this
scrun starts scored by itself: see scored(8).
";

/// Options of the multi-user SCore-D, known by name.
const MULTI_USER: &[&str] = &[
    "-ts",
    "-server",
    "-network",
    "-operator",
    "-restart",
    "-hosts",
    "-group",
    "-checkpoint",
    "-priority",
    "-policy",
    "-nodaemon",
    "-log",
    "-timeslice",
    "-stand",
    "-interactive",
];

/// What is to be done.
#[derive(Debug)]
pub enum Command {
    /// `-single`
    Single(daemon::Setting),
    /// `-daemon`: what a server starts on other hosts.
    Daemon(daemon::HostSetting),
    /// `-shepherd`
    Shepherd(shepherd::Setting),
    /// `-probe`
    Probe {
        /// `-json`
        json: bool,
    },
    /// `-try HOSTS`
    Try(trial::Setting),
    /// `-makekey FILE`
    MakeKey(PathBuf),
    /// `-greet`: what `-try` starts on other hosts.
    Greet(trial::Greeting),
    /// `-help`
    Help,
}

#[derive(Debug, Default)]
struct Words {
    mode: Option<&'static str>,
    json: bool,
    no_namespace: bool,
    control: Option<OwnedFd>,
    proc_dir: Option<OwnedFd>,
    directory: Option<OsString>,
    hosts: Option<String>,
    wishes: Wishes,
    connect: Option<String>,
    host: Option<String>,
    key: Option<OsString>,
    new_key: PathBuf,
}

/// Reads the command line.
///
/// # Errors
/// One line that names the word at fault.
pub fn parse(arguments: &[OsString]) -> Result<Command, String> {
    let mut words = Words::default();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        words.take(word, &mut rest)?;
    }
    let control = |found: Option<OwnedFd>| found.ok_or("-control FD is missing (scored -help)");
    match words.mode {
        Some("-help") => Ok(Command::Help),
        Some("-probe") => Ok(Command::Probe { json: words.json }),
        Some("-try") => Ok(Command::Try(trial::Setting {
            hosts: words.hosts.unwrap_or_default(),
            wishes: words.wishes,
        })),
        Some("-makekey") => Ok(Command::MakeKey(words.new_key)),
        Some("-greet") => Ok(Command::Greet(trial::Greeting {
            connect: words.connect.ok_or("-connect is missing")?,
            host: words.host.ok_or("-host is missing")?,
            key: words.key.ok_or("-key is missing")?,
        })),
        Some("-daemon") => Ok(Command::Daemon(daemon::HostSetting {
            connect: words.connect.ok_or("-connect is missing")?,
            host: words.host.ok_or("-host is missing")?,
            key: words.key.ok_or("-key is missing")?,
            common: Common { no_namespace: words.no_namespace, wishes: words.wishes },
        })),
        Some("-single") => Ok(Command::Single(daemon::Setting {
            control: control(words.control)?,
            common: Common { no_namespace: words.no_namespace, wishes: words.wishes },
        })),
        Some(_) => Ok(Command::Shepherd(shepherd::Setting {
            control: control(words.control)?,
            directory: words.directory.ok_or("-directory is missing")?.into(),
            outer_proc: words.proc_dir,
        })),
        None => Err("say -single, -probe or -help; without configuration scrun starts its own \
                     scored"
            .to_owned()),
    }
}

impl Words {
    fn take<'a>(
        &mut self,
        word: &OsStr,
        rest: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), String> {
        let shown = word.to_string_lossy();
        let mut value = || rest.next().ok_or(format!("{shown} needs a value"));
        match shown.as_ref() {
            "-help" | "--help" | "-h" => self.mode = Some("-help"),
            "-probe" => self.mode = Some("-probe"),
            "-single" => self.mode = Some("-single"),
            "-shepherd" => self.mode = Some("-shepherd"),
            "-greet" => self.mode = Some("-greet"),
            "-daemon" => self.mode = Some("-daemon"),
            "-try" => {
                self.mode = Some("-try");
                self.hosts = Some(text(value()?));
            }
            "-makekey" => {
                self.mode = Some("-makekey");
                self.new_key = value()?.into();
            }
            "-start" => self.wishes.way = Some(text(value()?)),
            "-links" | "-mtu" | "-rate" => {
                self.wishes.links.push((shown[1..].to_owned(), text(value()?)));
            }
            "-timeout" => {
                let word = text(value()?);
                let seconds = word.parse().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds.ok_or_else(|| format!("-timeout {word}: not seconds"))?;
                self.wishes.limit = Some(Duration::from_secs(seconds));
            }
            "-connect" => self.connect = Some(text(value()?)),
            "-host" => self.host = Some(text(value()?)),
            "-key" => self.key = Some(value()?.clone()),
            "-json" => self.json = true,
            "-nonamespace" => self.no_namespace = true,
            "-control" => self.control = Some(number(&shown, value()?)?),
            "-proc" => self.proc_dir = Some(number(&shown, value()?)?),
            "-directory" => self.directory = Some(value()?.clone()),
            known if MULTI_USER.contains(&known) => {
                return Err(format!(
                    "{known} belongs to multi-user mode, which comes with many hosts"
                ));
            }
            _ => return Err(format!("{shown}: no such option (scored -help)")),
        }
        Ok(())
    }
}

fn text(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

fn number(option: &str, text: &OsStr) -> Result<OwnedFd, String> {
    let shown = text.to_string_lossy();
    let number =
        shown.parse().map_err(|_| format!("{option} {shown}: not a descriptor's number"))?;
    descriptor::inherited(number).map_err(|error| format!("{option} {shown}: {error}"))
}
