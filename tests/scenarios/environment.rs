//! Every process has scrun's environment and the six variables that identify the process. Plain
//! programs start in the job's directory, which is removed with the job.

use score_tests::TestEnv;

#[test]
fn the_six_variables_are_right_on_every_node() {
    let env = TestEnv::new();
    let line = "scrun -nodes=3 system sh -c 'echo $SCORE_SELF_NODE $SCORE_NUM_NODE \
                $SCORE_SELF_PROC $SCORE_NUM_PROC $SCORE_SELF_HOST $SCORE_NUM_HOST'";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["0 3 0 3 0 1", "1 3 1 3 0 1", "2 3 2 3 0 1"]);
}

#[test]
fn scruns_environment_arrives_whole() {
    let env = TestEnv::new();
    let job = env.scrun(&["-nodes=1", "system", "sh", "-c", "printf '%s' \"$GREETING\""]);
    let outcome = job.env("GREETING", "several words\nand lines = äöü").run().expect_code(0);
    assert_eq!(outcome.text(), "several words\nand lines = äöü");
}

// Promise of `a_later_element_can_read_a_file_of_an_earlier_element`.
#[test]
fn the_job_directory_is_private_and_removed_afterwards() {
    let env = TestEnv::new();
    let outcome = env.sh("scrun -nodes=1 system sh -c 'pwd; stat -c %a .'").run().expect_code(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "700");
    assert!(!std::path::Path::new(lines[0]).exists(), "{} is still there", lines[0]);
}

#[test]
fn arguments_pass_unchanged() {
    let env = TestEnv::new();
    let odd_args = ["", " two  blanks ", "*", "$HOME", "-nodes=9", "ä\n'\"\\"];
    let mut args = vec!["-nodes=1", "system", "printf", "<%s>"];
    args.extend(odd_args);
    let outcome = env.scrun(&args).run().expect_code(0);
    let expected: String = odd_args.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(outcome.text(), expected);
}

#[test]
fn processes_start_with_default_signals_and_clean_descriptors() {
    let env = TestEnv::new();
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd";
    let outcome = env.scrun(&["-nodes=1", "system", "sh", "-c", script]).run().expect_code(0);
    let text = outcome.text();
    for line in text.lines().filter_map(|line| line.strip_prefix("Sig")) {
        let digits = line.split_whitespace().last().unwrap();
        let set = u64::from_str_radix(digits, 16).unwrap();
        // The C library reserves the signals 32 and 33, which cannot be reset.
        assert_eq!(set & !(0b11 << 31), 0, "{outcome}");
    }
    // The open descriptors are the streams, the control socket, and the directory that ls itself
    // has opened.
    let descriptors = text.lines().filter(|line| line.parse::<u32>().is_ok()).count();
    assert!(descriptors <= 5, "{outcome}");
}
