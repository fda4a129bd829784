//! The information that the processes of a namespace can query: its size, its hosts, and the
//! location of each rank. The keys are those of the PMIx standard, version 4, chapter 6.

use score_proto::ids::JobHostId;
use score_proto::pmix::{PmixNamespace, PmixSetup};

use crate::info_list::{Facts, Value};
use crate::keys;

/// The facts of the server itself.
pub fn of_server(setup: &PmixSetup) -> Facts {
    let directory = String::from_utf8_lossy(&setup.directory.0).into_owned();
    vec![
        (keys::SERVER_TMPDIR, Value::Text(directory.clone())),
        (keys::SYSTEM_TMPDIR, Value::Text(directory)),
        (keys::HOSTNAME, Value::Text(self_name(setup))),
        (keys::SERVER_NSPACE, Value::Text("scored".to_owned())),
        (keys::SERVER_RANK, Value::Rank(setup.self_host.0)),
        // Tools cannot connect; only the processes of the job can.
        (keys::SERVER_TOOL_SUPPORT, Value::Bool(false)),
        // Without this setting, each process would determine the processors of the host itself.
        (keys::SERVER_SHARE_TOPOLOGY, Value::Bool(true)),
    ]
}

fn self_name(setup: &PmixSetup) -> String {
    setup.hosts.get(setup.self_host.index()).map(|host| host.name.clone()).unwrap_or_default()
}

/// The facts of a namespace.
pub fn of_namespace(setup: &PmixSetup, namespace: &PmixNamespace) -> Facts {
    let directory = String::from_utf8_lossy(&setup.directory.0).into_owned();
    let rank_count = setup.rank_count();
    let local_ranks = setup.local_ranks();
    let joined = |parts: Vec<String>, separator: &str| parts.join(separator);
    let ranks_of =
        |host: JobHostId| joined(setup.ranks_of(host).map(|rank| rank.to_string()).collect(), ",");
    let hosts = || (0..setup.hosts.len() as u32).map(JobHostId);
    let host_names = setup.hosts.iter().map(|host| host.name.clone()).collect();
    let mut facts: Facts = vec![
        (keys::JOBID, Value::Text(namespace.name.clone())),
        (keys::UNIV_SIZE, Value::U32(rank_count)),
        (keys::JOB_SIZE, Value::U32(rank_count)),
        (keys::MAX_PROCS, Value::U32(rank_count)),
        (keys::JOB_NUM_APPS, Value::U32(1)),
        (keys::NUM_NODES, Value::U32(setup.hosts.len() as u32)),
        (keys::LOCAL_SIZE, Value::U32(local_ranks.len() as u32)),
        (keys::NODE_SIZE, Value::U32(local_ranks.len() as u32)),
        (keys::NODEID, Value::U32(setup.self_host.0)),
        (keys::LOCAL_PEERS, Value::Text(ranks_of(setup.self_host))),
        (keys::LOCALLDR, Value::Rank(local_ranks.start)),
        (keys::TMPDIR, Value::Text(directory.clone())),
        (keys::NSDIR, Value::Text(directory.clone())),
        // scored removes the directory.
        (keys::TDIR_RMCLEAN, Value::Bool(true)),
        (keys::NODE_MAP, Value::HostNames(joined(host_names, ","))),
        (keys::PROC_MAP, Value::RanksOfHosts(joined(hosts().map(ranks_of).collect(), ";"))),
    ];
    for host in hosts() {
        let ranks = setup.ranks_of(host);
        let node = vec![
            (keys::HOSTNAME, Value::Text(setup.hosts[host.index()].name.clone())),
            (keys::NODEID, Value::U32(host.0)),
            (keys::NODE_SIZE, Value::U32(ranks.len() as u32)),
            (keys::LOCAL_SIZE, Value::U32(ranks.len() as u32)),
            (keys::LOCALLDR, Value::Rank(ranks.start)),
            (keys::LOCAL_PEERS, Value::Text(ranks_of(host))),
        ];
        facts.push((keys::NODE_INFO_ARRAY, Value::Array(node)));
    }
    let application = vec![
        (keys::APPNUM, Value::U32(0)),
        (keys::APP_SIZE, Value::U32(rank_count)),
        (keys::APPLDR, Value::Rank(0)),
    ];
    facts.push((keys::APP_INFO_ARRAY, Value::Array(application)));
    for host in hosts() {
        let ranks = setup.ranks_of(host);
        for rank in ranks.clone() {
            // The standard has 16 bits for the local rank and for the node rank.
            let local_rank = u16::try_from(rank - ranks.start).unwrap_or(u16::MAX);
            let process = vec![
                (keys::RANK, Value::Rank(rank)),
                (keys::APPNUM, Value::U32(0)),
                (keys::GLOBAL_RANK, Value::Rank(rank)),
                (keys::APP_RANK, Value::Rank(rank)),
                (keys::LOCAL_RANK, Value::U16(local_rank)),
                (keys::NODE_RANK, Value::U16(local_rank)),
                (keys::NODEID, Value::U32(host.0)),
                (keys::HOSTNAME, Value::Text(setup.hosts[host.index()].name.clone())),
                (keys::PROCDIR, Value::Text(directory.clone())),
            ];
            facts.push((keys::PROC_INFO_ARRAY, Value::Array(process)));
        }
    }
    facts
}
