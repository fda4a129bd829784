//! Sends messages of random sizes between random numbers of nodes (tests/programs/traffic.c). The
//! receiver checks every message. In some jobs a node is killed in the middle, and then the job
//! must end.

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::TestEnv;

use crate::SoakOptions;
use crate::random::Random;

/// Runs the soak.
///
/// # Errors
/// Returns an error if a message was lost, altered or out of order, or if a job did not end. The
/// message has the command that repeats the run.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(program) = env.test_program("traffic") else {
        println!("messages: skipped, no C compiler");
        return Ok(());
    };
    let program = program.display().to_string();
    let (mut messages, mut killed) = (0_u64, 0_u64);
    let mut job_count = 0;
    for (index, seed) in soak_options.seeds() {
        let replay_error = |text: String| {
            format!("{text}\nagain: cargo xtask soak messages -count 1 -seed {seed}")
        };
        let random = &mut Random(seed);
        let nodes = 2 + random.below(7);
        // Nodes that share processors yield to each other. Fewer messages keep their job short.
        let count = if nodes <= 2 { 100_000 } else { 5_000 } + random.below(20_000);
        let block = if random.below(3) == 0 { "block" } else { "spin" };
        let (option, count_text) = (format!("-nodes={nodes}"), count.to_string());
        let program_seed = (seed % 1_000_000).to_string();
        let args = [option.as_str(), &program, &count_text, &program_seed, block];
        let job = env.scrun(&args).start();
        if random.below(4) == 0 {
            sleep(Duration::from_micros(random.next() % 300_000));
            let ranks =
                env.processes().into_iter().filter(|process| process.program() == "traffic");
            let ranks: Vec<_> = ranks.collect();
            if !ranks.is_empty() {
                ranks[random.below(ranks.len())].signal(Signal::SIGKILL);
                killed += 1;
            }
            let outcome = job.wait();
            // If a node was killed after its last message, its job may have ended normally.
            if ![0, 137].contains(&outcome.code) {
                return Err(replay_error(outcome.to_string()));
            }
        } else {
            let outcome = job.wait();
            if outcome.code != 0 || outcome.text() != "all in order\n".repeat(nodes) {
                return Err(replay_error(outcome.to_string()));
            }
            messages += (count * nodes) as u64;
        }
        let clean = env.wait_until_clean(Duration::from_secs(5));
        clean.map_err(|left| replay_error(format!("left: {left:#?}")))?;
        job_count = index + 1;
        print!(
            "\rmessages: {job_count} jobs, {messages} messages checked, {killed} nodes killed   "
        );
        let _ = std::io::stdout().flush();
    }
    println!(
        "\rmessages: {job_count} jobs, {messages} messages in order, {killed} nodes killed   "
    );
    Ok(())
}
