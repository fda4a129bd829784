//! scdb's connections to a job. Each command has its own connection. The job keeps scdb's changes
//! for as long as the session exists.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use score_proto::message::{ConsoleRequest, ToolCall, ToolSession};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{
    ConsoleAction, EventBody, NOT_ANSWERED, OTHER_RELEASE, ToolRequest, ToolResult,
};
use score_proto::tool_start::ScrunJob;

use super::command::Ranks;
use super::gdb::RankService;
use crate::job_address::JobAddress;
use crate::scored_client::{QueryStream, Reply};

/// Additional time until the last answer must have arrived, after the time limit of the command.
const ANSWER_GRACE: Duration = Duration::from_secs(15);
/// Interval at which a wait for answers checks whether the user has interrupted the command.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Returns whether the user has interrupted the running command.
pub type Interrupted<'a> = &'a dyn Fn() -> bool;

/// The answers of ranks to a command. Equal answers are stored once.
#[derive(Debug, Default)]
pub struct Answers {
    /// The results, with the ranks that gave them.
    pub results: Vec<(ToolResult, NodeSet)>,
    /// The ranks without an answer, by reason.
    pub failed: BTreeMap<String, NodeSet>,
}

impl Answers {
    fn add(&mut self, answer: ToolAnswer) {
        let (ranks, reason) = match answer {
            ToolAnswer::Programs { .. } => return,
            ToolAnswer::Missing(ranks) => (ranks, NOT_ANSWERED),
            ToolAnswer::Event { ranks, body } => match (body.failure(), body) {
                (None, EventBody::Answer(bytes)) => match ToolResult::decode(&bytes) {
                    Some(ToolResult::Failed(reason)) => return self.fail(reason, &ranks),
                    Some(result) => return self.add_result(result, &ranks),
                    None => (ranks, OTHER_RELEASE),
                },
                (reason, _) => (ranks, reason.unwrap_or_default()),
            },
        };
        let remedy = if reason == NOT_ANSWERED { "; increase the limit with -wait" } else { "" };
        self.fail(format!("{reason}{remedy}"), &ranks);
    }

    fn add_result(&mut self, result: ToolResult, ranks: &NodeSet) {
        match self.results.iter_mut().find(|(other, _)| *other == result) {
            Some((_, known)) => known.union(ranks),
            None => self.results.push((result, ranks.clone())),
        }
    }

    /// Records that these ranks have no answer.
    pub fn fail(&mut self, reason: String, ranks: &NodeSet) {
        self.failed.entry(reason).or_default().union(ranks);
    }

    /// Sorts the results by their first ranks.
    fn sort(&mut self) {
        self.results.sort_by_key(|(_, ranks)| ranks.first());
    }
}

/// The connections to a job.
pub struct Session {
    target: ScrunJob,
    socket: Option<PathBuf>,
    timeout: Duration,
    /// While this is open, the job keeps scdb's changes.
    link: Option<(QueryStream, BegunSession)>,
}

/// The data of a session that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunSession {
    /// The number of the session.
    pub number: u64,
    /// The number of ranks of all programs of the job.
    pub ranks: u32,
}

impl Session {
    /// Finds the job.
    ///
    /// # Errors
    /// One line: there is no such job.
    pub fn open(
        address: JobAddress,
        socket: Option<PathBuf>,
        timeout: Duration,
    ) -> Result<Self, String> {
        Ok(Self { target: address.find()?, socket, timeout, link: None })
    }

    /// The time limit for answers.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a command with a time limit for its answers. Returns the stream of the answers.
    ///
    /// # Errors
    /// One line: the job no longer has a daemon.
    pub fn send(
        &self,
        ranks: Ranks,
        request: &ToolRequest,
        timeout: Duration,
    ) -> Result<QueryStream, String> {
        let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let session = match request {
            ToolRequest::Console { session, .. } => Some(*session),
            _ => None,
        };
        let (job, body) = (self.target.job, request.encode());
        let call = ToolCall { job, ranks, wait_ms, body, session };
        QueryStream::open_at(self.target, ConsoleRequest::Tool(call), self.socket.clone())
    }

    /// Sends a command, and passes each answer to `on_answer`.
    ///
    /// # Errors
    /// One line: scored has refused the command, or the user has interrupted it.
    pub fn stream(
        &self,
        ranks: Ranks,
        request: &ToolRequest,
        interrupted: Interrupted<'_>,
        on_answer: &mut dyn FnMut(ToolAnswer),
    ) -> Result<(), String> {
        let mut query = self.send(ranks, request, self.timeout)?;
        let deadline = Instant::now() + self.timeout + ANSWER_GRACE;
        loop {
            // The deadline of this loop applies, not that of the stream.
            query.expect_silence();
            match query.next_reply_within::<ToolAnswer>(POLL_INTERVAL)? {
                Reply::Answer(answer) => on_answer(answer),
                Reply::End => return Ok(()),
                Reply::Notice(_) | Reply::Pending if interrupted() => {
                    return Err("interrupted".to_owned());
                }
                Reply::Notice(_) | Reply::Pending if Instant::now() < deadline => {}
                Reply::Notice(_) | Reply::Pending => {
                    let late = "scored has not answered in time; increase the limit with -wait";
                    return Err(late.to_owned());
                }
            }
        }
    }

    /// Sends a command, and collects the answers.
    ///
    /// # Errors
    /// The errors of [`Session::stream`].
    pub fn ask(
        &self,
        ranks: Ranks,
        request: &ToolRequest,
        interrupted: Interrupted<'_>,
    ) -> Result<Answers, String> {
        let mut answers = Answers::default();
        self.stream(ranks, request, interrupted, &mut |answer| answers.add(answer))?;
        answers.sort();
        Ok(answers)
    }

    /// Performs an action in ranks, or queries their state.
    ///
    /// # Errors
    /// The errors of [`Session::stream`].
    pub fn act(
        &mut self,
        ranks: Ranks,
        action: ConsoleAction,
        interrupted: Interrupted<'_>,
    ) -> Result<Answers, String> {
        let session = self.begin()?.number;
        self.ask(ranks, &ToolRequest::Console { session, action }, interrupted)
    }

    /// The service of a rank, for a debugger.
    pub fn rank(&self, rank: u32) -> RankService {
        RankService::new(self.target, rank, self.socket.clone())
    }

    /// Performs an action in one rank, in the session with this number.
    ///
    /// # Errors
    /// The errors of [`Session::stream`].
    pub fn act_as(
        &self,
        session: u64,
        rank: u32,
        action: ConsoleAction,
    ) -> Result<Answers, String> {
        let request = ToolRequest::Console { session, action };
        self.ask(Some(NodeSet::one(rank)), &request, &|| false)
    }

    /// Ends the session. The job undoes its changes.
    pub fn end(&mut self) {
        self.link = None;
    }

    /// Returns the session. The first call begins it.
    ///
    /// # Errors
    /// One line: the job has ended, or has no processes now.
    pub fn begin(&mut self) -> Result<BegunSession, String> {
        if let Some((link, session)) = &mut self.link {
            // The daemon sends a message on this connection only when the session ends.
            link.expect_silence();
            return match link.next_reply_within::<ToolAnswer>(Duration::ZERO) {
                Ok(Reply::End) => Err("the job has ended".to_owned()),
                Ok(_) => Ok(*session),
                Err(error) => Err(error),
            };
        }
        let number = score_sys::random::random_u64();
        let action = ConsoleAction::End;
        let at_end = ToolRequest::Console { session: number, action }.encode();
        let request = ConsoleRequest::ToolSession(ToolSession {
            job: self.target.job,
            session: number,
            ranks: None,
            at_end,
        });
        let mut link = QueryStream::open_at(self.target, request, self.socket.clone())?;
        match link.next_reply::<ToolAnswer>()? {
            Some(ToolAnswer::Programs { names, nodes }) => {
                let ranks = (names.len() as u32).saturating_mul(nodes);
                let begun = BegunSession { number, ranks };
                self.link = Some((link, begun));
                Ok(begun)
            }
            Some(_) => Err("scored has sent an unexpected answer".to_owned()),
            None => Err("the job has ended".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::tool_command::ProcessState;

    #[test]
    fn equal_answers_are_one_answer_with_their_ranks_in_order() {
        let mut answers = Answers::default();
        let event = |ranks: std::ops::Range<u32>, result: &ToolResult| ToolAnswer::Event {
            ranks: ranks.into(),
            body: EventBody::Answer(result.encode()),
        };
        let held = ToolResult::Console(ProcessState::Held);
        answers.add(event(4..6, &held));
        answers.add(event(2..3, &ToolResult::Console(ProcessState::Running)));
        answers.add(event(0..1, &held));
        answers.add(event(7..8, &ToolResult::Failed("it has ended".to_owned())));
        answers.add(ToolAnswer::Missing(NodeSet::one(8)));
        answers.sort();
        assert_eq!(answers.results.len(), 2);
        assert_eq!(answers.results[0], (held, [0, 4, 5].into_iter().collect()));
        assert_eq!(answers.failed["it has ended"], NodeSet::one(7));
        assert_eq!(answers.failed.len(), 2);
    }
}
