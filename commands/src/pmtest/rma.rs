//! `pmtest -rma`: remote memory, beside what the machine does without PM: memcpy in one process,
//! and process_vm_writev and process_vm_readv between the same two.

// UNSAFETY: calls C functions and system calls that take addresses, and reads words that the other
// process writes.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use score_runtime::pm_h::*;
use serde_json::{Map, Value, json};

use crate::pmtest::channel::{Channel, PmError, check};
use crate::pmtest::figures::Samples;
use crate::pmtest::floor::Floor;

type Move = unsafe extern "C" fn(*mut pmContext, c_int, u64, u64, usize) -> c_int;
type IsDone = unsafe extern "C" fn(*mut pmContext) -> c_int;

/// Sizes that are measured when none is named.
pub const SIZES: [usize; 7] = [8, 64, 1024, 4096, 65_536, 1 << 20, 4 << 20];
/// Bytes in a batch, and copies at most.
const BATCH_BYTES: usize = 64 << 20;
const BATCH: usize = 20_000;
/// Batches of each kind, which take turns, at most.
const BATCHES: u32 = 12;
/// Round trips of puts between two looks at the clock, and such batches in a round.
const TRIPS: u64 = 32;
const TRIP_BATCHES: usize = 50;

/// What moves the bytes: the columns of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// pmWrite, pmRead between memory of pmAlloc.
    Ours(bool),
    Memcpy,
    /// pmWrite, pmRead between any other memory.
    Other(bool),
    /// process_vm_writev, process_vm_readv.
    Kernel(bool),
}

const WAYS: [(Way, &str); 7] = [
    (Way::Ours(true), "write_pmalloc"),
    (Way::Ours(false), "read_pmalloc"),
    (Way::Memcpy, "memcpy"),
    (Way::Other(true), "write_other"),
    (Way::Other(false), "read_other"),
    (Way::Kernel(true), "process_vm_writev"),
    (Way::Kernel(false), "process_vm_readv"),
];

/// What was measured for one size.
#[derive(Debug, Clone)]
pub struct RmaFigures {
    size: usize,
    /// Of 8 bytes: minimum and median one way, and the floor; in nanoseconds.
    put: Option<[f64; 3]>,
    /// Bytes per second, in the order of [`WAYS`]; NaN: refused here.
    rates: [f64; WAYS.len()],
}

/// An area here, and its like on the other node.
#[derive(Clone, Copy)]
struct Area {
    at: *mut u8,
    here: u64,
    there: u64,
    /// Its address in the other process.
    far: usize,
}

/// One of the two nodes that measure.
pub struct Rma<'a> {
    channel: &'a Channel,
    context: *mut pmContext,
    first: bool,
    /// Bytes of each area.
    area: usize,
    ours: Area,
    other: Area,
    /// Destination of memcpy.
    third: *mut u8,
    /// The other process, if it has a number among the processes here.
    pid: Option<i32>,
    turn: usize,
    trips: u64,
}

fn plain(area: usize) -> Result<*mut u8, PmError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: asks for new memory anywhere.
    let at = unsafe { libc::mmap(null_mut(), area, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        check("mmap", libc::ENOMEM)?
    }
    Ok(at.cast())
}

impl<'a> Rma<'a> {
    /// Makes the areas and tells the other node of them.
    ///
    /// # Errors
    /// A PM function failed: ENOSYS where the network has no remote memory.
    pub fn new(channel: &'a Channel, first: bool, area: usize) -> Result<Self, PmError> {
        let context = channel.as_ptr();
        let mut at = null_mut();
        // SAFETY: PM checks the context; the place is valid for the call.
        check("pmAlloc", unsafe { pmAlloc(context, area, &raw mut at) })?;
        // SAFETY: that many bytes were just allocated.
        unsafe { at.write_bytes(1, area) };
        let lock = |at: *mut u8| {
            let mut here = 0;
            let peer = c_int::from(first);
            // SAFETY: as above.
            check("pmMLock", unsafe { pmMLock(context, peer, at, area, &raw mut here) })?;
            Ok(Area { at, here, there: 0, far: 0 })
        };
        let (ours, other) = (lock(at)?, lock(plain(area)?)?);
        let third = if first { plain(area)? } else { null_mut() };
        let mut rma = Self {
            channel,
            context,
            first,
            area,
            ours,
            other,
            third,
            pid: None,
            turn: 0,
            trips: 0,
        };
        rma.introduce()?;
        Ok(rma)
    }

    fn peer(&self) -> c_int {
        c_int::from(self.first)
    }

    fn introduce(&mut self) -> Result<(), PmError> {
        let space = process_space();
        let words = [
            self.ours.here,
            self.other.here,
            self.other.at.addr() as u64,
            std::process::id().into(),
            space,
        ];
        let mut bytes = [0; 40];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.channel.send(self.peer(), &bytes)?;
        self.channel.receive(&mut bytes)?;
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        (self.ours.there, self.other.there, self.other.far) = (word(0), word(1), word(2) as usize);
        self.pid = (space != 0 && word(4) == space).then_some(word(3) as i32);
        Ok(())
    }

    /// Everything for one size.
    ///
    /// # Errors
    /// A PM function failed.
    pub fn measure(
        &mut self,
        size: usize,
        floor: Option<&mut Floor>,
        rounds: u32,
    ) -> Result<RmaFigures, PmError> {
        let put = if size == 8 { Some(self.put(floor, rounds)?) } else { None };
        let mut rates: [Samples; WAYS.len()] = [const { Samples::none() }; WAYS.len()];
        for _ in 0..BATCHES.min(rounds) {
            for ((way, _), rates) in WAYS.iter().zip(&mut rates) {
                rates.add(self.batch(*way, size)?);
            }
        }
        Ok(RmaFigures { size, put, rates: rates.map(|rates| rates.max()) })
    }

    /// Bytes per second of one batch: node 0 moves, node 1 answers when it has been told.
    fn batch(&mut self, way: Way, size: usize) -> Result<f64, PmError> {
        let count = (BATCH_BYTES.min(self.area) / size).clamp(1, BATCH);
        let mut word = [0; 8];
        if !self.first {
            self.channel.receive(&mut word)?;
            self.channel.send(0, &word)?;
            return Ok(f64::NAN);
        }
        let start = Instant::now();
        let mut moved = true;
        for _ in 0..count {
            self.turn = if self.turn + 2 * size > self.area { 0 } else { self.turn + size };
            moved &= self.one(way, self.turn, size)?;
        }
        self.finish(way)?;
        self.channel.send(1, &word)?;
        self.channel.receive(&mut word)?;
        let rate = (size * count) as f64 / start.elapsed().as_secs_f64();
        Ok(if moved { rate } else { f64::NAN })
    }

    /// One copy at this place of the areas; false: refused.
    #[inline(always)]
    fn one(&self, way: Way, at: usize, size: usize) -> Result<bool, PmError> {
        match way {
            Way::Ours(write) => self.by_pm(write, self.ours, at, size).map(|()| true),
            Way::Other(write) => self.by_pm(write, self.other, at, size).map(|()| true),
            Way::Memcpy => {
                // SAFETY: both areas are larger than `at` and `size` together.
                unsafe {
                    black_box(self.other.at.add(at))
                        .copy_to_nonoverlapping(self.third.add(at), size)
                };
                black_box(self.third);
                Ok(true)
            }
            Way::Kernel(write) => {
                let Some(pid) = self.pid else { return Ok(false) };
                let part = |base: usize| libc::iovec {
                    iov_base: (base + at) as *mut libc::c_void,
                    iov_len: size,
                };
                let (here, far) = (part(self.other.at.addr()), part(self.other.far));
                let call = if write { libc::process_vm_writev } else { libc::process_vm_readv };
                // SAFETY: the area here is this process's own; the kernel checks the other one.
                let moved = unsafe { call(pid, &raw const here, 1, &raw const far, 1, 0) };
                Ok(moved == size as isize)
            }
        }
    }

    #[inline(always)]
    fn by_pm(&self, write: bool, area: Area, at: usize, size: usize) -> Result<(), PmError> {
        let (call, name) =
            if write { (pmWrite as Move, "pmWrite") } else { (pmRead as Move, "pmRead") };
        let (there, here) = (area.there + at as u64, area.here + at as u64);
        loop {
            // SAFETY: PM checks context and handles; nobody else uses the area.
            match unsafe { black_box(call)(self.context, self.peer(), there, here, size) } {
                libc::ENOBUFS | libc::EBUSY => {}
                code => return check(name, code),
            }
        }
    }

    fn finish(&self, way: Way) -> Result<(), PmError> {
        let (call, name) = match way {
            Way::Ours(true) | Way::Other(true) => (pmIsWriteDone as IsDone, "pmIsWriteDone"),
            Way::Ours(false) | Way::Other(false) => (pmIsReadDone as IsDone, "pmIsReadDone"),
            Way::Memcpy | Way::Kernel(_) => return Ok(()),
        };
        loop {
            // SAFETY: PM checks the context.
            match unsafe { call(self.context) } {
                libc::EBUSY => {}
                code => return check(name, code),
            }
        }
    }

    /// Puts of 8 bytes that go to and fro, each answered when it is seen in memory; minimum,
    /// median and floor.
    fn put(&mut self, mut floor: Option<&mut Floor>, rounds: u32) -> Result<[f64; 3], PmError> {
        let [mut line, mut batch] = [const { Samples::none() }; 2];
        // SAFETY: the first words of the area, aligned; the other process writes the first only.
        let (seen, sent) = unsafe {
            (
                AtomicU64::from_ptr(self.ours.at.cast()),
                AtomicU64::from_ptr(self.ours.at.add(128).cast()),
            )
        };
        seen.store(0, Ordering::Release);
        self.pause()?;
        let per_trip = |start: Instant| start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64;
        for _ in 0..rounds {
            for _ in 0..TRIP_BATCHES {
                if let Some(floor) = &mut floor {
                    let start = Instant::now();
                    floor.bounce(self.first, TRIPS as u32);
                    line.add(per_trip(start));
                }
            }
            for _ in 0..TRIP_BATCHES {
                let start = Instant::now();
                for _ in 0..TRIPS {
                    self.trips += 1;
                    if !self.first {
                        await_word(seen, self.trips);
                    }
                    sent.store(self.trips, Ordering::Relaxed);
                    self.put_word()?;
                    if self.first {
                        await_word(seen, self.trips);
                    }
                }
                batch.add(per_trip(start));
            }
        }
        self.finish(Way::Ours(true))?;
        self.pause()?;
        self.trips = 0;
        Ok([batch.min(), batch.quantile(0.5), line.min()])
    }

    #[inline(always)]
    fn put_word(&self) -> Result<(), PmError> {
        let Area { here, there, .. } = self.ours;
        loop {
            // SAFETY: as in `by_pm`.
            match unsafe {
                black_box(pmWrite as Move)(self.context, self.peer(), there, here + 128, 8)
            } {
                libc::ENOBUFS | libc::EBUSY => {}
                code => return check("pmWrite", code),
            }
        }
    }

    /// Until both are here.
    fn pause(&self) -> Result<(), PmError> {
        let mut word = [0; 8];
        self.channel.send(self.peer(), &word)?;
        self.channel.receive(&mut word).map(drop)
    }
}

/// That many puts of 8 bytes from the first of two nodes of this process to the second.
///
/// # Errors
/// A PM function failed, or a word did not come (EIO).
pub fn alone(ends: &[Channel; 2], puts: u64) -> Result<(), PmError> {
    let mut words = [(null_mut(), 0); 2];
    for (end, (at, handle)) in ends.iter().zip(&mut words) {
        // SAFETY: PM checks the context; the places are valid for the calls.
        check("pmAlloc", unsafe { pmAlloc(end.as_ptr(), 8, &raw mut *at) })?;
        // SAFETY: as above.
        check("pmMLock", unsafe { pmMLock(end.as_ptr(), -1, *at, 8, &raw mut *handle) })?;
    }
    // SAFETY: 8 bytes each at the begin of a page, used as words only.
    let [from, to] = words.map(|(at, _)| unsafe { AtomicU64::from_ptr(at.cast()) });
    for number in 1..=puts {
        from.store(number, Ordering::Relaxed);
        // SAFETY: PM checks context and handles.
        let code =
            unsafe { black_box(pmWrite as Move)(ends[0].as_ptr(), 1, words[1].1, words[0].1, 8) };
        check("pmWrite", code)?;
        if to.load(Ordering::Acquire) != number {
            check("pmWrite", libc::EIO)?;
        }
    }
    Ok(())
}

/// Says on which machine and in which space process numbers of this process hold. 0: unknown.
fn process_space() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = boot.replace('-', "");
    let machine = digits.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let space = std::fs::metadata("/proc/self/ns/pid").map(|space| space.ino());
    machine.zip(space.ok()).map_or(0, |(machine, space)| machine ^ space.rotate_left(32))
}

fn await_word(word: &AtomicU64, value: u64) {
    let mut looks = 0u32;
    while word.load(Ordering::Acquire) != value {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1 << 20) {
            std::thread::yield_now();
        }
        // Who looks without a pause takes the line from the process that is about to write it.
        std::hint::spin_loop();
    }
}

/// Why a size cannot be measured.
///
/// # Errors
/// The size: it is more than `most`.
pub fn sizes(named: &[usize], most: usize) -> Result<Vec<usize>, usize> {
    if named.is_empty() {
        return Ok(SIZES.into_iter().filter(|size| *size <= most).collect());
    }
    match named.iter().find(|size| **size > most) {
        Some(size) => Err(*size),
        None => Ok(named.to_vec()),
    }
}

/// The JSON object of `-json`.
pub fn json(line: &RmaFigures) -> Value {
    let mut object = Map::from_iter([("size".to_owned(), json!(line.size))]);
    let mut field = |name: String, value: f64| {
        if !value.is_nan() {
            object.insert(name, json!((value * 10.0).round() / 10.0));
        }
    };
    if let Some([min, median, floor]) = line.put {
        field("put_ns_min".into(), min);
        field("put_ns_median".into(), median);
        field("floor_ns".into(), floor);
    }
    for ((_, name), rate) in WAYS.iter().zip(line.rates) {
        field(format!("{name}_bytes_per_s"), rate);
    }
    Value::Object(object)
}

/// The figures as a table.
pub fn table(lines: &[RmaFigures]) -> String {
    let mut text = String::new();
    for RmaFigures { put, .. } in lines {
        let Some([min, median, floor]) = put else { continue };
        text += &format!("put of 8 bytes: min {min:.1} ns, median {median:.1} ns");
        text += &match floor.is_nan() {
            true => "\n".to_owned(),
            false => format!(", floor {floor:.1} ns, x floor {:.2}\n", min / floor),
        };
    }
    text += &format!(
        "MB/s{:>16}{:>8}{:>8}{:>14}{:>8}{:>16}\n{:>9}{:>11}{:>8}{:>8}{:>14}{:>8}{:>8}{:>8}",
        "pmAlloc",
        "",
        "memcpy",
        "other memory",
        "",
        "process_vm_",
        "bytes",
        "write",
        "read",
        "",
        "write",
        "read",
        "writev",
        "readv"
    );
    for line in lines {
        text += &format!("\n{:>9}", line.size);
        for (rate, width) in line.rates.into_iter().zip([11, 8, 8, 14, 8, 8, 8]) {
            text += &match rate.is_nan() {
                true => format!("{:>width$}", "-"),
                false => format!("{:>width$.0}", rate / 1e6),
            };
        }
    }
    text + "\n"
}

/// Answers why there are no figures, in words for the user.
pub fn explain(option: &str, error: &PmError) -> String {
    if error.is(libc::ENOSYS) {
        let why = io::Error::from_raw_os_error(libc::ENOSYS);
        return format!("{option}: the network between nodes 0 and 1 has no remote memory ({why})");
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_left_out() {
        let mut rates = [f64::NAN; WAYS.len()];
        rates[0] = 2e9;
        let line = RmaFigures { size: 8, put: Some([50.0, 60.0, f64::NAN]), rates };
        let json = json(&line).to_string();
        assert!(json.contains("write_pmalloc") && !json.contains("floor"), "{json}");
        let text = table(&[line]);
        assert!(text.contains("2000") && text.contains('-') && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        assert_eq!(sizes(&[], 64 << 20).unwrap(), SIZES);
        assert_eq!(sizes(&[], 1024).unwrap(), [8, 64, 1024]);
        assert_eq!(sizes(&[8, 1025], 1024), Err(1025));
    }
}
