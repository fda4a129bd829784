//! The domain, from which all other objects are opened. `domain_calls.rs` opens it.

use crate::abi::FidDomain;
use crate::core_state::CoreState;
use crate::serialized::Serialized;

/// A domain of the program.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) fid: FidDomain,
    pub(crate) core: &'static Serialized<CoreState>,
}
