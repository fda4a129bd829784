//! Connections that came to nothing: whoever holds no key, speaks another version, says nothing.

use std::io::Write;

use score_proto::message::Level;

use super::Daemon;

impl Daemon {
    /// A connection was dropped before anybody had proved to be a daemon of this cluster. The
    /// first, second, fourth … is told: who floods the port fills no log.
    pub fn stranger(&mut self, reason: &str) {
        self.strangers += 1;
        if !self.strangers.is_power_of_two() {
            return;
        }
        let text = match self.strangers {
            1 => reason.to_owned(),
            count => format!("{reason} ({count} such connections so far)"),
        };
        match self.muster.as_ref().map(|muster| muster.lane) {
            Some(session) => self.notice(session, Level::Warning, text),
            // Of a daemon that was started by another this comes home; of a service, to its log.
            None => {
                let _ = writeln!(std::io::stderr(), "scored on {}: {text}", self.name());
            }
        }
    }
}
