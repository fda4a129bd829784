use super::*;
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Down, Up};

const LIMITS: Limits = Limits { handshake: Time::from_secs(2), silence: Time::from_secs(9) };

fn key(seed: u8) -> Key {
    Key::from_bytes([seed; 32])
}

fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// Carries what `from` has to say to `to`, in pieces of `step` bytes.
fn carry(from: &mut Link, to: &mut Link, step: usize, now: Time) -> Result<(), Fault> {
    let bytes = from.outgoing().to_vec();
    from.wrote(bytes.len());
    bytes.chunks(step).try_for_each(|piece| to.push(piece, now))
}

fn pair(step: usize) -> (Link, Link) {
    let mut dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    let mut accepted = Link::accept(&key(1), LIMITS, at(0));
    carry(&mut dialled, &mut accepted, step, at(0)).unwrap();
    assert!(!accepted.is_open());
    carry(&mut accepted, &mut dialled, step, at(0)).unwrap();
    assert!(dialled.is_open() && !accepted.is_open());
    carry(&mut dialled, &mut accepted, step, at(0)).unwrap();
    assert!(accepted.is_open());
    (dialled, accepted)
}

/// Sends raw records, as a peer does that holds the key and breaks the rules.
fn seal(link: &mut Link, kind: u8, content: &[u8]) {
    let State::Open(keys) = &mut link.state else { panic!("not open") };
    record::seal(keys, kind, content, &mut link.out).unwrap();
}

#[test]
fn messages_of_every_size_arrive_in_order_however_the_stream_is_cut() {
    for step in [1, 7, 64, 65_536, usize::MAX] {
        let (mut dialled, mut accepted) = pair(step);
        let sizes = [0, 1, record::CONTENT - 8, record::CONTENT, record::CONTENT + 1, 200_000];
        for size in sizes {
            dialled.send(&Down::Stdin(vec![size as u8; size]), at(0)).unwrap();
        }
        if step > 1 {
            carry(&mut dialled, &mut accepted, step, at(0)).unwrap();
        } else {
            // Read after every byte.
            let bytes = dialled.outgoing()[..70_000].to_vec();
            for byte in bytes {
                accepted.push(&[byte], at(0)).unwrap();
                if accepted.came.len() < 3 {
                    continue;
                }
                while let Some(message) = accepted.next::<Down>().unwrap() {
                    assert!(matches!(message, Down::Stdin(_)));
                }
            }
            continue;
        }
        for size in sizes {
            let message = accepted.next::<Down>().unwrap().unwrap();
            assert_eq!(message, Down::Stdin(vec![size as u8; size]));
        }
        assert_eq!(accepted.next::<Down>().unwrap(), None);
        accepted.send(&Up::Flush(3), at(0)).unwrap();
        carry(&mut accepted, &mut dialled, step, at(0)).unwrap();
        assert_eq!(dialled.next::<Up>().unwrap(), Some(Up::Flush(3)));
    }
}

#[test]
fn what_is_sent_before_the_link_is_open_arrives_once_it_is() {
    let mut dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    let mut accepted = Link::accept(&key(1), LIMITS, at(0));
    dialled.send(&Down::Signal(7), at(0)).unwrap();
    accepted.send(&Up::Flush(8), at(0)).unwrap();
    for _ in 0..2 {
        carry(&mut dialled, &mut accepted, 5, at(0)).unwrap();
        carry(&mut accepted, &mut dialled, 5, at(0)).unwrap();
    }
    assert_eq!(accepted.next::<Down>().unwrap(), Some(Down::Signal(7)));
    assert_eq!(dialled.next::<Up>().unwrap(), Some(Up::Flush(8)));
}

#[test]
fn nothing_that_is_sent_can_be_read_on_the_way_and_the_same_is_never_sent_twice() {
    let (mut dialled, _) = pair(1000);
    let secret = b"a secret that is long enough to be found";
    let mut seen = Vec::new();
    for _ in 0..2 {
        dialled.send(&Down::Stdin(secret.to_vec()), at(0)).unwrap();
        seen.push(dialled.outgoing().to_vec());
        dialled.wrote(usize::MAX);
    }
    assert!(seen.iter().all(|bytes| !bytes.windows(8).any(|piece| piece == &secret[..8])));
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn another_key_is_refused_before_anything_is_answered() {
    let mut dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    let mut accepted = Link::accept(&key(2), LIMITS, at(0));
    assert_eq!(carry(&mut dialled, &mut accepted, 9, at(0)), Err(Fault::Key));
    assert_eq!(accepted.outgoing(), []);
    assert_eq!(dialled.end(), Fault::Unfinished);
    assert_eq!(dialled.send(&Down::StdinEof, at(0)), Err(SendError::Closed));
}

#[test]
fn a_repeated_beginning_gets_no_further_than_the_answer() {
    let dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    let overheard = dialled.outgoing().to_vec();
    let mut accepted = Link::accept(&key(1), LIMITS, at(0));
    accepted.push(&overheard, at(0)).unwrap();
    assert!(!accepted.is_open());
    // The thief cannot read the answer: whatever it sends next is no proof.
    let mut proof = (record::SHORTEST as u16).to_le_bytes().to_vec();
    proof.extend_from_slice(&[0; record::SHORTEST]);
    assert_eq!(accepted.push(&proof, at(0)), Err(Fault::Key));
}

#[test]
fn both_sides_name_both_versions() {
    let mut accepted = Link::accept(&key(1), LIMITS, at(0));
    let mut old = b"SCOD".to_vec();
    old.extend_from_slice(&(PROTOCOL_VERSION + 7).to_le_bytes());
    let fault = Fault::Version { theirs: PROTOCOL_VERSION + 7, ours: PROTOCOL_VERSION };
    assert_eq!(accepted.push(&old, at(0)), Err(fault.clone()));
    assert_eq!(accepted.outgoing()[4..], PROTOCOL_VERSION.to_le_bytes());
    let mut dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    dialled.wrote(usize::MAX);
    assert_eq!(dialled.push(&old, at(0)), Err(fault));
    assert_eq!(dialled.outgoing(), []);
}

#[test]
fn garbage_is_a_stranger_after_eight_bytes_and_gets_no_answer() {
    for garbage in [b"GET / HTTP/1.1\r\n".to_vec(), vec![0; 1 << 20], vec![0xff; 8]] {
        let mut accepted = Link::accept(&key(1), LIMITS, at(0));
        assert_eq!(accepted.push(&garbage, at(0)), Err(Fault::Stranger));
        assert_eq!((accepted.came.capacity(), accepted.outgoing().len()), (0, 0));
        assert_eq!(accepted.push(&garbage, at(0)), Err(Fault::Stranger));
    }
}

#[test]
fn a_slow_beginning_ends_at_its_limit_however_many_bytes_trickle() {
    let dialled = Link::dial(&key(1), LIMITS, at(0)).unwrap();
    let mut accepted = Link::accept(&key(1), LIMITS, at(10));
    for (index, byte) in dialled.outgoing().iter().take(20).enumerate() {
        accepted.push(&[*byte], at(10) + Time::from_millis(90 * index as u64)).unwrap();
        accepted.tick(at(10) + Time::from_millis(90 * index as u64)).unwrap();
        assert_eq!(accepted.deadline(), at(12));
    }
    assert_eq!(accepted.tick(at(12)), Err(Fault::Late(LIMITS.handshake)));
}

#[test]
fn a_record_that_was_changed_cut_or_repeated_ends_the_link() {
    for change in 0..3 {
        let (mut dialled, mut accepted) = pair(100);
        dialled.send(&Down::Signal(1), at(0)).unwrap();
        let mut bytes = dialled.outgoing().to_vec();
        match change {
            0 => *bytes.last_mut().unwrap() ^= 1,
            1 => bytes[..2].copy_from_slice(&3u16.to_le_bytes()),
            _ => bytes.extend_from_within(..),
        }
        accepted.push(&bytes, at(0)).unwrap();
        if change == 2 {
            assert_eq!(accepted.next::<Down>(), Ok(Some(Down::Signal(1))));
        }
        assert_eq!(accepted.next::<Down>(), Err(Fault::Record));
        assert_eq!(accepted.next::<Down>(), Err(Fault::Record));
    }
}

#[test]
fn a_peer_that_breaks_the_rules_costs_bounded_memory() {
    let (mut dialled, mut accepted) = pair(100);
    let mut pieces = 0;
    let fault = loop {
        seal(&mut dialled, record::PIECE, &[0; record::CONTENT]);
        carry(&mut dialled, &mut accepted, usize::MAX, at(0)).unwrap();
        match accepted.next::<Down>() {
            Ok(none) => assert_eq!(none, None),
            Err(fault) => break fault,
        }
        pieces += 1;
        assert!(pieces < 100 && accepted.message.len() <= MAX_BODY);
    };
    assert_eq!(fault, Fault::TooLong);
    for (kind, content, expected) in [
        (record::LAST, &[0xff; 3][..], Fault::Malformed),
        (9, &[], Fault::Record),
        (record::LEAVE, b"shut\ndown", Fault::Left("shutdown".to_owned())),
    ] {
        let (mut dialled, mut accepted) = pair(100);
        seal(&mut dialled, kind, content);
        carry(&mut dialled, &mut accepted, usize::MAX, at(0)).unwrap();
        assert_eq!(accepted.next::<Down>(), Err(expected));
    }
}

#[test]
fn a_peer_that_does_not_read_fills_a_bounded_queue() {
    let (mut dialled, _) = pair(100);
    let message = Down::Stdin(vec![0; MAX_BODY / 2]);
    let taken = (0..100).take_while(|_| dialled.send(&message, at(0)).is_ok()).count();
    assert!((7..=8).contains(&taken), "{taken}");
    assert_eq!(dialled.send(&message, at(0)), Err(SendError::Full));
    assert!(dialled.queued() <= MAX_QUEUED + 1000);
    dialled.wrote(usize::MAX);
    assert_eq!(dialled.out.capacity(), 0);
    dialled.send(&message, at(0)).unwrap();
    assert_eq!(dialled.send(&Down::Stdin(vec![0; MAX_BODY]), at(0)), Err(SendError::TooLong));
}

#[test]
fn an_idle_link_is_kept_alive_by_a_few_bytes_and_no_more() {
    let (mut dialled, mut accepted) = pair(100);
    let mut bytes = 0;
    for second in 1..=90 {
        for (one, other) in [(0, 1), (1, 0)] {
            let both = [&mut dialled, &mut accepted];
            assert!(both[one].deadline() >= at(second));
            both[one].tick(at(second)).unwrap();
            let said = both[one].outgoing().to_vec();
            both[one].wrote(said.len());
            bytes += said.len();
            both[other].push(&said, at(second)).unwrap();
            assert_eq!(both[other].next::<Down>(), Ok(None));
        }
    }
    assert_eq!(bytes, 2 * 30 * record::EMPTY);
    assert_eq!(dialled.came.len() + accepted.came.len(), 0);
}

#[test]
fn a_silent_peer_is_dead_after_the_limit_and_not_before() {
    let (mut dialled, _) = pair(100);
    for second in 1..9 {
        dialled.tick(at(second)).unwrap();
        // Sending keeps nobody else alive.
        dialled.send(&Down::StdinEof, at(second)).unwrap();
    }
    assert!(dialled.deadline() <= at(9));
    assert_eq!(dialled.tick(at(9)), Err(Fault::Silent(LIMITS.silence)));
}

#[test]
fn sending_all_the_time_hides_no_silence() {
    let (mut dialled, _) = pair(100);
    let mut now = at(0);
    while now < dialled.deadline() {
        now += Time::from_secs(1);
        dialled.send(&Down::StdinEof, now).unwrap();
        dialled.wrote(usize::MAX);
        assert!(now < at(20));
    }
    assert_eq!(dialled.tick(now), Err(Fault::Silent(LIMITS.silence)));
}

#[test]
fn who_was_stopped_itself_does_not_blame_its_peers() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.tick(at(1)).unwrap();
    dialled.tick(at(60)).unwrap();
    carry(&mut dialled, &mut accepted, 100, at(60)).unwrap();
    assert_eq!(dialled.deadline(), at(63));
    dialled.tick(at(63)).unwrap();
    dialled.tick(at(66)).unwrap();
    assert_eq!(dialled.tick(at(69)), Err(Fault::Silent(LIMITS.silence)));
}

#[test]
fn whoever_is_awake_speaks_after_a_quarter_and_wakes_for_it_after_a_third() {
    let (mut dialled, _) = pair(100);
    assert_eq!(dialled.deadline(), at(3));
    dialled.tick(at(2)).unwrap();
    assert!(dialled.outgoing().is_empty());
    dialled.tick(Time::from_millis(2300)).unwrap();
    assert_eq!(dialled.outgoing().len(), record::EMPTY);
    assert_eq!(dialled.deadline(), Time::from_millis(5300));
}

#[test]
fn who_speaks_rarely_has_said_so_and_is_missed_later() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.speak_rarely(true, at(0)).unwrap();
    carry(&mut dialled, &mut accepted, 100, at(0)).unwrap();
    assert_eq!(accepted.next::<Down>(), Ok(None));
    // The other direction is as ever.
    assert_eq!((dialled.deadline(), accepted.deadline()), (at(9), at(3)));
    for second in 1..45 {
        accepted.tick(at(second)).unwrap();
        carry(&mut accepted, &mut dialled, 100, at(second)).unwrap();
    }
    assert_eq!(accepted.tick(at(45)), Err(Fault::Silent(LIMITS.silence * 5)));

    let (mut dialled, mut accepted) = pair(100);
    for rarely in [true, true, false] {
        dialled.speak_rarely(rarely, at(0)).unwrap();
    }
    assert_eq!(dialled.outgoing().len(), 2 * (record::EMPTY + 1), "said when it changes");
    carry(&mut dialled, &mut accepted, 100, at(0)).unwrap();
    assert_eq!(accepted.next::<Down>(), Ok(None));
    (1..9).for_each(|second| accepted.tick(at(second)).unwrap());
    assert_eq!(accepted.tick(at(9)), Err(Fault::Silent(LIMITS.silence)));
}

#[test]
fn nobody_is_waited_for_without_end() {
    for content in [&[0][..], &[MOST_RARELY + 1], &[255], &[1, 1]] {
        let (mut dialled, mut accepted) = pair(100);
        seal(&mut dialled, record::ALIVE, content);
        carry(&mut dialled, &mut accepted, 100, at(0)).unwrap();
        assert_eq!(accepted.next::<Down>(), Err(Fault::Record));
    }
}

#[test]
fn who_leaves_says_why() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&Down::Signal(1), at(0)).unwrap();
    dialled.leave(&"é".repeat(REASON));
    carry(&mut dialled, &mut accepted, 100, at(0)).unwrap();
    assert_eq!(accepted.next::<Down>(), Ok(Some(Down::Signal(1))));
    let Err(Fault::Left(reason)) = accepted.next::<Down>() else { panic!("it has not left") };
    assert_eq!(reason, "é".repeat(REASON / 2));
    assert_eq!(dialled.send(&Down::StdinEof, at(0)), Err(SendError::Closed));
}

#[test]
fn keys_change_again_and_again_and_both_sides_stay_together() {
    let (mut dialled, mut accepted) = pair(100);
    for turn in 0..(2 * record::REKEY + 10) as i32 {
        dialled.send(&Down::Signal(turn), at(0)).unwrap();
        carry(&mut dialled, &mut accepted, usize::MAX, at(0)).unwrap();
        assert_eq!(accepted.next::<Down>(), Ok(Some(Down::Signal(turn))));
    }
    // The other direction counts for itself.
    accepted.send(&Up::StdinClosed, at(0)).unwrap();
    carry(&mut accepted, &mut dialled, usize::MAX, at(0)).unwrap();
    assert_eq!(dialled.next::<Up>(), Ok(Some(Up::StdinClosed)));
}

#[test]
fn an_idle_link_holds_little_memory() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&Down::Stdin(vec![0; MAX_BODY / 2]), at(0)).unwrap();
    carry(&mut dialled, &mut accepted, usize::MAX, at(0)).unwrap();
    assert!(accepted.next::<Down>().unwrap().is_some());
    assert_eq!(accepted.next::<Down>().unwrap(), None);
    for link in [&dialled, &accepted] {
        let held = link.came.capacity() + link.out.capacity() + link.message.capacity();
        assert!(held <= 2 * KEPT, "{held}");
    }
}
