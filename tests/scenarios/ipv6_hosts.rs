//! Hosts without IPv4 addresses. Daemons connect to each other by IPv6, in multi-user and in
//! single-user mode, and the nodes of a job exchange messages by UDP over IPv6. The hosts are
//! network namespaces of this machine.

use std::fs;

use score_tests::netns;
use score_tests::service::{ALICE, Cluster};
use score_tests::testbed::Testbed;
use score_tests::{Outcome, TestEnv};

/// Checks that no message was lost, and that both nodes used UDP.
fn assert_messages_by_udp(outcome: &Outcome) {
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    assert_eq!(outcome.stderr.matches("UDP over").count(), 1, "{outcome}");
}

/// Runs a job on two hosts of a cluster. The database has the first address of each host.
fn run_job_in_cluster(test: &str, addresses: [&[&str]; 2], database: &str) {
    if !netns::can_enter(test) {
        return;
    }
    let env = TestEnv::new();
    let Some(built) = env.test_program("traffic") else { return };
    let program = env.dir().join("traffic");
    fs::copy(built, &program).unwrap();
    let (shells, namespaces) = netns::start_lan(&env, 2, 1);
    let is_set_up =
        |(namespace, addresses): (&netns::NetNs, &[&str])| namespace.use_ipv6_only(test, addresses);
    if namespaces.iter().zip(addresses).all(is_set_up) {
        let netns_by_host = ["a", "b"].map(str::to_owned).into_iter().zip(namespaces).collect();
        let cluster = Cluster::start_in_netns(&env, &["a", "b"], database, &[], netns_by_host);
        let cluster = cluster.expect("root may start a cluster");
        let args = ["-scored=all,stat,nodes=2x1", program.to_str().unwrap(), "500", "4711"];
        let job = cluster.command(ALICE, "scrun", "a").args(&args).start();
        assert_messages_by_udp(&job.wait().expect_code(0));
    }
    env.write_file("over", "");
    assert_eq!(shells.wait().code, 0);
}

#[test]
fn a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job() {
    const NAME: &str = "a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job";
    let database =
        "a address=fd00:77::1 cores=1 group=all\nb address=fd00:77::2 cores=1 group=all\n";
    run_job_in_cluster(NAME, [&["fd00:77::1"], &["fd00:77::2"]], database);
}

#[test]
fn a_cluster_whose_hosts_have_link_local_addresses_only_runs_a_job() {
    const NAME: &str = "a_cluster_whose_hosts_have_link_local_addresses_only_runs_a_job";
    let database = "a address=fe80::77:1%eth0 cores=1 group=all\n\
                    b address=fe80::77:2%eth0 cores=1 group=all\n";
    run_job_in_cluster(NAME, [&["fe80::77:1"], &["fe80::77:2"]], database);
}

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
    assert_messages_by_udp(&outcome);
}
