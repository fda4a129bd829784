//! Probes the features of this machine, each by a real call. `scored -probe` prints them.

// UNSAFETY: system calls without a safe wrapper.
#![expect(unsafe_code)]

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::fcntl::OFlag;
use socket2::{Domain, Socket, Type};

use super::cgroup::{self, Cgroups};
use super::memfd::PublishedMap;
use super::namespace::{self, Containment};
use super::realtime::{self, Inherit};
use super::{descriptor, process};

/// Result of one probe.
struct ProbeResult {
    name: &'static str,
    /// A detail if the probe succeeds, or the reason if it fails.
    result: Result<String, String>,
    /// The consequence if the feature is missing.
    cost: &'static str,
}

type Probe = (&'static str, fn() -> io::Result<String>, &'static str);

const PROBES: &[Probe] = &[
    (
        "membarrier",
        membarrier,
        "blocking receive: every send needs a full fence, which costs about 60 ns per message",
    ),
    (
        "pid namespace",
        || probe_containment(Containment::PidNamespace),
        "as root, a user namespace is tried instead",
    ),
    (
        "user namespace",
        || probe_containment(Containment::UserNamespace),
        "without any PID namespace, descendants that have left their session survive when scored \
         and its shepherd are killed at the same instant",
    ),
    ("cgroup v2 kill", cgroup2_kill, "remaining processes of dead jobs are killed one by one"),
    (
        "freezing of a job",
        || Cgroups::find(false).freezer().map_err(io::Error::other),
        "multi-user mode: a job that does not stop at the end of its time slice is killed, and \
         keeps its processors for a few seconds",
    ),
    (
        "memory of a job",
        || Cgroups::find(false).memory().map_err(io::Error::other),
        "memorylimit is enforced by RLIMIT_DATA of each process and by sampling every 100 ms",
    ),
    (
        "processor time of a job",
        || Cgroups::find(false).cpu().map_err(io::Error::other),
        "cpulimit misses processes whose parents do not wait for them",
    ),
    (
        "SCHED_RR",
        probe_realtime,
        "the thread that switches between jobs wakes late: time slices have at least 100 ms",
    ),
    (
        "AF_XDP",
        || probe_raw_socket(libc::AF_XDP.into()),
        "small frames on Ethernet use AF_PACKET or UDP",
    ),
    ("AF_PACKET", || probe_raw_socket(Domain::PACKET), "Ethernet is used with UDP only"),
    (
        "userfaultfd",
        userfaultfd,
        "memory that is registered with a network is unregistered after each use",
    ),
    (
        "RDMA",
        || score_pm::rdma::describe_default_port().map_err(io::Error::other),
        "jobs on several hosts use UDP or raw Ethernet",
    ),
    ("process_vm_readv", process_vm, "remote memory on one host is memory of pmAlloc only"),
    ("memfd seals", probe_seals, "nothing runs: shared memory could be truncated under its users"),
    ("pipe size", pipe_size, "bulk output needs more system calls"),
];

fn last_error() -> io::Error {
    io::Error::last_os_error()
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

fn membarrier() -> io::Result<String> {
    const GLOBAL_EXPEDITED: i32 = 1 << 1;
    const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
    for command in [REGISTER_GLOBAL_EXPEDITED, GLOBAL_EXPEDITED] {
        // SAFETY: no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })?;
    }
    Ok("global expedited".to_owned())
}

fn probe_containment(containment: Containment) -> io::Result<String> {
    namespace::try_containment(containment).map(|()| "with its own /proc".to_owned())
}

fn cgroup2_kill() -> io::Result<String> {
    let group = cgroup::self_group("")?.join(format!("scored.probe-{}", std::process::id()));
    fs::create_dir(&group)?;
    let killed = fs::write(group.join("cgroup.kill"), "1");
    let removed = fs::remove_dir(&group);
    killed.and(removed).map(|()| "can be created and used".to_owned())
}

/// Checks whether a thread of this process may use the realtime class.
///
/// # Errors
/// The reason why it may not.
pub fn may_use_realtime() -> Result<(), String> {
    probe_realtime().map(drop).map_err(|error| error.to_string())
}

fn probe_realtime() -> io::Result<String> {
    realtime::enter(Inherit::Normal)?;
    realtime::leave();
    Ok("priority 1".to_owned())
}

fn probe_raw_socket(domain: Domain) -> io::Result<String> {
    Socket::new(domain, Type::RAW, None).map(|_| "socket".to_owned())
}

fn userfaultfd() -> io::Result<String> {
    score_pm::probe_memory_monitor().map(|()| "user mode, events, write-protect mode".to_owned())
}

fn process_vm() -> io::Result<String> {
    let word = 0x5c0e_u64;
    // SAFETY: as fork, with one thread; the child only sleeps until it is killed.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        loop {
            process::die_with_parent(libc::SIGKILL);
            // SAFETY: no memory is passed.
            unsafe { libc::pause() };
        }
    }
    let pid = check(pid)? as i32;
    let mut copied = 0u64;
    let local = libc::iovec { iov_base: (&raw mut copied).cast::<c_void>(), iov_len: 8 };
    let remote = libc::iovec { iov_base: (&raw const word).cast_mut().cast(), iov_len: 8 };
    // SAFETY: both describe eight bytes that are valid during the call, ours and the child's copy.
    let read_len = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    let result = check(read_len as i64);
    process::kill(pid, libc::SIGKILL);
    process::wait_for(pid);
    result?;
    if copied == word {
        Ok("between processes".to_owned())
    } else {
        Err(io::Error::other("wrong data"))
    }
}

fn probe_seals() -> io::Result<String> {
    PublishedMap::new("scored-probe", 4096).map(|_| "size and future writes".to_owned())
}

fn pipe_size() -> io::Result<String> {
    let (read, _write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let size = descriptor::enlarge_pipe(read.as_fd(), 256 * 1024);
    if size >= 256 * 1024 {
        Ok("256 KiB".to_owned())
    } else {
        Err(io::Error::other(format!("at most {} KiB", size / 1024)))
    }
}

fn run_probes() -> Vec<ProbeResult> {
    PROBES
        .iter()
        .map(|(name, probe, cost)| {
            let result = probe().map_err(|error| {
                let text = error.to_string();
                text.split(" (os error").next().unwrap_or_default().to_owned()
            });
            ProbeResult { name, result, cost }
        })
        .collect()
}

/// The report of all probes, as text or as a JSON array.
pub fn report(json: bool) -> String {
    let results = run_probes();
    if json {
        let lines: Vec<String> = results.iter().map(ProbeResult::json).collect();
        return format!("[\n{}\n]\n", lines.join(",\n"));
    }
    results.iter().map(ProbeResult::line).collect()
}

impl ProbeResult {
    fn line(&self) -> String {
        match &self.result {
            Ok(detail) => format!("{:<28}yes ({detail})\n", self.name),
            Err(reason) => format!("{:<28}no ({reason}): {}\n", self.name, self.cost),
        }
    }

    fn json(&self) -> String {
        let (allowed, detail) = match &self.result {
            Ok(detail) => (true, detail),
            Err(reason) => (false, reason),
        };
        // The Debug format of a str escapes quotes, backslashes and control characters. The texts
        // are ASCII.
        format!(
            "  {{\"name\": {:?}, \"allowed\": {allowed}, \"detail\": {:?}, \
             \"cost_of_lack\": {:?}}}",
            self.name, detail, self.cost
        )
    }
}
