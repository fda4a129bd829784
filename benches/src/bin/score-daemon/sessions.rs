//! Measures the memory of the daemons for idle logins.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::getuid;
use score_benches::client::log_in;
use score_client::Connection;
use score_proto::client_session::JobMessage;
use score_proto::server_message::JobAnswer;
use serde_json::json;

use crate::BenchResult;
use crate::testbed::{HOSTILE_UID, HOSTS, ServiceTestbed, socket_of};

/// After this time a session has its final memory.
const SETTLE_GRACE: Duration = Duration::from_secs(1);
/// Time after which a process that holds sessions ends by itself.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// Prints, for logins at each host, the KiB of memory that one login costs on each daemon.
pub fn run(count: u32) -> BenchResult<()> {
    let mut result = json!({ "sessions": count });
    for host in HOSTS {
        // A new service is needed, because a daemon reuses the memory of earlier sessions.
        let testbed = ServiceTestbed::new("sessions")?;
        let before = resident_kib(&testbed)?;
        let socket = socket_of(&testbed.folder, host);
        let words = ["hold", &count.to_string(), &socket.to_string_lossy()];
        let mut holder = testbed.start_role(HOSTILE_UID, &words)?;
        holder.next_line()?;
        let memory = resident_kib(&testbed)?.into_iter().zip(before);
        for ((after, before), daemon) in memory.zip(HOSTS) {
            let kib = (after as f64 - before as f64) / f64::from(count);
            result[format!("{daemon}_kib_of_logins_at_{host}")] = json!(kib);
        }
    }
    println!("{result}");
    Ok(())
}

fn resident_kib(testbed: &ServiceTestbed) -> BenchResult<Vec<u64>> {
    let kib_of = |pid: u32| {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        kib.ok_or_else(|| format!("{path}: no VmRSS"))
    };
    testbed.process_ids().into_iter().map(kib_of).collect()
}

/// Raises the limit of open descriptors of this process to its maximum.
pub fn allow_many_descriptors() -> BenchResult<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|errno| errno.to_string())?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(|errno| errno.to_string())
}

/// Logs in `count` times, prints a line when all sessions are idle, and keeps the sessions.
pub fn hold(count: u32, socket: &Path) -> BenchResult<()> {
    allow_many_descriptors()?;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(log_in(socket, getuid().as_raw())?);
    }
    sleep(SETTLE_GRACE);
    for client in &mut clients {
        check_open(client)?;
    }
    println!("ready");
    sleep(HOLD_TIMEOUT);
    Ok(())
}

/// Fails if scored has refused the login or closed the connection.
fn check_open(client: &mut Connection) -> BenchResult<()> {
    match client.wait::<JobMessage<JobAnswer>>(Duration::ZERO)? {
        // After the greeting, scored sends nothing.
        None => Ok(()),
        Some(received) => Err(format!("a login: {received:?}")),
    }
}
