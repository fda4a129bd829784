//! What a host does for one job: its directory, its shepherd, and its place in the job's tree.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Content, ContentHash, HostKind, Level, OsBytes};
use score_proto::order::{Begin, Order, Placement, Report, Status};

use super::directory::JobDirectory;
use super::jobs::Post;
use super::machine;
use super::relay::{Relay, SHEPHERD};
use super::shepherd::{About, Family, Shepherd};
use super::store::Store;
use crate::job::limits::{Kind, Limits};
use crate::job::{check, code, staging};
use crate::raw;
use crate::shepherd::NOT_THE_OWNER;
use crate::sys::cgroup::{Cgroups, Group};
use crate::sys::{process, prompt};

/// Exit codes for what a host cannot do: a job that is too large for it, anything else.
const REFUSED: u8 = 2;
const FAILED: u8 = 1;
/// The same for a job whose host is lost.
pub const LOST: u8 = 1;

/// Who is above a host in a job's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    /// The master, in this very daemon.
    Master,
    /// Another host's daemon, over this link.
    Peer(usize),
}

/// Bytes of orders that may wait for a shepherd: input is far below.
const BACKLOG: usize = 8 << 20;

/// A job on this host.
#[derive(Debug)]
pub struct Member {
    /// Who is above.
    pub above: Above,
    /// The links to the hosts right below, by source.
    pub below: BTreeMap<usize, usize>,
    /// Its place in the job's tree.
    pub relay: Relay,
    /// Its shepherd, while it lives.
    pub shepherd: Option<Shepherd>,
    directory: Option<JobDirectory>,
    /// The job, while its programs are on their way.
    pub waiting: Option<Box<Begin>>,
    /// Whether all hosts of the job are virtual ones: they have one disk.
    pub shares_disk: bool,
    /// Sources that ask for a program on that disk.
    pub borrowers: Vec<(usize, ContentHash)>,
    /// Programs that are there.
    lendable: Vec<(ContentHash, PathBuf)>,
    group: Option<Group>,
    limits: Limits,
}

/// Whether a report came without others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone(pub bool);

/// How a job is begun here.
pub struct Start<'a> {
    /// `-nonamespace`
    pub no_namespace: bool,
    /// Where the shepherd's socket is watched.
    pub registry: &'a Registry,
    /// As what.
    pub token: Token,
    /// The same for its thread that switches.
    pub switch: Token,
    /// The other children of this process.
    pub family: Family,
    /// The programs that travel.
    pub store: &'a Store<Post>,
    /// Where groups for jobs of several users are made.
    pub cgroups: &'a Cgroups,
    /// Whether it is time to remove what earlier jobs have left.
    pub sweeps: bool,
    /// Who is told where the directory will be, before it is there.
    pub announce: &'a mut dyn FnMut(&str),
}

impl Member {
    /// This host's place in a job that has not begun.
    pub fn new(placement: Placement, above: Above) -> Self {
        Self::at(Relay::new(placement), above)
    }

    /// The place above the first host of a job.
    pub fn above_all(placement: Placement) -> Self {
        Self::at(Relay::above_all(placement), Above::Master)
    }

    fn at(relay: Relay, above: Above) -> Self {
        Self {
            above,
            below: BTreeMap::new(),
            relay,
            shepherd: None,
            directory: None,
            waiting: None,
            shares_disk: false,
            borrowers: Vec::new(),
            lendable: Vec::new(),
            group: None,
            limits: Limits::default(),
        }
    }

    /// The source that reports over a link.
    pub fn source(&self, link: usize) -> Option<usize> {
        self.below.iter().find(|(_, one)| **one == link).map(|(source, _)| *source)
    }

    /// The job begins as soon as its programs are here.
    pub fn wait_for_programs(&mut self, begin: Box<Begin>) {
        let mut hosts = begin.spec.hosts.iter();
        self.shares_disk = begin.owner.is_none() && hosts.all(|one| one.kind == HostKind::Virtual);
        self.waiting = Some(begin);
    }

    /// A program lies there, for all virtual hosts.
    pub fn can_lend(&mut self, hash: ContentHash, path: &Path) {
        if self.shares_disk {
            self.lendable.push((hash, path.to_owned()));
        }
    }

    /// Answers who has asked for what is there by now.
    pub fn lend(&mut self) -> Vec<(usize, Order)> {
        let lendable = &self.lendable;
        let answer = |(source, hash): &mut (usize, ContentHash)| {
            let (hash, path) = lendable.iter().find(|(there, _)| there == hash)?;
            let path = OsBytes(path.as_os_str().as_bytes().to_vec());
            Some((*source, Order::Lent { hash: *hash, path }))
        };
        let mut orders = Vec::new();
        self.borrowers.retain_mut(|one| {
            let order = answer(one);
            let waits = order.is_none();
            orders.extend(order);
            waits
        });
        orders
    }

    /// Which of all jobs that ever had this number.
    pub fn life(&self) -> u64 {
        self.relay.placement().life
    }

    /// Nothing more comes from the hosts behind a source.
    pub fn lose(&mut self, source: usize, reason: &str) {
        let hosts = self.relay.hosts(source);
        let text = lost_text(self.relay.placement(), hosts, reason);
        self.relay.lost(source, LOST, text);
    }

    /// Begins the job here; what comes of it is reported.
    pub fn begin(&mut self, begin: &Begin, start: Start<'_>) {
        let sweeps = start.sweeps;
        match self.try_begin(begin, start) {
            Ok(()) => {
                self.relay.reported(SHEPHERD, Report::Ready);
                // While the shepherd starts: what earlier jobs could not remove themselves. With
                // several users that was done when this daemon started; on one disk the first
                // host does it.
                let is_others = self.shares_disk && self.relay.placement().own != 0;
                let is_mine = begin.owner.is_none() && !is_others && sweeps;
                let mine = self.directory.as_ref().filter(|_| is_mine);
                let faults = mine.map(JobDirectory::remove_leftovers);
                for fault in faults.unwrap_or_default() {
                    self.warn(format!("left by an earlier job, and cannot be removed: {fault}"));
                }
            }
            Err((code, reason)) => self.refuse_with(code, &reason),
        }
    }

    /// This host cannot do its part.
    pub fn refuse(&mut self, reason: String) {
        self.refuse_with(FAILED, &reason);
    }

    fn refuse_with(&mut self, code: u8, reason: &str) {
        if let Some(shepherd) = self.shepherd.take() {
            shepherd.bury();
        }
        self.reclaim();
        let reason = self.named(reason);
        self.relay.reported(SHEPHERD, Report::Refused { code, reason });
        self.relay.gone(SHEPHERD);
    }

    fn try_begin(&mut self, begin: &Begin, start: Start<'_>) -> Result<(), (u8, String)> {
        let placement = self.relay.placement();
        placement.check().map_err(|reason| (FAILED, reason.to_owned()))?;
        let nodes = placement.here().map_or(0, |here| here.nodes);
        check::check_limits(&begin.spec, nodes, &machine::look())
            .map_err(|reason| (REFUSED, reason))?;
        let failed = |reason: String| (FAILED, reason);
        let directory = match &begin.owner {
            Some(_) => JobDirectory::create_for_user(&mut *start.announce),
            None => {
                let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
                JobDirectory::create(runtime_dir.as_deref(), &mut *start.announce)
            }
        };
        let directory = self.directory.insert(directory.map_err(failed)?);
        let staged = stage(begin, directory.path(), start.store).map_err(failed)?;
        if self.shares_disk {
            self.lendable.extend(staged);
        }
        if let Some(owner) = &begin.owner {
            // Only now: nothing in it was anybody else's before.
            directory.give_to((owner.uid, owner.gid)).map_err(failed)?;
        }
        self.limits = Limits::of(&begin.spec.options, begin.owner.is_some()).map_err(failed)?;
        if begin.owner.is_some() {
            let group = start.cgroups.make(directory.name(), self.limits.memory);
            let group = group.map_err(|error| failed(format!("cgroup of the job: {error}")))?;
            self.group = Some(group);
        }
        let about = About {
            directory: &directory.path().to_string_lossy(),
            owner: begin.owner.as_ref(),
            group: self.group.as_ref(),
            raw: raw::Plan::of(begin, self.relay.placement()),
        };
        let shepherd = Shepherd::start(&about, start);
        let shepherd = shepherd
            .map_err(|error| failed(format!("the job's shepherd cannot be started: {error}")))?;
        let shepherd = self.shepherd.insert(shepherd);
        if let Some(group) = &self.group {
            let entered = group.enter(shepherd.pid());
            entered.map_err(|error| failed(format!("cgroup of the job: {error}")))?;
        }
        shepherd.link.queue(&Order::Hello { version: PROTOCOL_VERSION });
        shepherd.link.queue(&Order::Place(placement.clone()));
        shepherd.link.queue(&Order::Begin(Box::new(begin.clone())));
        shepherd.link.flush();
        Ok(())
    }

    /// Names this host where there are several.
    fn named(&self, reason: &str) -> String {
        let placement = self.relay.placement();
        match placement.here() {
            Some(here) if placement.hosts.len() > 1 => format!("host {}: {reason}", here.name),
            _ => reason.to_owned(),
        }
    }

    fn warn(&mut self, text: String) {
        let text = self.named(&text);
        self.relay.reported(SHEPHERD, Report::Notice { level: Level::Warning, text });
    }

    /// An order for the shepherd.
    pub fn ordered(&mut self, order: &Order) {
        match (&mut self.shepherd, order) {
            (Some(shepherd), order) => {
                if matches!(order, Order::Stop { .. } | Order::Kill) {
                    // Its user may have stopped it, from outside.
                    process::kill(shepherd.pid(), libc::SIGCONT);
                }
                shepherd.order(order);
                if shepherd.link.backlog() > BACKLOG {
                    // Its user has stopped it, and floods it.
                    process::kill(shepherd.pid(), libc::SIGKILL);
                }
            }
            // It waits for its programs still, or has lost its shepherd.
            (None, Order::Finish) => {
                self.waiting = None;
                self.relay.gone(SHEPHERD);
            }
            (None, _) => {}
        }
    }

    /// Takes what the thread that switches has reported; whether that is the end of a turn, by this
    /// number, and nothing else.
    pub fn hear_of_turn(&mut self, switch: u64) -> Option<Alone> {
        let shepherd = self.shepherd.as_mut()?;
        let (mut over, mut alone) = (false, true);
        loop {
            match shepherd.switch.receive() {
                Ok(Some(Report::Stopped { switch: number })) if number == switch => over = true,
                Ok(Some(report)) => {
                    alone = false;
                    self.relay.reported(SHEPHERD, report);
                }
                Ok(None) => return over.then_some(Alone(alone)),
                Err(_) => {
                    process::kill(shepherd.pid(), libc::SIGKILL);
                    return None;
                }
            }
        }
    }

    /// Takes what the shepherd has reported.
    pub fn hear(&mut self) {
        let Some(shepherd) = &mut self.shepherd else { return };
        loop {
            match shepherd.hear() {
                Ok(Some(Report::Finished { elapsed_ns })) => shepherd.finished = Some(elapsed_ns),
                Ok(Some(report)) => self.relay.reported(SHEPHERD, report),
                Ok(None) => break,
                Err(_) => {
                    process::kill(shepherd.pid(), libc::SIGKILL);
                    break;
                }
            }
        }
        if shepherd.link.is_closed() {
            if shepherd.finished.is_some() && !shepherd.has_ended() {
                // Its namespace is being taken down, which takes a millisecond: others are served
                // meanwhile, and SIGCHLD tells when it is gone.
                return process::kill(shepherd.pid(), libc::SIGKILL);
            }
            self.bury();
        }
    }

    /// A child of this process has ended. A shepherd that was killed shows on its socket, too; but
    /// not while something that it has started still holds the other end.
    pub fn look_for_end(&mut self) {
        if let Some(shepherd) = &mut self.shepherd
            && shepherd.has_ended()
        {
            // Its last words may have come after mio's last report.
            shepherd.mark_readable();
            self.hear();
            self.bury();
        }
    }

    /// The shepherd has ended, or is about to.
    fn bury(&mut self) {
        let Some(shepherd) = self.shepherd.take() else { return };
        let finished = shepherd.finished;
        let status = shepherd.bury();
        let killed_for_memory = self.group.as_ref().is_some_and(|group| group.oom_kills() > 0);
        self.reclaim();
        match finished {
            Some(elapsed_ns) => self.relay.reported(SHEPHERD, Report::Finished { elapsed_ns }),
            None if status == Some(Status::Exited(NOT_THE_OWNER)) => {
                let reason = self.named("nothing of the job has been started");
                self.relay.lost(SHEPHERD, FAILED, reason);
            }
            None if killed_for_memory && status == Some(Status::Signaled(libc::SIGKILL)) => {
                let host = self.relay.placement().here().map_or("?", |here| &here.name);
                let (code, reason) = self.limits.exceeded(Kind::Memory, host);
                self.relay.lost(SHEPHERD, code, reason);
            }
            None => {
                let (code, reason) = explain(status);
                let reason = self.named(&reason);
                self.relay.lost(SHEPHERD, code, reason);
            }
        }
    }

    /// Ends the job here without telling anybody.
    pub fn abort(&mut self) {
        if let Some(shepherd) = self.shepherd.take() {
            process::kill(shepherd.pid(), libc::SIGKILL);
            shepherd.bury();
        }
        self.reclaim();
    }

    /// Removes the job's group and directory.
    fn reclaim(&mut self) {
        if let Some(group) = self.group.take() {
            group.kill();
            if let Err(error) = prompt::aside(|| group.remove()) {
                self.warn(format!("the job's cgroup cannot be removed: {error}"));
            }
        }
        let Some(directory) = self.directory.take() else { return };
        let path: PathBuf = directory.path().to_owned();
        if let Err(error) = prompt::aside(|| directory.remove()) {
            self.warn(format!("{} cannot be removed: {error}", path.display()));
        }
    }
}

/// Puts the programs that travel into the job's directory; where they are.
fn stage(
    begin: &Begin,
    directory: &Path,
    store: &Store<Post>,
) -> Result<Vec<(ContentHash, PathBuf)>, String> {
    let put = |(content, place): (Content, PathBuf)| {
        let path = directory.join(place);
        let folder = path.parent().unwrap_or(directory);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.and_then(|()| store.put(begin.job, &content.hash, &path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((content.hash, path))
    };
    staging::files(&begin.spec).into_iter().map(put).collect()
}

/// Exit code, and a line for the user.
fn explain(status: Option<Status>) -> (u8, String) {
    let cause = match status {
        Some(Status::Signaled(signal)) => format!("killed by {}", code::signal_name(signal)),
        Some(Status::Exited(code)) => format!("exit code {code}"),
        None => "unknown cause".to_owned(),
    };
    let text = format!("the job's shepherd has died ({cause}): every process has been killed");
    (status.map_or(FAILED, code::of_status).max(1), text)
}

/// What the user reads when hosts are lost: the first is the one whose link broke.
fn lost_text(placement: &Placement, hosts: Range<u32>, reason: &str) -> String {
    let names: Vec<&str> =
        hosts.filter_map(|host| Some(placement.hosts.get(host as usize)?.name.as_str())).collect();
    let first = names.first().copied().unwrap_or("?");
    let along = match names.len() {
        0 | 1 => String::new(),
        2..=5 => format!("; out of reach with it: {}", names[1..].join(", ")),
        more => format!("; out of reach with it: {} hosts", more - 1),
    };
    format!("host {first} is lost: {reason}{along}. Every process of the job is killed")
}
