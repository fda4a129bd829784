//! MPI programs start through PMI. Their processes get their rank and size from their shepherd, and
//! exchange addresses through a key-value space that all hosts of the job share.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use score_tests::service::Cluster;
use score_tests::{Outcome, TestEnv, binaries, skip, testbed};

/// The requests of a process's MPI library to its shepherd (PMI 1), as shell functions.
const PMI_FUNCTIONS: &str = "\
ask() { printf 'cmd=%s\\n' \"$1\" >&$PMI_FD; read -r answer <&$PMI_FD; }
ask 'init pmi_version=1 pmi_subversion=1'
ask get_my_kvsname; kvs=${answer##*kvsname=}; kvs=${kvs%% *}
";

/// Runs a shell script that uses PMI, on two hosts with two nodes each.
fn run_pmi(env: &TestEnv, script: &str) -> Outcome {
    let text = format!("{PMI_FUNCTIONS}{script}\n").replace("$PMI_FD", "4");
    let path = env.write_file("pmi.sh", text);
    let line = "scrun -message=concise -group=local:2 -nodes=2x2 -mpi=mpich";
    env.sh(&format!("{line} /bin/sh {}", path.display())).run()
}

#[test]
fn processes_of_all_hosts_get_the_entries_put_before_a_fence() {
    let env = TestEnv::new();
    let outcome = run_pmi(
        &env,
        "for round in 1 2; do
            ask \"put kvsname=$kvs key=k$round-$PMI_RANK value=v$round-$PMI_RANK\"
            ask barrier_in
            for rank in 0 1 2 3; do
                ask \"get kvsname=$kvs key=k$round-$rank\"
                echo \"$PMI_RANK of $PMI_SIZE: ${answer##*value=}\"
            done
        done
        ask \"get kvsname=$kvs key=PMI_process_mapping\"; echo \"$PMI_RANK: ${answer##*value=}\"
        ask finalize",
    );
    let outcome = outcome.expect_code(0);
    let mut expected: Vec<String> =
        (0..4).map(|rank| format!("{rank}: (vector,(0,2,2))")).collect();
    for rank in 0..4 {
        for round in 1..3 {
            expected.extend((0..4).map(|from| format!("{rank} of 4: v{round}-{from}")));
        }
    }
    expected.sort();
    assert_eq!(outcome.sorted_lines(), expected);
}

#[test]
fn users_of_a_service_run_mpi_programs_on_several_hosts_at_once() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let script = format!(
        "{PMI_FUNCTIONS}
        ask \"put kvsname=$kvs key=k$PMI_RANK value=uid-$(id -u)\"; ask barrier_in
        ask \"get kvsname=$kvs key=k$((1 - PMI_RANK))\"; echo ${{answer##*value=}}
        ask finalize"
    )
    .replace("$PMI_FD", "4");
    let start = |uid| cluster.scrun(uid, "b", "nodes=2x1,mpi=mpich", &script).start();
    let jobs = [1001, 1002, 1001].map(|uid| (uid, start(uid)));
    for (uid, job) in jobs {
        assert_eq!(job.wait().expect_code(0).text(), format!("uid-{uid}\n").repeat(2));
    }
}

#[test]
fn an_error_of_an_mpi_process_ends_the_job_and_names_the_process() {
    for (fault, code, lines) in [
        ("exit 3", 3, &["node 2 exited with code 3 before MPI_Finalize()"][..]),
        ("exit 0", 1, &["node 2 exited with code 0 before MPI_Finalize()"]),
        (
            "ask finalize; exit 0",
            1,
            &["in a fence (MPI_Init() or MPI_Finalize()) for node 2, which has"],
        ),
        ("kill -9 $$", 137, &["node 2", "SIGKILL"]),
        ("ask 'abort exitcode=7'", 7, &["node 2 called MPI_Abort(.., 7)"]),
        ("ask 'abort exitcode=0'", 1, &["node 2 called MPI_Abort(.., 0)"]),
        ("printf 'hello\\n' >&4", 1, &["node 2: a PMI message that begins neither"]),
        ("ask 'no_such_command'", 1, &["node 2", "no_such_command"]),
        ("ask 'init pmi_version=1 pmi_subversion=1'", 1, &["node 2: PMI init for the second"]),
        ("ask finalize; ask \"put kvsname=$kvs key=a value=b\"", 1, &["'put' after finalize"]),
        ("printf 'cmd=put%070000d' 1 >&4", 1, &["node 2", "PMI"]),
    ] {
        let env = TestEnv::new();
        let script = format!("[ $PMI_RANK = 2 ] && {{ {fault}; }}; ask barrier_in; ask finalize");
        let outcome = run_pmi(&env, &script);
        assert_eq!(outcome.code, code, "{fault}: {outcome}");
        let _ = outcome.assert_stderr(lines);
    }
}

#[test]
fn a_process_that_exits_before_mpi_init_is_named_to_those_that_wait_on_its_host() {
    let env = TestEnv::new();
    let text = format!("[ $PMI_RANK = 1 ] && exit 0\n{PMI_FUNCTIONS}ask barrier_in\n");
    let path = env.write_file("pmi.sh", text.replace("$PMI_FD", "4"));
    let line = format!("scrun -nodes=2 -mpi=mpich /bin/sh {}", path.display());
    let outcome = env.sh(&line).run().expect_code(1);
    let _ = outcome
        .assert_stderr(&["node 0 waits in a fence (MPI_Init() or MPI_Finalize()) for node 1"]);
}

#[test]
fn a_refused_request_is_an_error_of_that_request_alone() {
    let env = TestEnv::new();
    let outcome = run_pmi(
        &env,
        "value=$(printf '%01024d' 0); long=$value
        ask \"put kvsname=$kvs key=long value=0$long\"; echo \"long: ${answer%%msg*}\"
        ask 'spawn nprocs=1'; echo \"spawn: ${answer%%msg*}\"
        key=0; while [ $key -lt 40 ]; do key=$((key + 1))
            ask \"put kvsname=$kvs key=$PMI_RANK-$key value=$value\"
        done; echo \"full: ${answer##*put_result }\"
        ask barrier_in; ask finalize; echo \"end: $answer\"",
    );
    let text = outcome.expect_code(0).text();
    assert_eq!(text.matches("long: cmd=put_result rc=-1").count(), 4, "{text}");
    assert_eq!(text.matches("put\\ at\\ most").count(), 4, "{text}");
    assert_eq!(text.matches("end: cmd=finalize_ack").count(), 4, "{text}");
}

#[test]
fn no_process_inherits_the_variables_of_another_launcher() {
    let env = TestEnv::new();
    let line = "PMI_RANK=9 PMI_FD=0 PMI_PORT=x PMI_ID=1 scrun -nodes=2 -mpi=none \
                /bin/sh -c 'echo ${PMI_RANK-none} ${PMI_FD-none} ${PMI_PORT-none} ${PMI_ID-none}'";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text(), "none none none none\n".repeat(2));
}

/// Finds MPICH of PyPI, which `cargo xtask test` installs below the target directory.
pub(super) fn mpich(test: &str) -> Option<PathBuf> {
    let folder = binaries::folder().parent().unwrap().join("mpich");
    let is_complete = folder.join(".complete").exists();
    if !is_complete {
        skip(test, "MPICH of PyPI is not installed below the target directory");
    }
    is_complete.then_some(folder)
}

pub(super) const RING: &str = "\
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, got, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 7, &got, 1, MPI_INT,
                 (rank + size - 1) % size, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (argc > 1 && rank == size - 1) exit(atoi(argv[1]));
    if (argc > 2) MPI_Abort(MPI_COMM_WORLD, 9);
    printf(\"%d of %d: %d %d\\n\", rank, size, got, sum);
    MPI_Finalize();
    return 0;
}
";

#[test]
fn a_program_built_by_mpicc_runs_on_one_host_and_on_several() {
    let Some(mpich) = mpich("mpich_programs") else { return };
    let env = TestEnv::new();
    env.write_file("ring.c", RING);
    // mpicc uses the interface of MPICH, mpicc_abi the standard ABI of MPI 5.0.
    for (compiler, name) in [("mpicc", "ring"), ("mpicc_abi", "ring_abi")] {
        let mut mpicc = Command::new(mpich.join("bin").join(compiler));
        mpicc.args(["ring.c", "-o", name]).current_dir(env.dir());
        assert!(mpicc.status().unwrap().success());
    }
    let ring = env.dir().join("ring");
    let expected: Vec<String> =
        (0..4).map(|rank| format!("{rank} of 4: {} 6", (rank + 3) % 4)).collect();
    let without_pm = "its messages do not go over PM, because FI_PROVIDER is set to 'tcp'";
    for (variables, options, notice) in [
        ("", "-nodes=4", ""),
        ("", "-group=local:2 -nodes=2x2", ""),
        ("FI_PROVIDER=tcp", "-nodes=4", without_pm),
    ] {
        let outcome = env.sh(&format!("{variables} scrun {options} {}", ring.display())).run();
        let outcome = outcome.assert_stderr(&[notice]).expect_code(0);
        assert_eq!(outcome.sorted_lines(), expected, "{options}");
        assert!(!notice.is_empty() || !outcome.stderr.contains("not go over PM"), "{outcome}");
    }
    let outcome = env.sh(&format!("scrun -nodes=4 {}_abi", ring.display())).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), expected, "{outcome}");
    assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
    let outcome = env.sh(&format!("scrun -nodes=3 {} 5", ring.display())).run().expect_code(5);
    let _ = outcome.assert_stderr(&["node 2 exited with code 5 before MPI_Finalize()"]);
    // The command never calls MPI_Init.
    let outcome = env.sh("scrun -nodes=2 -mpi=mpich /bin/echo hello").run().expect_code(0);
    assert_eq!(outcome.text(), "hello\nhello\n");
}

/// Compiles a program of `tests/programs` by mpicc.
pub(super) fn compile_program(env: &TestEnv, mpich: &Path, name: &str) -> PathBuf {
    compile_program_by(env, &mpich.join("bin/mpicc"), name)
}

/// Compiles a program of `tests/programs` by this compiler.
pub(super) fn compile_program_by(env: &TestEnv, compiler: &Path, name: &str) -> PathBuf {
    let source = binaries::root().join("tests/programs").join(name).with_extension("c");
    let mut mpicc = Command::new(compiler);
    mpicc.arg(source).args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", name]);
    assert!(mpicc.current_dir(env.dir()).status().unwrap().success());
    env.dir().join(name)
}

/// Runs a program over PM, within a host and between two hosts. The program prints "ok" on each
/// rank.
fn run_over_pm(env: &TestEnv, program: &Path) {
    for (options, nodes) in [
        ("-nodes=1", 1),
        ("-nodes=2", 2),
        ("-nodes=4", 4),
        ("-group=local:2 -nodes=2x1", 2),
        ("-group=local:2 -nodes=2x2", 4),
    ] {
        // With this variable rank 0 of MPICH prints which provider of libfabric it uses.
        let variables = "MPIR_CVAR_DEBUG_SUMMARY=1";
        let line = format!("{variables} scrun {options} {}", program.display());
        let outcome = env.sh(&line).run().expect_code(0);
        let lines = outcome.sorted_lines();
        assert_eq!(lines.iter().filter(|line| *line == "ok").count(), nodes, "{outcome}");
        assert!(lines.iter().any(|line| line == "libfabric provider: pm - pm"), "{outcome}");
        assert!(lines.iter().any(|line| line == "MPIDI_OFI_ENABLE_RMA: 1"), "{outcome}");
    }
}

#[test]
fn messages_of_all_kinds_use_pm() {
    let Some(mpich) = mpich("mpich_messages") else { return };
    let env = TestEnv::new();
    run_over_pm(&env, &compile_program(&env, &mpich, "mpi_messages"));
}

#[test]
fn windows_of_all_kinds_use_pm() {
    let Some(mpich) = mpich("mpich_windows") else { return };
    let env = TestEnv::new();
    run_over_pm(&env, &compile_program(&env, &mpich, "mpi_windows"));
}

/// In this case libpm-fi sends long messages in fragments, and writes windows by messages.
// Promise of `without_kernel_copies_only_allocator_memory_is_accessible`.
#[test]
fn mpi_uses_pm_even_if_the_kernel_refuses_copies_between_processes() {
    let Some(mpich) = mpich("mpich_without_process_vm") else { return };
    let env = TestEnv::new();
    let Some(wrapper) = env.test_program("without_process_vm") else { return };
    for name in ["mpi_messages", "mpi_windows"] {
        let program = compile_program(&env, &mpich, name);
        let line = format!("{} scrun -nodes=4 {}", wrapper.display(), program.display());
        let outcome = env.sh(&line).env("PM_DEBUG", "1").run().expect_code(0);
        assert_eq!(outcome.text(), "ok\n".repeat(4), "{outcome}");
        let outcome =
            outcome.assert_stderr(&["use pmAlloc, or allow process_vm_writev (Yama, seccomp)"]);
        assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
    }
}

#[test]
fn a_program_that_calls_libfabric_uses_all_that_the_provider_offers() {
    let Some(mpich) = mpich("fi_calls") else { return };
    let Some(prefix) = testbed::header_prefix("rdma/fabric.h") else {
        return skip("fi_calls", "libfabric-dev is neither installed nor unpacked");
    };
    let env = TestEnv::new();
    // The wheel of MPICH contains its own libfabric.
    let library = mpich.join("lib/mpich");
    let source = binaries::root().join("tests/programs/fi_calls.c");
    let mut gcc = Command::new("gcc");
    gcc.arg(source).arg(format!("-I{}/include", prefix.display()));
    gcc.args(["-O2", "-pthread", "-o", "fi_calls", "-L"]).arg(&library);
    gcc.arg("-l:libfabric.so.1").arg(format!("-Wl,-rpath,{}", library.display()));
    assert!(gcc.current_dir(env.dir()).status().unwrap().success());
    let provider = binaries::folder().join("libfabric");
    let variables = format!("FI_PROVIDER=pm FI_PROVIDER_PATH={}", provider.display());
    let program = env.dir().join("fi_calls");
    for options in ["-nodes=2", "-group=local:2 -nodes=2x1"] {
        let line = format!("{variables} scrun {options} -mpi=none {}", program.display());
        let outcome = env.sh(&line).run().expect_code(0);
        assert_eq!(outcome.text(), "ok\n".repeat(2), "{outcome}");
    }
}

#[test]
fn jobs_of_two_users_take_turns_and_lose_no_message() {
    let Some(mpich) = mpich("mpich_users") else { return };
    let is_open = |path: &Path| path.metadata().is_ok_and(|it| it.permissions().mode() & 1 == 1);
    if !mpich.ancestors().all(is_open) {
        return skip("mpich_users", "users may not enter the target directory");
    }
    let env = TestEnv::new();
    let program = compile_program(&env, &mpich, "mpi_messages");
    let options = ["-ts", "10"];
    let database = Cluster::database(&["a", "b"]);
    let Some(cluster) = Cluster::start_with_options(&env, &["a", "b"], &database, &options) else {
        return;
    };
    binaries::copy_mpi_files(env.dir());
    let start = |uid| {
        let options = "-scored=all,nodes=2x2";
        cluster.command(uid, "scrun", "b").args(&[options, program.to_str().unwrap()]).start()
    };
    let jobs = [1001, 1002, 1001].map(start);
    for job in jobs {
        let outcome = job.wait().expect_code(0);
        assert_eq!(outcome.text(), "ok\n".repeat(4), "{outcome}");
        assert!(!outcome.stderr.contains("not go over PM"), "{outcome}");
    }
}

/// A program that calls sched_yield(2) on a processor that it shares with another process, and
/// prints how often the other process ran meanwhile.
const YIELDING_PROGRAM: &str = "\
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    volatile long *turns = mmap(NULL, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
    pid_t child = fork();
    while (child == 0) {
        ++*turns;
        syscall(SYS_sched_yield);
    }
    while (*turns == 0) usleep(1000);
    long before = *turns;
    for (int i = 0; i < 10000; i++) sched_yield();
    printf(\"%ld\\n\", *turns - before);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
";

// Promise (MPI): A process that shares its processor yields it at each empty poll.
#[test]
fn a_process_that_shares_its_processor_yields_it_at_each_empty_poll() {
    let env = TestEnv::new();
    let source = env.write_file("yields.c", YIELDING_PROGRAM);
    let mut gcc = Command::new("gcc");
    gcc.arg(source).args(["-o", "yields"]).current_dir(env.dir());
    assert!(gcc.status().unwrap().success());
    let preload = format!("LD_PRELOAD={}/libscore-preload.so", binaries::folder().display());
    let line = format!("{preload} {}/yields", env.dir().display());
    let outcome = env.sh(&line).run().expect_code(0);
    let turns: u32 = outcome.text().trim().parse().unwrap();
    // The kernel may run the same process again. A process that skips calls gives 40 turns.
    assert!(turns > 1000, "{outcome}");
}

// Promise of `a_program_that_needs_libmpich_uses_pm_with_the_library_of_a_directory`.
#[test]
fn a_program_of_debian_s_mpich_runs_with_the_library_of_a_directory() {
    let env = TestEnv::new();
    std::fs::create_dir(env.dir().join("lib")).unwrap();
    let compile = |output: &str, text: &str, options: &[&str]| {
        let source = env.write_file("source.c", text);
        let mut gcc = Command::new("gcc");
        gcc.arg(source).args(options).args(["-o", output]).current_dir(env.dir());
        assert!(gcc.status().unwrap().success());
    };
    let library = |name: &'static str| ["-shared", "-fPIC", name];
    let old = library("-Wl,-soname,libmpich.so.12");
    compile("libmpich.so.12", "const char *name(void) { return \"own\"; }", &old);
    let new = library("-Wl,-soname,libmpi.so.12");
    compile("lib/libmpi.so.12", "const char *name(void) { return \"other\"; }", &new);
    let main = "int puts(const char *); const char *name(void); int main(void) { puts(name()); }";
    compile("program", main, &["libmpich.so.12", "-Wl,-rpath,$ORIGIN"]);
    let program = env.dir().join("program");
    let folder = env.dir().join("lib");
    for (option, name) in [("auto".to_owned(), "own"), (folder.display().to_string(), "other")] {
        let line = format!("scrun -nodes=2 -mpi={option} {}", program.display());
        let outcome = env.sh(&line).run().expect_code(0);
        let outcome = outcome.assert_stderr(&["messages do not go over PM", "libfabric"]);
        assert_eq!(outcome.text(), format!("{name}\n").repeat(2));
    }
    let line = format!("scrun -mpi={} {}", env.dir().display(), program.display());
    let _ = env.sh(&line).run().expect_code(0);
    let outcome = env.sh(&format!("scrun -mpi=/nowhere {}", program.display())).run();
    let _ = outcome
        .expect_code(2)
        .assert_stderr(&["'/nowhere': no MPI library with the interface of MPICH"]);
    // A FIFO of that name would make the dynamic loader wait for ever.
    std::fs::create_dir(env.dir().join("fifo")).unwrap();
    mkfifo(&env.dir().join("fifo/libmpi.so.12"), Mode::S_IRWXU).unwrap();
    let line = format!("scrun -mpi={}/fifo {}", env.dir().display(), program.display());
    let _ = env
        .sh(&line)
        .run()
        .expect_code(2)
        .assert_stderr(&["no MPI library with the interface of MPICH"]);
    // There are more entries than the shepherd reads.
    for number in 0..=65_536 {
        std::fs::File::create(folder.join(number.to_string())).unwrap();
    }
    let line = format!("scrun -mpi={} {}", folder.display(), program.display());
    let reason = format!("{} has more than 65536 entries", folder.display());
    let _ = env.sh(&line).run().expect_code(1).assert_stderr(&[&reason, "on this host"]);
}

// Promise (MPI): A program that needs libmpich.so.12 sends over PM with the MPI library of a given
// directory; the entries that are read of the directory, and the time for it, are bounded.
#[test]
fn a_program_that_needs_libmpich_uses_pm_with_the_library_of_a_directory() {
    let Some(mpich) = mpich("mpich_by_folder") else { return };
    let env = TestEnv::new();
    env.write_file("ring.c", RING);
    // A fake of the library to which the program was linked, under its name in Debian. It does
    // nothing.
    let calls = ["Init", "Comm_rank", "Comm_size", "Sendrecv", "Allreduce", "Abort", "Finalize"];
    let stubs = calls.map(|call| format!("int MPI_{call}(void) {{ return 1; }}\n")).concat();
    env.write_file("stubs.c", stubs);
    let gcc = |arguments: &[&str]| {
        let mut gcc = Command::new("gcc");
        gcc.args(arguments).current_dir(env.dir());
        assert!(gcc.status().unwrap().success());
    };
    let library = "libmpich.so.12";
    gcc(&["-shared", "-fPIC", "stubs.c", "-Wl,-soname,libmpich.so.12", "-o", library]);
    let include = format!("-I{}/include", mpich.display());
    gcc(&["ring.c", &include, library, "-Wl,-rpath,$ORIGIN", "-o", "ring"]);
    let expected = ["0 of 2: 1 1", "1 of 2: 0 1"];
    for options in ["-nodes=2", "-group=local:2 -nodes=2x1"] {
        let line = format!(
            "MPIR_CVAR_DEBUG_SUMMARY=1 scrun {options} -mpi={}/lib {}/ring",
            mpich.display(),
            env.dir().display()
        );
        let outcome = env.sh(&line).run().expect_code(0);
        let lines = outcome.sorted_lines();
        assert!(lines.iter().any(|line| line == "libfabric provider: pm - pm"), "{outcome}");
        let of_program = lines.iter().filter(|line| line.contains(" of 2: "));
        assert_eq!(of_program.collect::<Vec<_>>(), expected, "{outcome}");
    }
}

const PMI_2: &str = "\
#include <slurm/pmi2.h>
#include <stdio.h>
#include <string.h>
static void check(const char *call, int error) { if (error) printf(\"%s: %d\\n\", call, error); }
int main(void) {
    int spawned, size, rank, app, len, found;
    char job[256], key[64], value[1100], mapping[1100];
    check(\"init\", PMI2_Init(&spawned, &size, &rank, &app));
    check(\"job\", PMI2_Job_GetId(job, sizeof job));
    sprintf(key, \"k%d\", rank);
    sprintf(value, \"v;%d=a b;\", rank);
    check(\"put\", PMI2_KVS_Put(key, value));
    check(\"fence\", PMI2_KVS_Fence());
    sprintf(key, \"k%d\", (rank + 1) % size);
    check(\"get\", PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &len));
    check(\"attribute\",
          PMI2_Info_GetJobAttr(\"PMI_process_mapping\", mapping, sizeof mapping, &found));
    printf(\"%d of %d: %s %s\\n\", rank, size, value, mapping);
    if (rank % 2 == 0) check(\"put attribute\", PMI2_Info_PutNodeAttr(\"attr\", key));
    check(\"node attribute\", PMI2_Info_GetNodeAttr(\"attr\", value, sizeof value, &found, 1));
    printf(\"%d has %s\\n\", rank, value);
    check(\"finalize\", PMI2_Finalize());
    return 0;
}
";

#[test]
fn the_pmi_2_library_of_slurm_works_with_the_pmi_service() {
    let env = TestEnv::new();
    let Some(prefix) = testbed::header_prefix("slurm/pmi2.h") else {
        return skip("pmi_2_library", "libpmi2-0-dev is neither installed nor unpacked");
    };
    let library_folder = format!("{}/lib/{}-linux-gnu", prefix.display(), std::env::consts::ARCH);
    let source = env.write_file("pmi2.c", PMI_2);
    let mut gcc = Command::new("gcc");
    gcc.arg(source).arg(format!("-I{}/include", prefix.display()));
    gcc.args([&format!("-L{library_folder}"), &format!("-Wl,-rpath,{library_folder}")]);
    gcc.args(["-l:libpmi2.so.0", "-Wl,--allow-shlib-undefined", "-o", "pmi2"]);
    assert!(gcc.current_dir(env.dir()).status().unwrap().success());
    let program = env.dir().join("pmi2");
    let options = "-message=concise -group=local:2 -nodes=2x2 -mpi=mpich";
    let outcome = env.sh(&format!("scrun {options} {}", program.display())).run().expect_code(0);
    let expected = (0..4).flat_map(|rank| {
        let next = (rank + 1) % 4;
        let attribute = rank / 2 * 2 + 1;
        [format!("{rank} has k{attribute}"), format!("{rank} of 4: v;{next}=a b; (vector,(0,2,2))")]
    });
    assert_eq!(outcome.sorted_lines(), expected.collect::<Vec<_>>());
}

#[test]
fn a_program_of_openmp_has_as_many_threads_as_its_share_of_the_processors() {
    let env = TestEnv::new();
    let text = "#include <omp.h>\n#include <stdio.h>\n\
                int main(void) { printf(\"%d\\n\", omp_get_max_threads()); return 0; }\n";
    let source = env.write_file("threads.c", text);
    let mut gcc = Command::new("gcc");
    gcc.arg(source).args(["-fopenmp", "-o", "threads"]).current_dir(env.dir());
    assert!(gcc.status().unwrap().success());
    let processors = std::thread::available_parallelism().unwrap().get();
    let program = env.dir().join("threads").display().to_string();
    for (variable, nodes, threads) in [
        ("env -u OMP_NUM_THREADS", 1, processors),
        ("env -u OMP_NUM_THREADS", 2, (processors / 2).max(1)),
        ("env -u OMP_NUM_THREADS", 3, (processors / 3).max(1)),
        ("OMP_NUM_THREADS=5", 2, 5),
    ] {
        let outcome = env.sh(&format!("{variable} scrun -nodes={nodes} {program}")).run();
        let expected = format!("{threads}\n").repeat(nodes);
        assert_eq!(outcome.expect_code(0).text(), expected, "{variable} {nodes}");
    }
}

#[test]
fn a_python_program_that_uses_mpi4py_is_recognised() {
    let Some(mpich) = mpich("mpi4py_programs") else { return };
    let env = TestEnv::new();
    // mpi4py loads its MPI library privately. The functions that replace its calls must find that
    // library, and not each other.
    let text = "from mpi4py import MPI\nc = MPI.COMM_WORLD\nprint(c.rank, c.allreduce(c.rank))\n\
                half = c.Split(c.rank % 2)\n\
                port = c.bcast(MPI.Open_port() if c.rank == 0 else None)\n\
                connect = half.Connect if c.rank % 2 else half.Accept\n\
                print(c.rank, 'of', connect(port).remote_size)\n";
    env.write_file("prog.py", text);
    let path = format!("{}/bin", mpich.display());
    let line =
        format!("cd {}; PATH={path}:$PATH; scrun -nodes=4 python3 prog.py", env.dir().display());
    let outcome = env.sh(&line).run().expect_code(0);
    let lines = ["0 6", "0 of 2", "1 6", "1 of 2", "2 6", "2 of 2", "3 6", "3 of 2"];
    assert_eq!(outcome.sorted_lines(), lines);
}

#[test]
fn operations_of_other_ranks_do_not_overtake_an_earlier_operation_on_the_own_memory() {
    let Some(mpich) = mpich("mpich_programs") else { return };
    let env = TestEnv::new();
    let program = compile_program(&env, &mpich, "mpi_own_accumulate");
    // Without the order that libpm-fi keeps (`own_messages.rs`), half of the runs print 1.
    for _ in 0..10 {
        let outcome = env.sh(&format!("scrun -nodes=3 {}", program.display())).run();
        assert_eq!(outcome.expect_code(0).text(), "the value is 2\n");
    }
}
