//! Tests of attaching, stopping, continuing and detaching, of registers and memory.

use std::time::Duration;

use crate::support::{self, Session};
use score_toolctl::tracer::*;

#[test]
fn a_process_runs_on_while_it_is_attached_and_after_it() {
    let Some(mut session) = Session::attached("4") else { return };
    assert_eq!(session.tracer.threads(session.pid).len(), 5);
    let before = session.variable("spots", 0);
    session.until("work", |session| (session.variable("spots", 0) > before + 50).then_some(()));
    session.tell("t");
    session.done();
    session.until("new thread", |it| (it.tracer.threads(it.pid).len() == 6).then_some(()));
    session.detach();
    session.assert_works();
}

#[test]
fn a_held_thread_stops_and_other_threads_run() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, tid) = (session.pid, session.thread("worker-0"));
    session.tracer.hold(pid, tid).unwrap();
    session.tracer.hold(pid, tid).unwrap();
    session.general(tid);
    let (held, other) = (session.variable("counters", 0), session.variable("counters", 2));
    session.until("work", |it| (it.variable("counters", 2) > other + 20).then_some(()));
    assert_eq!(session.variable("counters", 0), held);
    assert_eq!(session.tracer.tool_state(pid, tid), Ok(ToolState::Hold));
    session.tracer.release(pid, tid).unwrap();
    session.until("work", |it| (it.variable("counters", 0) > held + 20).then_some(()));
    assert_eq!(session.tracer.tool_state(pid, tid), Ok(ToolState::Active));
    assert_eq!(session.tracer.hold(pid, 1), Err(TraceError::NoThread(1)));
    session.tracer.hold(pid, tid).unwrap();
    session.detach();
    session.assert_works();
}

#[test]
fn all_threads_of_a_held_process_stop() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, tids) = (session.pid, session.tracer.threads(session.pid));
    session.tracer.hold_process(pid, true).unwrap();
    for tid in &tids {
        session.general(*tid);
        assert_eq!(session.tracer.tool_state(pid, *tid), Ok(ToolState::Hold));
    }
    let counters = |session: &Session| [0, 1, 2].map(|index| session.variable("counters", index));
    let before = counters(&session);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(counters(&session), before);
    session.tracer.hold_process(pid, false).unwrap();
    session.until("work", |it| (it.variable("counters", 0) > before[0] + 20).then_some(()));
    assert_eq!(session.tracer.tool_state(pid, tids[0]), Ok(ToolState::Active));
    session.tracer.hold_process(pid, true).unwrap();
    session.detach();
    session.assert_works();
}

/// Sets vector registers, and reads them again.
fn set_vector_registers(session: &mut Session, tid: Tid) {
    use ExtendedRegister::{Xmm, Ymm, Zmm};
    let value: Vec<u8> = (1..=64).collect();
    for (register, len) in
        [(Xmm(9), 16), (Ymm(10), 32), (Zmm(11), 64), (Xmm(20), 16), (Ymm(25), 32), (Zmm(31), 64)]
    {
        let set = Request::SetOneExtended(register, value[..len].to_vec());
        match session.ask(tid, set) {
            Ok(_) => {}
            Err(error) => {
                assert!(len > 16 || register == Xmm(20), "{register:?}: {error}");
                println!("skipped: the processor has no {register:?}");
                continue;
            }
        }
        let extended = session.ask(tid, Request::GetExtended);
        let Ok(Answer::Extended(area, _)) = extended else { panic!("{extended:?}") };
        assert_eq!(extended::register(&area, register).unwrap(), value[..len]);
    }
}

#[test]
fn registers_are_read_and_set() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, tid) = (session.pid, session.thread("worker-0"));
    session.tracer.hold(pid, tid).unwrap();
    let former = session.general(tid);
    let special = session.special(tid);
    assert!(special.base.is_64_bit() && special.mxcsr == 0x1f80 && special.x87_control == 0x37f);
    assert_eq!(special.fault_address, 0);
    assert_ne!((special.base.rip, special.base.fs_base), (0, 0));
    let mut values = former;
    (values[1], values[15]) = (0x1111, 0x2222);
    assert_eq!(session.ask(tid, Request::SetGeneral(values)), Ok(Answer::Done));
    assert_eq!(session.ask(tid, Request::SetOneGeneral(12, 0x3333)), Ok(Answer::Done));
    values[12] = 0x3333;
    assert_eq!(session.general(tid), values);
    assert!(session.ask(tid, Request::SetOneGeneral(16, 1)).is_err());
    session.ask(tid, Request::SetGeneral(former)).unwrap();
    session.ask(tid, Request::SetOneSpecial(SpecialRegister::Mxcsr, 0x1fa0)).unwrap();
    let mut changed = session.special(tid);
    assert_eq!(changed.mxcsr, 0x1fa0);
    (changed.x87_control, changed.mxcsr) = (0x27f, 0x1f80);
    session.ask(tid, Request::SetSpecial(changed)).unwrap();
    assert_eq!(session.special(tid), changed);
    let Ok(Answer::Extended(area, features)) = session.ask(tid, Request::GetExtended) else {
        panic!("no XSAVE area");
    };
    assert!(area.len() >= 576 && features & 0b11 == 0b11, "{} {features:#x}", area.len());
    session.ask(tid, Request::SetExtended(area.clone())).unwrap();
    assert!(session.ask(tid, Request::SetExtended(vec![0; 3])).is_err());
    set_vector_registers(&mut session, tid);
    let mut kernel_segment = session.special(tid);
    kernel_segment.base.cs = 0x10;
    assert!(session.ask(tid, Request::SetSpecial(kernel_segment)).is_err());
    // A thread of another process does not belong to this one.
    let own = nix::unistd::gettid().as_raw();
    assert_eq!(session.ask(own, Request::GetGeneral), Err(TraceError::NoThread(own)));
    session.detach();
    session.assert_works();
}

#[test]
fn a_pin_ends_without_effect_on_other_pins() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, tid) = (session.pid, session.thread("worker-0"));
    let own = session.tracer.pin(pid, Some(tid)).unwrap();
    let other = session.tracer.pin(pid, None).unwrap();
    session.general(tid);
    let held = session.variable("counters", 0);
    session.tracer.unpin(other);
    let free = session.variable("counters", 2);
    session.until("work", |it| (it.variable("counters", 2) > free + 20).then_some(()));
    assert_eq!(session.variable("counters", 0), held, "the other pin has ended");
    session.tracer.unpin(own);
    session.until("work", |it| (it.variable("counters", 0) > held + 20).then_some(()));
    session.detach();
    session.assert_works();
}

#[test]
fn memory_is_read_and_written() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, constant, shared) =
        (session.pid, session.address("constant"), session.address("shared"));
    assert_eq!(session.tracer.read_memory(pid, constant, 14).unwrap(), b"constant bytes");
    session.tracer.write_memory(pid, constant, b"new", false).unwrap();
    assert_eq!(session.tracer.read_memory(pid, constant, 8).unwrap(), b"newstant");
    let refused = session.tracer.write_memory(pid, shared, b"x", false);
    assert_eq!(refused, Err(TraceError::SharedMemory(shared)));
    session.tracer.write_memory(pid, shared, b"x", true).unwrap();
    assert_eq!(session.tracer.read_memory(pid, shared, 1).unwrap(), b"x");
    for (address, length) in [(8, 4), (u64::MAX - 2, 8), (shared + 4000, 60_000)] {
        let refused = session.tracer.read_memory(pid, address, length);
        assert_eq!(refused, Err(TraceError::Address(address)));
        let refused = session.tracer.write_memory(pid, address, &vec![0; length], true);
        assert_eq!(refused, Err(TraceError::Address(address)));
    }
    for length in [0, MAX_MEMORY_LEN + 1] {
        let refused = session.tracer.read_memory(pid, constant, length);
        assert_eq!(refused, Err(TraceError::Length(length as u64)));
    }
    let reader = process_data::Reader::open(pid).unwrap();
    assert_eq!(reader.read_memory(constant, 3).unwrap(), b"new");
    assert!(reader.read_memory(8, 1).is_err());
    session.detach();
    session.assert_works();
}

#[test]
fn processes_and_threads_are_described_without_a_stop() {
    let Some(mut session) = Session::start(&["2"]) else { return };
    session.tell("m");
    session.done();
    let pid = session.pid;
    let data = process_data::process_data(pid).unwrap();
    assert!(data.heap.0 < data.heap.1 && data.mapped.0 < data.mapped.1, "{data:?}");
    let auxiliary = procfs::auxiliary_vector(pid).unwrap();
    assert!(auxiliary.chunks(2).any(|pair| pair == [6, 4096]), "AT_PAGESZ: {auxiliary:?}");
    // The thread may still run after it has answered.
    let first = session.until("wait for input", |_| {
        let data = process_data::thread_data(pid, pid, None).unwrap();
        (data.state == process_data::ThreadState::Sleep).then_some(data)
    });
    assert_eq!(first.guard, (0, 0));
    assert!(first.stack_pointer < first.stack_start, "{first:?}");
    let is_waiting = |tid: &Tid| {
        let data = process_data::thread_data(pid, *tid, None).unwrap();
        let is_deep = data.guard.1 > data.guard.0 && data.stack_pointer < data.stack_start;
        data.state == process_data::ThreadState::FutexWait && is_deep
    };
    session.until("wait for a futex", |_| procfs::threads(pid).into_iter().find(is_waiting));
    let threads = procfs::threads(pid);
    let is_marked = |tid: &&Tid| procfs::is_communication_thread(pid, **tid);
    assert_eq!(threads.iter().filter(is_marked).count(), 1);
    assert!(process_data::thread_data(pid, 1, None).is_err());
}

#[test]
fn a_sleeping_call_is_not_shortened_by_reads_of_its_thread() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    session.tell("n");
    for _ in 0..30 {
        session.general(pid);
        session.pump_for(Duration::from_millis(5));
    }
    assert_eq!(session.line(), "slept 0 1");
}

#[test]
fn a_snapshot_shows_all_threads_at_the_same_time() {
    let Some(mut session) = Session::attached("3") else { return };
    let ticket = session.tracer.request(session.pid, None, Request::Snapshot(8192)).unwrap();
    let Ok(Answer::Snapshot(threads)) = session.answer(ticket) else { panic!() };
    assert_eq!(threads.len(), 4);
    for thread in threads {
        let registers = thread.registers.unwrap();
        assert!(registers.rsp != 0 && thread.stack.len() >= 512, "{}", thread.stack.len());
    }
    session.detach();
    session.assert_works();
}

#[test]
fn one_tracer_has_many_processes() {
    let Some(mut first) = Session::attached("2") else { return };
    let mut others: Vec<Session> = (0..8).filter_map(|_| Session::start(&["2"])).collect();
    for other in &mut others {
        other.handles_events = false;
        first.tracer.attach(other.pid).unwrap();
        let spot = other.address("spot");
        first.tracer.set_breakpoint(other.pid, spot, BreakpointKind::Normal).unwrap();
    }
    let mut hits = vec![0; others.len()];
    while hits.iter().any(|count| *count < 20) {
        let notice = first.notice();
        let index = others.iter().position(|other| other.pid == notice.pid).unwrap();
        hits[index] += 1;
        first.tracer.resume(notice.pid).unwrap();
    }
    let spots = first.variable("spots", 0);
    first.until("work", |first| (first.variable("spots", 0) > spots + 10).then_some(()));
    for other in &mut others {
        first.tracer.detach(other.pid).unwrap();
        let detached = Event::Detached { pid: other.pid };
        first.event("end of tracing", |event| (*event == detached).then_some(()));
        other.assert_works();
    }
    first.detach();
    first.assert_works();
}

#[test]
fn a_process_in_a_group_stop_stays_in_it() {
    let Some(mut session) = Session::start(&["2"]) else { return };
    let pid = session.pid;
    let signal = |signal| {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
    };
    let is_stopped = |pid| {
        let threads = procfs::threads(pid).into_iter();
        let state = |tid| procfs::ThreadStat::read(pid, tid).map(|stat| stat.state);
        threads.map(state).all(|state| matches!(state, Some(b'T' | b't'))).then_some(())
    };
    signal(nix::sys::signal::Signal::SIGSTOP);
    session.until("stop", |_| is_stopped(pid));
    session.tracer.attach(pid).unwrap();
    session.pump_for(Duration::from_millis(50));
    // The registers can be read, and the process remains stopped.
    let worker = session.thread("worker-0");
    session.general(worker);
    let before = session.variable("spots", 0);
    // A system call for a tool neither waits for the next slice nor ends the group stop.
    let Ok(Answer::Address(address)) = session.ask(pid, Request::Allocate(4096)) else {
        panic!("no memory");
    };
    session.pump_for(Duration::from_millis(50));
    assert_eq!(session.variable("spots", 0), before);
    session.until("stop", |_| is_stopped(pid));
    signal(nix::sys::signal::Signal::SIGCONT);
    session.until("work", |it| (it.variable("spots", 0) > before + 20).then_some(()));
    signal(nix::sys::signal::Signal::SIGSTOP);
    session.until("stop", |_| is_stopped(pid));
    session.detach();
    let before = session.variable("spots", 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(session.variable("spots", 0), before, "the stop is kept after detaching");
    assert!(!memory::read_raw(pid, address, &mut [0]), "the memory has been given back");
    assert!(is_stopped(pid).is_some());
    signal(nix::sys::signal::Signal::SIGCONT);
    session.assert_works();
    session.assert_no_notice();
}

#[test]
fn an_exit_is_reported_with_its_status() {
    let Some(mut session) = Session::attached("2") else { return };
    let pid = session.pid;
    session.tell("x");
    let status = session.event("exit", |event| match event {
        Event::Exited { pid: exited, status } if *exited == pid => Some(*status),
        _ => None,
    });
    assert_eq!(status, 7 << 8);
    assert_eq!(session.tracer.detach(pid), Err(TraceError::NoProcess(pid)));
    let Some(mut session) = Session::attached("2") else { return };
    let worker = session.thread("worker-0");
    session.tracer.hold(session.pid, worker).unwrap();
    session.general(worker);
    session.child.kill().unwrap();
    let status = session.event("exit", |event| match event {
        Event::Exited { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(status, 9);
}

#[test]
fn a_process_without_its_first_thread_is_attached_and_ends() {
    let Some(mut session) = Session::attached("2") else { return };
    let pid = session.pid;
    session.tell("z");
    session.until("end of the first thread", |_| {
        procfs::ThreadStat::read(pid, pid).is_some_and(|stat| stat.state == b'Z').then_some(())
    });
    let worker = session.thread("worker-0");
    session.general(worker);
    let ticket = session.tracer.request(pid, None, Request::Snapshot(64)).unwrap();
    let Ok(Answer::Snapshot(threads)) = session.answer(ticket) else { panic!() };
    assert_eq!(threads.iter().filter(|thread| thread.registers.is_some()).count(), 2);
    session.tracer.detach(pid).unwrap();
    session.event("end of tracing", |event| (*event == Event::Detached { pid }).then_some(()));
    session.tracer.attach(pid).unwrap();
    session.general(worker);
    session.child.kill().unwrap();
    let status = session.event("exit", |event| match event {
        Event::Exited { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(status, 9);
}

#[test]
fn a_refusal_names_its_reason() {
    let Some(session) = Session::start(&["1"]) else { return };
    let pid = session.pid;
    let mut tracer = Tracer::new(Linux);
    assert_eq!(tracer.attach(1 << 22), Err(AttachError::NoProcess(1 << 22)));
    let mut other = std::process::Command::new("strace");
    let arguments = ["-f", "-q", "-o", "/dev/null", "-p"];
    let Ok(mut other) = other.args(arguments).arg(pid.to_string()).spawn() else {
        return println!("skipped: strace is not installed");
    };
    let start = std::time::Instant::now();
    let tracer_of = || procfs::Status::read(pid).unwrap().number::<Pid>("TracerPid").unwrap();
    while tracer_of() == 0 && start.elapsed() < support::TEST_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = tracer.attach(pid).unwrap_err();
    let strace = other.id() as Pid;
    assert_eq!(refused, AttachError::OtherTracer(pid, strace, "strace".into()));
    assert!(refused.to_string().contains(&strace.to_string()), "{refused}");
    other.kill().unwrap();
    other.wait().unwrap();
    // After it is detached, the same process can be attached.
    tracer.attach(pid).unwrap();
}
