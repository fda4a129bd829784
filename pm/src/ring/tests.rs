//! The ring against a queue as oracle, and against garbage.

use super::*;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;

const SHAPE: Shape = Shape { slots: 8, lines: 2, data: 2048, home: 512, mtu: 512 };
/// The same where memory is short.
const SMALL: Shape = Shape { lines: 1, home: 0, ..SHAPE };

/// Memory of a ring, all zero.
struct Memory(NonNull<u8>, Shape);

impl Memory {
    fn new() -> Memory {
        Memory::of(SHAPE)
    }

    fn of(shape: Shape) -> Memory {
        // SAFETY: the layout is not empty.
        Memory(NonNull::new(unsafe { alloc_zeroed(layout(shape)) }).unwrap(), shape)
    }

    fn ring(&self) -> Ring {
        // SAFETY: the memory has the shape's size and lives as long as the test.
        unsafe { Ring::new(self.0, self.1) }
    }

    fn scribble(&self, at: usize, word: u64) {
        assert!(at + 8 <= self.1.bytes());
        // SAFETY: inside the memory; as an atomic, like a hostile process's store.
        unsafe { (*self.0.as_ptr().add(at).cast::<AtomicU64>()).store(word, Ordering::Relaxed) };
    }
}

fn layout(shape: Shape) -> Layout {
    Layout::from_size_align(shape.bytes(), 128).unwrap()
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout.
        unsafe { dealloc(self.0.as_ptr(), layout(self.1)) }
    }
}

fn push(producer: &Producer, message: &[u8], reserve: usize) -> bool {
    // By the short way if there is one, every other time.
    if reserve <= producer.inline()
        && message.first().is_some_and(|first| first % 2 == 0)
        && let Some(room) = producer.reserve_short()
    {
        // SAFETY: a slot has room for that many.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), room, message.len()) };
        producer.publish_short(message.len());
        return true;
    }
    match producer.reserve(reserve) {
        Ok(room) => {
            // SAFETY: `reserve` bytes of room, and the message is no longer.
            unsafe {
                std::ptr::copy_nonoverlapping(message.as_ptr(), room.payload, message.len());
            }
            producer.publish(room.position, message.len(), 0);
            true
        }
        Err(error) => {
            assert_eq!(error, Error::NoBuffers);
            false
        }
    }
}

fn pop(consumer: &Consumer) -> Option<Vec<u8>> {
    let message = consumer.take().unwrap()?;
    // SAFETY: valid until release.
    let bytes = unsafe { std::slice::from_raw_parts(message.payload, message.len) }.to_vec();
    consumer.release(message.next, message.data_end());
    Some(bytes)
}

#[derive(Clone, Debug)]
enum Step {
    /// Reserve so much, send so much of it.
    Push(usize, usize),
    Pop,
    /// The sender hears what the receiver has passed.
    Credit,
    /// The sender fetches where its next long message may lie.
    Fetch,
    /// Both processes forget their ends and make them again.
    Again,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..=512usize).prop_flat_map(|r| (Just(r), 1..=r)).prop_map(|(r, n)| Step::Push(r, n)),
        2 => (1..=112usize).prop_map(|n| Step::Push(n, n)),
        5 => Just(Step::Pop),
        1 => Just(Step::Credit),
        1 => Just(Step::Fetch),
        1 => Just(Step::Again),
    ]
}

proptest! {
    #[test]
    fn the_ring_behaves_as_a_queue_of_bounded_length(
        small: bool,
        steps in prop::collection::vec(step(), 1..400)
    ) {
        let memory = Memory::of(if small { SMALL } else { SHAPE });
        let (mut producer, mut consumer) =
            (Producer::new(memory.ring()), Consumer::new(memory.ring()));
        let mut oracle = VecDeque::new();
        let mut serial = 0u8;
        for step in steps {
            match step {
                Step::Push(reserve, len) => {
                    serial = serial.wrapping_add(1);
                    let message: Vec<u8> = (0..len).map(|i| serial.wrapping_add(i as u8)).collect();
                    let sent = push(&producer, &message, reserve);
                    let full = oracle.len() == 8;
                    prop_assert!(!(full && sent));
                    // Three messages of the largest size always fit beside what may be skipped.
                    prop_assert!(sent || full || oracle.iter().map(Vec::len).sum::<usize>() > 512);
                    if sent {
                        oracle.push_back(message);
                    }
                }
                Step::Pop => prop_assert_eq!(pop(&consumer), oracle.pop_front()),
                Step::Credit => producer.credit(memory.ring().consumed()),
                Step::Fetch => {
                    let free = producer.fetch_home(0..9);
                    prop_assert!(free || small || !oracle.is_empty());
                }
                Step::Again => {
                    producer = Producer::new(memory.ring());
                    consumer = Consumer::new(memory.ring());
                }
            }
            prop_assert_eq!(memory.ring().queued(), oracle.len() as u64);
        }
        while let Some(message) = oracle.pop_front() {
            prop_assert_eq!(pop(&consumer), Some(message));
        }
        prop_assert_eq!(pop(&consumer), None);
    }

    #[test]
    fn garbage_anywhere_in_a_ring_never_reaches_beyond_it(
        words in prop::collection::vec((0..SHAPE.bytes() / 8, any::<u64>()), 1..40),
        lens in prop::collection::vec(1..=512usize, 1..20),
    ) {
        let memory = Memory::new();
        let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
        let inside = |at: *mut u8, len: usize| {
            let start = memory.0.as_ptr() as usize;
            at as usize >= start && at as usize + len <= start + SHAPE.bytes()
        };
        let mut lens = lens.iter().cycle();
        for (at, word) in words {
            memory.scribble(at * 8, word);
            let &len = lens.next().unwrap();
            if let Ok(room) = producer.reserve(len) {
                prop_assert!(inside(room.payload, len));
                producer.publish(room.position, len, 0);
            }
            producer.fetch_home(0..99);
            if let Ok(Some(message)) = consumer.take() {
                prop_assert!(message.len >= 1 && message.len <= 512);
                prop_assert!(inside(message.payload, message.len));
                producer.credit(message.passed);
                consumer.release(message.next, message.data_end());
            }
            prop_assert!(memory.ring().queued() <= 8);
            memory.ring().claim_all();
        }
    }

    #[test]
    fn saved_messages_fit_where_they_lay(
        before in prop::collection::vec(1..=512usize, 0..20),
        lens in prop::collection::vec(1..=512usize, 1..9),
        small: bool,
        after in prop::collection::vec(1..=512usize, 0..20),
    ) {
        let shape = if small { SMALL } else { SHAPE };
        let memory = Memory::of(shape);
        let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
        let pass = |len: usize, memory: &Memory| {
            let (producer, consumer) =
                (Producer::new(memory.ring()), Consumer::new(memory.ring()));
            assert!(push(&producer, &vec![1; len], len));
            assert!(pop(&consumer).is_some());
        };
        before.iter().for_each(|&len| pass(len, &memory));
        let mut kept = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            if push(&producer, &vec![i as u8; len], len) {
                kept.push(vec![i as u8; len]);
            }
        }
        // What `save` reads.
        let mut next = memory.ring().consumed();
        let mut positions = Vec::new();
        while let Ok(Some(message)) = consumer.at(next) {
            next = message.next;
            positions.push(message.position);
        }
        let saved: Vec<_> = kept
            .iter()
            .zip(&positions)
            .map(|(payload, &position)| Saved { payload, position })
            .collect();
        prop_assert_eq!(saved.len(), kept.len());
        let other = Memory::of(shape);
        after.iter().for_each(|&len| pass(len, &other));
        prop_assert_eq!(other.ring().refill(&saved), Ok(()));
        let consumer = Consumer::new(other.ring());
        for message in kept {
            prop_assert_eq!(pop(&consumer), Some(message));
        }
        prop_assert_eq!(pop(&consumer), None);
        after.iter().for_each(|&len| pass(len, &other));
    }
}

#[test]
fn marks_wrap_after_four_billion_messages() {
    let memory = Memory::new();
    let nearly = (1 << 32) - 16;
    for i in 0..2 {
        memory.scribble(i * 128, nearly);
    }
    for slot in 0..8 {
        memory.scribble(256 + slot * 128, Word::new(nearly << 32, 1, false).0);
    }
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    for i in 0..100u8 {
        assert!(push(&producer, &[i], 1));
        assert_eq!(pop(&consumer), Some(vec![i]));
        assert_eq!(pop(&consumer), None);
    }
}

#[test]
fn impossible_indices_are_an_error_for_the_sender() {
    let memory = Memory::new();
    let producer = Producer::new(memory.ring());
    memory.scribble(0, 1000);
    assert_eq!(producer.reserve(8).err(), Some(Error::Io));
    let memory = Memory::new();
    let producer = Producer::new(memory.ring());
    memory.scribble(8, 1 << 40);
    assert!((0..2).all(|_| push(&producer, &[0; 512], 512)), "into the homes");
    assert_eq!(producer.reserve(512).err(), Some(Error::Io));
}

#[test]
fn a_claimed_message_is_counted_once_and_passed_over() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    for i in 0..3 {
        assert!(push(&producer, &[i], 1));
    }
    let room = producer.reserve(1).unwrap();
    let (index, word) = producer.publish(room.position, 1, 0);
    assert!(memory.ring().claim(index, word));
    assert!(!memory.ring().claim(index, word));
    assert_eq!(memory.ring().claim_all(), 3);
    assert_eq!(memory.ring().claim_all(), 0);
    assert_eq!(pop(&consumer), None);
    assert!(push(&producer, &[9], 1));
    assert_eq!(pop(&consumer), Some(vec![9]));
}

/// Where the slots of a lap lie, in lines from the first, in the order in which they are used.
fn places(shape: Shape) -> Vec<i64> {
    let memory = Memory::of(shape);
    // SAFETY: the memory has the shape's size and outlives the ring.
    let ring = unsafe { Ring::new(memory.0, shape) };
    let first = memory.0.addr().get() + size_of::<Ends>();
    let line = |index| (std::ptr::from_ref(ring.slot(index)).addr() - first) / LINE;
    let laps = [0, 7 * u64::from(shape.slots)];
    let lap = |start| (start..start + u64::from(shape.slots)).map(line).collect::<Vec<_>>();
    let [one, other] = laps.map(lap);
    assert_eq!(one, other, "{shape:?}");
    one.into_iter().map(|line| line as i64).collect()
}

#[test]
fn each_slot_is_used_once_in_a_lap_and_no_two_steps_in_a_row_are_equal() {
    for (slots, lines) in [(256, 2), (256, 1), (128, 2), (64, 1), (32, 1), (16, 1), (4, 1)] {
        let lap = places(Shape { slots, lines, data: 0, home: 0, mtu: 48 });
        let mut sorted = lap.clone();
        sorted.sort_unstable();
        let expected: Vec<_> = (0..i64::from(slots)).map(|slot| slot * i64::from(lines)).collect();
        assert_eq!(sorted, expected);
        let steps: Vec<_> = lap.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(steps.windows(2).all(|two| two[0] != two[1]), "{slots} {steps:?}");
    }
}

#[test]
fn where_there_is_room_messages_lie_apart_and_any_fits_an_empty_ring() {
    let shape = Shape { slots: 8, lines: 1, data: 64 << 10, home: 0, mtu: 8192 };
    let memory = Memory::of(shape);
    // SAFETY: the memory has the shape's size and outlives the ring.
    let ring = unsafe { Ring::new(memory.0, shape) };
    let (producer, consumer) = (Producer::new(ring), Consumer::new(ring));
    let mut end = 0;
    for (len, gap) in
        [(49, 192), (960, 192), (1024, 4096), (8192, 4096)].into_iter().cycle().take(99)
    {
        let room = producer.reserve(len).unwrap();
        producer.publish(room.position, len, 0);
        let message = consumer.take().unwrap().unwrap();
        let (start, after) = (message.position, message.data_end().unwrap());
        assert!(start - end >= gap, "{len} at {start}, the one before to {end}");
        end = after;
        consumer.release(message.next, Some(after));
    }
}

#[test]
fn a_slot_that_was_looked_up_is_not_used_where_somebody_else_filled_the_ring() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    assert!(producer.reserve_short().is_some());
    let saved =
        [Saved { payload: &[1], position: IN_SLOT }, Saved { payload: &[2], position: IN_SLOT }];
    memory.ring().refill(&saved).unwrap();
    assert!(producer.reserve_short().is_none());
    assert!(push(&producer, &[3], 1) && push(&producer, &[4], 1));
    assert!((1..=4).all(|byte| pop(&consumer) == Some(vec![byte])));
    assert_eq!(pop(&consumer), None);
}

#[test]
fn a_short_way_ends_where_the_room_that_is_known_ends() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    for byte in 0..8 {
        assert!(producer.reserve_short().is_some());
        assert!(push(&producer, &[byte * 2], 1));
    }
    assert!(producer.reserve_short().is_none());
    assert_eq!(pop(&consumer), Some(vec![0]));
    assert!(producer.reserve_short().is_none(), "it has not looked");
    assert!(push(&producer, &[16], 1));
    assert!(producer.reserve_short().is_none());
}

/// Sends `len` bytes and answers their position.
fn position_of(producer: &Producer, len: usize) -> u64 {
    let room = producer.reserve_long(len).unwrap();
    producer.publish(room.position, len, 0);
    room.position
}

#[test]
fn long_messages_lie_in_two_homes_in_turn_as_long_as_these_are_known_to_be_free() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    assert_eq!([0; 3].map(|_| position_of(&producer, 200)), [HOME, HOME + 1, 0]);
    assert!(pop(&consumer).is_some());
    assert!(position_of(&producer, 200) < HOME, "it has not heard of it");
    producer.credit(1);
    assert_eq!(position_of(&producer, 200), HOME);
    assert!(position_of(&producer, 200) < HOME, "the second message is still there");
    assert!((0..2).all(|_| pop(&consumer).is_some()));
    assert!(producer.fetch_home(0..4), "it looks");
    assert_eq!(position_of(&producer, 200), HOME + 1);
    assert!(push(&producer, &[2; 100], 100));
    assert!((0..5).all(|_| pop(&consumer).is_some()));
    assert_eq!(pop(&consumer), None);
}

#[test]
fn a_sender_that_is_told_what_cannot_be_does_not_believe_it() {
    let memory = Memory::new();
    let producer = Producer::new(memory.ring());
    assert_eq!([0; 2].map(|_| position_of(&producer, 200)), [HOME, HOME + 1]);
    for passed in [3, 8, 1 << 40, u64::MAX, HOME] {
        producer.credit(passed);
        assert!(!producer.fetch_home(0..4), "{passed}");
    }
    producer.credit(1);
    producer.credit(0);
    assert!(producer.fetch_home(0..4), "what it knew stays");
}

#[test]
fn what_is_fetched_ahead_is_not_what_somebody_still_reads() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    let message = |byte| vec![byte; 512];
    assert!(push(&producer, &message(1), 512));
    assert!(producer.fetch_home(0..8));
    assert!(push(&producer, &message(2), 512));
    assert!(!producer.fetch_home(0..8));
    assert_eq!(pop(&consumer), Some(message(1)));
    assert!(producer.fetch_home(0..8));
    assert_eq!(pop(&consumer), Some(message(2)));
}
