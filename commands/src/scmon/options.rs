//! The command line of scmon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use score_monitor::{Kind, kinds};

use crate::words::Words;

const NAMES: &[&str] = &["show", "period", "json", "once", "svg", "socket", "pipe", "help"];
/// Milliseconds between two pictures: by default, at least, at most.
const PERIOD: u32 = 500;
const PERIODS: (u32, u32) = (50, 10_000);

/// What stands on the command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// The job.
    pub job: Option<u32>,
    /// `-show TYPE`
    pub kinds: Vec<Kind>,
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
    /// `-pipe PATH`: what scrun passes on.
    pub pipe: Option<PathBuf>,
    /// `-help`
    pub help: bool,
}

impl Options {
    /// Reads the words behind the command's name.
    ///
    /// # Errors
    /// The word that is wrong, and what would be right.
    pub fn parse(words: &[OsString]) -> Result<Self, String> {
        let mut options = Self {
            job: None,
            kinds: Vec::new(),
            period_ms: PERIOD,
            json: false,
            once: false,
            svg: false,
            socket: None,
            pipe: None,
            help: false,
        };
        let mut words = Words::new(words);
        while let Some(word) = words.next() {
            let mut value = || words.value(&word);
            match word.option() {
                None => options.job(word.text())?,
                Some("json") => options.json = true,
                Some("once") => options.once = true,
                Some("svg") => options.svg = true,
                Some("help" | "h") => options.help = true,
                Some("show") => options.kinds.extend(kinds(Some(&value()?.to_string_lossy()))?),
                Some("period") => options.period_ms = period(&value()?.to_string_lossy())?,
                Some("socket") => options.socket = Some(value()?.into()),
                Some("pipe") => options.pipe = Some(value()?.into()),
                Some(_) => return Err(word.unknown(NAMES)),
            }
        }
        options.kinds.sort();
        options.kinds.dedup();
        if options.kinds.is_empty() {
            options.kinds = Kind::ALL[..4].to_vec();
        }
        if options.job.is_none() && !options.help {
            return Err("which job? scps lists them".to_owned());
        }
        Ok(options)
    }

    fn job(&mut self, word: &str) -> Result<(), String> {
        let number = word.parse::<u32>().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| format!("{word}: the number of a job is wanted"))?;
        match self.job.replace(number) {
            None => Ok(()),
            Some(_) => Err(format!("{word}: one job at a time")),
        }
    }

    /// Between two pictures.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms.into())
    }
}

fn period(word: &str) -> Result<u32, String> {
    let (least, most) = PERIODS;
    let number = word.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("-period {word}: milliseconds from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_fault_names_its_word() {
        for (words, part) in [
            (&[][..], "which job"),
            (&["x"], "x: the number of a job"),
            (&["0"], "0: the number of a job"),
            (&["7", "8"], "8: one job at a time"),
            (&["7", "-jsn"], "-jsn: unknown option; did you mean -json?"),
            (&["7", "-show"], "-show: its value is missing"),
            (&["7", "-show", "cpu"], "load, comm, memory, disk, usr0, usr1, all, ALL"),
            (&["7", "-period", "49"], "-period 49: milliseconds from 50 to 10000"),
        ] {
            let fault = parse(words).unwrap_err();
            assert!(fault.contains(part), "{words:?}: {fault}");
        }
        let good = parse(&["--json", "-once", "7", "-period", "100", "-show", "usr1"]).unwrap();
        assert_eq!((good.job, good.json, good.once, good.period_ms), (Some(7), true, true, 100));
        assert_eq!(good.kinds, [Kind::Usr1]);
        assert_eq!(good.period(), Duration::from_millis(100));
        let all = |words: &[&str]| parse(words).unwrap().kinds.len();
        assert_eq!((all(&["7"]), all(&["7", "-show", "ALL", "-show", "comm"])), (4, 6));
    }
}
