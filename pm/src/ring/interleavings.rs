//! The ring, the doorbell and the exit claim under every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p score-pm --release --lib` runs these.

use super::*;
use crate::door::{ARMED, Door, EXITED};
use crate::sync::AtomicU32;
use loom::sync::Arc;
use loom::thread;

/// What is longer than 48 bytes lies in a home: there is no data area for it.
const SHAPE: Shape = Shape { slots: 2, lines: 1, data: 64, home: 64, mtu: 64 };

/// A ring in memory that loom can watch. Payloads are loom cells of their own, by slot and by home.
struct Shared {
    ends: Box<Ends>,
    slots: Box<[Slot; 2]>,
    payload: [loom::cell::UnsafeCell<u64>; 2],
    homes: [loom::cell::UnsafeCell<u64>; HOMES],
    door: Door,
    counted: AtomicU64,
    rung: AtomicU64,
}

// SAFETY: that is what the tests are about; loom reports every misuse of the payload cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        let end = || End {
            index: AtomicU64::new(0),
            data: AtomicU64::new(0),
            homes: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        let slot = || Slot {
            word: AtomicU64::new(0),
            position: AtomicU64::new(0),
            payload: UnsafeCell::new([0; INLINE]),
            passed: AtomicU64::new(0),
        };
        Arc::new(Shared {
            ends: Box::new(Ends { producer: end(), consumer: end() }),
            slots: Box::new([slot(), slot()]),
            payload: [loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)],
            homes: [loom::cell::UnsafeCell::new(0), loom::cell::UnsafeCell::new(0)],
            door: Door(AtomicU32::new(0)),
            counted: AtomicU64::new(0),
            rung: AtomicU64::new(0),
        })
    }

    fn ring(&self) -> Ring {
        // SAFETY: both live as long as `self`, which outlives the ring in every test.
        unsafe {
            let ends = NonNull::from(&*self.ends);
            let slots = NonNull::from(&self.slots[0]);
            Ring::from_parts(ends, slots, NonNull::dangling(), SHAPE)
        }
    }

    /// Writes the payload that a reservation at `index` stands for.
    fn write(&self, index: u64, value: u64) {
        // SAFETY: loom checks that nobody else is at it.
        self.payload[index as usize & 1].with_mut(|at| unsafe { *at = value });
    }

    fn read(&self, index: u64) -> u64 {
        // SAFETY: as `write`.
        self.payload[index as usize & 1].with(|at| unsafe { *at })
    }
}

fn send(shared: &Shared, producer: &Producer, value: u64) -> Option<(u64, Word)> {
    let index = shared.ends.producer.index.load(Ordering::Relaxed);
    if producer.reserve_short().is_some() {
        shared.write(index, value);
        producer.publish_short(8);
        return Some(producer.last(IN_SLOT, 8));
    }
    let room = producer.reserve(8).ok()?;
    shared.write(index, value);
    Some(producer.publish(room.position, 8, 0))
}

fn receive(shared: &Shared, consumer: &Consumer) -> Option<u64> {
    let message = consumer.take().unwrap()?;
    let value = shared.read(message.next - 1);
    consumer.release(message.next, None);
    Some(value)
}

#[test]
fn a_slot_is_never_read_and_written_at_once_and_order_is_kept() {
    loom::model(|| {
        let shared = Shared::new();
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

#[test]
fn whoever_sleeps_with_a_message_in_the_ring_is_woken() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                let producer = Producer::new(shared.ring());
                send(&shared, &producer, 1).unwrap();
                if shared.door.knock(false) & ARMED != 0 && shared.door.disarm() {
                    shared.rung.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let consumer = Consumer::new(shared.ring());
        shared.door.arm(|| {});
        let seen = receive(&shared, &consumer).is_some();
        sender.join().unwrap();
        assert!(seen || shared.rung.load(Ordering::SeqCst) == 1, "a lost wake-up");
    });
}

#[test]
fn one_bell_is_rung_by_one_of_two_senders() {
    loom::model(|| {
        let shared = Shared::new();
        shared.door.arm(|| {});
        let ring = |shared: &Shared| {
            if shared.door.knock(false) & ARMED != 0 && shared.door.disarm() {
                shared.rung.fetch_add(1, Ordering::SeqCst);
            }
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || ring(&shared))
        };
        ring(&shared);
        other.join().unwrap();
        assert_eq!(shared.rung.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_message_to_a_node_that_exits_is_counted_exactly_once() {
    loom::model(|| {
        let shared = Shared::new();
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || {
                let producer = Producer::new(shared.ring());
                for value in 1..=2 {
                    let (index, word) = send(&shared, &producer, value).unwrap();
                    if shared.door.knock(false) & EXITED != 0 && producer.ring().claim(index, word)
                    {
                        shared.counted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        };
        shared.door.exit(|| {});
        let claimed = shared.ring().claim_all();
        shared.counted.fetch_add(claimed, Ordering::SeqCst);
        sender.join().unwrap();
        assert_eq!(shared.counted.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn an_exit_that_is_handled_twice_counts_once() {
    loom::model(|| {
        let shared = Shared::new();
        let producer = Producer::new(shared.ring());
        send(&shared, &producer, 1).unwrap();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.ring().claim_all())
        };
        let here = shared.ring().claim_all();
        assert_eq!(here + other.join().unwrap(), 1);
    });
}

/// A long message, if a home is known to be free.
fn send_home(shared: &Shared, producer: &Producer, value: u64, passed: u64) -> bool {
    let Some(home) = producer.free_home() else { return false };
    // SAFETY: loom checks that nobody else is at it.
    shared.homes[home].with_mut(|at| unsafe { *at = value });
    producer.publish(HOME + home as u64, 64, passed);
    true
}

/// Its value, and what its sender had passed.
fn receive_home(shared: &Shared, consumer: &Consumer) -> Option<(u64, u64)> {
    let message = consumer.take().unwrap()?;
    let home = home_of(message.position).unwrap();
    // SAFETY: as above.
    let value = shared.homes[home].with(|at| unsafe { *at });
    consumer.release(message.next, message.data_end());
    Some((value, message.passed))
}

#[test]
fn a_home_is_not_written_while_it_is_read_whoever_told_that_it_is_free() {
    loom::model(|| {
        let (there, back) = (Shared::new(), Shared::new());
        let other = {
            let (there, back) = (there.clone(), back.clone());
            thread::spawn(move || {
                let consumer = Consumer::new(there.ring());
                let producer = Producer::new(back.ring());
                let Some((value, _)) = receive_home(&there, &consumer) else { return };
                assert_eq!(value, 1);
                assert!(send_home(&back, &producer, 9, there.ring().consumed()));
            })
        };
        let producer = Producer::new(there.ring());
        let consumer = Consumer::new(back.ring());
        assert!(send_home(&there, &producer, 1, 0) && send_home(&there, &producer, 2, 0));
        assert!(!send_home(&there, &producer, 3, 0), "both are taken");
        // By what is told, or by looking.
        match receive_home(&back, &consumer) {
            Some((_, passed)) => producer.credit(passed),
            None => {
                let _ = producer.sees_room(2);
            }
        }
        if producer.free_home().is_some() {
            assert!(send_home(&there, &producer, 3, 0));
        }
        other.join().unwrap();
    });
}
