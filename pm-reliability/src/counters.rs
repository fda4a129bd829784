//! Counters, and their dump (`pmDumpContext`).

use crate::trunking::LinkHealth;
use crate::{CommonState, ReliabilityMachine};
use std::io::Write;

/// Declares the counters, each with its text in the dump.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// The counters of a machine. A dropped packet increments one counter, according to the
        /// reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ReliabilityCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ReliabilityCounters {
            fn words(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($words, self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets of every kind that were sent.
    sent: "packets sent",
    /// Packets with a valid header, including those that were dropped later.
    received: "packets received",
    /// Messages sent again.
    repeated: "sent again",
    /// Retransmissions that turned out to be unnecessary.
    premature: "sent again too early",
    /// Times that a peer did not answer within the time-out.
    time_outs: "time-outs",
    /// Times that a link was avoided and probed, because it seemed to carry nothing.
    suspected: "links suspected",
    /// Messages that were received before an earlier one.
    early: "out of order",
    /// Messages of `pmSend` to peers that had exited.
    dropped: "dropped: the receiver has exited",
    /// Dropped packets of another job or of an unknown sender.
    wrong_secret: "refused: wrong secret",
    /// Dropped packets of an earlier run of this job.
    wrong_incarnation: "refused: wrong incarnation",
    /// Dropped packets that are not in this format.
    malformed: "refused: malformed",
    /// Dropped packets whose lengths contradict each other or exceed the MTU.
    wrong_length: "refused: wrong length",
    /// Dropped packets for another node, or with an invalid source.
    misdirected: "refused: misdirected",
    /// Dropped packets that were received before.
    duplicate: "refused: duplicate",
    /// Dropped packets beyond the window.
    out_of_window: "refused: out of window",
    /// Dropped packets for which no buffer was left.
    no_room: "refused: no room",
    /// Ignored acknowledgements that acknowledge less than an earlier one.
    old_acks: "acknowledgements overtaken",
    /// Ignored acknowledgements of packets that were never sent.
    wrong_acks: "refused: acknowledges what was not sent",
    /// Dropped packets for a dead process, whose messages this machine only delivers.
    undelivered: "for a dead process",
    /// Slots of a dead process that hold no message.
    wrong_slots: "refused: slots of a dead process",
}

impl CommonState {
    /// Counts and frees a slot of a dead process that holds no valid message.
    pub(super) fn refuse_slot(&mut self, slot: u32) {
        self.counters.wrong_slots += 1;
        self.freed_slots.push_back(slot);
    }
}

impl ReliabilityMachine {
    /// Writes a description of the state.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let CommonState { config, counters, held_buffers, outstanding, .. } = &self.shared;
        writeln!(
            out,
            "node {} of {}, {} peers, {} links: {outstanding} messages unacknowledged, \
             {held_buffers} of {} buffers held, {} timers{}",
            config.self_node,
            config.nodes,
            self.peers.len(),
            config.links,
            config.buffers,
            self.timers.len(),
            if self.shared.draining { ", for a dead process" } else { "" },
        )?;
        for (words, count) in counters.words().filter(|(_, count)| *count > 0) {
            writeln!(out, "  {words}: {count}")?;
        }
        for peer in &self.peers {
            writeln!(out, "  node {} <- {}", peer.node, peer.send.describe())?;
            writeln!(out, "  node {} -> {}", peer.node, peer.receive.describe())?;
            for (number, link) in peer.links.iter().enumerate().filter(|_| config.links > 1) {
                let state = match link.health {
                    LinkHealth::Up => "up",
                    LinkHealth::Suspect => "suspect",
                    LinkHealth::Down => "down",
                };
                writeln!(
                    out,
                    "    link {number} {state}: {} sent, {} lost, {} in flight",
                    link.sent, link.lost_count, link.in_flight
                )?;
            }
        }
        Ok(())
    }
}
