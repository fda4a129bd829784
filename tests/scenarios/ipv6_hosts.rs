//! Hosts without IPv4 addresses. Daemons connect to each other by IPv6, in multi-user and in
//! single-user mode, and the nodes of a job exchange messages by UDP over IPv6. The hosts are
//! network namespaces of this machine.

use std::fs;

use score_tests::netns::{self, NetNs};
use score_tests::service::{ALICE, Cluster};
use score_tests::testbed::Testbed;
use score_tests::{Outcome, TestEnv};

/// Checks that no message was lost, and that all nodes used UDP.
fn assert_messages_by_udp(outcome: &Outcome, nodes: usize) {
    assert_eq!(outcome.text(), "all in order\n".repeat(nodes), "{outcome}");
    assert_eq!(outcome.stderr.matches("UDP over").count(), 1, "{outcome}");
}

/// Runs a job on all hosts of a cluster. The address of host N is `prefix` and N. In the database
/// `suffix` follows it.
fn run_job_in_cluster(test: &str, host_count: usize, prefix: &str, suffix: &str) {
    if !netns::can_enter(test) {
        return;
    }
    let env = TestEnv::new();
    let Some(built) = env.test_program("traffic") else { return };
    let program = env.dir().join("traffic");
    fs::copy(built, &program).unwrap();
    let (shells, namespaces) = netns::start_lan(&env, host_count, 1);
    let address = |number: usize| format!("{prefix}{}", number + 1);
    let is_set_up = |(number, netns): (usize, &NetNs)| netns.use_ipv6_only(test, &address(number));
    if namespaces.iter().enumerate().all(is_set_up) {
        let names: Vec<String> = (0..host_count).map(|number| format!("n{number}")).collect();
        let record = |(number, name): (usize, &String)| {
            format!("{name} address={}{suffix} cores=1 group=all\n", address(number))
        };
        let database: String = names.iter().enumerate().map(record).collect();
        let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
        let netns_by_host = names.iter().cloned().zip(namespaces).collect();
        let cluster = Cluster::start_in_netns(&env, &hosts, &database, &[], netns_by_host);
        let cluster = cluster.expect("root may start a cluster");
        let options = format!("-scored=all,stat,nodes={host_count}x1");
        let args = [options.as_str(), program.to_str().unwrap(), "100", "4711"];
        let job = cluster.command(ALICE, "scrun", "n0").args(&args).start();
        assert_messages_by_udp(&job.wait().expect_code(0), host_count);
    }
    env.write_file("over", "");
    assert_eq!(shells.wait().code, 0);
}

// Promise (jobs on many hosts): Daemons and PM work between hosts that have IPv6 addresses only, in
// a cluster also link-local ones; a dead connection is closed.
#[test]
fn a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job() {
    const NAME: &str = "a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job";
    run_job_in_cluster(NAME, 2, "fd00:77::", "");
}

// Promise of `a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job`.
#[test]
fn a_cluster_whose_hosts_have_link_local_addresses_only_runs_a_job() {
    const NAME: &str = "a_cluster_whose_hosts_have_link_local_addresses_only_runs_a_job";
    // The server has at most 8 children. So one daemon has another parent, whose address it gets
    // from the server.
    run_job_in_cluster(NAME, 10, "fe80::77:", "%eth0");
}

// Promise of `a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job`.
#[test]
fn ssh_starts_daemons_that_connect_back_by_ipv6() {
    const NAME: &str = "ssh_starts_daemons_that_connect_back_by_ipv6";
    if !netns::can_enter(NAME) {
        return;
    }
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    let Some(program) = env.test_program("traffic") else { return };
    env.write_file("db", "a\nb address=fd00:77::2\nc address=fd00:77::3\n");
    let line = format!(
        "add() {{ echo \"echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6 && \
                         ip addr add fd00:77::$1/64 dev eth0 nodad\"; }}\n\
         flush='ip -4 addr flush dev eth0'\n\
         sh -c \"$(add 1)\" || exit 99\n\
         for host in 2 3; do $SCORE_RSH 10.77.0.$host \"$(add $host)\" || exit 99; done\n\
         for host in 2 3; do $SCORE_RSH fd00:77::$host \"$flush\" || exit 98; done\n\
         $flush\n\
         exec env SCBDSERV=$PWD/db scrun -group=b+c,stat,nodes=2x1 {} 500 4711",
        program.display()
    );
    let outcome = testbed.run(&env, 3, &line).run().expect_code(0);
    assert_messages_by_udp(&outcome, 2);
}
