//! Measures the time that a composite context adds to a message over shared memory. Two threads
//! make round trips, alternately over plain and composite contexts.

// UNSAFETY: writes and reads messages in buffers of PM.
#![expect(unsafe_code)]

use crate::BenchResult;
use crate::hosts;
use crate::raw_packets::SIZE;
use score_pm::{CompositeOptions, Context, ContextRef, Device, Error, ShmemOptions};
use std::hint::black_box;
use std::time::Instant;

/// The number of round trips of one turn, and the number of turns of each kind.
const ROUNDS: u32 = 2_000;
const TURNS: u32 = 200;

/// The contexts of node 0 and node 1, and the objects that must outlive them.
struct ContextPair {
    contexts: [ContextRef; 2],
    _opened: Vec<ContextRef>,
    _devices: Vec<Device>,
}

impl ContextPair {
    fn plain() -> BenchResult<ContextPair> {
        let shmem = Device::open(ShmemOptions::new(2))?;
        let mut opened = Vec::new();
        let mut member = |k: u32| -> BenchResult<ContextRef> {
            let context = shmem.open_context(k as usize)?;
            context.bind_channel(0, k)?;
            let member = Context::attach("shmem", context.create_attach_fd()?)?;
            opened.push(context);
            Ok(member)
        };
        let contexts = [member(0)?, member(1)?];
        Ok(ContextPair { contexts, _opened: opened, _devices: vec![shmem] })
    }

    fn composite() -> BenchResult<ContextPair> {
        let ContextPair { contexts: members, mut _opened, mut _devices } = ContextPair::plain()?;
        let device = Device::open(CompositeOptions::new(2))?;
        let join = |k: usize| -> BenchResult<ContextRef> {
            let context = device.open_context(k)?;
            context.associate_nodes(&members[k], &[(0, 0), (1, 1)])?;
            Ok(context)
        };
        let contexts = [join(0)?, join(1)?];
        _opened.extend(members);
        _devices.push(device);
        Ok(ContextPair { contexts, _opened, _devices })
    }

    /// Sends and receives a message in one thread.
    fn step(&self) -> BenchResult<()> {
        send(&self.contexts[0], 1)?;
        receive(&self.contexts[1])
    }
}

#[inline]
fn send(context: &Context, to: u32) -> BenchResult<()> {
    let buffer = context.get_send_buffer(to, SIZE)?;
    // SAFETY: `get_send_buffer` has reserved `SIZE` bytes, which hold a `u64`.
    unsafe { buffer.cast::<u64>().write(7) };
    Ok(context.send()?)
}

#[inline]
fn receive(context: &Context) -> BenchResult<()> {
    loop {
        match context.receive() {
            Ok((payload, _)) => {
                // SAFETY: the payload is readable until it is released below.
                black_box(unsafe { payload.cast::<u64>().read() });
                return Ok(context.release_receive_buffer()?);
            }
            Err(Error::NoBuffers) => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a line for plain and for composite contexts: ns one way (median and 5 % quantile of
/// turns), and ns of sending and receiving in one thread.
pub fn run(cores: [usize; 2]) -> BenchResult<()> {
    let pairs = [ContextPair::plain()?, ContextPair::composite()?];
    let remote_contexts = pairs.each_ref().map(|pair| pair.contexts[1].reference());
    let remote_contexts =
        remote_contexts.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let echo = move || -> std::result::Result<(), String> {
        hosts::pin(cores[1]).map_err(|error| error.to_string())?;
        for _ in 0..TURNS {
            for context in &remote_contexts {
                for _ in 0..ROUNDS {
                    receive(context)
                        .and_then(|()| send(context, 0))
                        .map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    };
    let echo_thread = std::thread::spawn(echo);
    hosts::pin(cores[0])?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (pair, times) in pairs.iter().zip(&mut times) {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                send(&pair.contexts[0], 1)?;
                receive(&pair.contexts[0])?;
            }
            times.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS));
        }
    }
    echo_thread.join().map_err(|_| "a thread died")??;
    let mut single_thread_ns = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (pair, min_ns) in pairs.iter().zip(&mut single_thread_ns) {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                pair.step()?;
            }
            *min_ns = min_ns.min(begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
    }
    for ((name, times), single_thread_ns) in
        ["plain", "composite"].into_iter().zip(&mut times).zip(single_thread_ns)
    {
        times.sort_by(f64::total_cmp);
        let [median, low] = [2, 20].map(|divisor| times[times.len() / divisor]);
        println!("{name} {median:.1} {low:.1} {single_thread_ns:.1}");
    }
    Ok(())
}
