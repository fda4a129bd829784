//! Runs systemd, and systems that start daemons on other hosts of a virtual LAN: sshd, Slurm and
//! Grid Engine. The scripts are in tests/testbeds. If a program is not installed, the testbed uses
//! the one from the package that `cargo xtask test` has unpacked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use score_sys::random::random_bytes;

use crate::{Job, TestEnv, binaries, process, skip};

/// The directory of unpacked packages, next to the programs' directory.
const PACKAGE_DIR: &str = "testbeds";

/// A testbed that is ready to be started.
pub struct Testbed {
    script: PathBuf,
    folder: PathBuf,
    package_dir: PathBuf,
    programs: Vec<(&'static str, PathBuf)>,
    env_vars: Vec<(&'static str, String)>,
}

fn package_dir() -> PathBuf {
    binaries::folder().parent().unwrap_or(Path::new("/")).join(PACKAGE_DIR)
}

/// The prefix (`/usr`, or the directory of unpacked packages) whose `include` has this header.
#[must_use]
pub fn header_prefix(header: &str) -> Option<PathBuf> {
    let prefixes = [package_dir().join("usr"), PathBuf::from("/usr")];
    prefixes.into_iter().find(|prefix| prefix.join("include").join(header).exists())
}

/// Finds a program by one of its names, first among installed programs and then among unpacked
/// ones.
fn find_tool(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push("/usr/sbin".into());
    folders.extend(["usr/sbin", "usr/bin"].map(|folder| package_dir().join(folder)));
    let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.into_iter().find(|file| file.is_file())
}

impl Testbed {
    fn new(env: &TestEnv, name: &str, programs: &[(&'static str, &[&str])]) -> Option<Self> {
        let folder = env.dir().join(name);
        fs::create_dir_all(&folder).expect("the scenario's directory can be written");
        let mut found = Vec::new();
        for (variable, names) in programs {
            let Some(path) = find_tool(names) else {
                skip(&format!("{name}_testbed"), &format!("{} is not installed", names[0]));
                return None;
            };
            found.push((*variable, path));
        }
        let script = binaries::root().join(format!("tests/testbeds/{name}.sh"));
        let package_dir = package_dir();
        Some(Self { script, folder, package_dir, programs: found, env_vars: Vec::new() })
    }

    /// An sshd on each host except the first. The addresses are 10.77.0.2, 10.77.0.3 and so on.
    /// SCORE_RSH contains the remote shell with its options.
    pub fn ssh(env: &TestEnv) -> Option<Self> {
        let mut testbed = Self::new(env, "ssh", &[("SSHD", &["sshd"]), ("", &["ssh-keygen"])])?;
        let folder = testbed.folder.display().to_string();
        for name in ["host_key", "user_key"] {
            let status = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(testbed.folder.join(name))
                .status();
            assert!(status.is_ok_and(|status| status.success()), "ssh-keygen");
        }
        testbed.write_file(
            "sshd_config",
            &format!(
                "Port 2222\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\n\
                 UsePAM no\nStrictModes no\nPidFile none\nPasswordAuthentication no\n\
                 KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
                 SetEnv {}={}\n",
                process::MARKER_ENV,
                env.marker(),
            ),
        );
        testbed.write_file(
            "ssh_config",
            &format!(
                "Port 2222\nIdentityFile {folder}/user_key\nIdentitiesOnly yes\n\
                 UserKnownHostsFile {folder}/known\nStrictHostKeyChecking no\nLogLevel ERROR\n"
            ),
        );
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        testbed.write_file(
            "passwd",
            &format!("{users}sshd:x:32766:32766::/run/sshd:/usr/sbin/nologin\n"),
        );
        testbed.env_vars.push(("SCORE_RSH", format!("ssh -F {folder}/ssh_config")));
        Some(testbed)
    }

    /// A Slurm cluster with a node on each host except the first, named `node1`, `node2` and so on.
    pub fn slurm(env: &TestEnv, nodes: u32) -> Option<Self> {
        if !geteuid().is_root() {
            skip("slurm_testbed", "only root can start its daemons");
            return None;
        }
        let programs: &[(&str, &[&str])] = &[
            ("MUNGED", &["munged"]),
            ("SLURMCTLD", &["slurmctld", "slurmctld-wlm"]),
            ("SLURMD", &["slurmd", "slurmd-wlm"]),
            ("SLURMSTEPD", &["slurmstepd", "slurmstepd-wlm"]),
            ("", &["srun"]),
        ];
        let testbed = Self::new(env, "slurm", programs)?;
        for name in ["munge", "state", "log", "spool"] {
            fs::create_dir_all(testbed.folder.join(name)).expect("the directory can be written");
        }
        let key = testbed.folder.join("munge.key");
        let bytes: [u8; 128] = random_bytes().expect("the kernel has random bytes");
        fs::write(&key, bytes).expect("the directory can be written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        for node in 1..=nodes {
            let _ = fs::create_dir(testbed.folder.join(format!("spool/node{node}")));
        }
        testbed.write_hosts_file(nodes);
        testbed.write_file("slurm.conf", &testbed.slurm_conf(nodes));
        Some(testbed)
    }

    /// A Grid Engine cluster with an execution host on each host except the first, named `node1`,
    /// `node2` and so on.
    pub fn grid_engine(env: &TestEnv, nodes: u32) -> Option<Self> {
        if !geteuid().is_root() {
            skip("grid_engine_testbed", "only root can start its daemons");
            return None;
        }
        let testbed =
            Self::new(env, "grid_engine", &[("", &["sge_qmaster"]), ("", &["sge_execd"])])?;
        testbed.write_hosts_file(nodes);
        testbed.write_file(
            "parallel",
            "pe_name score\nslots 99\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\n\
             stop_proc_args NONE\nallocation_rule 2\ncontrol_slaves TRUE\n\
             job_is_first_task FALSE\nurgency_slots min\naccounting_summary FALSE\n\
             qsort_args NONE\n",
        );
        Some(testbed)
    }

    /// Runs `line` as a service of a systemd that has this machine's files, scored's unit, and a
    /// copy of the programs under test. The directory of the copy is the first in PATH.
    pub fn systemd(env: &TestEnv, line: &str) -> Option<Job> {
        let manager = Path::new("/usr/lib/systemd/systemd");
        if !geteuid().is_root() || !manager.exists() {
            skip("systemd_testbed", "systemd is not installed, or we are not root");
            return None;
        }
        let testbed = Self::new(env, "systemd", &[("", &["systemd-analyze"])])?;
        let programs = env.dir().join("bin");
        let units = testbed.folder.join("units");
        for folder in [&programs, &units] {
            fs::create_dir_all(folder).expect("the directory can be written");
        }
        for name in ["scored", "scrun"] {
            let copied = fs::copy(binaries::program(name), programs.join(name));
            copied.expect("our programs can be copied");
        }
        let unit = fs::read_to_string(binaries::root().join("dist/scored.service"));
        let prefix = env.dir().display().to_string();
        let unit = unit.expect("the unit file exists").replace("@PREFIX@", &prefix);
        // A system user that needs no entry in the user database.
        let unit = unit.replace("/bin/scored\n", "/bin/scored -user 61990\n");
        testbed.write_file("units/scored.service", &unit);
        let folder = testbed.folder.display();
        testbed.write_file(
            "units/bed.target",
            "[Unit]\nDefaultDependencies=no\nWants=line.service systemd-journald.service\n",
        );
        testbed.write_file(
            "units/line.service",
            &format!(
                "[Unit]\nDefaultDependencies=no\nAfter=systemd-journald.socket\n\
                 Requires=systemd-journald.socket\n[Service]\nExecStart=/bin/sh {folder}/line\n\
                 StandardOutput=file:{folder}/out\nStandardError=file:{folder}/error\n"
            ),
        );
        testbed.write_file(
            "line",
            &format!(
                "PATH={}:$PATH; export PATH; cd {prefix}\n({line}\n)\necho $? > {folder}/code\n\
                 systemctl --force exit\n",
                programs.display()
            ),
        );
        testbed.write_file("out", "");
        testbed.write_file("error", "");
        let text = |path: &Path| path.display().to_string();
        let job = env.command("/bin/sh").arg(&text(&testbed.script));
        Some(job.env("BED", &text(&testbed.folder)).env("SCENE", &prefix))
    }

    /// Writes the names that the resolver must resolve.
    fn write_hosts_file(&self, nodes: u32) {
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        for node in 0..=nodes {
            hosts += &format!("10.77.0.{} node{node}\n", node + 1);
        }
        self.write_file("hosts", &hosts);
    }

    fn slurm_conf(&self, nodes: u32) -> String {
        let plugins = self.package_dir.join("usr/lib/x86_64-linux-gnu/slurm-wlm");
        let plugins = if plugins.is_dir() {
            format!("PluginDir={}\n", plugins.display())
        } else {
            String::new()
        };
        format!(
            "ClusterName=x\nSlurmctldHost=node0(10.77.0.1)\nSlurmUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nCredType=cred/munge\n\
             {plugins}StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\n\
             SlurmdPidFile={folder}/log/%n.pid\nSlurmctldPidFile={folder}/slurmctld.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\n\
             SchedulerType=sched/builtin\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nMpiDefault=none\n\
             SwitchType=switch/none\nReturnToService=2\nKillWait=2\n\
             SlurmdParameters=config_overrides\n\
             NodeName=node[1-{nodes}] NodeAddr=10.77.0.[2-{last}] CPUs=2 RealMemory=1000\n\
             PartitionName=p Nodes=node[1-{nodes}] Default=YES MaxTime=INFINITE State=UP\n",
            folder = self.folder.display(),
            last = nodes + 1,
        )
    }

    fn write_file(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("the directory can be written");
    }

    /// Makes the command line run outside of a Slurm allocation, so that it can request one itself.
    #[must_use]
    pub fn outside(mut self) -> Self {
        self.env_vars.push(("OUTSIDE", "yes".to_owned()));
        self
    }

    /// Starts the testbed on `hosts` hosts, and runs a command line on the first of them, in the
    /// scenario's directory. The testbed ends with the command.
    pub fn run(&self, env: &TestEnv, hosts: u32, line: &str) -> Job {
        let text = |path: &Path| path.display().to_string();
        let mut job = env
            .command(binaries::program("score-lan"))
            .args(&["-hosts", &hosts.to_string(), "sh", &text(&self.script)])
            .env("BED", &text(&self.folder))
            .env("TOOLS", &text(&self.package_dir))
            .env("LINE", line);
        for (name, path) in self.programs.iter().filter(|(name, _)| !name.is_empty()) {
            job = job.env(name, &text(path));
        }
        for (name, value) in &self.env_vars {
            job = job.env(name, value);
        }
        job
    }
}
