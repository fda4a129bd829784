//! Counters, and the dump for people (`pmDumpContext`).

use super::trunking::LinkHealth;
use super::{CommonState, ReliabilityMachine};
use std::io::Write;

/// Declares the counters with the words that the dump has for them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// What a machine has counted. Packets that are dropped are counted under one name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            fn words(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($words, self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets of every kind that went out.
    sent: "packets sent",
    /// Packets that were admitted.
    received: "packets received",
    /// Messages sent again.
    repeated: "sent again",
    /// Repetitions that turned out to be needless.
    premature: "sent again too early",
    /// Times that nothing was heard for a time-out.
    time_outs: "time-outs",
    /// Times that a link was spared and probed, because it seemed to carry nothing.
    suspected: "links suspected",
    /// Messages that came before an earlier one.
    early: "out of order",
    /// Messages to peers that were gone.
    dropped: "dropped, their receiver gone",
    /// Dropped: another job, or nobody.
    wrong_secret: "refused: wrong secret",
    /// Dropped: an earlier run of this job.
    wrong_incarnation: "refused: wrong incarnation",
    /// Dropped: not this format.
    malformed: "refused: malformed",
    /// Dropped: lengths that contradict each other, or longer than the MTU.
    wrong_length: "refused: wrong length",
    /// Dropped: for another node, or from none.
    misdirected: "refused: misdirected",
    /// Dropped: has come before.
    duplicate: "refused: duplicate",
    /// Dropped: beyond what was admitted.
    out_of_window: "refused: out of window",
    /// Dropped: no buffer may be kept for it.
    no_room: "refused: no room",
    /// Not heeded: acknowledges less than is known.
    old_acks: "acknowledgements overtaken",
    /// Not heeded: acknowledges what was never sent.
    wrong_acks: "refused: acknowledges what was not sent",
    /// Dropped: this machine only brings a dead process's messages home.
    undelivered: "for a dead process",
    /// Slots of a dead process that hold no message.
    wrong_slots: "refused: slots of a dead process",
}

impl CommonState {
    /// A slot of a dead process that cannot be a message.
    pub(super) fn refuse_slot(&mut self, slot: u32) {
        self.counters.wrong_slots += 1;
        self.freed_slots.push_back(slot);
    }
}

impl ReliabilityMachine {
    /// Writes the state, for people.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let CommonState { config, counters, held_buffers, outstanding, .. } = &self.shared;
        writeln!(
            out,
            "node {} of {}, {} peers, {} links: {outstanding} messages unacknowledged, {held_buffers} of \
             {} buffers held, {} timers{}",
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
                    LinkHealth::Up => "carries",
                    LinkHealth::Suspect => "suspected",
                    LinkHealth::Down => "dead",
                };
                writeln!(
                    out,
                    "    link {number} {state}: {} sent, {} lost, {} on the way",
                    link.sent, link.lost_count, link.in_flight
                )?;
            }
        }
        Ok(())
    }
}
