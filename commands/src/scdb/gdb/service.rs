//! Connects to the tool control service of a rank on any host. The messages pass through the
//! daemons, like the commands of the console.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use score_proto::message::{ConsoleRequest, ToolCall, ToolSession};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{
    EventBody, FileAnswer, FileQuestion, OTHER_RELEASE, RelayAction, ToolRecord,
    ToolRequest as Question, ToolResult,
};
use score_proto::tool_start::ScrunJob;
use score_tools::wire::{Header, MessageType, ServiceMessage, ToolRequest};

use crate::scored_client::{QueryStream, Reply};

/// The time for which the daemons wait for an answer of the rank's host.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Additional time until the answer of the daemons must have arrived.
const CALL_GRACE: Duration = Duration::from_secs(15);
/// The time for which the service waits for records before it answers that there are none.
const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// A rank of a job, and the daemon that runs the job.
#[derive(Debug, Clone)]
pub struct RankService {
    target: ScrunJob,
    socket: Option<PathBuf>,
    rank: u32,
}

/// A request that is not yet answered.
#[derive(Debug)]
struct Call {
    stream: QueryStream,
    deadline: Instant,
    answer: Option<ToolResult>,
}

impl Call {
    /// The answer, if it arrives within `timeout`.
    fn poll(&mut self, timeout: Duration) -> io::Result<Option<ToolResult>> {
        loop {
            // The deadline of this call applies, not that of the stream.
            self.stream.expect_silence();
            let reply = self.stream.next_reply_within(timeout).map_err(io::Error::other)?;
            match reply {
                Reply::Answer(ToolAnswer::Event { body, .. }) => {
                    let answer = match (body.failure(), body) {
                        (None, EventBody::Answer(bytes)) => ToolResult::decode(&bytes),
                        (reason, _) => return Err(io::Error::other(reason.unwrap_or_default())),
                    };
                    self.answer = Some(answer.ok_or_else(|| io::Error::other(OTHER_RELEASE))?);
                }
                Reply::Answer(ToolAnswer::Programs { .. } | ToolAnswer::Missing(_))
                | Reply::Notice(_) => {}
                Reply::End => {
                    let missing =
                        || io::Error::other("the rank has ended, or has not answered in time");
                    return self.answer.take().ok_or_else(missing).map(Some);
                }
                Reply::Pending if Instant::now() < self.deadline => return Ok(None),
                Reply::Pending => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    fn wait(mut self) -> io::Result<ToolResult> {
        loop {
            if let Some(answer) = self.poll(CALL_TIMEOUT)? {
                return Ok(answer);
            }
        }
    }
}

fn failure_of(result: &ToolResult) -> io::Error {
    match result {
        ToolResult::Failed(reason) => io::Error::other(reason.clone()),
        _ => io::Error::other(OTHER_RELEASE),
    }
}

impl RankService {
    /// A rank of a job. `socket` is the socket of the scored of this host, if it is not the
    /// default.
    pub fn new(target: ScrunJob, rank: u32, socket: Option<PathBuf>) -> Self {
        Self { target, socket, rank }
    }

    fn call(&self, question: &Question, session: Option<u64>) -> io::Result<Call> {
        let call = ToolCall {
            job: self.target.job,
            ranks: Some(NodeSet::one(self.rank)),
            wait_ms: milliseconds(CALL_TIMEOUT),
            body: question.encode(),
            session,
        };
        let request = ConsoleRequest::Tool(call);
        let stream = QueryStream::open_at(self.target, request, self.socket.clone());
        let stream = stream.map_err(io::Error::other)?;
        Ok(Call { stream, deadline: Instant::now() + CALL_TIMEOUT + CALL_GRACE, answer: None })
    }

    /// Requests data of a file or the name of a thread on the host of the rank.
    ///
    /// # Errors
    /// Returns an error if the connection to the service fails.
    pub fn ask_file(&self, question: FileQuestion) -> io::Result<FileAnswer> {
        match self.call(&Question::File(question), None)?.wait()? {
            ToolResult::File(answer) => Ok(answer),
            other => Err(failure_of(&other)),
        }
    }

    /// Begins a session of tool control. When this process ends for any reason, the service undoes
    /// the changes of the session.
    ///
    /// # Errors
    /// One line: this user has no such job, or the job has no such rank.
    pub fn connect(self) -> Result<ToolSessionLink, String> {
        let session = score_sys::random::random_u64();
        let at_end = Question::Relay { session, action: RelayAction::End }.encode();
        let ranks = Some(NodeSet::one(self.rank));
        let request = ToolSession { job: self.target.job, session, ranks, at_end };
        let request = ConsoleRequest::ToolSession(request);
        let mut lease = QueryStream::open_at(self.target, request, self.socket.clone())?;
        if lease.next_reply::<ToolAnswer>()?.is_none() {
            return Err("the job has ended".to_owned());
        }
        Ok(ToolSessionLink {
            service: self,
            session,
            _lease: lease,
            tool: 0,
            last_sequence: 0,
            last_number: 0,
            notices: VecDeque::new(),
            answers: VecDeque::new(),
            listening: None,
        })
    }
}

/// A session of tool control with the service of a rank.
#[derive(Debug)]
pub struct ToolSessionLink {
    service: RankService,
    session: u64,
    /// While this is open, the job keeps the changes of the session.
    _lease: QueryStream,
    /// The number of this tool. It is 0 until the first Attach is answered.
    tool: u32,
    last_sequence: u32,
    /// The number of the last answer of the service that was handled.
    last_number: u64,
    /// Notices that are not yet handled.
    notices: VecDeque<Vec<u8>>,
    /// Answers to requests that are not yet handled.
    answers: VecDeque<(Header, Vec<u8>)>,
    /// The call that waits for a notice.
    listening: Option<Call>,
}

fn header_of(record: &[u8]) -> io::Result<Header> {
    let decoded = ServiceMessage::decode(record);
    decoded.map(|(header, _)| header).map_err(|_| io::Error::other(OTHER_RELEASE))
}

impl ToolSessionLink {
    /// The rank's service, for requests that are not part of tool control.
    pub fn service(&self) -> &RankService {
        &self.service
    }

    fn call(&self, action: RelayAction) -> io::Result<Call> {
        let question = Question::Relay { session: self.session, action };
        self.service.call(&question, Some(self.session))
    }

    fn ask_service(&self, record: Vec<u8>) -> io::Result<Call> {
        self.call(RelayAction::Ask { record, wait_ms: milliseconds(RELAY_TIMEOUT) })
    }

    /// Starts a call that waits for a notice, if there is none.
    fn listen(&mut self) -> io::Result<()> {
        if self.listening.is_none() {
            self.listening =
                Some(self.call(RelayAction::Listen { wait_ms: milliseconds(RELAY_TIMEOUT) })?);
        }
        Ok(())
    }

    /// Takes the records of an answer of the service, after the records of all earlier answers.
    fn take(&mut self, result: ToolResult) -> io::Result<()> {
        let ToolResult::Records { number, records } = result else {
            return Err(failure_of(&result));
        };
        // If an answer is missing, it arrives on the call that listens.
        if number > self.last_number + 1
            && let Some(listening) = self.listening.take()
        {
            let before = listening.wait()?;
            self.take(before)?;
        }
        if number != self.last_number + 1 {
            return Err(io::Error::other(OTHER_RELEASE));
        }
        self.last_number = number;
        for ToolRecord(record) in records {
            let header = header_of(&record)?;
            match header.kind == MessageType::Notify.number() {
                true => self.notices.push_back(record),
                false => self.answers.push_back((header, record)),
            }
        }
        Ok(())
    }

    /// Sends a request and waits for its answer. Notices that arrive before it are kept.
    ///
    /// # Errors
    /// Returns an error if the connection to the service fails. TimedOut: no answer arrived in
    /// time.
    pub fn ask(&mut self, request: &ToolRequest<'_>, timeout: Duration) -> io::Result<Vec<u8>> {
        self.last_sequence += 1;
        let (job, sequence) = (self.service.target.job.0.into(), self.last_sequence);
        let header = Header::new(job, self.service.rank, self.tool, sequence);
        let mut record = request.encode(&header).map_err(io::Error::other)?;
        let deadline = Instant::now() + timeout;
        // The request may end the rank. The notice about the end needs a call that listens.
        self.listen()?;
        loop {
            let result = self.ask_service(std::mem::take(&mut record))?.wait()?;
            self.take(result)?;
            while let Some((header, answer)) = self.answers.pop_front() {
                if header.sequence == sequence {
                    if self.tool == 0 {
                        self.tool = header.tool;
                    }
                    return Ok(answer);
                }
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// The next notice that has arrived. `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the connection to the service fails.
    pub fn next_notice(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.notices.is_empty()
            && let Some(listening) = &mut self.listening
            && let Some(result) = listening.poll(Duration::ZERO)?
        {
            self.listening = None;
            self.take(result)?;
        }
        Ok(self.notices.pop_front())
    }

    /// A descriptor that is readable when [`ToolSessionLink::next_notice`] has work to do.
    ///
    /// # Errors
    /// Returns an error if the connection to the service fails.
    pub fn wait_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.listen()?;
        let listening = self.listening.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(listening.stream.as_fd())
    }
}
