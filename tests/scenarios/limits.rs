//! A job has more nodes than PM or a program's own macros allow. scrun refuses the job before any
//! process starts, with both numbers in the message.

use score_tests::TestEnv;

// Promise (faults): More nodes than PM or a program's macros allow are refused with both numbers.
#[test]
fn more_nodes_than_pm_supports_are_refused_with_both_numbers() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=1048577", "system", "touch", "witness"]).run().expect_code(2);
    let _ = outcome.assert_stderr(&["1048577", "1048576"]);
}

// Promise of `more_nodes_than_pm_supports_are_refused_with_both_numbers`.
#[test]
fn the_limits_of_the_macros_are_checked_before_the_job_starts() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("two_or_three") else { return };
    let program = program.to_str().unwrap();
    for nodes in ["1", "4"] {
        let option = format!("-nodes={nodes}");
        let outcome = env.scrun(&[option.as_str(), program]).run();
        assert_eq!(outcome.code, 2, "{outcome}");
        assert!(outcome.stdout.is_empty(), "{outcome}");
        let limit = if nodes == "1" { "2" } else { "3" };
        let _ = outcome.assert_stderr(&[nodes, limit]);
    }
    let outcome = env.scrun(&["-nodes=3", program]).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["node 0 of 3", "node 1 of 3", "node 2 of 3"]);
}

#[test]
fn the_default_number_of_nodes_fits_the_macros() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("two_or_three") else { return };
    let outcome = env.scrun(&[program.to_str().unwrap()]).run().expect_code(0);
    let lines = outcome.text().lines().count();
    assert!((2..=3).contains(&lines), "{outcome}");
}

#[test]
fn programs_whose_macros_exclude_each_other_are_refused_with_their_numbers() {
    let env = TestEnv::new();
    let (Some(one), Some(two)) =
        (env.test_program("two_or_three"), env.test_program("five_or_more"))
    else {
        return;
    };
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let outcome = env.scrun(&[one, "==", two]).run();
    assert_eq!(outcome.code, 2, "{outcome}");
    let _ = outcome.assert_stderr(&["2", "3", "5"]);
}

// Promise (messages): The manual's scatter works by remote write, remote read and messages;
// SCORE_RSRC_ZEROCOPY gets a network with remote memory.
#[test]
fn zerocopy_gets_a_network_that_has_it_within_a_host_and_between_hosts() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("zerocopy") else { return };
    let program = program.to_str().unwrap();
    for shape in ["-nodes=2", "-group=local:2,nodes=2x1"] {
        let outcome = env.scrun(&[shape, program]).run().expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["node 0 of 2", "node 1 of 2"], "{shape}");
    }
}

#[test]
fn the_resource_option_shows_the_request_and_starts_no_job() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("two_or_three") else { return };
    let outcome = env.scrun(&["-nodes=2,resource", program.to_str().unwrap()]).run().expect_code(0);
    assert!(!outcome.text().contains("node 0 of"), "it ran: {outcome}");
    let shown = format!("{}{}", outcome.text(), outcome.stderr);
    assert!(shown.contains("two_or_three") && shown.contains('3'), "{outcome}");
}
