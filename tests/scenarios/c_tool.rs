//! A tool in C runs next to a job. It uses libscoretools and glibc's libthread_db. When it gets
//! SIGTERM, it removes the breakpoints and other things that it has set.

use std::path::PathBuf;
use std::process::Command;

use score_tests::test_env::is_installed;
use score_tests::tool::TargetJob;
use score_tests::{TestEnv, binaries, skip};
use score_tools::wire::*;

/// Compiles a program of tests/programs by plain gcc with these additional arguments.
fn compiled(env: &TestEnv, name: &str, args: &[&str]) -> PathBuf {
    let program = env.dir().join(name);
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(binaries::root().join(format!("tests/programs/{name}.c")))
        .args(args)
        .output()
        .expect("gcc can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Compiles a tool against the header and the library of the build.
pub fn compiled_tool(env: &TestEnv, name: &str) -> PathBuf {
    let include = format!("-I{}", binaries::root().join("ffi-c/include").display());
    let folder = binaries::folder().display();
    // The run path must take precedence over LD_LIBRARY_PATH, in which cargo names the directory of
    // another build.
    let runs = format!("-Wl,-rpath,{folder},--disable-new-dtags");
    let search = format!("-L{folder}");
    compiled(env, name, &[&include, &search, &runs, "-lscoretools", "-lthread_db"])
}

#[test]
fn a_tool_in_c_lists_threads_by_libthread_db_and_removes_its_settings() {
    let env = TestEnv::new();
    // Without a C compiler there is no target program, either.
    let Some(target_job) = TargetJob::start(&env, 1) else { return };
    a_tool_reads_changes_and_leaves(&env, target_job);
}

#[test]
fn a_tool_in_c_finds_symbols_and_threads_of_a_static_program() {
    let env = TestEnv::new();
    if !is_installed("gcc") {
        return skip("a static program", "gcc is not installed");
    }
    let program = compiled(&env, "tool_target", &["-static"]);
    let job = env.scrun(&["-nodes=1", program.to_str().unwrap()]).start();
    a_tool_reads_changes_and_leaves(&env, TargetJob::of(job, 1));
}

fn a_tool_reads_changes_and_leaves(env: &TestEnv, mut target_job: TargetJob) {
    let program = compiled_tool(env, "c_tool");
    let pid = target_job.job.pid().to_string();
    let start = env.command(binaries::program("start_tool")).args(&["--pid", &pid]);
    let _ = start.args(&["--tool", program.to_str().unwrap()]).run().expect_code(0);
    // The full stop ends the tool's first line, or the line of a failure.
    target_job.job.wait_for_stderr(".\n");
    let stderr = target_job.job.stderr();
    let line = stderr.split_once(": memory 0x").unwrap_or_else(|| panic!("{stderr}")).1;
    let mut words = line.split_whitespace();
    let memory = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
    let counting: u32 = words.nth(1).unwrap().trim_end_matches('.').parse().unwrap();

    let mut tool = target_job.attach(b"witness ", 60);
    assert_eq!(tool.thread_data(0, counting).head.tool_state, ToolState::HoldSuspend);
    assert_eq!(tool.memory(0, memory, 3), [0, 7, 14]);
    let (code, holder) = tool.control(0, 0);
    assert_eq!((code, holder.controller), (ReturnCode::ToolControlConflict, 1));

    let end = env.command(binaries::program("end_tool")).args(&["--pid", &pid]);
    let _ = end.args(&["--tool", "1"]).run().expect_code(0);
    assert_eq!(tool.control_notice().reason, ControlReason::Available);
    target_job.job.wait_for_stderr(": left");
    assert_eq!(tool.control(0, 0).0, ReturnCode::Success);
    let range = MemoryRange { address: memory, length: 1, access: SpeculativeAccess::Permitted };
    assert_eq!(tool.code(0, 0, CommandRequest::GetMemory(range)), CommandCode::AddressError);
    assert_eq!(tool.thread_data(0, counting).head.tool_state, ToolState::Active);
    let target = target_job.targets[0].clone();
    tool.wait_for_change(0, target.counter);
    assert_eq!(tool.debug(0, counting)[..4], [0; 4]);
    assert_eq!(tool.word(0, target.traps), 0);
    drop(tool);
    // The process receives the signal whose notice the tool has not fetched.
    target_job.end(1);
}
