//! scorehosts(1).

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const DB: &str = "\
/* Eight hosts. */
#define PCC cpugen=opteron speed=2.4 cores=8 network=ethernet
ethernet type=ethernet trusted=yes
comp[0-7] PCC group=all
spare0 PCC group=spares rack=7
~comp1 spare=spare0
~comp2
";

struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("scorehosts-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("db"), DB).unwrap();
        std::fs::write(root.join("file"), "comp3\ncomp4\n").unwrap();
        Self(root)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scorehosts"));
        command.args(words).current_dir(&self.0).env("SCBDSERV", self.0.join("db"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    fn stdout_of(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that must fail with this code and print nothing else.
    fn stderr_of_failure(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// Promise (hosts): scorehosts evaluates expressions as the page of SCore 7 shows.
#[test]
fn expressions_yield_the_hosts_of_the_score_7_manual() {
    let files = Files::new("expressions");
    for (expression, expected) in [
        ("all:4", "comp0 comp1 comp2 comp3\n"),
        ("all@comp6", "comp6 comp7\n"),
        ("all~comp1~comp3~comp5~comp7", "comp0 comp2 comp4 comp6\n"),
        ("comp0+./file", "comp0 comp3 comp4\n"),
        ("./file^comp7", "comp7 comp3 comp4\n"),
        ("local:2", "local0 local1\n"),
    ] {
        assert_eq!(files.stdout_of(&["-i", expression]), expected, "{expression}");
        assert_eq!(files.stdout_of(&["-i", "-g", expression]), expected, "{expression}");
    }
    assert_eq!(files.stdout_of(&["-i", "-l", "-group", "./file"]), "comp3\ncomp4\n");
}

// Promise of `groups_expressions_and_lists_give_the_hosts_of_the_database`.
#[test]
fn defects_are_replaced_shown_or_ignored() {
    let files = Files::new("defects");
    let output = files.run(&["all:4"]);
    assert_eq!(output.stdout, b"comp0 spare0 comp3\n");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        notes,
        "scorehosts: comp1 is out of order: replaced by spare0\n\
         scorehosts: comp2: out of order, and no spare is available\n\
         scorehosts: 3 hosts\n"
    );
    assert_eq!(files.stdout_of(&["-r", "all:4"]), "comp0 spare0 comp3\n");
    assert_eq!(files.stdout_of(&["-i", "all:4"]), "comp0 comp1 comp2 comp3\n");
    assert_eq!(files.stdout_of(&["-s", "all:2"]), "comp0 comp1 spare0\n");
    assert_eq!(files.stdout_of(&["-d"]), "comp1 comp2\n");
    assert!(files.run(&["-q", "all:4"]).stderr.is_empty());
    assert_eq!(files.stdout_of(&["-d", "-defects", "file"]), "comp1 comp2 comp3 comp4\n");
    std::fs::write(files.0.join("scorehosts.defects"), "comp7\n").unwrap();
    assert_eq!(files.stdout_of(&["-d"]), "comp1 comp2 comp7\n");
    let _ = files.stderr_of_failure(&["-q", "comp2"], 1);
}

#[test]
fn json_has_every_field() {
    let files = Files::new("json");
    let output: serde_json::Value =
        serde_json::from_str(&files.stdout_of(&["-json", "comp1+comp2+comp0"])).unwrap();
    assert_eq!(output["hosts"][0]["name"], "spare0");
    assert_eq!(output["hosts"][0]["cores"], 8);
    assert_eq!(output["hosts"][0]["own"]["rack"][0], "7");
    assert_eq!(output["replaced"][0]["host"], "comp1");
    assert_eq!(output["missing"][0], "comp2");
}

#[test]
fn check_reports_the_contents_and_errors_of_a_file() {
    let files = Files::new("check");
    let text = files.stdout_of(&["--check"]);
    for expected in [
        "db: 9 hosts, 2 groups, 1 network",
        "group all: 8 hosts",
        "network ethernet: ethernet, trusted",
        "out of order: comp1 comp2",
        "attributes of your own: rack",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    std::fs::write(files.0.join("bad"), "comp0 cores=8\ncomp1 cors=8\n").unwrap();
    let text = files.stderr_of_failure(&["-check", "-file", "bad"], 2);
    assert_eq!(text, "scorehosts: bad:2: cors: unknown attribute; did you mean 'cores'?\n");
}

#[test]
fn every_error_names_the_faulty_word() {
    let files = Files::new("faults");
    for (words, expected) in [
        (&["al"][..], "'al': no host or group of "),
        (&["comp0+comp8"], "\n  comp0+comp8\n        ^"),
        (&["all:9"], "9 hosts are requested, but the set has 8 hosts"),
        (&["a", "b"], "b: a is already given (a+b is both)"),
        (&["-i", "-d"], "-i and -d exclude each other"),
        (&["-jsn"], "-jsn: unknown option; did you mean -json?"),
        (&["-file"], "-file: its value is missing"),
        (&["-file", "gone"], "gone: No such file"),
        (&["-defects", "gone"], "gone: No such file"),
        (&[""], "a host, a group or a file is expected first"),
    ] {
        let text = files.stderr_of_failure(words, 2);
        assert!(text.contains(expected) && text.starts_with("scorehosts: "), "{words:?}: {text}");
    }
    let server = files.command(&["all"]).env("SCBDSERV", "serv1").output().unwrap();
    assert!(String::from_utf8(server.stderr).unwrap().contains("SCBDSERV=serv1: "));
}

#[test]
fn help_is_printed_and_a_full_disk_is_exit_code_74() {
    let files = Files::new("help");
    assert!(files.stdout_of(&["-help"]).starts_with("usage: scorehosts"));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = files.command(&["all"]);
    let status = command.stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
}
