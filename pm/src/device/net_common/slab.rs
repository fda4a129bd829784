//! The slab is memory of the job's processes on one host for one channel. The owner creates it. It
//! contains counters and receiver states, as a shmem segment does. It also contains the send
//! buffers of each process, so that a sent message outlives its sender.
//!
//! A slot is *free* or *published*, and one store changes its state. Only the slot's process writes
//! to the slot or, after the process has exited, the owner that adopts the slot. Neither of them
//! trusts the contents.

// UNSAFETY: computes addresses inside a mapping to which other processes write.
#![expect(unsafe_code)]

use super::indices::{LocalIndex, SlotIndex};
use super::layout::{
    CONTROL_QUEUE_LEN, ControlQueue, ControlSlot, LocalNodeRecord, MAGIC, SEQUENCE_ASSIGNED,
    SendSlotHeader, SendSlotState, SlabGeometry, SlabHeader,
};
use crate::config::CONTROL_MTU;
use crate::error::{Error, PmResult, from_io};
use crate::segment::new_nonce;
use crate::shared_memory::{map, open_sealed};
use crate::sync::{AtomicU64, Ordering};
use memmap2::MmapRaw;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// A mapped slab. Its addresses are valid as long as this value lives.
pub(crate) struct Slab {
    map: MmapRaw,
    geometry: SlabGeometry,
    nonce: [u64; 2],
    memory: OwnedFd,
}

/// The sequence number of a message or packet among those to one node. The numbers wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceNumber(pub(crate) u32);

impl SequenceNumber {
    #[inline(always)]
    pub(crate) fn next(self) -> SequenceNumber {
        SequenceNumber(self.0.wrapping_add(1))
    }
}

/// The content of a slot as its sender has published it. It is not validated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishedMessage {
    pub(crate) to: u32,
    /// If the message has no sequence number: its position among the messages to that node.
    pub(crate) order: u32,
    /// The sequence number of the message. The engine assigns it when it takes the message.
    pub(crate) sequence: Option<SequenceNumber>,
    pub(crate) published: SendSlotState,
}

impl Slab {
    pub(crate) fn create(geometry: SlabGeometry) -> PmResult<Slab> {
        let memory = score_sys::memfd::create_sealed("score-pm-slab", geometry.size as u64)
            .map_err(from_io)?;
        let map = map(memory.as_fd(), geometry.size)?;
        let slab = Slab { map, geometry, nonce: new_nonce()?, memory };
        let header = slab.header();
        header.size.store(geometry.size as u64, Ordering::Relaxed);
        for (word, value) in header.nonce.iter().zip(slab.nonce) {
            word.store(value, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok(slab)
    }

    /// Maps the slab of another process. Returns `Invalid` if it does not match the attach message.
    pub(crate) fn open(memory: OwnedFd, geometry: SlabGeometry, nonce: [u64; 2]) -> PmResult<Slab> {
        let map = open_sealed(&memory, geometry.size)?;
        let slab = Slab { map, geometry, nonce, memory };
        let header = slab.header();
        let same = header.magic.load(Ordering::Acquire) == MAGIC
            && header.size.load(Ordering::Relaxed) == geometry.size as u64
            && header
                .nonce
                .iter()
                .zip(nonce)
                .all(|(word, value)| word.load(Ordering::Relaxed) == value);
        if same { Ok(slab) } else { Err(Error::Invalid) }
    }

    pub(crate) fn geometry(&self) -> &SlabGeometry {
        &self.geometry
    }

    pub(crate) fn nonce(&self) -> [u64; 2] {
        self.nonce
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// # Safety
    /// `offset` must be an offset that the geometry computes for an existing local index, node or
    /// slot.
    #[inline(always)]
    unsafe fn ptr_at<T>(&self, offset: usize) -> NonNull<T> {
        debug_assert!(offset + size_of::<T>() <= self.geometry.size);
        // SAFETY: the address is not null, and inside the mapping, which has the size of the
        // geometry.
        unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(offset)).cast() }
    }

    #[inline(always)]
    fn header(&self) -> &SlabHeader {
        // SAFETY: this is the header page, and only its atomics are accessed.
        unsafe { self.ptr_at::<SlabHeader>(0).as_ref() }
    }

    /// The number of nodes that were marked as exited.
    #[inline(always)]
    pub(crate) fn exited_count(&self) -> &AtomicU64 {
        &self.header().exited_count
    }

    /// Whether `node` was marked as exited.
    pub(crate) fn is_exited(&self, node: u32) -> bool {
        assert!(node < self.geometry.nodes);
        // SAFETY: the geometry keeps the word inside the mapping, and the word is atomic.
        let word =
            unsafe { self.ptr_at::<AtomicU64>(self.geometry.exited_word_offset(node)).as_ref() };
        // SYNC: exited-node
        word.load(Ordering::Acquire) >> (node % 64) & 1 != 0
    }

    /// Marks a node as exited. Called by the owner.
    pub(crate) fn set_exited(&self, node: u32) {
        assert!(node < self.geometry.nodes);
        // SAFETY: as in `is_exited`.
        let word =
            unsafe { self.ptr_at::<AtomicU64>(self.geometry.exited_word_offset(node)).as_ref() };
        let bit = 1 << (node % 64);
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            // SYNC: exited-node
            self.exited_count().fetch_add(1, Ordering::Release);
        }
    }

    /// Returns a local node's counters, receiver state and control queue.
    #[inline(always)]
    pub(crate) fn record(&self, local_index: LocalIndex) -> &LocalNodeRecord {
        assert!(local_index.0 < self.geometry.local_nodes);
        // SAFETY: the geometry keeps the record inside the mapping, and it contains only atomics.
        unsafe { self.ptr_at::<LocalNodeRecord>(self.geometry.record_offset(local_index)).as_ref() }
    }

    /// For verbs: the number of messages that the process at `local_index` has accepted from
    /// `source`.
    #[inline(always)]
    pub(crate) fn accepted(&self, local_index: LocalIndex, source: u32) -> &AtomicU64 {
        self.pair_counter(local_index, source)
    }

    /// For ethernet: the sequence number of the next packet from the process at `local_index` to
    /// `to`.
    pub(crate) fn next_sequence(&self, local_index: LocalIndex, to: u32) -> &AtomicU64 {
        self.pair_counter(local_index, to)
    }

    #[inline(always)]
    fn pair_counter(&self, local_index: LocalIndex, peer: u32) -> &AtomicU64 {
        assert!(local_index.0 < self.geometry.local_nodes && peer < self.geometry.nodes);
        // SAFETY: the geometry keeps the word inside the mapping, and the word is atomic.
        unsafe {
            self.ptr_at::<AtomicU64>(self.geometry.pair_counter_offset(local_index, peer)).as_ref()
        }
    }

    #[inline(always)]
    fn slot_header(&self, local_index: LocalIndex, slot: SlotIndex) -> &SendSlotHeader {
        assert!(self.geometry.contains_slot(local_index, slot));
        // SAFETY: the geometry keeps the slot inside the mapping, and it contains only atomics.
        unsafe {
            self.ptr_at::<SendSlotHeader>(self.geometry.slot_offset(local_index, slot)).as_ref()
        }
    }

    /// Returns the offset of a slot's payload in the slab.
    #[inline(always)]
    pub(crate) fn payload_offset(&self, local_index: LocalIndex, slot: SlotIndex) -> usize {
        assert!(self.geometry.contains_slot(local_index, slot));
        self.geometry.frame_offset(local_index, slot)
    }

    /// Returns the address of a slot's payload.
    #[inline(always)]
    pub(crate) fn payload(&self, local_index: LocalIndex, slot: SlotIndex) -> *mut u8 {
        // SAFETY: the geometry keeps the frame inside the mapping.
        unsafe { self.ptr_at(self.payload_offset(local_index, slot)).as_ptr() }
    }

    /// Writes a short message to a slot's frame.
    pub(crate) fn write(&self, local_index: LocalIndex, slot: SlotIndex, message: &[u8]) {
        let len = message.len().min(self.geometry.mtu);
        // SAFETY: the frame has `mtu` bytes, and belongs to the caller until the caller publishes
        // the slot.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), self.payload(local_index, slot), len);
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: offset 0 is the header page.
        unsafe { self.ptr_at(0) }
    }

    /// Publishes the message in the slot's frame.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        local_index: LocalIndex,
        slot: SlotIndex,
        content: PublishedMessage,
    ) {
        let header = self.slot_header(local_index, slot);
        header.to.store(content.to, Ordering::Relaxed);
        header.send_order.store(content.order, Ordering::Relaxed);
        let sequence_flag = if content.sequence.is_some() { SEQUENCE_ASSIGNED } else { 0 };
        header.sequence.store(content.sequence.unwrap_or_default().0, Ordering::Relaxed);
        // SYNC: slab-slot (an owner that adopts the slot sees its contents)
        header.state.store(content.published.word() | sequence_flag, Ordering::Release);
    }

    /// Stores the sequence number of a published message.
    #[inline(always)]
    pub(crate) fn set_sequence(
        &self,
        local_index: LocalIndex,
        slot: SlotIndex,
        sequence: SequenceNumber,
    ) {
        let header = self.slot_header(local_index, slot);
        header.sequence.store(sequence.0, Ordering::Relaxed);
        let word = header.state.load(Ordering::Relaxed);
        // SYNC: slab-slot
        header.state.store(word | SEQUENCE_ASSIGNED, Ordering::Release);
    }

    /// Replaces the state of a published slot that has its sequence number.
    pub(crate) fn replace(
        &self,
        local_index: LocalIndex,
        slot: SlotIndex,
        published: SendSlotState,
    ) {
        // SYNC: slab-slot
        self.slot_header(local_index, slot)
            .state
            .store(published.word() | SEQUENCE_ASSIGNED, Ordering::Release);
    }

    /// Frees the slot. Called when its message was acknowledged or dropped.
    #[inline(always)]
    pub(crate) fn free(&self, local_index: LocalIndex, slot: SlotIndex) {
        self.slot_header(local_index, slot).state.store(0, Ordering::Release);
    }

    /// Whether any message of the process at `local_index` is not acknowledged.
    pub(crate) fn has_unacked(&self, local_index: LocalIndex) -> bool {
        self.geometry.slot_indices().any(|slot| self.content(local_index, slot).is_some())
    }

    /// Returns the published message in a slot, or None if the slot is free.
    pub(crate) fn content(
        &self,
        local_index: LocalIndex,
        slot: SlotIndex,
    ) -> Option<PublishedMessage> {
        let header = self.slot_header(local_index, slot);
        // SYNC: slab-slot
        let word = header.state.load(Ordering::Acquire);
        let published = SendSlotState::from_word(word)?;
        let to = header.to.load(Ordering::Relaxed);
        let order = header.send_order.load(Ordering::Relaxed);
        let sequence = SequenceNumber(header.sequence.load(Ordering::Relaxed));
        let sequence = (word & SEQUENCE_ASSIGNED != 0).then_some(sequence);
        Some(PublishedMessage { to, order, sequence, published })
    }
}

impl ControlQueue {
    /// Queues a control message. Called by the owner. Returns `NoBuffers` if the process has to
    /// send earlier control messages first.
    pub(crate) fn push(&self, to: u32, message: &[u8]) -> PmResult<()> {
        let write_index = self.write_index.0.load(Ordering::Relaxed);
        if write_index.wrapping_sub(self.read_index.0.load(Ordering::Acquire))
            >= CONTROL_QUEUE_LEN as u64
        {
            return Err(Error::NoBuffers);
        }
        let slot = &self.slots[write_index as usize % CONTROL_QUEUE_LEN];
        slot.to.store(to, Ordering::Relaxed);
        slot.len.store(message.len() as u32, Ordering::Relaxed);
        for (word, bytes) in slot.words.iter().zip(message.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        // SYNC: control-queue
        self.write_index.0.store(write_index.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Whether no control message waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.write_index.0.load(Ordering::Relaxed) == self.read_index.0.load(Ordering::Relaxed)
    }

    /// Returns the receiver, the bytes and the length of the next control message. The length is
    /// limited to `CONTROL_MTU`. Called by the process.
    pub(crate) fn peek(&self) -> Option<(u32, [u8; CONTROL_MTU], usize)> {
        let read_index = self.read_index.0.load(Ordering::Relaxed);
        // SYNC: control-queue
        if self.write_index.0.load(Ordering::Acquire) == read_index {
            return None;
        }
        let slot: &ControlSlot = &self.slots[read_index as usize % CONTROL_QUEUE_LEN];
        let mut bytes = [0; CONTROL_MTU];
        for (eight, word) in bytes.chunks_exact_mut(8).zip(&slot.words) {
            eight.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let len = (slot.len.load(Ordering::Relaxed) as usize).min(CONTROL_MTU);
        Some((slot.to.load(Ordering::Relaxed), bytes, len))
    }

    /// Removes the message that `peek` has returned. Called by the process.
    pub(crate) fn pop(&self) {
        let read_index = self.read_index.0.load(Ordering::Relaxed);
        self.read_index.0.store(read_index.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_pm_reliability::packet_header::PacketKind;

    fn slab() -> Slab {
        Slab::create(SlabGeometry::new(6, 2..5, 1400).unwrap()).unwrap()
    }

    #[test]
    fn a_slab_is_mapped_again_with_its_geometry_and_nonce_only() {
        let slab = slab();
        let copy = || slab.memory().try_clone_to_owned().unwrap();
        let other = Slab::open(copy(), *slab.geometry(), slab.nonce()).unwrap();
        let published = SendSlotState { len: 9, kind: PacketKind::Data, ordered_after_rma: true };
        let (node, slot) = (LocalIndex(1), SlotIndex(3));
        let content = PublishedMessage { to: 5, order: 2, sequence: None, published };
        slab.publish(node, slot, content);
        assert_eq!(other.content(node, slot), Some(content));
        let sequence = SequenceNumber(7);
        slab.set_sequence(node, slot, sequence);
        assert_eq!(
            other.content(node, slot),
            Some(PublishedMessage { sequence: Some(sequence), ..content })
        );
        assert_eq!(other.content(LocalIndex(0), slot), None);
        other.free(node, slot);
        assert_eq!(slab.content(node, slot), None);
        assert!(Slab::open(copy(), *slab.geometry(), [0, 0]).is_err());
        let larger = SlabGeometry::new(6, 2..6, 1400).unwrap();
        assert!(Slab::open(copy(), larger, slab.nonce()).is_err());
    }

    #[test]
    fn a_node_is_marked_as_exited_once() {
        let slab = slab();
        assert!(!slab.is_exited(5));
        slab.set_exited(5);
        slab.set_exited(5);
        assert!(slab.is_exited(5) && !slab.is_exited(4));
        assert_eq!(slab.exited_count().load(Ordering::Relaxed), 1);
    }

    #[test]
    fn control_messages_wait_in_order_until_the_queue_is_full() {
        let slab = slab();
        let control_queue = &slab.record(LocalIndex(1)).control_queue;
        assert!(control_queue.peek().is_none());
        for i in 0..CONTROL_QUEUE_LEN as u32 {
            control_queue.push(i, &[i as u8 + 1; 13]).unwrap();
        }
        assert_eq!(control_queue.push(0, b"x"), Err(Error::NoBuffers));
        for i in 0..CONTROL_QUEUE_LEN as u32 {
            let (to, bytes, len) = control_queue.peek().unwrap();
            assert_eq!((to, &bytes[..len]), (i, &[i as u8 + 1; 13][..]));
            control_queue.pop();
        }
        control_queue.push(0, b"x").unwrap();
    }
}
