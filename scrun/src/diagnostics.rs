//! Writes the messages of scrun and scout to standard error. `message=` filters them, and on a
//! terminal their prefix is coloured.

use score_proto::message::Level;
use std::io::{IsTerminal, Write};

/// Writes lines of a program to standard error, in a given form.
#[derive(Debug, Clone, Copy)]
pub struct Reporter {
    /// Name of the program that reports, as the prefix of each line.
    pub name: &'static str,
    /// The lowest level that is shown.
    pub min_level: Level,
    /// Whether the prefix is coloured.
    pub colour: bool,
}

impl Reporter {
    /// A reporter for the standard error of this process.
    pub fn new(name: &'static str, min_level: Level) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = !is_set("NO_COLOR") && !is_dumb && std::io::stderr().is_terminal();
        Self { name, min_level, colour }
    }

    /// The line as it is written, or `None` when its level is not shown.
    pub fn line(&self, level: Level, text: &str) -> Option<String> {
        if level < self.min_level {
            return None;
        }
        // The text may contain bytes from a user or a program.
        let printable = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
        let text: String = text.chars().map(printable).collect();
        let name = self.name;
        Some(match (self.colour, level) {
            (true, Level::Error) => format!("\x1b[1;31m{name}:\x1b[0m {text}\n"),
            (true, Level::Warning) => format!("\x1b[1;33m{name}:\x1b[0m {text}\n"),
            _ => format!("{name}: {text}\n"),
        })
    }

    /// Writes a line at once. The session of a job does not use this function, because a blocked
    /// write would stop its event loop.
    pub fn report(&self, level: Level, text: &str) {
        if let Some(line) = self.line(level, text) {
            // If this fails, there is no other place to report it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_modes_filter_levels_according_to_the_manual() {
        let levels_shown = |min_level| {
            let reporter = Reporter { name: "scrun", min_level, colour: false };
            [Level::Info, Level::Warning, Level::Error]
                .map(|level| reporter.line(level, "x").is_some())
        };
        assert_eq!(levels_shown(Level::Info), [true, true, true]);
        assert_eq!(levels_shown(Level::Warning), [false, true, true]);
        assert_eq!(levels_shown(Level::Error), [false, false, true]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let reporter = Reporter { name: "scrun", min_level: Level::Info, colour: false };
        assert_eq!(reporter.line(Level::Error, "a\x1b[2J\r").unwrap(), "scrun: a?[2J?\n");
    }

    #[test]
    fn colour_is_in_the_prefix_only() {
        let reporter = Reporter { name: "scrun", min_level: Level::Info, colour: true };
        assert_eq!(reporter.line(Level::Info, "x").unwrap(), "scrun: x\n");
        assert!(reporter.line(Level::Error, "x").unwrap().ends_with("\x1b[0m x\n"));
    }
}
