//! The faults of whole messages, and the answers to their senders.

use super::codes::ReturnCode;
use super::{MAX_MESSAGE_LEN, TOOL_CONTROL_SERVICE, VERSION};

/// The errno values of x86-64 Linux that are used as error codes.
pub mod errno {
    /// A parameter is invalid.
    pub const EINVAL: u32 = 22;
    /// The message is inconsistent.
    pub const EBADMSG: u32 = 74;
    /// The message is too long.
    pub const EMSGSIZE: u32 = 90;
    /// The processor does not support the operation.
    pub const EOPNOTSUPP: u32 = 95;
}

/// Why a message cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The record, or the body of its type, is too short.
    #[error("a message has {len} bytes: at least {needed} are needed")]
    TooShort {
        /// The length of the record in bytes.
        len: usize,
        /// The needed length in bytes.
        needed: usize,
    },
    /// The record is longer than any message.
    #[error("a message has {len} bytes: at most {MAX_MESSAGE_LEN} are allowed")]
    TooLong {
        /// The length of the record in bytes.
        len: usize,
    },
    /// The length in the header differs from that of the record.
    #[error(
        "the header specifies {said} bytes, but the record has {len}: send one message per record"
    )]
    LengthField {
        /// The length in the header.
        said: u32,
        /// The length of the record in bytes.
        len: usize,
    },
    /// The header's service is not tool control.
    #[error("service {service}: not tool control, which is {TOOL_CONTROL_SERVICE}")]
    Service {
        /// The service in the header.
        service: u8,
    },
    /// The header's version is older than all supported versions.
    #[error("version {version} of tool control is not supported: use {VERSION} or later")]
    Version {
        /// The version in the header.
        version: u8,
    },
    /// The type does not exist, or this side does not receive it.
    #[error("unexpected message type {kind}")]
    MessageType {
        /// The type in the header.
        kind: u16,
    },
    /// A field of the body has an invalid value.
    #[error("the field {field} has an invalid value: see score_tools.h")]
    Value {
        /// The name of the field.
        field: &'static str,
    },
    /// A Query or an Update without commands.
    #[error("a message without commands: send 1 to 16")]
    NoCommands,
    /// More commands than a message may have.
    #[error("a message with {count} commands: send 1 to 16")]
    TooManyCommands {
        /// The number of commands in the message.
        count: u16,
    },
    /// The data of a command have an invalid position.
    #[error(
        "command {command} has {length} bytes of data at {offset}: they must be after the \
         descriptors, at a multiple of 8, and within the message"
    )]
    DataRange {
        /// The number of the command, counted from 1.
        command: usize,
        /// The offset in its descriptor.
        offset: u32,
        /// The length in its descriptor.
        length: u32,
    },
    /// The data of two commands overlap.
    #[error("the data of the commands {first} and {second} overlap")]
    DataOverlap {
        /// The number of a command, counted from 1.
        first: usize,
        /// The number of the other command.
        second: usize,
    },
    /// The message has more than one action.
    #[error("a message with {actions} action commands: one is allowed, as the last command")]
    SeveralActions {
        /// The number of actions.
        actions: usize,
    },
    /// The message has no descriptor and needs one, or it has descriptors that it does not need.
    #[error("ShareMemory needs one file descriptor, other messages have none")]
    Descriptors,
    /// The answer to a command is shorter than its contents require.
    #[error("the answer to command {command} is too short")]
    AnswerLength {
        /// The number of the command, counted from 1.
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
            Self::DataRange { .. }
            | Self::DataOverlap { .. }
            | Self::Descriptors
            | Self::AnswerLength { .. } => (RequestFailed, errno::EBADMSG),
            Self::SeveralActions { .. } => (ToolConflictingCmds, 0),
        }
    }
}
