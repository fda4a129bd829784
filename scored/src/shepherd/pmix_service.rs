//! PMIx for the Open MPI programs of the running stage. The helper `scored-pmix` serves PMIx to the
//! processes of this host. This module starts the helper, checks its reports, and passes entries of
//! other hosts on to it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_client::FramedSocket;
use score_pmi::host::shown;
use score_proto::env;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{
    MAX_FENCE_BYTES_PER_HOST, MAX_FENCE_BYTES_PER_NODE, MAX_MODEX_BYTES, MAX_SUBSET_RANGES,
    SubsetFence, max_modex_requests, max_subset_fences,
};
use score_proto::message::{EnvVar, MpiStart, OsBytes, ProgramKind};
use score_proto::nodeset::NodeSet;
use score_proto::pmix::{PmixHost, PmixNamespace, PmixOrder, PmixReport, PmixSetup};
use score_sys::host_name::system_host_name;

use super::direct_modex::DirectModex;
use super::environment::environment_value;
use super::job_info::{JobInfo, LocalNodes, ProcessKey};
use super::pmi_service::{PmiEvent, abort_event, unfinished_reason};
use super::pmix_watch::{CheckResult, HelperWatch};

/// The helper's program, in the directory of scored.
const HELPER_NAME: &str = "scored-pmix";
/// The directory for files of libpmix and Open MPI in the job's directory. It is removed with the
/// job.
const FOLDER: &str = "pmix";
/// Parameters of Open MPI, versions 4 and 5, that select the directories for shared memory files.
/// The default is /dev/shm, where files of killed processes would remain.
const SHARED_MEMORY_PARAMETERS: [&str; 5] = [
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
    "OMPI_MCA_shmem_mmap_backing_file_base_dir",
];

/// The state of the MPI library of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    NotConnected,
    Connected,
    Finalized,
    /// The process has exited.
    Ended,
}

impl ClientState {
    /// Whether the process may still use PMIx.
    fn needs_helper(self) -> bool {
        matches!(self, Self::NotConnected | Self::Connected)
    }
}

/// A parallel process that uses PMIx.
#[derive(Debug)]
struct PmixElement {
    /// Environment variables of each process of this host. None: the helper does not serve the
    /// process yet.
    environments: Vec<Option<Vec<CString>>>,
    clients: Vec<ClientState>,
    max_fence_bytes: usize,
    /// The subset fences that processes of this host are in, and the sizes of their entries in
    /// bytes.
    subset_fences: HashMap<SubsetFence, usize>,
}

impl PmixElement {
    /// Begins a subset fence: all processes of this host that take part in it are in it. Enforces
    /// the same limits as the daemon of this host.
    fn begin_subset_fence(
        &mut self,
        fence: SubsetFence,
        local_nodes: Range<u32>,
        entries: Vec<u8>,
        max_ranges: usize,
    ) -> PmiEvent {
        let max_fences = max_subset_fences(local_nodes.len());
        let nodes = fence.members.within(local_nodes);
        let total_bytes = self.subset_fences.values().sum::<usize>() + entries.len();
        let max_bytes = nodes.len() as usize * MAX_FENCE_BYTES_PER_NODE;
        let own_ranges: usize =
            self.subset_fences.keys().map(|fence| fence.members.ranges().len()).sum();
        let reason = if own_ranges + fence.members.ranges().len() > max_ranges {
            format!("the PMIx fences of the program have more than {max_ranges} ranges of nodes")
        } else if self.subset_fences.len() >= max_fences {
            format!("its processes on this host are in more than {max_fences} PMIx fences")
        } else if entries.len() > max_bytes || total_bytes > self.max_fence_bytes {
            format!(
                "its processes on this host have put {} bytes for others into PMIx, and {} are \
                 allowed",
                entries.len().max(total_bytes),
                max_bytes.min(self.max_fence_bytes)
            )
        } else {
            self.subset_fences.insert(fence.clone(), entries.len());
            return PmiEvent::SubsetFence { fence, nodes, entries };
        };
        PmiEvent::Failed(1, reason)
    }

    /// Whether a process of this host may still use PMIx.
    fn needs_helper(&self) -> bool {
        self.clients.iter().any(|client| client.needs_helper())
    }
}

/// The state of the helper.
#[derive(Debug, Default)]
enum Helper {
    /// No program of the stage needs the helper.
    #[default]
    NotNeeded,
    /// The helper will be started when the job runs.
    Due(Box<HelperStart>),
    Running(Box<RunningHelper>),
    /// The helper has exited, or could not be started.
    Ended,
}

/// The helper while it runs.
#[derive(Debug)]
struct RunningHelper {
    socket: FramedSocket,
    watch: HelperWatch,
}

/// The data for the start of the helper.
#[derive(Debug)]
struct HelperStart {
    setup: PmixSetup,
    /// The user's environment variables.
    environment: Vec<EnvVar>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct PmixService {
    nodes: LocalNodes,
    /// Number of processes of each program on all hosts.
    node_count: u32,
    /// The name of this host.
    host_name: String,
    elements: BTreeMap<ElementIndex, PmixElement>,
    helper: Helper,
    direct_modex: DirectModex,
    /// The directory for the files of libpmix and Open MPI.
    directory: PathBuf,
}

/// The name of the PMIx namespace of a parallel process. It is the same on all hosts. It is secret,
/// because libpmix trusts each local process that presents it.
fn namespace_name(job_info: &JobInfo, element: ElementIndex) -> String {
    let secret = job_info.job_start.secret.to_le_bytes();
    let key = blake3::derive_key("SCore PMIx namespace", &secret);
    let key: String = key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("score-{key}-{}-{element}", job_info.stage)
}

/// Whether a variable belongs to the PMIx server of the job in which scrun runs. Parameters of
/// libpmix (`PMIX_MCA_`) are the user's.
pub fn is_foreign_variable(name: &[u8]) -> bool {
    name.starts_with(b"PMIX_") && !name.starts_with(b"PMIX_MCA_")
}

impl PmixService {
    /// Drops the last stage, and prepares for the programs of the next stage. Closes the socket of
    /// the last helper, which then exits.
    pub fn begin_stage(&mut self, job_info: &JobInfo, job_directory: &Path) {
        self.nodes = job_info.local_nodes();
        self.node_count = job_info.placement.nodes();
        self.host_name = job_info.host_name();
        self.direct_modex = DirectModex::new(max_modex_requests(job_info.placement.hosts.len()));
        let spec = job_info.spec();
        let elements = &spec.stages[job_info.stage].elements;
        let is_served = |kind| kind == ProgramKind::Mpi(MpiStart::Pmix);
        let served =
            || (0..).map(ElementIndex).zip(elements).filter(|(_, element)| is_served(element.kind));
        let count = served().count();
        let new_element = |(number, _)| {
            let max_fence_bytes =
                (self.nodes.count * MAX_FENCE_BYTES_PER_NODE).min(MAX_FENCE_BYTES_PER_HOST / count);
            let clients = vec![ClientState::NotConnected; self.nodes.count];
            let environments = vec![None; self.nodes.count];
            let subset_fences = HashMap::new();
            (number, PmixElement { environments, clients, max_fence_bytes, subset_fences })
        };
        self.elements = served().map(new_element).collect();
        if self.elements.is_empty() {
            self.helper = Helper::NotNeeded;
            return;
        }
        self.directory = job_directory.join(FOLDER);
        let hosts = job_info.placement.hosts.iter();
        let setup = PmixSetup {
            library: served().find_map(|(_, element)| element.pmix_library.clone()),
            directory: OsBytes(self.directory.as_os_str().as_bytes().to_vec()),
            hosts: hosts
                .map(|host| PmixHost { name: host_name(&host.name), ranks: host.nodes })
                .collect(),
            self_host: job_info.placement.self_host,
            namespaces: served()
                .map(|(element, _)| PmixNamespace {
                    element,
                    name: namespace_name(job_info, element),
                })
                .collect(),
        };
        let environment = spec.environment.clone();
        self.helper = Helper::Due(Box::new(HelperStart { setup, environment }));
    }

    /// Whether programs cannot be started yet, because the helper does not serve them. Stays true
    /// if the helper has failed.
    pub fn is_starting(&self) -> bool {
        self.elements.values().any(|element| element.environments.iter().any(Option::is_none))
    }

    /// Drops the elements and the helper, because the job ends. A later exit of the helper is no
    /// failure.
    pub fn close(&mut self) {
        self.elements.clear();
        self.helper = Helper::NotNeeded;
    }

    /// Whether [`PmixService::start_helper`] has work to do.
    pub fn is_helper_due(&self) -> bool {
        matches!(self.helper, Helper::Due(_))
    }

    /// Starts the helper, if it is due. Called only while the job runs, because the helper is one
    /// of its processes. Returns a pipe with the helper's log, and the element to which the log is
    /// attributed.
    ///
    /// # Errors
    /// One line.
    pub fn start_helper(
        &mut self,
        registry: &Registry,
        token: Token,
    ) -> Result<Option<(OwnedFd, ElementIndex)>, String> {
        let Helper::Due(start) = std::mem::replace(&mut self.helper, Helper::Ended) else {
            return Ok(None);
        };
        let program = helper_program()?;
        let failed = |error: io::Error| format!("{}: {error}", program.display());
        std::fs::create_dir_all(&self.directory)
            .map_err(|error| format!("{}: {error}", self.directory.display()))?;
        let (own, its) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(&program);
        let (logged, log) = io::pipe().map_err(failed)?;
        command.env_clear().stdin(OwnedFd::from(its)).stdout(log).stderr(Stdio::null());
        for variable in &start.environment {
            let mut parts = variable.0.splitn(2, |byte| *byte == b'=');
            if let (Some(name), Some(value)) = (parts.next(), parts.next())
                && !is_foreign_variable(name)
                && name != env::PRELOAD_ENV.as_bytes()
            {
                let [name, value] = [name, value].map(std::ffi::OsStr::from_bytes);
                command.env(name, value);
            }
        }
        // With a store in shared memory ("ds21"), libpmix 4 may miss a value that another process
        // of the host is putting at that moment, and does not wait for it.
        if environment_value(&start.environment, env::PMIX_STORE_ENV).is_none() {
            command.env(env::PMIX_STORE_ENV, env::PMIX_STORE);
        }
        // The loop of this process reaps the helper.
        let _ = command.current_dir(&self.directory).spawn().map_err(failed)?;
        let mut socket = FramedSocket::new(own.into()).map_err(failed)?;
        socket.register(registry, token).map_err(failed)?;
        socket.queue(&PmixOrder::Setup(start.setup));
        for ProcessKey { element, node: rank } in self.direct_modex.asked() {
            socket.queue(&PmixOrder::ModexRequest { element, rank, is_last_try: false });
        }
        socket.flush();
        let watch = HelperWatch::new(Instant::now());
        self.helper = Helper::Running(Box::new(RunningHelper { socket, watch }));
        let element = self.elements.keys().next().copied().unwrap_or_default();
        Ok(Some((logged.into(), element)))
    }

    /// Records that mio has reported an event of the helper's socket.
    pub fn mark_readable(&mut self) {
        if let Helper::Running(helper) = &mut self.helper {
            helper.socket.mark_readable();
        }
    }

    /// When to call [`PmixService::check_helper`], unless the job is stopped until then.
    pub fn next_check(&self) -> Option<Instant> {
        match &self.helper {
            Helper::Running(helper) if self.is_helper_needed() => Some(helper.watch.next_check()),
            _ => None,
        }
    }

    /// Postpones the next check by the time for which the job was stopped.
    pub fn postpone(&mut self, stop_time: Duration) {
        if let Helper::Running(helper) = &mut self.helper {
            helper.watch.postpone(stop_time);
        }
    }

    /// Requests a report from the helper that it is alive. If the helper hangs, ends the elements
    /// that need it.
    pub fn check_helper(&mut self, now: Instant) -> Vec<(ElementIndex, PmiEvent)> {
        let (is_starting, mut events) = (self.is_starting(), Vec::new());
        let Helper::Running(helper) = &mut self.helper else { return events };
        match helper.watch.check(now, is_starting) {
            CheckResult::Ask => self.order(&PmixOrder::ReportAlive),
            CheckResult::Wait => {}
            CheckResult::Hangs(time) => {
                let reason = format!("it has not answered for {} s", time.as_secs());
                self.fail_helper(&reason, &mut events);
            }
        }
        events
    }

    /// Handles the reports of the helper, and sends queued orders. Returns events that concern
    /// other hosts, with the number of the element.
    pub fn serve(&mut self, registry: &Registry) -> Vec<(ElementIndex, PmiEvent)> {
        let mut events = Vec::new();
        let reason = loop {
            let Helper::Running(helper) = &mut self.helper else { return events };
            let socket = &mut helper.socket;
            socket.flush();
            match socket.receive::<PmixReport>() {
                Ok(Some(report)) => self.on_report(report, &mut events),
                Ok(None) if socket.is_closed() => break "it has ended".to_owned(),
                Ok(None) => {
                    socket.update_interest(registry);
                    return events;
                }
                Err(error) => break error.to_string(),
            }
        };
        self.fail_helper(&reason, &mut events);
        events
    }

    /// Handles the failure of the helper for this reason.
    fn fail_helper(&mut self, reason: &str, events: &mut Vec<(ElementIndex, PmiEvent)>) {
        let host = &self.host_name;
        self.fail(&format!("{HELPER_NAME}, which serves PMIx on host {host}: {reason}"), events);
    }

    /// Whether a process may still use PMIx, or another host waits for an answer.
    fn is_helper_needed(&self) -> bool {
        self.elements.values().any(PmixElement::needs_helper)
            || self.direct_modex.asked().next().is_some()
    }

    /// Gives up the helper. Elements that need it fail, and other hosts that have requested entries
    /// get an empty answer.
    fn fail(&mut self, reason: &str, events: &mut Vec<(ElementIndex, PmiEvent)>) {
        self.helper = Helper::Ended;
        for (number, element) in &self.elements {
            if element.needs_helper() {
                events.push((*number, PmiEvent::Failed(1, reason.to_owned())));
            }
        }
        let asked: Vec<ProcessKey> = self.direct_modex.asked().collect();
        asked.into_iter().for_each(|key| self.on_found(key, None, events));
    }

    fn on_report(&mut self, report: PmixReport, events: &mut Vec<(ElementIndex, PmiEvent)>) {
        match report {
            PmixReport::Ready { element, rank, environment } => {
                let variables = environment.into_iter().map(|variable| variable.0);
                let folder = self.directory.as_os_str().as_bytes();
                let parameter = |name: &str| [name.as_bytes(), b"=", folder].concat();
                let variables = variables.chain(SHARED_MEMORY_PARAMETERS.map(parameter));
                let strings = variables.filter_map(|variable| CString::new(variable).ok());
                let strings = strings.collect();
                if let Some(process) = self.nodes.process_index(rank)
                    && let Some(element) = self.elements.get_mut(&element)
                {
                    element.environments[process] = Some(strings);
                }
                self.on_answer();
            }
            PmixReport::Alive => self.on_answer(),
            PmixReport::Unavailable(reason) => self.fail(&reason, events),
            PmixReport::Connected { element, rank } => {
                self.set_client(ProcessKey { element, node: rank }, ClientState::Connected);
            }
            PmixReport::Finalized { element, rank } => {
                self.end_client(ProcessKey { element, node: rank }, ClientState::Finalized);
            }
            PmixReport::InFence { element, fence: Some(fence), entries } => {
                let local_nodes = self.local_range();
                let max_ranges = MAX_SUBSET_RANGES / self.elements.len().max(1);
                if let Some(element_state) = self.elements.get_mut(&element) {
                    let event =
                        element_state.begin_subset_fence(fence, local_nodes, entries, max_ranges);
                    events.push((element, event));
                }
            }
            PmixReport::InFence { element, fence: None, entries } => {
                let Some(max_bytes) = self.elements.get(&element).map(|e| e.max_fence_bytes) else {
                    return;
                };
                let event = match entries.len() <= max_bytes {
                    true => PmiEvent::Fence(self.local_nodes(), entries),
                    false => PmiEvent::Failed(
                        1,
                        format!(
                            "its processes on this host have put {} bytes for others into PMIx, \
                             and {max_bytes} are allowed",
                            entries.len()
                        ),
                    ),
                };
                events.push((element, event));
            }
            PmixReport::ModexRequest { element, rank } => {
                let key = ProcessKey { element, node: rank };
                let is_known = self.serves(element)
                    && rank < self.node_count
                    && self.nodes.process_index(rank).is_none();
                if is_known && self.direct_modex.request(key) {
                    events.push((element, PmiEvent::ModexRequest(rank)));
                }
            }
            PmixReport::ModexAnswer { element, rank, entries } => {
                self.on_found(ProcessKey { element, node: rank }, entries.as_deref(), events);
            }
            PmixReport::Aborted { element, rank, code, text } => {
                events.push((element, abort_event(rank, code, &shown(&text))));
            }
        }
    }

    /// Answers the hosts that have requested the entries of a process of this host.
    fn on_found(
        &mut self,
        key: ProcessKey,
        entries: Option<&[u8]>,
        events: &mut Vec<(ElementIndex, PmiEvent)>,
    ) {
        let ProcessKey { element, node } = key;
        let askers = self.direct_modex.take_askers(key);
        let len = entries.map_or(0, <[u8]>::len);
        if len > MAX_MODEX_BYTES && !askers.is_empty() {
            let reason = format!(
                "node {node} has put {len} bytes for others into PMIx, and {MAX_MODEX_BYTES} are \
                 allowed"
            );
            return events.push((element, PmiEvent::Failed(1, reason)));
        }
        events.extend(askers.into_iter().map(|asker| {
            let entries = entries.map(<[u8]>::to_vec);
            (element, PmiEvent::ModexAnswer { asker, node, entries })
        }));
    }

    /// Handles a request of another host for the entries of a process of this host. The answer
    /// follows when the process has put entries, or will not put any more.
    pub fn on_modex_request(
        &mut self,
        key: ProcessKey,
        asker: JobHostId,
    ) -> Vec<(ElementIndex, PmiEvent)> {
        let Some(client) = self.client(key).copied() else { return Vec::new() };
        self.direct_modex.add_asker(key, asker);
        let mut events = Vec::new();
        match self.helper {
            Helper::Due(_) | Helper::Running(_) => self.find_entries(key, !client.needs_helper()),
            Helper::NotNeeded | Helper::Ended => self.on_found(key, None, &mut events),
        }
        events
    }

    /// Passes the answer of another host on to the helper. Returns the next request, with the
    /// number of its element.
    pub fn on_modex_answer(
        &mut self,
        key: ProcessKey,
        entries: Option<Vec<u8>>,
    ) -> Option<(ElementIndex, PmiEvent)> {
        let ProcessKey { element, node: rank } = key;
        self.order(&PmixOrder::ModexAnswer { element, rank, entries });
        let next = self.direct_modex.on_answer(key)?;
        Some((next.element, PmiEvent::ModexRequest(next.node)))
    }

    fn find_entries(&mut self, key: ProcessKey, is_last_try: bool) {
        let ProcessKey { element, node: rank } = key;
        self.order(&PmixOrder::ModexRequest { element, rank, is_last_try });
    }

    /// Records that a process will not put any more entries.
    fn end_client(&mut self, key: ProcessKey, state: ClientState) {
        self.set_client(key, state);
        if self.direct_modex.is_asked(key) {
            self.find_entries(key, true);
        }
    }

    /// Handles the exit of a process.
    pub fn on_process_exit(&mut self, key: ProcessKey) {
        self.end_client(key, ClientState::Ended);
    }

    /// Handles an answer of the helper, which shows that the helper is alive.
    fn on_answer(&mut self) {
        if let Helper::Running(helper) = &mut self.helper {
            helper.watch.on_answer();
        }
    }

    fn local_range(&self) -> Range<u32> {
        let first = self.nodes.first;
        first..first + self.nodes.count as u32
    }

    fn local_nodes(&self) -> NodeSet {
        NodeSet::from(self.local_range())
    }

    /// Ends a subset fence: all nodes that take part are in it.
    pub fn end_subset_fence(&mut self, element: ElementIndex, fence: SubsetFence) {
        if let Some(element) = self.elements.get_mut(&element) {
            element.subset_fences.remove(&fence);
        }
        self.order(&PmixOrder::FenceDone { element, fence: Some(fence) });
    }

    fn client(&mut self, key: ProcessKey) -> Option<&mut ClientState> {
        let process = self.nodes.process_index(key.node)?;
        self.elements.get_mut(&key.element)?.clients.get_mut(process)
    }

    fn set_client(&mut self, key: ProcessKey, state: ClientState) {
        if let Some(client) = self.client(key) {
            *client = state;
        }
    }

    /// The environment variables of a process, if it uses PMIx.
    pub fn environment(&self, key: ProcessKey) -> &[CString] {
        let variables = || {
            let process = self.nodes.process_index(key.node)?;
            self.elements.get(&key.element)?.environments.get(process)?.as_deref()
        };
        variables().unwrap_or_default()
    }

    /// Whether a parallel process uses PMIx.
    pub fn serves(&self, element: ElementIndex) -> bool {
        self.elements.contains_key(&element)
    }

    /// Passes an order on to the helper, if the helper runs.
    pub fn order(&mut self, order: &PmixOrder) {
        if let Helper::Running(helper) = &mut self.helper {
            helper.socket.queue(order);
            helper.socket.flush();
        }
    }

    /// Called when a process has exited by itself and all reports of the helper have been read.
    /// Returns a reason to end the job if its MPI library had not finished, because other processes
    /// may wait for it.
    pub fn unfinished_reason(&mut self, key: ProcessKey, code: u8) -> Option<String> {
        let client = self.client(key)?;
        (*client == ClientState::Connected).then(|| unfinished_reason(key.node, code))
    }
}

/// The name of a host for libpmix, which accepts no empty names.
fn host_name(name: &str) -> String {
    match name {
        "" => system_host_name(),
        name => name.to_owned(),
    }
}

fn helper_program() -> Result<PathBuf, String> {
    let scored = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let program = scored.with_file_name(HELPER_NAME);
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "Open MPI programs need {}, which is not on this host: install it next to scored",
            program.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_another_server_are_distinguished_from_parameters() {
        assert!(is_foreign_variable(b"PMIX_RANK"));
        assert!(is_foreign_variable(b"PMIX_SERVER_URI41"));
        assert!(!is_foreign_variable(b"PMIX_MCA_gds"));
        assert!(!is_foreign_variable(b"PATH"));
    }
}
