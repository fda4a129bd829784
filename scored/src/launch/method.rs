//! The launch methods: the systems that start daemons on other hosts.

use std::ffi::OsString;
use std::fmt;

/// Looks up an environment variable. Tests pass their own variables.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The system that starts daemons on other hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchMethod {
    /// By fork, into network namespaces of this machine or onto its loopback addresses.
    Virtual,
    /// By ssh, or by the program in SCORE_RSH.
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

/// The values of the `start` option.
const METHOD_NAMES: &[(&str, LaunchMethod)] = &[
    ("ssh", LaunchMethod::Shell),
    ("slurm", LaunchMethod::Slurm),
    ("pbs", LaunchMethod::Pbs),
    ("lsf", LaunchMethod::Lsf),
    ("sge", LaunchMethod::GridEngine),
];

/// The variables that identify a batch system. All of them must be set.
const BATCH_SYSTEM_ENV: &[(LaunchMethod, &[&str])] = &[
    (LaunchMethod::Slurm, &["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]),
    (LaunchMethod::Pbs, &["PBS_JOBID", "PBS_NODEFILE"]),
    (LaunchMethod::Lsf, &["LSB_JOBID"]),
    (LaunchMethod::GridEngine, &["JOB_ID", "PE_HOSTFILE"]),
];

impl LaunchMethod {
    /// Chooses the method for hosts that are not virtual: the user's `start=` option, or else the
    /// batch system whose allocation this process is in, or else a remote shell.
    ///
    /// # Errors
    /// One line that quotes an unknown method.
    pub fn choose(
        requested: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<LaunchMethod, String> {
        let Some(word) = requested else {
            return Ok(Self::allocation(environment).unwrap_or(LaunchMethod::Shell));
        };
        let known = METHOD_NAMES.iter().find(|(name, _)| *name == word).map(|(_, method)| *method);
        known.ok_or_else(|| {
            let words: Vec<&str> = METHOD_NAMES.iter().map(|(name, _)| *name).collect();
            format!("start={word}: daemons are started by {}", words.join(", "))
        })
    }

    /// The batch system whose allocation this process is in.
    pub fn allocation(environment: Environment<'_>) -> Option<LaunchMethod> {
        let all_set = |names: &[&str]| {
            names.iter().all(|name| environment(name).is_some_and(|value| !value.is_empty()))
        };
        BATCH_SYSTEM_ENV.iter().find(|(_, names)| all_set(names)).map(|(method, _)| *method)
    }
}

impl fmt::Display for LaunchMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaunchMethod::Virtual => "fork",
            LaunchMethod::Shell => "the remote shell",
            LaunchMethod::Slurm => "srun",
            LaunchMethod::Pbs => "pbsdsh",
            LaunchMethod::Lsf => "blaunch",
            LaunchMethod::GridEngine => "qrsh",
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
    fn an_allocation_is_detected_by_its_variables_and_an_option_overrides_it() {
        let none = environment(&[("SLURM_JOB_ID", "")]);
        assert_eq!(LaunchMethod::choose(None, &none), Ok(LaunchMethod::Shell));
        let slurm = environment(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")]);
        assert_eq!(LaunchMethod::choose(None, &slurm), Ok(LaunchMethod::Slurm));
        assert_eq!(LaunchMethod::choose(Some("ssh"), &slurm), Ok(LaunchMethod::Shell));
        let pbs = environment(&[("PBS_JOBID", "1.x"), ("PBS_NODEFILE", "/var/spool/1")]);
        assert_eq!(LaunchMethod::choose(None, &pbs), Ok(LaunchMethod::Pbs));
        let lsf = environment(&[("LSB_JOBID", "9"), ("LSB_HOSTS", "a a b b")]);
        assert_eq!(LaunchMethod::choose(None, &lsf), Ok(LaunchMethod::Lsf));
        let engine = environment(&[("JOB_ID", "9"), ("PE_HOSTFILE", "/x")]);
        assert_eq!(LaunchMethod::choose(None, &engine), Ok(LaunchMethod::GridEngine));
    }

    #[test]
    fn an_unknown_method_is_named_with_the_known_ones() {
        let error = LaunchMethod::choose(Some("telnet"), &|_| None).unwrap_err();
        assert!(error.contains("start=telnet") && error.contains("ssh, slurm"), "{error}");
    }
}
