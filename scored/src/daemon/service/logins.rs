//! Who logs in: callers at the local socket, and logins that the daemons of other hosts vouch for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use score_proto::frame;
use score_proto::login::{LOGIN, OfJob};
use score_proto::message::{Down, Login, Up};
use score_proto::order::{self, Limit};
use score_proto::peer::{HostId, Peer, SERVER, User};

use super::super::session::{Lane, Session};
use super::super::{Daemon, FAILED, Owner, REFUSED};
use super::{Role, info, warn};
use crate::cluster::{self, SessionId};

/// Callers without login at the same time. When there are more, the user that has most of them
/// loses the oldest.
const STRANGERS: usize = 256;
/// A caller is not dropped before.
const PROBATION: Duration = Duration::from_secs(1);
/// How long a caller may take to log in.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limits that a user may pass on.
const LIMITS: usize = 32;
/// Bytes of a user's name.
const NAME: usize = 256;

impl Daemon {
    /// Takes in who calls at the local socket, as far as there is room.
    pub fn admit_callers(&mut self) {
        if self.service.is_none() {
            return;
        }
        let late = |session: &Session| session.since.elapsed() > PATIENCE;
        let late: Vec<usize> = self
            .strangers()
            .filter(|(_, session)| late(session))
            .map(|(number, _)| number)
            .collect();
        late.into_iter().for_each(|number| self.drop_stranger(number));
        let mut strangers = self.strangers().count();
        while strangers < STRANGERS || self.evict() {
            let Some(service) = &mut self.service else { return };
            let Some(caller) = service.door.accept() else { return };
            let number = self.next_token;
            let token = self.token(Owner::Session(number));
            let Ok(mut session) = Session::new(caller.socket, self.poll.registry(), token) else {
                self.owners.remove(&token);
                continue;
            };
            session.peer = Some(caller.peer);
            self.sessions.insert(number, session);
            strangers += 1;
        }
    }

    /// Callers that have not logged in and are not on their way out.
    fn strangers(&self) -> impl Iterator<Item = (usize, &Session)> {
        let strange = |session: &&Session| session.owner.is_none() && !session.is_leaving();
        let sessions = self.sessions.iter().map(|(number, session)| (*number, session));
        sessions.filter(move |(_, session)| session.peer.is_some() && strange(session))
    }

    /// Makes room for one caller more, if nobody has to go too early for it.
    fn evict(&mut self) -> bool {
        if !self.service.as_ref().is_some_and(|service| service.door.waiting) {
            return false;
        }
        let mut users: HashMap<u32, Vec<(Instant, usize)>> = HashMap::new();
        for (number, session) in self.strangers() {
            let uid = session.peer.map_or(0, |(uid, _)| uid);
            users.entry(uid).or_default().push((session.since, number));
        }
        let most = users.into_values().max_by_key(Vec::len);
        let oldest = most.and_then(|all| all.into_iter().min());
        match oldest.filter(|(since, _)| since.elapsed() > PROBATION) {
            Some((_, number)) => {
                self.drop_stranger(number);
                true
            }
            None => false,
        }
    }

    fn drop_stranger(&mut self, number: usize) {
        let (Some(session), Some(service)) = (self.sessions.get_mut(&number), &mut self.service)
        else {
            return;
        };
        let uid = session.peer.map_or(0, |(uid, _)| uid);
        let reason = "no login within the time for it".to_owned();
        session.tell(LOGIN, &Up::Refused { reason, code: FAILED });
        service.complain(true, &format!("uid {uid} has called and not logged in: dropped"));
    }

    /// How long a caller may still take, if there is one.
    pub fn callers_deadline(&self) -> Option<Duration> {
        let service = self.service.as_ref()?;
        // Not at once: when descriptors have run out, there is nothing to be done now.
        let soon = Duration::from_millis(20);
        if service.door.waiting && self.strangers().count() < STRANGERS {
            // Some have logged in since the house was full.
            return Some(if service.door.is_ready() { Duration::ZERO } else { soon });
        }
        let since = self.strangers().map(|(_, session)| session.since).min()?;
        let limit = if service.door.waiting { PROBATION } else { PATIENCE };
        Some((since + limit).saturating_duration_since(Instant::now()).max(soon))
    }

    /// A caller says who it is.
    pub fn log_in(&mut self, number: usize, login: Login) {
        let Some(service) = &self.service else {
            return self.refuse(
                Lane::of(number),
                "this scored serves one user only".to_owned(),
                REFUSED,
            );
        };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let Some((uid, gid)) = session.peer.filter(|_| session.owner.is_none()) else { return };
        let refusal = if login.uid != uid {
            warn(&format!("uid {uid} has claimed to be uid {}: refused", login.uid));
            Some(format!("you are uid {uid}, and no other login is taken from you"))
        } else if login.limits.len() > LIMITS || login.name.0.len() > NAME {
            Some("the login is too long".to_owned())
        } else {
            service.config.check(&login.cluster).err()
        };
        if let Some(reason) = refusal {
            return self.refuse(Lane::of(number), reason, REFUSED);
        }
        let Login { name, limits, .. } = login;
        session.owner = Some(order::Owner { uid, gid, name: name.clone(), limits: limits.clone() });
        let user = User { uid, gid, name };
        if service.verbose {
            info(&format!("uid {uid} has logged in"));
        }
        let id = |host, incarnation| SessionId { host, incarnation, number: number as u64 };
        match &service.role {
            Role::Server(cluster) => {
                let id = id(SERVER, cluster.server());
                session.id = Some(id);
                self.cluster(cluster::Event::Login { session: id, user });
            }
            Role::Host(member) if member.parent().is_none() => {
                let server = service.name(SERVER).unwrap_or_default();
                let reason =
                    format!("the scored of this host has no connection to the server, {server}");
                self.refuse(Lane::of(number), reason, FAILED);
            }
            Role::Host(member) => {
                session.id = Some(id(member.host().unwrap_or(SERVER), member.incarnation()));
                session.forwarded = true;
                let session = number as u64;
                self.send_to_host(SERVER, Peer::Login { session, user, limits });
            }
        }
    }

    /// Something for the server.
    pub fn forward(&mut self, number: usize, down: &OfJob<Down>) {
        match frame::encode_datagram(down) {
            Ok(body) => {
                let session = number as u64;
                self.send_to_host(SERVER, Peer::SessionDown { session, body });
            }
            Err(error) => self.refuse(Lane::of(number), error.to_string(), FAILED),
        }
    }

    /// Another host speaks of one of its logins; or the server, of one of ours.
    pub fn heard_of_session(&mut self, from: HostId, message: Peer) {
        match message {
            Peer::Login { session, user, limits } => self.log_in_far(from, session, user, limits),
            Peer::SessionDown { session, body } => {
                let far = self.far_session(from, session);
                match (far, frame::decode_datagram(&body)) {
                    (Some(far), Ok(down)) => far.deliver(down),
                    (Some(far), Err(error)) => {
                        let reason = format!("from scrun: {error}");
                        far.tell(LOGIN, &Up::Refused { reason, code: FAILED });
                    }
                    (None, _) => {}
                }
            }
            Peer::SessionUp { session, body } if from == SERVER => {
                let ours = usize::try_from(session).ok();
                let ours = ours.and_then(|number| self.sessions.get_mut(&number));
                if let (Some(ours), Ok(up)) = (ours, frame::decode_datagram::<OfJob<Up>>(&body))
                    && ours.forwarded
                {
                    ours.tell(up.job, &up.message);
                }
            }
            Peer::SessionOver { session, reason } => match self.far_session(from, session) {
                Some(far) => far.hang_up(),
                None if from == SERVER => {
                    let number = usize::try_from(session).unwrap_or(usize::MAX);
                    if self.sessions.get(&number).is_some_and(|session| session.forwarded) {
                        self.refuse(Lane::of(number), reason, FAILED);
                    }
                }
                None => {}
            },
            _ => {}
        }
    }

    fn far_session(&mut self, from: HostId, session: u64) -> Option<&mut Session> {
        let number = self.service.as_ref()?.far.get(&(from, session))?;
        self.sessions.get_mut(number)
    }

    fn log_in_far(&mut self, from: HostId, session: u64, user: User, limits: Vec<Limit>) {
        let number = self.next_token;
        self.next_token += 1;
        let Some(service) = &mut self.service else { return };
        let Role::Server(cluster) = &service.role else { return };
        let Some(incarnation) = cluster.incarnation_of(from) else { return };
        let id = SessionId { host: from, incarnation, number: session };
        let User { uid, gid, name } = user.clone();
        let mut far = Session::far();
        far.owner = Some(order::Owner { uid, gid, name, limits });
        far.id = Some(id);
        service.far.insert((from, session), number);
        self.sessions.insert(number, far);
        self.cluster(cluster::Event::Login { session: id, user });
    }

    /// What far scruns are to hear goes to their hosts.
    pub fn send_outboxes(&mut self) {
        let Some(service) = &self.service else { return };
        let far: Vec<_> = service.far.iter().map(|(key, number)| (*key, *number)).collect();
        for ((host, session), number) in far {
            let said = self.sessions.get_mut(&number).map(Session::take_outbox);
            for up in said.unwrap_or_default() {
                let late = matches!(up.message, Up::Figures(_)) && self.is_slow(host);
                if let Ok(body) = frame::encode_datagram(&up)
                    && !late
                {
                    self.send_to_host(host, Peer::SessionUp { session, body });
                }
            }
        }
    }

    /// A session is over, whoever ended it.
    pub fn session_over(&mut self, session: &Session) {
        let Some(service) = &mut self.service else { return };
        let Some(id) = session.id else { return };
        service.far.remove(&(id.host, id.number));
        if session.forwarded {
            let reason = "its scrun has gone".to_owned();
            self.send_to_host(SERVER, Peer::SessionOver { session: id.number, reason });
        } else {
            self.cluster(cluster::Event::Logout { session: id });
        }
    }

    /// The session that the cluster knows by this name.
    pub(super) fn session_of(&self, id: SessionId) -> Option<usize> {
        let service = self.service.as_ref()?;
        match id.host {
            SERVER => usize::try_from(id.number).ok(),
            host => service.far.get(&(host, id.number)).copied(),
        }
    }

    /// The job that the cluster knows by this session and tag.
    pub(super) fn lane_of(&self, id: SessionId, tag: u64) -> Option<Lane> {
        let session = self.session_of(id)?;
        Some(Lane { session, job: u32::try_from(tag).ok()? })
    }

    pub(super) fn refuse_far(&mut self, id: SessionId, tag: u64, reason: &str, code: u8) {
        if let Some(lane) = self.lane_of(id, tag) {
            self.refuse(lane, reason.to_owned(), code);
        }
    }
}
