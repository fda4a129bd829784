//! The addresses that programs exchange, and tables of them.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use crate::properties::MAX_ENDPOINTS;

/// An address in the form that programs exchange.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddress {
    mark: [u8; 3],
    pub(crate) endpoint: u8,
    pub(crate) node: u32,
}

/// The addresses of an address vector.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// The nodes and endpoints, indexed by address. None: the address was removed.
    peers: Vec<Option<NodeAddress>>,
    /// The address of each node and endpoint.
    by_peer: HashMap<(u32, u8), u64>,
}

impl NodeAddress {
    const MARK: [u8; 3] = *b"PMf";

    pub(crate) fn new(node: u32, endpoint: usize) -> Self {
        Self { mark: Self::MARK, endpoint: endpoint as u8, node }
    }
}

impl Addresses {
    /// Adds an endpoint of a node. Returns its address, or None if the node or endpoint is out of
    /// range.
    pub(crate) fn insert(&mut self, peer: NodeAddress, nodes: u32) -> Option<u64> {
        let is_possible = peer.mark == NodeAddress::MARK
            && peer.node < nodes
            && usize::from(peer.endpoint) < MAX_ENDPOINTS;
        if !is_possible {
            return None;
        }
        let index = self.peers.len() as u64;
        self.peers.push(Some(peer));
        self.by_peer.insert((peer.node, peer.endpoint), index);
        Some(index)
    }

    /// Removes an address. Returns false if it is not in the table.
    pub(crate) fn remove(&mut self, address: u64) -> bool {
        let Some(peer) = self.peer_at(address) else { return false };
        self.peers[address as usize] = None;
        let key = (peer.node, peer.endpoint);
        if self.by_peer.get(&key) == Some(&address) {
            let other = self.peers.iter().position(|one| *one == Some(peer));
            match other {
                Some(index) => _ = self.by_peer.insert(key, index as u64),
                None => _ = self.by_peer.remove(&key),
            }
        }
        true
    }

    /// The node and endpoint at an address.
    #[inline(always)]
    pub(crate) fn peer_at(&self, address: u64) -> Option<NodeAddress> {
        *self.peers.get(usize::try_from(address).ok()?)?
    }

    /// The address of an endpoint of a node.
    pub(crate) fn address_of(&self, node: u32, endpoint: usize) -> Option<u64> {
        self.by_peer.get(&(node, endpoint as u8)).copied()
    }
}

/// Stores an address, as much as fits, and its length. Returns `too_short` if the address does not
/// fit.
///
/// # Safety
/// `*len` bytes can be written at `result`.
pub(crate) unsafe fn store_name(
    name: NodeAddress,
    result: *mut c_void,
    len: *mut usize,
    too_short: c_int,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe {
        let room = (*len).min(size_of::<NodeAddress>());
        std::ptr::copy_nonoverlapping((&raw const name).cast::<u8>(), result.cast(), room);
        *len = size_of::<NodeAddress>();
        if room < size_of::<NodeAddress>() { too_short } else { 0 }
    }
}
