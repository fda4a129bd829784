//! Resource requests: `scrun -resource` on programs built by gcc. Their notes require a trial run
//! (manual 1.4.2, step 2).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("scrun-rsrc-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    /// Compiles a program with the notes LIBSCORE and RUN_LOCALLY, and this body of main. In the
    /// body, `fd` is the descriptor for the request.
    fn program(&self, name: &str, body: &str) -> PathBuf {
        let text = format!(
            "#include <stdlib.h>\n#include <unistd.h>\n\
             struct note {{ unsigned namesz, descsz, type; char name[8]; }};\n\
             static const struct note run __attribute__((used, aligned(4), \
             section(\".note.score\"))) = {{6, 0, 8, \"SCore\"}};\n\
             static const struct {{ struct note n; unsigned version; }} library \
             __attribute__((used, aligned(4), section(\".note.score\"))) = \
             {{{{6, 4, 1, \"SCore\"}}, 1}};\n\
             int main(void) {{ char *set = getenv(\"SCORE_RESOURCE_FD\"); \
             int fd = set ? atoi(set) : -1; (void)fd; {body} return 0; }}\n"
        );
        let source = self.0.join(format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        let path = self.0.join(name);
        let built = Command::new("gcc").arg("-o").arg(&path).arg(&source).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn resource(program: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scrun"))
        .args(["-resource".as_ref(), program.as_os_str()])
        .env_remove("SCORE_OPTIONS")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_request_written_by_a_local_run_is_added() {
    let scratch = Scratch::new("said");
    let body = "unsigned w[] = {2, 2, 3, 12}; if (write(fd, w, sizeof w) != sizeof w) return 1;";
    let output = resource(&scratch.program("said", body));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("nodes 3..12"), "{}", text(&output.stdout));
}

#[test]
fn the_local_run_has_no_input_and_its_output_is_discarded() {
    let scratch = Scratch::new("closed");
    let body = "char c; unsigned w[] = {3, 1, 5}; if (read(0, &c, 1) != 0) return 1; \
                if (write(1, \"noise\", 5) != 5) return 1; if (write(fd, w, 12) != 12) return 1;";
    let output = resource(&scratch.program("closed", body));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("5 processes per host"));
    assert!(!text(&output.stdout).contains("noise"));
}

#[test]
fn a_program_without_a_valid_request_is_refused_by_name() {
    let scratch = Scratch::new("nonsense");
    for (name, body) in [
        ("silent", ""),
        ("odd", "if (write(fd, \"abc\", 3) != 3) return 1;"),
        ("cut", "unsigned w[] = {2, 2, 3}; if (write(fd, w, 12) != 12) return 1;"),
        ("crash", "abort();"),
        ("long", "static char b[8192]; if (write(fd, b, 8192) != 8192) return 1;"),
    ] {
        let output = resource(&scratch.program(name, body));
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(text(&output.stderr).contains(&format!("/{name}: ")), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{name}");
    }
}

#[test]
fn a_program_that_hangs_is_given_five_seconds() {
    let scratch = Scratch::new("hangs");
    let start = Instant::now();
    let output = resource(&scratch.program("hangs", "pause();"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("within 5 s"), "{}", text(&output.stderr));
    assert!(start.elapsed() >= Duration::from_secs(5));
}
