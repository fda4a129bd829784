use super::*;
use crate::simulation::{FakeInput, FakeOutput, Network, SeededRng, run};

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 256) as u8).collect()
}

/// Runs a pipeline whose outputs close after `limits` bytes. Returns the bytes of each output.
fn pipeline(bytes: &[u8], limits: &[Option<usize>], mtu: usize, seed: u64) -> Vec<Vec<u8>> {
    let (rng, nodes) = (SeededRng::new(seed), limits.len() as u32);
    let network = Network::new(nodes, mtu);
    let (mut tasks, mut outputs) = (Vec::<Box<dyn NodeTask>>::new(), Vec::new());
    for (node, limit) in (0u32..).zip(limits) {
        let output = limit.map(|limit| {
            let (fake_output, written) = FakeOutput::new(limit, &rng);
            outputs.push(written);
            (fake_output, "output".to_owned())
        });
        let next = (node + 1 < nodes).then_some(node + 1);
        let transport = network.transport(node);
        tasks.push(Box::new(match node {
            0 => Relay::from_input(FakeInput::new(bytes, &rng), output, next, &transport),
            _ => Relay::from_node(node - 1, output, next, &transport),
        }));
    }
    run(&network, tasks, &rng);
    outputs.iter().map(|got| got.borrow().clone()).collect()
}

#[test]
fn every_node_gets_every_byte() {
    let bytes = text(700_000);
    for (nodes, mtu) in [(1, 1024), (2, 8192), (5, 1024), (7, 8192)] {
        for got in pipeline(&bytes, &vec![Some(usize::MAX); nodes], mtu, nodes as u64) {
            assert!(got == bytes, "{nodes} nodes, {} of {} bytes", got.len(), bytes.len());
        }
    }
}

#[test]
fn an_empty_input_ends_every_node() {
    assert_eq!(pipeline(b"", &[Some(usize::MAX); 4], 1024, 1), vec![Vec::<u8>::new(); 4]);
}

#[test]
fn a_node_whose_reader_has_closed_keeps_forwarding() {
    let bytes = text(300_000);
    let got = pipeline(&bytes, &[Some(100), Some(usize::MAX), Some(0), Some(usize::MAX)], 4096, 3);
    assert!(got[1] == bytes && got[3] == bytes);
}

#[test]
fn an_endless_input_is_read_until_the_last_reader_has_closed() {
    let bytes = text(5_000_000);
    let rng = SeededRng::new(4);
    let network = Network::new(3, 1024);
    let mut tasks = Vec::<Box<dyn NodeTask>>::new();
    for node in 0..3 {
        let output = Some((FakeOutput::new(1000, &rng).0, String::new()));
        let next = (node < 2).then_some(node + 1);
        tasks.push(Box::new(match node {
            0 => {
                Relay::from_input(FakeInput::new(&bytes, &rng), output, next, &network.transport(0))
            }
            _ => Relay::from_node(node - 1, output, next, &network.transport(node)),
        }));
    }
    run(&network, tasks, &rng);
}

#[test]
fn nodes_without_an_output_only_forward_bytes() {
    let bytes = text(100_000);
    let got = pipeline(&bytes, &[None, None, Some(usize::MAX), None], 1024, 5);
    assert!(got == [bytes]);
}

#[test]
fn garbage_and_messages_out_of_turn_end_the_node() {
    let rng = SeededRng::new(6);
    let network = Network::new(2, 1024);
    let output = Some((FakeOutput::new(9, &rng).0, String::new()));
    let mut first =
        Relay::from_input(FakeInput::new(b"", &rng), output, None, &network.transport(0));
    network.transport(1).send(0, Message::Data(b"x")).unwrap();
    let failure = first.step(&mut network.transport(0)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent data out of turn");

    let output = Some((FakeOutput::new(9, &rng).0, String::new()));
    let mut last = Relay::<FakeInput, _>::from_node(0, output, None, &network.transport(1));
    network.transport(0).send(1, Message::Data(b"xy")).unwrap();
    let failure = last.step(&mut network.transport(1)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent 2 bytes more than it was granted");
}
