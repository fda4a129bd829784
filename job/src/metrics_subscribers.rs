//! The subscribers to the metrics of a job, with their periods.

use std::collections::BTreeMap;

use score_proto::observation::Metrics;
use score_proto::server_message::JobAnswer;

use crate::jobs::SessionKey;
use crate::master::{MasterAction, Outbox};

/// A subscriber to metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subscriber {
    /// The scrun of the job.
    Scrun,
    /// A session that has subscribed (`scmon`).
    Session(SessionKey),
    /// The status page.
    Page,
}

/// All subscribers, each with its period.
#[derive(Debug, Default)]
pub struct Subscribers(BTreeMap<Subscriber, u32>);

impl Subscribers {
    /// Sets the period of a subscriber. 0 unsubscribes. Returns the new shortest period if it has
    /// changed.
    pub fn set(&mut self, subscriber: Subscriber, period_ms: u32) -> Option<u32> {
        let old_period_ms = self.min_period_ms();
        match period_ms {
            0 => self.0.remove(&subscriber),
            _ => self.0.insert(subscriber, period_ms),
        };
        Some(self.min_period_ms()).filter(|now| *now != old_period_ms)
    }

    /// The shortest period; 0 without subscribers.
    pub fn min_period_ms(&self) -> u32 {
        self.0.values().copied().min().unwrap_or(0)
    }

    /// Sends metrics to the subscribers.
    pub fn publish(&self, metrics: Metrics, out: &mut Outbox) {
        let (scrun, others) = self.client_and_others();
        if scrun {
            out.to_client(JobAnswer::Metrics(metrics.clone()));
        }
        if others {
            out.push(MasterAction::Metrics(metrics));
        }
    }

    /// Whether scrun has subscribed, and whether other subscribers have.
    fn client_and_others(&self) -> (bool, bool) {
        let scrun = self.0.contains_key(&Subscriber::Scrun);
        (scrun, self.0.len() > usize::from(scrun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_period_wins_and_only_changes_are_returned() {
        let mut subscribers = Subscribers::default();
        assert_eq!(subscribers.set(Subscriber::Scrun, 0), None);
        assert_eq!(subscribers.set(Subscriber::Scrun, 500), Some(500));
        assert_eq!(
            (subscribers.set(Subscriber::Page, 1000), subscribers.client_and_others()),
            (None, (true, true))
        );
        assert_eq!(subscribers.set(Subscriber::Session(SessionKey(7)), 100), Some(100));
        assert_eq!(subscribers.set(Subscriber::Scrun, 0), None);
        assert_eq!(
            (
                subscribers.set(Subscriber::Session(SessionKey(7)), 0),
                subscribers.client_and_others()
            ),
            (Some(1000), (false, true))
        );
        assert_eq!(
            (subscribers.set(Subscriber::Page, 0), subscribers.client_and_others()),
            (Some(0), (false, false))
        );
    }
}
