//! The status page of the cluster, which the server provides: the tokens of users, and the
//! responses to their requests. [`crate::http`] implements the protocol.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_job::cluster::MonotonicTime;
use score_job::cluster::authorization::{StatisticsPermit, authorize_statistics};
use score_job::host::turn_times::TurnClock;
use score_job::host::usage::Usage;
use score_job::jobs::Effect;
use score_proto::ids::{HostId, JobId};
use score_proto::job_list::JobEntry;
use score_proto::peer_message::SERVER;
use score_proto::server_message::PageAddress;
use score_sys::random::random_u64;

use super::super::daemon_jobs::DaemonJobs;
use super::super::event_sources::{EventSources, HTTP_LISTENER};
use super::console::JobsAtTime;
use super::http_connections::HttpConnections;
use super::page_metrics::{JobMetrics, PageMetrics};
use super::{Role, Service};
use crate::http::response::{self, ContentType, Status};
use crate::http::status_json::{HostView, JobView, ProcessView, StatusView};
use crate::http::{History, HttpRequest, Method, StackTrees, Tokens, request};

/// The files of the page.
const HTML: &str = include_str!("../../http/files/index.html");
const SCRIPT: &str = include_str!("../../http/files/page.js");
const STYLE: &str = include_str!("../../http/files/page.css");

/// How long a response is cached, so that frequent requests are cheap.
const RESPONSE_TTL: Duration = Duration::from_millis(250);

/// How long metrics are kept for an open page after a request. The page sends the next request
/// earlier.
const PAGE_SUBSCRIPTION_TTL: Duration = Duration::from_secs(5);
/// Like [`PAGE_SUBSCRIPTION_TTL`], for a scraper such as Prometheus.
const SCRAPE_SUBSCRIPTION_TTL: Duration = Duration::from_secs(150);

/// The status page.
#[derive(Debug)]
pub struct Page {
    connections: HttpConnections,
    tokens: Tokens,
    /// The history of the scheduled rows.
    pub history: History,
    /// Metrics of jobs, for the readers of the page.
    pub metrics: PageMetrics,
    /// Stacks of jobs, for their owners.
    pub stacks: StackTrees,
    /// The length of a slice.
    slice: Duration,
    responses: CachedResponses,
}

/// The last responses, by user and path, with the times at which they were finished.
#[derive(Debug, Default)]
struct CachedResponses(HashMap<(u32, &'static str), (MonotonicTime, Vec<u8>)>);

impl CachedResponses {
    fn get(&self, uid: u32, path: &'static str, now: MonotonicTime) -> Option<&[u8]> {
        let (finished_at, body) = self.0.get(&(uid, path))?;
        (*finished_at + RESPONSE_TTL > now).then_some(body)
    }

    /// Stores a response that was finished now, and drops the expired ones.
    fn insert(&mut self, uid: u32, path: &'static str, body: Vec<u8>, now: MonotonicTime) {
        self.0.retain(|_, (finished_at, _)| *finished_at + RESPONSE_TTL > now);
        self.0.insert((uid, path), (now, body));
    }
}

impl Page {
    /// Starts to listen at `address`.
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
            connections: HttpConnections::open(address, name, registry, HTTP_LISTENER)?,
            slice,
            tokens: Tokens::default(),
            history: History::default(),
            metrics: PageMetrics::default(),
            stacks: StackTrees::default(),
            responses: CachedResponses::default(),
        })
    }

    /// The line of the log that announces the page.
    pub fn announcement(&self) -> String {
        let address = self.connections.address;
        let warning = match address.ip().is_loopback() {
            true => "",
            false => "; the page is not encrypted: other users of the network can read it",
        };
        format!("page at http://{address}/ (scps -page prints the address of each user){warning}")
    }

    /// Records that mio has reported a connection.
    pub fn on_listener_ready(&mut self) {
        self.connections.on_listener_ready();
    }

    /// Records that mio has reported an event of a connection.
    pub fn mark_readable(&mut self, connection_id: usize) {
        self.connections.mark_readable(connection_id);
    }

    /// The time until the page has work to do without an event.
    pub fn deadline(&self, now: MonotonicTime) -> Option<Duration> {
        let deadlines = [self.connections.deadline(now), self.metrics.deadline(now)];
        deadlines.into_iter().flatten().min()
    }
}

impl Service {
    /// Returns the address of the page for a user. It contains the user's token, which no other
    /// reply contains.
    pub(super) fn page_address(&mut self, uid: u32) -> Result<PageAddress, String> {
        let host = self.name(SERVER).unwrap_or_default().to_owned();
        let no_page = match &self.page_opener {
            Some(_) => "the page is not open; the log of the server has the reason",
            None => "this cluster has no page (scored -page off)",
        };
        let page = self.page.as_mut().ok_or(no_page)?;
        let random_bytes = || {
            let halves = [random_u64(), random_u64()];
            Some((u128::from(halves[0]) << 64 | u128::from(halves[1])).to_be_bytes())
        };
        let token = page.tokens.token_of(uid, random_bytes).ok_or("there are no tokens left")?;
        let address = page.connections.address;
        let authority = match address.ip().is_unspecified() {
            true => format!("{host}:{}", address.port()),
            false => address.to_string(),
        };
        Ok(PageAddress { host, url: format!("http://{authority}/{token}/") })
    }
}

impl Service {
    /// Returns the response to a user's request.
    fn respond(
        &mut self,
        uid: u32,
        request: &HttpRequest,
        led_jobs: JobsAtTime<'_>,
        clock: Option<&TurnClock>,
    ) -> Result<Vec<u8>, Status> {
        let (name, kind, subscription_ttl) = match request.path.as_str() {
            "" => return Ok(response::ok(ContentType::Html, HTML.as_bytes(), request.close)),
            "page.js" => {
                return Ok(response::ok(ContentType::Script, SCRIPT.as_bytes(), request.close));
            }
            "page.css" => {
                return Ok(response::ok(ContentType::Style, STYLE.as_bytes(), request.close));
            }
            "data" => ("data", ContentType::Json, PAGE_SUBSCRIPTION_TTL),
            "metrics" => ("metrics", ContentType::Metrics, SCRAPE_SUBSCRIPTION_TTL),
            _ => return Err(Status::NotFound),
        };
        let now = self.now();
        let page = self.page.as_mut().ok_or(Status::NotFound)?;
        page.metrics.on_page_request(uid, now, subscription_ttl);
        if let Some(body) = page.responses.get(uid, name, now) {
            return Ok(response::ok(kind, body, request.close));
        }
        let view = self.view(uid, led_jobs, clock).ok_or(Status::NotFound)?;
        let body = if name == "data" { view.json() } else { view.metrics() }.into_bytes();
        let response = response::ok(kind, &body, request.close);
        // A view of many jobs takes long. The time of the cached response begins afterwards.
        let finished_at = self.now();
        let page = self.page.as_mut().ok_or(Status::NotFound)?;
        page.responses.insert(uid, name, body, finished_at);
        Ok(response)
    }

    /// The state of the cluster as this user may see it.
    fn view(
        &self,
        uid: u32,
        led_jobs: JobsAtTime<'_>,
        clock: Option<&TurnClock>,
    ) -> Option<StatusView<'_>> {
        let (Role::Server(cluster), Some(page)) = (&self.role, &self.page) else { return None };
        let hosts = (0..).map(HostId).zip(&self.config.hosts).map(|(id, host)| HostView {
            name: &host.name,
            slots: host.slots,
            up: cluster.is_up(id),
        });
        let allocations: HashMap<JobId, Vec<(HostId, u32)>> = cluster
            .list()
            .map(|job| {
                let job_allocations =
                    job.shares.iter().map(|allocation| (allocation.host, allocation.procs));
                (job.job, job_allocations.collect())
            })
            .collect();
        let job = |line: JobEntry| {
            let job_allocations = allocations.get(&line.job).cloned().unwrap_or_default();
            // A user who may not see the details of a job may not see its metrics either.
            let metrics = line.detail.and_then(|_| page.metrics.job(line.job));
            let processes =
                metrics.map(|metrics| processes(metrics, &job_allocations)).unwrap_or_default();
            let trend =
                metrics.map(|metrics| metrics.trend.iter().copied().collect()).unwrap_or_default();
            JobView { line, shares: job_allocations, processes, trend }
        };
        Some(StatusView {
            now: self.now(),
            server: cluster.name(SERVER),
            uid,
            operator: cluster.is_operator(uid),
            longest_turn: authorize_statistics(cluster.requester(uid))
                .and_then(|permit| Some(longest_recent_turn(&permit, clock?))),
            slice: page.slice,
            hosts: hosts.collect(),
            jobs: self.job_lines(uid, led_jobs).into_iter().map(job).collect(),
            history: &page.history,
            stacks: page.stacks.list(uid),
        })
    }
}

impl Service {
    /// Shows an effect of the jobs on the page.
    pub fn show_on_page(&mut self, effect: Effect, jobs: &DaemonJobs) {
        match effect {
            Effect::PageStacks(job, stacks) => self.update_page_stacks(job, stacks),
            Effect::PageMetrics(job, metrics) => self.update_page_metrics(job, &metrics),
            Effect::RowStarted => self.record_row(jobs.state().gang().running()),
            Effect::Rotated(rotated, turn_count, since) => {
                self.record_rotation(&rotated, turn_count, jobs.moment_of(since));
            }
            _ => {}
        }
    }

    /// Records the jobs that run now, after a decision of the gang scheduler.
    fn record_row(&mut self, running: impl Iterator<Item = JobId>) {
        let now = self.now();
        if let Some(page) = &mut self.page {
            page.history.record(running, now);
        }
    }

    /// Records a rotation: since `start`, these jobs have had this number of turns. The first turn
    /// has been recorded already.
    fn record_rotation(&mut self, jobs: &[JobId], turns: u32, start: Instant) {
        let (now, elapsed) = (self.now(), start.elapsed());
        let Some(page) = &mut self.page else { return };
        for (turn, job) in (0..turns).zip(jobs.iter().cycle()).skip(1) {
            let turn_time = now.saturating_sub(elapsed * (turns - turn) / turns);
            page.history.record([*job].into_iter(), turn_time);
        }
    }

    /// Accepts connections to the page and answers requests. The time is charged to the users.
    /// Returns the jobs whose stacks are to be read.
    pub fn serve_http(
        &mut self,
        sources: &mut EventSources,
        usage: &mut Usage,
        led_jobs: JobsAtTime<'_>,
        clock: Option<&TurnClock>,
    ) -> Vec<JobId> {
        let now = self.now();
        let mut readings = Vec::new();
        let Some(page) = &mut self.page else { return readings };
        let mut closed = page.connections.accept_new(sources, now);
        for (connection_id, parsed) in
            page.connections.next_requests(now, |uid| usage.has_time(uid))
        {
            let result = parsed.and_then(|request| {
                let uid = self.user_of_token(&request)?;
                // The page itself is cheap, so that the user can see the reason.
                if !is_file_of_page(&request.path) && !usage.has_time(uid) {
                    return Err(Status::TooManyRequests);
                }
                let started_at = Instant::now();
                let response = self.respond_to_user(uid, &request, led_jobs, clock, &mut readings);
                usage.charge_time(uid, started_at.elapsed());
                Ok((response?, request.close, uid))
            });
            let Some(page) = &mut self.page else { return readings };
            match result {
                Ok((response, should_close, uid)) => {
                    page.connections.answer(connection_id, response, should_close, uid, now)
                }
                Err(status) => page.connections.refuse(connection_id, status, now),
            }
        }
        let page = self.page.as_mut();
        closed.extend(page.map(|page| page.connections.flush(now)).unwrap_or_default());
        closed.into_iter().for_each(|connection_id| sources.release(Token(connection_id)));
        readings
    }

    /// The user whom the token of a request identifies.
    fn user_of_token(&self, request: &HttpRequest) -> Result<u32, Status> {
        let page = self.page.as_ref().ok_or(Status::NotFound)?;
        let token = request.token.as_deref().ok_or(Status::Forbidden)?;
        page.tokens.user_of(token).ok_or(Status::Forbidden)
    }

    /// Returns the response to a request of this user.
    fn respond_to_user(
        &mut self,
        uid: u32,
        request: &HttpRequest,
        led_jobs: JobsAtTime<'_>,
        clock: Option<&TurnClock>,
        readings: &mut Vec<JobId>,
    ) -> Result<Vec<u8>, Status> {
        match request.path.strip_prefix(request::STACKS_PATH) {
            Some(job) => {
                let reads = request.method == Method::Post;
                let (answer, reading) = self.stacks_response(uid, job, reads, led_jobs.jobs)?;
                readings.extend(reading);
                Ok(response::ok(ContentType::Json, answer.as_bytes(), request.close))
            }
            None => self.respond(uid, request, led_jobs, clock),
        }
    }
}

/// Whether this is the path of a file of the page, and not of data.
fn is_file_of_page(path: &str) -> bool {
    matches!(path, "" | "page.js" | "page.css")
}

fn longest_recent_turn(permit: &StatisticsPermit, clock: &TurnClock) -> Duration {
    Duration::from_micros(clock.statistics(permit, Instant::now()).longest_recent_turn_us)
}

/// The processes of a job on these hosts, as the page shows them.
fn processes(metrics: &JobMetrics, allocations: &[(HostId, u32)]) -> Vec<ProcessView> {
    let process = |one: &score_monitor::Process| ProcessView {
        host: allocations.get(one.totals.host.index()).map_or(HostId(u32::MAX), |(host, _)| *host),
        total: one.totals,
        shares: metrics.shares(one),
        messages: one.messages() as u64,
        bytes: one.bytes() as u64,
    };
    metrics.view.processes().into_iter().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_cached_from_the_time_at_which_it_was_finished() {
        let mut responses = CachedResponses::default();
        let finished_at = Duration::from_secs(9);
        responses.insert(1, "data", b"one".to_vec(), finished_at);
        let last = finished_at + RESPONSE_TTL - Duration::from_nanos(1);
        assert_eq!(responses.get(1, "data", last), Some(&b"one"[..]));
        assert_eq!(responses.get(1, "data", finished_at + RESPONSE_TTL), None);
        assert_eq!(responses.get(2, "data", last), None);
        assert_eq!(responses.get(1, "metrics", last), None);
        responses.insert(2, "data", b"two".to_vec(), finished_at + RESPONSE_TTL);
        assert_eq!(responses.0.len(), 1, "the expired response is dropped");
    }

    #[test]
    fn only_the_files_of_the_page_need_no_time() {
        assert!(["", "page.js", "page.css"].into_iter().all(is_file_of_page));
        assert!(!["data", "metrics", "stacks/1", "other"].into_iter().any(is_file_of_page));
    }
}
