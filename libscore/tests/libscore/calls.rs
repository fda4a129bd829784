//! Tests of the SCore-D system calls of a node, as its shepherd observes them.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use crate::harness::shepherd::Shepherd;
use crate::harness::{TEST_TIMEOUT, build};
use nix::sys::signal::Signal;
use score_proto::carea::{BUSY, IDLE, WaitingFor, area, area::slot};
use score_proto::message::{Call, Reply};

#[test]
fn a_barrier_lasts_until_it_is_answered_and_counts_as_idle() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    shepherd.nodes[0].process.send_line("barrier");
    let Some(Call::Barrier { id }) = shepherd.nodes[0].receive_call() else { panic!() };
    assert_eq!(shepherd.nodes[0].process.read_line_within(Duration::from_millis(100)), None);
    assert_eq!(shepherd.slot(0, 0, slot::STATE), IDLE);
    assert_eq!(shepherd.slot(0, 0, slot::WAITING_FOR), WaitingFor::Barrier as u32);
    shepherd.nodes[0].answer(&Reply::Done { id, error: 0 }, &[]);
    assert_eq!(shepherd.nodes[0].process.read_line(), "0");
    assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY);
    assert_eq!(shepherd.word(0, area::BUSY_TRANSITIONS), 1);
}

#[test]
fn flush_empties_stdio_first_waits_and_counts_as_busy() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    shepherd.nodes[0].process.send_line("flush");
    let Some(Call::Flush { id }) = shepherd.nodes[0].receive_call() else { panic!() };
    assert_eq!(shepherd.nodes[0].process.read_line(), "said before");
    assert_eq!(shepherd.nodes[0].process.read_line_within(Duration::from_millis(100)), None);
    assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY);
    assert_eq!(shepherd.slot(0, 0, slot::WAITING_FOR), WaitingFor::Flush as u32);
    shepherd.nodes[0].answer(&Reply::Done { id, error: libc::EINTR }, &[]);
    // A restart from a checkpoint is the only event that interrupts (manual, sc_flush(2)).
    assert_eq!(shepherd.nodes[0].process.read_line(), libc::EINTR.to_string());
    assert_eq!(shepherd.slot(0, 0, slot::WAITING_FOR), 0);
}

#[test]
fn stops_continues_and_signals_are_never_errors() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let usr1 = Signal::SIGUSR1 as i32;
    assert_eq!(shepherd.nodes[0].process.request(&format!("handle {usr1}")), "handled");
    shepherd.nodes[0].process.send_line("barrier");
    let Some(Call::Barrier { id }) = shepherd.nodes[0].receive_call() else { panic!() };
    for _ in 0..20 {
        for signal in [Signal::SIGSTOP, Signal::SIGUSR1, Signal::SIGCONT] {
            shepherd.signal(0, signal);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(shepherd.nodes[0].process.read_line_within(Duration::from_millis(50)), None);
    shepherd.nodes[0].answer(&Reply::Done { id, error: 0 }, &[]);
    assert_eq!(shepherd.nodes[0].process.read_line(), "0");
}

#[test]
fn reserved_and_invalid_signals_are_einval() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let process = &mut shepherd.nodes[0].process;
    let (stop, cont, kill) = (libc::SIGSTOP, libc::SIGCONT, libc::SIGKILL);
    for signal in [-1, i32::MIN, 65, 1000, stop, cont, kill] {
        assert_eq!(process.request(&format!("broadcast {signal}")), libc::EINVAL.to_string());
    }
    for signal in [0, libc::SIGUSR1, libc::SIGRTMAX()] {
        shepherd.nodes[0].process.send_line(&format!("broadcast {signal}"));
        let call = shepherd.nodes[0].serve(0);
        assert!(matches!(call, Call::SignalBroadcast { signal: s, .. } if s == signal));
        assert_eq!(shepherd.nodes[0].process.read_line(), "0");
    }
}

#[test]
fn many_threads_at_once_each_get_their_own_answer() {
    const THREADS: usize = 16;
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let node = &mut shepherd.nodes[0];
    node.process.send_line(&format!("calls {THREADS}"));
    let (mut waiting, mut answered, start) = (Vec::new(), 0, Instant::now());
    while answered < THREADS * 150 {
        match node.poll_call() {
            Some(Call::SignalBroadcast { id, signal: libc::SIGHUP }) => {
                waiting.push((id, libc::ESRCH));
            }
            Some(Call::Flush { id } | Call::SignalBroadcast { id, .. }) => waiting.push((id, 0)),
            Some(call) => panic!("{call:?}"),
            // Every thread waits for a reply. The shepherd replies to the last call first.
            None => {
                assert!(!waiting.is_empty() || start.elapsed() < TEST_TIMEOUT, "an answer is lost");
                answered += waiting.len();
                for (id, error) in waiting.drain(..).rev() {
                    node.answer(&Reply::Done { id, error }, &[]);
                }
            }
        }
    }
    assert_eq!(node.process.read_line(), "0", "calls that got the answer to another call");
}

#[test]
fn sc_exit_reports_its_code_keeps_the_output_and_ends() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    shepherd.nodes[0].process.send_line("sc_exit 42");
    assert_eq!(shepherd.nodes[0].receive_call(), Some(Call::Exit { code: 42 }));
    assert_eq!(shepherd.nodes[0].process.wait_for_exit().code(), Some(42));
    assert_eq!(shepherd.nodes[0].process.remaining_output(), ["last words"]);
}

#[test]
fn sc_terminate_is_sc_exit_without_a_code() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    shepherd.nodes[0].process.send_line("sc_terminate");
    assert_eq!(shepherd.nodes[0].receive_call(), Some(Call::Exit { code: 0 }));
    assert_eq!(shepherd.nodes[0].process.wait_for_exit().code(), Some(0));
}

// Promise of `ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace`.
#[test]
fn a_thread_with_a_fault_waits_until_it_may_die_of_its_signal() {
    for (command, is_answered) in [("fault 0", true), ("fault 100000", true), ("fault 0", false)] {
        let mut shepherd = Shepherd::welcome(&build::node(), 1);
        let mut node = shepherd.nodes.remove(0);
        node.process.send_line(command);
        let (signal, thread) = (Signal::SIGSEGV as i32, node.process.pid().as_raw());
        assert_eq!(node.receive_call(), Some(Call::Fault { signal, thread }));
        std::thread::sleep(Duration::from_millis(100));
        assert!(node.process.try_wait().is_none(), "the process waits for its stack to be read");
        if is_answered {
            nix::sys::signal::kill(node.process.pid(), Signal::SIGSEGV).unwrap();
        } else {
            drop(node.socket);
        }
        assert_eq!(node.process.wait_for_exit().signal(), Some(signal), "{command}");
    }
}

#[test]
fn sc_inspectme_reports_the_reason_and_never_returns() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let mut node = shepherd.nodes.remove(0);
    node.process.send_line("crash");
    let call = node.receive_call();
    let thread = node.process.pid().as_raw();
    assert_eq!(call, Some(Call::Inspect { signal: 11, display: Some(":7".to_owned()), thread }));
    assert_eq!(node.process.read_line_within(Duration::from_millis(100)), None);
    assert!(node.process.try_wait().is_none(), "the process waits to be inspected");
    drop(node.socket);
    assert_eq!(node.process.wait_for_exit().code(), Some(1));
    assert_eq!(node.process.remaining_output(), ["unflushed"]);
}

#[test]
fn a_shepherd_that_exits_during_a_call_ends_the_process_with_one_line() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let mut node = shepherd.nodes.remove(0);
    node.process.send_line("barrier");
    assert!(matches!(node.receive_call(), Some(Call::Barrier { .. })));
    drop(node.socket);
    assert_eq!(node.process.wait_for_exit().code(), Some(1));
    let complaints = node.process.stderr_lines();
    assert_eq!(complaints, ["score: node 0: lost the connection to SCore-D; the process ends"]);
}

#[test]
fn an_invalid_reply_ends_the_process() {
    let long = vec![0; 10_000];
    for bytes in [&b"\xff\xff\xff"[..], &long] {
        let mut shepherd = Shepherd::welcome(&build::node(), 1);
        let node = &mut shepherd.nodes[0];
        node.process.send_line("barrier");
        assert!(matches!(node.receive_call(), Some(Call::Barrier { .. })));
        node.send(bytes, &[]);
        assert_eq!(node.process.wait_for_exit().code(), Some(1));
        assert!(node.process.stderr_lines()[0].contains("not a reply to a call"));
    }
}

#[test]
fn temporary_files_live_in_the_jobs_directory() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let file = shepherd.dir.join("data");
    let process = &mut shepherd.nodes[0].process;
    assert_eq!(process.request("open data"), libc::ENOENT.to_string());
    assert_eq!(process.request("create data"), "0 cloexec");
    assert!(file.is_file());
    assert_eq!(process.request("open data"), "0 cloexec");
    assert_eq!(process.request("unlink data"), "0");
    assert_eq!(process.request("unlink data"), libc::ENOENT.to_string());
    for name in ["../data", "/tmp/data", "a/b"] {
        for call in ["create", "open", "unlink"] {
            assert_eq!(process.request(&format!("{call} {name}")), libc::EINVAL.to_string());
        }
    }
    assert_eq!(process.request("create .."), libc::EISDIR.to_string());
    assert_eq!(process.request("create"), libc::ENOENT.to_string());
}

#[test]
fn monitors_and_uncheckpointable_regions_are_in_the_area() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let mut ask = |line: &str| shepherd.nodes[0].process.request(line);
    ask("monitor 0 200");
    ask("monitor 5 7");
    assert_eq!([ask("enter"), ask("enter"), ask("leave")], ["0", "0", "0"]);
    assert_eq!(shepherd.word(0, area::USR0) & 0xffff, 200 | 7 << 8);
    assert_eq!(shepherd.word(0, area::UNCHECKPOINTABLE), 1);
    let mut ask = |line: &str| shepherd.nodes[0].process.request(line);
    assert_eq!(ask("leave"), "0");
    assert_eq!(ask("leave"), libc::EINVAL.to_string());
    assert_eq!(shepherd.word(0, area::UNCHECKPOINTABLE), 0);
}

#[test]
fn an_unimplemented_call_returns_enosys() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.nodes[0].process.request("later"), libc::ENOSYS.to_string());
}

#[test]
fn a_sleep_is_reported_counts_as_busy_and_survives_signals() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    let usr1 = Signal::SIGUSR1 as i32;
    assert_eq!(shepherd.nodes[0].process.request(&format!("handle {usr1}")), "handled");
    let begin = Instant::now();
    shepherd.nodes[0].process.send_line("sleep 1");
    assert_eq!(shepherd.nodes[0].receive_call(), Some(Call::Sleep { seconds: 1 }));
    let begin_of_wait = Instant::now();
    while shepherd.slot(0, 0, slot::WAITING_FOR) != WaitingFor::Sleep as u32 {
        assert!(begin_of_wait.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(shepherd.slot(0, 0, slot::STATE), BUSY);
    for signal in [Signal::SIGSTOP, Signal::SIGUSR1, Signal::SIGCONT] {
        shepherd.signal(0, signal);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(shepherd.nodes[0].process.read_line(), "0");
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(shepherd.slot(0, 0, slot::WAITING_FOR), 0);
    // A sleep of no duration is not reported.
    assert_eq!(shepherd.nodes[0].process.request("sleep 0"), "0");
    assert_eq!(shepherd.nodes[0].process.request("sleep -1"), libc::EINVAL.to_string());
    assert_eq!(shepherd.nodes[0].poll_call(), None);
}

#[test]
fn a_yield_is_reported_and_not_answered() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    assert_eq!(shepherd.nodes[0].process.request("yield"), "0");
    assert_eq!(shepherd.nodes[0].receive_call(), Some(Call::Yield));
}

#[test]
fn a_forked_child_is_no_node_and_does_not_affect_its_parent() {
    let mut shepherd = Shepherd::welcome(&build::node(), 1);
    shepherd.nodes[0].process.request("idle");
    let (perm, file) = (libc::EPERM, 0);
    let output = shepherd.nodes[0].process.request("child");
    assert_eq!(output, format!("{perm} {perm} {perm} {perm} {perm} job 17 file {file} 0"));
    assert_eq!(shepherd.nodes[0].process.read_line(), "child 7");
    // The child's become_busy, monitor and end have not changed the parent's words.
    assert_eq!(shepherd.slot(0, 0, slot::STATE), IDLE);
    assert_eq!(shepherd.word(0, area::USR0) & 0xff, 0);
    assert_eq!(shepherd.word(0, area::IDLE_THREADS), 1);
    shepherd.nodes[0].process.send_line("barrier");
    assert!(matches!(shepherd.nodes[0].serve(0), Call::Barrier { .. }), "the parent's socket");
    assert_eq!(shepherd.nodes[0].process.read_line(), "0");
}
