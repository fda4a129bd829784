//! A real daemon that hears of jobs which are not meant for it: of another life of its host, or of
//! another job that had the same number.

mod driver;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use driver::*;
use score_proto::frame;
use score_proto::order::{Begin, Order, Placement, Report};
use score_proto::peer::{Hello, Incarnation, Join, Peer};
use score_tree::key::Key;
use score_tree::link::{Limits, Link};

const KEY: [u8; 32] = [7; 32];
const LIMITS: Limits = Limits { handshake: PATIENCE, silence: PATIENCE };
const JOB: u32 = 9;

/// This test as the server, and a daemon that has joined.
struct Server {
    stream: TcpStream,
    link: Link,
    began: Instant,
    daemon: Child,
    join: Join,
    _scratch: Scratch,
}

impl Server {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        std::fs::write(scratch.path("key"), KEY).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let daemon = Command::new(env!("CARGO_BIN_EXE_scored"))
            .args(["-daemon", "-connect", &address, "-host", "h", "-key", &scratch.path("key")])
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let link = Link::accept(&Key::from_bytes(KEY), LIMITS, Duration::ZERO);
        // Until it has said what it is.
        let join = Join {
            name: String::new(),
            incarnation: 0,
            address: from,
            server: None,
            without: None,
            attach: 0,
        };
        let began = Instant::now();
        let mut server = Self { stream, link, began, daemon, join, _scratch: scratch };
        let hello = Hello { host: None, name: "server".to_owned(), incarnation: 1 };
        server.say(&Peer::Hello(hello));
        server.join = server.until("it joins", |message| match message {
            Peer::Join(join) => Some(join),
            _ => None,
        });
        server
    }

    fn say(&mut self, message: &Peer) {
        self.link.send(message, self.began.elapsed()).unwrap();
        self.flush();
    }

    fn flush(&mut self) {
        let out = self.link.outgoing().to_vec();
        self.stream.write_all(&out).unwrap();
        self.link.wrote(out.len());
    }

    fn order(&mut self, life: u64, order: &Order) {
        let body = frame::encode_datagram(order).unwrap();
        self.say(&Peer::Order { job: JOB, life, body });
    }

    fn place(&mut self, life: u64, incarnation: Incarnation) {
        let daemon = Some((self.join.address, incarnation));
        let placement = Placement::new(life, [("h".to_owned(), daemon, 1)]);
        self.order(life, &Order::Place(placement));
    }

    fn begin(&mut self, life: u64, script: &str) {
        let spec = job(1, vec![sh(script)]);
        self.order(life, &Order::Begin(Box::new(Begin { job: JOB, secret: 1, spec, owner: None })));
    }

    /// The first thing among what comes that is wanted.
    fn until<T>(&mut self, what: &str, wanted: impl Fn(Peer) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut chunk = [0; 65536];
        loop {
            assert!(Instant::now() < end, "it did not come: {what}");
            while let Some(message) = self.link.next::<Peer>().unwrap() {
                if let Some(found) = wanted(message) {
                    return found;
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("the daemon has gone before {what}"),
                Ok(count) => self.link.push(&chunk[..count], self.began.elapsed()).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            self.link.tick(self.began.elapsed()).unwrap();
            self.flush();
        }
    }

    fn report<T>(&mut self, what: &str, life: u64, wanted: impl Fn(Report) -> Option<T>) -> T {
        self.until(what, |message| match message {
            Peer::Report { job: JOB, life: of, body } if of == life => {
                wanted(frame::decode_datagram(&body).unwrap())
            }
            _ => None,
        })
    }

    /// Starts the job's processes and waits for their word.
    fn run(&mut self, life: u64, word: &str) {
        self.report("ready", life, |report| (report == Report::Ready).then_some(()));
        self.order(life, &Order::StartStage(0));
        self.report(word, life, |report| match report {
            Report::Output { bytes, .. } => (bytes == format!("{word}\n").as_bytes()).then_some(()),
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

fn is_end(report: Report) -> Option<()> {
    matches!(report, Report::Ended { .. }).then_some(())
}

#[test]
fn a_job_that_was_given_to_an_earlier_life_of_the_host_is_not_begun() {
    let mut server = Server::start("lives");
    let own = server.join.incarnation;
    server.place(1, own + 1);
    let reason = server.report("a refusal", 1, |report| match report {
        Report::NotHere { reason } => Some(reason),
        _ => None,
    });
    assert!(reason.contains("begun anew"), "{reason}");
    // The same number, meant for this one.
    server.place(2, own);
    server.begin(2, "echo up; exec sleep 300");
    server.run(2, "up");
}

#[test]
fn a_late_order_of_an_earlier_job_does_not_touch_the_one_that_has_its_number_now() {
    let mut server = Server::start("numbers");
    let own = server.join.incarnation;
    server.place(2, own);
    server.begin(2, "echo up; exec sleep 300");
    server.run(2, "up");
    for late in [Order::Kill, Order::Finish, Order::Abandon] {
        server.order(1, &late);
    }
    // A new one ends what is left of its predecessor, whoever leads that.
    let mark = mark();
    server.place(3, own);
    server.begin(3, &format!("export {mark}; echo second; exec sleep 300"));
    server.run(3, "second");
    // It has said its word, and is about to be what carries the mark.
    let end = Instant::now() + PATIENCE;
    while marked(&mark).len() != 1 {
        assert!(Instant::now() < end, "{:?}", marked(&mark));
        std::thread::sleep(Duration::from_millis(5));
    }
    server.order(2, &Order::Kill);
    server.order(3, &Order::Signal(10));
    server.report("the end of the right one", 3, is_end);
    assert_eq!(marked(&mark).len(), 0);
}
