//! Trees of servers on a network in memory, with seeded delays, lost servers and commands to sets
//! of ranks. The events at the front end are compared with the answers of the servers.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use proptest::prelude::*;
use score_proto::nodeset::NodeSet;
use score_sdm::backend::{Backend, NoBackend};
use score_sdm::hop::HopRole;
use score_sdm::message::{
    DebugCommand, DebugEvent, DownMessage, INIT_COMMAND, Operation, RoutingTable, TreeInit,
    UpMessage,
};
use score_sdm::routing::{Routing, TreeShape};
use score_sdm::server::{Server, ServerState};
use score_sdm::transport::memory::{FRONT_END, MemoryNetwork, MemoryTransport};
use score_sdm::transport::{Transport, TransportEvent};
use score_tools::merge::{CommandId, EventBody, MonotonicTime};

/// A process that answers each command after a given delay, with one of a few values.
struct SimulatedProcess {
    rank: u32,
    /// The delays of commands with an even number, and of commands with an odd number.
    delays: [Duration; 2],
    answers: Vec<(MonotonicTime, CommandId, DebugEvent)>,
}

fn answer_of(rank: u32, command: CommandId) -> DebugEvent {
    DebugEvent::Value(format!("{} {}", command.0, rank % 4))
}

impl Backend for SimulatedProcess {
    fn begin(&mut self, command: CommandId, operation: Operation, now: MonotonicTime) {
        let Operation::Print { expression } = operation else { panic!("{operation:?}") };
        assert_eq!(expression, "x");
        let at = now + self.delays[command.0 as usize % 2];
        self.answers.push((at, command, answer_of(self.rank, command)));
    }

    fn progress(&mut self, now: MonotonicTime) -> Vec<(CommandId, DebugEvent)> {
        let mut due = Vec::new();
        self.answers.retain(|(at, command, event)| {
            if *at <= now {
                due.push((*command, event.clone()));
            }
            *at > now
        });
        due
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn deadline(&self) -> Option<MonotonicTime> {
        self.answers.iter().map(|(at, _, _)| *at).min()
    }

    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

struct Simulation {
    network: MemoryNetwork,
    front_end: MemoryTransport,
    routing: Routing,
    master: Server<MemoryTransport, NoBackend>,
    servers: Vec<Server<MemoryTransport, SimulatedProcess>>,
    killed: Vec<bool>,
    received: Vec<score_tools::merge::MergedEvent>,
}

impl Simulation {
    fn new(seed: u64, routing: Routing, delays: &[[u16; 2]]) -> Self {
        let network = MemoryNetwork::new(seed, Duration::from_millis(50));
        let server = |rank: u32| {
            let delays = delays[rank as usize % delays.len()];
            let delays = delays.map(|ms| Duration::from_millis(ms.into()));
            let backend = SimulatedProcess { rank, delays, answers: Vec::new() };
            Server::new(HopRole::Server(rank), network.transport(rank), backend)
        };
        let master_transport = network.transport(routing.master());
        Self {
            master: Server::new(HopRole::Master, master_transport, NoBackend::default()),
            servers: (0..routing.servers()).map(server).collect(),
            killed: vec![false; routing.servers() as usize],
            front_end: network.transport(FRONT_END),
            routing,
            network,
            received: Vec::new(),
        }
    }

    fn send(&self, message: DownMessage) {
        self.front_end.send_down(self.routing.master(), message);
    }

    fn kill(&mut self, rank: u32) {
        self.killed[rank as usize] = true;
        self.network.kill(rank);
    }

    /// Advances the time to `until`, from event to event.
    fn run(&mut self, until: MonotonicTime) {
        loop {
            let mut next = self.network.next_arrival().into_iter().chain(self.master.deadline());
            let next = next.by_ref().min();
            let running = self.servers.iter().zip(&self.killed).filter(|(_, killed)| !**killed);
            let next = running.filter_map(|(server, _)| server.deadline()).chain(next).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.network.advance_to(next);
            self.master.progress(Duration::ZERO).unwrap();
            for rank in 0..self.servers.len() {
                let server = &mut self.servers[rank];
                if !self.killed[rank]
                    && server.progress(Duration::ZERO).unwrap() == ServerState::Ended
                {
                    // When a process exits, its connections close.
                    self.kill(rank as u32);
                }
            }
            while let Some(event) = self.front_end.receive() {
                let TransportEvent::FromChild(_, UpMessage::Event(event)) = event else {
                    panic!("{event:?}")
                };
                self.received.push(event);
            }
        }
        self.network.advance_to(until);
    }

    /// The received events of a command. Checks that each rank is in at most one event.
    fn events(&self, command: CommandId) -> BTreeMap<EventBody, NodeSet> {
        let (mut seen, mut all) = (NodeSet::new(), BTreeMap::<EventBody, NodeSet>::new());
        for event in self.received.iter().filter(|event| event.command == command) {
            assert!(!seen.intersects(&event.ranks), "{event:?}");
            seen.union(&event.ranks);
            all.entry(event.body.clone()).or_default().union(&event.ranks);
        }
        all
    }
}

fn print(id: u64, ranks: &NodeSet, timeout: Duration) -> DownMessage {
    let (id, ranks) = (CommandId(id), ranks.clone());
    let operation = Operation::Print { expression: "x".to_owned() };
    DownMessage::Command(DebugCommand { id, ranks, timeout, operation })
}

fn init(servers: u32, shape: TreeShape) -> DownMessage {
    let (table, timeout) = (RoutingTable::default(), Duration::from_secs(60));
    DownMessage::Init(TreeInit { servers, shape, table, timeout })
}

fn expected(ranks: &NodeSet, command: CommandId) -> BTreeMap<EventBody, NodeSet> {
    let mut expected = BTreeMap::<EventBody, NodeSet>::new();
    for rank in ranks.iter() {
        expected.entry(answer_of(rank, command).to_body()).or_default().insert(rank);
    }
    expected
}

fn shapes() -> impl Strategy<Value = TreeShape> {
    prop_oneof![Just(TreeShape::Binomial), (1u32..6).prop_map(TreeShape::Kary)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    // Promise of `a_tree_sends_the_union_of_the_events_of_its_ranks`.
    #[test]
    fn each_rank_of_a_command_answers_once_and_a_lost_branch_is_reported_with_its_ranks(
        seed in any::<u64>(),
        servers in 1u32..40,
        shape in shapes(),
        delays in proptest::collection::vec([0u16..900, 0u16..900], 1..8),
        ranks in proptest::collection::btree_set(0u32..40, 0..30),
        lost in proptest::option::of((any::<prop::sample::Index>(), 0u64..3)),
        is_patient in any::<bool>(),
    ) {
        let second = Duration::from_secs(1);
        let routing = Routing::new(servers, shape).unwrap();
        let mut simulation = Simulation::new(seed, routing, &delays);
        let lost = lost.map(|(index, when)| (index.index(servers as usize) as u32, when));
        let branch = lost.map_or(NodeSet::new(), |(rank, _)| routing.branch(rank).into());
        let all = NodeSet::from(0..servers);
        // The server is lost before the start, between the initialisation and a command, or during
        // a command.
        if let Some((rank, 0)) = lost {
            simulation.kill(rank);
        }
        simulation.send(init(servers, shape));
        simulation.run(20 * second);
        let mut ready = BTreeMap::new();
        let reached = match lost {
            Some((rank, 0)) => {
                let reason = DebugEvent::Unreachable("no server answers".to_owned());
                ready.insert(reason.to_body(), NodeSet::one(rank));
                ready.insert(EventBody::Lost, branch.difference(&NodeSet::one(rank)));
                all.difference(&branch)
            }
            _ => all.clone(),
        };
        ready.insert(DebugEvent::Ready.to_body(), reached);
        ready.retain(|_, ranks| !ranks.is_empty());
        prop_assert_eq!(simulation.events(INIT_COMMAND), ready);

        if let Some((rank, 1)) = lost {
            simulation.kill(rank);
            simulation.run(30 * second);
        }
        // A command for some ranks and, before it ends, another command for all ranks.
        let ranks: NodeSet = ranks.into_iter().filter(|rank| *rank < servers).collect();
        let timeout = if is_patient { 60 * second } else { second / 2 };
        simulation.send(print(1, &ranks, timeout));
        simulation.send(print(2, &all, timeout));
        if let Some((rank, 2)) = lost {
            simulation.run(Duration::from_millis(20_300));
            simulation.kill(rank);
        }
        simulation.run(200 * second);
        for (command, ranks) in [(CommandId(1), &ranks), (CommandId(2), &all)] {
            let mut events = simulation.events(command);
            let missing = events.remove(&EventBody::Lost).unwrap_or_default();
            prop_assert_eq!(missing.difference(&branch), NodeSet::new(), "of the branch only");
            if matches!(lost, Some((_, 0 | 1))) {
                prop_assert_eq!(&missing, &ranks.intersection(&branch));
            }
            prop_assert_eq!(&events, &expected(&ranks.difference(&missing), command));
            if is_patient && lost.is_none() {
                let count = simulation.received.iter().filter(|event| event.command == command);
                prop_assert_eq!(count.count(), events.len(), "one event for equal answers");
            }
        }

        simulation.send(DownMessage::Quit);
        simulation.run(300 * second);
        // A server that its parent has not found does not belong to a tree.
        let found = all.difference(&match lost {
            Some((_, 0)) => branch,
            _ => NodeSet::new(),
        });
        prop_assert!(found.iter().all(|rank| simulation.killed[rank as usize]), "they end");
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let routing = Routing::new(30, TreeShape::Binomial).unwrap();
        let mut simulation = Simulation::new(seed, routing, &[[3, 400], [100, 7]]);
        simulation.send(init(30, TreeShape::Binomial));
        simulation.run(Duration::from_secs(5));
        simulation.send(print(1, &NodeSet::from(0..30), Duration::from_millis(100)));
        simulation.run(Duration::from_secs(10));
        simulation.received
    };
    assert_eq!(run(7), run(7));
}

#[test]
fn a_command_before_the_initialisation_and_a_second_initialisation_are_refused() {
    let routing = Routing::new(2, TreeShape::Binomial).unwrap();
    let mut simulation = Simulation::new(1, routing, &[[0, 0]]);
    simulation.send(print(1, &NodeSet::one(0), Duration::from_secs(1)));
    simulation.send(init(2, TreeShape::Binomial));
    simulation.send(init(2, TreeShape::Binomial));
    simulation.run(Duration::from_secs(70));
    let expected = ["command 1 before the initialisation", "a second initialisation"];
    assert_eq!(simulation.master.take_refusals(), expected);
    assert_eq!(simulation.events(CommandId(1)), BTreeMap::new());
    assert_eq!(simulation.events(INIT_COMMAND).len(), 1);
}
