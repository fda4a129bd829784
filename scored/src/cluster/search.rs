//! Which hosts a job could have: space before time. A job has slots that nobody else has, if there
//! are enough; else it shares slots, with as few others as possible: what it gets is what its
//! most crowded host gives.

use score_proto::nodeset::NodeSet;
use score_proto::peer::{HostId, SERVER};
use score_proto::shape::Shape;

use super::machine::Cluster;
use super::place::{self, Prefer, Share, Site};
use super::{JobId, Request};

/// Bytes of what the manual calls MB.
const MB: u64 = 1 << 20;

/// Which hosts a search looks at.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum View {
    /// What is free now.
    Free,
    /// Those that are up, as if no job ran.
    Present,
    /// All that are not defect, as if all were up and no job ran.
    Known,
}

/// A host that a request may have, if there is room.
#[derive(Clone, Copy)]
struct Candidate {
    host: HostId,
    slots: u32,
    used: u32,
    /// Bytes that are not promised to others.
    memory: u64,
}

impl Candidate {
    fn site(&self, rows: u32) -> Site {
        Site::new(self.host, self.slots, self.used, rows)
    }
}

impl Cluster {
    /// Where a request could have its processes.
    pub(super) fn search(
        &self,
        request: &Request,
        view: View,
        kept: &NodeSet,
    ) -> Option<Vec<Share>> {
        let (least, rows) = (request.shape.least(), self.rows(view));
        if view == View::Free && !self.setting.oversubscribe {
            // Most searches end here when the cluster is full.
            let free = self.hosts.iter().map(|host| {
                let all = u64::from(host.setting.slots) * u64::from(rows);
                all.saturating_sub(host.used.into())
            });
            if free.sum::<u64>() < least {
                return None;
            }
        }
        let all = || vec![self.eligible(None, request, view, kept)];
        let in_pool = |pool| self.eligible(Some(pool), request, view, kept);
        let pools: Vec<_> = match request.pools.is_empty() {
            true => all(),
            false => request.pools.iter().map(in_pool).collect(),
        };
        let mut searches = (1..=rows).flat_map(|row| pools.iter().map(move |pool| (row, pool)));
        let found = searches.find_map(|(row, pool)| fit(request.shape, pool.as_ref()?, row));
        let idle = view != View::Free || self.hosts.iter().all(|host| host.used == 0);
        if found.is_none() && self.setting.oversubscribe && idle {
            let beyond = |pool: &Vec<Candidate>| {
                let sites: Vec<_> = pool.iter().map(|one| one.site(1)).collect();
                place::place_beyond(request.shape, &sites)
            };
            return pools.iter().flatten().find_map(beyond);
        }
        found
    }

    /// As if no job ran, one row is all that a job can fill.
    fn rows(&self, view: View) -> u32 {
        if view == View::Free { self.setting.rows.max(1) } else { 1 }
    }

    /// The hosts that a request can have of these; None if it wants every host and one is missing.
    fn eligible(
        &self,
        pool: Option<&NodeSet>,
        request: &Request,
        view: View,
        kept: &NodeSet,
    ) -> Option<Vec<Candidate>> {
        let mut hosts = self.candidates(pool, view);
        let before = hosts.len();
        hosts.retain(|one| !kept.contains(one.host) && one.memory >= request.memory);
        let wants_all = matches!(request.shape, Shape::Every { .. });
        (!wants_all || hosts.len() == before).then_some(hosts)
    }

    /// The hosts of these that any request may have in this view. Spares count only in place of
    /// others that are missing.
    fn candidates(&self, allowed: Option<&NodeSet>, view: View) -> Vec<Candidate> {
        let mut missing = NodeSet::new();
        let (mut hosts, mut spares) = (Vec::new(), Vec::new());
        for (number, host) in (0..).zip(&self.hosts) {
            let allowed = allowed.is_none_or(|allowed| allowed.contains(number));
            let slots = host.setting.slots;
            if !allowed || slots == 0 {
                continue;
            }
            let usable = !host.setting.defect && (view == View::Known || self.is_up(number));
            let (used, promised) = match view {
                View::Free => (host.used, host.promised),
                View::Present | View::Known => (0, 0),
            };
            let memory = self.memory(number).map_or(u64::MAX, |all| all.saturating_sub(promised));
            let candidate = Candidate { host: number, slots, used, memory };
            match (host.setting.spare_for.is_empty(), usable) {
                (true, true) => hosts.push(candidate),
                (true, false) => missing.union(&NodeSet::one(number)),
                (false, true) => spares.push(candidate),
                (false, false) => {}
            }
        }
        for spare in spares {
            let of = &self.hosts[spare.host as usize].setting.spare_for;
            if let Some(replaced) = of.iter().find(|host| missing.contains(*host)) {
                missing.remove(replaced);
                hosts.push(spare);
            }
        }
        hosts
    }

    /// Bytes of memory of a host, as far as that is known.
    pub(super) fn memory(&self, host: HostId) -> Option<u64> {
        let bytes = match host {
            SERVER => self.setting.memory,
            _ => self.hosts.get(host as usize)?.member.as_ref()?.memory,
        };
        (bytes > 0).then_some(bytes)
    }

    /// Hosts where a job is not alone.
    pub fn shared_hosts(&self, job: JobId) -> Vec<HostId> {
        let shares = self.shares(job).unwrap_or_default().iter();
        let shared = shares.filter(|share| self.hosts[share.host as usize].used > share.procs);
        shared.map(|share| share.host).collect()
    }

    /// One line: what is wanted, and what there is.
    pub(super) fn shortage(&self, request: &Request, view: View) -> String {
        let frugal = Request { memory: 0, ..request.clone() };
        let hosts = self.candidates(request.allowed().as_ref(), view);
        if request.memory > 0 && self.search(&frugal, view, &NodeSet::new()).is_some() {
            return memory_shortage(request, &hosts, view);
        }
        let rows = self.rows(view);
        let room = |one: &Candidate| {
            (u64::from(one.slots) * u64::from(rows)).saturating_sub(one.used.into())
        };
        let free: u64 = hosts.iter().map(room).sum();
        let largest = hosts.iter().map(|one| one.site(rows).free).max().unwrap_or(0);
        let count = hosts.iter().filter(|one| room(one) > 0).count();
        let (wanted, place) = (request.shape, place_of(request));
        match view {
            View::Free if rows > 1 => format!(
                "{wanted} are wanted; a processor may have {rows} jobs, and {count} {place} have \
                 room for {free} more processes, at most {largest} of a job on one; with the \
                 option wait the job would queue"
            ),
            View::Free => format!(
                "{wanted} are wanted; now {free} processors on {count} {place} are free, at most \
                 {largest} on one; with the option wait the job would queue"
            ),
            _ => format!(
                "{wanted} are wanted; {count} {place} have {free} processors, at most {largest} \
                 on one"
            ),
        }
    }
}

fn place_of(request: &Request) -> &'static str {
    if request.pools.is_empty() { "of the cluster" } else { "of these hosts" }
}

fn memory_shortage(request: &Request, hosts: &[Candidate], view: View) -> String {
    let (wanted, memory, place) = (request.shape, request.memory / MB, place_of(request));
    let enough = hosts.iter().filter(|one| one.memory >= request.memory).count();
    let most = hosts.iter().map(|one| one.memory).max().unwrap_or(0) / MB;
    let (now, advice) = match view {
        View::Free => {
            ("are not promised to other jobs", "; with the option wait the job would queue")
        }
        _ => ("are all that a host has", ""),
    };
    format!(
        "{wanted} are wanted, with {memory} MB (memorylimit) on each host; {enough} {place} have \
         that, and at most {most} MB {now}{advice}"
    )
}

/// Where a job fits when each host has so many rows: in the first it is alone on its slots.
fn fit(shape: Shape, hosts: &[Candidate], rows: u32) -> Option<Vec<Share>> {
    let sites: Vec<_> = hosts.iter().map(|one| one.site(rows)).collect();
    let free: u64 = sites.iter().map(|site| u64::from(site.free)).sum();
    let prefer = if rows == 1 { Prefer::Tight } else { Prefer::Idle };
    (free >= shape.least()).then(|| place::place(shape, &sites, prefer)).flatten()
}
