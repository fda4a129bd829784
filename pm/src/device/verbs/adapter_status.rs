//! The state of an endpoint's adapter, and the events that the user was notified of.

#![forbid(unsafe_code)]

use super::adapter::Adapter;
use super::bindings::{EVENT_DEVICE_FATAL, EVENT_PORT_ACTIVE, EVENT_PORT_ERR};
use crate::debug;

/// Nanoseconds between two checks that the adapter still exists.
const ADAPTER_CHECK_INTERVAL_NS: u64 = 1_000_000_000;

/// The state of the adapter, as far as its events have shown. The user was notified of each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdapterState {
    Up,
    /// A port is down: messages wait.
    PortDown,
    /// The adapter was removed. This state is final.
    Removed,
}

/// See the module.
pub(super) struct AdapterStatus {
    state: AdapterState,
    /// The time of the last check that the adapter exists.
    checked_ns: u64,
    /// Whether the user was notified that the adapter has no more resources.
    is_exhaustion_reported: bool,
}

impl AdapterStatus {
    pub(super) fn new() -> AdapterStatus {
        AdapterStatus { state: AdapterState::Up, checked_ns: 0, is_exhaustion_reported: false }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.state == AdapterState::Removed
    }

    /// Handles the events of the adapter.
    pub(super) fn poll_events(&mut self, adapter: &Adapter) {
        while let Some(event) = adapter.next_event() {
            self.on_event(event, &adapter.chosen.adapter);
        }
    }

    /// Checks at intervals whether the adapter exists.
    pub(super) fn check_existence(&mut self, adapter: &Adapter, now_ns: u64) {
        if now_ns.saturating_sub(self.checked_ns) > ADAPTER_CHECK_INTERVAL_NS {
            self.checked_ns = now_ns;
            if adapter.is_unlisted() {
                self.on_removed(&adapter.chosen.adapter);
            }
        }
    }

    #[cold]
    fn on_event(&mut self, event: u32, name: &str) {
        match (event, self.state) {
            (EVENT_DEVICE_FATAL, _) => self.on_removed(name),
            (EVENT_PORT_ERR, AdapterState::Up) => {
                self.state = AdapterState::PortDown;
                debug::warn_user(&format!(
                    "a port of RDMA adapter {name} is down: messages wait until it is up"
                ));
            }
            (EVENT_PORT_ACTIVE, AdapterState::PortDown) => self.state = AdapterState::Up,
            _ => {}
        }
    }

    /// Records that the adapter was removed, and warns the user once.
    pub(super) fn on_removed(&mut self, name: &str) {
        if !self.is_removed() {
            self.state = AdapterState::Removed;
            debug::warn_user(&format!("RDMA adapter {name} was removed"));
        }
    }

    /// Reports that the adapter has no more resources: to the user the first time, and to the log
    /// after that.
    pub(super) fn on_exhausted(&mut self, text: String) {
        if std::mem::replace(&mut self.is_exhaustion_reported, true) {
            debug::log(debug::ERROR, || text);
        } else {
            debug::warn_user(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_comes_up_again_and_a_removed_adapter_does_not() {
        let mut status = AdapterStatus::new();
        for (event, state) in [
            (EVENT_PORT_ACTIVE, AdapterState::Up),
            (EVENT_PORT_ERR, AdapterState::PortDown),
            (EVENT_PORT_ACTIVE, AdapterState::Up),
            (EVENT_PORT_ERR, AdapterState::PortDown),
            (EVENT_DEVICE_FATAL, AdapterState::Removed),
            (EVENT_PORT_ACTIVE, AdapterState::Removed),
        ] {
            status.on_event(event, "mlx5_0");
            assert_eq!(status.state, state);
        }
    }
}
