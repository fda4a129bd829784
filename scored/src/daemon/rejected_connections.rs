//! Reports of rejected connections: the peer has no key, uses another protocol version, or sends
//! nothing.

use std::io::Write;

use score_proto::message::Level;

use super::Daemon;

impl Daemon {
    /// Reports a connection that was dropped before the peer had authenticated as a daemon of this
    /// cluster. Only the first, second, fourth, eighth ... connection is reported, so that a flood
    /// does not fill the log.
    pub fn report_rejected_connection(&mut self, reason: &str) {
        self.rejected_count += 1;
        if !self.rejected_count.is_power_of_two() {
            return;
        }
        let text = match self.rejected_count {
            1 => reason.to_owned(),
            count => format!("{reason} ({count} such connections so far)"),
        };
        match self.bringup.as_ref().map(|bringup| bringup.client_job) {
            Some(client_job) => self.sessions.notice(client_job, Level::Warning, text),
            // The daemon that started this one reads its standard error. That of a service is the
            // log.
            None => {
                let _ = writeln!(std::io::stderr(), "scored on {}: {text}", self.name());
            }
        }
    }
}
