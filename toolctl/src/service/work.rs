//! The Query and Update messages in progress. The messages for one process are carried out one
//! after the other. Different processes do not wait for each other.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use score_toolctl::shared_memory::SharedMemory;
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{Pid, Pin, Ticket, Tid};
use score_tools::authority::{Action, ConnectionId, FailedThreads};
use score_tools::wire::{
    CommandAnswer, CommandCode, CommandSet, CommandWriter, Header, NoData, ReceivedCommand,
    ReturnCode, ToolMessage, encode_results,
};

use super::convert;

/// The event that a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A request to the tracer.
    Tracer(Ticket),
    /// The shepherd's answer on how long the job has been running.
    JobTime,
}

/// The outcome of carrying out a command.
pub enum Outcome {
    /// The command is done, with this code and this data.
    Done(CommandCode, Option<CommandAnswer<'static>>),
    /// The command continues when this has arrived.
    Wait(Waiting),
}

impl From<Result<Option<CommandAnswer<'static>>, CommandCode>> for Outcome {
    fn from(result: Result<Option<CommandAnswer<'static>>, CommandCode>) -> Self {
        match result {
            Ok(answer) => Self::Done(CommandCode::Success, answer),
            Err(code) => Self::Done(code, None),
        }
    }
}

impl From<Result<(), TraceError>> for Outcome {
    fn from(result: Result<(), TraceError>) -> Self {
        result.map(|()| None).map_err(convert::code_of).into()
    }
}

/// A waiting command.
#[derive(Debug, Clone, Copy)]
pub struct WaitingCommand {
    /// The event that the command waits for.
    pub what: Waiting,
    /// The number of the command.
    pub number: u16,
    /// Its thread in this namespace.
    pub tid: Tid,
    /// Its thread, with the id for tools.
    pub outside: u32,
}

/// A message in progress.
#[derive(Debug)]
pub struct Work {
    /// The connection of the tool that has sent the message.
    pub connection: ConnectionId,
    /// The process that the message is for.
    pub pid: Pid,
    header: Header,
    set: CommandSet,
    /// The received record. It is taken out while its commands are carried out.
    pub record: Vec<u8>,
    /// The index of the current or next command.
    pub next: usize,
    /// Set if the current command waits.
    pub waiting: Option<WaitingCommand>,
    /// The threads for which a command has failed.
    pub failed: FailedThreads,
    writer: CommandWriter,
    /// The memory that the tool shared with the service when it sent the message.
    pub memory: Option<Rc<SharedMemory>>,
    /// The actions to carry out after the answer.
    pub actions: Vec<Action>,
    /// The threads that are kept stopped for the message.
    pub pins: Vec<Pin>,
}

impl Work {
    /// Creates the state of a message that the authority permits.
    pub fn new(
        connection: ConnectionId,
        pid: Pid,
        header: Header,
        set: CommandSet,
        record: Vec<u8>,
        memory: Option<Rc<SharedMemory>>,
    ) -> Self {
        Self {
            connection,
            pid,
            header,
            set,
            record,
            next: 0,
            waiting: None,
            failed: FailedThreads::default(),
            writer: CommandWriter::new(),
            memory,
            actions: Vec::new(),
            pins: Vec::new(),
        }
    }

    /// The rank of the message.
    pub fn rank(&self) -> u32 {
        self.header.rank
    }

    /// Whether the message is an Update.
    pub fn is_update(&self) -> bool {
        self.set == CommandSet::Update
    }

    /// Adds the result of the current command. `outside` is the id of its thread for tools. Lists
    /// that do not fit are truncated.
    pub fn finish_command(
        &mut self,
        (number, inside, outside): (u16, Tid, u32),
        code: CommandCode,
        answer: Option<CommandAnswer<'static>>,
    ) {
        let answer = match (code, answer) {
            (CommandCode::Success, None) => Some(CommandAnswer::HoldThread(NoData {})),
            (_, answer) => answer,
        };
        if self.is_update() {
            self.failed.record(inside.cast_unsigned(), code);
        }
        self.writer.push_result(number, outside, code, answer.as_ref());
        self.next += 1;
    }

    /// Adds the result of Get Memory.
    pub fn push_memory(
        &mut self,
        outside: u32,
        range: &score_tools::wire::MemoryRange,
        read: impl FnOnce(&mut [u8]) -> Result<(), CommandCode>,
    ) {
        self.writer.push_memory(outside, range, read);
        self.next += 1;
    }

    /// Encodes the answer, after all commands have been carried out.
    pub fn answer(&mut self) -> Vec<u8> {
        let Header { job, rank, tool, sequence, .. } = self.header;
        let header = Header {
            return_code: ReturnCode::Success.number(),
            ..Header::new(job, rank, tool, sequence)
        };
        encode_results(std::mem::take(&mut self.writer), &header, self.set)
    }
}

/// The commands of a record that has been decoded before.
pub fn commands_of(record: &[u8]) -> Vec<ReceivedCommand<'_>> {
    match ToolMessage::decode(record) {
        Ok((_, ToolMessage::Query(list) | ToolMessage::Update(list))) => list,
        _ => Vec::new(),
    }
}

/// The messages of all processes, by rank.
#[derive(Debug, Default)]
pub struct WorkQueues(BTreeMap<u32, VecDeque<Work>>);

impl WorkQueues {
    /// Adds a message.
    pub fn push(&mut self, work: Work) {
        self.0.entry(work.rank()).or_default().push_back(work);
    }

    /// The ranks whose first message does not wait.
    pub fn runnable(&self) -> Vec<u32> {
        let is_runnable =
            |queue: &VecDeque<Work>| queue.front().is_some_and(|work| work.waiting.is_none());
        self.0.iter().filter(|(_, queue)| is_runnable(queue)).map(|(rank, _)| *rank).collect()
    }

    /// Takes the first message of a rank.
    pub fn take(&mut self, rank: u32) -> Option<Work> {
        let queue = self.0.get_mut(&rank)?;
        let work = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(&rank);
        }
        work
    }

    /// Puts the first message back.
    pub fn put_back(&mut self, work: Work) {
        self.0.entry(work.rank()).or_default().push_front(work);
    }

    /// The rank whose first message waits for this event.
    pub fn waiting_for(&self, what: Waiting) -> Option<u32> {
        let waits = |queue: &VecDeque<Work>| {
            queue.front().and_then(|work| work.waiting).is_some_and(|it| it.what == what)
        };
        self.0.iter().find(|(_, queue)| waits(queue)).map(|(rank, _)| *rank)
    }

    /// Whether a connection has messages here, for this rank or for any rank.
    pub fn has_any(&self, connection: ConnectionId, rank: Option<u32>) -> bool {
        let of_rank = self.0.iter().filter(|(key, _)| rank.is_none_or(|rank| rank == **key));
        of_rank.flat_map(|(_, queue)| queue).any(|work| work.connection == connection)
    }

    /// Drops the messages of a connection. Returns the threads that are kept stopped for these
    /// messages.
    pub fn drop_connection(&mut self, connection: ConnectionId) -> Vec<Pin> {
        let mut pins = Vec::new();
        self.0.retain(|_, queue| {
            queue.retain_mut(|work| {
                let is_dropped = work.connection == connection;
                if is_dropped {
                    pins.append(&mut work.pins);
                }
                !is_dropped
            });
            !queue.is_empty()
        });
        pins
    }
}
