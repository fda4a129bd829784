//! The messages: header, bodies, reading and writing (docs/tools.md, groups H and A).

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

/// Eight bytes of a tool's own choice.
pub type ToolTag = [u8; 8];

record! {
    /// The header of each message. [`Header::new`] leaves what [`ToolRequest::encode`] and
    /// [`ServiceMessage::encode`] fill in: service, version, type and length.
    Header[40] {
        /// [`TOOL_CONTROL_SERVICE`].
        0 service: u8,
        /// The version of the sender.
        1 version: u8,
        /// A number of [`MessageType`].
        2 kind: u16,
        /// The rank that the message is for, or comes from.
        4 rank: u32,
        /// Chosen by the sender. The acknowledgement repeats it; 0 in notices.
        8 sequence: u32,
        /// A number of [`ReturnCode`], in an acknowledgement.
        12 return_code: u32,
        /// Detail: an errno value, or 0.
        16 error_code: u32,
        /// Bytes of the whole message.
        20 length: u32,
        /// The job.
        24 job: u64,
        /// The tool; 0 in an Attach asks for a number.
        32 tool: u32,
    }

    /// The body of Attach.
    Attach[56] {
        /// The tool's tag.
        40 tag: ToolTag,
        /// Its priority, 0 to 99; 99 is the most favoured.
        48 priority: u8,
        /// Which processes.
        52 select: ProcessSelect,
    }

    /// The body of Detach.
    Detach[44] {
        /// Which processes.
        40 select: ProcessSelect,
    }

    /// What the ranks of AttachAck and DetachAck follow: their number at 40 (u16), ranks from 44.
    RankListHead[44] {}

    /// The body of Control.
    Control[64] {
        /// Signals of which the tool is notified: bit (signal - 1).
        40 notify_set: u64,
        /// A signal for the process leader when authority is given, or 0.
        48 signal: u32,
        /// Where a dynamic program is first stopped.
        52 start_notice: StartNotice,
        /// Where watchpoints stop a thread.
        56 trap_mode: TrapMode,
        /// Whether watchpoints go to new threads.
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

    /// A notice of a signal.
    SignalNotice[112] {
        /// The signal.
        48 signal: u32,
        /// The thread that stands at it.
        52 thread: u32,
        /// Where it stands.
        56 instruction: u64,
        /// The address of the access, for faults and watchpoints.
        64 access: u64,
        /// Why it stands.
        72 reason: SignalReason,
        /// Speculation: always 0.
        76 execute_mode: u32,
        /// Speculation: always 0.
        80 restart: [u64; 4],
    }

    /// A notice of the end of a process.
    ExitNotice[52] {
        /// Its state as wait(2) gives it.
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
        /// What has happened.
        64 reason: ControlReason,
    }
}

const NOTICE_TYPE_OFFSET: usize = BODY_OFFSET;
pub(super) const RANKS_OFFSET: usize = BODY_OFFSET + 4;
/// The most ranks that AttachAck and DetachAck can name.
pub const MAX_RANKS: usize = (MAX_MESSAGE_LEN - RANKS_OFFSET) / 4;

/// Bytes of a reason in words.
pub const MAX_REASON_LEN: usize = 1024;

impl Header {
    /// A header with everything that does not follow from the body.
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

    /// Nobody has authority.
    pub fn nobody() -> Self {
        Self::new(0, [0; 8], 0)
    }
}

/// What the service reports unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A thread stands at a signal.
    Signal(SignalNotice),
    /// The process has exited.
    Exit(ExitNotice),
    /// Control authority.
    Control(ControlNotice),
}

/// A message of a tool, as the service reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolMessage<'a> {
    /// Join processes.
    Attach(Attach),
    /// Leave processes.
    Detach(Detach),
    /// Ask for Control authority.
    Control(Control),
    /// Read state.
    Query(Vec<ReceivedCommand<'a>>),
    /// Change state.
    Update(Vec<ReceivedCommand<'a>>),
    /// No effect.
    NotifyAck,
}

/// A message of the service, as a tool reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceMessage<'a> {
    /// A message could not be read.
    ErrorAck,
    /// The ranks that were attached.
    AttachAck(Vec<u32>),
    /// An AttachAck that says in words why the kernel does not give a process: from the place of
    /// the first rank up to the end of the message, which has the number 0 of ranks.
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
}

/// A message that the service cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct Refusal {
    /// Its header, as far as there is one.
    pub header: Option<Header>,
    /// What is wrong with it.
    #[source]
    pub fault: Fault,
}

impl Refusal {
    /// The answer to it: the acknowledgement of its type if the type is known, else ErrorAck.
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
            _ => ServiceMessage::ErrorAck,
        };
        body.encode(&header)
    }
}

/// The header of a record, checked against the record.
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

/// A message with this header and this body, whose header is still 0.
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
    /// Reads a record that a tool has sent. A later version may be longer; what it has more is not
    /// looked at.
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
            _ => return Err(Fault::MessageType { kind }),
        })
    }
}

/// A message of a tool, as it writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolRequest<'a> {
    /// Join processes.
    Attach(Attach),
    /// Leave processes.
    Detach(Detach),
    /// Ask for Control authority.
    Control(Control),
    /// Read state, by commands of [`CommandSet::Query`].
    Query(&'a [Command<'a>]),
    /// Change state, by commands of [`CommandSet::Update`].
    Update(&'a [Command<'a>]),
    /// No effect.
    NotifyAck,
}

impl ToolRequest<'_> {
    /// The record to send.
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
        };
        Ok(with_header(bytes, header, kind))
    }
}

impl<'a> ServiceMessage<'a> {
    /// Reads a record that the service has sent. A later version may be longer.
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
            _ => return Err(Fault::MessageType { kind: header.kind }),
        };
        Ok((header, message))
    }

    /// The record to send. Ranks beyond [`MAX_RANKS`] are left out. The service writes answers to
    /// commands by [`CommandWriter`], and then calls [`encode_results`]; here answers that do not
    /// fit become [`super::CommandCode::AllocationError`].
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
        };
        with_header(bytes, header, kind)
    }
}

/// The acknowledgement with the results that the writer has got.
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

/// A list of no ranks, and a reason behind it.
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

/// The layouts of header and bodies.
pub(super) const MESSAGE_LAYOUTS: [RecordLayout; 9] = [
    Header::LAYOUT,
    Attach::LAYOUT,
    Detach::LAYOUT,
    RankListHead::LAYOUT,
    Control::LAYOUT,
    ControlAck::LAYOUT,
    SignalNotice::LAYOUT,
    ExitNotice::LAYOUT,
    ControlNotice::LAYOUT,
];
