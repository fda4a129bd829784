//! The numbers of messages and return codes (docs/dev/tools.md, H19 and group R).

use super::field::numbered;

numbered! {
    /// The types of messages.
    MessageType: u16 {
        /// The answer to a message that cannot be read.
        5000 ErrorAck,
        /// A tool attaches to one process, or to all processes of the host.
        5001 Attach,
        /// The answer to Attach.
        5002 AttachAck,
        /// A tool detaches from one process, or from all processes of the host.
        5003 Detach,
        /// The answer to Detach.
        5004 DetachAck,
        /// A tool reads state.
        5005 Query,
        /// The answer to Query.
        5006 QueryAck,
        /// A tool changes state.
        5007 Update,
        /// The answer to Update.
        5008 UpdateAck,
        /// The service reports an event.
        5011 Notify,
        /// A tool acknowledges a Notify. The acknowledgement has no effect.
        5012 NotifyAck,
        /// A tool requests Control authority.
        5013 Control,
        /// The answer to Control.
        5014 ControlAck,
        /// A tool shares memory with the service, for Copy Memory. CDTI has no such message.
        5101 ShareMemory,
        /// The answer to ShareMemory.
        5102 ShareMemoryAck,
    }

    /// The results of messages. Codes that only the daemons of Blue Gene/Q used are omitted.
    ReturnCode: u32 {
        /// The message was processed. Its commands have their own codes.
        0 Success,
        /// The header's service is not tool control.
        1 WrongService,
        /// The type does not exist, or tools must not send it.
        2 UnsupportedType,
        /// The header's job is not that of this service.
        3 JobIdError,
        /// This host has no such rank, or its process has not started.
        4 ProcessIdError,
        /// The request failed. The error code is an errno value.
        5 RequestFailed,
        /// The service does not support this version.
        9 VersionMismatch,
        /// A tool could not be started.
        27 ToolStartError,
        /// The user is not permitted to do this.
        28 ToolAuthorityError,
        /// The header's tool is not that of this connection, or the number is not allowed for a
        /// tool.
        29 ToolIdError,
        /// A tool did not answer in time.
        30 ToolTimeoutExpired,
        /// Another tool has this priority.
        31 ToolPriorityConflict,
        /// Four tools are attached to the process.
        32 ToolMaxAttachedExceeded,
        /// A tool with this number is already attached to the process.
        33 ToolIdConflict,
        /// The job table cannot be read.
        35 JobsObjectError,
        /// The priority is above 99.
        36 ToolPriorityError,
        /// The tool is not attached to the process.
        37 ToolRankNotFound,
        /// The message has more than 16 commands.
        44 ToolNumberOfCmdsExceeded,
        /// The message ends too early.
        45 RequestIncomplete,
        /// Another tool has Control authority.
        51 ToolControlConflict,
        /// The message has several action commands.
        53 ToolConflictingCmds,
        /// The tool has no Control authority.
        54 ToolControlRequired,
        /// The tool must release Control authority first.
        55 ToolControlReleaseRequired,
        /// The process exits, or has exited.
        57 ToolProcessExiting,
    }

    /// The results of commands.
    CommandCode: u32 {
        /// The command has succeeded.
        0 Success,
        /// The thread does not exist in this process, or is not in the state that the command
        /// needs.
        1 ThreadInvalid,
        /// This type of message has no such command.
        2 CommandInvalid,
        /// The thread did not respond in time.
        3 Timeout,
        /// The acknowledgement has no room for the answer.
        4 AllocationError,
        /// A parameter is invalid.
        5 ParameterError,
        /// A breakpoint could not be set or removed.
        6 BreakpointFailed,
        /// The address is invalid.
        7 AddressError,
        /// A length is invalid, or the data of the command are too short.
        8 LengthError,
        /// No hardware resource is free.
        9 HardwareUnavailable,
        /// Memory could not be allocated.
        10 MemoryUnavailable,
        /// The file does not exist.
        11 FileNotFound,
        /// The command conflicts with another command of the message.
        12 Conflict,
        /// A notice of a signal is pending.
        13 PendingNotify,
        /// An earlier command of the message failed.
        14 PreviousCommandFailed,
        /// The process is exiting.
        15 ProcessExiting,
        /// The range overlaps a watchpoint.
        16 WatchConflict,
    }
}
