//! How long switches have taken: from an order to stop until the whole job has stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::cluster::{JobId, Time};

/// Parts of a doubling that are told apart: a figure is right within a tenth.
const PARTS: u32 = 8;

/// Switches so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Orders to stop that are not yet carried out.
    asked: BTreeMap<JobId, (u64, Time)>,
    /// How many stops took about so many microseconds: the number of each step of the scale.
    counts: BTreeMap<u32, u64>,
    most: Duration,
    /// How many there were that nobody here has timed.
    turns: u64,
}

fn step(took: Duration) -> u32 {
    let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
    (f64::from(micros).log2() * f64::from(PARTS)).round() as u32
}

fn micros(step: u32) -> f64 {
    (f64::from(step) / f64::from(PARTS)).exp2()
}

impl Tally {
    /// A job is to stop, by the order of this number.
    pub fn asked(&mut self, job: JobId, switch: u64, now: Time) {
        self.asked.insert(job, (switch, now));
    }

    /// An order has been carried out everywhere.
    pub fn stopped(&mut self, job: JobId, switch: u64, now: Time) {
        let known = self.asked.get(&job).filter(|(number, _)| *number == switch);
        if let Some((_, since)) = known.copied() {
            self.asked.remove(&job);
            let took = now.saturating_sub(since);
            *self.counts.entry(step(took)).or_default() += 1;
            self.most = self.most.max(took);
        }
    }

    /// Jobs have taken so many turns by themselves.
    pub fn turned(&mut self, turns: u32) {
        self.turns += u64::from(turns);
    }

    /// A job is gone.
    pub fn gone(&mut self, job: JobId) {
        self.asked.remove(&job);
    }

    /// How many stops there were.
    pub fn count(&self) -> u64 {
        self.timed() + self.turns
    }

    fn timed(&self) -> u64 {
        self.counts.values().sum()
    }

    /// What this part of all stops did not exceed, in microseconds.
    fn within(&self, part: f64) -> f64 {
        let wanted = (self.timed() as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reaches = |(_, count): &(&u32, &u64)| {
            seen += **count;
            seen >= wanted
        };
        self.counts.iter().find(reaches).map_or(0.0, |(step, _)| micros(*step))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, most) = (self.within(0.5), self.most.as_secs_f64() * 1e3);
        let (ninety, last) = (self.within(0.9), self.within(0.99));
        write!(
            f,
            "{} stops of jobs, {} of them in turns; of the others, from the order until all had \
             stopped: half within {half:.0} us, 90 % within {ninety:.0}, 99 % within {last:.0}, \
             all within {most:.1} ms",
            self.count(),
            self.turns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_counted_by_how_long_they_took() {
        let mut tally = Tally::default();
        for number in 0..100 {
            let begin = Time::from_millis(number);
            tally.asked(1, number, begin);
            // Not what is waited for.
            tally.stopped(1, number + 1, begin);
            tally.stopped(
                1,
                number,
                begin + Duration::from_micros(if number < 90 { 60 } else { 900 }),
            );
            tally.stopped(1, number, begin);
        }
        tally.asked(2, 200, Time::ZERO);
        tally.gone(2);
        tally.stopped(2, 200, Time::ZERO);
        tally.turned(9);
        let text = tally.to_string();
        assert!(text.starts_with("109 stops of jobs, 9 of them"), "{text}");
        assert!((55.0..66.0).contains(&tally.within(0.9)), "{text}");
        assert!((820.0..990.0).contains(&tally.within(0.99)), "{text}");
        assert!(text.ends_with("all within 0.9 ms"), "{text}");
    }
}
