//! A service of tools with a process and a tool, for tests.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command as Program};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use score_proto::frame;
use score_proto::ids::{JobHostId, JobId, ProcessIndex};
use score_proto::message::OsBytes;
use score_proto::toolctl::{ToolctlJob, ToolctlOrder};
use score_sys::fd_passing;
use score_toolctl::client::ToolConnection;
use score_tools::wire::*;

use super::Session;

const JOB: JobId = JobId(17);
/// The time limit for an answer of the service.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A service with a process of rank 0, and a tool that is attached to it.
pub struct Job {
    pub session: Session,
    pub service: Child,
    shepherd: UnixStream,
    pub tool: ToolConnection,
    sequence: u32,
}

impl Job {
    pub fn start(name: &str) -> Option<Self> {
        let mut session = Session::start(&["1"])?;
        // The service is the tracer.
        session.handles_events = false;
        let path = std::env::temp_dir().join(format!("toolctl-{name}-{}", std::process::id()));
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(8).unwrap()).unwrap();
        let (shepherd, its_end) = UnixStream::pair().unwrap();
        let tool = ToolConnection::connect(&path, JOB.0.into(), 0).unwrap();
        std::fs::remove_file(&path).unwrap();
        let service = Program::new(env!("CARGO_BIN_EXE_scored-toolctl"))
            .stdin(OwnedFd::from(its_end))
            .stdout(listener)
            .stderr(File::open("/proc").unwrap())
            .spawn()
            .unwrap();
        let mut job = Self { session, service, shepherd, tool, sequence: 1000 };
        let directory = OsBytes(b"/tmp".to_vec());
        job.order(ToolctlOrder::Job(ToolctlJob { job: JOB, host: JobHostId::FIRST, directory }));
        let pid = job.session.pid;
        job.order(ToolctlOrder::Started { rank: 0, number: ProcessIndex::FIRST, pid });
        job.order(ToolctlOrder::ServeTools);
        Some(job)
    }

    pub fn attached(name: &str) -> Option<Self> {
        let mut job = Self::start(name)?;
        let body = Attach { tag: *b"the tool", priority: 1, select: ProcessSelect::RanksInNode };
        let record = job.tool.ask(0, &ToolRequest::Attach(body), ANSWER_TIMEOUT).unwrap();
        let (header, message) = ServiceMessage::decode(&record).unwrap();
        assert_eq!(message, ServiceMessage::AttachAck(vec![0]), "{header:?}");
        Some(job)
    }

    pub fn order(&mut self, order: ToolctlOrder) {
        let mut bytes = Vec::new();
        frame::encode(&order, &mut bytes).unwrap();
        self.shepherd.write_all(&bytes).unwrap();
    }

    /// Sends a message with these descriptors. Returns the code, the error and the answer.
    pub fn send(
        &mut self,
        request: &ToolRequest<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> (ReturnCode, u32, Vec<u8>) {
        self.sequence += 1;
        let header = Header::new(JOB.0.into(), 0, self.tool.tool(), self.sequence);
        let record = request.encode(&header).unwrap();
        fd_passing::send(&self.tool, &record, fds).unwrap();
        loop {
            let answer = self.tool.receive_record(ANSWER_TIMEOUT).unwrap();
            let (header, message) = ServiceMessage::decode(&answer).unwrap();
            if !matches!(message, ServiceMessage::Notify(_)) {
                assert_eq!(header.sequence, self.sequence);
                return (header.code().unwrap(), header.error_code, answer);
            }
        }
    }

    /// Carries out an Update of one command.
    pub fn update(&mut self, request: CommandRequest<'_>) {
        let (code, _, answer) =
            self.send(&ToolRequest::Update(&[Command { thread: 0, request }]), &[]);
        let message = ServiceMessage::decode(&answer).unwrap().1;
        let ServiceMessage::UpdateAck(results) = message else { panic!("{message:?}") };
        assert_eq!((code, results[0].return_code), (ReturnCode::Success, 0));
    }

    /// Ends the service, and checks that the process works.
    pub fn end(mut self) {
        drop(self.tool);
        let mut bytes = Vec::new();
        frame::encode(&ToolctlOrder::End, &mut bytes).unwrap();
        self.shepherd.write_all(&bytes).unwrap();
        assert!(self.service.wait().unwrap().success());
        self.session.assert_works();
    }
}
