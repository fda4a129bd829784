//! The tree of a job's daemons as a network of the scalable debug manager. It is a third
//! [`Transport`], in addition to TCP and memory (docs/dev/tools.md). Hosts need no connections to
//! each other, and only SCore has to be installed on them.
//!
//! The daemons are the hops. They pass a command on to the hosts of its ranks, and merge equal
//! events with the merger that hops of [`score_sdm`] use. The master therefore has one child, whose
//! branch is the whole job: the initialisation has the shape `TreeShape::Kary(1)`. The tool control
//! service of each host is the back end. `operations.rs` maps each operation to its requests.

mod front_end;
mod operations;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{
    ConsoleAction, EventBody, MAX_ANSWER_TIMEOUT, NOT_ANSWERED, OTHER_RELEASE, ToolRequest,
    ToolResult,
};
use score_sdm::message::{
    DebugCommand, DebugEvent, DownMessage, INIT_COMMAND, RoutingTable, TreeInit, UpMessage,
};
use score_sdm::transport::{Transport, TransportEvent, wait_until_ready};
use score_tools::merge::{CommandId, MergedEvent, MonotonicTime};

use crate::job_address::JobAddress;
use crate::scdb::session::Session;
use crate::scored_client::{QueryStream, Reply};
use operations::{Purpose, RankAnswer};

pub use front_end::TreeFrontEnd;

/// The only child of the master: the id of the first server.
const BRANCH: u32 = 0;
/// Interval at which running processes are checked, if a command waits for their stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for the daemons to answer such a check.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A command whose last event is not yet sent.
#[derive(Debug)]
struct RunningCommand {
    id: CommandId,
    purpose: Purpose,
    /// Ranks whose event is still missing.
    unanswered: NodeSet,
    state: CommandState,
}

#[derive(Debug)]
enum CommandState {
    /// A check has been sent to the daemons.
    Asking {
        query: QueryStream,
        /// Ranks that have reported that they still run.
        running: NodeSet,
    },
    /// The ranks run. They are checked again at this time.
    Waiting(MonotonicTime),
}

/// The master's end of the tree of a job.
pub struct JobTree {
    session: Session,
    started_at: Instant,
    running: Vec<RunningCommand>,
    events: VecDeque<TransportEvent>,
    /// Messages for the front end, which is in the same process.
    for_front_end: VecDeque<UpMessage>,
}

impl JobTree {
    /// Finds a job of this user. `socket` is the socket of the scored of this host, if it is not
    /// the default.
    ///
    /// # Errors
    /// One line: there is no such job.
    pub fn open(address: JobAddress, socket: Option<PathBuf>) -> Result<Self, String> {
        Ok(Self {
            session: Session::open(address, socket, LOOK_TIMEOUT)?,
            started_at: Instant::now(),
            running: Vec::new(),
            events: VecDeque::new(),
            for_front_end: VecDeque::new(),
        })
    }

    /// The number of servers that the initialisation must name: the number of ranks of all programs
    /// of the job.
    ///
    /// # Errors
    /// One line: the job has no processes now, or has ended.
    pub fn servers(&mut self) -> Result<u32, String> {
        self.session.begin().map(|begun| begun.ranks)
    }

    /// Handles a message of the front end.
    pub fn send_from_front_end(&mut self, message: DownMessage) {
        self.events.push_back(TransportEvent::FromParent(message));
    }

    /// The next message for the front end.
    pub fn take_for_front_end(&mut self) -> Option<UpMessage> {
        self.for_front_end.pop_front()
    }

    fn push_event(&mut self, command: CommandId, ranks: NodeSet, body: EventBody) {
        if !ranks.is_empty() {
            let event = UpMessage::Event(MergedEvent { command, ranks, body });
            self.events.push_back(TransportEvent::FromChild(BRANCH, event));
        }
    }

    fn fail(&mut self, command: CommandId, ranks: NodeSet, reason: &str) {
        self.push_event(command, ranks, DebugEvent::Failed(reason.to_owned()).to_body());
    }

    fn on_init(&mut self, init: &TreeInit) {
        let lost = match self.servers() {
            Ok(ranks) if ranks == init.servers => {
                let ready = DebugEvent::Ready.to_body();
                return self.push_event(INIT_COMMAND, NodeSet::from(0..ranks), ready);
            }
            Ok(ranks) => format!("the job has {ranks} ranks, and not {}", init.servers),
            Err(reason) => reason,
        };
        self.events.push_back(TransportEvent::ChildLost(BRANCH, lost));
    }

    fn on_command(&mut self, command: DebugCommand) {
        let DebugCommand { id, ranks, timeout, operation } = command;
        let step = self.session.begin().and_then(|begun| operations::plan(operation, begun.number));
        match step {
            Ok((purpose, request)) => self.ask(id, purpose, ranks, &request, timeout),
            Err(reason) => self.fail(id, ranks, &reason),
        }
    }

    fn ask(
        &mut self,
        id: CommandId,
        purpose: Purpose,
        ranks: NodeSet,
        request: &ToolRequest,
        timeout: Duration,
    ) {
        match self.session.send(Some(ranks.clone()), request, timeout.min(MAX_ANSWER_TIMEOUT)) {
            Ok(query) => {
                let state = CommandState::Asking { query, running: NodeSet::new() };
                self.running.push(RunningCommand { id, purpose, unanswered: ranks, state });
            }
            Err(reason) => self.fail(id, ranks, &reason),
        }
    }

    /// Handles the answers that have arrived for a command. Keeps the command unless it has ended.
    fn progress(&mut self, mut command: RunningCommand) {
        let id = command.id;
        let (query, running) = match &mut command.state {
            CommandState::Waiting(until) if *until > self.started_at.elapsed() => {
                return self.running.push(command);
            }
            CommandState::Waiting(_) => {
                let RunningCommand { purpose, unanswered, .. } = command;
                return match self.session.begin() {
                    Ok(begun) => {
                        let (session, action) = (begun.number, ConsoleAction::Look);
                        let look = ToolRequest::Console { session, action };
                        self.ask(id, purpose, unanswered, &look, LOOK_TIMEOUT);
                    }
                    Err(reason) => self.fail(id, unanswered, &reason),
                };
            }
            CommandState::Asking { query, running } => (query, running),
        };
        // The hops enforce the time limit of the command.
        query.expect_silence();
        let (ranks, body) = match query.next_reply_within(Duration::ZERO) {
            Ok(Reply::Pending | Reply::Notice(_)) => return self.running.push(command),
            Ok(Reply::Answer(ToolAnswer::Programs { .. })) => return self.progress(command),
            Ok(Reply::Answer(ToolAnswer::Missing(ranks))) => {
                (ranks, DebugEvent::Failed(NOT_ANSWERED.to_owned()).to_body())
            }
            Ok(Reply::Answer(ToolAnswer::Event { ranks, body })) => match body {
                EventBody::Answer(bytes) => {
                    let result = ToolResult::decode(&bytes);
                    let failed = || DebugEvent::Failed(OTHER_RELEASE.to_owned());
                    let answer = result.and_then(|result| command.purpose.answer_of(result));
                    match answer.unwrap_or_else(|| RankAnswer::Event(failed())) {
                        RankAnswer::Event(event) => (ranks, event.to_body()),
                        RankAnswer::StillRunning => {
                            running.union(&ranks);
                            return self.progress(command);
                        }
                    }
                }
                // A lost host, or events that a hop has dropped because it has no room.
                other => (ranks, other),
            },
            Ok(Reply::End) => {
                let silent = command.unanswered.difference(running);
                self.fail(id, silent, NOT_ANSWERED);
                command.unanswered = std::mem::take(running);
                if !command.unanswered.is_empty() {
                    let next_look = self.started_at.elapsed() + LOOK_INTERVAL;
                    command.state = CommandState::Waiting(next_look);
                    self.running.push(command);
                }
                return;
            }
            Err(reason) => return self.fail(id, command.unanswered, &reason),
        };
        let ranks = ranks.intersection(&command.unanswered);
        command.unanswered = command.unanswered.difference(&ranks);
        self.push_event(id, ranks, body);
        self.progress(command);
    }
}

impl Transport for JobTree {
    fn connect_children(&mut self, children: &[u32], _: &RoutingTable) {
        let reached = match (children.len(), self.servers()) {
            (1, reached) => reached.map(drop),
            _ => Err("the daemons make the tree; give the master one child (Kary(1))".to_owned()),
        };
        let event = |child: &u32| match &reached {
            Ok(()) => TransportEvent::ChildConnected(*child),
            Err(reason) => TransportEvent::ChildLost(*child, reason.clone()),
        };
        self.events.extend(children.iter().map(event));
    }

    fn send_to_child(&mut self, _: u32, message: DownMessage) {
        match message {
            DownMessage::Init(init) => self.on_init(&init),
            DownMessage::Command(command) => self.on_command(command),
            DownMessage::Close(id) => self.running.retain(|command| command.id != id),
            DownMessage::Quit => {
                self.running.clear();
                self.session.end();
            }
        }
    }

    fn send_to_parent(&mut self, message: UpMessage) {
        self.for_front_end.push_back(message);
    }

    fn receive(&mut self) -> Option<TransportEvent> {
        if self.events.is_empty() {
            for command in std::mem::take(&mut self.running) {
                self.progress(command);
            }
        }
        self.events.pop_front()
    }

    fn now(&self) -> MonotonicTime {
        self.started_at.elapsed()
    }

    fn wait(&mut self, until: MonotonicTime, others: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        let (mut until, mut queries) = (until, Vec::new());
        for command in &self.running {
            match &command.state {
                CommandState::Asking { query, .. } => {
                    queries.push((query.as_fd(), PollFlags::POLLIN));
                }
                CommandState::Waiting(next_look) => until = until.min(*next_look),
            }
        }
        wait_until_ready(queries, others, until.saturating_sub(self.now()))
    }
}
