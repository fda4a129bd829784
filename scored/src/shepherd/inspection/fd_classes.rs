//! Classifies the descriptors of a process from outside (proc(5)): whether only PM can make them
//! readable.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::proc_threads::read_proc_file;
use super::thread_rules::ProcessFacts;
use crate::sys::spawn_args::CONTROL_FD;

/// Prefix of the names of PM's doorbells (`pm/src/doorbell.rs`).
const DOORBELL_PREFIX: &str = "@score-pm-";
/// Path prefix of the devices of RDMA adapters.
const UVERBS_PREFIX: &str = "/dev/infiniband/uverbs";
/// Largest depth of nested epoll sets that is examined.
const MAX_EPOLL_NESTING: usize = 4;

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FdKind {
    Socket(u64),
    Epoll,
    EventFd,
    /// An open RDMA adapter.
    Adapter,
    /// Events or completions of an adapter.
    AdapterEvents,
    /// Changes of memory that is registered with an adapter.
    MemoryEvents,
    /// Another descriptor without a file, such as a timer, a signalfd or io_uring.
    Anonymous,
    Pipe,
    File,
}

fn parse_link(link: &str) -> FdKind {
    let number = |rest: &str| rest.strip_suffix(']').and_then(|number| number.parse().ok());
    if let Some(inode) = link.strip_prefix("socket:[").and_then(number) {
        return FdKind::Socket(inode);
    }
    match link {
        "anon_inode:[eventpoll]" => FdKind::Epoll,
        "anon_inode:[eventfd]" => FdKind::EventFd,
        "anon_inode:[infinibandevent]" => FdKind::AdapterEvents,
        "anon_inode:[userfaultfd]" => FdKind::MemoryEvents,
        _ if link.starts_with(UVERBS_PREFIX) => FdKind::Adapter,
        _ if link.starts_with("anon_inode:") => FdKind::Anonymous,
        _ if link.starts_with("pipe:[") => FdKind::Pipe,
        _ => FdKind::File,
    }
}

fn fd_kind(pid: i32, fd: i32) -> Option<FdKind> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(parse_link(link.to_str()?))
}

/// The descriptors in an epoll set, from its fdinfo.
fn epoll_targets(fdinfo: &str) -> Option<Vec<i32>> {
    let lines = fdinfo.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.map(|line| line.split_ascii_whitespace().next()?.parse().ok()).collect()
}

/// A socket that belongs to PM, or may belong to PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketDirection {
    /// PM receives through the socket and counts the messages.
    Receive(u64),
    /// PM sends through the socket. Only the peer that PM has chosen can send to it.
    SendOnly(u64),
}

/// PM's sockets among the Unix sockets of a network namespace (`/proc/net/unix`). Doorbells have a
/// known name. Their senders' sockets have neither name nor peer.
fn parse_unix_sockets(list: &str) -> impl Iterator<Item = SocketDirection> {
    list.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let inode = words.get(6)?.parse().ok()?;
        match words[..] {
            [_, _, _, _, _, _, _, name] if name.starts_with(DOORBELL_PREFIX) => {
                Some(SocketDirection::Receive(inode))
            }
            [_, _, _, _, "0002", "01", _] => Some(SocketDirection::SendOnly(inode)),
            _ => None,
        }
    })
}

/// PM's sockets among the UDP sockets (`/proc/net/udp`). PM sends through connected sockets.
fn parse_udp_sockets(list: &str) -> impl Iterator<Item = SocketDirection> {
    list.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_connected = words.nth(3)? == "01";
        let inode = words.nth(5)?.parse().ok()?;
        is_connected.then_some(SocketDirection::SendOnly(inode))
    })
}

/// The inodes of PM sockets that processes of this host may have. Each list is read on demand.
/// Reading the list of UDP sockets takes the kernel long, and most jobs do not need it.
#[derive(Debug, Default)]
pub struct PmSockets {
    unix: OnceCell<PmSocketMap>,
    /// Sockets of wires, which are also open in the shepherd.
    shepherd_sockets: OnceCell<HashSet<u64>>,
    udp: OnceCell<PmSocketMap>,
}

#[derive(Debug, Default)]
struct PmSocketMap {
    incoming: HashSet<u64>,
    outgoing: HashSet<u64>,
}

impl FromIterator<SocketDirection> for PmSocketMap {
    fn from_iter<I: IntoIterator<Item = SocketDirection>>(sockets: I) -> Self {
        let mut socket_map = Self::default();
        for socket in sockets {
            match socket {
                SocketDirection::Receive(inode) => socket_map.incoming.insert(inode),
                SocketDirection::SendOnly(inode) => socket_map.outgoing.insert(inode),
            };
        }
        socket_map
    }
}

impl PmSockets {
    fn unix(&self) -> &PmSocketMap {
        let read = || read_proc_file("/proc/self/net/unix").unwrap_or_default();
        self.unix.get_or_init(|| parse_unix_sockets(&read()).collect())
    }

    fn shepherd_sockets(&self) -> &HashSet<u64> {
        let pid = std::process::id() as i32;
        let inode = |fd| match fd_kind(pid, fd) {
            Some(FdKind::Socket(inode)) => Some(inode),
            _ => None,
        };
        let find = || open_fds(pid).into_iter().flatten().filter_map(inode).collect();
        self.shepherd_sockets.get_or_init(find)
    }

    fn udp(&self) -> &PmSocketMap {
        let read = |name| read_proc_file(&format!("/proc/self/net/{name}")).unwrap_or_default();
        let lists = || ["udp", "udp6"].map(read);
        self.udp.get_or_init(|| lists().iter().flat_map(|list| parse_udp_sockets(list)).collect())
    }

    /// Whether PM receives through this socket.
    fn is_receive_socket(&self, inode: u64) -> bool {
        self.unix().incoming.contains(&inode) || self.shepherd_sockets().contains(&inode)
    }

    /// Whether PM receives or sends through this socket.
    fn is_pm_socket(&self, inode: u64) -> bool {
        let sends = |socket_map: &PmSocketMap| socket_map.outgoing.contains(&inode);
        self.is_receive_socket(inode) || sends(self.unix()) || sends(self.udp())
    }
}

fn open_fds(pid: i32) -> Option<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    entries.map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// A process of the job.
pub struct LiveProcess<'a> {
    pid: i32,
    sockets: &'a PmSockets,
    tids: HashSet<u32>,
    adapter_count: usize,
    quiet_pmi_socket: Option<u64>,
}

impl<'a> LiveProcess<'a> {
    /// The process `pid`, which has the threads `tids`. `quiet_pmi_socket`: the inode of its PMI
    /// socket, if no message is about to arrive there.
    pub fn new(
        pid: i32,
        sockets: &'a PmSockets,
        tids: HashSet<u32>,
        adapter_count: usize,
        quiet_pmi_socket: Option<u64>,
    ) -> Self {
        Self { pid, sockets, tids, adapter_count, quiet_pmi_socket }
    }

    fn is_pm_only(&self, fd: i32, depth: usize) -> bool {
        match fd_kind(self.pid, fd) {
            Some(FdKind::Socket(inode)) => self.sockets.is_receive_socket(inode),
            // The ethernet device wakes receivers by an eventfd in the set that pmGetFd returns.
            Some(FdKind::EventFd) => depth > 0,
            Some(FdKind::Epoll) if depth < MAX_EPOLL_NESTING => {
                let info = read_proc_file(&format!("/proc/{}/fdinfo/{fd}", self.pid));
                let targets = info.ok().and_then(|info| epoll_targets(&info));
                let targets = targets.filter(|fds| !fds.is_empty());
                targets.is_some_and(|fds| fds.iter().all(|fd| self.is_pm_only(*fd, depth + 1)))
            }
            _ => false,
        }
    }

    /// Whether the process might poll for external input without sleeping. It is not observable
    /// which descriptors a program polls.
    pub fn may_poll_foreign_fds(&self) -> bool {
        let Some(fds) = open_fds(self.pid) else { return true };
        let kinds: Vec<_> = fds.into_iter().map(|fd| (fd, fd_kind(self.pid, fd))).collect();
        self.has_other_adapters(&kinds)
            || kinds.into_iter().any(|(fd, kind)| match kind {
                Some(FdKind::Socket(inode)) => {
                    !self.is_control(fd)
                        && !self.sockets.is_pm_socket(inode)
                        && self.quiet_pmi_socket != Some(inode)
                }
                Some(FdKind::Pipe) => fd > 2 || (fd == 0 && self.is_nonblocking(fd)),
                Some(FdKind::File) => fd == 0 && self.is_nonblocking(fd),
                Some(FdKind::Anonymous) => true,
                Some(FdKind::Epoll | FdKind::EventFd) => false,
                // PM's own adapters, which `has_other_adapters` has counted.
                Some(FdKind::Adapter | FdKind::AdapterEvents | FdKind::MemoryEvents) => false,
                // The descriptor of the directory itself, or one that has just been closed.
                None => false,
            })
    }

    /// Whether the process uses RDMA, or watches memory, independently of PM. For each open
    /// adapter, PM has two descriptors of events. PM has one descriptor for all registered memory.
    fn has_other_adapters(&self, kinds: &[(i32, Option<FdKind>)]) -> bool {
        let count = |expected: &FdKind| {
            kinds.iter().filter(|(_, kind)| kind.as_ref() == Some(expected)).count()
        };
        count(&FdKind::Adapter) > self.adapter_count
            || count(&FdKind::AdapterEvents) > 2 * self.adapter_count
            || count(&FdKind::MemoryEvents) > self.adapter_count.min(1)
    }

    fn is_nonblocking(&self, fd: i32) -> bool {
        let info = read_proc_file(&format!("/proc/{}/fdinfo/{fd}", self.pid));
        let flags = info.ok().and_then(|info| {
            let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
            i32::from_str_radix(line, 8).ok()
        });
        flags.is_none_or(|flags| flags & libc::O_NONBLOCK != 0)
    }

    /// Whether the process uses asynchronous I/O, with which the kernel may signal an eventfd by
    /// itself.
    pub fn has_async_io(&self) -> bool {
        let maps = read_proc_file(&format!("/proc/{}/maps", self.pid));
        maps.map_or(true, |maps| maps.contains("[aio]") || maps.contains("anon_inode:[io_uring]"))
    }
}

impl ProcessFacts for LiveProcess<'_> {
    fn is_woken_by_pm_only(&self, fd: i32) -> bool {
        self.is_pm_only(fd, 0)
    }

    fn is_pm_send(&self, fd: i32) -> bool {
        matches!(
            fd_kind(self.pid, fd),
            Some(FdKind::Socket(inode)) if self.sockets.is_pm_socket(inode)
        )
    }

    fn is_control(&self, fd: i32) -> bool {
        fd == CONTROL_FD && matches!(fd_kind(self.pid, fd), Some(FdKind::Socket(_)))
    }

    fn has_thread(&self, tid: u32) -> bool {
        self.tids.contains(&tid)
    }

    fn read_memory(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        let mut buffer = vec![0; len];
        memory.read_exact_at(&mut buffer, address).ok()?;
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
    use nix::sys::eventfd::EventFd;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_kind_of_a_descriptor_follows_from_its_link() {
        assert_eq!(parse_link("socket:[4711]"), FdKind::Socket(4711));
        assert_eq!(parse_link("anon_inode:[eventpoll]"), FdKind::Epoll);
        assert_eq!(parse_link("anon_inode:[eventfd]"), FdKind::EventFd);
        assert_eq!(parse_link("anon_inode:[timerfd]"), FdKind::Anonymous);
        assert_eq!(parse_link("anon_inode:[infinibandevent]"), FdKind::AdapterEvents);
        assert_eq!(parse_link("/dev/infiniband/uverbs0"), FdKind::Adapter);
        assert_eq!(parse_link("pipe:[1]"), FdKind::Pipe);
        assert_eq!(parse_link("/dev/null"), FdKind::File);
    }

    #[test]
    fn doorbells_are_recognised_by_their_name_and_senders_by_the_absence_of_a_name() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 00000002 00000000 00000000 0002 01 12 @score-pm-00ff-3\n\
                    0: 00000002 00000000 00000000 0002 01 13 /run/score-pm-1\n\
                    0: 00000002 00000000 00000000 0002 01 14\n\
                    0: 00000003 00000000 00000000 0002 03 15\n\
                    0: 00000003 00000000 00000000 0001 01 16\n";
        assert_eq!(
            parse_unix_sockets(list).collect::<Vec<_>>(),
            [SocketDirection::Receive(12), SocketDirection::SendOnly(14)]
        );
        let list = "sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt\n\
                    1: 0100007F:E1C2 0100007F:0009 01 0:0 00:0 0 0 0 17 2 0 0\n\
                    2: 00000000:0035 00000000:0000 07 0:0 00:0 0 0 0 18 2 0 0\n";
        assert_eq!(parse_udp_sockets(list).collect::<Vec<_>>(), [SocketDirection::SendOnly(17)]);
    }

    #[test]
    fn an_epoll_set_is_woken_by_pm_only_if_pm_wakes_all_of_its_descriptors() {
        let name = format!("score-pm-test-{}", std::process::id());
        let doorbell_address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let doorbell = UnixDatagram::bind_addr(&doorbell_address).unwrap();
        // This process is also the shepherd, so that all of its sockets would count as wires.
        let sockets =
            PmSockets { shepherd_sockets: OnceCell::from(HashSet::new()), ..PmSockets::default() };
        let live = LiveProcess::new(std::process::id() as i32, &sockets, HashSet::new(), 0, None);
        let (other_socket, _peer) = UnixDatagram::pair().unwrap();
        assert!(
            live.is_woken_by_pm_only(doorbell.as_raw_fd())
                && !live.is_woken_by_pm_only(other_socket.as_raw_fd())
        );
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let epoll_fd = epoll.0.as_raw_fd();
        let add = |fd| epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        assert!(!live.is_woken_by_pm_only(epoll_fd), "nothing is in it");
        let event = EventFd::new().unwrap();
        add(doorbell.as_fd());
        add(event.as_fd());
        assert!(
            live.is_woken_by_pm_only(epoll_fd)
                && !live.is_woken_by_pm_only(event.as_fd().as_raw_fd())
        );
        add(other_socket.as_fd());
        assert!(!live.is_woken_by_pm_only(epoll_fd));
        assert!(!live.is_woken_by_pm_only(9999));
    }

    // Promise of `one_line_names_the_host_without_rdma_and_the_reason`.
    #[test]
    fn adapters_beyond_those_opened_by_pm_are_detected() {
        let sockets = PmSockets::default();
        let has_others = |adapter_count, kinds: &[FdKind]| {
            let live = LiveProcess::new(1, &sockets, HashSet::new(), adapter_count, None);
            let kinds: Vec<_> = kinds.iter().map(|kind| (5, Some(*kind))).collect();
            live.has_other_adapters(&kinds)
        };
        let pm_fds =
            [FdKind::Adapter, FdKind::AdapterEvents, FdKind::AdapterEvents, FdKind::MemoryEvents];
        assert!(!has_others(1, &pm_fds) && !has_others(0, &[FdKind::EventFd]));
        for other in [FdKind::Adapter, FdKind::AdapterEvents, FdKind::MemoryEvents] {
            assert!(has_others(1, &[&pm_fds[..], &[other]].concat()));
        }
        assert!(has_others(0, &pm_fds[..1]));
    }

    #[test]
    fn mapped_memory_is_read_and_unmapped_memory_is_not() {
        let text = *b"memory of this process";
        let sockets = PmSockets::default();
        let live = LiveProcess::new(std::process::id() as i32, &sockets, HashSet::new(), 0, None);
        let address = text.as_ptr() as u64;
        assert_eq!(live.read_memory(address, text.len()).as_deref(), Some(&text[..]));
        assert_eq!(live.read_memory(8, 8), None);
    }
}
