use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use mio::Poll;
use score_client::FramedSocket;

use super::*;
use crate::sys::process;

/// Number of writers. Each has written most of a line.
const WRITERS: usize = 400;
const LINE_LEN: usize = 60_000;
/// The stage and the element of the writers.
const OWNER: (usize, ElementIndex) = (0, ElementIndex::FIRST);

// Promise (output and input): Unfinished lines of all processes of a host take 16 MiB at most,
// however many there are.
#[test]
fn unfinished_lines_are_bounded_in_total_and_all_are_delivered() {
    process::raise_descriptor_limit();
    let poll = Poll::new().unwrap();
    let (socket, mut peer) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut reports = ScoredLink::new(FramedSocket::new(socket.into()).unwrap());
    let mut outputs = OutputMux::default();
    let mut writers = Vec::new();
    for index in 0..WRITERS {
        let (read, write) = nix::unistd::pipe().unwrap();
        outputs.add(read, Stream::Stdout, OWNER, poll.registry(), Token).unwrap();
        let mut write = std::fs::File::from(write);
        write.write_all(&[b'x'; LINE_LEN]).unwrap();
        writers.push(write);
        outputs.mark_ready(index);
    }
    let mut now = Instant::now();
    let (mut sink, mut received_len, mut ticks) = (vec![0; 1 << 20], 0, 0);
    while received_len < WRITERS * LINE_LEN {
        outputs.pump(&mut reports, now);
        assert!(
            outputs.pending_len <= MAX_PENDING_BYTES + 2 * READ_BUFFER_LEN,
            "{}",
            outputs.pending_len
        );
        if !outputs.is_runnable() {
            // There is no more input. Unfinished lines are delivered when their deadline has
            // passed.
            now += MID_WRITE_LINE_TIMEOUT;
            outputs.expire(&mut reports, now);
        }
        outputs.send_batch(false, &mut reports);
        reports.flush(poll.registry());
        while let Ok(count) = peer.read(&mut sink) {
            received_len += sink[..count].iter().filter(|byte| **byte == b'x').count();
            outputs.on_output_ack(count as u64, now);
        }
        ticks += 1;
        assert!(
            ticks < 100_000,
            "{received_len} bytes received; {} are pending",
            outputs.pending_len
        );
    }
    assert_eq!(outputs.pending_len, 0);
    assert!(outputs.parked_pipes.is_empty());
}

#[test]
fn a_kill_by_the_user_limits_the_time_of_each_drain() {
    let poll = Poll::new().unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    let mut reports = ScoredLink::new(FramedSocket::new(socket.into()).unwrap());
    let mut outputs = OutputMux::default();
    let (read, write) = nix::unistd::pipe().unwrap();
    outputs.add(read, Stream::Stdout, OWNER, poll.registry(), Token).unwrap();
    nix::unistd::write(&write, b"never read").unwrap();
    let now = Instant::now();
    outputs.drain_all(DrainReason::StageEnd, now);
    outputs.check_user_kill(now + 10 * KILL_DRAIN_TIMEOUT);
    assert_eq!((outputs.kill_deadline(), outputs.drained(&mut reports)), (None, None));
    outputs.on_user_kill(now);
    assert_eq!(outputs.kill_deadline(), Some(now + KILL_DRAIN_TIMEOUT));
    outputs.check_user_kill(now + KILL_DRAIN_TIMEOUT);
    assert_eq!(outputs.drained(&mut reports), Some(DrainReason::StageEnd));
    // The next drain may take the same time again.
    let later = now + 2 * KILL_DRAIN_TIMEOUT;
    outputs.drain_all(DrainReason::JobEnd, later);
    outputs.check_user_kill(later);
    assert_eq!(outputs.drained(&mut reports), None);
    outputs.check_user_kill(later + KILL_DRAIN_TIMEOUT);
    assert_eq!(outputs.drained(&mut reports), Some(DrainReason::JobEnd));
}
