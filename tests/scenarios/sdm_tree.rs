//! The scalable debug manager uses the tree of a job's daemons. The test checks its operations on
//! ranks of two hosts, merged events, and its behaviour when a host or the job ends. The hosts have
//! no connections other than those of the daemons.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_commands::job_address::JobAddress;
use score_commands::sdm_tree::TreeFrontEnd;
use score_sdm::message::{DebugEvent, INIT_COMMAND, Operation, StopReason, UpMessage};
use score_tests::process::Process;
use score_tests::{Running, TestEnv};
use score_tools::merge::{CommandId, EventBody};

const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRAM: &str = "tool_target";

/// Starts the program with one process on each of two hosts.
fn start(env: &TestEnv) -> Option<(Running, TreeFrontEnd)> {
    let built = env.test_program(PROGRAM)?;
    let program = env.dir().join(PROGRAM);
    std::fs::copy(built, &program).unwrap();
    let mut job =
        env.scrun(&["-group=local:2", "-nodes=2x1"]).args(&[program.to_str().unwrap()]).start();
    job.wait_for("\n", 2);
    let front_end = open(&job);
    Some((job, front_end))
}

fn open(job: &Running) -> TreeFrontEnd {
    let address = JobAddress::of_pid(&job.pid().to_string()).unwrap();
    let mut front_end = TreeFrontEnd::open(address, None, EVENT_TIMEOUT).unwrap();
    assert_eq!(front_end.servers(), 2);
    assert_eq!(events(&mut front_end, INIT_COMMAND, 2), [("0-1".to_owned(), DebugEvent::Ready)]);
    front_end
}

/// Returns the next event: the command, the ranks as text, their number, and the event itself.
fn next(front_end: &mut TreeFrontEnd) -> (CommandId, String, u32, DebugEvent) {
    let message = front_end.receive(EVENT_TIMEOUT).unwrap();
    let Some(UpMessage::Event(event)) = message else { panic!("{message:?}") };
    let said = match &event.body {
        EventBody::Lost => DebugEvent::Unreachable("lost".to_owned()),
        body => DebugEvent::from_body(body).unwrap(),
    };
    (event.command, event.ranks.to_string(), event.ranks.len(), said)
}

/// Returns the events of a command, until `ranks` ranks have answered.
fn events(
    front_end: &mut TreeFrontEnd,
    command: CommandId,
    mut ranks: u32,
) -> Vec<(String, DebugEvent)> {
    let mut events = Vec::new();
    while ranks > 0 {
        let (answered, text, count, said) = next(front_end);
        assert_eq!(answered, command, "{said:?}");
        events.push((text, said));
        ranks = ranks.checked_sub(count).expect("each rank answers once");
    }
    events
}

fn run(front_end: &mut TreeFrontEnd, operation: Operation) -> Vec<(String, DebugEvent)> {
    let command = front_end.command((0..2).into(), EVENT_TIMEOUT, operation);
    events(front_end, command, 2)
}

/// Runs an operation to which all ranks must answer with the same event. Returns the event.
fn run_as_one(front_end: &mut TreeFrontEnd, operation: Operation) -> DebugEvent {
    let events = run(front_end, operation);
    assert_eq!((events.len(), &events[0].0[..]), (1, "0-1"), "{events:?}");
    events.into_iter().next().unwrap().1
}

fn is_stopped(event: &DebugEvent, expected: &StopReason, function: &str) -> bool {
    let DebugEvent::Stopped { reason, frame } = event else { return false };
    reason == expected && frame.function == function
}

#[test]
fn equal_answers_of_ranks_on_two_hosts_are_one_event_and_the_job_continues() {
    let env = TestEnv::new();
    let Some((job, mut front_end)) = start(&env) else { return };
    let attach = || Operation::Attach { first: 0, pids: Vec::new() };
    let event = run_as_one(&mut front_end, attach());
    assert!(is_stopped(&event, &StopReason::Attached, ""), "{event:?}");
    let event = run_as_one(&mut front_end, Operation::Break { location: "tick".to_owned() });
    assert!(matches!(event, DebugEvent::BreakpointSet { .. }), "{event:?}");
    for _ in 0..2 {
        let event = run_as_one(&mut front_end, Operation::Continue);
        assert!(is_stopped(&event, &StopReason::Breakpoint, "tick"), "{event:?}");
    }
    let DebugEvent::Frames(frames) = run_as_one(&mut front_end, Operation::Where) else {
        panic!("no frames")
    };
    assert_eq!((&frames[0].function[..], &frames[1].function[..]), ("tick", "count"));
    // Operations that need gdb fail on each rank, and the error names a program that has them.
    let event = run_as_one(&mut front_end, Operation::Print { expression: "x".to_owned() });
    assert!(matches!(&event, DebugEvent::Failed(text) if text.contains("scdb")), "{event:?}");
    let event = run_as_one(&mut front_end, Operation::Break { location: "nowhere".to_owned() });
    assert!(matches!(&event, DebugEvent::Failed(text) if text.contains("nowhere")), "{event:?}");

    // One rank runs until it is interrupted. The other rank stays stopped meanwhile.
    assert_eq!(run_as_one(&mut front_end, Operation::Detach), DebugEvent::Done);
    run_as_one(&mut front_end, attach());
    let running = front_end.command((1..2).into(), EVENT_TIMEOUT, Operation::Continue);
    assert!(front_end.receive(Duration::from_millis(300)).unwrap().is_none());
    let interrupt = front_end.command((1..2).into(), EVENT_TIMEOUT, Operation::Interrupt);
    let mut both = [next(&mut front_end), next(&mut front_end)];
    both.sort_by_key(|(command, ..)| command.0);
    let [(first, of_running, _, stop), (second, of_interrupt, _, done)] = both;
    assert_eq!((first, second, done), (running, interrupt, DebugEvent::Done));
    assert_eq!((&of_running[..], &of_interrupt[..]), ("1", "1"));
    assert!(is_stopped(&stop, &StopReason::Other("held".to_owned()), ""), "{stop:?}");

    // After the end of the front end no rank is held, and no tool has authority.
    front_end.quit();
    assert!(front_end.receive(Duration::from_millis(100)).unwrap().is_none());
    drop(front_end);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    let mut second = open(&job);
    while !is_stopped(&run(&mut second, attach())[0].1, &StopReason::Attached, "") {
        assert!(Instant::now() < deadline, "the first front end has control");
    }
    drop(second);
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

#[test]
fn a_lost_host_is_an_event_of_its_ranks_and_delays_no_command() {
    let env = TestEnv::new();
    let Some((job, mut front_end)) = start(&env) else { return };
    let running = front_end.command((0..2).into(), EVENT_TIMEOUT, Operation::Continue);
    assert!(front_end.receive(Duration::from_millis(200)).unwrap().is_none());
    front_end.close(running);
    // The second host is slow, and then lost.
    let is_second =
        |process: &Process| process.is_scored() && process.command.contains("-host local1 ");
    let daemon = env.wait_for_process("the daemon of local1", is_second);
    daemon.signal(Signal::SIGSTOP);
    let command = front_end.command((0..2).into(), EVENT_TIMEOUT, Operation::Where);
    // Meanwhile the first rank answers. It cannot answer after the end of the job.
    assert!(front_end.receive(Duration::from_secs(5)).unwrap().is_none());
    daemon.signal(Signal::SIGKILL);
    let mut events = events(&mut front_end, command, 2);
    events.sort_by(|(one, _), (other, _)| one.cmp(other));
    let [(first, DebugEvent::Frames(frames)), (second, lost)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((&first[..], &second[..], frames.is_empty()), ("0", "1", false));
    assert_eq!(*lost, DebugEvent::Unreachable("lost".to_owned()));
    // The job ends with its host, and each rank reports a reason.
    assert_ne!(job.wait().code, 0);
    let event = run_as_one(&mut front_end, Operation::Continue);
    assert!(matches!(event, DebugEvent::Failed(_)), "{event:?}");
}
