//! The sockets of the page: who connects, what each asks, and that nobody holds more than a little
//! of this daemon. Whoever connects is nobody yet; what it may see, its token says.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::cluster::Time;
use crate::page::request::HEAD;
use crate::page::response::Status;
use crate::page::{Connection, Hosts, Request, response};

/// Connections at the same time. When there are more, the oldest goes that has shown no token; if
/// all have, the oldest of the user that has most.
const MOST: usize = 128;
/// Somebody may wait whom descriptors were missing for.
const AGAIN: Duration = Duration::from_millis(100);
/// Connections taken in one turn of the loop.
const AT_ONCE: usize = 32;

#[derive(Debug)]
struct Visitor {
    stream: TcpStream,
    connection: Connection,
    /// The socket may hold more: mio reports each arrival once only.
    readable: bool,
}

/// All connections.
#[derive(Debug)]
pub struct Visitors {
    listener: TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
    hosts: Hosts,
    /// In the order in which they came.
    visitors: BTreeMap<usize, Visitor>,
    waiting: bool,
    exhausted: bool,
}

impl Visitors {
    /// Listens; `name` is the server's.
    ///
    /// # Errors
    /// One line with the address.
    pub fn open(
        address: SocketAddr,
        name: &str,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, String> {
        let named = |error: io::Error| format!("-page {address}: {error}");
        let mut listener = TcpListener::bind(address).map_err(named)?;
        let address = listener.local_addr().map_err(named)?;
        registry.register(&mut listener, token, Interest::READABLE).map_err(named)?;
        let hosts = Hosts { address: address.ip(), name: name.to_owned() };
        let visitors = BTreeMap::new();
        Ok(Self { listener, address, hosts, visitors, waiting: true, exhausted: false })
    }

    /// Somebody connects.
    pub fn knock(&mut self) {
        self.waiting = true;
    }

    /// mio has reported something of a connection.
    pub fn mark(&mut self, number: usize) {
        self.visitors.get_mut(&number).into_iter().for_each(|one| one.readable = true);
    }

    /// The next who connects, if there is one.
    fn accept(&mut self) -> Option<TcpStream> {
        if !self.waiting {
            return None;
        }
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.exhausted = false;
                    return Some(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.waiting = error.kind() != io::ErrorKind::WouldBlock;
                    self.exhausted = self.waiting;
                    return None;
                }
            }
        }
    }

    /// Takes in who connects; `number` gives each a number of its own. Answers whose connections
    /// have gone for that.
    pub fn admit(
        &mut self,
        registry: &Registry,
        now: Time,
        mut number: impl FnMut() -> Token,
    ) -> Vec<usize> {
        let mut gone = Vec::new();
        for _ in 0..AT_ONCE {
            let Some(mut stream) = self.accept() else { break };
            if self.visitors.len() >= MOST {
                gone.extend(self.evict());
            }
            let token = number();
            let interest = Interest::READABLE | Interest::WRITABLE;
            if registry.register(&mut stream, token, interest).is_err() {
                gone.push(token.0);
                continue;
            }
            // What is asked and answered is small and comes at once.
            let _ = stream.set_nodelay(true);
            let connection = Connection::new(now);
            self.visitors.insert(token.0, Visitor { stream, connection, readable: true });
        }
        gone
    }

    fn evict(&mut self) -> Option<usize> {
        let mut users: BTreeMap<u32, usize> = BTreeMap::new();
        for uid in self.visitors.values().filter_map(|one| one.connection.uid) {
            *users.entry(uid).or_default() += 1;
        }
        let most = users.into_iter().max_by_key(|(_, count)| *count).map(|(uid, _)| uid);
        let of = |uid: Option<u32>| {
            let all = self.visitors.iter();
            all.filter(|(_, one)| one.connection.uid == uid).map(|(number, _)| *number).next()
        };
        let number = of(None).or_else(|| of(most))?;
        self.visitors.remove(&number);
        Some(number)
    }

    /// What is asked now: of each connection one thing at most.
    pub fn hear(&mut self, now: Time) -> Vec<(usize, Result<Request, Status>)> {
        let mut asked = Vec::new();
        for (number, one) in &mut self.visitors {
            one.read(now);
            if let Some(request) = one.connection.next_request(&self.hosts) {
                asked.push((*number, request));
            }
        }
        asked
    }

    /// An answer for a user, or for nobody.
    pub fn answer(&mut self, number: usize, answer: Vec<u8>, last: bool, uid: u32, now: Time) {
        let Some(one) = self.visitors.get_mut(&number) else { return };
        one.connection.uid = Some(uid);
        one.connection.answer(answer, last, now);
    }

    /// A refusal, with which a connection ends.
    pub fn refuse(&mut self, number: usize, status: Status, now: Time) {
        let Some(one) = self.visitors.get_mut(&number) else { return };
        one.connection.answer(response::refusal(status), true, now);
    }

    /// Writes what the sockets take; answers whose connections have gone.
    pub fn flush(&mut self, now: Time) -> Vec<usize> {
        for one in self.visitors.values_mut() {
            one.write(now);
            one.connection.tick(now);
        }
        let over = |(number, one): (&usize, &Visitor)| one.connection.is_over().then_some(*number);
        let gone: Vec<usize> = self.visitors.iter().filter_map(over).collect();
        gone.iter().for_each(|number| _ = self.visitors.remove(number));
        gone
    }

    /// When something is to be done without further report.
    pub fn deadline(&self, now: Time) -> Option<Duration> {
        let may_read = |one: &Visitor| one.readable && one.connection.room() > 0;
        if (self.waiting && !self.exhausted) || self.visitors.values().any(may_read) {
            return Some(Duration::ZERO);
        }
        let due = self.visitors.values().map(|one| one.connection.deadline().saturating_sub(now));
        due.chain(self.exhausted.then_some(AGAIN)).min()
    }
}

impl Visitor {
    fn read(&mut self, now: Time) {
        let mut scratch = [0; HEAD];
        while self.readable && self.connection.room() > 0 {
            let room = self.connection.room().min(scratch.len());
            match self.stream.read(&mut scratch[..room]) {
                Ok(0) => {
                    self.readable = false;
                    self.connection.ended();
                }
                Ok(count) => {
                    self.connection.push(&scratch[..count], now);
                    // Whoever pours it out gets its turn, and others theirs.
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.connection.fail(),
            }
            if self.connection.is_over() {
                break;
            }
        }
    }

    fn write(&mut self, now: Time) {
        while !self.connection.to_send().is_empty() {
            match self.stream.write(self.connection.to_send()) {
                Ok(count) => {
                    if self.connection.sent(count, now) {
                        let _ = self.stream.shutdown(Shutdown::Write);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.connection.fail(),
            }
        }
    }
}
