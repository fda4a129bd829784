//! Sends HTTP requests to the page of a cluster, well-formed and malformed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::service::Cluster;

/// The time limit of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A user's private address of the page.
#[derive(Debug, Clone)]
pub struct PageUrl {
    /// The address on which the server listens.
    pub addr: SocketAddr,
    /// The user's token.
    pub token: String,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    /// Its status code.
    pub status: u16,
    /// The header lines.
    pub headers: String,
    /// The body.
    pub body: String,
}

impl PageUrl {
    /// The address that `scps -page` prints for a user on a host.
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

    /// The address as a URL for a browser.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.addr, self.token)
    }

    /// Requests a part of the page.
    pub fn get(&self, path: &str) -> Response {
        get_with_headers(self.addr, &format!("/{}/{path}", self.token), &[])
    }

    /// Requests the data that the page shows.
    pub fn get_data(&self) -> serde_json::Value {
        let response = self.get("data");
        assert_eq!(response.status, 200, "{response:?}");
        serde_json::from_str(&response.body).expect("the response is JSON")
    }
}

/// Connects with a read time-out, so that a test does not wait for ever.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("the page listens");
    stream.set_read_timeout(Some(READ_TIMEOUT)).expect("the time-out can be set");
    stream
}

/// Requests a path, with additional headers.
pub fn get_with_headers(addr: SocketAddr, path: &str, headers: &[&str]) -> Response {
    let mut text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        text.push_str(&format!("Host: {addr}\r\n"));
    }
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    text.push_str("\r\n");
    send_raw(addr, text.as_bytes())
}

/// Sends any bytes, and returns the response up to the end of the connection.
pub fn send_raw(addr: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = connect(addr);
    // The server may close the connection before it has received everything.
    let _ = stream.write_all(bytes);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    let text = String::from_utf8_lossy(&received);
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = headers.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Response { status, headers: headers.to_owned(), body: body.to_owned() }
}
