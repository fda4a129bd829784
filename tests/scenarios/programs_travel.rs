//! Programs of a job on several hosts travel there: each host starts its own copy, below the job's
//! directory, whatever the disks of the hosts hold.

use std::os::unix::fs::PermissionsExt;

use score_tests::Scene;

fn script(scene: &Scene, name: &str, text: &str) -> String {
    let path = scene.dir().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_host_starts_its_own_copy() {
    let scene = Scene::new();
    // Twelve hosts: some get it from others.
    let path = script(&scene, "where", "#!/bin/sh\necho \"$0 $1\"; ls -ld .bin/where\n");
    let outcome = scene.scrun(&["-group=local:12,nodes=12x1", &path, "word"]).run().expect(0);
    let text = outcome.text();
    let mut copies: Vec<&str> =
        text.lines().filter_map(|line| line.strip_suffix("/.bin/where word")).collect();
    copies.sort_unstable();
    copies.dedup();
    assert_eq!(copies.len(), 12, "{outcome}");
    let private = text.lines().filter(|line| line.starts_with("-rwx------ ")).count();
    assert_eq!(private, 12, "{outcome}");
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
    let outcome = scene.scrun(&["-group=local:4,nodes=4x1", &path]).run().expect(0);
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
