//! `-pairs`: pairs of nodes bounce a message for a fixed time. There may be more pairs than cores.
//! The result shows how evenly the pairs share the processors.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use score_runtime::sc;
use serde_json::{Value, json};
use thiserror::Error;

use crate::pmtest::channel::{Channel, PmError};
use crate::runner::NodeIdentity;

const MEASURE_WINDOW: Duration = Duration::from_secs(2);
/// Round trips between two reads of the clock.
const BATCH: u32 = 16;
const CONTINUE_MESSAGE: [u8; 8] = [0; 8];
const STOP_MESSAGE: [u8; 8] = [0xff; 8];

/// An error of the measurement.
#[derive(Debug, Error)]
pub enum PairError {
    /// An odd number of nodes.
    #[error("-pairs needs an even number of nodes, not {0}")]
    Odd(u32),
    /// The network failed.
    #[error(transparent)]
    Pm(#[from] PmError),
    /// sc_barrier failed.
    #[error("sc_barrier: {0}")]
    Barrier(#[from] io::Error),
}

/// Measures the round trips per second. Only node 0 gets the rates of all pairs.
///
/// # Errors
/// See [`PairError`].
pub fn run(channel: &Channel, identity: NodeIdentity) -> Result<Vec<f64>, PairError> {
    if !identity.nodes.is_multiple_of(2) {
        return Err(PairError::Odd(identity.nodes));
    }
    sc::barrier()?;
    let node = identity.node as c_int;
    let rate = if node % 2 == 0 {
        run_initiator(channel, node + 1)?
    } else {
        run_responder(channel, node - 1)?
    };
    sc::barrier()?;
    let mut rates = vec![0.0; identity.nodes as usize / 2];
    match node {
        0 => {
            rates[0] = rate;
            for _ in 1..rates.len() {
                let mut report = [0; 16];
                channel.receive(&mut report)?;
                let [pair, bits] = [&report[..8], &report[8..]]
                    .map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()));
                if let Some(slot) = rates.get_mut(pair as usize) {
                    *slot = f64::from_bits(bits);
                }
            }
        }
        _ if node % 2 == 0 => {
            let pair = u64::from(identity.node / 2).to_le_bytes();
            channel.send(0, &[pair, rate.to_bits().to_le_bytes()].concat())?;
        }
        _ => {}
    }
    Ok(rates)
}

fn run_initiator(channel: &Channel, peer: c_int) -> Result<f64, PmError> {
    let (start, mut count, mut into) = (Instant::now(), 0u64, [0; 8]);
    loop {
        for _ in 0..BATCH {
            channel.send(peer, &CONTINUE_MESSAGE)?;
            channel.receive(&mut into)?;
        }
        count += u64::from(BATCH);
        let elapsed = start.elapsed();
        if elapsed >= MEASURE_WINDOW {
            channel.send(peer, &STOP_MESSAGE)?;
            return Ok(count as f64 / elapsed.as_secs_f64());
        }
    }
}

fn run_responder(channel: &Channel, peer: c_int) -> Result<f64, PmError> {
    let mut into = [0; 8];
    loop {
        channel.receive(&mut into)?;
        if into == STOP_MESSAGE {
            return Ok(0.0);
        }
        channel.send(peer, &into)?;
    }
}

/// The output of `-pairs -json`.
pub fn json(rates: &[f64]) -> Value {
    let line =
        |(pair, rate): (usize, &f64)| json!({"pair": pair, "round_trips_per_s": rate.round()});
    rates.iter().enumerate().map(line).collect()
}

/// The output of `-pairs`.
pub fn table(rates: &[f64]) -> String {
    let mut text = String::from("pair   round trips/s\n");
    for (pair, rate) in rates.iter().enumerate() {
        text += &format!("{pair:>4}{rate:>16.0}\n");
    }
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let min = rates.iter().copied().fold(f64::INFINITY, f64::min);
    text + &format!("mean{mean:>16.0}\nleast{min:>15.0}  ({:.2} of the mean)\n", min / mean)
}
