//! `stacks PID...`: prints the stacks of processes, like gdb's `thread apply all bt`.

use score_stacks::StackReader;
use score_stacks::frame::Detail;

fn main() {
    let pids: Vec<i32> = std::env::args().skip(1).filter_map(|pid| pid.parse().ok()).collect();
    if pids.is_empty() {
        eprintln!("usage: stacks PID...");
        std::process::exit(1);
    }
    for result in StackReader::new().stacks_of(&pids, Detail::Lines) {
        match result {
            Ok(process) => {
                println!("process {} was stopped for {:?}", process.pid, process.held_for);
                for thread in &process.threads {
                    println!("  thread {} ({})", thread.tid, thread.name);
                    for frame in thread.stack.frames.iter().rev() {
                        println!("    {frame}");
                    }
                }
            }
            Err(error) => eprintln!("{error}"),
        }
    }
}
