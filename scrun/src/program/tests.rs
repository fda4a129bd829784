use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A directory with programs of all kinds, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("scrun-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for directory in ["own", "one", "two", "two/folder"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for (file, mode) in [
            ("own/scatter", 0o755),
            ("one/scatter", 0o755),
            ("one/plain", 0o644),
            ("two/plain", 0o755),
            ("one/text", 0o644),
            ("two/prog", 0o755),
        ] {
            fs::write(root.join(file), "#!/bin/sh\n").unwrap();
            fs::set_permissions(root.join(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        nix::unistd::mkfifo(&root.join("two/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        Self(root)
    }

    fn search_path(&self) -> ProgramSearchPath {
        let path = format!("{0}/one:{0}/two", self.0.display());
        ProgramSearchPath {
            scrun_directory: Some(self.0.join("own")),
            path: path.into(),
            directory: self.0.join("two"),
        }
    }

    fn resolve(&self, line: &str) -> Result<Program, (u8, String)> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let stages = crate::pipeline::parse(&words, 0).unwrap();
        resolve(&stages[0][0], &self.search_path()).map_err(|error| (error.code, error.line))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn names_are_found_as_a_shell_finds_them() {
    let tree = Tree::new("found");
    let file = |path: &str| Ok(Program::File(tree.0.join(path)));
    assert_eq!(tree.resolve("scatter"), file("own/scatter"));
    assert_eq!(tree.resolve("prog x"), file("two/prog"));
    // As in a shell, a file that is not executable does not hide a later one of the same name.
    assert_eq!(tree.resolve("plain"), file("two/plain"));
    assert_eq!(tree.resolve("./prog"), file("two/prog"));
    assert_eq!(tree.resolve(&format!("{}/one/scatter", tree.0.display())), file("one/scatter"));
}

#[test]
fn unusable_programs_get_the_exit_code_of_a_shell() {
    let tree = Tree::new("faults");
    for (name, code, expected) in [
        ("nosuch", 127, "not found in PATH"),
        ("./nosuch", 127, "no such file"),
        ("text", 126, "not executable"),
        ("folder", 127, "not found"),
        ("./folder", 126, "is a directory"),
        ("./fifo", 126, "not a regular file"),
        ("./prog/x", 126, "Not a directory"),
    ] {
        let (found, line) = tree.resolve(name).unwrap_err();
        assert_eq!(found, code, "{name}: {line}");
        assert!(line.contains(name) && line.contains(expected), "{name}: {line}");
    }
}

#[test]
fn system_accepts_a_program_and_only_the_option_host() {
    let tree = Tree::new("system");
    assert_eq!(tree.resolve("system ls -l"), Ok(Program::System { per_host: false, skip: 1 }));
    assert_eq!(tree.resolve("system -host ls"), Ok(Program::System { per_host: true, skip: 2 }));
    for line in ["system", "system -host", "system -hosts ls", "system -x ls"] {
        assert_eq!(tree.resolve(line).unwrap_err().0, 2, "{line}");
    }
}
