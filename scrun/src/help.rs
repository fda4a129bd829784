//! The output of `-help` and `-version`.

use crate::options::table::{OPTIONS, Support};
use std::fmt::Write;

const HEAD: &str = "\
usage: scrun [-option[=value],...] program [arguments]

  program == program    pipe, node by node
  program :: program    one after the other
  program := FILE       standard input from a file
  program =: FILE       standard output to a file
  program =:: FILE      standard output appended to a file (also :=:)

Programs of this package: scatter, gather, system [-host] program, pmtest.
SCORE_OPTIONS holds more options, without the minus. Options:
";

/// The text of `-help`.
pub fn text() -> String {
    let mut out = String::from(HEAD);
    for spec in OPTIONS {
        let name = format!("-{}{}", spec.name, spec.value_syntax);
        let note = if spec.support == Support::NotImplemented { " (no effect yet)" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  {name:<28}{}{note}", spec.summary);
    }
    out
}

/// The text of `-version` of this command.
pub fn version(command: &str) -> String {
    let protocol = score_proto::PROTOCOL_VERSION;
    format!("{command} (SCore) {}, protocol {protocol}\n", env!("CARGO_PKG_VERSION"))
}
