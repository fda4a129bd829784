//! The job that scdb looks at: its number in the cluster or, in single-user mode, its scrun.

use std::fs;
use std::path::PathBuf;

use score_proto::ids::JobId;
use score_proto::message::{ConsoleRequest, ToolCall};

use crate::scored_client::QueryStream;

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A job of the cluster.
    Job(JobId),
    /// The job of the scrun with this process id, on this host.
    Scrun(u32),
}

impl Target {
    /// Parses a job's number, or PROCESS@HOST. `own_host`: the name of this host.
    ///
    /// # Errors
    /// One line with the word.
    pub fn parse(word: &str, own_host: &str) -> Result<Self, String> {
        if let Some((pid, host)) = word.split_once('@') {
            let pid = pid.parse().map_err(|_| format!("{word}: {pid} is no process id"))?;
            return match host == own_host {
                true => Ok(Self::Scrun(pid)),
                false => Err(format!("{word}: this host is {own_host}; run scdb on {host}")),
            };
        }
        match word.parse() {
            Ok(number) if number > 0 => Ok(Self::Job(JobId(number))),
            _ => Err(format!("{word}: neither a job's number nor PROCESS@HOST")),
        }
    }

    /// Sends a command to the job. `call.job` is set here.
    ///
    /// # Errors
    /// One line.
    pub fn send(self, call: ToolCall, socket: Option<PathBuf>) -> Result<QueryStream, String> {
        match self {
            Self::Job(job) => {
                QueryStream::open(ConsoleRequest::Tool(ToolCall { job, ..call }), socket)
            }
            Self::Scrun(pid) => {
                // The only job.
                let call = ToolCall { job: JobId(0), ..call };
                QueryStream::open_tool(scored_of(pid)?, &call)
            }
        }
    }
}

/// The scored that a scrun or scout has started: in single-user mode it is a child of it.
fn scored_of(pid: u32) -> Result<u32, String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&path).map_err(|_| {
        format!("process {pid}: there is none on this host; ps -C scrun lists them")
    })?;
    let is_scored = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "scored")
    };
    let mut children = children.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    children.find(is_scored).ok_or_else(|| {
        format!(
            "process {pid} is no scrun with a scored of its own; for a job of a cluster give its \
             number, which scps shows"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_number_or_a_process_of_this_host() {
        let parse = |word| Target::parse(word, "one");
        assert_eq!(parse("12"), Ok(Target::Job(JobId(12))));
        assert_eq!(parse("34@one"), Ok(Target::Scrun(34)));
        for (word, problem) in [
            ("0", "neither"),
            ("x", "neither"),
            ("x@one", "no process id"),
            ("34@two", "run scdb on two"),
        ] {
            let error = parse(word).unwrap_err();
            assert!(error.starts_with(word) && error.contains(problem), "{error}");
        }
        let error = scored_of(std::process::id()).unwrap_err();
        assert!(error.contains("no scrun"), "{error}");
    }
}
