//! How much a sender may send that nobody waits for. Each pair of nodes has a window in each
//! direction: so many bytes of eager messages may be on their way or wait at the receiver. What the
//! receiver has used it gives back, many messages at a time.

use crate::operation::Violation;

/// What a message costs besides its bytes: its entry at the receiver.
const MESSAGE_OVERHEAD: usize = 64;

/// What an eager message of this length costs.
#[inline(always)]
pub(crate) fn cost(len: usize) -> u32 {
    (len + MESSAGE_OVERHEAD) as u32
}

#[derive(Clone, Copy, Debug)]
struct PeerCredit {
    /// What may still be sent to the peer.
    left: u32,
    /// The longest message to the peer, header included. 0: not known yet, or this node itself.
    mtu: u32,
    /// What the peer has sent and has not been given back.
    received: u32,
    /// The part of it that was used, so that it can be given back.
    used: u32,
    /// How often a message to the peer had no credit since the peer last gave some back.
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

    /// Whether an eager message of this cost may go to `node`.
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

    /// As `covers`, for a message of `message_len` bytes with its header, which has to be short
    /// enough. False also as long as it is not known what is.
    #[inline(always)]
    pub(crate) fn covers_short(&self, node: u32, message_len: usize, cost: u32) -> bool {
        let peer = self.peers.get(node as usize);
        peer.is_some_and(|peer| peer.left >= cost && peer.mtu as usize >= message_len)
    }

    /// An eager message has been sent.
    #[inline(always)]
    pub(crate) fn spend(&mut self, node: u32, cost: u32) {
        if let Some(peer) = self.peers.get_mut(node as usize) {
            peer.left = peer.left.saturating_sub(cost);
        }
    }

    /// A message to `node` has no credit. Whether the program is to try again, up to `tries` times.
    pub(crate) fn is_worth_a_wait(&mut self, node: u32, tries: u32) -> bool {
        let Some(peer) = self.peers.get_mut(node as usize) else { return false };
        if peer.denials == tries {
            return false;
        }
        peer.denials += 1;
        true
    }

    /// `node` has given credit back.
    ///
    /// # Errors
    /// More than it has received.
    pub(crate) fn restore(&mut self, node: u32, bytes: u64) -> Result<(), Violation> {
        let violation =
            Violation { source: Some(node), what: "gives back more credit than it had" };
        let peer = self.peers.get_mut(node as usize).ok_or(violation)?;
        let left = u64::from(peer.left).checked_add(bytes);
        let left = left.filter(|left| *left <= u64::from(self.window)).ok_or(violation)?;
        peer.left = left as u32;
        peer.denials = 0;
        Ok(())
    }

    /// An eager message has arrived.
    ///
    /// # Errors
    /// The sender had no credit for it.
    #[inline(always)]
    pub(crate) fn receive(&mut self, node: u32, cost: u32) -> Result<(), Violation> {
        let violation = Violation { source: Some(node), what: "sends more than its credit" };
        let peer = self.peers.get_mut(node as usize).ok_or(violation)?;
        peer.received = peer.received.checked_add(cost).ok_or(violation)?;
        if peer.received > self.window { Err(violation) } else { Ok(()) }
    }

    /// An eager message needs no room any more. Returns what is to be given back to its sender, if
    /// that is worth a message.
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
    /// `node` has announced a message of this length. If it did so for lack of credit, returns what
    /// can be given back to it now, however little it is.
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
    /// What may still be sent to `node`.
    pub(crate) fn left(&self, node: u32) -> u32 {
        self.peers[node as usize].left
    }

    /// What `node` has sent and was not given back.
    pub(crate) fn received(&self, node: u32) -> u32 {
        self.peers[node as usize].received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_back_half_a_window_at_a_time() {
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
    fn a_sender_without_enough_credit_gets_all_that_was_used() {
        let (mut sender, mut receiver) = (Credit::new(2, 1000), Credit::new(2, 1000));
        sender.spend(1, 400);
        receiver.receive(0, 400).unwrap();
        assert_eq!((receiver.release(0, 400), sender.covers(1, 700)), (None, false));
        // Messages that could be eager, and those that never could.
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
    fn who_exceeds_the_window_is_named() {
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
