//! SCore copies the programs of a job on several hosts to the hosts. Each host starts its own copy
//! in the job's directory, whatever files the host has. Virtual hosts have one disk and share the
//! first copy, each under its own name. The remote shell of this scenario stays on this machine, so
//! that "other" hosts get real copies.

use score_tests::{Outcome, TestEnv};

fn write_script(env: &TestEnv, name: &str, text: &str) -> String {
    env.write_script(name, text).to_str().unwrap().to_owned()
}

/// Runs a program with one node on each of `hosts` hosts. SCore considers them different hosts.
fn run_remote(env: &TestEnv, hosts: u32, args: &[&str]) -> Outcome {
    let names: Vec<String> = (1..=hosts).map(|number| format!("n{number}\n")).collect();
    let machines = env.write_file("machines", names.concat());
    let shell = env.write_file("shell", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let hosts_option = format!("-file={},nodes={hosts}x1", machines.display());
    let job = env.scrun(&[&[hosts_option.as_str()], args].concat());
    job.env("SCORE_RSH", &format!("sh {}", shell.display())).run()
}

/// Returns the inodes of the copies on twelve hosts. Some of them get the program from other hosts.
fn copy_inodes(outcome: &Outcome) -> Vec<u64> {
    let text = outcome.text();
    let mut copies: Vec<&str> =
        text.lines().filter_map(|line| line.strip_suffix("/.bin/where word")).collect();
    copies.sort_unstable();
    copies.dedup();
    assert_eq!(copies.len(), 12, "{outcome}");
    let files = text.lines().filter(|line| line.contains(" -rwx------ "));
    files.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

const PRINT_PATH_SCRIPT: &str = "#!/bin/sh\necho \"$0 $1\"; ls -ldi .bin/where\n";

// Promise (jobs on many hosts): Programs are copied to every host once, by content; each host
// starts its own private copy, and virtual hosts share one copy under separate names.
#[test]
fn every_host_starts_its_own_copy() {
    let env = TestEnv::new();
    let path = write_script(&env, "where", PRINT_PATH_SCRIPT);
    let outcome = run_remote(&env, 12, &[&path, "word"]).expect_code(0);
    let mut files = copy_inodes(&outcome);
    files.sort_unstable();
    files.dedup();
    assert_eq!(files.len(), 12, "{outcome}");
}

// Promise of `every_host_starts_its_own_copy`.
#[test]
fn virtual_hosts_share_one_copy() {
    let env = TestEnv::new();
    let path = write_script(&env, "where", PRINT_PATH_SCRIPT);
    // The job runs on all hosts, then on all hosts except the host of the server.
    for hosts_option in ["-group=local:12,nodes=12x1", "-group=local:13@1:12,nodes=12x1"] {
        let outcome = env.scrun(&[hosts_option, &path, "word"]).run().expect_code(0);
        let files = copy_inodes(&outcome);
        assert_eq!(files, vec![files[0]; 12], "{outcome}");
    }
}

// Promise of `every_host_starts_its_own_copy`.
#[test]
fn programs_with_the_same_name_are_kept_apart() {
    let env = TestEnv::new();
    let one = write_script(&env, "one/run", "#!/bin/sh\necho one\n");
    let other = write_script(&env, "other/run", "#!/bin/sh\nsed 's/$/ and other/'\n");
    let args = ["-group=local:4,nodes=4x2", &one, "==", &other];
    let outcome = env.scrun(&args).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["one and other"; 8]);
}

// Promise of `every_host_starts_its_own_copy`.
#[test]
fn a_large_program_arrives_whole() {
    let env = TestEnv::new();
    let path = write_script(&env, "large", "#!/bin/sh\ntail -n +4 \"$0\" | cksum; exit\n");
    let mut bytes = std::fs::read(&path).unwrap();
    let first = bytes.len();
    bytes.extend_from_slice(b"#\n");
    bytes.extend((0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435) >> 7) as u8));
    std::fs::write(&path, &bytes).unwrap();
    let rest = env.write_file("rest", &bytes[first + 2..]);
    let expected = env.sh(&format!("cksum < {}", rest.display())).run().expect_code(0);
    let outcome = run_remote(&env, 4, &[&path]).expect_code(0);
    let expected = expected.text().trim().to_owned();
    assert_eq!(outcome.sorted_lines(), vec![expected; 4]);
}

// Promise of `every_host_starts_its_own_copy`.
#[test]
fn a_program_of_score_is_copied_to_all_other_hosts() {
    let env = TestEnv::new();
    let line =
        "seq 20 | scrun -group=local:4,nodes=4x1 scatter == system sort -n | sort -n | uniq -c";
    let outcome = env.sh(line).run().expect_code(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let expected: Vec<String> = (1..=20).map(|number| format!("4 {number}")).collect();
    assert_eq!(lines, expected, "{outcome}");
}
