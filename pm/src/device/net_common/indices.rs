//! The types of index that the memory and the queues of an endpoint have. Different types cannot be
//! confused in a call, and none of them is a count or a node number.
//!
//! A process has its slots for messages first, and its slots for RMA frames behind them.
//! [`RmaSlotBase`] converts between the two ways to count the latter.

#![forbid(unsafe_code)]

/// Defines types of index. Each is a number, and only an access to memory makes an offset from it.
macro_rules! index_types {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) u32);

        impl $name {
            #[inline(always)]
            pub(crate) fn as_usize(self) -> usize {
                self.0 as usize
            }
        }

        impl From<u32> for $name {
            #[inline(always)]
            fn from(index: u32) -> $name {
                $name(index)
            }
        }

        impl From<$name> for u32 {
            #[inline(always)]
            fn from(index: $name) -> u32 {
                index.0
            }
        }
    )*};
}

index_types! {
    /// The index of a node among the nodes of this host.
    LocalIndex
    /// The index of a send slot among all slots of its process.
    SlotIndex
    /// The index of the entry that holds a received message.
    EntryIndex
    /// The index of a slot among the slots of its process for RMA frames.
    RmaSlotIndex
}

/// The slot of the first RMA frame, behind the slots of all messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaSlotBase(pub(crate) SlotIndex);

impl RmaSlotBase {
    /// Returns the index of an RMA slot among all slots.
    #[inline(always)]
    pub(crate) fn slot(self, index: RmaSlotIndex) -> SlotIndex {
        SlotIndex(self.0.0 + index.0)
    }

    /// Returns the index of a slot among the RMA slots, or None if the slot is for messages.
    #[inline(always)]
    pub(crate) fn rma_slot(self, slot: SlotIndex) -> Option<RmaSlotIndex> {
        slot.0.checked_sub(self.0.0).map(RmaSlotIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rma_slots_follow_the_slots_of_messages() {
        let base = RmaSlotBase(SlotIndex(100));
        assert_eq!(base.rma_slot(SlotIndex(99)), None);
        for index in [0, 7].map(RmaSlotIndex) {
            assert_eq!(base.rma_slot(base.slot(index)), Some(index));
        }
        assert_eq!(base.slot(RmaSlotIndex(7)), SlotIndex(107));
    }
}
