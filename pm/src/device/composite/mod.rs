//! The composite device: no medium of its own, but a table that says by which member context a
//! node is reached (manual 1.2.5). One indexed look-up for each message.

// UNSAFETY: keeps pointers to its members' endpoints beside the references that keep these.
#![expect(unsafe_code)]

pub(crate) mod config;
mod control;
mod member;
pub(crate) mod open;
mod receive;
mod remote;
mod select;
mod send;
mod state;

use super::shmem::Target;
use super::{Capabilities, Found, Transport};
use crate::config::{ContextConfig, QueueStatus};
use crate::error::{Error, Result};
use crate::remote::{Arena, Direction, Number, Operation, Region};
use crate::sync::{AtomicPtr, AtomicU64, Local, Ordering};
use config::MEMBERS;
pub(crate) use member::Member;
pub(crate) use receive::Glance;
use std::io::Write;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// No own node is set.
const UNSET: u64 = u64::MAX;

/// The composite part of a context.
pub(crate) struct Composite {
    number: usize,
    own: Local,
    /// For each node 0, or an [`open::Entry`].
    table: Box<[AtomicU64]>,
    /// For each node that shmem reaches, the way to it: short messages need no more than this.
    direct: Box<[AtomicPtr<Target>]>,
    /// The members' endpoints.
    members: [member::Place; MEMBERS],
    /// Above the highest member.
    count: Local,
    /// Option bits of all members together.
    options: Local,
    roll: Mutex<open::Roll>,
    send: send::Sender,
    receive: receive::Receiver,
    select: select::Sleeper,
}

impl Composite {
    pub(crate) fn new(number: usize, nodes: usize) -> Result<Composite> {
        Ok(Composite {
            number,
            own: Local::new(UNSET),
            table: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            direct: (0..nodes).map(|_| AtomicPtr::new(null_mut())).collect(),
            members: std::array::from_fn(|_| member::Place::empty()),
            count: Local::default(),
            options: Local::default(),
            roll: Mutex::default(),
            send: send::Sender::new(nodes),
            receive: receive::Receiver::default(),
            select: select::Sleeper::new()?,
        })
    }

    #[inline(always)]
    fn member(&self, member: u64) -> Option<Member<'_>> {
        // SAFETY: an endpoint of a context whose reference is in the roll, which drops none
        // before `self` is dropped.
        unsafe { self.members.get(member as usize)?.get() }
    }

    /// The way to `node`, if it is a direct one.
    #[inline(always)]
    fn direct(&self, node: u32) -> Option<&Target> {
        // SYNC: member
        let target = self.direct.get(node as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint that `member` could answer.
        unsafe { target.as_ref() }
    }

    fn members(&self) -> impl Iterator<Item = (u64, Member<'_>)> {
        (0..self.count.get()).filter_map(|m| Some((m, self.member(m)?)))
    }

    fn smallest_mtu(&self) -> Option<usize> {
        self.members().map(|(_, member)| member.largest()).min()
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: Self::KIND,
            number: self.number,
            nodes: self.table.len(),
            mtu: self.smallest_mtu().unwrap_or(0),
            size: self.members().map(|(_, member)| member.size()).sum(),
            option: self.options.get(),
        }
    }
}

impl Transport for Composite {
    const KIND: &'static str = "composite";
    const CAPABILITIES: Capabilities = Capabilities { routes: true, member: false };

    fn own(&self) -> Result<u32> {
        let own = self.own.get();
        if own == UNSET { Err(Error::Invalid) } else { Ok(own as u32) }
    }
    fn mtu(&self, node: u32) -> Result<usize> {
        if u64::from(node) == self.own.get() {
            return self.smallest_mtu().ok_or(Error::Invalid);
        }
        let (_, member, there) = self.route(node)?;
        member.mtu(there)
    }
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        self.reserve_one(node, len)
    }
    fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        self.reserve_all(nodes, len)
    }
    fn truncate(&self, len: usize) -> Result<()> {
        self.truncate_pending(len)
    }
    #[inline(always)]
    fn publish(&self) {
        self.publish_pending();
    }
    #[inline(always)]
    fn find(&self) -> Option<Found> {
        self.find_in_members()
    }
    #[inline(always)]
    fn take(&self, found: Found) -> Result<(*mut u8, usize)> {
        self.take_from_member(found)
    }
    #[inline(always)]
    fn release(&self) {
        self.release_held();
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        self.members().for_each(|(_, member)| member.count_empty_poll());
    }
    fn oversubscribed(&self) -> bool {
        self.members().any(|(_, member)| member.oversubscribed())
    }
    fn has_moved(&self) -> bool {
        self.members().any(|(_, member)| member.has_moved())
    }
    fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        let (_, member, to) = self.route(node)?;
        member.control_send(to, message)
    }
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        self.control_from_members(buffer, len)
    }
    fn fd(&self) -> Result<RawFd> {
        self.epoll_fd()
    }
    fn before_select(&self) -> Result<()> {
        self.arm()
    }
    fn after_select(&self) {
        self.disarm();
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.select.is_selecting()
    }
    fn look_again(&self) -> Option<Found> {
        self.look_again_in_members()
    }
    fn is_send_done(&self) -> Result<()> {
        self.members().try_for_each(|(_, member)| member.is_send_done())
    }
    fn queue_status(&self, held: bool) -> QueueStatus {
        self.sum_of_queues(held)
    }
    fn reset(&self) {
        self.members().for_each(|(_, member)| member.reset());
    }
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        self.save_members(out);
        Ok(())
    }
    fn restore(&self, saved: &[u8]) -> Result<()> {
        self.restore_members(saved)
    }
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.dump_members(out)
    }
    #[inline]
    fn options(&self) -> u64 {
        self.options.get()
    }
    fn ways(&self, node: Option<u32>) -> Result<u32> {
        self.ways_to(node)
    }
    fn publish_region(&self, way: usize, region: &Region) -> Result<()> {
        self.member(way as u64).ok_or(Error::Invalid)?.publish_region(region)
    }
    fn withdraw_region(&self, way: usize, number: Number) {
        if let Some(member) = self.member(way as u64) {
            member.withdraw_region(number);
        }
    }
    #[inline]
    fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        let (_, member, there) = self.route(node)?;
        member.remote(there, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> Result<()> {
        self.is_done_on_members(direction)
    }
    fn arena(&self) -> Option<Arc<Arena>> {
        self.members().find_map(|(_, member)| member.arena())
    }
}
