//! What a composite context adds to a message over shared memory: to and fro between two threads,
//! plain and composite by turns.

// UNSAFETY: writes and reads messages where PM says they lie.
#![expect(unsafe_code)]

use crate::Result;
use crate::hosts;
use crate::pass::SIZE;
use score_pm::{Context, ContextRef, Device, Error};
use std::hint::black_box;
use std::time::Instant;

/// Round trips of one turn, and turns of each.
const ROUNDS: u32 = 2_000;
const TURNS: u32 = 200;

/// Node 0 and node 1, and what keeps them alive.
struct Pair {
    ends: [ContextRef; 2],
    _opened: Vec<ContextRef>,
    _devices: Vec<Device>,
}

impl Pair {
    fn plain() -> Result<Pair> {
        let shmem = Device::open("shmem", &["-nodes", "2"])?;
        let mut opened = Vec::new();
        let mut member = |k: u32| -> Result<ContextRef> {
            let context = shmem.open_context(k as usize)?;
            context.bind_channel(0, k)?;
            let member = Context::attach("shmem", context.create_attach_fd()?)?;
            opened.push(context);
            Ok(member)
        };
        let ends = [member(0)?, member(1)?];
        Ok(Pair { ends, _opened: opened, _devices: vec![shmem] })
    }

    fn composite() -> Result<Pair> {
        let Pair { ends: members, mut _opened, mut _devices } = Pair::plain()?;
        let device = Device::open("composite", &["-nodes", "2"])?;
        let join = |k: usize| -> Result<ContextRef> {
            let end = device.open_context(k)?;
            end.associate_nodes(&members[k], &[(0, 0), (1, 1)])?;
            Ok(end)
        };
        let ends = [join(0)?, join(1)?];
        _opened.extend(members);
        _devices.push(device);
        Ok(Pair { ends, _opened, _devices })
    }

    /// As one thread: what is sent is received at once.
    fn step(&self) -> Result<()> {
        send(&self.ends[0], 1)?;
        receive(&self.ends[1])
    }
}

#[inline]
fn send(end: &Context, to: u32) -> Result<()> {
    let buffer = end.get_send_buffer(to, SIZE)?;
    // SAFETY: as many bytes were reserved.
    unsafe { buffer.cast::<u64>().write(7) };
    Ok(end.send()?)
}

#[inline]
fn receive(end: &Context) -> Result<()> {
    loop {
        match end.receive() {
            Ok((at, _)) => {
                // SAFETY: readable until it is released.
                black_box(unsafe { at.cast::<u64>().read() });
                return Ok(end.release_receive_buffer()?);
            }
            Err(Error::NoBuffers) => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says for plain and composite the ns one way (median, and what one turn in twenty is below), and
/// the ns of sending and receiving in one thread.
pub fn run(cores: [usize; 2]) -> Result<()> {
    let pairs = [Pair::plain()?, Pair::composite()?];
    let others = pairs.each_ref().map(|pair| pair.ends[1].reference());
    let others = others.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let answer = move || -> std::result::Result<(), String> {
        hosts::pin(cores[1]).map_err(|error| error.to_string())?;
        for _ in 0..TURNS {
            for end in &others {
                for _ in 0..ROUNDS {
                    receive(end).and_then(|()| send(end, 0)).map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    };
    let far = std::thread::spawn(answer);
    hosts::pin(cores[0])?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (pair, times) in pairs.iter().zip(&mut times) {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                send(&pair.ends[0], 1)?;
                receive(&pair.ends[0])?;
            }
            times.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS));
        }
    }
    far.join().map_err(|_| "a thread died")??;
    let mut alone = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (pair, least) in pairs.iter().zip(&mut alone) {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                pair.step()?;
            }
            *least = least.min(begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
    }
    for ((who, times), alone) in ["plain", "composite"].into_iter().zip(&mut times).zip(alone) {
        times.sort_by(f64::total_cmp);
        let [median, low] = [2, 20].map(|part| times[times.len() / part]);
        println!("{who} {median:.1} {low:.1} {alone:.1}");
    }
    Ok(())
}
