//! Messages between daemons: from the links to the pure machines, and what those want done.

use score_proto::login::LOGIN;
use score_proto::message::Level;
use score_proto::peer::{HostId, Incarnation, Peer, SERVER};

use super::super::{Daemon, Owner, random};
use super::{Role, info, warn};
use crate::cluster::{self, member};
use crate::job::life::Event;
use score_proto::message::Up;
use score_proto::order::Report;

/// scrun's exit code when the cluster cannot go on with its job.
const LOST: u8 = 1;

impl Daemon {
    /// Something of the cluster has come over a link.
    pub fn heard_of_cluster(&mut self, link: usize, message: Peer) {
        let Some(service) = &self.service else { return };
        let name = self.peers.as_ref().and_then(|peers| peers.name_of(link));
        let from = name.and_then(|name| service.host_named(name));
        match message {
            Peer::Login { .. }
            | Peer::SessionDown { .. }
            | Peer::SessionUp { .. }
            | Peer::SessionOver { .. } => match from {
                Some(from) => self.heard_of_session(from, message),
                None => warn("a host that is not of the cluster speaks of logins"),
            },
            Peer::Hello(_) | Peer::Order { .. } | Peer::Report { .. } => {}
            message => {
                let from = from.unwrap_or(HostId::MAX);
                match service.is_server() {
                    true => self.cluster(cluster::Event::Heard { from, message }),
                    false => self.membership(member::Event::Heard { from, message }),
                }
            }
        }
    }

    /// The clock, and what could not be reached.
    pub fn tick_cluster(&mut self) {
        let Some(service) = &mut self.service else { return };
        let is_server = service.is_server();
        let due = service.deadline().is_zero();
        for (host, reason) in std::mem::take(&mut service.unreachable) {
            match is_server {
                true => self.cluster(cluster::Event::Unlinked { host, reason }),
                false => self.membership(member::Event::Unlinked { host, reason }),
            }
        }
        match is_server {
            _ if !due => {}
            true => self.cluster(cluster::Event::Tick),
            false => self.membership(member::Event::Tick),
        }
    }

    /// A link is gone.
    pub fn unlinked_from_cluster(&mut self, name: Option<&str>, reason: &str) {
        let Some(service) = &mut self.service else { return };
        match name.and_then(|name| Some((name, service.host_named(name)?))) {
            Some((name, host)) => {
                let other = self.peers.as_ref().and_then(|peers| peers.to(name));
                if other.is_none() {
                    service.unreachable.push((host, reason.to_owned()));
                }
                if host == SERVER && !service.is_server() && other.is_none() {
                    self.server_lost(reason);
                }
            }
            None => service.complain(
                false,
                &format!("a connection to the daemons' port was dropped: {reason}"),
            ),
        }
    }

    /// One step of the server's machine.
    pub fn cluster(&mut self, event: cluster::Event) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Role::Server(cluster) = &mut service.role else { return };
        for action in cluster.on(event, now) {
            self.act(action);
        }
    }

    fn act(&mut self, action: cluster::Action) {
        use cluster::Action;
        match action {
            Action::Send { to, message } => self.send_to_host(to, message),
            Action::Up { host, .. } => self.say(host, "is up"),
            Action::Down { host, reason, .. } => {
                warn(&reason);
                self.cut_off(host, &reason);
            }
            Action::Queued { session, tag, job } => self.queued(self.lane_of(session, tag), job),
            Action::Refused { session, tag, reason } => {
                self.refuse_far(session, tag, &reason, 2);
            }
            Action::Start { session, tag, job, shares, incarnations } => {
                self.start_job(self.lane_of(session, tag), job, &shares, &incarnations);
            }
            Action::End { job, reason } => {
                let reason = format!("job {job} is ended: {reason}");
                self.lead(Some(job), Event::Report(Report::Lost { code: LOST, reason }));
            }
            Action::Ended { session, tag, job, code: _, reason } => {
                self.ended(self.lane_of(session, tag), job, reason);
            }
            Action::Dismissed { session, reason } => {
                self.refuse_far(session, LOGIN.into(), &reason, 2);
            }
            Action::Log(line) => warn(&line),
        }
    }

    /// One step of the machine of a host that is not the server.
    fn membership(&mut self, event: member::Event) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Role::Host(member) = &mut service.role else { return };
        for action in member.on(event, now) {
            match action {
                member::Action::Send { to, message } => self.send_to_host(to, message),
                member::Action::Book { host, address } => {
                    let service = self.service.as_mut();
                    service.and_then(|service| service.book.insert(host, address));
                }
                member::Action::Clean { reason } => self.clean(&reason),
                member::Action::Log(line) => warn(&line),
            }
        }
    }

    /// Ends everything that runs here and begins anew.
    fn clean(&mut self, reason: &str) {
        warn(&format!("every job of this host is ended: {reason}"));
        for (_, mut member) in self.members.drain() {
            member.abort();
        }
        for session in self.sessions.values_mut().filter(|session| session.forwarded) {
            let reason = format!("the cluster was lost: {reason}");
            session.tell(LOGIN, &Up::Refused { reason, code: LOST });
        }
        let incarnation: Incarnation = random().unwrap_or_default();
        self.peers.iter_mut().for_each(|peers| peers.begin_anew(incarnation));
        self.membership(member::Event::Cleaned(incarnation));
    }

    /// Nobody leads the jobs of this host's users any more.
    fn server_lost(&mut self, reason: &str) {
        let Some(service) = &self.service else { return };
        let name = service.name(SERVER).unwrap_or_default();
        let text = format!("the scored of {name}, the server, is lost: {reason}");
        warn(&text);
        for session in self.sessions.values_mut().filter(|session| session.forwarded) {
            let code = LOST;
            session.tell(LOGIN, &Up::Notice { level: Level::Error, text: text.clone() });
            session.tell(LOGIN, &Up::Refused { reason: "its jobs are ended".to_owned(), code });
        }
    }

    /// Whether something waits for the link to a host.
    pub(super) fn is_slow(&self, to: HostId) -> bool {
        let name = self.service.as_ref().and_then(|service| service.name(to));
        let peers = self.peers.as_ref();
        let link = peers.and_then(|peers| Some((peers, peers.to(name?)?)));
        link.is_some_and(|(peers, link)| peers.is_slow(link))
    }

    /// Sends a message over the link there is, or dials.
    pub fn send_to_host(&mut self, to: HostId, message: Peer) {
        let token = self.token(Owner::Peer);
        let (Some(service), Some(peers)) = (&mut self.service, &mut self.peers) else { return };
        let Some(name) = service.name(to).map(str::to_owned) else { return };
        let link = match peers.to(&name) {
            Some(link) => Ok(link),
            None => {
                let known = if to == SERVER && !service.is_server() {
                    Some(service.config.server)
                } else if let Role::Server(cluster) = &service.role {
                    cluster.address(to)
                } else {
                    service.book.get(&to).copied()
                };
                let registry = self.poll.registry();
                known.ok_or_else(|| "its address is not known".to_owned()).and_then(|address| {
                    let dialled = peers.dial(address, Some(name.clone()), registry, token);
                    dialled.map(|()| token.0).map_err(|error| format!("{address}: {error}"))
                })
            }
        };
        if link != Ok(token.0) {
            self.owners.remove(&token);
        }
        match link {
            Ok(link) => _ = peers.send(link, message),
            Err(reason) => service.unreachable.push((to, reason)),
        }
    }

    fn cut_off(&mut self, host: HostId, reason: &str) {
        let name = self.service.as_ref().and_then(|service| service.name(host));
        if let (Some(name), Some(peers)) = (name.map(str::to_owned), &mut self.peers) {
            peers.cut_off(&name, reason);
        }
    }

    fn say(&self, host: HostId, what: &str) {
        let name = self.service.as_ref().and_then(|service| service.name(host));
        info(&format!("host {} {what}", name.unwrap_or("?")));
    }
}
