//! The messages: header, bodies, encoding and decoding (docs/dev/tools.md, groups H and A).

use super::codes::{MessageType, ReturnCode};
use super::command_list::{
    Command, CommandResult, CommandWriter, MessageFull, ReceivedCommand, read_commands,
    read_results,
};
use super::commands::CommandSet;
use super::fault::Fault;
use super::field::{Field, ReadError, Record, RecordLayout, part, put_at, record};
use super::parameters::{
    ControlReason, NoticeType, ProcessSelect, SignalReason, StartNotice, TrapMode, WatchPolicy,
};
use super::{BODY_OFFSET, MAX_MESSAGE_LEN, TOOL_CONTROL_SERVICE, VERSION};

/// Eight bytes that a tool chooses.
pub type ToolTag = [u8; 8];

record! {
    /// The header of each message. [`Header::new`] does not set the service, version, type and
    /// length. [`ToolRequest::encode`] and [`ServiceMessage::encode`] fill them in.
    Header[40] {
        /// [`TOOL_CONTROL_SERVICE`].
        0 service: u8,
        /// The version of the sender.
        1 version: u8,
        /// A number of [`MessageType`].
        2 kind: u16,
        /// The rank of the process that the message is for or about.
        4 rank: u32,
        /// A number that the sender chooses. The acknowledgement repeats it. 0 in notices.
        8 sequence: u32,
        /// A number of [`ReturnCode`], in an acknowledgement.
        12 return_code: u32,
        /// Details of an error: an errno value, or 0.
        16 error_code: u32,
        /// The length of the whole message, in bytes.
        20 length: u32,
        /// The job.
        24 job: u64,
        /// The number of the tool. 0 in an Attach requests a new number.
        32 tool: u32,
    }

    /// The body of Attach.
    Attach[56] {
        /// The tool's tag.
        40 tag: ToolTag,
        /// Its priority, from 0 to 99. 99 is the highest priority.
        48 priority: u8,
        /// The processes to attach to.
        52 select: ProcessSelect,
    }

    /// The body of Detach.
    Detach[44] {
        /// The processes to detach from.
        40 select: ProcessSelect,
    }

    /// The record before the ranks of AttachAck and DetachAck. Their number is at 40 (u16), and the
    /// ranks start at 44.
    RankListHead[44] {}

    /// The body of Control.
    Control[64] {
        /// The signals of which the tool is notified: bit (signal - 1).
        40 notify_set: u64,
        /// A signal to send to the process leader when authority is given, or 0.
        48 signal: u32,
        /// Where a dynamically linked program first stops.
        52 start_notice: StartNotice,
        /// Where a watchpoint stops a thread.
        56 trap_mode: TrapMode,
        /// Whether new threads inherit watchpoints.
        60 watch_policy: WatchPolicy,
    }

    /// The body of ControlAck: the tool that has authority.
    ControlAck[56] {
        /// The low 16 bits of its number.
        40 short_tool: u16,
        /// Its tag.
        42 tag: ToolTag,
        /// Its priority.
        50 priority: u8,
        /// Its number.
        52 controller: u32,
    }

    /// The body of ShareMemoryAck.
    SharedLength[48] {
        /// The bytes of memory that the service shares with the tool. 0 in an error.
        40 length: u64,
    }

    /// A notice of a signal.
    SignalNotice[112] {
        /// The signal.
        48 signal: u32,
        /// The thread that has stopped.
        52 thread: u32,
        /// The address of the instruction at which it has stopped.
        56 instruction: u64,
        /// The address of the access, for faults and watchpoints.
        64 access: u64,
        /// Why the thread has stopped.
        72 reason: SignalReason,
        /// Speculation: always 0.
        76 execute_mode: u32,
        /// Speculation: always 0.
        80 restart: [u64; 4],
    }

    /// A notice of the exit of a process.
    ExitNotice[52] {
        /// Its status, in the form of wait(2).
        48 status: i32,
    }

    /// A notice about Control authority.
    ControlNotice[68] {
        /// The other tool.
        48 tool: u32,
        /// Its tag.
        52 tag: ToolTag,
        /// Its priority.
        60 priority: u8,
        /// The event.
        64 reason: ControlReason,
    }
}

const NOTICE_TYPE_OFFSET: usize = BODY_OFFSET;
pub(super) const RANKS_OFFSET: usize = BODY_OFFSET + 4;
/// The most ranks that an AttachAck or a DetachAck can contain.
pub const MAX_RANKS: usize = (MAX_MESSAGE_LEN - RANKS_OFFSET) / 4;

/// The longest reason text, in bytes.
pub const MAX_REASON_LEN: usize = 1024;

impl Header {
    /// A header with all fields that do not follow from the body.
    pub fn new(job: u64, rank: u32, tool: u32, sequence: u32) -> Self {
        Self {
            service: TOOL_CONTROL_SERVICE,
            version: VERSION,
            kind: 0,
            rank,
            sequence,
            return_code: ReturnCode::Success.number(),
            error_code: 0,
            length: 0,
            job,
            tool,
        }
    }

    /// The return code, if it is a known one.
    pub fn code(&self) -> Option<ReturnCode> {
        ReturnCode::from_number(self.return_code)
    }
}

impl ControlAck {
    /// The tool that has authority.
    pub fn new(controller: u32, tag: ToolTag, priority: u8) -> Self {
        Self { short_tool: controller as u16, tag, priority, controller }
    }

    /// An answer for a process over which no tool has authority.
    pub fn nobody() -> Self {
        Self::new(0, [0; 8], 0)
    }
}

/// A message that the service sends without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A thread has stopped at a signal.
    Signal(SignalNotice),
    /// The process has exited.
    Exit(ExitNotice),
    /// A change of Control authority, or a request for it.
    Control(ControlNotice),
}

/// A message of a tool, decoded by the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolMessage<'a> {
    /// Attach to processes.
    Attach(Attach),
    /// Detach from processes.
    Detach(Detach),
    /// Request Control authority.
    Control(Control),
    /// Read state.
    Query(Vec<ReceivedCommand<'a>>),
    /// Change state.
    Update(Vec<ReceivedCommand<'a>>),
    /// Acknowledge a notice. The message has no effect.
    NotifyAck,
    /// Share memory with the service. The record has the descriptor of the memory.
    ShareMemory,
}

/// A message of the service, decoded by a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceMessage<'a> {
    /// The answer to a message that cannot be read.
    ErrorAck,
    /// The ranks that were attached.
    AttachAck(Vec<u32>),
    /// An AttachAck with a text that says why the kernel does not permit tracing a process. The
    /// message contains 0 ranks. The text extends from the offset of the first rank to the end of
    /// the message.
    AttachRefused(String),
    /// The ranks that were detached.
    DetachAck(Vec<u32>),
    /// The tool that has authority.
    ControlAck(ControlAck),
    /// Results of commands.
    QueryAck(Vec<CommandResult<'a>>),
    /// Results of commands.
    UpdateAck(Vec<CommandResult<'a>>),
    /// An event.
    Notify(Notice),
    /// The memory that the service shares with the tool.
    ShareMemoryAck(SharedLength),
}

/// A message that the service cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct Refusal {
    /// The header of the message, if it has one.
    pub header: Option<Header>,
    /// The error.
    #[source]
    pub fault: Fault,
}

impl Refusal {
    /// The answer to the message: the acknowledgement of its type, or ErrorAck if the type is
    /// unknown.
    pub fn answer(&self) -> Vec<u8> {
        let request = self.header.unwrap_or(Header::new(0, 0, 0, 0));
        let (code, error_code) = self.fault.codes();
        let header = Header {
            return_code: code.number(),
            error_code,
            ..Header::new(request.job, request.rank, request.tool, request.sequence)
        };
        let is_readable = !matches!(
            self.fault,
            Fault::Service { .. } | Fault::Version { .. } | Fault::LengthField { .. }
        );
        let kind = MessageType::from_number(request.kind).filter(|_| is_readable);
        let body = match kind {
            Some(MessageType::Attach) => ServiceMessage::AttachAck(Vec::new()),
            Some(MessageType::Detach) => ServiceMessage::DetachAck(Vec::new()),
            Some(MessageType::Control) => ServiceMessage::ControlAck(ControlAck::nobody()),
            Some(MessageType::Query) => ServiceMessage::QueryAck(Vec::new()),
            Some(MessageType::Update) => ServiceMessage::UpdateAck(Vec::new()),
            Some(MessageType::ShareMemory) => {
                ServiceMessage::ShareMemoryAck(SharedLength { length: 0 })
            }
            _ => ServiceMessage::ErrorAck,
        };
        body.encode(&header)
    }
}

/// Reads and checks the header of a record.
fn read_header(record: &[u8]) -> Result<(Header, Option<MessageType>), Refusal> {
    let refuse = |header, fault| Err(Refusal { header, fault });
    let Ok(header) = Header::get_fields(record) else {
        return refuse(None, Fault::short(record, BODY_OFFSET));
    };
    let len = record.len();
    if len > MAX_MESSAGE_LEN {
        return refuse(Some(header), Fault::TooLong { len });
    }
    if header.service != TOOL_CONTROL_SERVICE {
        return refuse(Some(header), Fault::Service { service: header.service });
    }
    if header.version < VERSION {
        return refuse(Some(header), Fault::Version { version: header.version });
    }
    if header.length as usize != len {
        return refuse(Some(header), Fault::LengthField { said: header.length, len });
    }
    Ok((header, MessageType::from_number(header.kind)))
}

/// Reads the body of a message.
fn body<R: Record>(record: &[u8]) -> Result<R, Fault> {
    R::get_fields(record).map_err(|error| match error {
        ReadError::Short => Fault::short(record, R::LAYOUT.len),
        ReadError::Value(field) => Fault::Value { field },
    })
}

/// Fills in the header of a message with this body.
fn with_header(mut bytes: Vec<u8>, header: &Header, kind: MessageType) -> Vec<u8> {
    let header = Header {
        service: TOOL_CONTROL_SERVICE,
        version: VERSION,
        kind: kind.number(),
        length: bytes.len() as u32,
        ..*header
    };
    header.put_fields(&mut bytes);
    bytes
}

fn body_bytes<R: Record>(body: &R) -> Vec<u8> {
    let mut bytes = vec![0; R::LAYOUT.len.next_multiple_of(8)];
    body.put_fields(&mut bytes);
    bytes
}

impl<'a> ToolMessage<'a> {
    /// Decodes a record that a tool has sent. A record of a later version may be longer; its
    /// additional bytes are ignored.
    pub fn decode(record: &'a [u8]) -> Result<(Header, Self), Refusal> {
        let (header, kind) = read_header(record)?;
        Self::decode_body(record, header.kind, kind)
            .map(|message| (header, message))
            .map_err(|fault| Refusal { header: Some(header), fault })
    }

    fn decode_body(record: &'a [u8], kind: u16, known: Option<MessageType>) -> Result<Self, Fault> {
        Ok(match known {
            Some(MessageType::Attach) => Self::Attach(body(record)?),
            Some(MessageType::Detach) => Self::Detach(body(record)?),
            Some(MessageType::Control) => Self::Control(body(record)?),
            Some(MessageType::Query) => Self::Query(read_commands(record, CommandSet::Query)?),
            Some(MessageType::Update) => Self::Update(read_commands(record, CommandSet::Update)?),
            Some(MessageType::NotifyAck) => Self::NotifyAck,
            Some(MessageType::ShareMemory) => Self::ShareMemory,
            _ => return Err(Fault::MessageType { kind }),
        })
    }
}

/// A message that a tool encodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolRequest<'a> {
    /// Attach to processes.
    Attach(Attach),
    /// Detach from processes.
    Detach(Detach),
    /// Request Control authority.
    Control(Control),
    /// Read state, with commands of [`CommandSet::Query`].
    Query(&'a [Command<'a>]),
    /// Change state, with commands of [`CommandSet::Update`].
    Update(&'a [Command<'a>]),
    /// Acknowledge a notice. The message has no effect.
    NotifyAck,
    /// Share memory with the service. The record needs the descriptor of a sealed memfd.
    ShareMemory,
}

impl ToolRequest<'_> {
    /// Encodes the record to send.
    pub fn encode(&self, header: &Header) -> Result<Vec<u8>, MessageFull> {
        let commands = |commands: &[Command]| {
            let mut writer = CommandWriter::new();
            commands.iter().try_for_each(|command| writer.push_command(command))?;
            Ok(writer.into_bytes())
        };
        let (kind, bytes) = match self {
            Self::Attach(body) => (MessageType::Attach, body_bytes(body)),
            Self::Detach(body) => (MessageType::Detach, body_bytes(body)),
            Self::Control(body) => (MessageType::Control, body_bytes(body)),
            Self::Query(list) => (MessageType::Query, commands(list)?),
            Self::Update(list) => (MessageType::Update, commands(list)?),
            Self::NotifyAck => (MessageType::NotifyAck, vec![0; BODY_OFFSET]),
            Self::ShareMemory => (MessageType::ShareMemory, vec![0; BODY_OFFSET]),
        };
        Ok(with_header(bytes, header, kind))
    }
}

impl<'a> ServiceMessage<'a> {
    /// Decodes a record that the service has sent. A record of a later version may be longer.
    pub fn decode(record: &'a [u8]) -> Result<(Header, Self), Fault> {
        let (header, kind) = read_header(record).map_err(|refusal| refusal.fault)?;
        let message = match kind {
            Some(MessageType::ErrorAck) => Self::ErrorAck,
            Some(MessageType::AttachAck) => match (read_ranks(record)?, header.code()) {
                (ranks, Some(ReturnCode::RequestFailed))
                    if ranks.is_empty() && record.len() > RANKS_OFFSET =>
                {
                    let reason = &record[RANKS_OFFSET..];
                    Self::AttachRefused(String::from_utf8_lossy(reason).into_owned())
                }
                (ranks, _) => Self::AttachAck(ranks),
            },
            Some(MessageType::DetachAck) => Self::DetachAck(read_ranks(record)?),
            Some(MessageType::ControlAck) => Self::ControlAck(body(record)?),
            Some(MessageType::QueryAck) => Self::QueryAck(read_results(record)?),
            Some(MessageType::UpdateAck) => Self::UpdateAck(read_results(record)?),
            Some(MessageType::Notify) => Self::Notify(read_notice(record)?),
            Some(MessageType::ShareMemoryAck) => Self::ShareMemoryAck(body(record)?),
            _ => return Err(Fault::MessageType { kind: header.kind }),
        };
        Ok((header, message))
    }

    /// Encodes the record to send. Omits ranks beyond [`MAX_RANKS`]. Command answers that do not
    /// fit become [`super::CommandCode::AllocationError`]. The service itself encodes answers to
    /// commands with [`CommandWriter`] and [`encode_results`].
    pub fn encode(&self, header: &Header) -> Vec<u8> {
        let (kind, bytes) = match self {
            Self::ErrorAck => (MessageType::ErrorAck, vec![0; BODY_OFFSET]),
            Self::AttachAck(ranks) => (MessageType::AttachAck, rank_bytes(ranks)),
            Self::AttachRefused(reason) => (MessageType::AttachAck, reason_bytes(reason)),
            Self::DetachAck(ranks) => (MessageType::DetachAck, rank_bytes(ranks)),
            Self::ControlAck(body) => (MessageType::ControlAck, body_bytes(body)),
            Self::QueryAck(results) => (MessageType::QueryAck, result_bytes(results)),
            Self::UpdateAck(results) => (MessageType::UpdateAck, result_bytes(results)),
            Self::Notify(notice) => (MessageType::Notify, notice_bytes(notice)),
            Self::ShareMemoryAck(body) => (MessageType::ShareMemoryAck, body_bytes(body)),
        };
        with_header(bytes, header, kind)
    }
}

/// Encodes the acknowledgement with the results in the writer.
pub fn encode_results(writer: CommandWriter, header: &Header, set: CommandSet) -> Vec<u8> {
    let kind = match set {
        CommandSet::Query => MessageType::QueryAck,
        CommandSet::Update => MessageType::UpdateAck,
    };
    with_header(writer.into_bytes(), header, kind)
}

fn result_bytes(results: &[CommandResult]) -> Vec<u8> {
    let mut writer = CommandWriter::new();
    for result in results {
        let (Some(kind), Some(code)) =
            (result.kind, super::CommandCode::from_number(result.return_code))
        else {
            continue;
        };
        writer.push_result(kind.number(), result.thread, code, result.answer.as_ref());
    }
    writer.into_bytes()
}

fn read_ranks(record: &[u8]) -> Result<Vec<u32>, Fault> {
    let count: u16 = part(record, BODY_OFFSET).ok_or(Fault::short(record, RANKS_OFFSET))?;
    let end = RANKS_OFFSET + usize::from(count) * 4;
    let ranks = record.get(RANKS_OFFSET..end).ok_or(Fault::short(record, end))?;
    Ok(ranks.chunks_exact(4).filter_map(u32::get).collect())
}

fn rank_bytes(ranks: &[u32]) -> Vec<u8> {
    let ranks = &ranks[..ranks.len().min(MAX_RANKS)];
    let mut bytes = vec![0; RANKS_OFFSET + ranks.len() * 4];
    put_at(&mut bytes, BODY_OFFSET, &(ranks.len() as u16));
    for (rank, place) in ranks.iter().zip(bytes[RANKS_OFFSET..].chunks_exact_mut(4)) {
        rank.put(place);
    }
    bytes
}

/// An empty list of ranks, followed by the reason.
fn reason_bytes(reason: &str) -> Vec<u8> {
    let mut bytes = rank_bytes(&[]);
    let longest = MAX_REASON_LEN.min(reason.len());
    let end = (0..=longest).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
    bytes.extend_from_slice(&reason.as_bytes()[..end]);
    bytes
}

fn read_notice(record: &[u8]) -> Result<Notice, Fault> {
    let number: u32 = part(record, NOTICE_TYPE_OFFSET).ok_or(Fault::short(record, 48))?;
    Ok(match NoticeType::from_number(number) {
        Some(NoticeType::Signal) => Notice::Signal(body(record)?),
        Some(NoticeType::Termination) => Notice::Exit(body(record)?),
        Some(NoticeType::Control) => Notice::Control(body(record)?),
        None => return Err(Fault::Value { field: "notice" }),
    })
}

fn notice_bytes(notice: &Notice) -> Vec<u8> {
    let (kind, mut bytes) = match notice {
        Notice::Signal(body) => (NoticeType::Signal, body_bytes(body)),
        Notice::Exit(body) => (NoticeType::Termination, body_bytes(body)),
        Notice::Control(body) => (NoticeType::Control, body_bytes(body)),
    };
    put_at(&mut bytes, NOTICE_TYPE_OFFSET, &kind);
    bytes
}

/// The layouts of the header and the bodies.
pub(super) const MESSAGE_LAYOUTS: [RecordLayout; 10] = [
    Header::LAYOUT,
    Attach::LAYOUT,
    Detach::LAYOUT,
    RankListHead::LAYOUT,
    Control::LAYOUT,
    ControlAck::LAYOUT,
    SharedLength::LAYOUT,
    SignalNotice::LAYOUT,
    ExitNotice::LAYOUT,
    ControlNotice::LAYOUT,
];
