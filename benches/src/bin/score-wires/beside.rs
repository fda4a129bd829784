//! Remote memory beside messages, in one pair of processes and in turns of milliseconds: where the
//! host places two virtual processors changes within seconds, and makes a factor of two.

use crate::Result;
use crate::node::{AREA, Node};
use score_pm::AddrHandle;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(40);
/// Messages of these lengths say something; others are full ones.
const GO: usize = 2;
const END: usize = 1;
const PIECE: usize = 1 << 20;

impl Node {
    /// By the one who calls: the median of the ratios of all turns, what a quarter of them is below
    /// and above, and the medians of both rates in Gbit/s.
    pub fn beside(&self, write: bool, other: bool, time: Duration) -> Result<String> {
        let areas = self.areas(other)?;
        let (mut messages, mut moved, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let begin = Instant::now();
        // Windows open meanwhile.
        let warm = begin + Duration::from_millis(300);
        while begin.elapsed() < time + Duration::from_millis(300) {
            let one = if write { self.pour()? } else { self.drain()? };
            let two = self.move_turn(write, areas)?;
            if Instant::now() > warm {
                messages.push(one);
                moved.push(two);
                ratios.push(two / one);
            }
        }
        self.send(END)?;
        let [_, messages, _] = quarters(messages);
        let [_, moved, _] = quarters(moved);
        let [low, ratio, high] = quarters(ratios);
        Ok(format!("{ratio:.3} {low:.3} {high:.3} {messages:.3} {moved:.3}"))
    }

    /// By the other one.
    pub fn is_beside(&self, other: bool) -> Result<()> {
        self.areas(other)?;
        loop {
            match self.receive()?.ok_or("nothing came")? {
                END => return Ok(()),
                GO => {
                    self.pour()?;
                    self.send(END)?;
                }
                _ => {}
            }
        }
    }

    /// Sends full messages for a turn; Gbit/s until they are there.
    fn pour(&self) -> Result<f64> {
        let (len, begin, mut bytes) = (self.mtu()?, Instant::now(), 0);
        while begin.elapsed() < TURN {
            for _ in 0..64 {
                if !self.try_send(len)? {
                    break;
                }
                bytes += len;
            }
        }
        while !self.has_sent()? {}
        Ok(bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64)
    }

    /// Has the other one send, and takes it.
    fn drain(&self) -> Result<f64> {
        self.send(GO)?;
        let (begin, mut bytes) = (Instant::now(), 0);
        loop {
            match self.receive()?.ok_or("nothing came")? {
                END => return Ok(bytes as f64 * 8.0 / begin.elapsed().as_nanos() as f64),
                len => bytes += len,
            }
        }
    }

    fn move_turn(&self, write: bool, areas: [AddrHandle; 2]) -> Result<f64> {
        let (begin, mut at) = (Instant::now(), 0u64);
        while begin.elapsed() < TURN {
            if self.begin(write, areas, at, PIECE.min(AREA))? {
                at += PIECE as u64;
            }
        }
        while !self.has_moved(write)? {}
        Ok(at as f64 * 8.0 / begin.elapsed().as_nanos() as f64)
    }
}

fn quarters(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| all.get(all.len() * part / 4).copied().unwrap_or(f64::NAN))
}
