//! The control group of a job on a host: it limits and counts resources, and freezes or ends all
//! processes of the job. Version 2 is used if it has the controller, otherwise version 1. If
//! neither can limit and count, the shepherd samples the processes instead.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::pidfd::PidFd;
use super::process;

/// Names of the groups of jobs: this prefix, and the name of the job's directory.
const JOB_CGROUP_PREFIX: &str = "scored-";
/// Group of this process, because version 2 allows no processes in a group that has subgroups.
const DAEMON_CGROUP: &str = "scored.daemon";
/// How long killed processes may take to leave their group.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);

/// Processes that are killed one by one are held by descriptors, so many at a time.
const KILL_BATCH_LEN: usize = 64;

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
    freezer: Option<ControllerPath>,
    /// Version 2 can kill a whole group at once.
    kill_base: Option<PathBuf>,
}

/// The group of one job, in every hierarchy that is used.
#[derive(Debug)]
pub struct Group {
    dirs: Vec<PathBuf>,
    kill_dir: Option<PathBuf>,
    freezer: Option<Freezer>,
    /// `cpu.stat` or `cpuacct.usage`: see [`cpu_ns`].
    pub cpu_file: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`: see [`oom_kills`].
    pub oom_file: Option<PathBuf>,
}

/// What freezes a group.
#[derive(Debug)]
struct Freezer {
    version: Version,
    file: PathBuf,
}

impl Freezer {
    /// The freezer of the group `dir`.
    fn new(version: Version, dir: &Path) -> Self {
        Self { version, file: dir.join(version.freezer_file()) }
    }

    fn write(&self, state: FreezerState) -> io::Result<()> {
        fs::write(&self.file, self.version.freezer_text(state))
    }
}

/// The state of a group that is requested of its freezer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FreezerState {
    Frozen,
    Thawed,
}

impl Version {
    fn freezer_file(self) -> &'static str {
        match self {
            Self::One => "freezer.state",
            Self::Two => "cgroup.freeze",
        }
    }

    fn freezer_text(self, state: FreezerState) -> &'static str {
        match (self, state) {
            (Self::One, FreezerState::Frozen) => "FROZEN",
            (Self::One, FreezerState::Thawed) => "THAWED",
            (Self::Two, FreezerState::Frozen) => "1",
            (Self::Two, FreezerState::Thawed) => "0",
        }
    }
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
            cgroups.freezer = v2.probe_freezer();
            cgroups.kill_base = v2.probe(&[("cgroup.kill", "1")], "cgroup.procs").map(|_| base);
        }
        let v1_path = |controller: &str| {
            Some(ControllerPath { version: Version::One, base: self_group(controller).ok()? })
        };
        let v1 = |controller: &str, writes: &[(&str, &str)], file: &str| {
            v1_path(controller)?.probe(writes, file)
        };
        let limit = [("memory.limit_in_bytes", "1073741824")];
        cgroups.memory = cgroups.memory.or_else(|| v1("memory", &limit, "memory.oom_control"));
        cgroups.cpu = cgroups.cpu.or_else(|| v1("cpuacct", &[], "cpuacct.usage"));
        cgroups.freezer = cgroups.freezer.or_else(|| v1_path("freezer")?.probe_freezer());
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

    /// How a job is frozen, for the user.
    pub fn freezer(&self) -> Result<String, String> {
        describe(self.freezer.as_ref())
    }

    fn bases(&self) -> Vec<PathBuf> {
        let controllers = [&self.memory, &self.cpu, &self.freezer].into_iter().flatten();
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
        let mut group = self.group(&name, Vec::new());
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

    /// The group with this name, if it exists in these directories.
    fn group(&self, name: &str, dirs: Vec<PathBuf>) -> Group {
        let freezer = self.freezer.as_ref();
        Group {
            dirs,
            kill_dir: self.kill_base.as_ref().map(|base| base.join(name)),
            freezer: freezer.map(|freezer| Freezer::new(freezer.version, &freezer.base.join(name))),
            cpu_file: None,
            oom_file: None,
        }
    }

    /// Kills the remaining processes in the groups of dead jobs, and removes these groups.
    /// `is_dead` is called with the name of the job's directory. Returns an error for each group
    /// that cannot be removed.
    pub fn sweep(&self, is_dead: &dyn Fn(&str) -> bool) -> Vec<String> {
        let bases = self.bases();
        let entries = bases.iter().flat_map(fs::read_dir).flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_of_dead_job =
            |name: &String| name.strip_prefix(JOB_CGROUP_PREFIX).is_some_and(is_dead);
        // A group is thawed and killed in all hierarchies before it is removed from one.
        let names: BTreeSet<String> = names.filter(is_of_dead_job).collect();
        let remove = |name: String| {
            let dirs = bases.iter().map(|base| base.join(&name)).filter(|dir| dir.exists());
            let group = self.group(&name, dirs.collect());
            group.kill();
            group.remove().err().map(|error| format!("{name}: {error}"))
        };
        names.into_iter().filter_map(remove).collect()
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
        static NEXT_PROBE: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_PROBE.fetch_add(1, Ordering::Relaxed);
        let dir = self.base.join(format!("scored.probe-{}-{number}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let written = writes.iter().all(|(file, text)| fs::write(dir.join(file), text).is_ok());
        let readable = fs::read(dir.join(file)).is_ok();
        let removed = fs::remove_dir(&dir).is_ok();
        (written && readable && removed).then(|| self.clone())
    }

    fn probe_freezer(&self) -> Option<ControllerPath> {
        let file = self.version.freezer_file();
        let states = [FreezerState::Frozen, FreezerState::Thawed];
        self.probe(&states.map(|state| (file, self.version.freezer_text(state))), file)
    }
}

/// Moves this process into the group of these files. So are the processes that it starts from now
/// on. The kernel may take some milliseconds for that, because it waits for all processors.
///
/// # Errors
/// As write(2) on cgroup.procs.
pub fn join(membership_files: &[PathBuf]) -> io::Result<()> {
    membership_files.iter().try_for_each(|file| fs::write(file, "0"))
}

impl Group {
    /// The files by which a process [`join`]s the group.
    pub fn membership_files(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.iter().map(|dir| dir.join("cgroup.procs"))
    }

    /// How many processes of the group the kernel has killed for lack of memory.
    pub fn oom_kills(&self) -> u64 {
        self.oom_file.as_deref().and_then(oom_kills).unwrap_or(0)
    }

    /// Asks the kernel to freeze the processes of the group, and those that they start. Returns
    /// before all of them are frozen: each one is as soon as it enters or leaves the kernel, or at
    /// the next interrupt of its processor.
    ///
    /// # Errors
    /// There is no freezer, or as write(2) on the file of the freezer.
    pub fn freeze(&self) -> io::Result<()> {
        let freezer = self.freezer.as_ref();
        freezer.ok_or(io::ErrorKind::Unsupported)?.write(FreezerState::Frozen)
    }

    /// Lets the processes of the group continue.
    ///
    /// # Errors
    /// As write(2) on the file of the freezer.
    pub fn thaw(&self) -> io::Result<()> {
        self.freezer.as_ref().map_or(Ok(()), |freezer| freezer.write(FreezerState::Thawed))
    }

    /// Kills every process in the group.
    pub fn kill(&self) {
        let at_once = self.kill_dir.as_ref().map(|dir| fs::write(dir.join("cgroup.kill"), "1"));
        if !matches!(at_once, Some(Ok(()))) {
            self.kill_one_by_one();
        }
        // A frozen group of version 1 holds SIGKILL back. This fails only if there is no group.
        let _ = self.thaw();
    }

    /// Kills the processes that are listed in the group. A number in the list may be another
    /// process's a moment later. Therefore each process is held by a descriptor, and killed if the
    /// number is still listed then.
    fn kill_one_by_one(&self) {
        for pids in self.processes().into_iter().collect::<Vec<_>>().chunks(KILL_BATCH_LEN) {
            let held: Vec<_> = pids.iter().map(|pid| (*pid, PidFd::open(*pid))).collect();
            let listed = self.processes();
            for (pid, pid_fd) in held.into_iter().filter(|(pid, _)| listed.contains(pid)) {
                match pid_fd {
                    Ok(pid_fd) => _ = pid_fd.send_signal(libc::SIGKILL),
                    // A kernel without such descriptors.
                    Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                        process::kill(pid, libc::SIGKILL)
                    }
                    // It has exited.
                    Err(_) => {}
                }
            }
        }
    }

    fn processes(&self) -> HashSet<i32> {
        let lists = self.dirs.iter().map(|dir| fs::read_to_string(dir.join("cgroup.procs")));
        lists
            .flatten()
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    /// Removes the group if its processes have exited.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn remove_if_empty(&self) -> io::Result<()> {
        self.dirs.iter().try_for_each(|dir| match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })
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
        add(&group, child.id());
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

    /// Moves a process into the group.
    fn add(group: &Group, pid: u32) {
        group.membership_files().for_each(|file| fs::write(file, pid.to_string()).unwrap());
    }

    /// A child that computes for ever, in the group.
    fn busy_child(group: &Group) -> std::process::Child {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read go; while :; do :; done"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        add(group, child.id());
        drop(child.stdin.take());
        child
    }

    /// Processor time of a process, in ticks.
    fn ticks(child: &std::process::Child) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_until_computing(child: &std::process::Child) {
        let before = ticks(child);
        wait_until("the child does not compute", || ticks(child) > before + 2);
    }

    fn wait_until_frozen(child: &std::process::Child) {
        wait_until("the child is not frozen", || {
            let before = ticks(child);
            std::thread::sleep(Duration::from_millis(100));
            ticks(child) == before
        });
    }

    /// A group for the groups of a test: the sweep of a daemon that starts does not find them.
    struct TestBase(PathBuf);

    impl TestBase {
        fn create(controller: &str) -> Option<Self> {
            static NEXT_BASE: AtomicU32 = AtomicU32::new(0);
            let number = NEXT_BASE.fetch_add(1, Ordering::Relaxed);
            let name = format!("scored.test-{}-{number}", std::process::id());
            let path = self_group(controller).ok()?.join(name);
            fs::create_dir(&path).ok().map(|()| Self(path))
        }
    }

    impl Drop for TestBase {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// For each kind of freezer: groups that are made in that hierarchy, and a base for them.
    fn freezers() -> Vec<(Cgroups, TestBase)> {
        let kinds = [(Version::Two, ""), (Version::One, "freezer")];
        let found = kinds.into_iter().filter_map(|(version, controller)| {
            let base = TestBase::create(controller)?;
            let freezer = ControllerPath { version, base: base.0.clone() }.probe_freezer();
            if freezer.is_none() {
                eprintln!("skipped: no freezer of version {version:?} can be used here");
            }
            Some((Cgroups { freezer: Some(freezer?), ..Cgroups::default() }, base))
        });
        found.collect()
    }

    #[test]
    fn a_group_is_frozen_thawed_and_killed_while_it_is_frozen() {
        for (cgroups, _base) in freezers() {
            let group = cgroups.make("job-freeze", None).unwrap();
            let mut child = busy_child(&group);
            wait_until_computing(&child);
            for _ in 0..2 {
                group.freeze().unwrap();
                wait_until_frozen(&child);
                group.thaw().unwrap();
                wait_until_computing(&child);
            }
            group.freeze().unwrap();
            wait_until_frozen(&child);
            group.kill();
            wait_until("the child survives", || child.try_wait().unwrap().is_some());
            group.remove().unwrap();
        }
    }

    #[test]
    fn a_frozen_group_of_a_dead_job_is_swept() {
        for (cgroups, _base) in freezers() {
            // A hierarchy that comes earlier has the same group.
            let cpu_base = TestBase::create("cpuacct");
            let cpu = cpu_base
                .as_ref()
                .map(|base| ControllerPath { version: Version::One, base: base.0.clone() });
            let cgroups = Cgroups { cpu, ..cgroups };
            let group = cgroups.make("job-sweep", None).unwrap();
            let mut child = busy_child(&group);
            group.freeze().unwrap();
            wait_until_frozen(&child);
            assert_eq!(cgroups.sweep(&|job| job == "job-sweep"), Vec::<String>::new());
            wait_until("the child survives", || child.try_wait().unwrap().is_some());
            assert!(group.dirs.iter().all(|dir| !dir.exists()));
        }
    }

    #[test]
    fn a_group_without_a_freezer_is_not_frozen() {
        let group = Cgroups::default().make("job-none", None).unwrap();
        assert_eq!(group.freeze().unwrap_err().kind(), io::ErrorKind::Unsupported);
        group.thaw().unwrap();
    }

    #[test]
    fn every_process_of_a_group_is_killed_one_by_one() {
        let Some((cgroups, _base)) = freezers().pop() else { return };
        let group = cgroups.make("job-kill", None).unwrap();
        let mut children: Vec<_> = (0..2 * KILL_BATCH_LEN + 1)
            .map(|_| std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap())
            .collect();
        let mut bystander = children.pop().unwrap();
        children.iter().for_each(|child| add(&group, child.id()));
        group.kill_one_by_one();
        for child in &mut children {
            wait_until("a child survives", || child.try_wait().unwrap().is_some());
        }
        assert_eq!(group.processes(), HashSet::new());
        group.remove().unwrap();
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }
}
