//! Model tests of the ring, the doorbell and the claims at exit, under every interleaving of
//! threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p score-pm --release --lib` runs these.

use super::*;
use crate::receiver_state::{EXITED, ReceiverState, SLEEPING};
use crate::sync::AtomicU32;
use loom::sync::Arc;
use loom::thread;

/// Messages of more than 48 bytes are in a fixed buffer: the tests do not use the data area.
const GEOMETRY: RingGeometry = RingGeometry {
    slot_count: 2,
    lines_per_slot: 1,
    data_len: 64,
    fixed_buffer_stride: 64,
    mtu: 64,
};

/// A ring in memory that loom can check. Payloads are separate loom cells, one for each slot and
/// each fixed buffer.
struct LoomRing {
    header: Box<RingHeader>,
    slots: Box<[Slot; 2]>,
    payload: [loom::cell::UnsafeCell<u64>; 2],
    fixed_buffers: [loom::cell::UnsafeCell<u64>; FIXED_BUFFER_COUNT],
    receiver_state: ReceiverState,
    counted: AtomicU64,
    wakeups: AtomicU64,
}

// SAFETY: loom reports every conflicting access to the payload cells; the tests check for that.
unsafe impl Send for LoomRing {}
// SAFETY: as above.
unsafe impl Sync for LoomRing {}

impl LoomRing {
    fn new() -> Arc<LoomRing> {
        let cursors = || RingCursors {
            index: AtomicU64::new(0),
            data_position: AtomicU64::new(0),
            fixed_buffer_indices: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        let slot = || Slot {
            header: AtomicU64::new(0),
            position: AtomicU64::new(0),
            payload: UnsafeCell::new([0; INLINE_LEN]),
            piggybacked_credit: AtomicU64::new(0),
        };
        Arc::new(LoomRing {
            header: Box::new(RingHeader { producer: cursors(), consumer: cursors() }),
            slots: Box::new([slot(), slot()]),
            payload: [loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)],
            fixed_buffers: [loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)],
            receiver_state: ReceiverState(AtomicU32::new(0)),
            counted: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
        })
    }

    fn ring(&self) -> Ring {
        // SAFETY: both live as long as `self`, which outlives the ring in every test.
        unsafe {
            let header = NonNull::from(&*self.header);
            let slots = NonNull::from(&self.slots[0]);
            Ring::from_parts(header, slots, NonNull::dangling(), GEOMETRY)
        }
    }

    /// Writes the payload of the slot of `index`.
    fn write(&self, index: u64, value: u64) {
        // SAFETY: loom checks that no other thread accesses it.
        self.payload[index as usize & 1].with_mut(|payload| unsafe { *payload = value });
    }

    fn read(&self, index: u64) -> u64 {
        // SAFETY: as `write`.
        self.payload[index as usize & 1].with(|payload| unsafe { *payload })
    }
}

fn send(shared: &LoomRing, producer: &Producer, value: u64) -> Option<(u64, SlotHeader)> {
    let index = shared.header.producer.index.load(Ordering::Relaxed);
    if producer.reserve_inline().is_some() {
        shared.write(index, value);
        producer.publish_inline(8);
        return Some(producer.last_published(IN_SLOT, 8));
    }
    let reservation = producer.reserve(8).ok()?;
    shared.write(index, value);
    Some(producer.publish(reservation.position, 8, 0))
}

fn receive(shared: &LoomRing, consumer: &Consumer) -> Option<u64> {
    let message = consumer.take().unwrap()?;
    let value = shared.read(message.next_index - 1);
    consumer.release(message.next_index, None);
    Some(value)
}

#[test]
fn a_slot_is_never_read_and_written_at_once_and_order_is_kept() {
    loom::model(|| {
        let shared = LoomRing::new();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                let producer = Producer::new(shared.ring());
                let mut sent = 0;
                // Three messages through two slots: the third needs credit.
                for _ in 0..4 {
                    if sent < 3 && send(&shared, &producer, sent + 1).is_some() {
                        sent += 1;
                    }
                    thread::yield_now();
                }
                sent
            })
        };
        let consumer = Consumer::new(shared.ring());
        let mut last = 0;
        for _ in 0..2 {
            if let Some(value) = receive(&shared, &consumer) {
                assert_eq!(value, last + 1);
                last = value;
            }
            thread::yield_now();
        }
        let sent = sender.join().unwrap();
        while let Some(value) = receive(&shared, &consumer) {
            assert_eq!(value, last + 1);
            last = value;
        }
        assert_eq!(last, sent);
        assert!(sent >= 2);
    });
}

// Promise of `a_blocked_receiver_never_misses_a_message`.
#[test]
fn a_receiver_that_sleeps_with_a_message_in_the_ring_is_woken() {
    loom::model(|| {
        let shared = LoomRing::new();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                let producer = Producer::new(shared.ring());
                send(&shared, &producer, 1).unwrap();
                if shared.receiver_state.load_after_publish(false) & SLEEPING != 0
                    && shared.receiver_state.clear_sleeping()
                {
                    shared.wakeups.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let consumer = Consumer::new(shared.ring());
        shared.receiver_state.set_sleeping(|| {});
        let received = receive(&shared, &consumer).is_some();
        sender.join().unwrap();
        assert!(received || shared.wakeups.load(Ordering::SeqCst) == 1, "a lost wake-up");
    });
}

#[test]
fn exactly_one_of_two_senders_wakes_the_receiver() {
    loom::model(|| {
        let shared = LoomRing::new();
        shared.receiver_state.set_sleeping(|| {});
        let ring = |shared: &LoomRing| {
            if shared.receiver_state.load_after_publish(false) & SLEEPING != 0
                && shared.receiver_state.clear_sleeping()
            {
                shared.wakeups.fetch_add(1, Ordering::SeqCst);
            }
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || ring(&shared))
        };
        ring(&shared);
        other.join().unwrap();
        assert_eq!(shared.wakeups.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_message_to_a_node_that_exits_is_counted_exactly_once() {
    loom::model(|| {
        let shared = LoomRing::new();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                let producer = Producer::new(shared.ring());
                for value in 1..=2 {
                    let (index, header) = send(&shared, &producer, value).unwrap();
                    if shared.receiver_state.load_after_publish(false) & EXITED != 0
                        && producer.ring().claim(index, header)
                    {
                        shared.counted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        };
        shared.receiver_state.set_exited(|| {});
        let claimed = shared.ring().claim_all();
        shared.counted.fetch_add(claimed, Ordering::SeqCst);
        sender.join().unwrap();
        assert_eq!(shared.counted.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn an_exit_that_is_handled_twice_counts_once() {
    loom::model(|| {
        let shared = LoomRing::new();
        let producer = Producer::new(shared.ring());
        send(&shared, &producer, 1).unwrap();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.ring().claim_all())
        };
        let claimed = shared.ring().claim_all();
        assert_eq!(claimed + other.join().unwrap(), 1);
    });
}

/// One end of a ring, and the lock by which the threads of its process take turns.
struct SerializedEnd<T> {
    turn: loom::sync::Mutex<()>,
    end: T,
}

// SAFETY: loom reports every conflicting access to the payload cells; the tests check for that.
unsafe impl<T> Send for SerializedEnd<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SerializedEnd<T> {}

impl<T> SerializedEnd<T> {
    fn new(end: T) -> Arc<SerializedEnd<T>> {
        Arc::new(SerializedEnd { turn: loom::sync::Mutex::new(()), end })
    }

    fn in_turn<R>(&self, use_end: impl FnOnce(&T) -> R) -> R {
        let _turn = self.turn.lock().unwrap();
        use_end(&self.end)
    }
}

/// The program has promised that its calls are serialized (`pmSetSerialized`), so that no thread
/// takes a lock by an atomic read-modify-write.
#[test]
fn threads_that_take_turns_send_each_message_once() {
    loom::model(|| {
        let shared = LoomRing::new();
        let producer = SerializedEnd::new(Producer::new(shared.ring()));
        let senders = [1, 2].map(|value| {
            let (shared, producer) = (shared.clone(), producer.clone());
            thread::spawn(move || producer.in_turn(|end| send(&shared, end, value).is_some()))
        });
        let consumer = Consumer::new(shared.ring());
        let mut received = Vec::from_iter(receive(&shared, &consumer));
        for sender in senders {
            assert!(sender.join().unwrap());
        }
        received.extend(std::iter::from_fn(|| receive(&shared, &consumer)));
        received.sort_unstable();
        assert_eq!(received, [1, 2]);
    });
}

/// Receivers of such a program do not check again whether the message is still the next one.
// Promise of `threads_that_take_turns_lose_no_message_on_any_device`.
#[test]
fn threads_that_take_turns_receive_each_message_once() {
    loom::model(|| {
        let shared = LoomRing::new();
        let consumer = SerializedEnd::new(Consumer::new(shared.ring()));
        let poll = |shared: &LoomRing, end: &Consumer| {
            let PeekResult::Inline(message) = end.peek() else { return None };
            let value = shared.read(message.into_taken().next_index - 1);
            end.release_next(None);
            Some(value)
        };
        let receivers = [(); 2].map(|()| {
            let (shared, consumer) = (shared.clone(), consumer.clone());
            thread::spawn(move || consumer.in_turn(|end| poll(&shared, end)))
        });
        let producer = Producer::new(shared.ring());
        for value in 1..=2 {
            send(&shared, &producer, value).unwrap();
        }
        let mut received = Vec::new();
        for receiver in receivers {
            received.extend(receiver.join().unwrap());
        }
        received.sort_unstable();
        received.extend(std::iter::from_fn(|| consumer.in_turn(|end| poll(&shared, end))));
        assert_eq!(received, [1, 2]);
    });
}

/// Sends a long message, if a fixed buffer is known to be free.
fn send_fixed(shared: &LoomRing, producer: &Producer, value: u64, credit: u64) -> bool {
    let Some(buffer) = producer.free_fixed_buffer() else { return false };
    // SAFETY: loom checks that no other thread accesses it.
    shared.fixed_buffers[buffer].with_mut(|payload| unsafe { *payload = value });
    producer.publish(FIXED_BUFFER_POSITION + buffer as u64, 64, credit);
    true
}

/// Receives a long message: its value and the credit that it carries.
fn receive_fixed(shared: &LoomRing, consumer: &Consumer) -> Option<(u64, u64)> {
    let message = consumer.take().unwrap()?;
    let buffer = fixed_buffer_of(message.position).unwrap();
    // SAFETY: as above.
    let value = shared.fixed_buffers[buffer].with(|payload| unsafe { *payload });
    consumer.release(message.next_index, message.data_end());
    Some((value, message.piggybacked_credit))
}

#[test]
fn a_fixed_buffer_is_not_written_while_it_is_read_however_its_credit_arrived() {
    loom::model(|| {
        let (forward, reverse) = (LoomRing::new(), LoomRing::new());
        let other = {
            let (forward, reverse) = (forward.clone(), reverse.clone());
            thread::spawn(move || {
                let consumer = Consumer::new(forward.ring());
                let producer = Producer::new(reverse.ring());
                let Some((value, _)) = receive_fixed(&forward, &consumer) else { return };
                assert_eq!(value, 1);
                assert!(send_fixed(&reverse, &producer, 9, forward.ring().consumer_index()));
            })
        };
        let producer = Producer::new(forward.ring());
        let consumer = Consumer::new(reverse.ring());
        assert!(send_fixed(&forward, &producer, 1, 0) && send_fixed(&forward, &producer, 2, 0));
        assert!(!send_fixed(&forward, &producer, 3, 0), "both are taken");
        // The credit arrives with a message, or the sender reads it.
        match receive_fixed(&reverse, &consumer) {
            Some((_, credit)) => producer.on_credit(credit),
            None => {
                let _ = producer.reload_credit(2);
            }
        }
        if producer.free_fixed_buffer().is_some() {
            assert!(send_fixed(&forward, &producer, 3, 0));
        }
        other.join().unwrap();
    });
}
