//! Devices: what contexts are opened from.

use crate::config::{Counters, DeviceConfig};
use crate::context::ContextRef;
use crate::error::{Error, Result};

/// The types that `Device::open` knows on this machine (`pmGetTypeList`).
pub fn type_list() -> &'static [&'static str] {
    &["composite", "shmem"]
}

/// An open device (`pmDevice`).
pub struct Device(());

impl Device {
    /// Opens a device. NoDevice: no such type here. Invalid: bad options. Permission: this is a
    /// user process (it has attached a context) and the type is not `composite`.
    pub fn open(_kind: &str, _options: &[&str]) -> Result<Device> {
        Err(Error::NoSys)
    }
    /// Closes it. Busy: contexts are open.
    pub fn close(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// The device's properties.
    pub fn config(&self) -> Result<DeviceConfig> {
        Err(Error::NoSys)
    }
    /// Option bits.
    pub fn option_bits(&self) -> Result<u64> {
        Err(Error::NoSys)
    }
    /// The node numbers of the device are `0..` this.
    pub fn node_list(&self) -> Result<std::ops::Range<u32>> {
        Err(Error::NoSys)
    }
    /// Whether `node` can be reached. Invalid: no such node.
    pub fn is_reachable(&self, _node: u32) -> Result<bool> {
        Err(Error::NoSys)
    }
    /// Opens context `number`. Invalid: no such number. Busy: already open.
    pub fn open_context(&self, _number: usize) -> Result<ContextRef> {
        Err(Error::NoSys)
    }
    /// The counters of `node`, summed over the channels in use.
    pub fn counters(&self, _node: u32) -> Result<Counters> {
        Err(Error::NoSys)
    }
    /// Says that the process of `node` is gone: what is queued for it counts as received, and
    /// sends to it are accepted and dropped from now on.
    pub fn mark_exited(&self, _node: u32) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Tells the processes whether there are more of them than processors.
    pub fn set_oversubscribed(&self, _oversubscribed: bool) -> Result<()> {
        Err(Error::NoSys)
    }
}
