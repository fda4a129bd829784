//! The life of a job: stages one after the other, each a pipeline of parallel processes.

use score_proto::message::{Call, JobSpec, Level, OsBytes};

use super::code;
use super::element::{Element, Step};
use crate::sys::process::Status;

/// One process of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct At {
    /// Parallel process in the stage, from 0.
    pub element: u32,
    /// Node, from 0.
    pub node: u32,
}

/// What has happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Everything is ready: begin.
    Begin,
    /// A process is not to be started here (`system -host`): it counts as ended with 0.
    Skipped(At),
    /// A process could not be started: exit code and reason.
    NotStarted(At, u8, String),
    /// A process has ended.
    Ended(At, Status),
    /// A process has called.
    Called(At, Call),
    /// A process has written something to its control socket that is no call.
    Garbage(At, String),
    /// A parallel process cannot go on: reason.
    Broken(u32, String),
    /// The whole job cannot go on: exit code and reason.
    Lost(u8, String),
    /// All output that the ended stage left has been read.
    Drained,
    /// The user has sent this signal to every process (or, SIGPIPE, closed the output).
    UserSignal(i32),
    /// The user has killed the job.
    Kill,
}

/// What the shell shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start every process of this stage.
    StartStage(usize),
    /// Do something for a parallel process of the running stage.
    Element(u32, Step),
    /// Read what the processes of the stage have left in their pipes, then report
    /// [`Event::Drained`].
    Drain,
    /// A line for the user.
    Notice(Level, String),
    /// Reclaim everything and report this exit code.
    Finish(u8),
}

/// A job.
#[derive(Debug)]
pub struct Job {
    spec: JobSpec,
    stage: usize,
    elements: Vec<Element>,
    draining: bool,
    finished: bool,
    killed: bool,
    /// Signals that the user has sent: dying of them is no news.
    expected: Vec<i32>,
    actions: Vec<Action>,
}

fn display_name(path: &OsBytes) -> String {
    let name = path.0.rsplit(|byte| *byte == b'/').next().unwrap_or(&path.0);
    String::from_utf8_lossy(name).into_owned()
}

impl Job {
    /// A job that has been checked (see [`super::check`]) and not begun.
    pub fn new(spec: JobSpec) -> Self {
        Self {
            spec,
            stage: 0,
            elements: Vec::new(),
            draining: false,
            finished: false,
            killed: false,
            expected: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// What was submitted.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// The running stage.
    pub fn stage(&self) -> usize {
        self.stage
    }

    /// One step: what has happened in, what to do out.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        if !self.finished {
            self.apply(event);
            self.settle();
        }
        std::mem::take(&mut self.actions)
    }

    fn apply(&mut self, event: Event) {
        let mut steps = Vec::new();
        let at = match event {
            Event::Begin => return self.begin_stage(0),
            Event::Drained => return self.end_stage(),
            Event::UserSignal(signal) => return self.expected.push(signal),
            Event::Kill => return self.end_all(code::of_signal(libc::SIGKILL)),
            Event::Lost(code, reason) => {
                self.actions.push(Action::Notice(Level::Error, reason));
                return self.end_all(code);
            }
            Event::Garbage(at, what) => {
                let name = self.name(at.element);
                let text = format!("node {} of {name}: {what}; the job is ended", at.node);
                self.actions.push(Action::Notice(Level::Error, text));
                return self.end_all(1);
            }
            Event::Broken(element, reason) => {
                let text = format!("{}: {reason}", self.name(element));
                self.actions.push(Action::Notice(Level::Error, text));
                if let Some(found) = self.elements.get_mut(element as usize) {
                    found.end(1, &mut steps);
                }
                At { element, node: 0 }
            }
            Event::Skipped(at) => {
                self.at(at, |element| element.skipped(at.node));
                at
            }
            Event::NotStarted(at, code, why) => {
                self.at(at, |element| element.not_started(at.node, code, &why, &mut steps));
                at
            }
            Event::Ended(at, status) => {
                let expected = std::mem::take(&mut self.expected);
                self.at(at, |element| element.ended(at.node, status, &expected, &mut steps));
                self.expected = expected;
                at
            }
            Event::Called(at, call) => {
                self.at(at, |element| element.called(at.node, call, &mut steps));
                at
            }
        };
        self.actions.extend(steps.into_iter().map(|step| Action::Element(at.element, step)));
    }

    fn at(&mut self, at: At, act: impl FnOnce(&mut Element)) {
        if let Some(element) = self.elements.get_mut(at.element as usize) {
            act(element);
        }
    }

    fn name(&self, element: u32) -> String {
        let stage = &self.spec.stages[self.stage];
        stage.elements.get(element as usize).map_or_else(String::new, |e| display_name(&e.path))
    }

    fn begin_stage(&mut self, stage: usize) {
        self.stage = stage;
        let nodes = self.spec.nodes();
        let shapes = &self.spec.stages[stage].elements;
        let last = shapes.len() - 1;
        self.elements = shapes
            .iter()
            .enumerate()
            .map(|(at, e)| Element::new(display_name(&e.path), e.kind, nodes, at < last))
            .collect();
        self.actions.push(Action::StartStage(stage));
    }

    fn end_all(&mut self, code: u8) {
        self.killed = true;
        for (number, element) in (0..).zip(&mut self.elements) {
            let mut steps = Vec::new();
            if !element.is_over() {
                element.end(code, &mut steps);
            }
            self.actions.extend(steps.into_iter().map(|step| Action::Element(number, step)));
        }
        if self.elements.is_empty() {
            self.finish(code);
        }
    }

    fn settle(&mut self) {
        let over = !self.elements.is_empty() && self.elements.iter().all(Element::is_over);
        if over && !self.draining && !self.finished {
            self.draining = true;
            self.actions.push(Action::Drain);
        }
    }

    fn end_stage(&mut self) {
        if !self.draining {
            return;
        }
        self.draining = false;
        let code = code::of_pipeline(self.elements.iter().map(Element::code));
        if code == 0 && !self.killed && self.stage + 1 < self.spec.stages.len() {
            self.begin_stage(self.stage + 1);
        } else {
            self.finish(if self.killed { code.max(1) } else { code });
        }
    }

    fn finish(&mut self, code: u8) {
        self.finished = true;
        self.actions.push(Action::Finish(code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use score_proto::message::{ElementSpec, Input, Kind, Output, StageSpec};

    const NODES: u32 = 3;

    fn job(shape: &[usize], kind: Kind) -> Job {
        let word = || OsBytes(b"/bin/prog".to_vec());
        let element = || ElementSpec {
            path: word(),
            args: vec![word()],
            input: Input::Default,
            output: Output::Default,
            kind,
        };
        let stage =
            |count: &usize| StageSpec { elements: (0..*count).map(|_| element()).collect() };
        Job::new(JobSpec {
            hosts: vec![score_proto::message::HostSpec::this(NODES)],
            stages: shape.iter().map(stage).collect(),
            environment: Vec::new(),
            directory: OsBytes(b"/".to_vec()),
            umask: 0,
            options: Vec::new(),
            statistics: false,
            stdin: false,
        })
    }

    fn everybody(elements: usize) -> impl Iterator<Item = At> {
        (0..elements as u32).flat_map(|element| (0..NODES).map(move |node| At { element, node }))
    }

    #[test]
    fn stages_follow_each_other_and_the_last_code_counts() {
        let mut job = job(&[2, 1], Kind::Plain);
        assert_eq!(job.on(Event::Begin), [Action::StartStage(0)]);
        let mut actions = Vec::new();
        for at in everybody(2) {
            assert_eq!(actions, []);
            actions = job.on(Event::Ended(at, Status::Exited(0)));
        }
        assert_eq!(actions, [Action::Drain]);
        assert_eq!(job.on(Event::Drained), [Action::StartStage(1)]);
        for at in everybody(1) {
            actions = job.on(Event::Ended(at, Status::Exited(u8::from(at.node == 0) * 6)));
        }
        assert_eq!(actions, [Action::Drain]);
        assert_eq!(job.on(Event::Drained), [Action::Finish(6)]);
        assert_eq!(job.on(Event::Kill), []);
    }

    #[test]
    fn a_failed_stage_is_the_last() {
        let mut job = job(&[1, 1], Kind::Plain);
        job.on(Event::Begin);
        let at = At { element: 0, node: 1 };
        let actions = job.on(Event::NotStarted(at, 127, "gone".to_owned()));
        assert_eq!(actions[0], {
            let text = "node 1: prog: gone".to_owned();
            Action::Element(0, Step::Notice(Level::Error, text))
        });
        assert_eq!(actions[1], Action::Element(0, Step::End));
        for node in [0, 2] {
            job.on(Event::Skipped(At { element: 0, node }));
        }
        assert_eq!(job.on(Event::Drained), [Action::Finish(127)]);
    }

    #[test]
    fn a_kill_before_anything_runs_finishes_at_once() {
        assert_eq!(job(&[1], Kind::Plain).on(Event::Kill), [Action::Finish(137)]);
    }

    fn any_call() -> impl Strategy<Value = Call> {
        prop_oneof![
            Just(Call::Attach { version: 1 }),
            Just(Call::Attach { version: 7 }),
            (0..4u32).prop_map(|id| Call::Barrier { id }),
            (0..4u32).prop_map(|id| Call::Flush { id }),
            (0..4u32, -2..70i32).prop_map(|(id, signal)| Call::SignalBroadcast { id, signal }),
            any::<i32>().prop_map(|code| Call::Exit { code }),
            any::<i32>().prop_map(|signal| Call::Inspect { signal, display: None }),
        ]
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let at = || (0..3u32, 0..4u32).prop_map(|(element, node)| At { element, node });
        let status = prop_oneof![
            any::<u8>().prop_map(Status::Exited),
            (1..65i32).prop_map(Status::Signaled)
        ];
        prop_oneof![
            8 => (at(), any_call()).prop_map(|(at, call)| Event::Called(at, call)),
            4 => (at(), status).prop_map(|(at, status)| Event::Ended(at, status)),
            1 => at().prop_map(Event::Skipped),
            1 => at().prop_map(|at| Event::NotStarted(at, 126, "why".to_owned())),
            1 => at().prop_map(|at| Event::Garbage(at, "what".to_owned())),
            1 => (1..65i32).prop_map(Event::UserSignal),
            1 => Just(Event::Drained),
            1 => Just(Event::Kill),
            1 => (0..3u32).prop_map(|element| Event::Broken(element, "why".to_owned())),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order, a job never panics; and once every process has ended
        /// and the pipes are read, it goes on or finishes, and it finishes once.
        #[test]
        fn every_job_comes_to_one_end(
            events in proptest::collection::vec(any_event(), 0..60),
            stages in proptest::collection::vec(1usize..3, 1..4),
        ) {
            let mut job = job(&stages, Kind::Score);
            let mut finishes = 0;
            let mut count = |actions: Vec<Action>| {
                finishes += actions.iter().filter(|a| matches!(a, Action::Finish(_))).count();
                finishes
            };
            count(job.on(Event::Begin));
            for event in events {
                count(job.on(event));
            }
            for _ in 0..=stages.len() {
                for at in everybody(2) {
                    count(job.on(Event::Ended(at, Status::Exited(0))));
                }
                count(job.on(Event::Drained));
            }
            prop_assert_eq!(count(Vec::new()), 1);
        }
    }
}
