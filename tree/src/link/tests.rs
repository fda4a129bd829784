use super::*;
use score_proto::PROTOCOL_VERSION;
use score_proto::message::JobRequest;
use score_proto::server_message::JobAnswer;

mod buffers;

const TIMEOUTS: LinkTimeouts = LinkTimeouts {
    handshake_timeout: MonotonicTime::from_secs(2),
    silence_timeout: MonotonicTime::from_secs(9),
};

fn key(seed: u8) -> Key {
    Key::from_bytes([seed; 32])
}

fn secs(seconds: u64) -> MonotonicTime {
    MonotonicTime::from_secs(seconds)
}

/// Moves the outgoing bytes of `from` to `to`, in pieces of `step` bytes.
fn transfer(
    from: &mut Link,
    to: &mut Link,
    step: usize,
    now: MonotonicTime,
) -> Result<(), LinkError> {
    let bytes = from.outgoing().to_vec();
    from.mark_written(bytes.len());
    bytes.chunks(step).try_for_each(|piece| to.push(piece, now))
}

fn pair(step: usize) -> (Link, Link) {
    let mut dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
    transfer(&mut dialled, &mut accepted, step, secs(0)).unwrap();
    assert!(!accepted.is_open());
    transfer(&mut accepted, &mut dialled, step, secs(0)).unwrap();
    assert!(dialled.is_open() && !accepted.is_open());
    transfer(&mut dialled, &mut accepted, step, secs(0)).unwrap();
    assert!(accepted.is_open());
    (dialled, accepted)
}

/// Sends raw records, like a peer that holds the key and violates the protocol.
fn seal(link: &mut Link, kind: u8, content: &[u8]) {
    let State::Open(keys) = &mut link.state else { panic!("not open") };
    record::seal(keys, kind, content, &mut link.out).unwrap();
}

#[test]
fn messages_of_every_size_arrive_in_order_however_the_stream_is_cut() {
    for step in [1, 7, 64, 65_536, usize::MAX] {
        let (mut dialled, mut accepted) = pair(step);
        let sizes = [
            0,
            1,
            record::MAX_CONTENT_LEN - 8,
            record::MAX_CONTENT_LEN,
            record::MAX_CONTENT_LEN + 1,
            200_000,
        ];
        for size in sizes {
            dialled.send(&JobRequest::Stdin(vec![size as u8; size]), secs(0)).unwrap();
        }
        if step > 1 {
            transfer(&mut dialled, &mut accepted, step, secs(0)).unwrap();
        } else {
            // Call `next` after every byte.
            let bytes = dialled.outgoing()[..70_000].to_vec();
            for byte in bytes {
                accepted.push(&[byte], secs(0)).unwrap();
                if accepted.received.len() < 3 {
                    continue;
                }
                while let Some(message) = accepted.next::<JobRequest>().unwrap() {
                    assert!(matches!(message, JobRequest::Stdin(_)));
                }
            }
            continue;
        }
        for size in sizes {
            let message = accepted.next::<JobRequest>().unwrap().unwrap();
            assert_eq!(message, JobRequest::Stdin(vec![size as u8; size]));
        }
        assert_eq!(accepted.next::<JobRequest>().unwrap(), None);
        accepted.send(&JobAnswer::Flush(3), secs(0)).unwrap();
        transfer(&mut accepted, &mut dialled, step, secs(0)).unwrap();
        assert_eq!(dialled.next::<JobAnswer>().unwrap(), Some(JobAnswer::Flush(3)));
    }
}

#[test]
fn messages_sent_before_the_link_opens_arrive_after_it() {
    let mut dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
    dialled.send(&JobRequest::Signal(7), secs(0)).unwrap();
    accepted.send(&JobAnswer::Flush(8), secs(0)).unwrap();
    for _ in 0..2 {
        transfer(&mut dialled, &mut accepted, 5, secs(0)).unwrap();
        transfer(&mut accepted, &mut dialled, 5, secs(0)).unwrap();
    }
    assert_eq!(accepted.next::<JobRequest>().unwrap(), Some(JobRequest::Signal(7)));
    assert_eq!(dialled.next::<JobAnswer>().unwrap(), Some(JobAnswer::Flush(8)));
}

#[test]
fn records_are_unreadable_on_the_wire_and_never_repeat() {
    let (mut dialled, _) = pair(1000);
    let secret = b"a secret that is long enough to be found";
    let mut outputs = Vec::new();
    for _ in 0..2 {
        dialled.send(&JobRequest::Stdin(secret.to_vec()), secs(0)).unwrap();
        outputs.push(dialled.outgoing().to_vec());
        dialled.mark_written(usize::MAX);
    }
    assert!(outputs.iter().all(|bytes| !bytes.windows(8).any(|window| window == &secret[..8])));
    assert_ne!(outputs[0], outputs[1]);
}

// Promise (cluster): Links with another key, another version, garbage, a slow handshake, changed or
// repeated records, or oversized messages are reported and dropped, with bounded memory.
#[test]
fn a_peer_with_another_key_is_refused_without_an_answer() {
    let mut dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    let mut accepted = Link::accept(&key(2), TIMEOUTS, secs(0));
    assert_eq!(transfer(&mut dialled, &mut accepted, 9, secs(0)), Err(LinkError::WrongKey));
    assert_eq!(accepted.outgoing(), []);
    assert_eq!(dialled.on_eof(), LinkError::HandshakeEof);
    assert_eq!(dialled.send(&JobRequest::StdinEof, secs(0)), Err(SendError::Closed));
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn a_replayed_handshake_fails_after_the_answer() {
    let dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    let replayed = dialled.outgoing().to_vec();
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
    accepted.push(&replayed, secs(0)).unwrap();
    assert!(!accepted.is_open());
    // The attacker cannot read the answer, so it cannot send a valid proof.
    let mut proof = (record::MIN_CIPHERTEXT_LEN as u16).to_le_bytes().to_vec();
    proof.extend_from_slice(&[0; record::MIN_CIPHERTEXT_LEN]);
    assert_eq!(accepted.push(&proof, secs(0)), Err(LinkError::WrongKey));
}

#[test]
fn a_handshake_that_has_failed_accepts_no_further_bytes() {
    let (mut flight, mut answer) = (Vec::new(), Vec::new());
    Handshake::dial(&key(1), &mut flight).unwrap();
    let mut accepting = Handshake::accept(&key(2));
    for (mut bytes, expected) in [(&flight[..], LinkError::WrongKey), (&[0], LinkError::Closed)] {
        assert_eq!(accepting.push(&mut bytes, &mut answer).err(), Some(expected));
    }
    assert!(answer.is_empty());
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn both_sides_name_both_versions() {
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
    let mut old = b"SCOD".to_vec();
    old.extend_from_slice(&(PROTOCOL_VERSION + 7).to_le_bytes());
    let error = LinkError::Version { theirs: PROTOCOL_VERSION + 7, ours: PROTOCOL_VERSION };
    assert_eq!(accepted.push(&old, secs(0)), Err(error.clone()));
    assert_eq!(accepted.outgoing()[4..], PROTOCOL_VERSION.to_le_bytes());
    let mut dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    dialled.mark_written(usize::MAX);
    assert_eq!(dialled.push(&old, secs(0)), Err(error));
    assert_eq!(dialled.outgoing(), []);
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn garbage_is_refused_after_eight_bytes_without_an_answer() {
    for garbage in [b"GET / HTTP/1.1\r\n".to_vec(), vec![0; 1 << 20], vec![0xff; 8]] {
        let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
        assert_eq!(accepted.push(&garbage, secs(0)), Err(LinkError::BadPreface));
        assert_eq!((accepted.received.capacity(), accepted.outgoing().len()), (0, 0));
        assert_eq!(accepted.push(&garbage, secs(0)), Err(LinkError::BadPreface));
    }
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn a_slow_handshake_times_out_however_many_bytes_trickle_in() {
    let dialled = Link::dial(&key(1), TIMEOUTS, secs(0)).unwrap();
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(10));
    for (index, byte) in dialled.outgoing().iter().take(20).enumerate() {
        accepted.push(&[*byte], secs(10) + MonotonicTime::from_millis(90 * index as u64)).unwrap();
        accepted.tick(secs(10) + MonotonicTime::from_millis(90 * index as u64)).unwrap();
        assert_eq!(accepted.deadline(), secs(12));
    }
    assert_eq!(
        accepted.tick(secs(12)),
        Err(LinkError::HandshakeTimeout(TIMEOUTS.handshake_timeout))
    );
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn a_record_that_was_changed_cut_or_repeated_ends_the_link() {
    for change in 0..3 {
        let (mut dialled, mut accepted) = pair(100);
        dialled.send(&JobRequest::Signal(1), secs(0)).unwrap();
        let mut bytes = dialled.outgoing().to_vec();
        match change {
            0 => *bytes.last_mut().unwrap() ^= 1,
            1 => bytes[..2].copy_from_slice(&3u16.to_le_bytes()),
            _ => bytes.extend_from_within(..),
        }
        accepted.push(&bytes, secs(0)).unwrap();
        if change == 2 {
            assert_eq!(accepted.next::<JobRequest>(), Ok(Some(JobRequest::Signal(1))));
        }
        assert_eq!(accepted.next::<JobRequest>(), Err(LinkError::BadRecord));
        assert_eq!(accepted.next::<JobRequest>(), Err(LinkError::BadRecord));
    }
}

// Promise of `a_peer_with_another_key_is_refused_without_an_answer`.
#[test]
fn a_peer_that_violates_the_protocol_uses_bounded_memory() {
    let (mut dialled, mut accepted) = pair(100);
    let mut fragments = 0;
    let error = loop {
        seal(&mut dialled, record::FRAGMENT, &[0; record::MAX_CONTENT_LEN]);
        transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
        match accepted.next::<JobRequest>() {
            Ok(none) => assert_eq!(none, None),
            Err(error) => break error,
        }
        fragments += 1;
        assert!(fragments < 100 && accepted.partial_message.len() <= MAX_BODY);
    };
    assert_eq!(error, LinkError::TooLong);
    for (kind, content, expected) in [
        (record::LAST_FRAGMENT, &[0xff; 3][..], LinkError::Malformed),
        (9, &[], LinkError::BadRecord),
        (record::CLOSE, b"shut\ndown", LinkError::PeerClosed("shutdown".to_owned())),
    ] {
        let (mut dialled, mut accepted) = pair(100);
        seal(&mut dialled, kind, content);
        transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
        assert_eq!(accepted.next::<JobRequest>(), Err(expected));
    }
}

#[test]
fn a_peer_that_does_not_read_fills_a_bounded_queue() {
    let (mut dialled, _) = pair(100);
    let message = JobRequest::Stdin(vec![0; MAX_BODY / 2]);
    let taken = (0..100).take_while(|_| dialled.send(&message, secs(0)).is_ok()).count();
    assert!((7..=8).contains(&taken), "{taken}");
    assert_eq!(dialled.send(&message, secs(0)), Err(SendError::Full));
    assert!(dialled.queued() <= MAX_QUEUED + 1000);
    dialled.mark_written(usize::MAX);
    assert_eq!(dialled.out.capacity(), 0);
    dialled.send(&message, secs(0)).unwrap();
    assert_eq!(
        dialled.send(&JobRequest::Stdin(vec![0; MAX_BODY]), secs(0)),
        Err(SendError::TooLong)
    );
}

/// Returns a message whose encoding has this length. The length must need as many bytes in the
/// encoding as that of a message that is 16 bytes shorter.
fn message_of(len: usize) -> JobRequest {
    let shorter_len = len - 16;
    let shorter = frame::encode_datagram(&JobRequest::Stdin(vec![0; shorter_len])).unwrap();
    let overhead = shorter.len() - shorter_len;
    JobRequest::Stdin(vec![0; len - overhead])
}

fn longest_message() -> JobRequest {
    message_of(MAX_BODY)
}

#[test]
fn a_message_is_divided_only_if_it_does_not_fit_into_a_record() {
    for (len, records) in [(record::MAX_CONTENT_LEN, 1), (record::MAX_CONTENT_LEN + 1, 2)] {
        let (mut dialled, _) = pair(100);
        dialled.send(&message_of(len), secs(0)).unwrap();
        assert_eq!(dialled.outgoing().len(), len + records * record::EMPTY_RECORD_LEN);
    }
}

#[test]
fn messages_of_the_greatest_length_arrive_and_fill_the_queue_exactly() {
    let longest = longest_message();
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&longest, secs(0)).unwrap();
    transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(Some(longest)));
    // Before the handshake, the queue holds messages without records around them.
    let mut opening = Link::accept(&key(1), TIMEOUTS, secs(0));
    for number in 1..=MAX_QUEUED / MAX_BODY {
        opening.send(&longest_message(), secs(0)).unwrap();
        assert_eq!(opening.queued(), number * MAX_BODY);
    }
    assert_eq!(opening.send(&JobRequest::StdinEof, secs(0)), Err(SendError::Full));
}

#[test]
fn an_idle_link_is_kept_alive_by_a_few_bytes_and_no_more() {
    let (mut dialled, mut accepted) = pair(100);
    let mut bytes = 0;
    for second in 1..=90 {
        for (one, other) in [(0, 1), (1, 0)] {
            let both = [&mut dialled, &mut accepted];
            assert!(both[one].deadline() >= secs(second));
            both[one].tick(secs(second)).unwrap();
            let sent = both[one].outgoing().to_vec();
            both[one].mark_written(sent.len());
            bytes += sent.len();
            both[other].push(&sent, secs(second)).unwrap();
            assert_eq!(both[other].next::<JobRequest>(), Ok(None));
        }
    }
    assert_eq!(bytes, 2 * 30 * record::EMPTY_RECORD_LEN);
    assert_eq!(dialled.received.len() + accepted.received.len(), 0);
}

#[test]
fn a_silent_peer_is_dead_after_the_limit_and_not_before() {
    let (mut dialled, _) = pair(100);
    for second in 1..9 {
        dialled.tick(secs(second)).unwrap();
        // Sending does not keep the peer alive.
        dialled.send(&JobRequest::StdinEof, secs(second)).unwrap();
    }
    assert!(dialled.deadline() <= secs(9));
    assert_eq!(dialled.tick(secs(9)), Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout)));
}

#[test]
fn constant_sending_does_not_hide_a_silent_peer() {
    let (mut dialled, _) = pair(100);
    let mut now = secs(0);
    while now < dialled.deadline() {
        now += MonotonicTime::from_secs(1);
        dialled.send(&JobRequest::StdinEof, now).unwrap();
        dialled.mark_written(usize::MAX);
        assert!(now < secs(20));
    }
    assert_eq!(dialled.tick(now), Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout)));
}

#[test]
fn a_side_that_was_stopped_does_not_drop_its_peer() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.tick(secs(1)).unwrap();
    dialled.tick(secs(60)).unwrap();
    transfer(&mut dialled, &mut accepted, 100, secs(60)).unwrap();
    assert_eq!(dialled.deadline(), secs(63));
    dialled.tick(secs(63)).unwrap();
    dialled.tick(secs(66)).unwrap();
    assert_eq!(dialled.tick(secs(69)), Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout)));
}

#[test]
fn a_side_was_stopped_if_it_was_inactive_for_more_than_two_thirds_of_the_limit() {
    let is_dead = Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout));
    for (now, expected) in [(secs(9), is_dead), (secs(9) + MonotonicTime::from_millis(1), Ok(()))] {
        let (mut dialled, _) = pair(100);
        dialled.tick(secs(3)).unwrap();
        assert_eq!(dialled.tick(now), expected);
    }
}

#[test]
fn the_end_of_the_stream_has_the_reason_that_is_known() {
    let mut accepted = Link::accept(&key(1), TIMEOUTS, secs(0));
    assert_eq!(accepted.on_eof(), LinkError::Closed, "anybody may connect and disconnect");
    let mut refused = Link::accept(&key(1), TIMEOUTS, secs(0));
    let mut other = Link::dial(&key(2), TIMEOUTS, secs(0)).unwrap();
    assert_eq!(transfer(&mut other, &mut refused, 9, secs(0)), Err(LinkError::WrongKey));
    assert_eq!(refused.on_eof(), LinkError::WrongKey);
}

#[test]
fn a_heartbeat_is_sent_after_a_quarter_when_awake_and_wakes_after_a_third() {
    let (mut dialled, _) = pair(100);
    assert_eq!(dialled.deadline(), secs(3));
    dialled.tick(secs(2)).unwrap();
    assert!(dialled.outgoing().is_empty());
    dialled.tick(MonotonicTime::from_millis(2300)).unwrap();
    assert_eq!(dialled.outgoing().len(), record::EMPTY_RECORD_LEN);
    assert_eq!(dialled.deadline(), MonotonicTime::from_millis(5300));
}

#[test]
fn a_slow_heartbeat_is_announced_and_extends_the_peers_timeout() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.set_slow_heartbeat(true, secs(0)).unwrap();
    transfer(&mut dialled, &mut accepted, 100, secs(0)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(None));
    // The other direction is unchanged.
    assert_eq!((dialled.deadline(), accepted.deadline()), (secs(9), secs(3)));
    for second in 1..45 {
        accepted.tick(secs(second)).unwrap();
        transfer(&mut accepted, &mut dialled, 100, secs(second)).unwrap();
    }
    assert_eq!(accepted.tick(secs(45)), Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout * 5)));

    // Each heartbeat repeats the announcement.
    let (mut dialled, mut accepted) = pair(100);
    dialled.set_slow_heartbeat(true, secs(0)).unwrap();
    for second in 1..=12 {
        transfer(&mut dialled, &mut accepted, 100, secs(second)).unwrap();
        assert_eq!(accepted.next::<JobRequest>(), Ok(None));
        accepted.tick(secs(second)).unwrap();
        transfer(&mut accepted, &mut dialled, 100, secs(second)).unwrap();
        dialled.tick(secs(second)).unwrap();
    }
    assert_eq!(dialled.outgoing().len(), record::EMPTY_RECORD_LEN + 1);
    transfer(&mut dialled, &mut accepted, 100, secs(12)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(None));
    (13..57).for_each(|second| accepted.tick(secs(second)).unwrap());
    assert!(accepted.tick(secs(57)).is_err());

    let (mut dialled, mut accepted) = pair(100);
    for is_slow in [true, true, false] {
        dialled.set_slow_heartbeat(is_slow, secs(0)).unwrap();
    }
    assert_eq!(
        dialled.outgoing().len(),
        2 * (record::EMPTY_RECORD_LEN + 1),
        "announced when it changes"
    );
    transfer(&mut dialled, &mut accepted, 100, secs(0)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(None));
    (1..9).for_each(|second| accepted.tick(secs(second)).unwrap());
    assert_eq!(accepted.tick(secs(9)), Err(LinkError::IdleTimeout(TIMEOUTS.silence_timeout)));
}

#[test]
fn a_heartbeat_factor_out_of_range_is_refused() {
    for content in [&[0][..], &[MAX_HEARTBEAT_FACTOR + 1], &[255], &[1, 1]] {
        let (mut dialled, mut accepted) = pair(100);
        seal(&mut dialled, record::KEEPALIVE, content);
        transfer(&mut dialled, &mut accepted, 100, secs(0)).unwrap();
        assert_eq!(accepted.next::<JobRequest>(), Err(LinkError::BadRecord));
    }
}

#[test]
fn a_close_carries_its_reason() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&JobRequest::Signal(1), secs(0)).unwrap();
    // The limit is in the middle of a letter.
    dialled.close(&format!("a{}", "é".repeat(MAX_REASON_LEN)));
    transfer(&mut dialled, &mut accepted, 100, secs(0)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(Some(JobRequest::Signal(1))));
    let Err(LinkError::PeerClosed(reason)) = accepted.next::<JobRequest>() else {
        panic!("it has not closed the link")
    };
    assert_eq!(reason, format!("a{}", "é".repeat(MAX_REASON_LEN / 2 - 1)));
    assert_eq!(dialled.send(&JobRequest::StdinEof, secs(0)), Err(SendError::Closed));
}

#[test]
fn keys_change_again_and_again_and_both_sides_stay_together() {
    let (mut dialled, mut accepted) = pair(100);
    for number in 0..(2 * record::REKEY_INTERVAL + 10) as i32 {
        dialled.send(&JobRequest::Signal(number), secs(0)).unwrap();
        transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
        assert_eq!(accepted.next::<JobRequest>(), Ok(Some(JobRequest::Signal(number))));
    }
    // The other direction has its own count.
    accepted.send(&JobAnswer::StdinClosed, secs(0)).unwrap();
    transfer(&mut accepted, &mut dialled, usize::MAX, secs(0)).unwrap();
    assert_eq!(dialled.next::<JobAnswer>(), Ok(Some(JobAnswer::StdinClosed)));
}

#[test]
fn records_after_the_change_of_a_key_cannot_be_read_with_the_old_key() {
    let (mut dialled, mut accepted) = pair(100);
    let State::Open(keys) = &mut accepted.state else { panic!("not open") };
    let mut plain = [0; record::EMPTY_RECORD_LEN];
    let mut can_read_next = || {
        seal(&mut dialled, record::KEEPALIVE, &[]);
        let read = keys.read_message(&dialled.outgoing()[2..], &mut plain);
        dialled.mark_written(usize::MAX);
        read.is_ok()
    };
    let read_count = (0..2 * record::REKEY_INTERVAL).take_while(|_| can_read_next()).count();
    // The last record of the handshake is the first with this key.
    assert_eq!(1 + read_count as u64, record::REKEY_INTERVAL);
}
