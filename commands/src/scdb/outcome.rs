//! The result of a command of scdb.

use serde_json::Value;

/// The result of a command.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The text for standard output.
    pub text: String,
    /// A line for each reason why ranks could not execute the command.
    pub problems: Vec<String>,
}

impl Outcome {
    /// The result of a command whose output is one JSON value.
    pub fn of(value: &Value) -> Self {
        Self { text: format!("{value}\n"), problems: Vec::new() }
    }
}
