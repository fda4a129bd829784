//! Makes, enters and keeps namespaces of this thread.

use std::fs::{self, File};
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid, sethostname};

/// Opens this thread's namespace of one kind.
fn open(kind: &str) -> io::Result<File> {
    File::open(format!("/proc/thread-self/ns/{kind}"))
}

/// A network namespace with its UTS namespace: together they are a host.
#[derive(Debug)]
pub struct HostNamespace {
    net: File,
    uts: File,
}

impl HostNamespace {
    /// The namespaces in which this thread is now.
    pub fn current() -> io::Result<HostNamespace> {
        Ok(HostNamespace { net: open("net")?, uts: open("uts")? })
    }

    /// Makes a new host with this name, and moves this thread there.
    pub fn new(name: &str) -> io::Result<HostNamespace> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS)?;
        sethostname(name)?;
        disable_ipv6();
        HostNamespace::current()
    }

    /// Moves this thread there.
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

/// Moves this process into a new user namespace, in which it may make networks. The user keeps its
/// uid; other users are not mapped there.
pub fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Disables IPv6 for NICs that are made in this namespace from now on. Its neighbour discovery
/// would send thousands of packets through a switch of 64 hosts. Loopback keeps its ::1.
fn disable_ipv6() {
    // A machine without IPv6 has no such file, and in a container it may be read-only: both are
    // harmless.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}
