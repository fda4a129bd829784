//! Selects the hosts for a job. Slots that no other job uses are preferred to time sharing. If
//! there are not enough of them, the job shares its slots with as few other jobs as possible. All
//! processes of a job are scheduled together, so its share of the processors is that of its most
//! crowded host.

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId};
use score_proto::nodeset::NodeSet;

use super::ServerState;
use crate::cluster::placement::{self, HostShare, HostSlots, PlacementPolicy};
use crate::cluster::{JobRequest, SlotUse};

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
    /// The slots of a row that the job can use.
    fn host_slots(&self, slot_use: SlotUse, rows: u32) -> HostSlots {
        let found = HostSlots::new(self.host, self.slots, self.used_slots, rows);
        match slot_use {
            SlotUse::WholeHosts if found.free < found.slots => HostSlots { free: 0, ..found },
            SlotUse::PerProcess | SlotUse::WholeHosts => found,
        }
    }

    /// The slots of all rows that the job can use.
    fn free_slots(&self, slot_use: SlotUse, rows: u32) -> u64 {
        let all_slots = u64::from(self.slots) * u64::from(rows);
        let free = all_slots.saturating_sub(self.used_slots.into());
        match slot_use {
            SlotUse::PerProcess => free,
            SlotUse::WholeHosts => free - free % u64::from(self.slots.max(1)),
        }
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
        if scope == HostScope::AvailableNow {
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
        searches.find_map(|(row, pool)| fit(request, pool.as_ref()?, row))
    }

    /// The number of rows that a job can use. If no job is assumed to run, this is one row.
    fn rows(&self, scope: HostScope) -> u32 {
        if scope == HostScope::AvailableNow { self.config.rows.max(1) } else { 1 }
    }

    /// The hosts of the pool that a request can use. None if the request needs every host, and one
    /// of them is reserved or has too little memory.
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
        let Some((request, shares)) = self.allocation(job) else { return Vec::new() };
        let is_shared = |share: &&HostShare| {
            let host = &self.membership.hosts[share.host.index()];
            host.used_slots > host.reservation(request, share.procs).slots
        };
        shares.iter().filter(is_shared).map(|share| share.host).collect()
    }

    /// One line: the requested resources and the available ones.
    pub(super) fn shortage(&self, request: &JobRequest, scope: HostScope) -> String {
        let without_memorylimit = JobRequest { memory: 0, ..request.clone() };
        let hosts = self.candidates(request.allowed_hosts().as_ref(), scope);
        if request.memory > 0 && self.search(&without_memorylimit, scope, &NodeSet::new()).is_some()
        {
            return memory_shortage(request, &hosts, scope);
        }
        let (rows, slot_use) = (self.rows(scope), request.slot_use);
        let free_slots = |candidate: &Candidate| candidate.free_slots(slot_use, rows);
        let free: u64 = hosts.iter().map(free_slots).sum();
        let in_a_row = hosts.iter().map(|candidate| candidate.host_slots(slot_use, rows).free);
        let largest = in_a_row.max().unwrap_or(0);
        let count = hosts.iter().filter(|candidate| free_slots(candidate) > 0).count();
        let (shape, host_set) = (request.allocation, host_set_phrase(request));
        let whole_hosts = match slot_use {
            SlotUse::PerProcess => "",
            SlotUse::WholeHosts => ", with all processors of each host for OpenMP",
        };
        match scope {
            HostScope::AvailableNow if rows > 1 => format!(
                "{shape} are needed{whole_hosts}; a processor may have {rows} jobs, and {count} \
                 {host_set} have room for {free} more processes, at most {largest} of a job on \
                 one; use the option wait to queue the job"
            ),
            HostScope::AvailableNow => format!(
                "{shape} are needed{whole_hosts}; now {free} processors on {count} {host_set} are \
                 free, at most {largest} on one; use the option wait to queue the job"
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
fn fit(request: &JobRequest, candidates: &[Candidate], rows: u32) -> Option<Vec<HostShare>> {
    let host_slots = candidates.iter().map(|host| host.host_slots(request.slot_use, rows));
    let host_slots: Vec<_> = host_slots.collect();
    let free: u64 = host_slots.iter().map(|host| u64::from(host.free)).sum();
    let policy = if rows == 1 { PlacementPolicy::BestFit } else { PlacementPolicy::LeastLoaded };
    let shape = request.allocation;
    (free >= shape.min_slots()).then(|| placement::place(shape, &host_slots, policy)).flatten()
}
