//! How many nodes a job gets, and on which hosts (manual, scrun(1), `nodes`; 4.1).

use crate::networks;
use crate::options::Options;
use crate::site::{Site, bintype};
use crate::usage::{Place, Refusal};
use score_hosts::request::parse_hosts;
use score_hosts::{Host, Shape, Wanted, parse_nodes, place};
use score_proto::message::{HostKind, HostSpec};
use score_proto::note::Request;

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The hosts, with the number of nodes on each.
    pub hosts: Vec<HostSpec>,
}

impl Chosen {
    /// Nodes of every parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.procs))
    }

    /// `HxP`, or the numbers of all hosts where they differ.
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

/// Settles hosts and number of nodes. `say` hears what the user should know.
///
/// # Errors
/// Hosts that are not there, or a number that the requests do not allow; both numbers are named.
pub fn settle(
    options: &Options,
    request: &Request,
    site: &Site<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<Chosen, Refusal> {
    let given = options.nodes();
    let option = given.map_or(Place::Nowhere, |given| given.place);
    let value = given.and_then(|given| given.value.as_deref());
    let parsed = match (given, value) {
        (Some(given), Some(value)) => {
            let parse = if given.key == "hosts" { parse_hosts } else { parse_nodes };
            let refuse = |line| Refusal::usage(option, format!("{}={value}: {line}", given.key));
            Some(parse(value).map_err(refuse)?)
        }
        _ => None,
    };
    let wanted = Wanted {
        shape: parsed.as_ref().map(|nodes| nodes.shape),
        kind: parsed.and_then(|nodes| nodes.kind),
        nodes: request.nodes,
        procs: request.procs,
        hetero: options.hetero().is_some(),
    };
    let named = site.at_hand(options, say)?;
    let alone = named.is_none();
    let hosts = complete(named, &wanted, site);
    let placement = place(&hosts, &wanted).map_err(|line| {
        let lead = given.zip(value).map(|(given, value)| format!("{}={value}: ", given.key));
        let more = matches!(wanted.shape, Some(Shape::Hosts(..) | Shape::WholeHosts(_)));
        let hint = "; group=NAME takes those of scorehosts.db, group=local:N virtual ones";
        let hint = if alone && more && line.contains("needed") { hint } else { "" };
        Refusal::usage(option, format!("{}{line}{hint}", lead.unwrap_or_default()))
    })?;
    if alone {
        let networks = site.networks_here(options)?;
        let here = HostSpec { networks, ..HostSpec::this(placement.nodes()) };
        return Ok(Chosen { hosts: vec![here] });
    }
    let links = networks::links(options);
    let spec = |(index, procs): (usize, u32)| spec(&hosts[index], (procs, links), site);
    Ok(Chosen { hosts: placement.hosts.into_iter().map(spec).collect() })
}

/// The hosts at hand, with what is known of this machine among them.
fn complete(named: Option<Vec<Host>>, wanted: &Wanted, site: &Site<'_>) -> Vec<Host> {
    let Some(mut hosts) = named else {
        // The processors of one host matter only when nobody says how many nodes there are.
        let counted = wanted.shape.is_none() && wanted.procs.is_none()
            || matches!(wanted.shape, Some(Shape::WholeHosts(_)));
        let processors = counted.then(|| (site.processors)());
        return vec![Host { processors, bintype: Some(bintype()), ..Host::default() }];
    };
    for host in hosts.iter_mut().filter(|host| site.is_this(host)) {
        host.processors.get_or_insert_with(|| (site.processors)());
        host.bintype.get_or_insert_with(bintype);
    }
    hosts
}

/// A host as a job has it; `links`: of each virtual one.
pub fn spec(host: &Host, (procs, links): (u32, u32), site: &Site<'_>) -> HostSpec {
    let kind = match host.is_virtual {
        true => HostKind::Virtual,
        false if site.is_this(host) => HostKind::This,
        false => HostKind::Other,
    };
    let address = if kind == HostKind::Other { host.dial().to_owned() } else { String::new() };
    let processors = host.processors.unwrap_or(0);
    let networks = networks::of_host(host, links);
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

    fn site() -> Site<'static> {
        let variable: &dyn Fn(&str) -> Option<OsString> =
            &|name| (name == "SCBDSERV").then(|| "/etc/db".into());
        Site {
            processors: &|| 8,
            name: &|| "here.org".into(),
            variable,
            read: &read,
            session: None,
        }
    }

    fn chosen(line: &str, request: Request) -> Result<(Chosen, Vec<String>), Refusal> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (options, _) = Options::parse(&words, OsStr::new(""))?;
        let mut said = Vec::new();
        let chosen = settle(&options, &request, &site(), &mut |line| said.push(line.to_owned()))?;
        Ok((chosen, said))
    }

    fn with(option: &str, request: Request) -> Result<u32, String> {
        chosen(option, request).map(|(chosen, _)| chosen.nodes()).map_err(|refusal| refusal.line)
    }

    fn layout(option: &str) -> String {
        let (chosen, _) = chosen(option, Request::default()).unwrap();
        let hosts = chosen.hosts.iter().map(|host| format!("{}:{}", host.name, host.procs));
        hosts.collect::<Vec<_>>().join(" ")
    }

    fn asking(nodes: (u32, u32), procs: Option<u32>) -> Request {
        Request { nodes, procs, ..Request::default() }
    }

    #[test]
    fn hosts_and_protocol_know_the_same_limit() {
        assert_eq!(score_hosts::MAX_NODES, MAX_NODES);
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
        assert_eq!(with("-nodes=6/6", any), Ok(6));
        assert_eq!(with("-hosts=1", any), Ok(8));
        assert_eq!(with("-nodes=100", any), Ok(100));
        assert_eq!(with("-nodes=2,nodes=3", any), Ok(2));
        assert_eq!(with("-hosts=1x2,nodes=3", any), Ok(2));
        assert_eq!(with("-nodes=4", asking((1, 9), Some(4))), Ok(4));
    }

    #[test]
    fn numbers_that_are_not_allowed_are_named_with_their_limit() {
        for (option, request, parts) in [
            ("-nodes=5", asking((1, 4), None), ["5 nodes", "1 to 4"]),
            ("-nodes=1", asking((2, 4), None), ["1 nodes", "2 to 4"]),
            ("-nodes=2x4", asking((1, 99), None), ["2 hosts are needed, 1 is", "group=local:N"]),
            ("-nodes=5", asking((1, 99), Some(2)), ["5 nodes", "2 of SCORE_RSRC_NUM_PROCS(2)"]),
            ("-nodes=8", asking((1, 99), Some(2)), ["4 hosts are needed", "1 is at hand"]),
            ("-nodes=1x3", asking((1, 99), Some(2)), ["3 per host", "NUM_PROCS(2)"]),
            ("", asking((1, 2), Some(3)), ["3 nodes", "1 to 2"]),
            ("-nodes=1.vax", asking((1, 9), None), ["bintype 'vax'", std::env::consts::ARCH]),
        ] {
            let error = with(option, request).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{option}: {error}");
        }
    }

    #[test]
    fn a_group_gives_hosts() {
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
    fn hosts_say_what_they_are_and_where() {
        let request = Request::default();
        let (chosen, said) = chosen("-group=home+c3+c4,nodes=3x1", request).unwrap();
        let of = |index: usize| (chosen.hosts[index].kind, chosen.hosts[index].address.as_str());
        assert_eq!(of(0), (HostKind::This, ""));
        assert_eq!(of(1), (HostKind::Other, "10.0.0.3"));
        assert_eq!((of(2), chosen.hosts[2].processors), ((HostKind::Other, "s.org"), 2));
        assert_eq!(said, ["c4.org is out of order: s.org stands in for it"]);
        let (chosen, _) = self::chosen("-group=local:2,nodes=3", request).unwrap();
        assert!(chosen.hosts.iter().all(|host| host.kind == HostKind::Virtual));
        assert_eq!((chosen.nodes(), chosen.layout().as_str()), (3, "1x3"));
        let (chosen, _) = self::chosen("-group=local:2,nodes=9", request).unwrap();
        assert_eq!(chosen.layout(), "5+4");
    }

    #[test]
    fn inside_a_batch_job_its_hosts_are_at_hand() {
        let slurm = |name: &str| match name {
            "SLURM_JOB_ID" => Some(OsString::from("7")),
            "SLURM_JOB_NODELIST" => Some("here,n[1-2]".into()),
            "SLURM_JOB_CPUS_PER_NODE" => Some("2,4(x2)".into()),
            _ => None,
        };
        let site = Site { variable: &slurm, ..site() };
        let settled = |line: &str| {
            let (options, _) = Options::parse(&[line.into()], OsStr::new("")).unwrap();
            settle(&options, &Request::default(), &site, &mut |_| ())
        };
        let chosen = settled("-stat").unwrap();
        assert_eq!((chosen.layout().as_str(), chosen.hosts[2].name.as_str()), ("2+4+4", "n2"));
        let kinds: Vec<HostKind> = chosen.hosts.iter().map(|host| host.kind).collect();
        assert_eq!(kinds, [HostKind::This, HostKind::Other, HostKind::Other]);
        assert_eq!(settled("-nodes=4").unwrap().hosts[0].name, "n1");
        let refusal = settled("-nodes=11").unwrap_err();
        assert!(refusal.line.contains("3 hosts with 10 processors at hand"), "{}", refusal.line);
        assert!(settled("-group=local:2").unwrap().hosts[0].kind == HostKind::Virtual);
        let odd = |name: &str| slurm(name).map(|_| OsString::from("n[1-"));
        let site = Site { variable: &odd, ..self::site() };
        let refusal = settle(&Options::default(), &Request::default(), &site, &mut |_| ());
        assert!(refusal.unwrap_err().line.starts_with("SLURM_JOB_NODELIST: n[1-: "));
    }

    #[test]
    fn an_unknown_host_or_group_is_shown_where_it_stands() {
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
            let refusal = chosen(line, Request::default()).unwrap_err();
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let context = refusal.context(&words, OsStr::new("")).unwrap();
            assert_eq!(
                (refusal.code, format!("{}\n{context}", refusal.line)),
                (2, expected.into())
            );
        }
        let error = with("-group=pcc,nodes=5x1", Request::default()).unwrap();
        assert_eq!(error, 5, "four hosts and a spare");
        let error = with("-group=pcc,nodes=6x1", Request::default()).unwrap_err();
        assert_eq!(error, "nodes=6x1: 6 hosts are needed, 5 are at hand");
    }
}
