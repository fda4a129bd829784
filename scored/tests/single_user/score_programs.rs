//! Programs that communicate with their shepherd. The job's program is this test binary, which
//! takes the role of libscore. Some roles are well-behaved, others are hostile.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::driver::*;
use nix::sys::socket::{MsgFlags, send};
use score_proto::PROTOCOL_VERSION;
use score_proto::carea::{AREA_LEN, BOARD_LEN, BOARD_MAGIC, board};
use score_proto::frame;
use score_proto::message::*;

const ROLE_ENV: &str = "SCORE_TEST_ROLE";
/// The name of the test that is the program of the jobs.
const TEST_OF_ROLES: &str = "score_programs::the_program_of_the_job";
const CONTROL: RawFd = 3;

/// An element that runs the role in [`ROLE_ENV`] on each node.
fn role_element(kind: ProgramKind) -> ElementSpec {
    let test_binary = std::env::current_exe().unwrap();
    element(kind, &[test_binary.to_str().unwrap(), "--exact", TEST_OF_ROLES, "--nocapture"])
}

fn run_client(nodes: u32, kind: ProgramKind, role: &str) -> Outcome {
    start_client(nodes, kind, role).finish()
}

fn start_client(nodes: u32, kind: ProgramKind, role: &str) -> Driver {
    let mut spec = job(nodes, vec![role_element(kind)]);
    spec.environment.push(bytes(&format!("{ROLE_ENV}={role}")));
    Driver::start(spec)
}

/// The output of the roles, without the output of the test harness.
fn role_output(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.lines();
    lines.retain(|line| line.starts_with("> "));
    lines
}

fn node() -> u32 {
    std::env::var("SCORE_SELF_NODE").unwrap().parse().unwrap()
}

fn print_line(text: &str) {
    // A single write that bypasses the test harness keeps the line whole.
    let line = format!("> {} {text}\n", node());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn send_call(call: &Call) {
    let body = frame::encode_datagram(call).unwrap();
    send(CONTROL, &body, MsgFlags::empty()).unwrap();
}

// UNSAFETY: the control socket is a number.
#[expect(unsafe_code)]
fn control_socket() -> BorrowedFd<'static> {
    // SAFETY: nothing in this process closes the socket.
    unsafe { BorrowedFd::borrow_raw(CONTROL) }
}

fn receive_reply() -> (Reply, Vec<OwnedFd>) {
    let (bytes, fds) = score_sys::fd_passing::receive(control_socket(), 65536, 8).unwrap();
    (frame::decode_datagram(&bytes).unwrap(), fds)
}

fn attach() -> (Welcome, Vec<OwnedFd>) {
    send_call(&Call::Attach { version: PROTOCOL_VERSION });
    match receive_reply() {
        (Reply::Welcome(welcome), fds) => (*welcome, fds),
        other => panic!("{other:?}"),
    }
}

fn reply_error(expected: u32) -> i32 {
    match receive_reply() {
        (Reply::Done { id, error }, _) if id == expected => error,
        other => panic!("{other:?}"),
    }
}

fn read_word(fd: &OwnedFd, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    nix::sys::uio::pread(fd, &mut bytes, offset as i64).unwrap();
    u64::from_le_bytes(bytes)
}

fn kill_self(signal: i32) {
    nix::sys::signal::raise(nix::sys::signal::Signal::try_from(signal).unwrap()).unwrap();
}

fn welcome_role() {
    let (welcome, fds) = attach();
    let self_proc = welcome.self_proc.0;
    assert_eq!((welcome.self_node, welcome.area, self_proc), (node(), node(), node()));
    assert_eq!(read_word(&fds[0], board::MAGIC), BOARD_MAGIC);
    assert_eq!(nix::sys::stat::fstat(&fds[0]).unwrap().st_size, BOARD_LEN as i64);
    let size = nix::sys::stat::fstat(&fds[1]).unwrap().st_size;
    assert_eq!(size, (AREA_LEN as u32 * welcome.num_node) as i64);
    print_line(&format!("{} {} {}", welcome.num_node, welcome.networks.len(), fds.len()));
}

fn resize_role() {
    let (_, fds) = attach();
    for (number, fd) in fds.iter().take(2).enumerate() {
        let shrunk = nix::unistd::ftruncate(fd, 0).is_ok();
        let grown = nix::unistd::ftruncate(fd, 1 << 30).is_ok();
        let written = nix::unistd::write(fd, &[0; 8]).is_ok();
        print_line(&format!("{number} {shrunk} {grown} {written}"));
    }
}

fn barrier_role() {
    attach();
    for id in 0..50 {
        send_call(&Call::Barrier { id });
        assert_eq!(reply_error(id), 0);
    }
    print_line("met");
}

fn late_role() {
    attach();
    if node() == 1 {
        std::process::exit(0);
    }
    send_call(&Call::Barrier { id: 1 });
    reply_error(1);
}

fn half_role() {
    if node() == 0 {
        attach();
    }
    std::process::exit(0);
}

fn before_role() {
    std::process::exit(i32::try_from(node()).unwrap() * 3);
}

fn exit_role() {
    attach();
    print_line("before");
    if node() == 1 {
        send_call(&Call::Exit { code: 0x142 });
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn flush_role() {
    attach();
    let text = vec![b'.'; 300_000];
    std::io::stderr().write_all(&text).unwrap();
    std::io::stderr().write_all(b"partial").unwrap();
    send_call(&Call::Flush { id: 9 });
    assert_eq!(reply_error(9), 0);
    kill_self(libc::SIGKILL);
}

fn signals_role() {
    attach();
    for signal in [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT, -1, 65] {
        send_call(&Call::SignalBroadcast { id: 1, signal });
        assert_eq!(reply_error(1), libc::EINVAL);
    }
    send_call(&Call::Barrier { id: 2 });
    assert_eq!(reply_error(2), 0);
    if node() == 0 {
        send_call(&Call::SignalBroadcast { id: 3, signal: libc::SIGUSR1 });
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn inspect_role() {
    attach();
    let thread = nix::unistd::gettid().as_raw();
    send_call(&Call::Inspect { signal: libc::SIGBUS, display: None, thread });
    std::thread::sleep(Duration::from_secs(60));
}

fn garbage_role() {
    attach();
    send(CONTROL, &[0xff; 100], MsgFlags::empty()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn flood_role() {
    attach();
    for _ in 0..1_000_000 {
        let body = frame::encode_datagram(&Call::Barrier { id: 7 }).unwrap();
        let _ = send(CONTROL, &body, MsgFlags::MSG_NOSIGNAL);
    }
    std::thread::sleep(Duration::from_secs(60));
}

/// Sends requests that consume memory of the shepherd, and does not wait for their replies.
fn flushes_role() {
    attach();
    let body = frame::encode_datagram(&Call::Flush { id: 1 }).unwrap();
    for _ in 0..100_000 {
        let _ = send(CONTROL, &body, MsgFlags::MSG_NOSIGNAL);
    }
    std::thread::sleep(Duration::from_secs(60));
}

fn early_role() {
    send_call(&Call::Barrier { id: 5 });
    assert_eq!(reply_error(5), libc::EPERM);
    attach();
    send_call(&Call::Attach { version: PROTOCOL_VERSION });
    assert!(matches!(receive_reply().0, Reply::Refused(_)));
    print_line("still there");
}

fn old_role() {
    send_call(&Call::Attach { version: 999 });
    std::thread::sleep(Duration::from_secs(60));
}

fn stopped_role() {
    let (_, fds) = attach();
    print_line("ready");
    while read_word(&fds[0], board::STOP_COUNT) != 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(read_word(&fds[0], board::STOPPED_NS) >= 200_000_000);
    print_line("resumed");
}

#[test]
fn the_program_of_the_job() {
    let Ok(role) = std::env::var(ROLE_ENV) else { return };
    let roles: &[(&str, fn())] = &[
        ("welcome", welcome_role),
        ("resize", resize_role),
        ("barrier", barrier_role),
        ("late", late_role),
        ("half", half_role),
        ("before", before_role),
        ("exit", exit_role),
        ("flush", flush_role),
        ("signals", signals_role),
        ("inspect", inspect_role),
        ("garbage", garbage_role),
        ("flood", flood_role),
        ("flushes", flushes_role),
        ("early", early_role),
        ("old", old_role),
        ("stopped", stopped_role),
    ];
    let known = roles.iter().find(|(name, _)| *name == role);
    known.unwrap_or_else(|| panic!("no role {role}")).1();
    std::process::exit(0);
}

#[test]
fn every_node_is_welcomed_with_board_area_and_network() {
    for nodes in [1, 2, 5] {
        let outcome = run_client(nodes, ProgramKind::Score, "welcome");
        assert_eq!(outcome.code(), 0, "{}", outcome.notices());
        let networks = u32::from(nodes > 1);
        let expected: Vec<String> =
            (0..nodes).map(|n| format!("> {n} {nodes} {networks} {}", 2 + networks)).collect();
        assert_eq!(role_output(&outcome), expected);
    }
}

// Promise of `shared_objects_cannot_be_resized`.
#[test]
fn no_process_can_resize_shared_memory_or_write_the_board() {
    let outcome = run_client(1, ProgramKind::Score, "resize");
    assert_eq!(role_output(&outcome), ["> 0 0 false false false", "> 0 1 false false true"]);
}

#[test]
fn a_barrier_completes_only_when_all_have_entered() {
    let outcome = run_client(4, ProgramKind::Score, "barrier");
    assert_eq!((outcome.code(), role_output(&outcome).len()), (0, 4), "{}", outcome.notices());
}

#[test]
fn a_barrier_that_can_never_be_complete_ends_the_parallel_process() {
    let outcome = run_client(3, ProgramKind::Score, "late");
    assert_eq!(outcome.code(), 1);
    let notices = outcome.notices();
    assert!(notices.contains("sc_barrier() for node 1, which has exited"), "{notices}");
}

#[test]
fn a_program_that_exits_before_score_initialize_is_named() {
    let outcome = run_client(2, ProgramKind::Score, "before");
    assert!(outcome.notices().contains("before score_initialize()"), "{}", outcome.notices());
    assert!([1, 3].contains(&outcome.code()));
    let outcome = run_client(2, ProgramKind::Score, "half");
    assert!(outcome.notices().contains("score_initialize()"), "{}", outcome.notices());
    assert_eq!((outcome.code(), outcome.notices.len()), (1, 1));
    // A plain program need not attach, so only the waiting node is reported.
    let outcome = run_client(2, ProgramKind::Plain, "half");
    assert!(outcome.notices().contains("waits in score_initialize()"), "{}", outcome.notices());
}

#[test]
fn sc_exit_ends_all_with_its_low_eight_bits() {
    let outcome = run_client(3, ProgramKind::Score, "exit");
    assert_eq!((outcome.code(), outcome.notices().as_str()), (0x42, ""));
}

#[test]
fn sc_flush_returns_when_scrun_has_written_all_output() {
    let mut driver = start_client(2, ProgramKind::Score, "flush");
    driver.taking = true;
    let outcome = driver.finish();
    assert_eq!(outcome.code(), 137);
    let text = String::from_utf8_lossy(&outcome.err).into_owned();
    // The first node that gets a reply kills itself, which ends the other node. The output of the
    // first node is complete.
    assert!(text.contains("partial") && text.len() >= 300_007, "{}", text.len());
}

#[test]
fn sc_signal_bcast_reaches_all_and_refuses_the_signals_of_the_manual() {
    let outcome = run_client(3, ProgramKind::Score, "signals");
    assert_eq!(outcome.code(), 128 + libc::SIGUSR1 as u8);
    assert!(outcome.notices().contains("SIGUSR1"));
}

#[test]
fn sc_inspectme_prints_the_debugger_command_and_ends_the_parallel_process() {
    let outcome = run_client(1, ProgramKind::Score, "inspect");
    assert_eq!(outcome.code(), 128 + libc::SIGBUS as u8);
    let notices = outcome.notices();
    assert!(notices.contains("SIGBUS") && notices.contains("gdb -p "), "{notices}");
    assert!(!notices.contains('?'), "{notices}");
}

#[test]
fn garbage_on_a_control_socket_ends_only_its_own_job_with_a_reason() {
    let outcome = run_client(2, ProgramKind::Score, "garbage");
    assert_eq!(outcome.code(), 1);
    let notices = outcome.notices();
    assert!(notices.contains("node ") && notices.contains("malformed call"), "{notices}");
}

#[test]
fn a_process_that_calls_without_reading_the_answers_is_ended() {
    let outcome = run_client(1, ProgramKind::Score, "flood");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.notices().contains("does not read"), "{}", outcome.notices());
}

#[test]
fn a_process_that_flushes_without_waiting_is_ended() {
    let mut driver = start_client(1, ProgramKind::Score, "flushes");
    // The driver confirms no flush.
    driver.flushing = false;
    let outcome = driver.finish();
    assert_eq!(outcome.code(), 1);
    assert!(outcome.notices().contains("sc_flush"), "{}", outcome.notices());
}

#[test]
fn calls_before_attach_and_a_second_attach_are_refused_without_further_effect() {
    let outcome = run_client(1, ProgramKind::Score, "early");
    assert_eq!((outcome.code(), role_output(&outcome).len()), (0, 1), "{}", outcome.notices());
}

#[test]
fn a_library_of_another_version_is_refused_with_both_versions() {
    let outcome = run_client(1, ProgramKind::Score, "old");
    let notices = outcome.notices();
    let own_version = format!("version {}", score_proto::PROTOCOL_VERSION);
    assert!(notices.contains("version 999") && notices.contains(&own_version), "{notices}");
    assert_eq!(outcome.code(), 1);
}

#[test]
fn a_suspended_job_is_stopped_and_its_stopped_time_is_published() {
    let mut driver = start_client(1, ProgramKind::Score, "stopped");
    driver.until("ready", |driver| role_output(&driver.outcome) == ["> 0 ready"]);
    driver.send(&JobRequest::Suspend);
    for _ in 0..15 {
        driver.step();
    }
    assert_eq!(role_output(&driver.outcome).len(), 1);
    driver.send(&JobRequest::Resume);
    let outcome = driver.finish();
    assert_eq!(role_output(&outcome), ["> 0 ready", "> 0 resumed"], "{:?}", outcome.notices);
}
