//! Parses the values of the options `nodes` and `hosts` (scrun(1); score_doc 7, scrun).

use crate::MAX_NODES;
use crate::error::printable;

/// The value of the option `nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRequest {
    /// The number of nodes.
    pub shape: Shape,
    /// The kind of hosts.
    pub kind: Option<HostType>,
}

/// The number part of `nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `N`.
    Nodes(u32),
    /// `HxP`; also `N/P` for the matching number of hosts. `xP` uses every available host.
    Hosts(Option<u32>, u32),
    /// `hosts=H`: this many hosts, with one process per processor.
    WholeHosts(u32),
}

/// A kind of hosts: `.BINTYPE[.CPUGEN[.SPEED]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostType {
    /// The kind of programs.
    pub bintype: String,
    /// The kind of processors.
    pub cpugen: Option<String>,
    /// Speed of the processors.
    pub speed: Option<String>,
}

impl std::fmt::Display for HostType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&self.bintype))?;
        for part in [&self.cpugen, &self.speed].into_iter().flatten() {
            write!(f, ".{}", printable(part))?;
        }
        Ok(())
    }
}

/// Parses the value of `nodes`: `N`, `HxP`, `N/P` or `xP`, then `.BINTYPE[.CPUGEN[.SPEED]]`.
///
/// # Errors
/// A text with the expected form.
pub fn parse_nodes(text: &str) -> Result<NodeRequest, String> {
    let (numbers, kind) = split_kind(text)?;
    let shape = match parse_product(numbers)? {
        Some(shape) => shape,
        None => Shape::Nodes(count(numbers, "nodes")?),
    };
    Ok(NodeRequest { shape, kind })
}

/// Parses the value of `hosts`. Its syntax is that of `nodes`, except for a plain number.
///
/// # Errors
/// A text with the expected form.
pub fn parse_hosts(text: &str) -> Result<NodeRequest, String> {
    let (numbers, kind) = split_kind(text)?;
    let shape = match parse_product(numbers)? {
        Some(shape) => shape,
        None => Shape::WholeHosts(count(numbers, "hosts")?),
    };
    Ok(NodeRequest { shape, kind })
}

fn split_kind(text: &str) -> Result<(&str, Option<HostType>), String> {
    let Some((numbers, rest)) = text.split_once('.') else { return Ok((text, None)) };
    let parts: Vec<&str> = rest.splitn(3, '.').collect();
    // A speed may have a fraction.
    let fraction = |speed: &str| speed.parse::<f64>().is_ok() || !speed.contains('.');
    if parts.iter().any(|part| part.is_empty()) || !parts.get(2).is_none_or(|s| fraction(s)) {
        return Err(format!("'.{rest}' is not .BINTYPE[.CPUGEN[.SPEED]]"));
    }
    let part = |index: usize| parts.get(index).map(|part| (*part).to_owned());
    let bintype = parts[0].to_owned();
    Ok((numbers, Some(HostType { bintype, cpugen: part(1), speed: part(2) })))
}

fn parse_product(numbers: &str) -> Result<Option<Shape>, String> {
    if let Some((nodes, procs)) = numbers.split_once('/') {
        let (nodes, procs) = (count(nodes, "nodes")?, count(procs, "processes per host")?);
        if !nodes.is_multiple_of(procs) {
            return Err(format!("{nodes} nodes cannot be divided into hosts of {procs} each"));
        }
        return Ok(Some(Shape::Hosts(Some(nodes / procs), procs)));
    }
    let Some((hosts, procs)) = numbers.split_once('x') else { return Ok(None) };
    if hosts.is_empty() {
        return Ok(Some(Shape::Hosts(None, count(procs, "processes per host")?)));
    }
    let (hosts, procs) = (count(hosts, "hosts")?, count(procs, "processes per host")?);
    let nodes = u64::from(hosts) * u64::from(procs);
    if nodes > u64::from(MAX_NODES) {
        return Err(format!("{nodes} nodes exceed the limit of {MAX_NODES} (PM_MAX_NODE)"));
    }
    Ok(Some(Shape::Hosts(Some(hosts), procs)))
}

fn count(text: &str, unit: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "'{}' is not a number of {unit} (N or HxP is expected)",
            printable(text)
        ));
    }
    match text.trim_start_matches('0').parse::<u64>() {
        Err(_) if text.bytes().all(|b| b == b'0') => Err(format!("0 {unit} cannot run anything")),
        Ok(n) if n <= u64::from(MAX_NODES) => Ok(n as u32),
        _ => {
            Err(format!("{} {unit} exceed the limit of {MAX_NODES} (PM_MAX_NODE)", printable(text)))
        }
    }
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
        assert_eq!(shape("1024/8"), Ok(Shape::Hosts(Some(128), 8)));
        assert_eq!(shape("1048576"), Ok(Shape::Nodes(1_048_576)));
        assert_eq!(shape("1024x1024"), Ok(Shape::Hosts(Some(1024), 1024)));
    }

    #[test]
    fn a_number_of_hosts_alone_means_whole_hosts() {
        let shape = |text| parse_hosts(text).map(|nodes| nodes.shape);
        assert_eq!(shape("32"), Ok(Shape::WholeHosts(32)));
        assert_eq!(shape("2x4"), Ok(Shape::Hosts(Some(2), 4)));
        assert_eq!(shape("8/4"), Ok(Shape::Hosts(Some(2), 4)));
        assert!(parse_hosts("0").unwrap_err().contains("0 hosts"));
    }

    #[test]
    fn a_kind_of_hosts_can_follow_the_number() {
        let kind = |text| parse_nodes(text).unwrap().kind.unwrap();
        let typed = kind("2x2.i386-redhat7-linux2_4.pentium.500");
        assert_eq!(typed.to_string(), "i386-redhat7-linux2_4.pentium.500");
        assert_eq!(kind("2.linux").cpugen, None);
        assert_eq!(kind("2.linux.opteron.2.4").speed.as_deref(), Some("2.4"));
    }

    #[test]
    fn wrong_nodes_are_refused_with_the_number_and_its_limit() {
        for (text, part) in [
            ("0", "0 nodes cannot"),
            ("", "'' is not a number of nodes"),
            ("-1", "'-1' is not a number"),
            ("+4", "'+4' is not a number"),
            ("4x", "'' is not a number of processes per host"),
            ("4x0", "0 processes per host"),
            ("0x4", "0 hosts"),
            ("9/4", "9 nodes cannot be divided into hosts of 4"),
            ("9/0", "0 processes per host"),
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
}
