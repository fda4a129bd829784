//! Runs random patterns of communication (tests/programs/patterns.c). Patterns that end must never
//! be reported as deadlocked. Patterns in which one message is never sent must always be reported.
//! The daemon samples the idle flags as often as if another job were waiting. Some runs are two
//! programs of MPI in time slices (mpi_deadlock.rs).

use std::io::Write;
use std::time::{Duration, Instant};

use score_tests::{EXIT_DEADLOCK, TestEnv};

use crate::SoakOptions;
use crate::mpi_deadlock::{MpiPatterns, MpiVerdicts};
use crate::random::Random;

/// Time limit of a job that shares its processors with other work.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// Environment variable of scored: the interval between samples of the idle flags, in microseconds.
const POLL_INTERVAL_ENV: &str = "SCORE_TEST_PACE";

/// Runs the soak.
///
/// # Errors
/// Returns an error if a verdict was wrong or missing. The message has the command that repeats the
/// run.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(program) = env.test_program("patterns") else {
        println!("deadlock: skipped, no C compiler");
        return Ok(());
    };
    let program = program.display().to_string();
    let mpi_patterns = MpiPatterns::compile(env.dir());
    if let Err(reason) = &mpi_patterns {
        println!("deadlock: programs of MPI are skipped: {reason}");
    }
    let (mut completed, mut deadlocked, mut slowest) = (0_u64, 0_u64, Duration::ZERO);
    let mut of_mpi = MpiVerdicts { completed: 0, deadlocked: 0 };
    for (_, seed) in soak_options.seeds() {
        let replay_error = |text: String| {
            format!("{text}\nagain: cargo xtask soak deadlock -count 1 -seed {seed}")
        };
        let random = &mut Random(seed);
        if random.below(4) == 0
            && let Ok(mpi_patterns) = &mpi_patterns
        {
            let verdicts = mpi_patterns.run(random).map_err(|text| {
                // Leftovers of the job are a result of the same error.
                env.ignore_leftovers();
                replay_error(text)
            })?;
            of_mpi.completed += verdicts.completed;
            of_mpi.deadlocked += verdicts.deadlocked;
            continue;
        }
        let shape_option = match random.below(3) {
            0 => format!("-nodes={}", 2 + random.below(4)),
            1 => "-group=local:2,nodes=2x1".to_owned(),
            _ => format!("-group=local:2,nodes=2x{}", 2 + random.below(2)),
        };
        let steps = (5 + random.below(60)).to_string();
        let program_seed = (random.next() % 1_000_000).to_string();
        let expects_deadlock = random.below(4) == 0;
        let ending = if expects_deadlock { "dead" } else { "alive" };
        let args = [shape_option.as_str(), &program, &program_seed, &steps, ending];
        let started_at = Instant::now();
        let outcome = env.scrun(&args).env(POLL_INTERVAL_ENV, "1000").timeout(JOB_TIMEOUT).run();
        let expected_code = if expects_deadlock { EXIT_DEADLOCK } else { 0 };
        if outcome.code != expected_code {
            return Err(replay_error(format!("{args:?}: {outcome}")));
        }
        if expects_deadlock {
            deadlocked += 1;
            slowest = slowest.max(started_at.elapsed());
        } else {
            completed += 1;
        }
        print!("\rdeadlock: {completed} jobs ended, {deadlocked} deadlocks were found   ");
        let _ = std::io::stdout().flush();
    }
    println!(
        "\rdeadlock: {completed} jobs ended without a false report, {deadlocked} deadlocks were \
         found, the slowest of them {:.1} s after the job's start; MPI in time slices: {} jobs \
         ended, {} deadlocks were found",
        slowest.as_secs_f64(),
        of_mpi.completed,
        of_mpi.deadlocked
    );
    Ok(())
}
