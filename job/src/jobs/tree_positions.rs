//! A daemon's positions in the range trees of jobs, and the links to parents and children: how the
//! daemon requests links, which orders and reports of other hosts count, and which jobs or hosts
//! are lost with a link.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use score_proto::exit_code::EXIT_HOST_LOST;
use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{HopOrder, HopReport, Placement};

use super::{Connection, Effect, HostIdentity, JobTag, LinkId};
use crate::cluster::MonotonicTime;
use crate::host::tree_node::{Outgoing, TreeNode};

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

/// The outgoing messages of a position.
#[derive(Debug)]
pub(super) struct PositionMessages {
    pub(super) position: TreePosition,
    pub(super) parent: Parent,
    pub(super) tag: JobTag,
    pub(super) messages: Vec<Outgoing>,
    /// These are the last messages.
    pub(super) is_finished: bool,
}

/// See the [module](self). Effects are added to `effects`.
#[derive(Debug, Default)]
pub(super) struct TreePositions {
    /// None: a daemon without links.
    identity: Option<HostIdentity>,
    positions: BTreeMap<TreePosition, TreeLinks>,
    /// The positions whose nodes may have messages to move.
    touched: BTreeSet<TreePosition>,
}

impl TreePositions {
    /// The daemon has links from now on, or a new incarnation.
    pub(super) fn set_identity(&mut self, identity: HostIdentity) {
        self.identity = Some(identity);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(super) fn get(&self, position: TreePosition) -> Option<&TreeLinks> {
        self.positions.get(&position)
    }

    /// Enters the tree at the position of the master. The first host of the job may be this host or
    /// another one.
    pub(super) fn enter_led(
        &mut self,
        job: JobId,
        placement: Placement,
        effects: &mut Vec<Effect>,
    ) {
        let first_name = placement.hosts.first().map(|first| first.name.as_str());
        let own_name = self.identity.as_ref().map(|identity| identity.name.as_str());
        // A daemon without links only has jobs on its own host.
        let is_above_first_host = own_name.is_some() && first_name != own_name;
        let (position, node) = match is_above_first_host {
            true => (TreePosition::above_first_host(job), TreeNode::at_master(placement)),
            false => (TreePosition::host(job), TreeNode::new(placement)),
        };
        self.enter(position, node, Parent::Master, effects);
    }

    /// Takes a position in a job's range tree. Requests links to the child hosts, and sends them
    /// the placement.
    fn enter(
        &mut self,
        position: TreePosition,
        mut node: TreeNode,
        parent: Parent,
        effects: &mut Vec<Effect>,
    ) {
        node.announce_placement();
        let hosts = &node.placement().hosts;
        let mut connecting = 0;
        for (child_index, host) in node.child_hosts() {
            let Some(host) = hosts.get(host.index()) else { continue };
            let connection = Connection { position, child_index };
            effects.push(Effect::Connect(connection, host.clone()));
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

    /// An order of the parent has arrived over a link.
    pub(super) fn on_order(
        &mut self,
        (link, tag): (LinkId, JobTag),
        order: HopOrder,
        now: MonotonicTime,
        effects: &mut Vec<Effect>,
    ) {
        let position = TreePosition::host(tag.job);
        // None: the job has just ended, or the sender is not the parent.
        let links = self
            .positions
            .get_mut(&position)
            .filter(|links| links.tag(tag.job) == tag && links.parent == Parent::Peer(link));
        match (order, links) {
            (HopOrder::SetPlacement(placement), _) => {
                self.on_placement(link, tag, placement, effects)
            }
            // Aborts only this host's part. If this daemon also leads the job, reports of lost
            // hosts reach the master.
            (HopOrder::Abort, Some(_)) => self.abort(position, effects),
            (HopOrder::Tree(order), Some(links)) => {
                links.node.set_time(now);
                links.node.on_order(order);
                self.touched.insert(position);
            }
            (HopOrder::Abort | HopOrder::Tree(_), None) => {}
        }
    }

    /// This host gets a part of a job.
    fn on_placement(
        &mut self,
        link: LinkId,
        tag: JobTag,
        placement: Placement,
        effects: &mut Vec<Effect>,
    ) {
        let position = TreePosition::host(tag.job);
        // The job that has this number here belongs to a server that no longer runs.
        if self.positions.get(&position).is_some_and(|links| links.tag(tag.job) != tag) {
            self.abort(position, effects);
        }
        if let Err(reason) = check_placement(&placement, tag, self.identity.as_ref()) {
            let report = HopReport::UnknownJob { reason };
            return effects.push(Effect::SendReport(link, tag, report));
        }
        if !self.positions.contains_key(&position) {
            self.enter(position, TreeNode::new(placement), Parent::Peer(link), effects);
        }
    }

    /// A report of a child has arrived over a link. Returns the path of the directory of a led job,
    /// if the report contains it.
    pub(super) fn on_report(
        &mut self,
        link: LinkId,
        tag: JobTag,
        report: HopReport,
        effects: &mut Vec<Effect>,
    ) -> Option<(JobHostId, String)> {
        for position in positions_of(tag.job) {
            let links = self.positions.get_mut(&position);
            let Some(links) = links.filter(|links| links.tag(tag.job) == tag) else { continue };
            let Some(child_index) = links.child_of_link(link) else { continue };
            match report {
                HopReport::UnknownJob { reason } => links.fail_child(child_index, &reason),
                HopReport::Directory { host, path } => match links.parent {
                    Parent::Master => return Some((host, path)),
                    Parent::Peer(link) => {
                        let report = HopReport::Directory { host, path };
                        effects.push(Effect::SendReport(link, tag, report));
                        return None;
                    }
                },
                HopReport::Tree(report) => links.node.on_report(child_index, report),
            }
            self.touched.insert(position);
            return None;
        }
        None
    }

    /// An order to a child was too long to be sent.
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

    /// A link is lost. Jobs whose parent is at its other end are aborted. Jobs that have a child at
    /// that end lose the child's hosts.
    pub(super) fn on_link_lost(&mut self, link: LinkId, reason: &str, effects: &mut Vec<Effect>) {
        let positions: Vec<TreePosition> = self.positions.keys().copied().collect();
        for position in positions {
            let Some(links) = self.positions.get_mut(&position) else { continue };
            if links.parent == Parent::Peer(link) {
                self.abort(position, effects);
            } else if let Some(child_index) = links.child_of_link(link) {
                links.fail_child(child_index, reason);
                self.touched.insert(position);
            }
        }
    }

    /// Leaves a tree. This host, and the hosts below, end their part of the job without a report.
    pub(super) fn abort(&mut self, position: TreePosition, effects: &mut Vec<Effect>) {
        let Some(links) = self.positions.remove(&position) else { return };
        self.touched.remove(&position);
        let job = position.job;
        for link in links.child_links.values() {
            effects.push(Effect::SendOrder(*link, links.tag(job), HopOrder::Abort));
        }
        if position.level == TreeLevel::Host {
            effects.push(Effect::AbortHere(job));
        }
    }

    /// Leaves all trees.
    pub(super) fn abort_all(&mut self, effects: &mut Vec<Effect>) {
        for position in std::mem::take(&mut self.positions).into_keys() {
            if position.level == TreeLevel::Host {
                effects.push(Effect::AbortHere(position.job));
            }
        }
        self.touched.clear();
    }

    /// The next deadline of a node.
    pub(super) fn deadline(&self) -> Option<MonotonicTime> {
        self.positions.values().filter_map(|links| links.node.deadline()).min()
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: MonotonicTime) {
        for (position, links) in &mut self.positions {
            if links.node.deadline().is_some_and(|due| due <= now) {
                links.node.set_time(now);
                links.node.on_tick();
                self.touched.insert(*position);
            }
        }
    }

    /// A node that is about to handle an event, after which it may have messages to move.
    pub(super) fn touch(&mut self, position: TreePosition) -> Option<&mut TreeNode> {
        let links = self.positions.get_mut(&position)?;
        self.touched.insert(position);
        Some(&mut links.node)
    }

    /// The node of a led job at its master, before it handles an order of the master.
    pub(super) fn touch_led(&mut self, job: JobId) -> Option<&mut TreeNode> {
        let is_led = |position: &TreePosition| {
            self.get(*position).is_some_and(|links| links.parent == Parent::Master)
        };
        let position = positions_of(job).into_iter().find(is_led)?;
        self.touch(position)
    }

    /// The messages of a position that has its links, until there are none left.
    pub(super) fn take_messages(&mut self) -> Option<PositionMessages> {
        loop {
            let position = self.next_touched()?;
            let Some(links) = self.positions.get_mut(&position) else { continue };
            let messages = links.node.take_outgoing();
            let (is_finished, parent) = (links.node.is_finished(), links.parent);
            let tag = links.tag(position.job);
            if !messages.is_empty() {
                // Handing out a message may have made room for more.
                self.touched.insert(position);
            }
            return Some(PositionMessages { position, parent, tag, messages, is_finished });
        }
    }

    /// A position that may have messages to move and has its links.
    fn next_touched(&mut self) -> Option<TreePosition> {
        let is_connected = |position: &&TreePosition| {
            self.positions.get(position).is_none_or(|links| links.connecting == 0)
        };
        let position = self.touched.iter().find(is_connected).copied()?;
        self.touched.remove(&position);
        Some(position)
    }

    /// Leaves a tree after the last messages. Returns whether the daemon had this position.
    pub(super) fn leave(&mut self, position: TreePosition) -> bool {
        self.positions.remove(&position).is_some()
    }

    /// The links that carry orders of a led job.
    pub(super) fn led_links(&self, job: JobId) -> impl Iterator<Item = LinkId> + '_ {
        self.led(job).into_iter().flat_map(|links| links.child_links.values().copied())
    }

    /// The node of a led job at its master, with its links.
    pub(super) fn led(&self, job: JobId) -> Option<&TreeLinks> {
        let mut positions = positions_of(job).into_iter().filter_map(|one| self.get(one));
        positions.find(|links| links.parent == Parent::Master)
    }

    /// Whether jobs use a link. While there are no jobs, every link counts as used.
    pub(super) fn uses_link(&self, link: LinkId) -> bool {
        let uses_link = |links: &TreeLinks| {
            links.parent == Parent::Peer(link) || links.child_of_link(link).is_some()
        };
        self.positions.is_empty() || self.positions.values().any(uses_link)
    }
}

/// The positions that a daemon can have in the trees of a job.
fn positions_of(job: JobId) -> [TreePosition; 2] {
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

/// The line for the user when hosts are lost. The link to the first of these hosts is broken.
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
