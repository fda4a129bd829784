//! Attacks on a service of two hosts by one of its users, who speaks the protocol without scrun.
//! Each test is one attack: it gains nothing, and other users do not notice it. docs/security.md
//! lists what a user may do.

mod driver;

use driver::service::{ALICE, BOB, Client, Service, spec};
use score_proto::message::{ClientMessage, HostKind, HostSpec, JobSpec};

/// A host of a job, as single-user mode names it.
fn host(name: &str, address: &str, kind: HostKind) -> HostSpec {
    HostSpec { name: name.into(), address: address.into(), kind, ..HostSpec::local(1) }
}

#[test]
fn a_message_of_single_user_mode_starts_no_job() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let proof = service.file("proof");
    let script = format!("id -u > {}; id -u", proof.display());
    let spec =
        |name: &str| JobSpec { hosts: vec![host(name, "", HostKind::Local)], ..spec(&script, &[]) };
    for login_host in ["hosta", "hostb"] {
        for name in ["hosta", "hostb", ""] {
            let mut client = Client::log_in(&service.socket_of(login_host), ALICE);
            client.send(&[ClientMessage::Submit(spec(name))]);
            assert_eq!(client.until_ended(), 2, "{}", client.notices);
            assert!(client.notices.contains("multi-user mode"), "{}", client.notices);
            client.until_closed();
        }
    }
    assert!(!proof.exists(), "a job ran as uid {}", std::fs::read_to_string(proof).unwrap());
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_scout_session_is_not_opened_by_a_service() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let namespace = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let before = namespace(service.pid());
    for login_host in ["hosta", "hostb"] {
        for hosts in [
            vec![host("victim", "127.0.0.1", HostKind::Remote)],
            vec![host("one", "", HostKind::Virtual), host("two", "", HostKind::Virtual)],
            vec![host(login_host, "", HostKind::Local)],
        ] {
            for logged_in in [false, true] {
                let socket = service.socket_of(login_host);
                let mut client = match logged_in {
                    true => Client::log_in(&socket, ALICE),
                    false => Client::connect_as(&socket, ALICE),
                };
                let greeting = (!logged_in).then(driver::service::hello);
                let open = ClientMessage::OpenScoutSession(hosts.clone());
                let messages: Vec<_> = greeting.into_iter().chain([open]).collect();
                client.send(&messages);
                assert_eq!(client.until_ended(), 2, "{}", client.notices);
                client.until_closed();
            }
        }
    }
    assert_eq!(namespace(service.pid()), before);
    let children = format!("/proc/{0}/task/{0}/children", service.pid());
    assert_eq!(std::fs::read_to_string(children).unwrap(), "", "the server has started a process");
    assert!(service.is_alive(), "{}", service.log());
    service.serves(BOB);
}
