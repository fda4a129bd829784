//! The directory that `-tool-files` names is copied to every host before the tool starts, with its
//! modes and links, as the job's user. It is removed with the job. If the directory cannot be sent,
//! or has no room on a host, scrun names it and starts nothing.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::process::Process;
use score_tests::service::{ALICE, Cluster};
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Running, TestEnv, binaries, skip};

/// A tool that prints the files it has got, and waits.
const TOOL: &str = "#!/bin/sh\ncd \"$SCORE_TOOL_FILES\" || exit 1\n\
                    echo \"files: $1 $(id -u) $(stat -c %a bin lib lib/large lib/secret | xargs) \
                    $(readlink lib/link) $(cat lib/link) $(cksum < lib/large | xargs)\"\n\
                    exec sleep 300\n";

type Victim = (&'static str, fn(&Process) -> bool);

/// Makes a directory with a tool. Returns its path, and the text that the tool prints after the
/// user id on each host.
fn make_folder(env: &TestEnv) -> (PathBuf, String) {
    let folder = env.dir().join("folder");
    for name in ["bin", "lib/empty"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let large: Vec<u8> =
        (0..3_000_000u32).map(|number| (number.wrapping_mul(2_654_435) >> 7) as u8).collect();
    let files = [("bin/tool", 0o755, TOOL.as_bytes()), ("lib/large", 0o444, &large)];
    for (name, mode, bytes) in files.into_iter().chain([("lib/secret", 0o600, &b"words"[..])]) {
        std::fs::write(folder.join(name), bytes).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.join(name), mode).unwrap();
    }
    symlink("../lib/secret", folder.join("lib/link")).unwrap();
    for name in ["bin", "lib", "lib/empty"] {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.join(name), mode).unwrap();
    }
    let sum = env.sh("cksum < folder/lib/large").run().text();
    (folder, format!("755 755 444 600 ../lib/secret words {}", sum.trim()))
}

/// Options for a job with this tool on every host.
fn tool_options(folder: &Path) -> [String; 6] {
    let folder = folder.to_str().unwrap();
    ["-tool-files", folder, "-tool", "%{files}/bin/tool", "-tool-arguments", "%{files}"]
        .map(str::to_owned)
}

/// Waits until the tool has printed its files on `hosts` hosts. Returns the directories of the
/// files.
fn places(job: &mut Running, hosts: usize, uid: u32, shown: &str) -> Vec<PathBuf> {
    let started_at = Instant::now();
    job.wait_for_stderr("files: ");
    while job.stderr().matches("files: ").count() < hosts {
        assert!(started_at.elapsed() < Duration::from_secs(10), "{}", job.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = job.stderr();
    let end = format!(" {uid} {shown}");
    let lines = text.lines().filter_map(|line| line.split_once("files: "));
    let mut places: Vec<PathBuf> = lines
        .map(|(_, line)| {
            line.strip_suffix(&end).unwrap_or_else(|| panic!("{line:?} has no {end:?}")).into()
        })
        .collect();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), hosts, "{text}");
    assert!(places.iter().all(|place| place.join("lib/large").is_file()), "{places:?}");
    // The transferred archive has been removed.
    assert!(places.iter().all(|place| !place.with_extension("archive").exists()), "{places:?}");
    places
}

/// Starts a job on two hosts that SCore considers different, so that each fetches a copy.
fn start_on_two_hosts(env: &TestEnv, folder: &Path) -> Running {
    let machines = env.write_file("machines", "n1\nn2\n");
    let shell = env.write_file("shell", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let mut args = tool_options(folder).to_vec();
    args.push(format!("-file={},nodes=2x1", machines.display()));
    args.extend(["system", "sleep", "300"].map(str::to_owned));
    env.scrun(&args).env("SCORE_RSH", &format!("sh {}", shell.display())).start()
}

/// Waits until the job has ended and nothing of it is left.
fn wait_until_removed(env: &TestEnv, job: Running, places: &[PathBuf], victim: &str) {
    let _ = job.wait();
    let clean = env.wait_until_clean(CLEANUP_TIMEOUT);
    clean.unwrap_or_else(|left| panic!("{victim}: {left:#?}"));
    assert!(places.iter().all(|place| !place.exists()), "{victim}: {places:?}");
}

// Promise (tools): The directory of `-tool-files` is copied in the same way, with modes and links,
// and removed with the job; a list of files from another host creates nothing outside its
// directory.
#[test]
fn every_host_has_the_directory_and_it_is_removed_with_the_job() {
    let env = TestEnv::new();
    let (folder, shown) = make_folder(&env);
    let mut job = start_on_two_hosts(&env, &folder);
    let places = places(&mut job, 2, geteuid().as_raw(), &shown);
    // A tool that is started later also finds the files.
    let pid = job.pid().to_string();
    let started = env.command(binaries::program("start_tool")).args(&["--pid", &pid]);
    let _ = started.args(&["--tool", "%{files}/bin/tool"]).run().expect_code(0);
    job.wait_for_stderr("tool 2 on n2: files: ");
    job.signal(Signal::SIGKILL);
    wait_until_removed(&env, job, &places, "scrun");
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn the_directory_is_removed_with_the_job_even_if_scored_or_the_shepherd_is_killed() {
    let victims: [Victim; 2] =
        [("scored", Process::is_scored), ("the shepherd", Process::is_shepherd)];
    for (name, is_victim) in victims {
        let env = TestEnv::new();
        let (folder, shown) = make_folder(&env);
        let mut args = tool_options(&folder).to_vec();
        // On virtual hosts, any surviving component removes the files from the common disk.
        args.extend(["-group=local:2,nodes=2x1", "system", "sleep", "300"].map(str::to_owned));
        let mut job = env.scrun(&args).start();
        let places = places(&mut job, 2, geteuid().as_raw(), &shown);
        env.wait_for_process(name, is_victim).signal(Signal::SIGKILL);
        wait_until_removed(&env, job, &places, name);
    }
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn the_staged_files_belong_to_the_user_of_the_job() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let (folder, shown) = make_folder(&env);
    std::os::unix::fs::chown(folder.join("lib/secret"), Some(ALICE), None).unwrap();
    let mut args = vec!["-scored=all,nodes=2x1".to_owned()];
    args.extend(tool_options(&folder));
    args.extend(["system", "sleep", "300"].map(str::to_owned));
    let mut job = cluster.command(ALICE, "scrun", "a").args(&args).start();
    let places = places(&mut job, 2, ALICE, &shown);
    for name in ["", "bin/tool", "lib/large", "lib/empty"] {
        let uid = std::fs::metadata(places[0].join(name)).unwrap().uid();
        assert_eq!(uid, ALICE, "{name}");
    }
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
    assert!(places.iter().all(|place| !place.exists()), "{places:?}");
    // The files are larger than the disk limit of the job.
    args[0].push_str(",disklimit=5");
    let outcome = cluster.command(ALICE, "scrun", "a").args(&args).run();
    let outcome = outcome.assert_stderr(&["host ", "6 MB are needed", "disklimit of 5 MB"]);
    assert_ne!(outcome.code, 0, "{outcome}");
}

#[test]
fn without_the_option_no_file_is_copied_and_the_variable_is_not_set() {
    let env = TestEnv::new();
    let script = "'pwd; ls -A; echo ${SCORE_TOOL_FILES-unset} %{files}; exec sleep 300'";
    let line = format!(
        "exec scrun -nodes=2x1,group=local:2 -tool sh -tool-arguments \"-c {script}\" system sh -c \
         'ls -A; exec sleep 300'",
    );
    let mut job = env.sh(&line.replace('$', "\\$")).start();
    job.wait_for_stderr("unset %{files}");
    assert!(!job.stdout().contains("tool-files") && !job.stderr().contains("tool-files"));
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn files_that_cannot_be_sent_are_named_before_the_job_starts() {
    let env = TestEnv::new();
    let (folder, _) = make_folder(&env);
    let assert_refused = |expected: &[&str]| {
        let mut args = tool_options(&folder).to_vec();
        args.extend(["-nodes=2", "system", "touch", "started"].map(str::to_owned));
        let _ = env.scrun(&args).run().expect_code(2).assert_stderr(expected);
        assert!(!env.dir().join("started").exists());
    };
    let link = folder.join("lib/out");
    for target in ["/etc/passwd", "../../x", "link/../../../x"] {
        symlink(target, &link).unwrap();
        assert_refused(&["tool-files", "lib/out: it is a link that leads out of the"]);
        std::fs::remove_file(&link).unwrap();
    }
    let _listener = UnixListener::bind(&link).unwrap();
    assert_refused(&["tool-files", "lib/out: a socket cannot be sent"]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_refused(&["tool-files", "folder: No such file or directory"]);
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn a_disk_without_space_is_named_with_both_amounts() {
    let env = TestEnv::new();
    if !geteuid().is_root() {
        return skip("full_disk_and_tool_files", "only root can mount a small disk");
    }
    let (folder, _) = make_folder(&env);
    let line = format!(
        "mkdir -p /var/scored && mount -t tmpfs -o size=4m,mode=755 none /var/scored && \
         scrun -group=local:2,nodes=2x1 -tool-files {} system touch started; code=$?; \
         ls -A /var/scored | sed 's/^/left: /'; exit $code",
        folder.display()
    );
    let outcome = env.command("unshare").args(&["-m", "sh", "-c", &line]).run();
    // Space is needed for the transferred archive, and for a copy on each virtual host.
    let outcome = outcome.assert_stderr(&["host local", "9 MB are needed", "where 4 MB are free"]);
    assert!(outcome.code != 0 && !outcome.text().contains("left: job-"), "{outcome}");
    assert!(!env.dir().join("started").exists());
}
