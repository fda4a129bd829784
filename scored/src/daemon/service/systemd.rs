//! Messages to systemd, in the protocol of sd_notify(3). They report that the service is ready and
//! that its loop runs, and contain a line for `systemctl status`. If the loop hangs, the messages
//! stop, and systemd restarts the service.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use score_proto::ids::HostId;

use super::{Role, Service, warn};

/// The address of systemd's socket. systemd sets these variables.
const NOTIFY_SOCKET_ENV: &str = "NOTIFY_SOCKET";
/// The watchdog time-out in microseconds. systemd ends a service that is silent for longer.
const WATCHDOG_USEC_ENV: &str = "WATCHDOG_USEC";
/// The process id for which the watchdog is meant.
const WATCHDOG_PID_ENV: &str = "WATCHDOG_PID";

/// The connection to systemd.
#[derive(Debug)]
pub struct SystemdNotifier {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Watchdog>,
}

#[derive(Debug)]
struct Watchdog {
    interval: Duration,
    due_at: Instant,
}

impl SystemdNotifier {
    /// Opens a socket to systemd, if systemd has requested notifications.
    fn from_environment(now: Instant) -> Option<Self> {
        let path = std::env::var_os(NOTIFY_SOCKET_ENV)?;
        let [usec, pid] =
            [WATCHDOG_USEC_ENV, WATCHDOG_PID_ENV].map(|name| std::env::var(name).ok());
        let interval = watchdog_interval(usec.as_deref(), pid.as_deref(), std::process::id());
        let watchdog = interval.map(|interval| Watchdog { interval, due_at: now + interval });
        let connected = address_of(&path).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // The loop must not block if systemd does not read.
            socket.set_nonblocking(true)?;
            Ok(Self { socket, address, watchdog })
        });
        connected.inspect_err(warn_of_failure).ok()
    }

    fn send(&self, text: &str) -> io::Result<()> {
        self.socket.send_to_addr(text.as_bytes(), &self.address).map(|_| ())
    }

    /// The time until the next message for the watchdog.
    fn deadline(&self, now: Instant) -> Option<Duration> {
        Some(self.watchdog.as_ref()?.due_at.saturating_duration_since(now))
    }
}

impl Service {
    /// Notifies systemd that the service is ready.
    pub(super) fn notify_ready(&mut self) {
        self.systemd = SystemdNotifier::from_environment(Instant::now());
        let text = format!("READY=1\nSTATUS={}", self.status());
        let sent = self.systemd.as_ref().map(|systemd| systemd.send(&text));
        sent.and_then(Result::err).iter().for_each(warn_of_failure);
    }

    /// The time until systemd has to be notified.
    pub fn systemd_deadline(&self, now: Instant) -> Option<Duration> {
        self.systemd.as_ref()?.deadline(now)
    }

    /// The line for `systemctl status`.
    fn status(&self) -> String {
        let Role::Server(cluster) = &self.role else {
            return format!("host of the server {}", self.config.server);
        };
        let up =
            (0..).map(HostId).zip(&self.config.hosts).filter(|(id, _)| cluster.is_up(*id)).count();
        let jobs = cluster.job_count();
        format!("server: {up} of {} hosts up, jobs: {jobs}", self.config.hosts.len())
    }
}

impl Service {
    /// Notifies systemd at intervals that the loop runs.
    pub fn notify_watchdog(&mut self) {
        let watchdog = self.systemd.as_mut().and_then(|systemd| systemd.watchdog.as_mut());
        let Some(watchdog) = watchdog else { return };
        let now = Instant::now();
        if watchdog.due_at > now {
            return;
        }
        watchdog.due_at = now + watchdog.interval;
        let text = format!("WATCHDOG=1\nSTATUS={}", self.status());
        // An error can be ignored: it is temporary, or systemd ends this process.
        let _ = self.systemd.as_ref().map(|systemd| systemd.send(&text));
    }
}

fn address_of(path: &OsStr) -> io::Result<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

fn warn_of_failure(error: &io::Error) {
    warn(&format!("cannot notify systemd that scored is ready: {error}"));
}

/// How often systemd has to be notified: half of its time-out, as sd_watchdog_enabled(3)
/// recommends. Returns `None` if the watchdog is disabled or is meant for another process.
fn watchdog_interval(usec: Option<&str>, pid: Option<&str>, self_pid: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok()?;
    let is_for_self = pid.is_none_or(|pid| pid.parse() == Ok(self_pid));
    // The largest number means that there is no time-out.
    let is_enabled = usec > 0 && usec < u64::MAX;
    (is_for_self && is_enabled).then(|| Duration::from_micros(usec) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_notified_twice_in_its_time_out_if_it_is_for_this_process() {
        let half_second = Some(Duration::from_millis(500));
        for (usec, pid, expected) in [
            (Some("1000000"), None, half_second),
            (Some("1000000"), Some("7"), half_second),
            (Some("1000000"), Some("8"), None),
            (Some("1000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("x"), None, None),
            (Some("18446744073709551615"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(watchdog_interval(usec, pid, 7), expected, "{usec:?} {pid:?}");
        }
    }

    #[test]
    fn an_address_is_a_path_or_an_abstract_name() {
        let path = address_of(OsStr::new("/run/socket")).unwrap();
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/socket")));
        let name = address_of(OsStr::new("@name")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"name"[..]));
        assert!(address_of(OsStr::new(&"x".repeat(200))).is_err());
    }
}
