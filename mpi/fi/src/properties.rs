//! The name and the limits of the provider.

use std::ffi::CStr;

/// The provider's own version, 1.0.
pub(crate) const PROVIDER_VERSION: u32 = 1 << 16;
/// The name of the provider.
pub(crate) const PROVIDER_NAME: &CStr = c"pm";
/// The longest message with `FI_INJECT`, whose memory may change at once. The necessary copy is the
/// eager message itself, or remains at this node if the receiver has no room.
pub(crate) const INJECT_SIZE: usize = 4096;
/// The most endpoints that a process may have open at a time.
pub(crate) const MAX_ENDPOINTS: usize = 8;
