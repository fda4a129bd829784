//! Users' jobs use raw Ethernet. On networks that scorehosts.db trusts, root's scored opens the
//! sockets and passes them to the job, which has only its user's rights. On other networks the job
//! uses UDP, and scrun prints a line. Both hosts are network namespaces on this machine, joined by
//! two cables.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use score_tests::netns;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, Running, TestEnv};

const DATABASE: &str = "\
    fast type=ethernet links=eth0 trusted=yes\n\
    other type=ethernet links=eth1 trusted=yes\n\
    wary type=ethernet links=eth1\n\
    a address=10.77.0.1 cores=2 group=all network=fast,other,wary\n\
    b address=10.77.0.2 cores=2 group=all network=fast,other,wary\n";

/// Copies the helper program so that every user may run it.
fn copy_program(env: &TestEnv, name: &str) -> Option<PathBuf> {
    let (built, path) = (env.test_program(name)?, env.dir().join(name));
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

fn start(cluster: &Cluster<'_>, uid: u32, options: &str, program: &Path) -> Running {
    let options = format!("-scored=all,stat,{options}");
    let args = [options.as_str(), program.to_str().unwrap(), "500", "4711"];
    cluster.command(uid, "scrun", "a").args(&args).start()
}

fn count_lines(outcome: &Outcome, text: &str) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(text)).count()
}

/// Checks that a network set uses raw Ethernet: AF_XDP if this machine allows it, otherwise
/// AF_PACKET.
fn assert_raw(outcome: &Outcome, set: &str, link: &str) {
    let count_over =
        |method: &str| count_lines(outcome, &format!("network set {set}: {method} over {link}"));
    assert_eq!(count_over("AF_XDP") + count_over("AF_PACKET"), 1, "{outcome}");
    assert_eq!(count_lines(outcome, "UDP is used instead"), 0, "{outcome}");
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn a_job_uses_raw_ethernet_on_a_trusted_network_and_otherwise_udp() {
    if !netns::can_enter("raw_ethernet_of_a_user") {
        return;
    }
    let env = TestEnv::new();
    let programs = (copy_program(&env, "traffic"), copy_program(&env, "two_networks"));
    let (Some(traffic), Some(two_networks)) = programs else { return };
    let (shells, namespaces) = netns::start_lan(&env, 2, 2);
    let netns_by_host = ["a", "b"].map(str::to_owned).into_iter().zip(namespaces).collect();
    let cluster = Cluster::start_in_netns(&env, &["a", "b"], DATABASE, &[], netns_by_host);
    let Some(cluster) = cluster else { return };

    // Two users run the program at once. If a packet of one job reached the other job, the message
    // numbers would be wrong.
    let jobs = [ALICE, BOB].map(|uid| start(&cluster, uid, "nodes=2x1,network=fast", &traffic));
    for outcome in jobs.map(|job| job.wait().expect_code(0)) {
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        assert_raw(&outcome, "0 (fast)", "eth0");
    }
    // Each host runs two processes.
    let outcome = start(&cluster, ALICE, "nodes=2x2,network=fast", &traffic).wait().expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(4), "{outcome}");
    let _ = outcome
        .assert_stderr(&["AF_XDP is for one process", "network set 0 (fast): AF_PACKET over eth0"]);
    // The job uses two network sets, each through its own link.
    let outcome = start(&cluster, ALICE, "nodes=2x1,network=fast+other", &two_networks).wait();
    assert_eq!(outcome.sorted_lines(), ["node 0 of 2: 2 sets", "node 1 of 2: 2 sets"], "{outcome}");
    assert_raw(&outcome, "0 (fast)", "eth0");
    assert_raw(&outcome, "1 (other)", "eth1");
    let xdp_counts =
        ["AF_XDP over eth0", "AF_XDP over eth1"].map(|text| count_lines(&outcome, text));
    assert_eq!(xdp_counts[0], xdp_counts[1], "both sets have AF_XDP, or none: {outcome}");
    // This network is not trusted.
    let outcome = start(&cluster, ALICE, "nodes=2x1,network=wary", &traffic).wait().expect_code(0);
    let line = "network wary: UDP is used instead of raw Ethernet: host b (and 1 more): \
                scorehosts.db does not mark it trusted";
    assert_eq!(count_lines(&outcome, line), 1, "{outcome}");
    let _ = outcome.assert_stderr(&["network set 0 (wary): UDP over eth1"]);

    let deadline = Instant::now() + Duration::from_secs(20);
    while env.processes().iter().any(|process| process.command.contains("-opener")) {
        assert!(Instant::now() < deadline, "{:#?}", env.processes());
        sleep(Duration::from_millis(20));
    }
    drop(cluster);
    env.write_file("over", "");
    assert_eq!(shells.wait().code, 0);
}
