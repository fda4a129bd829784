//! The offer of transports that each host sends to the other hosts of a job.

use score_pm::rdma::Unusable;
use serde::{Deserialize, Serialize};

/// The offer of one host for one network set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportOffer {
    /// RDMA, if it is tried.
    pub rdma: Option<RdmaOffer>,
    /// Raw Ethernet, if available.
    pub raw: Option<AddressTable>,
    /// UDP.
    pub udp: AddressTable,
    /// The reason why raw Ethernet is unavailable, or uses a slower wire.
    pub raw_note: Option<String>,
}

/// Addresses of the nodes of a host on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressTable {
    /// The addresses as the device encodes them; opaque.
    pub encoded: Vec<u8>,
    /// Wires and links of the device, for the user.
    pub description: String,
}

/// The RDMA offer of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaOffer {
    /// The same as in [`RdmaProbe`](super::rdma::RdmaProbe).
    pub is_requested: bool,
    /// The adapter, or the reason why there is none.
    pub adapter: Result<Adapter, RdmaUnavailable>,
}

/// A usable adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Addresses of the host's nodes.
    pub addresses: AddressTable,
    /// The fabric. Adapters of different fabrics cannot connect.
    pub fabric: String,
    /// Part of the fabric whose adapters connect without configuration.
    pub subnet: String,
}

/// Why a host offers no adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaUnavailable {
    /// Text for the user.
    pub reason: String,
    /// Whether the host has an adapter. A user may then expect RDMA, and must be notified.
    pub has_adapter: bool,
}

impl From<Unusable> for RdmaUnavailable {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Absent(reason) => Self { reason, has_adapter: false },
            Unusable::Refused(reason) => Self { reason, has_adapter: true },
        }
    }
}
