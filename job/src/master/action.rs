//! The actions of a job's master, which the daemon carries out.

use score_proto::ids::ElementIndex;
use score_proto::job_control::{ElementOrder, JobOrder, Order};
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
    /// Send these metrics to all subscribers except scrun.
    Metrics(Metrics),
    /// Send this to the session of a tool.
    ToSession(SessionKey, ConsoleAnswer),
    /// Send this to the status page, which has requested stacks.
    ToPage(PageStacks),
    /// Refuse the request of a session, for this reason.
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

/// The actions of one event, in the order in which the daemon carries them out. All parts of a
/// job's master add to the same outbox.
#[derive(Debug, Default)]
pub struct Outbox(Vec<MasterAction>);

impl Outbox {
    /// Removes and returns the actions.
    pub fn take(&mut self) -> Vec<MasterAction> {
        std::mem::take(&mut self.0)
    }

    /// Adds an action.
    pub fn push(&mut self, action: MasterAction) {
        self.0.push(action);
    }

    /// An order to the hosts.
    pub fn order(&mut self, order: Order) {
        self.push(MasterAction::Order(order));
    }

    /// An order to the hosts about the whole job.
    pub fn job_order(&mut self, order: JobOrder) {
        self.order(Order::Job(order));
    }

    /// An order to the hosts about the parallel process of this number.
    pub fn element_order(&mut self, number: ElementIndex, order: ElementOrder) {
        self.order(order.to(number));
    }

    /// A message to scrun.
    pub fn to_client(&mut self, answer: JobAnswer) {
        self.push(MasterAction::ToClient(answer));
    }

    /// A line for the user.
    pub fn notice(&mut self, level: Level, text: String) {
        self.to_client(JobAnswer::Notice { level, text });
    }

    /// A message to a session.
    pub fn to_session(&mut self, session_key: SessionKey, answer: ConsoleAnswer) {
        self.push(MasterAction::ToSession(session_key, answer));
    }

    /// Refuses the request of a session.
    pub fn refuse(&mut self, session_key: SessionKey, reason: String) {
        self.push(MasterAction::RefuseTool(session_key, reason));
    }

    /// A request to the gang scheduler.
    pub fn gang(&mut self, request: GangRequest) {
        self.push(MasterAction::Gang(request));
    }
}
