//! The simulated daemons and server, and the simulated users.

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{Incarnation, SERVER, User};

use super::{
    DETECTION_BOUND, MEMORY, Master, Message, Observed, Random, RunningShare, SimEvent, Simulation,
    TIMEOUTS,
};
use crate::cluster::{ClusterAction, ClusterEvent, JobRequest, MonotonicTime, SessionId, SlotUse};

impl Simulation {
    // The daemon's side of jobs.

    pub(super) fn start_share(
        &mut self,
        host: HostId,
        (job, share, slots): (JobId, u32, u32),
        incarnation: Incarnation,
        run_time: MonotonicTime,
    ) {
        let all_slots = self.config.hosts[host.index()].slots * self.config.rows;
        let found = &mut self.hosts[host.index()];
        if found.member.as_ref().is_none_or(|member| member.incarnation() != incarnation) {
            return self.send(host, SERVER, Message::ShareReleased { job, share, did_run: false });
        }
        let run = RunningShare { share, slots, killed: false, is_cut: false };
        found.running_shares.insert(job, run);
        let used: u32 = found.running_shares.values().map(|run| run.slots).sum();
        assert!(used <= all_slots, "c{host} has {all_slots} slots in all rows and uses {used}");
        let generation = found.generation;
        self.schedule(self.now + run_time, SimEvent::ShareEnded { host, generation, job });
    }

    pub(super) fn kill_all(&mut self, host: HostId) {
        // Some processes need a long time to end.
        let is_slow = self.random.chance(20);
        let delay =
            if is_slow { self.random.time(20, 8000) } else { MonotonicTime::from_millis(20) };
        let found = &mut self.hosts[host.index()];
        let generation = found.generation;
        let jobs: Vec<_> = found.running_shares.keys().copied().collect();
        for job in jobs {
            self.hosts[host.index()].running_shares.get_mut(&job).unwrap().killed = true;
            self.schedule(self.now + delay, SimEvent::ShareEnded { host, generation, job });
        }
    }

    // The server's side.

    pub fn deliver_to_server(&mut self, event: ClusterEvent) {
        let now = self.now;
        if let ClusterEvent::LinkLost { host, .. } = &event {
            for job in self.masters.keys().copied().collect::<Vec<_>>() {
                self.lose_host(job, *host);
            }
        }
        self.step_server(event, now);
        self.schedule_tick(SERVER);
    }

    /// A host is lost for a job. Its master ends the job and does not wait for this host.
    pub(super) fn lose_host(&mut self, job: JobId, host: HostId) {
        let Some(master) = self.masters.get_mut(&job) else { return };
        let of_host = (0..).zip(&master.shares).filter(|(_, share)| share.host == host);
        let is_unreleased = |index: &u32| !master.released.contains(*index);
        let hosts: NodeSet = of_host.map(|(index, _)| index).filter(is_unreleased).collect();
        if hosts.is_empty() {
            return;
        }
        master.released.union(&hosts);
        let is_over = master.released.len() == master.shares.len() as u32;
        self.step_server(ClusterEvent::HostsLost { job, hosts }, self.now);
        self.fail_job(job, self.now);
        if is_over {
            self.masters.remove(&job);
        }
        self.schedule_tick(SERVER);
    }

    /// The master of a job ends it, because a host of the job is lost.
    fn fail_job(&mut self, job: JobId, now: MonotonicTime) {
        let Some(master) = self.masters.get_mut(&job) else { return };
        if !std::mem::replace(&mut master.killing, true) {
            self.kill_shares(job);
            self.step_server(ClusterEvent::Finished { job, code: 1 }, now);
        }
    }

    fn step_server(&mut self, event: ClusterEvent, now: MonotonicTime) {
        let Some(server) = &mut self.server else { return };
        for action in server.on(event, now) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: ClusterAction) {
        if !matches!(action, ClusterAction::Send { .. }) {
            self.trace(|| format!("server: {action:?}"));
        }
        match action {
            ClusterAction::Send { to, message } => self.send(SERVER, to, Message::Peer(message)),
            ClusterAction::Start { session, tag, job, shares, incarnations } => {
                let submission = self.submissions.get_mut(&(session, tag)).unwrap();
                assert!(
                    submission.started_at.is_none() && !submission.ended && !submission.refused,
                    "{submission:?}"
                );
                submission.started_at = Some(self.now);
                let whole_hosts = submission.whole_hosts;
                self.coverage.started += 1;
                let run_time = self.random.time(50, 20_000);
                for (index, share) in (0..).zip(&shares) {
                    let server = self.server.as_ref().unwrap();
                    assert!(server.is_up(share.host), "job {job} on c{}", share.host);
                    let host = &server.membership.hosts[share.host.index()];
                    assert!(share.procs <= host.config.slots && host.promised_memory <= MEMORY);
                    let incarnation = incarnations[index as usize];
                    let slots = if whole_hosts { host.config.slots } else { share.procs };
                    let start = Message::Start { job, incarnation, share: index, slots, run_time };
                    self.send(SERVER, share.host, start);
                }
                let released = NodeSet::new();
                let (killing, end_ordered, finished) = (false, false, false);
                let master = Master { shares, released, killing, end_ordered, finished };
                self.masters.insert(job, master);
            }
            ClusterAction::End { job, .. } => {
                if let Some(master) = self.masters.get_mut(&job) {
                    assert!(!std::mem::replace(&mut master.end_ordered, true));
                    // The master may already have ended the job.
                    if !std::mem::replace(&mut master.killing, true) {
                        self.kill_shares(job);
                    }
                }
            }
            ClusterAction::HostDown { host, reason, .. } => {
                self.coverage.declared_down += 1;
                self.log.declared_down.push(reason);
                for master in self.masters.values_mut() {
                    for (index, share) in (0..).zip(&master.shares) {
                        if share.host == host {
                            master.released.insert(index);
                        }
                    }
                }
                self.masters.retain(|_, master| master.released.len() < master.shares.len() as u32);
            }
            ClusterAction::Queued { session, tag, .. } => {
                let submission = self.submissions.get_mut(&(session, tag)).unwrap();
                assert!(
                    !std::mem::replace(&mut submission.queued, true)
                        && submission.started_at.is_none()
                );
            }
            ClusterAction::Refused { session, tag, .. } => {
                let submission = self.submissions.get_mut(&(session, tag)).unwrap();
                assert!(
                    submission.started_at.is_none() && !submission.queued && !submission.refused,
                    "{submission:?}"
                );
                submission.refused = true;
                self.coverage.refused += 1;
            }
            ClusterAction::Ended { session, tag, code, reason, .. } => {
                self.check_end(session, tag, code, reason);
            }
            ClusterAction::SessionClosed { session, .. } => _ = self.sessions.remove(&session),
            ClusterAction::HostUp { .. } => {}
            ClusterAction::Log(line) => self.log.lines.push(line),
        }
    }

    /// Checks that a job ends exactly once, and that a host is reported as failed only after a
    /// fault.
    fn check_end(
        &mut self,
        session: SessionId,
        tag: SessionJobId,
        code: Option<u8>,
        reason: Option<String>,
    ) {
        let submission = self.submissions.get_mut(&(session, tag)).unwrap();
        assert!(
            (submission.queued || submission.started_at.is_some()) && !submission.ended,
            "{submission:?}"
        );
        submission.ended = true;
        let submitted_at = submission.submitted_at;
        let Some(reason) = reason else {
            assert!(code.is_some());
            self.coverage.completed += 1;
            return;
        };
        let Some(blamed_host) = reason.strip_prefix("host c") else {
            assert!(reason.contains("its user") || reason.contains("its scrun"), "{reason}");
            return;
        };
        self.coverage.blamed_hosts += 1;
        let number: usize = blamed_host.split(':').next().unwrap().parse().unwrap();
        let last_fault_at = self.hosts[number].last_fault_at;
        let blame_window = DETECTION_BOUND + TIMEOUTS.silence;
        assert!(
            last_fault_at == MonotonicTime::MAX
                || (last_fault_at > MonotonicTime::ZERO
                    && last_fault_at + blame_window >= submitted_at),
            "{reason}: nothing has happened to it (last at {last_fault_at:?}, job of {submitted_at:?})"
        );
    }

    pub(super) fn kill_shares(&mut self, job: JobId) {
        let Some(master) = self.masters.get(&job) else { return };
        let is_unreleased = |index: &u32| !master.released.contains(*index);
        let shares = (0..).zip(&master.shares).map(|(index, share)| (index, share.host));
        let shares: Vec<_> = shares.filter(|(index, _)| is_unreleased(index)).collect();
        for (share, host) in shares {
            self.send(SERVER, host, Message::Kill { job, share });
        }
        let generation = self.hosts[0].generation;
        self.schedule(
            self.now + MonotonicTime::from_secs(1),
            SimEvent::RepeatKill { job, generation },
        );
    }

    pub(super) fn on_share_released(&mut self, job: JobId, share: u32, did_run: bool) {
        let Some(master) = self.masters.get_mut(&job) else { return };
        master.released.insert(share);
        let all_released = master.released.len() == master.shares.len() as u32;
        let is_finished = all_released
            && !master.killing
            && !std::mem::replace(&mut master.finished, all_released);
        if !did_run && !master.killing {
            self.fail_job(job, self.now);
        }
        if is_finished {
            self.deliver_to_server(ClusterEvent::Finished { job, code: 0 });
        }
        if all_released {
            self.masters.remove(&job);
        }
        self.deliver_to_server(ClusterEvent::Released { job, hosts: NodeSet::one(share) });
    }

    // Users.

    pub fn login(&mut self, uid: u32) {
        let number = self.unique_id();
        let session =
            SessionId { host: SERVER, incarnation: self.config.server_incarnation, number };
        self.sessions.insert(session);
        let user = User { uid, gid: uid, name: OsBytes(Vec::new()) };
        self.deliver_to_server(ClusterEvent::Login { session, user });
    }

    pub fn submit(&mut self, session: SessionId) {
        let tag = SessionJobId(self.unique_id() as u32);
        let host_count = self.hosts.len() as u64;
        let shape = match self.random.below(5) {
            0 => AllocationRequest::HostsByProcs {
                hosts: 1 + self.random.below(host_count) as u32,
                procs: 1 + self.random.below(4) as u32,
            },
            1 => AllocationRequest::FewestHosts(1 + self.random.below(host_count * 3) as u32),
            2 => AllocationRequest::AllFreeSlots {
                min_nodes: 1,
                max_nodes: 1 + self.random.below(8) as u32,
            },
            3 => AllocationRequest::Exclusive {
                hosts: 1 + self.random.below(3) as u32,
                min_nodes: 1,
                max_nodes: 99,
            },
            _ => AllocationRequest::EveryHost {
                procs: 1 + self.random.below(2) as u32,
                min_nodes: 1,
                max_nodes: 999,
            },
        };
        let random_pool =
            |random: &mut Random| (1..host_count as u32).filter(|_| random.chance(60)).collect();
        let pools = if self.random.chance(20) { 1 + self.random.below(3) } else { 0 };
        let pools = (0..pools).map(|_| random_pool(&mut self.random)).collect();
        let wait = self.random.chance(70);
        let priority = self.random.below(16) as u8;
        let memory = if self.random.chance(30) { self.random.below(60) } else { 0 };
        let whole_hosts = self.random.chance(15);
        let request = JobRequest {
            allocation: shape,
            pools,
            wait,
            priority,
            slot_use: if whole_hosts { SlotUse::WholeHosts } else { SlotUse::PerProcess },
            memory,
            spec_bytes: 10,
        };
        let could_run = !wait && self.could_run(&request);
        let observed = Observed { submitted_at: self.now, whole_hosts, ..Observed::default() };
        self.submissions.insert((session, tag), observed);
        self.deliver_to_server(ClusterEvent::Submit { session, tag, request });
        let refused = self.submissions[&(session, tag)].refused;
        assert!(!(refused && could_run), "submission {tag} was refused and could have run");
    }

    /// Whether a job can start now, according to a count of free slots. Returns false if a count
    /// cannot decide it, because hosts are reserved for waiting jobs or spares count.
    fn could_run(&self, request: &JobRequest) -> bool {
        let server = self.server.as_ref().unwrap();
        if server.pending.len() > 0 || request.allocation.invalid_reason().is_some() {
            return false;
        }
        let free_slots = |pool: Option<&NodeSet>| {
            let allowed = |host: &HostId| pool.is_none_or(|pool| pool.contains(host.0));
            let hosts =
                (0..).map(HostId).zip(&server.membership.hosts).filter(|(id, _)| allowed(id));
            let usable = hosts.filter(|(id, host)| {
                server.is_up(*id) && host.config.spare_for.is_empty() && !host.config.defect
            });
            let fits = usable.filter(|(_, host)| host.promised_memory + request.memory <= MEMORY);
            let free = fits.map(|(_, host)| {
                let slots = host.config.slots;
                let free = (slots * self.config.rows - host.used_slots).min(slots);
                let has_row = request.slot_use == SlotUse::PerProcess || free == slots;
                if has_row { free } else { 0 }
            });
            let mut free: Vec<u32> = free.collect();
            free.sort_unstable_by(|a, b| b.cmp(a));
            free
        };
        let fits = |free: &[u32]| match request.allocation {
            AllocationRequest::HostsByProcs { hosts, procs } => {
                free.get(hosts as usize - 1).is_some_and(|smallest| *smallest >= procs)
            }
            AllocationRequest::FewestHosts(nodes) => {
                (1..=free.len().min(nodes as usize)).any(|count| {
                    let (block, more) = (nodes / count as u32, nodes as usize % count);
                    free[count - 1] >= block && (more == 0 || free[more - 1] > block)
                })
            }
            AllocationRequest::AllFreeSlots { min_nodes: least, .. } => {
                free.iter().sum::<u32>() >= least.max(1)
            }
            AllocationRequest::Exclusive { .. } | AllocationRequest::EveryHost { .. } => false,
        };
        match request.pools.is_empty() {
            true => fits(&free_slots(None)),
            false => request.pools.iter().any(|pool| fits(&free_slots(Some(pool)))),
        }
    }

    pub fn logout(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        self.deliver_to_server(ClusterEvent::Logout { session });
    }
}
