//! A daemon's positions in the range trees of jobs, and the links to parents and children: they are
//! opened, used by orders and reports of other hosts, and lost.

use std::collections::BTreeMap;
use std::ops::Range;

use score_proto::exit_code::EXIT_HOST_LOST;
use score_proto::ids::JobId;
use score_proto::job_control::{
    HopOrder, HopReport, Placement, SwitchOrder, SwitchReport, SwitchSeq,
};

use super::{Connection, Effect, HostIdentity, JobTag, Jobs, LinkId, LocalReport};
use crate::cluster::MonotonicTime;
use crate::host::tree_node::TreeNode;

/// The level of a position in a job's range tree. A daemon may have both positions of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TreeLevel {
    /// The node of this host, on which the job runs.
    Host,
    /// The node above the first host. The daemon leads the job, which begins on another host.
    AboveFirstHost,
}

/// A position in a job's range tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TreePosition {
    pub(super) job: JobId,
    pub(super) level: TreeLevel,
}

impl TreePosition {
    /// The position of this host.
    pub(super) fn host(job: JobId) -> Self {
        Self { job, level: TreeLevel::Host }
    }

    /// The position above the first host.
    pub(super) fn above_first_host(job: JobId) -> Self {
        Self { job, level: TreeLevel::AboveFirstHost }
    }
}

/// The parent of a host in a job's range tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The job master in this daemon.
    Master,
    /// The daemon of another host, over this link.
    Peer(LinkId),
}

/// A node of a job's range tree with its links.
#[derive(Debug)]
pub(super) struct TreeLinks {
    pub(super) parent: Parent,
    /// The links to the child hosts, by child index.
    pub(super) child_links: BTreeMap<usize, LinkId>,
    /// The number of child hosts whose links are being opened. Until this is 0, no message leaves
    /// the node.
    pub(super) connecting: usize,
    pub(super) node: TreeNode,
}

impl TreeLinks {
    /// The child that reports over a link.
    fn child_of_link(&self, link: LinkId) -> Option<usize> {
        let mut child_links = self.child_links.iter();
        child_links.find(|(_, child_link)| **child_link == link).map(|(index, _)| *index)
    }

    pub(super) fn tag(&self, job: JobId) -> JobTag {
        JobTag { job, incarnation: self.node.placement().job_incarnation }
    }

    /// A child is lost, together with the hosts that report through it.
    fn fail_child(&mut self, child_index: usize, reason: &str) {
        let hosts = self.node.hosts(child_index);
        let text = lost_text(self.node.placement(), hosts, reason);
        self.node.on_child_lost(child_index, EXIT_HOST_LOST, text);
    }
}

impl Jobs {
    /// Takes a position in a job's range tree. Requests links to the child hosts, and sends them
    /// the placement.
    pub(super) fn enter_tree(
        &mut self,
        position: TreePosition,
        mut node: TreeNode,
        parent: Parent,
    ) {
        node.announce_placement();
        let hosts = &node.placement().hosts;
        let mut connecting = 0;
        for (child_index, host) in node.child_hosts() {
            let Some(host) = hosts.get(host.index()) else { continue };
            let connection = Connection { position, child_index };
            self.effects.push(Effect::Connect(connection, host.clone()));
            connecting += 1;
        }
        let child_links = BTreeMap::new();
        self.positions.insert(position, TreeLinks { parent, child_links, connecting, node });
        self.touched.insert(position);
    }

    /// A link to a child host was found or opened, or could not be opened.
    pub(super) fn on_connected(
        &mut self,
        Connection { position, child_index }: Connection,
        result: Result<LinkId, String>,
    ) {
        let Some(links) = self.positions.get_mut(&position) else { return };
        links.connecting = links.connecting.saturating_sub(1);
        match result {
            Ok(link) => _ = links.child_links.insert(child_index, link),
            Err(reason) => links.node.on_child_lost(child_index, EXIT_HOST_LOST, reason),
        }
        self.touched.insert(position);
    }

    pub(super) fn on_order(&mut self, link: LinkId, tag: JobTag, order: HopOrder) {
        let position = TreePosition::host(tag.job);
        // None: the job has just ended, or the sender is not its parent.
        let links = self
            .positions
            .get_mut(&position)
            .filter(|links| links.tag(tag.job) == tag && links.parent == Parent::Peer(link));
        match (order, links) {
            (HopOrder::SetPlacement(placement), _) => self.on_placement(link, tag, placement),
            // Aborts only this host's part. If this daemon also leads the job, the master learns
            // from reports that hosts are lost.
            (HopOrder::Abort, Some(_)) => self.abort_position(position),
            (HopOrder::Tree(order), Some(links)) => {
                links.node.set_time(self.now);
                links.node.on_order(order);
                self.touched.insert(position);
            }
            (HopOrder::Abort | HopOrder::Tree(_), None) => {}
        }
    }

    /// This host gets a part of a job.
    fn on_placement(&mut self, link: LinkId, tag: JobTag, placement: Placement) {
        let position = TreePosition::host(tag.job);
        // The job that has this number here belongs to a server that no longer runs.
        if self.positions.get(&position).is_some_and(|links| links.tag(tag.job) != tag) {
            self.abort_position(position);
        }
        if let Err(reason) = check_placement(&placement, tag, self.identity.as_ref()) {
            let report = HopReport::UnknownJob { reason };
            return self.effects.push(Effect::SendReport(link, tag, report));
        }
        if !self.positions.contains_key(&position) {
            self.enter_tree(position, TreeNode::new(placement), Parent::Peer(link));
        }
    }

    pub(super) fn on_report(&mut self, link: LinkId, tag: JobTag, report: HopReport) {
        for position in positions_of(tag.job) {
            let links = self.positions.get_mut(&position);
            let Some(links) = links.filter(|links| links.tag(tag.job) == tag) else { continue };
            let Some(child_index) = links.child_of_link(link) else { continue };
            match report {
                HopReport::UnknownJob { reason } => links.fail_child(child_index, &reason),
                HopReport::Directory { host, path } => match links.parent {
                    Parent::Master => return self.note_directory(tag.job, host, path),
                    Parent::Peer(link) => {
                        let report = HopReport::Directory { host, path };
                        return self.effects.push(Effect::SendReport(link, tag, report));
                    }
                },
                HopReport::Tree(report) => links.node.on_report(child_index, report),
            }
            self.touched.insert(position);
            return;
        }
    }

    pub(super) fn on_order_too_long(&mut self, link: LinkId, tag: JobTag) {
        for position in positions_of(tag.job) {
            let links = self.positions.get_mut(&position);
            let Some(links) = links.filter(|links| links.tag(tag.job) == tag) else { continue };
            let Some(child_index) = links.child_of_link(link) else { continue };
            let reason = "arguments and environment are too long to be sent to other hosts";
            links.node.on_child_lost(child_index, EXIT_HOST_LOST, reason.to_owned());
            self.touched.insert(position);
        }
    }

    /// A link is lost. Jobs whose parent is at its other end are aborted. Jobs that have a child
    /// there lose the child's hosts.
    pub(super) fn on_link_lost(&mut self, link: LinkId, reason: &str) {
        let positions: Vec<TreePosition> = self.positions.keys().copied().collect();
        for position in positions {
            let Some(links) = self.positions.get_mut(&position) else { continue };
            if links.parent == Parent::Peer(link) {
                self.abort_position(position);
            } else if let Some(child_index) = links.child_of_link(link) {
                links.fail_child(child_index, reason);
                self.touched.insert(position);
            }
        }
    }

    pub(super) fn abort_position(&mut self, position: TreePosition) {
        let Some(links) = self.positions.remove(&position) else { return };
        self.touched.remove(&position);
        let job = position.job;
        for link in links.child_links.values() {
            self.effects.push(Effect::SendOrder(*link, links.tag(job), HopOrder::Abort));
        }
        if position.level == TreeLevel::Host {
            self.effects.push(Effect::AbortHere(job));
        }
    }

    pub(super) fn abort_all_here(&mut self) {
        let positions: Vec<TreePosition> = self.positions.keys().copied().collect();
        for position in positions {
            self.positions.remove(&position);
            if position.level == TreeLevel::Host {
                self.effects.push(Effect::AbortHere(position.job));
            }
        }
        self.touched.clear();
    }

    /// The next deadline of a node.
    pub(super) fn tree_deadline(&self) -> Option<MonotonicTime> {
        self.positions.values().filter_map(|links| links.node.deadline()).min()
    }

    pub(super) fn tick_tree(&mut self) {
        for (position, links) in &mut self.positions {
            if links.node.deadline().is_some_and(|due| due <= self.now) {
                links.node.set_time(self.now);
                links.node.on_tick();
                self.touched.insert(*position);
            }
        }
    }
}

/// The rotation of the jobs of this host, in which neither master nor scheduler takes part.
impl Jobs {
    /// The job whose turn it is, and the stop that it will report.
    pub fn expected_rotation_stop(&self) -> Option<(JobId, SwitchSeq)> {
        self.rotation.expected_stop()
    }

    /// The job of the current turn has stopped. Returns the job of the next turn and its order, if
    /// all jobs of the rotation can continue. `has_shepherd` returns whether a job has a shepherd.
    pub fn next_rotation_turn(
        &mut self,
        has_shepherd: impl Fn(JobId) -> bool,
    ) -> Option<(JobId, SwitchOrder)> {
        let is_ready = |job: JobId| {
            let links = self.positions.get(&TreePosition::host(job));
            has_shepherd(job) && links.is_some_and(|links| !links.node.is_idle())
        };
        if self.rotation.jobs().all(is_ready) { self.rotation.next_turn() } else { None }
    }

    /// Ends the rotation with this stop, and reports the stop to the scheduler. The daemon calls
    /// this for the last stop, if the rotation cannot continue, or if the scheduler has to decide
    /// because a job may be idle.
    pub fn end_rotation(&mut self, job: JobId, switch_seq: SwitchSeq) {
        self.rotation.end();
        self.on_local_report(job, LocalReport::Switch(SwitchReport::Stopped { switch_seq }));
    }

    /// The stop of a job was enforced. It ends the rotation of which the job is a part.
    pub fn end_rotation_with(&mut self, job: JobId) {
        self.rotation.end_with(job);
    }
}

/// Queries of the daemon about positions.
impl Jobs {
    /// Whether this daemon neither leads a job nor takes part in one.
    pub fn is_empty(&self) -> bool {
        self.led_jobs.is_empty() && self.positions.is_empty()
    }

    /// The link to the parent of a job's part on this host, if the parent is another host.
    pub fn parent_link(&self, job: JobId) -> Option<LinkId> {
        match self.positions.get(&TreePosition::host(job))?.parent {
            Parent::Peer(link) => Some(link),
            Parent::Master => None,
        }
    }

    /// The links that carry orders of a led job.
    pub fn led_links(&self, job: JobId) -> impl Iterator<Item = LinkId> + '_ {
        let positions = positions_of(job).into_iter().filter_map(|one| self.positions.get(&one));
        let led = positions.filter(|links| links.parent == Parent::Master);
        led.flat_map(|links| links.child_links.values().copied())
    }

    /// Whether jobs use a link. While there are no jobs, every link counts as used.
    pub fn uses_link(&self, link: LinkId) -> bool {
        let uses_link = |links: &TreeLinks| {
            links.parent == Parent::Peer(link) || links.child_of_link(link).is_some()
        };
        self.positions.is_empty() || self.positions.values().any(uses_link)
    }

    /// The node of a led job at its master.
    pub(super) fn led_node(&self, job: JobId) -> Option<&TreeNode> {
        let mut positions =
            positions_of(job).into_iter().filter_map(|one| self.positions.get(&one));
        positions.find(|links| links.parent == Parent::Master).map(|links| &links.node)
    }
}

/// The positions that a daemon can have in the trees of a job.
pub(super) fn positions_of(job: JobId) -> [TreePosition; 2] {
    [TreePosition::above_first_host(job), TreePosition::host(job)]
}

/// Checks that this daemon may take part in the job.
fn check_placement(
    placement: &Placement,
    tag: JobTag,
    identity: Option<&HostIdentity>,
) -> Result<(), String> {
    placement.check()?;
    let expected_incarnation = placement.self_placement().and_then(|host| host.incarnation);
    let incarnation = identity.map(|identity| identity.incarnation);
    match expected_incarnation == incarnation && placement.job_incarnation == tag.incarnation {
        true => Ok(()),
        false => Err("its scored has restarted since the job was assigned to it".to_owned()),
    }
}

/// The line for the user when hosts are lost. The link to the first of them is broken.
fn lost_text(placement: &Placement, hosts: Range<u32>, reason: &str) -> String {
    let names: Vec<&str> =
        hosts.filter_map(|host| Some(placement.hosts.get(host as usize)?.name.as_str())).collect();
    let first = names.first().copied().unwrap_or("?");
    let unreachable_note = match names.len() {
        0 | 1 => String::new(),
        2..=5 => format!("; unreachable with it: {}", names[1..].join(", ")),
        count => format!("; unreachable with it: {} hosts", count - 1),
    };
    format!("host {first} is lost: {reason}{unreachable_note}. Every process of the job is killed")
}
