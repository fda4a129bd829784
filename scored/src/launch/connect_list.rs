//! The argument of `-connect`: where a daemon or probe reaches the process that has started it.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

/// The addresses of a host, and a port. In text: `ADDRESS[,ADDRESS...]:PORT`. The port follows the
/// last colon, so that IPv6 addresses need no brackets, which a shell would expand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectList {
    addresses: Vec<IpAddr>,
    port: u16,
}

impl ConnectList {
    /// Creates a list.
    ///
    /// # Errors
    /// One line: there is no address.
    pub fn new(addresses: Vec<IpAddr>, port: u16) -> Result<Self, String> {
        if addresses.is_empty() {
            return Err("this host has no address that other hosts can connect to".to_owned());
        }
        Ok(Self { addresses, port })
    }

    /// Connects to the first address that answers. Each may take `timeout` to answer.
    ///
    /// # Errors
    /// One line that names the last address.
    pub fn connect(&self, timeout: Duration) -> Result<TcpStream, String> {
        let mut last_error = String::new();
        for address in &self.addresses {
            match TcpStream::connect_timeout(&SocketAddr::new(*address, self.port), timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = format!("{address}: {error}"),
            }
        }
        Err(format!("-connect {self}: {last_error}"))
    }
}

impl fmt::Display for ConnectList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        write!(f, "{}:{}", addresses.join(","), self.port)
    }
}

impl FromStr for ConnectList {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let parse = || {
            let (addresses, port) = list.rsplit_once(':')?;
            let addresses = addresses.split(',').map(|word| word.parse().ok());
            Some(Self { addresses: addresses.collect::<Option<_>>()?, port: port.parse().ok()? })
        };
        parse().ok_or_else(|| format!("-connect {list}: must be ADDRESS[,ADDRESS...]:PORT"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_list_of_both_ip_versions_is_read_as_it_was_written() {
        let addresses = ["10.0.0.1", "fd00::2"].map(|word| word.parse().unwrap());
        let list = ConnectList::new(addresses.into(), 9901).unwrap();
        assert_eq!(list.to_string(), "10.0.0.1,fd00::2:9901");
        assert_eq!(list.to_string().parse(), Ok(list));
        assert!(ConnectList::new(Vec::new(), 1).is_err());
        for invalid in ["", "10.0.0.1", ":1", "10.0.0.1:x", "10.0.0.1,:1", "host:1"] {
            let error = invalid.parse::<ConnectList>().unwrap_err();
            assert!(error.starts_with(&format!("-connect {invalid}: ")), "{error}");
        }
    }

    #[test]
    fn an_address_that_does_not_answer_is_skipped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let list: ConnectList = format!("127.0.0.2,127.0.0.1:{port}").parse().unwrap();
        let stream = list.connect(Duration::from_secs(5)).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        drop((stream, listener));
        let error = list.connect(Duration::from_secs(5)).unwrap_err();
        assert!(error.contains("127.0.0.1: "), "{error}");
    }
}
