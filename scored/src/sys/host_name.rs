//! The name of this host.

/// What the kernel calls this host.
pub fn system_host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}
