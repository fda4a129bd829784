use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use mio::Poll;

use super::*;
use crate::link::Link;
use crate::sys::process;

/// Writers that each have written most of a line.
const WRITERS: usize = 400;
const WRITTEN: usize = 60_000;

#[test]
fn unfinished_lines_are_bounded_in_total_and_all_of_them_come() {
    process::raise_descriptor_limit();
    let poll = Poll::new().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut reports = Reports::new(Link::new(ours.into()).unwrap());
    let mut outputs = Outputs::default();
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let (read, write) = nix::unistd::pipe().unwrap();
        outputs.add(read, Stream::Stdout, (0, 0), poll.registry(), Token).unwrap();
        let mut write = std::fs::File::from(write);
        write.write_all(&[b'x'; WRITTEN]).unwrap();
        writers.push(write);
        outputs.mark_ready(number);
    }
    let mut now = Instant::now();
    let (mut sink, mut came, mut turns) = (vec![0; 1 << 20], 0, 0);
    while came < WRITERS * WRITTEN {
        outputs.pump(&mut reports, now);
        assert!(outputs.pending <= MOST_PENDING + 2 * READ_BYTES, "{}", outputs.pending);
        if !outputs.is_runnable() {
            // Nothing more comes: what is unfinished goes when its time has come.
            now += QUIET_IN_WRITE;
            outputs.expire(&mut reports, now);
        }
        outputs.send_batch(false, &mut reports);
        reports.flush(poll.registry());
        while let Ok(count) = theirs.read(&mut sink) {
            came += sink[..count].iter().filter(|byte| **byte == b'x').count();
            outputs.taken(count as u64, now);
        }
        turns += 1;
        assert!(turns < 100_000, "{came} bytes have come; {} are pending", outputs.pending);
    }
    assert_eq!(outputs.pending, 0);
    assert!(outputs.parked.is_empty());
}
