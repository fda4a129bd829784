//! The allocation of a batch system: the hosts of the surrounding job, read from the environment.
//!
//! | system | job | hosts and slots |
//! |---|---|---|
//! | Slurm | `SLURM_JOB_ID` | `SLURM_JOB_NODELIST`, `SLURM_JOB_CPUS_PER_NODE` |
//! | PBS | `PBS_JOBID` | the file `PBS_NODEFILE`: one line per slot |
//! | LSF | `LSB_JOBID` | `LSB_MCPU_HOSTS`: host, slots, ...; else `LSB_HOSTS`: one name per slot |
//! | Grid Engine | `JOB_ID` | the file `PE_HOSTFILE`: host and slots in each line |

mod formats;

use crate::database::Host;
use crate::database_file::ReadFile;
use crate::error::printable;
use std::ffi::OsString;
use std::path::Path;

/// A batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSystem {
    /// Slurm, which starts remote processes by `srun`.
    Slurm,
    /// PBS and Torque, which start remote processes by `pbsdsh` or `pbs_tmrsh`.
    Pbs,
    /// LSF, which starts remote processes by `blaunch`.
    Lsf,
    /// Grid Engine, which starts remote processes by `qrsh -inherit`.
    GridEngine,
}

impl std::fmt::Display for BatchSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Slurm => "Slurm",
            Self::Pbs => "PBS",
            Self::Lsf => "LSF",
            Self::GridEngine => "Grid Engine",
        })
    }
}

/// The hosts that a batch system has allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The batch system.
    pub system: BatchSystem,
    /// The batch system's name of the job.
    pub job: String,
    /// The name and the slots of each host, in the batch system's order. No host appears twice.
    pub hosts: Vec<(String, u32)>,
}

impl Allocation {
    /// The allocated hosts, for placement. A slot counts as a processor.
    pub fn hosts(&self) -> Vec<Host> {
        let host = |(name, slots): &(String, u32)| Host {
            name: name.clone(),
            processors: Some(*slots),
            ..Host::default()
        };
        self.hosts.iter().map(host).collect()
    }
}

/// The allocation of a process with this environment, if there is one.
///
/// # Errors
/// If a variable or file of the batch system is malformed; the error names it.
pub fn allocation(
    variable: &dyn Fn(&str) -> Option<OsString>,
    read: ReadFile<'_>,
) -> Result<Option<Allocation>, String> {
    let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
    let text = |name: &str| text(name).filter(|value| !value.is_empty());
    let file = |name: &'static str| -> Result<Option<(&'static str, String)>, String> {
        let Some(path) = text(name) else { return Ok(None) };
        let file_error = |what: String| format!("{name}={}: {what}", printable(&path));
        let bytes = read(Path::new(&path)).map_err(|error| file_error(error.to_string()))?;
        let text =
            String::from_utf8(bytes).map_err(|_| file_error("not valid UTF-8 text".into()))?;
        Ok(Some((name, text)))
    };
    let list = |name: &'static str| text(name).map(|value| (name, value));
    let found = |system, job, (name, hosts): (&str, Result<formats::Slots, String>)| {
        let hosts = hosts.map_err(|what| format!("{name}: {what} (set by {system})"))?;
        Ok(Some(Allocation { system, job, hosts }))
    };
    if let Some(job) = text("SLURM_JOB_ID").or_else(|| text("SLURM_JOBID"))
        && let Some((name, nodes)) = list("SLURM_JOB_NODELIST").or_else(|| list("SLURM_NODELIST"))
    {
        let slots = list("SLURM_JOB_CPUS_PER_NODE").or_else(|| list("SLURM_TASKS_PER_NODE"));
        let slots = slots.as_ref().map(|(name, value)| (*name, value.as_str()));
        return found(BatchSystem::Slurm, job, (name, formats::slurm(&nodes, slots)));
    }
    if let Some(job) = text("PBS_JOBID")
        && let Some((name, nodes)) = file("PBS_NODEFILE")?
    {
        return found(BatchSystem::Pbs, job, (name, formats::repeated(nodes.lines())));
    }
    if let Some(job) = text("LSB_JOBID") {
        if let Some((name, hosts)) = list("LSB_MCPU_HOSTS") {
            return found(BatchSystem::Lsf, job, (name, formats::pairs(&hosts)));
        }
        if let Some((name, hosts)) = list("LSB_HOSTS") {
            return found(
                BatchSystem::Lsf,
                job,
                (name, formats::repeated(hosts.split_whitespace())),
            );
        }
    }
    if let Some(job) = text("JOB_ID")
        && let Some((name, hosts)) = file("PE_HOSTFILE")?
    {
        return found(BatchSystem::GridEngine, job, (name, formats::host_file(&hosts)));
    }
    Ok(None)
}

/// Fuzzing entry. The text is the value of every variable that a batch system sets.
pub(crate) fn fuzz(text: &str) {
    for system in ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"] {
        let variable = |name: &str| {
            let known = name == system || !name.ends_with("ID");
            known.then(|| OsString::from(text))
        };
        let _ = allocation(&variable, &|_| Ok(text.as_bytes().to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_HOSTS;

    fn allocation_in(variables: &[(&str, &str)], file: &str) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let found = allocation(&variable, &|path| match path.to_str() {
            Some("/file") => Ok(file.as_bytes().to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        })?;
        Ok(found.map(|found| {
            let hosts = found.hosts.iter().map(|(name, slots)| format!(" {name}:{slots}"));
            format!("{} {}{}", found.system, found.job, hosts.collect::<String>())
        }))
    }

    #[test]
    fn no_allocation_is_found_outside_of_a_batch_job() {
        assert_eq!(allocation_in(&[], ""), Ok(None));
        assert_eq!(allocation_in(&[("SLURM_JOB_NODELIST", "n1")], ""), Ok(None));
        assert_eq!(
            allocation_in(&[("JOB_ID", "7")], ""),
            Ok(None),
            "a job of one slot has no host file"
        );
    }

    // Promise (hosts): Hosts and slots of Slurm, PBS, LSF and Grid Engine are read from the
    // environment.
    #[test]
    fn compressed_names_and_numbers_of_slurm_are_expanded() {
        let with = |nodes, cpus| {
            let job = ("SLURM_JOB_ID", "42");
            let cpus = ("SLURM_JOB_CPUS_PER_NODE", cpus);
            allocation_in(&[job, ("SLURM_JOB_NODELIST", nodes), cpus], "").map(Option::unwrap)
        };
        assert_eq!(with("n1", "4").unwrap(), "Slurm 42 n1:4");
        assert_eq!(with("n[1-2,07],x", "8(x3),2").unwrap(), "Slurm 42 n1:8 n2:8 n07:8 x:2");
        assert_eq!(with("r[1-2]n[1-2]", "2(x4)").unwrap(), "Slurm 42 r1n1:2 r1n2:2 r2n1:2 r2n2:2");
        for (nodes, cpus, part) in [
            ("n[1-2", "1(x2)", "SLURM_JOB_NODELIST: n[1-2: '[' is not closed"),
            ("n[1-2]", "1", "2 hosts, but SLURM_JOB_CPUS_PER_NODE=1 is for 1"),
            ("n1", "0", "'0' is not a number of slots"),
            ("n1", "1(x99999999999)", "'1(x99999999999)' is not a number of slots"),
            ("n1", "+4", "'+4' is not a number of slots"),
            ("(null)", "1", "'(null)' is not a valid name of a host"),
            ("n=1", "1", "'n=1' is not a valid name of a host"),
        ] {
            let error = with(nodes, cpus).unwrap_err();
            assert!(error.contains(part) && error.contains("Slurm"), "{error}");
        }
        let job = [("SLURM_JOB_ID", "1"), ("SLURM_JOB_NODELIST", "a,b")];
        assert_eq!(allocation_in(&job, "").unwrap().unwrap(), "Slurm 1 a:1 b:1");
    }

    // Promise of `compressed_names_and_numbers_of_slurm_are_expanded`.
    #[test]
    fn a_pbs_allocation_lists_a_host_once_for_each_slot() {
        let job = [("PBS_JOBID", "7.server"), ("PBS_NODEFILE", "/file")];
        assert_eq!(allocation_in(&job, "a\na\n\nb\na\n").unwrap().unwrap(), "PBS 7.server a:3 b:1");
        assert!(allocation_in(&job, "").unwrap_err().contains("PBS_NODEFILE: it contains no host"));
        let missing = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/gone")];
        assert!(allocation_in(&missing, "").unwrap_err().starts_with("PBS_NODEFILE=/gone: "));
    }

    // Promise of `compressed_names_and_numbers_of_slurm_are_expanded`.
    #[test]
    fn the_allocation_of_lsf_is_a_list_of_pairs_or_of_names() {
        let job = ("LSB_JOBID", "9");
        let pairs = ("LSB_MCPU_HOSTS", "a 2 b 4 ");
        assert_eq!(allocation_in(&[job, pairs], "").unwrap().unwrap(), "LSF 9 a:2 b:4");
        assert_eq!(
            allocation_in(&[job, ("LSB_HOSTS", "a a b")], "").unwrap().unwrap(),
            "LSF 9 a:2 b:1"
        );
        let error = allocation_in(&[job, ("LSB_MCPU_HOSTS", "a 2 b")], "").unwrap_err();
        assert!(
            error.contains("LSB_MCPU_HOSTS: the number of slots after b is missing"),
            "{error}"
        );
    }

    // Promise of `compressed_names_and_numbers_of_slurm_are_expanded`.
    #[test]
    fn the_allocation_of_grid_engine_is_read_from_a_file() {
        let job = [("JOB_ID", "3"), ("PE_HOSTFILE", "/file")];
        let file = "a.x 4 all.q@a.x UNDEFINED\nb.x 2 all.q@b.x 0,1:0,2\na.x 1 other.q@a.x <NULL>\n";
        assert_eq!(allocation_in(&job, file).unwrap().unwrap(), "Grid Engine 3 a.x:5 b.x:2");
        let error = allocation_in(&job, "a.x\n").unwrap_err();
        assert!(error.contains("PE_HOSTFILE: the number of slots after a.x is missing"), "{error}");
    }

    #[test]
    fn every_host_of_an_allocation_has_its_slots_as_processors() {
        let hosts = vec![("a".to_owned(), 2), ("b".to_owned(), 5)];
        let given = Allocation { system: BatchSystem::Lsf, job: "9".into(), hosts };
        let found: Vec<(String, Option<u32>)> =
            given.hosts().into_iter().map(|host| (host.name, host.processors)).collect();
        assert_eq!(found, [("a".to_owned(), Some(2)), ("b".to_owned(), Some(5))]);
    }

    #[test]
    fn an_allocation_has_at_most_the_largest_number_of_hosts() {
        let with = |nodes: &str, cpus: &str| {
            let job = ("SLURM_JOB_ID", "1");
            let cpus = ("SLURM_JOB_CPUS_PER_NODE", cpus);
            allocation_in(&[job, ("SLURM_JOB_NODELIST", nodes), cpus], "")
        };
        let largest = with("n[0-65535]", "2(x65536)").unwrap().unwrap();
        assert_eq!(largest.matches(":2").count(), MAX_HOSTS);
        for (nodes, cpus) in [("n[0-65535],x", ""), ("n1", "2(x65536),2")] {
            let error = with(nodes, cpus).unwrap_err();
            assert_eq!(error, "SLURM_JOB_NODELIST: more than 65536 hosts (set by Slurm)");
        }
        let names: String = (0..=MAX_HOSTS).map(|number| format!("n{number}\n")).collect();
        let job = [("PBS_JOBID", "7"), ("PBS_NODEFILE", "/file")];
        let error = allocation_in(&job, &names).unwrap_err();
        assert_eq!(error, "PBS_NODEFILE: more than 65536 hosts (set by PBS)");
    }
}
