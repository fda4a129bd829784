//! The ordering rule of manual 3.6.3, as a property: whatever one node does to another's memory, in
//! whichever order and size, it takes effect in that order, and never after a message that was sent
//! later.

use super::bed::*;
use super::memory::*;
use proptest::prelude::*;
use score_pm::*;

const REGIONS: usize = 3;
/// Words of a region: larger than a request of a relay.
const REGION: usize = 40_000;

/// What node 0 does. Regions and places are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Write {
        region: usize,
        at: usize,
        words: usize,
    },
    Read {
        region: usize,
        at: usize,
        words: usize,
    },
    Message,
    /// Node 1 makes so many calls.
    Polls(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..REGIONS, 0..REGION, prop_oneof![1..20usize, 30_000..REGION]);
    prop_oneof![
        4 => place.clone().prop_map(|(region, at, words)| Step::Write { region, at, words }),
        2 => place.prop_map(|(region, at, words)| Step::Read { region, at, words }),
        2 => Just(Step::Message),
        2 => (0..6usize).prop_map(Step::Polls),
    ]
}

fn words<'a>(memory: &'a Memory<'_>) -> &'a [std::sync::atomic::AtomicU64] {
    // SAFETY: aligned, and used as atomics; the writers are in this thread or in the kernel.
    unsafe { std::slice::from_raw_parts(memory.at.cast(), memory.len / 8) }
}

fn load(memory: &Memory<'_>, at: usize) -> u64 {
    words(memory)[at].load(std::sync::atomic::Ordering::Acquire)
}

/// What has been asked for: for each word of each region the stamps written to it, in order.
struct World<'a> {
    bed: &'a Bed,
    there: [Memory<'a>; REGIONS],
    /// One area for each operation, so that none has to wait for another.
    here: Vec<Memory<'a>>,
    /// Region, place, length and stamp of each write.
    writes: Vec<(usize, usize, usize, u64)>,
    /// Where a read goes, what it reads, and how many writes came before it.
    reads: Vec<(usize, usize, usize, usize, usize)>,
    stamp: u64,
}

impl World<'_> {
    fn expected(&self, region: usize, at: usize, writes: usize) -> u64 {
        let mut hits = self.writes[..writes]
            .iter()
            .filter(|&&(r, start, len, _)| r == region && (start..start + len).contains(&at));
        hits.next_back().map_or(0, |&(.., stamp)| stamp)
    }

    fn poll(&self) {
        while let Ok(message) = receive(&self.bed.ends[1]) {
            let count = u64::from_ne_bytes(message.try_into().unwrap()) as usize;
            // Nothing that was asked for before the message may be missing; later writes may be
            // there.
            for &(region, at, len, _) in &self.writes[..count] {
                for at in [at, at + len / 2, at + len - 1] {
                    let least = self.expected(region, at, count);
                    assert!(load(&self.there[region], at) >= least, "overtaken by a message");
                }
            }
        }
        // The latest that is there says that all before it are.
        let seen = self.writes.iter().map(|&(region, at, ..)| load(&self.there[region], at));
        let latest = seen.max().unwrap_or(0) as usize;
        for &(region, at, len, _) in &self.writes[..latest.saturating_sub(1)] {
            let at = at + len - 1;
            let least = self.expected(region, at, latest.saturating_sub(1));
            assert!(load(&self.there[region], at) >= least, "overtaken by a later write");
        }
    }

    fn area(&mut self, kind: Kind, words: usize) -> usize {
        self.here.push(Memory::new(self.bed, 0, kind, words * 8));
        self.here.len() - 1
    }

    fn take(&mut self, step: &Step) {
        let kind = if self.stamp.is_multiple_of(2) { Kind::Ours } else { Kind::Other };
        match *step {
            Step::Write { region, at, words: len } => {
                let len = len.min(REGION - at);
                let area = self.area(kind, len);
                self.stamp += 1;
                for word in words(&self.here[area]) {
                    word.store(self.stamp, std::sync::atomic::Ordering::Relaxed);
                }
                self.writes.push((region, at, len, self.stamp));
                let (to, from) =
                    (self.there[region].handle + at as u64 * 8, self.here[area].handle);
                self.until(|end| end.write(1, to, from, len * 8));
            }
            Step::Read { region, at, words: len } => {
                let len = len.min(REGION - at);
                let area = self.area(kind, len);
                self.reads.push((area, region, at, len, self.writes.len()));
                let (from, to) =
                    (self.there[region].handle + at as u64 * 8, self.here[area].handle);
                self.until(|end| end.read(1, from, to, len * 8));
            }
            Step::Message => {
                let count = (self.writes.len() as u64).to_ne_bytes();
                self.until(|end| send(end, 1, &count));
            }
            Step::Polls(count) => (0..count).for_each(|_| self.poll()),
        }
    }

    fn until(&self, call: impl Fn(&Context) -> Result<()>) {
        while let Err(error) = call(&self.bed.ends[0]) {
            assert!(matches!(error, Error::NoBuffers | Error::Busy), "{error}");
            self.poll();
        }
    }

    fn end(self) {
        let end = &self.bed.ends[0];
        while [end.is_write_done(), end.is_read_done()].contains(&Err(Error::Busy)) {
            self.poll();
        }
        self.poll();
        for &(area, region, at, len, writes) in &self.reads {
            for i in [0, len / 2, len - 1] {
                let expected = self.expected(region, at + i, writes);
                assert_eq!(load(&self.here[area], i), expected, "a read between two writes");
            }
        }
        for &(region, at, len, _) in &self.writes {
            for at in [at, at + len - 1] {
                let expected = self.expected(region, at, self.writes.len());
                assert_eq!(load(&self.there[region], at), expected, "the last one counts");
            }
        }
    }
}

fn holds(kind: &'static str, steps: &[Step]) {
    let bed = Bed::new(kind, 2);
    let region = |kind| Memory::new(&bed, 1, kind, REGION * 8);
    let mut world = World {
        bed: &bed,
        there: [region(Kind::Ours), region(Kind::Other), region(Kind::Other)],
        here: Vec::new(),
        writes: Vec::new(),
        reads: Vec::new(),
        stamp: 0,
    };
    steps.iter().for_each(|step| world.take(step));
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn remote_operations_and_later_messages_keep_their_order(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let _numbers = NUMBERS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        ["composite", "ethernet", "both", "lossy"].iter().for_each(|kind| holds(kind, &steps));
        where_copies_are_refused(|| {
            ["shmem", "composite", "both lossy"].iter().for_each(|kind| holds(kind, &steps));
        });
    }
}
