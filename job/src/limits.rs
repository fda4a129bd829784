//! The message and the exit code for a job that exceeds one of its limits. Each limit applies to
//! the whole job on each host.

use score_proto::message::JobLimits;

use crate::signal;

/// Bytes of a MB, as the manual counts.
const MB: u64 = 1 << 20;

/// One of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// `cpulimit`
    Cpu,
    /// `memorylimit`
    Memory,
    /// `disklimit`
    Disk,
}

impl LimitKind {
    /// The message for the user when a limit is exceeded, and the exit code of the job. The code is
    /// 128 plus the signal that the kernel uses for this limit.
    pub fn exceeded_message(self, limits: &JobLimits, host: &str) -> (u8, String) {
        let mb = |bytes: Option<u64>| bytes.unwrap_or(0) / MB;
        let (code, limit) = match self {
            LimitKind::Cpu => {
                let seconds = limits.cpu.unwrap_or_default().as_secs();
                (128 + signal::SIGXCPU, format!("cpulimit of {seconds} s"))
            }
            LimitKind::Memory => {
                (128 + signal::SIGKILL, format!("memorylimit of {} MB", mb(limits.memory)))
            }
            LimitKind::Disk => {
                (128 + signal::SIGXFSZ, format!("disklimit of {} MB", mb(limits.disk)))
            }
        };
        (code as u8, format!("{limit} exceeded on host {host}: every process of the job is killed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_exceeded_limit_is_named_with_its_host() {
        let limits = JobLimits { memory: Some(5 << 20), ..JobLimits::default() };
        let (code, text) = LimitKind::Memory.exceeded_message(&limits, "n3");
        assert_eq!(code, 137);
        assert!(text.contains("memorylimit of 5 MB exceeded on host n3"), "{text}");
        let limits = JobLimits { cpu: Some(Duration::from_secs(7)), disk: Some(6 << 20), ..limits };
        let (code, text) = LimitKind::Cpu.exceeded_message(&limits, "n3");
        assert!(code == 152 && text.starts_with("cpulimit of 7 s exceeded on host n3"), "{text}");
        let (code, text) = LimitKind::Disk.exceeded_message(&limits, "n3");
        assert!(code == 153 && text.starts_with("disklimit of 6 MB exceeded"), "{text}");
    }
}
