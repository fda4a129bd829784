//! Seeded simulations. Tools, users and the gang scheduler act in random order, and the kernel
//! reports its events in random order. A failure prints its seed.

mod kernel;

use std::cell::RefCell;
use std::rc::Rc;

use super::breakpoints::INT3;
use super::*;
use kernel::{Group, LOOP, LOOP_LEN, PID, SimKernel, World};

struct Simulation {
    world: Rc<RefCell<World>>,
    tracer: Tracer<SimKernel>,
    notices: u64,
    steps: u64,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let world = Rc::new(RefCell::new(World::new(seed, 3)));
        let tracer = Tracer::new(SimKernel(world.clone()));
        Self { world, tracer, notices: 0, steps: 0 }
    }

    fn below(&self, limit: u64) -> u64 {
        self.world.borrow_mut().below(limit)
    }

    fn handle_events(&mut self) {
        self.tracer.handle_events();
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.tracer.next_event() {
            match event {
                Event::Notice(notice) => {
                    self.notices += 1;
                    self.steps += u64::from(notice.reason == NoticeReason::Step);
                    let mut world = self.world.borrow_mut();
                    world.allowed = Some(None);
                    if notice.reason == NoticeReason::Breakpoint {
                        let executed = world.threads[&notice.tid].executed;
                        world.noticed.insert(notice.tid, executed);
                    }
                }
                Event::Exited { .. } => assert!(self.world.borrow().is_dead),
                Event::Detached { .. } => self.check_detached(),
                Event::Answer { .. } | Event::Exec { .. } | Event::ThreadEnded { .. } => {}
            }
        }
    }

    fn check_detached(&self) {
        let world = self.world.borrow();
        let text = (LOOP..LOOP + LOOP_LEN).map(|address| world.text[&address]);
        assert_eq!(text.filter(|byte| *byte == INT3).count(), 0, "breakpoints are left");
    }

    /// A random action of a tool, the scheduler or a user.
    fn act(&mut self) {
        let address = LOOP + self.below(LOOP_LEN);
        let tid = PID + self.below(3) as Tid;
        match self.below(13) {
            0 => {
                let set = self.tracer.set_breakpoint(PID, address, BreakpointKind::Normal);
                if set.is_ok() {
                    self.world.borrow_mut().breakpoints.push(address);
                }
            }
            1 | 2 => self.reset_breakpoints(),
            3 => _ = self.tracer.hold(PID, tid),
            4 => _ = self.tracer.release(PID, tid),
            5 => _ = self.tracer.request(PID, Some(tid), Request::GetGeneral),
            6 => _ = self.tracer.request(PID, None, Request::Snapshot(0)),
            7 => self.world.borrow_mut().signal(None, libc::SIGSTOP),
            8 => self.world.borrow_mut().signal(None, libc::SIGCONT),
            9 => self.world.borrow_mut().signal(Some(tid), libc::SIGUSR1),
            10 => _ = self.tracer.send_signal(PID, tid, libc::SIGUSR1),
            11 => {
                let all = SignalSet::of(&[libc::SIGUSR1, libc::SIGSTOP, libc::SIGCONT]);
                let set = if self.below(2) == 0 { all } else { SignalSet::default() };
                _ = self.tracer.set_notify(PID, set);
            }
            _ => self.answer_notice(),
        }
        if self.below(3) == 0 {
            self.answer_notice();
        }
    }

    fn reset_breakpoints(&mut self) {
        let addresses = std::mem::take(&mut self.world.borrow_mut().breakpoints);
        for address in addresses {
            // Two entries may belong to the same breakpoint.
            _ = self.tracer.reset_breakpoint(PID, address, kernel::NOP);
        }
    }

    fn answer_notice(&mut self) {
        self.take_events();
        let Some(process) = self.tracer.processes.get(&PID) else { return };
        let Some(given) = process.notices.given() else { return };
        let signal = if self.below(2) == 0 { 0 } else { libc::SIGUSR1 };
        self.tracer.set_continuation(PID, 0, signal).unwrap();
        let has_more = !process_has_no_more(&self.tracer);
        if self.below(2) == 0 {
            // The call itself may resume a thread, so the permitted thread must be set before it.
            self.world.borrow_mut().allowed = if has_more { Some(None) } else { Some(Some(given)) };
            let result = self.tracer.step(PID, given);
            if result.is_err() {
                self.world.borrow_mut().allowed = Some(None);
            }
        } else {
            self.world.borrow_mut().allowed = if has_more { Some(None) } else { None };
            self.tracer.resume(PID).unwrap();
        }
    }

    fn run(&mut self, rounds: u32) {
        for _ in 0..rounds {
            for _ in 0..self.below(6) {
                self.world.borrow_mut().advance();
            }
            match self.below(4) {
                0 => self.act(),
                1 | 2 => self.handle_events(),
                _ => {}
            }
        }
    }

    /// Advances the kernel until a condition is true.
    fn settle(&mut self, what: &str, is_settled: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if is_settled(self) {
                return;
            }
            self.world.borrow_mut().advance();
            self.handle_events();
        }
        panic!("no {what}: {:#?}", self.tracer);
    }

    fn executed(&self) -> Vec<u64> {
        self.world.borrow().threads.values().map(|thread| thread.executed).collect()
    }

    fn expect_progress(&mut self, what: &str) {
        let before = self.executed();
        self.settle(what, |simulation| {
            let now = simulation.executed();
            now.iter().zip(&before).all(|(now, before)| *now > before + 20)
        });
    }
}

fn process_has_no_more(tracer: &Tracer<SimKernel>) -> bool {
    tracer.processes.get(&PID).is_none_or(|process| !process.notices.has_pending())
}

/// Simulates a process with a tool, until the process is killed or runs after the detach.
fn simulate(seed: u64) -> (u64, u64, u64) {
    let mut simulation = Simulation::new(seed);
    if simulation.below(2) == 0 {
        simulation.world.borrow_mut().signal(None, libc::SIGSTOP);
    }
    simulation.run(3);
    simulation.tracer.attach(PID).unwrap();
    simulation.run(300);
    if simulation.below(4) == 0 {
        simulation.world.borrow_mut().signal(None, libc::SIGKILL);
        simulation.settle("exit", |it| !it.tracer.processes.contains_key(&PID));
        return (simulation.notices, simulation.steps, 0);
    }
    if simulation.below(2) == 0 {
        // The tool leaves while others remain attached, so the process must continue.
        simulation.reset_breakpoints();
        simulation.world.borrow_mut().signal(None, libc::SIGCONT);
        simulation.take_events();
        simulation.world.borrow_mut().allowed = None;
        simulation.tracer.release_all(PID).unwrap();
        simulation.expect_progress("work after release");
    }
    simulation.take_events();
    let is_stopped = simulation.world.borrow().group == Group::Stopped;
    simulation.world.borrow_mut().allowed = None;
    simulation.world.borrow_mut().breakpoints.clear();
    simulation.tracer.detach(PID).unwrap();
    simulation.settle("detach", |it| !it.tracer.processes.contains_key(&PID));
    if is_stopped {
        let before = simulation.executed();
        for _ in 0..100 {
            simulation.world.borrow_mut().advance();
        }
        assert_eq!(simulation.executed(), before, "the group stop is kept");
    }
    simulation.world.borrow_mut().signal(None, libc::SIGCONT);
    simulation.expect_progress("work after detaching");
    let stops = simulation.world.borrow().stops;
    (simulation.notices, simulation.steps, stops)
}

#[test]
fn tools_and_schedulers_in_any_order_lose_no_instruction_stop_or_notice() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let only: Option<u64> = number("TRACER_SEED");
    let last = number("TRACER_LAST_SEED").unwrap_or(2000);
    let (mut notices, mut steps, mut stops) = (0, 0, 0);
    for seed in only.map_or(1..=last, |seed| seed..=seed) {
        let result = std::panic::catch_unwind(|| simulate(seed));
        let (more_notices, more_steps, more_stops) =
            result.unwrap_or_else(|_| panic!("TRACER_SEED={seed} fails"));
        notices += more_notices;
        steps += more_steps;
        stops += more_stops;
    }
    println!("{notices} notices, {steps} steps, {stops} stops");
    assert!(only.is_some() || (notices > 10_000 && steps > 1000 && stops > 1000));
}
