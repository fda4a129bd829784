//! The machine's floor: one cache line bounced between the two cores, in memory that both
//! processes map, with nothing around it.

// UNSAFETY: maps shared memory and uses a word of it as an atomic.
#![expect(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;
use score_runtime::sc;

const NAME: &str = ".pmtest-floor";
const PAGE: u64 = 4096;
/// Looks at the line after which the processor is given up once; a process that has its core
/// for itself never gets there.
const PATIENCE: u32 = 1 << 20;

/// The line.
pub struct Floor {
    map: MmapRaw,
    count: u64,
}

impl Floor {
    /// Maps the line. All nodes call; only the two that measure map it, `first` makes it. Nothing,
    /// when there are several hosts: they have no line in common.
    ///
    /// # Errors
    /// The file cannot be made, opened or mapped, or a barrier failed.
    pub fn open(first: bool, second: bool) -> io::Result<Option<Self>> {
        if score_runtime::num_host() > 1 {
            return Ok(None);
        }
        let name = OsStr::new(NAME);
        let mut floor = None;
        if first {
            let file = File::from(sc::create_temporary_file(name)?);
            file.set_len(PAGE)?;
            floor = Some(Self::map(&file)?);
        }
        sc::barrier()?;
        if second {
            floor = Some(Self::map(&File::from(sc::open_temporary_file(name)?))?);
        }
        sc::barrier()?;
        if first {
            sc::unlink_temporary_file(name)?;
        }
        Ok(floor)
    }

    fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != PAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { map: MmapRaw::map_raw(file)?, count: 0 })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping is a page long, page-aligned and lives as long as self; both
        // processes use the word only as an atomic.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast()) }
    }

    /// That many round trips, begun by the first process.
    pub fn bounce(&mut self, first: bool, round_trips: u32) {
        let word = self.word();
        let mut count = self.count;
        for _ in 0..round_trips {
            if first {
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
    let mut looks = 0u32;
    while word.load(Ordering::Acquire) != value {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(PATIENCE) {
            std::thread::yield_now();
        }
    }
}
