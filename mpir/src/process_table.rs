//! Builds the table of the processes of a stage from the lists of its hosts.

use score_proto::job_control::ProcessBlock;

use super::symbols::Row;

/// A complete table.
#[derive(Debug, PartialEq, Eq)]
pub struct CompleteTable {
    /// The stage.
    pub stage: u32,
    /// The names of the hosts.
    pub hosts: Vec<String>,
    /// The rows, by element and then by rank. [`Row::program`] is the element.
    pub rows: Vec<Row>,
}

/// A table that is being built.
#[derive(Debug)]
pub struct TableBuilder {
    stage: u32,
    hosts: Vec<String>,
    /// The index of the host and the process id, by element and node. `None` if the process is not
    /// yet listed.
    listed: Vec<Vec<Option<(usize, u32)>>>,
    missing: usize,
}

impl TableBuilder {
    /// A table for a stage with this number of elements, each with this number of nodes.
    pub fn new(stage: u32, elements: usize, nodes: usize) -> Self {
        let listed = vec![vec![None; nodes]; elements];
        Self { stage, hosts: Vec::new(), listed, missing: elements * nodes }
    }

    /// The stage.
    pub fn stage(&self) -> u32 {
        self.stage
    }

    /// Whether all processes are listed.
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Adds processes that a host lists. If a process is listed twice, the later entry counts.
    /// Processes outside the job are ignored.
    pub fn add(&mut self, host_name: &str, block: &ProcessBlock) {
        let host = match self.hosts.iter().rposition(|name| name == host_name) {
            Some(index) => index,
            None => {
                self.hosts.push(host_name.to_owned());
                self.hosts.len() - 1
            }
        };
        let nodes = self.listed.get_mut(block.element.index());
        let entries = nodes.and_then(|nodes| nodes.get_mut(block.first_node as usize..));
        for (entry, pid) in entries.unwrap_or_default().iter_mut().zip(&block.pids) {
            if entry.replace((host, *pid)).is_none() {
                self.missing -= 1;
            }
        }
    }

    /// The table. `None` if some processes are not yet listed.
    pub fn finish(self) -> Option<CompleteTable> {
        if !self.is_complete() {
            return None;
        }
        let mut rows = Vec::new();
        for (program, nodes) in self.listed.into_iter().enumerate() {
            for (host, pid) in nodes.into_iter().flatten() {
                let pid = i32::try_from(pid).unwrap_or(0);
                // A node without a process has no row.
                if pid > 0 {
                    rows.push(Row { host, program, pid });
                }
            }
        }
        Some(CompleteTable { stage: self.stage, hosts: self.hosts, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::{ElementIndex, JobHostId};

    #[test]
    fn rows_are_by_element_then_by_rank_and_nodes_without_a_process_have_none() {
        let mut builder = TableBuilder::new(3, 2, 3);
        let mut add = |host: &str, element, first_node, pids: &[u32]| {
            let host_id = JobHostId(0);
            let block = ProcessBlock {
                host: host_id,
                element: ElementIndex(element),
                first_node,
                pids: pids.to_vec(),
            };
            builder.add(host, &block);
            builder.is_complete()
        };
        assert!(!add("b", 1, 2, &[12]) && !add("a", 1, 0, &[10, 11]) && !add("a", 0, 0, &[20, 0]));
        // Processes outside the job are ignored.
        assert!(!add("a", 2, 0, &[1]) && !add("a", 0, 3, &[1]) && !add("a", 9, u32::MAX, &[1]));
        assert!(add("b", 0, 2, &[22, 99]));
        let table = builder.finish().unwrap();
        assert_eq!((table.stage, table.hosts), (3, vec!["b".to_owned(), "a".to_owned()]));
        let rows: Vec<_> = table.rows.iter().map(|row| (row.program, row.host, row.pid)).collect();
        assert_eq!(rows, [(0, 1, 20), (0, 0, 22), (1, 1, 10), (1, 1, 11), (1, 0, 12)]);
        assert_eq!(TableBuilder::new(0, 1, 1).finish(), None);
    }
}
