//! The commands of tools to the processes of a job, on the side of the job's master. The module
//! records which asker gets the events, and which ranks have not answered.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use score_proto::ids::{ElementIndex, JobId};
use score_proto::job_control::{ElementOrder, Order};
use score_proto::message::{ToolCall, ToolSession};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{ConsoleAnswer, JobAnswer, ReportedStacks, ToolAnswer};
use score_proto::tool_command::{
    CommandId, EventBody, MAX_ANSWER_TIMEOUT, MAX_TOOL_ANSWER_BYTES, MAX_TOOL_BODY,
    MAX_TOOL_COMMANDS, MergedEvent, ToolCommand,
};

use crate::cluster::MonotonicTime;
use crate::jobs::SessionKey;
use crate::master::{MasterAction, Outbox, PageStacks};

/// How long the master waits for the last events after the time that the command specifies. Each
/// hop waits for that time, counted from the moment at which it gets the command.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// How long the master waits for the last stacks of ranks that are about to end. The ranks wait
/// during this time.
const REPORT_ANSWER_GRACE: Duration = Duration::from_millis(500);

/// The largest number of simultaneous tool sessions of a job.
const MAX_SESSIONS_PER_JOB: usize = 32;
/// The largest size of the command at the end of a session, in bytes.
const MAX_END_BODY: usize = 256;
/// How long a hop keeps room for the answers to the command at the end of a session.
const END_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// The recipient of the answers to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// A tool, in this session.
    Session(SessionKey),
    /// The status page, for the stacks.
    Page,
    /// scrun, for a report of a fault. The ranks belong to this parallel process and wait after a
    /// fault.
    Fault(ElementIndex),
    /// scrun, for a report of a deadlock. The ranks belong to this parallel process, which is
    /// deadlocked.
    Deadlock(ElementIndex),
}

/// A command that has not received its last event.
#[derive(Debug)]
struct RunningCommand {
    asker: Asker,
    /// Ranks that have not answered.
    unanswered: NodeSet,
    /// Bytes of answers that have arrived.
    answer_bytes: usize,
    deadline: MonotonicTime,
}

/// The programs of the running stage.
#[derive(Debug)]
pub struct StagePrograms {
    /// The name of each element.
    pub names: Vec<String>,
    /// The nodes of each element.
    pub nodes: u32,
}

impl StagePrograms {
    /// The ranks of an element: rows of the process table.
    fn ranks(&self, element: ElementIndex) -> Range<u32> {
        let first = element.first_rank(self.nodes);
        first..first.saturating_add(self.nodes)
    }

    fn all_ranks(&self) -> Range<u32> {
        0..(self.names.len() as u32).saturating_mul(self.nodes)
    }

    /// The number of programs that have some of these ranks.
    fn count_of(&self, ranks: &NodeSet) -> usize {
        let elements = ElementIndex::all(self.names.len());
        elements.filter(|element| !ranks.within(self.ranks(*element)).is_empty()).count()
    }

    /// The ranks that a tool has named. None means all ranks.
    fn checked(&self, job: JobId, ranks: Option<NodeSet>) -> Result<NodeSet, String> {
        let all = self.all_ranks();
        let ranks = ranks.unwrap_or_else(|| NodeSet::from(all.clone()));
        match ranks.last() {
            Some(last) if last >= all.end && all.end > 0 => {
                Err(format!("rank {last}: job {job} has ranks 0 to {}", all.end - 1))
            }
            Some(_) if !all.is_empty() => Ok(ranks),
            _ => Err(format!("job {job} has no processes now")),
        }
    }
}

/// A session of a tool, which may change processes until its end.
#[derive(Debug)]
struct OpenSession {
    key: SessionKey,
    /// Ranks that the tool may change.
    ranks: NodeSet,
    /// The body of the command that these ranks get at the end of the session.
    at_end: Vec<u8>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolCommands {
    running: BTreeMap<CommandId, RunningCommand>,
    /// By the session numbers that the tools have chosen.
    sessions: BTreeMap<u64, OpenSession>,
    last_id: u64,
    /// The reports to the user whose stacks have been read.
    finished_reports: Vec<Asker>,
}

/// The same set, with all numbers increased by `offset`.
fn shifted(nodes: &NodeSet, offset: u32) -> NodeSet {
    let mut ranks = NodeSet::new();
    for range in nodes.ranges() {
        ranks.insert_range(range.start.saturating_add(offset)..range.end.saturating_add(offset));
    }
    ranks
}

fn to_asker(asker: Asker, answer: ToolAnswer) -> MasterAction {
    match asker {
        Asker::Session(key) => MasterAction::ToSession(key, ConsoleAnswer::Tool(answer)),
        Asker::Page => MasterAction::ToPage(PageStacks::Part(answer)),
        Asker::Fault(_) | Asker::Deadlock(_) => {
            MasterAction::ToClient(JobAnswer::Stacks(ReportedStacks::Part(answer)))
        }
    }
}

impl ToolCommands {
    /// A tool sends a command, or the master requests stacks. Adds the orders and the first answer
    /// to `out`.
    ///
    /// # Errors
    /// One line for the user.
    pub fn begin(
        &mut self,
        asker: Asker,
        call: ToolCall,
        programs: StagePrograms,
        now: MonotonicTime,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let wait = Duration::from_millis(call.wait_ms.into());
        if call.session.is_some_and(|session| !self.sessions.contains_key(&session)) {
            return Err("the session of this tool has ended".to_owned());
        }
        let is_full = self.running.len() >= MAX_TOOL_COMMANDS;
        if is_full && matches!(asker, Asker::Session(_) | Asker::Page) {
            return Err(format!(
                "{MAX_TOOL_COMMANDS} commands of tools wait for answers of job {} already",
                call.job
            ));
        }
        let ranks = programs.checked(call.job, call.ranks)?;
        // Each program gets an order with the body.
        let count = programs.count_of(&ranks).max(1);
        if call.body.len().saturating_mul(count) > MAX_TOOL_BODY || wait > MAX_ANSWER_TIMEOUT {
            return Err(format!(
                "a command of a tool to {count} programs has at most {} bytes and \
                 {MAX_ANSWER_TIMEOUT:?}",
                MAX_TOOL_BODY / count
            ));
        }
        let id = self.order(&ranks, call.wait_ms, &call.body, &programs, out);
        let StagePrograms { names, nodes } = programs;
        out.push(to_asker(asker, ToolAnswer::Programs { names, nodes }));
        let grace = match asker {
            Asker::Session(_) | Asker::Page => ANSWER_GRACE,
            Asker::Fault(_) | Asker::Deadlock(_) => REPORT_ANSWER_GRACE,
        };
        let deadline = now + wait + grace;
        let command = RunningCommand { asker, unanswered: ranks, answer_bytes: 0, deadline };
        self.running.insert(id, command);
        Ok(())
    }

    /// Adds the orders that send a command to these ranks.
    fn order(
        &mut self,
        ranks: &NodeSet,
        wait_ms: u32,
        body: &[u8],
        programs: &StagePrograms,
        out: &mut Outbox,
    ) -> CommandId {
        self.last_id += 1;
        let id = CommandId(self.last_id);
        for element in ElementIndex::all(programs.names.len()) {
            let range = programs.ranks(element);
            let mut nodes = NodeSet::new();
            for part in ranks.within(range.clone()).ranges() {
                nodes.insert_range(part.start - range.start..part.end - range.start);
            }
            if !nodes.is_empty() {
                let command = ToolCommand { id, nodes, wait_ms, body: body.to_vec() };
                let order: Order = ElementOrder::ToolCommand(command).to(element);
                out.order(order);
            }
        }
        id
    }

    /// A tool begins a session.
    ///
    /// # Errors
    /// One line for the user.
    pub fn begin_session(
        &mut self,
        key: SessionKey,
        session: ToolSession,
        programs: StagePrograms,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let ToolSession { job, session, ranks, at_end } = session;
        if self.sessions.len() >= MAX_SESSIONS_PER_JOB {
            return Err(format!("job {job} has {MAX_SESSIONS_PER_JOB} sessions of tools; end one"));
        }
        if at_end.len() > MAX_END_BODY {
            return Err(format!("a last command of a tool has at most {MAX_END_BODY} bytes"));
        }
        if self.sessions.contains_key(&session) {
            return Err(format!("job {job} has a session of a tool of this number; try again"));
        }
        let ranks = programs.checked(job, ranks)?;
        self.sessions.insert(session, OpenSession { key, ranks, at_end });
        let StagePrograms { names, nodes } = programs;
        out.push(to_asker(Asker::Session(key), ToolAnswer::Programs { names, nodes }));
        Ok(())
    }

    /// A session of a tool has ended. Answers of the ranks to its last command are dropped.
    pub fn end_session(&mut self, key: SessionKey, programs: &StagePrograms, out: &mut Outbox) {
        let ended: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.key == key)
            .map(|(number, _)| *number)
            .collect();
        for number in ended {
            let Some(session) = self.sessions.remove(&number) else { continue };
            // A later stage may have fewer ranks.
            let ranks = session.ranks.within(programs.all_ranks());
            let wait_ms = END_COMMAND_TIMEOUT.as_millis() as u32;
            self.order(&ranks, wait_ms, &session.at_end, programs, out);
        }
    }

    /// The job ends: no session is needed any more.
    pub fn finish_sessions(&mut self, out: &mut Outbox) {
        for session in std::mem::take(&mut self.sessions).into_values() {
            let end = ConsoleAnswer::Finished { code: 0 };
            out.to_session(session.key, end);
        }
    }

    /// An event of nodes of an element has arrived. `first_rank` is the rank of the element's node
    /// 0.
    pub fn on_event(&mut self, first_rank: u32, event: MergedEvent, out: &mut Outbox) {
        let Some(command) = self.running.get_mut(&event.command) else { return };
        let ranks = shifted(&event.ranks, first_rank);
        command.unanswered = command.unanswered.difference(&ranks);
        let body = match event.body {
            EventBody::Answer(bytes) => {
                command.answer_bytes = command.answer_bytes.saturating_add(bytes.len());
                match command.answer_bytes <= MAX_TOOL_ANSWER_BYTES {
                    true => EventBody::Answer(bytes),
                    false => EventBody::Dropped { events: 1 },
                }
            }
            other => other,
        };
        out.push(to_asker(command.asker, ToolAnswer::Event { ranks, body }));
        if command.unanswered.is_empty() {
            self.finish(event.command, out);
        }
    }

    fn finish(&mut self, id: CommandId, out: &mut Outbox) {
        let Some(command) = self.running.remove(&id) else { return };
        if !command.unanswered.is_empty() {
            out.push(to_asker(command.asker, ToolAnswer::Missing(command.unanswered)));
        }
        match command.asker {
            Asker::Session(session_key) => {
                let end = ConsoleAnswer::Finished { code: 0 };
                out.to_session(session_key, end);
            }
            Asker::Page => out.push(MasterAction::ToPage(PageStacks::End)),
            Asker::Fault(_) | Asker::Deadlock(_) => self.finished_reports.push(command.asker),
        }
    }

    /// The reports to the user whose stacks have been read since the last call.
    pub fn take_finished_reports(&mut self) -> Vec<Asker> {
        std::mem::take(&mut self.finished_reports)
    }

    /// Ends all commands: the stage or the job has ended, so no rank answers any more.
    pub fn finish_all(&mut self, out: &mut Outbox) {
        let ids: Vec<CommandId> = self.running.keys().copied().collect();
        ids.into_iter().for_each(|id| self.finish(id, out));
    }

    /// When [`ToolCommands::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.running.values().map(|command| command.deadline).min()
    }

    /// Ends the commands whose time is over.
    pub fn on_tick(&mut self, now: MonotonicTime, out: &mut Outbox) {
        let is_over = |command: &RunningCommand| command.deadline <= now;
        let over = self.running.iter().filter(|(_, command)| is_over(command));
        let ids: Vec<CommandId> = over.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.finish(id, out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionKey = SessionKey(7);

    fn programs() -> StagePrograms {
        StagePrograms { names: vec!["scatter".to_owned(), "a.out".to_owned()], nodes: 4 }
    }

    fn call(ranks: Option<NodeSet>) -> ToolCall {
        ToolCall { job: JobId(3), ranks, wait_ms: 1000, body: vec![9], session: None }
    }

    fn begin(
        commands: &mut ToolCommands,
        call: ToolCall,
        programs: StagePrograms,
    ) -> Result<Vec<MasterAction>, String> {
        let mut out = Outbox::default();
        commands
            .begin(Asker::Session(SESSION), call, programs, Duration::ZERO, &mut out)
            .map(|()| out.take())
    }

    fn answer(nodes: impl Into<NodeSet>, body: EventBody) -> MergedEvent {
        MergedEvent { command: CommandId(1), ranks: nodes.into(), body }
    }

    /// The output of the session: answers with their ranks, ranks that are missing, the end.
    fn shown(actions: &[MasterAction]) -> Vec<String> {
        let show = |action: &MasterAction| match action {
            MasterAction::ToSession(SESSION, ConsoleAnswer::Finished { code }) => {
                format!("end {code}")
            }
            MasterAction::ToSession(SESSION, ConsoleAnswer::Tool(answer)) => match answer {
                ToolAnswer::Programs { names, nodes } => format!("{} x {nodes}", names.join(" ")),
                ToolAnswer::Event { ranks, body: EventBody::Answer(_) } => format!("{ranks}"),
                ToolAnswer::Event { ranks, body } => format!("{ranks}: {body:?}"),
                ToolAnswer::Missing(ranks) => format!("missing {ranks}"),
            },
            MasterAction::Order(Order::Element { element, order }) => match order {
                ElementOrder::ToolCommand(command) => format!("to {element}: {}", command.nodes),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        actions.iter().map(show).collect()
    }

    #[test]
    fn ranks_are_numbered_through_the_elements_and_each_answers_as_its_node() {
        let mut commands = ToolCommands::default();
        let ranks = NodeSet::from(2..7);
        let begun = begin(&mut commands, call(Some(ranks)), programs()).unwrap();
        assert_eq!(shown(&begun), ["to 0: 2-3", "to 1: 0-2", "scatter a.out x 4"]);
        let mut out = Outbox::default();
        commands.on_event(4, answer(0..3, EventBody::Answer(vec![1])), &mut out);
        assert_eq!(shown(&out.take()), ["4-6"]);
        commands.on_event(0, answer(2..4, EventBody::Lost), &mut out);
        assert_eq!(shown(&out.take()), ["2-3: Lost", "end 0"]);
        assert_eq!(commands.deadline(), None);
    }

    #[test]
    fn a_command_ends_at_its_deadline_or_with_its_stage_and_lists_the_missing_nodes() {
        let mut commands = ToolCommands::default();
        begin(&mut commands, call(None), programs()).unwrap();
        let mut out = Outbox::default();
        commands.on_event(0, answer(1..4, EventBody::Answer(Vec::new())), &mut out);
        out.take();
        let deadline = commands.deadline().unwrap();
        commands.on_tick(deadline - Duration::from_millis(1), &mut out);
        assert_eq!(out.take(), []);
        commands.on_tick(deadline, &mut out);
        assert_eq!(shown(&out.take()), ["missing 0, 4-7", "end 0"]);
        begin(&mut commands, call(None), programs()).unwrap();
        commands.finish_all(&mut out);
        assert_eq!(shown(&out.take()), ["missing 0-7", "end 0"]);
        // A late event is dropped.
        commands.on_event(0, answer(0..4, EventBody::Lost), &mut out);
        assert_eq!(out.take(), []);
    }

    #[test]
    fn a_command_that_cannot_be_executed_is_refused_with_its_reason() {
        let mut commands = ToolCommands::default();
        let none = StagePrograms { names: Vec::new(), nodes: 4 };
        let long = ToolCall { body: vec![0; MAX_TOOL_BODY / 2 + 1], ..call(None) };
        let slow = ToolCall { wait_ms: 600_001, ..call(None) };
        let beyond = call(Some(NodeSet::one(8)));
        for (call, programs, reason) in [
            (long, programs(), "to 2 programs has at most 33280 bytes"),
            (slow, programs(), "600s"),
            (beyond, programs(), "rank 8: job 3 has ranks 0 to 7"),
            (call(None), none, "no processes now"),
            (call(Some(NodeSet::new())), programs(), "no processes now"),
        ] {
            let error = begin(&mut commands, call, programs).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        for _ in 0..MAX_TOOL_COMMANDS {
            begin(&mut commands, call(None), programs()).unwrap();
        }
        let error = begin(&mut commands, call(None), programs()).unwrap_err();
        assert!(error.contains("wait for answers"), "{error}");
    }

    #[test]
    fn all_ranks_learn_of_the_end_of_a_session_and_its_later_commands_are_refused() {
        let mut commands = ToolCommands::default();
        let of_session = || ToolCall { session: Some(5), ..call(None) };
        let error = begin(&mut commands, of_session(), programs()).unwrap_err();
        assert!(error.contains("has ended"), "{error}");
        let session = ToolSession { job: JobId(3), session: 5, ranks: None, at_end: vec![7] };
        let mut out = Outbox::default();
        commands.begin_session(SESSION, session.clone(), programs(), &mut out).unwrap();
        assert_eq!(shown(&out.take()), ["scatter a.out x 4"]);
        let again = commands.begin_session(SESSION, session.clone(), programs(), &mut out);
        assert!(again.unwrap_err().contains("of this number"));
        begin(&mut commands, of_session(), programs()).unwrap();
        commands.end_session(SessionKey(8), &programs(), &mut out);
        assert_eq!(out.take(), []);
        commands.end_session(SESSION, &programs(), &mut out);
        assert_eq!(shown(&out.take()), ["to 0: 0-3", "to 1: 0-3"]);
        assert!(begin(&mut commands, of_session(), programs()).is_err());
        // A session that changes some ranks only: the other ranks do not get its last command.
        let of_some =
            |ranks: Range<u32>| ToolSession { ranks: Some(ranks.into()), ..session.clone() };
        let beyond = commands.begin_session(SESSION, of_some(7..9), programs(), &mut out);
        assert!(beyond.unwrap_err().contains("rank 8: job 3 has ranks 0 to 7"));
        commands.begin_session(SESSION, of_some(2..4), programs(), &mut out).unwrap();
        out.take();
        commands.end_session(SESSION, &programs(), &mut out);
        assert_eq!(shown(&out.take()), ["to 0: 2-3"]);
        // The end of the job ends the connection.
        commands.begin_session(SESSION, session, programs(), &mut out).unwrap();
        out.take();
        commands.finish_sessions(&mut out);
        assert_eq!(shown(&out.take()), ["end 0"]);
    }

    #[test]
    fn sessions_of_tools_and_their_last_commands_are_bounded_for_each_job() {
        let mut commands = ToolCommands::default();
        let mut begin = |session, at_end| {
            let session = ToolSession { job: JobId(3), session, ranks: None, at_end };
            commands.begin_session(SESSION, session, programs(), &mut Outbox::default())
        };
        let error = begin(0, vec![0; MAX_END_BODY + 1]).unwrap_err();
        assert!(error.contains("has at most"), "{error}");
        for session in 0..MAX_SESSIONS_PER_JOB as u64 {
            begin(session, vec![0; MAX_END_BODY]).unwrap();
        }
        let error = begin(99, Vec::new()).unwrap_err();
        assert!(error.contains("sessions of tools; end one"), "{error}");
    }

    #[test]
    fn the_page_gets_the_answers_and_the_command_limit_of_a_session() {
        let mut commands = ToolCommands::default();
        let mut begin_for_page = |out: &mut Outbox| {
            commands.begin(Asker::Page, call(None), programs(), Duration::ZERO, out)
        };
        let mut out = Outbox::default();
        begin_for_page(&mut out).unwrap();
        for _ in 1..MAX_TOOL_COMMANDS {
            begin_for_page(&mut Outbox::default()).unwrap();
        }
        assert!(begin_for_page(&mut Outbox::default()).unwrap_err().contains("wait for answers"));
        commands.on_event(0, answer(0..4, EventBody::Lost), &mut out);
        commands.on_event(4, answer(0..4, EventBody::Lost), &mut out);
        let for_page = |action: MasterAction| match action {
            MasterAction::ToPage(stacks) => Some(stacks),
            _ => None,
        };
        let shown: Vec<PageStacks> = out.take().into_iter().filter_map(for_page).collect();
        let lost =
            |ranks: Range<u32>| ToolAnswer::Event { ranks: ranks.into(), body: EventBody::Lost };
        let [PageStacks::Part(ToolAnswer::Programs { .. }), rest @ ..] = &shown[..] else {
            panic!("{shown:?}")
        };
        let expected =
            [PageStacks::Part(lost(0..4)), PageStacks::Part(lost(4..8)), PageStacks::End];
        assert_eq!(rest, expected);
    }

    #[test]
    fn answers_beyond_the_bytes_of_a_command_are_counted_only() {
        let mut commands = ToolCommands::default();
        begin(&mut commands, call(None), programs()).unwrap();
        let (body, mut out) =
            (EventBody::Answer(vec![0; MAX_TOOL_ANSWER_BYTES]), Outbox::default());
        commands.on_event(0, answer(0..1, body.clone()), &mut out);
        commands.on_event(0, answer(1..2, body), &mut out);
        assert_eq!(shown(&out.take()), ["0", "1: Dropped { events: 1 }"]);
    }
}
