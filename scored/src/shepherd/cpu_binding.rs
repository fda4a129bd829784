//! The share of each process in the processors of its host: threads of OpenMP, and binding. The
//! shepherd binds processes only in multi-user mode.
//!
//! If a job has one process per processor, each process is bound to one processor. Processes of an
//! OpenMP program are bound to equal blocks of processors, because no other job runs on the host in
//! the same slice. Without binding, the kernel places processes that resume after a stop according
//! to the current load. It may place two processes on one processor, and needs a clock tick or more
//! to correct that.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use score_proto::message::{JobSpec, ProgramKind};

/// The number of OpenMP threads for each process of a stage, at least 1: the processors of this
/// host divided by the number of the stage's processes on this host.
pub fn threads_per_process(spec: &JobSpec, stage: usize, nodes: u32) -> usize {
    let processes = spec.stages[stage].elements.len() * nodes as usize;
    (super::cpu_count() / processes.max(1)).max(1)
}

/// The processors of each process of a stage on this host, which runs `nodes` nodes of the job.
/// Returns an empty list if the processes are not bound.
pub fn stage_cpu_sets(spec: &JobSpec, stage: usize, nodes: u32) -> Vec<CpuSet> {
    let [element] = &spec.stages[stage].elements[..] else { return Vec::new() };
    let is_one_per_node = element.kind != ProgramKind::System { per_host: true };
    if !is_one_per_node || spec.terms.disables_binding {
        return Vec::new();
    }
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    equal_blocks(&allowed, nodes, spec.fills_hosts(element))
}

/// One block of consecutive processors for each node, all of the same size. A block has several
/// processors only if the processes have threads. Returns no blocks for fewer than two nodes.
fn equal_blocks(allowed: &CpuSet, nodes: u32, has_threads: bool) -> Vec<CpuSet> {
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(is_allowed).collect();
    let block_len = cpus.len() / (nodes as usize).max(1);
    let fits = cpus.len() == nodes as usize || has_threads && block_len > 0;
    if nodes < 2 || !fits {
        return Vec::new();
    }
    let block = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        // Cannot fail, because the numbers come from a CpuSet.
        cpus.iter().for_each(|cpu| _ = set.set(*cpu));
        set
    };
    cpus.chunks_exact(block_len).take(nodes as usize).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu).unwrap());
        set
    }

    #[test]
    fn each_process_is_bound_to_one_processor_if_there_is_one_for_each() {
        let allowed = set(&[1, 4, 5]);
        assert_eq!(equal_blocks(&allowed, 3, false), [1, 4, 5].map(|cpu| set(&[cpu])));
        assert_eq!(equal_blocks(&allowed, 2, false), []);
        assert_eq!(equal_blocks(&allowed, 4, false), []);
        assert_eq!(equal_blocks(&set(&[0]), 1, false), []);
        assert_eq!(equal_blocks(&allowed, 0, false), []);
    }

    #[test]
    fn processes_with_threads_are_bound_to_blocks_of_the_same_size() {
        let allowed = set(&[0, 1, 2, 3, 6, 7, 8]);
        let blocks = [set(&[0, 1, 2]), set(&[3, 6, 7])];
        assert_eq!(equal_blocks(&allowed, 2, true), blocks);
        assert_eq!(equal_blocks(&allowed, 7, true), equal_blocks(&allowed, 7, false));
        assert_eq!(equal_blocks(&allowed, 4, true).len(), 4);
        assert_eq!(equal_blocks(&allowed, 8, true), []);
        assert_eq!(equal_blocks(&allowed, 1, true), []);
        assert_eq!(equal_blocks(&allowed, 0, true), []);
    }
}
