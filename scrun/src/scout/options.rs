//! The command line of scout: options, then the words of a command (scout(1)).

use score_proto::exit_code::EXIT_USAGE;

use super::merge::Order;
use crate::usage::{StartError, printable};
use score_hosts::name_suggestion;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The output of `scout -help`.
pub const HELP: &str = "\
usage: scout [OPTION...] -g GROUP            open a session: a shell with daemons on the hosts
       scout [OPTION...] -g GROUP COMMAND... open a session for one command on every host
       scout [OPTION...] COMMAND...          in a session: run a command on every host
       scout                                 report whether this is in a session (0: yes, 1: no)
to open a session:
  -g GROUP      use these hosts (expressions: scorehosts(1); local:N: N virtual hosts)
  -file FILE    read hosts from FILE, not from scorehosts.db
  -force        open the session also inside another session
  -rsh RSH      start daemons with this remote shell instead of ssh (or SCORE_RSH)
  -start WAY    launcher for daemons: ssh, slurm, pbs, lsf or sge; default: from the environment
  -timeout SEC  time-out for the start of a host; default 30
  -links L, -mtu BYTES, -rate RATE
                networks of virtual hosts (for tests)
  -e            run COMMAND on this host, once, instead of a shell
to run a command:
  -merge        show equal output of neighbours once (default)
  -sort, -rev   sort by output, or in reverse order; merge all equal output
  -nosort       show output in the order of arrival
  -stdin        pass standard input to the command on every host
  -json         print JSON objects for programs, one per line
  -help, -version
";

/// All options, for the suggestion after an unknown one.
const OPTION_NAMES: &[&str] = &[
    "-g", "-group", "-file", "-force", "-rsh", "-start", "-timeout", "-links", "-mtu", "-rate",
    "-e", "-merge", "-sort", "-rev", "-nosort", "-stdin", "-json", "-help", "-version",
];

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScoutOptions {
    /// `-g`, `-file`, `-start` and the options of virtual hosts, under the names that scrun uses.
    pub hosts: Vec<(&'static str, String)>,
    /// `-force`
    pub force: bool,
    /// `-rsh RSH`
    pub rsh: Option<OsString>,
    /// `-timeout SEC`
    pub timeout: Option<Duration>,
    /// `-e`
    pub runs_locally: bool,
    /// `-merge`, `-sort`, `-rev`, `-nosort`
    pub order: Order,
    /// `-stdin`
    pub stdin: bool,
    /// `-json`
    pub json: bool,
    /// `-help`
    pub help: bool,
    /// `-version`
    pub version: bool,
    /// The command.
    pub words: Vec<OsString>,
}

fn refuse<T>(line: impl Into<String>) -> Result<T, StartError> {
    Err(StartError::plain(EXIT_USAGE, line))
}

impl ScoutOptions {
    /// Reads the command line.
    ///
    /// # Errors
    /// The word at fault.
    pub fn parse(words: &[OsString]) -> Result<Self, StartError> {
        let mut options = Self::default();
        // The first option that is valid only with -g or -file.
        let mut session_option = None;
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "--" {
                break;
            }
            if !word.as_bytes().starts_with(b"-") {
                options.words.push(word.clone());
                break;
            }
            let given = printable(word);
            let mut value = || match rest.next() {
                Some(value) if !value.is_empty() => Ok(value),
                _ => Err(StartError::plain(EXIT_USAGE, format!("{given}: the value is missing"))),
            };
            if options.parse_option(&given, &mut value)? {
                session_option.get_or_insert(given);
            }
        }
        options.words.extend(rest.cloned());
        match session_option {
            Some(given) if !options.opens_session() => refuse(format!(
                "{given}: valid only with -g GROUP or -file FILE, which open a session"
            )),
            _ if options.runs_locally && options.words.is_empty() => {
                refuse("-e: the command is missing")
            }
            _ if options.stdin && options.words.is_empty() => {
                refuse("-stdin: the command is missing")
            }
            _ => Ok(options),
        }
    }

    /// Whether a session is to be opened.
    pub fn opens_session(&self) -> bool {
        self.hosts.iter().any(|(name, _)| ["group", "file"].contains(name))
    }

    /// Parses one option. Returns whether the option is for opening a session.
    fn parse_option<'a>(
        &mut self,
        given: &str,
        value: &mut dyn FnMut() -> Result<&'a OsString, StartError>,
    ) -> Result<bool, StartError> {
        let name = given.strip_prefix("--").map(|name| format!("-{name}"));
        let mut push_host_option = |name| {
            let text = value()?.to_str().map(str::to_owned);
            let text = text.ok_or_else(|| {
                StartError::plain(EXIT_USAGE, format!("{given}: the value is not UTF-8 text"))
            })?;
            self.hosts.push((name, text));
            Ok(true)
        };
        match name.as_deref().unwrap_or(given) {
            "-g" | "-group" => return push_host_option("group"),
            "-file" => return push_host_option("file"),
            "-start" => return push_host_option("start"),
            "-links" => return push_host_option("links"),
            "-mtu" => return push_host_option("mtu"),
            "-rate" => return push_host_option("rate"),
            "-rsh" => self.rsh = Some(value()?.clone()),
            "-timeout" => self.timeout = Some(parse_seconds(given, value()?)?),
            "-force" => self.force = true,
            "-e" => self.runs_locally = true,
            other => return self.parse_flag(other).map(|()| false),
        }
        Ok(true)
    }

    /// Parses an option that takes no value and is not for opening a session.
    fn parse_flag(&mut self, name: &str) -> Result<(), StartError> {
        match name {
            "-merge" => self.order = Order::Merge,
            "-sort" => self.order = Order::Sort,
            "-rev" => self.order = Order::Reverse,
            "-nosort" => self.order = Order::Arrival,
            "-stdin" => self.stdin = true,
            "-json" => self.json = true,
            "-help" | "-h" => self.help = true,
            "-version" | "-v" => self.version = true,
            "-X" => return refuse("-X: X11 forwarding is not supported"),
            "-catwalk" => {
                return refuse(
                    "-catwalk: Catwalk, which copies files, is not supported; scatter(6) and \
                     gather(6) copy them",
                );
            }
            other => return refuse(unknown(other)),
        }
        Ok(())
    }
}

fn unknown(given: &str) -> String {
    match name_suggestion::nearest(given, OPTION_NAMES.iter().copied()) {
        Some(suggestion) => format!("{given}: no such option; did you mean {suggestion}?"),
        None => format!("{given}: no such option (scout -help)"),
    }
}

fn parse_seconds(given: &str, value: &OsString) -> Result<Duration, StartError> {
    let count = value.to_str().and_then(|text| text.parse::<u64>().ok());
    match count.filter(|count| (1..=86_400).contains(count)) {
        Some(count) => Ok(Duration::from_secs(count)),
        None => {
            refuse(format!("{given} {}: not a number of seconds from 1 to 86400", printable(value)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ScoutOptions, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        ScoutOptions::parse(&words).map_err(|error| error.line)
    }

    #[test]
    fn options_end_at_the_command() {
        let options = parse("-g local:4 -timeout 5 -rsh rsh").unwrap();
        assert_eq!(options.hosts, [("group", "local:4".to_owned())]);
        assert_eq!(
            (options.timeout, options.opens_session()),
            (Some(Duration::from_secs(5)), true)
        );
        let options = parse("-sort --stdin ls -l -g x").unwrap();
        assert_eq!(
            (options.order, options.stdin, options.opens_session()),
            (Order::Sort, true, false)
        );
        assert_eq!(options.words, ["ls", "-l", "-g", "x"]);
        assert_eq!(parse("-- -strange -x").unwrap().words, ["-strange", "-x"]);
        assert_eq!(parse("").unwrap(), ScoutOptions::default());
        assert_eq!(parse("-nosort -merge -json true").unwrap().order, Order::Merge);
    }

    #[test]
    fn invalid_options_are_reported() {
        for (line, parts) in [
            ("-g", ["-g:", "value is missing"]),
            ("-force ls", ["-force", "-g GROUP"]),
            ("-timeout 5 ls", ["-timeout", "-g GROUP"]),
            ("-g x -timeout soon", ["-timeout soon", "seconds"]),
            ("-g x -timeout 0", ["-timeout 0", "seconds"]),
            ("-g x -e", ["-e:", "missing"]),
            ("-stdin", ["-stdin", "missing"]),
            ("-X -g x", ["-X", "not supported"]),
            ("-catwalk d ls", ["-catwalk", "not supported"]),
            ("-srot ls", ["-srot", "did you mean -sort"]),
            ("-zzzzzzzz ls", ["-zzzzzzzz", "no such option"]),
        ] {
            let error = parse(line).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
        }
    }
}
