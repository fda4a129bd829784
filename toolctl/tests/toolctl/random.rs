//! A test with random actions of a tool on a program that is scheduled in slices of 10 ms. The
//! program counts each event twice, so that an instruction that was skipped or executed twice is
//! detected.

use std::time::{Duration, Instant};

use crate::support::Session;
use score_toolctl::tracer::*;

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

/// Does one random action of a tool. Refusals because of the state of a thread are not errors.
fn act(session: &mut Session, random: &mut Random) {
    let (pid, spot, watched) = (session.pid, session.address("spot"), session.address("watched"));
    let tid = random.pick(&session.tracer.threads(pid));
    let range = WatchRange { address: watched, length: 8, kind: WatchKind::ReadWrite };
    let tracer = &mut session.tracer;
    match random.below(16) {
        0 | 1 => _ = tracer.set_breakpoint(pid, spot, BreakpointKind::Normal),
        2 => {
            let byte = tracer.read_memory(pid, spot, 1).unwrap()[0];
            _ = tracer.reset_breakpoint(pid, spot, byte);
        }
        3 => _ = tracer.hold(pid, tid),
        4 | 5 => _ = tracer.release(pid, tid),
        6 => _ = tracer.request(pid, Some(tid), Request::GetSpecial),
        7 => _ = tracer.request(pid, None, Request::Snapshot(1024)),
        8 => _ = tracer.request(pid, Some(tid), Request::Allocate(4096)),
        9 => _ = tracer.request(pid, Some(tid), Request::SetWatchpoint(range)),
        10 => _ = tracer.request(pid, Some(tid), Request::ResetWatchpoint(watched)),
        11 => _ = tracer.send_signal(pid, tid, libc::SIGUSR1),
        12 => _ = tracer.step(pid, tid),
        13 => _ = tracer.set_continuation(pid, 0, random.pick(&[0, libc::SIGUSR1])),
        14 => session.tell(random.pick(&["w", "l", "r", "f", "v", "s", "n"])),
        _ if random.below(8) == 0 => {
            session.detach();
            session.tracer.attach(pid).unwrap();
            session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1])).unwrap();
        }
        _ => _ = tracer.release_all(pid),
    }
    // The tool answers notices at random times.
    if random.below(3) > 0 {
        match random.below(2) {
            0 => _ = session.tracer.resume(pid),
            _ => _ = session.tracer.step(pid, 0),
        }
    }
}

fn run(seed: u64, time: Duration) {
    // The seed replays the actions of the tool. The behaviour of the kernel differs between runs.
    println!("seed {seed}");
    let Some(mut session) = Session::start(&["schedule", "400", "4"]) else { return };
    session.tracer.attach(session.pid).unwrap();
    let pid = session.pid;
    session.set_variable("pace", 50);
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1])).unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (began, mut actions) = (Instant::now(), 0);
    while began.elapsed() < time {
        act(&mut session, &mut random);
        actions += 1;
        for _ in 0..random.below(4) {
            session.pump();
        }
        session.forget_events();
        assert!(session.tracer.is_attached(pid), "the program has died");
    }
    session.detach();
    session.tell("q");
    session.until("end of the workers", |session| {
        (procfs::threads(session.pid).len() == 1).then_some(())
    });
    let counted: i64 = (0..4).map(|index| session.variable("counters", index)).sum();
    assert_eq!(session.variable("spots", 0), counted, "seed {seed}, {actions} actions");
    assert!(counted > 0 && actions > 100, "{counted} {actions}");
    session.tell("x");
    session.child.wait().unwrap();
}

#[test]
fn random_operations_of_a_tool_disturb_no_instruction() {
    let seed = std::env::var("TRACER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seconds = std::env::var("TRACER_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(2));
    for seed in seed.map_or(1..=3, |seed: u64| seed..=seed) {
        run(seed, time);
    }
}
