//! What the processes of a namespace may ask about it: its size, its hosts, and where each rank is.
//! The keys are those of the PMIx standard, version 4, chapter 6.

use score_proto::pmix::{PmixNamespace, PmixSetup};

use crate::info_list::{Facts, Value};

/// The facts of the server itself.
pub fn of_server(setup: &PmixSetup) -> Facts {
    let directory = String::from_utf8_lossy(&setup.directory.0).into_owned();
    vec![
        ("pmix.srvr.tmpdir", Value::Text(directory.clone())),
        ("pmix.sys.tmpdir", Value::Text(directory)),
        ("pmix.hname", Value::Text(self_name(setup))),
        ("pmix.srv.nspace", Value::Text("scored".to_owned())),
        ("pmix.srv.rank", Value::Rank(setup.self_host)),
        // No tools: only the processes of the job connect.
        ("pmix.srvr.tool", Value::Bool(false)),
    ]
}

fn self_name(setup: &PmixSetup) -> String {
    setup.hosts.get(setup.self_host as usize).map(|host| host.name.clone()).unwrap_or_default()
}

/// The facts of a namespace.
pub fn of_namespace(setup: &PmixSetup, namespace: &PmixNamespace) -> Facts {
    let directory = String::from_utf8_lossy(&setup.directory.0).into_owned();
    let rank_count = setup.rank_count();
    let local_ranks = setup.local_ranks();
    let joined = |parts: Vec<String>, separator: &str| parts.join(separator);
    let ranks_of = |host: u32| {
        let first = setup.first_rank(host);
        joined((first..setup.first_rank(host + 1)).map(|rank| rank.to_string()).collect(), ",")
    };
    let host_numbers = || 0..setup.hosts.len() as u32;
    let host_names = setup.hosts.iter().map(|host| host.name.clone()).collect();
    let mut facts: Facts = vec![
        ("pmix.jobid", Value::Text(namespace.name.clone())),
        ("pmix.univ.size", Value::U32(rank_count)),
        ("pmix.job.size", Value::U32(rank_count)),
        ("pmix.max.size", Value::U32(rank_count)),
        ("pmix.job.napps", Value::U32(1)),
        ("pmix.num.nodes", Value::U32(setup.hosts.len() as u32)),
        ("pmix.local.size", Value::U32(local_ranks.len() as u32)),
        ("pmix.node.size", Value::U32(local_ranks.len() as u32)),
        ("pmix.nodeid", Value::U32(setup.self_host)),
        ("pmix.lpeers", Value::Text(ranks_of(setup.self_host))),
        ("pmix.lldr", Value::Rank(local_ranks.start)),
        ("pmix.tmpdir", Value::Text(directory.clone())),
        ("pmix.nsdir", Value::Text(directory.clone())),
        // scored removes the directory.
        ("pmix.tdir.rmclean", Value::Bool(true)),
        ("pmix.nmap", Value::HostNames(joined(host_names, ","))),
        ("pmix.pmap", Value::RanksOfHosts(joined(host_numbers().map(ranks_of).collect(), ";"))),
    ];
    for host in host_numbers() {
        let ranks = setup.first_rank(host)..setup.first_rank(host + 1);
        let node = vec![
            ("pmix.hname", Value::Text(setup.hosts[host as usize].name.clone())),
            ("pmix.nodeid", Value::U32(host)),
            ("pmix.node.size", Value::U32(ranks.len() as u32)),
            ("pmix.local.size", Value::U32(ranks.len() as u32)),
            ("pmix.lldr", Value::Rank(ranks.start)),
            ("pmix.lpeers", Value::Text(ranks_of(host))),
        ];
        facts.push(("pmix.node.arr", Value::Array(node)));
    }
    let application = vec![
        ("pmix.appnum", Value::U32(0)),
        ("pmix.app.size", Value::U32(rank_count)),
        ("pmix.aldr", Value::Rank(0)),
    ];
    facts.push(("pmix.app.arr", Value::Array(application)));
    for host in host_numbers() {
        let first = setup.first_rank(host);
        for rank in first..setup.first_rank(host + 1) {
            // The standard has 16 bits for it, the same ones for all programs of a host.
            let local_rank = u16::try_from(rank - first).unwrap_or(u16::MAX);
            let process = vec![
                ("pmix.rank", Value::Rank(rank)),
                ("pmix.appnum", Value::U32(0)),
                ("pmix.grank", Value::Rank(rank)),
                ("pmix.apprank", Value::Rank(rank)),
                ("pmix.lrank", Value::U16(local_rank)),
                ("pmix.nrank", Value::U16(local_rank)),
                ("pmix.nodeid", Value::U32(host)),
                ("pmix.hname", Value::Text(setup.hosts[host as usize].name.clone())),
                ("pmix.pdir", Value::Text(directory.clone())),
            ];
            facts.push(("pmix.pdata", Value::Array(process)));
        }
    }
    facts
}
