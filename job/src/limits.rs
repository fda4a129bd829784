//! The limits that a user sets on a job (scrun(1), `cpulimit`, `memorylimit`, `disklimit`). Each
//! limit applies to the whole job on each host.

use std::time::Duration;

use crate::signal;

/// Bytes of a MB, as the manual counts.
const MB: u64 = 1 << 20;

/// The resources that a job may use on a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobLimits {
    /// `cpulimit`: processor time of all its processes.
    pub cpu: Option<Duration>,
    /// `memorylimit`, in bytes.
    pub memory: Option<u64>,
    /// `disklimit`: bytes in its directory.
    pub disk: Option<u64>,
}

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

impl JobLimits {
    /// Parses the options. If an option is repeated, the leftmost counts. Memory and disk are
    /// limited only in multi-user mode.
    ///
    /// # Errors
    /// One line that names the wrong option.
    pub fn from_options(
        options: &[(String, Option<String>)],
        multi_user: bool,
    ) -> Result<Self, String> {
        let amount = |name: &str| -> Result<Option<u64>, String> {
            let Some((_, value)) = options.iter().find(|(key, _)| key == name) else {
                return Ok(None);
            };
            let value = value.as_deref().unwrap_or_default();
            let number = value.parse::<u64>().ok().filter(|number| (1..=1 << 32).contains(number));
            number
                .map(Some)
                .ok_or_else(|| format!("{name}={value}: a number of at least 1 is expected"))
        };
        let cpu = amount("cpulimit")?.map(Duration::from_secs);
        let (memory, disk) = (amount("memorylimit")?, amount("disklimit")?);
        let to_bytes = |amount: Option<u64>| amount.filter(|_| multi_user).map(|mb| mb * MB);
        Ok(Self { cpu, memory: to_bytes(memory), disk: to_bytes(disk) })
    }

    /// The message for the user when a limit is exceeded, and the exit code of the job. The code is
    /// 128 plus the signal that the kernel uses for this limit.
    pub fn exceeded_message(&self, kind: LimitKind, host: &str) -> (u8, String) {
        let mb = |bytes: Option<u64>| bytes.unwrap_or(0) / MB;
        let (code, limit) = match kind {
            LimitKind::Cpu => {
                let seconds = self.cpu.unwrap_or_default().as_secs();
                (128 + signal::SIGXCPU, format!("cpulimit of {seconds} s"))
            }
            LimitKind::Memory => {
                (128 + signal::SIGKILL, format!("memorylimit of {} MB", mb(self.memory)))
            }
            LimitKind::Disk => {
                (128 + signal::SIGXFSZ, format!("disklimit of {} MB", mb(self.disk)))
            }
        };
        (code as u8, format!("{limit} exceeded on host {host}: every process of the job is killed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned()))).collect()
    }

    #[test]
    fn the_leftmost_limit_is_used_and_single_user_mode_has_only_the_time_limit() {
        let given = options(&[("cpulimit", "4"), ("memorylimit", "2"), ("cpulimit", "9")]);
        let limits = JobLimits::from_options(&given, true).unwrap();
        assert_eq!(limits.cpu, Some(Duration::from_secs(4)));
        assert_eq!((limits.memory, limits.disk), (Some(2 << 20), None));
        assert_eq!(JobLimits::from_options(&given, false).unwrap().memory, None);
        for wrong in ["0", "-1", "x", "", "99999999999"] {
            let error =
                JobLimits::from_options(&options(&[("disklimit", wrong)]), true).unwrap_err();
            assert!(error.contains("disklimit"), "{error}");
        }
        let largest = options(&[("disklimit", "4294967296")]);
        assert_eq!(JobLimits::from_options(&largest, true).unwrap().disk, Some(1 << 52));
        assert!(JobLimits::from_options(&options(&[("disklimit", "4294967297")]), true).is_err());
    }

    #[test]
    fn the_exceeded_limit_is_named_with_its_host() {
        let limits = JobLimits { memory: Some(5 << 20), ..JobLimits::default() };
        let (code, text) = limits.exceeded_message(LimitKind::Memory, "n3");
        assert_eq!(code, 137);
        assert!(text.contains("memorylimit of 5 MB exceeded on host n3"), "{text}");
        let limits = JobLimits { cpu: Some(Duration::from_secs(7)), disk: Some(6 << 20), ..limits };
        let (code, text) = limits.exceeded_message(LimitKind::Cpu, "n3");
        assert!(code == 152 && text.starts_with("cpulimit of 7 s exceeded on host n3"), "{text}");
        let (code, text) = limits.exceeded_message(LimitKind::Disk, "n3");
        assert!(code == 153 && text.starts_with("disklimit of 6 MB exceeded"), "{text}");
    }
}
