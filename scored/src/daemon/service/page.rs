//! The page of the cluster, in its server: who gets which token, and what is answered to whom
//! ([`crate::page`]).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::listing::JobLine;
use score_proto::message::Up;
use score_proto::peer::SERVER;

use super::super::slices::Slices;
use super::super::{Daemon, Owner, PAGE, random};
use super::visitors::Visitors;
use super::watched::{Seen, Watched};
use super::{Role, Service};
use crate::cluster::{JobId, Time};
use crate::page::response::{self, Kind, Status};
use crate::page::view::{Host, Job, Process, View};
use crate::page::{History, Request, Tokens};

/// The page, as a browser gets it.
const HTML: &str = include_str!("../../page/files/index.html");
const SCRIPT: &str = include_str!("../../page/files/page.js");
const STYLE: &str = include_str!("../../page/files/page.css");

/// What a user is told is as old as that at most: asking more often costs little.
const FRESH: Duration = Duration::from_millis(250);

/// A page that is open asks again within so long, and figures are kept for it until then.
const PAGE_ASKS: Duration = Duration::from_secs(5);
/// Prometheus likewise.
const SCRAPED: Duration = Duration::from_secs(150);

/// The page.
#[derive(Debug)]
pub struct Page {
    visitors: Visitors,
    tokens: Tokens,
    /// What the gang has done.
    pub history: History,
    /// Figures of jobs, for those who ask.
    pub watched: Watched,
    /// How long a slice is.
    slice: Duration,
    /// What users were told last.
    told: HashMap<(u32, &'static str), (Time, Vec<u8>)>,
}

impl Page {
    /// Listens.
    ///
    /// # Errors
    /// One line with the address.
    pub fn open(
        address: SocketAddr,
        name: &str,
        slice: Duration,
        registry: &Registry,
    ) -> Result<Self, String> {
        Ok(Self {
            visitors: Visitors::open(address, name, registry, PAGE)?,
            slice,
            tokens: Tokens::default(),
            history: History::default(),
            watched: Watched::default(),
            told: HashMap::new(),
        })
    }

    /// What the log says of it.
    pub fn announcement(&self) -> String {
        let at = self.visitors.address;
        let open = match at.ip().is_loopback() {
            true => "",
            false => "; others can read along on the network: it is not encrypted",
        };
        format!("page at http://{at}/, to each user by scps -page{open}")
    }

    /// Somebody connects.
    pub fn knock(&mut self) {
        self.visitors.knock();
    }

    /// mio has reported something of a connection.
    pub fn mark(&mut self, number: usize) {
        self.visitors.mark(number);
    }

    /// How long nothing has to be done.
    pub fn deadline(&self, now: Time) -> Option<Duration> {
        let both = [self.visitors.deadline(now), self.watched.deadline(now)];
        both.into_iter().flatten().min()
    }
}

impl Service {
    /// Where a user finds the page: only there its token stands.
    pub(super) fn page_of(&mut self, uid: u32) -> Result<Up, String> {
        let host = self.name(SERVER).unwrap_or_default().to_owned();
        let page = self.page.as_mut().ok_or("this cluster has no page (scored -page off)")?;
        let fresh = || {
            let halves = [random().ok()?, random().ok()?];
            Some((u128::from(halves[0]) << 64 | u128::from(halves[1])).to_be_bytes())
        };
        let token = page.tokens.of(uid, fresh).ok_or("there are no tokens left")?;
        let at = page.visitors.address;
        let place = match at.ip().is_unspecified() {
            true => format!("{host}:{}", at.port()),
            false => at.to_string(),
        };
        Ok(Up::Page { host, address: format!("http://{place}/{token}/") })
    }
}

impl Service {
    /// What a user asks for.
    fn answer(&mut self, uid: u32, request: &Request, slices: &Slices) -> Result<Vec<u8>, Status> {
        let (name, kind, again) = match request.path.as_str() {
            "" => return Ok(response::ok(Kind::Html, HTML.as_bytes(), request.close)),
            "page.js" => return Ok(response::ok(Kind::Script, SCRIPT.as_bytes(), request.close)),
            "page.css" => return Ok(response::ok(Kind::Style, STYLE.as_bytes(), request.close)),
            "data" => ("data", Kind::Json, PAGE_ASKS),
            "metrics" => ("metrics", Kind::Metrics, SCRAPED),
            _ => return Err(Status::NotFound),
        };
        let now = self.now();
        let page = self.page.as_mut().ok_or(Status::NotFound)?;
        page.watched.asked(uid, now, again);
        page.told.retain(|_, (at, _)| *at + FRESH > now);
        if !page.told.contains_key(&(uid, name)) {
            let view = self.view(uid, slices).ok_or(Status::NotFound)?;
            let text = if name == "data" { view.json() } else { view.metrics() };
            let page = self.page.as_mut().ok_or(Status::NotFound)?;
            page.told.insert((uid, name), (now, text.into_bytes()));
        }
        let told = self.page.as_ref().and_then(|page| page.told.get(&(uid, name)));
        let (_, body) = told.ok_or(Status::NotFound)?;
        Ok(response::ok(kind, body, request.close))
    }

    /// The cluster, as this user may see it.
    fn view(&self, uid: u32, slices: &Slices) -> Option<View<'_>> {
        let (Role::Server(cluster), Some(page)) = (&self.role, &self.page) else { return None };
        let hosts = (0..).zip(&self.config.hosts).map(|(number, host)| Host {
            name: &host.name,
            slots: host.slots,
            up: cluster.is_up(number),
        });
        let shares: HashMap<JobId, Vec<(u32, u32)>> = cluster
            .list()
            .map(|job| {
                let shares = job.shares.iter().map(|share| (share.host, share.procs));
                (job.job, shares.collect())
            })
            .collect();
        let job = |line: JobLine| {
            let shares = shares.get(&line.job).cloned().unwrap_or_default();
            // Of what others watch this user sees nothing.
            let seen = line.detail.and_then(|_| page.watched.of(line.job));
            let processes = seen.map(|seen| processes(seen, &shares)).unwrap_or_default();
            let trend = seen.map(|seen| seen.trend.iter().copied().collect()).unwrap_or_default();
            Job { line, shares, processes, trend }
        };
        Some(View {
            now: self.now(),
            server: cluster.name(SERVER),
            uid,
            operator: cluster.is_operator(uid),
            slice: page.slice,
            hosts: hosts.collect(),
            jobs: self.job_lines(uid, slices).into_iter().map(job).collect(),
            history: &page.history,
        })
    }
}

impl Daemon {
    /// The gang scheduler has decided something.
    pub fn note_row(&mut self) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let page = service.page.as_mut();
        page.into_iter().for_each(|page| page.history.note(self.slices.running(), now));
    }

    /// So many turns of these jobs have been since then, of which the first was noted.
    pub fn note_turns(&mut self, jobs: &[JobId], turns: u32, since: Instant) {
        let Some(service) = &mut self.service else { return };
        let (now, ago) = (service.now(), since.elapsed());
        let Some(page) = &mut service.page else { return };
        for (turn, job) in (0..turns).zip(jobs.iter().cycle()).skip(1) {
            let at = now.saturating_sub(ago * (turns - turn) / turns);
            page.history.note([*job].into_iter(), at);
        }
    }

    /// Takes in who connects to the page, and answers what is asked.
    pub fn serve_visitors(&mut self) {
        let Some(service) = &mut self.service else { return };
        let now = service.now();
        let Some(page) = &mut service.page else { return };
        let (owners, next) = (&mut self.owners, &mut self.next_token);
        let number = || {
            let token = Token(*next);
            *next += 1;
            owners.insert(token, Owner::Visitor);
            token
        };
        let mut gone = page.visitors.admit(self.poll.registry(), now, number);
        for (visitor, asked) in page.visitors.hear(now) {
            let answered = asked.and_then(|request| {
                let page = service.page.as_ref().ok_or(Status::NotFound)?;
                let token = request.token.as_deref().ok_or(Status::Forbidden)?;
                let uid = page.tokens.user(token).ok_or(Status::Forbidden)?;
                Ok((service.answer(uid, &request, &self.slices)?, request.close, uid))
            });
            let Some(page) = &mut service.page else { return };
            match answered {
                Ok((answer, last, uid)) => page.visitors.answer(visitor, answer, last, uid, now),
                Err(status) => page.visitors.refuse(visitor, status, now),
            }
        }
        let page = service.page.as_mut();
        gone.extend(page.map(|page| page.visitors.flush(now)).unwrap_or_default());
        gone.into_iter().for_each(|number| _ = self.owners.remove(&Token(number)));
    }
}

/// The processes of a job that has these hosts.
fn processes(seen: &Seen, shares: &[(u32, u32)]) -> Vec<Process> {
    let process = |one: &score_monitor::Process| Process {
        host: shares.get(one.totals.host as usize).map_or(u32::MAX, |(host, _)| *host),
        total: one.totals,
        shares: seen.shares(one),
        messages: one.messages() as u64,
        bytes: one.bytes() as u64,
    };
    seen.view.processes().into_iter().map(process).collect()
}
