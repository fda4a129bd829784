//! The options of scrun that change how scored runs a job. scrun parses them once. A daemon and a
//! shepherd read the types.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The priority of a job that does not specify it (manual, scrun(1)).
const DEFAULT_PRIORITY: u8 = 8;
/// The priority with the smallest fraction of processor time.
const LOWEST_PRIORITY: u8 = 15;
/// Bytes of a MB, as the manual counts.
const MB: u64 = 1 << 20;
/// The largest limit, in seconds or MB.
const MAX_AMOUNT: u64 = 1 << 32;

/// How a job is scheduled, limited and watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTerms {
    /// `priority`: 0 to 15. A smaller number gives a larger fraction of processor time.
    pub priority: u8,
    /// `cpulimit`, `memorylimit`, `disklimit`.
    pub limits: JobLimits,
    /// `noidle`: idle flags are ignored, so that no deadlock is detected.
    pub ignores_idle_flags: bool,
    /// `nobind`: processes are not bound to processors.
    pub disables_binding: bool,
    /// `wait`: the job waits until hosts are available.
    pub waits_for_hosts: bool,
}

/// The resources that a job may use on a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLimits {
    /// `cpulimit`: processor time of all its processes.
    pub cpu: Option<Duration>,
    /// `memorylimit`, in bytes.
    pub memory: Option<u64>,
    /// `disklimit`: bytes in its directory.
    pub disk: Option<u64>,
}

impl Default for JobTerms {
    fn default() -> Self {
        Self {
            priority: DEFAULT_PRIORITY,
            limits: JobLimits::default(),
            ignores_idle_flags: false,
            disables_binding: false,
            waits_for_hosts: false,
        }
    }
}

impl JobTerms {
    /// Parses the options. If an option is repeated, the leftmost one takes effect.
    ///
    /// # Errors
    /// One line that names the wrong option.
    pub fn from_options(options: &[(String, Option<String>)]) -> Result<Self, String> {
        let option = |name: &str| options.iter().find(|(key, _)| key == name);
        let number = |name: &str, expected: &str| -> Result<Option<u64>, String> {
            let Some((_, value)) = option(name) else { return Ok(None) };
            let value = value.as_deref().unwrap_or_default();
            let number = value.parse().map_err(|_| format!("{name}={value}: {expected}"))?;
            Ok(Some(number))
        };
        let amount = |name: &str| {
            let expected = "a number of at least 1 is expected";
            match number(name, expected)? {
                Some(amount) if !(1..=MAX_AMOUNT).contains(&amount) => {
                    Err(format!("{name}={amount}: {expected}, and at most {MAX_AMOUNT}"))
                }
                amount => Ok(amount),
            }
        };
        let to_bytes = |amount: Option<u64>| amount.map(|mb| mb * MB);
        let priority = number("priority", "a number from 0 to 15 is expected")?;
        let priority = priority.map_or(DEFAULT_PRIORITY, |given| given.min(u8::MAX.into()) as u8);
        let terms = Self {
            priority,
            limits: JobLimits {
                cpu: amount("cpulimit")?.map(Duration::from_secs),
                memory: to_bytes(amount("memorylimit")?),
                disk: to_bytes(amount("disklimit")?),
            },
            ignores_idle_flags: option("noidle").is_some(),
            disables_binding: option("nobind").is_some(),
            waits_for_hosts: option("wait").is_some(),
        };
        terms.check()?;
        Ok(terms)
    }

    /// Checks the ranges, because a user may send any terms.
    ///
    /// # Errors
    /// One line that names the wrong option.
    pub fn check(&self) -> Result<(), String> {
        if self.priority > LOWEST_PRIORITY {
            let priority = self.priority;
            return Err(format!("priority={priority}: a number from 0 to 15 is expected"));
        }
        let JobLimits { cpu, memory, disk } = self.limits;
        let cpu_range = Duration::from_secs(1)..=Duration::from_secs(MAX_AMOUNT);
        if cpu.is_some_and(|cpu| !cpu_range.contains(&cpu)) {
            return Err(format!("cpulimit: 1 to {MAX_AMOUNT} s are possible"));
        }
        for (name, bytes) in [("memorylimit", memory), ("disklimit", disk)] {
            if bytes.is_some_and(|bytes| !(MB..=MAX_AMOUNT * MB).contains(&bytes)) {
                return Err(format!("{name}: 1 to {MAX_AMOUNT} MB are possible"));
            }
        }
        Ok(())
    }
}

impl JobLimits {
    /// The limits that apply in a mode. Memory and disk are limited only in multi-user mode.
    #[must_use]
    pub fn in_mode(self, is_multi_user: bool) -> Self {
        match is_multi_user {
            true => self,
            false => Self { cpu: self.cpu, ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(list: &[(&str, Option<&str>)]) -> Result<JobTerms, String> {
        let option = |&(key, value): &(&str, Option<&str>)| (key.into(), value.map(str::to_owned));
        JobTerms::from_options(&list.iter().map(option).collect::<Vec<_>>())
    }

    #[test]
    fn the_leftmost_limit_is_used_and_single_user_mode_has_only_the_time_limit() {
        let given = [("cpulimit", Some("4")), ("memorylimit", Some("2")), ("cpulimit", Some("9"))];
        let limits = terms(&given).unwrap().limits;
        assert_eq!(limits.cpu, Some(Duration::from_secs(4)));
        assert_eq!((limits.memory, limits.disk), (Some(2 << 20), None));
        assert_eq!(limits.in_mode(true), limits);
        let single_user = limits.in_mode(false);
        assert_eq!((single_user.cpu, single_user.memory), (limits.cpu, None));
        for wrong in [Some("0"), Some("-1"), Some("x"), Some(""), Some("99999999999"), None] {
            let error = terms(&[("disklimit", wrong)]).unwrap_err();
            assert!(error.contains("disklimit"), "{error}");
        }
        let largest = terms(&[("disklimit", Some("4294967296"))]).unwrap();
        assert_eq!(largest.limits.disk, Some(1 << 52));
        assert!(terms(&[("disklimit", Some("4294967297"))]).is_err());
    }

    #[test]
    fn a_job_has_its_requested_priority_or_the_default_of_the_manual() {
        let priority_of = |value| terms(&[("priority", Some(value))]).map(|terms| terms.priority);
        assert_eq!((priority_of("3"), priority_of("15")), (Ok(3), Ok(15)));
        for wrong in ["16", "256", "high"] {
            assert!(priority_of(wrong).unwrap_err().contains("from 0 to 15"), "{wrong}");
        }
        assert_eq!(terms(&[]), Ok(JobTerms::default()));
        assert_eq!(JobTerms::default().priority, 8);
    }

    #[test]
    fn options_without_a_value_are_flags() {
        let flags = |terms: JobTerms| {
            [terms.ignores_idle_flags, terms.disables_binding, terms.waits_for_hosts]
        };
        for (name, expected) in [
            ("noidle", [true, false, false]),
            ("nobind", [false, true, false]),
            ("wait", [false, false, true]),
            ("stat", [false; 3]),
        ] {
            assert_eq!(flags(terms(&[(name, None)]).unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn terms_that_scrun_would_not_send_are_refused() {
        let limits = |limits| JobTerms { limits, ..JobTerms::default() };
        let zero = Duration::from_millis(1);
        for (wrong, name) in [
            (JobTerms { priority: 16, ..JobTerms::default() }, "priority"),
            (limits(JobLimits { cpu: Some(zero), ..JobLimits::default() }), "cpulimit"),
            (limits(JobLimits { cpu: Some(Duration::MAX), ..JobLimits::default() }), "cpulimit"),
            (limits(JobLimits { memory: Some(1), ..JobLimits::default() }), "memorylimit"),
            (limits(JobLimits { disk: Some(u64::MAX), ..JobLimits::default() }), "disklimit"),
        ] {
            assert!(wrong.check().unwrap_err().starts_with(name), "{wrong:?}");
        }
    }

    #[test]
    fn an_amount_outside_its_range_is_refused_before_it_is_converted_to_bytes() {
        // The last amount has more bytes than a u64 can count.
        for amount in ["0", "4294967297", "17592186044417"] {
            let error = terms(&[("disklimit", Some(amount))]).unwrap_err();
            let range = "a number of at least 1 is expected, and at most 4294967296";
            assert_eq!(error, format!("disklimit={amount}: {range}"));
        }
    }
}
