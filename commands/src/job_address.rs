//! How commands name a job: by its number in the cluster, or by its scrun.

use std::{fmt, fs};

use score_proto::ids::JobId;
use score_proto::tool_start::ScrunJob;
use score_sys::host_name::system_host_name;

/// The address of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAddress {
    /// A job of the cluster, by its number.
    Cluster(JobId),
    /// The job of a scrun on this host, by its process id.
    Scrun(u32),
}

/// The form that `--id` accepts.
impl fmt::Display for JobAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(job) => write!(f, "{job}"),
            Self::Scrun(pid) => write!(f, "{pid}@{}", system_host_name()),
        }
    }
}

impl JobAddress {
    /// Parses a job number, or `PID@HOST` of a scrun on this host.
    ///
    /// # Errors
    /// One line that begins with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_on(text, &system_host_name())
    }

    fn parse_on(text: &str, own_host: &str) -> Result<Self, String> {
        let Some((pid, host)) = text.split_once('@') else {
            let number = text.parse().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| {
                format!("{text}: neither the number of a job (scps) nor PID@HOST of a scrun")
            })?;
            return Ok(Self::Cluster(JobId(number)));
        };
        if host != own_host {
            return Err(format!("{text}: this is host {own_host}; run the command on host {host}"));
        }
        Self::of_pid(pid).map_err(|_| format!("{text}: {pid} is not a process id"))
    }

    /// Parses the process id of a scrun on this host.
    ///
    /// # Errors
    /// One line that begins with the text.
    pub fn of_pid(text: &str) -> Result<Self, String> {
        let pid = text.parse().ok().filter(|pid| *pid > 0);
        pid.map(Self::Scrun).ok_or_else(|| format!("{text}: not a process id"))
    }

    /// Finds the daemon that runs the job, and the job's number in that daemon.
    ///
    /// # Errors
    /// One line: this user has no such scrun, or the scrun has no job now.
    pub fn find(self) -> Result<ScrunJob, String> {
        let scrun = match self {
            Self::Cluster(job) => return Ok(ScrunJob { daemon: None, job }),
            Self::Scrun(pid) => pid,
        };
        let no_job =
            || format!("process {scrun}: you have no scrun with a running job there (ps -C scrun)");
        let links = fs::read_dir(format!("/proc/{scrun}/fd")).map_err(|_| no_job())?;
        let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
        let mut jobs = targets.filter_map(|target| ScrunJob::from_link(target.to_str()?));
        jobs.next().ok_or_else(no_job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_sys::memfd;

    #[test]
    fn a_job_is_a_number_or_a_scrun_of_this_host() {
        let parse = |text| JobAddress::parse_on(text, "one");
        assert_eq!(parse("12"), Ok(JobAddress::Cluster(JobId(12))));
        assert_eq!(parse("34@one"), Ok(JobAddress::Scrun(34)));
        for address in [JobAddress::Scrun(34), JobAddress::Cluster(JobId(12))] {
            assert_eq!(JobAddress::parse(&address.to_string()), Ok(address));
        }
        for (text, problem) in [
            ("0", "neither"),
            ("x", "neither"),
            ("x@one", "x is not a process id"),
            ("0@one", "0 is not a process id"),
            ("34@two", "run the command on host two"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(text) && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_job_is_found_by_the_memfd_of_its_scrun_only() {
        let own = JobAddress::Scrun(std::process::id());
        let _other = memfd::create("score-job-x-3").unwrap();
        let error = own.find().unwrap_err();
        assert!(error.contains("no scrun with a running job"), "{error}");
        for job in [
            ScrunJob { daemon: Some(77), job: JobId(3) },
            ScrunJob { daemon: None, job: JobId(12) },
        ] {
            let _published = memfd::create(&job.memfd_name()).unwrap();
            assert_eq!(own.find(), Ok(job));
        }
        let error = JobAddress::Scrun(u32::MAX).find().unwrap_err();
        assert!(error.starts_with("process 4294967295"), "{error}");
    }
}
