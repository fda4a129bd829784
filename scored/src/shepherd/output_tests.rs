use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use mio::Poll;
use score_client::FramedSocket;

use super::*;
use crate::sys::process;

/// Number of writers. Each has written most of a line.
const WRITERS: usize = 400;
const LINE_LEN: usize = 60_000;

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
        outputs.add(read, Stream::Stdout, (0, 0), poll.registry(), Token).unwrap();
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
