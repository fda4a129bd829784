//! Jobs of multi-user mode: from what a user asks for to the hosts that the cluster gives.

use score_proto::message::{HostKind, HostSpec, JobSpec, Level};
use score_proto::network;
use score_proto::nodeset::NodeSet;
use score_proto::peer::{Incarnation, SERVER};
use score_proto::shape::Shape;

use super::super::session::Lane;
use super::super::{Daemon, REFUSED};
use super::{Role, info};
use crate::cluster::{self, Request, SessionId, Share};
use crate::job::check;
use crate::job::limits::Limits;

impl Daemon {
    /// A user wants a job.
    pub fn request(&mut self, lane: Lane, shape: Shape, mut spec: JobSpec) {
        let Some(session) = self.sessions.get_mut(&lane.session) else { return };
        let Some(id) = session.id else {
            return self.refuse(Lane::of(lane.session), "log in first".to_owned(), REFUSED);
        };
        // Which hosts it gets is not yet known; what else there is must be right.
        spec.hosts = vec![HostSpec::this(1)];
        let checked = check::check(&spec).and_then(|()| self.check_networks(&spec.networks));
        if let Err(reason) = checked {
            return self.refuse(lane, reason, REFUSED);
        }
        let option = |name: &str| spec.options.iter().find(|(key, _)| key == name);
        let Some(service) = &self.service else { return };
        let pools = match service.config.pools(&spec.options) {
            Ok(pools) => pools,
            Err(reason) => return self.refuse(lane, reason, REFUSED),
        };
        let limits = match Limits::of(&spec.options, true) {
            Ok(limits) => limits,
            Err(reason) => return self.refuse(lane, reason, REFUSED),
        };
        let memory = limits.memory.unwrap_or(0);
        let request = Request {
            shape,
            pools,
            wait: option("wait").is_some(),
            priority: check::priority(&spec),
            memory,
            bytes: bytes(&spec),
        };
        let Some(session) = self.sessions.get_mut(&lane.session) else { return };
        session.take_in(lane.job, Some(Box::new(spec)));
        let tag = lane.job.into();
        self.cluster(cluster::Event::Submit { session: id, tag, request });
    }

    /// A user does not wait for room any longer.
    pub fn cancel(&mut self, session: SessionId, job: u32) {
        self.cluster(cluster::Event::Cancel { session, tag: job.into() });
    }

    /// Whether some host is on each of these networks: a job is not to wait for what there is not.
    fn check_networks(&self, names: &[String]) -> Result<(), String> {
        let Some(service) = &self.service else { return Ok(()) };
        let hosts = service.config.networks.iter();
        let hosts: Vec<HostSpec> = hosts
            .map(|networks| HostSpec { networks: networks.clone(), ..HostSpec::this(1) })
            .collect();
        let known = |name: &&String| {
            *name == network::SHMEM || hosts.iter().any(|host| host.network(name).is_some())
        };
        match names.iter().find(|name| !known(name)) {
            // Says what there is.
            Some(unknown) => network::choose(&hosts, std::slice::from_ref(unknown), 1).map(drop),
            None => Ok(()),
        }
    }

    /// The cluster has found room.
    pub fn start_job(
        &mut self,
        lane: Option<Lane>,
        job: u32,
        shares: &[Share],
        incarnations: &[Incarnation],
    ) {
        let wanted = lane.and_then(|lane| {
            let session = self.sessions.get_mut(&lane.session)?;
            Some((lane, session.take_wanted(lane.job)?, session.owner.clone()?))
        });
        let (Some(service), Some((lane, mut spec, owner))) = (&mut self.service, wanted) else {
            return self.release(job, 1, shares.len() as u32);
        };
        let Role::Server(cluster) = &service.role else { return };
        let own = service.config.address;
        let address = |host| if host == SERVER { Some(own) } else { cluster.address(host) };
        // Which daemons are meant was decided with the hosts: who has begun anew since is not.
        let daemon = |(share, incarnation): (&Share, &Incarnation)| {
            Some((address(share.host)?, *incarnation))
        };
        let daemons = shares.iter().zip(incarnations).filter_map(daemon).collect();
        spec.hosts = shares
            .iter()
            .filter_map(|share| {
                let host = service.config.hosts.get(share.host as usize)?;
                Some(HostSpec {
                    name: host.name.clone(),
                    address: String::new(),
                    kind: HostKind::Other,
                    processors: host.slots,
                    procs: share.procs,
                    networks: service.config.networks.get(share.host as usize)?.clone(),
                })
            })
            .collect();
        match network::choose(&spec.hosts, &spec.networks, spec.sets) {
            Ok(networks) => spec.networks = networks,
            Err(reason) => {
                self.refuse(lane, reason, REFUSED);
                return self.release(job, REFUSED, shares.len() as u32);
            }
        }
        service.placed.insert(job, shares.len() as u32);
        service.numbers.iter_mut().for_each(|numbers| numbers.given(job));
        if service.verbose {
            let hosts: Vec<_> = spec.hosts.iter().map(|host| host.name.as_str()).collect();
            info(&format!("job {job} of uid {} on {}", owner.uid, hosts.join(", ")));
        }
        self.begin_as(lane, job, *spec, Some(daemons), Some(owner));
        self.tell_of_company(lane, job);
    }

    /// Who wants hosts of its own is told where it is not alone.
    fn tell_of_company(&mut self, lane: Lane, job: u32) {
        let Some(service) = &self.service else { return };
        let Role::Server(cluster) = &service.role else { return };
        let shared = cluster.shared_hosts(job);
        let Some(first) = shared.first().filter(|_| cluster.wants_whole_hosts(job)) else { return };
        let text = format!(
            "{} of the hosts of job {job} ({} first) run other jobs, too: they take turns",
            shared.len(),
            cluster.name(*first)
        );
        self.notice(lane, Level::Info, text);
    }

    /// The cluster has no room yet.
    pub fn queued(&mut self, lane: Option<Lane>, job: u32) {
        let Some(lane) = lane else { return };
        let Some(Role::Server(cluster)) = self.service.as_ref().map(|service| &service.role) else {
            return;
        };
        let (ahead, all) = (cluster.ahead(job).unwrap_or(0), cluster.waiting());
        let text = format!("job {job} waits for room: {ahead} go before it, {all} wait in all");
        self.notice(lane, Level::Info, text);
    }

    /// The last word about a job; one that has run has its own.
    pub fn ended(&mut self, lane: Option<Lane>, job: u32, reason: Option<String>) {
        let Some(lane) = lane else { return };
        let session = self.sessions.get(&lane.session);
        if session.is_some_and(|session| session.waits(lane.job)) {
            let reason = reason.unwrap_or_else(|| "it was ended".to_owned());
            self.refuse(lane, format!("job {job} has not been started: {reason}"), REFUSED);
        }
    }

    /// A job's master has come to its end, and its hosts have reclaimed everything.
    pub fn job_over(&mut self, job: u32, code: u8) {
        let hosts = self.service.as_mut().and_then(|service| service.placed.remove(&job));
        if let Some(hosts) = hosts {
            self.release(job, code, hosts);
        }
    }

    fn release(&mut self, job: u32, code: u8, hosts: u32) {
        self.cluster(cluster::Event::Finished { job, code });
        self.cluster(cluster::Event::Released { job, hosts: NodeSet::from(0..hosts) });
    }
}

/// What the server keeps for a job that waits.
fn bytes(spec: &JobSpec) -> u64 {
    let strings = spec.environment.iter().map(|one| one.0.len() + 24).sum::<usize>();
    let elements = spec.stages.iter().flat_map(|stage| &stage.elements);
    let words: usize = elements.flat_map(|one| &one.args).map(|word| word.0.len() + 24).sum();
    (strings + words + 4096) as u64
}
