//! Tests of the commands without scrun.

use std::process::{Command, Output};

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).env_remove("SCORE_CONTROL_FD").output();
    output.unwrap()
}

const COMMANDS: [&str; 4] = [
    env!("CARGO_BIN_EXE_scatter"),
    env!("CARGO_BIN_EXE_gather"),
    env!("CARGO_BIN_EXE_system"),
    env!("CARGO_BIN_EXE_pmtest"),
];

#[test]
fn every_command_must_be_invoked_by_scrun() {
    for program in COMMANDS {
        let output = run(program, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{program}");
        assert!(stderr.contains("must be invoked by scrun"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1);
    }
}

#[test]
fn every_command_prints_its_usage() {
    for program in COMMANDS {
        let output = run(program, &["-help"]);
        assert!(output.status.success() && output.stdout.starts_with(b"usage: scrun"));
    }
}

#[test]
fn pmtest_with_the_option_alone_sends_to_itself() {
    let output = run(env!("CARGO_BIN_EXE_pmtest"), &["-alone", "1000"]);
    assert_eq!(output.stdout, b"1000 messages of 8 bytes\n", "{output:?}");
    let output = run(env!("CARGO_BIN_EXE_pmtest"), &["-rma", "-alone", "1000"]);
    assert_eq!(output.stdout, b"1000 puts of 8 bytes\n", "{output:?}");
}
