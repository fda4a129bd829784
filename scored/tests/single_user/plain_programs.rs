//! Plain programs: jobs whose programs do not use SCore.

use std::time::{Duration, Instant};

use crate::driver::*;
use score_proto::message::*;

#[test]
fn each_of_four_nodes_prints_one_line() {
    let outcome = run(job(4, vec![sh("echo $SCORE_SELF_NODE of $SCORE_NUM_NODE")]));
    assert_eq!(outcome.lines(), ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]);
    assert_eq!((outcome.code(), outcome.notices().as_str()), (0, ""));
}

#[test]
fn the_exit_code_of_a_job_follows_the_documented_rules() {
    // The script of each node, the exit code, and a part of a notice.
    for (script, code, notice) in [
        ("exit 0", 0, ""),
        ("exit 3", 3, "exited with code 3"),
        ("exit $SCORE_SELF_NODE", 0, "node 1 of sh exited with code 1"),
        ("test $SCORE_SELF_NODE = 0 && exit 5; exit 0", 5, ""),
        (
            "test $SCORE_SELF_NODE = 1 && kill -SEGV $$; sleep 50",
            139,
            "node 1 of sh was killed by SIGSEGV",
        ),
        ("kill -TERM $$; sleep 50", 143, "was killed by SIGTERM"),
    ] {
        let outcome = run(job(2, vec![sh(script)]));
        assert_eq!(outcome.code(), code, "{script}");
        assert!(outcome.notices().contains(notice), "{script}: {}", outcome.notices());
    }
}

#[test]
fn a_signal_that_arrives_together_with_the_job_is_delivered() {
    // Both messages arrive while scored starts, so scored reads them in one turn of its loop.
    for (request, code) in [(JobRequest::Signal(libc::SIGINT), 130), (JobRequest::Kill, 137)] {
        let mut driver = Driver::start(job(2, vec![sh("exec sleep 1000")]));
        driver.send(&request);
        assert_eq!(driver.finish().code(), code);
    }
}

#[test]
fn the_code_of_a_pipeline_is_its_rightmost_failure() {
    for (scripts, code) in [
        (["exit 3", "cat >/dev/null"], 3),
        (["exit 3", "cat >/dev/null; exit 4"], 4),
        (["exit 0", "exit 4"], 4),
        (["exit 0", "cat"], 0),
    ] {
        let outcome = run(job(2, scripts.iter().map(|script| sh(script)).collect()));
        assert_eq!(outcome.code(), code, "{scripts:?}");
    }
}

#[test]
fn a_program_that_cannot_run_is_named_with_its_node() {
    let scratch = TempDir::new("cannot");
    let plain = scratch.file("plain", "not a program", 0o644);
    let missing = scratch.path("missing");
    for (words, kind, code, reason) in [
        (["nowhere-to-be-found"], ProgramKind::System { per_host: false }, 127, "not found"),
        ([missing.as_str()], ProgramKind::Plain, 127, "not found"),
        ([plain.as_str()], ProgramKind::Plain, 126, "Permission denied"),
        (["/"], ProgramKind::Plain, 126, "Permission denied"),
    ] {
        let outcome = run(job(3, vec![element(kind, &words)]));
        assert_eq!(outcome.code(), code, "{words:?}");
        let notices = outcome.notices();
        assert!(notices.starts_with("node ") && notices.contains(reason), "{notices}");
        assert_eq!(outcome.notices.len(), 1, "{notices}");
    }
}

#[test]
fn a_script_without_interpreter_line_runs_as_a_shell_would_run_it() {
    let scratch = TempDir::new("script");
    let script = scratch.file("script", "echo $0 $1 $#\n", 0o755);
    let outcome = run(job(1, vec![element(ProgramKind::Plain, &[&script, "one", "two"])]));
    assert_eq!(outcome.text(), format!("{script} one 2\n"));
}

#[test]
fn nodes_with_equal_numbers_are_joined_by_pipes() {
    let first = sh("echo from $SCORE_SELF_NODE");
    let second = sh("read line; echo $line through $SCORE_SELF_NODE");
    let third = sh("read line; echo $line to $SCORE_SELF_NODE; cat");
    let outcome = run(job(3, vec![first, second, third]));
    let expected: Vec<String> = (0..3).map(|n| format!("from {n} through {n} to {n}")).collect();
    assert_eq!(outcome.lines(), expected);
    assert_eq!(outcome.code(), 0);
}

#[test]
fn a_writer_whose_downstream_element_has_closed_ends_without_failure() {
    let outcome = run(job(2, vec![system(&["yes"]), system(&["head", "-1"])]));
    assert_eq!(outcome.text(), "y\ny\n");
    assert_eq!((outcome.code(), outcome.notices().as_str()), (0, ""));
}

#[test]
fn stages_run_one_after_the_other_until_one_fails() {
    let stages = vec![
        vec![sh("sleep 0.1; echo first")],
        vec![sh("echo second; exit 7")],
        vec![sh("echo third")],
    ];
    let outcome = run(sequence(2, stages));
    assert_eq!(outcome.text(), "first\nfirst\nsecond\nsecond\n");
    assert_eq!(outcome.code(), 7);
}

#[test]
fn host_option_of_system_runs_the_program_once() {
    let spec =
        element(ProgramKind::System { per_host: true }, &["sh", "-c", "echo $SCORE_SELF_NODE"]);
    let outcome = run(job(4, vec![spec, sh("cat; echo end")]));
    assert_eq!(outcome.lines(), ["0", "end", "end", "end", "end"]);
    assert_eq!(outcome.code(), 0);
}

#[test]
fn each_node_reads_its_own_redirected_output() {
    let mut write = sh("echo $SCORE_SELF_NODE");
    write.output = Output::File { name: file("out"), append: false };
    let mut again = sh("echo more");
    again.output = Output::File { name: file("out"), append: true };
    let mut read = sh("cat; ls");
    read.input = Input::File(file("out"));
    let outcome = run(sequence(2, vec![vec![write], vec![again], vec![read]]));
    let names = ["out.0", "out.0", "out.1", "out.1"];
    assert_eq!(outcome.lines(), [&["0", "1", "more", "more"][..], &names[..]].concat());
}

#[test]
fn a_single_process_writes_the_plain_name_and_all_nodes_read_it() {
    let mut write = sh("echo text");
    write.output = Output::File { name: file("out"), append: false };
    let mut read = sh("cat");
    read.input = Input::File(file("out"));
    assert_eq!(run(sequence(1, vec![vec![write], vec![read]])).text(), "text\n");
}

#[test]
fn only_the_first_process_writes_to_an_absolute_path_and_all_read_it() {
    let scratch = TempDir::new("absolute");
    let path = scratch.path("out");
    let mut write = sh("echo $SCORE_SELF_NODE");
    write.output = Output::File { name: file(&path), append: false };
    let mut read = sh("cat");
    read.input = Input::File(file(&path));
    assert_eq!(run(sequence(3, vec![vec![write], vec![read]])).text(), "0\n0\n0\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "0\n");
}

#[test]
fn a_missing_input_file_ends_the_job_with_host_and_name() {
    let mut read = sh("cat");
    read.input = Input::File(file("nothing"));
    let outcome = run(job(2, vec![read]));
    let host = score_sys::host_name::system_host_name();
    let notices = outcome.notices();
    assert!(notices.contains(&format!("host {host}: ")) && notices.contains("/nothing: No such"));
    assert_eq!(outcome.code(), 1);
}

#[test]
fn standard_input_reaches_node_0_of_the_first_stage_only() {
    let text: Vec<u8> = (0..300_000u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let mut spec = sequence(3, vec![vec![system(&["cat"])], vec![system(&["cat"])]]);
    spec.reads_stdin = true;
    let mut driver = Driver::start(spec);
    driver.input = text.clone();
    let outcome = driver.finish();
    assert!(outcome.out == text, "{} of {} bytes", outcome.out.len(), text.len());
}

#[test]
fn scrun_is_notified_if_its_input_is_not_read() {
    let mut spec = job(2, vec![sh("exec <&-; sleep 0.3")]);
    spec.reads_stdin = true;
    let mut driver = Driver::start(spec);
    driver.input = vec![b'x'; 4 << 20];
    assert!(driver.finish().stdin_closed);
}

#[test]
fn environment_and_directory_are_those_of_the_manual() {
    let script = "env | grep -E '^(SCORE_|PWD|OLDPWD|MARK)' | sort; pwd; umask";
    let mut spec =
        job(2, vec![sh(&format!("test $SCORE_SELF_NODE = 1 && {{ {script}; }}; exit 0"))]);
    spec.environment.push(bytes("MARK=a b\nc"));
    spec.environment.push(bytes("SCORE_SELF_NODE=77"));
    spec.umask = 0o027;
    let submit_dir = std::env::current_dir().unwrap().display().to_string();
    let outcome = run(spec);
    let dir = &outcome.dir;
    let expected = format!(
        "MARK=a b\nOLDPWD={submit_dir}\nPWD={dir}\nSCORE_CONTROL_FD=3\nSCORE_JOB_DIR={dir}\n\
         SCORE_NUM_HOST=1\nSCORE_NUM_NODE=2\nSCORE_NUM_PROC=2\nSCORE_SELF_HOST=0\n\
         SCORE_SELF_NODE=1\nSCORE_SELF_PROC=1\n{dir}\n0027\n"
    );
    assert_eq!(outcome.text(), expected);
}

#[test]
fn a_process_inherits_four_descriptors_default_signals_and_its_own_session() {
    let script = "ls /proc/self/fd | tr '\\n' ' '; grep -E 'Sig(Blk|Ign)' /proc/self/status | \
                  tr '\\n\\t' '  '; ps -o sid= -p $$ | tr -d ' '; echo $$";
    let text = run(job(1, vec![system(&["bash", "-c", script])])).text();
    let words: Vec<&str> = text.split_whitespace().collect();
    // Descriptor 3 is the control socket. Descriptor 4 is the directory that ls reads.
    assert_eq!(words[..6], ["0", "1", "2", "3", "4", "SigBlk:"], "{text}");
    assert_eq!(u64::from_str_radix(words[6], 16), Ok(0), "{text}");
    // The C library reserves signals 32 and 33, and programs cannot use them.
    let ignored = u64::from_str_radix(words[8], 16).unwrap();
    assert_eq!(ignored & !(3 << 31), 0, "{text}");
    assert_eq!(words[9], words[10], "{text}");
}

#[test]
fn a_prompt_without_newline_arrives_while_the_program_waits() {
    let mut driver = Driver::start(job(1, vec![sh("printf 'name? '; sleep 30; echo")]));
    driver.until("the prompt", |driver| driver.outcome.text() == "name? ");
    driver.send(&JobRequest::Kill);
    assert_eq!(driver.finish().code(), 137);
}

#[test]
fn four_writers_of_a_hundred_thousand_lines_lose_and_split_no_line() {
    let script = "$n = $ENV{SCORE_SELF_NODE}; \
                  for $i (0..99999) { print \"$n:$i:\", 'x' x ($i % 90), \"\\n\" }";
    let outcome = run(job(4, vec![system(&["perl", "-e", script])]));
    let mut next = [0usize; 4];
    for line in outcome.text().lines() {
        let mut parts = line.split(':');
        let node: usize = parts.next().unwrap().parse().unwrap();
        let number: usize = parts.next().unwrap().parse().unwrap();
        assert_eq!(number, next[node], "{line}");
        assert_eq!(parts.next().unwrap().len(), number % 90, "{line}");
        next[node] += 1;
    }
    assert_eq!(next, [100_000; 4]);
}

#[test]
fn lines_of_64_kib_written_at_once_stay_whole() {
    let script = "for (1..60) { syswrite STDOUT, ($ENV{SCORE_SELF_NODE} x 65536).\"\\n\" }";
    let outcome = run(job(4, vec![system(&["perl", "-e", script])]));
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 240);
    for line in lines {
        let first = line.as_bytes()[0];
        assert!(line.len() == 65536 && line.bytes().all(|byte| byte == first));
    }
}

#[test]
fn a_last_line_without_newline_and_standard_error_arrive() {
    let outcome = run(job(1, vec![sh("echo problem >&2; printf end")]));
    assert_eq!((outcome.text().as_str(), outcome.err.as_slice()), ("end", &b"problem\n"[..]));
}

#[test]
fn output_of_descendants_is_read_and_they_do_not_outlive_the_job() {
    let start = Instant::now();
    let mark = mark();
    let mut spec = job(2, vec![sh("setsid sleep 1000 & (setsid sh -c 'sleep 999 &') ; echo done")]);
    spec.environment.push(bytes(&mark));
    let outcome = run(spec);
    assert_eq!(outcome.text(), "done\ndone\n");
    assert!(start.elapsed() < Duration::from_secs(50));
    assert_eq!(marked(&mark), []);
}

#[test]
fn statistics_name_every_node() {
    let mut spec = job(2, vec![sh("exit 0"), sh("exit 3")]);
    spec.statistics = true;
    let end = run(spec).end.unwrap();
    let mut nodes: Vec<_> = end.usage.iter().map(|u| (u.element.0, u.node, u.code)).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [(0, 0, 0), (0, 1, 0), (1, 0, 3), (1, 1, 3)]);
    assert!(end.elapsed_ns > 0 && end.usage.iter().all(|usage| usage.max_rss_kib > 0));
}

#[test]
fn an_impossible_job_is_refused_with_both_numbers() {
    let refused = |spec: JobSpec| {
        let outcome = run(spec);
        assert_eq!(outcome.dir, "");
        outcome.refused.expect("refused").0
    };
    let two_hosts = JobSpec { hosts: vec![HostSpec::local(1); 2], ..job(2, vec![sh("exit 0")]) };
    assert!(refused(two_hosts).contains("2 hosts"));
    let no_nodes = refused(job(0, vec![sh("exit 0")]));
    assert!(no_nodes.contains("0 nodes") && no_nodes.contains("1048576"));
    let too_many = refused(job(1_000_000, vec![sh("exit 0")]));
    assert!(too_many.contains("1000000") && too_many.contains("this machine allows"), "{too_many}");
    assert!(refused(sequence(1, vec![])).contains("no program"));
    let mut relative = sh("exit 0");
    relative.output = Output::File { name: file("a/b"), append: false };
    assert!(refused(job(1, vec![relative])).contains("a/b"));
}
