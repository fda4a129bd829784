//! Tests that messages of any length from many sources are received in the order of their source
//! and within the guaranteed number of polls. This also holds after a reset has dropped messages.

use crate::testbed::*;
use proptest::prelude::*;
use score_pm::*;
use std::collections::VecDeque;

const NODES: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    /// Source node, reserved length, and sent length.
    Send(usize, usize, usize),
    /// The number of receives.
    Receive(usize),
    /// The receiver drops all waiting messages.
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1..=48usize, 49..=130usize, 1000..=8192usize];
    prop_oneof![
        12 => (1..NODES, len(), 1..=8192usize)
            .prop_map(|(node, reserved, sent)| Step::Send(node, reserved, sent.min(reserved))),
        8 => (1..4usize).prop_map(Step::Receive),
        1 => Just(Step::Reset),
    ]
}

fn check_steps(bed: &TestBed, steps: &[Step]) {
    let mut queues = vec![VecDeque::new(); NODES];
    let mut serial = 0u32;
    for step in steps {
        match *step {
            Step::Send(node, reserved, sent) => {
                serial += 1;
                let mut bytes = vec![node as u8; sent];
                let tag = [&[node as u8][..], &serial.to_le_bytes()].concat();
                for (to, from) in bytes.iter_mut().zip(tag) {
                    *to = from;
                }
                let Ok(buffer) = bed.contexts[node].get_send_buffer(0, reserved) else { continue };
                fill(buffer, &bytes);
                bed.contexts[node].truncate(sent).unwrap();
                bed.contexts[node].send().unwrap();
                queues[node].push_back(bytes);
            }
            Step::Receive(count) => (0..count).for_each(|_| check_next(bed, &mut queues)),
            Step::Reset => {
                bed.contexts[0].reset().unwrap();
                queues.iter_mut().for_each(VecDeque::clear);
            }
        }
    }
    while queues.iter().any(|queue| !queue.is_empty()) {
        check_next(bed, &mut queues);
    }
    assert_eq!(receive(&bed.contexts[0]), Err(Error::NoBuffers));
}

/// Checks that the next message is the oldest of its source, and that there is one if any is
/// queued.
fn check_next(bed: &TestBed, queues: &mut [VecDeque<Vec<u8>>]) {
    let is_queued = queues.iter().any(|queue| !queue.is_empty());
    // A poll checks four cold sources. One more poll is needed for a source whose quantum is used
    // up.
    let polls = if is_queued { NODES / 4 + 2 } else { 1 };
    let found = (0..polls).find_map(|_| receive(&bed.contexts[0]).ok());
    let expected =
        found.as_ref().and_then(|bytes| queues.get_mut(usize::from(bytes[0]))?.pop_front());
    assert_eq!(found, expected, "{}", bed.kind);
    assert_eq!(found.is_some(), is_queued, "{}: {polls} polls", bed.kind);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_message_is_received_in_order_and_within_few_polls(
        steps in prop::collection::vec(step(), 1..250)
    ) {
        // The number of polls is guaranteed only for messages that do not cross a network.
        on_local_kinds(NODES, |bed| check_steps(bed, &steps));
    }
}
