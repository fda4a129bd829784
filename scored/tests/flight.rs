//! Several jobs of one login: side by side, each with its own output, signals and end.

mod driver;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use driver::*;
use score_proto::PROTOCOL_VERSION;
use score_proto::login::{self, JOBS, LOGIN, Ups};
use score_proto::message::*;

/// A login with any number of jobs.
struct Flight {
    /// Ends scored when the test ends.
    _scored: Driver,
    socket: UnixStream,
    ups: Ups,
    /// What came, by job.
    jobs: BTreeMap<u32, Outcome>,
    /// Jobs of which scored has said that there is none.
    unknown: Vec<u32>,
}

impl Flight {
    fn new() -> Self {
        let scored = Driver::connect(How::default());
        let socket = scored.socket.try_clone().unwrap();
        let (jobs, unknown) = (BTreeMap::new(), Vec::new());
        let mut flight = Self { _scored: scored, socket, ups: Ups::default(), jobs, unknown };
        flight.say(LOGIN, &Down::Hello { version: PROTOCOL_VERSION });
        flight
    }

    fn say(&mut self, job: u32, message: &Down) {
        let mut frame = Vec::new();
        login::encode(job, message, &mut frame).unwrap();
        self.socket.write_all(&frame).unwrap();
    }

    fn submit(&mut self, job: u32, spec: JobSpec) {
        self.say(job, &Down::Submit(spec));
    }

    fn of(&mut self, job: u32) -> &mut Outcome {
        self.jobs.entry(job).or_default()
    }

    /// Takes what has come; waits 20 ms at most.
    fn step(&mut self) {
        let mut chunk = vec![0; 256 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => panic!("scored has gone: {:?}", self.jobs),
            Ok(count) => self.ups.push(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        while let Some(heard) = self.ups.next().unwrap() {
            self.heard(heard.job, heard.message);
        }
    }

    fn heard(&mut self, job: u32, message: Up) {
        let over = self.jobs.get(&job).is_some_and(|one| one.end.is_some());
        assert!(!over || message == Up::NoJob, "after the end of job {job} came {message:?}");
        match message {
            Up::Output { stream: Stream::Stdout, bytes, .. } => {
                self.say(job, &Down::OutputTaken(bytes.len() as u64));
                self.of(job).out.extend(bytes);
            }
            Up::Output { bytes, .. } => self.say(job, &Down::OutputTaken(bytes.len() as u64)),
            Up::Flush(token) => self.say(job, &Down::Flushed(token)),
            Up::Notice { level, text } => self.of(job).notices.push((level, text)),
            Up::Refused { reason, code } => self.of(job).refused = Some((reason, code)),
            Up::Finished(end) => self.of(job).end = Some(end),
            Up::Directory(path) => self.of(job).dir = path,
            Up::NoJob => self.unknown.push(job),
            _ => {}
        }
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "{what} did not come: {:?}", self.jobs);
            self.step();
        }
    }

    fn until_over(&mut self, job: u32) -> u8 {
        self.until("the end of a job", |flight| flight.of(job).end.is_some());
        self.of(job).code()
    }

    fn until_up(&mut self, job: u32) {
        self.until("the first line", |flight| flight.of(job).text().contains("up\n"));
    }
}

#[test]
fn jobs_of_one_login_run_side_by_side_and_each_comes_to_its_own_end() {
    let mut flight = Flight::new();
    flight.submit(1, job(2, vec![sh("echo up; sleep 1000")]));
    flight.submit(2, job(1, vec![sh("echo up; read line; kill -SEGV $$")]));
    flight.submit(3, job(2, vec![sh("seq 20000; exit 3")]));
    let cat = JobSpec { stdin: true, ..job(1, vec![system(&["cat"])]) };
    flight.submit(70_000, cat);
    flight.until_up(1);
    assert_eq!(flight.until_over(2), 128 + libc::SIGSEGV as u8);
    assert_eq!(flight.until_over(3), 3);
    let twice = (1..=20000).flat_map(|line| [line, line]).map(|line: u32| line.to_string());
    let mut twice: Vec<String> = twice.collect();
    twice.sort();
    assert_eq!(flight.of(3).lines(), twice);
    flight.say(70_000, &Down::Stdin(b"for the fourth\n".to_vec()));
    flight.say(70_000, &Down::StdinEof);
    assert_eq!(flight.until_over(70_000), 0);
    assert_eq!(flight.of(70_000).text(), "for the fourth\n");
    // All others have come and gone; this one is still as it was.
    assert!(flight.of(1).end.is_none());
    flight.say(1, &Down::Signal(libc::SIGINT));
    assert_eq!(flight.until_over(1), 128 + libc::SIGINT as u8);
    assert_eq!(flight.of(1).text(), "up\nup\n");
    // Its number is free again.
    flight.jobs.clear();
    flight.submit(1, job(1, vec![sh("echo again")]));
    assert_eq!((flight.until_over(1), flight.of(1).text().as_str()), (0, "again\n"));
}

#[test]
fn a_number_that_is_taken_and_one_of_nobody_are_told_and_disturb_nobody() {
    let mut flight = Flight::new();
    flight.submit(5, job(1, vec![sh("echo up; sleep 1000")]));
    flight.until_up(5);
    flight.submit(5, job(1, vec![sh("echo second")]));
    flight.until("the notice", |flight| flight.of(5).notices().contains("a job of number 5"));
    for message in [Down::Kill, Down::Stdin(vec![1; 1000]), Down::StdinEof, Down::Suspend] {
        flight.say(6, &message);
    }
    // They are on their way often when a job ends.
    flight.say(6, &Down::OutputTaken(7));
    flight.submit(7, job(1, vec![sh("exit 9")]));
    assert_eq!(flight.until_over(7), 9);
    assert_eq!(flight.unknown, [6; 4]);
    flight.say(7, &Down::Kill);
    flight.say(5, &Down::Kill);
    assert_eq!(flight.until_over(5), 128 + libc::SIGKILL as u8);
    assert_eq!(flight.unknown, [6, 6, 6, 6, 7]);
    assert_eq!(flight.of(5).text(), "up\n");
}

#[test]
fn a_login_has_so_many_jobs_and_no_more_and_takes_them_all_along() {
    let mark = mark();
    let mut spec = job(1, vec![sh("echo up; setsid sleep 1000 & sleep 1000")]);
    spec.environment.push(bytes(&mark));
    let mut flight = Flight::new();
    let last = JOBS as u32;
    (1..=last + 1).for_each(|job| flight.submit(job, spec.clone()));
    flight.until("the refusal", |flight| flight.of(last + 1).refused.is_some());
    let (reason, _) = flight.of(last + 1).refused.take().unwrap();
    assert!(reason.contains(&format!("{JOBS} jobs")), "{reason}");
    (1..=last).for_each(|job| flight.until_up(job));
    flight.say(3, &Down::Kill);
    flight.until_over(3);
    flight.submit(last + 1, spec);
    flight.until_up(last + 1);
    let folders: Vec<String> = flight.jobs.values().map(|job| job.dir.clone()).collect();
    assert!(marked(&mark).len() >= JOBS);
    flight.socket.shutdown(std::net::Shutdown::Both).unwrap();
    let end = Instant::now() + PATIENCE;
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
fn number_nought_is_no_job_and_ends_the_login() {
    let mut flight = Flight::new();
    flight.submit(LOGIN, job(1, vec![sh("echo no")]));
    flight.until("the refusal", |flight| flight.of(LOGIN).refused.is_some());
    assert_eq!(flight.of(LOGIN).refused.as_ref().unwrap().0, "0 is the number of no job");
}
