//! A traced program and its tracer, for tests.

pub mod job;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use score_toolctl::tracer::*;

/// A test that hangs fails after this time. It is long because machines are shared.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Compiles the test program, once. `None` if there is no C compiler.
pub fn compiled_program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(compile).clone()
}

fn compile() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/traced.c");
    let name = format!("traced-{}", std::process::id());
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("gcc");
    let options = ["-O1", "-Wall", "-fcf-protection=none", "-pthread", "-o"];
    compiler.args(options).arg(&output).arg(source);
    match compiler.status() {
        Ok(status) => assert!(status.success(), "the program of the test does not compile"),
        Err(_) => {
            println!("skipped: gcc is not installed");
            return None;
        }
    }
    Some(output)
}

/// A running program with a tracer.
pub struct Session {
    pub tracer: Tracer,
    pub pid: Pid,
    pub child: Child,
    /// False if another tracer of this thread traces the process, because only one tracer of a
    /// thread may handle events.
    pub handles_events: bool,
    stdin: ChildStdin,
    lines: Receiver<String>,
    addresses: HashMap<String, u64>,
    events: Vec<Event>,
}

impl Session {
    /// Starts the program with these arguments. It is not attached yet.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(compiled_program()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        if arguments[0] == "schedule" {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut session = Self {
            tracer: Tracer::new(Linux),
            pid: child.id() as Pid,
            child,
            handles_events: true,
            stdin,
            lines,
            addresses: HashMap::new(),
            events: Vec::new(),
        };
        session.read_addresses();
        session.pid = session.address("pid") as Pid;
        Some(session)
    }

    /// Starts the program like [`Self::start`], and attaches to it.
    pub fn attached(workers: &str) -> Option<Self> {
        let mut session = Self::start(&[workers])?;
        session.tracer.attach(session.pid).unwrap();
        Some(session)
    }

    /// Reads the addresses that the program prints at its start.
    pub fn read_addresses(&mut self) {
        loop {
            let line = self.line();
            if line == "ready" {
                return;
            }
            if let Some((name, value)) = line.split_once(" 0x") {
                self.addresses.insert(name.into(), u64::from_str_radix(value, 16).unwrap());
            }
        }
    }

    /// The address of a symbol.
    pub fn address(&self, name: &str) -> u64 {
        self.addresses[name]
    }

    /// Sends a command to the program.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    /// Handles pending events of the kernel once.
    pub fn pump(&mut self) {
        if self.handles_events {
            self.tracer.handle_events();
        }
        while let Some(event) = self.tracer.next_event() {
            self.events.push(event);
        }
        std::thread::sleep(Duration::from_micros(300));
    }

    /// Handles events for this time.
    pub fn pump_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.pump();
        }
    }

    /// Handles events until `find` returns a value.
    pub fn until<T>(&mut self, what: &str, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            let (events, tracer) = (&self.events, &self.tracer);
            assert!(start.elapsed() < TEST_TIMEOUT, "no {what}; {events:?}; {tracer:#?}");
            self.pump();
        }
    }

    /// The next line of output of the program.
    pub fn line(&mut self) -> String {
        self.until("line", |session| session.lines.try_recv().ok())
    }

    /// Waits for the end of a command of the program.
    pub fn done(&mut self) -> String {
        loop {
            let line = self.line();
            if line.starts_with("done") {
                return line;
            }
        }
    }

    /// The first event for which `find` returns a value.
    pub fn event<T>(&mut self, what: &str, find: impl Fn(&Event) -> Option<T>) -> T {
        self.until(what, |session| {
            let index = session.events.iter().position(|event| find(event).is_some())?;
            find(&session.events.remove(index))
        })
    }

    /// The next notice.
    pub fn notice(&mut self) -> SignalNotice {
        self.event("notice", |event| match event {
            Event::Notice(notice) => Some(*notice),
            _ => None,
        })
    }

    /// Drops the events so far.
    pub fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Continues the process from each notice, until `find` returns a value for an event.
    pub fn answer_notices<T>(&mut self, find: impl Fn(&Event) -> Option<T>) -> Option<T> {
        let mut found = None;
        for event in std::mem::take(&mut self.events) {
            if matches!(event, Event::Notice(_)) {
                self.tracer.resume(self.pid).unwrap();
            }
            found = found.or_else(|| find(&event));
        }
        found
    }

    /// Checks that no notice has been issued.
    pub fn assert_no_notice(&self) {
        let is_notice = |event: &&Event| matches!(event, Event::Notice(_));
        assert_eq!(self.events.iter().find(is_notice), None);
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, tid: Tid, request: Request) -> Result<Answer, TraceError> {
        let ticket = self.tracer.request(self.pid, Some(tid), request)?;
        self.answer(ticket)
    }

    /// Waits for the answer to a request.
    pub fn answer(&mut self, wanted: Ticket) -> Result<Answer, TraceError> {
        self.event("answer", |event| match event {
            Event::Answer { ticket, result } if *ticket == wanted => Some(result.clone()),
            _ => None,
        })
    }

    /// The general registers of a thread.
    pub fn general(&mut self, tid: Tid) -> Gprs {
        match self.ask(tid, Request::GetGeneral) {
            Ok(Answer::General(registers)) => registers,
            other => panic!("{other:?}"),
        }
    }

    /// The special registers of a thread.
    pub fn special(&mut self, tid: Tid) -> SpecialRegisters {
        match self.ask(tid, Request::GetSpecial) {
            Ok(Answer::Special(registers)) => *registers,
            other => panic!("{other:?}"),
        }
    }

    /// A variable of the program.
    pub fn variable(&self, name: &str, index: u64) -> i64 {
        self.word(self.address(name) + 8 * index)
    }

    /// A word of the program.
    pub fn word(&self, address: u64) -> i64 {
        let mut bytes = [0; 8];
        assert!(memory::read_raw(self.pid, address, &mut bytes));
        i64::from_ne_bytes(bytes)
    }

    /// Sets a variable of the program.
    pub fn set_variable(&mut self, name: &str, value: i64) {
        let address = self.address(name);
        self.tracer.write_memory(self.pid, address, &value.to_ne_bytes(), false).unwrap();
    }

    /// Sets a variable of the program while it is not attached.
    pub fn set_variable_untraced(&mut self, name: &str, value: i64) {
        assert!(memory::write_raw(self.pid, self.address(name), &value.to_ne_bytes()));
    }

    /// The byte in memory, including breakpoints.
    pub fn raw_byte(&self, address: u64) -> u8 {
        let mut byte = [0];
        assert!(memory::read_raw(self.pid, address, &mut byte));
        byte[0]
    }

    /// Detaches, and waits until the process is detached.
    pub fn detach(&mut self) {
        self.tracer.detach(self.pid).unwrap();
        let pid = self.pid;
        self.event("end of tracing", |event| (*event == Event::Detached { pid }).then_some(()));
        let status = procfs::Status::read(pid).unwrap();
        assert_eq!(status.number::<Pid>("TracerPid"), Some(0));
    }

    /// Checks that an untraced program continues to work.
    pub fn assert_works(&mut self) {
        let before = self.variable("spots", 0);
        self.until("work of the program", |session| {
            (session.variable("spots", 0) > before + 20).then_some(())
        });
        self.tell("s");
        self.done();
        self.tell("x");
        assert_eq!(self.child.wait().unwrap().code(), Some(7));
    }

    /// A thread of the program, by its name.
    pub fn thread(&self, name: &str) -> Tid {
        let threads = self.tracer.threads(self.pid);
        let is_named = |tid: &Tid| procfs::thread_name(self.pid, *tid).as_deref() == Some(name);
        threads.into_iter().find(is_named).unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The program may have ended, and the tracer may have reaped it.
        _ = self.child.kill();
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}
