//! Values of options: each check says what would be right.

use score_proto::MAX_NODES;

/// What `nodes` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// Number of nodes (no `x`), or hosts and processes per host.
    pub shape: Shape,
    /// `.bintype[.cpugen[.speed]]`, if given.
    pub binary_type: Option<String>,
}

/// The number part of `nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `N`.
    Nodes(u32),
    /// `HxP`; `xP` is every host at hand.
    Hosts(Option<u32>, u32),
}

/// Reads the value of `nodes`: `N`, `HxP` or `xP`, then `.bintype[.cpugen[.speed]]`.
///
/// # Errors
/// A text that says what would be right.
pub fn parse_nodes(text: &str) -> Result<Nodes, String> {
    let (numbers, rest) = match text.split_once('.') {
        Some((numbers, rest)) => (numbers, Some(rest)),
        None => (text, None),
    };
    if let Some(rest) = rest
        && (rest.split('.').count() > 3 || rest.split('.').any(str::is_empty))
    {
        return Err(format!("'.{rest}' is not .BINTYPE[.CPUGEN[.SPEED]]"));
    }
    let shape = match numbers.split_once('x') {
        None => Shape::Nodes(count(numbers, "nodes")?),
        Some(("", procs)) => Shape::Hosts(None, count(procs, "processes per host")?),
        Some((hosts, procs)) => {
            let (hosts, procs) = (count(hosts, "hosts")?, count(procs, "processes per host")?);
            let nodes = u64::from(hosts) * u64::from(procs);
            if nodes > u64::from(MAX_NODES) {
                return Err(format!("{nodes} nodes exceed the limit of {MAX_NODES} (PM_MAX_NODE)"));
            }
            Shape::Hosts(Some(hosts), procs)
        }
    };
    Ok(Nodes { shape, binary_type: rest.map(str::to_owned) })
}

fn count(text: &str, of: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("'{text}' is not a number of {of} (N or HxP is expected)"));
    }
    match text.trim_start_matches('0').parse::<u64>() {
        Err(_) if text.bytes().all(|b| b == b'0') => Err(format!("0 {of} cannot run anything")),
        Ok(n) if n <= u64::from(MAX_NODES) => Ok(n as u32),
        _ => Err(format!("{text} {of} exceed the limit of {MAX_NODES} (PM_MAX_NODE)")),
    }
}

/// Any value will do.
pub fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

/// See [`parse_nodes`].
pub fn nodes(text: &str) -> Result<(), String> {
    parse_nodes(text).map(drop)
}

/// `NAME[+NAME]...`
pub fn names(text: &str) -> Result<(), String> {
    if text.split('+').any(str::is_empty) {
        return Err("an empty network name (NAME[+NAME]... is expected)".into());
    }
    Ok(())
}

fn between(text: &str, low: u64, high: u64) -> Result<(), String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if digits && (low..=high).contains(&n) => Ok(()),
        _ => Err(format!("'{text}' is not a number from {low} to {high}")),
    }
}

/// 0..15, our ruling.
pub fn priority(text: &str) -> Result<(), String> {
    between(text, 0, 15)
}

/// 1..10.
pub fn debuggers(text: &str) -> Result<(), String> {
    between(text, 1, 10)
}

/// Seconds or megabytes.
pub fn amount(text: &str) -> Result<(), String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(1..) if digits => Ok(()),
        _ => Err(format!("'{text}' is not a whole number above 0")),
    }
}

/// A number, then perhaps m, h or d.
pub fn interval(text: &str) -> Result<(), String> {
    amount(text.strip_suffix(['m', 'h', 'd']).unwrap_or(text)).map_err(|_| {
        format!("'{text}' is not an interval (a whole number above 0, then perhaps m, h or d)")
    })
}

fn one_of(text: &str, known: &[&str]) -> Result<(), String> {
    if known.contains(&text) {
        return Ok(());
    }
    match super::near::nearest(text, known.iter().copied()) {
        Some(near) => Err(format!("unknown value '{text}'; did you mean '{near}'?")),
        None => Err(format!("unknown value '{text}' (one of {} is expected)", known.join(", "))),
    }
}

/// A type of monitor.
pub fn monitor(text: &str) -> Result<(), String> {
    one_of(text, &["load", "comm", "memory", "disk", "usr0", "usr1", "all", "ALL"])
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
    fn nodes_are_a_number_or_hosts_by_processes() {
        let shape = |text| parse_nodes(text).map(|nodes| nodes.shape);
        assert_eq!(shape("4"), Ok(Shape::Nodes(4)));
        assert_eq!(shape("007"), Ok(Shape::Nodes(7)));
        assert_eq!(shape("1x4"), Ok(Shape::Hosts(Some(1), 4)));
        assert_eq!(shape("x4"), Ok(Shape::Hosts(None, 4)));
        assert_eq!(shape("1048576"), Ok(Shape::Nodes(1_048_576)));
        let typed = parse_nodes("2x2.i386-redhat7-linux2_4.pentium.500").unwrap();
        assert_eq!(typed.binary_type.as_deref(), Some("i386-redhat7-linux2_4.pentium.500"));
    }

    #[test]
    fn wrong_nodes_are_refused_with_both_numbers_where_there_are_two() {
        for (text, part) in [
            ("0", "0 nodes cannot"),
            ("", "'' is not a number of nodes"),
            ("-1", "'-1' is not a number"),
            ("+4", "'+4' is not a number"),
            ("4x", "'' is not a number of processes per host"),
            ("4x0", "0 processes per host"),
            ("0x4", "0 hosts"),
            ("1048577", "1048577 nodes exceed the limit of 1048576"),
            ("99999999999999999999999", "exceed the limit of 1048576"),
            ("1025x1024", "1049600 nodes exceed the limit of 1048576"),
            ("4.", "'.' is not .BINTYPE"),
            ("4.a.b.c.d", "is not .BINTYPE"),
            ("4x4x4", "'4x4' is not a number"),
        ] {
            let error = parse_nodes(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn other_values_are_checked() {
        assert!(priority("0").is_ok() && priority("15").is_ok() && priority("16").is_err());
        assert!(priority("+1").is_err() && priority("").is_err());
        assert!(debuggers("10").is_ok() && debuggers("0").is_err() && debuggers("11").is_err());
        assert!(interval("10m").is_ok() && interval("3").is_ok() && interval("m").is_err());
        assert!(interval("0h").is_err() && interval("1w").is_err());
        assert!(names("a+b").is_ok() && names("a+").is_err());
        assert!(message("concise").is_ok());
        assert!(message("quite").unwrap_err().contains("did you mean 'quiet'"));
        assert!(monitor("ALL").is_ok() && monitor("cpu").is_err());
    }
}
