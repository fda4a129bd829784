//! Issues and checks vouchers. A voucher identifies the process at the other end of a connection,
//! according to the kernel and the name services of this host.

use std::os::fd::OwnedFd;
use std::time::Instant;

use score_keeper::record::Event;
use score_keeper::voucher::{
    KEY_LEN, MAX_USER_NAME_LEN, ResourceLimit, VOUCHER_TTL_S, Voucher, VoucherKey,
};

use super::user_names::UserNames;
use crate::daemon::shepherd_handle::KnownChildren;
use crate::sys::credentials::{self, FileIdentity, UserIds};
use crate::sys::wall_clock::unix_seconds;

/// Environment variable for tests: another period of validity in seconds.
const VOUCHER_TTL_ENV: &str = "SCORE_TEST_VOUCHER_TTL_S";

/// A login that waits for the name of its user.
#[derive(Debug)]
struct Applicant {
    session: u64,
    ids: UserIds,
    connection: u64,
    limits: Vec<ResourceLimit>,
}

/// Issues and checks vouchers.
#[derive(Debug)]
pub struct VoucherIssuer {
    key: VoucherKey,
    /// The file of the local socket of users.
    socket_file: FileIdentity,
    host: Vec<u8>,
    ttl_s: u64,
    names: UserNames<Applicant>,
    known_children: KnownChildren,
}

impl VoucherIssuer {
    /// Creates an issuer with the key of the cluster, on this host. It vouches for connections to
    /// the socket with this file.
    pub fn new(
        cluster_key: &[u8; KEY_LEN],
        socket_file: FileIdentity,
        host: &str,
        known_children: KnownChildren,
    ) -> Self {
        let from_test = std::env::var(VOUCHER_TTL_ENV).ok().and_then(|text| text.parse().ok());
        Self {
            key: VoucherKey::new(cluster_key),
            socket_file,
            host: host.as_bytes().to_vec(),
            ttl_s: from_test.unwrap_or(VOUCHER_TTL_S).min(VOUCHER_TTL_S),
            names: UserNames::default(),
            known_children,
        }
    }

    /// The kernel's number of a connection to the local socket of users. The keeper vouches for no
    /// other connection. Otherwise a daemon could connect to a service that runs as root and
    /// present that connection, whose peer is root.
    fn connection(&self, socket: &OwnedFd) -> Result<u64, String> {
        let is_connection = credentials::bound_file(socket)
            .is_ok_and(|file| file == self.socket_file)
            // The listening socket has the same file. The kernel reports root as its peer.
            && !credentials::is_listening(socket);
        match is_connection {
            true => credentials::socket_cookie(socket).map_err(|error| error.to_string()),
            false => Err("it is not a connection to the socket of this service".to_owned()),
        }
    }

    /// Vouches for the process at the other end of a connection. If the name of its user is not
    /// cached, the event follows later.
    ///
    /// # Errors
    /// One line: the keeper refuses to vouch for the process.
    pub fn vouch(&mut self, session: u64, socket: &OwnedFd) -> Result<Option<Event>, String> {
        let connection = self.connection(socket)?;
        let ids = credentials::peer_ids(socket).map_err(|error| error.to_string())?;
        // The limits come from the kernel, not from the client. Without limits, the user's jobs
        // would get the limits of the service.
        let limits = credentials::peer_limits(socket)
            .map_err(|error| format!("the limits of your process: {error}"))?;
        let limits = limits.iter().map(|limit| ResourceLimit {
            resource: limit.resource,
            soft: limit.soft,
            hard: limit.hard,
        });
        let applicant = Applicant { session, ids, connection, limits: limits.collect() };
        match self.names.known(ids.uid, Instant::now()) {
            Some(name) => Ok(Some(self.event(applicant, name))),
            None => {
                self.known_children.borrow_mut().extend(self.names.look_up(ids.uid, applicant)?);
                Ok(None)
            }
        }
    }

    fn event(&self, applicant: Applicant, name: Vec<u8>) -> Event {
        let Applicant { session, ids, connection, limits } = applicant;
        if name.len() > MAX_USER_NAME_LEN {
            return Event::NotVouched { session, reason: "your name is too long".to_owned() };
        }
        let voucher = Voucher {
            uid: ids.uid,
            gid: ids.gid,
            session: connection,
            expires_at: unix_seconds() + self.ttl_s,
            name,
            login_host: self.host.clone(),
            limits,
        };
        Event::Vouched { session, voucher: self.key.seal(&voucher) }
    }

    /// Issues a new voucher for a connection that is still open.
    ///
    /// # Errors
    /// One line: the voucher is not valid or is for another connection, or the user has
    /// disconnected.
    pub fn renew(&self, socket: &OwnedFd, voucher: &[u8]) -> Result<Vec<u8>, String> {
        let connection = self.connection(socket)?;
        let voucher = self.verify(voucher)?;
        if voucher.session != connection || voucher.login_host != self.host {
            return Err("the voucher is for another connection".to_owned());
        }
        if credentials::peer_has_closed(socket) {
            return Err("the user has closed the connection".to_owned());
        }
        let expires_at = unix_seconds() + self.ttl_s;
        Ok(self.key.seal(&Voucher { expires_at, ..voucher }))
    }

    /// Checks a voucher and returns its contents.
    ///
    /// # Errors
    /// One line with the reason why it is not valid.
    pub fn verify(&self, voucher: &[u8]) -> Result<Voucher, String> {
        self.key.open(voucher, unix_seconds()).map_err(|error| error.to_string())
    }

    /// Issues vouchers for the logins whose names have been looked up.
    pub fn finish_lookups(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for finished in self.names.take_finished() {
            for applicant in finished.logins {
                events.push(match &finished.name {
                    Ok(name) => self.event(applicant, name.clone()),
                    Err(reason) => {
                        let session = applicant.session;
                        Event::NotVouched { session, reason: reason.clone() }
                    }
                });
            }
        }
        events
    }

    /// The names and look-ups.
    pub fn names(&self) -> &UserNames<impl Sized> {
        &self.names
    }

    /// Records that a child of this process has been reaped.
    pub fn on_child_reaped(&mut self, pid: i32) {
        self.names.on_child_reaped(pid);
    }
}
