//! Stacks of programs in several languages, and of programs with separate debug information.

use std::path::Path;

use crate::support::*;
use score_stacks::frame::{Detail, Frame};
use score_stacks::render::{self, RenderLimits};
use score_stacks::tree::StackTree;
use score_stacks::{ProcessStacks, StackReader};

#[test]
fn all_threads_of_a_c_program_are_named_with_their_lines() {
    let Some(program) = compile_c("threads") else { return };
    let process = Running::start(&program).stacks();
    assert_eq!(process.threads.len(), 3);
    let [first, others @ ..] = process.threads.as_slice() else { unreachable!() };
    assert_eq!((first.tid, first.name.as_str()), (process.pid, "stacks-threads"));
    assert_in_order(&first.stack, &["wait_for_ever", "descend", "descend", "main", "_start"]);
    assert_complete(&first.stack);
    for thread in others {
        assert_in_order(
            &thread.stack,
            &["wait_for_ever", "descend", "descend", "descend", "descend", "work"],
        );
        assert_complete(&thread.stack);
        let lines = lines(&thread.stack);
        assert!(lines.contains(&"wait_for_ever at threads.c:8 [inlined]".to_owned()), "{lines:#?}");
        assert!(lines.contains(&"work at threads.c:18".to_owned()), "{lines:#?}");
    }
}

#[test]
fn equal_stacks_of_two_ranks_are_one_path_and_equal_bytes() {
    let Some(program) = compile_c("threads") else { return };
    let running = [Running::start(&program), Running::start(&program)];
    let mut reader = StackReader::new();
    let pids = running.each_ref().map(Running::pid);
    let processes = reader.stacks_of(&pids, Detail::Functions);
    let [Ok(one), Ok(two)] = processes.as_slice() else { panic!("{processes:?}") };
    let encoded = |process: &ProcessStacks| {
        let threads = process.threads.iter();
        threads.map(|thread| thread.stack.encode().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(encoded(one), encoded(two));
    let mut tree = StackTree::new();
    tree.insert_process(0, one);
    tree.insert_process(1, two);
    let text = render::text(&tree, RenderLimits::default());
    assert!(text.starts_with("all ranks [0-1: 6 threads]"), "{text}");
    assert!(text.contains("`- _start in stacks-threads  [0-1]"), "{text}");
    assert_eq!(text.matches("work in stacks-threads").count(), 1, "{text}");
}

#[test]
fn names_of_cpp_fortran_and_rust_are_those_of_the_source() {
    let rustc = ["rustc", "-g", "-Copt-level=1"];
    for (source, name, compiler, function) in [
        ("templates.cc", "templates", ["g++", "-O1", "-g"], "grid::Solver<double>::relax"),
        ("heat.f90", "heat", ["gfortran", "-O1", "-g"], "heat::sweep"),
        ("wait.rs", "rust", rustc, "relax"),
    ] {
        let Some(program) = compile(source, name, &compiler) else { continue };
        let process = Running::start(&program).stacks();
        let stack = &process.threads[0].stack;
        let is_function = |found: &&&str| **found == function || found.ends_with("solver::relax");
        assert_eq!(names(stack).iter().filter(is_function).count(), 3, "{:#?}", lines(stack));
        assert_complete(stack);
        assert!(lines(stack).iter().any(|line| line.contains(&format!(" at {source}:"))));
    }
}

#[test]
fn without_debug_information_names_are_read_from_the_symbol_table() {
    for (source, name, compiler, function) in [
        ("templates.cc", "templates-plain", ["g++", "-O1"], "grid::Solver<double>::relax"),
        ("heat.f90", "heat-plain", ["gfortran", "-O1"], "heat::sweep"),
        ("threads.c", "threads-plain", ["gcc", "-O1"], "descend"),
    ] {
        let Some(program) = compile(source, name, &compiler) else { continue };
        let process = Running::start(&program).stacks();
        let wanted = format!("{function} in stacks-{name}");
        let lines = lines(&process.threads[0].stack);
        assert!(lines.contains(&wanted), "{lines:#?}");
    }
}

#[test]
fn a_stripped_program_is_shown_by_module_and_offset() {
    let compiler = ["gcc", "-O2", "-s", "-fno-optimize-sibling-calls"];
    let Some(program) = compile("threads.c", "stripped", &compiler) else { return };
    let process = Running::start(&program).stacks();
    let stack = &process.threads[0].stack;
    let is_ours = |frame: &&Frame| match frame {
        Frame::Address { module, offset } => module == "stacks-stripped" && *offset > 0,
        _ => false,
    };
    // The frames are descend (twice), main and _start.
    assert_eq!(stack.frames.iter().filter(is_ours).count(), 4, "{:#?}", lines(stack));
    assert_complete(stack);
    assert!(lines(stack).iter().any(|line| line.starts_with("stacks-stripped+0x")));
}

#[test]
fn a_static_program_is_unwound() {
    for (name, kind) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let compiler = ["gcc", "-O1", "-g", kind];
        let Some(program) = compile("threads.c", name, &compiler) else { return };
        let process = Running::start(&program).stacks();
        for thread in &process.threads {
            assert_in_order(&thread.stack, &["wait_for_ever", "descend"]);
            assert_complete(&thread.stack);
        }
        assert_in_order(&process.threads[0].stack, &["descend", "main", "_start"]);
    }
}

#[test]
fn compressed_debug_information_is_read() {
    let compiler = ["gcc", "-O1", "-g", "-gz=zlib"];
    let Some(program) = compile("threads.c", "compressed", &compiler) else { return };
    let process = Running::start(&program).stacks();
    let lines = lines(&process.threads[0].stack);
    assert!(lines.iter().any(|line| line.starts_with("descend at threads.c:")), "{lines:#?}");
}

/// Splits the debug information from a program, as distributions do.
fn split(program: &Path, debug: &Path, link: bool) -> bool {
    let (program, debug) = (program.to_str().unwrap(), debug.to_str().unwrap());
    let link_option = format!("--add-gnu-debuglink={debug}");
    run_tool("objcopy", &["--only-keep-debug", program, debug])
        && run_tool("strip", &[program])
        && (!link || run_tool("objcopy", &[&link_option, program]))
}

#[test]
fn debug_information_is_found_by_link_and_only_with_the_right_check_sum() {
    let Some(program) = compile("threads.c", "linked", &["gcc", "-O1", "-g"]) else { return };
    let debug = program.with_extension("debug");
    if !split(&program, &debug, true) {
        return;
    }
    let running = Running::start(&program);
    let lines_with = lines(&running.stacks().threads[0].stack);
    assert!(lines_with.iter().any(|line| line.starts_with("descend at threads.c:")));
    std::fs::write(&debug, [std::fs::read(&debug).unwrap(), vec![0]].concat()).unwrap();
    let lines_without = lines(&running.stacks().threads[0].stack);
    assert!(!lines_without.iter().any(|line| line.contains("descend")), "{lines_without:#?}");
}

#[test]
fn debug_information_is_found_by_build_id() {
    let Some(program) = compile("threads.c", "by-id", &["gcc", "-O1", "-g"]) else { return };
    let debug = program.with_extension("debug");
    if !split(&program, &debug, false) {
        return;
    }
    let elf = score_stacks::elf::Elf::parse(std::fs::read(&program).unwrap().as_slice()).unwrap();
    let id = elf.build_id.expect("the linker writes one by default");
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    // The cache of debuginfod's clients needs no root rights.
    let cache = program.with_extension("cache");
    std::fs::create_dir_all(cache.join(&digits)).unwrap();
    std::fs::copy(&debug, cache.join(&digits).join("debuginfo")).unwrap();
    let running = Running::start(&program);
    let example = example_program();
    let mut command = std::process::Command::new(example);
    command.arg(running.pid().to_string()).env("DEBUGINFOD_CACHE_PATH", &cache);
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(output.contains("descend at threads.c:"), "{output}");
    let mut command = std::process::Command::new(example_program());
    command.arg(running.pid().to_string()).env("DEBUGINFOD_CACHE_PATH", "/nonexistent");
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(!output.contains("descend"), "{output}");
}

#[test]
fn a_deleted_program_is_named_and_not_confused_with_a_new_file_at_its_path() {
    let Some(program) = compile("threads.c", "deleted", &["gcc", "-O1", "-g"]) else { return };
    let running = Running::start(&program);
    std::fs::remove_file(&program).unwrap();
    assert_in_order(&running.stacks().threads[0].stack, &["descend", "main"]);
    std::fs::copy("/bin/true", &program).unwrap();
    assert_in_order(&running.stacks().threads[0].stack, &["descend", "main"]);
}

#[test]
fn python_shows_the_frames_of_its_interpreter() {
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        return eprintln!("skipped: python3 is not installed");
    }
    let script = "import time\ndef work():\n print('ready', flush=True)\n time.sleep(60)\nwork()";
    let (running, _) = Running::start_with(python, &["-c", script]);
    let stack = &running.stacks().threads[0].stack;
    assert!(stack.frames.len() > 5, "{:#?}", lines(stack));
    assert_complete(stack);
    // Debian's python3 is stripped, but exports its interpreter.
    assert!(lines(stack).iter().any(|line| line.starts_with("_PyEval_EvalFrameDefault")));
}
