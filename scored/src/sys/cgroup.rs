//! The control group of a job on a host: what it may use, what it has used, and that nothing of it
//! is left. Version 2 where the controller is there, else version 1; what neither has is left out,
//! and the shepherd does it by sampling.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process;

/// How the groups of jobs are called: this, and the name of the job's directory.
const PREFIX: &str = "scored-";
/// Where this process goes, since version 2 wants no process beside groups.
const OWN: &str = "scored.daemon";
/// How long killed processes may take to leave their group.
const GOING: Duration = Duration::from_millis(500);

/// Which of the two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    version: Version,
    base: PathBuf,
}

/// Where groups can be made on this host, for what; tried by real calls.
#[derive(Debug, Clone, Default)]
pub struct Cgroups {
    memory: Option<Place>,
    cpu: Option<Place>,
    /// Version 2 ends a whole group at once.
    kill: Option<PathBuf>,
}

/// The group of one job, in every hierarchy that is used.
#[derive(Debug)]
pub struct Group {
    folders: Vec<PathBuf>,
    kill: Option<PathBuf>,
    /// `cpu.stat` or `cpuacct.usage`: see [`cpu_ns`].
    pub cpu: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`: see [`oom_kills`].
    pub oom: Option<PathBuf>,
}

/// This process's own group in a hierarchy: version 2 (no controller), or that of version 1 with
/// this controller.
///
/// # Errors
/// When there is none, or /proc cannot be read.
pub fn own(controller: &str) -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    find_own(controller, &mounts, &groups)
        .ok_or_else(|| io::Error::other("no such hierarchy is mounted"))
}

fn find_own(controller: &str, mounts: &str, groups: &str) -> Option<PathBuf> {
    let kind = if controller.is_empty() { "cgroup2" } else { "cgroup" };
    let has = |list: &str| list.split(',').any(|one| one == controller);
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| {
        let options = words.get(3).copied().unwrap_or_default();
        words.get(2) == Some(&kind) && (controller.is_empty() || has(options))
    })?;
    let group = groups
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .find(|(controllers, _)| has(controllers))?;
    Some(Path::new(mount.get(1)?).join(group.1.trim_start_matches('/')))
}

impl Cgroups {
    /// Tries what this host allows. A daemon that stays moves into a group of its own where version
    /// 2 wants that; else the word of version 2 is taken for it.
    pub fn find(stays: bool) -> Self {
        let mut found = Self::default();
        if let Ok(base) = own("") {
            let base = base.parent().filter(|_| base.ends_with(OWN)).unwrap_or(&base).to_owned();
            let two = Place { version: Version::Two, base: base.clone() };
            if !stays {
                found.memory = lists_memory(&base.join("cgroup.controllers")).then(|| two.clone());
            } else if delegate(&base) {
                found.memory = two.allows(&[("memory.max", "1073741824")], "memory.events");
            }
            found.cpu = two.allows(&[], "cpu.stat");
            found.kill = two.allows(&[("cgroup.kill", "1")], "cgroup.procs").map(|_| base);
        }
        let one = |controller: &str, writes: &[(&str, &str)], file: &str| {
            Place { version: Version::One, base: own(controller).ok()? }.allows(writes, file)
        };
        let limit = [("memory.limit_in_bytes", "1073741824")];
        found.memory = found.memory.or_else(|| one("memory", &limit, "memory.oom_control"));
        found.cpu = found.cpu.or_else(|| one("cpuacct", &[], "cpuacct.usage"));
        found
    }

    /// How memory is limited, for people.
    pub fn memory(&self) -> Result<String, String> {
        explain(self.memory.as_ref())
    }

    /// How processor time is counted, for people.
    pub fn cpu(&self) -> Result<String, String> {
        explain(self.cpu.as_ref())
    }

    fn bases(&self) -> Vec<PathBuf> {
        let places = [self.memory.as_ref(), self.cpu.as_ref()].into_iter().flatten();
        let mut bases: Vec<_> = places.map(|place| place.base.clone()).collect();
        bases.extend(self.kill.clone());
        bases.sort();
        bases.dedup();
        bases
    }

    /// Makes the group of a job, which is limited to so much memory, if it is.
    ///
    /// # Errors
    /// As mkdir(2), and of a limit that cannot be set.
    pub fn make(&self, name: &str, memory: Option<u64>) -> io::Result<Group> {
        let name = format!("{PREFIX}{name}");
        let mut group = Group { folders: Vec::new(), kill: None, cpu: None, oom: None };
        for base in self.bases() {
            let folder = base.join(&name);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    group.remove()?;
                    return Err(error);
                }
                _ => group.folders.push(folder),
            }
        }
        group.kill = self.kill.as_ref().map(|base| base.join(&name));
        group.cpu = self.cpu.as_ref().map(|place| {
            let file = if place.version == Version::Two { "cpu.stat" } else { "cpuacct.usage" };
            place.base.join(&name).join(file)
        });
        if let (Some(place), Some(bytes)) = (&self.memory, memory) {
            let folder = place.base.join(&name);
            group.oom = Some(folder.join(match place.version {
                Version::Two => "memory.events",
                Version::One => "memory.oom_control",
            }));
            if let Err(error) = limit_memory(place.version, &folder, bytes) {
                group.remove()?;
                return Err(error);
            }
        }
        Ok(group)
    }

    /// Removes the groups of jobs that are dead, and ends what is left in them; `is_dead` is asked
    /// with the name of the job's directory. What stays is named.
    pub fn sweep(&self, is_dead: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut faults = Vec::new();
        for base in self.bases() {
            let Ok(entries) = fs::read_dir(&base) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let job = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
                if !job.is_some_and(is_dead) {
                    continue;
                }
                let folder = entry.path();
                let kill = Some(folder.clone());
                let group = Group { folders: vec![folder], kill, cpu: None, oom: None };
                group.kill();
                if let Err(error) = group.remove() {
                    faults.push(format!("{}: {error}", entry.path().display()));
                }
            }
        }
        faults
    }
}

fn explain(place: Option<&Place>) -> Result<String, String> {
    match place.map(|place| place.version) {
        Some(Version::Two) => Ok("cgroup v2".to_owned()),
        Some(Version::One) => Ok("cgroup v1".to_owned()),
        None => Err("no cgroup can be made for it".to_owned()),
    }
}

fn lists_memory(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|one| one == "memory"))
}

/// Has groups below `base` limit memory.
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
    let own = base.join(OWN);
    let made = fs::create_dir(&own).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let pid = std::process::id().to_string();
    made.and_then(|()| fs::write(own.join("cgroup.procs"), pid)).is_ok() && enable()
}

fn limit_memory(version: Version, folder: &Path, bytes: u64) -> io::Result<()> {
    let bytes = bytes.to_string();
    let optional = |file: &str, text: &str| {
        let path = folder.join(file);
        // A kernel may be without swap accounting.
        if path.exists() { fs::write(path, text) } else { Ok(()) }
    };
    match version {
        Version::Two => {
            fs::write(folder.join("memory.max"), &bytes)?;
            optional("memory.swap.max", "0")
        }
        Version::One => {
            fs::write(folder.join("memory.limit_in_bytes"), &bytes)?;
            optional("memory.memsw.limit_in_bytes", &bytes)
        }
    }
}

impl Place {
    /// Whether a group can be made here, takes these writes and has this file.
    fn allows(&self, writes: &[(&str, &str)], file: &str) -> Option<Place> {
        let folder = self.base.join(format!("scored.probe-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let done = writes.iter().all(|(file, text)| fs::write(folder.join(file), text).is_ok());
        let read = fs::read(folder.join(file)).is_ok();
        let removed = fs::remove_dir(&folder).is_ok();
        (done && read && removed).then(|| self.clone())
    }
}

impl Group {
    /// Puts a process into it; what that starts from now on is in it, too.
    ///
    /// # Errors
    /// As write(2) on cgroup.procs.
    pub fn enter(&self, pid: i32) -> io::Result<()> {
        self.folders
            .iter()
            .try_for_each(|folder| fs::write(folder.join("cgroup.procs"), pid.to_string()))
    }

    /// How often the kernel has killed for lack of memory in it.
    pub fn oom_kills(&self) -> u64 {
        self.oom.as_deref().and_then(oom_kills).unwrap_or(0)
    }

    /// Ends every process in it.
    pub fn kill(&self) {
        if let Some(folder) = &self.kill
            && fs::write(folder.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for pid in self.processes() {
            process::kill(pid, libc::SIGKILL);
        }
    }

    fn processes(&self) -> Vec<i32> {
        let lists =
            self.folders.iter().map(|folder| fs::read_to_string(folder.join("cgroup.procs")));
        let pids: Vec<i32> = lists
            .flatten()
            .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids
    }

    /// Removes it; its processes must have ended or been killed.
    ///
    /// # Errors
    /// As rmdir(2): something is still in it.
    pub fn remove(&self) -> io::Result<()> {
        let until = Instant::now() + GOING;
        for folder in &self.folders {
            while let Err(error) = fs::remove_dir(folder) {
                match error.kind() {
                    io::ErrorKind::NotFound => break,
                    _ if Instant::now() >= until => return Err(error),
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

/// How often the kernel has killed for lack of memory in a group, from its `memory.events` or
/// `memory.oom_control`.
pub fn oom_kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_both_kinds_of_hierarchy() {
        let mounts = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let groups = "5:cpu,cpuacct:/a/b\n0::/c\n";
        let find = |controller| find_own(controller, mounts, groups);
        assert_eq!(find("cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct/a/b".into()));
        assert_eq!(find(""), Some("/sys/fs/cgroup/unified/c".into()));
        assert_eq!(find("memory"), None);
    }

    #[test]
    fn a_group_counts_limits_and_ends_what_is_in_it() {
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
        let until = Instant::now() + Duration::from_secs(10);
        let used = || group.cpu.as_deref().and_then(cpu_ns).unwrap();
        while used() < 20_000_000 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(used() >= 20_000_000, "{}", used());
        assert_eq!(group.oom_kills(), 0);
        // As after the death of a daemon: found by its name, ended, removed.
        assert_eq!(cgroups.sweep(&|job| job == name), Vec::<String>::new());
        assert!(!child.wait().unwrap().success());
        assert!(group.folders.iter().all(|folder| !folder.exists()));
    }
}
