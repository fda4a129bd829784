//! An endpoint of any device, and the dispatch to it.

#![forbid(unsafe_code)]

use super::ethernet::EthernetEndpoint;
use super::shmem::ShmemEndpoint;
use super::verbs::VerbsEndpoint;

/// An endpoint of any device. The enum fits into registers, so dispatch needs no memory.
#[derive(Clone, Copy)]
pub(crate) enum EndpointRef<'a> {
    Shmem(&'a ShmemEndpoint),
    Ethernet(&'a EthernetEndpoint),
    Verbs(&'a VerbsEndpoint),
}

impl<'a> EndpointRef<'a> {
    /// The endpoint, if it belongs to shmem. Only shmem's rings can be used without a call of the
    /// endpoint.
    #[inline(always)]
    pub(crate) fn shmem(self) -> Option<&'a ShmemEndpoint> {
        match self {
            EndpointRef::Shmem(endpoint) => Some(endpoint),
            EndpointRef::Ethernet(_) | EndpointRef::Verbs(_) => None,
        }
    }
}

/// Makes the same call on the endpoint of any device.
macro_rules! on {
    ($reference:expr, $endpoint:ident => $call:expr) => {
        match $reference {
            $crate::device::EndpointRef::Shmem($endpoint) => $call,
            $crate::device::EndpointRef::Ethernet($endpoint) => $call,
            $crate::device::EndpointRef::Verbs($endpoint) => $call,
        }
    };
}
pub(crate) use on;
