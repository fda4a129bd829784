//! PM/Ethernet: contexts on different hosts, over a network that may lose packets.

pub mod reliability;
pub mod wire;
