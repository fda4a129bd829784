use score_proto::ids::JobId;
use score_proto::peer_message::JobIncarnation;

use super::*;

/// The events of a daemon that dials the host `meant`, until it receives a message or loses the
/// link. A daemon with the name "b" answers.
fn events_of_dial(dialled_name: DialledName, meant: &str) -> Vec<PeerEvent> {
    let poll = mio::Poll::new().unwrap();
    let (registry, key) = (poll.registry(), Key::from_bytes([7; 32]));
    let peers = |name: &str, token| {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Peers::bind(address, key.clone(), name.to_owned(), registry, Token(token)).unwrap()
    };
    let (mut dialler, mut listener) = (peers("a", 0), peers("b", 1));
    dialler.dialled_name = dialled_name;
    let address = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
    dialler.dial(address, Some(meant.to_owned()), registry, Token(2)).unwrap();
    let end = Instant::now() + LINK_TIMEOUTS.handshake_timeout;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(Instant::now() < end, "no event");
        if let Some(stream) = listener.accept() {
            listener.add_inbound(stream, registry, Token(3));
            let order = PeerMessage::Order {
                job: JobId(1),
                job_incarnation: JobIncarnation(1),
                body: Vec::new(),
            };
            assert!(listener.send(LinkId(3), order));
        }
        dialler.mark_ready(LinkId(2));
        listener.mark_ready(LinkId(3));
        listener.receive_events();
        events.extend(dialler.receive_events().into_iter().map(|(_, event)| event));
        dialler.flush();
        listener.flush();
        std::thread::sleep(Duration::from_millis(1));
    }
    events
}

#[test]
fn a_dialled_daemon_of_another_host_is_refused_in_multi_user_mode() {
    let events = events_of_dial(DialledName::MustMatch, "c");
    let [PeerEvent::WrongHost(line), PeerEvent::Lost(Some(name), reason)] = &events[..] else {
        panic!("{events:?}");
    };
    let expected = "host c was dialled, and the daemon of host b has answered";
    assert_eq!((line.as_str(), reason.as_str(), name.as_str()), (expected, expected, "c"));
}

#[test]
fn a_dialled_daemon_has_the_dialled_name_or_any_name_in_single_user_mode() {
    for (dialled_name, meant) in [(DialledName::MustMatch, "b"), (DialledName::MayDiffer, "c")] {
        let events = events_of_dial(dialled_name, meant);
        assert!(matches!(events[..], [PeerEvent::Message(_)]), "{events:?}");
    }
}

#[test]
fn a_flood_of_connections_is_accepted_in_several_turns() {
    let mut sources = EventSources::new().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let (registry, key) = (sources.registry(), Key::from_bytes([7; 32]));
    let mut peers = Peers::bind(address, key, "a".to_owned(), registry, Token(0)).unwrap();
    let port = peers.port().unwrap();
    let count = 2 * ACCEPTS_PER_TURN + 1;
    let connect = |_| net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let clients: Vec<net::TcpStream> = (0..count).map(connect).collect();
    peers.accept_new(&mut sources);
    assert_eq!(peers.connections.len(), 0, "mio has reported no connection");
    peers.on_listener_ready();
    for accepted in [ACCEPTS_PER_TURN, 2 * ACCEPTS_PER_TURN, count] {
        assert!(peers.may_have_more());
        peers.accept_new(&mut sources);
        assert_eq!(peers.connections.len(), accepted);
    }
    assert_eq!(peers.accept_state, AcceptState::Idle);
    drop(clients);
}

#[test]
fn connections_that_wait_for_descriptors_are_accepted_later() {
    let mut sources = EventSources::new().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let (registry, key) = (sources.registry(), Key::from_bytes([7; 32]));
    let mut peers = Peers::bind(address, key, "a".to_owned(), registry, Token(0)).unwrap();
    let _client = net::TcpStream::connect(("127.0.0.1", peers.port().unwrap())).unwrap();
    peers.on_accept_error(&io::Error::from_raw_os_error(libc::EMFILE));
    assert!(!peers.may_have_more());
    peers.accept_new(&mut sources);
    assert_eq!(peers.connections.len(), 0);
    let left = peers.deadline(Instant::now()).unwrap();
    assert!(left <= ACCEPT_RETRY_INTERVAL, "{left:?}");
    std::thread::sleep(ACCEPT_RETRY_INTERVAL);
    peers.accept_new(&mut sources);
    assert_eq!(peers.connections.len(), 1);
}
