//! The directory that `-tool-files` names is copied to every host before the tool starts, with its
//! modes and links, as the job's user. It is removed with the job. If the directory cannot be sent,
//! or has no room on a host, scrun names it and starts nothing. `start_tool --files` does the same
//! for one tool of a running job, on the hosts of the tool, and SCore removes the copy with the
//! tool.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Job, Running, TestEnv, binaries, skip};

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
    job.wait_for_stderr("files: ");
    wait_until("a host shows no files", || job.stderr().matches("files: ").count() >= hosts);
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
    let has_archive = |place: &PathBuf| place.with_extension("archive").exists();
    wait_until("an archive is left", || !places.iter().any(has_archive));
    places
}

/// Starts a job on two hosts that SCore considers different, so that each fetches a copy. Its
/// processes print the job's directory.
fn start_on_two_hosts(env: &TestEnv, options: &[String]) -> Running {
    let machines = env.write_file("machines", "n1\nn2\n");
    let shell = env.write_file("shell", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let mut args = options.to_vec();
    args.push(format!("-file={},nodes=2x1", machines.display()));
    args.extend(["system", "sh", "-c", "echo at $(pwd); exec sleep 300"].map(str::to_owned));
    env.scrun(&args).env("SCORE_RSH", &format!("sh {}", shell.display())).start()
}

/// Returns the directories of a running job, one for each of `hosts` hosts.
fn job_directories(job: &mut Running, hosts: usize) -> Vec<PathBuf> {
    job.wait_for("\n", hosts);
    let text = job.stdout();
    let lines = text.lines().filter_map(|line| Some(line.strip_prefix("at ")?.into()));
    let directories: Vec<PathBuf> = lines.collect();
    assert_eq!(directories.len(), hosts, "{text}");
    directories
}

/// The names in a job's directory that belong to files for tools.
fn tool_files_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(".tool-files")).collect();
    names.sort();
    names
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_met() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the command that starts the tool of the directory `folder` for a job.
fn start_tool(env: &TestEnv, job: &Running, folder: &Path, options: &[&str]) -> Job {
    let (pid, folder) = (job.pid().to_string(), folder.to_str().unwrap());
    let command = env.command(binaries::program("start_tool"));
    let command = command.args(&["--pid", &pid, "--files", folder, "--tool", "%{files}/bin/tool"]);
    command.args(&["--args", "%{files}"]).args(options)
}

/// Makes a directory with a tool and the file `data`. Returns its path.
fn make_large_folder(env: &TestEnv) -> PathBuf {
    let folder = env.dir().join("large");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    let tool = folder.join("bin/tool");
    std::fs::write(&tool, "#!/bin/sh\necho sum $(cksum < $1/data)\nexec sleep 300\n").unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.join("data"), "short").unwrap();
    folder
}

/// Starts start_tool for the first tool of a job, and stops it while it sends the files.
fn stop_in_the_middle(env: &TestEnv, job: &Running, directories: &[PathBuf]) -> Running {
    let folder = env.dir().join("huge");
    std::fs::create_dir(&folder).unwrap();
    std::fs::File::create(folder.join("zeros")).unwrap().set_len(400_000_000).unwrap();
    let started = start_tool(env, job, &folder, &[]).start();
    let is_there = |directory: &PathBuf| directory.join(".tool-files-1.archive").exists();
    wait_until("no archive", || directories.iter().any(is_there));
    started.signal(Signal::SIGSTOP);
    let is_unpacked = |directory: &PathBuf| directory.join(".tool-files-1").exists();
    assert!(!directories.iter().any(is_unpacked), "start_tool was stopped too late");
    started
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
    let mut job = start_on_two_hosts(&env, &tool_options(&folder));
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

// Promise (tools): The directory of `start_tool --files` is copied to the hosts of the tool only,
// for the job's owner only, and removed with the tool or the job, whichever process is killed.
#[test]
fn the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends() {
    let env = TestEnv::new();
    let (folder, shown) = make_folder(&env);
    let mut job = start_on_two_hosts(&env, &[]);
    let directories = job_directories(&mut job, 2);
    let outcome = start_tool(&env, &job, &folder, &[]).run().expect_code(0);
    assert_eq!(outcome.text(), "tool %{files}/bin/tool has been started with ID 1.\n");
    let _ = places(&mut job, 2, geteuid().as_raw(), &shown);
    // The first host of the job only passes these files on.
    let _ = start_tool(&env, &job, &folder, &["--hosts", "n2"]).run().expect_code(0);
    job.wait_for_stderr("tool 2 on n2: files: ");
    let expected = [vec![".tool-files-1"], vec![".tool-files-1", ".tool-files-2"]];
    wait_until("the files are others, or an archive is left", || {
        let mut found: Vec<_> = directories.iter().map(|path| tool_files_in(path)).collect();
        found.sort();
        found == expected
    });
    // A tool without files of its own gets none.
    let pid = job.pid().to_string();
    let command = env.command(binaries::program("start_tool")).args(&["--pid", &pid]);
    let script = "-c 'echo ${SCORE_TOOL_FILES-none} %{files}'";
    let _ = command.args(&["--tool", "sh", "--args", script]).run().expect_code(0);
    job.wait_for_stderr("tool 3 on n1: none %{files}");
    let end_tool = env.command(binaries::program("end_tool")).args(&["--pid", &pid]);
    let _ = end_tool.args(&["--tool", "1"]).run().expect_code(0);
    let all_files = || directories.iter().flat_map(|path| tool_files_in(path)).collect::<Vec<_>>();
    wait_until("files of tool 1 are left", || all_files() == [".tool-files-2"]);
    // The supervisor of the tool is killed.
    let is_supervisor = |process: &Process| process.has_name("scored-tool");
    env.wait_for_process("the supervisor", is_supervisor).signal(Signal::SIGKILL);
    wait_until("files of tool 2 are left", || all_files().is_empty());
    // The program is not in the directory.
    let outcome = start_tool(&env, &job, &folder, &["--tool", "%{files}/none"]).run();
    let outcome = outcome.expect_code(127).assert_stderr(&["/none: not found"]);
    assert!(outcome.stderr.starts_with("start_tool: host n"), "{outcome}");
    wait_until("files of tool 4 are left", || all_files().is_empty());
    job.signal(Signal::SIGKILL);
    wait_until_removed(&env, job, &directories, "scrun");
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn a_directory_of_100_mb_reaches_all_hosts_unchanged() {
    let env = TestEnv::new();
    let folder = make_large_folder(&env);
    let block: Vec<u8> = (0..1_000_003u32).map(|number| ((number * 71) >> 5) as u8).collect();
    std::fs::write(folder.join("data"), block.repeat(100)).unwrap();
    let sum = env.sh("cksum < large/data").run().text();
    let mut job = start_on_two_hosts(&env, &[]);
    let directories = job_directories(&mut job, 2);
    let _ = start_tool(&env, &job, &folder, &[]).run().expect_code(0);
    for host in ["n1", "n2"] {
        job.wait_for_stderr(&format!("tool 1 on {host}: sum {}", sum.trim()));
    }
    wait_until("an archive is left", || {
        directories.iter().all(|path| tool_files_in(path) == [".tool-files-1"])
    });
    job.signal(Signal::SIGTERM);
    wait_until_removed(&env, job, &directories, "nothing");
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn a_start_tool_that_is_killed_while_it_sends_files_leaves_none() {
    let env = TestEnv::new();
    let folder = make_large_folder(&env);
    let mut job = start_on_two_hosts(&env, &[]);
    let directories = job_directories(&mut job, 2);
    let stopped = stop_in_the_middle(&env, &job, &directories);
    // Meanwhile the job has no other transfer, but may have other tools.
    let outcome = start_tool(&env, &job, &folder, &[]).run().expect_code(2);
    let _ = outcome.assert_stderr(&["the files of tool 1 are still being sent"]);
    let pid = job.pid().to_string();
    let command = env.command(binaries::program("start_tool")).args(&["--pid", &pid]);
    let _ = command.args(&["--tool", "true"]).run().expect_code(0);
    stopped.signal(Signal::SIGKILL);
    let _ = stopped.wait();
    wait_until("files are left", || directories.iter().all(|path| tool_files_in(path).is_empty()));
    // The next start_tool is not affected.
    let outcome = start_tool(&env, &job, &folder, &[]).run().expect_code(0);
    assert!(outcome.text().ends_with("with ID 3.\n"), "{outcome}");
    job.signal(Signal::SIGTERM);
    wait_until_removed(&env, job, &directories, "start_tool");
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn a_job_that_is_killed_during_a_transfer_leaves_no_files() {
    let victims: [Victim; 3] = [
        ("scored", Process::is_scored),
        ("the shepherd", Process::is_shepherd),
        ("scrun", Process::is_scrun),
    ];
    for (name, is_victim) in victims {
        let env = TestEnv::new();
        let script = "echo at $(pwd); exec sleep 300";
        let mut job =
            env.scrun(&["-group=local:2,nodes=2x1", "system", "sh", "-c", script]).start();
        let directories = job_directories(&mut job, 2);
        let stopped = stop_in_the_middle(&env, &job, &directories);
        env.wait_for_process(name, is_victim).signal(Signal::SIGKILL);
        wait_until("the job has not ended", || directories.iter().all(|path| !path.exists()));
        stopped.signal(Signal::SIGCONT);
        let outcome = stopped.wait();
        assert_ne!(outcome.code, 0, "{outcome}");
        wait_until_removed(&env, job, &directories, name);
    }
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn only_the_owner_of_a_job_sends_files_to_it_from_any_host() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let (folder, shown) = make_folder(&env);
    std::os::unix::fs::chown(folder.join("lib/secret"), Some(ALICE), None).unwrap();
    let options = ["-scored=all,nodes=2x1,disklimit=20", "system", "sh", "-c"];
    let job = cluster.command(ALICE, "scrun", "a").args(&options);
    let mut job = job.args(&["echo at $(pwd); exec sleep 300"]).start();
    let directories = job_directories(&mut job, 2);
    let listing = cluster.console(ALICE, "a", &["-list"]).text();
    let id = listing.split_whitespace().nth(1).unwrap().trim_end_matches(',').to_owned();
    let start = |uid: u32, host: &str, id: &str, folder: &Path| {
        let args = ["--id", id, "--tool", "%{files}/bin/tool", "--args", "%{files}", "--files"];
        let command = cluster.command(uid, "start_tool", host).args(&args);
        command.args(&[folder.to_str().unwrap()]).run()
    };
    let other = env.dir().join("other");
    std::fs::create_dir(&other).unwrap();
    let refused = start(BOB, "b", &id, &other);
    let wrong = start(BOB, "b", "999", &other);
    assert_eq!(refused.stderr.replace(&id, "ID"), wrong.stderr.replace("999", "ID"));
    assert_eq!((refused.code, wrong.code), (1, 1), "{refused}");
    // Host b is the server. Host a passes the bytes on to it.
    let outcome = start(ALICE, "a", &id, &folder);
    assert_eq!(outcome.code, 0, "{outcome}");
    let places = places(&mut job, 2, ALICE, &shown);
    for name in ["", "bin/tool", "lib/large", "lib/empty"] {
        let uid = std::fs::metadata(places[0].join(name)).unwrap().uid();
        assert_eq!(uid, ALICE, "{name}");
    }
    // The files exceed the limit, because the job already uses a part of it.
    std::fs::write(other.join("data"), vec![1; 9 << 20]).unwrap();
    let outcome = start(ALICE, "b", &id, &other);
    let line = "19 MB are needed temporarily, and the job has a disklimit of 20 MB, of which";
    let outcome = outcome.assert_stderr(&["host ", line]);
    assert_eq!(outcome.code, 1, "{outcome}");
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
    assert!(directories.iter().all(|path| !path.exists()), "{directories:?}");
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn a_directory_that_cannot_be_sent_is_named_and_no_tool_starts() {
    let env = TestEnv::new();
    let (folder, _) = make_folder(&env);
    let script = "echo at $(pwd); exec sleep 300";
    let mut job = env.scrun(&["-group=local:2,nodes=2x1", "system", "sh", "-c", script]).start();
    let directories = job_directories(&mut job, 2);
    let link = folder.join("lib/out");
    symlink("../../x", &link).unwrap();
    let outcome = start_tool(&env, &job, &folder, &[]).run().expect_code(2);
    let _ =
        outcome.assert_stderr(&["start_tool: --files ", "lib/out: it is a link that leads out"]);
    std::fs::remove_file(&link).unwrap();
    let outcome = start_tool(&env, &job, &folder, &["--hosts", "other"]).run().expect_code(2);
    let _ = outcome.assert_stderr(&["host other is not a host of the job"]);
    let missing = env.dir().join("missing");
    let outcome = start_tool(&env, &job, &missing, &[]).run().expect_code(2);
    let _ = outcome.assert_stderr(&["missing: No such file or directory"]);
    assert!(directories.iter().all(|path| tool_files_in(path).is_empty()));
    let outcome = start_tool(&env, &job, &folder, &[]).run().expect_code(0);
    assert!(outcome.text().ends_with("with ID 1.\n"), "no tool was started before: {outcome}");
    job.signal(Signal::SIGTERM);
    wait_until_removed(&env, job, &directories, "nothing");
}

// Promise of `the_files_of_start_tool_are_on_the_hosts_of_the_tool_until_it_ends`.
#[test]
fn a_full_disk_of_a_running_job_is_named_with_both_amounts() {
    let env = TestEnv::new();
    if !geteuid().is_root() {
        return skip("full_disk_and_tool_files", "only root can mount a small disk");
    }
    let (folder, _) = make_folder(&env);
    let start_tool = binaries::program("start_tool");
    let line = format!(
        "mkdir -p /var/scored && mount -t tmpfs -o size=4m,mode=755 none /var/scored || exit 9; \
         scrun -group=local:2,nodes=2x1 system sh -c 'echo up; exec sleep 300' > out & \
         until grep -q up out; do sleep .01; done; \
         {} --pid $! --files {} --tool %{{files}}/bin/tool; code=$?; \
         find /var/scored -name '.tool-files*' | sed 's/^/left: /'; kill $!; wait; exit $code",
        start_tool.display(),
        folder.display()
    );
    let outcome = env.command("unshare").args(&["-m", "sh", "-c", &line]).run();
    let outcome = outcome.assert_stderr(&["host local", "9 MB are needed", "where 4 MB are free"]);
    assert!(outcome.code == 1 && !outcome.text().contains("left: "), "{outcome}");
}
