//! Information in /proc about processes and threads. A part of it is not trusted, because the
//! processes control it.

use std::fs;
use std::io::Read;

use super::{Pid, Tid};

/// The most bytes that are read of a file whose length a process controls.
const MAX_FILE_LEN: u64 = 64 << 20;
/// The name of the threads in which libpm makes progress.
const COMMUNICATION_THREAD: &str = "score-pm";
/// The most words that are read of an auxiliary vector.
pub const MAX_AUXILIARY_WORDS: usize = 128;

fn read_file(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FILE_LEN).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn read_text(path: &str) -> Option<String> {
    // The name of a thread or of a file may not be valid UTF-8.
    read_file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The threads of a process. Empty, if the process does not exist.
pub fn threads(pid: Pid) -> Vec<Tid> {
    let Ok(directory) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let names = directory.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut threads: Vec<Tid> = names.filter_map(|name| name.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

/// The text of `/proc/PID/status`.
#[derive(Debug, Clone)]
pub struct Status(String);

impl Status {
    /// Reads the status of a process, or of a thread by its own id.
    pub fn read(tid: Tid) -> Option<Self> {
        read_text(&format!("/proc/{tid}/status")).map(Self)
    }

    /// The value of a field, without surrounding blanks.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// The first number of a field.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.split_whitespace().next()?.parse().ok()
    }

    /// The signal set in a field. Bit 0 is signal 1.
    pub fn signals(&self, name: &str) -> u64 {
        self.field(name).and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0)
    }
}

/// The process of a task, and the parent of that process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parentage {
    /// The process that the task is a thread of.
    pub process: Pid,
    /// The parent of that process.
    pub parent: Pid,
}

/// The process of a task, and the parent of that process.
pub fn parentage(tid: Tid) -> Option<Parentage> {
    let status = Status::read(tid)?;
    Some(Parentage { process: status.number("Tgid")?, parent: status.number("PPid")? })
}

/// The name of a thread.
pub fn thread_name(pid: Pid, tid: Tid) -> Option<String> {
    let name = read_text(&format!("/proc/{pid}/task/{tid}/comm"))?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// Whether libpm makes progress in this thread.
pub fn is_communication_thread(pid: Pid, tid: Tid) -> bool {
    thread_name(pid, tid).is_some_and(|name| name == COMMUNICATION_THREAD)
}

/// Fields of `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadStat {
    /// The state, one letter of proc_pid_stat(5).
    pub state: u8,
    /// The start of the heap of the process.
    pub heap_start: u64,
    /// The start of the stack of the first thread.
    pub stack_start: u64,
    /// The processor on which it runs or last ran.
    pub processor: u32,
}

impl ThreadStat {
    /// Reads the fields.
    pub fn read(pid: Pid, tid: Tid) -> Option<Self> {
        Self::parse(&read_file(&format!("/proc/{pid}/task/{tid}/stat"))?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The name in parentheses may contain anything, including parentheses. Fields are counted
        // from the last one.
        let name = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[name + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The field numbers are those of proc_pid_stat(5). The first field here is number 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            heap_start: number(47)?,
            stack_start: number(28)?,
            processor: u32::try_from(number(39)?).ok()?,
        })
    }
}

/// The address of the instruction at which a thread is blocked. `None` if it runs or has ended.
pub fn instruction_of(pid: Pid, tid: Tid) -> Option<u64> {
    let line = read_text(&format!("/proc/{pid}/task/{tid}/syscall"))?;
    u64::from_str_radix(line.split_ascii_whitespace().last()?.strip_prefix("0x")?, 16).ok()
}

/// The number of the system call in which a thread is blocked, and the stack pointer of the thread.
/// The number is -1 if the thread is blocked outside of a system call. `None` if the thread runs.
pub fn blocking_call(pid: Pid, tid: Tid) -> Option<(i64, u64)> {
    let line = read_text(&format!("/proc/{pid}/task/{tid}/syscall"))?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = words.first()?.parse().ok()?;
    let stack = words.iter().rev().nth(1)?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(stack, 16).ok()?))
}

/// A mapping in an address space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The first address after the mapping.
    pub end: u64,
    /// Whether the program may read, write or execute it.
    pub is_accessible: bool,
    /// Whether the program may execute it.
    pub is_executable: bool,
    /// Whether writes to the mapping are visible to other processes (MAP_SHARED).
    pub is_shared: bool,
    /// The path of the file, a name in brackets, or empty.
    pub name: String,
}

/// The memory map of a process, sorted by address.
pub fn memory_map(pid: Pid) -> Option<Vec<Mapping>> {
    let text = read_text(&format!("/proc/{pid}/maps"))?;
    Some(text.lines().filter_map(parse_mapping).collect())
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    // The name is the sixth field, and may contain blanks.
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let modes = fields.next()?;
    let name = fields.nth(3).unwrap_or_default().trim_start().to_owned();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        is_accessible: !modes.starts_with("---"),
        is_executable: modes.contains('x'),
        is_shared: modes.ends_with('s'),
        name,
    })
}

/// The auxiliary vector: pairs of words, including the final pair of zeros.
pub fn auxiliary_vector(pid: Pid) -> Option<Vec<u64>> {
    let bytes = read_file(&format!("/proc/{pid}/auxv"))?;
    let words = bytes.chunks_exact(8).take(MAX_AUXILIARY_WORDS);
    Some(words.map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect())
}

/// The core of a processor, given by the number of the core's first processor, and the position of
/// the processor in the core.
pub fn core_of(processor: u32) -> (u32, u32) {
    let topology = format!("/sys/devices/system/cpu/cpu{processor}/topology");
    let list = read_text(&format!("{topology}/thread_siblings_list")).unwrap_or_default();
    let siblings = parse_list(list.trim());
    let place = siblings.iter().position(|sibling| *sibling == processor);
    match (siblings.first(), place) {
        (Some(first), Some(place)) => (*first, u32::try_from(place).unwrap_or(0)),
        _ => (processor, 0),
    }
}

/// Parses a list such as `0-1,8`.
fn parse_list(list: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            numbers.extend((first..=last).take(4096));
        }
    }
    numbers
}

/// The signals of a process that have a handler, and the signals that are ignored.
pub fn handled_signals(pid: Pid) -> (u64, u64) {
    let status = Status::read(pid);
    status.map_or((0, 0), |status| (status.signals("SigCgt"), status.signals("SigIgn")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_parsed_with_any_content() {
        let line = "7f10-7f20 r-xs 00001000 08:01 99   /a b/c (deleted)";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f10, 0x7f20));
        assert!(mapping.is_shared && mapping.is_executable && mapping.is_accessible);
        assert_eq!(mapping.name, "/a b/c (deleted)");
        let guard = parse_mapping("1000-2000 ---p 00000000 00:00 0 ").unwrap();
        assert!(!guard.is_accessible && guard.name.is_empty());
        for bad in ["", "x", "10-20", "zz-20 r--p", "10 r--p 0 0 0"] {
            assert_eq!(parse_mapping(bad), None, "{bad}");
        }
        assert_eq!(parse_list("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(parse_list(",x,3-"), []);
        assert_eq!(ThreadStat::parse(b"7 (a) b) R 1 2"), None);
        let pid = std::process::id() as Pid;
        let stat = ThreadStat::read(pid, pid).unwrap();
        let map = memory_map(pid).unwrap();
        let stack = map.iter().find(|mapping| mapping.name == "[stack]").unwrap();
        assert!((stack.start..=stack.end).contains(&stat.stack_start), "{stat:?} {stack:?}");
        assert_eq!(parentage(pid).unwrap().process, pid);
        assert!(auxiliary_vector(pid).unwrap().len() > 20);
        assert!(threads(pid).contains(&pid));
    }
}
