//! Vouchers of users. This module requests a voucher at the login and renews it during the session.
//! The keeper issues and checks vouchers (`daemon/keeper_client.rs`).

use std::time::{Duration, Instant};

use score_keeper::voucher::Voucher;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::ids::HostId;
use score_proto::job_control::{Limit, Owner};
use score_proto::message::OsBytes;
use score_proto::peer_message::PeerMessage;
use score_proto::peer_message::SERVER;

use super::super::Daemon;
use super::super::keeper_client::{KeeperError, SharedKeeper, VouchResult};
use super::super::session::ClientSession;
use super::super::session_state::LoginClaim;
use super::super::sessions::Sessions;
use super::{LogTopic, Service, warn};
use crate::sys::wall_clock::unix_seconds;
use score_job::jobs::SessionKey;

/// The delay before a failed renewal is tried again.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// The vouchers of this host's users.
#[derive(Debug)]
pub struct Vouchers {
    keeper: SharedKeeper,
    /// The time at which the first voucher of a session has to be renewed.
    next_renewal_at: Option<Instant>,
}

/// An attempt to renew the voucher of a session.
#[derive(Debug)]
pub struct Renewal {
    /// The session.
    pub session_key: SessionKey,
    /// The user of the session.
    pub uid: Option<u32>,
    /// Whether the session is forwarded to the server.
    pub is_forwarded: bool,
    /// The new voucher, or why there is none.
    pub result: Result<Vec<u8>, KeeperError>,
}

/// Reads the user from a voucher, without a check of the voucher.
///
/// # Errors
/// The voucher is malformed.
pub fn owner_of(voucher: Vec<u8>) -> Result<Owner, String> {
    let content = Voucher::read_unverified(&voucher).map_err(|error| error.to_string())?;
    let limits = content.limits.iter().map(|limit| Limit {
        resource: limit.resource,
        soft: limit.soft,
        hard: limit.hard,
    });
    Ok(Owner {
        uid: content.uid,
        gid: content.gid,
        name: OsBytes(content.name),
        limits: limits.collect(),
        voucher,
    })
}

/// The time at which a voucher has to be renewed: after half of its remaining validity.
fn renewal_time(voucher: &[u8], now: Instant) -> Instant {
    let expires_at = Voucher::read_unverified(voucher).map_or(0, |voucher| voucher.expires_at);
    now + Duration::from_secs(expires_at.saturating_sub(unix_seconds())) / 2
}

impl Vouchers {
    /// Creates the state without sessions.
    pub fn new(keeper: SharedKeeper) -> Self {
        Self { keeper, next_renewal_at: None }
    }

    /// Requests a voucher for the client of a session. It arrives as a [`VouchResult`].
    ///
    /// # Errors
    /// The reason and the exit code for the client.
    pub(super) fn request(
        &self,
        session_key: SessionKey,
        session: &mut ClientSession,
        claim: LoginClaim,
    ) -> Result<(), (String, u8)> {
        let Some(socket) = session.local_socket() else { return Ok(()) };
        let requested = self.keeper.borrow_mut().vouch(session_key.number(), socket);
        session.set_claim(claim);
        requested.map_err(|error| match error {
            KeeperError::Refused(reason) => (reason, EXIT_REFUSED),
            error => (error.to_string(), EXIT_FAILED),
        })
    }

    /// Sets the time at which the voucher of a session that has logged in is renewed.
    pub(super) fn schedule_renewal(&mut self, session: &mut ClientSession, voucher: &[u8]) {
        let renewal_at = renewal_time(voucher, Instant::now());
        session.set_renewal_at(renewal_at);
        self.next_renewal_at =
            Some(self.next_renewal_at.map_or(renewal_at, |due| due.min(renewal_at)));
    }

    /// The time of the next call of [`Vouchers::renew_due`].
    pub fn deadline(&self) -> Option<Instant> {
        self.next_renewal_at
    }

    /// Renews the vouchers of this host's sessions that are due.
    fn renew_due(&mut self, sessions: &mut Sessions) -> Vec<Renewal> {
        let now = Instant::now();
        if self.next_renewal_at.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let due = sessions.iter().filter(|(_, session)| is_due(session.renewal_at()));
        let due: Vec<SessionKey> = due.map(|(session_key, _)| session_key).collect();
        let renew = |session_key| {
            let session = sessions.get_mut(session_key)?;
            self.renew(session_key, session, now)
        };
        let renewals = due.into_iter().filter_map(renew).collect();
        self.next_renewal_at = sessions.iter().filter_map(|(_, one)| one.renewal_at()).min();
        renewals
    }

    fn renew(
        &self,
        session_key: SessionKey,
        session: &mut ClientSession,
        now: Instant,
    ) -> Option<Renewal> {
        let socket = session.local_socket()?;
        let old = session.owner()?.voucher.clone();
        let result = self.keeper.borrow_mut().renew(socket, old);
        match &result {
            Ok(voucher) => {
                session.set_voucher(voucher.clone(), Some(renewal_time(voucher, now)));
            }
            Err(_) => session.set_renewal_at(now + RENEWAL_RETRY_INTERVAL),
        }
        let (uid, is_forwarded) = (session.uid(), session.is_forwarded());
        Some(Renewal { session_key, uid, is_forwarded, result })
    }

    /// The user of a voucher from another host, if the keeper of this host accepts the voucher.
    ///
    /// # Errors
    /// The voucher is not valid, or the keeper has failed.
    pub fn verified_owner(&self, voucher: Vec<u8>) -> Result<Owner, String> {
        let verified = self.keeper.borrow_mut().verify(voucher.clone());
        verified.map_err(|error| error.to_string())?;
        owner_of(voucher)
    }
}

impl Daemon {
    /// Handles the events of the keeper.
    pub fn receive_from_keeper(&mut self) {
        let Some(service) = &self.service else { return };
        let mut client = service.vouchers.keeper.borrow_mut();
        client.receive_events();
        let has_new_outcomes = client.take_has_new_outcomes();
        let (results, is_lost) = (client.take_vouch_results(), client.is_lost());
        drop(client);
        if has_new_outcomes {
            self.host_jobs.check_exits();
            self.finish_reset();
        }
        for result in results {
            let Some(service) = &mut self.service else { return };
            if let Some((session_key, owner)) = service.verified_login(result, &mut self.sessions) {
                self.accept_login(session_key, owner);
            }
        }
        if is_lost && !self.is_ending {
            warn("the keeper has ended: this scored and all jobs of this host end");
            self.is_ending = true;
        }
    }

    /// Renews the vouchers of this host's sessions that are due.
    pub fn renew_vouchers(&mut self) {
        let Some(service) = &mut self.service else { return };
        for renewal in service.vouchers.renew_due(&mut self.sessions) {
            match renewal.result {
                Ok(voucher) if renewal.is_forwarded => {
                    let session = renewal.session_key.number();
                    self.send_to_host(SERVER, PeerMessage::RenewVoucher { session, voucher });
                }
                Ok(_) => {}
                Err(error) => {
                    let topic = renewal.uid.map_or(LogTopic::Daemon, LogTopic::User);
                    let text = format!("the voucher of a login cannot be renewed: {error}");
                    let service = self.service.iter_mut();
                    service.for_each(|service| service.warn_about(topic, &text));
                }
            }
        }
    }
}

impl Service {
    /// The session and the user of a login, if the keeper has verified the user and the claim of
    /// the client is true. Otherwise refuses the login.
    fn verified_login(
        &mut self,
        result: VouchResult,
        sessions: &mut Sessions,
    ) -> Option<(SessionKey, Owner)> {
        let session_key = SessionKey::from_number(result.session)?;
        let owner = match result.voucher.and_then(owner_of) {
            Ok(owner) => owner,
            Err(reason) => {
                let uid = sessions.get(session_key).and_then(ClientSession::uid);
                let topic = uid.map_or(LogTopic::Daemon, LogTopic::User);
                self.warn_about(topic, &reason);
                sessions.refuse_login(session_key, &reason, EXIT_FAILED);
                return None;
            }
        };
        let claim = sessions.get_mut(session_key)?.take_claim()?;
        let has_claimed = claim.name.0.is_empty() || claim.name == owner.name;
        if has_claimed && claim.ids.uid == owner.uid {
            return Some((session_key, owner));
        }
        let quoted = |name: &OsBytes| String::from_utf8_lossy(&name.0).into_owned();
        let (uid, claimed, name) = (claim.ids.uid, quoted(&claim.name), quoted(&owner.name));
        let text = format!("uid {uid}, {name:?}, has claimed to be {claimed:?}: refused");
        self.warn_about(LogTopic::User(owner.uid), &text);
        let reason = format!("the claimed name {claimed:?} differs from your name {name:?}");
        sessions.refuse_login(session_key, &reason, EXIT_REFUSED);
        None
    }

    /// Stores the renewed voucher that a host has sent for its session with this number.
    pub(super) fn on_renewed_voucher(
        &self,
        (from, session): (HostId, u64),
        voucher: Vec<u8>,
        sessions: &mut Sessions,
    ) {
        let owner = self.vouchers.verified_owner(voucher);
        let session_key = self.remote_sessions.key(from, session);
        let Some(remote) = session_key.and_then(|key| sessions.get_mut(key)) else { return };
        match owner {
            Ok(owner) if remote.uid() == Some(owner.uid) => remote.set_voucher(owner.voucher, None),
            Ok(_) => warn("another host has renewed a login with the voucher of another user"),
            Err(reason) => warn(&format!("another host has renewed a login: {reason}")),
        }
    }
}
