//! `print` of scdb: gdb evaluates an expression in each rank, on the host of the rank. scdb prints
//! equal values on one line. The ranks continue unchanged, and gdb calls no function in them.

use std::time::Duration;

use score_tests::{Job, Outcome, Running, TestEnv, binaries, skip, test_env};

const PRINT_TIMEOUT: Duration = Duration::from_secs(240);

/// Four ranks of the program `printed` on two virtual hosts. The values differ by rank: `color` is
/// 0, 0, 1, 1, and `cell` contains the number of the rank.
struct PrintedJob<'a> {
    env: &'a TestEnv,
    job: Running,
}

impl<'a> PrintedJob<'a> {
    /// Starts the job. Returns `None` without gdb or a compiler.
    fn start(env: &'a TestEnv) -> Option<Self> {
        for needed in ["gdb", "gcc"] {
            if !test_env::is_installed(needed) {
                skip("scdb_print", &format!("{needed} is not installed"));
                return None;
            }
        }
        let program = env.dir().join("printed");
        let source = binaries::root().join("tests/programs/printed.c");
        let paths = [source.to_str().unwrap(), "-o", program.to_str().unwrap()];
        let compiler = env.command("gcc").args(&["-g", "-O0", "-Wall", "-Wextra", "-Werror"]);
        let _ = compiler.args(&paths).run().expect_code(0);
        let end = env.dir().join("end");
        let words = ["system", program.to_str().unwrap(), end.to_str().unwrap()];
        let job = env.scrun(&["-group=local:2", "-nodes=2x2"]).args(&words);
        let mut job = job.timeout(PRINT_TIMEOUT).start();
        job.wait_for("up", 4);
        Some(Self { env, job })
    }

    fn scdb(&self, words: &[&str]) -> Job {
        let address = self.job.job_address();
        let scdb = self.env.command(binaries::program("scdb"));
        scdb.args(&[&address]).args(words).timeout(PRINT_TIMEOUT)
    }

    fn batch(&self, commands: &str, words: &[&str]) -> Outcome {
        let file = self.env.write_file("commands", commands);
        self.scdb(&["-batch", file.to_str().unwrap()]).args(words).run()
    }

    /// Lets the ranks end, and checks what they have computed.
    fn end(self) {
        self.env.write_file("end", "");
        let outcome = self.job.wait().expect_code(0);
        assert_eq!(outcome.text().matches("0 right, 0 calls").count(), 4, "{outcome}");
        self.env.assert_clean();
    }
}

// Promise (tools): `print` of scdb shows the value of an expression in many ranks, equal values
// once; a running rank is stopped only while its value is read, and no function of the program is
// called.
#[test]
fn equal_values_are_one_line_whether_ranks_run_are_held_or_have_stopped() {
    let env = TestEnv::new();
    let Some(job) = PrintedJob::start(&env) else { return };
    // The ranks run. The expressions are a global, a struct, and a local variable of main, which
    // sleeps in libc.
    let text = job.scdb(&["print", "color"]).run().expect_code(0).text();
    assert_eq!(text, "ranks 0-1: 0\nranks 2-3: 1\n");
    let text = job.batch("print cell 1\nprint round > 0 2-3\n", &[]).expect_code(0).text();
    assert!(text.starts_with("rank 1: {row = 1, weight = 1.5, name = 0x"), "{text}");
    assert!(text.ends_with(" \"inner\"}\nranks 2-3: 1\n"), "{text}");
    // A rank that has stopped or is held stays in this state, and scdb shows the variables of its
    // current function. Rank 2 has a breakpoint, and runs.
    let commands = "break work 1-2\ncontinue 1\nhold 0\nprint cell.row 0-2\n\
                    print doubled * 0 1\nwait 0-2\n";
    let outcome = job.batch(commands, &["-json"]).expect_code(0);
    let documents: Vec<serde_json::Value> =
        outcome.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let value = |ranks: &str, value: &str| serde_json::json!({ "ranks": ranks, "value": value });
    let rows = [value("0", "0"), value("1", "1"), value("2", "2")];
    assert_eq!(documents[3]["answers"].as_array().unwrap()[..], rows);
    assert_eq!(documents[4]["answers"].as_array().unwrap()[..], [value("1", "0")]);
    let states: Vec<_> = documents[5]["answers"].as_array().unwrap().iter().collect();
    for (ranks, state) in [("0", "held"), ("1-2", "stopped")] {
        let is_it = |one: &&&serde_json::Value| one["ranks"] == ranks && one["state"] == state;
        assert_eq!(states.iter().filter(is_it).count(), 1, "{ranks}: {states:?}");
    }
    job.end();
}

// Promise of `equal_values_are_one_line_whether_ranks_run_are_held_or_have_stopped`.
#[test]
fn a_print_that_fails_shows_the_reason_and_changes_no_state() {
    let env = TestEnv::new();
    let Some(mut job) = PrintedJob::start(&env) else { return };
    for (words, line) in [
        (&["nothing", "1-2"][..], "ranks 1-2: No symbol \"nothing\" in current context."),
        (&["twice(2)", "0"], "rank 0: Cannot call functions in the program"),
        (&["color = 9", "2"], "rank 2: Writing to memory is not allowed"),
        (&["color", "4"], "rank 4: job 1 has ranks 0 to 3"),
    ] {
        let outcome = job.scdb(&["print"]).args(words).run().expect_code(1);
        assert_eq!(outcome.text(), "");
        let _ = outcome.assert_stderr(&[&format!("scdb: {line}")]);
    }
    let outcome = job.scdb(&["print", "color"]).env("PATH", "/none").run().expect_code(1);
    let _ = outcome
        .assert_stderr(&["scdb: print needs gdb in PATH on this host", "install the package"]);
    env.write_file("end.3", "");
    job.job.wait_for("right", 1);
    let outcome = job.scdb(&["print", "color", "2-3"]).run().expect_code(1);
    assert_eq!(outcome.text(), "rank 2: 1\n");
    let _ = outcome.assert_stderr(&["scdb: rank 3: it has ended"]);
    job.end();
}
