//! Where a thread stands that says, or does not say, that it waits: the rules (pure). They are told
//! to users in docs/time-sharing.md, "Deadlock".
//!
//! Only what can be proved counts. A thread that has set idle
//! - sleeps where nothing but PM or SCore can wake it: in select, poll or epoll_wait without
//!   timeout on descriptors of PM alone; in recv on SCore's control socket (sc_barrier); in
//!   a futex of its own process. Then it must not have run between two looks;
//! - or spins: it runs, or is in a call that a polling loop makes (sched_yield, a pause, the wires
//!   of PM). Then PM has to have counted two empty polls, which are those of the process: so there
//!   may be one such thread.
//!
//! A thread that has never said anything must sleep in a futex of its own process, without timeout.
//! PM's own threads do not count: what the one of a network brings is counted as sent and not
//! received, and the one that watches registered memory brings nothing. Anything else, and whatever
//! the kernel does not tell, is no verdict.

use score_proto::carea::WaitingFor;

use super::areas::Seat;
use super::tasks::{Call, Task};

/// What PM calls its threads: that of a network, and that which watches registered memory.
const PM_THREADS: [&str; 2] = ["score-pm", "score-pin"];
/// As many descriptors are looked at as one call waits on.
const MOST_DESCRIPTORS: u64 = 1024;

/// The bit of a futex operation that says by which clock a timeout counts: of no meaning without.
const OTHER_CLOCK: i32 = 256;

/// Where a thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stand {
    /// It sleeps until another thread of the parallel process does something.
    Sleeps,
    /// It polls.
    Spins,
    /// It is not one of the program's.
    Foreign,
    /// Nothing can be said.
    Open,
}

/// A process, as far as the rules have to know it.
pub trait Process {
    /// Whether only PM makes this descriptor readable.
    fn is_of_pm(&self, fd: i32) -> bool;
    /// Whether this is a socket by which PM sends.
    fn is_way_out(&self, fd: i32) -> bool;
    /// Whether this is the socket to SCore.
    fn is_control(&self, fd: i32) -> bool;
    /// Whether it has a thread of this number.
    fn has_thread(&self, tid: u32) -> bool;
    /// Its memory.
    fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>>;
}

/// Where a thread stands. `seat`: what it says of itself, if anything.
pub fn stand(task: &Task, seat: Option<&Seat>, process: &impl Process) -> Stand {
    match (seat, task.state) {
        // What has ended but for its number.
        (_, b'Z' | b'X') => Stand::Foreign,
        (Some(seat), _) if !seat.idle => Stand::Open,
        (None, _) if PM_THREADS.contains(&task.name.as_str()) => Stand::Foreign,
        // Stopped threads are where they were.
        (Some(seat), b'S' | b'T') => idle(task.call, seat, process),
        (Some(_), b'R') => Stand::Spins,
        (None, b'S' | b'T') if sleeps_in_futex(task.call, process) => Stand::Sleeps,
        _ => Stand::Open,
    }
}

fn idle(call: Call, seat: &Seat, process: &impl Process) -> Stand {
    let Call::In(number, of) = call else {
        return if call == Call::Unknown { Stand::Open } else { Stand::Spins };
    };
    let fd = of[0] as i32;
    let all = |yes: bool| if yes { Stand::Sleeps } else { Stand::Open };
    let spins = |yes: bool| if yes { Stand::Spins } else { Stand::Open };
    match number {
        libc::SYS_futex => all(sleeps_in_futex(call, process)),
        libc::SYS_recvfrom if seat.waiting == WaitingFor::Barrier => all(process.is_control(fd)),
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => spins(process.is_of_pm(fd)),
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => spins(process.is_way_out(fd)),
        libc::SYS_sched_yield
        | libc::SYS_membarrier
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep => Stand::Spins,
        libc::SYS_ppoll => all(of[2] == 0 && polls_pm(of[0], of[1], process)),
        libc::SYS_pselect6 => all(of[4] == 0 && selects_pm(&of, process)),
        libc::SYS_epoll_pwait => all(of[3] as i32 == -1 && process.is_of_pm(fd)),
        libc::SYS_epoll_pwait2 => all(of[3] == 0 && process.is_of_pm(fd)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => all(of[3] as i32 == -1 && process.is_of_pm(fd)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => all(of[4] == 0 && selects_pm(&of, process)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => all(of[2] as i32 == -1 && polls_pm(of[0], of[1], process)),
        // So poll(2) goes on after a stop. The arguments of others make no sense as its own.
        libc::SYS_restart_syscall => all(of[2] as i32 == -1 && polls_pm(of[0], of[1], process)),
        _ => Stand::Open,
    }
}

/// Without timeout, and only another thread of the process can wake it.
fn sleeps_in_futex(call: Call, process: &impl Process) -> bool {
    let Call::In(libc::SYS_futex, [_, operation, value, timeout, ..]) = call else {
        return false;
    };
    let operation = operation as i32;
    let is_private = operation & libc::FUTEX_PRIVATE_FLAG != 0;
    let command = operation & !(libc::FUTEX_PRIVATE_FLAG | OTHER_CLOCK);
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&command);
    // pthread_join waits until the kernel clears the thread's number.
    waits && timeout == 0 && (is_private || process.has_thread(value as u32))
}

/// struct pollfd: descriptor, what is waited for, what has come.
fn polls_pm(address: u64, count: u64, process: &impl Process) -> bool {
    if !(1..=MOST_DESCRIPTORS).contains(&count) {
        return false;
    }
    let Some(bytes) = process.read(address, 8 * count as usize) else { return false };
    let (entries, _) = bytes.as_chunks::<8>();
    entries.iter().all(|[a, b, c, d, ..]| {
        let fd = i32::from_ne_bytes([*a, *b, *c, *d]);
        fd < 0 || process.is_of_pm(fd)
    })
}

fn selects_pm(of: &[u64; 6], process: &impl Process) -> bool {
    let count = of[0];
    if !(1..=MOST_DESCRIPTORS).contains(&count) {
        return false;
    }
    // fd_set is an array of longs.
    let bytes = count.div_ceil(64) as usize * 8;
    let mut found = false;
    for address in of[1..4].iter().filter(|address| **address != 0) {
        let Some(set) = process.read(*address, bytes) else { return false };
        for fd in (0..count as usize).filter(|fd| set[fd / 8] & (1 << (fd % 8)) != 0) {
            found = true;
            if !process.is_of_pm(fd as i32) {
                return false;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Descriptors 5 and 6 are PM's, 3 is SCore's; threads 70 and 71; memory at 0x1000.
    struct Fake(Vec<u8>);

    impl Process for Fake {
        fn is_of_pm(&self, fd: i32) -> bool {
            [5, 6].contains(&fd)
        }
        fn is_way_out(&self, fd: i32) -> bool {
            [6, 7].contains(&fd)
        }
        fn is_control(&self, fd: i32) -> bool {
            fd == 3
        }
        fn has_thread(&self, tid: u32) -> bool {
            [70, 71].contains(&tid)
        }
        fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
            let start = address.checked_sub(0x1000)? as usize;
            self.0.get(start..start + bytes).map(<[u8]>::to_vec)
        }
    }

    fn task(state: u8, call: Call) -> Task {
        Task { tid: 70, name: "a.out".to_owned(), state, switches: 1, call }
    }

    fn of_idle(waiting: WaitingFor, state: u8, call: Call, memory: &[u8]) -> Stand {
        let seat = Seat { slot: 0, tid: 70, idle: true, waiting, since_ns: 0 };
        stand(&task(state, call), Some(&seat), &Fake(memory.to_vec()))
    }

    fn message(state: u8, call: Call) -> Stand {
        of_idle(WaitingFor::Message, state, call, &[])
    }

    const FOREVER: u64 = u32::MAX as u64;

    #[test]
    fn who_polls_spins_and_who_does_anything_else_is_open() {
        assert_eq!(message(b'R', Call::Running), Stand::Spins);
        assert_eq!(message(b'T', Call::None), Stand::Spins);
        assert_eq!(message(b'T', Call::In(libc::SYS_sched_yield, [0; 6])), Stand::Spins);
        assert_eq!(message(b'T', Call::In(libc::SYS_recvmmsg, [5, 0, 0, 0, 0, 0])), Stand::Spins);
        assert_eq!(message(b'T', Call::In(libc::SYS_recvmmsg, [9, 0, 0, 0, 0, 0])), Stand::Open);
        assert_eq!(message(b'T', Call::In(libc::SYS_sendto, [7, 0, 0, 0, 0, 0])), Stand::Spins);
        assert_eq!(message(b'T', Call::In(libc::SYS_recvfrom, [7, 0, 0, 0, 0, 0])), Stand::Open);
        assert_eq!(message(b'S', Call::In(libc::SYS_read, [0; 6])), Stand::Open);
        assert_eq!(message(b'S', Call::Unknown), Stand::Open);
        assert_eq!(message(b'D', Call::None), Stand::Open);
        assert_eq!(message(b't', Call::None), Stand::Open);
    }

    #[test]
    fn a_barrier_waits_on_the_control_socket_alone() {
        let receive = |fd| Call::In(libc::SYS_recvfrom, [fd, 0, 0, 0, 0, 0]);
        assert_eq!(of_idle(WaitingFor::Barrier, b'S', receive(3), &[]), Stand::Sleeps);
        assert_eq!(of_idle(WaitingFor::Barrier, b'S', receive(4), &[]), Stand::Open);
        assert_eq!(of_idle(WaitingFor::Message, b'S', receive(3), &[]), Stand::Open);
    }

    #[test]
    fn who_selects_waits_for_pm_alone_and_without_timeout() {
        let memory = |fds: &[usize]| {
            let mut set = vec![0u8; 16];
            fds.iter().for_each(|fd| set[fd / 8] |= 1 << (fd % 8));
            set
        };
        let select = |timeout| Call::In(libc::SYS_pselect6, [7, 0x1000, 0, 0, timeout, 0]);
        let waits = WaitingFor::Message;
        assert_eq!(of_idle(waits, b'S', select(0), &memory(&[5])), Stand::Sleeps);
        assert_eq!(of_idle(waits, b'S', select(0), &memory(&[5, 6])), Stand::Sleeps);
        assert_eq!(of_idle(waits, b'S', select(0x2000), &memory(&[5])), Stand::Open);
        assert_eq!(of_idle(waits, b'S', select(0), &memory(&[0, 5])), Stand::Open, "stdin");
        assert_eq!(of_idle(waits, b'S', select(0), &memory(&[])), Stand::Open, "for ever");
        assert_eq!(of_idle(waits, b'S', select(0), &[]), Stand::Open, "no memory");
    }

    #[test]
    fn who_polls_with_poll_waits_for_pm_alone_also_after_a_stop() {
        let memory = |fds: &[i32]| -> Vec<u8> {
            fds.iter().flat_map(|fd| [fd.to_ne_bytes(), [1, 0, 0, 0]].concat()).collect()
        };
        let mut numbers = vec![libc::SYS_restart_syscall];
        #[cfg(target_arch = "x86_64")]
        numbers.push(libc::SYS_poll);
        for number in numbers {
            let poll = |count, timeout| Call::In(number, [0x1000, count, timeout, 0, 0, 0]);
            let waits = |call, fds: &[i32]| of_idle(WaitingFor::Select, b'S', call, &memory(fds));
            assert_eq!(waits(poll(2, FOREVER), &[5, -1]), Stand::Sleeps);
            assert_eq!(waits(poll(2, FOREVER), &[5, 0]), Stand::Open, "stdin");
            assert_eq!(waits(poll(1, 1000), &[5]), Stand::Open, "a timeout");
            assert_eq!(waits(poll(0, FOREVER), &[]), Stand::Open, "a pause");
            assert_eq!(waits(poll(1 << 40, FOREVER), &[5]), Stand::Open);
        }
        let ppoll = Call::In(libc::SYS_ppoll, [0x1000, 1, 0, 0, 0, 0]);
        assert_eq!(of_idle(WaitingFor::Select, b'T', ppoll, &memory(&[6])), Stand::Sleeps);
        let epoll = |fd, timeout| Call::In(libc::SYS_epoll_pwait, [fd, 0, 1, timeout, 0, 0]);
        assert_eq!(message(b'S', epoll(5, FOREVER)), Stand::Sleeps);
        assert_eq!(message(b'S', epoll(5, 0)), Stand::Open);
        assert_eq!(message(b'S', epoll(4, FOREVER)), Stand::Open);
    }

    #[test]
    fn a_thread_that_says_nothing_sleeps_in_a_futex_or_is_open() {
        let of = |state, call| stand(&task(state, call), None, &Fake(Vec::new()));
        let futex = |operation: i32, value, timeout| {
            Call::In(libc::SYS_futex, [0x1000, operation as u64, value, timeout, 0, 0])
        };
        let private = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        assert_eq!(of(b'S', futex(private, 0, 0)), Stand::Sleeps);
        assert_eq!(of(b'S', futex(private, 0, 0x2000)), Stand::Open, "a timeout");
        assert_eq!(of(b'R', futex(private, 0, 0)), Stand::Open, "it has been woken");
        let join = libc::FUTEX_WAIT_BITSET | OTHER_CLOCK;
        assert_eq!(of(b'S', futex(join, 71, 0)), Stand::Sleeps);
        assert_eq!(of(b'S', futex(join, 72, 0)), Stand::Open, "shared with others");
        assert_eq!(of(b'S', Call::In(libc::SYS_clock_nanosleep, [0; 6])), Stand::Open);
        assert_eq!(of(b'S', Call::In(libc::SYS_read, [0; 6])), Stand::Open);
        for name in ["score-pm", "score-pin"] {
            let mut pm = task(b'S', Call::In(libc::SYS_ppoll, [0x1000, 1, 0, 0, 0, 0]));
            pm.name = name.to_owned();
            assert_eq!(stand(&pm, None, &Fake(Vec::new())), Stand::Foreign);
        }
        assert_eq!(of(b'Z', Call::None), Stand::Foreign);
    }
}
