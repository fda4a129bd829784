//! Which processor a process runs on. A job that has every processor of a host while it runs
//! (multi-user mode), with a process for each, has each process keep to one of them: nobody else is
//! there in its slice. Left alone, the kernel puts processes that go on after a stop where there is
//! room at that moment, two on one processor, and needs a tick or more to see it.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use score_proto::message::{JobSpec, Kind};

/// The option by which a user forbids it.
const NO_BIND: &str = "nobind";

/// The processor of each process of a stage on this host, which has so many nodes of the job; none
/// where they are left alone.
pub fn of_stage(spec: &JobSpec, stage: usize, nodes: u32) -> Vec<CpuSet> {
    let [element] = &spec.stages[stage].elements[..] else { return Vec::new() };
    let is_one_each = element.kind != Kind::System { per_host: true };
    if !is_one_each || spec.options.iter().any(|(key, _)| key == NO_BIND) {
        return Vec::new();
    }
    let Ok(all) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    each(&all, nodes)
}

/// Sets of one processor, if there are as many as nodes, and several.
fn each(all: &CpuSet, nodes: u32) -> Vec<CpuSet> {
    let here = (0..CpuSet::count()).filter(|at| all.is_set(*at).unwrap_or(false));
    let one = |at: usize| {
        let mut one = CpuSet::new();
        one.set(at).ok().map(|()| one)
    };
    let sets: Vec<CpuSet> = here.filter_map(one).collect();
    if sets.len() > 1 && sets.len() == nodes as usize { sets } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_keep_to_a_processor_each_if_there_is_one_for_each() {
        let mut all = CpuSet::new();
        [1, 4, 5].into_iter().for_each(|at| all.set(at).unwrap());
        let sets = each(&all, 3);
        for (set, at) in sets.iter().zip([1, 4, 5]) {
            assert!((0..CpuSet::count()).all(|one| set.is_set(one).unwrap() == (one == at)));
        }
        assert_eq!(sets.len(), 3);
        assert!(each(&all, 2).is_empty() && each(&all, 4).is_empty());
        let mut one = CpuSet::new();
        one.set(0).unwrap();
        assert!(each(&one, 1).is_empty());
    }
}
