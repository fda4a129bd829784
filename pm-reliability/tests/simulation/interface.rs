//! One machine without a network: the exact effect of each call and of each packet on headers,
//! counters, limits, deadlines and the dump.

use score_pm_reliability::packet_header::{ACK, ACK_REQUESTED, TIMESTAMP_ECHO};
use score_pm_reliability::{
    BufferDisposition, Config, Header, INITIAL_WINDOW, PACKET_HEADER_LEN, PacketKind,
    RecoveredMessage, ReliabilityCounters, ReliabilityMachine, SubmitError, Transmit,
};

use super::network::MS;
use super::simulator::{INCARNATION, SECRET};

const MESSAGE_LEN: u16 = 8;
/// The time-out before the first round trip.
const INITIAL_RTO_NS: u64 = 5 * MS;

/// Node 0 of three.
fn machine(adjust: impl FnOnce(&mut Config)) -> ReliabilityMachine {
    let mut config = Config::new(0, 3, SECRET, INCARNATION);
    adjust(&mut config);
    ReliabilityMachine::new(config)
}

/// The header of the first packet from `source` to node 0, without an acknowledgement.
fn header(kind: PacketKind, source: u32) -> Header {
    Header {
        kind,
        flags: 0,
        link: 0,
        sack_block: 0,
        len: if kind.is_numbered() { MESSAGE_LEN } else { 0 },
        secret: SECRET,
        incarnation: INCARNATION,
        source,
        destination: 0,
        sequence: 0,
        ack: 0,
        window: 0,
        sack_bitmap: 0,
        timestamp: 77,
        timestamp_echo: 0,
        mac: 0,
    }
}

/// Gives the machine a packet that it receives over `link`. The number of the buffer is the
/// sequence number.
fn receive_over(
    machine: &mut ReliabilityMachine,
    link: u8,
    header: Header,
    now: u64,
) -> BufferDisposition {
    let mut packet = vec![0; PACKET_HEADER_LEN + usize::from(header.len)];
    header.encode(packet.first_chunk_mut().expect("the packet has a header's length"));
    machine.receive(&packet, link, header.sequence, now)
}

fn receive(machine: &mut ReliabilityMachine, header: Header, now: u64) -> BufferDisposition {
    receive_over(machine, 0, header, now)
}

/// The machine receives an acknowledgement of the messages before `ack`. It may send those before
/// `window`.
fn acknowledge(machine: &mut ReliabilityMachine, source: u32, ack: u32, window: u32, now: u64) {
    let acknowledgement = Header { flags: ACK, ack, window, ..header(PacketKind::Ack, source) };
    assert_eq!(receive(machine, acknowledgement, now), BufferDisposition::Free);
}

/// Submits `count` messages to `peer`.
fn submit(machine: &mut ReliabilityMachine, peer: u32, count: u32) {
    for slot in 0..count {
        assert!(machine.submit(peer, slot, MESSAGE_LEN, PacketKind::Data).is_ok());
    }
}

/// All packets that the machine has to send.
fn packets(machine: &mut ReliabilityMachine, now: u64) -> Vec<Transmit> {
    std::iter::from_fn(|| machine.poll_transmit(now)).collect()
}

/// The only packet that the machine has to send.
fn only_packet(machine: &mut ReliabilityMachine, now: u64) -> Transmit {
    let packets = packets(machine, now);
    assert_eq!(packets.len(), 1, "{packets:?}");
    packets[0]
}

/// The peers in order, each with the number of its items in a row.
fn runs(peers: impl Iterator<Item = u32>) -> Vec<(u32, usize)> {
    let peers: Vec<u32> = peers.collect();
    peers.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

#[test]
fn each_defect_of_a_packet_is_counted_and_the_longest_message_is_accepted() {
    let mut machine = machine(|config| config.links = 2);
    let good = Header { len: machine.config().mtu, ..header(PacketKind::Data, 1) };
    let too_long = Header { len: good.len + 1, ..good };
    let of_itself = Header { source: 0, ..good };
    let of_unknown_node = Header { source: 3, ..good };
    let for_another_node = Header { destination: 1, ..good };
    let earlier_run = Header { incarnation: INCARNATION - 1, ..good };
    let of_another_job = Header { secret: SECRET + 1, ..good };
    for defective in
        [too_long, of_itself, of_unknown_node, for_another_node, earlier_run, of_another_job]
    {
        assert_eq!(receive(&mut machine, defective, MS), BufferDisposition::Free);
    }
    assert_eq!(receive_over(&mut machine, 2, good, MS), BufferDisposition::Free);
    let cut_off = [0; PACKET_HEADER_LEN - 1];
    assert_eq!(machine.receive(&cut_off, 0, 0, MS), BufferDisposition::Free);
    assert_eq!(receive_over(&mut machine, 1, good, MS), BufferDisposition::Kept);
    let expected = ReliabilityCounters {
        received: 1,
        wrong_length: 1,
        misdirected: 4,
        wrong_incarnation: 1,
        wrong_secret: 1,
        malformed: 1,
        ..ReliabilityCounters::default()
    };
    assert_eq!(*machine.counters(), expected);
}

#[test]
fn the_longest_message_is_accepted_for_sending() {
    let mut machine = machine(|_| {});
    let mtu = machine.config().mtu;
    assert_eq!(machine.submit(1, 0, mtu + 1, PacketKind::Data), Err(SubmitError::Invalid));
    assert_eq!(machine.submit(1, 0, mtu, PacketKind::Data), Ok(0));
}

#[test]
fn an_acknowledgement_without_its_flag_is_ignored() {
    let mut machine = machine(|_| {});
    submit(&mut machine, 1, 1);
    packets(&mut machine, MS);
    let without_flag = Header { ack: 1, window: 100, ..header(PacketKind::Ack, 1) };
    receive(&mut machine, without_flag, 2 * MS);
    assert_eq!(machine.outstanding(), 1);
    acknowledge(&mut machine, 1, 1, 100, 2 * MS);
    assert_eq!(machine.outstanding(), 0);
    assert_eq!(machine.next_free_slot(), Some(0));
}

#[test]
fn a_machine_is_idle_after_its_last_packet() {
    let mut machine = machine(|_| {});
    assert!(machine.is_transmit_idle());
    submit(&mut machine, 1, 2);
    assert!(!machine.is_transmit_idle());
    assert!(machine.poll_transmit(MS).is_some());
    assert!(!machine.is_transmit_idle());
    assert!(machine.poll_transmit(MS).is_some());
    assert!(machine.is_transmit_idle());
    assert!(machine.poll_transmit(MS).is_none());
}

#[test]
fn a_message_packet_has_the_complete_header_and_the_last_of_a_window_requests_an_answer() {
    let mut machine = machine(|_| {});
    assert_eq!(machine.submit(1, 5, MESSAGE_LEN, PacketKind::Control), Ok(0));
    let packet = only_packet(&mut machine, MS);
    assert_eq!((packet.peer, packet.link, packet.payload), (1, 0, Some((5, MESSAGE_LEN))));
    let expected = Header {
        flags: ACK,
        destination: 1,
        window: INITIAL_WINDOW,
        timestamp: (MS / 64) as u32,
        ..header(PacketKind::Control, 0)
    };
    assert_eq!(packet.header, expected);
    submit(&mut machine, 1, INITIAL_WINDOW);
    let flags: Vec<u8> =
        packets(&mut machine, MS).iter().map(|packet| packet.header.flags).collect();
    let expected = [vec![ACK; 14], vec![ACK | ACK_REQUESTED]].concat();
    assert_eq!(flags, expected);
    assert_eq!(machine.counters().sent, 16);
}

#[test]
fn peers_take_turns_of_sixty_four_packets() {
    let mut machine = machine(|_| {});
    let wide_window = 1000;
    for peer in [1, 2] {
        // Each acknowledged window doubles the number of packets that may be in flight.
        submit(&mut machine, peer, 16 + 32 + 64);
        for (in_flight, ack) in [(16, 16), (32, 48), (64, 112)] {
            assert_eq!(packets(&mut machine, MS).len(), in_flight);
            acknowledge(&mut machine, peer, ack, wide_window, MS);
        }
    }
    submit(&mut machine, 1, 100);
    submit(&mut machine, 2, 100);
    let sent = packets(&mut machine, MS);
    let turns = runs(sent.iter().map(|packet| packet.peer));
    assert_eq!(turns, [(1, 64), (2, 64), (1, 36), (2, 36)]);
}

#[test]
fn deliveries_of_peers_take_turns_of_sixteen_messages() {
    let mut machine = machine(|_| {});
    assert!(!machine.has_delivery());
    for source in [1, 2] {
        for sequence in 0..20 {
            let message = Header { sequence, ..header(PacketKind::Data, source) };
            assert_eq!(receive(&mut machine, message, MS), BufferDisposition::Kept);
        }
    }
    assert!(machine.has_delivery());
    let delivered = std::iter::from_fn(|| machine.next_delivery());
    let turns = runs(delivered.map(|delivery| delivery.peer));
    assert_eq!(turns, [(1, 16), (2, 16), (1, 4), (2, 4)]);
    assert!(!machine.has_delivery());
}

#[test]
fn an_acknowledgement_is_pending_until_a_message_carries_it_or_its_delay_is_over() {
    let mut machine = machine(|_| {});
    assert!(!machine.has_pending_ack());
    for source in [1, 2] {
        receive(&mut machine, header(PacketKind::Data, source), MS);
    }
    assert!(machine.has_pending_ack() && machine.is_transmit_idle());
    let ack_at = MS + machine.config().ack_delay_ns;
    assert_eq!(machine.deadline(), Some(ack_at));
    assert!(!machine.expire(ack_at - 1));
    assert!(packets(&mut machine, ack_at - 1).is_empty());
    submit(&mut machine, 1, 1);
    let message = only_packet(&mut machine, ack_at - 1).header;
    assert_eq!((message.kind, message.ack), (PacketKind::Data, 1));
    assert!(machine.has_pending_ack(), "the other peer waits for an acknowledgement");
    assert!(!machine.expire(ack_at));
    let answer = only_packet(&mut machine, ack_at);
    let expected = Header {
        flags: ACK | TIMESTAMP_ECHO,
        destination: 2,
        ack: 1,
        window: machine.config().window,
        timestamp: (ack_at / 64) as u32,
        timestamp_echo: 77,
        ..header(PacketKind::Ack, 0)
    };
    assert_eq!((answer.header, answer.payload), (expected, None));
    assert!(!machine.has_pending_ack());
}

#[test]
fn the_deadline_moves_with_each_acknowledgement_and_ends_with_the_last() {
    let mut machine = machine(|_| {});
    submit(&mut machine, 1, 2);
    packets(&mut machine, MS);
    assert_eq!(machine.deadline(), Some(MS + INITIAL_RTO_NS));
    acknowledge(&mut machine, 1, 1, INITIAL_WINDOW, 2 * MS);
    assert_eq!(machine.deadline(), Some(2 * MS + INITIAL_RTO_NS));
    acknowledge(&mut machine, 1, 2, INITIAL_WINDOW, 3 * MS);
    assert_eq!(machine.deadline(), None);
}

#[test]
fn outstanding_messages_are_counted_for_each_peer() {
    let mut machine = machine(|_| {});
    submit(&mut machine, 1, 4);
    submit(&mut machine, 2, 1);
    packets(&mut machine, MS);
    assert_eq!([0, 1, 2].map(|node| machine.outstanding_to(node)), [0, 4, 1]);
    assert_eq!((machine.outstanding(), machine.is_all_acked()), (5, false));
    acknowledge(&mut machine, 1, 2, INITIAL_WINDOW, MS);
    assert_eq!([0, 1, 2].map(|node| machine.outstanding_to(node)), [0, 2, 1]);
}

#[test]
fn the_window_of_a_peer_is_half_of_the_free_buffers() {
    let mut machine = machine(|config| config.buffers = 100);
    let request = Header { flags: ACK_REQUESTED, ..header(PacketKind::Data, 1) };
    receive(&mut machine, request, MS);
    let answer = only_packet(&mut machine, MS).header;
    assert_eq!((answer.kind, answer.ack, answer.window), (PacketKind::Ack, 1, 99 / 2));
}

#[test]
fn a_peer_that_is_short_of_buffers_is_informed_when_buffers_are_free() {
    let mut machine = machine(|config| config.buffers = 8);
    let receive_message = |machine: &mut ReliabilityMachine, source: u32, sequence: u32| {
        let message = Header { sequence, ..header(PacketKind::Data, source) };
        assert_eq!(receive(machine, message, MS), BufferDisposition::Kept);
    };
    // More than half of the initial window of node 1 is used. The last message keeps its buffer.
    for sequence in 0..9 {
        receive_message(&mut machine, 1, sequence);
        assert!(machine.next_delivery().is_some());
        if sequence < 8 {
            machine.on_released(1);
        }
    }
    (0..7).for_each(|sequence| receive_message(&mut machine, 2, sequence));
    machine.on_released(1);
    assert!(machine.is_transmit_idle(), "half of the only free buffer is no buffer");
    assert_eq!(machine.next_delivery().map(|delivery| delivery.peer), Some(2));
    machine.on_released(2);
    let packet = only_packet(&mut machine, MS);
    assert_eq!((packet.peer, packet.header.kind, packet.header.ack), (1, PacketKind::Ack, 9));
}

#[test]
fn a_closed_window_is_probed_over_another_link() {
    let mut machine = machine(|config| config.links = 2);
    submit(&mut machine, 1, INITIAL_WINDOW + 1);
    let links: Vec<u8> = packets(&mut machine, MS).iter().map(|packet| packet.link).collect();
    assert_eq!(links, [[0; 8], [1; 8]].concat());
    acknowledge(&mut machine, 1, INITIAL_WINDOW, INITIAL_WINDOW, 2 * MS);
    let time_out_at = 2 * MS + INITIAL_RTO_NS;
    assert!(machine.expire(time_out_at));
    machine.on_timeout(time_out_at);
    let probe = only_packet(&mut machine, time_out_at);
    assert_eq!((probe.header.kind, probe.header.flags), (PacketKind::WindowProbe, ACK));
    assert_eq!((probe.link, probe.header.link, probe.payload), (0, 0, None));
}

#[test]
fn probes_are_answered_at_once_over_their_link() {
    let mut machine = machine(|config| config.links = 2);
    receive_over(&mut machine, 1, header(PacketKind::WindowProbe, 1), MS);
    let answer = only_packet(&mut machine, MS);
    assert_eq!((answer.link, answer.header.kind), (1, PacketKind::Ack));
    assert_eq!(answer.header.flags, ACK | TIMESTAMP_ECHO);
    assert_eq!((answer.header.ack, answer.header.window), (0, machine.config().window));
    let link_probe = Header { link: 5, ..header(PacketKind::LinkProbe, 1) };
    receive_over(&mut machine, 1, link_probe, MS);
    let answer = only_packet(&mut machine, MS);
    assert_eq!((answer.link, answer.header.link), (1, 1));
    assert_eq!((answer.header.kind, answer.header.flags), (PacketKind::LinkAnswer, 0));
    assert_eq!(answer.header.sequence, 5, "the sender's number for the link");
}

#[test]
fn a_machine_for_a_dead_process_refuses_invalid_slots_and_acknowledges_nothing() {
    let mut machine = machine(|_| {});
    let mtu = machine.config().mtu;
    let valid =
        RecoveredMessage { peer: 1, sequence: 0, slot: 10, len: mtu, kind: PacketKind::Data };
    machine.resume([
        valid,
        RecoveredMessage { slot: 11, kind: PacketKind::Ack, ..valid },
        RecoveredMessage { slot: 12, len: 0, ..valid },
        RecoveredMessage { slot: 13, len: mtu + 1, ..valid },
        RecoveredMessage { slot: 14, peer: 0, ..valid },
        RecoveredMessage { slot: 15, peer: 3, ..valid },
    ]);
    let refused: Vec<u32> = std::iter::from_fn(|| machine.next_free_slot()).collect();
    assert_eq!(refused, [11, 12, 13, 14, 15]);
    assert_eq!((machine.counters().wrong_slots, machine.outstanding()), (5, 1));
    let packet = only_packet(&mut machine, MS);
    assert_eq!((packet.header.flags, packet.payload), (ACK_REQUESTED, Some((10, mtu))));
    for kind in [PacketKind::Data, PacketKind::WindowProbe] {
        let disposition = receive(&mut machine, header(kind, 1), 2 * MS);
        assert_eq!(disposition, BufferDisposition::Free);
    }
    assert_eq!(machine.counters().undelivered, 1);
    assert!(machine.is_transmit_idle() && !machine.has_pending_ack());
    acknowledge(&mut machine, 1, 1, INITIAL_WINDOW, 3 * MS);
    assert!(machine.is_all_acked());
}

fn dump(machine: &ReliabilityMachine) -> String {
    let mut out = Vec::new();
    machine.dump(&mut out).expect("a vector takes all bytes");
    String::from_utf8(out).expect("the dump is text")
}

#[test]
fn the_dump_describes_the_machine_and_each_peer() {
    let mut machine = machine(|config| (config.links, config.buffers) = (2, 100));
    submit(&mut machine, 1, 3);
    packets(&mut machine, MS);
    receive(&mut machine, header(PacketKind::Data, 2), MS);
    let expected = "\
node 0 of 3, 2 peers, 2 links: 3 messages unacknowledged, 1 of 100 buffers held, 2 timers
  packets sent: 3
  packets received: 1
  node 1 <- unacknowledged from 0, unsent from 3, window ends at 16; \
3 queued, 3 in flight, 0 lost; congestion window 32, reorder 3, round trip 0 ns, back-off 0
  node 1 -> released to 0, delivered to 0, received to 0, admitted to 16; 0 early
    link 0 up: 3 sent, 0 lost, 3 in flight
    link 1 up: 0 sent, 0 lost, 0 in flight
  node 2 <- unacknowledged from 0, unsent from 0, window ends at 16; \
0 queued, 0 in flight, 0 lost; congestion window 32, reorder 3, round trip 0 ns, back-off 0
  node 2 -> released to 0, delivered to 0, received to 1, admitted to 49; 0 early
    link 0 up: 0 sent, 0 lost, 0 in flight
    link 1 up: 0 sent, 0 lost, 0 in flight
";
    assert_eq!(dump(&machine), expected);
}

#[test]
fn the_dump_does_not_list_an_only_link() {
    let mut machine = machine(|_| {});
    submit(&mut machine, 1, 1);
    machine.on_peer_exited(1);
    let dump = dump(&machine);
    assert!(dump.contains("back-off 0; exited\n") && !dump.contains("link 0"), "{dump}");
}
