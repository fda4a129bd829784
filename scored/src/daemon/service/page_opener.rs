//! Opens the status page. If its port is in use, the service runs without the page, and tries to
//! open the page at intervals. Otherwise a user could prevent the start of the service by using the
//! port.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::Registry;

use super::status_page::Page;
use super::{Service, info, warn};

/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub struct PageOpener {
    address: SocketAddr,
    host_name: String,
    slice: Duration,
    /// The time of the next attempt. `None`: the page is open.
    retry_at: Option<Instant>,
    /// The reason why the last attempt has failed.
    failure: Option<String>,
}

impl PageOpener {
    /// Creates the opener of the page of this host. `slice` is the length of a time slice.
    pub fn new(address: SocketAddr, host_name: &str, slice: Duration) -> Self {
        let host_name = host_name.to_owned();
        Self { address, host_name, slice, retry_at: None, failure: None }
    }

    /// Tries to open the page. Logs a reason for which this fails once.
    pub fn open(&mut self, registry: &Registry, now: Instant) -> Option<Page> {
        match Page::open(self.address, &self.host_name, self.slice, registry) {
            Ok(page) => {
                self.retry_at = None;
                Some(page)
            }
            Err(reason) => {
                self.retry_at = Some(now + RETRY_INTERVAL);
                let failure = Some(reason);
                if self.failure != failure {
                    let text = failure.as_deref().unwrap_or_default();
                    let seconds = RETRY_INTERVAL.as_secs();
                    warn(&format!(
                        "{text}: there is no page; scored tries again every {seconds} s"
                    ));
                }
                self.failure = failure;
                None
            }
        }
    }

    /// The time of the next attempt, if the page is not open.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }
}

impl Service {
    /// Tries again to open the page, if the page is not open and the next attempt is due.
    pub fn reopen_page(&mut self, registry: &Registry, now: Instant) {
        let opener = self.page_opener.as_mut();
        let due = opener.filter(|opener| opener.retry_at.is_some_and(|due| due <= now));
        if let Some(page) = due.and_then(|opener| opener.open(registry, now)) {
            info(&page.announcement());
            self.page = Some(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_page_whose_port_was_in_use_is_opened_later() {
        let poll = mio::Poll::new().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut opener = PageOpener::new(other.local_addr().unwrap(), "here", Duration::ZERO);
        let now = Instant::now();
        for _ in 0..2 {
            assert!(opener.open(poll.registry(), now).is_none());
            assert_eq!(opener.retry_at(), Some(now + RETRY_INTERVAL));
        }
        drop(other);
        assert!(opener.open(poll.registry(), now).is_some() && opener.retry_at().is_none());
    }
}
