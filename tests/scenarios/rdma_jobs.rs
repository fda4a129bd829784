//! Jobs over RDMA hardware: what is scattered arrives bit by bit, jobs that take turns and one that
//! is suspended in the middle of it lose nothing, whoever is killed leaves no queue pair, memory
//! that changes is not reached where it was, deadlocks are found and nobody else is accused; where
//! a host has no adapter, or its user may not open it or pin too little memory, one line says so
//! and messages go by UDP.
//!
//! There is an adapter in the virtual machine of `cargo xtask test`; elsewhere these pass without
//! having looked.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, Scene, scene};
use serde_json::Value;

/// Emulated processors are slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where adapters have their files.
const DEVICES: &str = "/dev/infiniband";
/// Two hosts with a process each.
const PAIR: &str = "-group=local:2,nodes=2x1,network=verbs,message=quiet";

fn has_adapter() -> bool {
    std::env::var_os(scene::VIRTUAL).is_some()
}

/// Queue pairs, registrations and what else the kernel has given out.
fn resources() -> String {
    let told = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    String::from_utf8_lossy(&told.stdout).into_owned()
}

/// Waits until as much is given out as before.
fn nothing_is_left(before: &str) {
    let begin = Instant::now();
    while resources() != before {
        assert!(begin.elapsed() < PATIENCE, "before: {before}now: {}", resources());
        sleep(Duration::from_millis(50));
    }
}

fn run(scene: &Scene, words: &[&str]) -> Outcome {
    scene.scrun(words).watchdog(PATIENCE).run()
}

fn program(scene: &Scene, name: &str) -> String {
    scene.program(name).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn what_is_scattered_comes_back_bit_by_bit_and_one_line_tells_the_adapter() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let before = resources();
    let bytes: Vec<u8> =
        (0..300_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let options = "-group=local:2,nodes=2x2,network=verbs,stat";
    let words = [options, "scatter", "==", "gather", "-node", "3"];
    let outcome = scene.scrun(&words).input(bytes.clone()).watchdog(PATIENCE).run().expect(0);
    assert!(outcome.stdout == bytes, "{} bytes came back", outcome.stdout.len());
    let outcome = outcome
        .says(&["network set 0 (verbs): RDMA by rxe0 port 1, RoCE", "shared memory within a host"]);
    assert!(!outcome.stderr.contains("UDP"), "{outcome}");
    nothing_is_left(&before);
}

#[test]
fn messages_of_all_sizes_come_in_order_also_to_who_sleeps_and_are_counted() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let traffic = program(&scene, "traffic");
    let options = "-group=local:2,nodes=2x2,network=verbs";
    let outcome = run(&scene, &[options, &traffic, "150", "4711", "block"]).expect(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(4), "{outcome}");
    let figures = program(&scene, "figures");
    let outcome = run(&scene, &[PAIR, &figures, "2"]).expect(0);
    let detailed = format!("{PAIR},stat=detail").replace(",message=quiet", "");
    let detailed = run(&scene, &[&detailed, &figures, "2"]).expect(0);
    let total = "100 messages (5050 bytes) sent, 100 (5050 bytes) received";
    assert!(detailed.stderr.contains(total), "{detailed}{outcome}");
}

#[test]
fn two_sets_may_be_of_different_networks() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let program = program(&scene, "two_networks");
    let options = "-group=local:2,nodes=2x1,network=verbs+agent-udp+verbs,stat";
    let outcome = run(&scene, &[options, &program]).expect(0);
    assert_eq!(outcome.sorted(), ["node 0 of 2: 3 sets", "node 1 of 2: 3 sets"]);
    let _ = outcome.says(&[
        "network set 0 (verbs): RDMA",
        "network set 1 (agent-udp): UDP",
        "network set 2 (verbs): RDMA",
    ]);
}

#[test]
fn pmtest_measures_messages_remote_memory_and_the_pin_down_cache() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let measure = |words: &[&str]| {
        let words = [&[PAIR, "pmtest", "-json", "-rounds", "1"], words].concat();
        let outcome = run(&scene, &words).expect(0);
        let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        rows.as_array().unwrap().last().unwrap().clone()
    };
    let is_positive = |row: &Value, name: &str| {
        assert!(row[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {row}");
    };
    is_positive(&measure(&["-latency", "-size", "8"]), "one_way_ns_min");
    let row = measure(&["-rma", "-area", "1", "-size", "65536"]);
    for name in ["write_pmalloc", "read_pmalloc", "write_other", "read_other"] {
        is_positive(&row, &format!("{name}_bytes_per_s"));
    }
    let row = measure(&["-pin", "-size", "65536"]);
    is_positive(&row, "hits_bytes_per_s");
    is_positive(&row, "misses_bytes_per_s");
}

#[test]
fn regions_that_change_under_operations_are_never_reached_where_they_are_not() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let before = resources();
    let regions = program(&scene, "regions");
    for seed in ["1", "2", "3"] {
        let outcome = run(&scene, &[PAIR, &regions, "40", seed, "rdma"]).expect(0);
        assert_eq!(outcome.text().matches("all right").count(), 2, "{outcome}");
    }
    nothing_is_left(&before);
}

/// Hosts that are no virtual ones to a job, all on this machine: a remote shell that stays here.
fn on_hosts(scene: &Scene, database: &str, words: &[&str]) -> Outcome {
    scene.file("db", database);
    let shell = scene.file(
        "rsh",
        "#!/bin/sh\nwhile [ \"${1#127.0.0.}\" = \"$1\" ]; do shift; done\nshift\nexec sh -c \"$*\"\n",
    );
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o755)).unwrap();
    let job = scene.scrun(words).env("SCORE_RSH", shell.to_str().unwrap());
    job.watchdog(PATIENCE).run()
}

#[test]
fn a_host_without_an_adapter_is_named_and_reached_by_udp() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let traffic = program(&scene, "traffic");
    let database = "ib type=verbs device=rxe0 port=1 gid=1 partition=0xffff level=2\n\
                    ib/c device=rxe9\n\
                    a address=127.0.0.1 cores=1 network=ib\n\
                    b address=127.0.0.2 cores=1 network=ib\n\
                    c address=127.0.0.3 cores=1 network=ib\n";
    let words = ["-file=db,nodes=3x1,stat", &traffic, "100", "1"];
    let outcome = on_hosts(&scene, database, &words).expect(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(3), "{outcome}");
    let line = "network ib: UDP is used instead of RDMA to host c: there is no adapter rxe9";
    let _ =
        outcome.says(&[line, "network set 0 (ib): RDMA by rxe0", "service level 2", "UDP over"]);
}

#[test]
fn without_any_word_software_is_left_alone_and_nothing_is_said() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let traffic = program(&scene, "traffic");
    let database = "a address=127.0.0.1 cores=1\nb address=127.0.0.2 cores=1\n";
    let outcome = on_hosts(&scene, database, &["-file=db,nodes=2x1,stat", &traffic, "50", "1"]);
    let outcome = outcome.expect(0).says(&["network set 0 (auto): UDP over"]);
    assert!(!outcome.stderr.contains("RDMA"), "{outcome}");
}

#[test]
fn who_is_killed_leaves_no_queue_pair_and_the_next_job_runs() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let before = resources();
    let pingpong = program(&scene, "pingpong");
    let file = scene.dir().join("over");
    let words = [PAIR, &pingpong, file.to_str().unwrap()];
    let is_node = |one: &Process| one.program() == "pingpong";
    let targets: [fn(&Process) -> bool; 2] = [is_node, Process::is_scored];
    for (what, wanted) in ["a node", "scored"].into_iter().zip(targets) {
        let mut job = scene.scrun(&words).watchdog(PATIENCE).start();
        job.wait_for("round ", 1);
        assert_ne!(resources(), before);
        scene.wait_for_process(what, wanted).signal(Signal::SIGKILL);
        assert_ne!(job.wait().code, 0, "{what}");
        nothing_is_left(&before);
    }
    let traffic = program(&scene, "traffic");
    let outcome = run(&scene, &[PAIR, &traffic, "50", "1"]).expect(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    nothing_is_left(&before);
}

/// Hosts a and b of a service, with one processor each.
fn cluster<'a>(scene: &'a Scene, slice: &str) -> Option<Cluster<'a>> {
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    Cluster::start_as(scene, &["b", "a"], database, &["-ts", slice, "-page", "off"])
}

#[test]
fn jobs_that_take_turns_and_one_that_is_suspended_amid_its_traffic_lose_nothing() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let before = resources();
    let [game, remote] = ["pingpong", "remote"].map(|name| program(&scene, name));
    let file = scene.dir().join("over");
    let Some(cluster) = cluster(&scene, "100") else { return };
    let start = |uid, words: &[&str]| {
        let job = cluster.command(uid, "scrun", "a");
        job.args(&["-scored=all,nodes=2x1,network=verbs"]).args(words).watchdog(PATIENCE).start()
    };
    let mut game = start(BOB, &[&game, file.to_str().unwrap()]);
    game.wait_for("round ", 1);
    let mut remote = start(ALICE, &[&remote, "30", "512"]);
    let plays = |game: &mut score_tests::Running| {
        let rounds = game.stdout().matches("round ").count();
        game.wait_for("round ", rounds + 2);
    };
    remote.wait_for("round 2", 1);
    // For longer than an adapter repeats what nobody acknowledges: 8 times 67 ms, and more.
    remote.signal(Signal::SIGTSTP);
    sleep(Duration::from_secs(5));
    assert!(!remote.stdout().contains("all right"), "it was over before");
    plays(&mut game);
    remote.signal(Signal::SIGCONT);
    let outcome = remote.wait().expect(0);
    assert_eq!(outcome.text().matches("all right").count(), 2, "{outcome}");
    scene.file("over", "");
    let outcome = game.wait().expect(0);
    assert!(outcome.text().contains("played "), "{outcome}");
    nothing_is_left(&before);
}

#[test]
fn a_user_who_may_not_open_the_adapter_is_told_and_goes_by_udp() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let traffic = program(&scene, "traffic");
    let Some(cluster) = cluster(&scene, "100") else { return };
    let job = |options: &str| {
        let options = format!("-scored=all,nodes=2x1,{options}stat");
        let words = [&options, traffic.as_str(), "20", "1"];
        cluster.command(ALICE, "scrun", "a").args(&words).watchdog(PATIENCE).run().expect(0)
    };
    let set = |mode| {
        for device in std::fs::read_dir(DEVICES).unwrap() {
            let path = device.unwrap().path();
            if path.to_string_lossy().contains("uverbs") {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    };
    set(0o600);
    let outcomes = ["network=verbs,", ""].map(job);
    set(0o666);
    for (outcome, name) in outcomes.into_iter().zip(["verbs", "auto"]) {
        let line = format!("network {name}: UDP is used instead of RDMA: host ");
        let why = "0 cannot be opened: Permission denied";
        let _ = outcome.says(&[&line, why, &format!("network set 0 ({name}): UDP over")]);
    }
}

#[test]
fn who_may_pin_too_little_is_told_the_limit_and_goes_by_udp() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let traffic = program(&scene, "traffic");
    std::fs::set_permissions(scene.dir(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new("/bin/sh");
    scene.dress(&mut command);
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", "/tmp").uid(ALICE).gid(ALICE);
    let pair = PAIR.trim_end_matches(",message=quiet");
    let line = format!("ulimit -l 1024; exec scrun {pair} {traffic} 20 1");
    command.args(["-c", &line]);
    let job = score_tests::Job::new(scene.mark().to_owned(), command).watchdog(PATIENCE);
    let outcome = job.run().expect(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    let _ = outcome.says(&["UDP is used instead of RDMA", "ulimit -l"]);
}

#[test]
fn who_cannot_go_on_is_found_and_nobody_else_is_accused() {
    if !has_adapter() {
        return;
    }
    let scene = Scene::new();
    let deadlock = program(&scene, "deadlock");
    let text = "deadlock: no process of deadlock can go on";
    for (words, says) in [
        (&["mutual"][..], "sent 3, the last to node 1; received 3, the last from node"),
        (&["pin", "blocked"], "waits for a message"),
    ] {
        let words = [&[PAIR.trim_end_matches(",message=quiet"), deadlock.as_str()], words].concat();
        let _ = run(&scene, &words).says(&[text, says]).expect(35);
    }
    let _ = run(&scene, &[PAIR, &deadlock, "pin", "late"]).expect(0);
}
