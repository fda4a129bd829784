//! The loop of a daemon: sessions of scruns, links to other daemons, the jobs that it leads, and
//! its part in the jobs that run on its host. What is decided is decided in [`crate::job`] and
//! [`relay`]; here it is moved.

mod contents;
mod directory;
mod door;
mod jobs;
mod machine;
mod member;
mod muster;
mod peers;
mod relay;
mod scout;
pub mod service;
mod session;
mod shepherd;
pub mod slices;
mod store;
mod strangers;
mod submit;
mod turns;
mod watching;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::message::Down;
use score_proto::peer::{Join, Peer};

use crate::gang;
use crate::job::life::Event;
use crate::start::Wishes;
use crate::sys::awake::Awake;
use crate::sys::cgroup::Cgroups;
use crate::sys::process::{self, Reap};
use crate::sys::{descriptor, prompt};
use jobs::{Lead, Post};
use member::Member;
use muster::Muster;
use peers::{Heard, Peers};
use scout::Scout;
use service::Service;
use session::Session;
use shepherd::{Family, Shepherd};
use slices::Slices;
use store::Store;
use turns::Turns;

const SIGNALS: Token = Token(0);
const LISTENER: Token = Token(1);
/// What daemons and their launchers say.
const WORDS: Token = Token(2);
/// The standard input of a daemon that was started by another: its end is the server's.
const LIFELINE: Token = Token(3);
/// Somebody calls at the local socket.
const DOOR: Token = Token(4);
/// Where local scruns of a service call.
const LOCAL: Token = Token(5);
/// The slice is over.
const SLICE: Token = Token(6);
/// Where the page is asked for.
const PAGE: Token = Token(7);
/// The first token that is given to sessions, shepherds and links.
const FIRST: usize = 8;

/// How often it is looked at which links may be silent for long.
const CALM: Duration = Duration::from_secs(1);
/// From one look for what earlier jobs have left to the next, at least.
const SWEEP: Duration = Duration::from_secs(10);
/// How long only switches may be served, one after the other.
const NOW_AND_THEN: Duration = Duration::from_millis(50);
/// How long daemons of other hosts may take to go.
const LEAVING: Duration = Duration::from_millis(800);

/// When callers are looked for again that could not be taken, for want of descriptors.
const CALL_AGAIN: Duration = Duration::from_millis(100);

/// scrun's exit codes: a job that is refused, hosts that do not come up.
const REFUSED: u8 = 2;
const FAILED: u8 = 1;

/// What scrun tells on the command line.
#[derive(Debug)]
pub struct Setting {
    /// Socket to scrun.
    pub control: OwnedFd,
    /// What it and other daemons have in common.
    pub common: Common,
}

/// What every daemon is told.
#[derive(Debug, Default)]
pub struct Common {
    /// `-nonamespace`: leave out the first rungs of the ladder.
    pub no_namespace: bool,
    /// How daemons of other hosts are to be started.
    pub wishes: Wishes,
    /// How jobs take turns on their processors.
    pub gang: gang::Setting,
}

/// What a server tells the daemon of another host on its command line.
#[derive(Debug)]
pub struct HostSetting {
    /// Where the server listens.
    pub connect: String,
    /// What the server calls this host.
    pub host: String,
    /// Where the key of the cluster is.
    pub key: OsString,
    /// What it and other daemons have in common.
    pub common: Common,
}

/// Serves one scrun, and goes with it.
///
/// # Errors
/// What the system refused before the job began.
pub fn run(setting: Setting) -> io::Result<()> {
    settle_in()?;
    let mut daemon = Daemon::new(setting.common)?;
    // scrun's death is seen on the socket; this also works when somebody else holds that open.
    process::die_with_parent(libc::SIGTERM);
    daemon.admit(setting.control)?;
    daemon.live()
}

/// The daemon of another host: serves the server that has started it, and goes with it.
///
/// # Errors
/// A server that cannot be reached, or what the system refused.
pub fn run_host(setting: HostSetting) -> io::Result<()> {
    settle_in()?;
    let key = muster::read_key(&setting.key).map_err(io::Error::other)?;
    let unknown = setting.host == crate::start::UNKNOWN_HOST;
    let name = if unknown { crate::start::own_name() } else { setting.host };
    let mut daemon = Daemon::new(setting.common)?;
    if setting.key == crate::start::SECRET_ON_STDIN {
        // Where it is no pipe there is nothing to watch; the link to the server tells as well.
        let _ = daemon.poll.registry().register(&mut SourceFd(&0), LIFELINE, Interest::READABLE);
    }
    let stream = muster::connect(&setting.connect).map_err(io::Error::other)?;
    let own = stream.local_addr()?.ip();
    let mut peers = Peers::new(key, name.clone(), daemon.poll.registry(), LISTENER)?;
    let token = daemon.token(Owner::Peer);
    peers.adopt(stream, daemon.poll.registry(), token)?;
    let address = SocketAddr::new(own, peers.port()?);
    let incarnation = peers.incarnation();
    let join = Join { name, incarnation, address, server: None, without: None, attach: 0 };
    peers.send(token.0, Peer::Join(join));
    daemon.peers = Some(peers);
    daemon.server = Some(token.0);
    daemon.live()
}

fn settle_in() -> io::Result<()> {
    process::leave_session();
    process::default_and_block_signals()?;
    process::become_subreaper();
    descriptor::close_on_exec_from(3);
    Ok(())
}

/// Whose socket a token stands for.
#[derive(Debug, Clone, Copy)]
enum Owner {
    Session(usize),
    /// The shepherd of this job.
    Shepherd(u32),
    /// That one's thread that switches.
    Switch(u32),
    /// Another daemon.
    Peer,
    /// Somebody who asks for the page.
    Visitor,
}

struct Daemon {
    poll: Poll,
    signals: SignalFd,
    setting: Common,
    owners: HashMap<Token, Owner>,
    next_token: usize,
    sessions: HashMap<usize, Session>,
    /// Links to other daemons, where there are any.
    peers: Option<Peers>,
    /// The link to the server that has started this daemon.
    server: Option<usize>,
    /// Hosts that were started for a session.
    muster: Option<Muster>,
    /// The scout session that is served.
    scout: Option<Scout>,
    /// Jobs led from here, by number.
    leads: HashMap<u32, Lead>,
    /// Which of them run now.
    slices: Slices,
    /// Jobs of this host that take turns without the gang scheduler.
    turns: Turns,
    /// The processors, as long as jobs take turns.
    awake: Awake,
    /// Places in the trees of jobs.
    members: HashMap<Post, Member>,
    family: Family,
    store: Store<Post>,
    next_job: u32,
    /// The clock of masters counts from here.
    began: Instant,
    /// Sessions that watch a job, and which.
    watching: BTreeMap<usize, u32>,
    /// Connections that were dropped before they were anybody's.
    strangers: u64,
    ending: bool,
    /// When it was looked last for what earlier jobs have left.
    swept: Option<Instant>,
    cgroups: Cgroups,
    /// Where every user is served.
    service: Option<Service>,
}

impl Daemon {
    fn new(setting: Common) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut wanted = SigSet::from(Signal::SIGCHLD);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            wanted.add(signal);
        }
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&wanted, flags)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry().register(&mut source, SIGNALS, Interest::READABLE)?;
        let slices = Slices::new(poll.registry(), SLICE)?;
        Ok(Self {
            poll,
            signals,
            setting,
            owners: HashMap::new(),
            next_token: FIRST,
            sessions: HashMap::new(),
            peers: None,
            server: None,
            muster: None,
            scout: None,
            leads: HashMap::new(),
            slices,
            turns: Turns::default(),
            awake: Awake::default(),
            members: HashMap::new(),
            family: Family::default(),
            store: Store::default(),
            next_job: 1,
            began: Instant::now(),
            watching: BTreeMap::new(),
            strangers: 0,
            ending: false,
            swept: None,
            cgroups: Cgroups::default(),
            service: None,
        })
    }

    fn token(&mut self, owner: Owner) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.owners.insert(token, owner);
        token
    }

    /// This host's name in jobs.
    fn name(&self) -> String {
        self.peers.as_ref().map_or_else(host_name, |peers| peers.name().to_owned())
    }

    /// A scrun has called; it is known by this number.
    fn admit(&mut self, socket: OwnedFd) -> io::Result<usize> {
        let number = self.next_token;
        let token = self.token(Owner::Session(number));
        self.sessions.insert(number, Session::new(socket, self.poll.registry(), token)?);
        Ok(number)
    }

    /// Runs until nobody is left to run for.
    fn live(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        let (mut looked, mut heard) = (Instant::now(), Instant::now());
        while !self.ending
            && (self.server.is_some() || self.service.is_some() || !self.sessions.is_empty())
        {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let signalled = self.mark(&events);
            if self.pass_turn() && self.is_all_of_switches(&events) {
                continue;
            }
            // A switch is in a hurry: what else there is is looked at when it happens, or now and
            // then.
            let others = !self.is_only_switch(&events) || heard.elapsed() > NOW_AND_THEN;
            if others {
                self.hear_others();
                heard = Instant::now();
            }
            self.members.values_mut().for_each(Member::hear);
            if signalled {
                self.take_signals();
            }
            self.tick_leads();
            self.settle();
            self.turn_slices();
            self.settle();
            self.awake.rest(Instant::now());
            if looked.elapsed() > CALM {
                // Not while a job is being launched.
                self.spare_links();
                looked = Instant::now();
            }
            loop {
                self.send_outboxes();
                let gone = self.flush();
                if !self.begin_waiting() && !gone {
                    break;
                }
                // What that has led to is to be moved before the next wait.
                self.settle();
            }
            if others {
                // When all orders are on their way.
                self.serve_visitors();
            }
            self.slices.set_timer();
        }
        self.close_scout();
        for (_, mut member) in self.members.drain() {
            member.abort();
        }
        self.peers.iter_mut().for_each(|peers| peers.leave("its work is done"));
        // Daemons that were started from here are asked to go, and are waited for.
        self.muster.iter_mut().for_each(Muster::close);
        let started: Vec<i32> = self.family.borrow_mut().drain().collect();
        process::see_off(&started, LEAVING);
        // What those could not remove that had to be killed, of jobs that a session has left.
        let numbers: Vec<u32> = self.leads.keys().copied().collect();
        numbers.into_iter().for_each(|job| self.abandon(job));
        Ok(())
    }

    /// Whether nothing has happened but that a slice is over, or that a job has stopped.
    fn is_only_switch(&self, events: &Events) -> bool {
        let of_switch = |token: Token| token == SLICE || self.is_of_switch(token);
        !events.is_empty() && events.iter().all(|event| of_switch(event.token()))
    }

    /// Whether all of it was said by threads that switch.
    fn is_all_of_switches(&self, events: &Events) -> bool {
        events.iter().all(|event| self.is_of_switch(event.token()))
    }

    fn is_of_switch(&self, token: Token) -> bool {
        matches!(self.owners.get(&token), Some(Owner::Switch(_)))
    }

    /// Hears whoever is not a shepherd, and does what is due.
    fn hear_others(&mut self) {
        self.let_in();
        self.admit_callers();
        self.hear_peers();
        self.hear_sessions();
        self.advance();
        self.tick_cluster();
        self.watch_for_page();
    }

    /// Notes what mio has reported; true when there are signals.
    fn mark(&mut self, events: &Events) -> bool {
        let mut signalled = false;
        for event in events {
            match (event.token(), self.owners.get(&event.token())) {
                (SIGNALS, _) => signalled = true,
                (LISTENER, _) => self.accept(),
                (DOOR, _) => self.somebody_knocks(),
                (LIFELINE, _) => self.ending = true,
                (PAGE, _) => self.mark_page(None),
                (Token(number), Some(Owner::Visitor)) => self.mark_page(Some(number)),
                (LOCAL, _) => self.service.iter_mut().for_each(Service::mark),
                (_, None) => {}
                (_, Some(Owner::Session(number))) => {
                    self.sessions.get_mut(number).into_iter().for_each(Session::mark_readable);
                }
                (_, Some(Owner::Shepherd(job))) => {
                    let member = self.members.get_mut(&(*job, false));
                    let shepherd = member.and_then(|member| member.shepherd.as_mut());
                    shepherd.into_iter().for_each(|one| one.link.mark_readable());
                }
                (_, Some(Owner::Switch(job))) => {
                    let member = self.members.get_mut(&(*job, false));
                    let shepherd = member.and_then(|member| member.shepherd.as_mut());
                    shepherd.into_iter().for_each(|one| one.switch.mark_readable());
                }
                (Token(number), Some(Owner::Peer)) => {
                    self.peers.iter_mut().for_each(|peers| peers.mark(number));
                }
            }
        }
        signalled
    }

    fn mark_page(&mut self, number: Option<usize>) {
        self.service.iter_mut().for_each(|service| service.mark_page(number));
    }

    fn accept(&mut self) {
        loop {
            let token = self.token(Owner::Peer);
            let Some(peers) = &mut self.peers else { return };
            if !peers.accept(self.poll.registry(), token) {
                self.owners.remove(&token);
                return;
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let of_shepherd =
            |member: &Member| member.shepherd.as_ref().is_some_and(Shepherd::may_have_more);
        if self.sessions.values().any(Session::may_have_more)
            || self.members.values().any(of_shepherd)
            || self.peers.as_ref().is_some_and(Peers::has_more)
            || self.muster.as_ref().is_some_and(Muster::may_have_more)
        {
            return Some(Duration::ZERO);
        }
        let callers = self.may_be_called().then_some(CALL_AGAIN);
        let links = self.peers.as_ref().and_then(Peers::deadline);
        let starts = self.muster.as_ref().and_then(Muster::deadline);
        let starts = starts.map(|due| due.saturating_duration_since(Instant::now()));
        let cluster = self.service.as_ref().map(Service::deadline);
        let awake = self.awake.deadline();
        let awake = awake.map(|due| due.saturating_duration_since(Instant::now()));
        // epoll counts milliseconds: round up, or the loop would spin at the end.
        let leads = self.leads_deadline();
        let all = [links, starts, callers, cluster, leads, awake, self.callers_deadline()];
        all.into_iter().flatten().min().map(|left| left + Duration::from_millis(1))
    }

    fn hear_peers(&mut self) {
        let heard = self.peers.as_mut().map(Peers::hear).unwrap_or_default();
        for (link, heard) in heard {
            match heard {
                Heard::Message(Peer::Order { job, life, body }) => {
                    self.ordered(link, (job, life), &body);
                }
                Heard::Message(Peer::Report { job, life, body }) => {
                    self.reported(link, (job, life), &body);
                }
                Heard::Message(Peer::Join(join)) if self.service.is_none() => {
                    self.joined(link, &join);
                }
                Heard::Message(message) => self.heard_of_cluster(link, message),
                Heard::Lost(name, reason) => {
                    self.owners.remove(&Token(link));
                    self.link_lost(link, name, &reason);
                }
            }
        }
    }

    fn link_lost(&mut self, link: usize, name: Option<String>, reason: &str) {
        if self.server == Some(link) {
            // Whoever has started us is gone, and does not want anything any more.
            self.ending = true;
        } else if name.is_none() && self.service.is_none() {
            self.stranger(reason);
        }
        self.unlinked(link, reason);
        self.unlinked_from_cluster(name.as_deref(), reason);
        let (Some(name), Some(muster)) = (name, &self.muster) else { return };
        if muster.spec.is_some() {
            let lane = muster.lane;
            self.refuse(lane, format!("host {name}: its daemon is gone: {reason}"), FAILED);
        } else {
            self.tell_lost(&name, reason);
        }
    }

    /// Takes pending signals, and children that have ended.
    fn take_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.ending |= signal.ssi_signo == libc::SIGTERM as u32;
        }
        self.members.values_mut().for_each(Member::look_for_end);
        while let Some(pid) = process::first_ended() {
            let Reap::One(reaped) = prompt::aside(|| process::reap_one(pid)) else { return };
            self.family.borrow_mut().remove(&pid);
            let news = self.muster.as_mut().and_then(|one| one.ended(pid, reaped.status));
            self.take_news(news.unwrap_or_default());
        }
    }

    /// Writes what sockets take; true when a session is over.
    fn flush(&mut self) -> bool {
        for member in self.members.values_mut() {
            if let Some(shepherd) = &mut member.shepherd {
                shepherd.flush(self.poll.registry());
            }
        }
        self.peers.iter_mut().for_each(Peers::flush);
        for session in self.sessions.values_mut() {
            session.flush();
            session.watch(self.poll.registry());
        }
        let over: Vec<usize> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.is_over())
            .map(|(number, _)| *number)
            .collect();
        let some = !over.is_empty();
        for number in over {
            self.ending |= self.scout.as_ref().is_some_and(|scout| scout.control == number);
            self.unwatch(number);
            let session = self.sessions.remove(&number);
            let jobs = session.as_ref().map(Session::numbers).unwrap_or_default();
            jobs.into_iter().for_each(|job| self.drop_job(job));
            session.into_iter().for_each(|session| self.session_over(&session));
            self.owners.retain(|_, owner| !matches!(owner, Owner::Session(one) if *one == number));
        }
        some
    }
}

impl Daemon {
    /// Ends a job that nobody wants to hear of any more. A daemon that stays sees it to its end:
    /// only then its hosts are free for others.
    fn drop_job(&mut self, job: u32) {
        match self.service {
            Some(_) => self.lead(Some(job), Event::Down(Down::Kill)),
            None => self.abandon(job),
        }
    }
}

fn host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

/// A number that nobody can guess.
fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
