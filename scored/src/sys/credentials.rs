//! Changes this process to the user of a job. The change is irrevocable, and happens before any
//! file of the user is opened. Also queries the credentials of the peer of a local socket.

// UNSAFETY: the session keyring, limits, and a process of a socket: no safe wrapper.
#![expect(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{AcceptConn, PeerCredentials};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use score_proto::job_control::{Limit, Owner};
use serde::{Deserialize, Serialize};

use super::name_lookup::{LookupScope, UserLookup};
use super::process;

/// KEYCTL_JOIN_SESSION_KEYRING
const JOIN_SESSION_KEYRING: libc::c_int = 1;

/// The ioctl of local sockets that opens the file of a socket (linux/un.h).
const SIOCUNIXFILE: libc::c_ulong = 0x89e0;

/// The uid and the gid of a process, or of an owner of files. They have names here, because two
/// bare numbers are easily exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserIds {
    /// The uid.
    pub uid: u32,
    /// The gid.
    pub gid: u32,
}

impl From<&Owner> for UserIds {
    fn from(owner: &Owner) -> Self {
        Self { uid: owner.uid, gid: owner.gid }
    }
}

/// Changes this process, which has one thread and runs as root, to the owner's user and groups.
/// After that, neither this process nor its children can regain root privileges.
///
/// # Errors
/// One line with the reason. The process must then exit and do nothing for the user.
pub fn become_owner(owner: &Owner) -> Result<(), String> {
    let scope = LookupScope::NameAndGroups(Gid::from_raw(owner.gid));
    let entry = UserLookup::start(owner.uid, scope)?.wait()?;
    let name = String::from_utf8_lossy(&owner.name.0).into_owned();
    let groups = match entry {
        // A uid without an entry in the name services has no other groups.
        None => vec![owner.gid],
        // The daemon of the login has looked up the name. An empty name means that the submitting
        // host has no user with this uid. The user with this uid on this host is then a different
        // one.
        Some(entry) if entry.name != name => {
            let name = if name.is_empty() { "nobody" } else { &name };
            return Err(format!(
                "uid {} is {name} where the job was submitted, and {} here: give both hosts \
                 the same users",
                owner.uid, entry.name
            ));
        }
        Some(entry) => entry.groups,
    };
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot become uid {}: {what}: {error}", owner.uid)
    };
    reset_inherited_state(&owner.limits);
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    set_ids(owner.into(), &groups).map_err(|(call, errno)| failed(call, &errno))?;
    join_session_keyring();
    verify_irrevocable(owner.into()).map_err(|reason| failed("revocable", &reason))
}

/// Changes all ids of this process. An error names the call that has failed.
fn set_ids(ids: UserIds, groups: &[Gid]) -> Result<(), (&'static str, Errno)> {
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    setgroups(groups).map_err(|errno| ("setgroups", errno))?;
    setresgid(gid, gid, gid).map_err(|errno| ("setresgid", errno))?;
    setresuid(uid, uid, uid).map_err(|errno| ("setresuid", errno))
}

/// Changes this process, which has one thread and runs as root, to a system user without any
/// capability. Programs that it executes cannot gain capabilities.
///
/// # Errors
/// One line with the reason. The process must then exit.
pub fn become_system_user(ids: UserIds) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot become the system user, uid {}: {what}: {error}", ids.uid)
    };
    set_ids(ids, &[Gid::from_raw(ids.gid)]).map_err(|(call, errno)| failed(call, &errno))?;
    // SAFETY: plain prctl with integer arguments. After a change of ids, the kernel sets the
    // dumpable flag to the value of the sysctl fs.suid_dumpable. This call makes the process not
    // dumpable on every machine.
    let result = unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0)
            | libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    };
    if result != 0 {
        return Err(failed("prctl", &std::io::Error::last_os_error()));
    }
    verify_irrevocable(ids).map_err(|reason| failed("revocable", &reason))
}

/// The capabilities of a process that opens raw sockets: for packet sockets, AF_XDP and its
/// program, and locked memory.
const RAW_SOCKET_CAPABILITIES: u64 =
    1 << CAP_NET_RAW | 1 << CAP_NET_ADMIN | 1 << CAP_IPC_LOCK | 1 << CAP_BPF;
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_IPC_LOCK: u32 = 14;
const CAP_BPF: u32 = 39;
/// _LINUX_CAPABILITY_VERSION_3
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Changes this process, which has one thread and runs as root, to this user. The process keeps
/// only the capabilities that raw sockets need. Processes of the user cannot trace it.
///
/// # Errors
/// One line with the reason. The process must then exit.
pub fn become_raw_socket_opener(ids: UserIds) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot give up root privileges: {what}: {error}")
    };
    let last_error = |what: &str| failed(what, &std::io::Error::last_os_error());
    let permitted = permitted_capabilities()
        .ok_or_else(|| failed("/proc/self/status", &"the capabilities are missing"))?;
    // SAFETY: plain prctl with integer arguments.
    if unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) } != 0 {
        return Err(last_error("prctl"));
    }
    set_ids(ids, &[Gid::from_raw(ids.gid)]).map_err(|(call, errno)| failed(call, &errno))?;
    let kept = permitted & RAW_SOCKET_CAPABILITIES;
    let [low, high] = [kept as u32, (kept >> 32) as u32];
    let header: [u32; 2] = [CAPABILITY_VERSION, 0];
    // The effective, permitted and inheritable capabilities, each in two words.
    let sets: [u32; 6] = [low, low, 0, high, high, 0];
    // SAFETY: both arrays have the layout of linux/capability.h for this version.
    if unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) } != 0 {
        return Err(last_error("capset"));
    }
    // SAFETY: plain prctl with integer arguments.
    let result = unsafe {
        libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0)
            | libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0)
            | libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    };
    if result != 0 {
        return Err(last_error("prctl"));
    }
    let root = Uid::from_raw(0);
    match ids.uid != 0 && setresuid(root, root, root).is_ok() {
        true => Err(failed("setresuid", &"root privileges can be regained")),
        false => Ok(()),
    }
}

fn permitted_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Leaves the session keyring of the service and joins a new one. The new keyring belongs to the
/// current uid. This must therefore be called after the change to the user.
fn join_session_keyring() {
    // SAFETY: no memory is passed; a kernel without keyrings answers ENOSYS.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) };
}

/// Resets attributes of the service that the user must not inherit: niceness, OOM score and limits.
fn reset_inherited_state(limits: &[Limit]) {
    if fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|text| text.starts_with('-')) {
        let _ = fs::write("/proc/self/oom_score_adj", "0");
    }
    // SAFETY: plain numbers.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) < 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
    }
    for limit in limits {
        process::lower_limit(limit);
    }
}

/// Verifies that root privileges cannot be regained.
fn verify_irrevocable(UserIds { uid, gid }: UserIds) -> Result<(), String> {
    let ids = nix::unistd::getresuid().map_err(|error| error.to_string())?;
    let groups = nix::unistd::getresgid().map_err(|error| error.to_string())?;
    let uids = [ids.real, ids.effective, ids.saved];
    if uids.iter().any(|id| id.as_raw() != uid) {
        return Err("another uid is left".to_owned());
    }
    let gids = [groups.real, groups.effective, groups.saved];
    if gids.iter().any(|id| id.as_raw() != gid) {
        return Err("another gid is left".to_owned());
    }
    if uid == 0 {
        return Ok(());
    }
    let root = Uid::from_raw(0);
    if setresuid(root, root, root).is_ok() {
        return Err("root privileges can be regained".to_owned());
    }
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let sets = ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"];
    let mut capabilities =
        status.lines().filter(|line| sets.iter().any(|set| line.starts_with(set)));
    match capabilities
        .find(|line| line.split_whitespace().nth(1).is_some_and(|bits| !is_zero(bits)))
    {
        Some(line) => Err(format!("capabilities are left ({line})")),
        None => Ok(()),
    }
}

fn is_zero(digits: &str) -> bool {
    digits.bytes().all(|digit| digit == b'0')
}

/// The uid and gid of the peer of a local socket. The kernel recorded them when the socket was
/// connected.
///
/// # Errors
/// The errors of getsockopt(2).
pub fn peer_ids(socket: &impl AsFd) -> std::io::Result<UserIds> {
    let peer = getsockopt(socket, PeerCredentials)?;
    Ok(UserIds { uid: peer.uid(), gid: peer.gid() })
}

/// The resource limits that a job inherits from its user, with their names in /proc/PID/limits.
const INHERITED_LIMITS: [(libc::__rlimit_resource_t, &str); 11] = [
    (libc::RLIMIT_AS, "Max address space"),
    (libc::RLIMIT_CORE, "Max core file size"),
    (libc::RLIMIT_CPU, "Max cpu time"),
    (libc::RLIMIT_DATA, "Max data size"),
    (libc::RLIMIT_FSIZE, "Max file size"),
    (libc::RLIMIT_MEMLOCK, "Max locked memory"),
    (libc::RLIMIT_MSGQUEUE, "Max msgqueue size"),
    (libc::RLIMIT_NICE, "Max nice priority"),
    (libc::RLIMIT_NPROC, "Max processes"),
    (libc::RLIMIT_RTPRIO, "Max realtime priority"),
    (libc::RLIMIT_STACK, "Max stack size"),
];

/// The resource limits of the process that has connected a local socket, from the kernel.
///
/// # Errors
/// The errors of getsockopt(2), and of open(2) for /proc/PID/limits. Also an error if the process
/// has exited.
pub fn peer_limits(socket: &impl AsFd) -> std::io::Result<Vec<Limit>> {
    let pid = getsockopt(socket, PeerCredentials)?.pid();
    // Since Linux 6.5. The descriptor shows whether the process id still belongs to this process.
    let pidfd = peer_pidfd(socket);
    // prlimit(2) of another user's process needs CAP_SYS_RESOURCE, which root lacks in a container.
    let limits = parse_limits(&fs::read_to_string(format!("/proc/{pid}/limits"))?)
        .ok_or_else(|| std::io::Error::other("/proc/PID/limits has another format"))?;
    // Without the descriptor, the process id may belong to another user's process.
    let uid = getsockopt(socket, PeerCredentials)?.uid();
    if pidfd.is_none() && fs::metadata(format!("/proc/{pid}"))?.uid() != uid {
        return Err(std::io::Error::other("the process has ended"));
    }
    let has_ended = |pidfd: OwnedFd| {
        let mut polled = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO) != Ok(0)
    };
    match pidfd.is_some_and(has_ended) {
        true => Err(std::io::Error::other("the process has ended")),
        false => Ok(limits),
    }
}

/// The limits in the text of /proc/PID/limits. None if one is missing.
fn parse_limits(text: &str) -> Option<Vec<Limit>> {
    let value = |word: &str| match word {
        "unlimited" => Some(libc::RLIM_INFINITY),
        number => number.parse().ok(),
    };
    let limit = |&(resource, name): &(libc::__rlimit_resource_t, &str)| {
        let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
        let (soft, hard) = (value(words.next()?)?, value(words.next()?)?);
        Some(Limit { resource, soft, hard })
    };
    INHERITED_LIMITS.iter().map(limit).collect()
}

/// The cookie of a socket. The kernel assigns it to no other socket until the host is rebooted.
///
/// # Errors
/// The errors of getsockopt(2).
pub fn socket_cookie(socket: &impl AsFd) -> std::io::Result<u64> {
    let (mut cookie, mut len): (u64, libc::socklen_t) = (0, 8);
    // SAFETY: writes at most eight bytes to the integer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()) }
}

/// The identity of a file: the numbers of its file system and of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

/// The file to which a local socket is bound. A connection that a listener has accepted is bound to
/// the listener's file. No other socket can be bound to it, because bind(2) creates a new file.
///
/// # Errors
/// The socket is bound to no file, or this process lacks CAP_NET_ADMIN.
pub fn bound_file(socket: &impl AsFd) -> std::io::Result<FileIdentity> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let metadata = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) }).metadata()?;
    Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
}

/// Removes a path if it is the file to which a local socket is bound. Another process may have
/// removed that file and bound its own socket to the path.
pub fn remove_bound_file(socket: &impl AsFd, path: &Path) {
    let identity =
        |metadata: fs::Metadata| FileIdentity { device: metadata.dev(), inode: metadata.ino() };
    let at_path = fs::symlink_metadata(path).map(identity);
    if let (Ok(own), Ok(at_path)) = (bound_file(socket), at_path)
        && own == at_path
    {
        let _ = fs::remove_file(path);
    }
}

/// Whether a socket accepts connections. Also true if the kernel does not report it.
pub fn is_listening(socket: &impl AsFd) -> bool {
    getsockopt(socket, AcceptConn).unwrap_or(true)
}

/// Whether the other end of a connected socket is closed.
pub fn peer_has_closed(socket: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    let _ = poll(&mut polled, PollTimeout::ZERO);
    polled[0].revents().is_none_or(|events| events.contains(PollFlags::POLLHUP))
}

fn peer_pidfd(socket: &impl AsFd) -> Option<OwnedFd> {
    let (mut fd, mut len): (libc::c_int, libc::socklen_t) = (-1, 4);
    // SAFETY: writes at most four bytes to the integer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut len,
        )
    };
    // SAFETY: the kernel has just made this descriptor for us.
    (result == 0 && fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::job_control::Status;
    use score_proto::message::OsBytes;
    use socket2::{Domain, Socket, Type};

    fn owner(uid: u32, name: &str) -> Owner {
        let name = OsBytes(name.as_bytes().to_vec());
        Owner { uid, gid: uid, name, limits: Vec::new(), voucher: Vec::new() }
    }

    /// Runs `check` in a child process and returns its result.
    fn in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs plain code and ends at once; no other thread of the test harness
        // holds a lock that it needs for longer than a moment (glibc's allocator is fork-safe).
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!check());
            // SAFETY: ends the child only.
            unsafe { libc::_exit(code) }
        }
        process::wait_for(pid).map(|reaped| reaped.status) == Some(Status::Exited(0))
    }

    fn is_root() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root can change to another user");
        }
        root
    }

    // Promise of `a_job_is_isolated_from_other_users`.
    #[test]
    fn a_process_that_became_a_user_cannot_regain_root_and_has_only_the_users_groups() {
        if !is_root() {
            return;
        }
        // A uid without an entry in the name services has only its own group.
        assert!(in_child(|| {
            let result = become_owner(&owner(54_321, ""));
            let groups = nix::unistd::getgroups().unwrap_or_default();
            let root = Uid::from_raw(0);
            result == Ok(())
                && groups == [Gid::from_raw(54_321)]
                && setresuid(root, root, root).is_err()
                && fs::read("/etc/shadow").is_err()
        }));
    }

    // Promise of `a_job_is_isolated_from_other_users`.
    #[test]
    fn a_uid_with_another_name_on_this_host_is_refused_with_both_names() {
        if !is_root() {
            return;
        }
        assert!(in_child(|| {
            let error = become_owner(&owner(1, "alice")).unwrap_err();
            error.contains("alice") && error.contains("daemon") && nix::unistd::geteuid().is_root()
        }));
    }

    #[test]
    fn a_uid_without_a_name_on_the_submitting_host_is_not_the_user_of_this_host() {
        if !is_root() {
            return;
        }
        assert!(in_child(|| {
            let error = become_owner(&owner(1, "")).unwrap_err();
            error.contains("is nobody where") && nix::unistd::geteuid().is_root()
        }));
        assert!(in_child(|| become_owner(&owner(1, "daemon")) == Ok(())));
    }

    #[test]
    fn the_limits_of_a_process_are_read_from_proc() {
        let text = fs::read_to_string("/proc/self/limits").unwrap();
        let limits = parse_limits(&text).unwrap();
        assert_eq!(limits.len(), INHERITED_LIMITS.len());
        for limit in limits {
            let own = process::resource_limit(limit.resource);
            assert_eq!((limit.soft, limit.hard), (own.rlim_cur, own.rlim_max));
        }
        assert_eq!(parse_limits("Max cpu time  1 2 seconds\n"), None);
        assert_eq!(parse_limits(&text.replace("Max cpu time", "Max cpu time  x")), None);
    }

    // Promise of `a_job_is_isolated_from_other_users`.
    #[test]
    fn limits_are_lowered_and_never_raised() {
        assert!(in_child(|| {
            let initial = process::resource_limit(libc::RLIMIT_NOFILE);
            let claim = |soft, hard| Limit { resource: libc::RLIMIT_NOFILE, soft, hard };
            process::lower_limit(&claim(u64::MAX, u64::MAX));
            let unchanged =
                process::resource_limit(libc::RLIMIT_NOFILE).rlim_max == initial.rlim_max;
            process::lower_limit(&claim(40, 50));
            let lowered = process::resource_limit(libc::RLIMIT_NOFILE);
            unchanged && (lowered.rlim_cur, lowered.rlim_max) == (40, 50)
        }));
    }

    #[test]
    fn the_opener_of_raw_sockets_runs_as_the_user_and_cannot_open_files_of_root() {
        if !is_root() {
            return;
        }
        let had = permitted_capabilities().unwrap();
        assert!(in_child(|| {
            let result = become_raw_socket_opener(UserIds { uid: 54_321, gid: 54_321 });
            let root = Uid::from_raw(0);
            result == Ok(())
                && nix::unistd::geteuid().as_raw() == 54_321
                && permitted_capabilities() == Some(had & RAW_SOCKET_CAPABILITIES)
                && Socket::new(Domain::PACKET, Type::RAW, None).is_ok()
                && setresuid(root, root, root).is_err()
                && fs::read("/etc/shadow").is_err()
        }));
    }

    #[test]
    fn an_accepted_connection_is_bound_to_the_path_of_its_listener_and_its_peer_to_none() {
        if !is_root() {
            return;
        }
        let path = |number: u32| {
            let name = format!("score-bound-{}-{number}", std::process::id());
            std::env::temp_dir().join(name)
        };
        let [(one, client, accepted), (other, ..)] = [1, 2].map(|number| {
            let listener = std::os::unix::net::UnixListener::bind(path(number)).unwrap();
            let client = std::os::unix::net::UnixStream::connect(path(number)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            (listener, client, accepted)
        });
        [1, 2].iter().for_each(|number| fs::remove_file(path(*number)).unwrap());
        let file = bound_file(&one).unwrap();
        assert_eq!(bound_file(&accepted).unwrap(), file);
        assert_ne!(bound_file(&other).unwrap(), file);
        assert_eq!((is_listening(&one), is_listening(&accepted)), (true, false));
        let error = bound_file(&client).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_path_is_removed_only_if_the_socket_is_bound_to_it() {
        if !is_root() {
            return;
        }
        let path = std::env::temp_dir().join(format!("score-removed-{}", std::process::id()));
        let bind = || std::os::unix::net::UnixListener::bind(&path).unwrap();
        let earlier = bind();
        fs::remove_file(&path).unwrap();
        let later = bind();
        remove_bound_file(&earlier, &path);
        assert!(path.exists());
        remove_bound_file(&later, &path);
        assert!(!path.exists());
    }

    #[test]
    fn a_local_socket_reports_the_ids_of_its_peer() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        assert_eq!(peer_ids(&socket).unwrap(), UserIds { uid, gid });
    }
}
