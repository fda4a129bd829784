//! `scored -makekey FILE` writes a new cluster key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn make(path: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scored")).arg("-makekey").arg(path).output().unwrap()
}

// Promise (cluster): A key is readable only by its owner and never overwritten; a truncated copy is
// detected.
#[test]
fn a_key_is_made_for_its_owner_alone_and_never_overwritten() {
    let folder = std::env::temp_dir().join(format!("scored-makekey-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let file = folder.join("cluster.key");
    let made = make(&file);
    assert!(made.status.success() && made.stdout.is_empty() && made.stderr.is_empty(), "{made:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = score_tree::key::Key::load(&file).unwrap();

    let again = make(&file);
    let line = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(line.contains("cluster.key already exists"), "{line}");
    assert!(key == score_tree::key::Key::load(&file).unwrap());

    let missing_folder = make(&folder.join("missing/key"));
    let line = String::from_utf8(missing_folder.stderr).unwrap();
    assert!(line.contains("missing/key") && line.lines().count() == 1, "{line}");
    fs::remove_dir_all(&folder).unwrap();
}
