//! `score-tool-memory` is a program for a job. It has 1 MiB of memory, prints the address of the
//! memory and the job's directory, and waits for the end of its standard input.
//!
//! `score-tool-memory DIRECTORY ADDRESS ROUNDS` reads that memory of rank 0 alternately through the
//! tool control service and by process_vm_readv(2). The service copies it into memory that it
//! shares with this program (Copy Memory), and this program reads it there. process_vm_readv copies
//! it into a buffer. In each round the program prints the microseconds until it has the bytes.

use std::io::{self, IoSliceMut};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use score_toolctl::client::ToolConnection;
use score_tools::wire::{
    Attach, Command, CommandAnswer, CommandRequest, NoData, ProcessSelect, ServiceMessage,
    ToolRequest,
};

const MEMORY_LEN: usize = 1 << 20;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => hold_memory(),
        [directory, address, rounds] => match (address.parse(), rounds.parse()) {
            (Ok(address), Ok(rounds)) => measure(Path::new(directory), address, rounds),
            _ => Err(io::Error::other("ADDRESS and ROUNDS must be numbers")),
        },
        _ => Err(io::Error::other("usage: score-tool-memory [DIRECTORY ADDRESS ROUNDS]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("score-tool-memory: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold_memory() -> io::Result<()> {
    let memory: Vec<u8> = (0..MEMORY_LEN).map(|index| (index / 7) as u8).collect();
    println!("{} {}", memory.as_ptr().addr(), std::env::current_dir()?.display());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    std::hint::black_box(memory);
    Ok(())
}

fn measure(directory: &Path, address: u64, rounds: u32) -> io::Result<()> {
    let socket = directory.join(".jobs/1/toolctl_node/0");
    let mut tool = ToolConnection::connect(&socket, 1, 0)?;
    let body = Attach { tag: *b"measures", priority: 50, select: ProcessSelect::RanksInNode };
    tool.ask(0, &ToolRequest::Attach(body), ANSWER_TIMEOUT)?;
    let command = [Command { thread: 0, request: CommandRequest::GetProcessData(NoData {}) }];
    let record = tool.ask(0, &ToolRequest::Query(&command), ANSWER_TIMEOUT)?;
    let pid = answer(&record, |answer| match answer {
        CommandAnswer::GetProcessData(data) => Some(Pid::from_raw(data.tgid.cast_signed())),
        _ => None,
    })?;
    let mut direct = vec![0; MEMORY_LEN];
    for _ in 0..rounds {
        let begun = Instant::now();
        let view =
            tool.view_memory(0, address, MEMORY_LEN, ANSWER_TIMEOUT).map_err(io::Error::other)?;
        let tool_us = begun.elapsed().as_secs_f64() * 1e6;
        let begun = Instant::now();
        let remote = [RemoteIoVec { base: address as usize, len: MEMORY_LEN }];
        let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut direct)], &remote)?;
        let direct_us = begun.elapsed().as_secs_f64() * 1e6;
        let are_equal = view.iter().zip(&direct).all(|(byte, other)| byte.load(Relaxed) == *other);
        if read != MEMORY_LEN || !are_equal {
            return Err(io::Error::other("the two copies differ"));
        }
        println!("{tool_us:.1} {direct_us:.1}");
    }
    Ok(())
}

/// Returns the result of `read` for the answer to a message with one command.
fn answer<T>(record: &[u8], read: impl FnOnce(&CommandAnswer<'_>) -> Option<T>) -> io::Result<T> {
    let results = match ServiceMessage::decode(record) {
        Ok((_, ServiceMessage::QueryAck(results))) => results,
        other => return Err(io::Error::other(format!("{other:?}"))),
    };
    let answer = results.first().and_then(|result| result.answer.as_ref());
    answer.and_then(read).ok_or_else(|| io::Error::other("the service refuses the command"))
}
