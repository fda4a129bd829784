//! The actions of a job's master, which the daemon carries out.

use score_proto::job_control::Order;
use score_proto::message::Level;
use score_proto::observation::Metrics;
use score_proto::server_message::{ConsoleAnswer, JobAnswer, ToolAnswer};

use crate::jobs::SessionKey;
use crate::scheduling::GangRequest;

/// An action for the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterAction {
    /// Send this to scrun.
    ToClient(JobAnswer),
    /// Send these metrics to all other subscribers.
    Metrics(Metrics),
    /// Send this to the session of a tool.
    ToSession(SessionKey, ConsoleAnswer),
    /// Send this to the status page, which has requested stacks.
    ToPage(PageStacks),
    /// Refuse the command of a tool: send its session this reason.
    RefuseTool(SessionKey, String),
    /// Send this to the hosts.
    Order(Order),
    /// Send this to the gang scheduler.
    Gang(GangRequest),
}

/// An answer to the status page, which has requested the stacks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStacks {
    /// The programs, or the answer of some ranks.
    Part(ToolAnswer),
    /// All ranks have answered, or the time is over.
    End,
    /// The master has read no stacks, for this reason.
    Refused(String),
}

/// A line for the user.
pub fn notice(level: Level, text: String) -> MasterAction {
    MasterAction::ToClient(JobAnswer::Notice { level, text })
}
