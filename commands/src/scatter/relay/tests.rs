use super::*;
use crate::simulation::{Dice, Feed, Network, Sink, run};

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 256) as u8).collect()
}

/// Runs a pipeline whose outputs take `limits` bytes each; what the outputs got.
fn pipeline(bytes: &[u8], limits: &[Option<usize>], mtu: usize, seed: u64) -> Vec<Vec<u8>> {
    let (dice, nodes) = (Dice::new(seed), limits.len() as u32);
    let network = Network::new(nodes, mtu);
    let (mut machines, mut outputs) = (Vec::<Box<dyn Machine>>::new(), Vec::new());
    for (node, limit) in (0u32..).zip(limits) {
        let output = limit.map(|limit| {
            let (sink, got) = Sink::new(limit, &dice);
            outputs.push(got);
            (sink, "output".to_owned())
        });
        let next = (node + 1 < nodes).then_some(node + 1);
        let post = network.post(node);
        machines.push(Box::new(match node {
            0 => Relay::head(Feed::new(bytes, &dice), output, next, &post),
            _ => Relay::behind(node - 1, output, next, &post),
        }));
    }
    run(&network, machines, &dice);
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
fn a_node_whose_reader_has_gone_keeps_forwarding() {
    let bytes = text(300_000);
    let got = pipeline(&bytes, &[Some(100), Some(usize::MAX), Some(0), Some(usize::MAX)], 4096, 3);
    assert!(got[1] == bytes && got[3] == bytes);
}

#[test]
fn when_the_last_reader_has_gone_an_endless_input_is_left_alone() {
    let bytes = text(5_000_000);
    let dice = Dice::new(4);
    let network = Network::new(3, 1024);
    let mut machines = Vec::<Box<dyn Machine>>::new();
    for node in 0..3 {
        let output = Some((Sink::new(1000, &dice).0, String::new()));
        let next = (node < 2).then_some(node + 1);
        machines.push(Box::new(match node {
            0 => Relay::head(Feed::new(&bytes, &dice), output, next, &network.post(0)),
            _ => Relay::behind(node - 1, output, next, &network.post(node)),
        }));
    }
    run(&network, machines, &dice);
}

#[test]
fn nodes_without_an_output_only_pass_on() {
    let bytes = text(100_000);
    let got = pipeline(&bytes, &[None, None, Some(usize::MAX), None], 1024, 5);
    assert!(got == [bytes]);
}

#[test]
fn garbage_and_messages_out_of_turn_end_the_node() {
    let dice = Dice::new(6);
    let network = Network::new(2, 1024);
    let output = Some((Sink::new(9, &dice).0, String::new()));
    let mut head = Relay::head(Feed::new(b"", &dice), output, None, &network.post(0));
    network.post(1).send(0, Message::Data(b"x")).unwrap();
    let failure = head.step(&mut network.post(0)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent data out of turn");

    let output = Some((Sink::new(9, &dice).0, String::new()));
    let mut tail = Relay::<Feed, _>::behind(0, output, None, &network.post(1));
    network.post(0).send(1, Message::Data(b"xy")).unwrap();
    let failure = tail.step(&mut network.post(1)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent 2 bytes more than it was granted");
}
