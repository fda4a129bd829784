//! Whether a job can be run at all: checked before anything is started.

use std::collections::HashSet;

use score_proto::MAX_NODES;
use score_proto::message::{Input, JobSpec, Output};
use score_proto::network::MAX_SETS;

use super::limits::Limits;

/// Descriptors that the shepherd needs per process: two pipes, the control socket, PM's.
const DESCRIPTORS_PER_PROCESS: u64 = 4;
/// Descriptors that it needs besides.
const DESCRIPTORS_BESIDES: u64 = 64;
/// What the smallest process costs in memory, page tables and kernel stack included.
const BYTES_PER_PROCESS: u64 = 256 * 1024;

/// The priority of a job that does not say (manual, scrun(1)).
const PRIORITY: u8 = 8;

/// Options travel to every process in one datagram.
const OPTION_BYTES: usize = 64 * 1024;

/// What this machine allows.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Processes that may still be started; `u64::MAX` when unlimited.
    pub processes: u64,
    /// Descriptors of one process.
    pub descriptors: u64,
    /// Memory available, bytes.
    pub memory: u64,
}

/// The reason why the job is refused, if it is; nothing has been started then.
///
/// # Errors
/// One line that names what is at fault.
pub fn check(spec: &JobSpec) -> Result<(), String> {
    if spec.nodes() == 0 || spec.nodes() > MAX_NODES {
        return Err(format!(
            "{} nodes were asked for: there can be 1 to {MAX_NODES} (PM_MAX_NODE)",
            spec.nodes()
        ));
    }
    if let Some(idle) = spec.hosts.iter().find(|host| host.procs == 0) {
        return Err(format!("host {} would have no node of the job", idle.name));
    }
    let mut names = HashSet::new();
    if let Some(twice) = spec.hosts.iter().find(|host| !names.insert(&host.name)) {
        let count = spec.hosts.len();
        return Err(format!("of the {count} hosts, {:?} is named twice", twice.name));
    }
    if spec.networks.len() > MAX_SETS {
        return Err(format!("{} network sets: {MAX_SETS} are the most", spec.networks.len()));
    }
    Limits::of(&spec.options, true)?;
    check_shape(spec)?;
    check_strings(spec)
}

/// 0 to 15; a smaller number is a larger share (manual, scrun(1), `priority`).
pub fn priority(spec: &JobSpec) -> u8 {
    let given = spec.options.iter().find(|(key, _)| key == "priority");
    given.and_then(|(_, value)| value.as_deref()?.parse().ok()).unwrap_or(PRIORITY)
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
        for (at, element) in stage.elements.iter().enumerate() {
            let path = String::from_utf8_lossy(&element.path.0);
            if element.path.0.is_empty() || element.args.is_empty() {
                return Err("a program of the job has no name".to_owned());
            }
            let redirects = [
                match &element.input {
                    Input::File(name) => Some((name, at == 0, ":=")),
                    Input::Default => None,
                },
                match &element.output {
                    Output::File { name, .. } => Some((name, at == last, "=:")),
                    Output::Default => None,
                },
            ];
            for (name, in_place, sign) in redirects.into_iter().flatten() {
                let shown = String::from_utf8_lossy(&name.0.0);
                if let Some(fault) = name.fault() {
                    return Err(format!("{path} {sign} {shown}: {fault}"));
                }
                if !in_place {
                    return Err(format!("{path} {sign} {shown}: the other end is a pipe"));
                }
            }
        }
    }
    Ok(())
}

fn check_strings(spec: &JobSpec) -> Result<(), String> {
    // With what goes around each word.
    let option = |(key, value): &(String, Option<String>)| {
        key.len() + value.as_ref().map_or(0, String::len) + 8
    };
    let options: usize = spec.options.iter().map(option).sum();
    if options > OPTION_BYTES {
        return Err(format!(
            "{options} bytes of options (command line and SCORE_OPTIONS): there can be \
             {OPTION_BYTES}"
        ));
    }
    let nul = |bytes: &[u8]| bytes.contains(&0);
    if nul(&spec.directory.0) || spec.directory.0.first() != Some(&b'/') {
        return Err("the working directory is not an absolute path".to_owned());
    }
    if spec.environment.iter().any(|variable| nul(&variable.0)) {
        return Err("an environment variable holds a NUL byte".to_owned());
    }
    for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
        if nul(&element.path.0) || element.args.iter().any(|argument| nul(&argument.0)) {
            let path = String::from_utf8_lossy(&element.path.0);
            return Err(format!("{path}: its name or an argument holds a NUL byte"));
        }
    }
    Ok(())
}

/// Whether a host can do its part, which is `nodes` nodes of every parallel process.
///
/// # Errors
/// One line that names what is needed and what there is.
pub fn check_limits(spec: &JobSpec, nodes: u32, machine: &Machine) -> Result<(), String> {
    let widest = spec.stages.iter().map(|stage| stage.elements.len() as u64).max().unwrap_or(0);
    let processes = widest * u64::from(nodes);
    if processes > machine.processes {
        return Err(format!(
            "{processes} processes are needed at once, and this machine allows {} (RLIMIT_NPROC, \
             pid_max)",
            machine.processes
        ));
    }
    let descriptors = processes * DESCRIPTORS_PER_PROCESS + DESCRIPTORS_BESIDES;
    if descriptors > machine.descriptors {
        return Err(format!(
            "{descriptors} descriptors are needed for {processes} processes, and this machine \
             allows {} (hard RLIMIT_NOFILE)",
            machine.descriptors
        ));
    }
    let memory = processes * BYTES_PER_PROCESS;
    if memory > machine.memory {
        return Err(format!(
            "{processes} processes need {} MiB of memory at the very least, and {} MiB are \
             available",
            memory >> 20,
            machine.memory >> 20
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{ElementSpec, FileName, HostSpec, Kind, OsBytes, StageSpec};

    const ROOMY: Machine = Machine { processes: 1000, descriptors: 20_000, memory: 1 << 40 };

    fn job(nodes: u32, elements: usize) -> JobSpec {
        let word = || OsBytes(b"/bin/prog".to_vec());
        let element = || ElementSpec {
            path: word(),
            args: vec![word()],
            input: Input::Default,
            output: Output::Default,
            kind: Kind::Plain,
            content: None,
        };
        JobSpec {
            hosts: vec![HostSpec::this(nodes)],
            stages: vec![StageSpec { elements: (0..elements).map(|_| element()).collect() }],
            environment: Vec::new(),
            directory: OsBytes(b"/home".to_vec()),
            umask: 0,
            options: Vec::new(),
            statistics: false,
            stdin: false,
            separate: false,
            networks: Vec::new(),
            sets: 0,
        }
    }

    fn fault(spec: &JobSpec) -> String {
        check(spec).unwrap_err()
    }

    fn limits(spec: &JobSpec, machine: &Machine) -> Result<(), String> {
        check_limits(spec, spec.nodes(), machine)
    }

    #[test]
    fn each_limit_names_what_is_needed_and_what_there_is() {
        assert_eq!(limits(&job(500, 2), &ROOMY), Ok(()));
        let text = limits(&job(501, 2), &ROOMY).unwrap_err();
        assert!(text.contains("1002 processes") && text.contains("allows 1000"), "{text}");
        let text = limits(&job(10, 1), &Machine { descriptors: 103, ..ROOMY }).unwrap_err();
        assert!(text.contains("104 descriptors") && text.contains("allows 103"), "{text}");
        let text = limits(&job(8, 1), &Machine { memory: 1 << 20, ..ROOMY }).unwrap_err();
        assert!(text.contains("2 MiB") && text.contains("1 MiB are available"), "{text}");
    }

    #[test]
    fn more_options_than_a_process_can_be_told_are_refused() {
        let mut spec = job(1, 1);
        spec.options = vec![("key".to_owned(), Some("x".repeat(OPTION_BYTES - 11)))];
        assert_eq!(check(&spec), Ok(()));
        spec.options.push(("k".to_owned(), None));
        assert!(fault(&spec).contains("65545 bytes of options"));
    }

    #[test]
    fn what_scrun_would_never_send_is_refused_all_the_same() {
        let mut spec = job(1, 2);
        spec.stages[0].elements[1].input = Input::File(FileName(OsBytes(b"x".to_vec())));
        assert!(fault(&spec).contains(":= x: the other end is a pipe"));
        let mut spec = job(1, 1);
        spec.stages[0].elements[0].args.clear();
        assert!(fault(&spec).contains("no name"));
        let mut spec = job(1, 1);
        spec.stages[0].elements[0].args[0].0.push(0);
        assert!(fault(&spec).contains("NUL"));
        let mut spec = job(1, 1);
        spec.stages[0].elements.clear();
        assert!(fault(&spec).contains("no program"));
        let mut spec = job(1, 1);
        spec.directory = OsBytes(b"here".to_vec());
        assert!(fault(&spec).contains("absolute"));
        let spec = JobSpec { hosts: Vec::new(), ..job(1, 1) };
        assert!(fault(&spec).contains("0 nodes"));
        assert!(fault(&job(u32::MAX, 1)).contains("4294967295 nodes"));
        let idle = HostSpec { name: "lazy".to_owned(), ..HostSpec::this(0) };
        let spec = JobSpec { hosts: vec![HostSpec::this(1), idle], ..job(1, 1) };
        assert!(fault(&spec).contains("host lazy would have no node"));
    }
}
