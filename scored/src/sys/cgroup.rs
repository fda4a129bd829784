//! The control group of a job on a host: it limits and counts resources, and ends all processes of
//! the job. Version 2 is used if it has the controller, otherwise version 1. If neither has it, the
//! shepherd samples the processes instead.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process;

/// Names of the groups of jobs: this prefix, and the name of the job's directory.
const JOB_CGROUP_PREFIX: &str = "scored-";
/// Group of this process, because version 2 allows no processes in a group that has subgroups.
const DAEMON_CGROUP: &str = "scored.daemon";
/// How long killed processes may take to leave their group.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);

/// Version of the cgroup interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ControllerPath {
    version: Version,
    base: PathBuf,
}

/// The hierarchies of this host in which groups can be created; verified by real calls.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    memory: Option<ControllerPath>,
    cpu: Option<ControllerPath>,
    /// Version 2 can kill a whole group at once.
    kill_base: Option<PathBuf>,
}

/// The group of one job, in every hierarchy that is used.
#[derive(Debug)]
pub struct Group {
    dirs: Vec<PathBuf>,
    kill_dir: Option<PathBuf>,
    /// `cpu.stat` or `cpuacct.usage`: see [`cpu_ns`].
    pub cpu_file: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`: see [`oom_kills`].
    pub oom_file: Option<PathBuf>,
}

/// This process's own group in a hierarchy: version 2 (no controller), or that of version 1 with
/// this controller.
///
/// # Errors
/// There is no such hierarchy, or /proc cannot be read.
pub fn self_group(controller: &str) -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    find_self_group(controller, &mounts, &groups)
        .ok_or_else(|| io::Error::other("no such hierarchy is mounted"))
}

fn find_self_group(controller: &str, mounts: &str, groups: &str) -> Option<PathBuf> {
    let kind = if controller.is_empty() { "cgroup2" } else { "cgroup" };
    let has_controller = |list: &str| list.split(',').any(|name| name == controller);
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| {
        let options = fields.get(3).copied().unwrap_or_default();
        fields.get(2) == Some(&kind) && (controller.is_empty() || has_controller(options))
    })?;
    let group = groups
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .find(|(controllers, _)| has_controller(controllers))?;
    Some(Path::new(mount.get(1)?).join(group.1.trim_start_matches('/')))
}

impl Cgroups {
    /// Probes what this host allows. If version 2 requires it, a persistent daemon moves into a
    /// group of its own. For other processes, the list of controllers of version 2 is trusted
    /// without a probe.
    pub fn find(is_daemon: bool) -> Self {
        let mut cgroups = Self::default();
        if let Ok(base) = self_group("") {
            let base =
                base.parent().filter(|_| base.ends_with(DAEMON_CGROUP)).unwrap_or(&base).to_owned();
            let v2 = ControllerPath { version: Version::Two, base: base.clone() };
            if !is_daemon {
                cgroups.memory = lists_memory(&base.join("cgroup.controllers")).then(|| v2.clone());
            } else if delegate(&base) {
                cgroups.memory = v2.probe(&[("memory.max", "1073741824")], "memory.events");
            }
            cgroups.cpu = v2.probe(&[], "cpu.stat");
            cgroups.kill_base = v2.probe(&[("cgroup.kill", "1")], "cgroup.procs").map(|_| base);
        }
        let v1 = |controller: &str, writes: &[(&str, &str)], file: &str| {
            ControllerPath { version: Version::One, base: self_group(controller).ok()? }
                .probe(writes, file)
        };
        let limit = [("memory.limit_in_bytes", "1073741824")];
        cgroups.memory = cgroups.memory.or_else(|| v1("memory", &limit, "memory.oom_control"));
        cgroups.cpu = cgroups.cpu.or_else(|| v1("cpuacct", &[], "cpuacct.usage"));
        cgroups
    }

    /// How memory is limited, for the user.
    pub fn memory(&self) -> Result<String, String> {
        describe(self.memory.as_ref())
    }

    /// How processor time is counted, for the user.
    pub fn cpu(&self) -> Result<String, String> {
        describe(self.cpu.as_ref())
    }

    fn bases(&self) -> Vec<PathBuf> {
        let controllers = [self.memory.as_ref(), self.cpu.as_ref()].into_iter().flatten();
        let mut bases: Vec<_> = controllers.map(|controller| controller.base.clone()).collect();
        bases.extend(self.kill_base.clone());
        bases.sort();
        bases.dedup();
        bases
    }

    /// Creates the group of a job, with a memory limit if one is given.
    ///
    /// # Errors
    /// As mkdir(2), or the limit cannot be set.
    pub fn make(&self, name: &str, memory: Option<u64>) -> io::Result<Group> {
        let name = format!("{JOB_CGROUP_PREFIX}{name}");
        let mut group = Group { dirs: Vec::new(), kill_dir: None, cpu_file: None, oom_file: None };
        for base in self.bases() {
            let dir = base.join(&name);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    group.remove()?;
                    return Err(error);
                }
                _ => group.dirs.push(dir),
            }
        }
        group.kill_dir = self.kill_base.as_ref().map(|base| base.join(&name));
        group.cpu_file = self.cpu.as_ref().map(|controller| {
            let file =
                if controller.version == Version::Two { "cpu.stat" } else { "cpuacct.usage" };
            controller.base.join(&name).join(file)
        });
        if let (Some(controller), Some(bytes)) = (&self.memory, memory) {
            let dir = controller.base.join(&name);
            group.oom_file = Some(dir.join(match controller.version {
                Version::Two => "memory.events",
                Version::One => "memory.oom_control",
            }));
            if let Err(error) = limit_memory(controller.version, &dir, bytes) {
                group.remove()?;
                return Err(error);
            }
        }
        Ok(group)
    }

    /// Kills the remaining processes in the groups of dead jobs, and removes these groups.
    /// `is_dead` is called with the name of the job's directory. Returns an error for each group
    /// that cannot be removed.
    pub fn sweep(&self, is_dead: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut errors = Vec::new();
        for base in self.bases() {
            let Ok(entries) = fs::read_dir(&base) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let job = name.to_str().and_then(|name| name.strip_prefix(JOB_CGROUP_PREFIX));
                if !job.is_some_and(is_dead) {
                    continue;
                }
                let dir = entry.path();
                let kill_dir = Some(dir.clone());
                let group = Group { dirs: vec![dir], kill_dir, cpu_file: None, oom_file: None };
                group.kill();
                if let Err(error) = group.remove() {
                    errors.push(format!("{}: {error}", entry.path().display()));
                }
            }
        }
        errors
    }
}

fn describe(controller: Option<&ControllerPath>) -> Result<String, String> {
    match controller.map(|controller| controller.version) {
        Some(Version::Two) => Ok("cgroup v2".to_owned()),
        Some(Version::One) => Ok("cgroup v1".to_owned()),
        None => Err("no cgroup can be made for it".to_owned()),
    }
}

fn lists_memory(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
}

/// Enables the memory controller in groups below `base`.
fn delegate(base: &Path) -> bool {
    let listed = |file: &str| lists_memory(&base.join(file));
    if !listed("cgroup.controllers") {
        return false;
    }
    if listed("cgroup.subtree_control") {
        return true;
    }
    let enable = || fs::write(base.join("cgroup.subtree_control"), "+memory").is_ok();
    if enable() {
        return true;
    }
    let daemon_group = base.join(DAEMON_CGROUP);
    let created = fs::create_dir(&daemon_group).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let pid = std::process::id().to_string();
    created.and_then(|()| fs::write(daemon_group.join("cgroup.procs"), pid)).is_ok() && enable()
}

fn limit_memory(version: Version, dir: &Path, bytes: u64) -> io::Result<()> {
    let bytes = bytes.to_string();
    let optional = |file: &str, text: &str| {
        let path = dir.join(file);
        // Some kernels have no swap accounting.
        if path.exists() { fs::write(path, text) } else { Ok(()) }
    };
    match version {
        Version::Two => {
            fs::write(dir.join("memory.max"), &bytes)?;
            optional("memory.swap.max", "0")
        }
        Version::One => {
            fs::write(dir.join("memory.limit_in_bytes"), &bytes)?;
            optional("memory.memsw.limit_in_bytes", &bytes)
        }
    }
}

impl ControllerPath {
    /// Whether a group can be created here, accepts these writes and has this file.
    fn probe(&self, writes: &[(&str, &str)], file: &str) -> Option<ControllerPath> {
        let dir = self.base.join(format!("scored.probe-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let written = writes.iter().all(|(file, text)| fs::write(dir.join(file), text).is_ok());
        let readable = fs::read(dir.join(file)).is_ok();
        let removed = fs::remove_dir(&dir).is_ok();
        (written && readable && removed).then(|| self.clone())
    }
}

impl Group {
    /// Moves a process into the group. Processes that it starts from now on are in the group, too.
    ///
    /// # Errors
    /// As write(2) on cgroup.procs.
    pub fn enter(&self, pid: i32) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()))
    }

    /// How many processes of the group the kernel has killed for lack of memory.
    pub fn oom_kills(&self) -> u64 {
        self.oom_file.as_deref().and_then(oom_kills).unwrap_or(0)
    }

    /// Kills every process in the group.
    pub fn kill(&self) {
        if let Some(dir) = &self.kill_dir
            && fs::write(dir.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for pid in self.processes() {
            process::kill(pid, libc::SIGKILL);
        }
    }

    fn processes(&self) -> Vec<i32> {
        let lists = self.dirs.iter().map(|dir| fs::read_to_string(dir.join("cgroup.procs")));
        let pids: Vec<i32> = lists
            .flatten()
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids
    }

    /// Removes the group. Its processes must have exited or been killed.
    ///
    /// # Errors
    /// As rmdir(2): the group still has processes.
    pub fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        for dir in &self.dirs {
            while let Err(error) = fs::remove_dir(dir) {
                match error.kind() {
                    io::ErrorKind::NotFound => break,
                    _ if Instant::now() >= deadline => return Err(error),
                    _ => {
                        self.kill();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Processor time that a group has used, from its `cpu.stat` or `cpuacct.usage`.
pub fn cpu_ns(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(micros) => micros.trim().parse::<u64>().ok()?.checked_mul(1000),
        None => text.trim().parse().ok(),
    }
}

/// How many processes of a group the kernel has killed for lack of memory, from its
/// `memory.events` or `memory.oom_control`.
pub fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_this_process_is_found_in_both_kinds_of_hierarchy() {
        let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let groups = "5:cpu,cpuacct:/a/b\n0::/c\n";
        let find = |controller| find_self_group(controller, mounts, groups);
        assert_eq!(find("cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct/a/b".into()));
        assert_eq!(find(""), Some("/sys/fs/cgroup/unified/c".into()));
        assert_eq!(find("memory"), None);
    }

    #[test]
    fn a_group_counts_limits_and_kills_its_processes() {
        let cgroups = Cgroups::find(false);
        if cgroups.memory.is_none() || cgroups.cpu.is_none() {
            return eprintln!("skipped: no cgroups can be made here");
        }
        let name = format!("job-test-{}", std::process::id());
        let Ok(group) = cgroups.make(&name, Some(64 << 20)) else {
            return eprintln!("skipped: groups here may not limit memory");
        };
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read go; i=0; while :; do i=$((i+1)); done"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        group.enter(child.id() as i32).unwrap();
        drop(child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        let used = || group.cpu_file.as_deref().and_then(cpu_ns).unwrap();
        while used() < 20_000_000 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(used() >= 20_000_000, "{}", used());
        assert_eq!(group.oom_kills(), 0);
        // As after the death of a daemon: the group is found by its name, killed and removed.
        assert_eq!(cgroups.sweep(&|job| job == name), Vec::<String>::new());
        assert!(!child.wait().unwrap().success());
        assert!(group.dirs.iter().all(|dir| !dir.exists()));
    }
}
