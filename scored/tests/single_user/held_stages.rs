//! Held stages: for a debugger, the processes of a stage stop before their first instruction.

use std::fs;

use crate::driver::*;
use score_proto::message::*;

const RELEASE: JobRequest = JobRequest::Debugger(DebuggerRequest::ReleaseStage);
const LIST: JobRequest = JobRequest::Debugger(DebuggerRequest::ListProcesses);

fn options() -> [ScoredOptions; 2] {
    [false, true].map(|no_namespace| ScoredOptions { no_namespace, ..ScoredOptions::default() })
}

/// Starts a held job and waits for the list of `count` processes. Returns their process ids.
fn start_held(spec: JobSpec, options: ScoredOptions, count: usize) -> (Driver, Vec<u32>) {
    let mut driver = Driver::start_as(JobSpec { hold: true, ..spec }, options);
    let pids = next_list(&mut driver, count);
    (driver, pids)
}

fn next_list(driver: &mut Driver, count: usize) -> Vec<u32> {
    let pids = |driver: &Driver| -> Vec<u32> {
        let blocks = driver.outcome.processes.iter();
        blocks.flat_map(|block| block.pids.iter().copied()).collect()
    };
    driver.until("a list of processes", |driver| pids(driver).len() >= count);
    let pids = pids(driver);
    driver.outcome.processes.clear();
    assert_eq!(pids.len(), count);
    pids
}

fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

// Promise of `a_debugger_that_starts_scrun_finds_all_processes_before_their_first_instruction`.
#[test]
fn held_processes_are_listed_once_and_run_when_they_are_released() {
    for options in options() {
        let script = sh("echo $SCORE_SELF_NODE");
        let stages = vec![vec![script.clone(), sh("cat")], vec![script]];
        let (mut driver, pids) = start_held(sequence(3, stages), options, 6);
        assert!(pids.iter().all(|pid| state(*pid) == 'T'), "{pids:?}");
        // The user presses ^Z and then enters fg.
        driver.send(&JobRequest::Suspend);
        driver.send(&JobRequest::Resume);
        driver.send(&LIST);
        assert_eq!(next_list(&mut driver, 6), pids);
        assert!(pids.iter().all(|pid| state(*pid) == 'T'), "{pids:?}");
        assert!(driver.outcome.out.is_empty());
        driver.send(&RELEASE);
        assert_eq!(next_list(&mut driver, 3).len(), 3, "the second stage is held, too");
        assert_eq!(driver.outcome.lines(), ["0", "1", "2"]);
        driver.send(&JobRequest::Debugger(DebuggerRequest::HoldStages(false)));
        driver.send(&RELEASE);
        let outcome = driver.finish();
        assert_eq!((outcome.code(), outcome.lines().len()), (0, 6));
        assert!(outcome.processes.is_empty());
    }
}

#[test]
fn signals_end_held_processes_as_if_they_had_no_handlers_yet_and_a_kill_ends_them_all() {
    for options in options() {
        for (request, code) in [
            (JobRequest::Signal(libc::SIGINT), 128 + libc::SIGINT as u8),
            (JobRequest::Kill, 128 + libc::SIGKILL as u8),
        ] {
            let spec = job(3, vec![sh("trap : INT; echo ran; sleep 60")]);
            let (mut driver, pids) = start_held(spec, options.clone(), 3);
            driver.send(&JobRequest::Signal(libc::SIGWINCH));
            driver.send(&LIST);
            assert_eq!(next_list(&mut driver, 3), pids);
            assert!(pids.iter().all(|pid| state(*pid) == 'T'), "{pids:?}");
            driver.send(&request);
            let outcome = driver.finish();
            assert_eq!((outcome.code(), outcome.text().as_str()), (code, ""), "{request:?}");
        }
    }
}

#[test]
fn a_held_job_with_a_missing_program_ends_and_a_release_without_a_hold_has_no_effect() {
    let missing = ElementSpec { path: bytes("/nowhere"), ..sh("") };
    let missing = ElementSpec { kind: ProgramKind::Plain, ..missing };
    let spec = JobSpec { hold: true, ..job(2, vec![missing]) };
    assert_eq!(Driver::start(spec).finish().code(), 127);
    let mut driver = Driver::start(job(2, vec![sh("sleep 0.5; echo end")]));
    driver.send(&RELEASE);
    driver.send(&LIST);
    assert_eq!(next_list(&mut driver, 2).len(), 2);
    assert_eq!(driver.finish().lines(), ["end", "end"]);
}
