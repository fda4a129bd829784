//! Tests the completion of each operation by its number (`remote_status`, an extension of the
//! manual).

use super::memory::*;
use crate::testbed::*;
use score_pm::*;
use std::time::{Duration, Instant};

const LEN: usize = 8192;

/// Polls until the operation with this number has completed. Returns the numbers of the operations
/// that have failed.
fn failures_up_to(bed: &TestBed, node: u32, number: u64) -> Vec<u64> {
    let end = Instant::now() + Duration::from_secs(60);
    let (mut failures, mut last) = (Vec::new(), 0);
    loop {
        let status = bed.contexts[0].remote_status(node).unwrap();
        assert!(status.completed >= last && status.completed <= status.started, "{status:?}");
        last = status.completed;
        if status.has_failed {
            failures.push(status.completed);
        } else if status.completed >= number {
            return failures;
        } else {
            poll_others(bed, 0);
        }
        assert!(Instant::now() < end, "{}: {status:?} after 60 s", bed.kind);
    }
}

/// Whenever an operation has completed, another one starts. Thus some operations are always in
/// flight.
// Promise (messages): Each remote operation completes by its number while others are in flight, in
// order for each node; a failure is reported once, by number, for that operation alone; on every
// device and composites.
#[test]
fn operations_complete_one_by_one_while_others_are_in_flight() {
    const COUNT: usize = 120;
    const MAX_IN_FLIGHT: u64 = 8;
    on_every_kind_with_regions(2, |bed| {
        let end = &bed.contexts[0];
        let written = Memory::new(bed, 1, Kind::Mapped, COUNT * LEN);
        let source = Memory::new(bed, 1, Kind::Mapped, LEN);
        let read = Memory::new(bed, 0, Kind::Mapped, COUNT * LEN);
        let local = Memory::new(bed, 0, Kind::Allocated, LEN);
        source.fill(11);
        local.fill(77);
        assert_eq!(end.remote_status(1), Ok(RemoteStatus::default()));
        let mut checked = 0;
        let deadline = Instant::now() + Duration::from_secs(60);
        for number in 1..=COUNT as u64 {
            let at = (number - 1) * LEN as u64;
            retry_polling(bed, 0, || match number % 3 {
                0 => end.read(1, source.handle, read.handle + at, LEN),
                _ => end.write(1, written.handle + at, local.handle, LEN),
            });
            loop {
                let status = end.remote_status(1).unwrap();
                assert_eq!((status.started, status.has_failed), (number, false));
                for done in checked..status.completed {
                    let range = done as usize * LEN..(done as usize + 1) * LEN;
                    if (done + 1).is_multiple_of(3) {
                        assert_eq!(read.bytes()[range], *source.bytes(), "{} {done}", bed.kind);
                    }
                }
                checked = checked.max(status.completed);
                let max_in_flight = if number == COUNT as u64 { 0 } else { MAX_IN_FLIGHT };
                if number - checked <= max_in_flight {
                    break;
                }
                poll_others(bed, 0);
                assert!(Instant::now() < deadline, "{}: {status:?}", bed.kind);
            }
        }
        assert_eq!(done(bed, 0), Ok(()));
        for (index, bytes) in written.bytes().chunks(LEN).enumerate() {
            let is_read = (index + 1).is_multiple_of(3);
            assert!(is_read || bytes == local.bytes(), "{} {index}", bed.kind);
        }
    });
}

// Promise of `operations_complete_one_by_one_while_others_are_in_flight`.
#[test]
fn each_failed_operation_is_reported_once_by_number() {
    on_every_kind_with_regions(3, |bed| {
        let end = &bed.contexts[0];
        let local = Memory::new(bed, 0, Kind::Mapped, LEN);
        let good = [1, 2].map(|node| Memory::new(bed, node, Kind::Mapped, LEN));
        let bad = Memory::new(bed, 1, Kind::Mapped, LEN);
        bad.unmap();
        for round in 0..2 {
            for number in 1..=10 {
                let remote = if [2, 3, 9].contains(&number) { &bad } else { &good[0] };
                let call = if number % 2 == 0 { Context::write } else { Context::read };
                retry_polling(bed, 0, || call(end, 1, remote.handle, local.handle, LEN));
                // The status of node 1 must not report failures on another node.
                retry_polling(bed, 0, || end.write(2, good[1].handle, local.handle, 100));
            }
            let first = round * 10;
            let expected = [first + 2, first + 3, first + 9];
            assert_eq!(failures_up_to(bed, 1, first + 10), expected, "{}", bed.kind);
            assert_eq!(failures_up_to(bed, 1, first + 10), [], "reported once");
            assert_eq!(failures_up_to(bed, 2, first + 10), []);
        }
        // The functions of the manual also report the failures.
        let functions = [end.is_write_done(), end.is_read_done()];
        assert_eq!(functions, [Err(Error::Io), Err(Error::Io)]);
    });
}

// Promise of `operations_complete_one_by_one_while_others_are_in_flight`.
#[test]
fn operations_on_a_node_that_has_exited_fail_by_number() {
    on_every_kind_with_regions(3, |bed| {
        let end = &bed.contexts[0];
        let local = Memory::new(bed, 0, Kind::Allocated, LEN);
        let remote = Memory::new(bed, 1, Kind::Allocated, LEN);
        retry_polling(bed, 0, || end.write(1, remote.handle, local.handle, LEN));
        assert_eq!(failures_up_to(bed, 1, 1), []);
        bed.mark_exited(1);
        for _ in 0..1000 {
            retry_polling(bed, 0, || end.write(1, remote.handle, local.handle, LEN));
        }
        assert_eq!(failures_up_to(bed, 1, 1001), (2..=1001).collect::<Vec<_>>(), "{}", bed.kind);
    });
}

#[test]
fn refused_calls_are_not_counted_and_wrong_nodes_are_einval() {
    on_every_kind_with_regions(2, |bed| {
        let end = &bed.contexts[0];
        for node in [0, 2, u32::MAX] {
            assert_eq!(end.remote_status(node), Err(Error::Invalid), "{} {node}", bed.kind);
        }
        let local = Memory::new(bed, 0, Kind::Mapped, LEN);
        let zero = AddrHandle::from_bits(0);
        assert_eq!(end.write(1, zero, local.handle, 8), Err(Error::Invalid));
        assert_eq!(end.write(1, local.handle, local.handle, 0), Err(Error::Invalid));
        assert_eq!(end.remote_status(1), Ok(RemoteStatus::default()));
    });
}
