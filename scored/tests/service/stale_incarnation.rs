//! Sends orders to a real daemon that are not meant for it: for another incarnation of its host, or
//! for another job with the same number.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::driver::*;
use score_proto::frame;
use score_proto::ids::JobId;
use score_proto::job_control::{
    ElementReport, HopOrder, HopReport, JobOrder, JobReport, JobStart, Order, OutputReport,
    Placement, Report,
};
use score_proto::peer_message::{Hello, Incarnation, JobIncarnation, JoinRequest, PeerMessage};
use score_tree::key::Key;
use score_tree::link::{Link, LinkTimeouts};

const KEY: [u8; 32] = [7; 32];
const LIMITS: LinkTimeouts =
    LinkTimeouts { handshake_timeout: TEST_TIMEOUT, silence_timeout: TEST_TIMEOUT };
const JOB: JobId = JobId(9);

/// This test in the role of the server, with a daemon that has joined.
struct Server {
    stream: TcpStream,
    link: Link,
    started_at: Instant,
    daemon: Child,
    join: JoinRequest,
    _scratch: TempDir,
}

impl Server {
    fn start(name: &str) -> Self {
        let scratch = TempDir::new(name);
        std::fs::write(scratch.path("key"), KEY).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let daemon = Command::new(env!("CARGO_BIN_EXE_scored"))
            .args(["-daemon", "-connect", &address, "-host", "h", "-key", &scratch.path("key")])
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, peer_address) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let link = Link::accept(&Key::from_bytes(KEY), LIMITS, Duration::ZERO);
        // A placeholder for the daemon's own message.
        let join = JoinRequest {
            name: String::new(),
            incarnation: Incarnation(0),
            address: peer_address,
            server_incarnation: None,
            unreachable_parent: None,
            attach_seq: 0,
        };
        let started_at = Instant::now();
        let mut server = Self { stream, link, started_at, daemon, join, _scratch: scratch };
        let hello = Hello { host: None, name: "server".to_owned(), incarnation: Incarnation(1) };
        server.send(&PeerMessage::Hello(hello));
        server.join = server.until("the message Join", |message| match message {
            PeerMessage::Join(join) => Some(join),
            _ => None,
        });
        server
    }

    fn send(&mut self, message: &PeerMessage) {
        self.link.send(message, self.started_at.elapsed()).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        let out = self.link.outgoing().to_vec();
        self.stream.write_all(&out).unwrap();
        self.link.mark_written(out.len());
    }

    fn send_job_order(&mut self, job_incarnation: JobIncarnation, order: JobOrder) {
        self.send_order(job_incarnation, &HopOrder::Tree(Order::Job(order)));
    }

    fn send_order(&mut self, job_incarnation: JobIncarnation, order: &HopOrder) {
        let body = frame::encode_datagram(order).unwrap();
        self.send(&PeerMessage::Order { job: JOB, job_incarnation, body });
    }

    fn send_placement(&mut self, job_incarnation: JobIncarnation, incarnation: Incarnation) {
        let daemon = Some((self.join.address, incarnation));
        let placement = Placement::new(job_incarnation, [("h".to_owned(), daemon, 1)]);
        self.send_order(job_incarnation, &HopOrder::SetPlacement(placement));
    }

    fn send_begin(&mut self, job_incarnation: JobIncarnation, script: &str) {
        let spec = job(1, vec![sh(script)]);
        let start = JobStart { job: JOB, secret: 1, spec, owner: None };
        self.send_job_order(job_incarnation, JobOrder::StartJob(start.into()));
    }

    /// Receives messages until `select` accepts one.
    fn until<T>(&mut self, what: &str, select: impl Fn(PeerMessage) -> Option<T>) -> T {
        let end = Instant::now() + TEST_TIMEOUT;
        let mut chunk = [0; 65536];
        loop {
            assert!(Instant::now() < end, "{what} did not arrive");
            while let Some(message) = self.link.next::<PeerMessage>().unwrap() {
                if let Some(found) = select(message) {
                    return found;
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the daemon has exited before {what}"),
                Ok(count) => self.link.push(&chunk[..count], self.started_at.elapsed()).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            self.link.tick(self.started_at.elapsed()).unwrap();
            self.flush();
        }
    }

    fn report<T>(
        &mut self,
        what: &str,
        job_incarnation: JobIncarnation,
        select: impl Fn(HopReport) -> Option<T>,
    ) -> T {
        self.until(what, |message| match message {
            PeerMessage::Report { job: JOB, job_incarnation: reported, body }
                if reported == job_incarnation =>
            {
                select(frame::decode_datagram(&body).unwrap())
            }
            _ => None,
        })
    }

    /// Starts the processes of the job and waits for this line of output.
    fn run(&mut self, job_incarnation: JobIncarnation, line: &str) {
        let ready = HopReport::Tree(Report::Job(JobReport::Ready));
        self.report("ready", job_incarnation, |report| (report == ready).then_some(()));
        self.send_job_order(job_incarnation, JobOrder::StartStage(0));
        self.report(line, job_incarnation, |report| match report {
            HopReport::Tree(Report::Output(OutputReport::Text { bytes, .. })) => {
                (bytes == format!("{line}\n").as_bytes()).then_some(())
            }
            _ => None,
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn is_end(report: HopReport) -> Option<()> {
    match report {
        HopReport::Tree(Report::Element { report: ElementReport::Ended { .. }, .. }) => Some(()),
        _ => None,
    }
}

// Promise (several users): Messages of an earlier incarnation of a host, or of an earlier job of
// the same number, do not affect a job that runs now.
#[test]
fn a_job_placed_on_an_earlier_incarnation_of_the_host_is_not_started() {
    let mut server = Server::start("incarnations");
    let incarnation = server.join.incarnation;
    server.send_placement(JobIncarnation(1), Incarnation(incarnation.0 + 1));
    let reason = server.report("a refusal", JobIncarnation(1), |report| match report {
        HopReport::UnknownJob { reason } => Some(reason),
        _ => None,
    });
    assert!(reason.contains("has restarted since"), "{reason}");
    // A job with the same number, placed on the present incarnation.
    server.send_placement(JobIncarnation(2), incarnation);
    server.send_begin(JobIncarnation(2), "echo up; exec sleep 300");
    server.run(JobIncarnation(2), "up");
}

// Promise of `a_job_placed_on_an_earlier_incarnation_of_the_host_is_not_started`.
#[test]
fn a_late_order_of_an_earlier_job_does_not_affect_the_job_that_reuses_its_number() {
    let mut server = Server::start("numbers");
    let incarnation = server.join.incarnation;
    server.send_placement(JobIncarnation(2), incarnation);
    server.send_begin(JobIncarnation(2), "echo up; exec sleep 300");
    server.run(JobIncarnation(2), "up");
    for late in [JobOrder::Kill, JobOrder::Finish] {
        server.send_job_order(JobIncarnation(1), late);
    }
    server.send_order(JobIncarnation(1), &HopOrder::Abort);
    // A new job ends its predecessor with the same number, even if another server leads that job.
    let mark = mark();
    server.send_placement(JobIncarnation(3), incarnation);
    server.send_begin(JobIncarnation(3), &format!("export {mark}; echo second; exec sleep 300"));
    server.run(JobIncarnation(3), "second");
    // The process has printed its line, but may not have executed the program with the mark yet.
    let end = Instant::now() + TEST_TIMEOUT;
    while marked(&mark).len() != 1 {
        assert!(Instant::now() < end, "{:?}", marked(&mark));
        std::thread::sleep(Duration::from_millis(5));
    }
    server.send_job_order(JobIncarnation(2), JobOrder::Kill);
    server.send_job_order(JobIncarnation(3), JobOrder::Signal(10));
    server.report("the end of the job with incarnation 3", JobIncarnation(3), is_end);
    assert_eq!(marked(&mark).len(), 0);
}
