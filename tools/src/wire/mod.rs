//! The messages of tool control (CDTI chapter 4; docs/dev/tools.md, groups H, A, R, Q and U).
//!
//! A message is one record of a SOCK_SEQPACKET socket. It has at most 65,536 bytes, in the byte
//! order of the host. It starts with a [`Header`]. Query and Update contain 1 to 16 commands.
//!
//! The *service* reads messages by [`ToolMessage::decode`]. An unreadable message is a [`Refusal`],
//! which provides the answer. If a single command has a fault, [`ReceivedCommand::request`]
//! contains it, and the other commands of the message are carried out. The service answers by
//! [`ServiceMessage::encode`]. For Query and Update it uses a [`CommandWriter`], which
//! [`encode_results`] completes:
//!
//! ```
//! use score_tools::wire::*;
//!
//! let request = CommandRequest::GetMemory(MemoryRange {
//!     address: 0x1000,
//!     length: 4,
//!     access: SpeculativeAccess::Permitted,
//! });
//! let header = Header::new(17, 0, 1, 42);
//! let record = ToolRequest::Query(&[Command { thread: 0, request }]).encode(&header).unwrap();
//!
//! let (header, message) = ToolMessage::decode(&record).unwrap();
//! let ToolMessage::Query(commands) = message else { panic!("a Query") };
//! let mut writer = CommandWriter::new();
//! for command in &commands {
//!     match &command.request {
//!         Ok(CommandRequest::GetMemory(range)) => writer.push_memory(7, range, |bytes| {
//!             bytes.fill(0xCC);
//!             Ok(())
//!         }),
//!         Ok(_) => writer.push_outcome(command.number, 7, Err(CommandCode::ThreadInvalid)),
//!         Err(code) => writer.push_outcome(command.number, 0, Err(*code)),
//!     }
//! }
//! let answer = encode_results(writer, &header, CommandSet::Query);
//!
//! let (header, message) = ServiceMessage::decode(&answer).unwrap();
//! assert_eq!((header.sequence, header.code()), (42, Some(ReturnCode::Success)));
//! let ServiceMessage::QueryAck(results) = message else { panic!("a QueryAck") };
//! let Some(CommandAnswer::GetMemory(memory)) = &results[0].answer else { panic!("memory") };
//! assert_eq!(*memory.bytes, [0xCC; 4]);
//! ```
//!
//! *Shared memory.* A tool that reads much memory shares a memfd with the service by
//! [`ToolRequest::ShareMemory`]. [`CommandRequest::CopyMemory`] makes the service copy memory of a
//! process into the memfd. Both are extensions of CDTI.
//!
//! A *tool* writes messages by [`ToolRequest::encode`] and reads them by
//! [`ServiceMessage::decode`]. `score_tools.h` has equivalents for C programs. A test compares its
//! structures with [`layouts`].
#![forbid(unsafe_code)]

mod codes;
mod command_list;
mod commands;
mod fault;
mod field;
mod message;
mod parameters;
mod payload;
#[cfg(test)]
mod tests;

pub use codes::*;
pub use command_list::{
    Command, CommandDescriptor, CommandResult, CommandWriter, DATA_ALIGNMENT, DATA_OFFSET,
    DESCRIPTORS_OFFSET, MAX_COMMANDS, MessageFull, ReceivedCommand, result_data,
};
pub use commands::*;
pub use fault::{Fault, errno};
pub use field::{FieldLayout, ReadError, RecordLayout};
pub use message::*;
pub use parameters::*;
pub use payload::{WithBytes, WithList};

/// The number of tool control in the header's service field.
pub const TOOL_CONTROL_SERVICE: u8 = 5;
/// The version of this implementation. It is the first version with the registers of x86-64 and
/// with the whole number of the tool in ControlAck. The last version of Blue Gene/Q was 6.
pub const VERSION: u8 = score_proto::tool_start::TOOL_CONTROL_VERSION;
/// The length of the longest message in bytes, header included.
pub const MAX_MESSAGE_LEN: usize = 65_536;
/// The offset of the body of a message.
pub const BODY_OFFSET: usize = 40;

/// The layouts of all records, for the comparison with the C header.
pub fn layouts() -> Vec<RecordLayout> {
    use field::Record;
    let mut layouts = message::MESSAGE_LAYOUTS.to_vec();
    layouts.push(CommandDescriptor::LAYOUT);
    layouts.extend(commands::command_layouts());
    layouts
}

/// For each record with a variable part: its name, the offset of the number of entries, and the
/// offset of the entries. For the comparison with the C header.
pub fn tails() -> Vec<(&'static str, usize, usize)> {
    let mut tails = commands::TAILS.to_vec();
    tails.push(("RankListHead", BODY_OFFSET, message::RANKS_OFFSET));
    tails.push(("FileNamesHead", 8, commands::NAMES_OFFSET));
    tails
}

/// For each enum value: the short name of the enum, the name of the value, and its number. For the
/// comparison with the C header, in which the names form a constant such as
/// `SCORE_TOOLS_CMD_GET_MEMORY`.
pub fn numbers() -> Vec<(&'static str, &'static str, u64)> {
    let enums = [
        ("Msg", MessageType::NAMED),
        ("Rc", ReturnCode::NAMED),
        ("Cc", CommandCode::NAMED),
        ("Cmd", CommandKind::NAMED),
        ("ProcessSelect", ProcessSelect::NAMED),
        ("StartNotice", StartNotice::NAMED),
        ("TrapMode", TrapMode::NAMED),
        ("WatchPolicy", WatchPolicy::NAMED),
        ("NoticeType", NoticeType::NAMED),
        ("SignalReason", SignalReason::NAMED),
        ("ControlReason", ControlReason::NAMED),
        ("SpeculativeAccess", SpeculativeAccess::NAMED),
        ("SharedAccess", SharedAccess::NAMED),
        ("ThreadState", ThreadState::NAMED),
        ("ToolState", ToolState::NAMED),
        ("Preference", Preference::NAMED),
        ("WatchType", WatchType::NAMED),
        ("ReleaseNotify", ReleaseNotify::NAMED),
        ("BreakpointKind", BreakpointKind::NAMED),
        ("GeneralRegister", GeneralRegister::NAMED),
        ("SpecialRegister", SpecialRegister::NAMED),
        ("DebugRegister", DebugRegister::NAMED),
    ];
    let values = enums.into_iter().flat_map(|(name, values)| {
        values.iter().map(move |(value, number)| (name, *value, *number))
    });
    values.collect()
}

/// A fuzz target: decodes the input as a message of a tool and as a message of the service. If it
/// can be decoded, it is encoded again, and the result must decode to the same message.
pub fn fuzz(bytes: &[u8]) {
    match ToolMessage::decode(bytes) {
        Ok((header, message)) => check_tool_message(&header, &message),
        Err(refusal) => {
            ServiceMessage::decode(&refusal.answer()).expect("the answer to a refusal is readable");
        }
    }
    if let Ok((header, message)) = ServiceMessage::decode(bytes) {
        check_service_message(&header, &message);
    }
}

fn check_tool_message(header: &Header, message: &ToolMessage) {
    let commands: Vec<Command>;
    let request = match message {
        ToolMessage::Attach(body) => ToolRequest::Attach(*body),
        ToolMessage::Detach(body) => ToolRequest::Detach(*body),
        ToolMessage::Control(body) => ToolRequest::Control(*body),
        ToolMessage::NotifyAck => ToolRequest::NotifyAck,
        ToolMessage::ShareMemory => ToolRequest::ShareMemory,
        ToolMessage::Query(list) | ToolMessage::Update(list) => {
            let readable = list.iter().filter_map(|command| {
                let request = command.request.clone().ok()?;
                Some(Command { thread: command.thread, request })
            });
            commands = readable.collect();
            if commands.len() < list.len() {
                return;
            }
            match message {
                ToolMessage::Query(_) => ToolRequest::Query(&commands),
                _ => ToolRequest::Update(&commands),
            }
        }
    };
    // The data were aligned and did not overlap, and the encoder leaves no gaps, so they fit.
    let again = request.encode(header).expect("what was read fits again");
    let (_, read) = ToolMessage::decode(&again).expect("what was written can be read");
    assert_eq!(&read, message);
}

fn check_service_message(header: &Header, message: &ServiceMessage) {
    if let ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results) = message {
        let is_known = |result: &CommandResult| {
            result.kind.is_some() && CommandCode::from_number(result.return_code).is_some()
        };
        if !results.iter().all(is_known) {
            return;
        }
    }
    let again = message.encode(header);
    let (_, read) = ServiceMessage::decode(&again).expect("what was written can be read");
    assert_eq!(&read, message);
}
