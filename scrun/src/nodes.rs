//! How many nodes a job gets (manual, scrun(1), `nodes`; 4.1). One host until jobs on many hosts
//! are built.

use crate::options::Options;
use crate::options::value::{Shape, parse_nodes};
use crate::usage::{Place, Refusal};
use score_proto::MAX_NODES;
use score_proto::note::Request;

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Hosts.
    pub hosts: u32,
    /// Processes on each.
    pub procs: u32,
}

impl Chosen {
    /// Nodes of every parallel process.
    pub fn nodes(self) -> u32 {
        self.hosts.saturating_mul(self.procs)
    }
}

/// Settles the number of nodes on a host whose processors are counted only when it matters.
///
/// # Errors
/// A number that the requests or this version do not allow; both numbers are named.
pub fn settle(
    options: &Options,
    request: &Request,
    processors: impl FnOnce() -> u32,
) -> Result<Chosen, Refusal> {
    let given = options.get("nodes");
    let place = given.map_or(Place::Nowhere, |given| given.place);
    let refuse = |line: String| Refusal::usage(place, line);
    let value = given.and_then(|given| given.value.as_deref());
    let shape = match value.map(parse_nodes).transpose() {
        Ok(nodes) => nodes.map(|nodes| nodes.shape),
        Err(line) => return Err(refuse(format!("nodes: {line}"))),
    };
    let typed = value.unwrap_or_default();
    let (min, max) = request.nodes;
    let nodes = match (shape, request.procs) {
        (None, Some(procs)) => procs,
        (None, None) => processors().clamp(1, MAX_NODES).clamp(min, max),
        (Some(Shape::Nodes(nodes)), procs) => {
            fits(nodes, procs).map_err(refuse)?;
            nodes
        }
        (Some(Shape::Hosts(hosts, procs)), fixed) => {
            if let Some(fixed) = fixed.filter(|fixed| *fixed != procs) {
                let declared = format!("the programs declare SCORE_RSRC_NUM_PROCS({fixed})");
                return Err(refuse(format!("nodes={typed}: {procs} per host, but {declared}")));
            }
            if let Some(hosts @ 2..) = hosts {
                return Err(refuse(format!("nodes={typed}: {}", one_host(hosts))));
            }
            procs
        }
    };
    if nodes < min || nodes > max {
        let allowed = format!("SCORE_RSRC_NUM_NODES({min}, {max})");
        return Err(refuse(format!(
            "{nodes} nodes: the programs allow {min} to {max} ({allowed})"
        )));
    }
    Ok(Chosen { hosts: 1, procs: nodes })
}

fn one_host(hosts: u32) -> String {
    format!("{hosts} hosts are needed, 1 is at hand (jobs on many hosts are not built yet)")
}

/// NUM_PROCS(P) is P per host and must divide N.
fn fits(nodes: u32, procs: Option<u32>) -> Result<(), String> {
    let Some(procs) = procs else { return Ok(()) };
    let macro_name = format!("SCORE_RSRC_NUM_PROCS({procs})");
    if !nodes.is_multiple_of(procs) {
        return Err(format!("{nodes} nodes are no multiple of the {procs} of {macro_name}"));
    }
    match nodes / procs {
        1 => Ok(()),
        hosts => {
            Err(format!("{nodes} nodes by {procs} per host ({macro_name}): {}", one_host(hosts)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    fn with(option: &str, request: Request) -> Result<u32, String> {
        let words: Vec<OsString> = option.split_whitespace().map(OsString::from).collect();
        let (options, _) = Options::parse(&words, OsStr::new("")).map_err(|e| e.line)?;
        settle(&options, &request, || 8).map(Chosen::nodes).map_err(|refusal| refusal.line)
    }

    fn asking(nodes: (u32, u32), procs: Option<u32>) -> Request {
        Request { nodes, procs, ..Request::default() }
    }

    #[test]
    fn without_the_option_there_is_one_node_per_processor_within_the_request() {
        assert_eq!(with("", asking((1, MAX_NODES), None)), Ok(8));
        assert_eq!(with("", asking((1, 4), None)), Ok(4));
        assert_eq!(with("", asking((16, 64), None)), Ok(16));
        assert_eq!(with("", asking((1, MAX_NODES), Some(3))), Ok(3));
    }

    #[test]
    fn numbers_that_are_allowed_are_taken() {
        let any = Request::default();
        assert_eq!(with("-nodes=5", any), Ok(5));
        assert_eq!(with("-nodes=1x6", any), Ok(6));
        assert_eq!(with("-nodes=x6", any), Ok(6));
        assert_eq!(with("-nodes=100", any), Ok(100));
        assert_eq!(with("-nodes=2,nodes=3", any), Ok(2));
        assert_eq!(with("-nodes=4", asking((1, 9), Some(4))), Ok(4));
    }

    #[test]
    fn numbers_that_are_not_allowed_are_named_with_their_limit() {
        for (option, request, parts) in [
            ("-nodes=5", asking((1, 4), None), ["5 nodes", "1 to 4"]),
            ("-nodes=1", asking((2, 4), None), ["1 nodes", "2 to 4"]),
            ("-nodes=2x4", asking((1, 99), None), ["2 hosts", "not built yet"]),
            ("-nodes=5", asking((1, 99), Some(2)), ["5 nodes", "2 of SCORE_RSRC_NUM_PROCS(2)"]),
            ("-nodes=8", asking((1, 99), Some(2)), ["4 hosts are needed", "1 is at hand"]),
            ("-nodes=1x3", asking((1, 99), Some(2)), ["3 per host", "NUM_PROCS(2)"]),
            ("", asking((1, 2), Some(3)), ["3 nodes", "1 to 2"]),
        ] {
            let error = with(option, request).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{option}: {error}");
        }
    }
}
