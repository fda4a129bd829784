//! Jobs in the daemon's loop: orders on their way down, reports on their way up, and what happens
//! to both when a session, a link or a shepherd is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use score_job::cluster::HostShare;
use score_job::host::tree_node::Outgoing;
use score_job::master::{GangRequest, JobMaster, MasterAction, MasterEvent};
use score_job::validate;
use score_proto::exit_code::{EXIT_HOST_LOST, EXIT_REFUSED};
use score_proto::frame;
use score_proto::job_control::{
    HopOrder, HopReport, JobOrder, JobReport, JobStart, Order, Owner as JobOwner, Placement,
    Report, ShepherdOrder, StopCondition, SwitchOrder,
};
use score_proto::message::{JobSpec, Level, ServerMessage};
use score_proto::peer_message::PeerMessage;

use super::daemon_bringup::{self, DaemonBringup};
use super::host_job::{HostJob, NO_OWNER, Parent, StartContext};
use super::peers::Peers;
use super::session::ClientJob;
use super::{Daemon, STALE_SWEEP_INTERVAL, TokenOwner, job_directory, system_host_name};
use crate::sys::random::random_u64;

/// A job that this daemon leads.
#[derive(Debug)]
pub struct LedJob {
    job: JobMaster,
    /// The session that has submitted the job, and the job's number there.
    pub client_job: ClientJob,
    /// The hosts and processors of the job, as the gang scheduler counts them.
    pub allocations: Vec<HostShare>,
    /// The names of the job's hosts, in order.
    hosts: Vec<String>,
    /// The job's priority among the jobs that compete with it: 0 to 15.
    pub priority: u8,
    /// Directories of the job on hosts that share this machine's disk.
    directories: BTreeMap<u32, String>,
}

/// A position in a job's range tree: the job, and whether it is the position above the first host.
/// A daemon that leads a job has that position if the job begins on another host. It may have a
/// second position further down.
pub type TreePosition = (u32, bool);

impl Daemon {
    /// Begins a job whose hosts are all up, with these daemons.
    pub fn begin(
        &mut self,
        client_job: ClientJob,
        spec: JobSpec,
        daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>,
    ) {
        let job_id = self.next_job;
        self.next_job += 1;
        self.begin_with_id(client_job, job_id, spec, daemons, None);
    }

    /// Begins a job with a number that was assigned elsewhere, and for an owner in multi-user mode.
    pub fn begin_with_id(
        &mut self,
        client_job: ClientJob,
        job_id: u32,
        spec: JobSpec,
        daemons: Option<Vec<daemon_bringup::DaemonEndpoint>>,
        owner: Option<JobOwner>,
    ) {
        if self.service.is_some() && owner.is_none() {
            return self.refuse(client_job, NO_OWNER.to_owned(), EXIT_REFUSED);
        }
        let session = self.sessions.get_mut(&client_job.session_key);
        if !session.is_some_and(|session| session.set_job_id(client_job.job, job_id)) {
            return self.on_master_done(job_id, EXIT_HOST_LOST);
        }
        let daemons = daemons.unwrap_or_default();
        let to_host = |(index, host): (usize, &score_proto::message::HostSpec)| {
            let name = if host.name.is_empty() { system_host_name() } else { host.name.clone() };
            (name, daemons.get(index).copied(), host.procs)
        };
        let hosts = spec.hosts.iter().map(|host| host.name.clone()).collect();
        let job_incarnation = random_u64();
        let placement = Placement::new(job_incarnation, spec.hosts.iter().enumerate().map(to_host));
        let secret = random_u64();
        let priority = validate::priority(&spec);
        let allocations = self.host_allocations(&spec);
        let begin = JobStart { job: job_id, secret, spec, owner };
        let (job, order) = JobMaster::begin(begin, placement.clone());
        let directories = BTreeMap::new();
        self.led_jobs
            .insert(job_id, LedJob { job, client_job, hosts, allocations, priority, directories });
        self.enter_led_tree(job_id, placement);
        self.on_master_order(job_id, order);
    }

    /// Passes an event to the master of a job, and carries out the resulting actions.
    pub fn step_master(&mut self, job_id: Option<u32>, event: MasterEvent) {
        let Some(job_id) = job_id else { return };
        let Some(led_job) = self.led_jobs.get_mut(&job_id) else { return };
        if let MasterEvent::Report(Report::HostsLost { hosts, .. }) = &event {
            let lost_hosts = led_job.hosts.get(hosts.start as usize..hosts.end as usize);
            if let (Some(lost_hosts), Some(bringup)) = (lost_hosts, &mut self.bringup) {
                lost_hosts.iter().for_each(|host| bringup.kill_daemon(host));
            }
        }
        led_job.job.set_time(self.started_at.elapsed());
        let actions = led_job.job.on(event);
        let (client_job, is_over) = (led_job.client_job, led_job.job.is_done());
        if is_over && let Some(led_job) = self.led_jobs.remove(&job_id) {
            // What a lost host could not remove itself.
            led_job.directories.values().for_each(|path| job_directory::remove_orphaned(path));
        }
        let mut code = 0;
        for action in actions {
            match action {
                MasterAction::ToClient(message) => {
                    match &message {
                        ServerMessage::Finished(end) => code = end.code,
                        ServerMessage::Refused { code: refusal_code, .. } => code = *refusal_code,
                        _ => {}
                    }
                    self.send_to_client(job_id, client_job, &message);
                }
                MasterAction::Metrics(metrics) => {
                    self.update_page_metrics(job_id, &metrics);
                    self.send_metrics_to_watchers(job_id, metrics);
                }
                MasterAction::Order(order) => self.on_master_order(job_id, order),
                MasterAction::Gang(request) => self.queue_gang_request(job_id, request),
            }
        }
        if is_over {
            self.on_watched_job_end(job_id, code);
            self.on_master_done(job_id, code);
        }
        self.handle_gang_requests();
    }

    /// The time until the next deadline of a job master.
    pub fn led_jobs_deadline(&self, now: Instant) -> Option<Duration> {
        let due = self.led_jobs.values().filter_map(|led_job| led_job.job.deadline()).min()?;
        Some(due.saturating_sub(now.saturating_duration_since(self.started_at)))
    }

    /// Passes a tick to the job masters whose deadline has passed.
    pub fn tick_led_jobs(&mut self) {
        let now = self.started_at.elapsed();
        let is_due = |led_job: &LedJob| led_job.job.deadline().is_some_and(|due| due <= now);
        let due_jobs: Vec<u32> = self
            .led_jobs
            .iter()
            .filter(|(_, led_job)| is_due(led_job))
            .map(|(job, _)| *job)
            .collect();
        due_jobs.into_iter().for_each(|job| self.step_master(Some(job), MasterEvent::Tick));
    }

    /// Takes the position at the master of a job. The first host of the job is this host or another
    /// one.
    fn enter_led_tree(&mut self, job_id: u32, placement: Placement) {
        let first = placement.hosts.first();
        let is_remote = first.is_some_and(|first| first.name != self.name());
        let is_root = self.peers.is_some() && is_remote;
        let host_job = match is_root {
            true => HostJob::at_master(placement),
            false => HostJob::new(placement, Parent::Master),
        };
        self.enter_tree((job_id, is_root), host_job);
    }

    /// An order of this daemon's job master: it goes to the first host of the job.
    fn on_master_order(&mut self, job_id: u32, order: Order) {
        for tree_position in [(job_id, true), (job_id, false)] {
            if let Some(host_job) = self.host_jobs.get_mut(&tree_position)
                && host_job.parent == Parent::Master
            {
                host_job.tree_node.on_order(order.clone());
            }
        }
    }

    /// Takes a position in a job's range tree: finds or creates the links to the child hosts, and
    /// passes the placement on to them.
    fn enter_tree(&mut self, tree_position: TreePosition, host_job: HostJob) {
        let host_job = self.host_jobs.entry(tree_position).or_insert(host_job);
        let hosts = &host_job.tree_node.placement().hosts;
        let child_hosts: Vec<_> = host_job
            .tree_node
            .child_hosts()
            .map(|(child_index, host)| (child_index, hosts.get(host as usize).cloned()))
            .collect();
        for (child_index, child_host) in child_hosts {
            let link_id = child_host
                .ok_or_else(String::new)
                .and_then(|child_host| self.link_to_host(&child_host));
            let Some(host_job) = self.host_jobs.get_mut(&tree_position) else { return };
            match link_id {
                Ok(link_id) => host_job.child_links.insert(child_index, link_id),
                Err(reason) => {
                    host_job.tree_node.on_child_lost(child_index, EXIT_HOST_LOST, reason);
                    None
                }
            };
        }
        let host_job = self.host_jobs.get_mut(&tree_position);
        host_job.into_iter().for_each(|host_job| host_job.tree_node.announce_placement());
    }

    fn link_to_host(
        &mut self,
        host_placement: &score_proto::job_control::HostPlacement,
    ) -> Result<usize, String> {
        let name = &host_placement.name;
        let token = self.allocate_token(TokenOwner::Peer);
        let Some(peers) = &mut self.peers else {
            return Err(format!("host {name}: this daemon has no links"));
        };
        if let Some(link_id) = peers.link_to(name) {
            self.token_owners.remove(&token);
            return Ok(link_id);
        }
        let address = host_placement.address.ok_or(format!("host {name}: it has no address"))?;
        peers
            .dial(address, Some(name.clone()), self.poll.registry(), token)
            .map_err(|error| format!("host {name} at {address}: {error}"))?;
        Ok(token.0)
    }

    /// An order has been received over a link.
    pub fn on_order(&mut self, link_id: usize, (job_id, job_incarnation): (u32, u64), body: &[u8]) {
        let Ok(order) = frame::decode_datagram::<HopOrder>(body) else {
            return eprintln!("scored: job {job_id}: malformed order");
        };
        // None: the job has just ended, or the sender is not its parent.
        let host_job = self.host_jobs.get_mut(&(job_id, false)).filter(|host_job| {
            host_job.job_incarnation() == job_incarnation
                && host_job.parent == Parent::Peer(link_id)
        });
        match (order, host_job) {
            (HopOrder::SetPlacement(placement), _) => {
                self.on_placement(link_id, (job_id, job_incarnation), placement)
            }
            (HopOrder::Abort, Some(_)) => self.abort_job(job_id),
            (HopOrder::Tree(order), Some(host_job)) => host_job.tree_node.on_order(order),
            (HopOrder::Abort | HopOrder::Tree(_), None) => {}
        }
    }

    /// This host is to take part in a job.
    fn on_placement(
        &mut self,
        link_id: usize,
        (job_id, job_incarnation): (u32, u64),
        placement: Placement,
    ) {
        let tree_position = (job_id, false);
        // The job that has this number here belongs to a server that has ended.
        if self
            .host_jobs
            .get(&tree_position)
            .is_some_and(|host_job| host_job.job_incarnation() != job_incarnation)
        {
            self.abort_host_job(tree_position);
        }
        if let Err(reason) = self.check_placement(&placement, job_incarnation) {
            let report = HopReport::UnknownJob { reason };
            return self.send_report(link_id, (job_id, job_incarnation), &report);
        }
        if !self.host_jobs.contains_key(&tree_position) {
            self.enter_tree(tree_position, HostJob::new(placement, Parent::Peer(link_id)));
        }
    }

    /// Checks that this daemon may take part in the job.
    fn check_placement(&self, placement: &Placement, job_incarnation: u64) -> Result<(), String> {
        placement.check()?;
        let expected_incarnation =
            placement.self_placement().and_then(|local_host| local_host.incarnation);
        let local_incarnation = self.peers.as_ref().map(Peers::incarnation);
        match expected_incarnation == local_incarnation
            && placement.job_incarnation == job_incarnation
        {
            true => Ok(()),
            false => Err("its scored has restarted since the job was assigned to it".to_owned()),
        }
    }

    pub fn send_report(
        &mut self,
        link_id: usize,
        (job, job_incarnation): (u32, u64),
        report: &HopReport,
    ) {
        let is_slow = self.peers.as_ref().is_some_and(|peers| peers.is_slow(link_id));
        let is_metrics = matches!(report, HopReport::Tree(Report::Job(JobReport::Metrics(_))));
        if is_slow && is_metrics {
            // Newer metrics will follow.
            return;
        }
        if let (Ok(body), Some(peers)) = (frame::encode_datagram(report), &mut self.peers) {
            peers.send(link_id, PeerMessage::Report { job, job_incarnation, body });
        }
    }

    /// A report has been received over a link.
    pub fn on_report(
        &mut self,
        link_id: usize,
        (job_id, job_incarnation): (u32, u64),
        body: &[u8],
    ) {
        let Ok(report) = frame::decode_datagram::<HopReport>(body) else {
            return eprintln!("scored: job {job_id}: malformed report");
        };
        for tree_position in [(job_id, true), (job_id, false)] {
            if let Some(host_job) = self
                .host_jobs
                .get_mut(&tree_position)
                .filter(|host_job| host_job.job_incarnation() == job_incarnation)
                && let Some(child_index) = host_job.child_of_link(link_id)
            {
                return match report {
                    HopReport::UnknownJob { reason } => host_job.fail_child(child_index, &reason),
                    HopReport::Directory { host, path } => {
                        self.on_directory(tree_position, host, path)
                    }
                    HopReport::Tree(report) => host_job.tree_node.on_report(child_index, report),
                };
            }
        }
    }

    /// A host below has reported the path of the job's directory there.
    fn on_directory(&mut self, tree_position: TreePosition, host: u32, path: String) {
        let Some(host_job) = self.host_jobs.get(&tree_position) else { return };
        let (job_id, job_incarnation) = (tree_position.0, host_job.job_incarnation());
        match host_job.parent {
            Parent::Peer(link_id) => {
                let report = HopReport::Directory { host, path };
                self.send_report(link_id, (job_id, job_incarnation), &report);
            }
            Parent::Master => {
                let is_virtual = self.bringup.as_ref().is_some_and(DaemonBringup::is_virtual);
                if let Some(led_job) = self.led_jobs.get_mut(&job_id).filter(|_| is_virtual) {
                    led_job.directories.insert(host, path);
                }
            }
        }
    }

    /// A link is lost. Jobs whose parent is at its other end are aborted. Jobs that have a child
    /// there lose the child's hosts.
    pub fn fail_jobs_on_link(&mut self, link_id: usize, reason: &str) {
        let tree_positions: Vec<TreePosition> = self.host_jobs.keys().copied().collect();
        for tree_position in tree_positions {
            let Some(host_job) = self.host_jobs.get_mut(&tree_position) else { continue };
            if host_job.parent == Parent::Peer(link_id) {
                self.abort_host_job(tree_position);
            } else if let Some(child_index) = host_job.child_of_link(link_id) {
                host_job.fail_child(child_index, reason);
            }
        }
    }

    /// The incarnation of the job that has this number here.
    fn job_incarnation(&self, job_id: u32) -> u64 {
        let tree_positions = [(job_id, true), (job_id, false)];
        tree_positions
            .iter()
            .find_map(|tree_position| self.host_jobs.get(tree_position))
            .map_or(0, HostJob::job_incarnation)
    }

    /// Moves orders and reports until there are none left, including those of jobs that begin
    /// meanwhile.
    pub fn dispatch_pending(&mut self) {
        while self.dispatch_once() {}
    }

    fn dispatch_once(&mut self) -> bool {
        let mut has_moved = false;
        let mut tree_positions: VecDeque<TreePosition> = self.host_jobs.keys().copied().collect();
        while let Some(tree_position) = tree_positions.pop_front() {
            let job_id = tree_position.0;
            let Some(host_job) = self.host_jobs.get_mut(&tree_position) else { continue };
            let outgoing = host_job.tree_node.take_outgoing();
            let (is_finished, parent) = (host_job.tree_node.is_finished(), host_job.parent);
            if !outgoing.is_empty() {
                has_moved = true;
                // A report that goes up here may cause orders at either position of the job.
                tree_positions.extend([(job_id, true), (job_id, false)]);
            }
            for message in outgoing {
                match message {
                    Outgoing::Parent(report) => self.send_to_parent(job_id, parent, report),
                    Outgoing::Shepherd(order) => self.on_shepherd_order(job_id, order),
                    Outgoing::SwitchThread(order) => self.on_switch_order(job_id, order),
                    Outgoing::Child(child_index, order) => {
                        self.send_to_child(tree_position, child_index, &order)
                    }
                }
            }
            if is_finished {
                self.host_jobs.remove(&tree_position);
                self.release_if_ended(job_id);
            }
        }
        has_moved
    }

    /// Releases what a job has used here, if the job has ended at all of its positions.
    fn release_if_ended(&mut self, job_id: u32) {
        let is_active = [true, false]
            .iter()
            .any(|is_master| self.host_jobs.contains_key(&(job_id, *is_master)));
        if !is_active {
            let is_of_job = |owner: &TokenOwner| match owner {
                TokenOwner::Shepherd(job) | TokenOwner::SwitchThread(job) => *job == job_id,
                _ => false,
            };
            self.token_owners.retain(|_, owner| !is_of_job(owner));
        }
    }

    fn send_to_parent(&mut self, job_id: u32, parent: Parent, report: Report) {
        match parent {
            Parent::Master => self.step_master(Some(job_id), MasterEvent::Report(report)),
            Parent::Peer(link_id) => {
                let job_incarnation = self.job_incarnation(job_id);
                let report = HopReport::Tree(report);
                self.send_report(link_id, (job_id, job_incarnation), &report);
            }
        }
    }

    pub fn send_to_child(
        &mut self,
        tree_position: TreePosition,
        child_index: usize,
        order: &HopOrder,
    ) {
        let Some(host_job) = self.host_jobs.get_mut(&tree_position) else { return };
        let job_incarnation = host_job.job_incarnation();
        let (Some(link_id), Some(peers)) =
            (host_job.child_links.get(&child_index), &mut self.peers)
        else {
            return;
        };
        let is_sent = frame::encode_datagram(order).is_ok_and(|body| {
            peers.send(*link_id, PeerMessage::Order { job: tree_position.0, job_incarnation, body })
        });
        if !is_sent {
            let reason = "arguments and environment are too long to be sent to other hosts";
            host_job.tree_node.on_child_lost(child_index, EXIT_HOST_LOST, reason.to_owned());
        }
    }

    /// An order for this host's shepherd.
    fn on_shepherd_order(&mut self, job_id: u32, order: ShepherdOrder) {
        let Some(host_job) = self.host_jobs.get_mut(&(job_id, false)) else { return };
        match order {
            // The orders to the child hosts go first: beginning a job takes time.
            ShepherdOrder::Job(JobOrder::StartJob(begin)) => host_job.pending_begin = Some(begin),
            order => host_job.on_order(&order),
        }
    }

    /// An order for the switch thread of this host's shepherd.
    fn on_switch_order(&mut self, job_id: u32, order: SwitchOrder) {
        if let SwitchOrder::Run {
            stop_condition: StopCondition::After { .. } | StopCondition::LocalRotation(_),
            ..
        } = order
        {
            self.latency_hold.extend(Instant::now());
        }
        let Some((job_id, order)) = self.host_rotation.on_order(job_id, order) else { return };
        let host_job = self.host_jobs.get_mut(&(job_id, false));
        host_job.into_iter().for_each(|host_job| host_job.on_switch_order(order));
    }

    /// Begins the jobs that this host has been ordered to begin. False if there were none. Must be
    /// called after the orders to the child hosts have been sent.
    pub fn begin_pending_jobs(&mut self) -> bool {
        let pending = |((job, _), host_job): (&TreePosition, &mut HostJob)| {
            Some((*job, host_job.pending_begin.take()?))
        };
        let pending: Vec<_> = self.host_jobs.iter_mut().filter_map(pending).collect();
        for (job, begin) in &pending {
            let started_at = Instant::now();
            self.begin_locally(*job, begin);
            let owner = begin.owner.iter();
            owner.for_each(|owner| self.usage.charge_time(owner.uid, started_at.elapsed()));
        }
        !pending.is_empty()
    }

    /// Begins a job on this host.
    fn begin_locally(&mut self, job_id: u32, begin: &JobStart) {
        let [token, switch_token] =
            [TokenOwner::Shepherd(job_id), TokenOwner::SwitchThread(job_id)]
                .map(|owner| self.allocate_token(owner));
        let Some(host_job) = self.host_jobs.get_mut(&(job_id, false)) else { return };
        let (parent, local_index, job_incarnation) =
            (host_job.parent, host_job.tree_node.placement().self_host, host_job.job_incarnation());
        let client_job = self.led_jobs.get(&job_id).map(|led_job| led_job.client_job);
        let mut session = client_job.and_then(|ClientJob { session_key, job }| {
            Some((self.sessions.get_mut(&session_key)?, job))
        });
        let peers = &mut self.peers;
        // The report is sent before the directory exists.
        let is_multi_user = begin.owner.is_some();
        let mut announce_path = |path: &str| match (parent, &mut session, &mut *peers) {
            // A user could not remove the directory; the next scored does.
            _ if is_multi_user => {}
            (Parent::Master, Some((session, job)), _) => {
                session.send(*job, &ServerMessage::Directory(path.to_owned()));
                session.flush();
            }
            (Parent::Peer(link_id), _, Some(peers)) => {
                let report = HopReport::Directory { host: local_index, path: path.to_owned() };
                if let Ok(body) = frame::encode_datagram(&report) {
                    peers.send(link_id, PeerMessage::Report { job: job_id, job_incarnation, body });
                    peers.flush();
                }
            }
            _ => {}
        };
        let sweep_due = self.last_sweep_at.is_none_or(|last| last.elapsed() > STALE_SWEEP_INTERVAL);
        if sweep_due {
            self.last_sweep_at = Some(Instant::now());
        }
        let context = StartContext {
            no_namespace: self.options.no_namespace,
            registry: self.poll.registry(),
            token,
            switch_token,
            known_children: self.known_children.clone(),
            leftovers: self.leftovers.clone(),
            program_folders: &mut self.program_folders,
            cgroups: &self.cgroups,
            sweep_due,
            is_service: self.service.is_some(),
            announce_path: &mut announce_path,
        };
        host_job.begin(begin, context);
    }

    /// Ends a job whose session or parent does not need it any more.
    pub fn abort_job(&mut self, job_id: u32) {
        if let Some(led_job) = self.led_jobs.remove(&job_id) {
            led_job.directories.values().for_each(|path| job_directory::remove_orphaned(path));
            self.queue_gang_request(job_id, GangRequest::Leave);
        }
        self.abort_host_job((job_id, true));
        self.abort_host_job((job_id, false));
        self.release_if_ended(job_id);
    }

    fn abort_host_job(&mut self, tree_position: TreePosition) {
        let Some(host_job) = self.host_jobs.remove(&tree_position) else { return };
        let job_incarnation = host_job.job_incarnation();
        for link_id in host_job.child_links.values() {
            if let (Ok(body), Some(peers)) =
                (frame::encode_datagram(&HopOrder::Abort), &mut self.peers)
            {
                peers.send(
                    *link_id,
                    PeerMessage::Order { job: tree_position.0, job_incarnation, body },
                );
            }
        }
        self.end_host_job(host_job);
    }

    /// Ends a job here without a report. It is kept until its shepherd has been reaped.
    pub fn end_host_job(&mut self, mut host_job: HostJob) {
        if !host_job.abort() {
            self.ending_host_jobs.push(host_job);
        }
    }

    /// In single-user mode every daemon has a link to the server. While a job runs, the links of
    /// its range tree detect lost hosts. The other links send rare heartbeats; otherwise many idle
    /// hosts would keep a processor busy with heartbeats.
    pub fn tune_heartbeats(&mut self) {
        let carries_job = |link_id: usize| {
            let uses_link = |host_job: &HostJob| {
                host_job.parent == Parent::Peer(link_id)
                    || host_job.child_of_link(link_id).is_some()
            };
            self.host_jobs.is_empty() || self.host_jobs.values().any(uses_link)
        };
        let Some(peers) = &self.peers else { return };
        let link_ids = match (self.server_link, &self.bringup) {
            (Some(link_id), _) => vec![link_id],
            (None, Some(_)) => peers.link_ids(),
            (None, None) => return,
        };
        let link_ids: Vec<_> =
            link_ids.into_iter().map(|link_id| (link_id, !carries_job(link_id))).collect();
        for (link_id, is_sparse) in link_ids {
            self.peers.iter_mut().for_each(|peers| peers.set_sparse_heartbeats(link_id, is_sparse));
        }
    }

    /// Sends a message about a job to the session that has submitted it, unless the session uses
    /// the job's number there for another job by now.
    pub fn send_to_client(&mut self, job_id: u32, client_job: ClientJob, message: &ServerMessage) {
        if let Some(session) = self.sessions.get_mut(&client_job.session_key)
            && session.job_id(client_job.job) == Some(job_id)
        {
            session.send(client_job.job, message);
        }
    }

    /// Sends a line to the user of a session.
    pub fn notice(&mut self, client_job: ClientJob, level: Level, text: String) {
        if let Some(session) = self.sessions.get_mut(&client_job.session_key) {
            session.send(client_job.job, &ServerMessage::Notice { level, text });
        }
    }
}
