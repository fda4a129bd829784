//! Vouchers of users. This module requests them at the login and renews them during the session.
//! The keeper issues and checks them (`daemon/keeper_client.rs`).

use std::time::{Duration, Instant};

use score_keeper::voucher::Voucher;
use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::ids::HostId;
use score_proto::job_control::{Limit, Owner};
use score_proto::message::OsBytes;
use score_proto::peer_message::PeerMessage;
use score_proto::peer_message::SERVER;

use super::super::Daemon;
use super::super::keeper_client::{KeeperError, VouchResult};
use super::super::session::ClientSession;
use super::super::session_state::LoginClaim;
use super::{LogTopic, warn};
use crate::sys::wall_clock::unix_seconds;
use score_job::jobs::{ClientJob, SessionKey};

/// The delay before a failed renewal is tried again.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_secs(30);

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
pub fn renewal_time(voucher: &[u8], now: Instant) -> Instant {
    let expires_at = Voucher::read_unverified(voucher).map_or(0, |voucher| voucher.expires_at);
    now + Duration::from_secs(expires_at.saturating_sub(unix_seconds())) / 2
}

impl Daemon {
    /// Requests a voucher for a client that logs in.
    pub(super) fn request_voucher(&mut self, session_key: SessionKey, claim: LoginClaim) {
        let (Some(keeper), Some(session)) = (&self.keeper, self.sessions.get_mut(session_key))
        else {
            return;
        };
        let Some(socket) = session.local_socket() else { return };
        let requested = keeper.borrow_mut().vouch(session_key.number(), socket);
        session.set_claim(claim);
        match requested {
            Ok(()) => {}
            Err(KeeperError::Refused(reason)) => {
                self.refuse_login(session_key, &reason, EXIT_REFUSED)
            }
            Err(error) => self.refuse_login(session_key, &error.to_string(), EXIT_FAILED),
        }
    }

    /// Handles the events of the keeper.
    pub fn receive_from_keeper(&mut self) {
        let Some(keeper) = self.keeper.clone() else { return };
        let mut client = keeper.borrow_mut();
        client.receive_events();
        let has_new_outcomes = client.take_has_new_outcomes();
        let (results, is_lost) = (client.take_vouch_results(), client.is_lost());
        drop(client);
        if has_new_outcomes {
            self.host_jobs.check_exits();
            self.finish_reset();
        }
        results.into_iter().for_each(|result| self.on_vouch_result(result));
        if is_lost && !self.is_ending {
            warn("the keeper has ended: so does this scored, and with it all jobs of this host");
            self.is_ending = true;
        }
    }

    fn on_vouch_result(&mut self, result: VouchResult) {
        let Some(session_key) = SessionKey::from_number(result.session) else { return };
        match result.voucher.and_then(owner_of) {
            Ok(owner) => self.complete_login(session_key, owner),
            Err(reason) => {
                let uid = self.sessions.get(session_key).and_then(ClientSession::uid);
                let topic = uid.map_or(LogTopic::Daemon, LogTopic::User);
                let service = self.service.as_mut();
                service.into_iter().for_each(|service| service.warn_about(topic, &reason));
                self.refuse_login(session_key, &reason, EXIT_FAILED);
            }
        }
    }

    fn complete_login(&mut self, session_key: SessionKey, owner: Owner) {
        let session = self.sessions.get_mut(session_key);
        let Some(claim) = session.and_then(|session| session.take_claim()) else { return };
        let has_claimed = claim.name.0.is_empty() || claim.name == owner.name;
        if has_claimed && claim.uid == owner.uid {
            return self.accept_login(session_key, owner);
        }
        let quoted = |name: &OsBytes| String::from_utf8_lossy(&name.0).into_owned();
        let (uid, claimed, name) = (claim.uid, quoted(&claim.name), quoted(&owner.name));
        let text = format!("uid {uid}, {name:?}, has claimed to be {claimed:?}: refused");
        let topic = LogTopic::User(owner.uid);
        self.service.iter_mut().for_each(|service| service.warn_about(topic, &text));
        let reason = format!("the claimed name {claimed:?} differs from your name {name:?}");
        self.refuse_login(session_key, &reason, EXIT_REFUSED);
    }

    /// Refuses a login and ends its session.
    pub(super) fn refuse_login(&mut self, session_key: SessionKey, reason: &str, code: u8) {
        let session = self.sessions.get_mut(session_key);
        session.map(|session| session.take_claim());
        let reason = format!("login refused: {reason}");
        self.refuse(ClientJob::session_itself(session_key), reason, code);
    }

    /// Renews the vouchers of this host's sessions that are due.
    pub fn renew_vouchers(&mut self) {
        let now = Instant::now();
        if self.next_renewal_at.is_none_or(|due| now < due) {
            return;
        }
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let sessions = self.sessions.iter().filter(|(_, session)| is_due(session.renewal_at()));
        let due: Vec<SessionKey> = sessions.map(|(session_key, _)| session_key).collect();
        due.into_iter().for_each(|session_key| self.renew_voucher(session_key, now));
        self.next_renewal_at =
            self.sessions.iter().filter_map(|(_, session)| session.renewal_at()).min();
    }

    fn renew_voucher(&mut self, session_key: SessionKey, now: Instant) {
        let (Some(keeper), Some(session)) = (&self.keeper, self.sessions.get_mut(session_key))
        else {
            return;
        };
        let Some(socket) = session.local_socket() else { return };
        let Some(old) = session.owner().map(|owner| owner.voucher.clone()) else { return };
        let renewed = keeper.borrow_mut().renew(socket, old);
        match renewed {
            Ok(voucher) => {
                let is_forwarded = session.is_forwarded();
                session.set_voucher(voucher.clone(), Some(renewal_time(&voucher, now)));
                if is_forwarded {
                    let session = session_key.number();
                    self.send_to_host(SERVER, PeerMessage::RenewVoucher { session, voucher });
                }
            }
            Err(error) => {
                session.set_renewal_at(now + RENEWAL_RETRY_INTERVAL);
                let topic = session.uid().map_or(LogTopic::Daemon, LogTopic::User);
                let text = format!("the voucher of a login cannot be renewed: {error}");
                let service = self.service.as_mut();
                service.into_iter().for_each(|service| {
                    service.warn_about(topic, &text);
                });
            }
        }
    }

    /// The user of a voucher from another host, if the keeper of this host accepts the voucher.
    pub(super) fn verified_owner(&self, voucher: Vec<u8>) -> Result<Owner, String> {
        let keeper = self.keeper.as_ref().ok_or("there is no keeper")?;
        let verified = keeper.borrow_mut().verify(voucher.clone());
        verified.map_err(|error| error.to_string())?;
        owner_of(voucher)
    }

    /// Stores the renewed voucher that another host has sent for one of its sessions.
    pub(super) fn on_renewed_voucher(&mut self, from: HostId, session: u64, voucher: Vec<u8>) {
        let owner = self.verified_owner(voucher);
        let Some(remote) = self.remote_session(from, session) else { return };
        match owner {
            Ok(owner) if remote.uid() == Some(owner.uid) => remote.set_voucher(owner.voucher, None),
            Ok(_) => warn("another host has renewed a login by the voucher of another user"),
            Err(reason) => warn(&format!("another host has renewed a login: {reason}")),
        }
    }
}
