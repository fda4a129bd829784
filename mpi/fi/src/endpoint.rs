//! The objects of endpoints, which the calls use. `endpoint_calls.rs` opens them.

use std::ffi::c_void;

use score_p2p::Request;

use crate::abi::{FI_COMPLETION, FidEp};
use crate::core_state::{CoreState, EndpointQueues};
use crate::serialized::Serialized;

/// One direction of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    /// The flags for calls without flags of their own.
    pub(crate) default_flags: u64,
    /// Whether only operations with `FI_COMPLETION` are reported.
    pub(crate) is_selective: bool,
}

impl Direction {
    /// How an operation with these flags is reported.
    #[inline(always)]
    pub(crate) fn request(&self, context: *mut c_void, flags: u64) -> Request {
        let is_reported = !self.is_selective || flags & FI_COMPLETION != 0;
        Request { context: context.addr(), is_reported }
    }
}

/// An endpoint of the program.
#[repr(C)]
pub(crate) struct Endpoint {
    pub(crate) fid: FidEp,
    pub(crate) core: &'static Serialized<CoreState>,
    pub(crate) number: usize,
    pub(crate) sends: Direction,
    pub(crate) receives: Direction,
    pub(crate) min_multi_recv: usize,
    /// Whether a receive that names a source receives messages of this source only.
    pub(crate) is_directed: bool,
    /// The queues of the endpoint. They take effect with `FI_ENABLE`.
    pub(crate) queues: EndpointQueues,
}
