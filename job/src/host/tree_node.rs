//! One host's node of a job's range tree. It passes orders to the host's own shepherd and to the
//! child hosts. It merges their reports and passes them up. There are no sockets in this module.
//!
//! The output of each child keeps its order. Output is forwarded only as far as the next hop has
//! granted credit. All other messages pass without waiting for output; see docs/dev/cluster.md, "A
//! job on many hosts".

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{
    ElementOrder, ElementReport, FileRequest, HOP_WINDOW, HopOrder, JobOrder, JobReport,
    LocalRotation, Order, OutputReport, Placement, ProgramAnswer, Remains, Report, ShepherdOrder,
    ShepherdReport, StopCondition, SwitchOrder, SwitchReport, SwitchSeq,
};
use score_proto::message::Stream;
use score_proto::observation::{ActivitySample, IdleSummary, SampleRound};
use score_tree::range_tree::Subtree;
use score_tree::report_queue::CoalescingQueue;

use super::exchange_limits::ExchangeLimits;
use super::gather::Gather;
use super::tool_mergers::ToolMergers;
use crate::cluster::MonotonicTime;
use crate::validate::MAX_ELEMENTS;

/// The largest number of reports that wait for the end of an iteration of the daemon's loop.
const MAX_PENDING_REPORTS: usize = 4096;

/// Bytes of programs that a child may have requested and not yet received, over all requests.
const MAX_REQUESTED_FILE_BYTES: u64 = 64 << 20;

/// The index of the host's own shepherd among the children. The other children are the child hosts,
/// in order.
pub const SHEPHERD_CHILD: usize = 0;

/// A message that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outgoing {
    /// To the parent.
    Parent(Report),
    /// To a child host.
    Child(usize, HopOrder),
    /// To the host's own shepherd.
    Shepherd(ShepherdOrder),
    /// To the switch thread of the host's own shepherd.
    SwitchThread(SwitchOrder),
}

#[derive(Debug, Default)]
struct Child {
    /// The hosts that report through this child.
    hosts: std::ops::Range<u32>,
    /// Output, and the reports that must not overtake it.
    queue: VecDeque<OutputReport>,
    /// Bytes of output that were forwarded and for which no new credit was granted yet.
    credit_to_grant: u64,
    /// Bytes of programs that the child has requested and that have not been sent to it.
    requested_file_bytes: u64,
    /// The host and the stream of the child's last output, if that output ended in the middle of a
    /// line.
    open_line: Option<(JobHostId, Stream)>,
    /// The child sends no further reports.
    is_closed: bool,
    /// The child's last idle summary of each element of the running stage.
    idle_summaries: BTreeMap<ElementIndex, IdleSummary>,
}

impl Child {
    fn new(hosts: std::ops::Range<u32>) -> Self {
        Self { hosts, ..Self::default() }
    }
}

/// The number of each question that is asked only once in a job.
const ONLY_ONCE: u64 = 1;

/// The questions to all children.
#[derive(Debug)]
struct Questions {
    /// Whether the job can start. The question is open from the beginning.
    ready: Gather<()>,
    /// Whether all output was forwarded. Each order to drain has the next number.
    drained: Gather<()>,
    /// Whether the job has stopped. The number of the question is the number of the stop. An order
    /// to run for a limited time also asks this question.
    stopped: Gather<()>,
    /// The time that the job took.
    finished: Gather<u64>,
    /// Samples of each element, by round.
    samples: BTreeMap<ElementIndex, Gather<ActivitySample>>,
}

impl Questions {
    fn new(children: &[Child]) -> Self {
        let mut ready = new_gather(children);
        ready.ask(ONLY_ONCE);
        Self {
            ready,
            drained: new_gather(children),
            stopped: new_gather(children),
            finished: new_gather(children),
            samples: BTreeMap::new(),
        }
    }
}

/// A question to these children. Children without hosts need not answer.
fn new_gather<T: Copy>(children: &[Child]) -> Gather<T> {
    Gather::new(children.iter().map(|child| !child.hosts.is_empty()))
}

/// The form in which a child receives an order.
fn to_child(child_index: usize, order: Order) -> Outgoing {
    if child_index != SHEPHERD_CHILD {
        return Outgoing::Child(child_index, HopOrder::Tree(order));
    }
    Outgoing::Shepherd(match order {
        Order::Switch(order) => return Outgoing::SwitchThread(order),
        Order::OutputAck(bytes) => ShepherdOrder::OutputAck(bytes),
        Order::Program(answer) => ShepherdOrder::Program(answer),
        Order::Job(order) => ShepherdOrder::Job(order),
        Order::Element { element, order } => ShepherdOrder::Element { element, order },
    })
}

/// One host's node of the range tree of one job.
#[derive(Debug)]
pub struct TreeNode {
    placement: Placement,
    children: Vec<Child>,
    exchange_limits: ExchangeLimits,
    tool_mergers: ToolMergers,
    /// The time of the last order or tick.
    now: MonotonicTime,
    /// Bytes of output that may be forwarded to the parent.
    credit: u64,
    /// The child whose last output ended in the middle of a line.
    mid_line_child: Option<usize>,
    /// The child whose output was sent last.
    last_served: usize,
    killed: bool,
    questions: Questions,
    /// The last idle summary of each element of the running stage that was sent to the parent.
    idle_summaries: BTreeMap<ElementIndex, IdleSummary>,
    pending_reports: CoalescingQueue<Report>,
    outgoing: Vec<Outgoing>,
}

impl TreeNode {
    /// The node of the host `placement.self_host`, in the tree over all hosts.
    pub fn new(placement: Placement) -> Self {
        let mut branch = Subtree::whole(placement.hosts.len() as u32);
        let JobHostId(position) = placement.self_host;
        while branch.root() != position
            && let Some(next) = branch.child_containing(position)
        {
            branch = next;
        }
        let self_range = position..position.saturating_add(1);
        let child_ranges = branch.children().map(|child| child.positions());
        let children = std::iter::once(self_range).chain(child_ranges).map(Child::new);
        Self::with_children(placement, children.collect())
    }

    /// The node above the first host of a job that begins on another host. It runs no processes.
    pub fn at_master(placement: Placement) -> Self {
        let all_hosts = 0..placement.hosts.len() as u32;
        let mut no_shepherd = Child::new(0..0);
        no_shepherd.is_closed = true;
        Self::with_children(placement, vec![no_shepherd, Child::new(all_hosts)])
    }

    fn with_children(placement: Placement, children: Vec<Child>) -> Self {
        Self {
            questions: Questions::new(&children),
            children,
            placement,
            exchange_limits: ExchangeLimits::default(),
            tool_mergers: ToolMergers::default(),
            now: MonotonicTime::ZERO,
            credit: HOP_WINDOW,
            mid_line_child: None,
            last_served: 0,
            killed: false,
            idle_summaries: BTreeMap::new(),
            pending_reports: CoalescingQueue::new(MAX_PENDING_REPORTS),
            outgoing: Vec::new(),
        }
    }

    /// The hosts that report through a child.
    pub fn hosts(&self, child_index: usize) -> std::ops::Range<u32> {
        self.children.get(child_index).map_or(0..0, |child| child.hosts.clone())
    }

    /// The hosts of the children, by child index.
    pub fn child_hosts(&self) -> impl Iterator<Item = (usize, JobHostId)> + '_ {
        self.children
            .iter()
            .enumerate()
            .skip(1)
            .map(|(child_index, child)| (child_index, JobHostId(child.hosts.start)))
    }

    /// The placement of the job.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The hosts of the children that were ordered to stop and have not stopped yet.
    pub fn unstopped_hosts(&self) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        let is_stopping = self.questions.stopped.is_open();
        let children = self.children.iter().enumerate();
        let unstopped =
            children.filter(move |(index, _)| is_stopping && !self.has_child_stopped(*index));
        unstopped.map(|(_, child)| child.hosts.clone())
    }

    /// Whether a child has carried out the last order to stop, or has nothing left to stop.
    fn has_child_stopped(&self, child_index: usize) -> bool {
        self.questions.stopped.has_answered(child_index)
            || self.questions.finished.has_answered(child_index)
            || self.children[child_index].is_closed
    }

    /// Whether output waits until the parent has taken the earlier output.
    pub fn is_blocked(&self) -> bool {
        let exceeds_credit = |child: &Child| match child.queue.front() {
            Some(OutputReport::Text { bytes, .. }) => bytes.len() as u64 > self.credit,
            Some(OutputReport::Flush { .. } | OutputReport::Drained) | None => false,
        };
        self.children.iter().any(exceeds_credit)
    }

    /// Whether the shepherd has reported that no local process of some element needs a processor.
    pub fn is_idle(&self) -> bool {
        self.children
            .first()
            .is_some_and(|child| child.idle_summaries.values().any(IdleSummary::needs_no_processor))
    }

    /// Whether the last report was sent to the parent.
    pub fn is_finished(&self) -> bool {
        self.questions.finished.is_complete()
    }

    /// Sends the placement of the job to the child hosts, as their first order.
    pub fn announce_placement(&mut self) {
        for (child_index, child) in
            self.children.iter().enumerate().skip(1).filter(|(_, child)| !child.is_closed)
        {
            let placement =
                Placement { self_host: JobHostId(child.hosts.start), ..self.placement.clone() };
            let order = HopOrder::SetPlacement(placement);
            self.outgoing.push(Outgoing::Child(child_index, order));
        }
    }

    /// Sets the current time, before each order and [`TreeNode::on_tick`].
    pub fn set_time(&mut self, now: MonotonicTime) {
        self.now = now;
    }

    /// When [`TreeNode::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.tool_mergers.deadline()
    }

    /// Time has passed.
    pub fn on_tick(&mut self) {
        let reports = self.tool_mergers.on_tick(self.now);
        reports.into_iter().for_each(|report| self.queue_report(report));
    }

    /// An order has come from the parent.
    pub fn on_order(&mut self, mut order: Order) {
        if let Order::Element { element, order: ElementOrder::ToolCommand(command) } = &mut order
            && element.index() < MAX_ELEMENTS
        {
            let children = self.children.iter();
            let nodes: Vec<_> = children.map(|child| self.node_range(child).into()).collect();
            let reports = self.tool_mergers.on_command(*element, command, nodes, self.now);
            reports.into_iter().for_each(|report| self.queue_report(report));
        }
        match &order {
            Order::OutputAck(bytes) => self.credit = self.credit.saturating_add(*bytes),
            Order::Program(_) => {
                let program_child = self.program_child();
                self.pass_on(order, |child_index, _| child_index == program_child);
            }
            Order::Job(job_order) => {
                self.on_job_order(job_order);
                let target_host = job_order.host();
                let target_hosts = job_order.hosts().cloned();
                // Files of tools pass through the ancestors of the tool's hosts in the tree.
                let is_relayed = matches!(job_order, JobOrder::ToolFiles(_));
                self.pass_on(order, |child_index, child| {
                    let is_target = target_host.is_none_or(|host| child.hosts.contains(&host.0))
                        && target_hosts
                            .as_ref()
                            .is_none_or(|hosts| !hosts.within(child.hosts.clone()).is_empty());
                    is_target || (is_relayed && child_index == SHEPHERD_CHILD)
                });
            }
            Order::Switch(switch_order) => {
                self.on_switch_order(switch_order);
                self.pass_on(order, |_, _| true);
            }
            Order::Element { element, order: element_order } => {
                if self.has_shepherd() {
                    let self_host = self.placement.self_host;
                    self.exchange_limits.on_order(self_host, *element, element_order);
                }
                let is_for = |child: &Child| self.is_for(child, element_order);
                let receivers: Vec<bool> = self.children.iter().map(is_for).collect();
                self.pass_on(order, |child_index, _| receivers[child_index]);
            }
        }
        self.forward_output();
    }

    /// Whether an order about an element concerns hosts of this child.
    fn is_for(&self, child: &Child, order: &ElementOrder) -> bool {
        let node_range = self.node_range(child);
        !child.hosts.is_empty()
            && order.host().is_none_or(|host| child.hosts.contains(&host.0))
            && order.nodes().is_none_or(|nodes| !nodes.within(node_range).is_empty())
    }

    /// The nodes of the hosts of a child.
    fn node_range(&self, child: &Child) -> std::ops::Range<u32> {
        let hosts = &self.placement.hosts;
        let of_child = hosts.get(child.hosts.start as usize..child.hosts.end as usize);
        let [first, ..] = of_child.unwrap_or_default() else { return 0..0 };
        let last = of_child.and_then(<[_]>::last).unwrap_or(first);
        first.first_node..last.node_range().end
    }

    /// Sends an order to the selected children, except to lost ones.
    fn pass_on(&mut self, order: Order, is_for: impl Fn(usize, &Child) -> bool) {
        let children = self.children.iter().enumerate();
        let receivers = children.filter(|(index, child)| !child.is_closed && is_for(*index, child));
        self.outgoing.extend(receivers.map(|(index, _)| to_child(index, order.clone())));
    }

    fn on_job_order(&mut self, order: &JobOrder) {
        match order {
            JobOrder::Drain => self.questions.drained.ask_next(),
            JobOrder::Kill => self.on_kill(),
            JobOrder::StartStage(_) => {
                self.idle_summaries.clear();
                self.questions.samples.clear();
                self.exchange_limits.clear();
                self.tool_mergers.clear();
                self.children.iter_mut().for_each(|child| child.idle_summaries.clear());
            }
            JobOrder::Debugger(order) => self.exchange_limits.on_debugger(*order, &self.placement),
            JobOrder::Finish if !self.is_finished() => self.questions.finished.ask(ONLY_ONCE),
            JobOrder::Finish
            | JobOrder::StartJob(_)
            | JobOrder::Flushed { .. }
            | JobOrder::Stdin(_)
            | JobOrder::StdinEof
            | JobOrder::OutputClosed(_)
            | JobOrder::Signal(_)
            | JobOrder::SubscribeMetrics { .. }
            | JobOrder::Tool(_)
            | JobOrder::ToolFiles(_) => {}
        }
    }

    fn on_switch_order(&mut self, order: &SwitchOrder) {
        match order {
            SwitchOrder::Stop { switch_seq, .. } => {
                self.questions.stopped.ask(switch_seq.0);
            }
            SwitchOrder::Run { stop_condition, .. } => match stop_condition {
                StopCondition::Unchanged => {}
                StopCondition::OnOrder => self.questions.stopped.cancel(),
                // The job will stop without another order.
                StopCondition::After { switch_seq: seq, .. }
                | StopCondition::LocalRotation(LocalRotation { first_switch_seq: seq, .. }) => {
                    self.questions.stopped.ask(seq.0);
                }
            },
        }
    }

    /// A report has come from the host's own shepherd.
    pub fn on_shepherd_report(&mut self, report: ShepherdReport) {
        if !self.exchange_limits.may_report(&self.placement, &report) {
            return;
        }
        let report = match report {
            ShepherdReport::Program { child, answer } => return self.on_file_answer(child, answer),
            // The daemon itself has handled these reports.
            ShepherdReport::ToolsPrepared(_) | ShepherdReport::ToolFiles { .. } => return,
            ShepherdReport::FileRequest(request) => Report::FileRequest(request),
            ShepherdReport::Output(report) => Report::Output(report),
            ShepherdReport::Job(report) => Report::Job(report),
            ShepherdReport::Element { element, report } => Report::Element { element, report },
        };
        self.on_report(SHEPHERD_CHILD, report);
    }

    /// A child has sent a report, or the daemon makes a report instead of the child.
    pub fn on_report(&mut self, child_index: usize, report: Report) {
        let Some(child) = self.children.get_mut(child_index) else { return };
        if let Report::Element { element, .. }
        | Report::Switch(SwitchReport::IdleSummary { element, .. }) = &report
            && element.index() >= MAX_ELEMENTS
        {
            // No job has such an element: the report comes from a faulty or hostile shepherd.
            return;
        }
        match report {
            Report::FileRequest(request) => return self.on_file_request(child_index, request),
            Report::Job(JobReport::Ready) => {
                self.questions.ready.on_answer(child_index, ONLY_ONCE, ());
            }
            Report::Job(JobReport::Finished { elapsed_ns }) => {
                self.questions.finished.on_answer(child_index, ONLY_ONCE, elapsed_ns);
            }
            Report::Output(OutputReport::Drained) if self.killed => self.on_drained(child_index),
            Report::Output(report) => {
                if let OutputReport::Text { host, stream, is_partial_line, .. } = &report {
                    child.open_line = is_partial_line.then_some((*host, *stream));
                }
                child.queue.push_back(report);
            }
            Report::Switch(SwitchReport::IdleSummary { element, summary }) => {
                child.idle_summaries.insert(element, summary);
            }
            Report::Switch(SwitchReport::Stopped { switch_seq }) => {
                self.questions.stopped.on_answer(child_index, switch_seq.0, ());
            }
            Report::Element { element, report: ElementReport::SampleResult { round, sample } } => {
                self.on_sample(child_index, element, round, sample)
            }
            Report::Element { element, report: ElementReport::ToolEvent(event) } => {
                let reports = self.tool_mergers.on_event(child_index, element, event, self.now);
                reports.into_iter().for_each(|report| self.queue_report(report));
            }
            Report::Job(_) | Report::Element { .. } | Report::HostsLost { .. } => {
                self.queue_report(report)
            }
        }
        self.forward_output();
    }

    /// The child through which the host gets programs from the parent: its own shepherd. The node
    /// above the first host has no shepherd and passes programs on to the first host.
    fn program_child(&self) -> usize {
        if self.has_shepherd() { SHEPHERD_CHILD } else { SHEPHERD_CHILD + 1 }
    }

    fn has_shepherd(&self) -> bool {
        self.children.first().is_some_and(|child| !child.hosts.is_empty())
    }

    /// A child requests bytes of a program. A request of the shepherd goes to the parent. A request
    /// of a child host goes to the shepherd.
    fn on_file_request(&mut self, child_index: usize, request: FileRequest) {
        if child_index == self.program_child() {
            return self.outgoing.push(Outgoing::Parent(Report::FileRequest(request)));
        }
        let child = &mut self.children[child_index];
        let requested_file_bytes = child.requested_file_bytes.saturating_add(request.length);
        child.requested_file_bytes = requested_file_bytes.min(MAX_REQUESTED_FILE_BYTES);
        let child = u32::try_from(child_index).unwrap_or(u32::MAX);
        self.outgoing.push(Outgoing::Shepherd(ShepherdOrder::SendFile { child, request }));
    }

    /// The shepherd answers the request of a child host. It must not send more bytes than the child
    /// has requested, because all users share the link to that host.
    fn on_file_answer(&mut self, child: u32, answer: ProgramAnswer) {
        let child_index = child as usize;
        let Some(child) = self.children.get_mut(child_index).filter(|child| !child.is_closed)
        else {
            return;
        };
        if child_index != SHEPHERD_CHILD
            && let Some(left) = child.requested_file_bytes.checked_sub(answer.charge())
        {
            child.requested_file_bytes = left;
            self.outgoing.push(to_child(child_index, Order::Program(answer)));
        }
    }

    /// A child is lost and sends no further reports. The loss is reported to the parent.
    pub fn on_child_lost(&mut self, child_index: usize, code: u8, reason: String) {
        if let Some(child) = self.children.get_mut(child_index)
            && !child.is_closed
            && !self.questions.finished.has_answered(child_index)
        {
            let hosts = child.hosts.clone();
            let remains = match child_index {
                SHEPHERD_CHILD => Remains::Nothing,
                _ => Remains::Processes,
            };
            // The parent must get the loss before any report that the loss of the child completes.
            self.flush_pending_reports();
            let report = Report::HostsLost { code, hosts, remains, reason };
            self.outgoing.push(Outgoing::Parent(report));
        }
        self.close_child(child_index);
    }

    /// A child sends no further reports.
    pub fn close_child(&mut self, child_index: usize) {
        if let Some(child) = self.children.get_mut(child_index) {
            child.is_closed = true;
            if let Some((host, stream)) = child.open_line.take() {
                // The nodes above hold back all other output until this line ends.
                let (bytes, is_partial_line) = (b"\n".to_vec(), false);
                let text = OutputReport::Text { host, stream, bytes, is_partial_line };
                child.queue.push_back(text);
            }
        }
        let reports = self.tool_mergers.on_child_closed(child_index, self.now);
        reports.into_iter().for_each(|report| self.queue_report(report));
        self.forward_output();
    }

    /// A child has sampled an element. The samples of all children are sent to the parent as one
    /// report, after all of the children's earlier reports. A lost child never answers, but then
    /// the job ends.
    fn on_sample(
        &mut self,
        child_index: usize,
        element: ElementIndex,
        round: SampleRound,
        sample: ActivitySample,
    ) {
        let samples = self.questions.samples.entry(element);
        let samples = samples.or_insert_with(|| new_gather(&self.children));
        // The first answer to a round opens the question for this round.
        if samples.number() < round.0 {
            samples.ask(round.0);
        }
        samples.on_answer(child_index, round.0, sample);
        if let Some(answers) = samples.take(|_| false) {
            let samples = answers.into_iter().map(|(_, sample)| sample);
            let sample = samples.fold(ActivitySample::EMPTY, ActivitySample::combine);
            self.queue_report(ElementReport::SampleResult { round, sample }.of(element));
        }
    }

    /// Reports whether all children are idle, if the state has changed or if all children have gone
    /// through a further stop. A host that has not reported counts as busy.
    fn report_idle(&mut self) {
        let elements: BTreeSet<ElementIndex> =
            self.children.iter().flat_map(|child| child.idle_summaries.keys().copied()).collect();
        for element in elements {
            let children_with_hosts = self.children.iter().filter(|child| !child.hosts.is_empty());
            let combined = children_with_hosts
                .map(|child| child.idle_summaries.get(&element).unwrap_or(&IdleSummary::BUSY))
                .fold(IdleSummary::EMPTY, |sum, summary| sum.combine(*summary));
            let summary = combined.simplified();
            if self.idle_summaries.insert(element, summary) != Some(summary) {
                self.queue_report(Report::Switch(SwitchReport::IdleSummary { element, summary }));
            }
        }
    }

    /// Returns the messages to send at the end of an iteration of the daemon's loop.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        self.report_idle();
        self.flush_pending_reports();
        for (child_index, child) in self.children.iter_mut().enumerate() {
            let credit = std::mem::take(&mut child.credit_to_grant);
            if credit > 0 && !child.is_closed {
                self.outgoing.push(to_child(child_index, Order::OutputAck(credit)));
            }
        }
        if self.killed || self.children.iter().all(|child| child.queue.is_empty()) {
            let is_lost = |child_index: usize| self.children[child_index].is_closed;
            if let Some(answers) = self.questions.finished.take(is_lost) {
                let elapsed_ns = answers.into_iter().map(|(_, elapsed_ns)| elapsed_ns).max();
                let report = JobReport::Finished { elapsed_ns: elapsed_ns.unwrap_or(0) };
                self.outgoing.push(Outgoing::Parent(Report::Job(report)));
            }
        }
        std::mem::take(&mut self.outgoing)
    }

    fn queue_report(&mut self, report: Report) {
        if let Err(report) = self.pending_reports.push(report) {
            self.flush_pending_reports();
            self.outgoing.push(Outgoing::Parent(report));
        }
    }

    fn flush_pending_reports(&mut self) {
        while let Some(report) = self.pending_reports.pop() {
            self.outgoing.push(Outgoing::Parent(report));
        }
    }

    /// The job is killed. Its end no longer waits for output, because the user may not read it.
    fn on_kill(&mut self) {
        self.killed = true;
        for child_index in 0..self.children.len() {
            let queue = &mut self.children[child_index].queue;
            if queue.contains(&OutputReport::Drained) {
                queue.retain(|report| *report != OutputReport::Drained);
                self.on_drained(child_index);
            }
        }
        self.forward_output();
    }

    /// All output of a child was forwarded.
    fn on_drained(&mut self, child_index: usize) {
        let number = self.questions.drained.number();
        self.questions.drained.on_answer(child_index, number, ());
    }

    /// Forwards the output that the credit covers.
    fn forward_output(&mut self) {
        while let Some(child_index) = self.next_output_child() {
            let child = &mut self.children[child_index];
            match child.queue.front() {
                Some(OutputReport::Text { bytes, is_partial_line, .. }) => {
                    let (len, is_partial_line) = (bytes.len() as u64, *is_partial_line);
                    if len > self.credit {
                        break;
                    }
                    self.credit -= len;
                    child.credit_to_grant += len;
                    self.mid_line_child = is_partial_line.then_some(child_index);
                }
                Some(OutputReport::Drained) => {
                    child.queue.pop_front();
                    self.on_drained(child_index);
                    continue;
                }
                Some(OutputReport::Flush { .. }) | None => {}
            }
            let report = child.queue.pop_front().map(Report::Output);
            self.outgoing.extend(report.map(Outgoing::Parent));
        }
        self.report_complete();
    }

    /// Reports each question that all children have answered.
    fn report_complete(&mut self) {
        let is_done = |child_index: usize| {
            let child = &self.children[child_index];
            child.is_closed && (child.queue.is_empty() || self.killed)
        };
        if self.questions.drained.take(is_done).is_some() {
            self.outgoing.push(Outgoing::Parent(Report::Output(OutputReport::Drained)));
        }
        let is_over = |child_index: usize| {
            self.children[child_index].is_closed
                || self.questions.finished.has_answered(child_index)
        };
        if let Some(answers) = self.questions.stopped.take(is_over) {
            // In a rotation, the last of several stops counts.
            let last = answers.into_iter().map(|(switch_seq, ())| switch_seq).max().unwrap_or(0);
            let switch_seq = SwitchSeq(last.max(self.questions.stopped.number()));
            self.queue_report(Report::Switch(SwitchReport::Stopped { switch_seq }));
        }
        // After the loss of a child the host is never ready, because the job ends.
        if self.questions.ready.take(|_| false).is_some() {
            self.queue_report(Report::Job(JobReport::Ready));
        }
    }

    /// The child whose output is forwarded next, if any has output.
    fn next_output_child(&mut self) -> Option<usize> {
        if let Some(child_index) = self.mid_line_child {
            let child = &self.children[child_index];
            if !child.queue.is_empty() {
                return Some(child_index);
            }
            if !child.is_closed {
                return None;
            }
            // The child will not send the rest of its line.
            self.mid_line_child = None;
        }
        let count = self.children.len();
        let next = (1..=count)
            .map(|step| (self.last_served + step) % count)
            .find(|index| !self.children[*index].queue.is_empty())?;
        self.last_served = next;
        Some(next)
    }
}

#[cfg(test)]
#[path = "tree_node_tests.rs"]
mod tests;
