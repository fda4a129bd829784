//! Several jobs of one login run at the same time. Each has its own output, signals and end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::driver::*;
use score_client::Received;
use score_proto::client_session::{JobMessage, MAX_JOBS, SESSION_JOB};
use score_proto::ids::SessionJobId;
use score_proto::message::*;
use score_proto::server_message::JobAnswer;

/// A client with one login and any number of jobs.
struct MultiJobClient {
    /// Has the connection. Ends scored when the test ends.
    scored: Driver,
    /// The received messages, by job.
    jobs: BTreeMap<SessionJobId, Outcome>,
    /// The jobs that scored has reported as unknown.
    unknown: Vec<SessionJobId>,
}

impl MultiJobClient {
    fn new() -> Self {
        let mut scored = Driver::connect(ScoredOptions::default());
        scored.connection.greet();
        Self { scored, jobs: BTreeMap::new(), unknown: Vec::new() }
    }

    fn request(&mut self, job: SessionJobId, request: &SingleUserRequest) {
        self.scored.request(job, request);
    }

    fn send(&mut self, job: SessionJobId, request: &JobRequest) {
        self.request(job, &SingleUserRequest::Job(request.clone()));
    }

    fn submit(&mut self, job: SessionJobId, spec: JobSpec) {
        self.request(job, &SingleUserRequest::Submit(spec));
    }

    fn outcome_of(&mut self, job: SessionJobId) -> &mut Outcome {
        self.jobs.entry(job).or_default()
    }

    /// Reads the available messages. Waits at most 20 ms.
    fn step(&mut self) {
        let mut next = self.scored.connection.wait(STEP_TIMEOUT);
        if let Err(error) = &next {
            panic!("{error}: {:?}", self.jobs);
        }
        // After its last message, scored may close the connection.
        while let Ok(Some(received)) = next {
            match received {
                Received::Answer(JobMessage { job, message }) => self.on_answer(job, message),
                Received::Notice { level, text } => {
                    self.outcome_of(SESSION_JOB).notices.push((level, text))
                }
                Received::Refused { reason, code } => {
                    self.outcome_of(SESSION_JOB).refused = Some((reason, code))
                }
            }
            next = self.scored.connection.receive();
        }
    }

    fn on_answer(&mut self, job: SessionJobId, answer: JobAnswer) {
        let has_ended = self.jobs.get(&job).is_some_and(|outcome| outcome.end.is_some());
        assert!(
            !has_ended || answer == JobAnswer::UnknownJob,
            "{answer:?} came after the end of job {job}"
        );
        match answer {
            JobAnswer::Output { stream: Stream::Stdout, bytes, .. } => {
                self.send(job, &JobRequest::OutputAck(bytes.len() as u64));
                self.outcome_of(job).out.extend(bytes);
            }
            JobAnswer::Output { bytes, .. } => {
                self.send(job, &JobRequest::OutputAck(bytes.len() as u64))
            }
            JobAnswer::Flush(token) => self.send(job, &JobRequest::Flushed(token)),
            JobAnswer::Notice { level, text } => self.outcome_of(job).notices.push((level, text)),
            JobAnswer::Refused { reason, code } => {
                self.outcome_of(job).refused = Some((reason, code))
            }
            JobAnswer::Finished(end) => self.outcome_of(job).end = Some(end),
            JobAnswer::Directory(path) => self.outcome_of(job).dir = path,
            JobAnswer::UnknownJob => self.unknown.push(job),
            _ => {}
        }
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !holds(self) {
            assert!(Instant::now() < end, "{what} did not arrive: {:?}", self.jobs);
            self.step();
        }
    }

    fn until_ended(&mut self, job: SessionJobId) -> u8 {
        self.until("the end of a job", |client| client.outcome_of(job).end.is_some());
        self.outcome_of(job).code()
    }

    fn until_started(&mut self, job: SessionJobId) {
        self.until("the first line", |client| client.outcome_of(job).text().contains("up\n"));
    }
}

// Promise (several users): Each job of a login has its own output, input, signals and end; too many
// jobs, a repeated number and a job that no longer exists are reported and affect no other job; all
// jobs end with the login.
#[test]
fn jobs_of_one_login_run_at_the_same_time_and_each_has_its_own_end() {
    let mut client = MultiJobClient::new();
    client.submit(SessionJobId(1), job(2, vec![sh("echo up; sleep 1000")]));
    client.submit(SessionJobId(2), job(1, vec![sh("echo up; read line; kill -SEGV $$")]));
    client.submit(SessionJobId(3), job(2, vec![sh("seq 20000; exit 3")]));
    let cat = JobSpec { reads_stdin: true, ..job(1, vec![system(&["cat"])]) };
    client.submit(SessionJobId(70_000), cat);
    client.until_started(SessionJobId(1));
    assert_eq!(client.until_ended(SessionJobId(2)), 128 + libc::SIGSEGV as u8);
    assert_eq!(client.until_ended(SessionJobId(3)), 3);
    let expected = (1..=20000).flat_map(|line| [line, line]).map(|line: u32| line.to_string());
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    assert_eq!(client.outcome_of(SessionJobId(3)).lines(), expected);
    client.send(SessionJobId(70_000), &JobRequest::Stdin(b"for the fourth\n".to_vec()));
    client.send(SessionJobId(70_000), &JobRequest::StdinEof);
    assert_eq!(client.until_ended(SessionJobId(70_000)), 0);
    assert_eq!(client.outcome_of(SessionJobId(70_000)).text(), "for the fourth\n");
    // All other jobs have ended, but job 1 still runs.
    assert!(client.outcome_of(SessionJobId(1)).end.is_none());
    client.send(SessionJobId(1), &JobRequest::Signal(libc::SIGINT));
    assert_eq!(client.until_ended(SessionJobId(1)), 128 + libc::SIGINT as u8);
    assert_eq!(client.outcome_of(SessionJobId(1)).text(), "up\nup\n");
    // The number of the job may be used again.
    client.jobs.clear();
    client.submit(SessionJobId(1), job(1, vec![sh("echo again")]));
    assert_eq!(
        (client.until_ended(SessionJobId(1)), client.outcome_of(SessionJobId(1)).text().as_str()),
        (0, "again\n")
    );
}

// Promise of `jobs_of_one_login_run_at_the_same_time_and_each_has_its_own_end`.
#[test]
fn a_duplicate_or_unknown_job_number_is_reported_and_affects_no_other_job() {
    let mut client = MultiJobClient::new();
    client.submit(SessionJobId(5), job(1, vec![sh("echo up; sleep 1000")]));
    client.until_started(SessionJobId(5));
    client.submit(SessionJobId(5), job(1, vec![sh("echo second")]));
    client.until("the notice", |client| {
        client.outcome_of(SessionJobId(5)).notices().contains("a job of number 5")
    });
    for message in [
        JobRequest::Kill,
        JobRequest::Stdin(vec![1; 1000]),
        JobRequest::StdinEof,
        JobRequest::Suspend,
    ] {
        client.send(SessionJobId(6), &message);
    }
    // Such messages are often in flight when a job ends, so they are not reported.
    client.send(SessionJobId(6), &JobRequest::OutputAck(7));
    client.submit(SessionJobId(7), job(1, vec![sh("exit 9")]));
    assert_eq!(client.until_ended(SessionJobId(7)), 9);
    assert_eq!(client.unknown, [SessionJobId(6); 4]);
    client.send(SessionJobId(7), &JobRequest::Kill);
    client.send(SessionJobId(5), &JobRequest::Kill);
    assert_eq!(client.until_ended(SessionJobId(5)), 128 + libc::SIGKILL as u8);
    assert_eq!(client.unknown.iter().map(|job| job.0).collect::<Vec<_>>(), [6, 6, 6, 6, 7]);
    assert_eq!(client.outcome_of(SessionJobId(5)).text(), "up\n");
}

// Promise of `jobs_of_one_login_run_at_the_same_time_and_each_has_its_own_end`.
#[test]
fn a_login_has_a_bounded_number_of_jobs_and_its_end_ends_them() {
    let mark = mark();
    let mut spec = job(1, vec![sh("echo up; setsid sleep 1000 & sleep 1000")]);
    spec.environment.push(bytes(&mark));
    let mut client = MultiJobClient::new();
    let last = MAX_JOBS as u32;
    let one_too_many = SessionJobId(last + 1);
    (1..=last + 1).for_each(|job| client.submit(SessionJobId(job), spec.clone()));
    client.until("the refusal", |client| client.outcome_of(one_too_many).refused.is_some());
    let (reason, _) = client.outcome_of(one_too_many).refused.take().unwrap();
    assert!(reason.contains(&format!("{MAX_JOBS} jobs")), "{reason}");
    (1..=last).for_each(|job| client.until_started(SessionJobId(job)));
    client.send(SessionJobId(3), &JobRequest::Kill);
    client.until_ended(SessionJobId(3));
    client.submit(one_too_many, spec);
    client.until_started(one_too_many);
    let folders: Vec<String> = client.jobs.values().map(|job| job.dir.clone()).collect();
    assert!(marked(&mark).len() >= MAX_JOBS);
    client.scored.connection.shutdown(std::net::Shutdown::Both).unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    while !marked(&mark).is_empty() {
        assert!(Instant::now() < end, "{:?} are left", marked(&mark));
        std::thread::sleep(Duration::from_millis(10));
    }
    for folder in folders {
        while std::path::Path::new(&folder).exists() {
            assert!(Instant::now() < end, "{folder} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn job_number_zero_is_refused() {
    let mut client = MultiJobClient::new();
    client.submit(SESSION_JOB, job(1, vec![sh("echo no")]));
    client.until("the refusal", |client| client.outcome_of(SESSION_JOB).refused.is_some());
    assert_eq!(client.outcome_of(SESSION_JOB).refused.as_ref().unwrap().0, "0 is not a job number");
}
