//! The commands of a Query or an Update, and the results of their acknowledgements. The number of
//! commands is at offset 40, 16 descriptors start at 44, and the data follow the descriptors.

use std::ops::Range;

use super::codes::CommandCode;
use super::commands::{
    CommandAnswer, CommandKind, CommandRequest, CommandSet, MemoryHead, MemoryRange,
};
use super::fault::Fault;
use super::field::{Field, ReadError, part, put_at, record};
use super::payload::Counted;
use super::{BODY_OFFSET, MAX_MESSAGE_LEN};

/// The most commands in a message.
pub const MAX_COMMANDS: usize = 16;
/// The offset of the descriptors.
pub const DESCRIPTORS_OFFSET: usize = BODY_OFFSET + 4;
/// The lowest offset of data. The data follow all 16 descriptors, including unused ones.
pub const DATA_OFFSET: usize = DESCRIPTORS_OFFSET + MAX_COMMANDS * DESCRIPTOR_LEN;
/// The alignment of the data of a command.
pub const DATA_ALIGNMENT: usize = 8;
const DESCRIPTOR_LEN: usize = 16;
const THREAD_LEN: usize = 4;

record! {
    /// The descriptor of a command.
    CommandDescriptor[16] {
        /// The number of the command. An acknowledgement has the number plus 1.
        0 kind: u16,
        /// Not used.
        2 reserved: u16,
        /// The offset of its data from the start of the message.
        4 offset: u32,
        /// The length of its data in bytes.
        8 length: u32,
        /// Its result. Only in an acknowledgement.
        12 return_code: u32,
    }
}

/// A command for a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command<'a> {
    /// The thread. 0 stands for the thread of the last signal notice, or the process leader if
    /// there was none.
    pub thread: u32,
    /// The command and its parameters.
    pub request: CommandRequest<'a>,
}

/// A command as the service has received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedCommand<'a> {
    /// Its number. The acknowledgement contains this number plus 1.
    pub number: u16,
    /// Its thread. 0, if the data are too short to contain one.
    pub thread: u32,
    /// The request, or the error code if the command must not be carried out.
    pub request: Result<CommandRequest<'a>, CommandCode>,
}

/// The result of a command as a tool has received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandResult<'a> {
    /// The command. `None`, if a newer service has sent a command that is unknown here.
    pub kind: Option<CommandKind>,
    /// The thread that the command was for. 0, if the result has no data.
    pub thread: u32,
    /// Its return code, a number of [`CommandCode`]. A newer service may use further codes.
    pub return_code: u32,
    /// The data of the answer. Among failed commands only Get Thread List and Get File Names have
    /// data.
    pub answer: Option<CommandAnswer<'a>>,
}

/// The used descriptors, each with its data. Checks all offsets and lengths, because the sender is
/// not trusted.
fn descriptors(message: &[u8]) -> Result<Vec<(CommandDescriptor, &[u8])>, Fault> {
    let count: u16 = part(message, BODY_OFFSET).ok_or(Fault::short(message, DATA_OFFSET))?;
    if message.len() < DATA_OFFSET {
        return Err(Fault::short(message, DATA_OFFSET));
    }
    if usize::from(count) > MAX_COMMANDS {
        return Err(Fault::TooManyCommands { count });
    }
    let mut found = Vec::new();
    for index in 0..usize::from(count) {
        let offset = DESCRIPTORS_OFFSET + index * DESCRIPTOR_LEN;
        let descriptor: CommandDescriptor = super::field::Record::get_fields(&message[offset..])
            .map_err(|_| Fault::short(message, DATA_OFFSET))?;
        let range = data_range(&descriptor);
        let is_sound = range.is_empty()
            || (range.start >= DATA_OFFSET && range.start.is_multiple_of(DATA_ALIGNMENT));
        let data = if range.is_empty() { Some(&[][..]) } else { message.get(range) };
        let data = data.filter(|_| is_sound).ok_or(Fault::DataRange {
            command: index + 1,
            offset: descriptor.offset,
            length: descriptor.length,
        })?;
        found.push((descriptor, data));
    }
    overlap(&found)?;
    Ok(found)
}

fn data_range(descriptor: &CommandDescriptor) -> Range<usize> {
    let start = descriptor.offset as usize;
    start..start.saturating_add(descriptor.length as usize)
}

fn overlap(found: &[(CommandDescriptor, &[u8])]) -> Result<(), Fault> {
    let mut ranges: Vec<(Range<usize>, usize)> =
        found.iter().enumerate().map(|(index, (one, _))| (data_range(one), index + 1)).collect();
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_by_key(|(range, _)| range.start);
    match ranges.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        Some(pair) => Err(Fault::DataOverlap { first: pair[0].1, second: pair[1].1 }),
        None => Ok(()),
    }
}

/// Decodes the commands of a Query or an Update.
pub(super) fn read_commands<'a>(
    message: &'a [u8],
    set: CommandSet,
) -> Result<Vec<ReceivedCommand<'a>>, Fault> {
    let found = descriptors(message)?;
    if found.is_empty() {
        return Err(Fault::NoCommands);
    }
    let mut commands: Vec<ReceivedCommand> = found
        .into_iter()
        .map(|(descriptor, data)| ReceivedCommand {
            number: descriptor.kind,
            thread: part(data, 0).unwrap_or(0),
            request: read_request(descriptor.kind, data, set),
        })
        .collect();
    check_actions(&mut commands, set)?;
    Ok(commands)
}

fn read_request(
    number: u16,
    data: &[u8],
    set: CommandSet,
) -> Result<CommandRequest<'_>, CommandCode> {
    let kind = CommandKind::from_number(number).filter(|kind| kind.set() == set);
    let kind = kind.ok_or(CommandCode::CommandInvalid)?;
    let request = CommandRequest::read(kind, data).map_err(|error| match error {
        ReadError::Short => CommandCode::LengthError,
        ReadError::Value(_) => CommandCode::ParameterError,
    })?;
    request.check()?;
    Ok(request)
}

/// Checks that a message has at most one action, as its last command. If commands follow the
/// action, neither the action nor those commands are carried out, because they would act on a
/// process that has continued.
fn check_actions(commands: &mut [ReceivedCommand], set: CommandSet) -> Result<(), Fault> {
    let is_action = |number| {
        let kind = CommandKind::from_number(number);
        set == CommandSet::Update && kind.is_some_and(CommandKind::is_action)
    };
    let actions = commands.iter().filter(|command| is_action(command.number)).count();
    if actions > 1 {
        return Err(Fault::SeveralActions { actions });
    }
    let place = commands.iter().position(|command| is_action(command.number));
    if let Some(place) = place.filter(|place| place + 1 < commands.len()) {
        commands[place..]
            .iter_mut()
            .for_each(|command| command.request = Err(CommandCode::Conflict));
    }
    Ok(())
}

/// Decodes the results of a QueryAck or an UpdateAck.
pub(super) fn read_results<'a>(message: &'a [u8]) -> Result<Vec<CommandResult<'a>>, Fault> {
    let results = descriptors(message)?.into_iter().enumerate();
    results
        .map(|(index, (descriptor, data))| {
            let kind = descriptor.kind.checked_sub(1).and_then(CommandKind::from_number);
            let answer = match kind {
                Some(kind) if !data.is_empty() => Some(CommandAnswer::read(kind, data)),
                _ => None,
            };
            Ok(CommandResult {
                kind,
                thread: part(data, 0).unwrap_or(0),
                return_code: descriptor.return_code,
                answer: answer.transpose().map_err(|error| match error {
                    ReadError::Short => Fault::AnswerLength { command: index + 1 },
                    ReadError::Value(field) => Fault::Value { field },
                })?,
            })
        })
        .collect()
}

/// The return code and the data of each result of a QueryAck or an UpdateAck. The message must have
/// passed [`super::ServiceMessage::decode`]. Tools that decode the data themselves use this
/// function.
pub fn result_data(message: &[u8]) -> Result<Vec<(u32, &[u8])>, Fault> {
    let found = descriptors(message)?.into_iter();
    Ok(found.map(|(descriptor, data)| (descriptor.return_code, data)).collect())
}

/// The error if a message has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the commands do not fit into a message: send fewer commands, or fewer bytes in each")]
pub struct MessageFull;

/// Builds a message of commands or of results, one after the other.
#[derive(Debug, Clone)]
pub struct CommandWriter {
    bytes: Vec<u8>,
    count: usize,
}

impl Default for CommandWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl CommandWriter {
    /// Creates an empty message.
    pub fn new() -> Self {
        Self { bytes: vec![0; DATA_OFFSET], count: 0 }
    }

    /// Adds a command of a tool. The message must be a Query or an Update, depending on the
    /// command.
    pub fn push_command(&mut self, command: &Command) -> Result<(), MessageFull> {
        let request = &command.request;
        let number = request.kind().number();
        let data = self.add(number, CommandCode::Success, request.data_len()).ok_or(MessageFull)?;
        request.write(data);
        put_at(data, 0, &command.thread);
        Ok(())
    }

    /// Adds the result of a command with this number. An answer that does not fit becomes
    /// [`CommandCode::AllocationError`]. Results beyond [`MAX_COMMANDS`] are dropped, because no
    /// message can have requested them.
    pub fn push_result(
        &mut self,
        number: u16,
        thread: u32,
        code: CommandCode,
        answer: Option<&CommandAnswer>,
    ) {
        let number = number.wrapping_add(1);
        let Some(answer) = answer else {
            self.add(number, code, 0);
            return;
        };
        match self.add(number, code, answer.data_len()) {
            Some(data) => {
                answer.write(data);
                put_at(data, 0, &thread);
            }
            None => {
                self.add(number, CommandCode::AllocationError, 0);
            }
        }
    }

    /// Adds the result of a command, which may have failed.
    pub fn push_outcome(
        &mut self,
        number: u16,
        thread: u32,
        outcome: Result<&CommandAnswer, CommandCode>,
    ) {
        match outcome {
            Ok(answer) => self.push_result(number, thread, CommandCode::Success, Some(answer)),
            Err(code) => self.push_result(number, thread, code, None),
        }
    }

    /// Adds the result of Get Memory. `read` writes the bytes directly into the message, which
    /// saves a copy. If it fails, the result has no data.
    pub fn push_memory(
        &mut self,
        thread: u32,
        range: &MemoryRange,
        read: impl FnOnce(&mut [u8]) -> Result<(), CommandCode>,
    ) {
        let number = CommandKind::GetMemory.number() + 1;
        let before = self.bytes.len();
        let len = MemoryHead::TAIL_OFFSET + range.length as usize;
        let Some(data) = self.add(number, CommandCode::Success, len) else {
            self.add(number, CommandCode::AllocationError, 0);
            return;
        };
        super::field::Record::put_fields(&MemoryHead { address: range.address }, data);
        put_at(data, 0, &thread);
        put_at(data, MemoryHead::COUNT_OFFSET, &range.length);
        if let Err(code) = read(&mut data[MemoryHead::TAIL_OFFSET..]) {
            self.bytes.truncate(before);
            self.count -= 1;
            self.add(number, code, 0);
        }
    }

    /// Makes room for a command's data and writes its descriptor. Returns `None` if there is no
    /// room.
    fn add(&mut self, number: u16, code: CommandCode, len: usize) -> Option<&mut [u8]> {
        if self.count == MAX_COMMANDS {
            return None;
        }
        let start = self.bytes.len().next_multiple_of(DATA_ALIGNMENT);
        let end = if len == 0 { self.bytes.len() } else { start.checked_add(len)? };
        if end > MAX_MESSAGE_LEN {
            return None;
        }
        self.bytes.resize(end, 0);
        let descriptor = CommandDescriptor {
            kind: number,
            reserved: 0,
            offset: if len == 0 { 0 } else { start as u32 },
            length: len as u32,
            return_code: code.number(),
        };
        let place = DESCRIPTORS_OFFSET + self.count * DESCRIPTOR_LEN;
        super::field::Record::put_fields(&descriptor, &mut self.bytes[place..]);
        self.count += 1;
        put_at(&mut self.bytes, BODY_OFFSET, &(self.count as u16));
        Some(if len == 0 { &mut [] } else { &mut self.bytes[start..] })
    }

    /// The bytes of the message, whose header is still 0.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

const _: () = assert!(DATA_OFFSET == 300 && THREAD_LEN == <u32 as Field>::LEN);
