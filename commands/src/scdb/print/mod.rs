//! `print`: the values of an expression in many ranks.
//!
//! A separate gdb evaluates the expression for each rank. It reads the symbols from the files of
//! this host, or from the rank's host if they differ. gdb reaches the rank by the stub in
//! `../gdb/`. The stub has no Control authority, so neither gdb nor a call in the expression can
//! change the rank.
//!
//! gdb connects and reads the symbols before the rank is stopped. The console then holds a rank
//! that runs, and afterwards releases it. A rank that has stopped by itself stays stopped.

mod gdb;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{ConsoleAction, ProcessState, ToolResult};
use score_sdm::gdb::mi::{MiOutcome, MiValue, quoted};
use serde_json::json;

use super::command::{Ranks, ranks_text};
use super::gdb::{RankView, program_here};
use super::outcome::Outcome;
use super::render;
use super::session::{Answers, Interrupted, Session};
use gdb::Gdb;

/// Maximum number of gdbs that run at the same time. Each needs a processor while it reads symbols.
const MAX_AT_ONCE: usize = 8;
/// Time limit for gdb to read the symbols of the program and its libraries. The rank runs
/// meanwhile.
const SYMBOLS_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which this module checks whether the user has interrupted the command.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);
/// Number of the last frame that is searched for a frame of the program itself.
const MAX_FRAMES: usize = 64;
/// Maximum length of a value in bytes. gdb itself shows 200 elements of an array or a string.
const MAX_VALUE_LEN: usize = 64 << 10;

/// Settings of gdb. They forbid writes and calls: gdb reports an error for an expression that
/// contains a write or a call. They disable caches, which would hold data from before the rank was
/// stopped.
const SETTINGS: [&str; 6] = [
    "-gdb-set confirm off",
    "-gdb-set stack-cache off",
    "-gdb-set code-cache off",
    "-gdb-set may-call-functions off",
    "-gdb-set may-write-registers off",
    "-gdb-set may-write-memory off",
];

/// Makes gdb read the registers again.
const FLUSH: &str = "-interpreter-exec console \"maintenance flush register-cache\"";
const FLUSH_BEFORE_GDB_11: &str = "-interpreter-exec console flushregs";

/// The values. Each value is stored once, with all of its ranks.
#[derive(Debug, Default)]
struct Values {
    values: Vec<(String, NodeSet)>,
    failed: Answers,
}

impl Values {
    fn add(&mut self, rank: u32, result: Result<String, String>) {
        let ranks = NodeSet::one(rank);
        match result {
            Ok(value) => match self.values.iter_mut().find(|(other, _)| *other == value) {
                Some((_, known)) => known.union(&ranks),
                None => self.values.push((value, ranks)),
            },
            Err(reason) => self.failed.fail(reason, &ranks),
        }
    }

    fn outcome(mut self, line: &str, is_json: bool) -> Outcome {
        self.values.sort_by_key(|(_, ranks)| ranks.first());
        let problems = render::failures(&self.failed);
        let text = match is_json {
            true => {
                let to_answer = |(value, ranks): &(String, NodeSet)| json!({ "ranks": ranks_text(ranks), "value": value });
                let answers: Vec<_> = self.values.iter().map(to_answer).collect();
                let mut document = render::answers_json(line, &self.failed);
                document["answers"] = json!(answers);
                format!("{document}\n")
            }
            false => {
                let to_line = |(value, ranks): &(String, NodeSet)| {
                    format!("{}: {value}\n", render::ranks_label(ranks))
                };
                self.values.iter().map(to_line).collect()
            }
        };
        Outcome { text, problems }
    }
}

/// The state of a rank before the evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RankState {
    Running,
    Held,
    /// This thread has stopped the rank. Threads are numbered from 1.
    Stopped(u32),
}

/// Evaluates an expression in ranks.
///
/// # Errors
/// One line: gdb is not installed, or there is no such rank.
pub fn run(
    session: &mut Session,
    line: &str,
    (ranks, expression): (Ranks, &str),
    is_json: bool,
    interrupted: Interrupted<'_>,
) -> Result<Outcome, String> {
    // Check for gdb once, because all ranks would report the same error.
    drop(Gdb::start(&AtomicBool::new(false))?);
    let looked = session.act(ranks, ConsoleAction::Look, interrupted)?;
    let mut values = Values::default();
    let mut states = BTreeMap::new();
    for (result, ranks) in &looked.results {
        let state = match result {
            ToolResult::Console(ProcessState::Held) => RankState::Held,
            ToolResult::Console(ProcessState::Stopped { thread, .. }) => {
                RankState::Stopped(*thread)
            }
            _ => RankState::Running,
        };
        states.extend(ranks.iter().map(|rank| (rank, state)));
    }
    values.failed.failed = looked.failed;
    let count = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    let count = count.min(MAX_AT_ONCE).min(states.len());
    let job = Evaluation {
        number: session.begin()?.number,
        session,
        expression,
        left: Mutex::new(states.into_iter()),
        is_interrupted: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..count {
            let (job, sender) = (&job, sender.clone());
            scope.spawn(move || {
                while let Some((rank, state)) = job.next() {
                    // The receiver exists until all senders have ended.
                    _ = sender.send((rank, job.evaluate(rank, state)));
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(INTERRUPT_INTERVAL) {
                Ok((rank, result)) => values.add(rank, result),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let is_wanted = interrupted();
                    job.is_interrupted.fetch_or(is_wanted, Ordering::Relaxed);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    match job.is_interrupted.into_inner() {
        true => Err("interrupted".to_owned()),
        false => Ok(values.outcome(line, is_json)),
    }
}

/// An expression, and the ranks in which it is not yet evaluated.
struct Evaluation<'a, I> {
    session: &'a Session,
    /// The number of the console's session.
    number: u64,
    expression: &'a str,
    left: Mutex<I>,
    is_interrupted: AtomicBool,
}

impl<I: Iterator<Item = (u32, RankState)>> Evaluation<'_, I> {
    fn next(&self) -> Option<(u32, RankState)> {
        if self.is_interrupted.load(Ordering::Relaxed) {
            return None;
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn evaluate(&self, rank: u32, state: RankState) -> Result<String, String> {
        let service = self.session.rank(rank);
        let mut gdb = Gdb::start(&self.is_interrupted)?;
        for setting in SETTINGS {
            gdb.ask(setting, SYMBOLS_TIMEOUT)?;
        }
        if let Some(program) = program_here(&service) {
            gdb.ask(&file_command(&program), SYMBOLS_TIMEOUT)?;
        }
        RankView::open(service)?.serve(|socket| {
            let connect = format!("-target-select remote {}", socket.display());
            gdb.ask(&connect, SYMBOLS_TIMEOUT)?;
            if state != RankState::Running {
                return self.read(gdb, state);
            }
            let held = match self.act(rank, ConsoleAction::Hold)? {
                // The rank has stopped since its state was read.
                ProcessState::Stopped { thread, .. } => RankState::Stopped(thread),
                ProcessState::Held | ProcessState::Running => RankState::Held,
            };
            let result = self.read(gdb, held);
            self.act(rank, ConsoleAction::Unhold)?;
            result
        })
    }

    fn act(&self, rank: u32, action: ConsoleAction) -> Result<ProcessState, String> {
        let answers = self.session.act_as(self.number, rank, action)?;
        match answers.results.into_iter().next() {
            Some((ToolResult::Console(state), _)) => Ok(state),
            _ => Err(answers.failed.into_keys().next().unwrap_or_default()),
        }
    }

    /// Reads the value in a rank that is stopped. Ends gdb.
    fn read(&self, mut gdb: Gdb<'_>, state: RankState) -> Result<String, String> {
        let timeout = self.session.timeout();
        // The registers that gdb has read while it connected are out of date.
        if gdb.ask(FLUSH, timeout).is_err() {
            gdb.ask(FLUSH_BEFORE_GDB_11, timeout)?;
        }
        let threads = gdb.ask("-thread-info", timeout)?;
        let wanted = match state {
            RankState::Stopped(number) => number,
            RankState::Running | RankState::Held => 1,
        };
        let thread = thread_id(&threads, wanted).ok_or("gdb shows no threads")?;
        let frames =
            gdb.ask(&format!("-stack-list-frames --thread {thread} 0 {MAX_FRAMES}"), timeout)?;
        let libraries = gdb.ask("-file-list-shared-libraries", timeout)?;
        let frame = frame_level(&frames, &libraries, matches!(state, RankState::Stopped(_)));
        let command = format!(
            "-data-evaluate-expression --thread {thread} --frame {frame} {}",
            quoted(self.expression)
        );
        let outcome = gdb.ask(&command, timeout)?;
        Ok(shown(outcome.text("value").unwrap_or_default()))
    }
}

fn file_command(program: &Path) -> String {
    format!("-file-exec-and-symbols {}", quoted(&program.to_string_lossy()))
}

/// Formats a value as one line of bounded length.
fn shown(value: &str) -> String {
    let mut text = String::new();
    for letter in value.chars() {
        if text.len() >= MAX_VALUE_LEN {
            text.push_str("...");
            break;
        }
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
    }
    text
}

/// gdb's number of a thread. `number` is the number in the process, from 1 on, in the order of
/// thread ids.
fn thread_id(threads: &MiOutcome, number: u32) -> Option<u32> {
    let mut by_tid: Vec<(u32, u32)> = Vec::new();
    for thread in threads.get("threads")?.items() {
        // The target id has the form "Thread 12.34".
        let tid = thread.text("target-id")?.rsplit(['.', ' ']).next()?.parse().ok()?;
        by_tid.push((tid, thread.text("id")?.parse().ok()?));
    }
    by_tid.sort_unstable();
    let index = usize::try_from(number.saturating_sub(1)).ok()?;
    by_tid.get(index).or_else(|| by_tid.first()).map(|(_, id)| *id)
}

fn address(text: Option<&str>) -> Option<u64> {
    u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok()
}

/// The frame in which the expression is evaluated. If the thread has stopped in a known source
/// file, it is the innermost frame. Otherwise it is the innermost frame of the program itself,
/// because most threads wait in a library.
fn frame_level(frames: &MiOutcome, libraries: &MiOutcome, has_stopped: bool) -> u32 {
    let frames: Vec<&MiValue> = frames.get("stack").into_iter().flat_map(MiValue::items).collect();
    let has_source = |frame: &&&MiValue| frame.text("file").is_some();
    if has_stopped && frames.first().as_ref().is_some_and(has_source) {
        return 0;
    }
    let libraries = libraries.get("shared-libraries").into_iter().flat_map(MiValue::items);
    let ranges = libraries.filter_map(|library| library.get("ranges")).flat_map(MiValue::items);
    let to_range = |range: &MiValue| Some(address(range.text("from"))?..address(range.text("to"))?);
    let ranges: Vec<_> = ranges.filter_map(to_range).collect();
    let is_of_program = |frame: &&&MiValue| {
        let place = address(frame.text("addr"));
        place.is_some_and(|place| !ranges.iter().any(|range| range.contains(&place)))
    };
    let own = frames.iter().find(|frame| is_of_program(frame) && has_source(frame));
    let level = own.and_then(|frame| frame.text("level")?.parse().ok());
    level.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_sdm::gdb::mi::{MiRecord, parse_line};

    fn outcome(line: &str) -> MiOutcome {
        match parse_line(line.as_bytes()) {
            Ok(MiRecord::Result(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn threads_are_numbered_in_the_order_of_their_ids() {
        let threads = outcome(
            r#"1^done,threads=[{id="1",target-id="Thread 7.9"},{id="2",target-id="Thread 7.7"}]"#,
        );
        assert_eq!((thread_id(&threads, 1), thread_id(&threads, 2)), (Some(2), Some(1)));
        assert_eq!(thread_id(&threads, 9), Some(2));
        assert_eq!(thread_id(&outcome("1^done,threads=[]"), 1), None);
    }

    #[test]
    fn a_library_frame_is_skipped_for_a_waiting_thread_and_kept_for_a_stop() {
        let frames = outcome(
            "2^done,stack=[frame={level=\"0\",addr=\"0x7f10\",file=\"poll.c\"},\
             frame={level=\"1\",addr=\"0x10\"},\
             frame={level=\"2\",addr=\"0x20\",file=\"main.c\"}]",
        );
        let libraries =
            outcome(r#"3^done,shared-libraries=[{id="c",ranges=[{from="0x7f00",to="0x7fff"}]}]"#);
        assert_eq!(frame_level(&frames, &libraries, false), 2);
        assert_eq!(frame_level(&frames, &libraries, true), 0);
        let none = outcome("3^done,stack=[]");
        assert_eq!(frame_level(&none, &libraries, true), 0);
    }

    #[test]
    fn equal_values_are_one_line_with_ranks_and_control_characters_are_escaped() {
        let mut values = Values::default();
        for (rank, result) in [(3, Ok("1")), (0, Ok("{a = 1}")), (2, Ok("1")), (1, Err("no"))] {
            values.add(rank, result.map(str::to_owned).map_err(str::to_owned));
        }
        let outcome = values.outcome("print x", false);
        assert_eq!(outcome.text, "rank 0: {a = 1}\nranks 2-3: 1\n");
        assert_eq!(outcome.problems, ["rank 1: no"]);
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&"x".repeat(MAX_VALUE_LEN + 9)).len(), MAX_VALUE_LEN + 3);
    }
}
