//! A job runs inside a Slurm allocation, or inside a parallel environment of Grid Engine. The scrun
//! command names no host and gets the hosts of the allocation. srun or qrsh starts the daemons.
//! Output and exit code are the same as anywhere else. Nothing is left on any host, however the job
//! ends.

use score_tests::test_env;
use score_tests::testbed::Testbed;
use score_tests::{TestEnv, binaries, skip};
use std::time::Duration;

/// A batch system starts within a second, or within tens of seconds on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(150);

/// Six nodes on three hosts: a PM program joined to a system command.
const LINE_COUNT_JOB: &str = "seq 20 | scrun -nodes=3x2,message=quiet scatter == system wc -l";
/// Each node prints the number of its host in the job, its node number, and the host's own name.
const PRINT_HOSTS_JOB: &str = "scrun -nodes=3x2,message=quiet system sh -c \
                     'echo $SCORE_SELF_HOST $SCORE_SELF_NODE $(hostname)'";
/// Exits with code 7.
const EXIT_7_JOB: &str =
    "scrun -nodes=3,message=quiet system sh -c 'exit $((7 * !SCORE_SELF_NODE))'";

/// Runs the three jobs one after the other. Returns the host name that each node of the second job
/// has printed, and checks the rest of the output.
fn run_three_jobs(env: &TestEnv, testbed: &Testbed) -> Vec<String> {
    let line = format!("{LINE_COUNT_JOB} && {PRINT_HOSTS_JOB} && {EXIT_7_JOB}");
    let outcome = testbed.run(env, 4, &line).timeout(COMMAND_TIMEOUT).run().expect_code(7);
    assert_eq!(outcome.stderr, "", "{outcome}");
    let text = outcome.text();
    let (line_counts, host_output) = text.split_at("20\n".len() * 6);
    assert_eq!(line_counts, "20\n".repeat(6), "{outcome}");
    let mut host_lines: Vec<String> = host_output.lines().map(str::to_owned).collect();
    host_lines.sort();
    for (node, line) in host_lines.iter().enumerate() {
        assert!(line.starts_with(&format!("{} {node} node", node / 2)), "{outcome}");
    }
    assert_eq!(host_lines.len(), 6, "{outcome}");
    host_lines
        .iter()
        .map(|line| line.split(' ').next_back().unwrap_or_default().to_owned())
        .collect()
}

/// Compiles the manual's C program. Without a C compiler, returns false and prints a skip.
fn compile_scatter(env: &TestEnv) -> bool {
    if !test_env::is_installed("gcc") {
        skip("compiled scatter", "gcc is not installed");
        return false;
    }
    let sources = binaries::root().join("examples/scatter");
    let outcome = env.sh(&format!("scorecc -O2 -o my_scatter {}/*.c", sources.display())).run();
    assert_eq!(outcome.code, 0, "{outcome}");
    true
}

// Promise (use): In an allocation of Slurm (salloc, sbatch) and in a parallel environment of Grid
// Engine, jobs run on the allocated hosts; scancel leaves nothing of them.
#[test]
fn a_job_runs_on_the_hosts_that_salloc_has_allocated() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::slurm(&env, 3) else { return };
    let hosts = run_three_jobs(&env, &testbed);
    assert_eq!(hosts.join(" "), "node1 node1 node2 node2 node3 node3");
}

// Promise of `a_job_runs_on_the_hosts_that_salloc_has_allocated`.
#[test]
fn a_batch_script_of_slurm_runs_a_program_of_its_user_on_all_its_hosts() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::slurm(&env, 3) else { return };
    if !compile_scatter(&env) {
        return;
    }
    // The script runs on the first host of the allocation.
    let script = LINE_COUNT_JOB.replace("scatter", "./my_scatter");
    env.write_file("script", format!("#!/bin/sh\nhostname >&2\n{script}\nexit 5\n"));
    let line = "sbatch --quiet --wait --nodes=3 --output=output --error=error script; code=$?; \
                cat output; cat error >&2; exit $code";
    let outcome =
        testbed.outside().run(&env, 4, line).timeout(COMMAND_TIMEOUT).run().expect_code(5);
    assert_eq!(outcome.stderr, "node1\n");
    assert_eq!(outcome.text(), "20\n".repeat(6), "{outcome}");
}

// Promise of `a_job_runs_on_the_hosts_that_salloc_has_allocated`.
#[test]
fn scancel_ends_a_job_with_all_processes_that_it_has_started() {
    for submit_command in
        ["salloc --quiet --nodes=2 sh ./script", "sbatch --quiet --nodes=2 script"]
    {
        let env = TestEnv::new();
        let Some(testbed) = Testbed::slurm(&env, 2) else { return };
        // One process of each node has left its session. No other process on this machine sleeps
        // for this time.
        let sleep_seconds = 300_000 + std::process::id();
        let node_script = format!(
            "setsid sleep {sleep_seconds}.1 & echo up; touch here; exec sleep {sleep_seconds}.2"
        );
        env.write_file(
            "script",
            format!(
                "#!/bin/sh\nexec scrun -nodes=2x2,message=quiet system sh -c '{node_script}' > output 2>&1\n"
            ),
        );
        let line = format!(
            "{submit_command} > out 2> error & \
             count() {{ pgrep -fc '^sleep {sleep_seconds}.[12]$'; }}; tries=0; \
             until [ \"$(count)\" = 8 ]; do tries=$((tries + 1)); \
             [ $tries -lt 400 ] || {{ cat output error; exit 9; }}; sleep 0.05; done; \
             scancel --quiet 1; wait; tries=0; \
             until [ \"$(count)\" = 0 ]; do tries=$((tries + 1)); \
             [ $tries -lt 400 ] || exit 8; sleep 0.05; done; cat output"
        );
        let outcome =
            testbed.outside().run(&env, 3, &line).timeout(COMMAND_TIMEOUT).run().expect_code(0);
        assert!(outcome.text().starts_with("up\nup\nup\nup\n"), "{submit_command}: {outcome}");
    }
}

// Promise of `a_job_runs_on_the_hosts_that_salloc_has_allocated`.
#[test]
fn a_job_runs_in_a_parallel_environment_of_grid_engine() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::grid_engine(&env, 3) else { return };
    let mut hosts = run_three_jobs(&env, &testbed);
    // Grid Engine lists the hosts in its own order.
    assert!(hosts.chunks(2).all(|pair| pair[0] == pair[1]), "{hosts:?}");
    hosts.sort();
    assert_eq!(hosts.join(" "), "node1 node1 node2 node2 node3 node3");
}
