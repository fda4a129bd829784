//! How commands name a job: by its number in the cluster, or by its scrun.

use nix::unistd::gethostname;
use score_proto::ids::JobId;

/// The job that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAddress {
    /// A job of the cluster, by its number.
    Cluster(JobId),
    /// The job of a scrun on this host, by its process id.
    Scrun(u32),
}

impl JobAddress {
    /// Reads a job's number, or `PID@HOST` of a scrun on this host.
    ///
    /// # Errors
    /// One line that begins with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let own_host = gethostname().map_err(|errno| format!("the name of this host: {errno}"))?;
        Self::parse_on(text, &own_host.to_string_lossy())
    }

    fn parse_on(text: &str, own_host: &str) -> Result<Self, String> {
        let Some((pid, host)) = text.split_once('@') else {
            let number = text.parse().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| {
                format!("{text}: neither a job's number (scps) nor PID@HOST of a scrun")
            })?;
            return Ok(Self::Cluster(JobId(number)));
        };
        if host != own_host {
            return Err(format!("{text}: this is host {own_host}; run it on host {host}"));
        }
        Self::of_pid(pid).map_err(|_| format!("{text}: {pid} is not a process id"))
    }

    /// Reads the process id of a scrun on this host.
    ///
    /// # Errors
    /// One line that begins with the text.
    pub fn of_pid(text: &str) -> Result<Self, String> {
        let pid = text.parse().ok().filter(|pid| *pid > 0);
        pid.map(Self::Scrun).ok_or_else(|| format!("{text}: not a process id"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_number_or_a_scrun_of_this_host() {
        let parse = |text| JobAddress::parse_on(text, "one");
        assert_eq!(parse("12"), Ok(JobAddress::Cluster(JobId(12))));
        assert_eq!(parse("34@one"), Ok(JobAddress::Scrun(34)));
        for (text, problem) in [
            ("0", "neither"),
            ("x", "neither"),
            ("x@one", "x is not a process id"),
            ("0@one", "0 is not a process id"),
            ("34@two", "run it on host two"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(text) && error.contains(problem), "{error}");
        }
    }
}
