//! Tests of cgroups on the hierarchies of this machine.

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

// Promise of `an_exceeded_limit_is_named_with_its_host_and_other_jobs_continue`.
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
    // After the death of a daemon, the group is found by its name, killed and removed.
    assert_eq!(cgroups.sweep(&|job| job == name), Vec::<String>::new());
    assert!(!child.wait().unwrap().success());
    assert!(group.dirs.iter().all(|dir| !dir.exists()));
}

/// Moves a process into the group.
fn add(group: &Group, pid: u32) {
    let dirs = group.member_dirs(RANKS_CGROUP, false);
    let files = dirs.map(|dir| dir.join("cgroup.procs"));
    files.for_each(|file| fs::write(file, pid.to_string()).unwrap());
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

/// A parent group for the groups of a test. The sweep of a daemon that starts does not find them
/// there.
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

/// A set of hierarchies for each kind of freezer, and a base for its groups.
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
fn tools_are_not_frozen_with_the_job_and_killed_with_it() {
    let freezers = freezers();
    let Some((cgroups, _base)) = freezers.first() else { return };
    let group = cgroups.make("job-tools", None).unwrap();
    let (_, files) = group.for_tools();
    if files.is_empty() {
        return eprintln!("skipped: no version 2");
    }
    let other = Group { freezer: None, ..cgroups.make("job-tools", None).unwrap() };
    let mut tool = busy_child(&other);
    files.iter().for_each(|file| fs::write(file, tool.id().to_string()).unwrap());
    group.freeze().unwrap();
    wait_until_computing(&tool);
    group.kill();
    wait_until("the tool survives", || tool.try_wait().unwrap().is_some());
    group.remove().unwrap();
}

#[test]
fn a_frozen_group_of_a_dead_job_is_swept() {
    for (cgroups, _base) in freezers() {
        // An earlier hierarchy has the same group.
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
fn a_process_starts_in_the_version_2_group_and_joins_the_version_1_groups() {
    let Some(base) = TestBase::create("") else { return eprintln!("skipped: no version 2") };
    let v2 = ControllerPath { version: Version::Two, base: base.0.clone() };
    assert!(v2.probe_start().is_some());
    assert!(fs::File::open("/").is_ok_and(|other| namespace::try_start_in(&other).is_err()));
    let memory = TestBase::create("memory")
        .map(|base| (ControllerPath { version: Version::One, base: base.0.clone() }, base));
    let cgroups = Cgroups {
        cpu: Some(v2),
        memory: memory.as_ref().map(|(controller, _)| controller.clone()),
        start_base: Some(base.0.clone()),
        ..Cgroups::default()
    };
    let group = cgroups.make("job-start", None).unwrap();
    assert_eq!(group.start_dir(), Some(base.0.join("scored-job-start/ranks").as_path()));
    assert_eq!(group.membership_files().count(), 0);
    let tools = base.0.join("scored-job-start/tools");
    assert_eq!(group.for_tools(), (Some(tools), Vec::new()));
    group.remove().unwrap();
    // Nothing of version 2 is used. The group has no part there in which a process could start.
    let without_v2 = Cgroups { start_base: Some(base.0.clone()), ..Cgroups::default() };
    assert_eq!(without_v2.make("job-start", None).unwrap().start_dir(), None);
    if memory.is_some() {
        let group = cgroups.make("job-start", Some(64 << 20)).unwrap();
        assert_eq!(group.membership_files().count(), 1);
        group.remove().unwrap();
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
