//! `local:N` gives any user several hosts on one machine. Each has its own network and name. If
//! namespaces are not allowed, the hosts use loopback, and scrun prints a line.

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::{Outcome, TestEnv, binaries, skip, test_env};

/// Whether namespaces are allowed. Without them the hosts use loopback, and there is nothing to
/// check.
fn has_namespaces(test: &str, outcome: &Outcome) -> bool {
    let refused = outcome.text().contains("on loopback") || outcome.code == 2;
    if refused {
        skip(test, "this machine allows no network namespaces");
    }
    !refused
}

fn assert_hosts_are_up(outcome: &Outcome, hosts: u32) {
    for host in 1..hosts {
        let line = format!("local{host}: up after");
        assert!(outcome.text().contains(&line), "no {line:?}: {outcome}");
    }
}

// Promise (use): Several virtual hosts run on one machine, each with its own network and name, for
// root and for users; on loopback if namespaces are refused.
#[test]
fn a_trial_daemon_starts_on_every_virtual_host() {
    for (hosts, options) in [(2, vec![]), (7, vec!["-links", "2", "-mtu", "9000"])] {
        let env = TestEnv::new();
        let group = format!("local:{hosts}");
        let job = env.command(binaries::program("scored")).args(&["-try", &group]);
        let outcome = job.args(&options).run().expect_code(0);
        assert_hosts_are_up(&outcome, hosts);
        if has_namespaces("virtual_hosts", &outcome) {
            let has_own_network = outcome.text().contains("at 10.77.0.2:");
            assert!(has_own_network, "not on a network of its own: {outcome}");
        }
    }
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn an_ordinary_user_gets_the_same_virtual_hosts() {
    if !geteuid().is_root() || !test_env::is_installed("setpriv") {
        return;
    }
    let env = TestEnv::new();
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let copy = env.dir().join("scored");
    std::fs::copy(binaries::program("scored"), &copy).unwrap();
    let job = env.command("setpriv").args(&args).arg(copy.to_str().unwrap());
    let outcome = job.args(&["-try", "local:4"]).run().expect_code(0);
    assert_hosts_are_up(&outcome, 4);
    assert!(has_namespaces("virtual_hosts_of_a_user", &outcome));
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn virtual_hosts_without_namespaces_use_loopback_and_a_line_is_printed() {
    let env = TestEnv::new();
    let line = "echo 0 > /proc/sys/user/max_user_namespaces; \
                echo 0 > /proc/sys/user/max_net_namespaces; exec scored -try local:3";
    let outcome = env.command("unshare").args(&["-Ur", "sh", "-c", line]).run();
    if outcome.code == 1 && outcome.stderr.contains("unshare") {
        return skip("virtual_hosts_on_loopback", "unshare(1) cannot make a namespace");
    }
    assert_hosts_are_up(&outcome, 3);
    assert!(outcome.text().contains("all 3 hosts are on loopback"), "{outcome}");
    let line = format!("{line} -rate 200mbit");
    let outcome = env.command("unshare").args(&["-Ur", "sh", "-c", &line]).run().expect_code(1);
    let _ = outcome.assert_stderr(&["no network namespaces", "rate"]);
}

// Promise of `a_trial_daemon_starts_on_every_virtual_host`.
#[test]
fn jobs_run_on_a_virtual_host_with_a_pid_namespace_inside() {
    let env = TestEnv::new();
    let line = "hostname; scored -probe | grep -c '^[a-z]* namespace *yes'; \
                exec scrun -nodes=2 system hostname";
    let job = env.command(binaries::program("score-lan")).args(&["-hosts", "3", "sh", "-c", line]);
    let outcome = job.run();
    if !has_namespaces("jobs_on_virtual_hosts", &outcome) {
        return;
    }
    let outcome = outcome.expect_code(0);
    for host in 0..3 {
        let name = format!("local{host}");
        let times = outcome.text().lines().filter(|line| **line == name).count();
        assert_eq!(times, 3, "{name}: {outcome}");
    }
    assert!(!outcome.text().lines().any(|line| line == "0"), "no PID namespace: {outcome}");
}

#[test]
fn a_launcher_dies_with_the_scored_that_started_it() {
    let env = TestEnv::new();
    let shell = env.write_file("shell", "#!/bin/sh\necho up >&2\nexec sleep 300\n");
    let name = format!("sh {}", shell.display());
    let job = env.command(binaries::program("scored")).args(&["-try", "n1,n2"]);
    let running = job.env("SCORE_RSH", &name).start();
    env.wait_for_process("launcher", |process| process.command == "sleep 300");
    running.signal(Signal::SIGKILL);
    assert_ne!(running.wait().code, 0);
    env.assert_clean();
}

#[test]
fn an_impossible_host_or_option_is_refused_by_name() {
    let env = TestEnv::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["local:0"], &["local:0"]),
        (&["local:many"], &["local:many"]),
        (&["local:2", "-rate", "fast"], &["rate=fast"]),
        (&["n1", "-start", "telnet"], &["start=telnet", "ssh, slurm"]),
        (&["-oProxyCommand=x"], &["not the name of a host"]),
    ];
    for (arguments, expected) in cases {
        let job = env.command(binaries::program("scored")).arg("-try").args(arguments);
        let outcome = job.run().expect_code(1);
        let _ = outcome.assert_stderr(expected);
    }
}
