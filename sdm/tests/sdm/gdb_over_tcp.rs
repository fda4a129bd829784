//! Servers with real gdbs on a real C program, a master and a front end, over TCP on loopback.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use score_proto::env::SELF_NODE_ENV;
use score_proto::nodeset::NodeSet;
use score_sdm::front_end::FrontEnd;
use score_sdm::message::{
    DebugEvent, HostServers, INIT_COMMAND, Operation, RoutingTable, StopReason, TreeInit, UpMessage,
};
use score_sdm::routing::TreeShape;
use score_sdm::server::{ServerState, sdm_master_init, sdm_server_init, server_with_id};
use score_sdm::start_error::StartError;
use score_sdm::transport::tcp::PORT_ATTEMPTS;
use score_tools::merge::{CommandId, EventBody};
use score_tree::key::Key;

const PROGRAM: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int rank, half;
static int work(int n) {
    half = rank / 2;
    return n * 2; /* line 7 */
}
int main(int argc, char **argv) {
    rank = atoi(getenv("SCORE_SELF_NODE"));
    printf("hello '%s'\n", argc > 1 ? argv[1] : "");
    fflush(stdout);
    int result = work(21);
    if (argc > 2) {
        puts("waiting");
        fflush(stdout);
        char line[80];
        while (fgets(line, sizeof line, stdin)) {
            printf("read %s", line);
            fflush(stdout);
        }
        for (;;) pause();
    }
    return result == 42 ? 3 : 1;
}
"#;

/// Time limit for each wait of a test.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Each tree has its own ports.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

/// A directory with the program. It is removed at the end.
struct Program(PathBuf);

impl Program {
    /// Builds the program. If gdb or gcc is missing, prints a line and returns `None`.
    fn build(name: &str) -> Option<Self> {
        for tool in ["gdb", "gcc"] {
            if Command::new(tool).arg("--version").output().is_err() {
                score_tests::skip("gdb_of_each_rank", &format!("{tool} is not installed"));
                return None;
            }
        }
        let folder = std::env::temp_dir().join(format!("sdm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("program.c");
        std::fs::write(&source, PROGRAM).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&folder).args(["-g", "-O0", "-o", "program", "program.c"]);
        assert!(gcc.status().unwrap().success());
        Some(Self(folder))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn start(&self, arguments: &[&str], stop_in_main: bool) -> Operation {
        let executable = self.0.join("program").to_str().unwrap().to_owned();
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        Operation::Start { executable, arguments, stop_in_main }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The name of the test that a server process runs.
const SERVER_TEST: &str = "gdb_over_tcp::a_server_process_has_its_id_from_the_environment";

/// The port and the key of a server that is started as a process of this test program.
const SERVER_ENV: &str = "SDM_TEST_SERVER";

/// The other tests start this test in separate processes, as servers whose ids are in the
/// environment. Without an id it is a test of the error.
#[test]
fn a_server_process_has_its_id_from_the_environment() {
    let Ok(text) = std::env::var(SERVER_ENV) else {
        let error = sdm_server_init("20000", &Key::generate().unwrap()).unwrap_err();
        return assert!(matches!(error, StartError::ServerId), "{error}");
    };
    let (port, key) = text.split_once(' ').unwrap();
    let (mut server, _) = sdm_server_init(port, &key.parse().unwrap()).unwrap();
    while server.progress(Duration::from_secs(1)).unwrap() == ServerState::Running {}
}

/// A front end, a master in a thread, and servers in processes.
struct Debugging {
    front_end: FrontEnd,
    master: Option<JoinHandle<()>>,
    processes: Vec<Child>,
    servers: u32,
    output: Vec<(NodeSet, String)>,
}

impl Debugging {
    /// Starts everything, except the servers in `missing`.
    fn start(servers: u32, shape: TreeShape, port: u16, missing: &[u32]) -> Self {
        let key = Key::generate().unwrap();
        let mut front_end = FrontEnd::listen("127.0.0.1:0".parse().unwrap(), &key).unwrap();
        let connection = front_end.connection_string().unwrap();
        let mut processes = Vec::new();
        // The server with the last id starts first, so that the search has to find the right port
        // of each server.
        for id in (0..servers).rev().filter(|id| !missing.contains(id)) {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", SERVER_TEST, "-q"]);
            command.env(SERVER_ENV, format!("{port} {}", key.to_text()));
            command.env(SELF_NODE_ENV, id.to_string()).stdout(Stdio::null());
            processes.push(command.spawn().unwrap());
        }
        let master = Some(std::thread::spawn(move || {
            let mut master = sdm_master_init(&connection, &key).unwrap();
            while master.progress(Duration::from_secs(1)).unwrap() == ServerState::Running {}
        }));
        let host = HostServers { address: IpAddr::from(Ipv4Addr::LOCALHOST), servers };
        let table = RoutingTable { first: 0, hosts: vec![host], port };
        front_end.init(TreeInit { servers, shape, table, timeout: TEST_TIMEOUT });
        Self { front_end, master, processes, servers, output: Vec::new() }
    }

    fn all(&self) -> NodeSet {
        NodeSet::from(0..self.servers)
    }

    /// All events of a command. Waits until each rank is in an event.
    fn events(&mut self, command: CommandId, ranks: &NodeSet) -> Vec<(String, Option<DebugEvent>)> {
        let mut missing = ranks.clone();
        let mut events = Vec::new();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !missing.is_empty() {
            assert!(Instant::now() < deadline, "no event of {missing}; {events:?}");
            match self.front_end.receive(Duration::from_secs(1)).unwrap() {
                Some(UpMessage::Event(event)) => {
                    assert_eq!(event.command, command);
                    missing = missing.difference(&event.ranks);
                    if event.body != EventBody::Lost {
                        assert!(DebugEvent::from_body(&event.body).is_some(), "{event:?}");
                    }
                    events.push((event.ranks.to_string(), DebugEvent::from_body(&event.body)));
                }
                Some(UpMessage::Output(line)) => {
                    self.output.push((line.ranks, String::from_utf8(line.line).unwrap()));
                }
                None => (),
            }
        }
        events.sort_by(|one, other| one.0.cmp(&other.0));
        events
    }

    fn run(&mut self, ranks: &NodeSet, operation: Operation) -> Vec<(String, Option<DebugEvent>)> {
        let command = self.front_end.command(ranks.clone(), TEST_TIMEOUT, operation);
        self.events(command, ranks)
    }

    /// Waits until exactly these ranks have written a line.
    fn await_output(&mut self, text: &str, ranks: &NodeSet) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let mut from = NodeSet::new();
            let lines = self.output.iter().filter(|(_, line)| line == text);
            lines.for_each(|(ranks, _)| from.union(ranks));
            if from == *ranks {
                return;
            }
            assert!(Instant::now() < deadline, "{text:?} of {from} only");
            match self.front_end.receive(Duration::from_secs(1)).unwrap() {
                Some(UpMessage::Output(line)) => {
                    self.output.push((line.ranks, String::from_utf8(line.line).unwrap()));
                }
                other => assert!(other.is_none(), "{other:?}"),
            }
        }
    }

    fn end(mut self) {
        self.front_end.quit();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.front_end.receive(Duration::from_millis(100)).is_ok() {
            assert!(Instant::now() < deadline, "the master does not end");
        }
        self.master.take().unwrap().join().unwrap();
        for mut process in std::mem::take(&mut self.processes) {
            assert!(process.wait().unwrap().success());
        }
    }
}

impl Drop for Debugging {
    /// Kills the servers that are left after a failure.
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The first of some ports that are probably free.
fn free_ports() -> u16 {
    NEXT_PORT.fetch_add(PORT_ATTEMPTS as u16, Ordering::Relaxed)
        + (std::process::id() % 100) as u16 * 200
}

fn stopped(reason: StopReason, function: &str, line: u32) -> Option<DebugEvent> {
    let frame = score_sdm::message::StackFrame {
        function: function.to_owned(),
        file: "program.c".to_owned(),
        line,
    };
    Some(DebugEvent::Stopped { reason, frame })
}

fn value(text: &str) -> Option<DebugEvent> {
    Some(DebugEvent::Value(text.to_owned()))
}

// Promise (debug manager): gdb on each rank of a C program: breakpoint in main, continue, where,
// print with equal values merged, output with its ranks, exit.
#[test]
fn equal_answers_of_all_ranks_are_one_event_from_the_breakpoint_in_main_to_the_exit() {
    let Some(program) = Program::build("events") else { return };
    let mut debugging = Debugging::start(5, TreeShape::Binomial, free_ports(), &[]);
    let all = debugging.all();
    let one = |event: Option<DebugEvent>| vec![("0-4".to_owned(), event)];
    assert_eq!(debugging.events(INIT_COMMAND, &all), one(Some(DebugEvent::Ready)));

    let events = debugging.run(&all, program.start(&["it's \"me\" $HOME"], true));
    assert_eq!(events, one(stopped(StopReason::Breakpoint, "main", 10)));
    let location = "work".to_owned();
    let events = debugging.run(&all, Operation::Break { location });
    let Some(DebugEvent::BreakpointSet { number: 2, frame }) = &events[0].1 else {
        panic!("{events:?}")
    };
    assert_eq!((events.len(), frame.function.as_str()), (1, "work"));
    let events = debugging.run(&all, Operation::Continue);
    assert_eq!(events, one(stopped(StopReason::Breakpoint, "work", 6)));
    // Only some ranks execute the command. The test does not wait for events of the other ranks.
    let some: NodeSet = [0, 3].into_iter().collect();
    let events = debugging.run(&some, Operation::Next);
    assert_eq!(events, [("0, 3".to_owned(), stopped(StopReason::StepDone, "work", 7))]);

    let events = debugging.run(&all, Operation::Where);
    let frames = |event: &Option<DebugEvent>| match event {
        Some(DebugEvent::Frames(frames)) => {
            frames.iter().map(|frame| (frame.function.clone(), frame.line)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((events[0].0.as_str(), events[1].0.as_str()), ("0, 3", "1-2, 4"));
    assert_eq!(frames(&events[0].1), [("work".to_owned(), 7), ("main".to_owned(), 13)]);
    assert_eq!(frames(&events[1].1), [("work".to_owned(), 6), ("main".to_owned(), 13)]);

    debugging.run(&[1, 2, 4].into_iter().collect(), Operation::Next);
    let mut print = |expression: &str| {
        let expression = expression.to_owned();
        debugging.run(&all, Operation::Print { expression })
    };
    assert_eq!(print("n + 1"), one(value("22")));
    let halves = [("0-1", "0"), ("2-3", "1"), ("4", "2")];
    let halves = halves.map(|(ranks, text)| (ranks.to_owned(), value(text)));
    assert_eq!(print("half"), halves);
    let events = print("no_such_variable");
    let Some(DebugEvent::Failed(text)) = &events[0].1 else { panic!("{events:?}") };
    assert_eq!(
        (events.len(), text.as_str()),
        (1, "No symbol \"no_such_variable\" in current context.")
    );

    let events = debugging.run(&all, Operation::Continue);
    assert_eq!(events, one(Some(DebugEvent::Exited { code: 3 })));
    // The argument arrived unchanged. Output of ranks may arrive after their exit events.
    let line = "hello 'it's \"me\" $HOME'\n";
    debugging.await_output(line, &all);
    assert!(debugging.output.iter().all(|(_, text)| text == line), "{:?}", debugging.output);
    let lines: u32 = debugging.output.iter().map(|(ranks, _)| ranks.len()).sum();
    assert_eq!(lines, 5, "{:?}", debugging.output);
    debugging.end();
}

// Promise (debug manager): A gdb that is killed, hangs or prints garbage is an error of its rank
// only.
#[test]
fn a_killed_gdb_is_an_error_of_its_rank_and_a_running_process_can_be_interrupted() {
    let Some(program) = Program::build("faults") else { return };
    let mut debugging = Debugging::start(3, TreeShape::Kary(2), free_ports(), &[]);
    let all = debugging.all();
    debugging.events(INIT_COMMAND, &all);
    debugging.run(&all, program.start(&["a", "wait"], true));
    // All processes run on and wait for input.
    let running = debugging.front_end.command(all.clone(), TEST_TIMEOUT, Operation::Continue);
    debugging.await_output("waiting\n", &all);
    // Input goes to some ranks, and the answer contains these ranks.
    let others: NodeSet = [0, 2].into_iter().collect();
    let events = debugging.run(&others, Operation::Input { bytes: b"ping\n".to_vec() });
    assert_eq!(events, [("0, 2".to_owned(), Some(DebugEvent::Done))]);
    debugging.await_output("read ping\n", &others);
    let second: u32 = debugging.processes[1].id();
    // gdb is the only child of the server. A thread of the server has started it.
    let threads = std::fs::read_dir(format!("/proc/{second}/task")).unwrap();
    let children = threads.map(|thread| thread.unwrap().path().join("children"));
    let children = children.filter_map(|path| std::fs::read_to_string(path).ok());
    let gdb = children.collect::<String>().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(gdb), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    // The servers were started from the last rank on, so the second one belongs to rank 1.
    let interrupt = debugging.front_end.command(others.clone(), TEST_TIMEOUT, Operation::Interrupt);
    let mut events = Vec::new();
    let (mut missing, mut missing_interrupt) = (all.clone(), others.clone());
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !missing.is_empty() || !missing_interrupt.is_empty() {
        assert!(Instant::now() < deadline, "{missing} {missing_interrupt} {events:?}");
        let message = debugging.front_end.receive(Duration::from_secs(1)).unwrap();
        let Some(UpMessage::Event(event)) = message else { continue };
        let body = DebugEvent::from_body(&event.body).unwrap();
        if event.command == interrupt {
            assert_eq!(body, DebugEvent::Done);
            missing_interrupt = missing_interrupt.difference(&event.ranks);
        } else if event.command == running {
            missing = missing.difference(&event.ranks);
            events.push((event.ranks, body));
        }
    }
    let mut interrupted = NodeSet::new();
    for (ranks, event) in &events {
        match event {
            DebugEvent::Stopped { reason, .. } => {
                assert_eq!(*reason, StopReason::Signal("SIGINT".to_owned()));
                interrupted.union(ranks);
            }
            DebugEvent::Failed(text) => {
                assert_eq!(*ranks, NodeSet::one(1));
                assert!(text.starts_with("gdb has ended: signal: 9"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(interrupted, others);
    // The rank can be started again.
    let events = debugging.run(&NodeSet::one(1), program.start(&[], true));
    assert_eq!(events, [("1".to_owned(), stopped(StopReason::Breakpoint, "main", 10))]);
    let events = debugging.run(&all, Operation::Kill);
    assert_eq!(events, [("0-2".to_owned(), Some(DebugEvent::Done))]);
    debugging.end();
}

#[test]
fn attached_processes_continue_after_the_end_of_the_debugger() {
    let Some(program) = Program::build("attach") else { return };
    let mut processes: Vec<Child> = (0..2)
        .map(|rank| {
            let mut command = Command::new(program.path().join("program"));
            command.args(["a", "wait"]).env(SELF_NODE_ENV, rank.to_string());
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut debugging = Debugging::start(2, TreeShape::Binomial, free_ports(), &[]);
    let all = debugging.all();
    debugging.events(INIT_COMMAND, &all);
    std::thread::sleep(Duration::from_millis(300));
    let pids = processes.iter().map(Child::id).collect();
    let events = debugging.run(&all, Operation::Attach { first: 0, pids });
    let attached = |event: &Option<DebugEvent>| {
        matches!(event, Some(DebugEvent::Stopped { reason: StopReason::Attached, .. }))
    };
    assert!(events.len() == 1 && attached(&events[0].1), "{events:?}");
    let expression = "rank".to_owned();
    let events = debugging.run(&all, Operation::Print { expression });
    let ranks = [("0", "0"), ("1", "1")].map(|(rank, text)| (rank.to_owned(), value(text)));
    assert_eq!(events, ranks);
    let events = debugging.run(&NodeSet::one(0), Operation::Detach);
    assert_eq!(events, [("0".to_owned(), Some(DebugEvent::Done))]);
    debugging.end();
    for process in &mut processes {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        assert!(status.contains("TracerPid:\t0\n") && status.contains("State:\tS"), "{status}");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn a_missing_program_is_an_error_that_names_it() {
    let Some(program) = Program::build("missing") else { return };
    let mut debugging = Debugging::start(2, TreeShape::Binomial, free_ports(), &[]);
    let all = debugging.all();
    debugging.events(INIT_COMMAND, &all);
    let executable = program.path().join("other").to_str().unwrap().to_owned();
    let start = Operation::Start { executable, arguments: Vec::new(), stop_in_main: true };
    let events = debugging.run(&all, start);
    let Some(DebugEvent::Failed(text)) = &events[0].1 else { panic!("{events:?}") };
    assert!(events.len() == 1 && text.contains("other: No such file or directory"), "{text}");
    debugging.end();
}

// Promise (debug manager): Another program or another job on the port of a server is not used.
#[test]
fn another_program_on_the_port_is_skipped_and_an_absent_server_is_named() {
    let port = free_ports();
    // One listener sends nothing, and another one answers with invalid bytes.
    let silent = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let rubbish = TcpListener::bind(("127.0.0.1", port + 1)).unwrap();
    std::thread::spawn(move || {
        for stream in rubbish.incoming() {
            use std::io::Write as _;
            let _ = stream.unwrap().write_all(&[b'x'; 4096]);
        }
    });
    // A server of another job runs on the same host, with another key.
    let other_key = Key::generate().unwrap();
    let mut other = server_with_id(&(port + 2).to_string(), 0, &other_key).unwrap();
    std::thread::spawn(
        move || while let Ok(ServerState::Running) = other.progress(TEST_TIMEOUT) {},
    );
    let mut debugging = Debugging::start(4, TreeShape::Binomial, port, &[3]);
    let all = debugging.all();
    let events = debugging.events(INIT_COMMAND, &all);
    assert_eq!(events[0], ("0-2".to_owned(), Some(DebugEvent::Ready)));
    let (ranks, Some(DebugEvent::Unreachable(text))) = &events[1] else { panic!("{events:?}") };
    assert_eq!((ranks.as_str(), events.len()), ("3", 2));
    assert!(text.contains("not found at any of the ports"), "{text}");
    drop(silent);
    debugging.end();
}
