//! Options come from the command line and from SCORE_OPTIONS. If an option is given more than once,
//! the leftmost one takes effect. Unknown options belong to the program.

use score_tests::TestEnv;

#[test]
fn the_leftmost_of_equal_options_is_used() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2,nodes=5", "system", "echo", "x"]).run().expect_code(0);
    assert_eq!(outcome.text().lines().count(), 2);
}

#[test]
fn the_command_line_overrides_options_of_the_environment() {
    let env = TestEnv::new();
    let run = |args: &[&str]| {
        let outcome = env.scrun(args).env("SCORE_OPTIONS", "nodes=3").run().expect_code(0);
        outcome.text().lines().count()
    };
    assert_eq!(run(&["system", "echo", "x"]), 3);
    assert_eq!(run(&["-nodes=2", "system", "echo", "x"]), 2);
}

#[test]
fn an_error_in_the_environment_is_named_as_such() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["system", "true"]).env("SCORE_OPTIONS", "nodes=many").run();
    let _ = outcome.expect_code(2).assert_stderr(&["SCORE_OPTIONS", "many"]);
}

#[test]
fn one_host_times_processes_is_accepted() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=1x3", "system", "echo", "x"]).run().expect_code(0);
    assert_eq!(outcome.text(), "x\nx\nx\n");
}

#[test]
fn every_processor_gets_a_node_by_default() {
    let env = TestEnv::new();
    let processors = std::thread::available_parallelism().unwrap().get();
    let outcome = env.scrun(&["system", "echo", "x"]).run().expect_code(0);
    assert_eq!(outcome.text().lines().count(), processors);
}

#[test]
fn an_option_for_the_program_is_passed_to_score_get_opt() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("calls") else { return };
    let program = program.to_str().unwrap();
    let job = env.scrun(&["-nodes=2,colour=blue,shiny", program, "option", "colour"]);
    assert_eq!(job.run().expect_code(0).text(), "[blue]\n[blue]\n");
    let job = env.scrun(&["-nodes=1,colour=blue,shiny", program, "option", "shiny"]);
    assert_eq!(job.run().expect_code(0).text(), "[]\n");
    let job = env.scrun(&["-nodes=1,colour=blue,shiny", program, "option", "absent"]);
    assert_eq!(job.run().expect_code(0).text(), "(none)\n");
}

#[test]
fn message_quiet_leaves_only_the_output_of_the_program() {
    let env = TestEnv::new();
    let outcome =
        env.scrun(&["-nodes=2,message=quiet", "system", "echo", "x"]).run().expect_code(0);
    assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("x\nx\n", ""));
}

#[test]
fn statistics_are_printed_at_the_end() {
    let env = TestEnv::new();
    for name in ["stat", "statistics"] {
        let option = format!("-nodes=2,{name}");
        let outcome = env.scrun(&[option.as_str(), "system", "echo", "x"]).run().expect_code(0);
        assert_eq!(outcome.text(), "x\nx\n");
        assert!(outcome.stderr.lines().count() >= 1, "no summary: {outcome}");
    }
}
