//! The behaviour of one server or the master, as a state machine without I/O: `(input, now) ->
//! actions`.
//!
//! The master is a hop without a process of its own. Its parent is the front end.

use score_proto::nodeset::NodeSet;
use score_tools::merge::output::{LineCutter, MERGE_WINDOW, OutputLine, OutputMerger};
use score_tools::merge::{
    CommandId, CommandRefusal, MergeAction, MergeInput, MergedEvent, Merger, MonotonicTime,
    timeout_of_children,
};

use crate::message::{
    DebugCommand, DebugEvent, DownMessage, INIT_COMMAND, Operation, RoutingTable, TreeInit,
    UpMessage, cut_text,
};
use crate::routing::Routing;

/// Maximum number of messages that wait for the connection to a child.
const MAX_WAITING: usize = 512;

/// Maximum length of the reason for a lost child in an event, in bytes.
const MAX_REASON_LEN: usize = 400;

/// The role of a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopRole {
    /// The master. It has no process, and the initialisation determines its id.
    Master,
    /// The server with this id.
    Server(u32),
}

/// An input of a hop.
#[derive(Debug, Clone)]
pub enum HopInput {
    /// A message from the parent. The parent of the master is the front end.
    FromParent(DownMessage),
    /// A message from a child.
    FromChild(u32, UpMessage),
    /// A child is connected and has proved its identity.
    ChildConnected(u32),
    /// A child cannot be reached, or its connection is lost, for this reason.
    ChildLost(u32, String),
    /// The connection to the parent is lost.
    ParentLost,
    /// An answer of this hop's own process.
    Answer(CommandId, DebugEvent),
    /// Output of this hop's own process.
    Output(Vec<u8>),
    /// Time has passed; see [`Hop::deadline`].
    Tick,
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HopAction {
    /// Connect to these children.
    Connect(Vec<u32>, RoutingTable),
    /// Send to a child.
    ToChild(u32, DownMessage),
    /// Send to the parent. The parent of the master is the front end.
    ToParent(UpMessage),
    /// Let this hop's own process execute an operation.
    Perform(CommandId, Operation),
    /// Log that a message was refused, with this text.
    Refuse(String),
    /// End this hop.
    Quit,
}

/// A child of a hop.
#[derive(Debug)]
struct Child {
    id: u32,
    branch: NodeSet,
    state: ChildState,
}

#[derive(Debug)]
enum ChildState {
    /// These messages wait for the connection.
    Connecting(Vec<DownMessage>),
    Connected,
    Lost,
}

/// One server, or the master.
#[derive(Debug)]
pub struct Hop {
    role: HopRole,
    /// `None` before the initialisation.
    tree: Option<HopTree>,
    cutter: LineCutter,
    output: OutputMerger,
    /// The time at which an unfinished line of this hop's own process is passed on.
    partial_deadline: Option<MonotonicTime>,
}

/// The data of a hop after the initialisation.
#[derive(Debug)]
struct HopTree {
    own: NodeSet,
    children: Vec<Child>,
    /// Source 0 is the hop itself, and source n is its child n-1.
    merger: Merger,
}

impl Hop {
    /// A hop that waits for its initialisation.
    pub fn new(role: HopRole) -> Self {
        let (cutter, output) = (LineCutter::default(), OutputMerger::default());
        Self { role, tree: None, cutter, output, partial_deadline: None }
    }

    /// The time at which [`HopInput::Tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let merger = self.tree.as_ref().and_then(|tree| tree.merger.deadline());
        merger.into_iter().chain(self.output.deadline()).chain(self.partial_deadline).min()
    }

    /// Handles one input and appends the resulting actions to `actions`.
    pub fn step(&mut self, input: HopInput, now: MonotonicTime, actions: &mut Vec<HopAction>) {
        match input {
            HopInput::FromParent(DownMessage::Init(init)) => self.on_init(&init, now, actions),
            HopInput::FromParent(DownMessage::Command(command)) => {
                self.on_command(&command, now, actions);
            }
            HopInput::FromParent(DownMessage::Close(command)) => {
                let Some(tree) = &mut self.tree else { return };
                tree.merge(MergeInput::Close { command }, now, actions);
                let all = NodeSet::from(0..u32::MAX);
                tree.forward(&all, |_| DownMessage::Close(command), actions);
            }
            HopInput::FromParent(DownMessage::Quit) => {
                if let Some(tree) = &mut self.tree {
                    tree.forward(&NodeSet::from(0..u32::MAX), |_| DownMessage::Quit, actions);
                }
                self.pass_output(now, actions);
                actions.push(HopAction::Quit);
            }
            HopInput::ParentLost => actions.push(HopAction::Quit),
            HopInput::FromChild(child, message) => self.on_child(child, message, now, actions),
            HopInput::ChildConnected(child) => {
                let Some(child) = self.child_mut(child) else { return };
                let state = std::mem::replace(&mut child.state, ChildState::Connected);
                let ChildState::Connecting(waiting) = state else { return };
                let id = child.id;
                actions.extend(waiting.into_iter().map(|message| HopAction::ToChild(id, message)));
            }
            HopInput::ChildLost(child, reason) => {
                let Some(tree) = &mut self.tree else { return };
                tree.on_child_lost(child, &reason, now, actions);
            }
            HopInput::Answer(command, event) => {
                let Some(tree) = &mut self.tree else { return };
                let (ranks, body) = (tree.own.clone(), event.to_body());
                let event = MergedEvent { command, ranks, body };
                tree.merge(MergeInput::Event { source: 0, event }, now, actions);
            }
            HopInput::Output(bytes) => self.on_output(&bytes, now, actions),
            HopInput::Tick => (),
        }
        if let Some(tree) = &mut self.tree {
            tree.merge(MergeInput::Tick, now, actions);
        }
        let deadline = self.output.deadline().into_iter().chain(self.partial_deadline).min();
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.pass_output(now, actions);
        }
    }

    fn child_mut(&mut self, id: u32) -> Option<&mut Child> {
        self.tree.as_mut()?.children.iter_mut().find(|child| child.id == id)
    }

    /// Steps 2 to 7 of the initialisation: connects to the children, passes the initialisation on,
    /// and answers it.
    fn on_init(&mut self, init: &TreeInit, now: MonotonicTime, actions: &mut Vec<HopAction>) {
        if self.tree.is_some() {
            return actions.push(HopAction::Refuse("a second initialisation".to_owned()));
        }
        let routing = match Routing::new(init.servers, init.shape) {
            Ok(routing) => routing,
            Err(error) => return actions.push(HopAction::Refuse(error.to_string())),
        };
        let id = match self.role {
            HopRole::Master => routing.master(),
            HopRole::Server(id) if id < init.servers => id,
            HopRole::Server(id) => {
                let text = format!("server {id} is in no tree of {} servers", init.servers);
                return actions.push(HopAction::Refuse(text));
            }
        };
        let own = if id < init.servers { NodeSet::one(id) } else { NodeSet::new() };
        let ids = routing.children(id);
        let child = |id: &u32| {
            let branch = routing.branch(*id);
            let timeout = timeout_of_children(init.timeout);
            let table = init.table.part(branch.clone());
            let init = DownMessage::Init(TreeInit { table, timeout, ..init.clone() });
            Child { id: *id, branch: branch.into(), state: ChildState::Connecting(vec![init]) }
        };
        let children: Vec<Child> = ids.iter().map(child).collect();
        let branches = children.iter().map(|child| child.branch.clone());
        let merger = Merger::new(std::iter::once(own.clone()).chain(branches));
        if !ids.is_empty() {
            actions.push(HopAction::Connect(ids, init.table.part(routing.branch(id))));
        }
        let (command, ranks) = (INIT_COMMAND, routing.branch(id).into());
        let tree = self.tree.insert(HopTree { own, children, merger });
        tree.merge(MergeInput::Command { command, ranks, timeout: init.timeout }, now, actions);
        if let HopRole::Server(_) = self.role {
            self.step(HopInput::Answer(INIT_COMMAND, DebugEvent::Ready), now, actions);
        }
    }

    fn on_command(
        &mut self,
        command: &DebugCommand,
        now: MonotonicTime,
        actions: &mut Vec<HopAction>,
    ) {
        let Some(tree) = &mut self.tree else {
            let text = format!("command {} before the initialisation", command.id);
            return actions.push(HopAction::Refuse(text));
        };
        if let Err(refusal) = tree.open(command, now, actions) {
            return actions.push(HopAction::Refuse(refusal.to_string()));
        }
        let timeout = timeout_of_children(command.timeout);
        let message = |branch: &NodeSet| {
            let range = branch.first().unwrap_or(0)..branch.last().map_or(0, |last| last + 1);
            let ranks = command.ranks.within(range.clone());
            let operation = command.operation.part(range);
            DownMessage::Command(DebugCommand { id: command.id, ranks, timeout, operation })
        };
        tree.forward(&command.ranks, message, actions);
        if tree.own.intersects(&command.ranks) {
            actions.push(HopAction::Perform(command.id, command.operation.clone()));
        }
    }

    fn on_child(
        &mut self,
        child: u32,
        message: UpMessage,
        now: MonotonicTime,
        actions: &mut Vec<HopAction>,
    ) {
        let Some(tree) = &mut self.tree else { return };
        let Some(index) = tree.children.iter().position(|known| known.id == child) else { return };
        match message {
            UpMessage::Event(event) => {
                tree.merge(MergeInput::Event { source: index + 1, event }, now, actions);
            }
            UpMessage::Output(OutputLine { ranks, line }) => {
                let ranks = ranks.intersection(&tree.children[index].branch);
                self.add_output(OutputLine { ranks, line }, now, actions);
            }
        }
    }

    fn on_output(&mut self, bytes: &[u8], now: MonotonicTime, actions: &mut Vec<HopAction>) {
        let Some(tree) = &self.tree else { return };
        let ranks = tree.own.clone();
        for line in self.cutter.push(bytes) {
            self.add_output(OutputLine { ranks: ranks.clone(), line }, now, actions);
        }
        self.partial_deadline.get_or_insert(now + MERGE_WINDOW);
    }

    fn add_output(&mut self, line: OutputLine, now: MonotonicTime, actions: &mut Vec<HopAction>) {
        if self.output.add(line, now) {
            let lines = self.output.take().into_iter();
            actions.extend(lines.map(|line| HopAction::ToParent(UpMessage::Output(line))));
        }
    }

    /// Passes on all lines, and also an unfinished line of this hop's own process, because it may
    /// be a prompt.
    fn pass_output(&mut self, now: MonotonicTime, actions: &mut Vec<HopAction>) {
        self.partial_deadline = None;
        if let (Some(line), Some(tree)) = (self.cutter.take_partial(), &self.tree) {
            self.output.add(OutputLine { ranks: tree.own.clone(), line }, now);
        }
        let lines = self.output.take().into_iter();
        actions.extend(lines.map(|line| HopAction::ToParent(UpMessage::Output(line))));
    }
}

impl HopTree {
    /// Passes an input to the merger, and sends the merged events to the parent.
    fn merge(&mut self, input: MergeInput, now: MonotonicTime, actions: &mut Vec<HopAction>) {
        let mut merged = Vec::new();
        self.merger.step(input, now, &mut merged);
        actions.extend(merged.into_iter().filter_map(|action| match action {
            MergeAction::Pass(event) => Some(HopAction::ToParent(UpMessage::Event(event))),
            MergeAction::Complete(_) => None,
            MergeAction::Refuse { source, refusal } => {
                Some(HopAction::Refuse(format!("branch {source}: {refusal}")))
            }
            MergeAction::RefuseCommand { command, refusal } => {
                Some(HopAction::Refuse(format!("command {command}: {refusal}")))
            }
        }));
    }

    /// Begins to wait for the events of a command. If too many commands are open, this hop answers
    /// the command for all its ranks, because the parent waits for them.
    fn open(
        &mut self,
        command: &DebugCommand,
        now: MonotonicTime,
        actions: &mut Vec<HopAction>,
    ) -> Result<(), CommandRefusal> {
        let (id, ranks) = (command.id, command.ranks.clone());
        let mut merged = Vec::new();
        let input = MergeInput::Command { command: id, ranks, timeout: command.timeout };
        self.merger.step(input, now, &mut merged);
        let mut result = Ok(());
        for action in merged {
            match action {
                MergeAction::Pass(event) => {
                    actions.push(HopAction::ToParent(UpMessage::Event(event)));
                }
                MergeAction::RefuseCommand { refusal, .. } => {
                    if refusal == CommandRefusal::TooManyCommands {
                        let body = DebugEvent::Failed(refusal.to_string()).to_body();
                        let ranks = self.ranks().intersection(&command.ranks);
                        let event = MergedEvent { command: id, ranks, body };
                        actions.push(HopAction::ToParent(UpMessage::Event(event)));
                    }
                    result = Err(refusal);
                }
                MergeAction::Complete(_) | MergeAction::Refuse { .. } => (),
            }
        }
        result
    }

    /// All ranks of the branch of this hop.
    fn ranks(&self) -> NodeSet {
        let mut all = self.own.clone();
        self.children.iter().for_each(|child| all.union(&child.branch));
        all
    }

    /// Sends a message to each child whose branch contains a rank of the set.
    fn forward(
        &mut self,
        ranks: &NodeSet,
        message: impl Fn(&NodeSet) -> DownMessage,
        actions: &mut Vec<HopAction>,
    ) {
        for child in self.children.iter_mut().filter(|child| child.branch.intersects(ranks)) {
            match &mut child.state {
                ChildState::Connected => {
                    actions.push(HopAction::ToChild(child.id, message(&child.branch)));
                }
                ChildState::Connecting(waiting) if waiting.len() < MAX_WAITING => {
                    waiting.push(message(&child.branch));
                }
                ChildState::Connecting(_) | ChildState::Lost => (),
            }
        }
    }

    /// Records that the whole branch of a child is lost. If the child was never connected, a
    /// separate event gives the reason.
    fn on_child_lost(
        &mut self,
        id: u32,
        reason: &str,
        now: MonotonicTime,
        actions: &mut Vec<HopAction>,
    ) {
        let Some(index) = self.children.iter().position(|child| child.id == id) else { return };
        let source = index + 1;
        let state = std::mem::replace(&mut self.children[index].state, ChildState::Lost);
        if let ChildState::Connecting(_) = state {
            let body = DebugEvent::Unreachable(cut_text(reason, MAX_REASON_LEN)).to_body();
            let event = MergedEvent { command: INIT_COMMAND, ranks: NodeSet::one(id), body };
            self.merge(MergeInput::Event { source, event }, now, actions);
        }
        self.merge(MergeInput::SourceLost { source }, now, actions);
    }
}
