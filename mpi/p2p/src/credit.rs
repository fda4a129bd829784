//! The limit on eager messages. Each pair of nodes has a window in each direction: the number of
//! bytes of eager messages that may be in flight or wait at the receiver. The receiver returns
//! credit for many messages at a time.

use crate::operation::Violation;

/// The cost of a message in addition to its bytes: the entry at the receiver.
const MESSAGE_OVERHEAD: usize = 64;

/// The cost of an eager message of this length.
#[inline(always)]
pub(crate) fn cost(len: usize) -> u32 {
    (len + MESSAGE_OVERHEAD) as u32
}

#[derive(Clone, Copy, Debug)]
struct PeerCredit {
    /// The credit for messages to the peer.
    left: u32,
    /// The longest message to the peer, header included. 0: not known yet, or this node itself.
    mtu: u32,
    /// The cost of messages from the peer for which credit was not returned.
    received: u32,
    /// The part of `received` that was used, and can be returned.
    used: u32,
    /// How often a message to the peer had no credit since the peer last returned credit.
    denials: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Credit {
    window: u32,
    peers: Vec<PeerCredit>,
}

impl Credit {
    pub(crate) fn new(nodes: u32, window: u32) -> Self {
        let peer = PeerCredit { left: window, mtu: 0, received: 0, used: 0, denials: 0 };
        Self { window, peers: vec![peer; nodes as usize] }
    }

    /// Whether an eager message of this cost may be sent to `node`.
    #[inline(always)]
    pub(crate) fn covers(&self, node: u32, cost: u32) -> bool {
        self.peers.get(node as usize).is_some_and(|peer| peer.left >= cost)
    }

    /// Sets the longest message to `node`, with its header.
    pub(crate) fn set_mtu(&mut self, node: u32, mtu: usize) {
        if let Some(peer) = self.peers.get_mut(node as usize) {
            peer.mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        }
    }

    /// Like `covers`, for a message of `message_len` bytes including its header. Also false if the
    /// message exceeds the MTU, or if the MTU is not known yet.
    #[inline(always)]
    pub(crate) fn covers_short(&self, node: u32, message_len: usize, cost: u32) -> bool {
        let peer = self.peers.get(node as usize);
        peer.is_some_and(|peer| peer.left >= cost && peer.mtu as usize >= message_len)
    }

    /// Spends the credit of an eager message that was sent.
    #[inline(always)]
    pub(crate) fn spend(&mut self, node: u32, cost: u32) {
        if let Some(peer) = self.peers.get_mut(node as usize) {
            peer.left = peer.left.saturating_sub(cost);
        }
    }

    /// Whether the program should retry a message to `node` that has no credit. Returns true
    /// at most `tries` times.
    pub(crate) fn is_worth_a_wait(&mut self, node: u32, tries: u32) -> bool {
        let Some(peer) = self.peers.get_mut(node as usize) else { return false };
        if peer.denials == tries {
            return false;
        }
        peer.denials += 1;
        true
    }

    /// Adds credit that `node` has returned.
    ///
    /// # Errors
    /// Returns a violation if `node` returns more than it has received.
    pub(crate) fn restore(&mut self, node: u32, bytes: u64) -> Result<(), Violation> {
        let violation = Violation { source: Some(node), what: "returns more credit than it had" };
        let peer = self.peers.get_mut(node as usize).ok_or(violation)?;
        let left = u64::from(peer.left).checked_add(bytes);
        let left = left.filter(|left| *left <= u64::from(self.window)).ok_or(violation)?;
        peer.left = left as u32;
        peer.denials = 0;
        Ok(())
    }

    /// Notes the arrival of an eager message.
    ///
    /// # Errors
    /// Returns a violation if the sender had no credit for it.
    #[inline(always)]
    pub(crate) fn receive(&mut self, node: u32, cost: u32) -> Result<(), Violation> {
        let violation = Violation { source: Some(node), what: "sends more than its credit" };
        let peer = self.peers.get_mut(node as usize).ok_or(violation)?;
        peer.received = peer.received.checked_add(cost).ok_or(violation)?;
        if peer.received > self.window { Err(violation) } else { Ok(()) }
    }

    /// Releases the room of an eager message. Returns the credit to give back to its sender, if it
    /// is worth a message.
    #[inline(always)]
    pub(crate) fn release(&mut self, node: u32, cost: u32) -> Option<u64> {
        let peer = self.peers.get_mut(node as usize)?;
        peer.used += cost;
        if peer.used < self.window / 2 {
            return None;
        }
        let used = std::mem::take(&mut peer.used);
        peer.received = peer.received.saturating_sub(used);
        Some(u64::from(used))
    }
}

impl Credit {
    /// Handles the announcement of a message of `len` bytes by `node`. If `node` announced it for
    /// lack of credit, returns all credit that can be given back now.
    pub(crate) fn release_all(&mut self, node: u32, len: u64) -> Option<u64> {
        let window = u64::from(self.window);
        let peer = self.peers.get_mut(node as usize)?;
        let cost = len.saturating_add(MESSAGE_OVERHEAD as u64);
        let lacks_credit = cost > window - u64::from(peer.received).min(window);
        if cost > window || !lacks_credit || peer.used == 0 {
            return None;
        }
        let used = std::mem::take(&mut peer.used);
        peer.received = peer.received.saturating_sub(used);
        Some(u64::from(used))
    }
}

#[cfg(test)]
impl Credit {
    /// The credit left for messages to `node`.
    pub(crate) fn left(&self, node: u32) -> u32 {
        self.peers[node as usize].left
    }

    /// The cost of messages from `node` for which credit was not returned.
    pub(crate) fn received(&self, node: u32) -> u32 {
        self.peers[node as usize].received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_returned_in_halves_of_a_window() {
        let (mut sender, mut receiver) = (Credit::new(2, 1000), Credit::new(2, 1000));
        let mut returned = 0;
        for _ in 0..100 {
            let cost = cost(36);
            assert!(sender.covers(1, cost));
            sender.spend(1, cost);
            receiver.receive(0, cost).unwrap();
            if let Some(bytes) = receiver.release(0, cost) {
                assert!(bytes >= 500);
                sender.restore(1, bytes).unwrap();
                returned += 1;
            }
        }
        assert_eq!(returned, 20);
    }

    #[test]
    fn a_sender_without_enough_credit_gets_all_used_credit_back() {
        let (mut sender, mut receiver) = (Credit::new(2, 1000), Credit::new(2, 1000));
        sender.spend(1, 400);
        receiver.receive(0, 400).unwrap();
        assert_eq!((receiver.release(0, 400), sender.covers(1, 700)), (None, false));
        // Messages that fit into the credit, and messages longer than the window.
        for len in [536, 937, u64::MAX] {
            assert_eq!(receiver.release_all(0, len), None, "{len}");
        }
        sender.restore(1, receiver.release_all(0, 537).unwrap()).unwrap();
        assert!(sender.covers(1, 1000));
        assert_eq!(receiver.release_all(0, 936), None);
    }

    #[test]
    fn a_message_without_credit_waits_a_while_for_it() {
        let mut credit = Credit::new(2, 200);
        let waits = |credit: &mut Credit| (0..9).filter(|_| credit.is_worth_a_wait(1, 3)).count();
        credit.spend(1, 200);
        assert_eq!(waits(&mut credit), 3);
        assert_eq!(waits(&mut credit), 0);
        credit.restore(1, 100).unwrap();
        assert_eq!(waits(&mut credit), 3);
    }

    #[test]
    fn an_error_names_the_node_that_exceeds_the_window() {
        let mut credit = Credit::new(2, 200);
        credit.spend(1, 150);
        assert!(!credit.covers(1, 51) && credit.covers(1, 50));
        assert!(!credit.covers(2, 0), "there is no such node");
        assert!(credit.restore(1, 150).is_ok());
        assert_eq!(credit.restore(1, 1).unwrap_err().source, Some(1));
        assert!(credit.restore(1, u64::MAX).is_err());
        credit.receive(0, 200).unwrap();
        assert_eq!(credit.receive(0, 1).unwrap_err().source, Some(0));
    }
}
