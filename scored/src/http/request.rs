//! Parses the head of a request and checks it.

use std::net::IpAddr;

use super::response::Status;

/// The maximum length of a head, in bytes.
pub const MAX_HEAD_LEN: usize = 8 * 1024;
/// The maximum number of headers.
const MAX_HEADERS: usize = 64;
/// The maximum length of a request target, in bytes.
const MAX_TARGET_LEN: usize = 1024;

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read something.
    Get,
    /// Start an action. Permitted only for paths below [`STACKS_PATH`].
    Post,
}

/// The path of a job's stacks, without the job's number. GET returns the stacks; POST reads them
/// from the processes.
pub const STACKS_PATH: &str = "stacks/";

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// The path after the token, without a leading slash.
    pub path: String,
    /// The token: the first component of the path, or from `Authorization: Bearer`.
    pub token: Option<String>,
    /// Whether the connection is closed after the response.
    pub close: bool,
}

/// The host names that a request may use. Checking them protects against DNS rebinding: another
/// site's name that resolves to this address is refused.
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    /// The address on which the page listens.
    pub address: IpAddr,
    /// The name of the server's host. It is permitted if the page does not listen on loopback.
    pub name: String,
}

impl AllowedHosts {
    fn is_allowed(&self, authority: &str) -> bool {
        let name = match authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        };
        match name.parse::<IpAddr>() {
            // A literal address is safe, because DNS rebinding needs a name.
            Ok(ip) => ip.is_loopback() || ip == self.address || self.address.is_unspecified(),
            Err(_) => {
                let is_server_name =
                    !self.address.is_loopback() && name.eq_ignore_ascii_case(&self.name);
                is_server_name || name.eq_ignore_ascii_case("localhost")
            }
        }
    }
}

/// Parses the head at the start of `bytes`. Returns the request and the length of the head, or
/// `None` if the head is incomplete.
///
/// # Errors
/// The status with which to refuse the request. The start of the next request is unknown then.
pub fn read(bytes: &[u8], hosts: &AllowedHosts) -> Result<Option<(HttpRequest, usize)>, Status> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let head_len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(head_len)) if head_len <= MAX_HEAD_LEN => head_len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Status::HeadTooLarge),
        Err(_) => return Err(Status::BadRequest),
    };
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("POST") => Method::Post,
        _ => return Err(Status::MethodNotAllowed),
    };
    let (mut authority, mut bearer, mut close) = (None, None, head.version != Some(1));
    for header in head.headers.iter() {
        let value = std::str::from_utf8(header.value).map_err(|_| Status::BadRequest)?.trim();
        let name = header.name.to_ascii_lowercase();
        match name.as_str() {
            "host" if authority.replace(value).is_some() => return Err(Status::BadRequest),
            "authorization" => {
                let token =
                    value.split_once(' ').filter(|(kind, _)| matches_ignoring_case("bearer", kind));
                let token = token.map(|(_, token)| token.trim().to_owned());
                if bearer.replace(token).is_some() {
                    return Err(Status::BadRequest);
                }
            }
            "connection" => {
                close |= value.split(',').any(|word| matches_ignoring_case("close", word.trim()))
            }
            // Requests have no body.
            "transfer-encoding" | "expect" => return Err(Status::BadRequest),
            "content-length" if value != "0" => return Err(Status::BadRequest),
            _ => {}
        }
    }
    match authority {
        Some(name) if hosts.is_allowed(name) => {}
        Some(_) => return Err(Status::Misdirected),
        None => return Err(Status::BadRequest),
    }
    let (path, token) = split_target(head.path.unwrap_or_default())?;
    if method == Method::Post && !path.starts_with(STACKS_PATH) {
        return Err(Status::MethodNotAllowed);
    }
    let token = bearer.flatten().or(token);
    Ok(Some((HttpRequest { method, path, token, close }, head_len)))
}

fn matches_ignoring_case(word: &str, other: &str) -> bool {
    word.eq_ignore_ascii_case(other)
}

/// Splits a request target such as `/TOKEN/page.js` or `/metrics` into path and token.
fn split_target(target: &str) -> Result<(String, Option<String>), Status> {
    if target.len() > MAX_TARGET_LEN {
        return Err(Status::TargetTooLong);
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = path.strip_prefix('/').ok_or(Status::BadRequest)?;
    Ok(match path.split_once('/') {
        Some((token, path)) => (path.to_owned(), Some(token.to_owned())),
        None => (path.to_owned(), None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> AllowedHosts {
        AllowedHosts { address: IpAddr::from([127, 0, 0, 1]), name: "comp0".to_owned() }
    }

    fn parse(text: &str) -> Result<Option<(HttpRequest, usize)>, Status> {
        read(text.as_bytes(), &hosts())
    }

    #[test]
    fn a_browsers_request_is_parsed_once_all_of_its_bytes_have_arrived() {
        let text = "GET /0123/data?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9000\r\nAccept: */*\r\n\r\nGET";
        let end = text.len() - 3;
        for cut in 0..end {
            assert_eq!(parse(&text[..cut]), Ok(None), "{cut}");
        }
        let (request, length) = parse(text).unwrap().unwrap();
        let path = "data".to_owned();
        assert_eq!(length, end);
        let (method, token) = (Method::Get, Some("0123".to_owned()));
        assert_eq!(request, HttpRequest { method, path, token, close: false });
    }

    #[test]
    fn only_stacks_are_read_by_a_post_and_it_has_no_body() {
        let post = |path: &str, headers: &str| {
            let text = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
            parse(&text).map(|parsed| parsed.map(|(request, _)| (request.method, request.path)))
        };
        let stacks = Ok(Some((Method::Post, "stacks/7".to_owned())));
        assert_eq!(post("/0123/stacks/7", "Content-Length: 0\r\n"), stacks);
        assert_eq!(post("/0123/stacks/7", ""), stacks);
        assert_eq!(post("/0123/stacks/7", "Content-Length: 1\r\n"), Err(Status::BadRequest));
        for path in ["/0123/data", "/0123/stacks", "/stacks/7", "/0123/"] {
            assert_eq!(post(path, ""), Err(Status::MethodNotAllowed), "{path}");
        }
    }

    #[test]
    fn a_scraper_sends_its_token_in_a_header() {
        let text = "GET /metrics HTTP/1.0\r\nhost: localhost\r\nauthorization: bearer abc\r\n\r\n";
        let (request, _) = parse(text).unwrap().unwrap();
        assert_eq!((request.path.as_str(), request.close), ("metrics", true));
        assert_eq!(request.token.as_deref(), Some("abc"));
    }

    // Promise of `the_page_is_served_to_this_host_only_and_by_no_other_name`.
    #[test]
    fn requests_for_other_host_names_are_refused() {
        let with = |host: &str, hosts: &AllowedHosts| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            read(text.as_bytes(), hosts).map(drop)
        };
        for name in ["127.0.0.1:1", "127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:80", "[::1]"]
        {
            assert_eq!(with(name, &hosts()), Ok(()), "{name}");
        }
        let others =
            ["evil.example", "comp0", "10.0.0.7", "127.0.0.1.evil.example", "", "localhost."];
        for name in others {
            assert_eq!(with(name, &hosts()), Err(Status::Misdirected), "{name}");
        }
        let open = AllowedHosts { address: IpAddr::from([10, 0, 0, 7]), ..hosts() };
        for name in ["10.0.0.7:80", "comp0:80", "localhost"] {
            assert_eq!(with(name, &open), Ok(()), "{name}");
        }
        assert_eq!(with("10.0.0.8", &open), Err(Status::Misdirected));
        let any = AllowedHosts { address: IpAddr::from([0, 0, 0, 0]), ..hosts() };
        assert_eq!(with("10.0.0.8", &any), Ok(()));
        assert_eq!(with("evil.example", &any), Err(Status::Misdirected));
    }

    // Promise of `the_page_is_served_to_this_host_only_and_by_no_other_name`.
    #[test]
    fn each_invalid_request_is_refused_with_its_status() {
        let many = "A: b\r\n".repeat(65);
        let long = format!("A: {}\r\n", "b".repeat(MAX_HEAD_LEN));
        let cases = [
            ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), Status::MethodNotAllowed),
            ("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), Status::BadRequest),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n".to_owned(), Status::BadRequest),
            ("GET x HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), Status::BadRequest),
            ("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n".to_owned(), Status::BadRequest),
            ("\0\x01\x02".to_owned(), Status::BadRequest),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n".to_owned(),
                Status::BadRequest,
            ),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_owned(),
                Status::BadRequest,
            ),
            (
                format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(MAX_TARGET_LEN)),
                Status::TargetTooLong,
            ),
            (format!("GET / HTTP/1.1\r\n{many}"), Status::HeadTooLarge),
            (format!("GET / HTTP/1.1\r\n{long}\r\n"), Status::HeadTooLarge),
            (format!("GET /{}", "x".repeat(MAX_HEAD_LEN)), Status::HeadTooLarge),
        ];
        for (text, status) in cases {
            assert_eq!(parse(&text), Err(status), "{}", text.get(..80).unwrap_or(&text));
        }
    }
}
