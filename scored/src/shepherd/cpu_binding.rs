//! Binding of processes to processors. In multi-user mode, a running job has all processors of a
//! host. If it has one process per processor, each process is bound to one of them: no other job
//! runs there in its slice. Unbound processes that resume after a stop are placed by the kernel
//! according to the load of that moment. It may put two on one processor and needs a tick or more
//! to correct that.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use score_proto::message::{JobSpec, ProgramKind};

/// The option by which a user disables the binding.
const NOBIND_OPTION: &str = "nobind";

/// The processor of each process of a stage on this host, which has `nodes` nodes of the job. Empty
/// if the processes are not bound.
pub fn stage_cpu_sets(spec: &JobSpec, stage: usize, nodes: u32) -> Vec<CpuSet> {
    let [element] = &spec.stages[stage].elements[..] else { return Vec::new() };
    let is_one_per_node = element.kind != ProgramKind::System { per_host: true };
    if !is_one_per_node || spec.options.iter().any(|(key, _)| key == NOBIND_OPTION) {
        return Vec::new();
    }
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    one_cpu_each(&allowed, nodes)
}

/// Sets of one processor each, if there are as many processors as nodes and more than one.
fn one_cpu_each(allowed: &CpuSet, nodes: u32) -> Vec<CpuSet> {
    let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let single_cpu = |cpu: usize| {
        let mut set = CpuSet::new();
        set.set(cpu).ok().map(|()| set)
    };
    let sets: Vec<CpuSet> = cpus.filter_map(single_cpu).collect();
    if sets.len() > 1 && sets.len() == nodes as usize { sets } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_bound_to_one_processor_if_there_is_one_for_each() {
        let mut allowed = CpuSet::new();
        [1, 4, 5].into_iter().for_each(|cpu| allowed.set(cpu).unwrap());
        let sets = one_cpu_each(&allowed, 3);
        for (set, cpu) in sets.iter().zip([1, 4, 5]) {
            assert!(
                (0..CpuSet::count())
                    .all(|other_cpu| set.is_set(other_cpu).unwrap() == (other_cpu == cpu))
            );
        }
        assert_eq!(sets.len(), 3);
        assert!(one_cpu_each(&allowed, 2).is_empty() && one_cpu_each(&allowed, 4).is_empty());
        let mut single = CpuSet::new();
        single.set(0).unwrap();
        assert!(one_cpu_each(&single, 1).is_empty());
    }
}
