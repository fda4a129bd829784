//! The name of this host.

/// The host name that the kernel reports (uname(2)), or "localhost".
pub fn system_host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}
