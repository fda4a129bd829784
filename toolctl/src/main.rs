//! `scored-toolctl`: the tool control service of a job on one host. Its shepherd starts it for the
//! first command of a tool, as the job's user and in the job's PID namespace, and ends it when
//! there has been none for a while.
//!
//! | file | what |
//! |---|---|
//! | `main.rs` | orders of the shepherd, one after the other |
//! | `stacks.rs` | the command that reads stacks |
#![forbid(unsafe_code)]

mod stacks;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use score_proto::frame::{self, Decoder};
use score_proto::tool_command::{ToolRequest, ToolResult};
use score_proto::toolctl::{ToolProcess, ToolctlOrder, ToolctlReport};
use stacks::StackCommand;

/// The service, and its connection to the shepherd.
struct Service {
    socket: UnixStream,
    decoder: Decoder,
    stack_command: StackCommand,
}

impl Service {
    /// The result of each process.
    fn carry_out(&mut self, processes: &[ToolProcess], body: &[u8]) -> Vec<ToolResult> {
        match ToolRequest::decode(body) {
            Some(ToolRequest::Stacks { lines }) => self.stack_command.run(processes, lines),
            Some(ToolRequest::FaultStack) => self.stack_command.run_after_fault(processes),
            None => {
                let failed = "scored-toolctl does not know this command: use tools of its release";
                vec![ToolResult::Failed(failed.to_owned()); processes.len()]
            }
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        while let Some(order) = self.decoder.read_next(&mut self.socket)? {
            let ToolctlOrder::Command { element, id, processes, body, wait_ms: _ } = order;
            let results = self.carry_out(&processes, &body);
            let mut bytes = Vec::new();
            for (ToolProcess { node, .. }, result) in processes.into_iter().zip(results) {
                let answer = ToolctlReport::Answer { element, id, node, body: result.encode() };
                frame::encode(&answer, &mut bytes).map_err(io::Error::other)?;
            }
            self.socket.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// What a user who starts it reads.
const USAGE: &str = "\
scored-toolctl reads and controls the processes of a job for tools. scored starts it; see
scored-toolctl(8).
";

fn main() {
    if let Some(argument) = std::env::args_os().nth(1) {
        match argument == "-help" {
            true => print!("{USAGE}"),
            false => eprint!("{USAGE}"),
        }
        std::process::exit(if argument == "-help" { 0 } else { 2 });
    }
    // It goes on while the job is stopped: the user must not have it do something else then.
    let undumpable = nix::sys::prctl::set_dumpable(false).map_err(io::Error::from);
    // The shepherd passes its socket as standard input.
    let socket = undumpable.and_then(|()| io::stdin().as_fd().try_clone_to_owned());
    let result = socket.and_then(|socket| {
        let (decoder, stack_command) = (Decoder::default(), StackCommand::default());
        Service { socket: socket.into(), decoder, stack_command }.serve()
    });
    if let Err(error) = result {
        eprintln!("scored-toolctl: {error}");
        std::process::exit(1);
    }
}
