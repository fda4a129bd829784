//! A process of the job that writes what it likes where the others look their regions up, and
//! where they ask for help: errors, and no byte beyond what was locked.

use super::bed::stolen::Segment;
use super::bed::*;
use super::memory::*;
use score_pm::*;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const ARENA_PART: u64 = 64 << 30;

#[test]
fn a_table_of_regions_full_of_lies_leads_nowhere() {
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    for kind in SHARED {
        let bed = Bed::new(kind, 2);
        let segment = Segment::steal(&bed);
        let (a, b) =
            (Memory::new(&bed, 0, Kind::Ours, 8192), Memory::new(&bed, 1, Kind::Ours, 8192));
        a.fill(1);
        b.fill(2);
        // An entry is state, address, length, and the place in the arena.
        let at = segment.find(b.at.addr() as u64);
        let original = segment.word(at + 2).load(Ordering::Relaxed);
        let end = &bed.ends[0];
        segment.word(at + 1).store(u64::MAX, Ordering::Relaxed);
        for place in [u64::MAX, u64::MAX - 4096, ARENA_PART + 1, ARENA_PART - 8, 1 << 63] {
            segment.word(at + 2).store(place, Ordering::Relaxed);
            assert_eq!(end.write(1, b.handle, a.handle, 4096), Err(Error::Invalid), "{place:#x}");
            assert_eq!(end.read(1, b.handle, a.handle, 4096), Err(Error::Invalid), "{place:#x}");
        }
        segment.word(at + 2).store(original, Ordering::Relaxed);
        let far = b.handle + (ARENA_PART - 8);
        assert_eq!(end.write(1, far, a.handle, 4096), Err(Error::Invalid));
        segment.word(at - 1).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(end.write(1, b.handle, a.handle, 8), Err(Error::Invalid));
        b.is_filled_but(2, 0..0);
        a.is_filled_but(1, 0..0);
    }
}

#[test]
fn a_process_that_is_not_what_it_says_is_not_written() {
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("composite", 2);
    let segment = Segment::steal(&bed);
    let (a, b) = (Memory::new(&bed, 0, Kind::Other, 64), Memory::new(&bed, 1, Kind::Other, 64));
    b.fill(2);
    // The process, where its word is, and the word, for each node.
    let own = u64::from(std::process::id());
    let heads: Vec<_> = (0..segment.words() - 2)
        .filter(|&at| segment.word(at).load(Ordering::Relaxed) == own)
        .collect();
    for &at in &heads {
        segment.word(at + 2).fetch_xor(1, Ordering::Relaxed);
    }
    assert!(!heads.is_empty());
    bed.ends[0].write(1, b.handle, a.handle, 64).unwrap();
    assert_eq!(bed.ends[0].is_write_done(), Err(Error::Busy), "it has to help");
    b.is_filled_but(2, 0..0);
    assert_eq!(done(&bed, 0), Ok(()));
    assert_eq!(b.bytes(), a.bytes());
}

#[test]
fn requests_that_no_node_writes_are_refused_and_touch_nothing() {
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    where_copies_are_refused(|| {
        // What it is, its number, handle, length, buffer.
        let lies = [(0, 9), (2, 0), (2, u64::MAX), (3, 0), (3, (256 << 10) + 1), (3, u64::MAX)]
            .into_iter()
            .chain([(4, u64::MAX), (4, ARENA_PART), (4, ARENA_PART - 8)]);
        for (which, lie) in lies {
            let bed = Bed::new("composite", 2);
            let segment = Segment::steal(&bed);
            let a = Memory::new(&bed, 0, Kind::Other, 64);
            let b = Memory::new(&bed, 1, Kind::Other, 64);
            b.fill(2);
            bed.ends[0].write(1, b.handle, a.handle, 64).unwrap();
            let request = segment.find(b.handle.bits()) - 2;
            segment.word(request + which).store(lie, Ordering::Relaxed);
            assert_eq!(done(&bed, 0), Err(Error::Io), "word {which} {lie:#x}");
            b.is_filled_but(2, 0..0);
            bed.ends[0].write(1, b.handle, a.handle, 64).unwrap();
            assert_eq!(done(&bed, 0), Ok(()), "the next one is served");
        }
    });
}

#[test]
fn an_answer_to_nothing_breaks_that_link_alone() {
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    where_copies_are_refused(|| {
        let bed = Bed::new("composite", 3);
        let segment = Segment::steal(&bed);
        let a = Memory::new(&bed, 0, Kind::Other, 64);
        let b = Memory::new(&bed, 1, Kind::Other, 64);
        let c = Memory::new(&bed, 2, Kind::Other, 64);
        bed.ends[0].write(1, b.handle, a.handle, 64).unwrap();
        // Node 1 takes for an answer what was a request.
        let request = segment.find(b.handle.bits()) - 2;
        segment.word(request).store(3, Ordering::Relaxed);
        assert_eq!(bed.ends[1].receive(), Err(Error::NoBuffers));
        assert_eq!(bed.ends[1].get_send_buffer(0, 8), Err(Error::Io));
        assert_eq!(bed.ends[0].is_write_done(), Err(Error::Busy));
        bed.mark_exited(1);
        assert_eq!(bed.ends[0].is_write_done(), Err(Error::Io));
        bed.ends[0].write(2, c.handle, a.handle, 64).unwrap();
        while bed.ends[0].is_write_done() == Err(Error::Busy) {
            assert_eq!(bed.ends[2].receive(), Err(Error::NoBuffers));
        }
        assert_eq!(c.bytes(), a.bytes());
    });
}
