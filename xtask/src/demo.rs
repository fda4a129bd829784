//! `cargo xtask demo`: runs the main job on real input. It shows each step with the command that a
//! user would type.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{run, setup};

const NODES: usize = 4;
const BYTES: usize = 6 << 20;

/// The programs and the directory of the demonstration.
struct DemoContext {
    bin: PathBuf,
    dir: PathBuf,
    text_path: PathBuf,
    expected_counts: String,
}

/// Builds the programs, then shows the job.
///
/// # Errors
/// Returns an error if a step gave a wrong result.
pub fn run(_args: &[String]) -> Result<(), String> {
    println!("Building (only what has changed) ...");
    setup::install_required_packages();
    let bin = run::build_release()?;
    let dir = run::target_dir()?.join("demo");
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let begin = Instant::now();
    let demo = write_text(bin, dir)?;
    count_on_every_node(&demo)?;
    copy_and_gather(&demo)?;
    compile_and_run_c_program(&demo)?;
    latency(&demo)?;
    four_hosts(&demo)?;
    println!("\nThis needed no configuration, no root and no service: {:.1} s.", elapsed(begin));
    println!("Type the commands yourself with PATH={}:$PATH", demo.bin.display());
    Ok(())
}

fn elapsed(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64()
}

/// Writes a text of several megabytes, and computes the counts that `wc` must print for it.
fn write_text(bin: PathBuf, dir: PathBuf) -> Result<DemoContext, String> {
    const WORDS: &[&str] = &[
        "node", "message", "buffer", "context", "shepherd", "pipeline", "scatter", "gather", "a",
        "cluster", "barrier", "is", "of", "the", "parallel", "process", "job", "and", "idle",
    ];
    let mut text = String::with_capacity(BYTES + 100);
    let (mut words, mut state) = (0_usize, 12345_u64);
    while text.len() < BYTES {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pick = (state >> 33) as usize;
        text.push_str(WORDS[pick % WORDS.len()]);
        text.push(if pick.is_multiple_of(11) { '\n' } else { ' ' });
        words += 1;
    }
    text.push('\n');
    let lines = text.matches('\n').count();
    let path = dir.join("text");
    fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("\nA text: {lines} lines, {words} words, {} bytes.", text.len());
    let counts = format!("{lines} {words} {}", text.len());
    Ok(DemoContext { bin, dir, text_path: path, expected_counts: counts })
}

/// Runs scrun on the text as a shell would with `< text`. Returns the output of scrun.
fn scrun(demo: &DemoContext, args: &[&str]) -> Result<Vec<u8>, String> {
    println!("  $ scrun {} < text", args.join(" "));
    let input = File::open(&demo.text_path).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let output = Command::new(demo.bin.join("scrun"))
        .args(args)
        .stdin(input)
        .stderr(Stdio::inherit())
        .env_remove("SCORE_OPTIONS")
        .current_dir(&demo.dir)
        .output()
        .map_err(|error| format!("scrun: {error}"))?;
    if !output.status.success() {
        return Err(format!("scrun {}: {}", args.join(" "), output.status));
    }
    println!("    ({:.2} s)", elapsed(begin));
    Ok(output.stdout)
}

/// Checks that every node has counted the whole text.
fn check_counts(demo: &DemoContext, output: &[u8]) -> Result<(), String> {
    let output = String::from_utf8_lossy(output);
    for line in output.lines() {
        println!("    {line}");
        if line.split_whitespace().collect::<Vec<_>>().join(" ") != demo.expected_counts {
            return Err(format!("a node counted {line:?}, not {:?}", demo.expected_counts));
        }
    }
    let lines = output.lines().count();
    if lines == NODES { Ok(()) } else { Err(format!("{lines} nodes answered, not {NODES}")) }
}

fn count_on_every_node(demo: &DemoContext) -> Result<(), String> {
    println!("\n1. The text goes to four processes at once; each counts all of it.");
    let output = scrun(demo, &["-nodes=4", "scatter", "==", "system", "wc"])?;
    check_counts(demo, &output)
}

fn copy_and_gather(demo: &DemoContext) -> Result<(), String> {
    println!("\n2. A file is copied into the job, read on every node, and comes back from one.");
    let words =
        ["-nodes=4", "scatter", "-file", "copy", "::", "gather", "-node", "3", "-file", "copy"];
    let gathered = scrun(demo, &words)?;
    let text = fs::read(&demo.text_path).map_err(|error| error.to_string())?;
    if gathered != text {
        return Err(format!("{} bytes came back, not the {} sent", gathered.len(), text.len()));
    }
    println!("    identical");
    Ok(())
}

fn compile_and_run_c_program(demo: &DemoContext) -> Result<(), String> {
    println!("\n3. The manual's own C program does the same, compiled by scorecc.");
    let example = run::source_root().join("examples/scatter");
    let sources = c_sources(&example)?;
    let program = demo.dir.join("scatter-in-c");
    println!("  $ scorecc -O2 -o scatter-in-c examples/scatter/*.c");
    let mut command = Command::new(demo.bin.join("scorecc"));
    run::run_checked(command.arg("-O2").arg("-o").arg(&program).args(sources))?;
    let output = scrun(demo, &["-nodes=4", "./scatter-in-c", "==", "system", "wc"])?;
    check_counts(demo, &output)
}

fn c_sources(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    paths.sort();
    Ok(paths)
}

fn latency(demo: &DemoContext) -> Result<(), String> {
    println!("\n4. One message of 8 bytes from process to process, and the floor of this machine:");
    println!("   one cache line bounced between the same two processors.");
    println!("  $ scrun -nodes=2 pmtest -latency -size 8");
    let mut command = Command::new(demo.bin.join("scrun"));
    command.args(["-nodes=2,message=quiet", "pmtest", "-latency", "-size", "8"]);
    run::run_checked(command.env_remove("SCORE_OPTIONS").stdin(Stdio::null()))
}

fn four_hosts(demo: &DemoContext) -> Result<(), String> {
    println!("\n5. Four hosts on this machine, each with a network of its own: the text goes");
    println!("   over the links between them, and each host counts all of it.");
    let output = scrun(demo, &["-group=local:4,nodes=4x1", "scatter", "==", "system", "wc"])?;
    check_counts(demo, &output)
}
