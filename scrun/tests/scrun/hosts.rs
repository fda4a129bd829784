//! Hosts as a user names them: `-group`, `-file`, `-nodes` on the real scrun. `-resource` prints
//! the programs and their hosts, and does not start the job.

use std::path::PathBuf;
use std::process::{Command, Output};

const DB: &str = "#define PCC cores=4 cpugen=opteron\ncomp[0-3] PCC group=pcc\n\
    ~comp4 PCC group=pcc,odd spare=comp5\ncomp5 PCC\nold cores=1 cpugen=pentium group=pcc\n";

struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("scrun-hosts-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("db"), DB).unwrap();
        std::fs::write(root.join("bad"), "comp0 cores=4\ncomp1 cors=4\n").unwrap();
        std::fs::write(root.join("list"), "comp1\ncomp3\n").unwrap();
        Self(root)
    }

    /// Runs scrun with these options in the directory of the files.
    fn scrun(&self, options: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_scrun"))
            .args(options)
            .args(["system", "touch", "witness"])
            .current_dir(&self.0)
            .env_remove("SCORE_OPTIONS")
            .env("SCBDSERV", self.0.join("db"))
            .output()
            .unwrap()
    }

    fn layout_of(&self, option: &str) -> String {
        let output = self.scrun(&["-resource", option]);
        assert!(output.status.success(), "{option}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines =
            text.lines().filter(|line| line.starts_with("nodes:") || line.starts_with("host:"));
        lines.collect::<Vec<_>>().join("; ")
    }

    fn error_of(&self, option: &str) -> String {
        let output = self.scrun(&[option]);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
        assert!(output.stdout.is_empty() && !self.0.join("witness").exists(), "{option}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

// Promise (hosts): `scrun -group=local:4,nodes=4x2` runs two nodes on each of four hosts.
#[test]
fn four_virtual_hosts_get_two_nodes_each() {
    let files = Files::new("virtual");
    assert_eq!(
        files.layout_of("-group=local:4,nodes=4x2"),
        "nodes: 8 (4x2); host: local0 2; host: local1 2; host: local2 2; host: local3 2"
    );
    assert!(files.layout_of("-group=local:3,nodes=8").starts_with("nodes: 8 (3+3+2)"));
}

// Promise (hosts): Groups, expressions and lists of hosts select the hosts of the database; spares
// replace defective hosts.
#[test]
fn groups_expressions_and_lists_give_the_hosts_of_the_database() {
    let files = Files::new("groups");
    assert_eq!(
        files.layout_of("-group=pcc:2+comp3,nodes=6"),
        "nodes: 6 (2x3); host: comp0 3; host: comp1 3"
    );
    assert_eq!(files.layout_of("-group=comp[1-2]"), "nodes: 8 (2x4); host: comp1 4; host: comp2 4");
    assert_eq!(files.layout_of("-file=list"), "nodes: 8 (2x4); host: comp1 4; host: comp3 4");
    assert_eq!(files.layout_of("-group=pcc,hosts=1"), "nodes: 4 (1x4); host: comp0 4");
}

// Promise of `groups_expressions_and_lists_give_the_hosts_of_the_database`.
#[test]
fn a_spare_replaces_a_defective_host_and_the_user_is_notified() {
    let files = Files::new("spare");
    let output = files.scrun(&["-resource", "-group=odd"]);
    let (out, err) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    assert!(out.unwrap().contains("host: comp5 4"));
    assert!(err.unwrap().contains("comp4 is out of order: replaced by comp5"));
}

// Promise of `an_error_names_file_line_word_and_remedy`.
#[test]
fn invalid_hosts_are_reported_and_nothing_is_started() {
    let files = Files::new("wrong");
    for (option, parts) in [
        ("-group=pc", &["'pc'", "did you mean 'pcc'", "scrun -group=pc system"][..]),
        ("-group=pcc+comp9", &["'comp9'", "did you mean 'comp0'"]),
        ("-group=pcc:9", &["9 hosts are requested, but the set has 6 hosts"]),
        ("-group=local", &["local:4 is expected"]),
        ("-group=local:0", &["'0' is not a number of virtual hosts"]),
        ("-group=local:2+pcc", &["virtual hosts cannot be combined"]),
        ("-file=bad", &["bad:2: cors", "did you mean 'cores'"]),
        ("-file=gone", &["gone: No such file"]),
        ("-group=pcc,nodes=9x1", &["9 hosts are needed, 5 are available", "hetero"]),
        ("-group=pcc,nodes=99", &["99 nodes are requested, 5 hosts with 20 processors available"]),
        ("-nodes=2x2", &["2 hosts are needed, 1 is available", "group=local:N"]),
        ("-nodes=1.vax", &["bintype 'vax'"]),
    ] {
        let text = files.error_of(option);
        let has_all_parts = parts.iter().all(|part| text.contains(part));
        assert!(has_all_parts && text.contains('^'), "{option}: {text}");
    }
}
