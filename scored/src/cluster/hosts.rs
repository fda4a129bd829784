//! Membership: who is there, under which parent, and who is given up.
//!
//! | standing | meaning | left by |
//! |---|---|---|
//! | Absent | never here, or it went before it was taken in | Join, Joined |
//! | Placing | it has asked for a parent and was told one | Joined: Up; time: Down or Absent |
//! | Up | a parent holds a link to it | Lost, Unlinked, Join: it has no parent |
//! | Suspect | its link, or one above it, was lost | Join, Joined; time: Down |
//! | Down | given up; its jobs are ended | Join under a new incarnation |
//!
//! An incarnation that was given up is never taken in again: it is told to clean up and to come
//! back under a new one.

use std::collections::VecDeque;
use std::time::Duration;

use score_proto::nodeset::NodeSet;
use score_proto::peer::{Beat, HostId, Incarnation, Join, Lost, Member, Peer, Place, SERVER};
use score_tree::range::Branch;

use super::machine::Cluster;
use super::{Action, HostSetting, Time};

/// Incarnations of a host that are remembered as given up.
const REMEMBERED: usize = 8;
/// A host that was not reported for so many times the limit of silence is lost. A report rises by
/// one level at each beat, a third of that limit.
const UNSEEN: u32 = 4;
/// Hosts that are moved to a nearer parent in one step at most.
const MOVES: usize = 64;

/// A host.
#[derive(Debug)]
pub struct Host {
    pub setting: HostSetting,
    standing: Standing,
    /// Its daemon, unless it is Absent.
    pub member: Option<Member>,
    parent: HostId,
    /// When its parent has reported it last.
    seen: Time,
    /// It could not reach this parent: only those above are offered.
    avoid: Option<HostId>,
    /// Incarnations that were given up.
    ended: VecDeque<Incarnation>,
    /// Slots that jobs have, in all rows.
    pub used: u32,
    /// Bytes of memory that are promised to jobs.
    pub promised: u64,
}

#[derive(Debug)]
enum Standing {
    Absent,
    /// `kept`: it was Up before under this incarnation, and may run jobs.
    Placing {
        until: Time,
        kept: bool,
    },
    Up,
    Suspect {
        until: Time,
        reason: String,
    },
    Down,
}

impl Host {
    pub fn new(setting: HostSetting) -> Self {
        Self {
            setting,
            standing: Standing::Absent,
            member: None,
            parent: SERVER,
            seen: Time::ZERO,
            avoid: None,
            ended: VecDeque::new(),
            used: 0,
            promised: 0,
        }
    }

    /// A job has its share here from now on.
    pub fn take(&mut self, procs: u32, memory: u64) {
        self.used += procs;
        self.promised += memory;
    }

    /// It holds nothing here any more.
    pub fn give_back(&mut self, procs: u32, memory: u64) {
        self.used -= procs;
        self.promised -= memory;
    }

    pub fn is_up(&self) -> bool {
        matches!(self.standing, Standing::Up)
    }

    /// Whether its jobs are still counted on.
    fn is_kept(&self) -> bool {
        match self.standing {
            Standing::Absent | Standing::Down => false,
            Standing::Placing { kept, .. } => kept,
            Standing::Up | Standing::Suspect { .. } => true,
        }
    }

    /// Whether it can be a parent, soon at least.
    fn is_present(&self) -> bool {
        matches!(self.standing, Standing::Up | Standing::Placing { .. })
    }

    pub fn deadline(&self) -> Option<Time> {
        match self.standing {
            Standing::Placing { until, .. } | Standing::Suspect { until, .. } => Some(until),
            _ => None,
        }
    }
}

impl Cluster {
    /// The nearest ancestor in the tree that is there.
    fn parent_for(&self, host: HostId) -> HostId {
        let avoid = self.hosts[host as usize].avoid.unwrap_or(HostId::MAX);
        let way = Branch::whole(self.hosts.len() as u32).ancestors(host);
        let there = |above: &HostId| *above < avoid && self.hosts[*above as usize].is_present();
        way.into_iter().rev().find(there).unwrap_or(SERVER)
    }

    fn is_above(&self, above: HostId, host: HostId) -> bool {
        Branch::whole(self.hosts.len() as u32).ancestors(host).contains(&above)
    }

    /// Whether this daemon has to clean up before it can be taken in.
    fn must_reset(
        &mut self,
        host: HostId,
        incarnation: Incarnation,
        server: Option<Incarnation>,
    ) -> bool {
        let other = server.is_some_and(|server| server != self.setting.server);
        let ended = self.hosts[host as usize].ended.contains(&incarnation);
        if other || ended {
            let reason = if other {
                "what it runs is of a server that is no more".to_owned()
            } else {
                "it was given up".to_owned()
            };
            self.send(host, Peer::Reset { incarnation, reason });
        }
        other || ended
    }

    pub(super) fn joins(&mut self, join: Join, now: Time) {
        let Some(host) = self.host_named(&join.name).filter(|host| *host != SERVER) else {
            let name: String = join.name.chars().take(100).collect();
            return self.log(format!("{name:?} wants to join and is no host of this cluster"));
        };
        if self.must_reset(host, join.incarnation, join.server) {
            return;
        }
        let until = now + self.setting.times.silence + self.setting.times.grace;
        let orphaned = self.hosts[host as usize].is_up();
        let found = &mut self.hosts[host as usize];
        let mut same = false;
        if let Some(known) = found.member.as_mut().filter(|m| m.incarnation == join.incarnation) {
            if join.attach < known.attach {
                // It has found a parent since.
                return;
            }
            (known.attach, same) = (join.attach, true);
        }
        if !same && !found.is_kept() {
            let Join { incarnation, address, server, attach, .. } = join;
            found.member = Some(Member { host, incarnation, address, server, attach, memory: 0 });
            found.standing = Standing::Placing { until, kept: false };
            found.avoid = None;
            same = true;
        } else if same {
            found.standing = Standing::Placing { until, kept: found.is_kept() };
        }
        // Another incarnation than the one that is here: it is believed when it has a parent.
        if let Some(without) = join.without.filter(|without| *without != SERVER) {
            found.avoid = Some(without.min(found.avoid.unwrap_or(HostId::MAX)));
        }
        if same && orphaned {
            self.suspect_below(host, self.setting.times.silence, now);
        }
        self.place(host);
    }

    fn place(&mut self, host: HostId) {
        let parent = self.parent_for(host);
        let address = self.address(parent);
        let place = Place { host, server: self.setting.server, parent, address };
        self.send(host, Peer::Place(place));
    }

    /// A parent, or the server itself, has taken this daemon as its child.
    pub(super) fn joined(&mut self, member: Member, parent: HostId, now: Time) {
        let host = member.host;
        let is_host = host != SERVER && (host as usize) < self.hosts.len();
        if !is_host || !self.is_above(parent, host) {
            return self.log(format!("host {host} cannot be a child of host {parent}"));
        }
        if self.must_reset(host, member.incarnation, member.server) {
            return;
        }
        let found = &self.hosts[host as usize];
        let known = found.member.as_ref().filter(|known| known.incarnation == member.incarnation);
        if known.is_some_and(|known| known.attach >= member.attach) {
            return;
        }
        if known.is_none() && found.is_kept() {
            let before = self.incarnation(host).unwrap_or_default();
            self.give_up(host, "its scored was started anew", now);
            // If it is the other one that lives, this tells it.
            let reason = "another scored of this host has joined".to_owned();
            self.send(host, Peer::Reset { incarnation: before, reason });
        }
        let (incarnation, found) = (member.incarnation, &mut self.hosts[host as usize]);
        let is_new = !found.is_kept();
        found.member = Some(member);
        found.standing = Standing::Up;
        found.parent = parent;
        found.seen = now;
        if is_new {
            found.avoid = None;
            // Who could not reach its predecessor may try again.
            for other in self.hosts.iter_mut().filter(|other| other.avoid == Some(host)) {
                other.avoid = None;
            }
            self.actions.push(Action::Up { host, incarnation });
        }
        (self.unbalanced, self.room) = (true, true);
    }

    pub(super) fn lost(&mut self, lost: Lost, now: Time) {
        let Some(found) = self.hosts.get(lost.host as usize) else { return };
        let known = found.member.as_ref();
        let is_current = known.is_some_and(|member| {
            member.incarnation == lost.incarnation && member.attach == lost.attach
        });
        if is_current && found.is_up() {
            self.suspect(lost.host, lost.reason, now);
        }
    }

    pub(super) fn unlinked(&mut self, host: HostId, reason: String, now: Time) {
        let Some(found) = self.hosts.get(host as usize) else { return };
        if found.is_up() && found.parent == SERVER {
            self.suspect(host, reason, now);
        }
    }

    pub(super) fn present(&mut self, hosts: &NodeSet, now: Time) {
        for host in hosts.iter() {
            let Some(found) = self.hosts.get_mut(host as usize) else { break };
            found.seen = now;
        }
    }

    fn suspect(&mut self, host: HostId, reason: String, now: Time) {
        let name = self.name(host).to_owned();
        self.log(format!("host {name} is lost: {reason}"));
        let until = now + self.setting.times.grace;
        self.hosts[host as usize].standing = Standing::Suspect { until, reason };
        self.suspect_below(host, self.setting.times.silence, now);
    }

    /// Who has this host above it has lost its parent, or soon will, after so long: each dials for
    /// itself.
    fn suspect_below(&mut self, host: HostId, notice: Duration, now: Time) {
        let until = now + notice + self.setting.times.grace;
        let name = self.name(host).to_owned();
        let mut below = vec![false; self.hosts.len()];
        below[host as usize] = true;
        // A parent has a smaller number than its children.
        for index in host as usize + 1..self.hosts.len() {
            let found = &mut self.hosts[index];
            if below[found.parent as usize] && found.is_up() {
                below[index] = true;
                let reason = format!("it did not dial again after {name}, its parent, was lost");
                found.standing = Standing::Suspect { until, reason };
            }
        }
    }

    /// Ends everything that counts on this incarnation of the host.
    fn give_up(&mut self, host: HostId, reason: &str, now: Time) {
        let Some(incarnation) = self.incarnation(host) else { return };
        let text = format!("host {}: {reason}", self.name(host));
        let found = &mut self.hosts[host as usize];
        found.standing = Standing::Down;
        if found.ended.len() == REMEMBERED {
            found.ended.pop_front();
        }
        found.ended.push_back(incarnation);
        self.actions.push(Action::Down { host, incarnation, reason: text.clone() });
        self.lose_host(host, &text, now);
        // A daemon that hangs and was replaced may have sent a beat only now. Of others it is known
        // already.
        self.suspect_below(host, self.setting.times.silence * 3 / 2, now);
    }

    pub(super) fn mark_defect(&mut self, host: HostId, defect: bool) {
        if let Some(found) = self.hosts.get_mut(host as usize) {
            found.setting.defect = defect;
            self.room = true;
        }
    }

    /// The server itself did not run for a while: nobody is to blame for that time.
    fn forgive(&mut self, pause: Time) {
        for host in &mut self.hosts {
            host.seen += pause;
            if let Standing::Placing { until, .. } | Standing::Suspect { until, .. } =
                &mut host.standing
            {
                *until += pause;
            }
        }
    }

    pub(super) fn tick_hosts(&mut self, now: Time) {
        let pause = now.saturating_sub(self.beat);
        if pause > self.setting.times.silence / 3 {
            self.forgive(pause);
        }
        for host in 1..self.hosts.len() as HostId {
            let found = &mut self.hosts[host as usize];
            match &mut found.standing {
                Standing::Suspect { until, reason } if *until <= now => {
                    let reason = std::mem::take(reason);
                    self.give_up(host, &reason, now);
                }
                Standing::Placing { until, kept: true } if *until <= now => {
                    self.give_up(host, "it dialled again and found no parent", now);
                }
                Standing::Placing { until, kept: false } if *until <= now => {
                    (found.standing, found.member) = (Standing::Absent, None);
                }
                _ => {}
            }
        }
        if now >= self.beat {
            self.beat = now + self.setting.times.silence / 3;
            let server = self.setting.server;
            let unseen = self.setting.times.silence * UNSEEN;
            for host in 1..self.hosts.len() as HostId {
                let found = &self.hosts[host as usize];
                if found.is_up() && found.seen + unseen < now {
                    self.suspect(host, "its parent does not report it any more".to_owned(), now);
                } else if found.is_up()
                    && found.parent == SERVER
                    && let Some(member) = &found.member
                {
                    let (child, attach) = (member.incarnation, member.attach);
                    self.send(host, Peer::Beat(Beat { server, child, attach }));
                }
            }
        }
        if std::mem::take(&mut self.unbalanced) {
            self.rebalance();
        }
    }

    /// Hosts that were adopted while their own parent was away go back to it, some at a time.
    fn rebalance(&mut self) {
        let mut moves = 0;
        for host in 1..self.hosts.len() as HostId {
            let found = &self.hosts[host as usize];
            if !found.is_up() {
                continue;
            }
            let parent = self.parent_for(host);
            if parent != found.parent && self.hosts[parent as usize].is_up() {
                if moves == MOVES {
                    self.unbalanced = true;
                    break;
                }
                moves += 1;
                self.place(host);
            }
        }
    }
}
