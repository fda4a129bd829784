use super::*;
use mio::Poll;
use score_proto::ids::HostId;
use score_proto::message::OsBytes;
use score_proto::observation::{Metrics, NodeMetrics};
use score_proto::peer_message::Incarnation;
use std::io::Write;
use std::os::unix::net::UnixStream;

#[test]
fn a_slow_reader_gets_all_messages_except_metrics() {
    let (local, remote) = UnixStream::pair().unwrap();
    local.set_nonblocking(true).unwrap();
    let poll = Poll::new().unwrap();
    let mut session = ClientSession::new(local.into(), poll.registry(), Token(9)).unwrap();
    let metrics = Metrics { hosts: Vec::new(), nodes: vec![NodeMetrics::default(); 100] };
    let backlog = |session: &ClientSession| match &session.transport {
        Transport::Local(link) => link.backlog(),
        Transport::Remote { .. } => 0,
    };
    for _ in 0..10_000 {
        session
            .send(&ServerMessage::job_answer(SessionJobId(1), JobAnswer::Metrics(metrics.clone())));
        session.flush();
    }
    assert!(backlog(&session) < SLOW_READER_BYTES + 4096, "{}", backlog(&session));
    let before = backlog(&session);
    session.send(&ServerMessage::job_answer(SessionJobId(1), JobAnswer::StdinClosed));
    assert!(backlog(&session) > before);
    drop(remote);
}

fn connected_session(owner: Option<Owner>) -> (ClientSession, Poll, UnixStream) {
    let (local, remote) = UnixStream::pair().unwrap();
    let poll = Poll::new().unwrap();
    let (registry, token) = (poll.registry(), Token(9));
    let mut session =
        ClientSession::unauthenticated(local.into(), UserIds { uid: 7, gid: 7 }, registry, token)
            .unwrap();
    if let Some(owner) = owner {
        let id = SessionId { host: HostId(0), incarnation: Incarnation(1), number: 9 };
        session.log_in(SessionState::User(LoggedInUser { owner, id }));
    }
    (session, poll, remote)
}

#[test]
fn a_client_that_has_disconnected_is_read_if_it_has_logged_in() {
    for (owner, is_read) in [(None, false), (Some(owner()), true)] {
        let (mut session, _poll, _remote) = connected_session(owner);
        assert!(!session.is_lost(|| false));
        session.mark_hung_up();
        assert!(session.is_lost(|| false));
        assert_eq!(session.is_lost(|| true), !is_read);
    }
}

fn owner() -> Owner {
    Owner { uid: 7, gid: 7, name: OsBytes(Vec::new()), limits: Vec::new(), voucher: Vec::new() }
}

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&Greeting::Hello { version: PROTOCOL_VERSION }, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_unfinished_message_is_refused_after_a_minute() {
    let (mut session, _poll, mut remote) = connected_session(Some(owner()));
    let hello = hello();
    remote.write_all(&hello[..3]).unwrap();
    assert!(session.next_request(Readiness::Ready, Instant::now()).is_none());
    let begun_at = session.frame_deadline().unwrap() - UNFINISHED_FRAME_TIMEOUT;
    let later = |seconds| begun_at + Duration::from_secs(seconds);
    assert!(session.refuse_overdue_frame(later(59)).is_none());
    // The message is completed in time. The next message has its own time limit.
    remote.write_all(&hello[3..]).unwrap();
    session.mark_readable();
    assert!(matches!(
        session.next_request(Readiness::Ready, Instant::now()),
        Some((_, ClientRequest::Handled))
    ));
    assert!(session.next_request(Readiness::Ready, Instant::now()).is_none());
    assert_eq!(session.frame_deadline(), None);
    assert!(session.refuse_overdue_frame(later(61)).is_none());
    remote.write_all(&[1]).unwrap();
    session.mark_readable();
    assert!(session.next_request(Readiness::Ready, Instant::now()).is_none());
    let deadline = session.frame_deadline().unwrap();
    // The time limit is suspended while the daemon does not read.
    assert!(session.next_request(Readiness::Blocked, deadline).is_none());
    assert!(session.refuse_overdue_frame(deadline).is_none());
    let deadline = session.frame_deadline().unwrap();
    // The time limit continues if the user's own messages occupy the memory.
    assert!(session.next_request(Readiness::NoRoom, deadline - Duration::from_secs(1)).is_none());
    let refused = session.next_request(Readiness::NoRoom, deadline);
    assert!(matches!(refused, Some((SESSION_JOB, ClientRequest::ProtocolError))));
    assert!(session.is_closing());
}

#[test]
fn long_messages_are_accepted_only_after_the_login() {
    let long = JobRequest::Stdin(vec![0; MAX_UNAUTHENTICATED_MESSAGE_LEN]);
    let mut bytes = hello();
    frame::encode(
        &JobMessage { job: SessionJobId(1), message: UserRequest::Job(long) },
        &mut bytes,
    )
    .unwrap();
    for (owner, is_refused) in [(None, true), (Some(owner()), false)] {
        let (mut session, _poll, mut remote) = connected_session(owner);
        remote.write_all(&bytes).unwrap();
        assert!(matches!(
            session.next_request(Readiness::Ready, Instant::now()),
            Some((_, ClientRequest::Handled))
        ));
        let refused = matches!(
            session.next_request(Readiness::Ready, Instant::now()),
            Some((_, ClientRequest::ProtocolError))
        );
        assert_eq!((refused, session.is_closing()), (is_refused, is_refused));
    }
}

#[test]
fn the_sessions_of_a_user_share_the_limit_on_messages_to_all_hosts() {
    let mut usage = Usage::new(Instant::now());
    let now = Instant::now();
    let (mut sessions, _ends): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| {
            let (session, poll, remote) = connected_session(Some(owner()));
            (session, (poll, remote))
        })
        .unzip();
    let mut count = 0;
    while sessions[0].next_control_at(&usage, now).is_none() {
        sessions[0].take_control(&mut usage, now);
        count += 1;
    }
    assert_eq!(count, 64);
    let due = sessions[1].next_control_at(&usage, now).unwrap();
    assert_eq!(sessions[1].next_control_at(&usage, due), None);
    // A client that has not logged in can log in.
    let (before_login, _poll, _remote) = connected_session(None);
    assert_eq!(before_login.next_control_at(&usage, now), None);
    // In single-user mode each session has its own limit.
    let (local, _remote) = UnixStream::pair().unwrap();
    let poll = Poll::new().unwrap();
    let mut single = ClientSession::new(local.into(), poll.registry(), Token(9)).unwrap();
    let now = Instant::now();
    for _ in 0..count {
        assert_eq!(single.next_control_at(&usage, now), None);
        single.take_control(&mut usage, now);
    }
    assert!(single.next_control_at(&usage, now).is_some());
}
