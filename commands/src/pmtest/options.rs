//! pmtest's command line.

use std::ffi::OsString;

use thiserror::Error;

/// The behaviour of the nodes that do not measure.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum IdleNodeMode {
    /// The node has sent to both measuring nodes, and sleeps in a blocking receive.
    #[default]
    Receive,
    /// The node has sent to both measuring nodes, and waits in sc_barrier.
    Barrier,
    /// The node has never sent, and waits in sc_barrier.
    Never,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PmtestOptions {
    /// Measure latency.
    pub latency: bool,
    /// Measure bandwidth.
    pub bandwidth: bool,
    /// Measure the message rate.
    pub rate: bool,
    /// Bytes per message, in the order given.
    pub sizes: Vec<usize>,
    /// Print JSON.
    pub json: bool,
    /// The behaviour of the other nodes.
    pub idle_mode: IdleNodeMode,
    /// Number of rounds. Each round measures the floor and messages.
    pub rounds: u32,
    /// All nodes measure in pairs, for two seconds.
    pub pairs: bool,
    /// Number of messages that the process sends to itself, without scrun, for counting
    /// instructions.
    pub alone: Option<u64>,
    /// Do not pin the processes.
    pub unpinned: bool,
    /// Measure remote memory.
    pub rma: bool,
    /// Size of each memory area for remote memory access, in MiB.
    pub area_mib: usize,
    /// Measure transfers that lock and unlock their memory.
    pub pin: bool,
    /// Measure the latency of a bare ring instead of PM.
    pub bare: bool,
    /// Print the help text.
    pub help: bool,
}

/// An error in the command line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PmtestOptionError {
    /// An unknown option.
    #[error("{0:?}: unknown option (pmtest -help lists the options)")]
    Unknown(String),
    /// The value is missing.
    #[error("{0} needs a value")]
    NoValue(&'static str),
    /// The value is not a positive integer.
    #[error("{0} {1:?}: must be a positive integer")]
    NotANumber(&'static str, String),
    /// An unknown value of `-silent`.
    #[error("-silent {0:?}: must be receive, barrier or never")]
    UnknownIdleMode(String),
    /// Options that exclude each other.
    #[error("{0} and {1} exclude each other")]
    Exclusive(&'static str, &'static str),
}

/// Sizes that are measured if none is given.
const SIZES: [usize; 6] = [8, 64, 256, 1024, 4096, 8192];
const ROUNDS: u32 = 20;
/// Source and destination together use 256 MiB.
const DEFAULT_AREA_MIB: usize = 128;

impl PmtestOptions {
    /// Parses the arguments, without the program's own name.
    ///
    /// # Errors
    /// See [`PmtestOptionError`].
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, PmtestOptionError> {
        let mut options = Self {
            latency: false,
            bandwidth: false,
            rate: false,
            sizes: Vec::new(),
            json: false,
            idle_mode: IdleNodeMode::default(),
            rounds: ROUNDS,
            pairs: false,
            alone: None,
            unpinned: false,
            rma: false,
            area_mib: DEFAULT_AREA_MIB,
            pin: false,
            bare: false,
            help: false,
        };
        let mut words = args.into_iter().map(|word| word.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            // Two minus signs are accepted like one, because both forms are common.
            match word.strip_prefix("--").map_or(word.clone(), |rest| format!("-{rest}")).as_str() {
                "-latency" => options.latency = true,
                "-bandwidth" => options.bandwidth = true,
                "-rate" => options.rate = true,
                "-json" => options.json = true,
                "-pairs" => options.pairs = true,
                "-rma" => options.rma = true,
                "-area" => options.area_mib = parse_positive::<u16>("-area", words.next())?.into(),
                "-pin" => options.pin = true,
                "-bare" => options.bare = true,
                "-nopin" => options.unpinned = true,
                "-help" => options.help = true,
                "-size" => options.sizes = parse_list("-size", words.next())?,
                "-rounds" => options.rounds = parse_positive("-rounds", words.next())?,
                "-alone" => options.alone = Some(parse_positive("-alone", words.next())?),
                "-silent" => options.idle_mode = parse_idle_mode(words.next())?,
                _ => return Err(PmtestOptionError::Unknown(word)),
            }
        }
        options.resolve()
    }

    fn resolve(mut self) -> Result<Self, PmtestOptionError> {
        let has_message_test = self.latency || self.bandwidth || self.rate;
        if self.pairs && has_message_test {
            return Err(PmtestOptionError::Exclusive("-pairs", "-latency, -bandwidth, -rate"));
        }
        if self.pairs && !self.sizes.is_empty() {
            return Err(PmtestOptionError::Exclusive("-pairs", "-size"));
        }
        if self.bare && (self.bandwidth || self.rate || self.pairs) {
            return Err(PmtestOptionError::Exclusive("-bare", "-bandwidth, -rate, -pairs"));
        }
        if self.pin && (has_message_test || self.bare || self.pairs || self.rma) {
            return Err(PmtestOptionError::Exclusive(
                "-pin",
                "-latency, -bandwidth, -rate, -bare, -pairs, -rma",
            ));
        }
        if self.rma && (has_message_test || self.bare || self.pairs) {
            return Err(PmtestOptionError::Exclusive(
                "-rma",
                "-latency, -bandwidth, -rate, -bare, -pairs",
            ));
        }
        if self.bare {
            self.latency = true;
        } else if !has_message_test && !self.rma && !self.pin {
            (self.latency, self.bandwidth, self.rate) = (true, true, true);
        }
        Ok(self)
    }

    /// The sizes to measure: the given sizes, or the default sizes up to `mtu`.
    ///
    /// # Errors
    /// A size that is longer than a message, if latency or rate is measured.
    pub fn sizes_for_mtu(&self, mtu: usize) -> Result<Vec<usize>, usize> {
        if self.sizes.is_empty() {
            return Ok(SIZES.into_iter().filter(|size| *size <= mtu).collect());
        }
        let needs_single_message = self.latency || self.rate;
        match self.sizes.iter().find(|size| needs_single_message && **size > mtu) {
            Some(size) => Err(*size),
            None => Ok(self.sizes.clone()),
        }
    }
}

fn parse_positive<N: std::str::FromStr + PartialOrd + From<u8>>(
    name: &'static str,
    word: Option<String>,
) -> Result<N, PmtestOptionError> {
    let word = word.ok_or(PmtestOptionError::NoValue(name))?;
    match word.parse() {
        Ok(number) if number >= N::from(1) => Ok(number),
        _ => Err(PmtestOptionError::NotANumber(name, word)),
    }
}

fn parse_list(name: &'static str, word: Option<String>) -> Result<Vec<usize>, PmtestOptionError> {
    let word = word.ok_or(PmtestOptionError::NoValue(name))?;
    word.split(',').map(|part| parse_positive(name, Some(part.to_owned()))).collect()
}

fn parse_idle_mode(word: Option<String>) -> Result<IdleNodeMode, PmtestOptionError> {
    let word = word.ok_or(PmtestOptionError::NoValue("-silent"))?;
    match word.as_str() {
        "receive" => Ok(IdleNodeMode::Receive),
        "barrier" => Ok(IdleNodeMode::Barrier),
        "never" => Ok(IdleNodeMode::Never),
        _ => Err(PmtestOptionError::UnknownIdleMode(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<PmtestOptions, PmtestOptionError> {
        PmtestOptions::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn without_an_option_all_values_are_measured() {
        let options = parse(&[]).unwrap();
        assert!(options.latency && options.bandwidth && options.rate && !options.json);
        let options = parse(&["-rate", "-size", "8,16"]).unwrap();
        assert!(options.rate && !options.latency && !options.bandwidth);
        assert_eq!(options.sizes, [8, 16]);
    }

    #[test]
    fn only_the_bandwidth_splits_sizes_longer_than_a_message() {
        let long = ["-size", "8,100000"];
        assert_eq!(parse(&long).unwrap().sizes_for_mtu(8192), Err(100_000));
        assert_eq!(
            parse(&["-bandwidth", long[0], long[1]]).unwrap().sizes_for_mtu(8192).unwrap().len(),
            2
        );
        assert_eq!(parse(&[]).unwrap().sizes_for_mtu(1024).unwrap(), [8, 64, 256, 1024]);
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (words, expected) in [
            (&["-lat"][..], "\"-lat\""),
            (&["-size"], "-size needs"),
            (&["-size", "8,,9"], "\"\""),
            (&["-size", "0"], "\"0\""),
            (&["-rounds", "-3"], "\"-3\""),
            (&["-silent", "loud"], "\"loud\""),
            (&["-pairs", "-rate"], "exclude"),
            (&["-rma", "-rate"], "exclude"),
            (&["-pin", "-rma"], "exclude"),
            (&["-rma", "-area", "0"], "\"0\""),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(expected), "{words:?}: {message}");
        }
    }
}
