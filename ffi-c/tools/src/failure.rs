//! The failures of calls, with their texts, and their results in the functions of score_toolctl.h
//! and in the callbacks of libthread_db.

use std::ffi::c_int;
use std::io;

use nix::errno::Errno;
use score_tools::wire::{CommandCode, CommandKind, ReturnCode};

/// Results of the callbacks, with the numbers of proc_service.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum PsError {
    /// PS_OK.
    Ok = 0,
    /// PS_ERR.
    Other = 1,
    /// PS_BADPID: there is no such process.
    BadProcess = 2,
    /// PS_BADLID: there is no such thread.
    BadThread = 3,
    /// PS_BADADDR: there is no memory at this address.
    BadAddress = 4,
    /// PS_NOSYM: there is no such symbol.
    NoSymbol = 5,
    /// PS_NOFREGS: there are no such registers.
    NoFloatRegisters = 6,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The connection failed.
    #[error("the tool control service of job {job}: {error}")]
    Service {
        /// The job.
        job: u64,
        /// The error.
        error: io::Error,
    },
    /// No notice arrived in time, or a signal interrupted the wait.
    #[error("no notice: {0}")]
    NoNotice(Errno),
    /// The kernel does not let the service trace a process.
    #[error("rank {rank}: {reason}")]
    NotTraced {
        /// The rank.
        rank: u32,
        /// The reason.
        reason: String,
    },
    /// The service refused a message.
    #[error("rank {rank}: {}", refusal(*code, *errno))]
    Refused {
        /// The rank in the message.
        rank: u32,
        /// The return code.
        code: u32,
        /// The error code.
        errno: u32,
    },
    /// A command failed.
    #[error("rank {rank}, {command:?}: {}", command_fault(*code))]
    Command {
        /// The rank.
        rank: u32,
        /// The command.
        command: CommandKind,
        /// The code of the command.
        code: u32,
    },
    /// An argument from C is invalid.
    #[error("{0}")]
    Argument(&'static str),
    /// A thread id is invalid.
    #[error("rank {rank}: thread {thread} {problem}")]
    Thread {
        /// The rank.
        rank: u32,
        /// The id that the caller has passed.
        thread: i32,
        /// The problem.
        problem: &'static str,
    },
    /// No loaded object has the symbol.
    #[error(
        "rank {rank}: no loaded object defines {name}; stripped files have dynamic symbols only"
    )]
    NoSymbol {
        /// The rank.
        rank: u32,
        /// The symbol.
        name: String,
    },
    /// The answer has no legacy area of floating point registers.
    #[error("rank {rank}: no floating point registers of this thread")]
    NoFloatRegisters {
        /// The rank.
        rank: u32,
    },
}

/// The text of a return code.
fn refusal(code: u32, errno: u32) -> String {
    let Some(known) = ReturnCode::from_number(code) else {
        return format!("return code {code} of a newer service");
    };
    let text = match known {
        ReturnCode::ToolControlRequired => {
            "only the tool with Control authority may do this: request it (score_toolctl_control)"
        }
        ReturnCode::ToolControlConflict => {
            "another tool has Control authority: wait for the notice that it is available"
        }
        ReturnCode::ToolControlReleaseRequired => {
            "the tool has Control authority: first release this authority (score_toolctl_leave)"
        }
        ReturnCode::ToolRankNotFound => "the tool is not attached to it (score_toolctl_attach)",
        ReturnCode::ProcessIdError => {
            "there is no such rank on this host, or its process has not started"
        }
        ReturnCode::ToolProcessExiting => "its process has ended or is ending",
        ReturnCode::ToolPriorityConflict => {
            "another tool is attached with this priority: use another priority"
        }
        ReturnCode::ToolPriorityError => "the highest priority is 99",
        ReturnCode::ToolMaxAttachedExceeded => "four tools are attached, which is the limit",
        ReturnCode::ToolIdConflict => "this tool is attached already",
        ReturnCode::ToolIdError => "the tool's number is wrong, or the tool has not attached yet",
        ReturnCode::JobIdError => "the service belongs to another job: check BG_JOBID",
        ReturnCode::VersionMismatch => {
            "the service has another protocol version: use the libscoretools.so of its installation"
        }
        ReturnCode::RequestFailed => {
            return format!("{}", io::Error::from_raw_os_error(errno.cast_signed()));
        }
        other => return format!("refused as {other:?} ({code})"),
    };
    text.to_owned()
}

/// The text of a command's code.
fn command_fault(code: u32) -> String {
    let Some(known) = CommandCode::from_number(code) else {
        return format!("code {code} of a newer service");
    };
    let text = match known {
        CommandCode::ThreadInvalid => {
            "the thread does not exist, or is not in the state that this command needs"
        }
        CommandCode::AddressError => "the process has no memory or breakpoint at this address",
        CommandCode::PendingNotify => "a notice of a signal is pending: read it and continue",
        CommandCode::PreviousCommandFailed => "an earlier command of the message has failed",
        CommandCode::ProcessExiting => "the process is ending",
        CommandCode::BreakpointFailed => {
            "the breakpoint could not be set or removed: the program may have changed its text"
        }
        CommandCode::HardwareUnavailable => "no debug register is free",
        CommandCode::MemoryUnavailable => "the process cannot allocate memory now: try again later",
        other => return format!("{other:?} ({code})"),
    };
    text.to_owned()
}

impl Failure {
    /// The result of a function of score_toolctl.h.
    pub fn number(&self) -> c_int {
        let errno = match self {
            Self::Service { error, .. } => match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => Errno::EPIPE,
                io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
                // The message is too long.
                _ => error.raw_os_error().map_or(Errno::EMSGSIZE, Errno::from_raw),
            },
            Self::NoNotice(errno) => *errno,
            Self::Refused { code, .. } => return code.cast_signed(),
            Self::NotTraced { .. } => return ReturnCode::RequestFailed.number().cast_signed(),
            Self::Command { .. } => Errno::EIO,
            Self::Argument(_) => Errno::EINVAL,
            Self::Thread { .. } => Errno::ESRCH,
            Self::NoSymbol { .. } => Errno::ENOENT,
            Self::NoFloatRegisters { .. } => Errno::ENODATA,
        };
        -(errno as c_int)
    }

    /// The result of a callback of libthread_db.
    pub fn ps_error(&self) -> PsError {
        match self {
            Self::Service { error, .. } if error.kind() == io::ErrorKind::TimedOut => {
                PsError::Other
            }
            Self::Service { .. } => PsError::BadProcess,
            Self::Refused { code, .. } => match ReturnCode::from_number(*code) {
                Some(
                    ReturnCode::ProcessIdError
                    | ReturnCode::ToolRankNotFound
                    | ReturnCode::ToolProcessExiting
                    | ReturnCode::ToolIdError,
                ) => PsError::BadProcess,
                _ => PsError::Other,
            },
            Self::Command { code, command, .. } => match CommandCode::from_number(*code) {
                Some(CommandCode::AddressError) => PsError::BadAddress,
                Some(CommandCode::ProcessExiting) => PsError::BadProcess,
                Some(CommandCode::ThreadInvalid) if *command != CommandKind::ContinueProcess => {
                    PsError::BadThread
                }
                _ => PsError::Other,
            },
            Self::Thread { .. } => PsError::BadThread,
            Self::NoSymbol { .. } => PsError::NoSymbol,
            Self::NoFloatRegisters { .. } => PsError::NoFloatRegisters,
            Self::Argument(_) | Self::NoNotice(_) | Self::NotTraced { .. } => PsError::Other,
        }
    }

    /// Whether the process has ended. Then nothing that the tool has set remains.
    pub fn is_end_of_process(&self) -> bool {
        match self {
            Self::Refused { code, .. } => [
                ReturnCode::ToolProcessExiting,
                ReturnCode::ProcessIdError,
                ReturnCode::ToolRankNotFound,
            ]
            .iter()
            .any(|one| one.number() == *code),
            Self::Command { code, .. } => *code == CommandCode::ProcessExiting.number(),
            _ => false,
        }
    }
}
