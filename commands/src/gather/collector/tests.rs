use super::*;
use crate::gather::contributor::Contributor;
use crate::gather::spool::Spool;
use crate::simulation::{FakeInput, FakeOutput, Network, SeededRng, nameless_file, run};

fn input(node: u32, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u32 * 7 + node * 101) as u8).collect()
}

fn spool(limit: u64) -> Spool {
    Spool::new(limit, Box::new(nameless_file))
}

/// Gathers from the nodes in `order`. Node n has `lengths[n]` bytes of input.
fn gather(lengths: &[usize], order: &[u32], output_limit: usize, limit: u64, seed: u64) -> Vec<u8> {
    let (rng, nodes) = (SeededRng::new(seed), lengths.len() as u32);
    let network = Network::new(nodes, 1024);
    let (fake_output, written) = FakeOutput::new(output_limit, &rng);
    let mut fake_output = Some(fake_output);
    let mut tasks = Vec::<Box<dyn NodeTask>>::new();
    for (node, length) in (0u32..).zip(lengths) {
        let transport = network.transport(node);
        let fake_input = (FakeInput::new(&input(node, *length), &rng), "input".to_owned());
        tasks.push(match fake_output.take() {
            Some(fake_output) => {
                Box::new(Collector::new(nodes, order, Some(fake_input), fake_output, &transport))
            }
            None if order.contains(&node) => {
                let spool = spool(limit);
                let contributor =
                    Contributor::forwarding(fake_input, &transport, spool, true, "test".into());
                Box::new(contributor)
            }
            None => Box::new(Contributor::discarding(fake_input)),
        });
    }
    run(&network, tasks, &rng);
    written.borrow().clone()
}

#[test]
fn output_is_ordered_by_node() {
    let lengths = [1000, 300_000, 0, 90_000, 1];
    let all: Vec<u8> = (0u32..).zip(lengths).flat_map(|(n, length)| input(n, length)).collect();
    for (seed, limit) in [(1, u64::MAX), (2, 0), (3, 100_000)] {
        let got = gather(&lengths, &[0, 1, 2, 3, 4], usize::MAX, limit, seed);
        assert!(got == all, "{} of {} bytes", got.len(), all.len());
    }
}

#[test]
fn input_of_one_node_can_be_gathered_and_other_input_is_read_to_its_end() {
    for chosen in [0, 2] {
        let got = gather(&[5000, 6000, 7000], &[chosen], usize::MAX, u64::MAX, 4);
        assert!(got == input(chosen, 5000 + 1000 * chosen as usize));
    }
}

#[test]
fn every_node_ends_when_the_reader_has_closed() {
    let got = gather(&[500_000, 500_000, 500_000], &[0, 1, 2], 600_000, u64::MAX, 5);
    assert!(got[..500_000] == input(0, 500_000));
}

#[test]
fn an_end_out_of_turn_is_refused() {
    let rng = SeededRng::new(7);
    let network = Network::new(2, 1024);
    let fake_input = (FakeInput::new(b"abc", &rng), String::new());
    let fake_output = FakeOutput::new(9, &rng).0;
    let mut collector =
        Collector::new(2, &[0, 1], Some(fake_input), fake_output, &network.transport(0));
    network.transport(1).send(0, Message::End).unwrap();
    let failure = collector.step(&mut network.transport(0)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent an end of data out of turn");
}
