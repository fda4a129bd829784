//! What a host does for one job: its directory, its shepherd, and its place in the job's tree.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{JobSpec, Level};
use score_proto::order::{Begin, Order, Placement, Report, Status};

use super::directory::JobDirectory;
use super::jobs::Post;
use super::machine;
use super::relay::{Relay, SHEPHERD};
use super::shepherd::{Family, Shepherd};
use super::store::Store;
use crate::job::{check, code, staging};
use crate::sys::process;

/// Exit codes for what a host cannot do: a job that is too large for it, anything else.
const REFUSED: u8 = 2;
const FAILED: u8 = 1;

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
}

/// How a job is begun here.
pub struct Start<'a> {
    /// `-nonamespace`
    pub no_namespace: bool,
    /// Where the shepherd's socket is watched.
    pub registry: &'a Registry,
    /// As what.
    pub token: Token,
    /// The other children of this process.
    pub family: Family,
    /// The programs that travel.
    pub store: &'a Store<Post>,
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
        }
    }

    /// The source that reports over a link.
    pub fn source(&self, link: usize) -> Option<usize> {
        self.below.iter().find(|(_, one)| **one == link).map(|(source, _)| *source)
    }

    /// Begins the job here; what comes of it is reported.
    pub fn begin(&mut self, begin: &Begin, start: Start<'_>) {
        match self.try_begin(begin, start) {
            Ok(()) => {
                self.relay.reported(SHEPHERD, Report::Ready);
                // While the shepherd starts: what earlier jobs could not remove themselves.
                let faults = self.directory.as_ref().map(JobDirectory::remove_leftovers);
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
        self.remove_directory();
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
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        let directory = JobDirectory::create(runtime_dir.as_deref(), &mut *start.announce);
        let directory = self.directory.insert(directory.map_err(failed)?);
        stage(&begin.spec, directory.path(), start.store).map_err(failed)?;
        let path = directory.path().to_string_lossy();
        let shepherd = Shepherd::start(&path, start);
        let shepherd = shepherd
            .map_err(|error| failed(format!("the job's shepherd cannot be started: {error}")))?;
        let shepherd = self.shepherd.insert(shepherd);
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
                shepherd.link.queue(order);
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

    /// Takes what the shepherd has reported.
    pub fn hear(&mut self) {
        let Some(shepherd) = &mut self.shepherd else { return };
        loop {
            match shepherd.link.receive::<Report>() {
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
            shepherd.link.mark_readable();
            self.hear();
            self.bury();
        }
    }

    /// The shepherd has ended, or is about to.
    fn bury(&mut self) {
        let Some(shepherd) = self.shepherd.take() else { return };
        let finished = shepherd.finished;
        let status = shepherd.bury();
        self.remove_directory();
        match finished {
            Some(elapsed_ns) => self.relay.reported(SHEPHERD, Report::Finished { elapsed_ns }),
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
        self.remove_directory();
    }

    fn remove_directory(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        let path: PathBuf = directory.path().to_owned();
        if let Err(error) = directory.remove() {
            self.warn(format!("{} cannot be removed: {error}", path.display()));
        }
    }
}

/// Puts the programs that travel into the job's directory.
fn stage(spec: &JobSpec, directory: &Path, store: &Store<Post>) -> Result<(), String> {
    for (content, place) in staging::files(spec) {
        let path = directory.join(place);
        let folder = path.parent().unwrap_or(directory);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.and_then(|()| store.copy(&content.hash, &path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
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
