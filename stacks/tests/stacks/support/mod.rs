//! Compiles and starts programs for the tests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use score_stacks::frame::{Detail, Frame, Stack};
use score_stacks::{ProcessStacks, StackReader};

/// Compiles `tests/programs/SOURCE`. Returns `None` if the compiler is not installed. Each name is
/// compiled once, because several tests may run the program at the same time.
pub fn compile(source: &str, name: &str, compiler: &[&str]) -> Option<PathBuf> {
    static COMPILED: Mutex<BTreeMap<String, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap();
    if let Some(program) = compiled.get(name) {
        return program.clone();
    }
    let program = run_compiler(source, name, compiler);
    compiled.insert(name.to_owned(), program.clone());
    program
}

fn run_compiler(source: &str, name: &str, compiler: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = directory.join(format!("stacks-{name}"));
    let mut command = Command::new(compiler[0]);
    // gfortran writes module files to the current directory.
    command.current_dir(directory).args(&compiler[1..]).arg("-o").arg(&program).arg(path);
    if compiler[0] != "rustc" {
        command.arg("-pthread");
    }
    match command.output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{compiler:?}: {errors}");
            Some(program)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: {} is not installed", compiler[0]);
            None
        }
        Err(error) => panic!("{compiler:?}: {error}"),
    }
}

/// Compiles the C program with this name, with optimization and debug information.
pub fn compile_c(name: &str) -> Option<PathBuf> {
    compile(&format!("{name}.c"), name, &["gcc", "-O2", "-g", "-fno-optimize-sibling-calls"])
}

/// Runs a tool on files. Returns false if it is not installed.
pub fn run_tool(tool: &str, arguments: &[&str]) -> bool {
    match Command::new(tool).args(arguments).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{tool}: {errors}");
            true
        }
        Err(_) => {
            eprintln!("skipped: {tool} is not installed");
            false
        }
    }
}

/// A running program. Dropping this value kills the program.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a program and waits for its first line.
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &[]).0
    }

    /// Starts a program with arguments, and waits for its first line. Returns the line.
    pub fn start_with(program: &Path, arguments: &[&str]) -> (Self, String) {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program was just compiled");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, output };
        let line = running.line();
        // After it has printed its line, a thread takes some time until it waits.
        std::thread::sleep(std::time::Duration::from_millis(30));
        (running, line)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next line of output. Empty at the end of the output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn stacks(&self) -> ProcessStacks {
        stacks_of(self.pid())
    }

    /// Waits until the first thread stays in this state. A thread that is released runs briefly
    /// before it stops again.
    #[track_caller]
    pub fn await_state(&self, state: char) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut seen = 0;
        while seen < 3 {
            assert!(std::time::Instant::now() < deadline, "in {}, not {state}", self.state());
            seen = if self.state() == state { seen + 1 } else { 0 };
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// The processor time that the process has used, in ticks.
    pub fn processor_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// The letter of the state of the first thread.
    pub fn state(&self) -> char {
        state_of(self.pid())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn state_of(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

pub fn stacks_of(pid: i32) -> ProcessStacks {
    let mut results = StackReader::new().stacks_of(&[pid], Detail::Lines);
    results.pop().unwrap().unwrap_or_else(|error| panic!("{error}"))
}

/// The frames as text, with the innermost first.
pub fn lines(stack: &Stack) -> Vec<String> {
    stack.frames.iter().rev().map(ToString::to_string).collect()
}

/// The names of the functions, with the innermost first.
pub fn names(stack: &Stack) -> Vec<&str> {
    let named = stack.frames.iter().rev().filter_map(|frame| match frame {
        Frame::Function { name, .. } => Some(name.as_str()),
        _ => None,
    });
    named.collect()
}

/// Checks that the functions `wanted` are on the stack in this order, with the innermost first.
#[track_caller]
pub fn assert_in_order(stack: &Stack, wanted: &[&str]) {
    let names = names(stack);
    let mut rest = names.iter();
    for name in wanted {
        assert!(rest.any(|found| found == name), "{name} of {wanted:?} in {:#?}", lines(stack));
    }
}

/// Checks that the stack was unwound to the first function of its thread.
#[track_caller]
pub fn assert_complete(stack: &Stack) {
    let is_marker = |frame: &&Frame| {
        matches!(frame, Frame::Broken | Frame::Truncated | Frame::NotStopped | Frame::Omitted(_))
    };
    assert_eq!(stack.frames.iter().find(is_marker), None, "{:#?}", lines(stack));
    assert!(!stack.frames.is_empty());
}

/// The example `stacks`, which cargo builds with the tests.
pub fn example_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/stacks");
    assert!(example.exists(), "{}: cargo builds it with all tests", example.display());
    example
}
