//! What the master does about a parallel process that cannot go on (manual 3.5): it asks the
//! detector ([`crate::deadlock`]), and when that has found a deadlock, it tells who waits for what,
//! sends SIGHUP (manual, table 3.1), and after a while ends it.
//!
//! | phase | event | steps |
//! |---|---|---|
//! | watching | verdict | `Explain`; the job goes on, since it has to hear the signal |
//! | explaining | every process has been explained, or 2 s | lines for the user, SIGHUP |
//! | grace | 5 s | the end |
//!
//! Who goes on after the signal, as its handler sends something, is ended all the same.

use std::time::Duration;

use score_proto::order::{Order, Placement};
use score_proto::sight::{Quiet, Seen, Wait};

use crate::cluster::Time;
use crate::deadlock::{Action, Detector, Event};

/// What a parallel process may take to look at itself in its handler of SIGHUP (sc_inspectme).
pub const GRACE: Duration = Duration::from_secs(5);
/// For what the hosts have to say.
const EXPLAINING: Duration = Duration::from_secs(2);
/// The exit code of a parallel process that was deadlocked: EDEADLK.
pub const CODE: u8 = 35;
/// Processes that are told of, one in a line.
const LINES: usize = 64;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell the hosts.
    Order(Order),
    /// Stop the job, and say [`Hang::held`].
    Hold,
    /// It goes on.
    Release,
    /// It is deadlocked: these processes wait. From now on their ends are no news.
    Condemn(Vec<Wait>),
    /// End it.
    End,
}

#[derive(Debug)]
enum Phase {
    Watching,
    Explaining { waits: Vec<Wait>, until: Time },
    Grace(Time),
    Over,
}

/// One parallel process of the running stage.
#[derive(Debug)]
pub struct Hang {
    element: u32,
    nodes: u32,
    detector: Detector,
    silent: bool,
    /// The job was stopped since its hosts have said so.
    stale: bool,
    phase: Phase,
}

impl Hang {
    /// A parallel process of so many nodes, none of which has been seen.
    pub fn new(element: u32, nodes: u32) -> Self {
        let detector = Detector::new(nodes);
        Self { element, nodes, detector, silent: false, stale: false, phase: Phase::Watching }
    }

    /// Whether all of its processes wait, and nothing is on its way: since the job runs, if it was
    /// stopped. It needs no processor then, unless it is looked at.
    pub fn is_silent(&self) -> bool {
        let looks = matches!(self.phase, Phase::Watching) && self.detector.suspects();
        self.silent && !self.stale && !looks
    }

    /// The job is stopped: hosts whose processes were idle look anew when it runs again.
    pub fn stopped(&mut self, now: Time) -> Vec<Step> {
        self.stale = true;
        self.event(Event::Stopped, now)
    }

    /// When [`Hang::tick`] is wanted.
    pub fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Watching => self.detector.deadline(),
            Phase::Explaining { until, .. } | Phase::Grace(until) => Some(*until),
            Phase::Over => None,
        }
    }

    /// All hosts together have seen this.
    pub fn quiet(&mut self, quiet: Quiet, now: Time) -> Vec<Step> {
        (self.silent, self.stale) = (quiet.is_silent(), false);
        let event = if self.silent { Event::AllIdle } else { Event::SomeBusy };
        self.event(event, now)
    }

    /// Somebody is about to be woken by an order: what was seen so far says nothing.
    pub fn disturbed(&mut self, now: Time) -> Vec<Step> {
        let mut steps = self.event(Event::SomeBusy, now);
        if self.silent && !self.stale {
            steps.extend(self.event(Event::AllIdle, now));
        }
        steps
    }

    /// All hosts have looked.
    pub fn seen(&mut self, round: u64, seen: Seen, now: Time) -> Vec<Step> {
        self.event(Event::Seen { round, seen }, now)
    }

    /// The job has stopped, as was asked for.
    pub fn held(&mut self, now: Time) -> Vec<Step> {
        self.event(Event::Held, now)
    }

    /// Some hosts say what their processes wait for.
    pub fn explained(&mut self, further: Vec<Wait>, now: Time) -> Vec<Step> {
        let Phase::Explaining { waits, .. } = &mut self.phase else { return Vec::new() };
        let room = (self.nodes as usize).saturating_sub(waits.len());
        waits.extend(further.into_iter().take(room));
        if waits.len() == self.nodes as usize { self.condemn(now) } else { Vec::new() }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) -> Vec<Step> {
        match &self.phase {
            Phase::Watching => self.event(Event::Tick, now),
            Phase::Explaining { until, .. } if *until <= now => self.condemn(now),
            Phase::Grace(until) if *until <= now => {
                self.phase = Phase::Over;
                vec![Step::End]
            }
            Phase::Explaining { .. } | Phase::Grace(_) | Phase::Over => Vec::new(),
        }
    }

    fn event(&mut self, event: Event, now: Time) -> Vec<Step> {
        if !matches!(self.phase, Phase::Watching) {
            return Vec::new();
        }
        let mut steps = Vec::new();
        for action in self.detector.on(event, now) {
            let element = self.element;
            match action {
                Action::Look { round, stopped } => {
                    steps.push(Step::Order(Order::Look { element, round, stopped }));
                }
                Action::Hold => steps.push(Step::Hold),
                Action::Release => steps.push(Step::Release),
                Action::Verdict => {
                    self.phase = Phase::Explaining { waits: Vec::new(), until: now + EXPLAINING };
                    steps.extend([Step::Order(Order::Explain { element }), Step::Release]);
                }
            }
        }
        steps
    }

    fn condemn(&mut self, now: Time) -> Vec<Step> {
        let after = Phase::Grace(now + GRACE);
        let Phase::Explaining { mut waits, .. } = std::mem::replace(&mut self.phase, after) else {
            return Vec::new();
        };
        waits.sort_unstable_by_key(|wait| wait.node);
        // Nobody has called sc_signal_bcast: nobody is answered.
        let (element, serial, signal) = (self.element, u64::MAX, libc::SIGHUP);
        vec![Step::Condemn(waits), Step::Order(Order::Broadcast { element, serial, signal })]
    }
}

/// What the user is told.
pub fn lines(job: u32, name: &str, waits: &[Wait], placement: &Placement) -> Vec<String> {
    let mut lines = vec![format!("job {job}: deadlock: no process of {name} can go on")];
    lines.extend(waits.iter().take(LINES).map(|wait| line(wait, placement)));
    if waits.len() > LINES {
        lines.push(format!("and {} more like these", waits.len() - LINES));
    }
    lines
}

fn line(wait: &Wait, placement: &Placement) -> String {
    use score_proto::carea::WaitingFor::*;
    let host = placement.host_of(wait.node).and_then(|at| placement.hosts.get(at as usize));
    let host = host.filter(|_| placement.hosts.len() > 1);
    let host = host.map_or_else(String::new, |host| format!(" on host {}", host.name));
    let what = match score_proto::carea::WaitingFor::from_code(wait.waiting) {
        Some(Message | Select) => "waits for a message",
        Some(SendRoom) => "waits for room to send",
        Some(Barrier) => "waits in sc_barrier()",
        Some(Pmi) => "waits for its process manager",
        Some(Nothing | Flush | Sleep | Start) | None => "has ended",
    };
    let since = match what {
        "has ended" => String::new(),
        _ => format!(" since {} ms", wait.idle_ms),
    };
    let last = |node: Option<u32>, way: &str| {
        node.map_or_else(String::new, |node| format!(", the last {way} node {node}"))
    };
    format!(
        "node {}{host} {what}{since}; sent {}{}; received {}{}",
        wait.node,
        wait.sent,
        last(wait.last_to, "to"),
        wait.received,
        last(wait.last_from, "from"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Time = Time::from_secs(100);

    fn silent() -> Quiet {
        Quiet { idle: true, sent: 3, received: 3, remote: 0 }
    }

    fn seen() -> Seen {
        Seen { nodes: 2, sent: 3, received: 3, ..Seen::NOTHING }
    }

    fn look(steps: &[Step]) -> (u64, bool) {
        let [Step::Order(Order::Look { element: 4, round, stopped })] = steps else {
            panic!("{steps:?}")
        };
        (*round, *stopped)
    }

    /// Held for the last look, whose round is answered.
    fn held() -> (Hang, u64) {
        let mut hang = Hang::new(4, 2);
        let (mut round, _) = look(&hang.quiet(silent(), T0));
        for _ in 0..2 {
            (round, _) = look(&hang.seen(round, seen(), T0));
        }
        assert_eq!(hang.seen(round, seen(), T0), [Step::Hold]);
        let (round, stopped) = look(&hang.held(T0));
        assert!(stopped);
        (hang, round)
    }

    fn wait(node: u32) -> Wait {
        Wait {
            node,
            waiting: 1,
            idle_ms: 20,
            sent: 3,
            received: 4,
            last_to: Some(1),
            last_from: None,
        }
    }

    #[test]
    fn a_deadlock_is_explained_then_signalled_then_ended() {
        let (mut hang, round) = held();
        let steps = hang.seen(round, seen(), T0);
        assert_eq!(steps, [Step::Order(Order::Explain { element: 4 }), Step::Release]);
        assert_eq!(hang.explained(vec![wait(1)], T0), []);
        let [Step::Condemn(waits), Step::Order(Order::Broadcast { signal, .. })] =
            &hang.explained(vec![wait(0)], T0)[..]
        else {
            panic!("{hang:?}")
        };
        assert_eq!((waits[0].node, waits[1].node, *signal), (0, 1, libc::SIGHUP));
        assert_eq!(hang.tick(T0), []);
        assert_eq!(hang.deadline(), Some(T0 + GRACE));
        assert_eq!(hang.quiet(Quiet { idle: false, ..silent() }, T0), [], "it is too late");
        assert_eq!(hang.tick(T0 + GRACE), [Step::End]);
        assert_eq!((hang.tick(T0 + GRACE), hang.deadline()), (Vec::new(), None));
    }

    #[test]
    fn who_is_woken_by_an_order_is_not_deadlocked() {
        let (mut hang, round) = held();
        let steps = hang.disturbed(T0);
        assert_eq!(steps[0], Step::Release);
        let (next, stopped) = look(&steps[1..]);
        assert!(next > round && !stopped);
        assert_eq!(hang.seen(round, seen(), T0), [], "of before");
    }

    #[test]
    fn a_host_that_does_not_explain_is_not_waited_for() {
        let (mut hang, round) = held();
        hang.seen(round, seen(), T0);
        hang.explained(vec![wait(0)], T0);
        assert_eq!(hang.tick(T0 + EXPLAINING).len(), 2);
    }

    #[test]
    fn the_user_hears_of_every_process_up_to_a_limit() {
        let hosts = ["h0", "h1"].map(|host| (host.to_owned(), None, 50));
        let placement = Placement::new(0, hosts);
        let mut waits: Vec<Wait> = (0..100).map(wait).collect();
        waits[1].waiting = 3;
        let lines = lines(7, "a.out", &waits, &placement);
        assert_eq!(lines[0], "job 7: deadlock: no process of a.out can go on");
        assert_eq!(
            lines[1],
            "node 0 on host h0 waits for a message since 20 ms; \
             sent 3, the last to node 1; received 4"
        );
        assert!(lines[2].contains("waits in sc_barrier()"), "{}", lines[2]);
        assert_eq!(lines.len(), 66);
        assert_eq!(lines[65], "and 36 more like these");
    }
}
