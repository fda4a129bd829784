//! Jobs over RDMA hardware. Scattered data arrives unchanged. Jobs that take turns lose nothing,
//! and neither does a job that is suspended during its traffic. A killed process leaves no queue
//! pair. Remote access to remapped memory does not reach the old pages. SCore reports deadlocked
//! programs and no others. If a host has no adapter, or its user may not open it or pin enough
//! memory, scrun prints one line and messages go over UDP.
//!
//! The virtual machine of `cargo xtask test` has an adapter. On other machines these tests pass
//! without checking anything.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, TestEnv, test_env};
use serde_json::Value;

/// Emulated processors are slow.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// The directory with the adapters' device files.
const DEVICES: &str = "/dev/infiniband";
/// Options for two hosts with a process each.
const PAIR: &str = "-group=local:2,nodes=2x1,network=verbs,message=quiet";

fn has_adapter() -> bool {
    std::env::var_os(test_env::IN_VM_ENV).is_some()
}

/// Returns the queue pairs, registrations and other RDMA resources that the kernel has allocated.
fn rdma_resources() -> String {
    let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until the kernel has no more resources allocated than `before`.
fn wait_until_released(before: &str) {
    let started_at = Instant::now();
    while rdma_resources() != before {
        assert!(started_at.elapsed() < JOB_TIMEOUT, "before: {before}now: {}", rdma_resources());
        sleep(Duration::from_millis(50));
    }
}

fn run(env: &TestEnv, args: &[&str]) -> Outcome {
    env.scrun(args).timeout(JOB_TIMEOUT).run()
}

fn test_program_path(env: &TestEnv, name: &str) -> String {
    env.test_program(name).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn scattered_data_is_gathered_unchanged_and_one_line_names_the_adapter() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let before = rdma_resources();
    let bytes: Vec<u8> =
        (0..300_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let options = "-group=local:2,nodes=2x2,network=verbs,stat";
    let args = [options, "scatter", "==", "gather", "-node", "3"];
    let outcome = env.scrun(&args).input(bytes.clone()).timeout(JOB_TIMEOUT).run().expect_code(0);
    assert!(outcome.stdout == bytes, "{} bytes came back", outcome.stdout.len());
    let outcome = outcome.assert_stderr(&[
        "network set 0 (verbs): RDMA by rxe0 port 1, RoCE",
        "shared memory within a host",
    ]);
    assert!(!outcome.stderr.contains("UDP"), "{outcome}");
    wait_until_released(&before);
}

#[test]
fn messages_of_all_sizes_arrive_in_order_also_at_sleeping_receivers_and_are_counted() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let traffic = test_program_path(&env, "traffic");
    let options = "-group=local:2,nodes=2x2,network=verbs";
    let outcome = run(&env, &[options, &traffic, "150", "4711", "block"]).expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(4), "{outcome}");
    let program = test_program_path(&env, "monitor_load");
    let outcome = run(&env, &[PAIR, &program, "2"]).expect_code(0);
    let detailed = format!("{PAIR},stat=detail").replace(",message=quiet", "");
    let detailed = run(&env, &[&detailed, &program, "2"]).expect_code(0);
    let total = "100 messages (5050 bytes) sent, 100 (5050 bytes) received";
    assert!(detailed.stderr.contains(total), "{detailed}{outcome}");
}

#[test]
fn two_sets_may_be_of_different_networks() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let program = test_program_path(&env, "two_networks");
    let options = "-group=local:2,nodes=2x1,network=verbs+agent-udp+verbs,stat";
    let outcome = run(&env, &[options, &program]).expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["node 0 of 2: 3 sets", "node 1 of 2: 3 sets"]);
    let _ = outcome.assert_stderr(&[
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
    let env = TestEnv::new();
    let measure = |args: &[&str]| {
        let args = [&[PAIR, "pmtest", "-json", "-rounds", "1"], args].concat();
        let outcome = run(&env, &args).expect_code(0);
        let rows: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        rows.as_array().unwrap().last().unwrap().clone()
    };
    let assert_positive = |row: &Value, name: &str| {
        assert!(row[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {row}");
    };
    assert_positive(&measure(&["-latency", "-size", "8"]), "one_way_ns_min");
    let row = measure(&["-rma", "-area", "1", "-size", "65536"]);
    for name in ["write_pmalloc", "read_pmalloc", "write_other", "read_other"] {
        assert_positive(&row, &format!("{name}_bytes_per_s"));
    }
    let row = measure(&["-pin", "-size", "65536"]);
    assert_positive(&row, "hits_bytes_per_s");
    assert_positive(&row, "misses_bytes_per_s");
}

#[test]
fn operations_on_regions_that_change_never_touch_memory_outside_them() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let before = rdma_resources();
    let regions = test_program_path(&env, "regions");
    for seed in ["1", "2", "3"] {
        let outcome = run(&env, &[PAIR, &regions, "40", seed, "rdma"]).expect_code(0);
        assert_eq!(outcome.text().matches("all right").count(), 2, "{outcome}");
    }
    wait_until_released(&before);
}

/// Runs a job on hosts that are not virtual hosts for SCore, although all are on this machine. The
/// remote shell starts the daemons on this machine.
fn run_on_hosts(env: &TestEnv, database: &str, args: &[&str]) -> Outcome {
    env.write_file("db", database);
    let shell = env.write_script(
        "rsh",
        "#!/bin/sh\nwhile [ \"${1#127.0.0.}\" = \"$1\" ]; do shift; done\nshift\nexec sh -c \"$*\"\n",
    );
    let job = env.scrun(args).env("SCORE_RSH", shell.to_str().unwrap());
    job.timeout(JOB_TIMEOUT).run()
}

#[test]
fn a_host_without_an_adapter_is_named_and_reached_by_udp() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let traffic = test_program_path(&env, "traffic");
    let database = "ib type=verbs device=rxe0 port=1 gid=1 partition=0xffff level=2\n\
                    ib/c device=rxe9\n\
                    a address=127.0.0.1 cores=1 network=ib\n\
                    b address=127.0.0.2 cores=1 network=ib\n\
                    c address=127.0.0.3 cores=1 network=ib\n";
    let args = ["-file=db,nodes=3x1,stat", &traffic, "100", "1"];
    let outcome = run_on_hosts(&env, database, &args).expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(3), "{outcome}");
    let line = "network ib: UDP is used instead of RDMA to host c: there is no adapter rxe9";
    let _ = outcome.assert_stderr(&[
        line,
        "network set 0 (ib): RDMA by rxe0",
        "service level 2",
        "UDP over",
    ]);
}

#[test]
fn a_software_adapter_is_not_used_by_default_and_no_notice_is_printed() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let traffic = test_program_path(&env, "traffic");
    let database = "a address=127.0.0.1 cores=1\nb address=127.0.0.2 cores=1\n";
    let outcome = run_on_hosts(&env, database, &["-file=db,nodes=2x1,stat", &traffic, "50", "1"]);
    let outcome = outcome.expect_code(0).assert_stderr(&["network set 0 (auto): UDP over"]);
    assert!(!outcome.stderr.contains("RDMA"), "{outcome}");
}

#[test]
fn a_killed_process_leaves_no_queue_pair_and_the_next_job_runs() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let before = rdma_resources();
    let pingpong = test_program_path(&env, "pingpong");
    let file = env.dir().join("over");
    let args = [PAIR, &pingpong, file.to_str().unwrap()];
    let is_node = |process: &Process| process.program() == "pingpong";
    let targets: [fn(&Process) -> bool; 2] = [is_node, Process::is_scored];
    for (victim, predicate) in ["a node", "scored"].into_iter().zip(targets) {
        let mut job = env.scrun(&args).timeout(JOB_TIMEOUT).start();
        job.wait_for("round ", 1);
        assert_ne!(rdma_resources(), before);
        env.wait_for_process(victim, predicate).signal(Signal::SIGKILL);
        assert_ne!(job.wait().code, 0, "{victim}");
        wait_until_released(&before);
    }
    let traffic = test_program_path(&env, "traffic");
    let outcome = run(&env, &[PAIR, &traffic, "50", "1"]).expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    wait_until_released(&before);
}

/// Starts a service on hosts a and b, with one processor each.
fn start_cluster<'a>(env: &'a TestEnv, slice: &str) -> Option<Cluster<'a>> {
    let database = "b address=127.0.0.1 cores=1 group=all\na address=127.0.0.2 cores=1 group=all\n";
    Cluster::start_with_options(env, &["b", "a"], database, &["-ts", slice, "-page", "off"])
}

#[test]
fn jobs_that_take_turns_and_a_job_suspended_during_traffic_lose_no_message() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let before = rdma_resources();
    let [pingpong_program, remote_program] =
        ["pingpong", "remote"].map(|name| test_program_path(&env, name));
    let file = env.dir().join("over");
    let Some(cluster) = start_cluster(&env, "100") else { return };
    let start = |uid, args: &[&str]| {
        let job = cluster.command(uid, "scrun", "a");
        job.args(&["-scored=all,nodes=2x1,network=verbs"]).args(args).timeout(JOB_TIMEOUT).start()
    };
    let mut pingpong = start(BOB, &[&pingpong_program, file.to_str().unwrap()]);
    pingpong.wait_for("round ", 1);
    let mut remote_job = start(ALICE, &[&remote_program, "30", "512"]);
    let wait_for_rounds = |pingpong: &mut score_tests::Running| {
        let rounds = pingpong.stdout().matches("round ").count();
        pingpong.wait_for("round ", rounds + 2);
    };
    remote_job.wait_for("round 2", 1);
    // An adapter repeats an unacknowledged packet six times, at intervals of 67 ms or more. The job
    // is suspended for longer.
    remote_job.signal(Signal::SIGTSTP);
    sleep(Duration::from_secs(5));
    assert!(!remote_job.stdout().contains("all right"), "the job ended too early");
    wait_for_rounds(&mut pingpong);
    remote_job.signal(Signal::SIGCONT);
    let outcome = remote_job.wait().expect_code(0);
    assert_eq!(outcome.text().matches("all right").count(), 2, "{outcome}");
    env.write_file("over", "");
    let outcome = pingpong.wait().expect_code(0);
    assert!(outcome.text().contains("played "), "{outcome}");
    wait_until_released(&before);
}

#[test]
fn without_permission_to_open_the_adapter_a_job_gets_a_notice_and_udp() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let traffic = test_program_path(&env, "traffic");
    let Some(cluster) = start_cluster(&env, "100") else { return };
    let job = |options: &str| {
        let options = format!("-scored=all,nodes=2x1,{options}stat");
        let args = [&options, traffic.as_str(), "20", "1"];
        cluster.command(ALICE, "scrun", "a").args(&args).timeout(JOB_TIMEOUT).run().expect_code(0)
    };
    let set_mode = |mode| {
        for device in std::fs::read_dir(DEVICES).unwrap() {
            let path = device.unwrap().path();
            if path.to_string_lossy().contains("uverbs") {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    };
    set_mode(0o600);
    let outcomes = ["network=verbs,", ""].map(job);
    set_mode(0o666);
    for (outcome, name) in outcomes.into_iter().zip(["verbs", "auto"]) {
        let line = format!("network {name}: UDP is used instead of RDMA: host ");
        let reason = "0 cannot be opened: Permission denied";
        let _ =
            outcome.assert_stderr(&[&line, reason, &format!("network set 0 ({name}): UDP over")]);
    }
}

#[test]
fn a_user_with_a_low_memlock_limit_gets_a_notice_and_udp() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let traffic = test_program_path(&env, "traffic");
    std::fs::set_permissions(env.dir(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new("/bin/sh");
    env.configure(&mut command);
    command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", "/tmp").uid(ALICE).gid(ALICE);
    let pair = PAIR.trim_end_matches(",message=quiet");
    let line = format!("ulimit -l 1024; exec scrun {pair} {traffic} 20 1");
    command.args(["-c", &line]);
    let job = score_tests::Job::new(env.marker().to_owned(), command).timeout(JOB_TIMEOUT);
    let outcome = job.run().expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(2), "{outcome}");
    let _ = outcome.assert_stderr(&["UDP is used instead of RDMA", "ulimit -l"]);
}

#[test]
fn a_deadlock_is_reported_and_a_job_that_can_continue_is_not() {
    if !has_adapter() {
        return;
    }
    let env = TestEnv::new();
    let deadlock = test_program_path(&env, "deadlock");
    let text = "deadlock: no process of deadlock can continue";
    for (args, expected) in [
        (&["mutual"][..], "sent 3, the last to node 1; received 3, the last from node"),
        (&["pin", "blocked"], "waits for a message"),
    ] {
        let args = [&[PAIR.trim_end_matches(",message=quiet"), deadlock.as_str()], args].concat();
        let _ = run(&env, &args).assert_stderr(&[text, expected]).expect_code(35);
    }
    let _ = run(&env, &[PAIR, &deadlock, "pin", "late"]).expect_code(0);
}
