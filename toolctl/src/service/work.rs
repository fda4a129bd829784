//! Query and Update messages that are carried out. Those for one process come one after the other;
//! processes do not wait for each other.

use std::collections::{BTreeMap, VecDeque};

use score_toolctl::tracer::{Pid, Ticket, Tid};
use score_tools::authority::{Action, ConnectionId, FailedThreads};
use score_tools::wire::{
    CommandAnswer, CommandCode, CommandSet, CommandWriter, Header, ReceivedCommand, ReturnCode,
    ToolMessage, encode_results,
};

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A request to the tracer.
    Tracer(Ticket),
    /// The time that the job has been running.
    JobTime,
}

/// A command that waits.
#[derive(Debug, Clone, Copy)]
pub struct WaitingCommand {
    /// What it waits for.
    pub what: Waiting,
    /// Its number.
    pub number: u16,
    /// Its thread here.
    pub tid: Tid,
    /// Its thread for tools.
    pub outside: u32,
}

/// A message.
#[derive(Debug)]
pub struct Work {
    /// Who has sent it.
    pub connection: ConnectionId,
    /// Its process.
    pub pid: Pid,
    header: Header,
    set: CommandSet,
    /// What was received. Who carries out its commands takes it out meanwhile.
    pub record: Vec<u8>,
    /// The command that comes next, or is being carried out.
    pub next: usize,
    /// Set if that command waits.
    pub waiting: Option<WaitingCommand>,
    /// Threads for which a command has failed.
    pub failed: FailedThreads,
    writer: CommandWriter,
    /// What follows the answer.
    pub actions: Vec<Action>,
    /// Whether threads stand for it.
    pub has_pins: bool,
}

impl Work {
    /// A message that the authority permits.
    pub fn new(
        connection: ConnectionId,
        pid: Pid,
        header: Header,
        set: CommandSet,
        record: Vec<u8>,
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
            actions: Vec::new(),
            has_pins: false,
        }
    }

    /// Its rank.
    pub fn rank(&self) -> u32 {
        self.header.rank
    }

    /// Whether it is an Update.
    pub fn is_update(&self) -> bool {
        self.set == CommandSet::Update
    }

    /// The result of the command that comes next. `outside`: the id of its thread for tools.
    pub fn push(
        &mut self,
        number: u16,
        (inside, outside): (Tid, u32),
        code: CommandCode,
        answer: Option<&CommandAnswer>,
    ) {
        if self.is_update() {
            self.failed.record(inside.cast_unsigned(), code);
        }
        self.writer.push_result(number, outside, code, answer);
        self.next += 1;
    }

    /// The result of Get Memory.
    pub fn push_memory(
        &mut self,
        outside: u32,
        range: &score_tools::wire::MemoryRange,
        read: impl FnOnce(&mut [u8]) -> Result<(), CommandCode>,
    ) {
        self.writer.push_memory(outside, range, read);
        self.next += 1;
    }

    /// The answer, once all commands have been carried out.
    pub fn answer(&mut self) -> Vec<u8> {
        let Header { job, rank, tool, sequence, .. } = self.header;
        let header = Header {
            return_code: ReturnCode::Success.number(),
            ..Header::new(job, rank, tool, sequence)
        };
        encode_results(std::mem::take(&mut self.writer), &header, self.set)
    }
}

/// The commands of a record that was read before.
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

    /// Ranks whose first message does not wait for anything.
    pub fn runnable(&self) -> Vec<u32> {
        let is_runnable =
            |queue: &VecDeque<Work>| queue.front().is_some_and(|work| work.waiting.is_none());
        self.0.iter().filter(|(_, queue)| is_runnable(queue)).map(|(rank, _)| *rank).collect()
    }

    /// Takes the first message of a rank out.
    pub fn take(&mut self, rank: u32) -> Option<Work> {
        let queue = self.0.get_mut(&rank)?;
        let work = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(&rank);
        }
        work
    }

    /// Puts a message back that waits for something.
    pub fn put_back(&mut self, work: Work) {
        self.0.entry(work.rank()).or_default().push_front(work);
    }

    /// The rank whose first message waits for this.
    pub fn waiting_for(&self, what: Waiting) -> Option<u32> {
        let waits = |queue: &VecDeque<Work>| {
            queue.front().and_then(|work| work.waiting).is_some_and(|it| it.what == what)
        };
        self.0.iter().find(|(_, queue)| waits(queue)).map(|(rank, _)| *rank)
    }

    /// Whether a connection has messages here: for this rank, or at all.
    pub fn has_any(&self, connection: ConnectionId, rank: Option<u32>) -> bool {
        let of_rank = self.0.iter().filter(|(key, _)| rank.is_none_or(|rank| rank == **key));
        of_rank.flat_map(|(_, queue)| queue).any(|work| work.connection == connection)
    }

    /// Drops the messages of a connection. Returns the processes whose threads stand for them.
    pub fn drop_connection(&mut self, connection: ConnectionId) -> Vec<Pid> {
        let mut pinned = Vec::new();
        self.0.retain(|_, queue| {
            queue.retain(|work| {
                let is_dropped = work.connection == connection;
                if is_dropped && work.has_pins {
                    pinned.push(work.pid);
                }
                !is_dropped
            });
            !queue.is_empty()
        });
        pinned
    }
}
