//! A segment: the memory that the processes of one channel share.

// UNSAFETY: forms addresses inside a mapping that other processes write.
#![expect(unsafe_code)]

pub mod attach;
pub(crate) mod layout;

use crate::error::{Error, PmResult, from_io};
use crate::ring::Ring;
use crate::rma::ArenaFile;
use crate::shared_memory::{map, open_sealed};
use crate::sync::{AtomicU64, Ordering};
use attach::AttachMessage;
use layout::{
    Activation, CacheAligned, MAGIC, NodeRecord, RegionTable, SegmentGeometry, SegmentHeader,
};
use memmap2::MmapRaw;
use score_sys::memfd;
use score_sys::random::random_bytes;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The kind of message in a ring. Each kind has an activation bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingKind {
    Message = 0,
    Control = 1,
}

/// A mapped segment. Its addresses stay valid as long as it lives.
pub(crate) struct Segment {
    map: MmapRaw,
    geometry: SegmentGeometry,
    nonce: [u64; 2],
    memfd: OwnedFd,
    /// The file with the arenas. None: this process may not have such a file.
    arena: Option<Arc<ArenaFile>>,
}

impl Segment {
    /// Creates a segment with this geometry.
    pub(crate) fn create(geometry: SegmentGeometry) -> PmResult<Segment> {
        let memfd = memfd::create_sealed("score-pm", geometry.size as u64).map_err(from_io)?;
        let map = map(memfd.as_fd(), geometry.size)?;
        let arena = ArenaFile::create(geometry.nodes)?.map(Arc::new);
        let segment = Segment { map, geometry, nonce: new_nonce()?, memfd, arena };
        let header = segment.header();
        header.nodes.store(geometry.nodes as u64, Ordering::Relaxed);
        header.size.store(geometry.size as u64, Ordering::Relaxed);
        for (word, value) in header.nonce.iter().zip(segment.nonce) {
            word.store(value, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps a segment of another process. Invalid: the segment differs from the description in
    /// `attach`.
    pub(crate) fn open(
        memfd: OwnedFd,
        arena: Option<OwnedFd>,
        attach: &AttachMessage,
    ) -> PmResult<Segment> {
        let AttachMessage { geometry, nonce, .. } = *attach;
        let size = geometry.size;
        let map = open_sealed(&memfd, size)?;
        let arena = arena.map(|memfd| ArenaFile::open(memfd, geometry.nodes)).transpose()?;
        let segment = Segment { map, geometry, nonce, memfd, arena: arena.map(Arc::new) };
        let header = segment.header();
        let is_valid = header.magic.load(Ordering::Acquire) == MAGIC
            && header.nodes.load(Ordering::Relaxed) == attach.geometry.nodes as u64
            && header.size.load(Ordering::Relaxed) == size as u64
            && header
                .nonce
                .iter()
                .zip(attach.nonce)
                .all(|(word, value)| word.load(Ordering::Relaxed) == value);
        if is_valid { Ok(segment) } else { Err(Error::Invalid) }
    }

    pub(crate) fn geometry(&self) -> &SegmentGeometry {
        &self.geometry
    }

    pub(crate) fn nonce(&self) -> [u64; 2] {
        self.nonce
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// Memory that all of the job's processes on this host share.
    pub(crate) fn arena(&self) -> Option<&Arc<ArenaFile>> {
        self.arena.as_ref()
    }

    fn ptr_at<T>(&self, offset: usize) -> NonNull<T> {
        assert!(offset + size_of::<T>() <= self.geometry.size);
        // SAFETY: inside the mapping, which is not null.
        unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(offset)).cast() }
    }

    fn header(&self) -> &SegmentHeader {
        // SAFETY: the header page; only atomics are read.
        unsafe { self.ptr_at::<SegmentHeader>(0).as_ref() }
    }

    /// A node's counters and receiver state.
    pub(crate) fn node(&self, node: usize) -> &NodeRecord {
        assert!(node < self.geometry.nodes);
        // SAFETY: a record inside the mapping, by the geometry; only atomics.
        unsafe { self.ptr_at::<NodeRecord>(self.geometry.node_offset(node)).as_ref() }
    }

    /// The locked regions of `node`.
    pub(crate) fn regions(&self, node: usize) -> &RegionTable {
        assert!(node < self.geometry.nodes);
        // SAFETY: a record inside the mapping, by the geometry; only atomics.
        unsafe { self.ptr_at::<RegionTable>(self.geometry.regions_offset(node)).as_ref() }
    }

    /// A count that advances when a source of `node` is added.
    pub(crate) fn generation(&self, node: usize, kind: RingKind) -> &AtomicU64 {
        assert!(node < self.geometry.nodes);
        // SAFETY: as `node`.
        let activation =
            unsafe { self.ptr_at::<Activation>(self.geometry.activation_offset(node)).as_ref() };
        let CacheAligned(generation) = &activation.generation;
        &generation[kind as usize]
    }

    /// The bitmap of the sources that have ever sent to `node`.
    pub(crate) fn sources(&self, node: usize, kind: RingKind) -> &[AtomicU64] {
        assert!(node < self.geometry.nodes);
        let words = self.geometry.bitmap_words();
        let offset = self.geometry.activation_offset(node) + size_of::<Activation>();
        let first = self.ptr_at::<AtomicU64>(offset + kind as usize * words * 8);
        // SAFETY: the bitmaps follow the header, inside the mapping; only atomics.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), words) }
    }

    /// Sets the activation bit that announces `from` to `to` as a sender. It must be set before the
    /// first message.
    pub(crate) fn activate(&self, from: usize, to: usize, kind: RingKind) {
        let bit = 1 << (from % 64);
        let previous = self.sources(to, kind)[from / 64].fetch_or(bit, Ordering::AcqRel);
        if previous & bit == 0 {
            // SYNC: activation
            self.generation(to, kind).fetch_add(1, Ordering::Release);
        }
    }

    /// The sources of `node` in the current bitmap, below the number of nodes.
    pub(crate) fn active_sources(
        &self,
        node: usize,
        kind: RingKind,
    ) -> impl Iterator<Item = usize> + '_ {
        let nodes = self.geometry.nodes;
        self.sources(node, kind)
            .iter()
            .enumerate()
            .flat_map(|(i, word)| {
                // SYNC: activation
                let bits = word.load(Ordering::Acquire);
                (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| i * 64 + bit)
            })
            .filter(move |&source| source < nodes)
    }

    /// The ring from one node to another. Reading it allocates its pages: see `active_sources`.
    pub(crate) fn ring(&self, from: usize, to: usize, kind: RingKind) -> Ring {
        assert!(from < self.geometry.nodes && to < self.geometry.nodes);
        let (offset, geometry) = match kind {
            RingKind::Message => (self.geometry.ring_offset(from, to), self.geometry.ring),
            RingKind::Control => (self.geometry.control_offset(from, to), self.geometry.control),
        };
        assert!(offset + geometry.bytes() <= self.geometry.size);
        // SAFETY: the ring's part of the mapping by the geometry, aligned to 128; rings are
        // accessed through the ends' types only, and each owner of an end owns the segment too.
        unsafe { Ring::new(self.ptr_at(offset), geometry) }
    }
}

/// A random number that identifies a segment.
pub(crate) fn new_nonce() -> PmResult<[u64; 2]> {
    let bytes: [u8; 16] = random_bytes().map_err(|_| Error::Io)?;
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
    Ok([word(0), word(1)])
}
