//! Counts the resources of this daemon that each user's sessions and jobs use: memory, processor
//! time, and messages to all hosts of a job. A user who has used up a limit has to wait. Other
//! users are not affected.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::rate_limit::TokenBucket;

/// Bytes of unfinished and unsent messages of all sessions of one user. While a user has more, the
/// daemon reads no session of this user.
pub const MAX_SESSION_BYTES: u64 = 64 << 20;
/// Bytes of messages that a host has forwarded for one user and that the server has not handled.
pub const FORWARD_WINDOW: u64 = 1 << 20;
/// Bytes that are added to the length of each forwarded message, because many short messages cost
/// more than their bytes.
const FORWARD_OVERHEAD: u64 = 64;
/// Processor time that a user may use at once. After that the user waits for the next refill.
/// The daemon runs before all normal processes, so this is also how long a user can stop the jobs
/// of others on the daemon's processor.
pub const TIME_WINDOW: Duration = Duration::from_millis(2);
/// Processor time that the reports of a user's jobs may use at once. It has an account of its own,
/// so that a program that causes many reports does not keep its user from ending it. A shepherd has
/// few reports in a turn of the loop, so that a burst does not stop the daemon.
pub const REPORT_TIME_WINDOW: Duration = Duration::from_millis(10);
/// If several users share the host, each of them gets at most this part of the daemon's processor.
const MIN_SHARE_DIVISOR: u32 = 8;
/// While only one user uses this host, the user gets this part of the processor.
const LONE_SHARE_DIVISOR: u32 = 4;
/// All users together get at most this part of the processor.
const TOTAL_SHARE_DIVISOR: u32 = 2;
/// How long a user counts as present after the daemon has worked for the user.
const PRESENT_WINDOW: Duration = Duration::from_secs(1);

/// Rate limit of messages that go to all hosts of a job: this many at once, then one in each
/// interval. Without the limit, a user could flood the links between the hosts of the job.
const CONTROL_BURST: u32 = 64;
const CONTROL_INTERVAL: Duration = Duration::from_millis(10);

/// The limit on messages that go to all hosts of a job.
pub fn control_limit(now: Instant) -> TokenBucket {
    TokenBucket::new(CONTROL_BURST, CONTROL_INTERVAL, now)
}

/// The cost of a forwarded message of this length in [`FORWARD_WINDOW`].
pub fn forward_cost(len: usize) -> u64 {
    len as u64 + FORWARD_OVERHEAD
}

#[derive(Debug, Default, PartialEq)]
struct UserCharges {
    session_bytes: u64,
    forwarded_bytes: u64,
    /// Processor time that was used and has not been refilled.
    time: Duration,
    /// Like `time`, for the reports of the user's jobs.
    report_time: Duration,
    /// The limit on messages to all hosts of a job, unless it is unused.
    control: Option<TokenBucket>,
    /// The time until which the user counts as present.
    present_until: Option<Instant>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Usage {
    by_uid: HashMap<u32, UserCharges>,
    refilled_at: Instant,
    /// Each user's time is refilled at the rate of a processor divided by this number.
    share_divisor: u32,
}

impl Usage {
    /// The state in which no user has used anything.
    pub fn new(now: Instant) -> Self {
        let share_divisor = LONE_SHARE_DIVISOR;
        Self { by_uid: HashMap::new(), refilled_at: now, share_divisor }
    }

    /// Records that the daemon has worked this long for a user.
    pub fn charge_time(&mut self, uid: u32, time: Duration) {
        let present_until = self.refilled_at + PRESENT_WINDOW;
        self.change(uid, |usage| {
            usage.time = usage.time.saturating_add(time);
            usage.present_until = Some(present_until);
        });
    }

    /// Records that the daemon has worked this long for reports of a user's job. Does nothing while
    /// the user is alone. The user then owes no time when another user comes.
    pub fn charge_report_time(&mut self, uid: u32, time: Duration) {
        if self.share_divisor == LONE_SHARE_DIVISOR {
            return;
        }
        self.change(uid, |usage| usage.report_time = usage.report_time.saturating_add(time));
    }

    /// Refills the time of all users for the period since the last call. `uids_of_jobs` are the
    /// owners of this host's jobs.
    pub fn refill_time(&mut self, now: Instant, uids_of_jobs: impl Iterator<Item = u32>) {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        self.refilled_at = now;
        for uid in uids_of_jobs {
            self.change(uid, |usage| usage.present_until = Some(now + PRESENT_WINDOW));
        }
        self.share_divisor = self.current_share_divisor(now);
        let refill = elapsed / self.share_divisor;
        self.by_uid.retain(|_, usage| {
            usage.time = usage.time.saturating_sub(refill);
            usage.report_time = usage.report_time.saturating_sub(refill);
            usage.control = usage.control.filter(|control| !control.is_full(now));
            usage.present_until = usage.present_until.filter(|end| *end > now);
            *usage != UserCharges::default()
        });
    }

    /// The current divisor. All accounts of which time was used have the same share.
    fn current_share_divisor(&self, now: Instant) -> u32 {
        let accounts = self.by_uid.values().flat_map(|usage| [usage.time, usage.report_time]);
        let accounts = accounts.filter(|time| !time.is_zero()).count();
        let accounts = u32::try_from(accounts).unwrap_or(u32::MAX);
        let is_present = |usage: &&UserCharges| usage.present_until.is_some_and(|end| end > now);
        let present = self.by_uid.values().filter(is_present);
        match present.count() {
            0 | 1 => LONE_SHARE_DIVISOR,
            _ => accounts.saturating_mul(TOTAL_SHARE_DIVISOR).max(MIN_SHARE_DIVISOR),
        }
    }

    /// Whether the daemon may work for a user now.
    pub fn has_time(&self, uid: u32) -> bool {
        self.by_uid.get(&uid).is_none_or(|usage| usage.time < TIME_WINDOW)
    }

    /// Whether the daemon may receive reports of a user's jobs now. A user who is alone does not
    /// wait, because output consists of reports, and the limit is for the sake of others.
    pub fn has_time_for_reports(&self, uid: u32) -> bool {
        self.share_divisor == LONE_SHARE_DIVISOR
            || self.by_uid.get(&uid).is_none_or(|usage| usage.report_time < REPORT_TIME_WINDOW)
    }

    /// The time until the first waiting user has time again. None: all users have time.
    pub fn next_refill(&self) -> Option<Duration> {
        let owed = self.by_uid.values().flat_map(|usage| {
            let owed_reports = usage.report_time.checked_sub(REPORT_TIME_WINDOW);
            [usage.time.checked_sub(TIME_WINDOW), owed_reports]
        });
        Some(owed.flatten().min()?.saturating_mul(self.share_divisor))
    }

    /// Records a message of a user that goes to all hosts of a job.
    pub fn take_control(&mut self, uid: u32, now: Instant) {
        self.change(uid, |usage| {
            usage.control.get_or_insert_with(|| control_limit(now)).take(now);
        });
    }

    /// The time at which a user may send the next such message. None: the user may send it now.
    pub fn next_control_at(&self, uid: u32, now: Instant) -> Option<Instant> {
        self.by_uid.get(&uid)?.control?.next_at(now)
    }

    /// The time until the first user who has to wait may send such a message.
    pub fn next_control(&self, now: Instant) -> Option<Duration> {
        let controls = self.by_uid.values().filter_map(|usage| usage.control?.next_at(now));
        Some(controls.min()?.saturating_duration_since(now))
    }

    /// Whether the sessions of a user may be read now.
    pub fn may_be_read(&self, uid: u32, now: Instant) -> bool {
        self.has_time(uid) && self.next_control_at(uid, now).is_none()
    }

    /// Updates the number of bytes that the messages of a session take.
    pub fn change_session_bytes(&mut self, uid: u32, before: u64, now: u64) {
        self.change(uid, |usage| {
            usage.session_bytes = usage.session_bytes.saturating_sub(before).saturating_add(now);
        });
    }

    /// A message of this cost was forwarded to the server.
    pub fn on_forwarded(&mut self, uid: u32, cost: u64) {
        self.change(uid, |usage| {
            usage.forwarded_bytes = usage.forwarded_bytes.saturating_add(cost);
        });
    }

    /// The server has handled forwarded messages of this cost, or their session has ended.
    pub fn on_forwarded_handled(&mut self, uid: u32, cost: u64) {
        self.change(uid, |usage| {
            usage.forwarded_bytes = usage.forwarded_bytes.saturating_sub(cost);
        });
    }

    fn change(&mut self, uid: u32, change: impl FnOnce(&mut UserCharges)) {
        let usage = self.by_uid.entry(uid).or_default();
        change(usage);
        if *usage == UserCharges::default() {
            self.by_uid.remove(&uid);
        }
    }

    /// Whether the sessions of a user may take more bytes.
    pub fn has_session_room(&self, uid: u32) -> bool {
        self.by_uid.get(&uid).is_none_or(|usage| usage.session_bytes < MAX_SESSION_BYTES)
    }

    /// Whether a message of a user may be forwarded to the server.
    pub fn has_forward_room(&self, uid: u32) -> bool {
        self.by_uid.get(&uid).is_none_or(|usage| usage.forwarded_bytes < FORWARD_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_session_memory_does_not_affect_other_users() {
        let mut usage = Usage::new(Instant::now());
        usage.change_session_bytes(1, 0, MAX_SESSION_BYTES - 1);
        assert!(usage.has_session_room(1));
        usage.change_session_bytes(1, 0, 1);
        assert!(!usage.has_session_room(1) && usage.has_session_room(2));
        usage.change_session_bytes(1, MAX_SESSION_BYTES - 1, 0);
        assert!(usage.has_session_room(1));
        usage.change_session_bytes(1, 1, 0);
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn short_messages_also_use_the_window_of_forwarded_messages() {
        let mut usage = Usage::new(Instant::now());
        let mut count = 0;
        while usage.has_forward_room(1) {
            usage.on_forwarded(1, forward_cost(1));
            count += 1;
        }
        assert!((10_000..20_000).contains(&count), "{count}");
        usage.on_forwarded_handled(1, forward_cost(1));
        assert!(usage.has_forward_room(1) && usage.has_forward_room(2));
        usage.on_forwarded_handled(1, FORWARD_WINDOW);
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn one_user_gets_a_quarter_of_the_time_and_many_users_share_half_of_it() {
        for (users, expected_share) in [(1, 0.25), (2, 0.125), (4, 0.125), (10, 0.05)] {
            let start = Instant::now();
            let (mut usage, mut used) = (Usage::new(start), vec![Duration::ZERO; users as usize]);
            let (step, period) = (Duration::from_micros(200), Duration::from_secs(10));
            let mut now = start;
            while now < start + period {
                usage.refill_time(now, [].into_iter());
                for uid in (0..users).filter(|uid| usage.has_time(*uid)).collect::<Vec<_>>() {
                    usage.charge_time(uid, step);
                    used[uid as usize] += step;
                    now += step;
                }
                now += usage.next_refill().unwrap_or_default().max(Duration::from_micros(50));
            }
            for time in used {
                let share = time.as_secs_f64() / (now - start).as_secs_f64();
                let ratio = share / expected_share;
                assert!((0.9..1.1).contains(&ratio), "{users} users: {share}");
            }
        }
    }

    #[test]
    fn a_user_that_exceeds_its_time_waits_and_the_record_expires_later() {
        let start = Instant::now();
        let mut usage = Usage::new(start);
        usage.charge_time(1, TIME_WINDOW - Duration::from_nanos(1));
        assert!(usage.has_time(1) && usage.next_refill().is_none());
        usage.charge_time(1, Duration::from_nanos(1));
        assert_eq!((usage.has_time(1), usage.next_refill()), (false, Some(Duration::ZERO)));
        usage.charge_time(1, Duration::from_millis(10) - Duration::from_nanos(1));
        assert!(!usage.has_time(1) && usage.has_time(2));
        let wait = usage.next_refill().unwrap();
        assert!((39..41).contains(&wait.as_millis()), "{wait:?}");
        usage.refill_time(start + wait + Duration::from_micros(1), [].into_iter());
        assert!(usage.has_time(1) && !usage.by_uid.is_empty());
        usage.refill_time(start + PRESENT_WINDOW, [].into_iter());
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn reports_have_their_own_time_and_a_flood_of_them_leaves_time_for_messages() {
        let start = Instant::now();
        let mut usage = Usage::new(start);
        usage.charge_report_time(1, REPORT_TIME_WINDOW * 2);
        assert!(usage.has_time_for_reports(1), "a user who is alone does not wait");
        usage.refill_time(start, [1, 2].into_iter());
        assert!(usage.has_time_for_reports(1), "and owes no time later");
        usage.charge_report_time(1, REPORT_TIME_WINDOW - Duration::from_nanos(1));
        assert!(usage.has_time_for_reports(1) && usage.next_refill().is_none());
        usage.charge_report_time(1, Duration::from_millis(1));
        assert!(!usage.has_time_for_reports(1) && usage.has_time_for_reports(2));
        assert!(usage.has_time(1), "the user can end the job");
        let wait = usage.next_refill().unwrap();
        assert!((7..9).contains(&wait.as_millis()), "{wait:?}");
        usage.charge_time(1, Duration::from_secs(1));
        usage.refill_time(start + wait + Duration::from_micros(1), [].into_iter());
        assert!(usage.has_time_for_reports(1) && !usage.has_time(1));
        usage.refill_time(start + Duration::from_secs(60), [].into_iter());
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn the_limit_on_messages_to_all_hosts_of_a_job_is_of_a_user() {
        let start = Instant::now();
        let mut usage = Usage::new(start);
        for _ in 0..CONTROL_BURST {
            assert!(usage.may_be_read(1, start));
            usage.take_control(1, start);
        }
        assert!(!usage.may_be_read(1, start) && usage.may_be_read(2, start));
        assert_eq!(usage.next_control(start), Some(CONTROL_INTERVAL));
        assert!(usage.may_be_read(1, start + CONTROL_INTERVAL));
        assert_eq!(usage.next_control(start + CONTROL_INTERVAL), None);
        usage.refill_time(start + CONTROL_INTERVAL, [].into_iter());
        assert!(!usage.may_be_read(1, start), "the count is not forgotten");
        usage.refill_time(start + CONTROL_BURST * CONTROL_INTERVAL, [].into_iter());
        assert!(usage.by_uid.is_empty());
    }

    #[test]
    fn a_user_gets_less_time_while_another_user_has_a_job_or_a_recent_request() {
        let (start, used) = (Instant::now(), TIME_WINDOW + Duration::from_millis(1));
        let mut usage = Usage::new(start);
        usage.charge_time(1, used);
        usage.refill_time(start, [1].into_iter());
        assert_eq!(usage.next_refill(), Some(Duration::from_millis(4)));
        usage.refill_time(start, [2].into_iter());
        assert_eq!(usage.next_refill(), Some(Duration::from_millis(8)));
        let later = start + PRESENT_WINDOW;
        usage.refill_time(later, [].into_iter());
        usage.charge_time(1, used);
        usage.charge_time(2, Duration::from_nanos(1));
        usage.refill_time(later, [].into_iter());
        assert_eq!(usage.next_refill(), Some(Duration::from_millis(8)));
    }
}
