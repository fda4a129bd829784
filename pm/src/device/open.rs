//! Devices as their owner sees them.

#![forbid(unsafe_code)]

use super::{composite, shmem};
use crate::config::{Counters, DeviceConfig};
use crate::context::ContextRef;
use crate::debug;
use crate::error::{Error, Result};
use crate::role;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Types of table 1.1 whose hardware is no longer built, and what to use instead.
const DEAD: [(&str, &str); 5] = [
    ("myrinet", "shmem"),
    ("sci", "shmem"),
    ("ib-ts", "shmem"),
    ("infiniband-fj", "shmem"),
    ("ethernet-hxb", "shmem"),
];
/// Types that are not built yet.
const LATER: [&str; 3] = ["ethernet", "agent-udp", "verbs"];

/// The types that `Device::open` knows on this machine (`pmGetTypeList`).
pub fn type_list() -> &'static [&'static str] {
    &["composite", "shmem"]
}

/// NoDevice, with the reason under PM_DEBUG.
pub(crate) fn refuse_kind(kind: &str) -> Error {
    debug::say(debug::ERROR, || match DEAD.iter().find(|(name, _)| *name == kind) {
        Some((_, instead)) => {
            format!("device {kind}: this hardware is not built any more; use {instead}")
        }
        None if LATER.contains(&kind) => format!("device {kind}: not built yet; use shmem"),
        None => format!("device {kind}: unknown; there are composite and shmem"),
    });
    Error::NoDevice
}

/// What a device and its contexts share.
pub(crate) struct Owner {
    pub(crate) kind: OwnerKind,
    open: Mutex<Vec<bool>>,
    closed: Mutex<bool>,
}

pub(crate) enum OwnerKind {
    Shmem(shmem::open::Channels),
    Composite(composite::config::Options),
}

impl Owner {
    /// Context `number` is closed.
    pub(crate) fn give_back(&self, number: usize) {
        if let Some(open) = self.open.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number)
        {
            *open = false;
        }
    }

    fn take(&self, number: usize) -> Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(number) {
            None => Err(Error::Invalid),
            Some(true) => Err(Error::Busy),
            Some(free) => {
                *free = true;
                Ok(())
            }
        }
    }
}

/// An open device (`pmDevice`).
pub struct Device(Arc<Owner>);

impl Device {
    /// Opens a device. NoDevice: no such type here. Invalid: bad options. Permission: this is a
    /// user process (it has attached a context) and the type is not `composite`.
    ///
    /// Options: `-nodes N`, and for shmem `-channels C`.
    pub fn open(kind: &str, options: &[&str]) -> Result<Device> {
        let (kind, contexts) = match kind {
            "composite" => {
                let options = composite::config::Options::parse(options)?;
                (OwnerKind::Composite(options), composite::config::CONTEXTS)
            }
            "shmem" => {
                let options = shmem::config::Options::parse(options)?;
                role::become_owner()?;
                let channels = shmem::open::Channels::new(options)?;
                (OwnerKind::Shmem(channels), options.nodes * options.channels)
            }
            other => return Err(refuse_kind(other)),
        };
        let open = Mutex::new(vec![false; contexts]);
        Ok(Device(Arc::new(Owner { kind, open, closed: Mutex::new(false) })))
    }

    fn live(&self) -> Result<&Owner> {
        if *self.0.closed.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::Invalid);
        }
        Ok(&self.0)
    }

    fn channels(&self) -> Result<&shmem::open::Channels> {
        match &self.live()?.kind {
            OwnerKind::Shmem(channels) => Ok(channels),
            OwnerKind::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Closes it; every later call answers Invalid. Busy: contexts are open.
    pub fn close(&self) -> Result<()> {
        let owner = self.live()?;
        if owner.open.lock().unwrap_or_else(PoisonError::into_inner).contains(&true) {
            return Err(Error::Busy);
        }
        *owner.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }

    /// The device's properties.
    pub fn config(&self) -> Result<DeviceConfig> {
        let owner = self.live()?;
        let contexts = owner.open.lock().unwrap_or_else(PoisonError::into_inner).len();
        Ok(match &owner.kind {
            OwnerKind::Shmem(channels) => channels.config(contexts),
            OwnerKind::Composite(options) => options.config(contexts),
        })
    }

    /// Option bits.
    pub fn option_bits(&self) -> Result<u64> {
        Ok(self.config()?.option)
    }

    /// The node numbers of the device.
    pub fn node_list(&self) -> Result<Range<u32>> {
        Ok(0..self.config()?.nodes as u32)
    }

    /// Whether `node` can be reached. Invalid: no such node. A composite reaches nobody before
    /// its contexts have members.
    pub fn is_reachable(&self, node: u32) -> Result<bool> {
        if !self.node_list()?.contains(&node) {
            return Err(Error::Invalid);
        }
        Ok(matches!(self.live()?.kind, OwnerKind::Shmem(_)))
    }

    /// Opens context `number`. Invalid: no such number. Busy: already open.
    pub fn open_context(&self, number: usize) -> Result<ContextRef> {
        self.live()?.take(number)?;
        ContextRef::opened(&self.0, number).inspect_err(|_| self.0.give_back(number))
    }

    /// The counters of `node`, summed over the channels in use. NoSys on a composite.
    pub fn counters(&self, node: u32) -> Result<Counters> {
        self.channels()?.counters(node as usize)
    }

    /// Says that the process of `node` is gone: what is queued for it counts as received, and
    /// sends to it are accepted and dropped from now on. Must not run before it has ended.
    pub fn mark_exited(&self, node: u32) -> Result<()> {
        self.channels()?.mark_exited(node as usize)
    }

    /// Tells the processes whether there are more of them than processors.
    pub fn set_oversubscribed(&self, oversubscribed: bool) -> Result<()> {
        self.channels()?.set_oversubscribed(oversubscribed);
        Ok(())
    }
}
