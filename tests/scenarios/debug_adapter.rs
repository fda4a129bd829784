//! An editor debugs a rank. It uses the Debug Adapter Protocol with lldb's adapter. A command in
//! its attach request connects lldb to the stub of `scdb JOB gdb RANK -listen` (scdb(1)).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use score_tests::{TestEnv, skip, test_env};
use serde_json::{Value, json};

use crate::gdb_stub::DebuggedJob;

const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which an adapter that does not disconnect is killed.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// lldb gives up after a few seconds without a reply. That is too short on a loaded machine.
const LLDB_TIMEOUT: &str = "settings set plugin.process.gdb-remote.packet-timeout 60";
/// The names of the adapter in newer and in older releases of LLVM.
const ADAPTERS: [&str; 5] =
    ["lldb-dap", "lldb-dap-19", "lldb-vscode", "lldb-vscode-16", "lldb-vscode-14"];

/// The editor's end of the protocol.
struct Editor {
    adapter: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// Messages that arrived before a test waited for them. An event may come before a response.
    unread: Vec<Value>,
    requests: u64,
}

impl Editor {
    fn start(adapter: &str) -> Self {
        let mut command = Command::new(adapter);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut adapter = command.spawn().unwrap();
        let input = adapter.stdin.take().unwrap();
        let mut output = BufReader::new(adapter.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            while let Some(message) = read_message(&mut output) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self { adapter, input, messages, unread: Vec::new(), requests: 0 }
    }

    fn send(&mut self, command: &str, arguments: &Value) -> u64 {
        self.requests += 1;
        let (seq, kind) = (self.requests, "request");
        let body = json!({"seq": seq, "type": kind, "command": command, "arguments": arguments});
        let body = body.to_string();
        write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        self.input.flush().unwrap();
        seq
    }

    fn receive(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(index) = self.unread.iter().position(&is_wanted) {
            return self.unread.remove(index)["body"].take();
        }
        loop {
            let message = self.messages.recv_timeout(MESSAGE_TIMEOUT);
            let mut message =
                message.unwrap_or_else(|error| panic!("{what}: {error}: {:#?}", self.unread));
            if is_wanted(&message) {
                return message["body"].take();
            }
            let is_error = message["type"] == "response" && message["success"] == false;
            assert!(!is_error, "{what}: {message}");
            self.unread.push(message);
        }
    }

    /// Sends a request, and returns the body of its response.
    fn request(&mut self, command: &str, arguments: &Value) -> Value {
        let seq = self.send(command, arguments);
        let is_response =
            |message: &Value| message["request_seq"] == seq && message["success"] == true;
        self.receive(command, is_response)
    }

    /// Waits for the response to the request with this number, or until the time-out.
    fn await_response(&mut self, seq: u64, timeout: Duration) {
        let end = Instant::now() + timeout;
        while let Ok(message) = self.messages.recv_timeout(end - Instant::now().min(end)) {
            if message["request_seq"] == seq {
                return;
            }
        }
    }

    fn event(&mut self, name: &str, reason: Option<&str>) -> Value {
        self.receive(name, |message| {
            let is_reason = reason.is_none_or(|reason| message["body"]["reason"] == reason);
            message["event"] == name && is_reason
        })
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        let _ = self.adapter.kill();
        let _ = self.adapter.wait();
    }
}

fn read_message(output: &mut impl BufRead) -> Option<Value> {
    let mut len = 0;
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim().split_once(": ") {
            Some(("Content-Length", value)) => len = value.parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; len];
    output.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

#[test]
fn an_editor_stops_reads_steps_and_changes_a_rank_and_detaches() {
    let env = TestEnv::new();
    let Some(adapter) = ADAPTERS.into_iter().find(|name| test_env::is_installed(name)) else {
        return skip(
            "debug_adapter",
            "lldb-dap, lldb-vscode of earlier releases, is not installed",
        );
    };
    let Some(job) = DebuggedJob::start(&env, "lldb") else { return };
    let mut stub = job.scdb(&["gdb", "1", "-listen"]).start();
    stub.wait_for("\n", 1);
    let connect = format!("process connect unix-connect://{}", stub.stdout().trim_end());

    let mut editor = Editor::start(adapter);
    editor.request("initialize", &json!({"adapterID": "lldb", "linesStartAt1": true}));
    let commands = json!({"attachCommands": [LLDB_TIMEOUT, &connect], "stopOnEntry": true});
    editor.send("attach", &commands);
    editor.event("initialized", None);
    let breakpoints = json!({"breakpoints": [{"name": "work"}]});
    let set = editor.request("setFunctionBreakpoints", &breakpoints);
    assert_eq!(set["breakpoints"][0]["verified"], true, "{set}");
    editor.request("configurationDone", &json!({}));
    let threads = editor.request("threads", &json!({}));
    let thread = &threads["threads"][0]["id"];
    assert!(threads["threads"].as_array().unwrap().len() >= 2, "{threads}");
    editor.request("continue", &json!({"threadId": thread}));
    let stop = editor.event("stopped", Some("breakpoint"));
    let thread = &stop["threadId"];
    let stack = editor.request("stackTrace", &json!({"threadId": thread}));
    let [work, main, ..] = &stack["stackFrames"].as_array().unwrap()[..] else { panic!("{stack}") };
    assert_eq!((&work["name"], &main["name"]), (&json!("work"), &json!("main")));
    assert!(work["source"]["path"].as_str().unwrap().ends_with("debugged.c"), "{work}");
    let mut evaluate = |expression: &str, context: &str| {
        let frame = &work["id"];
        let arguments = json!({"expression": expression, "frameId": frame, "context": context});
        editor.request("evaluate", &arguments)["result"].as_str().unwrap().to_owned()
    };
    let round: u32 = evaluate("round", "watch").parse().unwrap();
    assert!(round > 0);
    evaluate("`expression answer = 42", "repl");
    evaluate("`expression stop = 1", "repl");
    editor.request("next", &json!({"threadId": thread}));
    let stop = editor.event("stopped", Some("step"));
    let stack = editor.request("stackTrace", &json!({"threadId": stop["threadId"]}));
    assert_eq!(stack["stackFrames"][0]["name"], "work", "{stack}");
    // lldb-vscode 14 sometimes waits for ever for one of its own locks while it disconnects. The
    // rank continues as well if the adapter is killed.
    let disconnect = editor.send("disconnect", &json!({"terminateDebuggee": false}));
    editor.await_response(disconnect, DISCONNECT_TIMEOUT);
    drop(editor);
    let _ = stub.wait().expect_code(0);
    job.end(["answer 0, 0 signals right", "answer 42, 0 signals right"]);
}
