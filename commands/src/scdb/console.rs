//! The console of scdb: executes commands one after the other, from a terminal or from a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustyline::DefaultEditor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use score_proto::exit_code::{EXIT_FAILED, EXIT_IO_ERROR, EXIT_USAGE};
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{ConsoleAction, ProcessState, ToolRequest, ToolResult};
use serde_json::json;

use super::command::{COMMANDS, Command};
use super::outcome::Outcome;
use super::session::{Answers, Interrupted, Session};
use super::{print as print_values, render, stacks};

/// Maximum length of a line in a file of commands, in bytes.
const MAX_LINE: u64 = 64 << 10;
/// Maximum number of commands in the history.
const MAX_HISTORY: usize = 1000;
/// The history file, in the user's home directory.
const HISTORY_FILE: &str = ".scdb_history";
/// The first and the longest interval between two checks whether a continued process has stopped.
const LOOK_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

/// The exit code of scdb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCode(pub u8);

impl ExitCode {
    const SUCCESS: Self = Self(0);
}

/// A job, and the form in which answers are shown.
pub struct Console {
    session: Session,
    is_json: bool,
    /// Ranks that have breakpoints or watchpoints, and may therefore stop.
    may_stop: NodeSet,
    /// Whether waiting for stops is limited by the time of `-wait`.
    has_wait_limit: bool,
}

/// Prints text at once, so that a user sees stops while other ranks run.
type Print<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

fn output_failure(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ExitCode(EXIT_FAILED),
        _ => {
            eprintln!("scdb: standard output: {error}");
            ExitCode(EXIT_IO_ERROR)
        }
    }
}

impl Console {
    /// A console without a terminal.
    pub fn new(session: Session, is_json: bool) -> Self {
        Self { session, is_json, may_stop: NodeSet::new(), has_wait_limit: true }
    }

    /// Executes one command. `line` is the command as the user typed it.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn run(
        &mut self,
        line: &str,
        command: Command,
        interrupted: Interrupted<'_>,
        print: Print<'_>,
    ) -> Result<Outcome, String> {
        match command {
            Command::Stacks { ranks, lines, dot } => {
                let form = match (dot, self.is_json) {
                    (true, true) => return Err("-dot excludes -json".to_owned()),
                    (true, false) => stacks::Form::Dot,
                    (false, true) => stacks::Form::Json,
                    (false, false) => stacks::Form::Text,
                };
                stacks::run(&self.session, line, (ranks, lines), form, interrupted)
            }
            Command::Threads(ranks, detail) => {
                let answers =
                    self.session.ask(ranks, &ToolRequest::Threads(detail), interrupted)?;
                Ok(self.outcome(line, &answers, |answers| render::threads_text(answers, detail)))
            }
            Command::Act(
                ranks,
                step @ (ConsoleAction::StepLine | ConsoleAction::StepInstruction),
            ) => {
                let answers = self.session.act(ranks, step, interrupted)?;
                let stepping = self.wait_for(states(&answers), interrupted, print)?;
                Ok(self.waited(line, answers, stepping))
            }
            Command::Act(ranks, action) => {
                let sets = matches!(action, ConsoleAction::Break(_) | ConsoleAction::Watch(_));
                let clears = matches!(action, ConsoleAction::Clear(None) | ConsoleAction::Release);
                let answers = self.session.act(ranks, action, interrupted)?;
                match (sets, clears) {
                    (true, _) => self.may_stop.union(&states(&answers)),
                    (_, true) => self.may_stop = self.may_stop.difference(&states(&answers)),
                    _ => {}
                }
                Ok(self.outcome(line, &answers, render::states_text))
            }
            Command::Continue { ranks, in_background } => {
                let answers = self.session.act(ranks, ConsoleAction::Continue, interrupted)?;
                let waited_for = states(&answers).intersection(&self.may_stop);
                if in_background || waited_for.is_empty() {
                    return Ok(self.outcome(line, &answers, render::states_text));
                }
                let stops = self.wait_for(waited_for, interrupted, print)?;
                Ok(self.waited(line, answers, stops))
            }
            Command::Print(ranks, expression) => {
                let what = (ranks, &expression[..]);
                print_values::run(&mut self.session, line, what, self.is_json, interrupted)
            }
            Command::Wait(ranks) => {
                let answers = self.session.act(ranks, ConsoleAction::Look, interrupted)?;
                let stops = self.wait_for(states(&answers), interrupted, print)?;
                Ok(self.waited(line, Answers::default(), stops))
            }
            Command::Help => Ok(match self.is_json {
                true => Outcome::of(&json!({ "command": line, "help": COMMANDS })),
                false => Outcome { text: COMMANDS.to_owned(), problems: Vec::new() },
            }),
            Command::Quit => Ok(Outcome::default()),
        }
    }

    fn outcome(
        &self,
        line: &str,
        answers: &Answers,
        text: impl FnOnce(&Answers) -> String,
    ) -> Outcome {
        let text = match self.is_json {
            true => format!("{}\n", render::answers_json(line, answers)),
            false => text(answers),
        };
        Outcome { text, problems: render::failures(answers) }
    }

    /// The outcome of a command whose stops have already been printed. With JSON, it contains the
    /// stops.
    fn waited(&self, line: &str, begun: Answers, mut stops: Answers) -> Outcome {
        // If a rank ends while the command waits for it, the command has not failed.
        let ended = std::mem::take(&mut stops.failed);
        let mut outcome = Outcome { text: String::new(), problems: render::failures(&begun) };
        if self.is_json {
            stops.failed = ended;
            for (reason, ranks) in begun.failed {
                stops.fail(reason, &ranks);
            }
            outcome.text = format!("{}\n", render::answers_json(line, &stops));
        }
        outcome
    }

    /// Waits until all of these ranks have stopped or ended. Prints each stop, unless the output is
    /// JSON.
    fn wait_for(
        &mut self,
        mut running: NodeSet,
        interrupted: Interrupted<'_>,
        print: Print<'_>,
    ) -> Result<Answers, String> {
        let since = Instant::now();
        let (mut interval, longest) = LOOK_INTERVALS;
        let mut all = Answers::default();
        while !running.is_empty() {
            let ranks = Some(std::mem::take(&mut running));
            let answers = self.session.act(ranks, ConsoleAction::Look, interrupted)?;
            running = states_running(&answers);
            let mut new = Answers::default();
            for (result, ranks) in answers.results {
                if result != ToolResult::Console(ProcessState::Running) {
                    new.results.push((result, ranks));
                }
            }
            new.failed = answers.failed;
            if !self.is_json {
                let ended = render::failures(&new).into_iter().map(|line| line + "\n");
                let text = render::states_text(&new) + &ended.collect::<String>();
                print(&text).map_err(|error| format!("standard output: {error}"))?;
            }
            all.results.append(&mut new.results);
            for (reason, ranks) in new.failed {
                all.fail(reason, &ranks);
            }
            let label = || render::ranks_label(&running);
            if running.is_empty() {
                break;
            }
            if interrupted() {
                return Err(format!("interrupted: {}: running", label()));
            }
            if self.has_wait_limit && since.elapsed() >= self.session.timeout() {
                let limit = self.session.timeout();
                return Err(format!(
                    "{}: no stop within {limit:?}; increase the limit with -wait",
                    label()
                ));
            }
            std::thread::sleep(interval);
            interval = (interval * 2).min(longest);
        }
        Ok(all)
    }
}

fn states_running(answers: &Answers) -> NodeSet {
    let mut running = NodeSet::new();
    for (result, ranks) in &answers.results {
        if *result == ToolResult::Console(ProcessState::Running) {
            running.union(ranks);
        }
    }
    running
}

/// All ranks that have answered with a result.
fn states(answers: &Answers) -> NodeSet {
    let mut all = NodeSet::new();
    for (_, ranks) in &answers.results {
        all.union(ranks);
    }
    all
}

/// Executes one command and prints its outcome.
pub fn run_one(mut console: Console, line: &str, command: Command) -> ExitCode {
    match step(&mut console, line, command, &|| false) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => output_failure(&error),
        Err(Failure::Command(lines)) => {
            lines.iter().for_each(|line| eprintln!("scdb: {line}"));
            ExitCode(EXIT_FAILED)
        }
    }
}

/// Prints the help text.
pub fn print_help(text: &str) -> ExitCode {
    print(text).map_or_else(|error| output_failure(&error), |()| ExitCode::SUCCESS)
}

/// The reason why a command has not succeeded.
enum Failure {
    Command(Vec<String>),
    Output(io::Error),
}

fn step(
    console: &mut Console,
    line: &str,
    command: Command,
    interrupted: Interrupted<'_>,
) -> Result<(), Failure> {
    let outcome = match console.run(line, command, interrupted, &mut print) {
        Ok(outcome) => outcome,
        Err(error) => {
            if console.is_json {
                let document = json!({ "command": line, "error": error });
                print(&format!("{document}\n")).map_err(Failure::Output)?;
            }
            return Err(Failure::Command(vec![error]));
        }
    };
    print(&outcome.text).map_err(Failure::Output)?;
    match outcome.problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Command(outcome.problems)),
    }
}

/// Executes the commands of a file, or of standard input, until one fails.
pub fn run_batch(mut console: Console, path: Option<&Path>) -> ExitCode {
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let mut input: Box<dyn BufRead> = match path.map(File::open) {
        None => Box::new(BufReader::new(io::stdin())),
        Some(Ok(file)) => Box::new(BufReader::new(file)),
        Some(Err(error)) => {
            eprintln!("scdb: {name}: {error}");
            return ExitCode(EXIT_USAGE);
        }
    };
    for number in 1.. {
        let fail = |code, lines: &[String]| {
            lines.iter().for_each(|line| eprintln!("scdb: {name}:{number}: {line}"));
            ExitCode(code)
        };
        let mut line = Vec::new();
        match input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return fail(EXIT_FAILED, &[error.to_string()]),
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        let command = match Command::parse_line(line) {
            Ok(None) => continue,
            Ok(Some(Command::Quit)) => break,
            Ok(Some(command)) => command,
            Err(error) => return fail(EXIT_USAGE, &[error]),
        };
        match step(&mut console, line, command, &|| false) {
            Ok(()) => {}
            Err(Failure::Output(error)) => return output_failure(&error),
            Err(Failure::Command(lines)) => return fail(EXIT_FAILED, &lines),
        }
    }
    ExitCode::SUCCESS
}

/// Whether a user runs scdb at a terminal.
pub fn is_at_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Receives the SIGINT of ^C while a command runs. The line editor reads ^C as a key.
struct InterruptKey(SignalFd);

impl InterruptKey {
    fn new() -> io::Result<Self> {
        let mask = SigSet::from(Signal::SIGINT);
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&mask, flags)?))
    }

    /// Whether ^C was pressed since the last call.
    fn was_pressed(&self) -> bool {
        let mut was_pressed = false;
        while matches!(self.0.read_signal(), Ok(Some(_))) {
            was_pressed = true;
        }
        was_pressed
    }
}

fn history_path() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(Path::new(&home).join(HISTORY_FILE))
}

/// Executes the commands of a user at a terminal, until `quit` or ^D.
pub fn run_terminal(mut console: Console, prompt: &str) -> ExitCode {
    console.has_wait_limit = false;
    let begun = InterruptKey::new().map_err(ReadlineError::from).and_then(|key| {
        let config = Config::builder().max_history_size(MAX_HISTORY)?.auto_add_history(true);
        Ok((key, DefaultEditor::with_config(config.build())?))
    });
    let (key, mut editor) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            eprintln!("scdb: the terminal: {error}");
            return ExitCode(EXIT_FAILED);
        }
    };
    let history = history_path();
    // If there is no history file, there are no earlier commands.
    history.iter().for_each(|path| _ = editor.load_history(path));
    let code = loop {
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("quit or ^D ends scdb");
                continue;
            }
            Err(ReadlineError::Eof) => break ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("scdb: the terminal: {error}");
                break ExitCode(EXIT_FAILED);
            }
        };
        let line = line.trim();
        let command = match Command::parse_line(line) {
            Ok(None) => continue,
            Ok(Some(Command::Quit)) => break ExitCode::SUCCESS,
            Ok(Some(command)) => command,
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        // Ignore a ^C that was pressed before this command.
        key.was_pressed();
        match step(&mut console, line, command, &|| key.was_pressed()) {
            Ok(()) => {}
            Err(Failure::Output(error)) => break output_failure(&error),
            Err(Failure::Command(lines)) => lines.iter().for_each(|line| eprintln!("{line}")),
        }
    };
    if let Some(Err(error)) = history.map(|path| editor.save_history(&path)) {
        eprintln!("scdb: ~/{HISTORY_FILE}: {error}");
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(state: ProcessState, ranks: impl Into<NodeSet>) -> (ToolResult, NodeSet) {
        (ToolResult::Console(state), ranks.into())
    }

    #[test]
    fn only_ranks_that_run_are_waited_for() {
        let results = vec![result(ProcessState::Running, 0..2), result(ProcessState::Held, 2..3)];
        let answers = Answers { results, ..Answers::default() };
        assert_eq!(states_running(&answers), (0..2).into());
        assert_eq!(states(&answers), (0..3).into());
    }
}
