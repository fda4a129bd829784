//! The threads of a process, as the kernel sees them (proc(5)).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// One letter: proc_pid_stat(5).
    pub state: u8,
    /// How often it has left a processor.
    pub switches: u64,
    /// In which system call it is.
    pub call: Call,
}

/// In which system call a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// It runs: that is not to be made out.
    Running,
    /// In none.
    None,
    /// In this one, with these arguments. What has been stopped is in it still.
    In(i64, [u64; 6]),
    /// The kernel does not say.
    Unknown,
}

/// What concerns a process as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// A debugger has it.
    pub traced: bool,
    /// Signals that it has handlers for: bit 0 is signal 1.
    pub caught: u64,
    /// It has timers that send signals.
    pub has_timers: bool,
}

impl Manner {
    /// Whether it may be woken by itself, or must not be judged.
    pub fn is_open(&self) -> bool {
        // A handler may do anything, also send.
        let wakes = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF, libc::SIGIO];
        let caught = wakes.iter().any(|signal| self.caught & (1 << (signal - 1)) != 0);
        self.traced || self.has_timers || caught
    }
}

/// A file of /proc, by as few calls as it takes.
///
/// # Errors
/// As open(2), read(2); what is no text.
pub fn text(path: &str) -> io::Result<String> {
    let mut text = String::with_capacity(16 << 10);
    File::open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn parse_status(status: &str) -> Option<(String, u8, u64)> {
    let number = |name| field(status, name)?.parse::<u64>().ok();
    let voluntary = number("voluntary_ctxt_switches")?;
    let switches = voluntary.wrapping_add(number("nonvoluntary_ctxt_switches")?);
    let state = *field(status, "State")?.as_bytes().first()?;
    Some((field(status, "Name")?.to_owned(), state, switches))
}

fn parse_call(line: &str) -> Call {
    if line.trim() == "running" {
        return Call::Running;
    }
    let mut words = line.split_ascii_whitespace();
    match words.next().and_then(|word| word.parse::<i64>().ok()) {
        Some(-1) => Call::None,
        Some(number) => {
            let mut arguments = [0; 6];
            for argument in &mut arguments {
                let word = words.next().and_then(|word| word.strip_prefix("0x"));
                match word.and_then(|word| u64::from_str_radix(word, 16).ok()) {
                    Some(value) => *argument = value,
                    None => return Call::Unknown,
                }
            }
            Call::In(number, arguments)
        }
        None => Call::Unknown,
    }
}

/// Every thread of a process; nothing when the kernel does not tell.
pub fn of_process(pid: i32) -> Option<Vec<Task>> {
    let directory = format!("/proc/{pid}/task");
    let mut tasks = Vec::new();
    for entry in fs::read_dir(&directory).ok()? {
        let tid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = text(&format!("{directory}/{tid}/status")).ok()?;
        let (name, state, switches) = parse_status(&status)?;
        let line = text(&format!("{directory}/{tid}/syscall"));
        let call = line.map_or(Call::Unknown, |line| parse_call(&line));
        tasks.push(Task { tid, name, state, switches, call });
    }
    tasks.sort_unstable_by_key(|task| task.tid);
    Some(tasks)
}

/// What concerns the process as a whole.
pub fn manner(pid: i32) -> Option<Manner> {
    let status = text(&format!("/proc/{pid}/status")).ok()?;
    let traced = field(&status, "TracerPid")? != "0";
    let caught = u64::from_str_radix(field(&status, "SigCgt")?, 16).ok()?;
    // Not every kernel has the file.
    let timers = text(&format!("/proc/{pid}/timers")).unwrap_or_default();
    Some(Manner { traced, caught, has_timers: !timers.trim().is_empty() })
}

/// Which of these processes, which are all stopped, have children that live.
pub fn parents(pids: &HashSet<i32>) -> HashSet<i32> {
    let found: Option<Vec<(i32, bool)>> =
        pids.iter().map(|pid| Some((*pid, is_parent(*pid)?))).collect();
    match found {
        Some(found) => found.into_iter().filter(|(_, is)| *is).map(|(pid, _)| pid).collect(),
        None => parents_of_all(pids),
    }
}

/// Nothing where the kernel has no lists of children (CONFIG_PROC_CHILDREN).
fn is_parent(pid: i32) -> Option<bool> {
    let list = children(pid)?;
    // While one ends, reading may pass over the next.
    let is_certain = list.is_empty() || list == children(pid)?;
    Some(!is_certain || list.into_iter().any(|child| living(child).is_some()))
}

fn children(pid: i32) -> Option<Vec<i32>> {
    let directory = format!("/proc/{pid}/task");
    let mut found = Vec::new();
    for entry in fs::read_dir(&directory).ok()? {
        let tid = entry.ok()?.file_name();
        let list = text(&format!("{directory}/{}/children", tid.to_str()?)).ok()?;
        found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(found)
}

/// The parent of a process that lives.
fn living(pid: i32) -> Option<i32> {
    let stat = text(&format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses too: count from the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let lives = !matches!(fields.next()?, "Z" | "X");
    fields.next()?.parse().ok().filter(|_| lives)
}

fn parents_of_all(pids: &HashSet<i32>) -> HashSet<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return pids.clone() };
    let parent = |entry: fs::DirEntry| living(entry.file_name().to_str()?.parse().ok()?);
    entries.flatten().filter_map(parent).filter(|parent| pids.contains(parent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_with_its_arguments() {
        assert_eq!(parse_call("running\n"), Call::Running);
        assert_eq!(parse_call("-1 0x7ffc 0x55\n"), Call::None);
        let line = "202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f02\n";
        assert_eq!(parse_call(line), Call::In(202, [0x7f01, 0x189, 0, 0, 0, 0xffff_ffff]));
        for wrong in ["", "202", "202 1 2 3 4 5 6", "x"] {
            assert_eq!(parse_call(wrong), Call::Unknown, "{wrong:?}");
        }
    }

    #[test]
    fn a_thread_that_waits_is_found_where_it_waits() {
        let (ready, begun) = std::sync::mpsc::channel();
        let (stay, stays) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("waits-here".to_owned());
        let thread = thread.spawn(move || {
            ready.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = stays.recv();
        });
        let tid = begun.recv().unwrap().unsigned_abs();
        let own = std::process::id() as i32;
        let found = || {
            let tasks = of_process(own).unwrap();
            tasks.into_iter().find(|task| task.tid == tid).unwrap()
        };
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while found().state != b'S' {
            assert!(std::time::Instant::now() < limit, "{:?}", found());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let task = found();
        assert_eq!(task.name, "waits-here");
        assert!(matches!(task.call, Call::In(libc::SYS_futex, _)), "{task:?}");
        assert_eq!(found().switches, task.switches, "it has not run since");
        drop(stay);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn who_has_a_child_is_found() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(parents(&HashSet::from([own])), HashSet::from([own]));
        assert_eq!(parents_of_all(&HashSet::from([own])), HashSet::from([own]));
        assert!(parents(&HashSet::from([child.id() as i32])).is_empty());
        assert_eq!(is_parent(i32::MAX), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn handlers_of_what_comes_by_itself_leave_a_process_open() {
        let manner = manner(std::process::id() as i32).unwrap();
        assert!(!manner.traced && !manner.has_timers);
        let caught = |signal: i32| Manner { caught: 1 << (signal - 1), ..Manner::default() };
        assert!(caught(libc::SIGALRM).is_open() && caught(libc::SIGIO).is_open());
        assert!(!caught(libc::SIGHUP).is_open() && !caught(libc::SIGCHLD).is_open());
        assert!(Manner { traced: true, ..Manner::default() }.is_open());
    }
}
