//! A scout session: daemons that outlive one job, and a socket in a directory of the user's own at
//! which scruns and scouts submit jobs for them. It goes with the scout that has opened it.

use nix::unistd::geteuid;
use score_proto::MAX_NODES;
use score_proto::login::LOGIN;
use score_proto::message::{HostKind, HostSpec, JobSpec, Level, OsBytes, Up};

use super::directory::JobDirectory;
use super::door::Door;
use super::session::Lane;
use super::{DOOR, Daemon, FAILED, REFUSED, muster};

/// Logins at the same time.
const LOGINS: usize = 256;

/// The session that this daemon serves.
#[derive(Debug)]
pub struct Scout {
    /// Who has opened it: it ends with that connection.
    pub control: usize,
    hosts: Vec<HostSpec>,
    /// The daemons of the hosts, once all are there; none for this host alone.
    daemons: Option<Vec<muster::Daemon>>,
    door: Option<Door>,
    directory: Option<JobDirectory>,
}

impl Daemon {
    /// Brings the hosts of a session up.
    pub fn open(&mut self, control: usize, hosts: Vec<HostSpec>) {
        let known = self.scout.is_some() || self.muster.is_some() || !self.leads.is_empty();
        if known || self.server.is_some() || self.sessions.len() != 1 {
            let reason = "there is a session or job here already".to_owned();
            return self.refuse(Lane::of(control), reason, FAILED);
        }
        if let Err(reason) = check(&hosts) {
            return self.refuse(Lane::of(control), reason, REFUSED);
        }
        let (daemons, door, directory) = (None, None, None);
        let alone = hosts.len() == 1 && hosts[0].kind == HostKind::This;
        self.scout = Some(Scout { control, hosts: hosts.clone(), daemons, door, directory });
        match alone {
            true => self.opened(None),
            false => self.bring_up(Lane::of(control), no_job(hosts)),
        }
    }

    /// All hosts are there.
    pub fn opened(&mut self, daemons: Option<Vec<muster::Daemon>>) {
        let Some(scout) = &mut self.scout else { return };
        scout.daemons = daemons;
        let Some(control) = self.sessions.get_mut(&scout.control) else { return };
        let mut announce = |path: &str| {
            control.tell(LOGIN, &Up::Directory(path.to_owned()));
            control.flush();
        };
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let made = JobDirectory::create(runtime.as_deref(), &mut announce);
        let made = made.and_then(|directory| {
            let path = directory.path().join("socket");
            directory.remove_leftovers();
            let door = Door::open(&path, 0o600, self.poll.registry(), DOOR)?;
            scout.directory = Some(directory);
            scout.door = Some(door);
            Ok(path.to_string_lossy().into_owned())
        });
        match made {
            Ok(socket) => control.tell(LOGIN, &Up::Opened { socket }),
            Err(reason) => control.tell(LOGIN, &Up::Refused { reason, code: FAILED }),
        }
    }

    /// mio has reported a caller.
    pub fn somebody_knocks(&mut self) {
        let door = self.scout.as_mut().and_then(|scout| scout.door.as_mut());
        door.into_iter().for_each(|door| door.waiting = true);
    }

    /// Takes those who have called.
    pub fn let_in(&mut self) {
        while let Some(scout) = &mut self.scout
            && let Some(caller) = scout.door.as_mut().and_then(Door::accept)
        {
            let ((uid, _), own) = (caller.peer, geteuid().as_raw());
            if uid != own {
                eprintln!("scored: user {uid} tried to enter a scout session of user {own}");
                continue;
            }
            let hosts = scout.hosts.clone();
            let Ok(number) = self.admit(caller.socket) else { continue };
            if self.sessions.len() > LOGINS {
                let reason = format!("{LOGINS} commands run in this scout session already");
                self.refuse(Lane::of(number), reason, FAILED);
            } else if let Some(session) = self.sessions.get_mut(&number) {
                session.hosts = Some(hosts);
            }
        }
    }

    /// Whether somebody may wait whom nobody reports any more.
    pub fn may_be_called(&self) -> bool {
        let door = self.scout.as_ref().and_then(|scout| scout.door.as_ref());
        door.is_some_and(|door| door.waiting)
    }

    /// A job for hosts of the session.
    pub fn submit_inside(&mut self, lane: Lane, mut spec: JobSpec) {
        let Some(scout) = &self.scout else { return };
        if lane.session == scout.control || scout.door.is_none() {
            return self.refuse(lane, "the session takes jobs at its socket".to_owned(), FAILED);
        }
        let mut daemons = Vec::new();
        let mut last = None;
        for wanted in &mut spec.hosts {
            let Some(at) = scout.hosts.iter().position(|host| host.name == wanted.name) else {
                let reason = format!("host {}: not in this scout session", wanted.name);
                return self.refuse(lane, reason, REFUSED);
            };
            // Which also says that none comes twice.
            if last.is_some_and(|last| at <= last) {
                let reason = format!("host {}: not in the session's order", wanted.name);
                return self.refuse(lane, reason, REFUSED);
            }
            last = Some(at);
            let HostSpec { address, kind, .. } = &scout.hosts[at];
            (wanted.address, wanted.kind) = (address.clone(), *kind);
            daemons.extend(scout.daemons.as_ref().and_then(|all| all.get(at)));
        }
        let daemons = scout.daemons.is_some().then_some(daemons);
        self.begin(lane, spec, daemons);
    }

    /// A host's daemon is gone: the user is told once.
    pub fn tell_lost(&mut self, name: &str, reason: &str) {
        let Some(scout) = &self.scout else { return };
        if scout.door.is_some() {
            let text = format!(
                "host {name} is lost: {reason}. Commands on it fail; leave this session and open \
                 another"
            );
            self.notice(Lane::of(scout.control), Level::Warning, text);
        }
    }

    /// The session is over: nobody finds it any more.
    pub fn close_scout(&mut self) {
        let Some(scout) = self.scout.take() else { return };
        drop(scout.door);
        if let Some(directory) = scout.directory {
            let path = directory.path().to_owned();
            if let Err(error) = directory.remove() {
                eprintln!("scored: {} cannot be removed: {error}", path.display());
            }
        }
    }
}

fn check(hosts: &[HostSpec]) -> Result<(), String> {
    if hosts.is_empty() || hosts.len() > MAX_NODES as usize {
        return Err(format!("{} hosts: there can be 1 to {MAX_NODES}", hosts.len()));
    }
    let mut names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("host {} comes twice", pair[0])),
        None => Ok(()),
    }
}

/// What hosts are brought up for, when there is no job yet.
fn no_job(hosts: Vec<HostSpec>) -> JobSpec {
    JobSpec {
        hosts,
        stages: Vec::new(),
        environment: Vec::new(),
        directory: OsBytes(Vec::new()),
        umask: 0o077,
        options: Vec::new(),
        statistics: false,
        stdin: false,
        separate: false,
        networks: Vec::new(),
        sets: 0,
    }
}
