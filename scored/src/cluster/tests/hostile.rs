//! Events that no honest peer and no correct loop would send, in any order: nothing panics, and
//! what the machines hold stays within their limits.

use proptest::prelude::*;
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::peer::{Beat, Join, Joined, Lost, Member as Card, Peer, Place, User};

use super::life::setting;
use crate::cluster::member::{self, Member};
use score_proto::shape::Shape;

use crate::cluster::{Action, Cluster, Event, Request, SessionId, Time};

const HOSTS: u32 = 12;

fn host() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0u32), 8 => 0..HOSTS + 2, 1 => Just(u32::MAX)]
}

fn card() -> impl Strategy<Value = Card> {
    (host(), 0u64..4, proptest::option::of(6u64..8), prop_oneof![0u32..4, Just(u32::MAX)]).prop_map(
        |(host, incarnation, server, attach)| {
            let address = "127.0.0.1:1".parse().unwrap();
            let memory = u64::from(attach % 3) * 100;
            Card { host, incarnation, address, server, attach, memory }
        },
    )
}

fn message() -> impl Strategy<Value = Peer> {
    let joined = (card(), host()).prop_map(|(member, parent)| Joined { member, parent });
    let lost = card().prop_map(|Card { host, incarnation, attach, .. }| Lost {
        host,
        incarnation,
        attach,
        reason: "why".to_owned(),
    });
    let join = (card(), proptest::option::of(host())).prop_map(|(card, without)| {
        let Card { host, incarnation, address, server, attach, .. } = card;
        Peer::Join(Join { name: format!("c{host}"), incarnation, address, server, attach, without })
    });
    let place = (host(), host(), 6u64..8).prop_map(|(host, parent, server)| {
        Peer::Place(Place { host, server, parent, address: None })
    });
    prop_oneof![
        join,
        place,
        card().prop_map(Peer::Child),
        proptest::collection::vec(joined, 0..4).prop_map(Peer::Joined),
        proptest::collection::vec(lost, 0..4).prop_map(Peer::Lost),
        (6u64..8, 0u64..4, 0u32..4).prop_map(|(server, child, attach)| Peer::Beat(Beat {
            server,
            child,
            attach
        })),
        (0u32..20, 0u32..20).prop_map(|(from, to)| Peer::Present(NodeSet::from(from..to))),
        Just(Peer::Orphaned),
        Just(Peer::Leave),
        (0u64..4).prop_map(|incarnation| Peer::Reset { incarnation, reason: String::new() }),
        Just(Peer::Refused { reason: String::new() }),
        Just(Peer::SessionOver { session: 1, reason: String::new() }),
    ]
}

fn session() -> impl Strategy<Value = SessionId> {
    (host(), 0u64..8, 0u64..4).prop_map(|(host, incarnation, number)| SessionId {
        host,
        incarnation,
        number,
    })
}

fn request() -> impl Strategy<Value = Request> {
    let shape = prop_oneof![
        any::<(u32, u32)>().prop_map(|(hosts, procs)| Shape::Grid { hosts, procs }),
        (0u32..4, 0u32..4).prop_map(|(hosts, procs)| Shape::Grid { hosts, procs }),
        (0u32..30).prop_map(Shape::Spread),
        any::<(u32, u32)>().prop_map(|(least, most)| Shape::Fill { least, most }),
        any::<[u32; 3]>().prop_map(|[hosts, least, most]| Shape::Whole { hosts, least, most }),
        (0u32..4).prop_map(|hosts| Shape::Whole { hosts, least: 1, most: 99 }),
        any::<[u32; 3]>().prop_map(|[procs, least, most]| Shape::Every { procs, least, most }),
        (0u32..4).prop_map(|procs| Shape::Every { procs, least: 1, most: 99 }),
    ];
    let allowed = proptest::option::weighted(0.2, (0u32..16, 0u32..16));
    (shape, allowed, any::<bool>(), 0u8..18, any::<u32>()).prop_map(
        |(shape, allowed, wait, priority, bytes)| {
            let allowed = allowed.map(|(from, to)| NodeSet::from(from..to));
            Request {
                shape,
                pools: allowed.into_iter().collect(),
                wait,
                priority,
                memory: u64::from(bytes % 4) * 60,
                bytes: u64::from(bytes % 1000),
            }
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let why = || "why".to_owned();
    prop_oneof![
        6 => (host(), message()).prop_map(|(from, message)| Event::Heard { from, message }),
        3 => card().prop_map(|card| Event::Heard { from: card.host, message: Peer::Child(card) }),
        1 => host().prop_map(move |host| Event::Unlinked { host, reason: why() }),
        2 => (session(), 0u32..4).prop_map(|(session, uid)| Event::Login {
            session,
            user: User { uid, gid: 0, name: OsBytes(Vec::new()) },
        }),
        6 => (session(), 0u64..9, request())
            .prop_map(|(session, tag, request)| Event::Submit { session, tag, request }),
        1 => (session(), 0u64..9).prop_map(|(session, tag)| Event::Cancel { session, tag }),
        1 => session().prop_map(|session| Event::Logout { session }),
        2 => (0u32..20, 0u32..9).prop_map(|(job, end)| {
            Event::Released { job, hosts: NodeSet::from(0..end) }
        }),
        2 => (0u32..20, any::<u8>()).prop_map(|(job, code)| Event::Finished { job, code }),
        1 => (0u32..20, host()).prop_map(move |(job, host)| {
            Event::Broken { job, host, reason: why() }
        }),
        1 => (0u32..4, 0u32..20).prop_map(|(uid, job)| Event::Stop { uid, job }),
        1 => (host(), any::<bool>()).prop_map(|(host, defect)| Event::Defect { host, defect }),
        1 => Just(Event::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_event_makes_the_server_panic_or_count_wrongly(
        events in proptest::collection::vec((event(), 0u64..4000), 0..150), rows in 1u32..4,
    ) {
        let mut small = setting(HOSTS - 1, 3);
        small.hosts[0].slots = 2;
        (small.rows, small.memory) = (rows, 100);
        (small.limits.queued, small.limits.queued_of_user) = (6, 4);
        (small.limits.sessions, small.limits.sessions_of_user) = (6, 4);
        let mut cluster = Cluster::new(small, Time::ZERO);
        let mut now = Time::ZERO;
        let (mut open, mut ended) = (0, 0);
        for (event, pause) in events {
            now += Time::from_millis(pause);
            for action in cluster.on(event, now) {
                match action {
                    Action::Ended { .. } => ended += 1,
                    Action::Start { incarnations, shares, .. } => {
                        prop_assert_eq!(incarnations.len(), shares.len());
                        open += 1;
                    }
                    _ => {}
                }
            }
            prop_assert!(cluster.sessions.len() <= 6 && cluster.waiting.len() <= 6);
            for (number, host) in (0..).zip(&cluster.hosts) {
                prop_assert!(host.used <= host.setting.slots * rows, "c{}", number);
            }
            let held = cluster.list().filter(|job| !job.shares.is_empty()).count();
            prop_assert!(held + ended >= open);
        }
    }

    #[test]
    fn no_event_makes_a_daemon_panic(
        events in proptest::collection::vec((host(), message(), 0u64..4000, 0u8..8), 0..150)
    ) {
        let setting = member::Setting {
            name: "c1".to_owned(),
            incarnation: 1,
            address: "127.0.0.1:1".parse().unwrap(),
            memory: 0,
            place: Some((1, 0)),
            times: setting(1, 1).times,
        };
        let mut member = Member::new(setting, Time::ZERO);
        let mut now = Time::ZERO;
        for (from, message, pause, kind) in events {
            now += Time::from_millis(pause);
            let event = match kind {
                0 => member::Event::Tick,
                1 => member::Event::Unlinked { host: from, reason: "why".to_owned() },
                2 => member::Event::Cleaned(pause),
                _ => member::Event::Heard { from, message },
            };
            member.on(event, now);
            // A loop that ticks at the deadline comes to rest.
            let mut ticks = 0;
            while member.deadline() <= now {
                member.on(member::Event::Tick, now);
                ticks += 1;
                prop_assert!(ticks < 3);
            }
        }
    }
}
