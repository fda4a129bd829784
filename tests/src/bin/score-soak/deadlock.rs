//! Random patterns of communication (tests/programs/patterns.c): those that come to an end are
//! never called deadlocked, those in which one message is never sent always are. It is looked
//! whether all are idle as often as if another job waited.

use std::io::Write;
use std::time::{Duration, Instant};

use score_tests::Scene;

use crate::Plan;
use crate::random::Random;

/// The exit code of a deadlock.
const DEADLOCK: i32 = 35;
/// For a job that shares its processors with much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Names a variable of scored's environment: microseconds.
const PACE: &str = "SCORE_TEST_PACE";

/// Runs the plan.
///
/// # Errors
/// A verdict was wrong, or did not come; the line says how to see it again.
pub fn run(plan: &Plan) -> Result<(), String> {
    let scene = Scene::new();
    let Some(program) = scene.program("patterns") else {
        println!("deadlock: skipped, no C compiler");
        return Ok(());
    };
    let program = program.display().to_string();
    let (mut alive, mut dead, mut slowest) = (0_u64, 0_u64, Duration::ZERO);
    for (_, seed) in plan.seeds() {
        let fault = |text: String| {
            format!("{text}\nagain: cargo xtask soak deadlock -count 1 -seed {seed}")
        };
        let random = &mut Random(seed);
        let shape = match random.below(3) {
            0 => format!("-nodes={}", 2 + random.below(4)),
            1 => "-group=local:2,nodes=2x1".to_owned(),
            _ => format!("-group=local:2,nodes=2x{}", 2 + random.below(2)),
        };
        let steps = (5 + random.below(60)).to_string();
        let number = (random.next() % 1_000_000).to_string();
        let dies = random.below(4) == 0;
        let end = if dies { "dead" } else { "alive" };
        let words = [shape.as_str(), &program, &number, &steps, end];
        let begin = Instant::now();
        let outcome = scene.scrun(&words).env(PACE, "1000").watchdog(PATIENCE).run();
        let wanted = if dies { DEADLOCK } else { 0 };
        if outcome.code != wanted {
            return Err(fault(format!("{words:?}: {outcome}")));
        }
        if dies {
            dead += 1;
            slowest = slowest.max(begin.elapsed());
        } else {
            alive += 1;
        }
        print!("\rdeadlock: {alive} jobs came to their end, {dead} deadlocks were found   ");
        let _ = std::io::stdout().flush();
    }
    println!(
        "\rdeadlock: {alive} jobs came to their end and 0 were accused, {dead} deadlocks were \
         found, the last of them {:.1} s after the job's start",
        slowest.as_secs_f64()
    );
    Ok(())
}
