//! By which system daemons are started on other hosts.

use std::ffi::OsString;
use std::fmt;

/// Looks a variable up in the environment, or in what a test says it is.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// By which system daemons are started on other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In network namespaces of this machine, or on its loopback.
    Virtual,
    /// By ssh, or what SCORE_RSH names.
    Shell,
    /// By srun, inside an allocation of Slurm.
    Slurm,
    /// By pbsdsh, inside a job of OpenPBS, PBS Professional or TORQUE.
    Pbs,
    /// By blaunch, inside a job of LSF.
    Lsf,
    /// By qrsh -inherit, inside a parallel environment of Grid Engine.
    GridEngine,
}

/// Words of the `start` option.
const WORDS: &[(&str, Way)] = &[
    ("ssh", Way::Shell),
    ("slurm", Way::Slurm),
    ("pbs", Way::Pbs),
    ("lsf", Way::Lsf),
    ("sge", Way::GridEngine),
];

/// An allocation shows by these variables, all of them.
const SIGNS: &[(Way, &[&str])] = &[
    (Way::Slurm, &["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]),
    (Way::Pbs, &["PBS_JOBID", "PBS_NODEFILE"]),
    (Way::Lsf, &["LSB_JOBID"]),
    (Way::GridEngine, &["JOB_ID", "PE_HOSTFILE"]),
];

impl Way {
    /// The way for hosts that are no virtual ones: what the user asked for by `start=`, else the
    /// allocation that this process is in, else a remote shell.
    ///
    /// # Errors
    /// One line that names a word that is no way.
    pub fn choose(wanted: Option<&str>, environment: Environment<'_>) -> Result<Way, String> {
        let Some(word) = wanted else {
            return Ok(Self::allocation(environment).unwrap_or(Way::Shell));
        };
        let known = WORDS.iter().find(|(name, _)| *name == word).map(|(_, way)| *way);
        known.ok_or_else(|| {
            let words: Vec<&str> = WORDS.iter().map(|(name, _)| *name).collect();
            format!("start={word}: daemons are started by {}", words.join(", "))
        })
    }

    /// The system whose allocation this process is in.
    pub fn allocation(environment: Environment<'_>) -> Option<Way> {
        let there = |names: &[&str]| {
            names.iter().all(|name| environment(name).is_some_and(|value| !value.is_empty()))
        };
        SIGNS.iter().find(|(_, names)| there(names)).map(|(way, _)| *way)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Virtual => "fork",
            Way::Shell => "the remote shell",
            Way::Slurm => "srun",
            Way::Pbs => "pbsdsh",
            Way::Lsf => "blaunch",
            Way::GridEngine => "qrsh",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |wanted| {
            let found = pairs.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| OsString::from(value))
        }
    }

    #[test]
    fn an_allocation_is_known_by_its_variables_and_an_option_overrides_it() {
        let none = environment(&[("SLURM_JOB_ID", "")]);
        assert_eq!(Way::choose(None, &none), Ok(Way::Shell));
        let slurm = environment(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")]);
        assert_eq!(Way::choose(None, &slurm), Ok(Way::Slurm));
        assert_eq!(Way::choose(Some("ssh"), &slurm), Ok(Way::Shell));
        let pbs = environment(&[("PBS_JOBID", "1.x"), ("PBS_NODEFILE", "/var/spool/1")]);
        assert_eq!(Way::choose(None, &pbs), Ok(Way::Pbs));
        let lsf = environment(&[("LSB_JOBID", "9"), ("LSB_HOSTS", "a a b b")]);
        assert_eq!(Way::choose(None, &lsf), Ok(Way::Lsf));
        let engine = environment(&[("JOB_ID", "9"), ("PE_HOSTFILE", "/x")]);
        assert_eq!(Way::choose(None, &engine), Ok(Way::GridEngine));
    }

    #[test]
    fn an_unknown_way_is_named_with_those_there_are() {
        let fault = Way::choose(Some("telnet"), &|_| None).unwrap_err();
        assert!(fault.contains("start=telnet") && fault.contains("ssh, slurm"), "{fault}");
    }
}
