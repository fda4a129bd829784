//! Detects a hanging helper `scored-pmix`. While programs need the helper, the shepherd
//! periodically requests a report that it is alive. The number of checks without an answer is
//! limited, rather than the time. If the machine or this process was stopped for a while, only one
//! check is late. The helper then has time to answer before the next check.

use std::time::{Duration, Instant};

/// Time between two checks. Time in which the job is stopped does not count, because the helper is
/// stopped with it.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// After this many checks without an answer, the helper counts as hanging.
const MAX_UNANSWERED_CHECKS: u32 = 5;
/// The same limit while the helper starts. Before its first answer, it loads a library and
/// registers all ranks of the job. It answers for each process that can be started.
const MAX_UNANSWERED_CHECKS_AT_START: u32 = 30;

/// Whether an answer of the helper is outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchState {
    Answered,
    Asked { unanswered_checks: u32 },
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    /// Ask the helper now.
    Ask,
    /// The helper still has time to answer.
    Wait,
    /// The helper has not answered for this time.
    Hangs(Duration),
}

/// See the [module](self).
#[derive(Debug)]
pub struct HelperWatch {
    state: WatchState,
    /// Time of the next check, unless the job is stopped until then.
    next_check: Instant,
}

impl HelperWatch {
    /// The state after the start of the helper, which answers when it is ready.
    pub fn new(now: Instant) -> Self {
        let state = WatchState::Asked { unanswered_checks: 0 };
        Self { state, next_check: now + CHECK_INTERVAL }
    }

    /// When to call [`HelperWatch::check`], unless the job is stopped until then.
    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Postpones the next check by the time for which the job was stopped.
    pub fn postpone(&mut self, stop_time: Duration) {
        self.next_check += stop_time;
    }

    /// Records an answer of the helper.
    pub fn on_answer(&mut self) {
        self.state = WatchState::Answered;
    }

    /// Checks whether the helper has answered. All of its reports must have been read before.
    pub fn check(&mut self, now: Instant, is_starting: bool) -> CheckResult {
        self.next_check = now + CHECK_INTERVAL;
        let WatchState::Asked { unanswered_checks } = &mut self.state else {
            self.state = WatchState::Asked { unanswered_checks: 0 };
            return CheckResult::Ask;
        };
        *unanswered_checks += 1;
        let max_unanswered_checks = match is_starting {
            true => MAX_UNANSWERED_CHECKS_AT_START,
            false => MAX_UNANSWERED_CHECKS,
        };
        match *unanswered_checks >= max_unanswered_checks {
            true => CheckResult::Hangs(CHECK_INTERVAL * *unanswered_checks),
            false => CheckResult::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of checks that are made on time.
    fn checks(watch: &mut HelperWatch, count: u32, is_starting: bool) -> Vec<CheckResult> {
        (0..count).map(|_| watch.check(watch.next_check(), is_starting)).collect()
    }

    #[test]
    fn a_helper_that_answers_each_question_is_never_reported_as_hanging() {
        let mut watch = HelperWatch::new(Instant::now());
        for _ in 0..100 {
            watch.on_answer();
            assert_eq!(checks(&mut watch, 1, false), [CheckResult::Ask]);
            let late = checks(&mut watch, MAX_UNANSWERED_CHECKS - 1, false);
            assert!(late.iter().all(|result| *result == CheckResult::Wait), "{late:?}");
        }
    }

    #[test]
    fn a_silent_helper_is_reported_after_ten_seconds_or_after_a_minute_at_its_start() {
        for (is_starting, seconds) in [(true, 60), (false, 10)] {
            let start = Instant::now();
            let mut watch = HelperWatch::new(start);
            let results = checks(&mut watch, seconds / 2, is_starting);
            let (last, earlier) = results.split_last().unwrap();
            assert!(earlier.iter().all(|result| *result == CheckResult::Wait), "{results:?}");
            let time = Duration::from_secs(seconds.into());
            assert_eq!(
                (*last, watch.next_check() - CHECK_INTERVAL),
                (CheckResult::Hangs(time), start + time)
            );
        }
    }

    #[test]
    fn time_in_which_the_job_or_the_machine_was_stopped_does_not_count() {
        let start = Instant::now();
        let mut watch = HelperWatch::new(start);
        watch.on_answer();
        let hour = Duration::from_secs(3600);
        watch.postpone(hour);
        assert_eq!(watch.next_check(), start + hour + CHECK_INTERVAL);
        assert_eq!(watch.check(watch.next_check(), false), CheckResult::Ask);
        // A late check counts as one check.
        let late = watch.next_check() + hour;
        assert_eq!(watch.check(late, false), CheckResult::Wait);
        assert_eq!(watch.next_check(), late + CHECK_INTERVAL);
    }
}
