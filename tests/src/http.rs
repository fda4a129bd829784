//! Asking the page of a cluster, politely and otherwise.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::service::Cluster;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a user finds the page.
#[derive(Debug, Clone)]
pub struct Address {
    /// Where the server listens.
    pub place: SocketAddr,
    /// The user's token.
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// The head.
    pub head: String,
    /// What is behind.
    pub body: String,
}

impl Address {
    /// What `scps -page` tells a user on a host.
    pub fn of(cluster: &Cluster<'_>, uid: u32, host: &str) -> Self {
        let outcome = cluster.command(uid, "scps", host).args(&["-page"]).run();
        assert_eq!(outcome.code, 0, "{outcome}");
        let text = outcome.text();
        let line = text.lines().next().unwrap_or_default();
        let parts = line.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (place, token) = parts.unwrap_or_else(|| panic!("no address: {text}"));
        let place = place.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        Self { place, token: token.trim_end_matches('/').to_owned() }
    }

    /// The address as a browser takes it.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.place, self.token)
    }

    /// Asks for a part of the page.
    pub fn get(&self, part: &str) -> Answer {
        ask(self.place, &format!("/{}/{part}", self.token), &[])
    }

    /// What the page shows.
    pub fn data(&self) -> serde_json::Value {
        let answer = self.get("data");
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str(&answer.body).expect("it is JSON")
    }
}

/// A connection whose answers do not keep a test waiting for ever.
pub fn connect(place: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(place).expect("the page listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it has a timeout");
    stream
}

/// Asks for a path, with more headers.
pub fn ask(place: SocketAddr, path: &str, headers: &[&str]) -> Answer {
    let mut text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        text.push_str(&format!("Host: {place}\r\n"));
    }
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    text.push_str("\r\n");
    say(place, text.as_bytes())
}

/// Says anything, and gives what is answered until the connection ends.
pub fn say(place: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = connect(place);
    // It may be refused before it has been said.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}
