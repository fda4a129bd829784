//! This process's area of the C-Area (manual 1.5), from which SCore-D samples the state of the
//! process. This process writes the area, and its shepherd samples it. The shepherd writes only the
//! word `IDLE_NOTIFY`. `proto/src/carea.rs` has the layout and the meaning.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use memmap2::MmapRaw;
use score_proto::carea::{
    AREA_LEN, AREA_MAGIC, BUSY, IDLE, THREAD_SLOTS, WaitingFor, area, area::slot,
};
use score_proto::idle_notify;
use score_proto::mpi_call::MpiCallRecord;

use crate::sync::{AtomicU32, Ordering, SharedMapping};

/// The mapped area.
pub(crate) struct Area {
    mapping: SharedMapping,
    notifier: ShepherdNotifier,
}

impl Area {
    /// `mapping` covers exactly one area; `notifier` notifies the shepherd.
    pub(crate) fn new(mapping: MmapRaw, notifier: ShepherdNotifier) -> Self {
        debug_assert_eq!(mapping.len(), AREA_LEN);
        Self { mapping: SharedMapping::new(mapping), notifier }
    }

    /// Notifies the shepherd if it has armed this change. Call it after each change. If the
    /// notification fails, the next change tries again.
    fn notify_if_armed(&self, change: u32) {
        let word = self.mapping.u32(area::IDLE_NOTIFY);
        if idle_notify::take_if_armed(word, change) && !self.notifier.notify() {
            idle_notify::rearm(word, change);
        }
    }

    /// Declares the area valid, after everything else in it is valid.
    pub(crate) fn publish(&self, version: u32) {
        self.mapping.u32(area::VERSION).store(version, Ordering::Relaxed);
        // SYNC: area-magic
        self.mapping.u64(area::MAGIC).store(AREA_MAGIC, Ordering::Release);
    }

    /// The number of threads of this process that are idle now.
    pub(crate) fn idle_threads(&self) -> &AtomicU32 {
        self.mapping.u32(area::IDLE_THREADS)
    }

    /// Claims a slot for a thread, which starts as busy. `None` if all slots are taken; the process
    /// then counts as busy until [`Self::leave_overflow`].
    pub(crate) fn claim_slot(&self, thread: u32) -> Option<usize> {
        for number in 0..THREAD_SLOTS {
            let tid = self.slot(number, slot::TID);
            // SYNC: thread-slot (Acquire: the previous owner has left the slot busy).
            if tid.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                self.mapping.u32(area::SLOTS_USED).fetch_max(number as u32 + 1, Ordering::SeqCst);
                self.notify_if_armed(idle_notify::ON_BUSY);
                return Some(number);
            }
        }
        self.mapping.u32(area::OVERFLOW).fetch_add(1, Ordering::SeqCst);
        None
    }

    /// Releases a slot, whose thread is busy.
    pub(crate) fn release_slot(&self, number: usize) {
        // SYNC: thread-slot
        self.slot(number, slot::TID).store(0, Ordering::SeqCst);
        self.notify_if_armed(idle_notify::idle(number));
    }

    /// Records that a thread without a slot has ended.
    pub(crate) fn leave_overflow(&self) {
        self.mapping.u32(area::OVERFLOW).fetch_sub(1, Ordering::SeqCst);
    }

    /// Changes a busy thread to idle.
    pub(crate) fn become_idle(&self, number: usize, waiting_for: WaitingFor, now_ns: u64) {
        let since_offset = area::SLOTS + number * area::SLOT_LEN + slot::IDLE_SINCE_NS;
        self.mapping.u64(since_offset).store(now_ns, Ordering::Relaxed);
        self.set_waiting_for(number, waiting_for);
        self.idle_threads().fetch_add(1, Ordering::Relaxed);
        // SYNC: thread-state, idle-notify
        self.slot(number, slot::STATE).store(IDLE, Ordering::SeqCst);
        self.notify_if_armed(idle_notify::idle(number));
    }

    /// Changes an idle thread to busy. The transition is counted before the thread continues. A
    /// sampler that misses a later action of the thread therefore reads a changed count. The slot
    /// is cleared before the transition is counted: a sampler reads the count first, and must not
    /// find a thread idle whose transition has been counted.
    pub(crate) fn become_busy(&self, number: usize) {
        self.slot(number, slot::STATE).store(BUSY, Ordering::Release);
        // SYNC: busy-transition, idle-notify
        self.mapping.u64(area::BUSY_TRANSITIONS).fetch_add(1, Ordering::SeqCst);
        self.set_waiting_for(number, WaitingFor::Nothing);
        self.idle_threads().fetch_sub(1, Ordering::Relaxed);
        self.notify_if_armed(idle_notify::ON_BUSY);
    }

    /// Records the call of MPI in which the thread waits, before it becomes idle.
    pub(crate) fn set_mpi_call(&self, number: usize, record: &MpiCallRecord) {
        self.slot(number, slot::MPI_CALL).store(record.call, Ordering::Relaxed);
        for (index, argument) in record.arguments.iter().enumerate() {
            self.slot(number, slot::MPI_ARGUMENTS + 4 * index).store(*argument, Ordering::Relaxed);
        }
    }

    /// Records what the thread waits for.
    pub(crate) fn set_waiting_for(&self, number: usize, waiting_for: WaitingFor) {
        self.slot(number, slot::WAITING_FOR).store(waiting_for as u32, Ordering::Relaxed);
    }

    /// Counts a call of sc_barrier. Call it before the thread becomes idle in the barrier.
    pub(crate) fn count_barrier_call(&self) {
        // SYNC: thread-state (a sampler that reads the thread as idle also reads the call)
        self.mapping.u64(area::BARRIERS_CALLED).fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a return from sc_barrier. Call it after the reply to sc_barrier, when the thread is
    /// busy again.
    pub(crate) fn count_barrier_return(&self) {
        // SYNC: busy-transition (a sampler that reads this count also reads the transition)
        self.mapping.u64(area::BARRIERS_LEFT).fetch_add(1, Ordering::SeqCst);
    }

    /// Sets a user monitor (manual 3.5.3): the first, or the second.
    pub(crate) fn set_monitor(&self, second: bool, value: u8) {
        let offset = if second { area::USR1 } else { area::USR0 };
        self.mapping.u8(offset).store(value, Ordering::Relaxed);
    }

    /// The nesting depth of uncheckpointable regions (manual 3.2).
    pub(crate) fn uncheckpointable(&self) -> &AtomicU32 {
        self.mapping.u32(area::UNCHECKPOINTABLE)
    }

    fn slot(&self, number: usize, field: usize) -> &AtomicU32 {
        self.mapping.u32(area::SLOTS + number * area::SLOT_LEN + field)
    }
}

/// The address of the shepherd's datagram socket; None if the shepherd has sent no name. One byte
/// notifies the shepherd (`proto/src/idle_notify.rs`). The sending socket exists only during the
/// call. A program that closes all descriptors would close a permanent socket, and the bytes would
/// then go to the next descriptor that it opens.
pub(crate) struct ShepherdNotifier(Option<SocketAddr>);

impl ShepherdNotifier {
    /// # Errors
    /// The name is too long.
    pub(crate) fn new(name: &[u8]) -> Result<Self, String> {
        if name.is_empty() {
            return Ok(Self(None));
        }
        let address = SocketAddr::from_abstract_name(name);
        address
            .map(|address| Self(Some(address)))
            .map_err(|e| format!("the name of the notification socket: {e}"))
    }

    /// Notifies the shepherd. Returns false if that has failed and may succeed later. Returns true
    /// if the queue is full, because the shepherd wakes up anyway. Returns true if there is no
    /// receiver, or if the receiver has connected its socket to another one (EPERM).
    #[cold]
    pub(crate) fn notify(&self) -> bool {
        let Some(address) = &self.0 else { return true };
        let send = || -> io::Result<usize> {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(&[1], address)
        };
        match send() {
            Ok(_) => true,
            Err(error) => matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::ECONNREFUSED | libc::EPERM)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    fn new_area() -> Area {
        Area::new(
            MmapRaw::from(MmapMut::map_anon(AREA_LEN).unwrap()),
            ShepherdNotifier::new(b"").unwrap(),
        )
    }

    #[test]
    fn a_thread_beyond_the_slots_keeps_the_process_busy_until_it_ends() {
        let area = new_area();
        for number in 0..THREAD_SLOTS {
            assert_eq!(area.claim_slot(100 + number as u32), Some(number));
        }
        assert_eq!(area.claim_slot(7), None);
        assert_eq!(area.mapping.u32(area::OVERFLOW).load(Ordering::Relaxed), 1);
        area.leave_overflow();
        assert_eq!(area.mapping.u32(area::OVERFLOW).load(Ordering::Relaxed), 0);
        area.release_slot(3);
        assert_eq!(area.claim_slot(7), Some(3));
    }

    #[test]
    fn a_notification_is_repeated_only_if_it_may_succeed_later() {
        let (shepherd, name) = score_sys::unix_socket::autobound_datagram_socket().unwrap();
        let notifier = ShepherdNotifier::new(&name).unwrap();
        assert!(notifier.notify());
        assert_eq!(shepherd.recv(&mut [0]).unwrap(), 1);
        let (other, _) = score_sys::unix_socket::autobound_datagram_socket().unwrap();
        shepherd.connect_addr(&other.local_addr().unwrap()).unwrap();
        assert!(notifier.notify(), "the shepherd receives from another socket only");
        drop(shepherd);
        assert!(notifier.notify(), "there is no shepherd");
    }

    #[test]
    fn an_idle_slot_has_time_and_reason_and_busy_is_counted() {
        let area = new_area();
        let number = area.claim_slot(9).unwrap();
        area.become_idle(number, WaitingFor::Barrier, 42);
        assert_eq!(area.slot(number, slot::STATE).load(Ordering::Relaxed), IDLE);
        assert_eq!(area.slot(number, slot::WAITING_FOR).load(Ordering::Relaxed), 3);
        assert_eq!(area.mapping.u64(area::SLOTS + slot::IDLE_SINCE_NS).load(Ordering::Relaxed), 42);
        assert_eq!(area.idle_threads().load(Ordering::Relaxed), 1);
        area.become_busy(number);
        assert_eq!(area.slot(number, slot::STATE).load(Ordering::Relaxed), BUSY);
        assert_eq!(area.slot(number, slot::WAITING_FOR).load(Ordering::Relaxed), 0);
        assert_eq!(area.mapping.u64(area::BUSY_TRANSITIONS).load(Ordering::Relaxed), 1);
        assert_eq!(area.idle_threads().load(Ordering::Relaxed), 0);
    }
}
