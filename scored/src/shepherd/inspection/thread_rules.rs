//! The rules that classify a thread, with or without a slot, as pure functions.
//! docs/dev/deadlock.md describes them.
//!
//! Only a state that can be proved counts. A thread whose idle flag is set must be in one of two
//! states:
//! - Blocked: it sleeps, and only PM or SCore can wake it. It is in select, poll or epoll_wait
//!   without timeout on descriptors that all belong to PM, in recv on SCore's control socket
//!   (sc_barrier), or in a futex of its own process. It must not have run between two scans.
//! - Polling: it runs, or is in a call that a polling loop makes (sched_yield, a sleep, the wires
//!   of PM). PM must then have counted two empty polls. Empty polls are counted for the whole
//!   process, so that only one such thread is allowed.
//!
//! A thread without a slot must sleep in a futex of its own process, without timeout. PM's own
//! threads are ignored: a message that the thread of a network delivers counts as sent and not
//! received, and the thread that watches registered memory delivers none. In any other state, or if
//! the kernel does not show the state, there is no verdict.

use score_proto::carea::WaitingFor;

use super::carea::ThreadSlot;
use super::proc_threads::{Syscall, Task};

/// Names of PM's threads: the thread of a network, and the thread that watches registered memory.
const PM_THREADS: [&str; 2] = ["score-pm", "score-pin"];
/// Largest number of descriptors in one call of poll or select that is examined.
const MAX_POLLED_FDS: u64 = 1024;

/// The bit of a futex operation that selects the clock of a timeout. It has no meaning without a
/// timeout.
const FUTEX_CLOCK_REALTIME: i32 = 256;

/// Classified state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadState {
    /// The thread sleeps until another thread of the parallel process does something.
    Blocked,
    /// The thread polls for messages.
    Polling,
    /// The thread does not belong to the program, or has exited.
    Ignored,
    /// The state of the thread cannot be proved.
    Unknown,
}

/// The facts about a process that the rules use.
pub trait ProcessFacts {
    /// Whether only PM makes this descriptor readable.
    fn is_woken_by_pm_only(&self, fd: i32) -> bool;
    /// Whether PM sends through this socket.
    fn is_pm_send(&self, fd: i32) -> bool;
    /// Whether this is the socket to SCore.
    fn is_control(&self, fd: i32) -> bool;
    /// Whether the process has a thread with this id.
    fn has_thread(&self, tid: u32) -> bool;
    /// Reads the memory of the process. None if the memory cannot be read.
    fn read_memory(&self, address: u64, len: usize) -> Option<Vec<u8>>;
}

/// Classifies a thread. `thread_slot`: its slot, if it has one.
pub fn classify_thread(
    task: &Task,
    thread_slot: Option<&ThreadSlot>,
    process: &impl ProcessFacts,
) -> ThreadState {
    match (thread_slot, task.state) {
        // The thread has exited, and only its id remains.
        (_, b'Z' | b'X') => ThreadState::Ignored,
        (Some(thread_slot), _) if !thread_slot.idle => ThreadState::Unknown,
        (None, _) if PM_THREADS.contains(&task.name.as_str()) => ThreadState::Ignored,
        // A stopped thread is still in the call in which it was stopped.
        (Some(thread_slot), b'S' | b'T') => classify_idle(task.call, thread_slot, process),
        (Some(_), b'R') => ThreadState::Polling,
        (None, b'S' | b'T') if is_blocked_in_futex(task.call, process) => ThreadState::Blocked,
        _ => ThreadState::Unknown,
    }
}

fn classify_idle(
    call: Syscall,
    thread_slot: &ThreadSlot,
    process: &impl ProcessFacts,
) -> ThreadState {
    let Syscall::Blocked(nr, args) = call else {
        return if call == Syscall::Unknown { ThreadState::Unknown } else { ThreadState::Polling };
    };
    let fd = args[0] as i32;
    let blocked_if =
        |condition: bool| if condition { ThreadState::Blocked } else { ThreadState::Unknown };
    let polling_if =
        |condition: bool| if condition { ThreadState::Polling } else { ThreadState::Unknown };
    match nr {
        libc::SYS_futex => blocked_if(is_blocked_in_futex(call, process)),
        libc::SYS_recvfrom if thread_slot.waiting_for == WaitingFor::Barrier => {
            blocked_if(process.is_control(fd))
        }
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => {
            polling_if(process.is_woken_by_pm_only(fd))
        }
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => {
            polling_if(process.is_pm_send(fd))
        }
        libc::SYS_sched_yield
        | libc::SYS_membarrier
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep => ThreadState::Polling,
        libc::SYS_ppoll => blocked_if(args[2] == 0 && polls_only_pm(args[0], args[1], process)),
        libc::SYS_pselect6 => blocked_if(args[4] == 0 && selects_only_pm(&args, process)),
        libc::SYS_epoll_pwait => {
            blocked_if(args[3] as i32 == -1 && process.is_woken_by_pm_only(fd))
        }
        libc::SYS_epoll_pwait2 => blocked_if(args[3] == 0 && process.is_woken_by_pm_only(fd)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => blocked_if(args[3] as i32 == -1 && process.is_woken_by_pm_only(fd)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => blocked_if(args[4] == 0 && selects_only_pm(&args, process)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => {
            blocked_if(args[2] as i32 == -1 && polls_only_pm(args[0], args[1], process))
        }
        // poll(2) continues with this call after a stop. Other restarted calls have arguments that
        // are not valid for poll.
        libc::SYS_restart_syscall => {
            blocked_if(args[2] as i32 == -1 && polls_only_pm(args[0], args[1], process))
        }
        _ => ThreadState::Unknown,
    }
}

/// Whether a call is a futex wait without timeout that only another thread of the process can end.
fn is_blocked_in_futex(call: Syscall, process: &impl ProcessFacts) -> bool {
    let Syscall::Blocked(libc::SYS_futex, [_, operation, value, timeout, ..]) = call else {
        return false;
    };
    let operation = operation as i32;
    let is_private = operation & libc::FUTEX_PRIVATE_FLAG != 0;
    let command = operation & !(libc::FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    let is_wait = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&command);
    // pthread_join waits until the kernel clears the thread's id.
    is_wait && timeout == 0 && (is_private || process.has_thread(value as u32))
}

/// Whether all polled descriptors belong to PM. An entry is a struct pollfd: descriptor, requested
/// events, returned events.
fn polls_only_pm(address: u64, count: u64, process: &impl ProcessFacts) -> bool {
    if !(1..=MAX_POLLED_FDS).contains(&count) {
        return false;
    }
    let Some(bytes) = process.read_memory(address, 8 * count as usize) else { return false };
    let (entries, _) = bytes.as_chunks::<8>();
    entries.iter().all(|[a, b, c, d, ..]| {
        let fd = i32::from_ne_bytes([*a, *b, *c, *d]);
        fd < 0 || process.is_woken_by_pm_only(fd)
    })
}

fn selects_only_pm(args: &[u64; 6], process: &impl ProcessFacts) -> bool {
    let count = args[0];
    if !(1..=MAX_POLLED_FDS).contains(&count) {
        return false;
    }
    // fd_set is an array of longs.
    let set_len = count.div_ceil(64) as usize * 8;
    let mut has_fds = false;
    for address in args[1..4].iter().filter(|address| **address != 0) {
        let Some(set) = process.read_memory(*address, set_len) else { return false };
        for fd in (0..count as usize).filter(|fd| set[fd / 8] & (1 << (fd % 8)) != 0) {
            has_fds = true;
            if !process.is_woken_by_pm_only(fd as i32) {
                return false;
            }
        }
    }
    has_fds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process: PM wakes descriptors 5 and 6, and sends through 6 and 7. Descriptor 3 is SCore's.
    /// The process has threads 70 and 71, and memory at 0x1000.
    struct Fake(Vec<u8>);

    impl ProcessFacts for Fake {
        fn is_woken_by_pm_only(&self, fd: i32) -> bool {
            [5, 6].contains(&fd)
        }
        fn is_pm_send(&self, fd: i32) -> bool {
            [6, 7].contains(&fd)
        }
        fn is_control(&self, fd: i32) -> bool {
            fd == 3
        }
        fn has_thread(&self, tid: u32) -> bool {
            [70, 71].contains(&tid)
        }
        fn read_memory(&self, address: u64, len: usize) -> Option<Vec<u8>> {
            let start = address.checked_sub(0x1000)? as usize;
            self.0.get(start..start + len).map(<[u8]>::to_vec)
        }
    }

    fn task(state: u8, call: Syscall) -> Task {
        Task { tid: 70, name: "a.out".to_owned(), state, context_switches: 1, call }
    }

    fn classify_idle_thread(
        waiting_for: WaitingFor,
        state: u8,
        call: Syscall,
        memory: &[u8],
    ) -> ThreadState {
        let thread_slot = ThreadSlot { index: 0, tid: 70, idle: true, waiting_for, since_ns: 0 };
        classify_thread(&task(state, call), Some(&thread_slot), &Fake(memory.to_vec()))
    }

    fn classify_receiver(state: u8, call: Syscall) -> ThreadState {
        classify_idle_thread(WaitingFor::Message, state, call, &[])
    }

    const FOREVER: u64 = u32::MAX as u64;

    #[test]
    fn a_thread_in_a_polling_call_is_polling_and_in_any_other_call_unknown() {
        assert_eq!(classify_receiver(b'R', Syscall::Running), ThreadState::Polling);
        assert_eq!(classify_receiver(b'T', Syscall::None), ThreadState::Polling);
        assert_eq!(
            classify_receiver(b'T', Syscall::Blocked(libc::SYS_sched_yield, [0; 6])),
            ThreadState::Polling
        );
        assert_eq!(
            classify_receiver(b'T', Syscall::Blocked(libc::SYS_recvmmsg, [5, 0, 0, 0, 0, 0])),
            ThreadState::Polling
        );
        assert_eq!(
            classify_receiver(b'T', Syscall::Blocked(libc::SYS_recvmmsg, [9, 0, 0, 0, 0, 0])),
            ThreadState::Unknown
        );
        assert_eq!(
            classify_receiver(b'T', Syscall::Blocked(libc::SYS_sendto, [7, 0, 0, 0, 0, 0])),
            ThreadState::Polling
        );
        assert_eq!(
            classify_receiver(b'T', Syscall::Blocked(libc::SYS_recvfrom, [7, 0, 0, 0, 0, 0])),
            ThreadState::Unknown
        );
        assert_eq!(
            classify_receiver(b'S', Syscall::Blocked(libc::SYS_read, [0; 6])),
            ThreadState::Unknown
        );
        assert_eq!(classify_receiver(b'S', Syscall::Unknown), ThreadState::Unknown);
        assert_eq!(classify_receiver(b'D', Syscall::None), ThreadState::Unknown);
        assert_eq!(classify_receiver(b't', Syscall::None), ThreadState::Unknown);
    }

    #[test]
    fn a_barrier_waits_on_the_control_socket_alone() {
        let receive = |fd| Syscall::Blocked(libc::SYS_recvfrom, [fd, 0, 0, 0, 0, 0]);
        assert_eq!(
            classify_idle_thread(WaitingFor::Barrier, b'S', receive(3), &[]),
            ThreadState::Blocked
        );
        assert_eq!(
            classify_idle_thread(WaitingFor::Barrier, b'S', receive(4), &[]),
            ThreadState::Unknown
        );
        assert_eq!(
            classify_idle_thread(WaitingFor::Message, b'S', receive(3), &[]),
            ThreadState::Unknown
        );
    }

    #[test]
    fn a_thread_in_select_is_blocked_only_if_it_waits_for_pm_alone_without_timeout() {
        let memory = |fds: &[usize]| {
            let mut set = vec![0u8; 16];
            fds.iter().for_each(|fd| set[fd / 8] |= 1 << (fd % 8));
            set
        };
        let select = |timeout| Syscall::Blocked(libc::SYS_pselect6, [7, 0x1000, 0, 0, timeout, 0]);
        let waits = WaitingFor::Message;
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0), &memory(&[5])),
            ThreadState::Blocked
        );
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0), &memory(&[5, 6])),
            ThreadState::Blocked
        );
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0x2000), &memory(&[5])),
            ThreadState::Unknown
        );
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0), &memory(&[0, 5])),
            ThreadState::Unknown,
            "stdin"
        );
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0), &memory(&[])),
            ThreadState::Unknown,
            "for ever"
        );
        assert_eq!(
            classify_idle_thread(waits, b'S', select(0), &[]),
            ThreadState::Unknown,
            "no memory"
        );
    }

    #[test]
    fn a_thread_in_poll_is_blocked_only_if_it_waits_for_pm_alone_also_after_a_stop() {
        let memory = |fds: &[i32]| -> Vec<u8> {
            fds.iter().flat_map(|fd| [fd.to_ne_bytes(), [1, 0, 0, 0]].concat()).collect()
        };
        let mut numbers = vec![libc::SYS_restart_syscall];
        #[cfg(target_arch = "x86_64")]
        numbers.push(libc::SYS_poll);
        for number in numbers {
            let poll = |count, timeout| Syscall::Blocked(number, [0x1000, count, timeout, 0, 0, 0]);
            let waits = |call, fds: &[i32]| {
                classify_idle_thread(WaitingFor::Select, b'S', call, &memory(fds))
            };
            assert_eq!(waits(poll(2, FOREVER), &[5, -1]), ThreadState::Blocked);
            assert_eq!(waits(poll(2, FOREVER), &[5, 0]), ThreadState::Unknown, "stdin");
            assert_eq!(waits(poll(1, 1000), &[5]), ThreadState::Unknown, "a timeout");
            assert_eq!(waits(poll(0, FOREVER), &[]), ThreadState::Unknown, "no descriptor");
            assert_eq!(waits(poll(1 << 40, FOREVER), &[5]), ThreadState::Unknown);
        }
        let ppoll = Syscall::Blocked(libc::SYS_ppoll, [0x1000, 1, 0, 0, 0, 0]);
        assert_eq!(
            classify_idle_thread(WaitingFor::Select, b'T', ppoll, &memory(&[6])),
            ThreadState::Blocked
        );
        let epoll =
            |fd, timeout| Syscall::Blocked(libc::SYS_epoll_pwait, [fd, 0, 1, timeout, 0, 0]);
        assert_eq!(classify_receiver(b'S', epoll(5, FOREVER)), ThreadState::Blocked);
        assert_eq!(classify_receiver(b'S', epoll(5, 0)), ThreadState::Unknown);
        assert_eq!(classify_receiver(b'S', epoll(4, FOREVER)), ThreadState::Unknown);
    }

    #[test]
    fn a_thread_without_a_slot_is_blocked_in_a_futex_or_unknown() {
        let classify = |state, call| classify_thread(&task(state, call), None, &Fake(Vec::new()));
        let futex = |operation: i32, value, timeout| {
            Syscall::Blocked(libc::SYS_futex, [0x1000, operation as u64, value, timeout, 0, 0])
        };
        let private = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        assert_eq!(classify(b'S', futex(private, 0, 0)), ThreadState::Blocked);
        assert_eq!(classify(b'S', futex(private, 0, 0x2000)), ThreadState::Unknown, "a timeout");
        assert_eq!(classify(b'R', futex(private, 0, 0)), ThreadState::Unknown, "it has been woken");
        let join = libc::FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
        assert_eq!(classify(b'S', futex(join, 71, 0)), ThreadState::Blocked);
        assert_eq!(classify(b'S', futex(join, 72, 0)), ThreadState::Unknown, "shared with others");
        assert_eq!(
            classify(b'S', Syscall::Blocked(libc::SYS_clock_nanosleep, [0; 6])),
            ThreadState::Unknown
        );
        assert_eq!(classify(b'S', Syscall::Blocked(libc::SYS_read, [0; 6])), ThreadState::Unknown);
        for name in ["score-pm", "score-pin"] {
            let mut pm = task(b'S', Syscall::Blocked(libc::SYS_ppoll, [0x1000, 1, 0, 0, 0, 0]));
            pm.name = name.to_owned();
            assert_eq!(classify_thread(&pm, None, &Fake(Vec::new())), ThreadState::Ignored);
        }
        assert_eq!(classify(b'Z', Syscall::None), ThreadState::Ignored);
    }
}
