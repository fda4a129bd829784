//! Checks whether a job can be run at all, before anything is started.

use std::collections::HashSet;

use score_proto::MAX_NODES;
use score_proto::debugger::DebuggerSpec;
use score_proto::file_tree::MAX_TREE_FILE;
use score_proto::message::{Input, JobSpec, MpiStart, Output, ProgramKind, StageSpec};
use score_proto::network_choice::MAX_SETS;
use score_proto::tool_start::ToolProgram;

use super::program_paths;

/// Descriptors that the shepherd needs per process: two pipes, the control socket, and one for PM.
/// An MPI program needs a PMI socket in addition.
const DESCRIPTORS_PER_PROCESS: u64 = 4;
/// Descriptors that the shepherd needs independently of the number of processes.
const BASE_DESCRIPTORS: u64 = 64;
/// The memory of the smallest process, including page tables and kernel stack.
const BYTES_PER_PROCESS: u64 = 256 * 1024;

/// The largest number of parallel processes of a job, in all stages.
pub const MAX_ELEMENTS: usize = 1024;

/// The largest number of files that are sent to the hosts of a job: programs with different names
/// or contents, and the archive for the job's tools.
const MAX_SENT_PROGRAMS: usize = 64;

/// Options are sent to every process in one datagram.
const MAX_OPTION_LEN: usize = 64 * 1024;

/// The limits of one host.
#[derive(Debug, Clone, Copy)]
pub struct HostLimits {
    /// Processes that may still be started; `u64::MAX` when unlimited.
    pub processes: u64,
    /// Descriptors of one process.
    pub descriptors: u64,
    /// Memory available, bytes.
    pub memory: u64,
}

/// Checks a job specification before anything is started.
///
/// # Errors
/// One line that names the problem.
pub fn check(spec: &JobSpec) -> Result<(), String> {
    if spec.nodes() == 0 || spec.nodes() > MAX_NODES {
        return Err(format!(
            "{} nodes are requested: a job has 1 to {MAX_NODES} (PM_MAX_NODE)",
            spec.nodes()
        ));
    }
    if let Some(host_without_node) = spec.hosts.iter().find(|host| host.procs == 0) {
        return Err(format!("host {} would have no node of the job", host_without_node.name));
    }
    let mut names = HashSet::new();
    if let Some(duplicate) = spec.hosts.iter().find(|host| !names.insert(&host.name)) {
        let count = spec.hosts.len();
        return Err(format!("host {:?} is named twice among {count} hosts", duplicate.name));
    }
    if spec.networks.len() > MAX_SETS {
        return Err(format!("{} network sets: {MAX_SETS} are the most", spec.networks.len()));
    }
    spec.terms.check()?;
    spec.tool.as_ref().map_or(Ok(()), ToolProgram::check)?;
    spec.debuggers.as_deref().map_or(Ok(()), DebuggerSpec::check)?;
    check_counts(spec)?;
    if spec.tool_files.as_ref().is_some_and(|files| files.size > MAX_TREE_FILE) {
        return Err(format!("tool-files: more than {} MB", MAX_TREE_FILE >> 20));
    }
    check_shape(spec)?;
    check_strings(spec)
}

/// Limits these counts, because each message about the job costs its daemons time in proportion.
fn check_counts(spec: &JobSpec) -> Result<(), String> {
    let elements = spec.stages.iter().map(|stage| stage.elements.len()).sum::<usize>();
    if elements > MAX_ELEMENTS {
        return Err(format!(
            "the job has {elements} programs in its pipelines: at most {MAX_ELEMENTS} are possible"
        ));
    }
    let programs = program_paths::files(spec).len();
    if programs > MAX_SENT_PROGRAMS {
        return Err(format!(
            "{programs} programs have to be sent to the hosts: at most {MAX_SENT_PROGRAMS} are \
             possible; install programs on the hosts"
        ));
    }
    Ok(())
}

fn check_shape(spec: &JobSpec) -> Result<(), String> {
    if spec.stages.is_empty() {
        return Err("the job has no program".to_owned());
    }
    for stage in &spec.stages {
        if stage.elements.is_empty() {
            return Err("a pipeline of the job has no program".to_owned());
        }
        let last = stage.elements.len() - 1;
        for (index, element) in stage.elements.iter().enumerate() {
            let path = String::from_utf8_lossy(&element.path.0);
            if element.path.0.is_empty() || element.args.is_empty() {
                return Err("a program of the job has no name".to_owned());
            }
            let redirects = [
                match &element.input {
                    Input::File(name) => Some((name, index == 0, ":=")),
                    Input::Default => None,
                },
                match &element.output {
                    Output::File { name, .. } => Some((name, index == last, "=:")),
                    Output::Default => None,
                },
            ];
            for (name, is_allowed, sign) in redirects.into_iter().flatten() {
                let shown = String::from_utf8_lossy(&name.0.0);
                if let Some(error) = name.invalid_reason() {
                    return Err(format!("{path} {sign} {shown}: {error}"));
                }
                if !is_allowed {
                    return Err(format!("{path} {sign} {shown}: the other end is a pipe"));
                }
            }
        }
    }
    Ok(())
}

fn check_strings(spec: &JobSpec) -> Result<(), String> {
    // Includes the separators of each word.
    let option = |(key, value): &(String, Option<String>)| {
        key.len() + value.as_ref().map_or(0, String::len) + 8
    };
    let options: usize = spec.options.iter().map(option).sum();
    if options > MAX_OPTION_LEN {
        return Err(format!(
            "{options} bytes of options (command line and SCORE_OPTIONS): at most \
             {MAX_OPTION_LEN} are possible"
        ));
    }
    let has_nul = |bytes: &[u8]| bytes.contains(&0);
    if has_nul(&spec.directory.0) || spec.directory.0.first() != Some(&b'/') {
        return Err("the working directory is not an absolute path, or holds a NUL byte".to_owned());
    }
    if spec.environment.iter().chain(&spec.rank_environment).any(|variable| has_nul(&variable.0)) {
        return Err("an environment variable holds a NUL byte".to_owned());
    }
    for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
        if has_nul(&element.path.0) || element.args.iter().any(|argument| has_nul(&argument.0)) {
            let path = String::from_utf8_lossy(&element.path.0);
            return Err(format!("{path}: its name or an argument holds a NUL byte"));
        }
    }
    Ok(())
}

/// Whether a host can run its share, which is `nodes` nodes of every parallel process.
///
/// # Errors
/// One line with the required and the available amount.
pub fn check_limits(spec: &JobSpec, nodes: u32, host_limits: &HostLimits) -> Result<(), String> {
    let elements_of = |stage: &StageSpec| stage.elements.len() as u64;
    let mpi_elements_of = |stage: &StageSpec| {
        stage
            .elements
            .iter()
            .filter(|element| element.kind == ProgramKind::Mpi(MpiStart::Pmi))
            .count() as u64
    };
    let processes = spec.stages.iter().map(elements_of).max().unwrap_or(0) * u64::from(nodes);
    let pmi_sockets = spec.stages.iter().map(mpi_elements_of).max().unwrap_or(0) * u64::from(nodes);
    if processes > host_limits.processes {
        return Err(format!(
            "{processes} processes are needed at once, and this machine allows {} (RLIMIT_NPROC, \
             pid_max)",
            host_limits.processes
        ));
    }
    let descriptors = processes * DESCRIPTORS_PER_PROCESS + pmi_sockets + BASE_DESCRIPTORS;
    if descriptors > host_limits.descriptors {
        return Err(format!(
            "{descriptors} descriptors are needed for {processes} processes, and this machine \
             allows {} (hard RLIMIT_NOFILE)",
            host_limits.descriptors
        ));
    }
    let memory = processes * BYTES_PER_PROCESS;
    if memory > host_limits.memory {
        return Err(format!(
            "{processes} processes need {} MiB of memory at the very least, and {} MiB are \
             available",
            memory >> 20,
            host_limits.memory >> 20
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{ElementSpec, FileDigest, FileName, HostSpec, JobTerms, OsBytes};

    const LARGE_HOST: HostLimits =
        HostLimits { processes: 1000, descriptors: 20_000, memory: 1 << 40 };

    fn job(nodes: u32, elements: usize) -> JobSpec {
        let word = || OsBytes(b"/bin/prog".to_vec());
        let element = || ElementSpec::new(word(), vec![word()], ProgramKind::Plain);
        JobSpec {
            hosts: vec![HostSpec::local(nodes)],
            stages: vec![StageSpec { elements: (0..elements).map(|_| element()).collect() }],
            directory: OsBytes(b"/home".to_vec()),
            ..JobSpec::default()
        }
    }

    fn error_of(spec: &JobSpec) -> String {
        check(spec).unwrap_err()
    }

    fn check_limits_of(spec: &JobSpec, host_limits: &HostLimits) -> Result<(), String> {
        check_limits(spec, spec.nodes(), host_limits)
    }

    #[test]
    fn each_limit_names_the_needed_and_the_available_amount() {
        assert_eq!(check_limits_of(&job(500, 2), &LARGE_HOST), Ok(()));
        let text = check_limits_of(&job(501, 2), &LARGE_HOST).unwrap_err();
        assert!(text.contains("1002 processes") && text.contains("allows 1000"), "{text}");
        let text = check_limits_of(&job(10, 1), &HostLimits { descriptors: 103, ..LARGE_HOST })
            .unwrap_err();
        assert!(text.contains("104 descriptors") && text.contains("allows 103"), "{text}");
        let text =
            check_limits_of(&job(8, 1), &HostLimits { memory: 1 << 20, ..LARGE_HOST }).unwrap_err();
        assert!(text.contains("2 MiB") && text.contains("1 MiB are available"), "{text}");
    }

    #[test]
    fn a_process_of_mpi_needs_one_more_descriptor() {
        let mut spec = job(10, 1);
        spec.stages[0].elements[0].kind = ProgramKind::Mpi(MpiStart::Pmi);
        let limits = |descriptors| HostLimits { descriptors, ..LARGE_HOST };
        let text = check_limits_of(&spec, &limits(113)).unwrap_err();
        assert!(text.contains("114 descriptors"), "{text}");
        assert_eq!(check_limits_of(&spec, &limits(114)), Ok(()));
    }

    #[test]
    fn the_largest_numbers_that_are_possible_are_accepted() {
        let networks = |count| JobSpec { networks: vec!["net".to_owned(); count], ..job(1, 1) };
        assert_eq!(check(&networks(MAX_SETS)), Ok(()));
        assert!(error_of(&networks(MAX_SETS + 1)).contains("network sets"));
        let sent = |count: usize| {
            let mut spec = job(1, count);
            for (number, element) in spec.stages[0].elements.iter_mut().enumerate() {
                element.digest = Some(FileDigest { hash: [number as u8; 32], size: 1 });
            }
            spec
        };
        assert_eq!(check(&sent(MAX_SENT_PROGRAMS)), Ok(()));
        assert!(error_of(&sent(MAX_SENT_PROGRAMS + 1)).contains("65 programs"));
    }

    #[test]
    fn too_many_bytes_of_options_are_refused() {
        let mut spec = job(1, 1);
        spec.options = vec![("key".to_owned(), Some("x".repeat(MAX_OPTION_LEN - 11)))];
        assert_eq!(check(&spec), Ok(()));
        spec.options.push(("k".to_owned(), None));
        assert!(error_of(&spec).contains("65545 bytes of options"));
    }

    #[test]
    fn an_invalid_job_spec_is_refused() {
        let mut spec = job(1, 2);
        spec.stages[0].elements[1].input = Input::File(FileName(OsBytes(b"x".to_vec())));
        assert!(error_of(&spec).contains(":= x: the other end is a pipe"));
        let mut spec = job(1, 1);
        spec.stages[0].elements[0].args.clear();
        assert!(error_of(&spec).contains("no name"));
        let mut spec = job(1, 1);
        spec.stages[0].elements[0].args[0].0.push(0);
        assert!(error_of(&spec).contains("NUL"));
        let mut spec = job(1, 1);
        spec.stages[0].elements.clear();
        assert!(error_of(&spec).contains("no program"));
        let mut spec = job(1, 1);
        spec.directory = OsBytes(b"here".to_vec());
        assert!(error_of(&spec).contains("absolute"));
        let spec = JobSpec { hosts: Vec::new(), ..job(1, 1) };
        assert!(error_of(&spec).contains("0 nodes"));
        assert!(error_of(&job(u32::MAX, 1)).contains("4294967295 nodes"));
        let idle = HostSpec { name: "lazy".to_owned(), ..HostSpec::local(0) };
        let spec = JobSpec { hosts: vec![HostSpec::local(1), idle], ..job(1, 1) };
        assert!(error_of(&spec).contains("host lazy would have no node"));
        let files = |size| Some(Box::new(FileDigest { hash: [1; 32], size }));
        let spec = JobSpec { tool_files: files(MAX_TREE_FILE), ..job(1, 1) };
        assert_eq!(check(&spec), Ok(()));
        let spec = JobSpec { tool_files: files(MAX_TREE_FILE + 1), ..spec };
        assert!(error_of(&spec).contains("tool-files: more than 4128 MB"));
    }

    #[test]
    fn terms_out_of_range_are_refused() {
        let terms = Box::new(JobTerms { priority: 16, ..JobTerms::default() });
        assert!(error_of(&JobSpec { terms, ..job(1, 1) }).contains("priority=16"));
    }

    #[test]
    fn the_first_program_of_a_pipeline_reads_a_file_and_the_last_one_writes_one() {
        let name = || FileName(OsBytes(b"x".to_vec()));
        let output = || Output::File { name: name(), append: false };
        let mut spec = job(1, 3);
        spec.stages[0].elements[0].input = Input::File(name());
        spec.stages[0].elements[2].output = output();
        assert_eq!(check(&spec), Ok(()));
        for element in 0..2 {
            let mut spec = job(1, 3);
            spec.stages[0].elements[element].output = output();
            assert!(error_of(&spec).contains("=: x: the other end is a pipe"));
        }
        let mut spec = job(1, 1);
        spec.stages[0].elements[0].output = output();
        assert_eq!(check(&spec), Ok(()));
        spec.stages[0].elements[0].output =
            Output::File { name: FileName(OsBytes(Vec::new())), append: false };
        assert!(error_of(&spec).starts_with("/bin/prog =: : "), "{}", error_of(&spec));
    }

    #[test]
    fn the_largest_job_is_accepted_and_a_larger_one_is_not() {
        let mut spec = job(MAX_NODES, MAX_ELEMENTS);
        assert_eq!(check(&spec), Ok(()));
        assert!(error_of(&job(MAX_NODES + 1, 1)).contains("nodes are requested"));
        spec.stages.push(job(1, 1).stages.remove(0));
        let text = "the job has 1025 programs in its pipelines: at most 1024 are possible";
        assert_eq!(error_of(&spec), text);
        let host = |number| HostSpec { name: format!("h{number}"), ..HostSpec::local(1) };
        let two = |names: [u32; 2]| JobSpec { hosts: names.map(host).to_vec(), ..job(1, 1) };
        assert_eq!(check(&two([1, 2])), Ok(()));
        assert_eq!(error_of(&two([1, 1])), "host \"h1\" is named twice among 2 hosts");
    }

    #[test]
    fn no_string_of_a_job_holds_a_nul_byte() {
        let changes: [fn(&mut JobSpec); 4] = [
            |spec| spec.stages[0].elements[0].path.0.push(0),
            |spec| spec.stages[0].elements[1].args.push(OsBytes(vec![0])),
            |spec| spec.environment.push(OsBytes(b"A=\0".to_vec())),
            |spec| spec.directory.0.push(0),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut spec = job(1, 2);
            spec.environment = vec![OsBytes(b"A=b".to_vec())];
            assert_eq!(check(&spec), Ok(()));
            change(&mut spec);
            assert!(check(&spec).is_err(), "{number}");
        }
    }

    #[test]
    fn a_host_accepts_a_job_that_uses_all_of_its_resources() {
        let exact = HostLimits { processes: 10, descriptors: 104, memory: 10 * 256 * 1024 };
        assert_eq!(check_limits_of(&job(10, 1), &exact), Ok(()));
        for limits in [
            HostLimits { processes: 9, ..exact },
            HostLimits { descriptors: 103, ..exact },
            HostLimits { memory: exact.memory - 1, ..exact },
        ] {
            assert!(check_limits_of(&job(10, 1), &limits).is_err(), "{limits:?}");
        }
        // Stages run one after the other, so the largest stage determines the result.
        let mut spec = job(5, 1);
        spec.stages.push(job(1, 2).stages.remove(0));
        assert_eq!(check_limits_of(&spec, &exact), Ok(()));
    }
}
