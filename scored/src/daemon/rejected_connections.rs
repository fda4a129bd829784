//! Counts rejected connections: the peer has no key, uses another protocol version, or sends
//! nothing.

/// The connections that were dropped before the peer had authenticated as a daemon of this cluster.
#[derive(Debug, Default)]
pub struct RejectedConnections {
    count: u64,
}

impl RejectedConnections {
    /// Adds a connection. Returns the line to report. Only the first, second, fourth, eighth ...
    /// connection is reported, so that a flood does not fill the log.
    pub fn add(&mut self, reason: &str) -> Option<String> {
        self.count += 1;
        let text = match self.count {
            1 => reason.to_owned(),
            count => format!("{reason} ({count} such connections so far)"),
        };
        self.count.is_power_of_two().then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_rejected_connections_is_reported_rarely() {
        let mut rejected = RejectedConnections::default();
        let lines: Vec<String> = (0..1000).filter_map(|_| rejected.add("no key")).collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[..2], ["no key", "no key (2 such connections so far)"]);
    }
}
