//! The latency of gang switches: from the time at which a job has to stop, by an order or by the
//! timers of its hosts, until the whole job has stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use score_proto::ids::JobId;
use score_proto::job_control::SwitchSeq;

use crate::cluster::MonotonicTime;

/// The number of buckets per factor of two. A value is correct within 10 %.
const BUCKETS_PER_OCTAVE: u32 = 8;

/// The latencies of the gang switches so far.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    /// The last stop of each job that was not carried out yet, and when it was due.
    stop_orders: BTreeMap<JobId, (SwitchSeq, MonotonicTime)>,
    /// The number of stops in each bucket of the logarithmic scale of microseconds.
    counts: BTreeMap<u32, u64>,
    max: Duration,
    /// The number of stops in rotations, whose latency is not measured.
    rotation_stops: u64,
}

fn bucket(took: Duration) -> u32 {
    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
    (f64::from(micros).log2() * f64::from(BUCKETS_PER_OCTAVE)).round() as u32
}

fn bucket_micros(bucket: u32) -> f64 {
    (f64::from(bucket) / f64::from(BUCKETS_PER_OCTAVE)).exp2()
}

impl LatencyHistogram {
    /// A job has to stop at this time, by an order or by the timers of its hosts.
    pub fn on_stop_ordered(&mut self, job: JobId, switch_seq: SwitchSeq, now: MonotonicTime) {
        self.stop_orders.insert(job, (switch_seq, now));
    }

    /// All hosts of a job have carried out the stop of this number.
    pub fn on_stopped(&mut self, job: JobId, switch_seq: SwitchSeq, now: MonotonicTime) {
        let known = self.stop_orders.get(&job).filter(|(number, _)| *number == switch_seq);
        if let Some((_, since)) = known.copied() {
            self.stop_orders.remove(&job);
            let took = now.saturating_sub(since);
            *self.counts.entry(bucket(took)).or_default() += 1;
            self.max = self.max.max(took);
        }
    }

    /// Jobs have taken this many turns in a rotation.
    pub fn add_rotation_turns(&mut self, turns: u32) {
        self.rotation_stops += u64::from(turns);
    }

    /// A job has left.
    pub fn forget_job(&mut self, job: JobId) {
        self.stop_orders.remove(&job);
    }

    /// The number of stops.
    pub fn count(&self) -> u64 {
        self.timed() + self.rotation_stops
    }

    fn timed(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The latency in microseconds that this fraction of all measured stops did not exceed.
    fn percentile(&self, fraction: f64) -> f64 {
        let threshold = (self.timed() as f64 * fraction).ceil() as u64;
        let mut counted = 0;
        let reaches_threshold = |(_, count): &(&u32, &u64)| {
            counted += **count;
            counted >= threshold
        };
        self.counts.iter().find(reaches_threshold).map_or(0.0, |(bucket, _)| bucket_micros(*bucket))
    }
}

impl fmt::Display for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, max_ms) = (self.percentile(0.5), self.max.as_secs_f64() * 1e3);
        let (p90, p99) = (self.percentile(0.9), self.percentile(0.99));
        write!(
            f,
            "{} stops of jobs, {} of them in rotations; latency of the others: half within \
             {p50:.0} us, 90 % within {p90:.0}, 99 % within {p99:.0}, all within {max_ms:.1} ms",
            self.count(),
            self.rotation_stops
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_counted_by_how_long_they_took() {
        let mut histogram = LatencyHistogram::default();
        for number in 0..100 {
            let stop = SwitchSeq(number);
            let begin = MonotonicTime::from_millis(number);
            histogram.on_stop_ordered(JobId(1), stop, begin);
            // This number does not match the expected one.
            histogram.on_stopped(JobId(1), stop + 1, begin);
            histogram.on_stopped(
                JobId(1),
                stop,
                begin + Duration::from_micros(if number < 90 { 60 } else { 900 }),
            );
            histogram.on_stopped(JobId(1), stop, begin);
        }
        histogram.on_stop_ordered(JobId(2), SwitchSeq(200), MonotonicTime::ZERO);
        histogram.forget_job(JobId(2));
        histogram.on_stopped(JobId(2), SwitchSeq(200), MonotonicTime::ZERO);
        histogram.add_rotation_turns(9);
        let text = histogram.to_string();
        assert!(text.starts_with("109 stops of jobs, 9 of them"), "{text}");
        assert!((55.0..66.0).contains(&histogram.percentile(0.9)), "{text}");
        assert!((820.0..990.0).contains(&histogram.percentile(0.99)), "{text}");
        assert!(text.ends_with("all within 0.9 ms"), "{text}");
    }
}
