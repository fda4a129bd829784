use super::*;
use crate::gather::contributor::Contributor;
use crate::gather::spool::Spool;
use crate::simulation::{Dice, Feed, Network, Sink, nameless_file, run};

fn input(node: u32, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u32 * 7 + node * 101) as u8).collect()
}

fn spool(limit: u64) -> Spool {
    Spool::new(limit, Box::new(nameless_file))
}

/// Gathers from the nodes in `order`, where node n has `lengths[n]` bytes to give.
fn gather(lengths: &[usize], order: &[u32], output: usize, limit: u64, seed: u64) -> Vec<u8> {
    let (dice, nodes) = (Dice::new(seed), lengths.len() as u32);
    let network = Network::new(nodes, 1024);
    let (sink, got) = Sink::new(output, &dice);
    let mut sink = Some(sink);
    let mut machines = Vec::<Box<dyn Machine>>::new();
    for (node, length) in (0u32..).zip(lengths) {
        let post = network.post(node);
        let feed = (Feed::new(&input(node, *length), &dice), "input".to_owned());
        machines.push(match sink.take() {
            Some(sink) => Box::new(Collector::new(nodes, order, Some(feed), sink, &post)),
            None if order.contains(&node) => {
                let spool = spool(limit);
                let node = Contributor::giving(feed, &post, spool, true, "test".into());
                Box::new(node)
            }
            None => Box::new(Contributor::discarding(feed)),
        });
    }
    run(&network, machines, &dice);
    got.borrow().clone()
}

#[test]
fn bytes_come_node_by_node() {
    let lengths = [1000, 300_000, 0, 90_000, 1];
    let all: Vec<u8> = (0u32..).zip(lengths).flat_map(|(n, length)| input(n, length)).collect();
    for (seed, limit) in [(1, u64::MAX), (2, 0), (3, 100_000)] {
        let got = gather(&lengths, &[0, 1, 2, 3, 4], usize::MAX, limit, seed);
        assert!(got == all, "{} of {} bytes", got.len(), all.len());
    }
}

#[test]
fn one_node_alone_can_be_gathered_and_the_others_are_read_to_their_end() {
    for chosen in [0, 2] {
        let got = gather(&[5000, 6000, 7000], &[chosen], usize::MAX, u64::MAX, 4);
        assert!(got == input(chosen, 5000 + 1000 * chosen as usize));
    }
}

#[test]
fn when_the_reader_has_gone_every_node_ends() {
    let got = gather(&[500_000, 500_000, 500_000], &[0, 1, 2], 600_000, u64::MAX, 5);
    assert!(got[..500_000] == input(0, 500_000));
}

#[test]
fn an_end_out_of_turn_is_refused() {
    let dice = Dice::new(7);
    let network = Network::new(2, 1024);
    let feed = (Feed::new(b"abc", &dice), String::new());
    let sink = Sink::new(9, &dice).0;
    let mut node = Collector::new(2, &[0, 1], Some(feed), sink, &network.post(0));
    network.post(1).send(0, Message::End).unwrap();
    let failure = node.step(&mut network.post(0)).unwrap_err();
    assert_eq!(failure.to_string(), "another node sent an end of data out of turn");
}
