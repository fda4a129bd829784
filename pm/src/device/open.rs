//! The functions of devices that the owner calls.

#![forbid(unsafe_code)]

use super::option_words::refuse_options;
use super::options::DeviceOptions;
use super::{composite, ethernet, shmem, verbs};
use crate::config::{Counters, DeviceConfig};
use crate::error::{Error, PmResult};
use crate::role;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The implemented types of devices.
pub const DEVICE_TYPES: [&str; 4] = ["composite", "shmem", "ethernet", "verbs"];

/// The types that work on this machine (`pmGetTypeList`): verbs only if there is an adapter.
pub fn type_list() -> &'static [&'static str] {
    if verbs::probe().is_ok() { &DEVICE_TYPES } else { &DEVICE_TYPES[..DEVICE_TYPES.len() - 1] }
}

/// The state that a device and its contexts share.
pub(crate) struct DeviceState {
    pub(crate) kind: DeviceKind,
    open_contexts: Mutex<Vec<bool>>,
    is_closed: Mutex<bool>,
}

pub(crate) enum DeviceKind {
    Shmem(Box<shmem::open::ShmemChannels>),
    Ethernet(Arc<ethernet::open::EthernetChannels>),
    Verbs(Arc<verbs::open::VerbsChannels>),
    Composite(composite::config::CompositeOptions),
}

impl DeviceState {
    /// The channels of shmem. Invalid: the device is of another kind.
    pub(crate) fn shmem_channels(&self) -> PmResult<&shmem::open::ShmemChannels> {
        match &self.kind {
            DeviceKind::Shmem(channels) => Ok(channels),
            DeviceKind::Ethernet(_) | DeviceKind::Verbs(_) | DeviceKind::Composite(_) => {
                Err(Error::Invalid)
            }
        }
    }

    /// Marks context `number` as closed.
    pub(crate) fn release_context(&self, number: usize) {
        if let Some(is_open) =
            self.open_contexts.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number)
        {
            *is_open = false;
        }
    }

    /// Marks context `number` as open. Invalid: no such number. Busy: the context is open.
    pub(crate) fn acquire_context(&self, number: usize) -> PmResult<()> {
        let mut open_contexts = self.open_contexts.lock().unwrap_or_else(PoisonError::into_inner);
        match open_contexts.get_mut(number) {
            None => Err(Error::Invalid),
            Some(true) => Err(Error::Busy),
            Some(is_open) => {
                *is_open = true;
                Ok(())
            }
        }
    }
}

/// The owner's part of a device whose nodes are on several hosts.
enum NetworkChannels<'a> {
    Ethernet(&'a ethernet::open::EthernetChannels),
    Verbs(&'a verbs::open::VerbsChannels),
}

/// Makes the same call on either network device.
macro_rules! on_network {
    ($network:expr, $channels:ident => $call:expr) => {
        match $network {
            NetworkChannels::Ethernet($channels) => $call,
            NetworkChannels::Verbs($channels) => $call,
        }
    };
}

/// An open device (`pmDevice`).
pub struct Device(Arc<DeviceState>);

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// NoDevice: this machine has no such type. Invalid: an option is missing or out of range.
    /// Permission: this is a user process (it has attached a context) and the type is not
    /// composite.
    pub fn open(options: impl Into<DeviceOptions>) -> PmResult<Device> {
        let (kind, contexts) = match options.into().checked()? {
            DeviceOptions::Composite(options) => {
                (DeviceKind::Composite(options), composite::config::MAX_CONTEXTS)
            }
            DeviceOptions::Shmem(options) => {
                role::become_owner()?;
                let channels = Box::new(shmem::open::ShmemChannels::new(options)?);
                (DeviceKind::Shmem(channels), options.nodes * options.channels)
            }
            DeviceOptions::Ethernet(options) => {
                role::become_owner()?;
                let channels = Arc::new(ethernet::open::EthernetChannels::new(&options)?);
                let contexts = channels.contexts();
                (DeviceKind::Ethernet(channels), contexts)
            }
            DeviceOptions::Verbs(options) => {
                role::become_owner()?;
                let channels = Arc::new(verbs::open::VerbsChannels::new(&options)?);
                let contexts = channels.contexts();
                (DeviceKind::Verbs(channels), contexts)
            }
        };
        Ok(Device::with_contexts(kind, contexts))
    }

    /// Opens ethernet over sockets that a more privileged process has opened: for each local node
    /// one for each link of the options.
    ///
    /// # Errors
    /// Invalid: an option is missing or out of range, or the number of sockets differs.
    pub fn open_with_sockets(
        options: ethernet::config::EthernetOptions,
        links: Vec<Vec<ethernet::wire::WireEndpoint>>,
    ) -> PmResult<Device> {
        let options = options.checked().map_err(|reason| refuse_options("ethernet", &reason))?;
        role::become_owner()?;
        let channels = Arc::new(ethernet::open::EthernetChannels::from_endpoints(&options, links)?);
        let contexts = channels.contexts();
        Ok(Device::with_contexts(DeviceKind::Ethernet(channels), contexts))
    }

    fn with_contexts(kind: DeviceKind, contexts: usize) -> Device {
        let open_contexts = Mutex::new(vec![false; contexts]);
        Device(Arc::new(DeviceState { kind, open_contexts, is_closed: Mutex::new(false) }))
    }

    /// The state. Invalid: the device was closed.
    pub(crate) fn state_if_open(&self) -> PmResult<&Arc<DeviceState>> {
        if *self.0.is_closed.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::Invalid);
        }
        Ok(&self.0)
    }

    /// The channels of an inter-host device. NoSys: the device is of another kind.
    fn network(&self) -> PmResult<NetworkChannels<'_>> {
        match &self.state_if_open()?.kind {
            DeviceKind::Ethernet(channels) => Ok(NetworkChannels::Ethernet(channels)),
            DeviceKind::Verbs(channels) => Ok(NetworkChannels::Verbs(channels)),
            _ => Err(Error::NoSys),
        }
    }

    /// Closes the device; every later call returns Invalid.
    ///
    /// # Errors
    /// Busy: contexts are open.
    pub fn close(&self) -> PmResult<()> {
        let device_state = self.state_if_open()?;
        if device_state.open_contexts.lock().unwrap_or_else(PoisonError::into_inner).contains(&true)
        {
            return Err(Error::Busy);
        }
        *device_state.is_closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }

    /// The device's properties.
    pub fn config(&self) -> PmResult<DeviceConfig> {
        let device_state = self.state_if_open()?;
        let contexts =
            device_state.open_contexts.lock().unwrap_or_else(PoisonError::into_inner).len();
        Ok(match &device_state.kind {
            DeviceKind::Shmem(channels) => channels.config(contexts),
            DeviceKind::Ethernet(channels) => channels.config(contexts),
            DeviceKind::Verbs(channels) => channels.config(contexts),
            DeviceKind::Composite(options) => options.config(contexts),
        })
    }

    /// Option bits.
    pub fn option_bits(&self) -> PmResult<u64> {
        Ok(self.config()?.option)
    }

    /// The node numbers of the device.
    pub fn node_list(&self) -> PmResult<Range<u32>> {
        Ok(0..self.config()?.nodes as u32)
    }

    /// Whether `node` can be reached. A composite reaches no node until its contexts have members.
    ///
    /// # Errors
    /// Invalid: no such node.
    pub fn is_reachable(&self, node: u32) -> PmResult<bool> {
        if !self.node_list()?.contains(&node) {
            return Err(Error::Invalid);
        }
        Ok(!matches!(self.state_if_open()?.kind, DeviceKind::Composite(_)))
    }

    /// The counters of `node`, summed over the channels in use.
    ///
    /// # Errors
    /// Invalid: no such node; on network devices also a node of another host. NoSys: the device is
    /// a composite.
    pub fn counters(&self, node: u32) -> PmResult<Counters> {
        match &self.state_if_open()?.kind {
            DeviceKind::Shmem(channels) => channels.counters(node as usize),
            DeviceKind::Ethernet(channels) => channels.counters(node),
            DeviceKind::Verbs(channels) => channels.counters(node),
            DeviceKind::Composite(_) => Err(Error::NoSys),
        }
    }

    /// Marks the process of `node` as exited. Messages that are queued for the process count as
    /// received. Sends to it are accepted and dropped from now on. Call this only after the process
    /// has ended. On network devices, [`Device::serve`] delivers the messages that it has sent.
    pub fn mark_exited(&self, node: u32) -> PmResult<()> {
        match &self.state_if_open()?.kind {
            DeviceKind::Shmem(channels) => channels.mark_exited(node as usize),
            DeviceKind::Ethernet(channels) => channels.mark_exited(node),
            DeviceKind::Verbs(channels) => channels.mark_exited(node),
            DeviceKind::Composite(_) => Err(Error::NoSys),
        }
    }

    /// For network devices: returns the addresses of the local nodes, in an opaque form.
    /// [`Device::set_peers`] takes the addresses of all hosts, joined in the order of their nodes.
    pub fn addresses(&self) -> PmResult<Vec<u8>> {
        on_network!(self.network()?, channels => channels.addresses())
    }

    /// For network devices: sets the addresses of all nodes. Call this before the first use of a
    /// context and the first attach descriptor. If all nodes are local, `open` sets them.
    ///
    /// # Errors
    /// Invalid: the numbers of addresses and nodes differ. Busy: the addresses were already set.
    pub fn set_peers(&self, table: &[u8]) -> PmResult<()> {
        on_network!(self.network()?, channels => channels.set_peers(table))
    }

    /// For network devices: marks a node of another host as exited. Sends to the node are accepted
    /// and dropped.
    pub fn peer_exited(&self, node: u32) -> PmResult<()> {
        on_network!(self.network()?, channels => channels.peer_exited(node))
    }

    /// For network devices: returns a descriptor that is readable when [`Device::serve`] has work
    /// to do.
    pub fn adopted_fd(&self) -> PmResult<BorrowedFd<'_>> {
        Ok(on_network!(self.network()?, channels => channels.adopted_fd()))
    }

    /// For network devices: continues to send the messages that exited processes have left. Never
    /// blocks.
    pub fn serve(&self) -> PmResult<()> {
        on_network!(self.network()?, channels => channels.serve());
        Ok(())
    }

    /// For network devices: whether all messages of the exited processes have arrived, or their
    /// receivers have exited.
    pub fn is_idle(&self) -> PmResult<bool> {
        Ok(on_network!(self.network()?, channels => channels.is_drained()))
    }

    /// For ethernet: one line of text for the user, if a link does not use the requested wire.
    pub fn wire_note(&self) -> PmResult<Option<String>> {
        match self.network()? {
            NetworkChannels::Ethernet(channels) => Ok(channels.note()),
            NetworkChannels::Verbs(_) => Ok(None),
        }
    }

    /// For network devices: the wire of each link, as text for the user.
    pub fn wires(&self) -> PmResult<String> {
        match self.network()? {
            NetworkChannels::Ethernet(channels) => Ok(channels.describe_wires()),
            NetworkChannels::Verbs(channels) => Ok(channels.describe()),
        }
    }
}
