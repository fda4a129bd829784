//! The memory that a link uses.

use super::*;

#[test]
fn written_bytes_are_removed_when_they_are_many_and_not_for_each_write() {
    let (mut dialled, _) = pair(100);
    for _ in 0..2 {
        dialled.send(&longest_message(), secs(0)).unwrap();
    }
    let all = dialled.outgoing().to_vec();
    dialled.mark_written(MAX_BODY);
    assert_eq!((dialled.out.len(), dialled.outgoing()), (all.len(), &all[MAX_BODY..]));
    dialled.mark_written(1);
    assert_eq!(
        (dialled.out.len(), dialled.outgoing()),
        (all.len() - MAX_BODY - 1, &all[MAX_BODY + 1..])
    );
}

#[test]
fn processed_records_leave_the_buffer_when_more_bytes_arrive() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&JobRequest::Signal(1), secs(0)).unwrap();
    let first_record_len = dialled.outgoing().len();
    dialled.send(&JobRequest::Signal(2), secs(0)).unwrap();
    let bytes = dialled.outgoing().to_vec();
    let (first, rest) = bytes.split_at(first_record_len + 1);
    accepted.push(first, secs(0)).unwrap();
    assert_eq!(accepted.next::<JobRequest>(), Ok(Some(JobRequest::Signal(1))));
    assert_eq!(accepted.next::<JobRequest>(), Ok(None));
    accepted.push(rest, secs(0)).unwrap();
    assert_eq!(accepted.received, bytes[first_record_len..]);
    assert_eq!(accepted.next::<JobRequest>(), Ok(Some(JobRequest::Signal(2))));
}

#[test]
fn an_empty_buffer_is_freed_only_if_it_is_large() {
    const MAX_LEN: usize = MAX_RETAINED_CAPACITY;
    for (len, retained) in [(MAX_LEN, MAX_LEN), (MAX_LEN + 1, 0)] {
        let (mut buffer, mut consumed) = (vec![0; len], len);
        recycle_buffer(&mut buffer, &mut consumed);
        assert_eq!((buffer.len(), buffer.capacity(), consumed), (0, retained, 0));
    }
}

#[test]
fn a_link_keeps_its_buffers_after_a_message_of_ten_kibibytes() {
    let (mut dialled, mut accepted) = pair(100);
    let len = 10 * 1024;
    dialled.send(&JobRequest::Stdin(vec![0; len]), secs(0)).unwrap();
    transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
    assert!(accepted.next::<JobRequest>().unwrap().is_some());
    assert_eq!(accepted.next::<JobRequest>().unwrap(), None);
    for capacity in [dialled.out.capacity(), accepted.received.capacity()] {
        assert!(capacity >= len, "{capacity}");
    }
}

#[test]
fn an_idle_link_uses_little_memory() {
    let (mut dialled, mut accepted) = pair(100);
    dialled.send(&JobRequest::Stdin(vec![0; MAX_BODY / 2]), secs(0)).unwrap();
    transfer(&mut dialled, &mut accepted, usize::MAX, secs(0)).unwrap();
    assert!(accepted.next::<JobRequest>().unwrap().is_some());
    assert_eq!(accepted.next::<JobRequest>().unwrap(), None);
    for link in [&dialled, &accepted] {
        let capacity =
            link.received.capacity() + link.out.capacity() + link.partial_message.capacity();
        assert!(capacity <= 2 * MAX_RETAINED_CAPACITY, "{capacity}");
    }
}
