//! One parallel process: who runs, who has attached, who waits in a barrier, and how it ends.

use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Call, Kind, Level};

use super::code::{self, Verdict};
use crate::sys::process::Status;

/// What has become of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not started yet, or running.
    Living,
    /// Ended, or never to be started.
    Ended,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    state: State,
    attached: bool,
    /// The id of its sc_barrier call, while it waits.
    barrier: Option<u32>,
}

/// What the shell shall do for one parallel process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Kill every node that still lives, and start no further one.
    End,
    /// Every node has attached: make the segments and answer all of them.
    Welcome,
    /// Refuse a node's Attach.
    Refuse(u32, String),
    /// Answer a node's call: node, id, errno.
    Done(u32, u32, i32),
    /// Send what has been written so far up, and answer (node, id) when scrun has written it.
    Flush(u32, u32),
    /// Signal every node, then answer (node, id).
    Broadcast(u32, u32, i32),
    /// Tell how to debug this node: node, signal.
    Inspect(u32, i32, Option<String>),
    /// A line for the user.
    Notice(Level, String),
}

/// A parallel process of the running stage.
#[derive(Debug)]
pub struct Element {
    name: String,
    kind: Kind,
    /// A right-hand neighbour reads its output, so that SIGPIPE can be an ordinary end.
    piped: bool,
    nodes: Vec<Node>,
    living: usize,
    attached: usize,
    /// Nodes that wait in sc_barrier.
    in_barrier: usize,
    welcomed: bool,
    ending: bool,
    verdict: Verdict,
}

impl Element {
    /// A parallel process of `nodes` nodes, none of which has been started.
    pub fn new(name: String, kind: Kind, nodes: u32, piped: bool) -> Self {
        let node = Node { state: State::Living, attached: false, barrier: None };
        Self {
            name,
            kind,
            piped,
            nodes: vec![node; nodes as usize],
            living: nodes as usize,
            attached: 0,
            in_barrier: 0,
            welcomed: false,
            ending: false,
            verdict: Verdict::default(),
        }
    }

    /// Whether every node has ended.
    pub fn is_over(&self) -> bool {
        self.living == 0
    }

    /// Its exit code, as far as things have come.
    pub fn code(&self) -> u8 {
        self.verdict.code()
    }

    /// A node that was never started, and does not have to be.
    pub fn skipped(&mut self, node: u32) {
        self.bury(node);
    }

    /// Ends it for a reason that is told elsewhere.
    pub fn end(&mut self, failure: u8, steps: &mut Vec<Step>) {
        self.verdict.failure.get_or_insert(failure);
        if !self.ending {
            self.ending = true;
            steps.push(Step::End);
        }
    }

    fn end_saying(&mut self, failure: u8, level: Level, text: String, steps: &mut Vec<Step>) {
        if !self.ending {
            steps.push(Step::Notice(level, text));
        }
        self.end(failure, steps);
    }

    /// A node's program could not be started.
    pub fn not_started(&mut self, node: u32, failure: u8, why: &str, steps: &mut Vec<Step>) {
        self.bury(node);
        let text = format!("node {node}: {}: {why}", self.name);
        self.end_saying(failure, Level::Error, text, steps);
    }

    /// A node has ended. `expected` are the signals that the user has caused.
    pub fn ended(&mut self, node: u32, status: Status, expected: &[i32], steps: &mut Vec<Step>) {
        if !self.bury(node) || self.ending {
            return;
        }
        let attached = self.nodes[node as usize].attached;
        if node == 0 {
            self.verdict.node0 = code::of_status(status);
        }
        match status {
            Status::Signaled(libc::SIGPIPE) if self.piped => {
                if node == 0 {
                    self.verdict.node0 = 0;
                }
            }
            Status::Signaled(signal) => {
                let name = code::signal_name(signal);
                let text = format!("node {node} of {} was killed by {name}", self.name);
                let failure = code::of_signal(signal);
                match expected.contains(&signal) {
                    // scrun's own reader has gone: a shell says nothing either.
                    true if signal == libc::SIGPIPE => self.end(failure, steps),
                    true => self.end_saying(failure, Level::Info, text, steps),
                    false => self.end_saying(failure, Level::Error, text, steps),
                }
            }
            Status::Exited(code) if self.kind == Kind::Score && !attached => {
                let text = format!(
                    "node {node} of {} exited with code {code} before score_initialize()",
                    self.name
                );
                self.end_saying(code.max(1), Level::Error, text, steps);
            }
            Status::Exited(code) => {
                if code != 0 && node != 0 {
                    let text = format!("node {node} of {} exited with code {code}", self.name);
                    steps.push(Step::Notice(Level::Warning, text));
                }
                self.check_waiting(steps);
            }
        }
    }

    /// Ends it when somebody waits for a node that can no longer come.
    fn check_waiting(&mut self, steps: &mut Vec<Step>) {
        if self.ending || self.living == 0 {
            return;
        }
        let starting = !self.welcomed;
        let waiting = if starting { self.attached } else { self.in_barrier };
        if waiting == 0 || self.living == self.nodes.len() {
            return;
        }
        let what = if starting { "score_initialize()" } else { "sc_barrier()" };
        let waits = |node: &Node| {
            let waiting = if starting { node.attached } else { node.barrier.is_some() };
            waiting && node.state == State::Living
        };
        if !self.nodes.iter().any(waits) {
            return;
        }
        let gone = list(self.nodes.iter().map(|node| node.state == State::Ended));
        let waiting = list(self.nodes.iter().map(waits));
        let text = format!(
            "{}: node {waiting} waits in {what} for node {gone}, which has exited",
            self.name
        );
        self.end_saying(1, Level::Error, text, steps);
    }

    /// A message came on a node's control socket.
    pub fn called(&mut self, node: u32, call: Call, steps: &mut Vec<Step>) {
        let Some(caller) = self.nodes.get_mut(node as usize) else { return };
        if self.ending || caller.state == State::Ended {
            return;
        }
        match call {
            Call::Attach { version } => self.attach(node, version, steps),
            Call::Exit { code } => {
                self.verdict.exit.get_or_insert((code & 0xff) as u8);
                self.ending = true;
                steps.push(Step::End);
            }
            Call::Inspect { signal, display } => {
                self.verdict.failure.get_or_insert(match signal {
                    1..=64 => code::of_signal(signal),
                    _ => 1,
                });
                self.ending = true;
                steps.push(Step::Inspect(node, signal, display));
                steps.push(Step::End);
            }
            Call::Barrier { id } | Call::Flush { id } | Call::SignalBroadcast { id, .. }
                if !self.welcomed =>
            {
                steps.push(Step::Done(node, id, libc::EPERM));
            }
            Call::Barrier { id } => {
                if caller.barrier.is_some() {
                    // Another thread of the node is in it already.
                    steps.push(Step::Done(node, id, libc::EBUSY));
                    return;
                }
                caller.barrier = Some(id);
                self.in_barrier += 1;
                self.complete_barrier(steps);
            }
            Call::Flush { id } => steps.push(Step::Flush(node, id)),
            Call::SignalBroadcast { id, signal } => {
                let refused = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT].contains(&signal);
                if refused || !(0..=64).contains(&signal) {
                    steps.push(Step::Done(node, id, libc::EINVAL));
                } else {
                    steps.push(Step::Broadcast(node, id, signal));
                }
            }
        }
    }

    fn attach(&mut self, node: u32, version: u32, steps: &mut Vec<Step>) {
        let caller = &mut self.nodes[node as usize];
        if version != PROTOCOL_VERSION {
            let text = format!(
                "{} was built for version {version} of SCore's protocol, and this is version \
                 {PROTOCOL_VERSION}: link it again",
                self.name
            );
            steps.push(Step::Refuse(node, text.clone()));
            self.end_saying(1, Level::Error, text, steps);
        } else if caller.attached {
            let text = format!(
                "node {node} of {} has attached already: a second program in the same node",
                self.name
            );
            steps.push(Step::Refuse(node, text));
        } else {
            caller.attached = true;
            self.attached += 1;
            if self.attached == self.nodes.len() {
                self.welcomed = true;
                steps.push(Step::Welcome);
            } else {
                self.check_waiting(steps);
            }
        }
    }

    fn complete_barrier(&mut self, steps: &mut Vec<Step>) {
        if self.in_barrier == self.nodes.len() {
            self.in_barrier = 0;
            for (number, node) in (0..).zip(&mut self.nodes) {
                if let Some(id) = node.barrier.take() {
                    steps.push(Step::Done(number, id, 0));
                }
            }
        } else {
            self.check_waiting(steps);
        }
    }

    /// Marks a node as ended; false when it was already.
    fn bury(&mut self, node: u32) -> bool {
        match self.nodes.get_mut(node as usize) {
            Some(found) if found.state == State::Living => {
                found.state = State::Ended;
                self.living -= 1;
                true
            }
            _ => false,
        }
    }
}

/// "0, 2, 5" for the nodes marked, at most eight of them.
fn list(marked: impl Iterator<Item = bool>) -> String {
    let numbers: Vec<usize> = (0..).zip(marked).filter(|(_, is)| *is).map(|(n, _)| n).collect();
    let mut text: Vec<String> = numbers.iter().take(8).map(usize::to_string).collect();
    if numbers.len() > 8 {
        text.push(format!("and {} more", numbers.len() - 8));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(nodes: u32) -> Element {
        Element::new("a.out".to_owned(), Kind::Score, nodes, false)
    }

    fn attached(nodes: u32) -> Element {
        let mut element = score(nodes);
        let mut steps = Vec::new();
        for node in 0..nodes {
            element.called(node, Call::Attach { version: PROTOCOL_VERSION }, &mut steps);
        }
        assert_eq!(steps, [Step::Welcome]);
        element
    }

    fn call(element: &mut Element, node: u32, call: Call) -> Vec<Step> {
        let mut steps = Vec::new();
        element.called(node, call, &mut steps);
        steps
    }

    fn end(element: &mut Element, node: u32, status: Status) -> Vec<Step> {
        let mut steps = Vec::new();
        element.ended(node, status, &[], &mut steps);
        steps
    }

    #[test]
    fn nobody_is_welcomed_before_all_have_attached() {
        let mut element = score(2);
        let version = PROTOCOL_VERSION;
        assert_eq!(call(&mut element, 1, Call::Attach { version }), []);
        assert_eq!(call(&mut element, 0, Call::Attach { version }), [Step::Welcome]);
        let again = call(&mut element, 0, Call::Attach { version });
        assert!(matches!(again[..], [Step::Refuse(0, _)]));
    }

    #[test]
    fn barriers_answer_each_caller_with_its_own_id() {
        let mut element = attached(2);
        assert_eq!(call(&mut element, 1, Call::Barrier { id: 8 }), []);
        // A second thread of the same node.
        assert_eq!(call(&mut element, 1, Call::Barrier { id: 9 }), [Step::Done(1, 9, libc::EBUSY)]);
        let done = call(&mut element, 0, Call::Barrier { id: 3 });
        assert_eq!(done, [Step::Done(0, 3, 0), Step::Done(1, 8, 0)]);
        assert_eq!(call(&mut element, 0, Call::Barrier { id: 4 }), []);
    }

    #[test]
    fn who_waits_for_the_dead_is_told_once_whichever_comes_first() {
        let mut element = attached(3);
        assert_eq!(call(&mut element, 0, Call::Barrier { id: 1 }), []);
        let first = end(&mut element, 2, Status::Exited(0));
        let mut other = attached(3);
        assert_eq!(end(&mut other, 2, Status::Exited(0)), []);
        let second = call(&mut other, 0, Call::Barrier { id: 1 });
        for steps in [first, second] {
            let [Step::Notice(Level::Error, text), Step::End] = &steps[..] else {
                panic!("{steps:?}")
            };
            assert_eq!(text, "a.out: node 0 waits in sc_barrier() for node 2, which has exited");
        }
        assert_eq!(call(&mut other, 1, Call::Barrier { id: 1 }), []);
        assert_eq!(other.code(), 1);
    }

    #[test]
    fn only_the_first_death_is_told_and_counted() {
        let mut element = attached(3);
        assert_eq!(end(&mut element, 1, Status::Signaled(libc::SIGBUS)).len(), 2);
        assert_eq!(end(&mut element, 0, Status::Signaled(libc::SIGKILL)), []);
        assert_eq!(end(&mut element, 2, Status::Exited(9)), []);
        assert!(element.is_over());
        assert_eq!(element.code(), 135);
    }

    #[test]
    fn sigpipe_of_a_piped_element_ends_its_node_only() {
        let mut element = Element::new("yes".to_owned(), Kind::Plain, 2, true);
        assert_eq!(end(&mut element, 0, Status::Signaled(libc::SIGPIPE)), []);
        assert_eq!(end(&mut element, 1, Status::Exited(0)), []);
        assert_eq!((element.is_over(), element.code()), (true, 0));
    }

    #[test]
    fn sc_exit_outranks_everything_that_comes_later() {
        let mut element = attached(2);
        assert_eq!(call(&mut element, 1, Call::Exit { code: 258 }), [Step::End]);
        assert_eq!(end(&mut element, 0, Status::Signaled(libc::SIGSEGV)), []);
        assert_eq!(element.code(), 2);
    }

    #[test]
    fn a_node_number_that_does_not_exist_is_ignored() {
        let mut element = attached(2);
        assert_eq!(call(&mut element, 7, Call::Barrier { id: 1 }), []);
        assert_eq!(end(&mut element, 7, Status::Exited(1)), []);
    }
}
