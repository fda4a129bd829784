//! The command line of scmon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use score_monitor::{Metric, parse_metrics};
use score_proto::ids::JobId;

use crate::args::Args;

const OPTION_NAMES: &[&str] = &["show", "period", "json", "once", "svg", "socket", "pipe", "help"];
/// Milliseconds between two updates: default, and range.
const DEFAULT_REPORT_INTERVAL_MS: u32 = 500;
const REPORT_INTERVAL_RANGE_MS: (u32, u32) = (50, 10_000);

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub struct ScmonOptions {
    /// The job.
    pub job: Option<JobId>,
    /// `-show TYPE`
    pub kinds: Vec<Metric>,
    /// `-period MS`
    pub period_ms: u32,
    /// `-json`
    pub json: bool,
    /// `-once`
    pub once: bool,
    /// `-svg`
    pub svg: bool,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
    /// `-pipe PATH`: messages that scrun forwards.
    pub pipe: Option<PathBuf>,
    /// `-help`
    pub help: bool,
}

impl ScmonOptions {
    /// Parses the words after the command's name.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(args: &[OsString]) -> Result<Self, String> {
        let mut options = Self {
            job: None,
            kinds: Vec::new(),
            period_ms: DEFAULT_REPORT_INTERVAL_MS,
            json: false,
            once: false,
            svg: false,
            socket: None,
            pipe: None,
            help: false,
        };
        let mut args = Args::new(args);
        while let Some(arg) = args.next() {
            let mut value = || args.value(&arg);
            match arg.option() {
                None => options.set_job(arg.text())?,
                Some("json") => options.json = true,
                Some("once") => options.once = true,
                Some("svg") => options.svg = true,
                Some("help" | "h") => options.help = true,
                Some("show") => {
                    options.kinds.extend(parse_metrics(Some(&value()?.to_string_lossy()))?)
                }
                Some("period") => options.period_ms = parse_period(&value()?.to_string_lossy())?,
                Some("socket") => options.socket = Some(value()?.into()),
                Some("pipe") => options.pipe = Some(value()?.into()),
                Some(_) => return Err(arg.unknown(OPTION_NAMES)),
            }
        }
        options.kinds.sort();
        options.kinds.dedup();
        if options.kinds.is_empty() {
            options.kinds = Metric::ALL[..4].to_vec();
        }
        if options.job.is_none() && !options.help {
            return Err("the number of the job is missing (scps lists the jobs)".to_owned());
        }
        Ok(options)
    }

    fn set_job(&mut self, word: &str) -> Result<(), String> {
        let number = word.parse::<u32>().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| format!("{word}: the number of a job is expected"))?;
        match self.job.replace(JobId(number)) {
            None => Ok(()),
            Some(_) => Err(format!("{word}: one job at a time")),
        }
    }

    /// The time between two updates.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms.into())
    }
}

fn parse_period(word: &str) -> Result<u32, String> {
    let (min, max) = REPORT_INTERVAL_RANGE_MS;
    let number = word.parse::<u32>().ok().filter(|number| (min..=max).contains(number));
    number
        .ok_or_else(|| format!("-period {word}: not a number of milliseconds from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ScmonOptions, String> {
        ScmonOptions::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&[][..], "the number of the job is missing"),
            (&["x"], "x: the number of a job"),
            (&["0"], "0: the number of a job"),
            (&["7", "8"], "8: one job at a time"),
            (&["7", "-jsn"], "-jsn: unknown option; did you mean -json?"),
            (&["7", "-show"], "-show: its value is missing"),
            (&["7", "-show", "cpu"], "load, comm, memory, disk, usr0, usr1, all, ALL"),
            (&["7", "-period", "49"], "-period 49: not a number of milliseconds from 50 to 10000"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
        let good = parse(&["--json", "-once", "7", "-period", "100", "-show", "usr1"]).unwrap();
        assert_eq!(
            (good.job, good.json, good.once, good.period_ms),
            (Some(JobId(7)), true, true, 100)
        );
        assert_eq!(good.kinds, [Metric::Usr1]);
        assert_eq!(good.period(), Duration::from_millis(100));
        let kind_count = |words: &[&str]| parse(words).unwrap().kinds.len();
        assert_eq!(
            (kind_count(&["7"]), kind_count(&["7", "-show", "ALL", "-show", "comm"])),
            (4, 6)
        );
    }
}
