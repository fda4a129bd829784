//! Jobs of multi-user mode, from a user's request to the start on the allocated hosts.

use score_job::cluster::{self, HostShare, JobRequest, SlotUse};
use score_job::validate;
use score_proto::allocation_request::AllocationRequest;
use score_proto::exit_code::EXIT_REFUSED;
use score_proto::frame;
use score_proto::ids::JobId;
use score_proto::job_control::Remains;
use score_proto::message::{ElementSpec, HostKind, HostSpec, JobSpec, Level, StageSpec};
use score_proto::network::SHMEM;
use score_proto::network_choice;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{Incarnation, SERVER};

use super::super::Daemon;
use super::{Role, Service, info};
use score_job::jobs::{ClientJob, LostHosts};

impl Daemon {
    /// Validates a user's request and submits it to the cluster.
    pub fn request_job(
        &mut self,
        client_job: ClientJob,
        shape: AllocationRequest,
        mut spec: JobSpec,
    ) {
        let Some(session) = self.sessions.get_mut(client_job.session_key) else { return };
        let Some(id) = session.id() else { return };
        // The cluster chooses the hosts later, so this checks a placeholder.
        spec.hosts = vec![HostSpec::local(1)];
        let Some(service) = &self.service else { return };
        let checked = validate::check(&spec).and_then(|()| service.check_networks(&spec.networks));
        if let Err(reason) = checked {
            return self.sessions.refuse(client_job, reason, EXIT_REFUSED);
        }
        let pools = match service.config.pools(&spec.options) {
            Ok(pools) => pools,
            Err(reason) => return self.sessions.refuse(client_job, reason, EXIT_REFUSED),
        };
        let request = JobRequest {
            allocation: shape,
            pools,
            wait: spec.terms.waits_for_hosts,
            priority: spec.terms.priority,
            slot_use: match spec.needs_whole_hosts() {
                true => SlotUse::WholeHosts,
                false => SlotUse::PerProcess,
            },
            memory: spec.terms.limits.memory.unwrap_or(0),
            spec_bytes: spec_size(&spec),
        };
        let Some(session) = self.sessions.get_mut(client_job.session_key) else { return };
        session.add_job(client_job.job, Some(Box::new(spec)));
        let tag = client_job.job;
        self.step_server(cluster::ClusterEvent::Submit { session: id, tag, request });
    }

    /// Starts a job on the hosts that the cluster has allocated.
    pub fn start_job(
        &mut self,
        client_job: Option<ClientJob>,
        job: JobId,
        allocations: &[HostShare],
        incarnations: &[Incarnation],
    ) {
        let pending = client_job.and_then(|client_job| {
            let session = self.sessions.get_mut(client_job.session_key)?;
            Some((client_job, session.take_pending_spec(client_job.job)?, session.owner()?.clone()))
        });
        let (Some(service), Some((client_job, mut spec, owner))) = (&mut self.service, pending)
        else {
            return self.release_hosts(job, 1, allocations.len() as u32);
        };
        let Role::Server(cluster) = &service.role else { return };
        let server_address = service.config.address;
        let address =
            |host| if host == SERVER { Some(server_address) } else { cluster.address(host) };
        // The cluster chose the incarnations together with the hosts. A daemon that has restarted
        // since has another incarnation and refuses the job.
        let daemon = |(allocation, incarnation): (&HostShare, &Incarnation)| {
            Some((address(allocation.host)?, *incarnation))
        };
        let daemons = allocations.iter().zip(incarnations).filter_map(daemon).collect();
        spec.hosts = allocations
            .iter()
            .filter_map(|allocation| {
                let host = service.config.hosts.get(allocation.host.index())?;
                Some(HostSpec {
                    name: host.name.clone(),
                    address: String::new(),
                    kind: HostKind::Remote,
                    processors: host.slots,
                    procs: allocation.procs,
                    networks: service.config.networks.get(allocation.host.index())?.clone(),
                })
            })
            .collect();
        match network_choice::choose(&spec.hosts, &spec.networks, spec.network_sets) {
            Ok(networks) => spec.networks = networks,
            Err(reason) => {
                self.sessions.refuse(client_job, reason, EXIT_REFUSED);
                return self.release_hosts(job, EXIT_REFUSED, allocations.len() as u32);
            }
        }
        service.placed_host_counts.insert(job, allocations.len() as u32);
        service.job_id_allocator.iter_mut().for_each(|allocator| allocator.reserve_past(job));
        if service.verbose {
            let hosts: Vec<_> = spec.hosts.iter().map(|host| host.name.as_str()).collect();
            info(&format!("job {job} of uid {} on {}", owner.uid, hosts.join(", ")));
        }
        self.begin_with_id(client_job, job, *spec, Some(daemons), Some(owner));
        let service = self.service.as_ref();
        if let Some(text) = service.and_then(|service| service.shared_hosts_text(job)) {
            self.sessions.notice(client_job, Level::Info, text);
        }
    }

    /// Reports hosts of a job that may still run the job, although the job master does not wait for
    /// them.
    pub fn on_hosts_lost(&mut self, lost: LostHosts) {
        let LostHosts { job, hosts, remains, names: _ } = lost;
        if remains == Remains::Processes {
            let hosts = NodeSet::from(hosts);
            self.step_server(cluster::ClusterEvent::HostsLost { job, hosts });
        }
    }

    /// Releases the hosts of a job, because the job master has finished. No resources of the job
    /// are left on these hosts, unless they were reported as lost.
    pub fn on_master_done(&mut self, job: JobId, code: u8) {
        let host_count =
            self.service.as_mut().and_then(|service| service.placed_host_counts.remove(&job));
        if let Some(host_count) = host_count {
            self.release_hosts(job, code, host_count);
        }
    }

    fn release_hosts(&mut self, job: JobId, code: u8, host_count: u32) {
        self.step_server(cluster::ClusterEvent::Finished { job, code });
        self.step_server(cluster::ClusterEvent::Released {
            job,
            hosts: NodeSet::from(0..host_count),
        });
    }
}

impl Service {
    /// Checks that each network has a host. Otherwise the job would stay in the queue for ever.
    fn check_networks(&self, names: &[String]) -> Result<(), String> {
        let host_networks = self.config.networks.iter();
        let hosts: Vec<HostSpec> = host_networks
            .map(|networks| HostSpec { networks: networks.clone(), ..HostSpec::local(1) })
            .collect();
        let is_configured = |name: &&String| {
            *name == SHMEM || hosts.iter().any(|host| host.network(name).is_some())
        };
        match names.iter().find(|name| !is_configured(name)) {
            // This returns the error, which lists the existing networks.
            Some(unknown) => {
                network_choice::choose(&hosts, std::slice::from_ref(unknown), 1).map(drop)
            }
            None => Ok(()),
        }
    }

    /// A line for the user: the job is queued, because the cluster cannot allocate its hosts yet.
    pub(super) fn queue_text(&self, job: JobId) -> Option<String> {
        let Role::Server(cluster) = &self.role else { return None };
        let (ahead, waiting_count) =
            (cluster.jobs_ahead(job).unwrap_or(0), cluster.pending_count());
        Some(format!("job {job} is queued: {ahead} jobs ahead, {waiting_count} waiting in total"))
    }

    /// A line for the user, if a job that requested whole hosts shares some with other jobs.
    fn shared_hosts_text(&self, job: JobId) -> Option<String> {
        let Role::Server(cluster) = &self.role else { return None };
        let shared = cluster.shared_hosts(job);
        let first = shared.first().filter(|_| cluster.wants_whole_hosts(job))?;
        Some(format!(
            "{} of the hosts of job {job} also run other jobs, which share the processors in time; \
             the first is {}",
            shared.len(),
            cluster.name(*first)
        ))
    }
}

/// The memory that a decoded word needs in addition to its bytes: a vector, and the smallest
/// allocation.
const WORD_OVERHEAD: usize = 24 + 32;
/// The memory that each job needs in addition to its specification.
const JOB_OVERHEAD: usize = 4096;

/// An estimate of the memory in bytes that the server needs for a queued job. Every string of the
/// specification counts, because the user chooses the length of each.
fn spec_size(spec: &JobSpec) -> u64 {
    let encoded_len = frame::encode_datagram(spec).map_or(frame::MAX_BODY, |body| body.len());
    let variable_count = spec.environment.len() + spec.rank_environment.len();
    let tool_word_count = spec.tool.as_ref().map_or(0, |tool| tool.arguments.len());
    let elements = || spec.stages.iter().flat_map(|stage| &stage.elements);
    let arg_count: usize = elements().map(|element| element.args.len()).sum();
    let words = variable_count + tool_word_count + arg_count + 2 * spec.options.len();
    let structs = elements().count() * (size_of::<ElementSpec>() + size_of::<StageSpec>());
    (encoded_len + words * WORD_OVERHEAD + structs + JOB_OVERHEAD) as u64
}

#[cfg(test)]
mod tests {
    use score_proto::message::{OsBytes, ProgramKind};

    use super::*;

    #[test]
    fn each_string_and_each_list_of_a_job_counts() {
        const LONG_LEN: usize = 100_000;
        let long = || OsBytes(vec![b'/'; LONG_LEN]);
        let element = || ElementSpec::new(long(), Vec::new(), ProgramKind::Plain);
        let empty_size = spec_size(&JobSpec::default());
        let with_element =
            JobSpec { stages: vec![StageSpec { elements: vec![element()] }], ..JobSpec::default() };
        let directory = JobSpec { directory: long(), ..JobSpec::default() };
        for spec in [directory, with_element] {
            assert!(spec_size(&spec) >= empty_size + LONG_LEN as u64);
        }
        // Many short words need more memory than their bytes.
        let environment = vec![OsBytes(b"A=".to_vec()); 1000];
        let size = spec_size(&JobSpec { environment, ..JobSpec::default() });
        assert!(size >= empty_size + 1000 * (24 + 32), "{size}");
    }
}
