//! Tests of the ring. One compares its results with those of a queue. Another fills its memory with
//! random bytes.

use super::*;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::VecDeque;

const GEOMETRY: RingGeometry = RingGeometry {
    slot_count: 8,
    lines_per_slot: 2,
    data_len: 2048,
    fixed_buffer_stride: 512,
    mtu: 512,
};
/// Like `GEOMETRY`, without fixed buffers and second lines.
const SMALL: RingGeometry = RingGeometry { lines_per_slot: 1, fixed_buffer_stride: 0, ..GEOMETRY };

/// Memory of a ring, all zero.
struct Memory(NonNull<u8>, RingGeometry);

impl Memory {
    fn new() -> Memory {
        Memory::of(GEOMETRY)
    }

    fn of(geometry: RingGeometry) -> Memory {
        // SAFETY: the layout is not empty.
        Memory(NonNull::new(unsafe { alloc_zeroed(layout(geometry)) }).unwrap(), geometry)
    }

    fn ring(&self) -> Ring {
        // SAFETY: the memory has the geometry's size and lives as long as the test.
        unsafe { Ring::new(self.0, self.1) }
    }

    fn overwrite_word(&self, offset: usize, word: u64) {
        assert!(offset + 8 <= self.1.bytes());
        // SAFETY: inside the memory; as an atomic, like a hostile process's store.
        unsafe {
            (*self.0.as_ptr().add(offset).cast::<AtomicU64>()).store(word, Ordering::Relaxed)
        };
    }
}

fn layout(geometry: RingGeometry) -> Layout {
    Layout::from_size_align(geometry.bytes(), 128).unwrap()
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout.
        unsafe { dealloc(self.0.as_ptr(), layout(self.1)) }
    }
}

fn push(producer: &Producer, message: &[u8], reserve: usize) -> bool {
    // Every other message uses `reserve_inline` if possible.
    if reserve <= producer.max_inline_len()
        && message.first().is_some_and(|first| first % 2 == 0)
        && let Some(payload) = producer.reserve_inline()
    {
        // SAFETY: a slot has room for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), payload, message.len()) };
        producer.publish_inline(message.len());
        return true;
    }
    match producer.reserve(reserve) {
        Ok(reservation) => {
            // SAFETY: `reserve` bytes of room, and the message is no longer.
            unsafe {
                std::ptr::copy_nonoverlapping(message.as_ptr(), reservation.payload, message.len());
            }
            producer.publish(reservation.position, message.len(), 0);
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
    consumer.release(message.next_index, message.data_end());
    Some(bytes)
}

#[derive(Clone, Debug)]
enum Step {
    /// Reserve the first number of bytes, and send the second number of them.
    Push(usize, usize),
    Pop,
    /// The sender gets the receiver's index.
    Credit,
    /// The sender prefetches the fixed buffer of its next long message.
    Prefetch,
    /// Both processes drop their ends and create them again.
    Recreate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..=512usize).prop_flat_map(|r| (Just(r), 1..=r)).prop_map(|(r, n)| Step::Push(r, n)),
        2 => (1..=112usize).prop_map(|n| Step::Push(n, n)),
        5 => Just(Step::Pop),
        1 => Just(Step::Credit),
        1 => Just(Step::Prefetch),
        1 => Just(Step::Recreate),
    ]
}

proptest! {
    #[test]
    fn the_ring_behaves_as_a_queue_of_bounded_length(
        small: bool,
        steps in prop::collection::vec(step(), 1..400)
    ) {
        let memory = Memory::of(if small { SMALL } else { GEOMETRY });
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
                    // Three messages of the largest size always fit in addition to a skipped rest.
                    prop_assert!(sent || full || oracle.iter().map(Vec::len).sum::<usize>() > 512);
                    if sent {
                        oracle.push_back(message);
                    }
                }
                Step::Pop => prop_assert_eq!(pop(&consumer), oracle.pop_front()),
                Step::Credit => producer.on_credit(memory.ring().consumer_index()),
                Step::Prefetch => {
                    let free = producer.prefetch_fixed_buffer(0..9);
                    prop_assert!(free || small || !oracle.is_empty());
                }
                Step::Recreate => {
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
        words in prop::collection::vec((0..GEOMETRY.bytes() / 8, any::<u64>()), 1..40),
        lens in prop::collection::vec(1..=512usize, 1..20),
    ) {
        let memory = Memory::new();
        let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
        let inside = |ptr: *mut u8, len: usize| {
            let start = memory.0.as_ptr() as usize;
            ptr as usize >= start && ptr as usize + len <= start + GEOMETRY.bytes()
        };
        let mut lens = lens.iter().cycle();
        for (index, word) in words {
            memory.overwrite_word(index * 8, word);
            let &len = lens.next().unwrap();
            if let Ok(reservation) = producer.reserve(len) {
                prop_assert!(inside(reservation.payload, len));
                producer.publish(reservation.position, len, 0);
            }
            producer.prefetch_fixed_buffer(0..99);
            if let Ok(Some(message)) = consumer.take() {
                prop_assert!(message.len >= 1 && message.len <= 512);
                prop_assert!(inside(message.payload, message.len));
                producer.on_credit(message.piggybacked_credit);
                consumer.release(message.next_index, message.data_end());
            }
            prop_assert!(memory.ring().queued() <= 8);
            memory.ring().claim_all();
        }
    }

    #[test]
    fn saved_messages_fit_at_their_old_positions(
        before in prop::collection::vec(1..=512usize, 0..20),
        lens in prop::collection::vec(1..=512usize, 1..9),
        small: bool,
        after in prop::collection::vec(1..=512usize, 0..20),
    ) {
        let geometry = if small { SMALL } else { GEOMETRY };
        let memory = Memory::of(geometry);
        let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
        let pass = |len: usize, memory: &Memory| {
            let (producer, consumer) =
                (Producer::new(memory.ring()), Consumer::new(memory.ring()));
            assert!(push(&producer, &vec![1; len], len));
            assert!(pop(&consumer).is_some());
        };
        before.iter().for_each(|&len| pass(len, &memory));
        let mut queued = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            if push(&producer, &vec![i as u8; len], len) {
                queued.push(vec![i as u8; len]);
            }
        }
        // The messages that `save` reads.
        let mut next = memory.ring().consumer_index();
        let mut positions = Vec::new();
        while let Ok(Some(message)) = consumer.message_at(next) {
            next = message.next_index;
            positions.push(message.position);
        }
        let saved: Vec<_> = queued
            .iter()
            .zip(&positions)
            .map(|(payload, &position)| Saved { payload, position })
            .collect();
        prop_assert_eq!(saved.len(), queued.len());
        let other = Memory::of(geometry);
        after.iter().for_each(|&len| pass(len, &other));
        prop_assert_eq!(other.ring().restore(&saved), Ok(()));
        let consumer = Consumer::new(other.ring());
        for message in queued {
            prop_assert_eq!(pop(&consumer), Some(message));
        }
        prop_assert_eq!(pop(&consumer), None);
        after.iter().for_each(|&len| pass(len, &other));
    }
}

#[test]
fn marks_wrap_after_four_billion_messages() {
    let memory = Memory::new();
    let last_lap = (1 << 32) - 16;
    for i in 0..2 {
        memory.overwrite_word(i * 128, last_lap);
    }
    for slot in 0..8 {
        memory.overwrite_word(256 + slot * 128, SlotHeader::new(last_lap << 32, 1, false).0);
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
    memory.overwrite_word(0, 1000);
    assert_eq!(producer.reserve(8).err(), Some(Error::Io));
    let memory = Memory::new();
    let producer = Producer::new(memory.ring());
    memory.overwrite_word(8, 1 << 40);
    assert!((0..2).all(|_| push(&producer, &[0; 512], 512)), "into the fixed buffers");
    assert_eq!(producer.reserve(512).err(), Some(Error::Io));
}

#[test]
fn a_claimed_message_is_counted_once_and_skipped() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    for i in 0..3 {
        assert!(push(&producer, &[i], 1));
    }
    let reservation = producer.reserve(1).unwrap();
    let (index, header) = producer.publish(reservation.position, 1, 0);
    assert!(memory.ring().claim(index, header));
    assert!(!memory.ring().claim(index, header));
    assert_eq!(memory.ring().claim_all(), 3);
    assert_eq!(memory.ring().claim_all(), 0);
    assert_eq!(pop(&consumer), None);
    assert!(push(&producer, &[9], 1));
    assert_eq!(pop(&consumer), Some(vec![9]));
}

/// The offsets of a lap's slots, in lines from the first, in the order of use.
fn slot_line_numbers(geometry: RingGeometry) -> Vec<i64> {
    let memory = Memory::of(geometry);
    // SAFETY: the memory has the geometry's size and outlives the ring.
    let ring = unsafe { Ring::new(memory.0, geometry) };
    let first = memory.0.addr().get() + size_of::<RingHeader>();
    let line_number = |index| (std::ptr::from_ref(ring.slot(index)).addr() - first) / CACHE_LINE;
    let laps = [0, 7 * u64::from(geometry.slot_count)];
    let lap = |start| {
        (start..start + u64::from(geometry.slot_count)).map(line_number).collect::<Vec<_>>()
    };
    let [one, other] = laps.map(lap);
    assert_eq!(one, other, "{geometry:?}");
    one.into_iter().map(|line| line as i64).collect()
}

#[test]
fn each_slot_is_used_once_in_a_lap_and_no_two_steps_in_a_row_are_equal() {
    for (slots, lines) in [(256, 2), (256, 1), (128, 2), (64, 1), (32, 1), (16, 1), (4, 1)] {
        let lap = slot_line_numbers(RingGeometry {
            slot_count: slots,
            lines_per_slot: lines,
            data_len: 0,
            fixed_buffer_stride: 0,
            mtu: 48,
        });
        let mut sorted = lap.clone();
        sorted.sort_unstable();
        let expected: Vec<_> = (0..i64::from(slots)).map(|slot| slot * i64::from(lines)).collect();
        assert_eq!(sorted, expected);
        let steps: Vec<_> = lap.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(steps.windows(2).all(|two| two[0] != two[1]), "{slots} {steps:?}");
    }
}

#[test]
fn messages_in_a_large_data_area_do_not_overlap_and_fit_into_an_empty_ring() {
    let geometry = RingGeometry {
        slot_count: 8,
        lines_per_slot: 1,
        data_len: 64 << 10,
        fixed_buffer_stride: 0,
        mtu: 8192,
    };
    let memory = Memory::of(geometry);
    // SAFETY: the memory has the geometry's size and outlives the ring.
    let ring = unsafe { Ring::new(memory.0, geometry) };
    let (producer, consumer) = (Producer::new(ring), Consumer::new(ring));
    let mut end = 0;
    for (len, gap) in
        [(49, 192), (960, 192), (1024, 4096), (8192, 4096)].into_iter().cycle().take(99)
    {
        let reservation = producer.reserve(len).unwrap();
        producer.publish(reservation.position, len, 0);
        let message = consumer.take().unwrap().unwrap();
        let (start, message_end) = (message.position, message.data_end().unwrap());
        assert!(start - end >= gap, "{len} at {start}, the previous message ends at {end}");
        end = message_end;
        consumer.release(message.next_index, Some(message_end));
    }
}

#[test]
fn a_cached_slot_is_not_used_after_the_ring_was_restored() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    assert!(producer.reserve_inline().is_some());
    let saved =
        [Saved { payload: &[1], position: IN_SLOT }, Saved { payload: &[2], position: IN_SLOT }];
    memory.ring().restore(&saved).unwrap();
    assert!(producer.reserve_inline().is_none());
    assert!(push(&producer, &[3], 1) && push(&producer, &[4], 1));
    assert!((1..=4).all(|byte| pop(&consumer) == Some(vec![byte])));
    assert_eq!(pop(&consumer), None);
}

#[test]
fn inline_reservations_stay_within_the_known_credit() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    for byte in 0..8 {
        assert!(producer.reserve_inline().is_some());
        assert!(push(&producer, &[byte * 2], 1));
    }
    assert!(producer.reserve_inline().is_none());
    assert_eq!(pop(&consumer), Some(vec![0]));
    assert!(producer.reserve_inline().is_none(), "the credit is not read yet");
    assert!(push(&producer, &[16], 1));
    assert!(producer.reserve_inline().is_none());
}

/// Sends `len` bytes and returns their position.
fn position_of(producer: &Producer, len: usize) -> u64 {
    let reservation = producer.reserve_long(len).unwrap();
    producer.publish(reservation.position, len, 0);
    reservation.position
}

#[test]
fn long_messages_alternate_between_two_fixed_buffers_while_these_are_known_to_be_free() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    assert_eq!(
        [0; 3].map(|_| position_of(&producer, 200)),
        [FIXED_BUFFER_POSITION, FIXED_BUFFER_POSITION + 1, 0]
    );
    assert!(pop(&consumer).is_some());
    assert!(position_of(&producer, 200) < FIXED_BUFFER_POSITION, "the credit is not known yet");
    producer.on_credit(1);
    assert_eq!(position_of(&producer, 200), FIXED_BUFFER_POSITION);
    assert!(
        position_of(&producer, 200) < FIXED_BUFFER_POSITION,
        "the second message is still there"
    );
    assert!((0..2).all(|_| pop(&consumer).is_some()));
    assert!(producer.prefetch_fixed_buffer(0..4), "this reads the credit");
    assert_eq!(position_of(&producer, 200), FIXED_BUFFER_POSITION + 1);
    assert!(push(&producer, &[2; 100], 100));
    assert!((0..5).all(|_| pop(&consumer).is_some()));
    assert_eq!(pop(&consumer), None);
}

#[test]
fn a_sender_ignores_an_impossible_credit() {
    let memory = Memory::new();
    let producer = Producer::new(memory.ring());
    assert_eq!(
        [0; 2].map(|_| position_of(&producer, 200)),
        [FIXED_BUFFER_POSITION, FIXED_BUFFER_POSITION + 1]
    );
    for credit in [3, 8, 1 << 40, u64::MAX, FIXED_BUFFER_POSITION] {
        producer.on_credit(credit);
        assert!(!producer.prefetch_fixed_buffer(0..4), "{credit}");
    }
    producer.on_credit(1);
    producer.on_credit(0);
    assert!(producer.prefetch_fixed_buffer(0..4), "the valid credit stays");
}

#[test]
fn a_fixed_buffer_that_is_still_read_is_not_prefetched() {
    let memory = Memory::new();
    let (producer, consumer) = (Producer::new(memory.ring()), Consumer::new(memory.ring()));
    let message = |byte| vec![byte; 512];
    assert!(push(&producer, &message(1), 512));
    assert!(producer.prefetch_fixed_buffer(0..8));
    assert!(push(&producer, &message(2), 512));
    assert!(!producer.prefetch_fixed_buffer(0..8));
    assert_eq!(pop(&consumer), Some(message(1)));
    assert!(producer.prefetch_fixed_buffer(0..8));
    assert_eq!(pop(&consumer), Some(message(2)));
}
