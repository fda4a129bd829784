//! Creates, enters and keeps namespaces of the calling thread.

use std::fs::{self, File};
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid, sethostname};

/// Opens this thread's namespace of one kind.
fn open(kind: &str) -> io::Result<File> {
    File::open(format!("/proc/thread-self/ns/{kind}"))
}

/// A network namespace and its UTS namespace. Together they form a host.
#[derive(Debug)]
pub struct HostNamespace {
    net: File,
    uts: File,
}

impl HostNamespace {
    /// The namespaces of the calling thread.
    pub fn current() -> io::Result<HostNamespace> {
        Ok(HostNamespace { net: open("net")?, uts: open("uts")? })
    }

    /// Creates a host with this name, and moves the calling thread there.
    pub fn new(name: &str) -> io::Result<HostNamespace> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS)?;
        sethostname(name)?;
        disable_ipv6();
        HostNamespace::current()
    }

    /// Moves the calling thread to this host.
    pub fn enter(&self) -> io::Result<()> {
        setns(&self.net, CloneFlags::CLONE_NEWNET)?;
        setns(&self.uts, CloneFlags::CLONE_NEWUTS)?;
        Ok(())
    }

    /// The network namespace.
    pub fn net(&self) -> &File {
        &self.net
    }
}

/// Moves this process into a new user namespace, in which it may create networks. The user keeps
/// the uid. Other users are not mapped in the namespace.
pub fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Disables IPv6 for NICs that are created in this namespace from now on. Its neighbour discovery
/// would send thousands of packets through a switch of 64 hosts. Loopback keeps its ::1.
fn disable_ipv6() {
    // A machine without IPv6 has no such file, and in a container the file may be read-only. Both
    // are harmless.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}
