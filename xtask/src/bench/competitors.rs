//! The other libraries with which the bench compares, if they are installed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench::command::{command_stdout, split_words};
use crate::run;

/// An MPI implementation.
pub struct MpiImplementation {
    /// The name of the implementation.
    pub name: &'static str,
    /// The command line in front of a program's name. `N` is replaced by the number of processes.
    launch_command: &'static str,
    compiler: &'static str,
    packages: &'static str,
    version_command: &'static str,
    /// The path of the compiled ping-pong. `None` if it did not compile.
    pingpong_path: Option<PathBuf>,
}

const OPEN_MPI: MpiImplementation = MpiImplementation {
    name: "Open MPI",
    launch_command: "mpiexec.openmpi --bind-to none --oversubscribe -n N",
    compiler: "mpicc.openmpi",
    packages: "openmpi-bin libopenmpi-dev",
    version_command: "mpiexec.openmpi --version",
    pingpong_path: None,
};

const MPICH: MpiImplementation = MpiImplementation {
    name: "MPICH",
    launch_command: "mpiexec.hydra -n N",
    compiler: "mpicc.mpich",
    packages: "mpich libmpich-dev",
    version_command: "mpichversion",
    pingpong_path: None,
};

/// The C source of the ping-pong.
pub const SOURCE: &str = include_str!("pingpong.c");

/// The installed competitors.
pub struct Competitors {
    /// The MPI implementations whose ping-pong compiled.
    pub mpis: Vec<MpiImplementation>,
    /// Whether ucx_perftest is installed.
    pub has_ucx: bool,
    /// Whether iperf3 is installed.
    pub has_iperf3: bool,
    /// A line about each competitor, for the header of the result.
    pub version_lines: Vec<String>,
}

impl MpiImplementation {
    /// The command that runs `program` on that many processes.
    pub fn command_line(&self, processes: u32, program: &str) -> String {
        format!("{} {program}", self.launch_command.replace('N', &processes.to_string()))
    }

    /// The command that runs the ping-pong with these arguments.
    pub fn pingpong_command(&self, args: &str) -> Option<String> {
        let program = self.pingpong_path.as_ref()?;
        Some(self.command_line(2, &format!("{} {args}", program.display())))
    }

    fn set_up(mut self, folder: &Path) -> Result<(Self, String), String> {
        let not_installed =
            || format!("{}: not installed; apt-get install {}", self.name, self.packages);
        let launcher = self.launch_command.split(' ').next().unwrap_or_default();
        if !run::is_installed(launcher) || !run::is_installed(self.compiler) {
            return Err(not_installed());
        }
        if !builds_programs(&[self.compiler], folder) {
            let Self { name, compiler, packages, .. } = self;
            let remedy = format!("apt-get install {packages}");
            return Err(format!("{name}: skipped: no working {compiler}; {remedy}"));
        }
        let source = folder.join("pingpong.c");
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let name = format!("pingpong.{}", self.compiler);
        let program = folder.join(&name);
        let compiled = run::run_checked(
            Command::new(self.compiler).arg("-O2").arg("-o").arg(&program).arg(&source),
        );
        compiled.map_err(|error| format!("{}: {error}", self.name))?;
        // The path is relative to the top of the tree, as a user types it there.
        self.pingpong_path = Some(Path::new(crate::bench::WORK_DIR).join(name));
        let version = command_stdout(&split_words(self.version_command)).unwrap_or_default();
        let version = version.lines().next().unwrap_or("version unknown").to_owned();
        let version: Vec<&str> = version.split_whitespace().collect();
        let version_line = format!("{}: {}", self.name, version.join(" "));
        Ok((self, version_line))
    }
}

/// Whether the compiler of an MPI builds a program of one line. `compiler` is a command with its
/// first arguments. MPICH's wrapper may be installed without libmpich-dev, which has the headers.
/// The compiler's messages are not shown.
pub fn builds_programs(compiler: &[&str], folder: &Path) -> bool {
    let source = folder.join("one_line.c");
    let text = "#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n";
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).arg("-o").arg(folder.join("one_line")).arg(&source);
    command.stdin(Stdio::null());
    std::fs::write(&source, text).is_ok()
        && command.output().is_ok_and(|output| output.status.success())
}

impl Competitors {
    /// Finds the installed competitors, and compiles the ping-pong into `folder`.
    pub fn find(folder: &Path) -> Self {
        let (has_ucx, has_iperf3) =
            (run::is_installed("ucx_perftest"), run::is_installed("iperf3"));
        let mut competitors =
            Self { mpis: Vec::new(), has_ucx, has_iperf3, version_lines: Vec::new() };
        for mpi in [OPEN_MPI, MPICH] {
            match mpi.set_up(folder) {
                Ok((mpi, version_line)) => {
                    competitors.mpis.push(mpi);
                    competitors.version_lines.push(version_line);
                }
                Err(version_line) => competitors.version_lines.push(version_line),
            }
        }
        competitors.version_lines.push(if competitors.has_ucx {
            let version = command_stdout(&split_words("ucx_info -v")).unwrap_or_default();
            let version = version.lines().next().unwrap_or("version unknown");
            format!("UCX: {}", version.trim_start_matches('#').trim())
        } else {
            "UCX: not installed; apt-get install ucx-utils".into()
        });
        competitors.version_lines.push(if competitors.has_iperf3 {
            let version = command_stdout(&split_words("iperf3 --version")).unwrap_or_default();
            version.lines().next().unwrap_or("iperf3, version unknown").to_owned()
        } else {
            "iperf3: not installed; apt-get install iperf3".into()
        });
        competitors
    }
}

/// The command of a UCX test, without the options that connect its two processes. One-way times use
/// the first percentile, and times between messages use the median. The average would include the
/// kernel's pauses.
pub fn ucx_command_line(test: &str, size: u32) -> String {
    let transport = match test {
        "tag_lat" => String::new(),
        // Short messages: up to the size that fits with its header into UCX's rings.
        _ if size <= 64 => "-d memory -x posix -D short".into(),
        _ => "-d memory -x posix -D bcopy".into(),
    };
    let percentile = if test == "am_bw" { 50 } else { 1 };
    let count = if test == "am_bw" { 1_000_000 } else { 100_000 };
    let line = format!(
        "ucx_perftest -t {test} -s {size} -n {count} -w 2000 -R {percentile} -f {transport}"
    );
    line.trim_end().to_owned()
}

/// Changes the command of a UCX test, so that it prints the median of the times.
pub fn ucx_median_command_line(line: &str) -> String {
    line.replace(" -R 1 ", " -R 50 ")
}

/// Runs both processes of a UCX test on these cores. Returns nanoseconds per message.
///
/// # Errors
/// Returns an error if one of the processes failed.
pub fn run_ucx_test(line: &str, cores: [u32; 2]) -> Result<f64, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|error| format!("no free port: {error}"))?.port();
    let server = split_words(&format!("timeout 60 {line} -p {port} -c {}", cores[0]));
    let mut server =
        ucx_server_command(&server).spawn().map_err(|error| format!("{line}: {error}"))?;
    let client = split_words(&format!("{line} -p {port} -c {} 127.0.0.1", cores[1]));
    let output = run_ucx_client(&mut server, &client);
    if output.is_err() && matches!(server.try_wait(), Ok(None)) {
        // SIGTERM, because `timeout` passes it on to the server, unlike SIGKILL.
        let _ = kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM);
    }
    let _ = server.wait();
    let output = output?;
    let value = output.lines().rev().find_map(|line| {
        let numbers: Vec<f64> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        (numbers.len() >= 8).then_some(numbers[1])
    });
    let microseconds = value.ok_or_else(|| format!("{line}: no result in the output"))?;
    Ok(microseconds * 1e3)
}

fn ucx_server_command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("UCX_TLS", "posix,self,cma");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts the client repeatedly, until it finds the server, because the server prints nothing when
/// it begins to listen.
fn run_ucx_client(server: &mut Child, client: &[String]) -> Result<String, String> {
    let mut words = client.to_vec();
    words.splice(0..0, ["env".into(), "UCX_TLS=posix,self,cma".into()]);
    let mut result = Err(String::new());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        result = command_stdout(&words);
        if result.is_ok() || !matches!(server.try_wait(), Ok(None)) {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_without_its_headers_is_no_working_compiler() {
        let folder = std::env::temp_dir().join(format!("xtask-competitors-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("include")).unwrap();
        // The test uses no wrapper script of its own. A child that another test forks at the same
        // time would inherit the open file, and executing the script would then fail with ETXTBSY.
        let include = format!("-I{}/include", folder.display());
        let builds = || builds_programs(&["gcc", &include], &folder);
        assert!(!builds());
        let header = "static int MPI_Finalize(void) { return 0; }\n";
        std::fs::write(folder.join("include/mpi.h"), header).unwrap();
        let has_gcc = run::is_installed("gcc");
        assert_eq!(builds(), has_gcc);
        assert!(!builds_programs(&["no-such-compiler"], &folder));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
