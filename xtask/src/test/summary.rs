//! Counts the passed, failed and skipped tests of all steps, and prints the last line.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run;

/// The skips that CI accepts, one `name  # reason` per line.
const ACCEPTED_SKIPS_FILE: &str = ".ci/skips";

/// The destination of the output of commands, and the priority of the commands.
enum CommandMode {
    /// Output goes to the terminal as it is written.
    Foreground,
    /// Output goes to this file, which is shown when the step ends. The commands use only the
    /// processor time that the foreground leaves.
    Background(File),
}

/// The results so far.
pub struct TestSummary {
    mode: CommandMode,
    passed: u64,
    failed: u64,
    /// The value of `failed` at the beginning of the current step.
    failed_before_step: u64,
    failures: Vec<String>,
    skips: Vec<(String, String)>,
    /// Tests append `name<TAB>reason` here when they cannot run on this machine.
    skips_file: PathBuf,
}

impl TestSummary {
    /// An empty summary for steps whose output goes to the terminal.
    ///
    /// # Errors
    /// Returns an error if the target directory cannot be written.
    pub fn new() -> Result<Self, String> {
        Self::with_mode(CommandMode::Foreground, "skipped-tests")
    }

    /// An empty summary for steps that run in the background of the steps of [`TestSummary::new`].
    ///
    /// # Errors
    /// Returns an error if the target directory cannot be written.
    pub fn in_background() -> Result<Self, String> {
        let path = run::target_dir()?.join("background-output");
        let mut options = File::options();
        let file = options.read(true).append(true).create(true).open(&path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Self::with_mode(CommandMode::Background(file), "skipped-tests-of-background")
    }

    fn with_mode(mode: CommandMode, skips_name: &str) -> Result<Self, String> {
        let target = run::target_dir()?;
        let skips_file = target.join(skips_name);
        let created =
            std::fs::create_dir_all(&target).and_then(|()| std::fs::write(&skips_file, ""));
        created.map_err(|error| format!("{}: {error}", skips_file.display()))?;
        Ok(Self {
            mode,
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
    ///
    /// # Errors
    /// Returns an error if the file for the output cannot be written.
    pub fn begin_step(&mut self) -> Result<(), String> {
        self.failed_before_step = self.failed;
        match &self.mode {
            CommandMode::Foreground => Ok(()),
            CommandMode::Background(file) => {
                file.set_len(0).map_err(|error| format!("file for output: {error}"))
            }
        }
    }

    /// Whether the steps run in the background.
    pub fn is_background(&self) -> bool {
        matches!(self.mode, CommandMode::Background(_))
    }

    /// The output of the commands of this step, if the step runs in the background. Otherwise
    /// empty, because the terminal has it.
    pub fn background_output(&self) -> String {
        let CommandMode::Background(file) = &self.mode else { return String::new() };
        let mut bytes = vec![0; file.metadata().map_or(0, |metadata| metadata.len() as usize)];
        let _ = file.read_exact_at(&mut bytes, 0);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Adds the results of the background steps.
    pub fn absorb(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// Returns an error if it could not be started, or did not exit with 0.
    pub fn run(&self, command: &mut Command) -> Result<(), String> {
        match &self.mode {
            CommandMode::Foreground => run::run_checked(command),
            CommandMode::Background(file) => {
                let output = file.try_clone().map_err(|error| error.to_string())?;
                let mut command = run::with_low_priority(command);
                command.stdout(output);
                self.redirect_errors(&mut command)?;
                run::run_checked(&mut command)
            }
        }
    }

    fn redirect_errors(&self, command: &mut Command) -> Result<(), String> {
        if let CommandMode::Background(file) = &self.mode {
            let errors = file.try_clone().map_err(|error| error.to_string())?;
            command.stdin(Stdio::null()).stderr(errors);
        }
        Ok(())
    }

    fn print_line(&self, line: &str) {
        match &self.mode {
            CommandMode::Foreground => println!("{line}"),
            CommandMode::Background(file) => _ = writeln!(&mut &*file, "{line}"),
        }
    }

    /// Records a failed step. It counts as one failure, unless failed tests of it were counted.
    pub fn add_failure(&mut self, step: &str, reason: &str) {
        if self.failed == self.failed_before_step {
            self.failed += 1;
        }
        self.failures.push(format!("{step}: {}", reason.lines().next().unwrap_or_default()));
    }

    /// Records a check that cannot run on this machine.
    pub fn add_skip(&mut self, name: &str, reason: &str) {
        self.print_line(&format!("SKIPPED {name}: {reason}"));
        self.skips.push((name.into(), reason.into()));
    }

    /// Runs a `cargo test` command, forwards its output line by line, and counts the tests.
    ///
    /// # Errors
    /// Returns an error if it could not be started, or a test failed.
    pub fn run_and_count(&mut self, command: &mut Command) -> Result<(), String> {
        command.env("HARNESS_SKIPS", &self.skips_file);
        let command_line = run::command_line(command);
        let command = match self.mode {
            CommandMode::Foreground => command,
            CommandMode::Background(_) => &mut run::with_low_priority(command),
        };
        self.redirect_errors(command)?;
        command.stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command_line}: {error}"))?;
        let output = child.stdout.take().expect("stdout is piped");
        for line in BufReader::new(output).lines() {
            let line = line.map_err(|error| format!("{command_line}: {error}"))?;
            self.print_line(&line);
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
    /// Returns an error if a test failed; in CI also if a skip is not listed.
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
        if run::is_ci() && !unlisted.is_empty() {
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

/// Returns the numbers of passed, failed and ignored tests in libtest's last line.
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
