//! The launcher's state of the processes of one host. It is a state machine without I/O: the input
//! is bytes of a process, the output is actions. The caller moves the entries of a fence between
//! hosts.

use std::collections::BTreeMap;

use crate::key_values::{
    self, KeyValueSpace, MAX_KEY_LEN, MAX_NAME_LEN, MAX_VALUE_LEN, MergeError, PutError,
};
use crate::request::{Answerer, Request};
use crate::wire::{Decoder, Message, WireVersion, encode};

/// The key whose value describes which ranks are on which host.
const MAPPING_KEY: &str = "PMI_process_mapping";
/// The largest number of attributes of a node. All processes of the node share them.
const MAX_NODE_ATTRIBUTES: usize = 4096;
/// The longest text of a process that is quoted in a message, in characters.
const MAX_SHOWN_LEN: usize = 100;

/// The facts about the job that all its processes get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFacts {
    /// The name of the key-value space; at most [`MAX_NAME_LEN`] bytes.
    pub space_name: String,
    /// The number of processes.
    pub size: u32,
    /// The number of processes that the job could have.
    pub universe_size: u32,
    /// The number of the program among those of the job.
    pub app_number: u32,
    /// The distribution of ranks over hosts; see [`process_mapping`].
    pub process_mapping: String,
}

/// The distribution of ranks over hosts in PMI's notation, `(vector,(FIRST,HOSTS,RANKS),...)`:
/// HOSTS hosts, beginning with host FIRST, have RANKS consecutive ranks each.
pub fn process_mapping(ranks_of_hosts: &[u32]) -> String {
    let mut text = "(vector".to_owned();
    let mut first = 0;
    for block in ranks_of_hosts.chunk_by(|one, next| one == next) {
        text.push_str(&format!(",({first},{},{})", block.len(), block[0]));
        first += block.len();
    }
    text.push(')');
    text
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PmiAction {
    /// Send this to a process.
    Send {
        /// The process, by its position among those of the host.
        process: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// All processes of the host that have not ended wait in a fence. The caller collects the new
    /// entries of all hosts, passes them to [`PmiHost::merge`], and then calls
    /// [`PmiHost::end_fence`].
    Fence {
        /// The processes that wait.
        processes: Vec<usize>,
        /// The new entries of this host.
        new_entries: Vec<u8>,
    },
    /// A process sends no further requests. It may exit.
    Finalized {
        /// The process.
        process: usize,
    },
    /// A process has requested the end of the job.
    Abort {
        /// The process.
        process: usize,
        /// The exit code.
        code: i32,
        /// The reason, if there is one.
        text: String,
    },
    /// A process has violated the protocol. The caller reads nothing more from it and ends the job.
    Violation {
        /// The process.
        process: usize,
        /// The violation, in one line.
        text: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ProcessState {
    /// The process has not sent its version.
    Connected,
    Ready,
    /// The process waits for an attribute of the node.
    AwaitingAttribute(String),
    InFence,
    Finalized,
    /// The process has violated the protocol.
    Refused,
    /// The process has exited.
    Ended,
}

#[derive(Debug)]
struct Process {
    state: ProcessState,
    version: WireVersion,
    /// Version 2: the client's name of the thread that waits for an answer.
    thread: Option<String>,
    decoder: Decoder,
}

/// See the [module](self).
#[derive(Debug)]
pub struct PmiHost {
    facts: JobFacts,
    first_rank: u32,
    processes: Vec<Process>,
    space: KeyValueSpace,
    /// A fence was reported and has not ended.
    is_fence_reported: bool,
    node_attributes: BTreeMap<String, String>,
}

impl PmiHost {
    /// A host with this number of processes; the first one has the rank `first_rank`. Between two
    /// fences they may put at most `max_fence_bytes` of entries.
    pub fn new(
        facts: JobFacts,
        first_rank: u32,
        process_count: usize,
        max_fence_bytes: usize,
    ) -> Self {
        let process = || Process {
            state: ProcessState::Connected,
            version: WireVersion::One,
            thread: None,
            decoder: Decoder::default(),
        };
        Self {
            facts,
            first_rank,
            processes: std::iter::repeat_with(process).take(process_count).collect(),
            space: KeyValueSpace::new(max_fence_bytes),
            is_fence_reported: false,
            node_attributes: BTreeMap::new(),
        }
    }

    /// Handles bytes that a process has sent. A short message may have a long answer. Therefore the
    /// caller must not read from a process that has not taken the answers to its earlier messages.
    pub fn on_bytes(&mut self, process: usize, bytes: &[u8]) -> Vec<PmiAction> {
        let mut actions = Vec::new();
        let is_over =
            |state: &ProcessState| matches!(state, ProcessState::Refused | ProcessState::Ended);
        if is_over(&self.processes[process].state) {
            return actions;
        }
        self.processes[process].decoder.push(bytes);
        while self.processes[process].state != ProcessState::Refused {
            let handled = match self.processes[process].decoder.next_message() {
                Ok(None) => break,
                Ok(Some(message)) => self.on_message(process, &message, &mut actions),
                Err(error) => Err(error.to_string()),
            };
            if let Err(text) = handled {
                self.processes[process].state = ProcessState::Refused;
                self.processes[process].decoder = Decoder::default();
                actions.push(PmiAction::Violation { process, text: shown(&text) });
            }
        }
        actions
    }

    /// Whether a process may exit: it has never used PMI, or has finalized.
    pub fn may_exit(&self, process: usize) -> bool {
        matches!(self.processes[process].state, ProcessState::Connected | ProcessState::Finalized)
    }

    /// A process has exited, and everything that it had sent has been read. If the other processes
    /// wait for it in a fence, the result reports this fence with the processes that are in it.
    pub fn on_exit(&mut self, process: usize) -> Option<PmiAction> {
        self.processes[process].state = ProcessState::Ended;
        self.report_fence()
    }

    /// The report that the processes of this host are in a fence, if it is due.
    fn report_fence(&mut self) -> Option<PmiAction> {
        let has_ended = |process: &Process| process.state == ProcessState::Ended;
        let ended_count = self.processes.iter().filter(|one| has_ended(one)).count();
        let processes: Vec<usize> = self.in_fence().collect();
        let is_due = !processes.is_empty()
            && processes.len() + ended_count == self.processes.len()
            && !self.is_fence_reported;
        is_due.then(|| {
            self.is_fence_reported = true;
            PmiAction::Fence { processes, new_entries: self.space.take_new_entries() }
        })
    }

    /// The processes that wait in a fence.
    pub fn in_fence(&self) -> impl Iterator<Item = usize> + '_ {
        let waits = |process: &usize| self.processes[*process].state == ProcessState::InFence;
        (0..self.processes.len()).filter(waits)
    }

    /// Whether a process waits for an answer.
    pub fn awaits_answer(&self, process: usize) -> bool {
        let state = &self.processes[process].state;
        matches!(state, ProcessState::InFence | ProcessState::AwaitingAttribute(_))
    }

    /// Adds entries of a fence, from all hosts. They may arrive in several pieces.
    ///
    /// # Errors
    /// If the bytes are not entries, or if there are too many.
    pub fn merge(&mut self, entries: &[u8]) -> Result<(), MergeError> {
        self.space.merge(entries)
    }

    /// All entries of the fence have been merged. Answers the waiting processes.
    pub fn end_fence(&mut self) -> Vec<PmiAction> {
        self.is_fence_reported = false;
        let waiting: Vec<usize> = self.in_fence().collect();
        let mut actions = Vec::new();
        for process in waiting {
            self.processes[process].state = ProcessState::Ready;
            let bytes = self.answerer(process).done(["barrier_out", "kvs-fence-response"], &[]);
            actions.push(PmiAction::Send { process, bytes });
        }
        actions
    }

    fn answerer(&self, process: usize) -> Answerer<'_> {
        let process = &self.processes[process];
        Answerer { version: process.version, thread: process.thread.as_deref() }
    }

    fn on_message(
        &mut self,
        process: usize,
        message: &Message,
        actions: &mut Vec<PmiAction>,
    ) -> Result<(), String> {
        let request = Request::parse(message).map_err(|error| error.to_string())?;
        self.processes[process].thread = message.field("thrid").map(str::to_owned);
        match (&self.processes[process].state, &request) {
            // Another thread of the process may end the job at any time.
            (state, Request::Abort { .. }) if *state != ProcessState::Connected => {}
            (ProcessState::Connected, Request::Init(_)) => {}
            (ProcessState::Connected, _) => {
                return Err(format!("PMI command '{}' before init", message.command));
            }
            (ProcessState::Ready, Request::Init(_)) => {
                return Err("PMI init for the second time".to_owned());
            }
            (ProcessState::Ready, _) if message.version == self.processes[process].version => {}
            (ProcessState::Ready, _) => {
                return Err(format!("PMI command '{}' of another version", message.command));
            }
            (ProcessState::Finalized | ProcessState::Refused | ProcessState::Ended, _) => {
                return Err(format!("PMI command '{}' after finalize", message.command));
            }
            (ProcessState::AwaitingAttribute(_) | ProcessState::InFence, _) => {
                let command = &message.command;
                return Err(format!("PMI command '{command}' before the answer to another one"));
            }
        }
        self.on_request(process, request, actions);
        Ok(())
    }

    fn on_request(&mut self, process: usize, request: Request, actions: &mut Vec<PmiAction>) {
        let bytes = match request {
            Request::Init(version) => {
                self.processes[process].state = ProcessState::Ready;
                self.processes[process].version = version;
                let (version, subversion) = match version {
                    WireVersion::One => ("1", "1"),
                    WireVersion::Two => ("2", "0"),
                };
                let fields =
                    [("pmi_version", version), ("pmi_subversion", subversion), ("rc", "0")];
                encode(WireVersion::One, "response_to_init", &fields)
            }
            Request::Fence => {
                self.processes[process].state = ProcessState::InFence;
                actions.extend(self.report_fence());
                return;
            }
            Request::Finalize => {
                self.processes[process].state = ProcessState::Finalized;
                actions.push(PmiAction::Finalized { process });
                self.answerer(process).done(["finalize_ack", "finalize-response"], &[])
            }
            Request::Abort { code, text } => {
                actions.push(PmiAction::Abort { process, code, text: shown(&text) });
                return;
            }
            Request::NodeAttribute { key, wait: true }
                if !self.node_attributes.contains_key(&key) =>
            {
                self.processes[process].state = ProcessState::AwaitingAttribute(key);
                return;
            }
            Request::PutNodeAttribute { key, value } => {
                let names = ["", "info-putnodeattr-response"];
                match self.put_node_attribute(&key, value) {
                    Ok(()) => {
                        let bytes = self.answerer(process).done(names, &[]);
                        actions.push(PmiAction::Send { process, bytes });
                        return self.answer_awaiting(&key, actions);
                    }
                    Err(error) => self.answerer(process).failed(names, &error.to_string()),
                }
            }
            Request::Put { key, value } => {
                let names = ["put_result", "kvs-put-response"];
                let result = self.space.put(&key, &value);
                let answerer = self.answerer(process);
                match result {
                    Ok(()) => answerer.done(names, &[]),
                    Err(error) => answerer.failed(names, &error.to_string()),
                }
            }
            query => self.answer_query(process, &query),
        };
        actions.push(PmiAction::Send { process, bytes });
    }

    /// The answer to a request that does not change the state.
    fn answer_query(&self, process: usize, request: &Request) -> Vec<u8> {
        let answerer = self.answerer(process);
        let facts = &self.facts;
        match request {
            Request::FullInit => self.answer_full_init(process),
            Request::Maxes => {
                let maxes = [MAX_NAME_LEN, MAX_KEY_LEN, MAX_VALUE_LEN].map(|len| len.to_string());
                let [name, key, value] = maxes.each_ref().map(String::as_str);
                let fields = [("kvsname_max", name), ("keylen_max", key), ("vallen_max", value)];
                answerer.done(["maxes", ""], &fields)
            }
            Request::AppNumber => {
                answerer.done(["appnum", ""], &[("appnum", &facts.app_number.to_string())])
            }
            Request::UniverseSize => {
                answerer.done(["universe_size", ""], &[("size", &facts.universe_size.to_string())])
            }
            Request::SpaceName => {
                let name = match answerer.version {
                    WireVersion::One => "kvsname",
                    WireVersion::Two => "jobid",
                };
                answerer.done(["my_kvsname", "job-getid-response"], &[(name, &facts.space_name)])
            }
            Request::Get { space, key } => {
                let is_known = space.as_ref().is_none_or(|name| *name == facts.space_name);
                let value = self.space.get(key).or_else(|| self.job_fact(key));
                answerer.value(["get_result", "kvs-get-response"], value.filter(|_| is_known))
            }
            Request::JobAttribute(key) => {
                let universe_size = facts.universe_size.to_string();
                let value = match key.as_str() {
                    "universeSize" => Some(universe_size.as_str()),
                    key => self.job_fact(key),
                };
                answerer.value(["", "info-getjobattr-response"], value)
            }
            Request::NodeAttribute { key, .. } => {
                let value = self.node_attributes.get(key).map(String::as_str);
                answerer.value(["", "info-getnodeattr-response"], value)
            }
            Request::Unsupported(name) => {
                answerer.failed([name, name], "not supported by this launcher")
            }
            // These requests change the state.
            Request::Init(_)
            | Request::Put { .. }
            | Request::PutNodeAttribute { .. }
            | Request::Fence
            | Request::Finalize
            | Request::Abort { .. } => Vec::new(),
        }
    }

    fn answer_full_init(&self, process: usize) -> Vec<u8> {
        let facts = &self.facts;
        let rank = u64::from(self.first_rank) + process as u64;
        let [size, app_number] = [facts.size, facts.app_number].map(|number| number.to_string());
        let fields = [
            // Slurm's client library expects the version, and words for truth values.
            ("pmi-version", "2".to_owned()),
            ("pmi-subversion", "0".to_owned()),
            ("rank", rank.to_string()),
            ("size", size),
            ("appnum", app_number),
            ("debugged", "FALSE".to_owned()),
            ("pmiverbose", "FALSE".to_owned()),
        ];
        let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.answerer(process).done(["", "fullinit-response"], &fields)
    }

    fn job_fact(&self, key: &str) -> Option<&str> {
        // Clients have room only for the longest value. If the mapping is longer, they work without
        // it.
        let mapping = self.facts.process_mapping.as_str();
        (key == MAPPING_KEY && mapping.len() < MAX_VALUE_LEN).then_some(mapping)
    }

    fn put_node_attribute(&mut self, key: &str, value: String) -> Result<(), PutError> {
        key_values::check(key, &value)?;
        if self.node_attributes.contains_key(key) {
            return Err(PutError::Duplicate);
        }
        if self.node_attributes.len() >= MAX_NODE_ATTRIBUTES {
            return Err(PutError::Full);
        }
        self.node_attributes.insert(key.to_owned(), value);
        Ok(())
    }

    /// Answers the processes that wait for this attribute of the node.
    fn answer_awaiting(&mut self, key: &str, actions: &mut Vec<PmiAction>) {
        for process in 0..self.processes.len() {
            let state = &mut self.processes[process].state;
            if !matches!(state, ProcessState::AwaitingAttribute(awaited) if awaited == key) {
                continue;
            }
            *state = ProcessState::Ready;
            let request = Request::NodeAttribute { key: key.to_owned(), wait: false };
            let bytes = self.answer_query(process, &request);
            actions.push(PmiAction::Send { process, bytes });
        }
    }
}

/// Makes a text of a process printable in a message: replaces control characters and shortens it.
pub fn shown(text: &str) -> String {
    let shown =
        |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    text.chars().map(shown).take(MAX_SHOWN_LEN).collect()
}

/// Fuzzing: both processes of a job send hostile bytes.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let facts = JobFacts {
        space_name: "kvs".to_owned(),
        size: 2,
        universe_size: 2,
        app_number: 0,
        process_mapping: process_mapping(&[2]),
    };
    let mut host = PmiHost::new(facts, 0, 2, 1 << 20);
    for (index, piece) in bytes.chunks(64).enumerate() {
        for action in host.on_bytes(index % 2, piece) {
            if let PmiAction::Fence { new_entries, .. } = action {
                assert_eq!(host.merge(&new_entries), Ok(()));
                // A process may have violated the protocol meanwhile.
                let waiting_count = host.in_fence().count();
                assert_eq!(host.end_fence().len(), waiting_count);
            }
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
