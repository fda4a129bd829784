//! `-pairs`: nodes two and two bounce a message as long as the clock runs, more pairs than cores
//! if need be. How evenly does the machine share itself?
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use score_runtime::sc;
use serde_json::{Value, json};
use thiserror::Error;

use crate::pmtest::channel::{Channel, PmError};
use crate::station::Place;

const DURATION: Duration = Duration::from_secs(2);
/// Round trips between two looks at the clock.
const BATCH: u32 = 16;
const GO_ON: [u8; 8] = [0; 8];
const STOP: [u8; 8] = [0xff; 8];

/// Why the pairs could not be measured.
#[derive(Debug, Error)]
pub enum PairError {
    /// An odd node would be alone.
    #[error("-pairs needs an even number of nodes, not {0}")]
    Odd(u32),
    /// The network failed.
    #[error(transparent)]
    Pm(#[from] PmError),
    /// sc_barrier failed.
    #[error("sc_barrier: {0}")]
    Barrier(#[from] io::Error),
}

/// Round trips per second of each pair, on node 0; nothing on the others.
///
/// # Errors
/// See [`PairError`].
pub fn run(channel: &Channel, place: Place) -> Result<Vec<f64>, PairError> {
    if !place.nodes.is_multiple_of(2) {
        return Err(PairError::Odd(place.nodes));
    }
    sc::barrier()?;
    let node = place.node as c_int;
    let rate = if node % 2 == 0 { lead(channel, node + 1)? } else { follow(channel, node - 1)? };
    sc::barrier()?;
    let mut rates = vec![0.0; place.nodes as usize / 2];
    match node {
        0 => {
            rates[0] = rate;
            for _ in 1..rates.len() {
                let mut told = [0; 16];
                channel.receive(&mut told)?;
                let [pair, bits] = [&told[..8], &told[8..]]
                    .map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()));
                if let Some(slot) = rates.get_mut(pair as usize) {
                    *slot = f64::from_bits(bits);
                }
            }
        }
        _ if node % 2 == 0 => {
            let pair = u64::from(place.node / 2).to_le_bytes();
            channel.send(0, &[pair, rate.to_bits().to_le_bytes()].concat())?;
        }
        _ => {}
    }
    Ok(rates)
}

fn lead(channel: &Channel, peer: c_int) -> Result<f64, PmError> {
    let (start, mut count, mut into) = (Instant::now(), 0u64, [0; 8]);
    loop {
        for _ in 0..BATCH {
            channel.send(peer, &GO_ON)?;
            channel.receive(&mut into)?;
        }
        count += u64::from(BATCH);
        let elapsed = start.elapsed();
        if elapsed >= DURATION {
            channel.send(peer, &STOP)?;
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
    }
}

fn follow(channel: &Channel, peer: c_int) -> Result<f64, PmError> {
    let mut into = [0; 8];
    loop {
        channel.receive(&mut into)?;
        if into == STOP {
            return Ok(0.0);
        }
        channel.send(peer, &into)?;
    }
}

/// What `-pairs -json` prints.
pub fn json(rates: &[f64]) -> Value {
    let line =
        |(pair, rate): (usize, &f64)| json!({"pair": pair, "round_trips_per_s": rate.round()});
    rates.iter().enumerate().map(line).collect()
}

/// What `-pairs` prints.
pub fn table(rates: &[f64]) -> String {
    let mut text = String::from("pair   round trips/s\n");
    for (pair, rate) in rates.iter().enumerate() {
        text += &format!("{pair:>4}{rate:>16.0}\n");
    }
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    text + &format!("mean{mean:>16.0}\nleast{least:>15.0}  ({:.2} of the mean)\n", least / mean)
}
