//! Selects the lines of a program's output that must be equal wherever it runs. They are compared
//! as a set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use score_tests::Outcome;

/// The lines that are compared.
pub type ResultLines = BTreeSet<String>;

/// The exit code of timeout(1) if the time limit was reached.
const EXIT_TIMEOUT: i32 = 124;

/// The kind of a program's output, which decides which lines are results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// All lines of standard output are results.
    Plain,
    /// Python's unittest: the failed tests, and the number of tests.
    Unittest,
    /// NetPIPE, fi_pingpong: the sizes that were measured.
    Sizes,
    /// LAMMPS: the thermodynamic output.
    Lammps,
    /// GROMACS: the energies in `md.log`.
    Gromacs,
}

impl OutputKind {
    /// Returns the results of a run. `folder` is the directory in which the program ran.
    pub fn results(self, outcome: &Outcome, folder: &Path) -> ResultLines {
        let text = outcome.text();
        let mut results: ResultLines = match self {
            Self::Plain => counted_lines(&text),
            Self::Unittest => unittest_lines(&format!("{text}\n{}", outcome.stderr)),
            Self::Sizes => measured_sizes(&format!("{text}\n{}", outcome.stderr)),
            Self::Lammps => lammps_lines(&text),
            Self::Gromacs => {
                gromacs_lines(&std::fs::read_to_string(folder.join("md.log")).unwrap_or_default())
            }
        };
        results.insert(match outcome.code {
            0 => "ends with 0".to_owned(),
            EXIT_TIMEOUT => "does not end in time".to_owned(),
            // Launchers choose different exit codes, so the code is not compared.
            _ => "ends with an error".to_owned(),
        });
        results
    }
}

/// Returns each line once with the number of times it was printed. A launcher may print the "ok" of
/// another rank before the end of a line.
fn counted_lines(text: &str) -> ResultLines {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let text = text.replace("ok", "ok\n");
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.for_each(|line| *counts.entry(line).or_default() += 1);
    counts.into_iter().map(|(line, count)| format!("{count} x {line}")).collect()
}

/// Returns the names of failed tests of all ranks, and the numbers of tests.
fn unittest_lines(text: &str) -> ResultLines {
    let results = text.lines().filter_map(|line| {
        let line = line.trim_end();
        if line.starts_with("FAIL: ") || line.starts_with("ERROR: ") {
            return Some(line.to_owned());
        }
        let count = line.strip_prefix("Ran ")?.split(' ').next()?;
        count.parse::<u32>().is_ok().then(|| format!("{count} tests"))
    });
    results.collect()
}

/// Returns the measured sizes. NetPIPE prints `  0:  1 bytes  12 times -->  3.4 Mbps in  5.6 usec`
/// or, if it checks the content of messages, `  0:  1 bytes  12 times -->  Integrity check passed`.
/// fi_pingpong prints a table with the size in the first column, and `1k` for 1024.
fn measured_sizes(text: &str) -> ResultLines {
    let results = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, size, "bytes", _, "times", "-->", ..] => {
                let kind = if line.contains("Integrity check passed") { ", checked" } else { "" };
                Some(format!("{size} bytes{kind}"))
            }
            [size, _, acknowledged, _, _, _, _, _]
                if acknowledged.starts_with('=') && size.starts_with(|c: char| c.is_numeric()) =>
            {
                Some(format!("{size} bytes"))
            }
            _ => None,
        }
    });
    results.collect()
}

/// Returns the table between its heading and the line with the time.
fn lammps_lines(text: &str) -> ResultLines {
    let lines = text.lines().skip_while(|line| !line.trim_start().starts_with("Step "));
    let table = lines.skip(1).take_while(|line| !line.starts_with("Loop time"));
    table.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Returns the blocks of energies, each of which consists of lines of numbers.
fn gromacs_lines(log: &str) -> ResultLines {
    let mut results = ResultLines::new();
    let mut lines = log.lines();
    while let Some(line) = lines.next() {
        if !line.contains("Energies (kJ/mol)") {
            continue;
        }
        let block = lines.by_ref().take_while(|line| !line.trim().is_empty());
        results.extend(block.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    results
}

/// Whether a result line reports an error.
pub fn is_error(line: &str) -> bool {
    ["FAIL: ", "ERROR: ", "ends with an error", "does not end"]
        .iter()
        .any(|start| line.starts_with(start))
}
