//! Finds the descendants of a process in /proc.

use std::collections::HashMap;
use std::fs;

/// Ticks per second in /proc: the kernel's USER_HZ, which is 100 on all supported machines.
const TICKS: u64 = 100;

/// One process.
#[derive(Debug)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The name (comm).
    pub name: String,
    /// The arguments, as they were given.
    pub args: Vec<String>,
    /// The start time in nanoseconds since boot, rounded down to 10 ms.
    pub started_ns: u64,
    /// Nanoseconds on a processor. The times in `stat` are too coarse for a process that mostly
    /// sleeps.
    pub busy_ns: u64,
    /// The number of times that the process has gone to sleep.
    pub sleep_count: u64,
}

impl Process {
    /// Whether the first argument of the process is `program`, in any directory.
    pub fn runs_program(&self, program: &str) -> bool {
        let path = self.args.first().map_or("", String::as_str);
        path.rsplit('/').next() == Some(program)
    }

    /// Whether the process has this argument.
    pub fn has_arg(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg == word)
    }
}

/// All descendants of `root`.
pub fn descendants(root: u32) -> Vec<Process> {
    let mut parents = HashMap::new();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        // A process that has exited meanwhile is skipped.
        if let Some((parent, process)) = pid.and_then(read_process) {
            parents.insert(process.pid, parent);
            found.push(process);
        }
    }
    let is_descendant = |process: &Process| {
        let mut ancestor = process.pid;
        // A chain of parents is no longer than the number of processes.
        for _ in 0..parents.len() {
            match parents.get(&ancestor) {
                Some(parent) if *parent == root => return true,
                Some(parent) => ancestor = *parent,
                None => return false,
            }
        }
        false
    };
    found.retain(is_descendant);
    found
}

fn read_process(pid: u32) -> Option<(u32, Process)> {
    let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let stat = text("stat")?;
    // The name in parentheses may contain any character.
    let (name, fields) = stat.rsplit_once(')')?;
    let name = name.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let (parent, started_ticks) = (number(1)?, number(19)?);
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = cmdline.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into());
    let busy_ns = text("schedstat")?.split(' ').next()?.parse().ok()?;
    let status = text("status")?;
    let sleep_count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let sleep_count = sleep_count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let started_ns = started_ticks * (1_000_000_000 / TICKS);
    let process = Process { pid, name, args: args.collect(), started_ns, busy_ns, sleep_count };
    Some((parent.try_into().ok()?, process))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_and_grandchildren_are_descendants() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 30 & read line; kill $!"]).stdin(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let self_pid = std::process::id();
        let found = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            descendants(self_pid)
                .into_iter()
                .find(|process| process.runs_program("sleep") && process.has_arg("30"))
        });
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(found.is_some_and(|process| process.started_ns > 0 && process.busy_ns > 0));
    }
}
