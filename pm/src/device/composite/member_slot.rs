//! A composite's reference to a member's endpoint. It is one tagged pointer, so that any thread may
//! read it at any time.

// UNSAFETY: keeps and follows tagged pointers to endpoints.
#![expect(unsafe_code)]

use crate::device::EndpointRef;
use crate::device::ethernet::EthernetEndpoint;
use crate::device::shmem::ShmemEndpoint;
use crate::device::verbs::VerbsEndpoint;
use crate::sync::{AtomicPtr, Ordering};
use std::ptr::{self, null_mut};

/// Tags in pointers to endpoints of ethernet and verbs. A pointer to a shmem endpoint has no tag.
/// The alignment of all endpoints leaves room for the tags.
const TAG_ETHERNET: usize = 1;
const TAG_VERBS: usize = 2;
const TAG_MASK: usize = TAG_ETHERNET | TAG_VERBS;

const _: () = assert!(align_of::<ShmemEndpoint>() > TAG_MASK);
const _: () = assert!(align_of::<EthernetEndpoint>() > TAG_MASK);
const _: () = assert!(align_of::<VerbsEndpoint>() > TAG_MASK);

/// A slot for a member, possibly empty.
pub(super) struct MemberSlot(AtomicPtr<u8>);

impl MemberSlot {
    pub(super) fn empty() -> MemberSlot {
        MemberSlot(AtomicPtr::new(null_mut()))
    }

    /// Sets or clears the member. The caller keeps the member's endpoint as long as the slot may be
    /// read.
    pub(super) fn set(&self, member: Option<EndpointRef<'_>>) {
        let pointer = match member {
            None => null_mut(),
            Some(EndpointRef::Shmem(endpoint)) => ptr::from_ref(endpoint).cast_mut().cast::<u8>(),
            Some(EndpointRef::Ethernet(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|addr| addr | TAG_ETHERNET)
            }
            Some(EndpointRef::Verbs(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|addr| addr | TAG_VERBS)
            }
        };
        // SYNC: member
        self.0.store(pointer, Ordering::Release);
    }

    /// # Safety
    /// The endpoint that was set still exists.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Option<EndpointRef<'_>> {
        // SYNC: member
        let pointer = self.0.load(Ordering::Acquire);
        if pointer.is_null() {
            return None;
        }
        let tag = pointer.addr() & TAG_MASK;
        if tag == 0 {
            // SAFETY: set from a shmem endpoint, which still exists by the caller's promise.
            return Some(EndpointRef::Shmem(unsafe { &*pointer.cast() }));
        }
        let pointer = pointer.map_addr(|addr| addr & !TAG_MASK);
        if tag == TAG_ETHERNET {
            // SAFETY: set from an ethernet endpoint, as above.
            return Some(EndpointRef::Ethernet(unsafe { &*pointer.cast() }));
        }
        // SAFETY: set from a verbs endpoint, as above.
        Some(EndpointRef::Verbs(unsafe { &*pointer.cast() }))
    }
}
