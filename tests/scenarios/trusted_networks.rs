//! Raw Ethernet for the jobs of users: on networks that scorehosts.db trusts root's scored opens
//! sockets and the job gets them, though it has no rights but its user's; on others it goes by UDP,
//! and a line says so. Both hosts are networks of their own on this machine, joined by two cables.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use score_tests::place::{self, Place};
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, Running, Scene, binaries};

const DATABASE: &str = "\
    fast type=ethernet links=eth0 trusted=yes\n\
    other type=ethernet links=eth1 trusted=yes\n\
    wary type=ethernet links=eth1\n\
    a address=10.77.0.1 cores=2 group=all network=fast,other,wary\n\
    b address=10.77.0.2 cores=2 group=all network=fast,other,wary\n";

/// Two hosts' networks, there as long as a shell on each.
fn lan(scene: &Scene) -> (Running, HashMap<String, Place>) {
    let script = "echo $$ > host$LAN_HOST.new; mv host$LAN_HOST.new host$LAN_HOST; \
                  while [ ! -e over ]; do sleep 0.1; done";
    let words = ["-hosts", "2", "-links", "2", "sh", "-c", script];
    let shells = scene.command(binaries::program("score-lan")).args(&words).start();
    let place = |number: usize| {
        let file = scene.dir().join(format!("host{number}"));
        let end = Instant::now() + Duration::from_secs(20);
        while !file.exists() {
            assert!(Instant::now() < end, "{}", shells.stderr());
            sleep(Duration::from_millis(10));
        }
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        Place::of(&scene.wait_for_process("a host's shell", |one| one.pid == pid))
    };
    let places = [("a".to_owned(), place(0)), ("b".to_owned(), place(1))].into();
    (shells, places)
}

/// The helper program where every user may run it.
fn copied(scene: &Scene, name: &str) -> Option<PathBuf> {
    let (built, path) = (scene.program(name)?, scene.dir().join(name));
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

fn start(cluster: &Cluster<'_>, uid: u32, options: &str, program: &Path) -> Running {
    let options = format!("-scored=all,stat,{options}");
    let words = [options.as_str(), program.to_str().unwrap(), "500", "4711"];
    cluster.command(uid, "scrun", "a").args(&words).start()
}

fn count(outcome: &Outcome, words: &str) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(words)).count()
}

/// Whether a set goes by AF_XDP where this machine allows it, else by AF_PACKET with a line.
fn assert_raw(outcome: &Outcome, set: &str, link: &str) {
    let over = |wire: &str| count(outcome, &format!("network set {set}: {wire} over {link}"));
    assert_eq!(over("AF_XDP") + over("AF_PACKET"), 1, "{outcome}");
    assert_eq!(count(outcome, "UDP is used instead"), 0, "{outcome}");
}

#[test]
fn a_users_job_goes_by_raw_ethernet_where_the_network_is_trusted_and_by_udp_elsewhere() {
    if !place::can_enter("raw_ethernet_of_a_user") {
        return;
    }
    let scene = Scene::new();
    let programs = (copied(&scene, "traffic"), copied(&scene, "two_networks"));
    let (Some(traffic), Some(two_networks)) = programs else { return };
    let (shells, places) = lan(&scene);
    let cluster = Cluster::start_on(&scene, &["a", "b"], DATABASE, &[], places);
    let Some(cluster) = cluster else { return };

    // Two users at once; what one sends never comes to the other, or its numbers would be wrong.
    let jobs = [ALICE, BOB].map(|uid| start(&cluster, uid, "nodes=2x1,network=fast", &traffic));
    for outcome in jobs.map(|job| job.wait().expect(0)) {
        assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
        assert_raw(&outcome, "0 (fast)", "eth0");
    }
    // Two processes of a host.
    let outcome = start(&cluster, ALICE, "nodes=2x2,network=fast", &traffic).wait().expect(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(4), "{outcome}");
    let _ =
        outcome.says(&["AF_XDP is for one process", "network set 0 (fast): AF_PACKET over eth0"]);
    // Two sets, each by a link of its own.
    let outcome = start(&cluster, ALICE, "nodes=2x1,network=fast+other", &two_networks).wait();
    assert_eq!(outcome.sorted(), ["node 0 of 2: 2 sets", "node 1 of 2: 2 sets"], "{outcome}");
    assert_raw(&outcome, "0 (fast)", "eth0");
    assert_raw(&outcome, "1 (other)", "eth1");
    let kinds = ["AF_XDP over eth0", "AF_XDP over eth1"].map(|words| count(&outcome, words));
    assert_eq!(kinds[0], kinds[1], "both sets have AF_XDP, or none: {outcome}");
    // One that is not trusted.
    let outcome = start(&cluster, ALICE, "nodes=2x1,network=wary", &traffic).wait().expect(0);
    let line = "network wary: UDP is used instead of raw Ethernet: host b (and 1 more): \
                scorehosts.db does not mark it trusted";
    assert_eq!(count(&outcome, line), 1, "{outcome}");
    let _ = outcome.says(&["network set 0 (wary): UDP over eth1"]);

    let end = Instant::now() + Duration::from_secs(20);
    while scene.processes().iter().any(|one| one.command.contains("-opener")) {
        assert!(Instant::now() < end, "{:#?}", scene.processes());
        sleep(Duration::from_millis(20));
    }
    drop(cluster);
    scene.file("over", "");
    assert_eq!(shells.wait().code, 0);
}
