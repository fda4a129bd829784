//! Links to the daemons of other hosts: sockets around [`score_tree::link`].

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use score_proto::peer::{Hello, Incarnation, Peer};
use score_tree::key::Key;
use score_tree::link::{Limits, Link, SendError};

/// How long a peer may take to prove that it has the key, and to say something. TCP doubles its
/// waits: a cable that was out for 5 s may be silence for 10, and what was said last was said a
/// heartbeat before.
pub const LIMITS: Limits =
    Limits { handshake: Duration::from_secs(5), silence: Duration::from_secs(16) };
/// Connections of strangers at the same time. When there is one more, the address that has most of
/// them loses its oldest: who opens many and says nothing keeps no daemon out.
const STRANGERS: usize = 128;
/// Messages that may wait beside what the link takes: the windows of jobs keep them far below.
const WAITING: usize = 16 * 1024;
/// Bytes taken from a socket at once, and how often in one turn.
const READ_BYTES: usize = 64 * 1024;
const READS: usize = 4;

/// What a peer has said, or what has become of it.
#[derive(Debug)]
pub enum Heard {
    /// A message after its greeting.
    Message(Peer),
    /// It is gone: name, as far as it was known, and reason.
    Lost(Option<String>, String),
}

#[derive(Debug)]
struct One {
    stream: TcpStream,
    link: Link,
    /// The other end.
    from: Option<IpAddr>,
    /// It has called; else it was dialled from here.
    called: bool,
    /// Who it is: dialled by that name, or greeted by it.
    name: Option<String>,
    greeted: bool,
    /// What it said when it greeted.
    incarnation: Incarnation,
    readable: bool,
    /// What the link did not take yet.
    waiting: VecDeque<Peer>,
    /// Why it is at its end.
    fault: Option<String>,
}

/// All links of this daemon.
#[derive(Debug)]
pub struct Peers {
    key: Key,
    hello: Hello,
    listener: TcpListener,
    all: HashMap<usize, One>,
    began: Instant,
    scratch: Vec<u8>,
}

impl Peers {
    /// A daemon of this name that accepts links at any port.
    ///
    /// # Errors
    /// As bind(2), epoll_ctl(2).
    pub fn new(key: Key, name: String, registry: &Registry, token: Token) -> io::Result<Self> {
        Self::at(SocketAddr::from(([0, 0, 0, 0], 0)), key, name, registry, token)
    }

    /// A daemon of this name that accepts links there.
    ///
    /// # Errors
    /// As bind(2), epoll_ctl(2).
    pub fn at(
        address: SocketAddr,
        key: Key,
        name: String,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut listener = TcpListener::bind(address)?;
        registry.register(&mut listener, token, Interest::READABLE)?;
        let incarnation = super::random()?;
        Ok(Self {
            key,
            hello: Hello { host: None, name, incarnation },
            listener,
            all: HashMap::new(),
            began: Instant::now(),
            scratch: vec![0; READ_BYTES],
        })
    }

    /// The port that is listened at.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// What this daemon calls itself.
    pub fn name(&self) -> &str {
        &self.hello.name
    }

    /// Distinguishes this daemon from all before it.
    pub fn incarnation(&self) -> Incarnation {
        self.hello.incarnation
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Somebody has connected. False when there is nobody more.
    pub fn accept(&mut self, registry: &Registry, token: Token) -> bool {
        let Ok((stream, _)) = self.listener.accept() else { return false };
        self.make_room();
        let link = Link::accept(&self.key, LIMITS, self.now());
        self.keep(stream, link, None, registry, token);
        self.all.entry(token.0).and_modify(|one| one.called = true);
        true
    }

    /// Gives up a stranger if there are too many.
    fn make_room(&mut self) {
        let mut places: HashMap<Option<IpAddr>, Vec<usize>> = HashMap::new();
        for (number, one) in &self.all {
            if one.called && one.fault.is_none() && !one.link.is_open() {
                places.entry(one.from).or_default().push(*number);
            }
        }
        if places.values().map(Vec::len).sum::<usize>() < STRANGERS {
            return;
        }
        // Numbers go up with time.
        let oldest = |all: Vec<usize>| all.into_iter().min();
        let most = places.into_values().max_by_key(Vec::len).and_then(oldest);
        if let Some(one) = most.and_then(|number| self.all.get_mut(&number)) {
            one.fault = Some("too many connections said nothing".to_owned());
        }
    }

    /// Dials a daemon; what is sent to it waits until it is there.
    ///
    /// # Errors
    /// As connect(2).
    pub fn dial(
        &mut self,
        address: SocketAddr,
        name: Option<String>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        let stream = TcpStream::connect(address)?;
        let link = Link::dial(&self.key, LIMITS, self.now()).map_err(io::Error::other)?;
        self.keep(stream, link, name, registry, token);
        Ok(())
    }

    /// Takes over a connection that this daemon has made.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn adopt(
        &mut self,
        stream: std::net::TcpStream,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let link = Link::dial(&self.key, LIMITS, self.now()).map_err(io::Error::other)?;
        self.keep(TcpStream::from_std(stream), link, None, registry, token);
        Ok(())
    }

    fn keep(
        &mut self,
        mut stream: TcpStream,
        link: Link,
        name: Option<String>,
        registry: &Registry,
        Token(number): Token,
    ) {
        let _ = stream.set_nodelay(true);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let fault = registry.register(&mut stream, Token(number), interest).err();
        let fault = fault.map(|error| error.to_string());
        let waiting = VecDeque::new();
        let from = stream.peer_addr().ok().map(|address| address.ip());
        let one = One {
            stream,
            link,
            from,
            called: false,
            name,
            greeted: false,
            incarnation: 0,
            readable: true,
            waiting,
            fault,
        };
        self.all.insert(number, one);
        self.send(number, Peer::Hello(self.hello.clone()));
    }

    /// mio has reported on a link.
    pub fn mark(&mut self, number: usize) {
        if let Some(one) = self.all.get_mut(&number) {
            one.readable = true;
            if let Ok(Some(error)) | Err(error) = one.stream.take_error() {
                one.fault.get_or_insert(error.to_string());
            }
        }
    }

    /// The link to a host, if there is one already.
    pub fn to(&self, name: &str) -> Option<usize> {
        let is_it = |one: &One| one.fault.is_none() && one.name.as_deref() == Some(name);
        self.all.iter().find(|(_, one)| is_it(one)).map(|(number, _)| *number)
    }

    /// Who is at the other end of a link, once that is known.
    pub fn name_of(&self, number: usize) -> Option<&str> {
        self.all.get(&number)?.name.as_deref()
    }

    /// What this daemon ran has been ended: from now on it counts as another one.
    pub fn begin_anew(&mut self, incarnation: Incarnation) {
        self.hello.incarnation = incarnation;
    }

    /// Gives up every link to a host.
    pub fn cut_off(&mut self, name: &str, reason: &str) {
        for one in self.all.values_mut().filter(|one| one.name.as_deref() == Some(name)) {
            one.fault.get_or_insert(reason.to_owned());
        }
    }

    /// The address that a link comes from or goes to.
    pub fn address(&self, number: usize) -> Option<IpAddr> {
        Some(self.all.get(&number)?.stream.peer_addr().ok()?.ip())
    }

    /// Queues a message. False: it is too long to be sent at all.
    pub fn send(&mut self, number: usize, message: Peer) -> bool {
        let now = self.now();
        let Some(one) = self.all.get_mut(&number) else { return true };
        if !one.waiting.is_empty() {
            one.waiting.push_back(message);
            if one.waiting.len() > WAITING {
                one.fault.get_or_insert("it does not read".to_owned());
            }
            return true;
        }
        match one.link.send(&message, now) {
            Err(SendError::TooLong) => return false,
            // What waits is bounded by the windows of the jobs.
            Err(SendError::Full) => one.waiting.push_back(message),
            Ok(()) | Err(SendError::Closed) => {}
        }
        true
    }

    /// Whether something waits for a link that does not take it now.
    pub fn is_slow(&self, number: usize) -> bool {
        self.all.get(&number).is_some_and(|one| !one.waiting.is_empty())
    }

    /// Whether a link may hold more without a further report of mio's.
    pub fn has_more(&self) -> bool {
        self.all.values().any(|one| one.readable)
    }

    /// What has come, link by link, a bounded amount of each.
    pub fn hear(&mut self) -> Vec<(usize, Heard)> {
        let now = self.now();
        let (mut heard, mut greeted) = (Vec::new(), Vec::new());
        for (number, one) in &mut self.all {
            if one.readable {
                one.read(&mut self.scratch, now);
            }
            // Also before it is due: this process is awake, and need not wake for it again.
            if let Err(fault) = one.link.tick(now) {
                one.fault.get_or_insert(fault.to_string());
            }
            loop {
                match one.link.next::<Peer>() {
                    Ok(Some(Peer::Hello(hello))) if !one.greeted => {
                        one.greeted = true;
                        one.incarnation = hello.incarnation;
                        let name = one.name.get_or_insert(hello.name);
                        greeted.push((*number, name.clone(), hello.incarnation));
                    }
                    Ok(Some(message)) if one.greeted => {
                        heard.push((*number, Heard::Message(message)));
                    }
                    Ok(None) => break,
                    Ok(Some(_)) => {
                        one.fault.get_or_insert("it did not say hello".to_owned());
                        break;
                    }
                    Err(fault) => {
                        one.fault.get_or_insert(fault.to_string());
                        break;
                    }
                }
            }
        }
        for (number, name, incarnation) in greeted {
            let others = self.all.iter_mut().filter(|(at, _)| **at != number);
            for (_, other) in others.filter(|(_, other)| other.greeted) {
                if other.name.as_ref() == Some(&name) && other.incarnation != incarnation {
                    other.fault.get_or_insert("its scored was started anew".to_owned());
                }
            }
        }
        let over: Vec<usize> =
            self.all.iter().filter(|(_, one)| one.fault.is_some()).map(|(at, _)| *at).collect();
        for number in over {
            if let Some(mut one) = self.all.remove(&number) {
                // Who speaks another version is told which one this is.
                one.write(now);
                let mut reason = one.fault.unwrap_or_default();
                if one.name.is_none() {
                    let from = one.from.map_or("somebody".to_owned(), |from| from.to_string());
                    reason = format!("a connection from {from} was dropped: {reason}");
                }
                heard.push((number, Heard::Lost(one.name, reason)));
            }
        }
        heard
    }

    /// Writes what the sockets take.
    pub fn flush(&mut self) {
        let now = self.now();
        self.all.values_mut().for_each(|one| one.write(now));
    }

    /// The numbers of all links.
    pub fn numbers(&self) -> Vec<usize> {
        self.all.keys().copied().collect()
    }

    /// Whether this side says on a link only now and then that it lives: other links stand in.
    pub fn speak_rarely(&mut self, number: usize, rarely: bool) {
        let now = self.now();
        if let Some(one) = self.all.get_mut(&number)
            && let Err(fault) = one.link.speak_rarely(rarely, now)
        {
            one.fault.get_or_insert(fault.to_string());
        }
    }

    /// When [`Peers::hear`] is to be called, also if nothing comes.
    pub fn deadline(&self) -> Option<Duration> {
        let now = self.now();
        let due = self.all.values().map(|one| one.link.deadline()).min()?;
        Some(due.saturating_sub(now))
    }

    /// Says goodbye to everybody.
    pub fn leave(&mut self, reason: &str) {
        for one in self.all.values_mut() {
            one.link.leave(reason);
        }
        self.flush();
    }
}

impl One {
    fn read(&mut self, scratch: &mut [u8], now: Duration) {
        for _ in 0..READS {
            match self.stream.read(scratch) {
                Ok(0) => {
                    self.readable = false;
                    let fault = self.link.end().to_string();
                    self.fault.get_or_insert(fault);
                    return;
                }
                Ok(count) => {
                    if let Err(fault) = self.link.push(&scratch[..count], now) {
                        self.fault.get_or_insert(fault.to_string());
                        return;
                    }
                    if count < scratch.len() {
                        self.readable = false;
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.readable = false;
                    if !is_patience(&error) {
                        self.fault.get_or_insert(error.to_string());
                    }
                    return;
                }
            }
        }
    }

    fn write(&mut self, now: Duration) {
        loop {
            while let Some(message) = self.waiting.pop_front() {
                if self.link.send(&message, now) == Err(SendError::Full) {
                    self.waiting.push_front(message);
                    break;
                }
            }
            let out = self.link.outgoing();
            if out.is_empty() {
                return;
            }
            match self.stream.write(out) {
                Ok(count) => self.link.wrote(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !is_patience(&error) {
                        self.fault.get_or_insert(error.to_string());
                    }
                    return;
                }
            }
        }
    }
}

/// Nothing is wrong: not yet connected, nothing there, no room.
fn is_patience(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
