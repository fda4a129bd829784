//! The daemon of a host that is not the server: finds its parent, keeps its children, passes news
//! up and the server's beat down, and cleans up when it is told or hears nothing any more.
//!
//! | event | actions |
//! |---|---|
//! | it starts: `Tick` | `Send(Join)` to the server; or, started by its parent, `Send(Child)` |
//! | `Heard(Place)` | `Book` of the parent's address, `Send(Child)` |
//! | a child says `Child`, or `Joined` or `Lost` | a moment later one `Send` of all such news |
//! | `Heard(Beat)` | `Send(Beat)` to each child, `Send(Present)` to the parent |
//! | that beat was for a predecessor | `Send(Child)` as well |
//! | `Unlinked` of the parent, `Heard(Orphaned)` | `Send(Orphaned)` to all children, `Send(Join)` |
//! | no beat for one and a half times the limit of silence | the same, without that parent |
//! | `Heard(Reset)`, another server, or no beat for twice that limit and the grace | `Clean` |
//! | `Cleaned` with a new incarnation | `Send(Join)` |

use std::collections::BTreeMap;
use std::net::SocketAddr;

use score_proto::nodeset::NodeSet;
use score_proto::peer::{
    Beat, HostId, Incarnation, Join, Joined, Lost, Member as Card, Peer, SERVER,
};

use super::{Time, Times};

/// Pieces of news that may wait for a parent; with more, the children have to join anew.
const NEWS: usize = 16 * 1024;
/// Pieces of news in one message.
const TOGETHER: usize = 1024;

/// What a daemon knows at its start.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its name in the cluster's list.
    pub name: String,
    /// Its first incarnation.
    pub incarnation: Incarnation,
    /// Where it accepts links.
    pub address: SocketAddr,
    /// Bytes of memory of this host; 0 where that is not known.
    pub memory: u64,
    /// When it was started by its parent: its own number, and the parent's.
    pub place: Option<(HostId, HostId)>,
    /// Times.
    pub times: Times,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A message of membership.
    Heard {
        /// From this host.
        from: HostId,
        /// The message.
        message: Peer,
    },
    /// The last link to a host is gone, or could not be made.
    Unlinked {
        /// The host.
        host: HostId,
        /// What the link said.
        reason: String,
    },
    /// What [`Action::Clean`] asked for is done; the daemon's new incarnation.
    Cleaned(Incarnation),
    /// [`Member::deadline`] has come.
    Tick,
}

/// What the shell shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this, over the link there is or by dialling. When it cannot be sent: `Unlinked`.
    Send {
        /// To whom.
        to: HostId,
        /// What.
        message: Peer,
    },
    /// From now on that host is reached there.
    Book {
        /// The host.
        host: HostId,
        /// Where it accepts links.
        address: SocketAddr,
    },
    /// End every job here, close every session, and report [`Event::Cleaned`].
    Clean {
        /// Why.
        reason: String,
    },
    /// A line for the log.
    Log(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asks the server for a place at this time (again).
    Joining { next: Time },
    /// Has a parent. `sure` once something was heard from it.
    Attached { parent: HostId, sure: bool },
    /// Waits for the shell to have cleaned up.
    Cleaning,
}

/// A daemon.
#[derive(Debug)]
pub struct Member {
    setting: Setting,
    state: State,
    host: Option<HostId>,
    server: Option<Incarnation>,
    attach: u32,
    /// A parent that it was told and could not reach.
    without: Option<HostId>,
    /// Incarnation and attachment of each child.
    children: BTreeMap<HostId, (Incarnation, u32)>,
    /// Hosts that the children have reported since the last beat.
    present: NodeSet,
    joined: Vec<Joined>,
    lost: Vec<Lost>,
    /// When the news goes up.
    flush: Option<Time>,
    /// When the server was heard last.
    beaten: Time,
    actions: Vec<Action>,
}

impl Member {
    /// A daemon that has just started and runs nothing; call [`Member::on`] with `Tick` at once.
    pub fn new(setting: Setting, now: Time) -> Self {
        Self {
            state: State::Joining { next: now },
            host: setting.place.map(|(own, _)| own),
            server: None,
            attach: 0,
            without: None,
            children: BTreeMap::new(),
            present: NodeSet::new(),
            joined: Vec::new(),
            lost: Vec::new(),
            flush: None,
            beaten: now,
            actions: Vec::new(),
            setting,
        }
    }

    /// This daemon's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.setting.incarnation
    }

    /// Its number, once it knows.
    pub fn host(&self) -> Option<HostId> {
        self.host
    }

    /// Its parent, if it has one.
    pub fn parent(&self) -> Option<HostId> {
        match self.state {
            State::Attached { parent, .. } => Some(parent),
            _ => None,
        }
    }

    /// One step.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match event {
            Event::Heard { from, message } => self.heard(from, message, now),
            Event::Unlinked { host, reason } => self.unlinked(host, reason, now),
            Event::Cleaned(incarnation) => self.cleaned(incarnation, now),
            Event::Tick => {}
        }
        self.tick(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Time {
        let next = match self.state {
            State::Joining { next } => next,
            State::Attached { .. } => self.flush.unwrap_or(Time::MAX),
            State::Cleaning => Time::MAX,
        };
        next.min(self.fence()).min(self.patience())
    }

    /// When it looks for another parent, because no beat comes from this one.
    fn patience(&self) -> Time {
        match self.state {
            State::Attached { .. } => self.beaten + self.setting.times.silence * 3 / 2,
            _ => Time::MAX,
        }
    }

    /// When it ends what it runs because the server is not heard.
    fn fence(&self) -> Time {
        match (self.server, self.state) {
            (None, _) | (_, State::Cleaning) => Time::MAX,
            _ => self.beaten + self.setting.times.silence * 2 + self.setting.times.grace,
        }
    }

    fn heard(&mut self, from: HostId, message: Peer, now: Time) {
        if let State::Attached { parent, sure } = &mut self.state
            && *parent == from
        {
            *sure = true;
        }
        match message {
            Peer::Place(_) | Peer::Reset { .. } | Peer::Refused { .. } if from != SERVER => {
                self.log(format!("host {from} speaks as if it were the server"));
            }
            Peer::Reset { incarnation, reason } if incarnation == self.setting.incarnation => {
                self.clean(&reason, now);
            }
            Peer::Reset { .. } => {}
            // Who comes now has to look elsewhere; all else concerns what is being ended.
            Peer::Child(_) if self.state == State::Cleaning => self.send(from, Peer::Orphaned),
            _ if self.state == State::Cleaning => {}
            Peer::Place(place) => {
                if !self.belongs_to(place.server, now) {
                    return;
                }
                // What it told a parent that has never answered is lost with that.
                let unheard = matches!(self.state, State::Attached { parent, sure: false }
                    if parent != place.parent);
                if unheard {
                    self.orphaned(now);
                }
                self.host = Some(place.host);
                self.beaten = now;
                if let Some(address) = place.address {
                    self.actions.push(Action::Book { host: place.parent, address });
                }
                self.attach_to(place.parent);
            }
            // It may have hung while the server was started anew: it is not asked which one it is.
            Peer::Beat(_) if self.parent() != Some(from) => self.send(from, Peer::Leave),
            Peer::Beat(beat) => {
                // The same, of a parent that knows a predecessor only.
                let is_old = beat.child != self.setting.incarnation
                    && self.server.is_some_and(|server| server != beat.server);
                if !is_old && self.belongs_to(beat.server, now) {
                    self.beat(from, beat, now);
                }
            }
            Peer::Present(hosts) => {
                if self.children.contains_key(&from) && self.present.union_fits(&hosts) {
                    self.present.union(&hosts);
                }
            }
            Peer::Child(member) if member.host == from => self.adopt(member, now),
            Peer::Joined(all) => {
                self.joined.extend(all);
                self.news(now);
            }
            Peer::Lost(all) => {
                self.lost.extend(all);
                self.news(now);
            }
            Peer::Leave => _ = self.children.remove(&from),
            Peer::Orphaned if self.parent() == Some(from) => self.orphaned(now),
            Peer::Orphaned => {}
            Peer::Refused { reason } => self.log(format!("the server refuses this host: {reason}")),
            _ => self.log(format!("host {from}: a message that is not for a daemon")),
        }
    }

    fn beat(&mut self, parent: HostId, beat: Beat, now: Time) {
        self.beaten = now;
        for child in self.children.keys().copied().collect::<Vec<_>>() {
            self.beat_to(child, beat.server).into_iter().for_each(|beat| self.send(child, beat));
        }
        let known = (beat.child, beat.attach) == (self.setting.incarnation, self.attach);
        let mut present = std::mem::take(&mut self.present);
        if let Some(host) = self.host {
            present.insert(host);
        }
        self.send(parent, Peer::Present(present));
        if !known {
            self.send(parent, Peer::Child(self.card()));
        }
    }

    fn beat_to(&self, child: HostId, server: Incarnation) -> Option<Peer> {
        let (child, attach) = *self.children.get(&child)?;
        Some(Peer::Beat(Beat { server, child, attach }))
    }

    fn card(&self) -> Card {
        Card {
            host: self.host.unwrap_or(SERVER),
            incarnation: self.setting.incarnation,
            address: self.setting.address,
            server: self.server,
            attach: self.attach,
            memory: self.setting.memory,
        }
    }

    fn adopt(&mut self, member: Card, now: Time) {
        let Some(parent) = self.host else { return self.send(member.host, Peer::Orphaned) };
        let child = member.host;
        let known = self.children.get(&child).copied();
        if known.is_some_and(|(same, at)| same == member.incarnation && at >= member.attach) {
            return;
        }
        self.children.insert(child, (member.incarnation, member.attach));
        self.joined.push(Joined { member, parent });
        self.news(now);
        let beat = self.server.and_then(|server| self.beat_to(child, server));
        beat.into_iter().for_each(|beat| self.send(child, beat));
    }

    /// Whether this is the server whose jobs run here; another one finds this host empty.
    fn belongs_to(&mut self, server: Incarnation, now: Time) -> bool {
        match self.server {
            Some(known) if known != server => {
                self.clean("the server was started anew", now);
                false
            }
            _ => {
                self.server = Some(server);
                true
            }
        }
    }

    fn attach_to(&mut self, parent: HostId) {
        if let Some(before) = self.parent().filter(|before| *before != parent) {
            self.send(before, Peer::Leave);
        }
        self.attach += 1;
        self.without = None;
        self.state = State::Attached { parent, sure: false };
        self.send(parent, Peer::Child(self.card()));
    }

    fn unlinked(&mut self, host: HostId, reason: String, now: Time) {
        if let Some((incarnation, attach)) = self.children.remove(&host) {
            self.lost.push(Lost { host, incarnation, attach, reason });
            self.news(now);
        }
        match self.state {
            State::Attached { parent, sure } if parent == host => {
                self.orphaned(now);
                self.without = (!sure).then_some(parent);
            }
            State::Joining { .. } if host == SERVER => {
                let pause = self.setting.times.silence / 20;
                self.state = State::Joining { next: now + pause };
            }
            _ => {}
        }
    }

    /// No parent any more: each child looks for one too, and its news finds its own way.
    fn orphaned(&mut self, now: Time) {
        for child in std::mem::take(&mut self.children).into_keys() {
            self.send(child, Peer::Orphaned);
        }
        self.joined.clear();
        self.lost.clear();
        self.present = NodeSet::new();
        self.flush = None;
        self.state = State::Joining { next: now };
    }

    /// Leaves its parent without having another one.
    fn desert(&mut self, reason: &str, now: Time) {
        if let (Some(parent), Some(host)) = (self.parent(), self.host) {
            let (incarnation, attach) = (self.setting.incarnation, self.attach);
            let reason = reason.to_owned();
            self.send(parent, Peer::Lost(vec![Lost { host, incarnation, attach, reason }]));
            self.send(parent, Peer::Leave);
        }
        self.orphaned(now);
    }

    fn clean(&mut self, reason: &str, now: Time) {
        if self.state != State::Cleaning {
            // Nobody shall count on what was here, however long cleaning up takes.
            self.desert(reason, now);
            self.state = State::Cleaning;
            self.actions.push(Action::Clean { reason: reason.to_owned() });
        }
    }

    fn cleaned(&mut self, incarnation: Incarnation, now: Time) {
        if self.state == State::Cleaning {
            self.setting.incarnation = incarnation;
            (self.server, self.attach, self.without) = (None, 0, None);
            self.setting.place = None;
            self.state = State::Joining { next: now };
        }
    }

    fn news(&mut self, now: Time) {
        if self.joined.len() + self.lost.len() > NEWS {
            return self.orphaned(now);
        }
        self.flush.get_or_insert(now + self.setting.times.merge);
    }

    fn tick(&mut self, now: Time) {
        if now >= self.fence() {
            self.clean("the server was not heard for too long", now);
        }
        if now >= self.patience()
            && let Some(parent) = self.parent()
        {
            self.desert("it has heard no beat from its parent", now);
            self.without = Some(parent);
        }
        if let State::Joining { next } = self.state
            && now >= next
        {
            // It is asked again when no answer comes.
            self.state = State::Joining { next: now + self.setting.times.silence };
            if let Some((_, parent)) = self.setting.place.take() {
                self.attach_to(parent);
            } else {
                self.join();
            }
        }
        if let State::Attached { parent, .. } = self.state
            && self.flush.is_some_and(|flush| now >= flush)
        {
            self.flush = None;
            let (joined, lost) = (std::mem::take(&mut self.joined), std::mem::take(&mut self.lost));
            for some in joined.chunks(TOGETHER) {
                self.send(parent, Peer::Joined(some.to_vec()));
            }
            for some in lost.chunks(TOGETHER) {
                self.send(parent, Peer::Lost(some.to_vec()));
            }
        }
    }

    fn join(&mut self) {
        let join = Join {
            name: self.setting.name.clone(),
            incarnation: self.setting.incarnation,
            address: self.setting.address,
            server: self.server,
            attach: self.attach,
            without: self.without,
        };
        self.send(SERVER, Peer::Join(join));
    }

    fn send(&mut self, to: HostId, message: Peer) {
        self.actions.push(Action::Send { to, message });
    }

    fn log(&mut self, line: String) {
        self.actions.push(Action::Log(line));
    }
}
