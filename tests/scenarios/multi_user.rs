//! Several users share a permanent cluster. Each job runs as its user and is isolated from other
//! users. Limits are enforced, and messages name them. A job that does not fit is refused or
//! queued. If a component dies, all others continue and nothing is left. The hosts are daemons on
//! loopback addresses of this machine.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Running, TestEnv};

/// Ends a job that holds hosts.
fn terminate(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

// Promise (several users): A job runs as its user, in a directory that only they can read; others
// cannot read, signal, trace or end it; an operator can end it.
#[test]
fn a_job_is_isolated_from_other_users() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let script = "id -u; id -g; id -G; pwd; grep CapEff /proc/self/status; stat -c %a:%u .";
    let outcome = cluster.scrun(ALICE, "a", "nodes=1", script).run();
    assert_eq!(outcome.code, 0, "{outcome}");
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["61001", "61001", "61001"], "{outcome}");
    assert!(lines[3].starts_with("/var/scored/job-"), "{outcome}");
    assert!(lines[4].ends_with("0000000000000000"), "{outcome}");
    assert_eq!(lines[5], "700:61001");

    // Bob attacks this job of Alice on the same host.
    let secret = "echo secret > kept; echo $$ $(pwd); exec sleep 300";
    let mut job = cluster.scrun(ALICE, "a", "nodes=1", secret).start();
    job.wait_for("/var/scored/", 1);
    let stdout = job.stdout();
    let path = stdout.split_whitespace().nth(1).unwrap().to_owned();
    let victim = env.wait_for_process("alice's sleep", |process| process.command == "sleep 300");
    let pid = victim.pid;
    let attack = format!(
        "cat {path}/kept; ls {path}; ls /var/scored; kill -9 {pid}; cat /proc/{pid}/environ; \
         dd if=/proc/{pid}/mem bs=1 count=1; ls /proc/{pid}/fd"
    );
    // The access comes from another user of the machine, and from inside a job.
    let mut outside = Command::new("/bin/sh");
    outside.args(["-c", &attack]).uid(BOB).gid(BOB);
    let outside = outside.output().unwrap();
    let inside = cluster.scrun(BOB, "a", "nodes=1", &attack).run();
    for out in [String::from_utf8_lossy(&outside.stdout).into_owned(), inside.text()] {
        assert_eq!(out, "", "another user has seen something");
    }
    assert!(env.processes().iter().any(|process| process.pid == pid), "another user has ended it");
    let listing = cluster.console(BOB, "a", &["-list"]).text();
    let job_number = listing.split([' ', ',']).nth(1).unwrap().to_owned();
    let refused = cluster.console(BOB, "a", &["-kill", &job_number]);
    assert!(refused.code != 0 && refused.stderr.contains("another user's"), "{refused}");
    cluster.wait_for_log("a", "uid 61002 may not end job");
    let allowed = cluster.console(OPERATOR, "a", &["-kill", &job_number]);
    assert_eq!(allowed.code, 0, "{allowed}");
    let outcome = job.wait();
    assert!(outcome.code != 0 && outcome.stderr.contains("an operator has ended it"), "{outcome}");
}

// Promise (several users): cpulimit, memorylimit and disklimit end the job, and the message has the
// limit and the host; other jobs continue.
#[test]
fn an_exceeded_limit_is_named_with_its_host_and_other_jobs_continue() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let other = cluster.start_long_job(BOB, "a", "nodes=1");
    let spin = "while :; do :; done";
    let fill = "i=0; while [ $i -lt 400 ]; do dd if=/dev/zero of=f$i bs=1M count=1 2>/dev/null; \
                i=$((i+1)); sleep 0.01; done";
    let hide = "exec 3>f; rm f; i=0; while [ $i -lt 400 ]; do head -c 1048576 /dev/zero >&3; \
                i=$((i+1)); sleep 0.01; done; sleep 300";
    let grow = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); sleep 300";
    for (options, script, limit, code) in [
        ("nodes=1,cpulimit=1", spin, "cpulimit of 1 s", 152),
        ("nodes=1,memorylimit=50", grow, "memorylimit of 50 MB", 137),
        ("nodes=1,disklimit=10", fill, "disklimit of 10 MB", 153),
        ("nodes=1,disklimit=10", hide, "disklimit of 10 MB", 153),
    ] {
        let outcome = cluster.scrun(ALICE, "a", options, script).run();
        assert_eq!(outcome.code, code, "{outcome}");
        assert!(outcome.stderr.contains(&format!("{limit} exceeded on host ")), "{outcome}");
    }
    terminate(other);
}

// Promise (several users): A job that does not fit is refused, or waits with `wait`; waiting users
// take turns.
#[test]
fn a_job_that_does_not_fit_is_refused_or_waits_its_turn() {
    let env = TestEnv::new();
    let (database, space_only) = (Cluster::database(&["a"]), ["-rows", "1"]);
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], &database, &space_only) else {
        return;
    };
    let holder = cluster.start_long_job(ALICE, "a", "nodes=2");
    let refused = cluster.scrun(BOB, "a", "nodes=1", "echo no").run();
    assert_eq!(refused.code, 2, "{refused}");
    assert!(refused.stderr.contains("use the option wait"), "{refused}");
    let too_large = cluster.scrun(BOB, "a", "nodes=3,wait", "echo no").run();
    assert_eq!(too_large.code, 2, "{too_large}");
    // Alice queues three jobs before Bob queues one. Bob's job runs second.
    let order = env.dir().join("order");
    std::fs::write(&order, "").unwrap();
    std::fs::set_permissions(&order, std::fs::Permissions::from_mode(0o666)).unwrap();
    let start_waiting_job = |uid: u32, name: &str| {
        let script = format!("echo {name} >> {}", order.display());
        let job = cluster.scrun(uid, "a", "nodes=1x2,wait", &script).start();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !job.stderr().contains("is queued") {
            assert!(Instant::now() < deadline, "{}", job.stderr());
            sleep(Duration::from_millis(5));
        }
        job
    };
    let waiting: Vec<_> = [(ALICE, "a1"), (ALICE, "a2"), (ALICE, "a3"), (BOB, "b1")]
        .map(|(uid, name)| start_waiting_job(uid, name))
        .into();
    terminate(holder);
    for job in waiting {
        let outcome = job.wait();
        assert_eq!(outcome.code, 0, "{outcome}");
    }
    let start_order = std::fs::read_to_string(&order).unwrap();
    assert_eq!(
        start_order.split_whitespace().collect::<Vec<_>>().join(" "),
        "a1 a1 b1 b1 a2 a2 a3 a3"
    );
}

// Promise (several users): A login is routed to the server of the cluster that the expression
// names, or refused with the reason.
#[test]
fn a_login_is_routed_to_the_server_or_refused_with_the_reason() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b", "c"]) else { return };
    let outcome = cluster.scrun(ALICE, "a", "nodes=3x2", "id -u").run();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "61001\n".repeat(6).as_str()));
    for (expression, reason) in [("elsewhere", "elsewhere"), ("local:2", "not in the cluster")] {
        let option = format!("-scored={expression},nodes=1");
        let outcome = cluster.command(ALICE, "scrun", "a").args(&[&option, "/bin/true"]).run();
        assert!(outcome.code == 2 && outcome.stderr.contains(reason), "{outcome}");
    }
    let no_daemon = cluster.scrun(ALICE, "nowhere", "nodes=1", "true").run();
    assert!(
        no_daemon.code == 2 && no_daemon.stderr.contains("no scored serves this host"),
        "{no_daemon}"
    );
}

// Promise (several users): A host that dies or hangs is named, costs its own jobs only, and can
// come back.
#[test]
fn a_dead_host_ends_only_its_own_jobs_and_can_return() {
    let env = TestEnv::new();
    let Some(mut cluster) = Cluster::start(&env, &["a", "b", "c"]) else { return };
    let wide = cluster.start_long_job(ALICE, "c", "nodes=3x1");
    let narrow = cluster.start_long_job(BOB, "c", "nodes=1");
    let names = cluster.console(BOB, "c", &["-list"]).text();
    let line = names.lines().find(|line| line.contains("uid 61002")).unwrap().to_owned();
    // The victim is a host that does not run Bob's job and is not the server.
    let victim = if line.ends_with(" a") { "b" } else { "a" };
    cluster.signal_daemon(victim, Signal::SIGKILL);
    let outcome = wide.wait();
    assert!(outcome.code != 0 && outcome.stderr.contains(&format!("host {victim}")), "{outcome}");
    let listed = cluster.console(BOB, "c", &["-list"]).text();
    assert!(listed.contains("uid 61002: runs"), "{listed}");
    std::fs::write(cluster.log_file("c"), "").unwrap();
    cluster.start_host(victim);
    cluster.wait_for_log("c", &format!("host {victim} is up"));
    let rerun = cluster.scrun(ALICE, "c", "nodes=3x1", "echo again").run();
    assert_eq!((rerun.code, rerun.text().as_str()), (0, "again\nagain\nagain\n"), "{rerun}");
    terminate(narrow);
}

// Promise of `a_dead_host_ends_only_its_own_jobs_and_can_return`.
#[test]
fn a_host_that_hangs_is_named_within_the_limit() {
    let env = TestEnv::new();
    let Some(mut cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let job = cluster.start_long_job(ALICE, "b", "nodes=2x1");
    let started_at = Instant::now();
    cluster.signal_daemon("a", Signal::SIGSTOP);
    let outcome = job.wait();
    assert!(outcome.code != 0 && outcome.stderr.contains("host a"), "{outcome}");
    assert!(started_at.elapsed() < Duration::from_secs(30), "{:?}", started_at.elapsed());
}

// Promise (several users): A killed server: hosts end their jobs, scruns say so, a new one takes
// jobs at once and leftovers are swept.
#[test]
fn a_killed_server_ends_its_jobs_and_a_new_server_accepts_jobs_at_once() {
    let env = TestEnv::new();
    let Some(mut cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let alice_job = cluster.start_long_job(ALICE, "a", "nodes=2x1");
    let escape = "setsid sleep 301 & echo up; touch file; exec sleep 302";
    let mut bob_job = cluster.scrun(BOB, "b", "nodes=1", escape).start();
    bob_job.wait_for("up", 1);
    let job_number = |text: String| text.split([' ', ',']).nth(1).unwrap().parse::<u32>().unwrap();
    let before = job_number(cluster.console(ALICE, "b", &["-list"]).text());
    let own_pids: Vec<i32> = env.processes().iter().map(|process| process.pid).collect();
    cluster.signal_daemon("b", Signal::SIGKILL);
    let outcome = alice_job.wait();
    assert!(outcome.code != 0 && outcome.stderr.contains("b, the server, is lost"), "{outcome}");
    assert_ne!(bob_job.wait().code, 0);
    // Every process of both jobs is killed. The next start removes the files that are left on disk.
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    let is_running =
        || env.processes().iter().any(|process| process.command.starts_with("sleep 30"));
    while is_running() {
        assert!(Instant::now() < deadline, "{:#?}", env.processes());
        sleep(Duration::from_millis(10));
    }
    cluster.start_host("b");
    cluster.wait_for_log("b", "host a is up");
    let rerun = cluster.scrun(BOB, "a", "nodes=2x1", "echo again").run();
    assert_eq!((rerun.code, rerun.text().as_str()), (0, "again\nagain\n"), "{rerun}");
    // The new server must not confuse its jobs with those of the old server.
    let next_job = cluster.start_long_job(ALICE, "b", "nodes=1");
    let after = job_number(cluster.console(ALICE, "b", &["-list"]).text());
    assert!(after > before, "job {after} after {before}");
    terminate(next_job);
    // Daemons of other tests may have been killed just now, so their cgroups are ignored.
    let is_left = |name: &str| {
        let pid = name.strip_prefix("scored-job-").and_then(|rest| rest.split('-').next());
        pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| {
            own_pids.contains(&pid) && !std::path::Path::new("/proc").join(pid.to_string()).exists()
        })
    };
    let cgroup_dirs = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpuacct"];
    let find_left = || {
        let entries = cgroup_dirs.iter().flat_map(std::fs::read_dir).flatten().flatten();
        entries
            .map(|entry| entry.path())
            .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_left))
    };
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    while let Some(group) = find_left() {
        assert!(Instant::now() < deadline, "{} is left", group.display());
        sleep(Duration::from_millis(10));
    }
}

// Promise (several users): `nodes=N.bintype`, `hosts=H`, `xP`, `hetero` and spares of the database
// have the same meaning as in single-user mode.
#[test]
fn a_job_can_request_kinds_of_hosts_whole_hosts_and_spares() {
    let env = TestEnv::new();
    let new = "cores=2 bintype=linux cpugen=new";
    let database = format!(
        "s address=127.0.0.1 {new}\n\
         a address=127.0.0.2 cores=2 group=all bintype=linux cpugen=old\n\
         b address=127.0.0.3 group=all spare=s {new}\n\
         c address=127.0.0.4 group=all {new}\n"
    );
    let Some(mut cluster) = Cluster::start_with_database(&env, &["s", "a", "b", "c"], &database)
    else {
        return;
    };
    let count_lines = |options: &str| {
        let outcome = cluster.scrun(ALICE, "c", options, "echo up").run();
        assert_eq!(outcome.code, 0, "{options}: {outcome}");
        outcome.text().lines().count()
    };
    let assert_refused = |options: &str, reason: &str| {
        let outcome = cluster.scrun(ALICE, "c", options, "echo up").run();
        assert!(outcome.code == 2 && outcome.stderr.contains(reason), "{options}: {outcome}");
    };
    // The jobs request the only host of its type, then more processes than the host can run, then a
    // type that no host has.
    let old = cluster.start_long_job(BOB, "c", "nodes=2.linux.old");
    let list = cluster.console(BOB, "c", &["-list"]).text();
    assert!(list.contains("2 processes on a"), "{list}");
    terminate(old);
    assert_refused("nodes=3.linux.old", "at most 2 on one");
    assert_refused("nodes=1.linux.odl", "did you mean 'old'");
    // The jobs get whole hosts. They get hosts of other types only with the option hetero. The
    // spare host is not used yet.
    assert_eq!(count_lines("hosts=2"), 4);
    assert_refused("hosts=3", "3 whole hosts");
    assert_eq!(count_lines("hosts=3,hetero"), 6);
    assert_eq!(count_lines("nodes=x1,hetero"), 3);
    assert_eq!(count_lines("nodes=x1.linux.new"), 2);
    cluster.signal_daemon("b", Signal::SIGKILL);
    let outcome = cluster.scrun(ALICE, "c", "hosts=2,wait", "echo up").run();
    assert_eq!((outcome.code, outcome.text().lines().count()), (0, 4), "{outcome}");
    cluster.wait_for_log("c", "on c, s");
}

/// Opens connections that send one byte at a time, and replaces those that are dropped. Returns the
/// number of dropped connections.
fn trickle(port: u16, stop: &AtomicBool) -> usize {
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut dropped = 0;
    while !stop.load(Ordering::Relaxed) {
        let before = streams.len();
        streams.retain_mut(|stream| stream.write_all(b"S").is_ok());
        dropped += before - streams.len();
        while streams.len() < 200
            && let Ok(stream) = TcpStream::connect(("127.0.0.2", port))
        {
            streams.push(stream);
        }
        sleep(Duration::from_millis(100));
    }
    dropped
}

// Promise of `clients_that_send_nothing_or_garbage_are_dropped_and_the_service_continues`.
#[test]
fn a_flood_of_connections_does_not_prevent_daemons_from_connecting() {
    let env = TestEnv::new();
    let Some(mut cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let (stop, port) = (AtomicBool::new(false), cluster.port());
    std::thread::scope(|scope| {
        let attack = scope.spawn(|| trickle(port, &stop));
        // The drop of this value ends the attack, even if an assertion here fails.
        let _stop_on_drop = StopOnDrop(&stop);
        cluster.wait_for_log("b", "a connection to the daemons' port was dropped");
        cluster.signal_daemon("a", Signal::SIGKILL);
        cluster.wait_for_log("b", "host a:");
        std::fs::write(cluster.log_file("b"), "").unwrap();
        cluster.start_host("a");
        cluster.wait_for_log("b", "host a is up");
        let outcome = cluster.scrun(ALICE, "a", "nodes=2x1", "echo up").run();
        assert_eq!((outcome.code, outcome.text().as_str()), (0, "up\nup\n"), "{outcome}");
        stop.store(true, Ordering::Relaxed);
        assert!(attack.join().unwrap() > 0, "no connection was dropped");
    });
}

/// Sets a flag when this value is dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
