//! The networks of a job's messages: each wire, trunks of several links, several network sets, and
//! wrong names. On virtual hosts a job owns its links, so raw Ethernet is allowed. On other hosts
//! it is allowed only if scorehosts.db trusts the network. If not, scrun prints a line.

use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use score_tests::netns::{self, NetNs};
use score_tests::{Outcome, Running, TestEnv, binaries, skip, test_env};

/// Whether this user may send on raw wires, which needs root. Other users get UDP, and scrun prints
/// a line.
fn can_send_raw(test: &str) -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skip(test, "only root can use raw Ethernet");
    }
    is_root
}

/// Sends messages of random sizes between all nodes with these options.
fn run_traffic(env: &TestEnv, options: &str, nodes: usize, messages: &str) -> Option<Outcome> {
    let program = env.test_program("traffic")?;
    let args = [&format!("-{options},stat"), program.to_str().unwrap(), messages, "4711"];
    let outcome = env.scrun(&args).run().expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(nodes), "{outcome}");
    Some(outcome)
}

fn count_lines(outcome: &Outcome, text: &str) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn udp_is_the_default_of_virtual_hosts_and_the_statistics_name_it() {
    let env = TestEnv::new();
    let Some(outcome) = run_traffic(&env, "group=local:3,nodes=3x2", 6, "200") else { return };
    let _ = outcome
        .assert_stderr(&["network set 0 (agent-udp): UDP over ", "shared memory within a host"]);
}

// Promise (messages): Jobs use the requested networks: each wire, trunks, several network sets,
// `trusted`; wrong names are refused; one line reports a network that differs from the request.
#[test]
fn raw_ethernet_carries_a_job_on_virtual_hosts() {
    if !can_send_raw("raw_ethernet_on_virtual_hosts") {
        return;
    }
    let env = TestEnv::new();
    let options = "network=ethernet,group=local:2,nodes=2x1";
    let Some(outcome) = run_traffic(&env, options, 2, "2000") else { return };
    // The job uses AF_XDP if this machine allows it. Otherwise it uses AF_PACKET, and scrun prints
    // the reason.
    let xdp_count = count_lines(&outcome, "network set 0 (ethernet): AF_XDP over eth0");
    let packet_count = count_lines(&outcome, "network set 0 (ethernet): AF_PACKET over eth0");
    let notice_count = count_lines(&outcome, "AF_PACKET is used instead");
    assert_eq!((xdp_count + packet_count, packet_count), (1, notice_count), "{outcome}");
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn several_processes_of_a_host_share_a_link_by_af_packet_and_one_line_is_printed() {
    if !can_send_raw("af_packet_on_virtual_hosts") {
        return;
    }
    let env = TestEnv::new();
    let options = "network=ethernet,group=local:3,nodes=3x2";
    let Some(outcome) = run_traffic(&env, options, 6, "300") else { return };
    assert_eq!(count_lines(&outcome, "AF_PACKET is used instead"), 1, "{outcome}");
    let _ = outcome.assert_stderr(&["network set 0 (ethernet): AF_PACKET over eth0"]);
}

#[test]
fn frames_too_long_for_af_xdp_are_sent_by_af_packet() {
    if !can_send_raw("jumbo_frames_on_virtual_hosts") {
        return;
    }
    let env = TestEnv::new();
    let options = "network=ethernet,group=local:2,nodes=2x1,mtu=9000";
    let Some(outcome) = run_traffic(&env, options, 2, "1000") else { return };
    let _ = outcome.assert_stderr(&["no room for an MTU of 9000", "AF_PACKET over eth0"]);
}

/// Waits until the ping-pong has made progress.
fn assert_progress(job: &Running) {
    let rounds = || job.stdout().matches("round ").count();
    let (started_at, rounds_before) = (Instant::now(), rounds());
    while rounds() < rounds_before + 5 {
        assert!(
            started_at.elapsed().as_secs() < 20,
            "no progress: {}{}",
            job.stdout(),
            job.stderr()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn a_trunk_of_two_links_continues_after_the_loss_of_one() {
    if !netns::can_enter("trunk_with_a_cut_link") {
        return;
    }
    for network in ["agent-udp", "ethernet"] {
        let env = TestEnv::new();
        let Some(program) = env.test_program("pingpong") else { return };
        let file = env.dir().join("over");
        let options = format!("-group=local:3,nodes=3x1,links=2,stat,network={network}");
        let args = [&options, program.to_str().unwrap(), file.to_str().unwrap()];
        let job = env.scrun(&args).start();
        assert_progress(&job);
        let switch = NetNs::for_switch(&env);
        switch.ip("link set p1.1 down");
        assert_progress(&job);
        switch.ip("link set p1.1 up");
        assert_progress(&job);
        // The daemons' links also use the first network, but no host may be given up.
        switch.ip("link set p1.0 down");
        assert_progress(&job);
        switch.ip("link set p1.0 up");
        assert_progress(&job);
        env.write_file("over", "");
        let outcome = job.wait().expect_code(0);
        assert!(outcome.text().contains("played "), "{outcome}");
        let outcome = outcome.assert_stderr(&["over eth0", "over eth1", "link 0 ", "link 1 "]);
        for link in ["eth0", "eth1"] {
            let warning = format!("host local1, node 1: network link {link} failed");
            assert!(count_lines(&outcome, &warning) <= 1, "{outcome}");
        }
    }
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn a_program_with_two_network_sets_reaches_all_nodes_by_each() {
    for (options, nodes, expected) in [
        ("nodes=3", 3, &["network set 1 (shmem): shared memory"][..]),
        ("group=local:3,nodes=3x2", 6, &["network set 1 (agent-udp): UDP over "]),
        (
            "group=local:3,nodes=3x1,links=2,network=net1+net0",
            3,
            &["network set 0 (net1): UDP over eth1", "network set 1 (net0): UDP over eth0"],
        ),
    ] {
        let env = TestEnv::new();
        let Some(program) = env.test_program("two_networks") else { return };
        let option = format!("-stat,{options}");
        let outcome = env.scrun(&[&option, program.to_str().unwrap()]).run().expect_code(0);
        let expected_lines: Vec<String> =
            (0..nodes).map(|node| format!("node {node} of {nodes}: 2 sets")).collect();
        assert_eq!(outcome.sorted_lines(), expected_lines, "{outcome}");
        let _ = outcome.assert_stderr(expected);
    }
}

#[test]
fn more_sets_than_the_program_requests_are_allowed_and_one_node_has_none() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("two_networks") else { return };
    let program = program.to_str().unwrap();
    let option = "-group=local:2,nodes=2x1,network=agent-udp+agent-udp+agent-udp";
    let outcome = env.scrun(&[option, program]).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["node 0 of 2: 3 sets", "node 1 of 2: 3 sets"]);
    let outcome = env.scrun(&["-nodes=1", program]).run().expect_code(0);
    assert_eq!(outcome.text(), "node 0 of 1: 0 sets\n");
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn a_wrong_network_is_named_with_the_existing_networks_and_no_job_starts() {
    let env = TestEnv::new();
    env.write_file(
        "db",
        "slow type=ethernet netdev=eth0\nfast type=ethernet links=eth1,eth2\nold type=myrinet2k\n\
         a cores=1 network=slow,fast,old group=g\nb cores=1 network=slow group=g\n\
         fast/a links=eth1\n",
    );
    let Some(program) = env.test_program("two_networks") else { return };
    let program = program.to_str().unwrap();
    for (options, expected) in [
        (
            "network=fats",
            &["\"fats\"", "unknown", "agent-udp, auto, ethernet, fast, old, slow"][..],
        ),
        (
            "network=slow+fast",
            &["host b", "not on", "\"fast\"", "agent-udp, auto, ethernet, slow, verbs"],
        ),
        ("network=old+old", &["old", "myrinet2k"]),
        ("network=slow", &["2 network sets", "NUM_NETS(2)", "1 network named"]),
        ("nodes=2x1", &["2 network sets", "NUM_NETS(2)", "share 1 (slow)"]),
        ("network=shmem+shmem", &["shmem", "one host"]),
    ] {
        let option = format!("-file=db,{options}");
        let outcome = env.scrun(&[&option, program]).run().expect_code(2);
        assert!(outcome.stdout.is_empty(), "{outcome}");
        let _ = outcome.assert_stderr(expected);
    }
    let outcome = env.scrun(&["-nodes=2,network=fast+fast", program]).run().expect_code(2);
    let _ = outcome
        .assert_stderr(&["unknown network \"fast\"", "agent-udp, auto, ethernet, shmem, verbs"]);
    let outcome = env.scrun(&["-group=local:2,network=net0", program]).run().expect_code(2);
    let _ = outcome.assert_stderr(&["unknown network \"net0\""]);
}

/// Runs a job between two hosts that are not virtual hosts for SCore. They are on the networks of a
/// LAN, and a remote shell that enters the other host starts the daemons.
fn run_between_machines(env: &TestEnv, network: &str) -> Option<Outcome> {
    let program = env.test_program("traffic")?;
    let program = program.to_str()?;
    env.write_file(
        "db",
        format!(
            "fast type=ethernet links=eth0,eth1 {network}\n\
             one address=10.77.0.1 cores=1 network=fast\n\
             two address=10.77.0.2 cores=1 network=fast\n"
        ),
    );
    let dir = env.dir().display().to_string();
    env.write_file(
        "rsh",
        format!(
            "#!/bin/sh\nwhile [ \"$1\" != 10.77.0.2 ]; do shift; done\nshift\n\
             exec nsenter -t $(cat {dir}/two) -n -u -- sh -c \"$*\"\n"
        ),
    );
    let script = format!(
        "if [ $LAN_HOST = 1 ]; then echo $$ > {dir}/two.new; mv {dir}/two.new {dir}/two; \
         while [ ! -e {dir}/over ]; do sleep 0.1; done; exit; fi\n\
         while [ ! -e {dir}/two ]; do sleep 0.05; done\n\
         hostname one; scrun -file={dir}/db,nodes=2x1,stat {program} 500 1; code=$?\n\
         touch {dir}/over; exit $code"
    );
    let rsh = format!("sh {dir}/rsh");
    let job = env.command(binaries::program("score-lan")).env("SCORE_RSH", &rsh);
    let outcome = job.args(&["-hosts", "2", "-links", "2", "sh", "-c", &script]).run();
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    Some(outcome)
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn between_machines_raw_ethernet_is_for_networks_that_the_database_trusts() {
    if !can_send_raw("raw_ethernet_between_machines") || !test_env::is_installed("nsenter") {
        return;
    }
    let env = TestEnv::new();
    let Some(outcome) = run_between_machines(&env, "") else { return };
    let line = "network fast: UDP is used instead of raw Ethernet: host one (and 1 more): \
                scorehosts.db does not mark it trusted";
    assert_eq!(count_lines(&outcome, line), 1, "{outcome}");
    let _ = outcome.assert_stderr(&["network set 0 (fast): UDP over eth0, UDP over eth1"]);
    let env = TestEnv::new();
    let Some(outcome) = run_between_machines(&env, "trusted=yes") else { return };
    assert_eq!(count_lines(&outcome, "UDP is used instead"), 0, "{outcome}");
    let raw_counts =
        ["AF_XDP over eth0", "AF_PACKET over eth0"].map(|text| count_lines(&outcome, text));
    assert_eq!(raw_counts.iter().sum::<usize>(), 1, "{outcome}");
}
