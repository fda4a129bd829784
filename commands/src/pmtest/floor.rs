//! Two baselines, in memory that both processes map. The floor: the two cores only bounce one cache
//! line. The bare ring: each bounce has a payload, which one process copies in and the other copies
//! out.

// UNSAFETY: maps shared memory, uses words of it as atomics and copies into and out of the rest.
#![expect(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;
use score_runtime::sc;

const FILE_NAME: &str = ".pmtest-floor";
const PAGE: usize = 4096;
/// Bytes of the ring for the payloads of one direction. libpm has as many bytes for two nodes.
const BUFFER_LEN: usize = 256 << 10;
const MAPPING_LEN: usize = PAGE + 2 * BUFFER_LEN;
/// Bytes between the words of the page, because the processor may prefetch the adjacent line.
const LINE_STRIDE_LEN: usize = 128;
/// Number of polls of the line after which the process yields once. A process that has a core to
/// itself never polls that often.
const SPINS_BEFORE_YIELD: u32 = 1 << 20;

/// The memory of the two baselines.
pub struct FloorProbe {
    map: MmapRaw,
    count: u64,
    /// Payloads that were sent in each direction through the bare ring.
    exchange_count: u64,
}

impl FloorProbe {
    /// Maps the memory. All nodes must call this. Only the two measuring nodes map the memory, and
    /// the node with `is_first` creates it. Returns `None` if there are several hosts, because they
    /// share no memory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created, opened or mapped, or if a barrier failed.
    pub fn open(is_first: bool, is_second: bool) -> io::Result<Option<Self>> {
        if score_runtime::num_host() > 1 {
            return Ok(None);
        }
        let name = OsStr::new(FILE_NAME);
        let mut floor = None;
        if is_first {
            let file = File::from(sc::create_temporary_file(name)?);
            file.set_len(MAPPING_LEN as u64)?;
            floor = Some(Self::map(&file)?);
        }
        sc::barrier()?;
        if is_second {
            floor = Some(Self::map(&File::from(sc::open_temporary_file(name)?))?);
        }
        sc::barrier()?;
        if is_first {
            sc::unlink_temporary_file(name)?;
        }
        Ok(floor)
    }

    fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != MAPPING_LEN as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { map: MmapRaw::map_raw(file)?, count: 0, exchange_count: 0 })
    }

    /// The words of the page: word 0 is bounced. Words 1 and 2 count the payloads of the first and
    /// of the second process.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE / LINE_STRIDE_LEN);
        // SAFETY: the word is inside the first page of the mapping, is aligned, and is valid as
        // long as self. Both processes use the words only as atomics.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(index * LINE_STRIDE_LEN).cast()) }
    }

    /// The address of the payload with this number, in the area of the sending process.
    fn payload(&self, is_first: bool, number: u64, size: usize) -> *mut u8 {
        let slots = BUFFER_LEN / size.next_multiple_of(64);
        let offset = number as usize % slots * size.next_multiple_of(64);
        // SAFETY: the payload ends inside the area of that direction.
        unsafe { self.map.as_mut_ptr().add(PAGE + usize::from(!is_first) * BUFFER_LEN + offset) }
    }

    /// Does `round_trips` round trips with the bytes of `out`. The other process reads them into
    /// its `into`.
    ///
    /// # Panics
    /// If `out` is empty or does not fit into the ring or `into`. No message of PM is that long.
    pub fn exchange(&mut self, is_first: bool, round_trips: u32, out: &[u8], into: &mut [u8]) {
        let size = out.len();
        assert!((1..=BUFFER_LEN).contains(&size) && size <= into.len());
        for number in self.exchange_count..self.exchange_count + u64::from(round_trips) {
            let send = || {
                let to = self.payload(is_first, number, size);
                // SAFETY: the payload has `size` bytes. The other process reads it only after the
                // word has changed, and never writes to the area of this direction.
                unsafe { out.as_ptr().copy_to_nonoverlapping(to, size) };
                self.word(2 - usize::from(is_first)).store(number + 1, Ordering::Release);
            };
            if is_first {
                send();
            }
            await_value(self.word(1 + usize::from(is_first)), number + 1);
            let from = self.payload(!is_first, number, size);
            // SAFETY: the payload has `size` bytes, and `into` is not shorter. The payload was
            // written before the word.
            unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), size) };
            if !is_first {
                send();
            }
        }
        self.exchange_count += u64::from(round_trips);
    }

    /// Does `round_trips` round trips of the cache line. The first process begins.
    pub fn bounce(&mut self, is_first: bool, round_trips: u32) {
        let word = self.word(0);
        let mut count = self.count;
        for _ in 0..round_trips {
            if is_first {
                word.store(count + 1, Ordering::Release);
                await_value(word, count + 2);
            } else {
                await_value(word, count + 1);
                word.store(count + 2, Ordering::Release);
            }
            count += 2;
        }
        self.count = count;
    }
}

fn await_value(word: &AtomicU64, value: u64) {
    let mut polls = 0u32;
    while word.load(Ordering::Acquire) != value {
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(SPINS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
    }
}
