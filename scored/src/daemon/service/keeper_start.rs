//! Starts the keeper, and turns this process into a daemon without privileges. Until then the
//! process has read only its command line and files that belong to root.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use score_sys::unix_socket::seqpacket_pair;

use super::config::{Config, ServiceOptions};
use super::job_ids;
use crate::daemon::keeper_client::KeeperClient;
use crate::shepherd;
use crate::sys::credentials::{self, UserIds};
use crate::sys::namespace::{self, Containment};
use crate::sys::process;

/// The default user of the daemon.
const DEFAULT_USER: &str = "scored";

/// The system user of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemUser(UserIds);

impl SystemUser {
    /// Looks up the user of the option `-user`, which is a name or a number.
    ///
    /// # Errors
    /// The user does not exist or is root.
    pub fn find(option: Option<&str>) -> Result<Self, String> {
        let name = option.unwrap_or(DEFAULT_USER);
        let user = match name.parse() {
            Ok(number) => Some(UserIds { uid: number, gid: number }),
            Err(_) => nix::unistd::User::from_name(name)
                .map_err(|error| format!("-user {name}: {error}"))?
                .map(|user| UserIds { uid: user.uid.as_raw(), gid: user.gid.as_raw() }),
        };
        match user {
            Some(user) if user.uid == 0 || user.gid == 0 => {
                Err(format!("-user {name}: the daemon must not run as root"))
            }
            Some(user) => Ok(Self(user)),
            None => Err(format!(
                "-user {name}: no such user, but the daemon runs as this user. Create it (useradd \
                 --system --user-group --no-create-home --shell /usr/sbin/nologin {name}), or use \
                 -user to name another user that owns no files"
            )),
        }
    }
}

/// Starts the keeper. Returns its client and the key of the links to other daemons. The calling
/// process must have only one thread.
///
/// # Errors
/// One line with the cause.
pub fn start(
    options: &ServiceOptions,
    config: &Config,
    user: SystemUser,
    (listener, socket_path): (&OwnedFd, &Path),
) -> Result<(KeeperClient, Option<[u8; 32]>), String> {
    let to_text = |error: io::Error| format!("the keeper cannot be started: {error}");
    let pair = || seqpacket_pair().map_err(to_text);
    let ((calls, keeper_calls), (events, keeper_events)) = (pair()?, pair()?);
    let number = |fd: &OwnedFd| OsString::from(fd.as_raw_fd().to_string());
    let mut words: Vec<OsString> = vec!["scored".into(), "-keeper".into()];
    let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
    add("-control", number(&keeper_calls));
    add("-events", number(&keeper_events));
    add("-listener", number(listener));
    add("-socket", socket_path.into());
    add("-host", config.hosts[config.local_index].name.clone().into());
    add("-user", user.0.uid.to_string().into());
    config.key_path.iter().for_each(|path| add("-key", path.into()));
    for name in trusted_interfaces(config) {
        add("-interface", name.into());
    }
    words.extend(options.no_namespace.then(|| "-nonamespace".into()));
    let words: Result<Vec<CString>, _> =
        words.into_iter().map(|word| CString::new(word.into_vec())).collect();
    let words = words.map_err(|error| error.to_string())?;
    let inherited = [&keeper_calls, &keeper_events, listener];
    namespace::start_self(Containment::Subreaper, &words, &inherited, None).map_err(to_text)?;
    drop((keeper_calls, keeper_events));
    KeeperClient::connect(calls, events)
}

/// The network interfaces of this host that scorehosts.db marks as trusted.
fn trusted_interfaces(config: &Config) -> Vec<String> {
    let networks = config.networks[config.local_index].iter();
    let networks = networks.filter(|network| network.trusted);
    let links = networks.flat_map(|network| match network.links.is_empty() {
        true => vec![config.address.ip().to_string()],
        false => network.links.clone(),
    });
    links.filter_map(|link| shepherd::interface(&link).ok()).collect()
}

/// Gives up all privileges permanently. The process must have only one thread.
///
/// # Errors
/// One line with the cause. The process must then exit.
pub fn become_daemon(user: SystemUser) -> Result<(), String> {
    job_ids::prepare_state(user.0);
    process::allow_realtime();
    credentials::become_system_user(user.0)
}
