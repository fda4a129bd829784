//! Compares remote memory with messages between the same two processes. They alternate every 40 ms,
//! because the hypervisor moves the two virtual processors within seconds, which changes all rates.

use crate::BenchResult;
use crate::node::{AREA, ConnectedNode};
use score_pm::AddrHandle;
use std::time::{Duration, Instant};

const ALTERNATION_INTERVAL: Duration = Duration::from_millis(40);
/// The length of control messages. All other messages have the maximum length.
const GO_LEN: usize = 2;
const END_LEN: usize = 1;
const CHUNK_LEN: usize = 1 << 20;

impl ConnectedNode {
    /// Runs on the measuring node. Returns the median of the ratios of all turns, the lower and
    /// upper quartile of the ratios, and the medians of both rates in Gbit/s.
    pub fn alternate(
        &self,
        is_write: bool,
        other_memory: bool,
        time: Duration,
    ) -> BenchResult<String> {
        let areas = self.exchange_areas(other_memory)?;
        let (mut message_rates, mut rma_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let begin = Instant::now();
        // During this time the windows open.
        let measure_from = begin + Duration::from_millis(300);
        while begin.elapsed() < time + Duration::from_millis(300) {
            let message_rate =
                if is_write { self.send_for_interval()? } else { self.receive_for_interval()? };
            let rma_rate = self.rma_for_interval(is_write, areas)?;
            if Instant::now() > measure_from {
                message_rates.push(message_rate);
                rma_rates.push(rma_rate);
                ratios.push(rma_rate / message_rate);
            }
        }
        self.send(END_LEN)?;
        let [_, message_median, _] = quartiles(message_rates);
        let [_, rma_median, _] = quartiles(rma_rates);
        let [low, ratio, high] = quartiles(ratios);
        Ok(format!("{ratio:.3} {low:.3} {high:.3} {message_median:.3} {rma_median:.3}"))
    }

    /// Runs on the other node.
    pub fn serve_alternation(&self, other_memory: bool) -> BenchResult<()> {
        self.exchange_areas(other_memory)?;
        loop {
            match self.receive()?.ok_or("no message arrived")? {
                END_LEN => return Ok(()),
                GO_LEN => {
                    self.send_for_interval()?;
                    self.send(END_LEN)?;
                }
                _ => {}
            }
        }
    }

    /// Sends messages of the maximum length for a turn. Returns Gbit/s, including the time until
    /// they have arrived.
    fn send_for_interval(&self) -> BenchResult<f64> {
        let (len, begin, mut bytes) = (self.mtu()?, Instant::now(), 0);
        while begin.elapsed() < ALTERNATION_INTERVAL {
            for _ in 0..64 {
                if !self.try_send(len)? {
                    break;
                }
                bytes += len;
            }
        }
        while !self.is_send_done()? {}
        Ok(bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64)
    }

    /// Lets the peer send for a turn, and receives its messages.
    fn receive_for_interval(&self) -> BenchResult<f64> {
        self.send(GO_LEN)?;
        let (begin, mut bytes) = (Instant::now(), 0);
        loop {
            match self.receive()?.ok_or("no message arrived")? {
                END_LEN => return Ok(bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64),
                len => bytes += len,
            }
        }
    }

    fn rma_for_interval(&self, is_write: bool, areas: [AddrHandle; 2]) -> BenchResult<f64> {
        let (begin, mut offset) = (Instant::now(), 0u64);
        while begin.elapsed() < ALTERNATION_INTERVAL {
            if self.begin_rma(is_write, areas, offset, CHUNK_LEN.min(AREA))? {
                offset += CHUNK_LEN as u64;
            }
        }
        while !self.is_rma_done(is_write)? {}
        Ok(offset as f64 * 8.0 / begin.elapsed().as_nanos() as f64)
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| values.get(values.len() * part / 4).copied().unwrap_or(f64::NAN))
}
