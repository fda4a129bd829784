//! Reads information about a process and its threads from /proc.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use nix::unistd::geteuid;

use super::CaptureError;
use crate::registers::{RDI, Registers};

/// Maximum bytes that are read of a file in /proc. A list of 65,536 mappings is shorter.
const MAX_FILE_LEN: u64 = 64 << 20;
const MAX_NAME_LEN: usize = 64;

/// Reads the file `name` of a process.
pub fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(16 << 10);
    File::open(format!("/proc/{pid}/{name}"))?.take(MAX_FILE_LEN).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The name of a thread, without control characters, which a terminal could interpret.
pub fn thread_name(pid: i32, tid: i32) -> String {
    let name = read(pid, &format!("task/{tid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii_end());
    name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME_LEN).collect()
}

/// The ids of all threads. Empty if the process no longer exists.
pub fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The letter of a thread's state, if the thread still exists.
pub fn thread_state(pid: i32, tid: i32) -> Option<char> {
    let stat = read(pid, &format!("task/{tid}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(after_name + 2).copied().map(char::from)
}

/// The registers that the kernel shows for a thread that waits in a system call.
pub fn syscall_registers(pid: i32, tid: i32) -> Option<Registers> {
    let text = read(pid, &format!("task/{tid}/syscall")).ok()?;
    parse_syscall(std::str::from_utf8(&text).ok()?)
}

/// Parses `NUMBER ARGUMENT*6 SP PC`, or `-1 SP PC` outside of a system call.
fn parse_syscall(text: &str) -> Option<Registers> {
    /// The registers of the arguments of a system call: rdi, rsi, rdx, r10, r8, r9.
    const ARGUMENTS: [u16; 6] = [RDI, 4, 1, 10, 8, 9];
    let mut words = text.split_ascii_whitespace();
    let is_in_call = words.next()?.parse::<i64>().ok()? >= 0;
    let numbers: Option<Vec<u64>> =
        words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect();
    let numbers = numbers?;
    let [arguments @ .., stack_pointer, instruction_pointer] = numbers.as_slice() else {
        return None;
    };
    let mut registers = Registers::new(*instruction_pointer, *stack_pointer);
    if is_in_call {
        for (register, value) in ARGUMENTS.iter().zip(arguments) {
            registers.set(*register, *value);
        }
    }
    Some(registers)
}

/// Determines why the kernel does not permit tracing the process.
pub fn explain_refusal(pid: i32, source: io::Error) -> CaptureError {
    let Ok(status) = read(pid, "status") else { return CaptureError::NoSuchProcess { pid } };
    let status = String::from_utf8_lossy(&status).into_owned();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
    };
    if field("State:").is_some_and(|state| matches!(state, "Z" | "X")) {
        return CaptureError::Exited { pid };
    }
    let tracer = field("TracerPid:").and_then(|tracer| tracer.parse().ok()).unwrap_or(0);
    if tracer != 0 {
        return CaptureError::TracedBy { pid, tracer, name: thread_name(tracer, tracer) };
    }
    let ours = geteuid().as_raw();
    let owner = field("Uid:").and_then(|uid| uid.parse().ok()).unwrap_or(ours);
    if owner != ours {
        return CaptureError::OtherUser { pid, owner, ours };
    }
    // The files of an undumpable process belong to root.
    let has_own_files =
        std::fs::metadata(format!("/proc/{pid}/stat")).is_ok_and(|file| file.uid() == ours);
    if !has_own_files {
        return CaptureError::NotDumpable { pid };
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    match scope.and_then(|scope| scope.trim().parse().ok()) {
        Some(scope) if scope > 0 => CaptureError::Yama { pid, scope },
        _ => CaptureError::Refused { pid, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_shows_its_arguments_and_pointers() {
        let text = "61 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc0 0x7f123\n";
        let registers = parse_syscall(text).unwrap();
        assert_eq!((registers.rip(), registers.rsp()), (0x7f123, 0x7ffc0));
        assert_eq!(registers.get(RDI), Some(1));
        assert_eq!(registers.get(9), Some(6));
    }

    #[test]
    fn a_running_thread_has_no_system_call() {
        assert_eq!(parse_syscall("running\n"), None);
        assert_eq!(parse_syscall(""), None);
        let outside = parse_syscall("-1 0x10 0x20\n").unwrap();
        assert_eq!((outside.rip(), outside.get(RDI)), (0x20, None));
    }

    #[test]
    fn own_thread_has_a_name_and_a_state() {
        let pid = std::process::id() as i32;
        assert!(!thread_name(pid, pid).is_empty());
        assert!(threads(pid).contains(&pid));
        assert!(thread_state(pid, pid).is_some_and(|state| "RSDt".contains(state)));
        assert_eq!(thread_state(pid, i32::MAX), None);
    }
}
