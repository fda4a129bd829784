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
#[derive(Debug)]
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
