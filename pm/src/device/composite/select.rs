//! Blocking receive: one descriptor for all members.

#![forbid(unsafe_code)]

use super::{Composite, Member};
use crate::debug;
use crate::device::Found;
use crate::error::{Error, Result};
use crate::segment::from_errno;
use crate::sync::Local;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub(super) struct Sleeper {
    /// Made with the composite, early in the process's life: its number has to be small.
    epoll: Epoll,
    /// The members' bells are in the epoll set.
    given: Local,
    selecting: Local,
}

impl Sleeper {
    pub(super) fn new() -> Result<Sleeper> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
        Ok(Sleeper { epoll, given: Local::default(), selecting: Local::default() })
    }

    #[inline(always)]
    pub(super) fn is_selecting(&self) -> bool {
        self.selecting.get() != 0
    }

    fn register(&self, member: Member<'_>) -> Result<()> {
        member.with_bell(|bell: BorrowedFd<'_>| {
            match self.epoll.add(bell, EpollEvent::new(EpollFlags::EPOLLIN, 0)) {
                Ok(()) | Err(Errno::EEXIST) => Ok(()),
                Err(errno) => Err(from_errno(errno)),
            }
        })
    }

    /// A context becomes a member.
    pub(super) fn member_comes(&self, member: Member<'_>) -> Result<()> {
        if self.given.get() != 0 {
            self.register(member)?;
        }
        if self.is_selecting() {
            member.before_select()?;
        }
        Ok(())
    }

    /// A member goes.
    pub(super) fn member_goes(&self, member: Member<'_>) {
        member.after_select();
        if self.given.get() != 0 {
            let _ = member.with_bell(|bell| self.epoll.delete(bell).map_err(from_errno));
        }
    }
}

impl Composite {
    /// NoMemory: the descriptor's number is beyond what `select` can hold.
    pub(super) fn epoll_fd(&self) -> Result<RawFd> {
        let fd = self.select.epoll.0.as_raw_fd();
        if fd as usize >= libc::FD_SETSIZE {
            debug::say(debug::ERROR, || {
                format!("composite: descriptor {fd} is beyond FD_SETSIZE; open fewer files before")
            });
            return Err(Error::NoMemory);
        }
        self.register_all()?;
        Ok(fd)
    }

    fn register_all(&self) -> Result<()> {
        if self.select.given.get() == 0 {
            self.members().try_for_each(|(_, member)| self.select.register(member))?;
            self.select.given.set(1);
        }
        Ok(())
    }

    pub(super) fn arm(&self) -> Result<()> {
        self.register_all()?;
        self.select.selecting.set(1);
        self.members().try_for_each(|(_, member)| member.before_select())
    }

    pub(super) fn disarm(&self) {
        self.select.selecting.set(0);
        self.members().for_each(|(_, member)| member.after_select());
    }

    /// Every member up to the first that has something: when none has, all are armed.
    pub(super) fn look_again_in_members(&self) -> Option<Found> {
        self.members().find_map(|(place, member)| {
            let source = member.look_again()?;
            Some(Found { member: place as u32, source })
        })
    }
}
