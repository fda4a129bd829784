//! Asking the page of a cluster, politely and otherwise.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::service::Cluster;

/// How long an answer may take.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a user finds the page.
#[derive(Debug, Clone)]
pub struct PageUrl {
    /// Where the server listens.
    pub addr: SocketAddr,
    /// The user's token.
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// The head.
    pub headers: String,
    /// What is behind.
    pub body: String,
}

impl PageUrl {
    /// What `scps -page` tells a user on a host.
    pub fn for_cluster(cluster: &Cluster<'_>, uid: u32, host: &str) -> Self {
        let outcome = cluster.command(uid, "scps", host).args(&["-page"]).run();
        assert_eq!(outcome.code, 0, "{outcome}");
        let text = outcome.text();
        let line = text.lines().next().unwrap_or_default();
        let parts = line.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (addr, token) = parts.unwrap_or_else(|| panic!("no address: {text}"));
        let addr = addr.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        Self { addr, token: token.trim_end_matches('/').to_owned() }
    }

    /// The address as a browser takes it.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.addr, self.token)
    }

    /// Asks for a part of the page.
    pub fn get(&self, path: &str) -> Response {
        get_with_headers(self.addr, &format!("/{}/{path}", self.token), &[])
    }

    /// What the page shows.
    pub fn get_data(&self) -> serde_json::Value {
        let response = self.get("data");
        assert_eq!(response.status, 200, "{response:?}");
        serde_json::from_str(&response.body).expect("it is JSON")
    }
}

/// A connection whose answers do not keep a test waiting for ever.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the page listens");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("it has a timeout");
    stream
}

/// Asks for a path, with more headers.
pub fn get_with_headers(addr: SocketAddr, path: &str, headers: &[&str]) -> Response {
    let mut text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        text.push_str(&format!("Host: {addr}\r\n"));
    }
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    text.push_str("\r\n");
    send_raw(addr, text.as_bytes())
}

/// Says anything, and gives what is answered until the connection ends.
pub fn send_raw(addr: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = connect(addr);
    // It may be refused before it has been said.
    let _ = stream.write_all(bytes);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    let text = String::from_utf8_lossy(&received);
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = headers.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Response { status, headers: headers.to_owned(), body: body.to_owned() }
}
