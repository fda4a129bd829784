//! Multi-user mode (manual 1.4.3; scrun(1), `scored`): the job goes to the scored of this host,
//! which knows who the user is, and the server of the cluster chooses the hosts.

use crate::nodes::Chosen;
use crate::options::{Given, Options};
use crate::usage::{Refusal, USAGE};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{User, getuid};
use score_hosts::request::parse_hosts;
use score_hosts::{Shape as Asked, parse_nodes};
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET};
use score_proto::message::{HostSpec, Login, OsBytes};
use score_proto::note::Request;
use score_proto::order::Limit;
use score_proto::shape::Shape;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// What a job keeps of its user's limits.
const KEPT: [Resource; 11] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_STACK,
];

/// A login, and what is wanted of the cluster.
#[derive(Debug)]
pub struct Shared {
    /// Who.
    pub login: Login,
    /// How many nodes.
    pub shape: Shape,
}

/// The login that the options ask for, if they do: `scored`, unless `group` or `file` stands to the
/// left of it.
///
/// # Errors
/// Numbers that cannot be, or what only single-user mode can do.
pub fn of(options: &Options, request: &Request) -> Result<Option<Shared>, Refusal> {
    let decisive = |given: &&Given| matches!(given.key.as_str(), "scored" | "group" | "file");
    let Some(given) = options.given.iter().find(decisive).filter(|given| given.key == "scored")
    else {
        return Ok(None);
    };
    let shape = shape(options, request)?;
    let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name).unwrap_or_default();
    let login = Login {
        uid: getuid().as_raw(),
        name: OsBytes(name.into_bytes()),
        cluster: given.value.clone().unwrap_or_default(),
        limits: KEPT.iter().filter_map(|resource| limit(*resource)).collect(),
    };
    Ok(Some(Shared { login, shape }))
}

fn limit(resource: Resource) -> Option<Limit> {
    let (soft, hard) = getrlimit(resource).ok()?;
    Some(Limit { resource: resource as u32, soft, hard })
}

fn shape(options: &Options, request: &Request) -> Result<Shape, Refusal> {
    let (least, most) = request.nodes;
    let Some(given) = options.nodes() else {
        return Ok(match request.procs {
            Some(procs) => Shape::Grid { hosts: least.div_ceil(procs.max(1)).max(1), procs },
            None => Shape::Fill { least, most },
        });
    };
    let value = given.value.as_deref().unwrap_or_default();
    let refuse =
        |line: String| Refusal::usage(given.place, format!("{}={value}: {line}", given.key));
    let parse = if given.key == "hosts" { parse_hosts } else { parse_nodes };
    let asked = parse(value).map_err(refuse)?;
    let shape = match (asked.shape, request.procs) {
        (Asked::Nodes(nodes), None) => Shape::Spread(nodes),
        (Asked::Nodes(nodes), Some(procs)) if procs > 0 && nodes % procs == 0 => {
            Shape::Grid { hosts: nodes / procs, procs }
        }
        (Asked::Nodes(_), Some(procs)) => {
            return Err(refuse(format!("the program wants {procs} processes on each host")));
        }
        (Asked::Hosts(_, procs), Some(fixed)) if procs != fixed => {
            return Err(refuse(format!("the program wants {fixed} processes on each host")));
        }
        (Asked::Hosts(Some(hosts), procs), _) => Shape::Grid { hosts, procs },
        (Asked::Hosts(None, procs), _) => Shape::Every { procs, least, most },
        (Asked::WholeHosts(hosts), Some(procs)) => Shape::Grid { hosts, procs },
        (Asked::WholeHosts(hosts), None) => Shape::Whole { hosts, least, most },
    };
    let nodes = match shape {
        Shape::Spread(nodes) => u64::from(nodes),
        Shape::Grid { hosts, procs } => u64::from(hosts) * u64::from(procs),
        // The server sees to it.
        Shape::Fill { .. } | Shape::Whole { .. } | Shape::Every { .. } => u64::from(least),
    };
    if nodes < u64::from(least) || nodes > u64::from(most) {
        return Err(refuse(format!("the program takes {least} to {most} nodes")));
    }
    Ok(shape)
}

impl Shared {
    /// A choice that says how many nodes there are at least.
    pub fn unplaced(&self) -> Chosen {
        let nodes = self.shape.least().try_into().unwrap_or(u32::MAX);
        Chosen { hosts: vec![HostSpec::this(nodes)] }
    }

    /// Calls the scored of this host.
    ///
    /// # Errors
    /// There is none.
    pub fn call(&self) -> Result<UnixStream, Refusal> {
        let path = std::env::var_os(SCORED_SOCKET).map(PathBuf::from);
        let path = path.unwrap_or_else(|| DEFAULT_SOCKET.into());
        UnixStream::connect(&path).map_err(|error| {
            let cluster = &self.login.cluster;
            let line = format!(
                "scored={cluster}: no scored serves this host ({}: {error}); without the option \
                 scored the job runs in single-user mode",
                path.display()
            );
            Refusal::plain(USAGE, line)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    fn shared(line: &str, environment: &str, request: &Request) -> Result<Option<Shared>, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let parsed = Options::parse(&words, OsStr::new(environment));
        let (options, _) = parsed.map_err(|refusal| refusal.line)?;
        of(&options, request).map_err(|refusal| refusal.line)
    }

    fn shape(line: &str, request: &Request) -> Result<Shape, String> {
        shared(&format!("-scored=c {line}"), "", request).map(|found| found.unwrap().shape)
    }

    #[test]
    fn the_leftmost_of_scored_group_and_file_decides() {
        let is_shared =
            |line, environment| shared(line, environment, &Request::default()).unwrap().is_some();
        assert!(is_shared("-scored=c", ""));
        assert!(is_shared("-nodes=2", "scored=c"));
        assert!(is_shared("-scored=c,group=g", ""));
        assert!(!is_shared("-group=local:2", "scored=c"));
        assert!(!is_shared("-nodes=2", ""));
    }

    #[test]
    fn nodes_become_what_the_server_can_place() {
        let any = Request::default();
        assert_eq!(shape("-nodes=5", &any), Ok(Shape::Spread(5)));
        assert_eq!(shape("-nodes=3x2", &any), Ok(Shape::Grid { hosts: 3, procs: 2 }));
        assert_eq!(shape("", &any), Ok(Shape::Fill { least: 1, most: any.nodes.1 }));
        let (least, most) = any.nodes;
        assert_eq!(shape("-nodes=x3", &any), Ok(Shape::Every { procs: 3, least, most }));
        assert_eq!(shape("-hosts=2", &any), Ok(Shape::Whole { hosts: 2, least, most }));
        // Which hosts are of that kind, the server knows.
        assert_eq!(shape("-nodes=3x2.linux.opteron", &any), Ok(Shape::Grid { hosts: 3, procs: 2 }));
        let fixed = Request { nodes: (4, 8), procs: Some(2), ..Request::default() };
        assert_eq!(shape("-hosts=3", &fixed), Ok(Shape::Grid { hosts: 3, procs: 2 }));
        assert_eq!(shape("", &fixed), Ok(Shape::Grid { hosts: 2, procs: 2 }));
        assert_eq!(shape("-nodes=6", &fixed), Ok(Shape::Grid { hosts: 3, procs: 2 }));
        for (wrong, what) in [
            ("-nodes=5", "2 processes"),
            ("-nodes=2x3", "2 processes"),
            ("-nodes=1x2", "4 to 8 nodes"),
            ("-nodes=x3", "2 processes"),
        ] {
            let fault = shape(wrong, &fixed).unwrap_err();
            assert!(fault.contains(what), "{wrong}: {fault}");
        }
    }
}
