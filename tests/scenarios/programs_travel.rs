//! Programs of a job on several hosts travel there: each host starts its own copy, below the job's
//! directory, whatever the disks of the hosts hold. Virtual hosts have one disk: they share the
//! copy of the first, under a name of each. What travels for real travels here to hosts that a
//! remote shell reaches: one that goes nowhere.

use std::os::unix::fs::PermissionsExt;

use score_tests::{Outcome, Scene};

fn script(scene: &Scene, name: &str, text: &str) -> String {
    let path = scene.dir().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a program on so many hosts, one node on each, which are other hosts for all that SCore
/// knows.
fn elsewhere(scene: &Scene, hosts: u32, words: &[&str]) -> Outcome {
    let names: Vec<String> = (1..=hosts).map(|number| format!("n{number}\n")).collect();
    let machines = scene.file("machines", names.concat());
    let shell = scene.file("shell", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let on = format!("-file={},nodes={hosts}x1", machines.display());
    let job = scene.scrun(&[&[on.as_str()], words].concat());
    job.env("SCORE_RSH", &format!("sh {}", shell.display())).run()
}

/// Twelve hosts: some get it from others.
fn copies(outcome: &Outcome) -> Vec<u64> {
    let text = outcome.text();
    let mut copies: Vec<&str> =
        text.lines().filter_map(|line| line.strip_suffix("/.bin/where word")).collect();
    copies.sort_unstable();
    copies.dedup();
    assert_eq!(copies.len(), 12, "{outcome}");
    let files = text.lines().filter(|line| line.contains(" -rwx------ "));
    files.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

const WHERE: &str = "#!/bin/sh\necho \"$0 $1\"; ls -ldi .bin/where\n";

#[test]
fn every_host_starts_its_own_copy() {
    let scene = Scene::new();
    let path = script(&scene, "where", WHERE);
    let outcome = elsewhere(&scene, 12, &[&path, "word"]).expect(0);
    let mut files = copies(&outcome);
    files.sort_unstable();
    files.dedup();
    assert_eq!(files.len(), 12, "{outcome}");
}

#[test]
fn virtual_hosts_share_one_copy() {
    let scene = Scene::new();
    let path = script(&scene, "where", WHERE);
    // All of them; then without the one where the server is.
    for on in ["-group=local:12,nodes=12x1", "-group=local:13@1:12,nodes=12x1"] {
        let outcome = scene.scrun(&[on, &path, "word"]).run().expect(0);
        let files = copies(&outcome);
        assert_eq!(files, vec![files[0]; 12], "{outcome}");
    }
}

#[test]
fn namesakes_are_kept_apart() {
    let scene = Scene::new();
    let one = script(&scene, "one/run", "#!/bin/sh\necho one\n");
    let other = script(&scene, "other/run", "#!/bin/sh\nsed 's/$/ and other/'\n");
    let words = ["-group=local:4,nodes=4x2", &one, "==", &other];
    let outcome = scene.scrun(&words).run().expect(0);
    assert_eq!(outcome.sorted(), ["one and other"; 8]);
}

#[test]
fn a_large_program_arrives_whole() {
    let scene = Scene::new();
    let path = script(&scene, "large", "#!/bin/sh\ntail -n +4 \"$0\" | cksum; exit\n");
    let mut bytes = std::fs::read(&path).unwrap();
    let first = bytes.len();
    bytes.extend_from_slice(b"#\n");
    bytes.extend((0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435) >> 7) as u8));
    std::fs::write(&path, &bytes).unwrap();
    let rest = scene.file("rest", &bytes[first + 2..]);
    let wanted = scene.sh(&format!("cksum < {}", rest.display())).run().expect(0);
    let outcome = elsewhere(&scene, 4, &[&path]).expect(0);
    let wanted = wanted.text().trim().to_owned();
    assert_eq!(outcome.sorted(), vec![wanted; 4]);
}

#[test]
fn a_program_of_score_reaches_the_others() {
    let scene = Scene::new();
    let line =
        "seq 20 | scrun -group=local:4,nodes=4x1 scatter == system sort -n | sort -n | uniq -c";
    let outcome = scene.sh(line).run().expect(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let wanted: Vec<String> = (1..=20).map(|number| format!("4 {number}")).collect();
    assert_eq!(lines, wanted, "{outcome}");
}
