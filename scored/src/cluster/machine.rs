//! The state of the server, and the way of each event to the file that handles it: membership in
//! `hosts.rs`, logins and jobs in `jobs.rs`.

use std::collections::BTreeMap;

use score_proto::peer::{HostId, Incarnation, Peer, SERVER};

use super::hosts::Host;
use super::jobs::{Job, Session, Usage};
use super::queue::Waiting;
use super::{Action, Event, JobId, SessionId, Setting, Time};

/// The server's view of its cluster.
#[derive(Debug)]
pub struct Cluster {
    pub(super) setting: Setting,
    pub(super) hosts: Vec<Host>,
    pub(super) names: BTreeMap<String, HostId>,
    /// A host was taken in: others may have a nearer parent now.
    pub(super) unbalanced: bool,
    pub(super) beat: Time,
    /// When the last event came.
    pub(super) now: Time,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) users: BTreeMap<u32, Usage>,
    pub(super) bytes: u64,
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) waiting: Waiting,
    pub(super) next_job: JobId,
    /// Room may have become free: the queue is looked at when the event is done.
    pub(super) room: bool,
    pub(super) actions: Vec<Action>,
}

impl Cluster {
    /// A server that has just started: no other host is there.
    pub fn new(setting: Setting, now: Time) -> Self {
        let names = setting.hosts.iter().map(|host| host.name.clone()).zip(0..).collect();
        Self {
            hosts: setting.hosts.iter().cloned().map(Host::new).collect(),
            names,
            unbalanced: false,
            beat: now,
            now,
            sessions: BTreeMap::new(),
            users: BTreeMap::new(),
            bytes: 0,
            jobs: BTreeMap::new(),
            waiting: Waiting::default(),
            next_job: setting.first_job.max(1),
            room: false,
            actions: Vec::new(),
            setting,
        }
    }

    /// One step.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        self.now = now;
        match event {
            Event::Heard { from, message } => self.heard(from, message, now),
            Event::Unlinked { host, reason } => self.unlinked(host, reason, now),
            Event::Login { session, user } => self.login(session, user),
            Event::Submit { session, tag, request } => self.submit(session, tag, request),
            Event::Cancel { session, tag } => self.cancel(session, tag, now),
            Event::Logout { session } => self.logout(session, "its scrun has gone", now),
            Event::Released { job, hosts } => self.released(job, &hosts),
            Event::Finished { job, code } => self.finished(job, code, now),
            Event::Broken { job, host, reason } => self.broken(job, host, &reason, now),
            Event::Stop { uid, job } => self.stop(uid, job, now),
            Event::Defect { host, defect } => self.mark_defect(host, defect),
            Event::Tick => {
                self.tick_hosts(now);
                self.tick_jobs(now);
            }
        }
        if std::mem::take(&mut self.room) {
            self.schedule();
        }
        std::mem::take(&mut self.actions)
    }

    fn heard(&mut self, from: HostId, message: Peer, now: Time) {
        match message {
            Peer::Join(join) => self.joins(join, now),
            Peer::Child(member) if member.host == from => self.joined(member, SERVER, now),
            Peer::Joined(all) => {
                all.into_iter().for_each(|one| self.joined(one.member, one.parent, now));
            }
            Peer::Lost(all) => all.into_iter().for_each(|one| self.lost(one, now)),
            Peer::Present(hosts) => self.present(&hosts, now),
            // A child that moves is heard of again from its new parent.
            Peer::Leave => {}
            other => {
                let text: String = format!("{other:?}").chars().take(60).collect();
                self.log(format!("host {from}: unexpected message {text}"));
            }
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Time {
        let hosts = self.hosts.iter().filter_map(Host::deadline);
        let jobs = self.jobs.values().filter_map(Job::deadline);
        hosts.chain(jobs).fold(self.beat, Time::min)
    }

    /// The number of the host with this name.
    pub fn host_named(&self, name: &str) -> Option<HostId> {
        self.names.get(name).copied()
    }

    /// The name of a host.
    pub fn name(&self, host: HostId) -> &str {
        self.hosts.get(host as usize).map_or("?", |host| &host.setting.name)
    }

    /// Whether jobs can be given to a host now.
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts.get(host as usize).is_some_and(|found| host == SERVER || found.is_up())
    }

    /// Where a host accepts links: what the shares of a job need to find each other.
    pub fn address(&self, host: HostId) -> Option<std::net::SocketAddr> {
        Some(self.hosts.get(host as usize)?.member.as_ref()?.address)
    }

    pub(super) fn incarnation(&self, host: HostId) -> Option<Incarnation> {
        if host == SERVER {
            return Some(self.setting.server);
        }
        Some(self.hosts.get(host as usize)?.member.as_ref()?.incarnation)
    }

    pub(super) fn log(&mut self, line: String) {
        self.actions.push(Action::Log(line));
    }

    pub(super) fn send(&mut self, to: HostId, message: Peer) {
        self.actions.push(Action::Send { to, message });
    }
}
