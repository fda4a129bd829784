//! Blocking receive: one descriptor for all members.

#![forbid(unsafe_code)]

use super::Composite;
use super::routing_table::RoutingTable;
use crate::debug;
use crate::device::{EndpointRef, ReadySource, SelectInterface, on};
use crate::error::{Error, PmResult, from_errno};
use crate::sync::SingleWriterU64;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(super) struct CompositeSelectState {
    /// The epoll set. It is created with the composite, while few descriptors are open, because
    /// `select` needs a small number.
    epoll: Epoll,
    /// Whether the members' doorbells are in the epoll set.
    has_members_registered: SingleWriterU64,
    is_selecting: SingleWriterU64,
}

impl CompositeSelectState {
    pub(super) fn new() -> PmResult<CompositeSelectState> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        Ok(CompositeSelectState {
            epoll,
            has_members_registered: SingleWriterU64::default(),
            is_selecting: SingleWriterU64::default(),
        })
    }

    #[inline(always)]
    pub(super) fn is_selecting(&self) -> bool {
        self.is_selecting.get() != 0
    }

    fn register(&self, member: EndpointRef<'_>) -> PmResult<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let add = |doorbell_fd: BorrowedFd<'_>| match self.epoll.add(doorbell_fd, event) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(from_errno(errno)),
        };
        on!(member, e => e.with_doorbell_fd(add))
    }

    /// Registers all members, at the first call.
    fn register_all(&self, routing: &RoutingTable) -> PmResult<()> {
        if self.has_members_registered.get() == 0 {
            routing.members().try_for_each(|(_, member)| self.register(member))?;
            self.has_members_registered.set(1);
        }
        Ok(())
    }

    /// Registers a member that was added.
    pub(super) fn on_member_added(&self, member: EndpointRef<'_>) -> PmResult<()> {
        if self.has_members_registered.get() != 0 {
            self.register(member)?;
        }
        if self.is_selecting() {
            on!(member, e => e.before_select())?;
        }
        Ok(())
    }

    /// Unregisters a member that was removed.
    pub(super) fn on_member_removed(&self, member: EndpointRef<'_>) {
        on!(member, e => e.after_select());
        if self.has_members_registered.get() != 0 {
            let delete =
                |doorbell_fd: BorrowedFd<'_>| self.epoll.delete(doorbell_fd).map_err(from_errno);
            let _ = on!(member, e => e.with_doorbell_fd(delete));
        }
    }
}

impl Composite {
    /// The descriptor for `select`. NoMemory: the descriptor's number does not fit into an `fd_set`
    /// of `select`.
    pub(crate) fn fd(&self) -> PmResult<RawFd> {
        let fd = self.select.epoll.0.as_raw_fd();
        if fd as usize >= libc::FD_SETSIZE {
            debug::log(debug::ERROR, || {
                format!(
                    "composite: descriptor {fd} is beyond FD_SETSIZE; open the composite earlier"
                )
            });
            return Err(Error::NoMemory);
        }
        self.select.register_all(&self.routing)?;
        Ok(fd)
    }

    pub(crate) fn before_select(&self) -> PmResult<()> {
        self.select.register_all(&self.routing)?;
        self.select.is_selecting.set(1);
        self.routing.members().try_for_each(|(_, member)| on!(member, e => e.before_select()))
    }

    pub(crate) fn after_select(&self) {
        self.select.is_selecting.set(0);
        self.routing.members().for_each(|(_, member)| on!(member, e => e.after_select()));
    }

    #[inline(always)]
    pub(crate) fn is_selecting(&self) -> bool {
        self.select.is_selecting()
    }

    /// Rearms and polls the members in turn until one has a message. If no member has one, all are
    /// armed.
    pub(crate) fn rearm_and_rescan(&self) -> Option<ReadySource> {
        self.routing.members().find_map(|(member_index, member)| {
            let source = on!(member, e => e.rearm_and_rescan())?;
            Some(ReadySource::new(member_index, source))
        })
    }
}
