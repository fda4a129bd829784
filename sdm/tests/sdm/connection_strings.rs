//! Invalid connection strings of the master and of servers.

use std::net::TcpListener;

use score_sdm::server::{sdm_master_init, server_with_id};
use score_sdm::start_error::StartError;
use score_sdm::transport::tcp::{PORT_ATTEMPTS, TcpTransport};
use score_tree::key::Key;

#[test]
fn an_invalid_connection_string_is_an_error_that_names_it() {
    let key = Key::generate().unwrap();
    let text = |error: StartError| error.to_string();
    let error = sdm_master_init("login:seven", &key).unwrap_err();
    assert_eq!(text(error), "\"login:seven\": not an address of a front end; use ADDRESS:PORT");
    for port in ["80", "70000", "", "-1"] {
        let error = server_with_id(port, 0, &key).unwrap_err();
        assert!(matches!(&error, StartError::ServerPort(named) if named == port), "{error}");
    }
    // A port at which no program listens: it was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = sdm_master_init(&free.to_string(), &key).unwrap_err();
    let expected = format!("cannot connect to the front end at {free} in 20 attempts");
    assert!(text(error).starts_with(&expected));
}

#[test]
fn a_server_uses_the_next_free_port_and_fails_if_no_port_is_free() {
    let key = Key::generate().unwrap();
    let first = TcpTransport::server(0, 41_000, &key).unwrap();
    let second = TcpTransport::server(1, first.port(), &key).unwrap();
    assert!(second.port() > first.port());
    // The last port is in use, by this server or by another program.
    let _last = TcpTransport::server(3, u16::MAX, &key);
    let error = TcpTransport::server(4, u16::MAX, &key).unwrap_err().to_string();
    let expected = format!("no free port from 65535 on, after {PORT_ATTEMPTS} attempts");
    assert!(error.starts_with(&expected), "{error}");
}
