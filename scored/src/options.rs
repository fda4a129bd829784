//! The command line of scored: selects the mode of the process and collects its options.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use score_proto::ids::JobId;
use score_proto::message::ConsoleRequest;

use crate::daemon::service::config as service;
use crate::daemon::{self, CommonOptions};
use crate::launch::{ConnectList, LaunchOptions, preflight};
use crate::sys::descriptor;
use crate::{console, keeper, owner_arg, raw_socket, shepherd, tool_supervisor};

/// The text that `scored -help` prints.
pub const HELP: &str = "\
usage: scored [-group EXPR] [-file DB] [-server HOST] [-host NAME] [-network NET] [-port N]
              [-key FILE] [-socket PATH] [-user USER] [-operator USER] [-syslog ADDRESS[:PORT]] [-v]
              [-ts MS] [-rows N] [-cleanup SEC] [-page PORT|ADDRESS:PORT|off]
       scored -list | -kill JOB
       scored -probe [-json]
       scored -try HOSTS [-start WAY] [-timeout SEC] [-links L] [-mtu BYTES] [-rate RATE]
       scored -makekey FILE
       scored -single -control FD [-nonamespace]
Without an option that selects another mode, as root: serve all users (multi-user mode).
  -group EXPR   the hosts of the cluster (scorehosts); default: all hosts of the database
  -file DB      the database; default /etc/score/scorehosts.db. Without a database: this host alone
  -server HOST  the host that runs the server; default: the last host of the group
  -host NAME    the name of this host; default: its host name
  -network NET  the network on which the daemons reach each other: records NET/HOST address=...
  -port N       where daemons listen; default 9901
  -key FILE     the cluster key; default /etc/score/cluster.key
  -socket PATH  the socket for scruns of this host; default /run/scored/scored.sock
  -user U       the system user as which the daemon runs; default scored. The keeper runs as root
  -operator U   a user that may end the jobs of other users; repeat it for each operator
  -syslog A     also send the log to a syslog receiver, by UDP; default port 514
  -ts MS        the length of a time slice, 5 to 60000; default 500
  -rows N       jobs that may share a processor, 1 to 64; default 8; 1: no sharing
  -cleanup SEC  how long tools may clean up after the end of their job; default 600
  -v            log logins and jobs
  -page P       address of the server's page: a port of 127.0.0.1, ADDRESS:PORT, or off;
                default: a free port of 127.0.0.1, which scps -page prints
  -list         list the jobs of the cluster
  -kill JOB     end a job: your own, or as operator any job
  -probe        print the capabilities of this machine, and the effects of missing ones
  -json         print the report of -probe as JSON
  -try HOSTS    start a probe instead of a daemon on each host (names with commas, or local:N for N
                virtual hosts), print the result, and end it
  -start WAY    launcher for daemons: ssh, slurm, pbs, lsf or sge; default: from the environment
  -timeout SEC  give up a host that does not answer within this time; default 30
  -links, -mtu, -rate    virtual hosts: number of networks, MTU in bytes, rate such as 200mbit
  -makekey FILE write a new cluster key to a new file that only its owner can read
  -single       run one job for the scrun at the other end of descriptor FD
  -control FD   descriptor of the socket to scrun
  -nonamespace  use no PID namespace, even if this machine permits one
  -help         print this text
In single-user mode scrun starts scored by itself: see scored(8).
";

/// Options of the original scored that have no effect: name, whether it takes a value, explanation.
const IGNORED_OPTIONS: &[(&str, bool, &str)] = &[
    ("-sysmon", true, "the server's page is the monitor of the cluster (-page, scps -page)"),
    ("-session", true, "it selects checkpoints, and checkpoint and restart are not implemented"),
    (
        "-restart",
        false,
        "it restarts jobs from checkpoints, and checkpoint and restart are not implemented: \
         earlier jobs are lost, and new ones are accepted",
    ),
];

/// Options that request the default behaviour: scored does not resume jobs of an earlier scored.
const NOOP_OPTIONS: [&str; 2] = ["-reset", "-resetall"];

/// Options that choose a mode and have no value.
const MODES: [&str; 8] =
    ["-probe", "-single", "-shepherd", "-keeper", "-opener", "-tool", "-greet", "-daemon"];

/// The mode of the process.
#[derive(Debug)]
pub enum Command {
    /// `-single`: run one job or scout session for one client.
    Single(daemon::SingleUserOptions),
    /// `-daemon`: the daemon of another host, started by a server.
    Daemon(daemon::HostDaemonOptions),
    /// No mode: serve all users (multi-user mode).
    Service(service::ServiceOptions),
    /// `-list`, `-kill JOB`: send a request to the daemon of this host.
    Console(console::ConsoleOptions),
    /// `-shepherd`: start and watch the local processes of one job.
    Shepherd(shepherd::ShepherdOptions),
    /// `-keeper`: perform the privileged actions of a service.
    Keeper(keeper::KeeperOptions),
    /// `-tool`: start and watch one tool.
    ToolSupervisor(tool_supervisor::SupervisorOptions),
    /// `-opener`: open raw sockets for a shepherd.
    Opener(raw_socket::HelperOptions),
    /// `-probe`: report the capabilities of this machine.
    Probe {
        /// `-json`
        json: bool,
    },
    /// `-try HOSTS`: test whether daemons can be started on these hosts.
    Preflight(preflight::PreflightOptions),
    /// `-makekey FILE`: write a new cluster key.
    MakeKey(PathBuf),
    /// `-greet`: the probe that `-try` starts on other hosts.
    PreflightProbe(preflight::ProbeOptions),
    /// `-help`
    Help,
}

#[derive(Debug, Default)]
struct Args {
    mode: Option<&'static str>,
    json: bool,
    no_namespace: bool,
    control: Option<OwnedFd>,
    events: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    interfaces: Vec<String>,
    hosts: Option<String>,
    launch: LaunchOptions,
    connect: Option<ConnectList>,
    host: Option<String>,
    key: Option<OsString>,
    new_key: PathBuf,
    job: JobProcessArgs,
    service: service::ServiceOptions,
    console: Option<ConsoleRequest>,
}

/// The options of the processes that scored starts for a job: a shepherd or a tool's supervisor.
#[derive(Debug, Default)]
struct JobProcessArgs {
    gang_switch: Option<OwnedFd>,
    raw: Option<OwnedFd>,
    proc_dir: Option<OwnedFd>,
    directory: Option<OsString>,
    owner: Option<OsString>,
    programs: Option<PathBuf>,
    membership_files: Vec<PathBuf>,
    cpu_file: Option<PathBuf>,
    oom_file: Option<PathBuf>,
}

/// Parses the command line.
///
/// # Errors
/// One line that names the option or value at fault.
pub fn parse(arguments: &[OsString]) -> Result<Command, String> {
    let mut args = Args::default();
    let mut remaining = arguments.iter();
    while let Some(word) = remaining.next() {
        args.parse_word(word, &mut remaining)?;
    }
    let control = |found: Option<OwnedFd>| found.ok_or("-control FD is missing (scored -help)");
    match args.mode {
        Some("-help") => Ok(Command::Help),
        Some("-probe") => Ok(Command::Probe { json: args.json }),
        Some("-try") => Ok(Command::Preflight(preflight::PreflightOptions {
            hosts: args.hosts.unwrap_or_default(),
            launch: args.launch,
        })),
        Some("-makekey") => Ok(Command::MakeKey(args.new_key)),
        Some("-greet") => Ok(Command::PreflightProbe(preflight::ProbeOptions {
            connect: args.connect.ok_or("-connect is missing")?,
            host: args.host.ok_or("-host is missing")?,
            key: args.key.ok_or("-key is missing")?,
        })),
        Some("-daemon") => Ok(Command::Daemon(daemon::HostDaemonOptions {
            connect: args.connect.ok_or("-connect is missing")?,
            host: args.host.ok_or("-host is missing")?,
            key: args.key.ok_or("-key is missing")?,
            common: common(args.no_namespace, args.launch),
        })),
        Some("-console") => Ok(Command::Console(console::ConsoleOptions {
            console: args.console.unwrap_or(ConsoleRequest::List),
            socket: args.service.socket,
        })),
        Some("-single") => Ok(Command::Single(daemon::SingleUserOptions {
            control: control(args.control)?,
            common: common(args.no_namespace, args.launch),
        })),
        Some("-opener") => {
            Ok(Command::Opener(raw_socket::HelperOptions { control: control(args.control)? }))
        }
        Some("-tool") => Ok(Command::ToolSupervisor(tool_supervisor::SupervisorOptions {
            control: control(args.control)?,
            owner: args.job.owner.as_deref().map(owner_arg::read).transpose()?,
            membership_files: args.job.membership_files,
        })),
        Some("-keeper") => keeper_options(args).map(Command::Keeper),
        Some(_) => Ok(Command::Shepherd(shepherd::ShepherdOptions {
            control: control(args.control)?,
            switch_socket: args.job.gang_switch.ok_or("-switch is missing")?,
            raw_socket_helper: args.job.raw,
            directory: args.job.directory.ok_or("-directory is missing")?.into(),
            program_folder: args.job.programs,
            outer_proc: args.job.proc_dir,
            owner: args.job.owner.as_deref().map(owner_arg::read).transpose()?,
            membership_files: args.job.membership_files,
            cgroup_counters: shepherd::CgroupCounters {
                cpu_file: args.job.cpu_file,
                oom_file: args.job.oom_file,
            },
        })),
        None => Ok(Command::Service(service::ServiceOptions {
            host: args.host,
            key: args.key.map(PathBuf::from),
            no_namespace: args.no_namespace,
            ..args.service
        })),
    }
}

impl Args {
    fn parse_word<'a>(
        &mut self,
        word: &OsStr,
        remaining: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), String> {
        let shown = word.to_string_lossy();
        let mut value = || remaining.next().ok_or(format!("{shown} needs a value"));
        match shown.as_ref() {
            "-help" | "--help" | "-h" => self.mode = Some("-help"),
            name if MODES.contains(&name) => {
                self.mode = MODES.into_iter().find(|mode| *mode == name);
            }
            "-try" => {
                self.mode = Some("-try");
                self.hosts = Some(text(value()?));
            }
            "-makekey" => {
                self.mode = Some("-makekey");
                self.new_key = value()?.into();
            }
            "-start" => self.launch.method = Some(text(value()?)),
            "-links" | "-mtu" | "-rate" => {
                self.launch.lan_options.push((shown[1..].to_owned(), text(value()?)));
            }
            "-timeout" => {
                let word = text(value()?);
                let seconds = word.parse().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds
                    .ok_or_else(|| format!("-timeout {word}: must be a number of seconds"))?;
                self.launch.arrival_timeout = Some(Duration::from_secs(seconds));
            }
            "-connect" => self.connect = Some(text(value()?).parse()?),
            "-host" => self.host = Some(text(value()?)),
            "-key" => self.key = Some(value()?.clone()),
            "-json" => self.json = true,
            "-nonamespace" => self.no_namespace = true,
            "-control" => self.control = Some(number(&shown, value()?)?),
            "-switch" => self.job.gang_switch = Some(number(&shown, value()?)?),
            "-events" => self.events = Some(number(&shown, value()?)?),
            "-listener" => self.listener = Some(number(&shown, value()?)?),
            "-interface" => self.interfaces.push(text(value()?)),
            "-user" => self.service.user = Some(text(value()?)),
            "-raw" => self.job.raw = Some(number(&shown, value()?)?),
            "-proc" => self.job.proc_dir = Some(number(&shown, value()?)?),
            "-directory" => self.job.directory = Some(value()?.clone()),
            "-programs" => self.job.programs = Some(value()?.into()),
            "-owner" => self.job.owner = Some(value()?.clone()),
            "-cgroup" => self.job.membership_files.push(value()?.into()),
            "-cpufile" => self.job.cpu_file = Some(value()?.into()),
            "-oomfile" => self.job.oom_file = Some(value()?.into()),
            "-group" => self.service.group = Some(text(value()?)),
            "-file" => self.service.file = Some(value()?.into()),
            "-server" => self.service.server = Some(text(value()?)),
            "-port" => {
                let word = text(value()?);
                let port = word.parse().ok().filter(|port| *port > 0);
                self.service.port =
                    Some(port.ok_or_else(|| format!("-port {word}: must be 1 to 65535"))?);
            }
            "-socket" => self.service.socket = Some(value()?.into()),
            "-network" => self.service.network = Some(text(value()?)),
            "-syslog" => self.service.syslog = Some(text(value()?)),
            name if NOOP_OPTIONS.contains(&name) => {}
            "-operator" => self.service.operators.push(text(value()?)),
            "-ts" => {
                let slice = within("-ts", value()?, 5..=60_000, "milliseconds")?;
                self.service.slice = Some(Duration::from_millis(slice.into()));
            }
            "-page" => self.service.page = service::PageListen::parse(&text(value()?))?,
            "-rows" => {
                self.service.rows = Some(within("-rows", value()?, 1..=64, "jobs a processor")?);
            }
            "-cleanup" => {
                let seconds = within("-cleanup", value()?, 1..=86_400, "seconds")?;
                self.service.tool_cleanup = Some(Duration::from_secs(seconds.into()));
            }
            "-v" => self.service.verbose = true,
            "-list" => (self.mode, self.console) = (Some("-console"), Some(ConsoleRequest::List)),
            "-kill" => {
                let word = text(value()?);
                let number = word.parse();
                let number = number.map_err(|_| format!("-kill {word}: not a job number"))?;
                let kill = ConsoleRequest::Kill(JobId(number));
                (self.mode, self.console) = (Some("-console"), Some(kill));
            }
            name if IGNORED_OPTIONS.iter().any(|(later, ..)| *later == name) => {
                let later = IGNORED_OPTIONS.iter().find(|(later, ..)| *later == name);
                if let Some((_, takes_value, explanation)) = later {
                    if *takes_value {
                        value()?;
                    }
                    self.service.notices.push(format!("{name} has no effect: {explanation}"));
                }
            }
            _ => return Err(format!("{shown}: no such option (scored -help)")),
        }
        Ok(())
    }
}

fn keeper_options(args: Args) -> Result<keeper::KeeperOptions, String> {
    let daemon_uid = args.service.user.and_then(|uid| uid.parse().ok());
    Ok(keeper::KeeperOptions {
        calls: args.control.ok_or("-control is missing")?,
        events: args.events.ok_or("-events is missing")?,
        listener: args.listener.ok_or("-listener is missing")?,
        socket: args.service.socket.ok_or("-socket is missing")?,
        key: args.key.map(PathBuf::from),
        host: args.host.ok_or("-host is missing")?,
        daemon_uid: daemon_uid.ok_or("-user is missing")?,
        interfaces: args.interfaces,
        no_namespace: args.no_namespace,
    })
}

fn common(no_namespace: bool, launch: LaunchOptions) -> CommonOptions {
    CommonOptions { no_namespace, launch_options: launch, ..CommonOptions::default() }
}

fn within(
    option: &str,
    word: &OsStr,
    range: RangeInclusive<u32>,
    unit: &str,
) -> Result<u32, String> {
    let shown = word.to_string_lossy();
    let digits = !shown.is_empty() && shown.bytes().all(|byte| byte.is_ascii_digit());
    let number = shown.parse().ok().filter(|number| digits && range.contains(number));
    let (min, max) = (range.start(), range.end());
    number.ok_or_else(|| format!("{option} {shown}: must be {min} to {max} {unit}"))
}

fn text(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

fn number(option: &str, text: &OsStr) -> Result<OwnedFd, String> {
    let shown = text.to_string_lossy();
    let number = shown.parse().map_err(|_| format!("{option} {shown}: not a descriptor number"))?;
    descriptor::inherited(number).map_err(|error| format!("{option} {shown}: {error}"))
}
