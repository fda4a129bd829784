//! The control group of a job on a host. It limits and counts resources, and freezes or kills all
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
use super::{namespace, process};

/// Prefix of the names of groups of jobs. The name of the job's directory follows.
const JOB_CGROUP_PREFIX: &str = "scored-";
/// Group of this process. It is needed because version 2 allows no processes in a group that
/// enables controllers for its subgroups.
const DAEMON_CGROUP: &str = "scored.daemon";
/// In version 2, the processes of the job are in this subgroup of the job's group. Only this
/// subgroup is frozen.
const RANKS_CGROUP: &str = "ranks";
/// The subgroup for tools that run next to the job, if there are any.
const TOOLS_CGROUP: &str = "tools";
/// How long killed processes may take to leave their group.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of processes that are held by descriptors at a time while they are killed one by one.
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

/// The hierarchies of this host in which groups can be created. They are verified by real calls.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    memory: Option<ControllerPath>,
    cpu: Option<ControllerPath>,
    freezer: Option<ControllerPath>,
    /// Version 2 can kill a whole group at once.
    kill_base: Option<PathBuf>,
    /// Version 2 can start a process in a group.
    start_base: Option<PathBuf>,
}

/// The group of one job, in every hierarchy that is used.
#[derive(Debug)]
pub struct Group {
    dirs: Vec<PathBuf>,
    kill_dir: Option<PathBuf>,
    start_dir: Option<PathBuf>,
    /// The entry of `dirs` that belongs to version 2.
    v2_dir: Option<PathBuf>,
    freezer: Option<Freezer>,
    /// `cpu.stat` or `cpuacct.usage`: see [`cpu_ns`].
    pub cpu_file: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`: see [`oom_kills`].
    pub oom_file: Option<PathBuf>,
}

/// The file that freezes a group.
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

/// The requested state of a group.
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

/// The group of this process in the hierarchy of version 1 that has this controller. If
/// `controller` is empty, its group in version 2.
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
    /// Probes which groups this host allows. If version 2 requires it, a persistent daemon moves
    /// into a group of its own. For other processes, this function uses the list of controllers of
    /// version 2 without a probe.
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
            cgroups.kill_base =
                v2.probe(&[("cgroup.kill", "1")], "cgroup.procs").map(|_| base.clone());
            cgroups.start_base = v2.probe_start().map(|_| base);
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

    /// The text for the user that describes how memory is limited.
    pub fn memory(&self) -> Result<String, String> {
        describe(self.memory.as_ref())
    }

    /// The text for the user that describes how processor time is counted.
    pub fn cpu(&self) -> Result<String, String> {
        describe(self.cpu.as_ref())
    }

    /// The text for the user that describes how a job is frozen.
    pub fn freezer(&self) -> Result<String, String> {
        describe(self.freezer.as_ref())
    }

    fn bases(&self) -> Vec<PathBuf> {
        self.bases_of(&[&self.memory, &self.cpu, &self.freezer])
    }

    fn bases_of(&self, controllers: &[&Option<ControllerPath>]) -> Vec<PathBuf> {
        let controllers = controllers.iter().copied().flatten();
        let mut bases: Vec<_> = controllers.map(|controller| controller.base.clone()).collect();
        bases.extend(self.kill_base.clone());
        bases.sort();
        bases.dedup();
        bases
    }

    /// The directories in which a job has a group. Joining a group takes the kernel milliseconds,
    /// and delays other processes that create or remove groups. A job without a memory limit
    /// therefore does not join a group that only limits memory, unless it has no other group.
    fn bases_of_job(&self, has_memory_limit: bool) -> Vec<PathBuf> {
        let bases = self.bases_of(&[&self.cpu, &self.freezer]);
        if has_memory_limit || bases.is_empty() { self.bases() } else { bases }
    }

    /// Creates the group of a job, with a memory limit if one is given.
    ///
    /// # Errors
    /// The errors of mkdir(2), or the limit cannot be set.
    pub fn make(&self, name: &str, memory: Option<u64>) -> io::Result<Group> {
        let name = format!("{JOB_CGROUP_PREFIX}{name}");
        let mut group = self.group(&name, Vec::new());
        for base in self.bases_of_job(memory.is_some()) {
            let dir = base.join(&name);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    group.remove()?;
                    return Err(error);
                }
                _ => group.dirs.push(dir),
            }
        }
        if let Some(v2_dir) = group.find_v2_dir(self.v2_base(), &name) {
            let _ = fs::create_dir(v2_dir.join(RANKS_CGROUP));
        }
        // The group has no part in version 2 if no other feature of version 2 is used.
        let v2_dir = group.v2_dir.as_ref().filter(|_| self.start_base.is_some());
        group.start_dir = v2_dir.map(|dir| dir.join(RANKS_CGROUP));
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
        let freezer = self.freezer.as_ref().map(|freezer| {
            let dir = freezer.base.join(name);
            match freezer.version {
                Version::One => Freezer::new(Version::One, &dir),
                Version::Two => Freezer::new(Version::Two, &dir.join(RANKS_CGROUP)),
            }
        });
        let mut group = Group {
            dirs,
            kill_dir: self.kill_base.as_ref().map(|base| base.join(name)),
            start_dir: None,
            v2_dir: None,
            freezer,
            cpu_file: None,
            oom_file: None,
        };
        group.find_v2_dir(self.v2_base(), name);
        group
    }

    /// The base of version 2, if this hierarchy is used.
    fn v2_base(&self) -> Option<&Path> {
        let controllers = [&self.memory, &self.cpu, &self.freezer].into_iter().flatten();
        let mut of_v2 = controllers.filter(|controller| controller.version == Version::Two);
        of_v2
            .next()
            .map(|controller| &controller.base)
            .or(self.kill_base.as_ref())
            .map(PathBuf::as_path)
    }

    /// Kills the remaining processes in the groups of dead jobs, and removes these groups. Calls
    /// `is_dead` with the name of the job's directory. Returns an error for each group that cannot
    /// be removed.
    pub fn sweep(&self, is_dead: &dyn Fn(&str) -> bool) -> Vec<String> {
        let bases = self.bases();
        let entries = bases.iter().flat_map(fs::read_dir).flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_of_dead_job =
            |name: &String| name.strip_prefix(JOB_CGROUP_PREFIX).is_some_and(is_dead);
        // A group must be thawed and killed in all hierarchies before it is removed from one.
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
        None => Err("no cgroup can be created for it".to_owned()),
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
        self.probe_group(|dir| {
            let written = writes.iter().all(|(file, text)| fs::write(dir.join(file), text).is_ok());
            written && fs::read(dir.join(file)).is_ok()
        })
    }

    /// Whether a process can be started in a group that is created here.
    fn probe_start(&self) -> Option<ControllerPath> {
        self.probe_group(|dir| {
            fs::File::open(dir).is_ok_and(|dir| namespace::try_start_in(&dir).is_ok())
        })
    }

    fn probe_group(&self, is_usable: impl FnOnce(&Path) -> bool) -> Option<ControllerPath> {
        static NEXT_PROBE: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_PROBE.fetch_add(1, Ordering::Relaxed);
        let dir = self.base.join(format!("scored.probe-{}-{number}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let is_usable = is_usable(&dir);
        let removed = fs::remove_dir(&dir).is_ok();
        (is_usable && removed).then(|| self.clone())
    }

    fn probe_freezer(&self) -> Option<ControllerPath> {
        let file = self.version.freezer_file();
        let states = [FreezerState::Frozen, FreezerState::Thawed];
        self.probe(&states.map(|state| (file, self.version.freezer_text(state))), file)
    }
}

/// Moves this process into the group of these files. Processes that it starts from now on are also
/// in the group. The kernel may take a few milliseconds, because it waits for all processors.
///
/// # Errors
/// The errors of write(2) on cgroup.procs.
pub fn join(membership_files: &[PathBuf]) -> io::Result<()> {
    membership_files.iter().try_for_each(|file| fs::write(file, "0"))
}

impl Group {
    /// The files that a process writes to [`join`] the group. If there is a [`Group::start_dir`],
    /// the process must have been started in it.
    pub fn membership_files(&self) -> impl Iterator<Item = PathBuf> {
        let has_started = self.start_dir.is_some();
        self.member_dirs(RANKS_CGROUP, has_started).map(|dir| dir.join("cgroup.procs"))
    }

    /// The directories of the groups whose members are the job's processes, or its tools.
    /// `without_v2` leaves out the directory of version 2.
    fn member_dirs(&self, part: &str, without_v2: bool) -> impl Iterator<Item = PathBuf> {
        self.dirs.iter().filter_map(move |dir| match Some(dir) == self.v2_dir.as_ref() {
            true if without_v2 => None,
            true => Some(dir.join(part)),
            false => Some(dir.clone()),
        })
    }

    /// Creates the part of the group for tools, which is not frozen with the job. Returns the
    /// directory in which a tool has to be started, if there is one, and the files with which it
    /// joins the other hierarchies.
    pub fn for_tools(&self) -> (Option<PathBuf>, Vec<PathBuf>) {
        let v2_dir = self.v2_dir.as_ref().map(|dir| dir.join(TOOLS_CGROUP));
        v2_dir.iter().for_each(|dir| _ = fs::create_dir(dir));
        let start_dir = v2_dir.filter(|dir| dir.exists() && self.start_dir.is_some());
        // A freezer of version 1 would freeze the tool with the job.
        let frozen = self.freezer.as_ref().and_then(|freezer| freezer.file.parent());
        let dirs = self.member_dirs(TOOLS_CGROUP, start_dir.is_some());
        let files = dirs.filter(|dir| Some(dir.as_path()) != frozen && dir.exists());
        (start_dir, files.map(|dir| dir.join("cgroup.procs")).collect())
    }

    fn find_v2_dir(&mut self, base: Option<&Path>, name: &str) -> Option<&Path> {
        let dir = base.map(|base| base.join(name));
        self.v2_dir = dir.filter(|dir| self.dirs.contains(dir));
        self.v2_dir.as_deref()
    }

    /// Every directory of the group, subdirectories first.
    fn all_dirs(&self) -> impl Iterator<Item = PathBuf> {
        let parts = self.v2_dir.iter();
        let parts = parts.flat_map(|dir| [RANKS_CGROUP, TOOLS_CGROUP].map(|part| dir.join(part)));
        parts.chain(self.dirs.iter().cloned())
    }

    /// The part of the group in which the job's first process has to be started. The process need
    /// not join that part.
    pub fn start_dir(&self) -> Option<&Path> {
        self.start_dir.as_deref()
    }

    /// Number of processes of the group that the kernel has killed because memory was exhausted.
    pub fn oom_kills(&self) -> u64 {
        self.oom_file.as_deref().and_then(oom_kills).unwrap_or(0)
    }

    /// Requests that the kernel freezes the processes of the group, and the processes that they
    /// start. Returns before all of them are frozen. A process freezes when it enters or leaves the
    /// kernel, or at the next interrupt of its processor.
    ///
    /// # Errors
    /// There is no freezer, or the errors of write(2) on its file.
    pub fn freeze(&self) -> io::Result<()> {
        let freezer = self.freezer.as_ref();
        freezer.ok_or(io::ErrorKind::Unsupported)?.write(FreezerState::Frozen)
    }

    /// Lets the processes of the group continue.
    ///
    /// # Errors
    /// The errors of write(2) on the file of the freezer.
    pub fn thaw(&self) -> io::Result<()> {
        self.freezer.as_ref().map_or(Ok(()), |freezer| freezer.write(FreezerState::Thawed))
    }

    /// Kills every process in the group.
    pub fn kill(&self) {
        let at_once = self.kill_dir.as_ref().map(|dir| fs::write(dir.join("cgroup.kill"), "1"));
        if !matches!(at_once, Some(Ok(()))) {
            self.kill_one_by_one();
        }
        // A frozen group of version 1 delays SIGKILL. Thawing fails only if there is no group.
        let _ = self.thaw();
    }

    /// Kills the processes that are listed in the group. A listed process id may belong to another
    /// process a moment later. Each process is therefore opened as a descriptor, and killed only if
    /// its id is still listed after that.
    fn kill_one_by_one(&self) {
        for pids in self.processes().into_iter().collect::<Vec<_>>().chunks(KILL_BATCH_LEN) {
            let held: Vec<_> = pids.iter().map(|pid| (*pid, PidFd::open(*pid))).collect();
            let listed = self.processes();
            for (pid, pid_fd) in held.into_iter().filter(|(pid, _)| listed.contains(pid)) {
                match pid_fd {
                    Ok(pid_fd) => _ = pid_fd.send_signal(libc::SIGKILL),
                    // The kernel has no pidfd_open(2).
                    Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                        process::kill(pid, libc::SIGKILL)
                    }
                    // The process has exited.
                    Err(_) => {}
                }
            }
        }
    }

    fn processes(&self) -> HashSet<i32> {
        let lists = self.all_dirs().map(|dir| fs::read_to_string(dir.join("cgroup.procs")));
        lists
            .flatten()
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    /// Removes the group if its processes have exited.
    ///
    /// # Errors
    /// The errors of rmdir(2).
    pub fn remove_if_empty(&self) -> io::Result<()> {
        self.all_dirs().try_for_each(|dir| match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })
    }

    /// Removes the group. Its processes must have exited or been killed.
    ///
    /// # Errors
    /// The errors of rmdir(2): the group still has processes.
    pub fn remove(&self) -> io::Result<()> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        for dir in self.all_dirs() {
            while let Err(error) = fs::remove_dir(&dir) {
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

/// Processor time that a group has used in nanoseconds, from its `cpu.stat` or `cpuacct.usage`.
pub fn cpu_ns(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(micros) => micros.trim().parse::<u64>().ok()?.checked_mul(1000),
        None => text.trim().parse().ok(),
    }
}

/// Number of processes of a group that the kernel has killed because memory was exhausted, from its
/// `memory.events` or `memory.oom_control`.
pub fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
