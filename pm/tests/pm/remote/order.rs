//! Tests the ordering rule of manual 3.6.3 as a property. Operations of one node on the memory of
//! another node, of any kind and size, take effect in their order. They never take effect after a
//! message that was sent later.

use super::memory::*;
use crate::testbed::*;
use proptest::prelude::*;
use score_pm::*;

const REGIONS: usize = 3;
/// The number of words of a region, which is more than one packet carries.
const REGION: usize = 40_000;

/// A step of node 0.
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
    /// Node 1 polls this many times.
    Polls(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..REGIONS, 0..REGION, prop_oneof![1..20usize, 30_000..REGION]);
    prop_oneof![
        4 => range.clone().prop_map(|(region, at, words)| Step::Write { region, at, words }),
        2 => range.prop_map(|(region, at, words)| Step::Read { region, at, words }),
        2 => Just(Step::Message),
        2 => (0..6usize).prop_map(Step::Polls),
    ]
}

fn words<'a>(memory: &'a Memory<'_>) -> &'a [std::sync::atomic::AtomicU64] {
    // SAFETY: the memory is aligned and accessed atomically. Other writes come from this thread or
    // from the kernel.
    unsafe { std::slice::from_raw_parts(memory.at.cast(), memory.len / 8) }
}

fn load(memory: &Memory<'_>, at: usize) -> u64 {
    words(memory)[at].load(std::sync::atomic::Ordering::Acquire)
}

/// The operations so far. Each write stores its own number to all words of its range.
struct OrderModel<'a> {
    bed: &'a TestBed,
    target_regions: [Memory<'a>; REGIONS],
    /// One area for each operation, so that no operation has to wait for another.
    local_areas: Vec<Memory<'a>>,
    /// The region, index, length and value of each write.
    writes: Vec<(usize, usize, usize, u64)>,
    /// The area, region, index and length of each read, and the number of earlier writes.
    reads: Vec<(usize, usize, usize, usize, usize)>,
    last_value: u64,
}

impl OrderModel<'_> {
    fn expected(&self, region: usize, index: usize, writes: usize) -> u64 {
        let mut matching = self.writes[..writes]
            .iter()
            .filter(|&&(r, start, len, _)| r == region && (start..start + len).contains(&index));
        matching.next_back().map_or(0, |&(.., stamp)| stamp)
    }

    fn poll(&self) {
        while let Ok(message) = receive(&self.bed.contexts[1]) {
            let count = u64::from_ne_bytes(message.try_into().unwrap()) as usize;
            // All writes that were started before the message must be visible. Later writes may be
            // visible.
            for &(region, at, len, _) in &self.writes[..count] {
                for at in [at, at + len / 2, at + len - 1] {
                    let min_value = self.expected(region, at, count);
                    assert!(
                        load(&self.target_regions[region], at) >= min_value,
                        "overtaken by a message"
                    );
                }
            }
        }
        // If a write is visible, all earlier writes must be visible.
        let values =
            self.writes.iter().map(|&(region, at, ..)| load(&self.target_regions[region], at));
        let latest = values.max().unwrap_or(0) as usize;
        for &(region, at, len, _) in &self.writes[..latest.saturating_sub(1)] {
            let at = at + len - 1;
            let min_value = self.expected(region, at, latest.saturating_sub(1));
            assert!(
                load(&self.target_regions[region], at) >= min_value,
                "overtaken by a later write"
            );
        }
    }

    fn new_area(&mut self, kind: Kind, words: usize) -> usize {
        self.local_areas.push(Memory::new(self.bed, 0, kind, words * 8));
        self.local_areas.len() - 1
    }

    fn execute(&mut self, step: &Step) {
        let kind = if self.last_value.is_multiple_of(2) { Kind::Allocated } else { Kind::Mapped };
        match *step {
            Step::Write { region, at, words: len } => {
                let len = len.min(REGION - at);
                let area = self.new_area(kind, len);
                self.last_value += 1;
                for word in words(&self.local_areas[area]) {
                    word.store(self.last_value, std::sync::atomic::Ordering::Relaxed);
                }
                self.writes.push((region, at, len, self.last_value));
                let (to, from) = (
                    self.target_regions[region].handle + at as u64 * 8,
                    self.local_areas[area].handle,
                );
                self.retry_until_accepted(|end| end.write(1, to, from, len * 8));
            }
            Step::Read { region, at, words: len } => {
                let len = len.min(REGION - at);
                let area = self.new_area(kind, len);
                self.reads.push((area, region, at, len, self.writes.len()));
                let (from, to) = (
                    self.target_regions[region].handle + at as u64 * 8,
                    self.local_areas[area].handle,
                );
                self.retry_until_accepted(|end| end.read(1, from, to, len * 8));
            }
            Step::Message => {
                let count = (self.writes.len() as u64).to_ne_bytes();
                self.retry_until_accepted(|end| send(end, 1, &count));
            }
            Step::Polls(count) => (0..count).for_each(|_| self.poll()),
        }
    }

    fn retry_until_accepted(&self, call: impl Fn(&Context) -> PmResult<()>) {
        while let Err(error) = call(&self.bed.contexts[0]) {
            assert!(matches!(error, Error::NoBuffers | Error::Busy), "{error}");
            self.poll();
        }
    }

    fn finish(self) {
        let end = &self.bed.contexts[0];
        while [end.is_write_done(), end.is_read_done()].contains(&Err(Error::Busy)) {
            self.poll();
        }
        self.poll();
        for &(area, region, at, len, writes) in &self.reads {
            for i in [0, len / 2, len - 1] {
                let expected = self.expected(region, at + i, writes);
                assert_eq!(load(&self.local_areas[area], i), expected, "a read between two writes");
            }
        }
        for &(region, at, len, _) in &self.writes {
            for at in [at, at + len - 1] {
                let expected = self.expected(region, at, self.writes.len());
                assert_eq!(load(&self.target_regions[region], at), expected, "the last write wins");
            }
        }
    }
}

fn check_order(kind: &'static str, steps: &[Step]) {
    let bed = TestBed::new(kind, 2);
    let region = |kind| Memory::new(&bed, 1, kind, REGION * 8);
    let mut model = OrderModel {
        bed: &bed,
        target_regions: [region(Kind::Allocated), region(Kind::Mapped), region(Kind::Mapped)],
        local_areas: Vec::new(),
        writes: Vec::new(),
        reads: Vec::new(),
        last_value: 0,
    };
    steps.iter().for_each(|step| model.execute(step));
    model.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    // Promise (messages): The ordering rule of 3.6.3 holds: remote operations take effect in their
    // order, and before later messages.
    #[test]
    fn remote_operations_and_later_messages_keep_their_order(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let _ids = share_region_ids();
        for kind in ALL_KINDS {
            check_order(kind, &steps);
        }
    }
}
