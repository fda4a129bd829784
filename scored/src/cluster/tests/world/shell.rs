//! The stand-in for the loops of server and daemons, and the users.

use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::peer::{HostId, Incarnation, SERVER, User};
use score_proto::shape::Shape;

use super::{LIMIT, MEMORY, Master, Message, Random, Run, Seen, TIMES, Thing, World};
use crate::cluster::{Action, Event, JobId, Request, SessionId, Time};

impl World {
    // The daemon's side of jobs.

    pub(super) fn start_share(
        &mut self,
        host: HostId,
        (job, share, procs): (JobId, u32, u32),
        incarnation: Incarnation,
        length: Time,
    ) {
        let slots = self.setting.hosts[host as usize].slots * self.setting.rows;
        let found = &mut self.hosts[host as usize];
        if found.member.as_ref().is_none_or(|member| member.incarnation() != incarnation) {
            return self.send(host, SERVER, Message::Free { job, share, ran: false });
        }
        found.runs.insert(job, Run { share, procs, killed: false });
        let busy: u32 = found.runs.values().map(|run| run.procs).sum();
        assert!(busy <= slots, "c{host} runs {busy} processes on {slots} slots of all rows");
        let life = found.life;
        self.at(self.now + length, Thing::ShareOver { host, life, job });
    }

    pub(super) fn kill_all(&mut self, host: HostId) {
        // Some processes die hard.
        let slow = self.random.chance(20);
        let pause = if slow { self.random.time(20, 8000) } else { Time::from_millis(20) };
        let found = &mut self.hosts[host as usize];
        let life = found.life;
        let jobs: Vec<_> = found.runs.keys().copied().collect();
        for job in jobs {
            self.hosts[host as usize].runs.get_mut(&job).unwrap().killed = true;
            self.at(self.now + pause, Thing::ShareOver { host, life, job });
        }
    }

    // The server's side.

    pub fn serve(&mut self, event: Event) {
        let now = self.now;
        if let Event::Unlinked { host, .. } = &event {
            let host = *host;
            let runs = |master: &Master| {
                let held = |index: &u32| !master.free.contains(*index);
                let mut held = (0..).zip(&master.shares).filter(|(index, _)| held(index));
                held.any(|(_, share)| share.host == host)
            };
            let jobs = self.masters.iter().filter(|(_, master)| runs(master));
            for job in jobs.map(|(job, _)| *job).collect::<Vec<_>>() {
                let reason = "its link was lost".to_owned();
                self.step(Event::Broken { job, host, reason }, now);
            }
        }
        self.step(event, now);
        self.tick_later(SERVER);
    }

    fn step(&mut self, event: Event, now: Time) {
        let Some(server) = &mut self.server else { return };
        for action in server.on(event, now) {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        if !matches!(action, Action::Send { .. }) {
            self.trace(|| format!("server: {action:?}"));
        }
        match action {
            Action::Send { to, message } => self.send(SERVER, to, Message::Peer(message)),
            Action::Start { session, tag, job, shares, incarnations } => {
                let seen = self.seen.get_mut(&(session, tag)).unwrap();
                assert!(seen.started.is_none() && !seen.ended && !seen.refused, "{seen:?}");
                seen.started = Some(self.now);
                self.tally.started += 1;
                let length = self.random.time(50, 20_000);
                for (index, share) in (0..).zip(&shares) {
                    let server = self.server.as_ref().unwrap();
                    assert!(server.is_up(share.host), "job {job} on c{}", share.host);
                    let host = &server.hosts[share.host as usize];
                    assert!(share.procs <= host.setting.slots && host.promised <= MEMORY);
                    let incarnation = incarnations[index as usize];
                    let procs = share.procs;
                    let start = Message::Start { job, incarnation, share: index, procs, length };
                    self.send(SERVER, share.host, start);
                }
                let free = NodeSet::new();
                self.masters.insert(job, Master { shares, free, killing: false, finished: false });
            }
            Action::End { job, .. } => {
                if let Some(master) = self.masters.get_mut(&job) {
                    assert!(!std::mem::replace(&mut master.killing, true));
                    self.kill_shares(job);
                }
            }
            Action::Down { host, reason, .. } => {
                self.tally.given_up += 1;
                self.given_up.push(reason);
                for master in self.masters.values_mut() {
                    for (index, share) in (0..).zip(&master.shares) {
                        if share.host == host {
                            master.free.insert(index);
                        }
                    }
                }
                self.masters.retain(|_, master| master.free.len() < master.shares.len() as u32);
            }
            Action::Queued { session, tag, .. } => {
                let seen = self.seen.get_mut(&(session, tag)).unwrap();
                assert!(!std::mem::replace(&mut seen.queued, true) && seen.started.is_none());
            }
            Action::Refused { session, tag, .. } => {
                let seen = self.seen.get_mut(&(session, tag)).unwrap();
                assert!(seen.started.is_none() && !seen.queued && !seen.refused, "{seen:?}");
                seen.refused = true;
                self.tally.refused += 1;
            }
            Action::Ended { session, tag, code, reason, .. } => {
                self.check_end(session, tag, code, reason);
            }
            Action::Dismissed { session, .. } => _ = self.sessions.remove(&session),
            Action::Up { .. } => {}
            Action::Log(line) => self.lines.push(line),
        }
    }

    /// Exactly one end, and nobody is blamed who had no fault.
    fn check_end(&mut self, session: SessionId, tag: u64, code: Option<u8>, why: Option<String>) {
        let seen = self.seen.get_mut(&(session, tag)).unwrap();
        assert!((seen.queued || seen.started.is_some()) && !seen.ended, "{seen:?}");
        seen.ended = true;
        let since = seen.since;
        let Some(why) = why else {
            assert!(code.is_some());
            self.tally.done += 1;
            return;
        };
        let Some(blamed) = why.strip_prefix("host c") else {
            assert!(why.contains("its user") || why.contains("its scrun"), "{why}");
            return;
        };
        self.tally.blamed += 1;
        let number: usize = blamed.split(':').next().unwrap().parse().unwrap();
        let touched = self.hosts[number].touched;
        let aftermath = LIMIT + TIMES.silence;
        assert!(
            touched == Time::MAX || (touched > Time::ZERO && touched + aftermath >= since),
            "{why}: nothing has happened to it (last at {touched:?}, job of {since:?})"
        );
    }

    pub(super) fn kill_shares(&mut self, job: JobId) {
        let Some(master) = self.masters.get(&job) else { return };
        let held = |index: &u32| !master.free.contains(*index);
        let shares = (0..).zip(&master.shares).map(|(index, share)| (index, share.host));
        let shares: Vec<_> = shares.filter(|(index, _)| held(index)).collect();
        for (share, host) in shares {
            self.send(SERVER, host, Message::Kill { job, share });
        }
        let life = self.hosts[0].life;
        self.at(self.now + Time::from_secs(1), Thing::KillAgain { job, life });
    }

    pub(super) fn share_is_free(&mut self, host: HostId, job: JobId, share: u32, ran: bool) {
        let Some(master) = self.masters.get_mut(&job) else { return };
        master.free.insert(share);
        let all = master.free.len() == master.shares.len() as u32;
        let finish = all && !master.killing && !std::mem::replace(&mut master.finished, all);
        if !ran && !master.killing {
            let reason = "it cannot start the job".to_owned();
            self.serve(Event::Broken { job, host, reason });
        }
        if finish {
            self.serve(Event::Finished { job, code: 0 });
        }
        if all {
            self.masters.remove(&job);
        }
        self.serve(Event::Released { job, hosts: NodeSet::one(share) });
    }

    // Users.

    pub fn login(&mut self, uid: u32) {
        let number = self.unique();
        let session = SessionId { host: SERVER, incarnation: self.setting.server, number };
        self.sessions.insert(session);
        let user = User { uid, gid: uid, name: OsBytes(Vec::new()) };
        self.serve(Event::Login { session, user });
    }

    pub fn submit(&mut self, session: SessionId) {
        let tag = self.unique();
        let count = self.hosts.len() as u64;
        let shape = match self.random.below(5) {
            0 => Shape::Grid {
                hosts: 1 + self.random.below(count) as u32,
                procs: 1 + self.random.below(4) as u32,
            },
            1 => Shape::Spread(1 + self.random.below(count * 3) as u32),
            2 => Shape::Fill { least: 1, most: 1 + self.random.below(8) as u32 },
            3 => Shape::Whole { hosts: 1 + self.random.below(3) as u32, least: 1, most: 99 },
            _ => Shape::Every { procs: 1 + self.random.below(2) as u32, least: 1, most: 999 },
        };
        let some = |random: &mut Random| (1..count as u32).filter(|_| random.chance(60)).collect();
        let pools = if self.random.chance(20) { 1 + self.random.below(3) } else { 0 };
        let pools = (0..pools).map(|_| some(&mut self.random)).collect();
        let wait = self.random.chance(70);
        let priority = self.random.below(16) as u8;
        let memory = if self.random.chance(30) { self.random.below(60) } else { 0 };
        let request = Request { shape, pools, wait, priority, memory, bytes: 10 };
        let could_run = !wait && self.could_run(&request);
        let since = self.now;
        self.seen.insert((session, tag), Seen { since, ..Seen::default() });
        self.serve(Event::Submit { session, tag, request });
        let refused = self.seen[&(session, tag)].refused;
        assert!(!(refused && could_run), "submission {tag} was refused and could have run");
    }

    /// Whether a job can start now, found by counting; false where that is not simple: hosts are
    /// kept for jobs that wait, or spares count.
    fn could_run(&self, request: &Request) -> bool {
        let server = self.server.as_ref().unwrap();
        if server.waiting.len() > 0 || request.shape.fault().is_some() {
            return false;
        }
        let room = |pool: Option<&NodeSet>| {
            let allowed = |host: &HostId| pool.is_none_or(|pool| pool.contains(*host));
            let hosts = (0..).zip(&server.hosts).filter(|(number, _)| allowed(number));
            let usable = hosts.filter(|(number, host)| {
                server.is_up(*number) && host.setting.spare_for.is_empty() && !host.setting.defect
            });
            let fits = usable.filter(|(_, host)| host.promised + request.memory <= MEMORY);
            let free = fits.map(|(_, host)| {
                let slots = host.setting.slots;
                (slots * self.setting.rows - host.used).min(slots)
            });
            let mut free: Vec<u32> = free.collect();
            free.sort_unstable_by(|one, two| two.cmp(one));
            free
        };
        let fits = |free: &[u32]| match request.shape {
            Shape::Grid { hosts, procs } => {
                free.get(hosts as usize - 1).is_some_and(|least| *least >= procs)
            }
            Shape::Spread(nodes) => (1..=free.len().min(nodes as usize)).any(|count| {
                let (block, more) = (nodes / count as u32, nodes as usize % count);
                free[count - 1] >= block && (more == 0 || free[more - 1] > block)
            }),
            Shape::Fill { least, .. } => free.iter().sum::<u32>() >= least.max(1),
            Shape::Whole { .. } | Shape::Every { .. } => false,
        };
        match request.pools.is_empty() {
            true => fits(&room(None)),
            false => request.pools.iter().any(|pool| fits(&room(Some(pool)))),
        }
    }

    pub fn logout(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.serve(Event::Logout { session });
    }
}
