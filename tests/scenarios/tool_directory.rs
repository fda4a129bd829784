//! The directory `.jobs/ID` in the job's directory describes the job on each host to tools. Only
//! the user can read it. It describes the running stage, and is removed with the job. If `-x` sets
//! a variable, only the job's processes get it.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::{Running, TestEnv};

/// Waits for a file of the directory that describes the running stage.
fn wait_for_file(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::symlink_metadata(path).is_err() {
        assert!(Instant::now() < deadline, "{} is missing", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the directory for tools of a job whose processes print their directory.
fn tool_directory(job: &mut Running) -> PathBuf {
    job.wait_for("/job-", 1);
    let stdout = job.stdout();
    let path = stdout.lines().find(|line| line.contains("/job-")).unwrap();
    let path = Path::new(path).join(".jobs/1");
    wait_for_file(&path.join("environ"));
    path
}

fn strings(path: &Path) -> Vec<String> {
    let text = String::from_utf8(std::fs::read(path).unwrap()).unwrap();
    let list = text.strip_suffix('\0').unwrap_or_else(|| panic!("{text:?}"));
    list.split_terminator('\0').map(str::to_owned).collect()
}

fn names(path: PathBuf) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_directory_describes_programs_user_and_sockets() {
    let env = TestEnv::new();
    let line = "exec scrun -nodes=3 -x ONLY=ranks system sh -c 'pwd; exec sleep 300' '' == system \
                sleep 301";
    let job = env.sh(line).start();
    // The standard input of the second program of the pipeline is the output of the first.
    let rank = env.wait_for_process("a rank", |process| process.command == "sleep 300");
    let directory = std::fs::read_link(format!("/proc/{}/cwd", rank.pid)).unwrap();
    let path = directory.join(".jobs/1");
    wait_for_file(&path.join("environ.1"));
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o700);
    assert_eq!(metadata.uid(), nix::unistd::geteuid().as_raw());
    let exe = |name: &str| std::fs::read_link(path.join(name)).unwrap();
    assert!(exe("exe").ends_with("sh") && exe("exe.1").ends_with("sleep"), "{:?}", exe("exe"));
    assert_eq!(exe("wdir"), directory);
    assert_eq!(strings(&path.join("cmdline")), ["-c", "pwd; exec sleep 300", ""]);
    assert_eq!(strings(&path.join("cmdline.1")), ["301"]);
    let environ = strings(&path.join("environ"));
    assert!(environ.iter().any(|variable| variable == "ONLY=ranks"), "{environ:?}");
    assert!(environ.iter().any(|variable| variable == "SCORE_NUM_NODE=3"), "{environ:?}");
    let uid = std::fs::read_to_string(path.join("loginuid")).unwrap();
    assert_eq!(uid, nix::unistd::geteuid().to_string());
    assert_eq!(strings(&path.join("loggingids"))[0], nix::unistd::getegid().to_string());
    assert_eq!(std::fs::read_to_string(path.join("tools/protocol")).unwrap(), "7");
    assert_eq!(names(path.join("tools/status")), [] as [&str; 0]);
    // The job has two programs of three nodes each. The rank is the row of the process in the
    // table.
    assert_eq!(names(path.join("toolctl_rank")), ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(names(path.join("toolctl_node")), ["0"]);
    for link in ["toolctl_rank/5", "toolctl_node/0"] {
        assert_eq!(exe(link), directory.join(".toolctl"));
        assert!(path.join(link).as_os_str().len() <= 107);
    }
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
    assert!(!path.exists());
    env.assert_clean();
}

#[test]
fn the_directory_describes_each_stage_and_the_user_may_change_its_files() {
    let env = TestEnv::new();
    let line = "exec scrun -nodes=1 system sh -c 'pwd; until [ -e go ]; do sleep .01; done; \
                rm -r .jobs/1/toolctl_rank; ln -s /etc/passwd .jobs/1/environ.x' :: \
                system sh -c 'echo second; exec sleep 300'";
    let mut job = env.sh(line).start();
    let path = tool_directory(&mut job);
    let first = strings(&path.join("cmdline"));
    assert!(first[1].starts_with("pwd;"), "{first:?}");
    std::fs::write(path.join("../../go"), "").unwrap();
    job.wait_for("second", 1);
    wait_for_file(&path.join("environ"));
    assert!(strings(&path.join("cmdline"))[1].starts_with("echo second"));
    assert_eq!(names(path.join("toolctl_rank")), ["0"]);
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
    env.assert_clean();
}

#[test]
fn variables_of_ranks_reach_all_programs_and_no_daemon() {
    let env = TestEnv::new();
    let script = "grep -c libm.so.6 /proc/$$/maps; echo $A $B $LD_LIBRARY_PATH";
    let preload = "LD_PRELOAD=libm.so.6";
    let line = format!(
        "exec scrun -x {preload} -x A=1,2 -x A=3 -x LD_LIBRARY_PATH=/none -nodes=1 system sh \
         -c '{script}; true' == system sh -c '{script}; cat' :: \
         system sh -c '{script}; exec sleep 300'"
    );
    let mut job = env.sh(&line).env("B", "inherited").start();
    job.wait_for("1,2 inherited /none", 3);
    env.wait_for_process("the last program", |process| process.command == "sleep 300");
    let mut seen = 0;
    for process in env.processes() {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        let has_preload = environ.windows(preload.len()).any(|part| part == preload.as_bytes());
        assert_eq!(has_preload, process.command == "sleep 300", "{}", process.command);
        seen += u32::from(process.is_scored() || process.is_shepherd());
    }
    assert!(seen >= 2, "{:#?}", env.processes());
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    // The library is mapped at least once in each program.
    let counts: Vec<u32> = outcome.text().lines().filter_map(|line| line.parse().ok()).collect();
    assert!(counts.len() == 3 && counts.iter().all(|count| *count > 0), "{outcome}");
}
