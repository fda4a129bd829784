//! `local:N`: several hosts on one machine, for anybody. Each has a network and a name of its own;
//! where namespaces are refused they are on loopback, and a line says so.

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::{Outcome, Scene, binaries, scene, skip};

/// Where namespaces are refused altogether, hosts are on loopback: then there is nothing to see.
fn has_namespaces(test: &str, outcome: &Outcome) -> bool {
    let refused = outcome.text().contains("on loopback") || outcome.code == 2;
    if refused {
        skip(test, "this machine allows no network namespaces");
    }
    !refused
}

fn came_up(outcome: &Outcome, hosts: u32) {
    for host in 1..hosts {
        let line = format!("local{host}: up after");
        assert!(outcome.text().contains(&line), "no {line:?}: {outcome}");
    }
}

#[test]
fn a_stand_in_comes_up_on_every_virtual_host() {
    for (hosts, options) in [(2, vec![]), (7, vec!["-links", "2", "-mtu", "9000"])] {
        let scene = Scene::new();
        let hosts_word = format!("local:{hosts}");
        let job = scene.command(binaries::program("scored")).args(&["-try", &hosts_word]);
        let outcome = job.args(&options).run().expect(0);
        came_up(&outcome, hosts);
        if has_namespaces("virtual_hosts", &outcome) {
            let network = outcome.text().contains("at 10.77.0.2:");
            assert!(network, "not on a network of its own: {outcome}");
        }
    }
}

#[test]
fn an_ordinary_user_gets_the_same() {
    if !geteuid().is_root() || !scene::have("setpriv") {
        return;
    }
    let scene = Scene::new();
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let copy = scene.dir().join("scored");
    std::fs::copy(binaries::program("scored"), &copy).unwrap();
    let job = scene.command("setpriv").args(&words).arg(copy.to_str().unwrap());
    let outcome = job.args(&["-try", "local:4"]).run().expect(0);
    came_up(&outcome, 4);
    assert!(has_namespaces("virtual_hosts_of_a_user", &outcome));
}

#[test]
fn without_namespaces_all_are_on_loopback_and_a_line_says_so() {
    let scene = Scene::new();
    let line = "echo 0 > /proc/sys/user/max_user_namespaces; \
                echo 0 > /proc/sys/user/max_net_namespaces; exec scored -try local:3";
    let outcome = scene.command("unshare").args(&["-Ur", "sh", "-c", line]).run();
    if outcome.code == 1 && outcome.stderr.contains("unshare") {
        return skip("virtual_hosts_on_loopback", "unshare(1) cannot make a namespace");
    }
    came_up(&outcome, 3);
    assert!(outcome.text().contains("all 3 hosts are on loopback"), "{outcome}");
    let line = format!("{line} -rate 200mbit");
    let outcome = scene.command("unshare").args(&["-Ur", "sh", "-c", &line]).run().expect(1);
    let _ = outcome.says(&["no network namespaces", "rate"]);
}

#[test]
fn jobs_run_on_a_virtual_host_with_a_pid_namespace_inside() {
    let scene = Scene::new();
    let line = "hostname; scored -probe | grep -c '^[a-z]* namespace *yes'; \
                exec scrun -nodes=2 system hostname";
    let job =
        scene.command(binaries::program("score-lan")).args(&["-hosts", "3", "sh", "-c", line]);
    let outcome = job.run();
    if !has_namespaces("jobs_on_virtual_hosts", &outcome) {
        return;
    }
    let outcome = outcome.expect(0);
    for host in 0..3 {
        let name = format!("local{host}");
        let times = outcome.text().lines().filter(|line| **line == name).count();
        assert_eq!(times, 3, "{name}: {outcome}");
    }
    assert!(!outcome.text().lines().any(|line| line == "0"), "no PID namespace: {outcome}");
}

#[test]
fn a_launcher_dies_with_the_scored_that_started_it() {
    let scene = Scene::new();
    let shell = scene.file("shell", "#!/bin/sh\necho up >&2\nexec sleep 300\n");
    let name = format!("sh {}", shell.display());
    let job = scene.command(binaries::program("scored")).args(&["-try", "n1,n2"]);
    let running = job.env("SCORE_RSH", &name).start();
    scene.wait_for_process("launcher", |process| process.command == "sleep 300");
    running.signal(Signal::SIGKILL);
    assert_ne!(running.wait().code, 0);
    scene.wait_until_clean(scene::GRACE).unwrap_or_else(|left| panic!("{left:#?}"));
}

#[test]
fn what_cannot_be_is_named() {
    let scene = Scene::new();
    let words: &[(&[&str], &[&str])] = &[
        (&["local:0"], &["local:0"]),
        (&["local:many"], &["local:many"]),
        (&["local:2", "-rate", "fast"], &["rate=fast"]),
        (&["n1", "-start", "telnet"], &["start=telnet", "ssh, slurm"]),
        (&["-oProxyCommand=x"], &["not the name of a host"]),
    ];
    for (arguments, wanted) in words {
        let job = scene.command(binaries::program("scored")).arg("-try").args(arguments);
        let outcome = job.run().expect(1);
        let _ = outcome.says(wanted);
    }
}
