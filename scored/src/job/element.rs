//! One parallel process: who runs, who has attached, who waits in a barrier, and how it ends.

use std::collections::BTreeMap;

use score_proto::message::{Kind, Level};
use score_proto::nodeset::NodeSet;
use score_proto::order::{HostAddress, Order, Report, Status};

use super::code::{self, Verdict};
use super::life::{Action, notice};

/// A parallel process of the running stage.
#[derive(Debug)]
pub struct Element {
    /// Its number in the stage.
    number: u32,
    name: String,
    kind: Kind,
    nodes: u32,
    /// A right-hand neighbour reads its output, so that SIGPIPE can be an ordinary end.
    piped: bool,
    /// Its nodes have nothing to do with each other.
    separate: bool,
    /// Ended, or never to be started.
    gone: NodeSet,
    attached: NodeSet,
    addresses: Vec<HostAddress>,
    /// Signals that not all hosts have sent yet, by number: who called, and the nodes of those
    /// hosts that have.
    broadcasts: BTreeMap<u64, (u32, NodeSet)>,
    next_broadcast: u64,
    /// In sc_barrier, the dead included.
    in_barrier: NodeSet,
    welcomed: bool,
    ending: bool,
    /// It is deadlocked, and has been told: how its nodes end is no news.
    condemned: bool,
    verdict: Verdict,
}

impl Element {
    /// A parallel process of `nodes` nodes, none of which has been started.
    pub fn new(number: u32, name: String, kind: Kind, nodes: u32, piped: bool) -> Self {
        Self {
            number,
            name,
            kind,
            nodes,
            piped,
            separate: false,
            gone: NodeSet::new(),
            attached: NodeSet::new(),
            addresses: Vec::new(),
            broadcasts: BTreeMap::new(),
            next_broadcast: 0,
            in_barrier: NodeSet::new(),
            welcomed: false,
            ending: false,
            condemned: false,
            verdict: Verdict::default(),
        }
    }

    /// The same, with nodes that are commands of their own, unless it is a program of SCore.
    pub fn separate(self) -> Self {
        Self { separate: self.kind != Kind::Score, ..self }
    }

    /// Its place in the stage.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it has a network and nodes that may use it.
    pub fn is_communicating(&self) -> bool {
        self.welcomed && !self.is_over()
    }

    /// Whether every node has ended.
    pub fn is_over(&self) -> bool {
        self.gone.len() == self.nodes
    }

    /// Its exit code, as far as things have come.
    pub fn code(&self) -> u8 {
        self.verdict.code()
    }

    /// Something has happened to some of its nodes. `expected` are the signals that the user has
    /// caused.
    pub fn reported(&mut self, report: Report, expected: &[i32], out: &mut Vec<Action>) {
        match report {
            Report::Attached { nodes, addresses, .. } => self.attached(&nodes, addresses, out),
            Report::InBarrier { nodes, .. } => self.in_barrier(&nodes, out),
            Report::Ended { nodes, status, .. } => self.ended(&nodes, status, expected, out),
            Report::Skipped { nodes, .. } => self.skipped(&nodes),
            Report::NotStarted { nodes, code, why, .. } => {
                self.not_started(&nodes, code, &why, out);
            }
            Report::Exit { code, .. } => self.exit(code, out),
            Report::Broadcast { node, signal, .. } => self.broadcast(node, signal, out),
            Report::Sent { serial, nodes, .. } => self.sent(serial, &nodes, out),
            Report::Inspect { signal, text, .. } => self.inspect(signal, text, out),
            Report::Broken { reason, .. } => self.broken(&reason, out),
            _ => {}
        }
    }

    /// Nodes that were never started and do not have to be, or whose host is gone.
    pub fn skipped(&mut self, nodes: &NodeSet) {
        self.bury(nodes);
    }

    /// Ends it, unless it is over, for a reason that is told elsewhere.
    pub fn end(&mut self, failure: u8, out: &mut Vec<Action>) {
        if !self.is_over() {
            self.fail(failure, out);
        }
    }

    /// It cannot go on, which is told elsewhere, and is ended in a while.
    pub fn condemn(&mut self, failure: u8) {
        self.verdict.failure.get_or_insert(failure);
        self.condemned = true;
    }

    fn fail(&mut self, failure: u8, out: &mut Vec<Action>) {
        self.verdict.failure.get_or_insert(failure);
        self.stop(out);
    }

    fn stop(&mut self, out: &mut Vec<Action>) {
        if !self.ending {
            self.ending = true;
            out.push(Action::Order(Order::End { element: self.number }));
        }
    }

    fn fail_saying(&mut self, failure: u8, level: Level, text: String, out: &mut Vec<Action>) {
        if !self.ending {
            out.push(notice(level, text));
        }
        self.fail(failure, out);
    }

    /// It cannot go on.
    fn broken(&mut self, reason: &str, out: &mut Vec<Action>) {
        let text = format!("{}: {reason}", self.name);
        self.fail_saying(1, Level::Error, text, out);
    }

    /// The program could not be started on these nodes.
    fn not_started(&mut self, nodes: &NodeSet, code: u8, why: &str, out: &mut Vec<Action>) {
        if let Some(first) = self.bury(nodes).first() {
            let text = format!("node {first}: {}: {why}", self.name);
            if self.separate {
                self.verdict.failure.get_or_insert(code);
                return out.push(notice(Level::Error, text));
            }
            self.fail_saying(code, Level::Error, text, out);
        }
    }

    fn ended(&mut self, nodes: &NodeSet, status: Status, expected: &[i32], out: &mut Vec<Action>) {
        let news = self.bury(nodes);
        let Some(first) = news.first() else { return };
        if self.ending || self.condemned || self.separate {
            return;
        }
        if first == 0 {
            self.verdict.node0 = code::of_status(status);
        }
        match status {
            Status::Signaled(libc::SIGPIPE) if self.piped => {
                if first == 0 {
                    self.verdict.node0 = 0;
                }
            }
            Status::Signaled(signal) => {
                let name = code::signal_name(signal);
                let text = format!("node {first} of {} was killed by {name}", self.name);
                let failure = code::of_signal(signal);
                match expected.contains(&signal) {
                    // scrun's own reader has gone: a shell says nothing either.
                    true if signal == libc::SIGPIPE => self.fail(failure, out),
                    true => self.fail_saying(failure, Level::Info, text, out),
                    false => self.fail_saying(failure, Level::Error, text, out),
                }
            }
            Status::Exited(code) => self.exited(&news, code, out),
        }
    }

    fn exited(&mut self, nodes: &NodeSet, code: u8, out: &mut Vec<Action>) {
        let unattached = nodes.iter().find(|node| !self.attached.contains(*node));
        if let (Kind::Score, Some(node)) = (self.kind, unattached) {
            let name = &self.name;
            let text =
                format!("node {node} of {name} exited with code {code} before score_initialize()");
            return self.fail_saying(code.max(1), Level::Error, text, out);
        }
        for node in nodes.iter().filter(|node| code != 0 && *node != 0) {
            let text = format!("node {node} of {} exited with code {code}", self.name);
            out.push(notice(Level::Warning, text));
        }
        self.check_waiting(out);
    }

    /// Ends it when somebody waits for a node that can no longer come.
    fn check_waiting(&mut self, out: &mut Vec<Action>) {
        if self.ending || self.gone.is_empty() || self.is_over() {
            return;
        }
        let starting = !self.welcomed;
        let come = if starting { &self.attached } else { &self.in_barrier };
        let waiting: NodeSet = come.iter().filter(|node| !self.gone.contains(*node)).collect();
        if waiting.is_empty() {
            return;
        }
        let what = if starting { "score_initialize()" } else { "sc_barrier()" };
        let text = format!(
            "{}: node {waiting} waits in {what} for node {}, which has exited",
            self.name, self.gone
        );
        self.fail_saying(1, Level::Error, text, out);
    }

    fn attached(&mut self, nodes: &NodeSet, addresses: Vec<HostAddress>, out: &mut Vec<Action>) {
        if self.ending || self.welcomed || nodes.last().is_some_and(|last| last >= self.nodes) {
            return;
        }
        self.attached.union(nodes);
        self.addresses.extend(addresses);
        if self.attached.len() == self.nodes {
            self.welcomed = true;
            let peers = std::mem::take(&mut self.addresses);
            out.push(Action::Order(Order::Welcome { element: self.number, peers }));
        } else {
            self.check_waiting(out);
        }
    }

    fn in_barrier(&mut self, nodes: &NodeSet, out: &mut Vec<Action>) {
        if self.ending || nodes.last().is_some_and(|last| last >= self.nodes) {
            return;
        }
        self.in_barrier.union(nodes);
        if self.in_barrier.len() == self.nodes {
            self.in_barrier = NodeSet::new();
            out.push(Action::Order(Order::BarrierDone { element: self.number }));
        } else {
            self.check_waiting(out);
        }
    }

    /// A node has called sc_signal_bcast.
    fn broadcast(&mut self, node: u32, signal: i32, out: &mut Vec<Action>) {
        let serial = self.next_broadcast;
        self.next_broadcast += 1;
        self.broadcasts.insert(serial, (node, NodeSet::new()));
        out.push(Action::Order(Order::Broadcast { element: self.number, serial, signal }));
    }

    /// The hosts of these nodes have sent a signal.
    fn sent(&mut self, serial: u64, nodes: &NodeSet, out: &mut Vec<Action>) {
        let Some((node, sent)) = self.broadcasts.get_mut(&serial) else { return };
        if nodes.last().is_none_or(|last| last >= self.nodes) {
            return;
        }
        sent.union(nodes);
        if sent.len() == self.nodes {
            let order = Order::BroadcastDone { element: self.number, node: *node };
            self.broadcasts.remove(&serial);
            out.push(Action::Order(order));
        }
    }

    /// A node has called sc_exit.
    fn exit(&mut self, code: i32, out: &mut Vec<Action>) {
        if !self.ending {
            self.verdict.exit.get_or_insert((code & 0xff) as u8);
            self.stop(out);
        }
    }

    /// A node has called sc_inspectme.
    fn inspect(&mut self, signal: i32, text: String, out: &mut Vec<Action>) {
        let failure = match signal {
            1..=64 => code::of_signal(signal),
            _ => 1,
        };
        self.fail_saying(failure, Level::Error, text, out);
    }

    /// Marks nodes as ended; those that were not yet.
    fn bury(&mut self, nodes: &NodeSet) -> NodeSet {
        let mut news = NodeSet::new();
        for range in nodes.ranges() {
            news.union(&self.gone.missing(range.start..range.end.min(self.nodes)));
        }
        self.gone.union(&news);
        news
    }
}

#[cfg(test)]
#[path = "element_tests.rs"]
mod tests;
