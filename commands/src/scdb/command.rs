//! The commands of scdb: parses the words that a user types.

use score_hosts::name_suggestion::nearest;
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{ConsoleAction, Location, ThreadDetail};

/// The commands, for `help`.
pub const COMMANDS: &str = "\
  stacks [RANKS] [-lines] [-dot]  print the stacks of all threads as one tree
  where [RANKS] [-all]            print the stack of the first thread, or of the thread that has
                                  stopped; with -all, of all threads
  threads [RANKS]                 list the threads: number, name, state, innermost function
  print EXPRESSION [RANKS]        print the value, with gdb; a running rank is stopped meanwhile
  hold [RANKS]                    stop all threads until continue or release
  break LOCATION [RANKS]          stop when a thread reaches a function, FILE:LINE or *ADDRESS
  watch LOCATION [RANKS]          stop after a write to a variable, or to *ADDRESS
  clear [LOCATION] [RANKS]        remove a breakpoint or watchpoint; without LOCATION all of them
  continue [RANKS] [&]            continue, and wait for the next stop; with &, do not wait
  step [RANKS]                    run the thread that has stopped to another source line
  stepi [RANKS]                   execute one instruction in the thread that has stopped
  wait [RANKS]                    wait until the ranks have stopped or ended
  release [RANKS]                 undo hold, break and watch, and continue
  help                            print this list
  quit                            end scdb; the ranks continue
RANKS are ranks such as 0-3,7, or all; default: all.
";

const NAMES: &[&str] = &[
    "stacks", "where", "threads", "print", "hold", "break", "watch", "clear", "continue", "step",
    "stepi", "wait", "release", "help", "quit",
];

/// The ranks of a command. `None` means all ranks.
pub type Ranks = Option<NodeSet>;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `stacks`: prints the stacks of all threads as one tree.
    Stacks {
        /// The ranks.
        ranks: Ranks,
        /// Whether to show source lines.
        lines: bool,
        /// Whether to print the tree for Graphviz.
        dot: bool,
    },
    /// `where` and `threads`.
    Threads(Ranks, ThreadDetail),
    /// A command that changes processes, or undoes a change.
    Act(Ranks, ConsoleAction),
    /// `continue`: continues ranks.
    Continue {
        /// The ranks.
        ranks: Ranks,
        /// Whether the command returns at once, without waiting for a stop.
        in_background: bool,
    },
    /// `print`: the value of an expression.
    Print(Ranks, String),
    /// `wait`: waits until the ranks have stopped or ended.
    Wait(Ranks),
    /// `help`
    Help,
    /// `quit`
    Quit,
}

impl Command {
    /// Parses a line of a console. Returns `None` if the line has no command.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse_line(line: &str) -> Result<Option<Self>, String> {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.is_empty() {
            true => Ok(None),
            false => Self::parse(&words).map(Some),
        }
    }

    /// Parses the words of a command.
    ///
    /// # Errors
    /// One line that names the word at fault.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let Some((name, rest)) = words.split_first() else {
            return Err(format!("the command is missing; valid commands: {}", NAMES.join(", ")));
        };
        // The words of an expression follow the syntax of the program's language.
        if *name == "print" {
            return parse_print(rest);
        }
        let mut words = Words::of(rest)?;
        let command = match *name {
            "stacks" => {
                let (lines, dot) = (words.take_option("lines"), words.take_option("dot"));
                Self::Stacks { ranks: words.ranks()?, lines, dot }
            }
            "where" => {
                let detail = match words.take_option("all") {
                    true => ThreadDetail::AllStacks,
                    false => ThreadDetail::FirstStack,
                };
                Self::Threads(words.ranks()?, detail)
            }
            "threads" => Self::Threads(words.ranks()?, ThreadDetail::TopFrames),
            "hold" => Self::Act(words.ranks()?, ConsoleAction::Hold),
            "release" => Self::Act(words.ranks()?, ConsoleAction::Release),
            "step" => Self::Act(words.ranks()?, ConsoleAction::StepLine),
            "stepi" => Self::Act(words.ranks()?, ConsoleAction::StepInstruction),
            "break" => {
                let place = words.location()?.ok_or("break: the location is missing")?;
                Self::Act(words.ranks()?, ConsoleAction::Break(place))
            }
            "watch" => {
                let place = words.location()?.ok_or("watch: the location is missing")?;
                Self::Act(words.ranks()?, ConsoleAction::Watch(place))
            }
            "clear" => {
                let place = words.location()?;
                Self::Act(words.ranks()?, ConsoleAction::Clear(place))
            }
            "continue" => {
                let in_background = words.take_word("&");
                Self::Continue { ranks: words.ranks()?, in_background }
            }
            "wait" => Self::Wait(words.ranks()?),
            "help" => Self::Help,
            "quit" | "exit" => Self::Quit,
            unknown => return Err(unknown_command(unknown)),
        };
        words.end(name)?;
        Ok(command)
    }

    /// Whether the effect of the command lasts only as long as the console. Such a command is
    /// useless outside a console.
    pub fn needs_console(&self) -> bool {
        matches!(self, Self::Act(..) | Self::Continue { .. } | Self::Wait(_))
    }
}

/// Splits an expression and the ranks after it, as in `x 0-3`. In `x - 3` the last word belongs to
/// the expression.
fn parse_print(words: &[&str]) -> Result<Command, String> {
    let (ranks, expression) = match words {
        [expression @ .., "-ranks" | "--ranks", ranks] => (
            parse_ranks(ranks).map(Some).map_err(|reason| format!("-ranks: {reason}"))?,
            expression,
        ),
        [expression @ .., before, "all"] if !before.ends_with(OPERATORS) => {
            (None, &words[..=expression.len()])
        }
        [expression @ .., before, ranks] if !before.ends_with(OPERATORS) => {
            match parse_ranks(ranks) {
                Ok(ranks) => (Some(ranks), &words[..=expression.len()]),
                Err(_) => (None, words),
            }
        }
        _ => (None, words),
    };
    match expression.is_empty() {
        true => Err("print: the expression is missing".to_owned()),
        false => Ok(Command::Print(ranks, expression.join(" "))),
    }
}

fn unknown_command(name: &str) -> String {
    match nearest(name, NAMES.iter().copied()) {
        Some(suggestion) => format!("{name}: unknown command; did you mean {suggestion}?"),
        None => format!("{name}: unknown command; valid commands: {}", NAMES.join(", ")),
    }
}

/// The words of a command that are not yet parsed.
struct Words<'a> {
    options: Vec<&'a str>,
    words: Vec<&'a str>,
    /// The value of `-ranks`.
    ranks: Ranks,
}

/// If a word ends with one of these, the expression continues with the next word.
const OPERATORS: &[char] = &['+', '-', '*', '/', '%', '&', '|', '^', '<', '>', '=', '!', '~', ','];

const OPTIONS: &[&str] = &["ranks", "lines", "dot", "all"];

impl<'a> Words<'a> {
    fn of(rest: &[&'a str]) -> Result<Self, String> {
        let mut own = Self { options: Vec::new(), words: Vec::new(), ranks: None };
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match word.strip_prefix('-').map(|name| name.strip_prefix('-').unwrap_or(name)) {
                None => own.words.push(word),
                Some("ranks") => {
                    let set = rest.next().ok_or_else(|| format!("{word}: its value is missing"))?;
                    own.ranks =
                        Some(parse_ranks(set).map_err(|reason| format!("-ranks: {reason}"))?);
                }
                Some(name) if OPTIONS.contains(&name) => own.options.push(name),
                Some(name) => {
                    let hint = nearest(name, OPTIONS.iter().copied());
                    let hint = hint.map(|it| format!("; did you mean -{it}?")).unwrap_or_default();
                    return Err(format!("{word}: unknown option{hint}"));
                }
            }
        }
        Ok(own)
    }

    fn take_option(&mut self, name: &str) -> bool {
        let before = self.options.len();
        self.options.retain(|option| *option != name);
        self.options.len() < before
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        self.words.pop_if(|word| *word == wanted).is_some()
    }

    /// Takes the location, which comes before the ranks.
    fn location(&mut self) -> Result<Option<Location>, String> {
        match self.words.first() {
            Some(word) if !is_ranks(word) => {
                let location = parse_location(word)?;
                self.words.remove(0);
                Ok(Some(location))
            }
            _ => Ok(None),
        }
    }

    fn ranks(&mut self) -> Result<Ranks, String> {
        if self.words.is_empty() {
            return Ok(self.ranks.take());
        }
        let word = self.words.remove(0);
        match word {
            "all" => Ok(None),
            set => parse_ranks(set).map(Some),
        }
    }

    /// Checks that no word is left.
    fn end(self, command: &str) -> Result<(), String> {
        if let Some(option) = self.options.first() {
            return Err(format!("-{option}: {command} has no such option"));
        }
        match self.words.first() {
            Some(word) => Err(format!("{word}: unknown word")),
            None => Ok(()),
        }
    }
}

fn is_ranks(word: &str) -> bool {
    word == "all" || word.starts_with(|letter: char| letter.is_ascii_digit())
}

/// Parses a location in a program.
///
/// # Errors
/// The word, and the form that it must have.
pub fn parse_location(word: &str) -> Result<Location, String> {
    if let Some(address) = word.strip_prefix('*') {
        let digits = address.strip_prefix("0x").unwrap_or(address);
        let address = u64::from_str_radix(digits, 16);
        return address
            .map(Location::Address)
            .map_err(|_| format!("{word}: not an address such as *0x4011d6"));
    }
    // Names of C++ and Rust contain `::`.
    let line = word.rsplit_once(':').filter(|(file, _)| !file.ends_with(':'));
    match line {
        Some((file, line)) => match line.parse() {
            Ok(line) if line > 0 && !file.is_empty() => {
                Ok(Location::Line { file: file.to_owned(), line })
            }
            _ => Err(format!("{word}: not a location such as main.c:12")),
        },
        None => Ok(Location::Name(word.to_owned())),
    }
}

/// Parses a set of ranks such as `0-3,8`.
fn parse_ranks(text: &str) -> Result<NodeSet, String> {
    let wrong = || format!("{text}: not a set of ranks such as 0-3,8");
    let mut ranks = NodeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| wrong())?;
        let last: u32 = last.parse().map_err(|_| wrong())?;
        if first > last || last >= score_proto::MAX_NODES {
            return Err(wrong());
        }
        ranks.insert_range(first..last + 1);
    }
    Ok(ranks)
}

/// Formats a set of ranks in the form that [`parse_ranks`] accepts.
pub fn ranks_text(ranks: &NodeSet) -> String {
    let part = |range: std::ops::Range<u32>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    };
    ranks.ranges().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Command::parse_line(line).map(|command| command.expect("a command"))
    }

    fn set(ranks: &[u32]) -> Ranks {
        Some(ranks.iter().copied().collect())
    }

    #[test]
    fn commands_have_ranks_locations_and_options() {
        let name = |name: &str| Location::Name(name.to_owned());
        let print = |ranks, text: &str| Command::Print(ranks, text.to_owned());
        let line = Location::Line { file: "src/main.c".to_owned(), line: 12 };
        for (text, command) in [
            ("where", Command::Threads(None, ThreadDetail::FirstStack)),
            (
                "where 0-2,7 -all # why",
                Command::Threads(set(&[0, 1, 2, 7]), ThreadDetail::AllStacks),
            ),
            ("threads all", Command::Threads(None, ThreadDetail::TopFrames)),
            ("hold 3", Command::Act(set(&[3]), ConsoleAction::Hold)),
            ("break src/main.c:12 1", Command::Act(set(&[1]), ConsoleAction::Break(line))),
            ("break solver::run", Command::Act(None, ConsoleAction::Break(name("solver::run")))),
            ("watch *0x10 2", Command::Act(set(&[2]), ConsoleAction::Watch(Location::Address(16)))),
            ("clear 0-1", Command::Act(set(&[0, 1]), ConsoleAction::Clear(None))),
            ("clear solve", Command::Act(None, ConsoleAction::Clear(Some(name("solve"))))),
            ("continue 1 &", Command::Continue { ranks: set(&[1]), in_background: true }),
            ("continue", Command::Continue { ranks: None, in_background: false }),
            ("  quit ", Command::Quit),
            ("print x", print(None, "x")),
            ("print grid[2].x 0-3", print(set(&[0, 1, 2, 3]), "grid[2].x")),
            ("print *(int *)p all", print(None, "*(int *)p")),
            ("print a - 3", print(None, "a - 3")),
            ("print a - 3 7", print(set(&[7]), "a - 3")),
            ("print -x --ranks 2", print(set(&[2]), "-x")),
            ("print all", print(None, "all")),
            ("print sum(a, b) y", print(None, "sum(a, b) y")),
        ] {
            assert_eq!(parse(text), Ok(command), "{text}");
        }
        assert_eq!(Command::parse_line("  # nothing"), Ok(None));
    }

    #[test]
    fn every_error_names_the_faulty_word() {
        for (text, part) in [
            ("stack", "stack: unknown command; did you mean stacks?"),
            ("frobnicate", "valid commands: stacks, where"),
            ("where -al", "-al: unknown option; did you mean -all?"),
            ("threads -all", "-all: threads has no such option"),
            ("hold 3-1", "3-1: not a set of ranks"),
            ("hold 0-4294967295", "not a set of ranks"),
            ("hold 0 1", "1: unknown word"),
            ("hold rank", "rank: not a set of ranks"),
            ("break 0-3", "break: the location is missing"),
            ("break *main", "*main: not an address"),
            ("break main.c:x", "main.c:x: not a location"),
            ("stacks -ranks", "-ranks: its value is missing"),
            ("print", "print: the expression is missing"),
            ("print -ranks 2", "print: the expression is missing"),
            ("print x -ranks y", "-ranks: y: not a set of ranks"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn ranks_are_printed_in_the_form_that_is_parsed() {
        let ranks = parse_ranks("7,0-3,9-10").unwrap();
        assert_eq!(ranks_text(&ranks), "0-3,7,9-10");
        assert_eq!(parse_ranks(&ranks_text(&ranks)), Ok(ranks));
    }
}
