//! Counts the passed, failed and skipped tests of all steps, and prints the last line.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run;

/// Skips that CI accepts, one `name  # reason` per line.
const ACCEPTED_SKIPS_FILE: &str = ".ci/skips";

/// The results so far.
pub struct TestSummary {
    passed: u64,
    failed: u64,
    /// `failed` when the current step began.
    failed_before_step: u64,
    failures: Vec<String>,
    skips: Vec<(String, String)>,
    /// Tests append `name<TAB>reason` here when they cannot run on this machine.
    skips_file: PathBuf,
}

impl TestSummary {
    /// No results yet.
    ///
    /// # Errors
    /// If the target directory cannot be written.
    pub fn new() -> Result<Self, String> {
        let target = run::target_dir()?;
        let skips_file = target.join("skipped-tests");
        let created =
            std::fs::create_dir_all(&target).and_then(|()| std::fs::write(&skips_file, ""));
        created.map_err(|error| format!("{}: {error}", skips_file.display()))?;
        Ok(Self {
            passed: 0,
            failed: 0,
            failed_before_step: 0,
            failures: vec![],
            skips: vec![],
            skips_file,
        })
    }

    /// Counts checks that are not Rust tests and have passed.
    pub fn add_passed(&mut self, count: u64) {
        self.passed += count;
    }

    /// Starts a step.
    pub fn begin_step(&mut self) {
        self.failed_before_step = self.failed;
    }

    /// Records a failed step; it counts as one failure unless its tests were counted one by one.
    pub fn add_failure(&mut self, step: &str, reason: &str) {
        if self.failed == self.failed_before_step {
            self.failed += 1;
        }
        self.failures.push(format!("{step}: {}", reason.lines().next().unwrap_or_default()));
    }

    /// Records a check that is impossible on this machine.
    pub fn add_skip(&mut self, name: &str, reason: &str) {
        println!("SKIPPED {name}: {reason}");
        self.skips.push((name.into(), reason.into()));
    }

    /// Runs a `cargo test` command, shows its output as it is printed, and counts its tests.
    ///
    /// # Errors
    /// If it could not be started, or a test failed.
    pub fn run_and_count(&mut self, command: &mut Command) -> Result<(), String> {
        command.env("HARNESS_SKIPS", &self.skips_file).stdout(Stdio::piped());
        let command_line = run::command_line(command);
        let mut child = command.spawn().map_err(|error| format!("{command_line}: {error}"))?;
        let output = child.stdout.take().expect("stdout is piped");
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| format!("{command_line}: {error}"))?;
            println!("{line}");
            if let Some((passed, failed, ignored)) = counts(&line) {
                self.passed += passed;
                self.failed += failed;
                if ignored > 0 {
                    self.add_skip("ignored tests", "marked #[ignore]");
                }
            } else if let Some(name) = line.strip_suffix(" ... FAILED") {
                self.failures.push(name.into());
            }
        }
        let status = child.wait().map_err(|error| format!("{command_line}: {error}"))?;
        self.collect_skips();
        if status.success() { Ok(()) } else { Err(format!("{command_line}: {status}")) }
    }

    fn collect_skips(&mut self) {
        let text = std::fs::read_to_string(&self.skips_file).unwrap_or_default();
        for line in text.lines() {
            let (name, reason) = line.split_once('\t').unwrap_or((line, ""));
            // The test itself passed without checking anything.
            self.passed = self.passed.saturating_sub(1);
            self.add_skip(name, reason);
        }
        let _ = std::fs::write(&self.skips_file, "");
    }

    /// Prints the failures, the skips, and the last line.
    ///
    /// # Errors
    /// If a test failed; in CI also if a skip is not listed.
    pub fn print_totals(&self, elapsed: Duration) -> Result<(), String> {
        println!();
        for (name, reason) in &self.skips {
            println!("skipped: {name}: {reason}");
        }
        for failure in &self.failures {
            println!("failed:  {failure}");
        }
        let seconds = elapsed.as_secs();
        println!(
            "{} passed, {} failed, {} skipped in {} min {} s",
            self.passed,
            self.failed,
            self.skips.len(),
            seconds / 60,
            seconds % 60
        );
        if self.failed > 0 || !self.failures.is_empty() {
            return Err("something failed; see above".into());
        }
        let unlisted = self.unlisted_skips();
        if std::env::var("CI").is_ok_and(|value| value == "true") && !unlisted.is_empty() {
            return Err(format!(
                "skipped, but not listed in {ACCEPTED_SKIPS_FILE}: {}",
                unlisted.join(", ")
            ));
        }
        Ok(())
    }

    fn unlisted_skips(&self) -> Vec<String> {
        let text = std::fs::read_to_string(run::source_root().join(ACCEPTED_SKIPS_FILE))
            .unwrap_or_default();
        let accepted: BTreeSet<&str> =
            text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).collect();
        let names = self.skips.iter().map(|(name, _)| name.clone());
        names.filter(|name| !accepted.contains(name.as_str())).collect()
    }
}

/// Passed, failed and ignored in libtest's closing line.
fn counts(line: &str) -> Option<(u64, u64, u64)> {
    let rest = line.strip_prefix("test result: ")?;
    let field = |name: &str| {
        let before = rest.split(name).next()?;
        before.rsplit([' ', '.']).find(|word| !word.is_empty())?.parse().ok()
    };
    Some((field(" passed")?, field(" failed")?, field(" ignored")?))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn the_closing_line_of_a_test_program_is_understood() {
        let line = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; \
                    finished in 0.16s";
        assert_eq!(counts(line), Some((12, 3, 1)));
        assert_eq!(counts("running 12 tests"), None);
    }
}
