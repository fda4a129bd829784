//! The other libraries, as far as they are installed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::bench::calls::{output, words};
use crate::run;

/// An MPI.
pub struct Mpi {
    /// Its name.
    pub name: &'static str,
    /// The words before a program's name, for N processes at the place of `N`.
    launcher: &'static str,
    compiler: &'static str,
    package: &'static str,
    version: &'static str,
    /// The compiled ping-pong, once there.
    pingpong: Option<PathBuf>,
}

const OPEN_MPI: Mpi = Mpi {
    name: "Open MPI",
    launcher: "mpiexec.openmpi --bind-to none --oversubscribe -n N",
    compiler: "mpicc.openmpi",
    package: "openmpi-bin libopenmpi-dev",
    version: "mpiexec.openmpi --version",
    pingpong: None,
};

const MPICH: Mpi = Mpi {
    name: "MPICH",
    launcher: "mpiexec.hydra -n N",
    compiler: "mpicc.mpich",
    package: "mpich libmpich-dev",
    version: "mpichversion",
    pingpong: None,
};

const SOURCE: &str = include_str!("pingpong.c");

/// Everybody who is there.
pub struct Peers {
    /// The MPIs whose ping-pong compiled.
    pub mpis: Vec<Mpi>,
    /// Whether ucx_perftest is there.
    pub ucx: bool,
    /// Whether iperf3 is there.
    pub iperf3: bool,
    /// A line about each, for the head of the result.
    pub lines: Vec<String>,
}

impl Mpi {
    /// The command that runs `program` on that many processes.
    pub fn line(&self, processes: u32, program: &str) -> String {
        format!("{} {program}", self.launcher.replace('N', &processes.to_string()))
    }

    /// The command that runs the ping-pong with these arguments.
    pub fn pingpong(&self, args: &str) -> Option<String> {
        let program = self.pingpong.as_ref()?;
        Some(self.line(2, &format!("{} {args}", program.display())))
    }

    fn settle(mut self, folder: &Path) -> Result<(Self, String), String> {
        let missing = || format!("{}: not installed; apt-get install {}", self.name, self.package);
        let launcher = self.launcher.split(' ').next().unwrap_or_default();
        if !run::have(launcher) || !run::have(self.compiler) {
            return Err(missing());
        }
        let source = folder.join("pingpong.c");
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let name = format!("pingpong.{}", self.compiler);
        let program = folder.join(&name);
        let compiled =
            run::call(Command::new(self.compiler).arg("-O2").arg("-o").arg(&program).arg(&source));
        compiled.map_err(|error| format!("{}: {error}", self.name))?;
        // As a user types it, at the top of the tree.
        self.pingpong = Some(Path::new(crate::bench::WORK).join(name));
        let version = output(&words(self.version)).unwrap_or_default();
        let version = version.lines().next().unwrap_or("version unknown").to_owned();
        let version: Vec<&str> = version.split_whitespace().collect();
        let line = format!("{}: {}", self.name, version.join(" "));
        Ok((self, line))
    }
}

impl Peers {
    /// Looks for them; compiles the ping-pong into `folder`.
    pub fn find(folder: &Path) -> Self {
        let (ucx, iperf3) = (run::have("ucx_perftest"), run::have("iperf3"));
        let mut peers = Self { mpis: Vec::new(), ucx, iperf3, lines: Vec::new() };
        for mpi in [OPEN_MPI, MPICH] {
            match mpi.settle(folder) {
                Ok((mpi, line)) => {
                    peers.mpis.push(mpi);
                    peers.lines.push(line);
                }
                Err(line) => peers.lines.push(line),
            }
        }
        peers.lines.push(if peers.ucx {
            let version = output(&words("ucx_info -v")).unwrap_or_default();
            let version = version.lines().next().unwrap_or("version unknown");
            format!("UCX: {}", version.trim_start_matches('#').trim())
        } else {
            "UCX: not installed; apt-get install ucx-utils".into()
        });
        peers.lines.push(if peers.iperf3 {
            let version = output(&words("iperf3 --version")).unwrap_or_default();
            version.lines().next().unwrap_or("iperf3, version unknown").to_owned()
        } else {
            "iperf3: not installed; apt-get install iperf3".into()
        });
        peers
    }
}

/// The words of a UCX test, without what joins its two processes. Of times one way the first
/// percentile is taken, of times between messages the median: the average has the kernel's pauses.
pub fn ucx_line(test: &str, size: u32) -> String {
    let transport = match test {
        "tag_lat" => String::new(),
        // Short messages up to what its rings hold beside their headers.
        _ if size <= 64 => "-d memory -x posix -D short".into(),
        _ => "-d memory -x posix -D bcopy".into(),
    };
    let rank = if test == "am_bw" { 50 } else { 1 };
    let count = if test == "am_bw" { 1_000_000 } else { 100_000 };
    let line =
        format!("ucx_perftest -t {test} -s {size} -n {count} -w 2000 -R {rank} -f {transport}");
    line.trim_end().to_owned()
}

/// The same test, the median of its times.
pub fn ucx_median(line: &str) -> String {
    line.replace(" -R 1 ", " -R 50 ")
}

/// Runs both processes of a UCX test on these cores; nanoseconds a message.
///
/// # Errors
/// One of them failed.
pub fn ucx(line: &str, cores: [u32; 2]) -> Result<f64, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|error| format!("no free port: {error}"))?.port();
    let server = words(&format!("timeout 60 {line} -p {port} -c {}", cores[0]));
    let mut server = ucx_command(&server).spawn().map_err(|error| format!("{line}: {error}"))?;
    let client = words(&format!("{line} -p {port} -c {} 127.0.0.1", cores[1]));
    let told = connect(&mut server, &client);
    if told.is_err() {
        // Its `timeout` passes this on; it may have gone already.
        let _ = server.kill();
    }
    let _ = server.wait();
    let told = told?;
    let numbers = told.lines().rev().find_map(|line| {
        let numbers: Vec<f64> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        (numbers.len() >= 8).then_some(numbers[1])
    });
    let microseconds = numbers.ok_or_else(|| format!("{line}: no figures in its output"))?;
    Ok(microseconds * 1e3)
}

fn ucx_command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("UCX_TLS", "posix,self,cma");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The server takes a moment until it listens, and says nothing when it does.
fn connect(server: &mut Child, client: &[String]) -> Result<String, String> {
    let mut words = client.to_vec();
    words.splice(0..0, ["env".into(), "UCX_TLS=posix,self,cma".into()]);
    let mut told = Err(String::new());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        told = output(&words);
        if told.is_ok() || !matches!(server.try_wait(), Ok(None)) {
            break;
        }
    }
    told
}
