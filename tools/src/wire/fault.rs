//! What is wrong with a message as a whole, and what its sender is answered.

use super::codes::ReturnCode;
use super::{MAX_MESSAGE_LEN, TOOL_CONTROL_SERVICE, VERSION};

/// errno values of x86-64 Linux that go into the error code.
pub mod errno {
    /// A parameter is invalid.
    pub const EINVAL: u32 = 22;
    /// The message is inconsistent.
    pub const EBADMSG: u32 = 74;
    /// The message is too long.
    pub const EMSGSIZE: u32 = 90;
    /// The processor cannot do this.
    pub const EOPNOTSUPP: u32 = 95;
}

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The record, or the body of its type, ends too early.
    #[error("a message has {len} bytes: {needed} are needed")]
    TooShort {
        /// Bytes of the record.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The record is longer than any message.
    #[error("a message has {len} bytes: at most {MAX_MESSAGE_LEN} are allowed")]
    TooLong {
        /// Bytes of the record.
        len: usize,
    },
    /// Its header says another length than the record has.
    #[error("the header says {said} bytes, the record has {len}: send one message a record")]
    LengthField {
        /// What the header says.
        said: u32,
        /// Bytes of the record.
        len: usize,
    },
    /// The header's service is another one.
    #[error("service {service}: tool control is {TOOL_CONTROL_SERVICE}")]
    Service {
        /// What the header says.
        service: u8,
    },
    /// The header's version is older than all that were ever served.
    #[error("version {version} of tool control is not served: use {VERSION} or a later one")]
    Version {
        /// What the header says.
        version: u8,
    },
    /// There is no such type, or this side does not receive it.
    #[error("type {kind} of message is not received here")]
    MessageType {
        /// What the header says.
        kind: u16,
    },
    /// A field of the body has a value that it cannot have.
    #[error("the field {field} has a value without a meaning: see score_tools.h")]
    Value {
        /// The field.
        field: &'static str,
    },
    /// A Query or an Update without commands.
    #[error("a message without commands: send 1 to 16")]
    NoCommands,
    /// More commands than a message may have.
    #[error("a message with {count} commands: send 1 to 16")]
    TooManyCommands {
        /// What the message says.
        count: u16,
    },
    /// Data of a command are not where they may be.
    #[error(
        "command {command} has {length} bytes of data at {offset}: they must lie behind the \
         descriptors, at a multiple of 8, and within the message"
    )]
    DataRange {
        /// The command, from 1 on.
        command: usize,
        /// What its descriptor says.
        offset: u32,
        /// What its descriptor says.
        length: u32,
    },
    /// Data of two commands overlap.
    #[error("the data of the commands {first} and {second} overlap")]
    DataOverlap {
        /// A command, from 1 on.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// More than one action.
    #[error("a message with {actions} action commands: one is allowed, as the last command")]
    SeveralActions {
        /// Their number.
        actions: usize,
    },
    /// The answer to a command is shorter than it says, or than the command's answers are.
    #[error("the answer to command {command} is too short")]
    AnswerLength {
        /// The command, from 1 on.
        command: usize,
    },
}

impl Fault {
    /// The fault of a message that needs more bytes.
    pub(super) fn short(message: &[u8], needed: usize) -> Self {
        Self::TooShort { len: message.len(), needed }
    }

    /// The return code and the error code of the answer.
    pub fn codes(&self) -> (ReturnCode, u32) {
        use ReturnCode::{
            RequestFailed, RequestIncomplete, ToolConflictingCmds, ToolNumberOfCmdsExceeded,
            UnsupportedType, VersionMismatch, WrongService,
        };
        match self {
            Self::TooShort { .. } | Self::LengthField { .. } => (RequestIncomplete, errno::EBADMSG),
            Self::TooLong { .. } => (RequestFailed, errno::EMSGSIZE),
            Self::Service { .. } => (WrongService, 0),
            Self::Version { .. } => (VersionMismatch, 0),
            Self::MessageType { .. } => (UnsupportedType, 0),
            Self::Value { .. } => (RequestFailed, errno::EINVAL),
            Self::NoCommands => (RequestIncomplete, errno::EINVAL),
            Self::TooManyCommands { .. } => (ToolNumberOfCmdsExceeded, 0),
            Self::DataRange { .. } | Self::DataOverlap { .. } | Self::AnswerLength { .. } => {
                (RequestFailed, errno::EBADMSG)
            }
            Self::SeveralActions { .. } => (ToolConflictingCmds, 0),
        }
    }
}
