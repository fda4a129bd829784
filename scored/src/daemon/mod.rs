//! The loop of a daemon: sessions of scruns, the jobs that it leads, and its part in the jobs that
//! run on its host. What is decided is decided in [`crate::job`] and [`relay`]; here it is moved.

mod directory;
mod machine;
mod member;
mod relay;
mod session;
mod shepherd;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::message::{JobSpec, Level, Up};
use score_proto::order::{Begin, Order, Placement};

use crate::job::check;
use crate::job::life::{Action, Event, Job};
use crate::sys::{descriptor, process};
use member::{Member, Start};
use relay::{Out, SHEPHERD};
use session::{Said, Session};

const SIGNALS: Token = Token(0);
/// The first token that is given to sessions and shepherds.
const FIRST: usize = 8;

/// scrun's exit code for a job that is refused.
const REFUSED: u8 = 2;

/// What scrun tells on the command line.
#[derive(Debug)]
pub struct Setting {
    /// Socket to scrun.
    pub control: OwnedFd,
    /// `-nonamespace`: leave out the first rungs of the ladder.
    pub no_namespace: bool,
}

/// Serves one scrun, and goes with it.
///
/// # Errors
/// What the system refused before the job began.
pub fn run(setting: Setting) -> io::Result<()> {
    process::leave_session();
    process::default_and_block_signals()?;
    // scrun's death is seen on the socket; this also works when somebody else holds that open.
    process::die_with_parent(libc::SIGTERM);
    process::become_subreaper();
    descriptor::close_on_exec_from(3);
    let mut daemon = Daemon::new(setting.no_namespace)?;
    daemon.admit(setting.control)?;
    daemon.live()
}

/// Whose socket a token stands for.
#[derive(Debug, Clone, Copy)]
enum Owner {
    Session(usize),
    /// The shepherd of this job.
    Shepherd(u32),
}

/// A job that this daemon leads.
#[derive(Debug)]
struct Lead {
    job: Job,
    session: usize,
}

struct Daemon {
    poll: Poll,
    signals: SignalFd,
    no_namespace: bool,
    owners: HashMap<Token, Owner>,
    next_token: usize,
    sessions: HashMap<usize, Session>,
    /// Jobs led from here, by number.
    leads: HashMap<u32, Lead>,
    /// Jobs that run here, by number.
    members: HashMap<u32, Member>,
    next_job: u32,
}

impl Daemon {
    fn new(no_namespace: bool) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut wanted = SigSet::from(Signal::SIGCHLD);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            wanted.add(signal);
        }
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&wanted, flags)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry().register(&mut source, SIGNALS, Interest::READABLE)?;
        Ok(Self {
            poll,
            signals,
            no_namespace,
            owners: HashMap::new(),
            next_token: FIRST,
            sessions: HashMap::new(),
            leads: HashMap::new(),
            members: HashMap::new(),
            next_job: 1,
        })
    }

    fn token(&mut self, owner: Owner) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.owners.insert(token, owner);
        token
    }

    /// A scrun has called.
    fn admit(&mut self, socket: OwnedFd) -> io::Result<()> {
        let number = self.next_token;
        let token = self.token(Owner::Session(number));
        self.sessions.insert(number, Session::new(socket, self.poll.registry(), token)?);
        Ok(())
    }

    /// Runs until nobody is left to run for.
    fn live(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        while !self.sessions.is_empty() {
            let timeout = self.has_more().then_some(Duration::ZERO);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let mut signalled = false;
            for event in &events {
                match self.owners.get(&event.token()) {
                    None => signalled |= event.token() == SIGNALS,
                    Some(Owner::Session(number)) => {
                        self.sessions.get_mut(number).into_iter().for_each(Session::mark_readable);
                    }
                    Some(Owner::Shepherd(job)) => {
                        let member = self.members.get_mut(job);
                        let shepherd = member.and_then(|member| member.shepherd.as_mut());
                        shepherd.into_iter().for_each(|one| one.link.mark_readable());
                    }
                }
            }
            self.hear_sessions();
            self.members.values_mut().for_each(Member::hear);
            if signalled && self.take_signals() {
                break;
            }
            self.settle();
            self.flush();
        }
        for (_, mut member) in self.members.drain() {
            member.abort();
        }
        Ok(())
    }

    fn has_more(&self) -> bool {
        let of_shepherd = |member: &Member| {
            member.shepherd.as_ref().is_some_and(|shepherd| shepherd.link.may_have_more())
        };
        self.sessions.values().any(Session::may_have_more) || self.members.values().any(of_shepherd)
    }

    fn hear_sessions(&mut self) {
        let numbers: Vec<usize> = self.sessions.keys().copied().collect();
        for number in numbers {
            while let Some(session) = self.sessions.get_mut(&number)
                && let Some(said) = session.hear()
            {
                let job = session.job;
                match said {
                    Said::Submit(_) if job.is_some() => {
                        let text = "a session has one job only".to_owned();
                        session.tell(&Up::Notice { level: Level::Error, text });
                    }
                    Said::Submit(spec) => self.submit(number, spec),
                    Said::ToJob(message) => self.lead(job, Event::Down(message)),
                    Said::Nonsense => self.abandon(job),
                }
            }
        }
    }

    /// A scrun wants a job.
    fn submit(&mut self, session: usize, spec: JobSpec) {
        let refusal = match check::check(&spec) {
            Err(reason) => reason,
            Ok(()) if spec.hosts.len() > 1 => format!(
                "{} hosts were asked for: this version runs jobs on one host (-nodes=N or \
                 -nodes=1xN)",
                spec.hosts.len()
            ),
            Ok(()) => return self.begin(session, spec),
        };
        if let Some(session) = self.sessions.get_mut(&session) {
            session.tell(&Up::Refused { reason: refusal, code: REFUSED });
        }
    }

    fn begin(&mut self, session: usize, spec: JobSpec) {
        let number = self.next_job;
        self.next_job += 1;
        let placement = Placement::new([(host_name(), None, spec.nodes())]);
        let begin = Begin { job: number, secret: secret(), spec };
        let (job, orders) = Job::begin(begin, placement);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.job = Some(number);
        }
        self.leads.insert(number, Lead { job, session });
        orders.into_iter().for_each(|order| self.order(number, order));
    }

    /// Something for the master of a job.
    fn lead(&mut self, number: Option<u32>, event: Event) {
        let Some(number) = number else { return };
        let Some(lead) = self.leads.get_mut(&number) else { return };
        let actions = lead.job.on(event);
        let (session, is_over) = (lead.session, lead.job.is_over());
        for action in actions {
            match action {
                Action::Up(up) => {
                    self.sessions.get_mut(&session).into_iter().for_each(|one| one.tell(&up));
                }
                Action::Order(order) => self.order(number, order),
            }
        }
        if is_over {
            self.leads.remove(&number);
        }
    }

    /// An order for this host and those below it.
    fn order(&mut self, number: u32, order: Order) {
        if let Order::Place(placement) = &order {
            self.members.entry(number).or_insert_with(|| Member::new(placement.clone()));
        }
        let Some(member) = self.members.get_mut(&number) else { return };
        member.relay.ordered(order);
    }

    /// Moves orders and reports until there are none.
    fn settle(&mut self) {
        let mut jobs: VecDeque<u32> = self.members.keys().copied().collect();
        while let Some(number) = jobs.pop_front() {
            let Some(member) = self.members.get_mut(&number) else { continue };
            let outs = member.relay.take();
            if !outs.is_empty() {
                jobs.push_back(number);
            }
            for out in outs {
                match out {
                    Out::Up(report) => self.lead(Some(number), Event::Report(report)),
                    Out::Down(SHEPHERD, order) => self.own_order(number, order),
                    Out::Down(..) => {}
                }
            }
            if self.members.get(&number).is_some_and(|member| member.relay.is_finished()) {
                self.members.remove(&number);
            }
        }
    }

    /// An order for this host alone.
    fn own_order(&mut self, number: u32, order: Order) {
        let begin = match order {
            // The shepherd is told when it is there.
            Order::Place(_) => return,
            Order::Begin(begin) => begin,
            order => {
                let member = self.members.get_mut(&number);
                return member.into_iter().for_each(|member| member.ordered(&order));
            }
        };
        let token = self.token(Owner::Shepherd(number));
        let session = self.leads.get(&number).map(|lead| lead.session);
        let mut session = session.and_then(|session| self.sessions.get_mut(&session));
        let mut announce = |path: &str| {
            if let Some(session) = &mut session {
                session.tell(&Up::Directory(path.to_owned()));
                session.flush();
            }
        };
        let Some(member) = self.members.get_mut(&number) else { return };
        let (registry, no_namespace) = (self.poll.registry(), self.no_namespace);
        member.begin(&begin, Start { no_namespace, registry, token, announce: &mut announce });
    }

    /// Reads pending signals; true when one of them asks to end.
    fn take_signals(&mut self) -> bool {
        let mut end = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            end |= signal.ssi_signo == libc::SIGTERM as u32;
        }
        self.members.values_mut().for_each(Member::look_for_end);
        end
    }

    fn flush(&mut self) {
        for member in self.members.values_mut() {
            member.shepherd.iter_mut().for_each(|shepherd| shepherd.link.flush());
        }
        self.sessions.values_mut().for_each(Session::flush);
        let over: Vec<usize> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.is_over())
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            let job = self.sessions.remove(&number).and_then(|session| session.job);
            self.abandon(job);
            self.owners.retain(|_, owner| !matches!(owner, Owner::Session(one) if *one == number));
        }
    }

    /// Ends a job that nobody wants to hear of any more.
    fn abandon(&mut self, number: Option<u32>) {
        let Some(number) = number else { return };
        self.leads.remove(&number);
        if let Some(mut member) = self.members.remove(&number) {
            member.abort();
        }
    }
}

fn host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

/// What the packets of one job carry.
fn secret() -> u64 {
    let mut bytes = [0; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    debug_assert!(read.is_ok(), "there is always /dev/urandom");
    u64::from_le_bytes(bytes)
}
