//! The number of nodes of a job, and their hosts (manual, scrun(1), `nodes`; 4.1).

use crate::local_environment::{LocalEnvironment, bintype};
use crate::networks;
use crate::options::ScrunOptions;
use crate::usage::{ErrorPosition, StartError};
use score_hosts::node_request::parse_hosts;
use score_hosts::{Host, PlacementRequest, Shape, parse_nodes, place};
use score_proto::elf_note::Request;
use score_proto::message::{HostKind, HostSpec};

/// The hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAssignment {
    /// The hosts, with the number of nodes on each.
    pub hosts: Vec<HostSpec>,
}

impl HostAssignment {
    /// Number of nodes of every element.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.procs))
    }

    /// The layout as `HxP`, or the numbers of nodes on all hosts if they differ.
    pub fn layout(&self) -> String {
        let procs: Vec<u32> = self.hosts.iter().map(|host| host.procs).collect();
        match procs.first() {
            Some(first) if procs.iter().all(|procs| procs == first) => {
                format!("{}x{first}", procs.len())
            }
            _ => procs.iter().map(u32::to_string).collect::<Vec<_>>().join("+"),
        }
    }
}

/// Assigns the nodes of a job to hosts. `warn` receives warnings for the user.
///
/// # Errors
/// Missing hosts, or a number that the requests do not allow. The error names both numbers.
pub fn assign_hosts(
    options: &ScrunOptions,
    request: &Request,
    local_env: &LocalEnvironment<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<HostAssignment, StartError> {
    let given = options.nodes();
    let option = given.map_or(ErrorPosition::Unspecified, |given| given.position);
    let value = given.and_then(|given| given.value.as_deref());
    let parsed = match (given, value) {
        (Some(given), Some(value)) => {
            let parse = if given.key == "hosts" { parse_hosts } else { parse_nodes };
            let refuse = |line| StartError::usage(option, format!("{}={value}: {line}", given.key));
            Some(parse(value).map_err(refuse)?)
        }
        _ => None,
    };
    let requirements = PlacementRequest {
        shape: parsed.as_ref().map(|nodes| nodes.shape),
        kind: parsed.and_then(|nodes| nodes.kind),
        nodes: request.nodes,
        procs: request.procs,
        allows_hetero: options.hetero().is_some(),
    };
    let available = local_env.available_hosts(options, warn)?;
    let is_local_only = available.is_none();
    let hosts = fill_in_local_host(available, &requirements, local_env);
    let placement = place(&hosts, &requirements).map_err(|line| {
        let prefix = given.zip(value).map(|(given, value)| format!("{}={value}: ", given.key));
        let needs_more_hosts =
            matches!(requirements.shape, Some(Shape::Hosts(..) | Shape::WholeHosts(_)));
        let hint = "; use group=NAME for hosts of scorehosts.db, group=local:N for virtual hosts";
        let hint =
            if is_local_only && needs_more_hosts && line.contains("needed") { hint } else { "" };
        StartError::usage(option, format!("{}{line}{hint}", prefix.unwrap_or_default()))
    })?;
    if is_local_only {
        let networks = local_env.local_networks(options)?;
        let local_host = HostSpec { networks, ..HostSpec::local(placement.nodes()) };
        return Ok(HostAssignment { hosts: vec![local_host] });
    }
    let links = networks::links(options);
    let spec = |(index, procs): (usize, u32)| host_spec(&hosts[index], (procs, links), local_env);
    Ok(HostAssignment { hosts: placement.hosts.into_iter().map(spec).collect() })
}

/// The available hosts. The record of this machine gets its processors and binary type.
fn fill_in_local_host(
    available: Option<Vec<Host>>,
    requirements: &PlacementRequest,
    local_env: &LocalEnvironment<'_>,
) -> Vec<Host> {
    let Some(mut hosts) = available else {
        // The processors of this machine matter only if they determine the number of nodes.
        let processors_matter = requirements.shape.is_none() && requirements.procs.is_none()
            || matches!(requirements.shape, Some(Shape::WholeHosts(_)));
        let processors = processors_matter.then(|| (local_env.count_processors)());
        return vec![Host { processors, bintype: Some(bintype()), ..Host::default() }];
    };
    for host in hosts.iter_mut().filter(|host| local_env.is_local(host)) {
        host.processors.get_or_insert_with(|| (local_env.count_processors)());
        host.bintype.get_or_insert_with(bintype);
    }
    hosts
}

/// The specification of a host in a job. `links` is the number of links of each virtual host.
pub fn host_spec(
    host: &Host,
    (procs, links): (u32, u32),
    local_env: &LocalEnvironment<'_>,
) -> HostSpec {
    let kind = match host.is_virtual {
        true => HostKind::Virtual,
        false if local_env.is_local(host) => HostKind::Local,
        false => HostKind::Remote,
    };
    let address = if kind == HostKind::Remote { host.dial().to_owned() } else { String::new() };
    let processors = host.processors.unwrap_or(0);
    let networks = networks::host_networks(host, links);
    HostSpec { name: host.name.clone(), address, kind, processors, procs, networks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::MAX_NODES;
    use std::ffi::{OsStr, OsString};
    use std::path::Path;

    const DB: &[u8] = b"#define PCC cores=4 group=pcc\n\
        c[0-2].org PCC\nc3.org PCC address=10.0.0.3\n~c4.org PCC spare=s.org\n\
        s.org cores=2 group=odd\nhere.org group=home\n";

    fn read(path: &Path) -> std::io::Result<Vec<u8>> {
        match path.to_str() {
            Some("/etc/db") => Ok(DB.to_vec()),
            Some("list") => Ok(b"c1.org\nc0\n".to_vec()),
            Some("wrong") => Ok(b"c1.org\nc9.org cors=7\n".to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn local_env() -> LocalEnvironment<'static> {
        let variable: &dyn Fn(&str) -> Option<OsString> =
            &|name| (name == "SCBDSERV").then(|| "/etc/db".into());
        LocalEnvironment {
            count_processors: &|| 8,
            machine_name: &|| "here.org".into(),
            env_var: variable,
            read_file: &read,
            session_hosts: None,
        }
    }

    fn assign(line: &str, request: Request) -> Result<(HostAssignment, Vec<String>), StartError> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (options, _) = ScrunOptions::parse(&words, OsStr::new(""))?;
        let mut warnings = Vec::new();
        let assignment = assign_hosts(&options, &request, &local_env(), &mut |line| {
            warnings.push(line.to_owned())
        })?;
        Ok((assignment, warnings))
    }

    fn node_count(option: &str, request: Request) -> Result<u32, String> {
        assign(option, request).map(|(hosts, _)| hosts.nodes()).map_err(|error| error.line)
    }

    fn layout(option: &str) -> String {
        let (assignment, _) = assign(option, Request::default()).unwrap();
        let hosts = assignment.hosts.iter().map(|host| format!("{}:{}", host.name, host.procs));
        hosts.collect::<Vec<_>>().join(" ")
    }

    fn request_for(nodes: (u32, u32), procs: Option<u32>) -> Request {
        Request { nodes, procs, ..Request::default() }
    }

    #[test]
    fn hosts_and_protocol_have_the_same_node_limit() {
        assert_eq!(score_hosts::MAX_NODES, MAX_NODES);
    }

    #[test]
    fn without_the_option_there_is_one_node_per_processor_within_the_request() {
        assert_eq!(node_count("", request_for((1, MAX_NODES), None)), Ok(8));
        assert_eq!(node_count("", request_for((1, 4), None)), Ok(4));
        assert_eq!(node_count("", request_for((16, 64), None)), Ok(16));
        assert_eq!(node_count("", request_for((1, MAX_NODES), Some(3))), Ok(3));
    }

    #[test]
    fn allowed_node_counts_are_accepted() {
        let any = Request::default();
        assert_eq!(node_count("-nodes=5", any), Ok(5));
        assert_eq!(node_count("-nodes=1x6", any), Ok(6));
        assert_eq!(node_count("-nodes=x6", any), Ok(6));
        assert_eq!(node_count("-nodes=6/6", any), Ok(6));
        assert_eq!(node_count("-hosts=1", any), Ok(8));
        assert_eq!(node_count("-nodes=100", any), Ok(100));
        assert_eq!(node_count("-nodes=2,nodes=3", any), Ok(2));
        assert_eq!(node_count("-hosts=1x2,nodes=3", any), Ok(2));
        assert_eq!(node_count("-nodes=4", request_for((1, 9), Some(4))), Ok(4));
    }

    #[test]
    fn disallowed_node_counts_are_reported_with_their_limit() {
        for (option, request, parts) in [
            ("-nodes=5", request_for((1, 4), None), ["5 nodes", "1 to 4"]),
            ("-nodes=1", request_for((2, 4), None), ["1 nodes", "2 to 4"]),
            (
                "-nodes=2x4",
                request_for((1, 99), None),
                ["2 hosts are needed, 1 is", "group=local:N"],
            ),
            (
                "-nodes=5",
                request_for((1, 99), Some(2)),
                ["5 nodes", "2 of SCORE_RSRC_NUM_PROCS(2)"],
            ),
            ("-nodes=8", request_for((1, 99), Some(2)), ["4 hosts are needed", "1 is available"]),
            ("-nodes=1x3", request_for((1, 99), Some(2)), ["3 processes per host", "NUM_PROCS(2)"]),
            ("", request_for((1, 2), Some(3)), ["3 nodes", "1 to 2"]),
            ("-nodes=1.vax", request_for((1, 9), None), ["bintype 'vax'", std::env::consts::ARCH]),
        ] {
            let error = node_count(option, request).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{option}: {error}");
        }
    }

    #[test]
    fn a_group_selects_its_hosts() {
        assert_eq!(layout("-group=local:4,nodes=4x2"), "local0:2 local1:2 local2:2 local3:2");
        assert_eq!(layout("-group=local:4"), "local0:2 local1:2 local2:2 local3:2");
        assert_eq!(layout("-group=pcc:3"), "c0.org:4 c1.org:4 c2.org:4");
        assert_eq!(layout("-group=pcc,nodes=6"), "c0.org:3 c1.org:3");
        assert_eq!(layout("-group=c1+c0,nodes=2x1"), "c1.org:1 c0.org:1");
        assert_eq!(layout("-group=home"), "here.org:8");
        assert_eq!(layout("-file=list"), "c1.org:4 c0.org:4");
        assert_eq!(layout("-file=/etc/db,group=odd"), "s.org:2");
        assert_eq!(layout("-hosts=2,group=pcc~c0~c1"), "c2.org:4 c3.org:4");
    }

    #[test]
    fn assigned_hosts_have_their_kind_and_address() {
        let request = Request::default();
        let (assignment, warnings) = assign("-group=home+c3+c4,nodes=3x1", request).unwrap();
        let kind_and_address =
            |index: usize| (assignment.hosts[index].kind, assignment.hosts[index].address.as_str());
        assert_eq!(kind_and_address(0), (HostKind::Local, ""));
        assert_eq!(kind_and_address(1), (HostKind::Remote, "10.0.0.3"));
        assert_eq!(
            (kind_and_address(2), assignment.hosts[2].processors),
            ((HostKind::Remote, "s.org"), 2)
        );
        assert_eq!(warnings, ["c4.org is out of order: replaced by s.org"]);
        let (assignment, _) = self::assign("-group=local:2,nodes=3", request).unwrap();
        assert!(assignment.hosts.iter().all(|host| host.kind == HostKind::Virtual));
        assert_eq!((assignment.nodes(), assignment.layout().as_str()), (3, "1x3"));
        let (assignment, _) = self::assign("-group=local:2,nodes=9", request).unwrap();
        assert_eq!(assignment.layout(), "5+4");
    }

    // Promise (hosts): In a batch job, scrun uses the hosts of the batch job.
    #[test]
    fn the_hosts_of_a_batch_job_are_available_inside_it() {
        let slurm = |name: &str| match name {
            "SLURM_JOB_ID" => Some(OsString::from("7")),
            "SLURM_JOB_NODELIST" => Some("here,n[1-2]".into()),
            "SLURM_JOB_CPUS_PER_NODE" => Some("2,4(x2)".into()),
            _ => None,
        };
        let local_env = LocalEnvironment { env_var: &slurm, ..local_env() };
        let assigned = |line: &str| {
            let (options, _) = ScrunOptions::parse(&[line.into()], OsStr::new("")).unwrap();
            assign_hosts(&options, &Request::default(), &local_env, &mut |_| ())
        };
        let assignment = assigned("-stat").unwrap();
        assert_eq!(
            (assignment.layout().as_str(), assignment.hosts[2].name.as_str()),
            ("2+4+4", "n2")
        );
        let kinds: Vec<HostKind> = assignment.hosts.iter().map(|host| host.kind).collect();
        assert_eq!(kinds, [HostKind::Local, HostKind::Remote, HostKind::Remote]);
        assert_eq!(assigned("-nodes=4").unwrap().hosts[0].name, "n1");
        let error = assigned("-nodes=11").unwrap_err();
        assert!(error.line.contains("3 hosts with 10 processors available"), "{}", error.line);
        assert!(assigned("-group=local:2").unwrap().hosts[0].kind == HostKind::Virtual);
        let malformed = |name: &str| slurm(name).map(|_| OsString::from("n[1-"));
        let local_env = LocalEnvironment { env_var: &malformed, ..self::local_env() };
        let error =
            assign_hosts(&ScrunOptions::default(), &Request::default(), &local_env, &mut |_| ());
        assert!(error.unwrap_err().line.starts_with("SLURM_JOB_NODELIST: n[1-: "));
    }

    #[test]
    fn an_unknown_host_or_group_is_shown_with_a_caret() {
        for (line, expected) in [
            (
                "-nodes=2,group=pc a",
                "group: 'pc': no host or group of /etc/db; did you mean 'pcc'?\n  \
                 scrun -nodes=2,group=pc a\n                       ^",
            ),
            (
                "-group=pcc+x9.org a",
                "group: 'x9.org': no host or group of /etc/db; did you mean 'c0.org'?\n  \
                 scrun -group=pcc+x9.org a\n                   ^",
            ),
            (
                "-group=pcc,file=wrong a",
                "file: wrong:2: cors: unknown attribute; did you mean 'cores'?\n  \
                 scrun -group=pcc,file=wrong a\n                        ^",
            ),
        ] {
            let error = assign(line, Request::default()).unwrap_err();
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let context = error.context(&words, OsStr::new("")).unwrap();
            assert_eq!((error.code, format!("{}\n{context}", error.line)), (2, expected.into()));
        }
        let error = node_count("-group=pcc,nodes=5x1", Request::default()).unwrap();
        assert_eq!(error, 5, "four hosts and a spare");
        let error = node_count("-group=pcc,nodes=6x1", Request::default()).unwrap_err();
        assert_eq!(error, "nodes=6x1: 6 hosts are needed, 5 are available");
    }
}
