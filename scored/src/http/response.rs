//! Formats responses with their headers.

/// The status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The request was answered.
    Ok,
    /// The request is malformed.
    BadRequest,
    /// The request has no valid token.
    Forbidden,
    /// The path does not exist.
    NotFound,
    /// The path does not support the method.
    MethodNotAllowed,
    /// The user has sent too many requests of this kind.
    TooManyRequests,
    /// The request target is too long.
    TargetTooLong,
    /// The request names another host.
    Misdirected,
    /// The head is too long.
    HeadTooLarge,
}

impl Status {
    /// The status code and reason phrase of the status line.
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::Forbidden => "403 Forbidden",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::TooManyRequests => "429 Too Many Requests",
            Status::TargetTooLong => "414 URI Too Long",
            Status::Misdirected => "421 Misdirected Request",
            Status::HeadTooLarge => "431 Request Header Fields Too Large",
        }
    }

    /// The body, which is the text for the user.
    fn text(self) -> &'static str {
        match self {
            Status::Forbidden => "no valid token: scps -page prints your address of this page\n",
            Status::Misdirected => "this is not the page of that host\n",
            Status::NotFound => "there is nothing of this name\n",
            Status::MethodNotAllowed => "this method is not answered here\n",
            Status::TooManyRequests => "too many requests at this moment: try again\n",
            _ => "this request is not understood\n",
        }
    }
}

/// The content type of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// The page.
    Html,
    /// The script of the page.
    Script,
    /// The style sheet of the page.
    Style,
    /// The data of the page.
    Json,
    /// Metrics for Prometheus.
    Metrics,
}

impl ContentType {
    fn name(self) -> &'static str {
        match self {
            ContentType::Html => "text/html; charset=utf-8",
            ContentType::Script => "text/javascript; charset=utf-8",
            ContentType::Style => "text/css; charset=utf-8",
            ContentType::Json => "application/json",
            ContentType::Metrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Headers of all responses. They prevent that clients cache a response, guess its type, show it in
/// a frame, or reveal its address. The page can load nothing from other sites and can run only its
/// own script.
const SECURITY_HEADERS: &str = "\
Cache-Control: no-store\r
X-Content-Type-Options: nosniff\r
X-Frame-Options: DENY\r
Referrer-Policy: no-referrer\r
Cross-Origin-Opener-Policy: same-origin\r
Cross-Origin-Resource-Policy: same-origin\r
Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
frame-ancestors 'none'\r
";

/// Formats a successful response.
pub fn ok(kind: ContentType, body: &[u8], close: bool) -> Vec<u8> {
    assemble(Status::Ok, kind.name(), body, close)
}

/// Formats an error response. The connection ends after it.
pub fn refusal(status: Status) -> Vec<u8> {
    assemble(status, "text/plain; charset=utf-8", status.text().as_bytes(), true)
}

fn assemble(status: Status, kind: &str, body: &[u8], close: bool) -> Vec<u8> {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
    let end = if close { "Connection: close\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         {allow}{end}{SECURITY_HEADERS}\r\n",
        status.line(),
        body.len(),
    );
    let mut answer = head.into_bytes();
    answer.extend_from_slice(body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_length_and_security_headers() {
        let text = String::from_utf8(ok(ContentType::Json, b"{}", false)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "{}");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 2\r\n"));
        assert!(head.contains("nosniff") && head.contains("default-src 'none'; script-src 'self'"));
        assert!(!head.contains("Access-Control") && !head.contains("unsafe"), "{head}");
        assert!(head.lines().all(|line| line.is_empty() || line.contains(['/', ':'])), "{head}");
        let text = String::from_utf8(refusal(Status::MethodNotAllowed)).unwrap();
        assert!(text.contains("Allow: GET\r\n") && text.contains("Connection: close\r\n"));
    }
}
