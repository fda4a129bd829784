//! Multi-user mode (manual 1.4.3; scrun(1), `scored`): scrun submits the job to the daemon of this
//! host, which identifies the user. The server of the cluster chooses the hosts.

use crate::nodes::HostAssignment;
use crate::options::{OptionArg, ScrunOptions};
use crate::usage::StartError;
use score_client::{Connection, Service};
use score_hosts::node_request::parse_hosts;
use score_hosts::{Shape, parse_nodes};
use score_proto::allocation_request::AllocationRequest;
use score_proto::elf_note::Request;
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::{HostSpec, Login};

/// The advice for a user if there is no service.
const REMEDY: &str = "without the option scored the job runs in single-user mode";

/// A login, and the nodes that the job requests from the cluster.
#[derive(Debug)]
pub struct ClusterRequest {
    /// The user and the cluster.
    pub login: Login,
    /// The requested number of nodes and hosts.
    pub shape: AllocationRequest,
}

/// The cluster request of the options, if the job is for multi-user mode. This is the case if the
/// option `scored` is given, and neither `group` nor `file` is to its left.
///
/// # Errors
/// Invalid numbers of nodes or hosts, or numbers that the program does not allow.
pub fn from_options(
    options: &ScrunOptions,
    request: &Request,
) -> Result<Option<ClusterRequest>, StartError> {
    let decisive = |given: &&OptionArg| matches!(given.key.as_str(), "scored" | "group" | "file");
    let Some(given) = options.given.iter().find(decisive).filter(|given| given.key == "scored")
    else {
        return Ok(None);
    };
    let shape = shape(options, request)?;
    let login = score_client::login_of_this_process(given.value.clone().unwrap_or_default());
    Ok(Some(ClusterRequest { login, shape }))
}

fn shape(options: &ScrunOptions, request: &Request) -> Result<AllocationRequest, StartError> {
    let (min_nodes, max_nodes) = request.nodes;
    let Some(given) = options.nodes() else {
        return Ok(match request.procs {
            Some(procs) => AllocationRequest::HostsByProcs {
                hosts: min_nodes.div_ceil(procs.max(1)).max(1),
                procs,
            },
            None => AllocationRequest::AllFreeSlots { min_nodes, max_nodes },
        });
    };
    let value = given.value.as_deref().unwrap_or_default();
    let refuse =
        |line: String| StartError::usage(given.position, format!("{}={value}: {line}", given.key));
    let parse = if given.key == "hosts" { parse_hosts } else { parse_nodes };
    let parsed = parse(value).map_err(refuse)?;
    let shape = match (parsed.shape, request.procs) {
        (Shape::Nodes(nodes), None) => AllocationRequest::FewestHosts(nodes),
        (Shape::Nodes(nodes), Some(procs)) if procs > 0 && nodes % procs == 0 => {
            AllocationRequest::HostsByProcs { hosts: nodes / procs, procs }
        }
        (Shape::Nodes(_), Some(procs)) => {
            return Err(refuse(format!("the program requests {procs} processes on each host")));
        }
        (Shape::Hosts(_, procs), Some(required_procs)) if procs != required_procs => {
            return Err(refuse(format!(
                "the program requests {required_procs} processes on each host"
            )));
        }
        (Shape::Hosts(Some(hosts), procs), _) => AllocationRequest::HostsByProcs { hosts, procs },
        (Shape::Hosts(None, procs), _) => {
            AllocationRequest::EveryHost { procs, min_nodes, max_nodes }
        }
        (Shape::WholeHosts(hosts), Some(procs)) => AllocationRequest::HostsByProcs { hosts, procs },
        (Shape::WholeHosts(hosts), None) => {
            AllocationRequest::Exclusive { hosts, min_nodes, max_nodes }
        }
    };
    let nodes = match shape {
        AllocationRequest::FewestHosts(nodes) => u64::from(nodes),
        AllocationRequest::HostsByProcs { hosts, procs } => u64::from(hosts) * u64::from(procs),
        // The server checks the limits for these shapes.
        AllocationRequest::AllFreeSlots { .. }
        | AllocationRequest::Exclusive { .. }
        | AllocationRequest::EveryHost { .. } => u64::from(min_nodes),
    };
    if nodes < u64::from(min_nodes) || nodes > u64::from(max_nodes) {
        return Err(refuse(format!("the program allows {min_nodes} to {max_nodes} nodes")));
    }
    Ok(shape)
}

impl ClusterRequest {
    /// A placeholder for the assignment of the server. It has the minimum number of nodes.
    pub fn provisional_assignment(&self) -> HostAssignment {
        let nodes = self.shape.min_slots().try_into().unwrap_or(u32::MAX);
        HostAssignment { hosts: vec![HostSpec::local(nodes)] }
    }

    /// Logs in to the daemon of this host.
    ///
    /// # Errors
    /// If no daemon listens on the socket, or the login fails.
    pub fn log_in(&self) -> Result<Connection, StartError> {
        score_client::login(&Service::new(None, REMEDY), &self.login).map_err(|error| {
            let line = format!("scored={}: {error}", self.login.cluster);
            StartError::plain(EXIT_USAGE, line)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    fn cluster_request(
        line: &str,
        environment: &str,
        request: &Request,
    ) -> Result<Option<ClusterRequest>, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let parsed = ScrunOptions::parse(&words, OsStr::new(environment));
        let (options, _) = parsed.map_err(|error| error.line)?;
        from_options(&options, request).map_err(|error| error.line)
    }

    fn shape(line: &str, request: &Request) -> Result<AllocationRequest, String> {
        cluster_request(&format!("-scored=c {line}"), "", request).map(|found| found.unwrap().shape)
    }

    #[test]
    fn the_leftmost_of_scored_group_and_file_is_used() {
        let is_shared = |line, environment| {
            cluster_request(line, environment, &Request::default()).unwrap().is_some()
        };
        assert!(is_shared("-scored=c", ""));
        assert!(is_shared("-nodes=2", "scored=c"));
        assert!(is_shared("-scored=c,group=g", ""));
        assert!(!is_shared("-group=local:2", "scored=c"));
        assert!(!is_shared("-nodes=2", ""));
    }

    #[test]
    fn node_options_become_requests_that_the_server_can_place() {
        let any = Request::default();
        assert_eq!(shape("-nodes=5", &any), Ok(AllocationRequest::FewestHosts(5)));
        assert_eq!(
            shape("-nodes=3x2", &any),
            Ok(AllocationRequest::HostsByProcs { hosts: 3, procs: 2 })
        );
        assert_eq!(
            shape("", &any),
            Ok(AllocationRequest::AllFreeSlots { min_nodes: 1, max_nodes: any.nodes.1 })
        );
        let (min_nodes, max_nodes) = any.nodes;
        assert_eq!(
            shape("-nodes=x3", &any),
            Ok(AllocationRequest::EveryHost { procs: 3, min_nodes, max_nodes })
        );
        assert_eq!(
            shape("-hosts=2", &any),
            Ok(AllocationRequest::Exclusive { hosts: 2, min_nodes, max_nodes })
        );
        // The server selects the hosts of that kind.
        assert_eq!(
            shape("-nodes=3x2.linux.opteron", &any),
            Ok(AllocationRequest::HostsByProcs { hosts: 3, procs: 2 })
        );
        let fixed = Request { nodes: (4, 8), procs: Some(2), ..Request::default() };
        assert_eq!(
            shape("-hosts=3", &fixed),
            Ok(AllocationRequest::HostsByProcs { hosts: 3, procs: 2 })
        );
        assert_eq!(shape("", &fixed), Ok(AllocationRequest::HostsByProcs { hosts: 2, procs: 2 }));
        assert_eq!(
            shape("-nodes=6", &fixed),
            Ok(AllocationRequest::HostsByProcs { hosts: 3, procs: 2 })
        );
        for (option, expected) in [
            ("-nodes=5", "2 processes"),
            ("-nodes=2x3", "2 processes"),
            ("-nodes=1x2", "4 to 8 nodes"),
            ("-nodes=x3", "2 processes"),
        ] {
            let error = shape(option, &fixed).unwrap_err();
            assert!(error.contains(expected), "{option}: {error}");
        }
    }
}
