//! Checks of option values. Each error names the valid values.

/// Accepts any value.
pub fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

/// See [`score_hosts::parse_nodes`].
pub fn nodes(text: &str) -> Result<(), String> {
    score_hosts::parse_nodes(text).map(drop)
}

/// See [`score_hosts::node_request::parse_hosts`].
pub fn hosts(text: &str) -> Result<(), String> {
    score_hosts::node_request::parse_hosts(text).map(drop)
}

/// Network names: `NAME[+NAME]...`
pub fn names(text: &str) -> Result<(), String> {
    if text.split('+').any(str::is_empty) {
        return Err("an empty network name (NAME[+NAME]... is expected)".into());
    }
    Ok(())
}

fn check_range(text: &str, low: u64, high: u64) -> Result<(), String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if digits && (low..=high).contains(&n) => Ok(()),
        _ => Err(format!("'{text}' is not a number from {low} to {high}")),
    }
}

/// A number from 0 to 15. The manual gives no range; this project defines the range.
pub fn priority(text: &str) -> Result<(), String> {
    check_range(text, 0, 15)
}

/// The value of `debug` that selects DDT.
pub const DDT: &str = "ddt";

/// A number from 1 to 10, or `ddt`.
pub fn debuggers(text: &str) -> Result<(), String> {
    if text == DDT { Ok(()) } else { check_range(text, 1, 10) }
}

/// A number of seconds or megabytes, above 0.
pub fn amount(text: &str) -> Result<(), String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(1..) if digits => Ok(()),
        _ => Err(format!("'{text}' is not a whole number above 0")),
    }
}

/// A number above 0, optionally followed by m, h or d.
pub fn interval(text: &str) -> Result<(), String> {
    amount(text.strip_suffix(['m', 'h', 'd']).unwrap_or(text)).map_err(|_| {
        format!("'{text}' is not an interval (a whole number above 0, optionally with m, h or d)")
    })
}

fn one_of(text: &str, allowed: &[&str]) -> Result<(), String> {
    if allowed.contains(&text) {
        return Ok(());
    }
    match super::name_suggestion::nearest(text, allowed.iter().copied()) {
        Some(suggestion) => Err(format!("unknown value '{text}'; did you mean '{suggestion}'?")),
        None => Err(format!("unknown value '{text}' (one of {} is expected)", allowed.join(", "))),
    }
}

/// A metric, or a group of metrics, of the monitor.
pub fn monitor(text: &str) -> Result<(), String> {
    // The list has both "all" and "ALL", because they differ.
    score_monitor::parse_metrics(Some(text)).map(drop)
}

/// How MPI programs start: a word or the directory of an MPI library (not in the manual).
pub fn mpi(text: &str) -> Result<(), String> {
    match text.starts_with('/') {
        true => crate::mpi::check_library_folder(text),
        false => one_of(text, &crate::mpi::OPTION_VALUES),
    }
}

/// A variable of the environment: `NAME=VALUE`
pub fn variable(text: &str) -> Result<(), String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(()),
        _ => Err("no name and '=' (NAME=VALUE is expected)".to_owned()),
    }
}

/// Arguments of a tool (not in the manual).
pub fn tool_arguments(text: &str) -> Result<(), String> {
    score_proto::tool_start::split_words(text).map(drop)
}

/// The launcher for daemons on other hosts (not in the manual; scored(8)).
pub fn start(text: &str) -> Result<(), String> {
    one_of(text, &["ssh", "slurm", "pbs", "lsf", "sge"])
}

/// A type of statistics.
pub fn statistics(text: &str) -> Result<(), String> {
    one_of(text, &["all", "detail"])
}

/// A mode of messages.
pub fn message(text: &str) -> Result<(), String> {
    one_of(text, &["concise", "quiet"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_are_checked() {
        assert!(priority("0").is_ok() && priority("15").is_ok() && priority("16").is_err());
        assert!(priority("+1").is_err() && priority("").is_err());
        assert!(debuggers("10").is_ok() && debuggers("0").is_err() && debuggers("11").is_err());
        assert!(debuggers("ddt").is_ok() && debuggers("gdb").is_err());
        assert!(interval("10m").is_ok() && interval("3").is_ok() && interval("m").is_err());
        assert!(interval("0h").is_err() && interval("1w").is_err());
        assert!(names("a+b").is_ok() && names("a+").is_err());
        assert!(message("concise").is_ok());
        assert!(message("quite").unwrap_err().contains("did you mean 'quiet'"));
        assert!(monitor("ALL").is_ok() && monitor("cpu").is_err());
    }
}
