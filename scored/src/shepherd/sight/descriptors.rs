//! What the descriptors of a process are, from the outside (proc(5)): whether only PM makes them
//! readable.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::stands::Process;
use super::tasks::text;
use crate::shepherd::networks::Adapters;
use crate::sys::spawn::CONTROL_NUMBER;

/// Names of PM's doorbells (`pm/src/doorbell.rs`).
const BELL: &str = "@score-pm-";
/// RDMA adapters.
const ADAPTER: &str = "/dev/infiniband/uverbs";
/// epoll sets within epoll sets.
const DEPTH: usize = 4;

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Socket(u64),
    Epoll,
    Event,
    /// An open RDMA adapter.
    Adapter,
    /// What happens to one, or comes by it.
    OfAdapter,
    /// Changes of memory that is registered with one.
    OfMemory,
    /// Another one that has no file: timers, signals, io_uring…
    Anonymous,
    Pipe,
    File,
}

fn kind(link: &str) -> Kind {
    let number = |rest: &str| rest.strip_suffix(']').and_then(|number| number.parse().ok());
    if let Some(inode) = link.strip_prefix("socket:[").and_then(number) {
        return Kind::Socket(inode);
    }
    match link {
        "anon_inode:[eventpoll]" => Kind::Epoll,
        "anon_inode:[eventfd]" => Kind::Event,
        "anon_inode:[infinibandevent]" => Kind::OfAdapter,
        "anon_inode:[userfaultfd]" => Kind::OfMemory,
        _ if link.starts_with(ADAPTER) => Kind::Adapter,
        _ if link.starts_with("anon_inode:") => Kind::Anonymous,
        _ if link.starts_with("pipe:[") => Kind::Pipe,
        _ => Kind::File,
    }
}

fn kind_of(pid: i32, fd: i32) -> Option<Kind> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(kind(link.to_str()?))
}

/// The descriptors in an epoll set.
fn watched(fdinfo: &str) -> Option<Vec<i32>> {
    let lines = fdinfo.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.map(|line| line.split_ascii_whitespace().next()?.parse().ok()).collect()
}

/// A socket that is of PM, or may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// What comes there is counted.
    In(u64),
    /// What it is for is sending: nobody can send to it but a peer of its own choice.
    Out(u64),
}

/// Those among the Unix sockets of a network namespace (`/proc/net/unix`): doorbells by their
/// name, and what rings them, which has neither name nor peer.
fn unix(list: &str) -> impl Iterator<Item = Way> {
    list.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let inode = words.get(6)?.parse().ok()?;
        match words[..] {
            [_, _, _, _, _, _, _, name] if name.starts_with(BELL) => Some(Way::In(inode)),
            [_, _, _, _, "0002", "01", _] => Some(Way::Out(inode)),
            _ => None,
        }
    })
}

/// Those among the UDP sockets (`/proc/net/udp`): PM sends by connected ones.
fn udp(list: &str) -> impl Iterator<Item = Way> {
    list.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_connected = words.nth(3)? == "01";
        let inode = words.nth(5)?.parse().ok()?;
        is_connected.then_some(Way::Out(inode))
    })
}

/// The sockets of PM that processes of this host may have, by inode. A list is read when it is
/// asked for: the kernel takes long for that of UDP, and most jobs have none.
#[derive(Debug, Default)]
pub struct PmSockets {
    unix: OnceCell<Ways>,
    /// Wires that this process has, too.
    own: OnceCell<HashSet<u64>>,
    udp: OnceCell<Ways>,
}

#[derive(Debug, Default)]
struct Ways {
    incoming: HashSet<u64>,
    outgoing: HashSet<u64>,
}

impl FromIterator<Way> for Ways {
    fn from_iter<I: IntoIterator<Item = Way>>(ways: I) -> Self {
        let mut found = Self::default();
        for way in ways {
            match way {
                Way::In(inode) => found.incoming.insert(inode),
                Way::Out(inode) => found.outgoing.insert(inode),
            };
        }
        found
    }
}

impl PmSockets {
    fn unix(&self) -> &Ways {
        let read = || text("/proc/self/net/unix").unwrap_or_default();
        self.unix.get_or_init(|| unix(&read()).collect())
    }

    fn own(&self) -> &HashSet<u64> {
        let pid = std::process::id() as i32;
        let inode = |fd| match kind_of(pid, fd) {
            Some(Kind::Socket(inode)) => Some(inode),
            _ => None,
        };
        let find = || descriptors(pid).into_iter().flatten().filter_map(inode).collect();
        self.own.get_or_init(find)
    }

    fn udp(&self) -> &Ways {
        let read = |name| text(&format!("/proc/self/net/{name}")).unwrap_or_default();
        let lists = || ["udp", "udp6"].map(read);
        self.udp.get_or_init(|| lists().iter().flat_map(|list| udp(list)).collect())
    }

    /// Whether PM receives by it.
    fn brings(&self, inode: u64) -> bool {
        self.unix().incoming.contains(&inode) || self.own().contains(&inode)
    }

    /// Whether PM receives or sends by it.
    fn has(&self, inode: u64) -> bool {
        let has = |ways: &Ways| ways.outgoing.contains(&inode);
        self.brings(inode) || has(self.unix()) || has(self.udp())
    }
}

fn descriptors(pid: i32) -> Option<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    entries.map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// A process of the job.
pub struct Live<'a> {
    pid: i32,
    sockets: &'a PmSockets,
    tids: HashSet<u32>,
    adapters: Adapters,
}

impl<'a> Live<'a> {
    /// The process `pid`, which has these threads.
    pub fn new(pid: i32, sockets: &'a PmSockets, tids: HashSet<u32>, adapters: Adapters) -> Self {
        Self { pid, sockets, tids, adapters }
    }

    fn only_pm_rings(&self, fd: i32, depth: usize) -> bool {
        match kind_of(self.pid, fd) {
            Some(Kind::Socket(inode)) => self.sockets.brings(inode),
            // PM over ethernet rings by one, in the set that pmGetFd gives out.
            Some(Kind::Event) => depth > 0,
            Some(Kind::Epoll) if depth < DEPTH => {
                let info = text(&format!("/proc/{}/fdinfo/{fd}", self.pid));
                let inside = info.ok().and_then(|info| watched(&info));
                let inside = inside.filter(|inside| !inside.is_empty());
                inside.is_some_and(|fds| fds.iter().all(|fd| self.only_pm_rings(*fd, depth + 1)))
            }
            _ => false,
        }
    }

    /// Whether it might ask for what comes from outside without sleeping for it: nobody can see
    /// what a program polls.
    pub fn may_poll_others(&self) -> bool {
        let Some(fds) = descriptors(self.pid) else { return true };
        let kinds: Vec<_> = fds.into_iter().map(|fd| (fd, kind_of(self.pid, fd))).collect();
        self.has_other_adapters(&kinds)
            || kinds.into_iter().any(|(fd, kind)| match kind {
                Some(Kind::Socket(inode)) => !self.is_control(fd) && !self.sockets.has(inode),
                Some(Kind::Pipe) => fd > 2 || (fd == 0 && self.is_nonblocking(fd)),
                Some(Kind::File) => fd == 0 && self.is_nonblocking(fd),
                Some(Kind::Anonymous) => true,
                Some(Kind::Epoll | Kind::Event) => false,
                // Those of PM: counted above.
                Some(Kind::Adapter | Kind::OfAdapter | Kind::OfMemory) => false,
                // It was that of the directory itself, or has just been closed.
                None => false,
            })
    }

    /// Whether it uses RDMA, or watches memory, beside PM: which has for each adapter that it opens
    /// two descriptors of what happens there, librdmacm one, and one for all registered memory.
    fn has_other_adapters(&self, kinds: &[(i32, Option<Kind>)]) -> bool {
        let count =
            |wanted: &Kind| kinds.iter().filter(|(_, kind)| kind.as_ref() == Some(wanted)).count();
        let Adapters { own, managed } = self.adapters;
        count(&Kind::Adapter) > own + managed
            || count(&Kind::OfAdapter) > 2 * own + managed
            || count(&Kind::OfMemory) > own.min(1)
    }

    fn is_nonblocking(&self, fd: i32) -> bool {
        let info = text(&format!("/proc/{}/fdinfo/{fd}", self.pid));
        let flags = info.ok().and_then(|info| {
            let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim();
            i32::from_str_radix(line, 8).ok()
        });
        flags.is_none_or(|flags| flags & libc::O_NONBLOCK != 0)
    }

    /// Whether the kernel may ring an eventfd of its own accord: requests to files under way.
    pub fn has_requests(&self) -> bool {
        let maps = text(&format!("/proc/{}/maps", self.pid));
        maps.map_or(true, |maps| maps.contains("[aio]") || maps.contains("anon_inode:[io_uring]"))
    }
}

impl Process for Live<'_> {
    fn is_of_pm(&self, fd: i32) -> bool {
        self.only_pm_rings(fd, 0)
    }

    fn is_way_out(&self, fd: i32) -> bool {
        matches!(kind_of(self.pid, fd), Some(Kind::Socket(inode)) if self.sockets.has(inode))
    }

    fn is_control(&self, fd: i32) -> bool {
        fd == CONTROL_NUMBER && matches!(kind_of(self.pid, fd), Some(Kind::Socket(_)))
    }

    fn has_thread(&self, tid: u32) -> bool {
        self.tids.contains(&tid)
    }

    fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).ok()?;
        let mut found = vec![0; bytes];
        memory.read_exact_at(&mut found, address).ok()?;
        Some(found)
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

    const NONE: Adapters = Adapters { own: 0, managed: 0 };

    #[test]
    fn what_a_descriptor_is_stands_in_its_link() {
        assert_eq!(kind("socket:[4711]"), Kind::Socket(4711));
        assert_eq!(kind("anon_inode:[eventpoll]"), Kind::Epoll);
        assert_eq!(kind("anon_inode:[eventfd]"), Kind::Event);
        assert_eq!(kind("anon_inode:[timerfd]"), Kind::Anonymous);
        assert_eq!(kind("anon_inode:[infinibandevent]"), Kind::OfAdapter);
        assert_eq!(kind("/dev/infiniband/uverbs0"), Kind::Adapter);
        assert_eq!(kind("pipe:[1]"), Kind::Pipe);
        assert_eq!(kind("/dev/null"), Kind::File);
    }

    #[test]
    fn doorbells_are_found_by_their_name_and_who_rings_them_by_having_none() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 00000002 00000000 00000000 0002 01 12 @score-pm-00ff-3\n\
                    0: 00000002 00000000 00000000 0002 01 13 /run/score-pm-1\n\
                    0: 00000002 00000000 00000000 0002 01 14\n\
                    0: 00000003 00000000 00000000 0002 03 15\n\
                    0: 00000003 00000000 00000000 0001 01 16\n";
        assert_eq!(unix(list).collect::<Vec<_>>(), [Way::In(12), Way::Out(14)]);
        let list = "sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt\n\
                    1: 0100007F:E1C2 0100007F:0009 01 0:0 00:0 0 0 0 17 2 0 0\n\
                    2: 00000000:0035 00000000:0000 07 0:0 00:0 0 0 0 18 2 0 0\n";
        assert_eq!(udp(list).collect::<Vec<_>>(), [Way::Out(17)]);
    }

    #[test]
    fn a_set_is_of_pm_if_everything_in_it_is() {
        let name = format!("score-pm-test-{}", std::process::id());
        let bell = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let bell = UnixDatagram::bind_addr(&bell).unwrap();
        // This process is the shepherd, too, so that all of its sockets would be wires.
        let sockets = PmSockets { own: OnceCell::from(HashSet::new()), ..PmSockets::default() };
        let live = Live::new(std::process::id() as i32, &sockets, HashSet::new(), NONE);
        let (own, _peer) = UnixDatagram::pair().unwrap();
        assert!(live.is_of_pm(bell.as_raw_fd()) && !live.is_of_pm(own.as_raw_fd()));
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        let set = epoll.0.as_raw_fd();
        let add = |fd| epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        assert!(!live.is_of_pm(set), "nothing is in it");
        let event = EventFd::new().unwrap();
        add(bell.as_fd());
        add(event.as_fd());
        assert!(live.is_of_pm(set) && !live.is_of_pm(event.as_fd().as_raw_fd()));
        add(own.as_fd());
        assert!(!live.is_of_pm(set));
        assert!(!live.is_of_pm(9999));
    }

    #[test]
    fn adapters_that_pm_has_not_opened_may_bring_what_nobody_counts() {
        let sockets = PmSockets::default();
        let has_others = |(own, managed), kinds: &[Kind]| {
            let live = Live::new(1, &sockets, HashSet::new(), Adapters { own, managed });
            let kinds: Vec<_> = kinds.iter().map(|kind| (5, Some(*kind))).collect();
            live.has_other_adapters(&kinds)
        };
        let of_pm = [Kind::Adapter, Kind::OfAdapter, Kind::OfAdapter, Kind::OfMemory];
        assert!(!has_others((1, 0), &of_pm) && !has_others((0, 0), &[Kind::Event]));
        // The own one and another, which had the address that was tried first.
        let of_manager = [Kind::Adapter, Kind::OfAdapter].repeat(2);
        let of_iwarp = [&of_pm[..], &of_manager].concat();
        assert!(!has_others((1, 2), &of_iwarp) && has_others((1, 1), &of_iwarp));
        for other in [Kind::Adapter, Kind::OfAdapter, Kind::OfMemory] {
            assert!(has_others((1, 0), &[&of_pm[..], &[other]].concat()));
            assert!(has_others((1, 2), &[&of_iwarp[..], &[other]].concat()));
        }
        assert!(has_others((0, 0), &of_pm[..1]));
    }

    #[test]
    fn memory_is_read_where_there_is_some() {
        let text = *b"what is waited for";
        let sockets = PmSockets::default();
        let live = Live::new(std::process::id() as i32, &sockets, HashSet::new(), NONE);
        let address = text.as_ptr() as u64;
        assert_eq!(live.read(address, text.len()).as_deref(), Some(&text[..]));
        assert_eq!(live.read(8, 8), None);
    }
}
