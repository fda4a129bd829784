//! Devices as their owner sees them.

#![forbid(unsafe_code)]

use super::{composite, ethernet, shmem, verbs};
use crate::config::{Counters, DeviceConfig};
use crate::context::ContextRef;
use crate::debug;
use crate::error::{Error, Result};
use crate::role;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Types of table 1.1 whose hardware is no longer built, and what to use instead.
const DEAD: [(&str, &str); 5] = [
    ("myrinet", "ethernet"),
    ("sci", "ethernet"),
    ("ib-ts", "ethernet"),
    ("infiniband-fj", "ethernet"),
    ("ethernet-hxb", "ethernet"),
];
/// The types of devices that are built.
pub const DEVICE_TYPES: [&str; 4] = ["composite", "shmem", "ethernet", "verbs"];

/// Those that carry messages on this machine (`pmGetTypeList`): verbs where there is an adapter.
pub fn type_list() -> &'static [&'static str] {
    if verbs::probe().is_ok() { &DEVICE_TYPES } else { &DEVICE_TYPES[..DEVICE_TYPES.len() - 1] }
}

/// NoDevice, with the reason under PM_DEBUG.
pub(crate) fn refuse_kind(kind: &str) -> Error {
    debug::say(debug::ERROR, || match DEAD.iter().find(|(name, _)| *name == kind) {
        Some((_, instead)) => {
            format!("device {kind}: this hardware is not built any more; use {instead}")
        }
        None => format!("device {kind}: unknown; there are composite, shmem, ethernet and verbs"),
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
    Shmem(Box<shmem::open::Channels>),
    Ethernet(Arc<ethernet::open::Channels>),
    Verbs(Arc<verbs::open::Channels>),
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

/// The owner's part of a device whose nodes are on many hosts.
enum Network<'a> {
    Ethernet(&'a ethernet::open::Channels),
    Verbs(&'a verbs::open::Channels),
}

/// The same call on whichever it is.
macro_rules! on_network {
    ($network:expr, $channels:ident => $call:expr) => {
        match $network {
            Network::Ethernet($channels) => $call,
            Network::Verbs($channels) => $call,
        }
    };
}

/// An open device (`pmDevice`).
pub struct Device(Arc<Owner>);

impl Device {
    /// Opens a device. NoDevice: no such type here. Invalid: bad options. Permission: this is a
    /// user process (it has attached a context) and the type is not `composite`.
    ///
    /// Options: `-nodes N`, and but for composite `-channels C`; ethernet's others are in
    /// `docs/pm.md`, those of verbs in `docs/verbs.md`.
    pub fn open(kind: &str, options: &[&str]) -> Result<Device> {
        let (kind, contexts) = match kind {
            "composite" => {
                let options = composite::config::Options::parse(options)?;
                (OwnerKind::Composite(options), composite::config::CONTEXTS)
            }
            "shmem" => {
                let options = shmem::config::Options::parse(options)?;
                role::become_owner()?;
                let channels = Box::new(shmem::open::Channels::new(options)?);
                (OwnerKind::Shmem(channels), options.nodes * options.channels)
            }
            "ethernet" | "agent-udp" => {
                let options = ethernet::config::Options::parse(kind, options)?;
                role::become_owner()?;
                let channels = Arc::new(ethernet::open::Channels::new(&options)?);
                let contexts = channels.contexts();
                (OwnerKind::Ethernet(channels), contexts)
            }
            "verbs" => {
                let options = verbs::config::Options::parse(options)?;
                role::become_owner()?;
                let channels = Arc::new(verbs::open::Channels::new(&options)?);
                let contexts = channels.contexts();
                (OwnerKind::Verbs(channels), contexts)
            }
            other => return Err(refuse_kind(other)),
        };
        Ok(Device::of(kind, contexts))
    }

    /// Opens ethernet over sockets that somebody with more rights has opened: for each local node
    /// one for each `-link`. Invalid: bad options, or not as many.
    #[doc(hidden)]
    pub fn open_over(
        options: &[&str],
        links: Vec<Vec<ethernet::wire::Endpoint>>,
    ) -> Result<Device> {
        let options = ethernet::config::Options::parse("ethernet", options)?;
        role::become_owner()?;
        let channels = Arc::new(ethernet::open::Channels::given(&options, links)?);
        let contexts = channels.contexts();
        Ok(Device::of(OwnerKind::Ethernet(channels), contexts))
    }

    fn of(kind: OwnerKind, contexts: usize) -> Device {
        let open = Mutex::new(vec![false; contexts]);
        Device(Arc::new(Owner { kind, open, closed: Mutex::new(false) }))
    }

    fn live(&self) -> Result<&Owner> {
        if *self.0.closed.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::Invalid);
        }
        Ok(&self.0)
    }

    /// The owner of a device that crosses a network.
    fn network(&self) -> Result<Network<'_>> {
        match &self.live()?.kind {
            OwnerKind::Ethernet(channels) => Ok(Network::Ethernet(channels)),
            OwnerKind::Verbs(channels) => Ok(Network::Verbs(channels)),
            _ => Err(Error::NoSys),
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
            OwnerKind::Ethernet(channels) => channels.config(contexts),
            OwnerKind::Verbs(channels) => channels.config(contexts),
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
        Ok(!matches!(self.live()?.kind, OwnerKind::Composite(_)))
    }

    /// Opens context `number`. Invalid: no such number. Busy: already open.
    pub fn open_context(&self, number: usize) -> Result<ContextRef> {
        self.live()?.take(number)?;
        ContextRef::opened(&self.0, number).inspect_err(|_| self.0.give_back(number))
    }

    /// The counters of `node`, summed over the channels in use. NoSys on a composite. Invalid: no
    /// such node; on ethernet also one of another host.
    pub fn counters(&self, node: u32) -> Result<Counters> {
        match &self.live()?.kind {
            OwnerKind::Shmem(channels) => channels.counters(node as usize),
            OwnerKind::Ethernet(channels) => channels.counters(node as usize),
            OwnerKind::Verbs(channels) => channels.counters(node as usize),
            OwnerKind::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Says that the process of `node` is gone: what is queued for it counts as received, and
    /// sends to it are accepted and dropped from now on. Must not run before it has ended. On
    /// ethernet what it has sent is brought home by [`Device::serve`].
    pub fn mark_exited(&self, node: u32) -> Result<()> {
        match &self.live()?.kind {
            OwnerKind::Shmem(channels) => channels.mark_exited(node as usize),
            OwnerKind::Ethernet(channels) => channels.mark_exited(node as usize),
            OwnerKind::Verbs(channels) => channels.mark_exited(node as usize),
            OwnerKind::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Tells the processes whether there are more of them than processors.
    pub fn set_oversubscribed(&self, oversubscribed: bool) -> Result<()> {
        match &self.live()?.kind {
            OwnerKind::Shmem(channels) => channels.set_oversubscribed(oversubscribed),
            OwnerKind::Ethernet(channels) => channels.set_oversubscribed(oversubscribed),
            OwnerKind::Verbs(channels) => channels.set_oversubscribed(oversubscribed),
            OwnerKind::Composite(_) => return Err(Error::NoSys),
        }
        Ok(())
    }

    /// Networks: where the local nodes are reached. Opaque; those of all hosts, put together in
    /// the order of their nodes, are what [`Device::set_peers`] takes.
    pub fn addresses(&self) -> Result<Vec<u8>> {
        on_network!(self.network()?, it => it.addresses())
    }

    /// Networks: where all nodes are reached. Has to precede the first use of a context and the
    /// first attach descriptor; is done by `open` where all nodes are local. Invalid: not as many
    /// addresses as there are nodes. Busy: was said before.
    pub fn set_peers(&self, table: &[u8]) -> Result<()> {
        on_network!(self.network()?, it => it.set_peers(table))
    }

    /// Networks: a node of another host has ended. Sends to it are accepted and dropped.
    pub fn peer_exited(&self, node: u32) -> Result<()> {
        on_network!(self.network()?, it => it.peer_exited(node as usize))
    }

    /// Networks: becomes readable when [`Device::serve`] has something to do.
    pub fn adopted_fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(on_network!(self.network()?, it => it.adopted_fd()))
    }

    /// Networks: goes on with sending what processes that have ended have left; never waits.
    pub fn serve(&self) -> Result<()> {
        on_network!(self.network()?, it => it.serve());
        Ok(())
    }

    /// Networks: whether all that the ended processes had sent has arrived, or its receivers have
    /// gone.
    pub fn is_quiet(&self) -> Result<bool> {
        Ok(on_network!(self.network()?, it => it.is_quiet()))
    }

    /// Ethernet: one line for people where a link is not the wire that was asked for.
    pub fn note(&self) -> Result<Option<String>> {
        match self.network()? {
            Network::Ethernet(channels) => Ok(channels.note()),
            Network::Verbs(_) => Ok(None),
        }
    }

    /// Networks: which wires there are over which links, for people.
    pub fn wires(&self) -> Result<String> {
        match self.network()? {
            Network::Ethernet(channels) => Ok(channels.wires()),
            Network::Verbs(channels) => Ok(channels.describe()),
        }
    }
}
