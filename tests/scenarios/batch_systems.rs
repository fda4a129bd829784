//! A job inside an allocation of Slurm, and inside a parallel environment of Grid Engine: scrun
//! names no host and gets those of the allocation, daemons are brought there by srun or qrsh,
//! output and exit code are as anywhere, and whatever ends the job, nothing is left on any host.

use score_tests::scene;
use score_tests::testbed::Testbed;
use score_tests::{Scene, binaries, skip};
use std::time::Duration;

/// A batch system comes up in a second, or in tens of them where the machine has much else to do.
const WATCHDOG: Duration = Duration::from_secs(150);

/// Six nodes on three hosts: a program of PM beside a command of the system.
const COUNT: &str = "seq 20 | scrun -nodes=3x2,message=quiet scatter == system wc -l";
/// Each node says which host it is on, what its number is, and that host's own name.
const WHERE: &str = "scrun -nodes=3x2,message=quiet system sh -c \
                     'echo $SCORE_SELF_HOST $SCORE_SELF_NODE $(hostname)'";
/// Ends with 7.
const SEVEN: &str = "scrun -nodes=3,message=quiet system sh -c 'exit $((7 * !SCORE_SELF_NODE))'";

/// Three jobs, one after the other; the lines of the second, sorted, which are checked but for the
/// hosts' names.
fn run_three(scene: &Scene, bed: &Testbed) -> Vec<String> {
    let line = format!("{COUNT} && {WHERE} && {SEVEN}");
    let outcome = bed.run(scene, 4, &line).watchdog(WATCHDOG).run().expect(7);
    assert_eq!(outcome.stderr, "", "{outcome}");
    let text = outcome.text();
    let (counted, said) = text.split_at("20\n".len() * 6);
    assert_eq!(counted, "20\n".repeat(6), "{outcome}");
    let mut said: Vec<String> = said.lines().map(str::to_owned).collect();
    said.sort();
    for (node, line) in said.iter().enumerate() {
        assert!(line.starts_with(&format!("{} {node} node", node / 2)), "{outcome}");
    }
    assert_eq!(said.len(), 6, "{outcome}");
    said.iter().map(|line| line.split(' ').next_back().unwrap_or_default().to_owned()).collect()
}

/// The manual's C program, compiled; none, and a skip, without a C compiler.
fn compiled_scatter(scene: &Scene) -> bool {
    if !scene::have("gcc") {
        skip("compiled scatter", "gcc is not installed");
        return false;
    }
    let sources = binaries::root().join("examples/scatter");
    let made = scene.sh(&format!("scorecc -O2 -o my_scatter {}/*.c", sources.display())).run();
    assert_eq!(made.code, 0, "{made}");
    true
}

#[test]
fn a_job_runs_on_the_hosts_that_salloc_has_given() {
    let scene = Scene::new();
    let Some(bed) = Testbed::slurm(&scene, 3) else { return };
    let hosts = run_three(&scene, &bed);
    assert_eq!(hosts.join(" "), "node1 node1 node2 node2 node3 node3");
}

#[test]
fn a_batch_script_of_slurm_runs_a_program_of_the_users_own_on_all_its_hosts() {
    let scene = Scene::new();
    let Some(bed) = Testbed::slurm(&scene, 3) else { return };
    if !compiled_scatter(&scene) {
        return;
    }
    // The script runs on the first host of the allocation.
    let script = COUNT.replace("scatter", "./my_scatter");
    scene.file("script", format!("#!/bin/sh\nhostname >&2\n{script}\nexit 5\n"));
    let line = "sbatch --quiet --wait --nodes=3 --output=said --error=error script; code=$?; \
                cat said; cat error >&2; exit $code";
    let outcome = bed.outside().run(&scene, 4, line).watchdog(WATCHDOG).run().expect(5);
    assert_eq!(outcome.stderr, "node1\n");
    assert_eq!(outcome.text(), "20\n".repeat(6), "{outcome}");
}

#[test]
fn scancel_ends_a_job_with_everything_that_it_has_started() {
    for outside in ["salloc --quiet --nodes=2 sh ./script", "sbatch --quiet --nodes=2 script"] {
        let scene = Scene::new();
        let Some(bed) = Testbed::slurm(&scene, 2) else { return };
        // One of each node's processes has left its session. Nobody else sleeps for that long.
        let long = 300_000 + std::process::id();
        let node = format!("setsid sleep {long}.1 & echo up; touch here; exec sleep {long}.2");
        scene.file(
            "script",
            format!(
                "#!/bin/sh\nexec scrun -nodes=2x2,message=quiet system sh -c '{node}' > said 2>&1\n"
            ),
        );
        let line = format!(
            "{outside} > out 2> error & \
             count() {{ pgrep -fc '^sleep {long}.[12]$'; }}; tries=0; \
             until [ \"$(count)\" = 8 ]; do tries=$((tries + 1)); \
             [ $tries -lt 400 ] || {{ cat said error; exit 9; }}; sleep 0.05; done; \
             scancel --quiet 1; wait; tries=0; \
             until [ \"$(count)\" = 0 ]; do tries=$((tries + 1)); \
             [ $tries -lt 400 ] || exit 8; sleep 0.05; done; cat said"
        );
        let outcome = bed.outside().run(&scene, 3, &line).watchdog(WATCHDOG).run().expect(0);
        assert!(outcome.text().starts_with("up\nup\nup\nup\n"), "{outside}: {outcome}");
    }
}

#[test]
fn a_job_runs_in_a_parallel_environment_of_grid_engine() {
    let scene = Scene::new();
    let Some(bed) = Testbed::grid_engine(&scene, 3) else { return };
    let mut hosts = run_three(&scene, &bed);
    // Grid Engine lists the hosts in an order of its own.
    assert!(hosts.chunks(2).all(|pair| pair[0] == pair[1]), "{hosts:?}");
    hosts.sort();
    assert_eq!(hosts.join(" "), "node1 node1 node2 node2 node3 node3");
}
