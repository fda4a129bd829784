//! Tests that every client message is permitted exactly as the table in docs/admin/security.md
//! says. The tests cover all session states, and jobs of the same user and of others.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use mio::{Poll, Token};
use score_job::cluster::SessionId;
use score_job::cluster::authorization::{JobAction, Requester, authorize};
use score_proto::allocation_request::AllocationRequest;
use score_proto::client_session::{self, SESSION_JOB};
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::job_control::Owner;
use score_proto::message::{
    ConsoleRequest, DebuggerRequest, HostSpec, JobRequest, JobSpec, Login, OsBytes,
    SingleUserRequest, StageSpec, Stream, ToolCall, ToolSession, UserRequest,
};
use score_proto::peer_message::Incarnation;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolId};

use super::client_request::{ClientRequest, Readiness};
use super::session::ClientSession;
use super::session_state::{LoggedInUser, SessionState};
use crate::sys::credentials::UserIds;

const SECURITY_PAGE: &str = include_str!("../../../docs/admin/security.md");
/// The number of the session's job, and a number that the session has not assigned.
const OWN_JOB: SessionJobId = SessionJobId(1);
const OTHER_JOB: SessionJobId = SessionJobId(2);
const UID: u32 = 1000;

/// The columns of the table: the state of the session and the owner of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Situation {
    BeforeLogin,
    SingleUser,
    OwnJob,
    OthersJob,
    OperatorOthersJob,
}

const SITUATIONS: [Situation; 5] = [
    Situation::BeforeLogin,
    Situation::SingleUser,
    Situation::OwnJob,
    Situation::OthersJob,
    Situation::OperatorOthersJob,
];

/// A message of a client.
struct TestMessage {
    /// Encodes the message for the job with this number.
    encode: Box<dyn Fn(SessionJobId) -> Vec<u8>>,
    /// Whether the session has decoded this message, and not another one with the same encoding.
    is_same: Box<dyn Fn(&ClientRequest) -> bool>,
}

impl TestMessage {
    fn new(
        encode: impl Fn(SessionJobId) -> Vec<u8> + 'static,
        is_same: impl Fn(&ClientRequest) -> bool + 'static,
    ) -> Self {
        Self { encode: Box::new(encode), is_same: Box::new(is_same) }
    }

    fn console(request: ConsoleRequest) -> Self {
        let sent = request.clone();
        Self::new(
            move |_| frame(SESSION_JOB, &UserRequest::Console(sent.clone())),
            move |decoded| matches!(decoded, ClientRequest::Console(one) if *one == request),
        )
    }

    /// A request to a job, as clients of multi-user mode and of single-user mode encode it.
    fn to_job(request: &JobRequest) -> [Self; 2] {
        let [one, other] = [request.clone(), request.clone()];
        let is_same = |request: JobRequest| {
            move |decoded: &ClientRequest| match decoded {
                ClientRequest::ToJob(decoded) => *decoded == request,
                _ => false,
            }
        };
        [
            Self::new(
                move |job| frame(job, &UserRequest::Job(one.clone())),
                is_same(request.clone()),
            ),
            Self::new(
                move |job| frame(job, &SingleUserRequest::Job(other.clone())),
                is_same(request.clone()),
            ),
        ]
    }
}

fn frame<M: serde::Serialize>(job: SessionJobId, message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    client_session::encode(job, message, &mut bytes).unwrap();
    bytes
}

fn spec() -> JobSpec {
    JobSpec {
        hosts: vec![HostSpec::local(1)],
        stages: vec![StageSpec { elements: Vec::new() }],
        directory: OsBytes(b"/".to_vec()),
        ..JobSpec::default()
    }
}

fn job_requests() -> Vec<JobRequest> {
    vec![
        JobRequest::Stdin(vec![1]),
        JobRequest::StdinEof,
        JobRequest::OutputAck(1),
        JobRequest::Flushed(1),
        JobRequest::OutputClosed(Stream::Stdout),
        JobRequest::Signal(1),
        JobRequest::Suspend,
        JobRequest::Resume,
        JobRequest::SubscribeMetrics(1),
        JobRequest::Debugger(DebuggerRequest::HoldStages(true)),
        JobRequest::Kill,
        JobRequest::ToolAction(ToolAction::Signal { tool: ToolId(1), signal: 15 }),
        JobRequest::FileChunk { hash: [1; 32], offset: 0, bytes: vec![1] },
    ]
}

/// The messages of a row of the table. The words of its first cell select the row.
fn messages(row: &str) -> Vec<TestMessage> {
    // A session gives each new job a number that it has not used.
    const NEW_JOB: SessionJobId = SessionJobId(9);
    match row {
        "`Login`" => {
            let (name, cluster) = (OsBytes(Vec::new()), String::new());
            let login = Login { uid: UID, name, cluster };
            let encode = move |_| frame(SESSION_JOB, &login);
            vec![TestMessage::new(encode, |decoded| matches!(decoded, ClientRequest::Login(_)))]
        }
        "`Submit`, `OpenScoutSession`" => {
            let open = SingleUserRequest::OpenScoutSession(vec![HostSpec::local(1)]);
            vec![
                TestMessage::new(
                    |_| frame(NEW_JOB, &SingleUserRequest::Submit(spec())),
                    |decoded| matches!(decoded, ClientRequest::Submit(_)),
                ),
                TestMessage::new(
                    move |_| frame(SESSION_JOB, &open),
                    |decoded| matches!(decoded, ClientRequest::Open(_)),
                ),
            ]
        }
        "`SubmitJob`, `List`, `Page`" => {
            let allocation = AllocationRequest::FewestHosts(1);
            vec![
                TestMessage::new(
                    move |_| frame(NEW_JOB, &UserRequest::SubmitJob { allocation, spec: spec() }),
                    |decoded| matches!(decoded, ClientRequest::Request(..)),
                ),
                TestMessage::console(ConsoleRequest::List),
                TestMessage::console(ConsoleRequest::Page),
            ]
        }
        "`Kill`, `SubscribeMetrics` by the job's number in the cluster" => vec![
            TestMessage::console(ConsoleRequest::Kill(JobId(5))),
            TestMessage::console(ConsoleRequest::SubscribeMetrics { job: JobId(5), period_ms: 1 }),
        ],
        "`Tool`, `ToolSession`, `ToolAction`, `ToolFile`, `Processes` by the job's number in the \
         cluster" => {
            let (job, body) = (JobId(5), Vec::new());
            let call = ToolCall { job, ranks: None, wait_ms: 1, body, session: None };
            let session = ToolSession { job, session: 1, ranks: None, at_end: Vec::new() };
            vec![
                TestMessage::console(ConsoleRequest::ToolSession(session)),
                TestMessage::console(ConsoleRequest::Tool(call)),
                TestMessage::console(ConsoleRequest::Processes(job)),
                TestMessage::console(ConsoleRequest::ToolFile(ToolFileChunk {
                    job,
                    hash: [1; 32],
                    offset: 0,
                    bytes: vec![1],
                })),
                TestMessage::console(ConsoleRequest::ToolAction {
                    job: JobId(5),
                    action: ToolAction::Signal { tool: ToolId(1), signal: 15 },
                }),
            ]
        }
        "all requests to a job of the session" => {
            job_requests().iter().flat_map(TestMessage::to_job).collect()
        }
        unknown => panic!("{unknown}: not a row of the table"),
    }
}

/// Whether the daemon carries out a message in this situation.
fn is_permitted(situation: Situation, message: &TestMessage) -> bool {
    let poll = Poll::new().unwrap();
    let (local, mut remote) = UnixStream::pair().unwrap();
    let ids = UserIds { uid: UID, gid: UID };
    let mut session = match situation {
        Situation::SingleUser => ClientSession::new(local.into(), poll.registry(), Token(9)),
        _ => ClientSession::unauthenticated(local.into(), ids, poll.registry(), Token(9)),
    }
    .unwrap();
    if !matches!(situation, Situation::SingleUser | Situation::BeforeLogin) {
        let owner = Owner {
            uid: UID,
            gid: UID,
            name: OsBytes(Vec::new()),
            limits: Vec::new(),
            voucher: Vec::new(),
        };
        let id = SessionId { host: HostId(0), incarnation: Incarnation(1), number: 9 };
        session.log_in(SessionState::User(LoggedInUser { owner, id }));
    }
    session.add_job(OWN_JOB, None);
    let is_others = matches!(situation, Situation::OthersJob | Situation::OperatorOthersJob);
    let mut bytes = Vec::new();
    client_session::encode_greeting(&mut bytes).unwrap();
    bytes.extend((message.encode)(if is_others { OTHER_JOB } else { OWN_JOB }));
    remote.write_all(&bytes).unwrap();
    let requester = Requester { uid: UID, is_operator: situation == Situation::OperatorOthersJob };
    let owner_uid = if is_others { UID + 1 } else { UID };
    let authorized = |action, job| authorize(requester, action, job, owner_uid).is_ok();
    // The first request is the greeting.
    assert!(matches!(
        session.next_request(Readiness::Ready, Instant::now()),
        Some((_, ClientRequest::Handled))
    ));
    match session.next_request(Readiness::Ready, Instant::now()) {
        Some((_, ClientRequest::ProtocolError)) => {
            assert!(session.is_closing());
            false
        }
        Some((_, decoded)) if !(message.is_same)(&decoded) => false,
        None => false,
        Some((_, ClientRequest::Console(ConsoleRequest::Kill(job)))) => {
            authorized(JobAction::Kill, job)
        }
        Some((_, ClientRequest::Console(ConsoleRequest::SubscribeMetrics { job, .. }))) => {
            authorized(JobAction::Watch, job)
        }
        Some((_, ClientRequest::Console(ConsoleRequest::Tool(call)))) => {
            authorized(JobAction::Debug, call.job)
        }
        Some((_, ClientRequest::Console(ConsoleRequest::ToolFile(chunk)))) => {
            authorized(JobAction::Debug, chunk.job)
        }
        Some((_, ClientRequest::Console(ConsoleRequest::ToolSession(session)))) => {
            authorized(JobAction::Debug, session.job)
        }
        Some((
            _,
            ClientRequest::Console(
                ConsoleRequest::ToolAction { job, .. } | ConsoleRequest::Processes(job),
            ),
        )) => authorized(JobAction::Debug, job),
        Some(_) => true,
    }
}

#[test]
fn the_permission_of_every_message_agrees_with_the_table() {
    let (_, section) = SECURITY_PAGE.split_once("## Who may send what").unwrap();
    let table = section.split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    let mut row_count = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 1 + SITUATIONS.len(), "{row}");
        for (index, message) in messages(cells[0]).iter().enumerate() {
            for (situation, cell) in SITUATIONS.into_iter().zip(&cells[1..]) {
                let found = if is_permitted(situation, message) { "yes" } else { "no" };
                assert_eq!(found, *cell, "message {index} of {}: {situation:?}", cells[0]);
            }
        }
        row_count += 1;
    }
    assert_eq!(row_count, 6);
}
