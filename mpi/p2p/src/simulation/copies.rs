//! Tests of the limit on copies of messages whose memory the program reuses.

use super::*;
use crate::transfers::copies::Copies;

#[test]
fn the_number_of_copies_is_bounded_and_no_accepted_message_is_lost() {
    const MAX_COPIED: usize = 5000;
    let mut world = World::new(1);
    // The seed decides how many nodes there are.
    assert!(world.programs.len() > 1);
    for program in &mut world.programs {
        program.engine.state.copies = Copies::new(CopyBudget::new(MAX_COPIED));
    }
    let mut memory = [0; 20];
    let mut send = |world: &mut World, id: u64, retention| {
        memory.copy_from_slice(&bytes_of(id, 20));
        let operation = SendOperation {
            node: 1,
            envelope: Envelope { tag: Some(7), data: Some(id) },
            buffer: segments(&[(memory.as_mut_ptr(), 20)]),
            retention,
            request: Request { context: 0, is_reported: false },
            completes: SendCompletes::AtOnce,
        };
        let result = world.programs[0].engine.send(&operation);
        // The network is full from time to time. It is empty after these steps.
        for _ in 0..20 {
            (0..world.programs.len()).for_each(|node| world.progress(node));
        }
        result
    };
    // Uses up the credit and then the budget for copies. A full network may accept the next
    // message.
    let (mut count, mut refused) = (0, 0);
    while refused < 10 {
        match send(&mut world, count, Retention::Volatile) {
            Ok(()) => (count, refused) = (count + 1, 0),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                refused += 1;
            }
        }
    }
    let used = world.programs[0].engine.state.copies.used();
    assert!(used > MAX_COPIED / 2 && used <= MAX_COPIED, "{used}");
    // A message that remains in the program's memory needs no copy.
    let mut kept = bytes_of(count, 20);
    let operation = SendOperation {
        node: 1,
        envelope: Envelope { tag: Some(7), data: Some(count) },
        buffer: segments(&[(kept.as_mut_ptr(), 20)]),
        retention: Retention::Stays,
        request: Request { context: 0, is_reported: false },
        completes: SendCompletes::AtOnce,
    };
    while world.programs[0].engine.send(&operation).is_err() {
        world.progress(1);
    }
    let mut received = vec![0; 20];
    for id in 0..=count {
        let selector = Selector { source: Some(0), tag: 7, ignore: 0 };
        let buffer = segments(&[(received.as_mut_ptr(), 20)]);
        let request = Request { context: 1, is_reported: true };
        let receive = ReceiveOperation { selector, buffer, mode: ReceiveMode::Single, request };
        world.programs[1].engine.receive(Channel::Tagged, receive);
        let completion = loop {
            world.programs[0].progress();
            world.programs[1].progress();
            if let Some(completion) = world.programs[1].engine.next_completion().copied() {
                world.programs[1].engine.remove_completion();
                break completion;
            }
        };
        assert_eq!((completion.envelope.data, completion.failure), (Some(id), None));
        assert_eq!(received, bytes_of(id, 20));
    }
    while !world.programs[0].engine.is_flushed() {
        world.programs.iter_mut().for_each(Program::progress);
    }
    assert_eq!(world.programs[0].engine.state.copies.used(), 0);
    let again = (0..10).any(|_| send(&mut world, count + 1, Retention::Volatile).is_ok());
    assert!(again, "there is room again");
}
