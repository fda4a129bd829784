//! The name of this host.

/// The host name that the kernel reports (uname(2)), or "localhost". Bytes that are not UTF-8 are
/// replaced.
pub fn system_host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_host_name_is_that_of_the_kernel() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(super::system_host_name(), name.trim_end_matches('\n'));
    }
}
