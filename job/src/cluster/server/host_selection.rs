//! Selects the hosts for a job. Slots that no other job uses are preferred to time sharing. If
//! there are not enough of them, the job shares its slots with as few other jobs as possible. All
//! processes of a job are scheduled together, so its share of the processors is that of its most
//! crowded host.

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId};
use score_proto::nodeset::NodeSet;

use super::ServerState;
use crate::cluster::JobRequest;
use crate::cluster::placement::{self, HostShare, HostSlots, PlacementPolicy};

/// Bytes of a MB, as the manual counts.
const MB: u64 = 1 << 20;

/// The hosts that a search considers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HostScope {
    /// Capacity that is free now.
    AvailableNow,
    /// Hosts that are up, as if no job ran.
    AllUp,
    /// All hosts that are not defective, as if all were up and no job ran.
    AllUsable,
}

/// A host that a request may use if it has enough free slots.
#[derive(Clone, Copy)]
struct Candidate {
    host: HostId,
    slots: u32,
    used_slots: u32,
    /// Bytes of memory that are not promised to other jobs.
    free_memory: u64,
}

impl Candidate {
    fn host_slots(&self, rows: u32) -> HostSlots {
        HostSlots::new(self.host, self.slots, self.used_slots, rows)
    }
}

impl ServerState {
    /// Finds hosts for the processes of a request.
    pub(super) fn search(
        &self,
        request: &JobRequest,
        scope: HostScope,
        reserved: &NodeSet,
    ) -> Option<Vec<HostShare>> {
        let (min_nodes, rows) = (request.allocation.min_slots(), self.rows(scope));
        if scope == HostScope::AvailableNow && !self.config.oversubscribe {
            // A shortcut: most searches end here when the cluster is full.
            let free = self.membership.hosts.iter().map(|host| {
                let capacity = u64::from(host.config.slots) * u64::from(rows);
                capacity.saturating_sub(host.used_slots.into())
            });
            if free.sum::<u64>() < min_nodes {
                return None;
            }
        }
        let whole_cluster = || vec![self.eligible(None, request, scope, reserved)];
        let in_pool = |pool| self.eligible(Some(pool), request, scope, reserved);
        let pools: Vec<_> = match request.pools.is_empty() {
            true => whole_cluster(),
            false => request.pools.iter().map(in_pool).collect(),
        };
        let mut searches = (1..=rows).flat_map(|row| pools.iter().map(move |pool| (row, pool)));
        let found = searches.find_map(|(row, pool)| fit(request.allocation, pool.as_ref()?, row));
        let is_idle = scope != HostScope::AvailableNow
            || self.membership.hosts.iter().all(|host| host.used_slots == 0);
        if found.is_none() && self.config.oversubscribe && is_idle {
            let oversubscribed = |pool: &Vec<Candidate>| {
                let candidates: Vec<_> =
                    pool.iter().map(|candidate| candidate.host_slots(1)).collect();
                placement::place_oversubscribed(request.allocation, &candidates)
            };
            return pools.iter().flatten().find_map(oversubscribed);
        }
        found
    }

    /// The number of rows that a job can use. If no job is assumed to run, this is one row.
    fn rows(&self, scope: HostScope) -> u32 {
        if scope == HostScope::AvailableNow { self.config.rows.max(1) } else { 1 }
    }

    /// The hosts of the pool that a request can use. None if the request needs every host and one
    /// is missing.
    fn eligible(
        &self,
        pool: Option<&NodeSet>,
        request: &JobRequest,
        scope: HostScope,
        reserved: &NodeSet,
    ) -> Option<Vec<Candidate>> {
        let mut hosts = self.candidates(pool, scope);
        let total = hosts.len();
        hosts.retain(|candidate| {
            !reserved.contains(candidate.host.0) && candidate.free_memory >= request.memory
        });
        let wants_all = matches!(request.allocation, AllocationRequest::EveryHost { .. });
        (!wants_all || hosts.len() == total).then_some(hosts)
    }

    /// The hosts of the pool that any request may use in this scope. Spares count only as
    /// replacements for missing hosts.
    fn candidates(&self, pool: Option<&NodeSet>, scope: HostScope) -> Vec<Candidate> {
        let mut missing = NodeSet::new();
        let (mut hosts, mut spares) = (Vec::new(), Vec::new());
        for (id, host) in (0..).map(HostId).zip(&self.membership.hosts) {
            let is_allowed = pool.is_none_or(|allowed| allowed.contains(id.0));
            let slots = host.config.slots;
            if !is_allowed || slots == 0 {
                continue;
            }
            let usable =
                !host.config.defect && (scope == HostScope::AllUsable || self.membership.is_up(id));
            let (used_slots, promised_memory) = match scope {
                HostScope::AvailableNow => (host.used_slots, host.promised_memory),
                HostScope::AllUp | HostScope::AllUsable => (0, 0),
            };
            let free_memory = self
                .membership
                .memory(id)
                .map_or(u64::MAX, |all| all.saturating_sub(promised_memory));
            let candidate = Candidate { host: id, slots, used_slots, free_memory };
            match (host.config.spare_for.is_empty(), usable) {
                (true, true) => hosts.push(candidate),
                (true, false) => missing.union(&NodeSet::one(id.0)),
                (false, true) => spares.push(candidate),
                (false, false) => {}
            }
        }
        for spare in spares {
            let replaceable = &self.membership.hosts[spare.host.index()].config.spare_for;
            if let Some(replaced) = replaceable.iter().find(|host| missing.contains(*host)) {
                missing.remove(replaced);
                hosts.push(spare);
            }
        }
        hosts
    }

    /// The hosts that a job shares with other jobs.
    pub fn shared_hosts(&self, job: JobId) -> Vec<HostId> {
        let shares = self.shares(job).unwrap_or_default().iter();
        let shared = shares
            .filter(|share| self.membership.hosts[share.host.index()].used_slots > share.procs);
        shared.map(|share| share.host).collect()
    }

    /// One line: the requested resources and the available ones.
    pub(super) fn shortage(&self, request: &JobRequest, scope: HostScope) -> String {
        let without_memorylimit = JobRequest { memory: 0, ..request.clone() };
        let hosts = self.candidates(request.allowed_hosts().as_ref(), scope);
        if request.memory > 0 && self.search(&without_memorylimit, scope, &NodeSet::new()).is_some()
        {
            return memory_shortage(request, &hosts, scope);
        }
        let rows = self.rows(scope);
        let free_slots = |candidate: &Candidate| {
            (u64::from(candidate.slots) * u64::from(rows))
                .saturating_sub(candidate.used_slots.into())
        };
        let free: u64 = hosts.iter().map(free_slots).sum();
        let largest =
            hosts.iter().map(|candidate| candidate.host_slots(rows).free).max().unwrap_or(0);
        let count = hosts.iter().filter(|candidate| free_slots(candidate) > 0).count();
        let (shape, host_set) = (request.allocation, host_set_phrase(request));
        match scope {
            HostScope::AvailableNow if rows > 1 => format!(
                "{shape} are needed; a processor may have {rows} jobs, and {count} {host_set} have \
                 room for {free} more processes, at most {largest} of a job on one; use the option \
                 wait to queue the job"
            ),
            HostScope::AvailableNow => format!(
                "{shape} are needed; now {free} processors on {count} {host_set} are free, at most \
                 {largest} on one; use the option wait to queue the job"
            ),
            _ => format!(
                "{shape} are needed; {count} {host_set} have {free} processors, at most {largest} \
                 on one"
            ),
        }
    }
}

fn host_set_phrase(request: &JobRequest) -> &'static str {
    if request.pools.is_empty() { "of the cluster's hosts" } else { "of these hosts" }
}

fn memory_shortage(request: &JobRequest, hosts: &[Candidate], scope: HostScope) -> String {
    let (shape, memory, host_set) =
        (request.allocation, request.memory / MB, host_set_phrase(request));
    let enough_count =
        hosts.iter().filter(|candidate| candidate.free_memory >= request.memory).count();
    let max_memory = hosts.iter().map(|candidate| candidate.free_memory).max().unwrap_or(0) / MB;
    let (memory_phrase, advice) = match scope {
        HostScope::AvailableNow => {
            ("are not promised to other jobs", "; use the option wait to queue the job")
        }
        _ => ("are all that a host has", ""),
    };
    format!(
        "{shape} are needed, with {memory} MB (memorylimit) on each host; {enough_count} \
         {host_set} have that, and at most {max_memory} MB {memory_phrase}{advice}"
    )
}

/// Places a job if each host has this many rows. In the first row a job has its slots alone.
fn fit(shape: AllocationRequest, candidates: &[Candidate], rows: u32) -> Option<Vec<HostShare>> {
    let host_slots: Vec<_> =
        candidates.iter().map(|candidate| candidate.host_slots(rows)).collect();
    let free: u64 = host_slots.iter().map(|host| u64::from(host.free)).sum();
    let policy = if rows == 1 { PlacementPolicy::BestFit } else { PlacementPolicy::LeastLoaded };
    (free >= shape.min_slots()).then(|| placement::place(shape, &host_slots, policy)).flatten()
}
