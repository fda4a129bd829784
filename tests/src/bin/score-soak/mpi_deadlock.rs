//! Random patterns of MPI (tests/programs/mpi_patterns.c), as two jobs that take turns in slices of
//! random length. Programs that poll by MPI_Test between computations are never reported as
//! deadlocked; programs with a receive that nothing matches always are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{EXIT_DEADLOCK, TestEnv, binaries};

use crate::mpi::{MpiLibrary, closed_folder};
use crate::random::Random;

/// Time limit of two jobs that take turns on processors with other work.
const JOB_TIMEOUT: Duration = Duration::from_secs(240);
/// The range of slices in milliseconds.
const SLICE_RANGE_MS: [usize; 2] = [5, 60];

/// The path of the compiled program.
pub struct MpiPatterns(PathBuf);

/// The results of two jobs.
pub struct MpiVerdicts {
    /// The number of jobs that have ended normally.
    pub completed: u64,
    /// The number of deadlocks that were found.
    pub deadlocked: u64,
}

impl MpiPatterns {
    /// Compiles the program into a directory.
    ///
    /// # Errors
    /// Why the program cannot run on this machine.
    pub fn compile(folder: &Path) -> Result<Self, String> {
        MpiLibrary::Mpich.check_installed()?;
        if !nix::unistd::geteuid().is_root() {
            return Err("time slices need root".to_owned());
        }
        let compiler = MpiLibrary::Mpich.compiler();
        if let Some(reason) = closed_folder(&compiler) {
            return Err(reason);
        }
        let program = folder.join("mpi_patterns");
        let source = binaries::root().join("tests/programs/mpi_patterns.c");
        let mut mpicc = Command::new(&compiler);
        mpicc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
        match mpicc.status() {
            Ok(status) if status.success() => Ok(Self(program)),
            Ok(status) => Err(format!("{}: {status}", compiler.display())),
            Err(error) => Err(format!("{}: {error}", compiler.display())),
        }
    }

    /// Runs two jobs that follow from the random numbers.
    ///
    /// # Errors
    /// Returns an error if a verdict was wrong or missing.
    pub fn run(&self, random: &mut Random) -> Result<MpiVerdicts, String> {
        let env = TestEnv::new();
        let hosts = &["a", "b"][..1 + random.below(2)];
        let [min, max] = SLICE_RANGE_MS;
        let slice = (min + random.below(max - min)).to_string();
        let database = Cluster::database(hosts);
        let cluster = Cluster::start_with_options(&env, hosts, &database, &["-ts", &slice]);
        let cluster = cluster.expect("root can start a service");
        binaries::copy_mpi_files(env.dir());
        let program = env.dir().join("mpi_patterns");
        std::fs::copy(&self.0, &program).map_err(|error| format!("mpi_patterns: {error}"))?;
        let jobs = [ALICE, BOB].map(|uid| {
            let is_dead = random.below(3) == 0;
            let ending = if is_dead { "dead" } else { "alive" };
            let nodes = match hosts.len() {
                1 => "2".to_owned(),
                _ => format!("2x{}", 1 + random.below(2)),
            };
            let seed = (random.next() % 1_000_000).to_string();
            let steps = (5 + random.below(60)).to_string();
            let host = hosts[hosts.len() - 1];
            let options = format!("-scored=all,nodes={nodes}");
            let args = [&options, &program.display().to_string(), &seed, &steps, ending];
            let what = format!("slices of {slice} ms: {}", args.join(" "));
            let job = cluster.command(uid, "scrun", host).args(&args).timeout(JOB_TIMEOUT);
            (is_dead, what, job.start())
        });
        let mut verdicts = MpiVerdicts { completed: 0, deadlocked: 0 };
        for (is_dead, what, job) in jobs {
            let outcome = job.wait();
            let expected_code = if is_dead { EXIT_DEADLOCK } else { 0 };
            // A job without PM would have no verdict, so it would prove nothing.
            if outcome.code != expected_code || outcome.stderr.contains("not go over PM") {
                // The other job may still run. Its leftovers are not checked.
                env.ignore_leftovers();
                return Err(format!("{what}: {outcome}"));
            }
            match is_dead {
                true => verdicts.deadlocked += 1,
                false => verdicts.completed += 1,
            }
        }
        Ok(verdicts)
    }
}
