//! Computes results from samples, and formats them as a table or JSON.

use serde_json::{Map, Value, json};

/// Samples of one kind, in any unit.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// No samples.
    pub const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Adds a sample.
    pub fn add(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The smallest sample, or NaN if there is none.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest sample, or NaN if there is none.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The smallest sample that at least `fraction` of all samples do not exceed. NaN if there is
    /// none.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (fraction * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

/// The latency of one size, one way, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// The best batch of round trips, halved.
    pub min: f64,
    /// The median batch, halved.
    pub median: f64,
    /// The 99.9th percentile of single round trips, halved.
    pub p999: f64,
    /// The floor: the best batch of round trips of a cache line, halved. NaN between hosts.
    pub floor: f64,
}

/// All results for one size.
#[derive(Debug, Clone, Copy)]
pub struct SizeResult {
    /// Bytes per message.
    pub size: usize,
    /// Latency, if it is measured.
    pub latency: Option<Latency>,
    /// Bandwidth in bytes per second, if it is measured.
    pub bandwidth: Option<f64>,
    /// Messages per second, if the rate is measured.
    pub rate: Option<f64>,
}

impl SizeResult {
    /// The JSON object of `-json`.
    pub fn json(&self) -> Value {
        let mut object = Map::from_iter([("size".to_owned(), json!(self.size))]);
        let mut field = |name: &str, value: f64| {
            object.insert(name.to_owned(), json!((value * 10.0).round() / 10.0));
        };
        if let Some(latency) = self.latency {
            field("one_way_ns_min", latency.min);
            field("one_way_ns_median", latency.median);
            field("one_way_ns_p999", latency.p999);
            if !latency.floor.is_nan() {
                field("floor_ns", latency.floor);
            }
        }
        if let Some(bandwidth) = self.bandwidth {
            field("bandwidth_bytes_per_s", bandwidth);
        }
        if let Some(rate) = self.rate {
            field("messages_per_s", rate);
        }
        Value::Object(object)
    }
}

/// The results as a table. Only measured columns are shown.
pub fn table(results: &[SizeResult]) -> String {
    let has = |predicate: fn(&SizeResult) -> bool| results.iter().any(predicate);
    let mut text = format!("{:>9}", "bytes");
    if has(|line| line.latency.is_some()) {
        text += "   min ns  median ns   p99.9 ns   floor ns  x floor";
    }
    if has(|line| line.bandwidth.is_some()) {
        text += "        MB/s";
    }
    if has(|line| line.rate.is_some()) {
        text += "   M messages/s";
    }
    for result in results {
        text += &format!("\n{:>9}", result.size);
        if let Some(Latency { min, median, p999, floor }) = result.latency {
            let ratio = min / floor;
            text += &format!("{min:>9.1}{median:>11.1}{p999:>11.1}");
            text += &match floor.is_nan() {
                true => format!("{:>11}{:>9}", "-", "-"),
                false => format!("{floor:>11.1}{ratio:>9.2}"),
            };
        }
        if let Some(bandwidth) = result.bandwidth {
            text += &format!("{:>12.1}", bandwidth / 1e6);
        }
        if let Some(rate) = result.rate {
            text += &format!("{:>15.2}", rate / 1e6);
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let mut samples = Samples::default();
        assert!(samples.min().is_nan() && samples.quantile(0.5).is_nan());
        (1..=1000).rev().for_each(|n| samples.add(f64::from(n)));
        assert_eq!((samples.min(), samples.max()), (1.0, 1000.0));
        assert_eq!((samples.quantile(0.5), samples.quantile(0.999)), (500.0, 999.0));
    }

    #[test]
    fn unmeasured_columns_are_left_out() {
        let result = SizeResult { size: 8, latency: None, bandwidth: None, rate: Some(4.25e7) };
        assert_eq!(result.json().to_string(), r#"{"messages_per_s":42500000.0,"size":8}"#);
        let text = table(&[result]);
        assert!(text.contains("42.50") && !text.contains("floor"), "{text}");
    }
}
